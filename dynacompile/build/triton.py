"""Triton sources to cubins: from the store, or in the pool of workers; no GPU needed.

The key is the text without names and comments, the candidate, the pointers' types, the GPU's architecture and the versions, so that
equal kernels of different models, processes and hosts share one entry.

A kernel with symbols has two forms (`ir.schedule.Forms`), as Triton accesses memory in full width only where it knows that rows start at multiples of
16 elements. The one that the example's sizes need is built at once. The other is built when a call first needs it, with those of the program's other
kernels, and that call waits.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dynacompile.build.alignment import is_even, multiples
from dynacompile.build.autotune import Measure, tune
from dynacompile.build.device import measure_on_device
from dynacompile.build.pool import pool_for
from dynacompile.build.store import Store
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked
from dynacompile.ir.index import Extent, Symbol
from dynacompile.ir.schedule import Candidate, CudaKernel, Forms, KernelSource

FORMAT = "2"  # of a stored kernel, and of what the worker asks of Triton
DEFAULT_ARCH = 90
POINTERS = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
}  # fmt: skip


def build_triton(sources: Mapping[str, KernelSource], env: Env, store: Store, measure: Measure | None = None) -> dict[str, CudaKernel]:
    """The built kernel of each source: its first candidate, or, under max-autotune and with a GPU (or a `measure`), the fastest.

    Raises BuildError where Triton is missing or refuses a source.
    """
    chosen = dict.fromkeys(sources, 0)
    if env.config.autotune and (measure is not None or torch.cuda.is_available()):
        chosen = tune(sources, lambda wanted: build_candidates(sources, wanted, env, store), env, store, measure or measure_on_device)
    built = build_candidates(sources, [(name, index) for name, index in chosen.items()], env, store)
    others = OtherForms(sources, {name: index for name, index in chosen.items() if multiples(sources[name].kernel)}, env, store)
    return {name: others.beside(name, built[name, index]) for name, index in chosen.items()}


class OtherForms:
    """The forms of a program's kernels that its first call does not need: all of them are built when one is first asked for."""

    def __init__(self, sources: Mapping[str, KernelSource], chosen: Mapping[str, int], env: Env, store: Store):
        self.sources, self.chosen, self.env, self.store = sources, chosen, env, store
        self.lock = threading.Lock()  # programs run on several threads
        self.built: dict[tuple[str, int], CudaKernel] | None = None

    def beside(self, name: str, kernel: CudaKernel) -> CudaKernel:
        """`kernel`, which is built, with the way to its other form."""
        if name not in self.chosen:
            return kernel
        source = self.sources[name]
        relied = tuple(source.kernel.symbols[i] for i in multiples(source.kernel))
        return replace(kernel, forms=Forms(relied, is_even(source.kernel), functools.partial(self.form, name)))

    def form(self, name: str) -> CudaKernel:
        """Raises BuildError, which names the kernel, where Triton refuses one."""
        with self.lock:
            if self.built is None:
                self.built = build_candidates(self.sources, list(self.chosen.items()), self.env, self.store, other=True)
            return self.built[name, self.chosen[name]]


def build_candidates(
    sources: Mapping[str, KernelSource], wanted: Sequence[tuple[str, int]], env: Env, store: Store, other: bool = False
) -> dict[tuple[str, int], CudaKernel]:
    """The kernel of each (source, candidate), each distinct one compiled once. other: in the form that the example does not need."""
    keys = {(name, index): kernel_key(sources[name], sources[name].candidates[index], other) for name, index in wanted}
    packed: dict[str, bytes] = {}
    missing: dict[str, tuple[str, int]] = {}
    for place, key in keys.items():
        if key in packed or key in missing:
            continue
        found = store.get(key)
        env.emit(CacheLooked(region=env.region, bucket=env.bucket, tier="binaries", key=key, hit=found is not None))
        if found is None:
            missing[key] = place
        else:
            packed[key] = found
    if missing:
        jobs = [job(sources[name], sources[name].candidates[index], other) for name, index in missing.values()]
        for (key, (name, _)), (facts, cubin) in zip(missing.items(), pool_for(env).compile(jobs), strict=True):
            kernel = sources[name].kernel
            extra = facts["params"] - len(kernel.params) - len(kernel.symbols)
            packed[key] = pack({"symbol": facts["symbol"], "warps": facts["warps"], "shared": facts["shared"], "extra": extra}, cubin)
            store.put(key, packed[key])
    return {(name, index): unpack(packed[key], sources[name].grids[index], sources[name].kernel.symbols) for (name, index), key in keys.items()}


def job(source: KernelSource, candidate: Candidate, other: bool = False) -> dict:
    """What a worker needs to compile one candidate. other: in the form that the example does not need."""
    return {
        "text": source.text,
        "entry": source.entry,
        "pointers": [POINTERS[p.dtype] for p in source.kernel.params],
        "scalars": ["fp64" if s.real else "i64" if source.wide else "i32" for s in source.kernel.symbols],
        "multiples": list(multiples(source.kernel)) if is_even(source.kernel) != other else [],
        "constants": dict(candidate.blocks),
        "warps": candidate.warps,
        "stages": candidate.stages,
        "target": ["cuda", architecture(source.kernel.device), 32],
    }


def kernel_key(source: KernelSource, candidate: Candidate, other: bool = False) -> str:
    """Hex digest of all that the cubin depends on."""
    text = re.sub(r"^# .*\n", "", source.text, flags=re.MULTILINE)
    text = re.sub(rf"\b{re.escape(source.entry)}\b", "kernel", text)
    rest = {k: v for k, v in job(source, candidate, other).items() if k not in ("text", "entry") and v != []}
    return hashlib.sha256(json.dumps(["triton", FORMAT, triton_version(), text, rest], sort_keys=True).encode()).hexdigest()


def architecture(device: torch.device) -> int:
    """Compute capability as one number, for example 90; without a GPU that of Hopper."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return DEFAULT_ARCH
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@functools.cache
def triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError("Triton is not installed: pip install triton (needed for kernels on CUDA devices)") from error


def pack(facts: dict, cubin: bytes) -> bytes:
    header = json.dumps(facts, sort_keys=True).encode()
    return struct.pack(">I", len(header)) + header + cubin


def unpack(data: bytes, grid: tuple[Extent, Extent, Extent], symbols: tuple[Symbol, ...] = ()) -> CudaKernel:
    (length,) = struct.unpack(">I", data[:4])
    facts = json.loads(data[4 : 4 + length])
    kept = {name: facts[name] for name in ("symbol", "warps", "shared", "extra")}
    return CudaKernel(cubin=data[4 + length :], grid=grid, symbols=symbols, **kept)
