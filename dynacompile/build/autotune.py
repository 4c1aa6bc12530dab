"""Choosing a kernel's candidate by measuring, checking the candidates against each other, and remembering the winner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from dynacompile.build.claims import once
from dynacompile.build.processor import processor
from dynacompile.build.store import Store
from dynacompile.env import Env
from dynacompile.events import KernelTuned
from dynacompile.ir.calls import Call
from dynacompile.ir.extents import example_reach
from dynacompile.ir.index import Index, Var, hint
from dynacompile.ir.schedule import SCRATCH, BuiltKernel, Candidate, KernelSource

Build = Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], BuiltKernel]]  # without the candidates that a compiler refuses
NEAR = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4, torch.float64: 1e-9}  # of a result's largest element
SEEN_IN_PART = 2  # blocks of a row of a mask, in what is measured
MARGIN = 0.98  # a candidate must beat the best guess by this much, or noise would choose


class Measure(Protocol):
    def __call__(self, kernel: Any, tensors: Sequence[torch.Tensor]) -> float:
        """Median microseconds of one launch over `tensors` (one per param); its stores are in them afterwards."""
        ...


def tune(sources: Mapping[str, KernelSource], build: Build, env: Env, store: Store, measure: Measure) -> dict[str, int]:
    """The index of the fastest candidate of each source. A kernel that cannot be fed (indirect accesses, more memory than is free) keeps
    its first candidate."""
    chosen: dict[str, int] = {}
    open_: dict[str, str] = {}
    for name, source in sources.items():
        key = tuning_key(source)
        found = store.get(key)
        if found is not None:
            chosen[name] = min(int(found), len(source.candidates) - 1)
        elif len(source.candidates) < 2 or lengths(source) is None:
            chosen[name] = 0
        else:
            open_[name] = key
    winners: dict[str, int] = {}
    first = {key: name for name, key in reversed(open_.items())}

    def find(key: str) -> bool:
        found = store.get(key)
        if found is not None:
            winners[key] = int(found)
        return found is not None

    def make(keys: Sequence[str]) -> None:
        built = build([(first[key], i) for key in keys for i in range(len(sources[first[key]].candidates))])
        for key in keys:
            source = sources[first[key]]
            winners[key] = fastest(source, {i: built[first[key], i] for i in range(len(source.candidates)) if (first[key], i) in built}, env, measure)
            store.put(key, str(winners[key]).encode())

    once(store, list(dict.fromkeys(open_.values())), find, make, f"what is measured for {env.region}")
    return chosen | {name: min(winners[key], len(sources[name].candidates) - 1) for name, key in open_.items()}


def tuning_key(source: KernelSource) -> str:
    on_gpu = source.language == "triton" and torch.cuda.is_available()
    device = torch.cuda.get_device_name(source.kernel.device) if on_gpu else f"{processor()}|{torch.get_num_threads()}" if source.language == "cpp" else ""
    parts: list = [source.kernel.digest(), [[dict(c.blocks), c.warps, c.stages] for c in source.candidates], device]
    if source.kernel.symbols:
        parts.append([0 if s.real else s.hint for s in source.kernel.symbols])
    return "tuned-" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def lengths(source: KernelSource) -> dict[str, int] | None:
    """Elements of each param's memory that the kernel touches at the example's sizes, or None where that depends on values, or on numbers that
    are arguments of a C++ kernel, or where the kernel asserts what made-up values may not be."""
    if source.kernel.symbols and source.language != "triton":
        return None
    if any(op.name == "require" for op in source.kernel.nest.body):
        return None
    reach: dict[str, int] = {p.name: SCRATCH if p.mode == "scratch" else 1 for p in source.kernel.params}
    for view in source.kernel.call.views if source.kernel.call is not None else ():
        end = hint(view.offset) + 1 + sum((hint(n) - 1) * hint(s) for n, s in zip(view.size, view.stride, strict=True))
        reach[str(view.base)] = max(reach[str(view.base)], end)
    for access in (*source.kernel.nest.loads(), *source.kernel.nest.stores()):
        high = top(access.index)
        if high is None:
            return None
        reach[access.buffer] = max(reach[access.buffer], high + 1)
    return reach


def top(index: Index) -> int | None:
    indirect = any(v.name.startswith("%") for v in index.variables() if isinstance(v, Var))
    varying = index.symbols() or any(isinstance(v.size, Index) for v in index.variables())
    return None if indirect else example_reach(index) if varying else index.bounds()[1]


def inputs(source: KernelSource, device: torch.device) -> list[torch.Tensor] | None:
    """A tensor per param: small random floats, zeros in integers; None where the device has no room."""
    reach = lengths(source)
    assert reach is not None
    needed = sum(reach[p.name] * p.dtype.itemsize for p in source.kernel.params)
    if device.type == "cuda" and needed * 2 > torch.cuda.mem_get_info(device)[0]:
        return None
    generator = torch.Generator(device).manual_seed(0)
    tensors = []
    for p in source.kernel.params:
        if p.dtype.is_floating_point:
            tensors.append(torch.rand(reach[p.name], generator=generator, device=device, dtype=torch.float32).to(p.dtype))
        else:
            tensors.append(torch.zeros(reach[p.name], device=device, dtype=p.dtype))
    if source.kernel.call is not None and source.kernel.call.template.startswith("attention"):
        fill_blocks(source.kernel.call, dict(zip((p.name for p in source.kernel.params), tensors, strict=True)))
    return tensors


def fill_blocks(call: Call, memory: Mapping[str, torch.Tensor]) -> None:
    """Writes a mask of blocks as attention has it: some that are seen in part, and others, about half of all, as a whole."""
    shown = [memory[str(v.base)].as_strided([*map(hint, v.size)], [*map(hint, v.stride)], hint(v.offset)) for v in call.argument("blocks")]
    first = 0
    for counts, indices in zip(shown[::2], shown[1::2], strict=True):
        columns = indices.shape[-1]
        seen = min(SEEN_IN_PART, columns) if not first else max(0, columns // 2 - first)
        counts.fill_(seen)
        indices.copy_((torch.arange(columns, device=indices.device) + first) % columns)
        first += seen


def fastest(source: KernelSource, kernels: Mapping[int, BuiltKernel], env: Env, measure: Measure) -> int:
    """The index of the fastest candidate that gives what the first one gives."""
    device = source.kernel.device
    data = inputs(source, device)
    if data is None or not kernels:
        return 0
    written = [i for i, p in enumerate(source.kernel.params) if p.mode in ("out", "inout")]
    expected: list[torch.Tensor] = []
    times: dict[int, float] = {}
    for index, kernel in kernels.items():
        tensors = [t.clone() if i in written else t for i, t in enumerate(data)]
        seconds = measure(kernel, tensors)
        got = [tensors[i] for i in written]
        expected = expected or got
        times[index] = seconds if all(agree(a, b) for a, b in zip(got, expected, strict=True)) else float("inf")
    first = min(times)
    winner = min(times, key=lambda i: times[i] if i == first else times[i] / MARGIN)
    shown = tuple((named(source.candidates[i]), t) for i, t in times.items())
    env.emit(KernelTuned(region=env.region, bucket=env.bucket, kernel=source.entry, winner=named(source.candidates[winner]), candidates=shown))
    return winner


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two candidates gave the same result, to rounding. Sums whose terms cancel are rounded as those terms are, so the scale is that of the
    largest element."""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    finite = torch.isfinite(b)
    same = torch.where(finite, torch.isfinite(a), (a == b) | (a.isnan() & b.isnan()))
    scale = torch.where(finite, b, 0).abs().max() if b.numel() else 0
    return bool(same.all()) and bool((torch.where(finite, a - b, 0).abs() <= NEAR[a.dtype] * scale).all())


def named(candidate: Candidate) -> str:
    return " ".join([*(f"{k}={v}" for k, v in candidate.blocks.items()), *([f"warps={candidate.warps}"] if candidate.warps else [])])
