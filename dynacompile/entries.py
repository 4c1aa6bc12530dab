"""Views of what regions hold: buckets and their entries, as plain facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from dynacompile.guards.program import described
from dynacompile.native import core as native_core
from dynacompile.quoting import printable

BYTES_OF_GUARD = 400  # of its checks, accessors and row
BYTES_OF_NODE = 1500  # of a graph's node, with what it knows of its value


@dataclass(frozen=True)
class EntryView:
    """One compiled version of a frame. hits: calls that it served. seconds: what compiling it took. last_used: seconds since the epoch, 0 for never.
    lookup_ns: what checking its guards took, hot and with cold caches. bytes: an estimate."""

    frame: str
    bucket: int
    guards: tuple[str, ...]
    hits: int
    seconds: float
    last_used: float
    lookup_ns: tuple[float, float]
    bytes: int

    def __str__(self) -> str:
        hot, cold = self.lookup_ns
        head = (
            f"{self.frame}: {self.hits} hits, {self.seconds:.3f} s to compile, {len(self.guards)} guards in {hot:.0f} ns ({cold:.0f} cold), {self.bytes} bytes"
        )
        return "\n".join([head, *(f"    {guard}" for guard in self.guards)])


@dataclass(frozen=True)
class BucketView:
    """The entries of one region in one bucket, most recently used first for each code object. limit: entries for each of these."""

    id: int
    region: str
    limit: int
    entries: tuple[EntryView, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  {entry}" for entry in self.entries)
        return f"bucket {self.id} of {self.region}: {len(self.entries)} entries, at most {self.limit} for each code object" + (f"\n{lines}" if lines else "")


def view(code: CodeType, bucket: int, entry: Any) -> EntryView:
    info = entry.info
    frame = printable(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")
    guards = tuple(str(described(guard)) for guard in info.captured.guards)
    return EntryView(frame, bucket, guards, entry.hits, info.seconds, entry.last_used, info.lookup_ns, info.bytes)


def bucket_view(codes: Iterable[CodeType], state: Any) -> BucketView:
    """The entries that belong to `state`, a RegionState; of the shared bucket those that this region made."""
    found = []
    for code in sorted(codes, key=lambda c: (c.co_filename, c.co_firstlineno)):
        for bucket, entry in native_core().entries(code):
            if bucket == state.bucket and entry.kind == state.kind and (bucket >= 0 or entry.info.region == state.name):
                found.append(view(code, bucket, entry))
    return BucketView(state.bucket, state.name, state.limit, tuple(found))


def estimated_bytes(captured: Any, code: CodeType) -> int:
    """Of the entry that runs `code`: the code, the guards, the graph and the tensors that it holds."""
    total = len(code.co_code) + BYTES_OF_GUARD * len(captured.guards)
    if captured.compact is None:
        return total
    constants = {id(t): t for t in vars(captured.compact).values() if isinstance(t, torch.Tensor)}
    return total + BYTES_OF_NODE * len(captured.compact.graph.nodes) + sum(t.numel() * t.itemsize for t in constants.values())
