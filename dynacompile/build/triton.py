"""Triton sources to cubins: from the store, or in the pool of workers; no GPU needed.

The key is the text without names and comments, the candidate, the pointers' types, the GPU's architecture and the versions, so that
equal kernels of different models, processes and hosts share one entry.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import struct
from collections.abc import Mapping, Sequence

import torch

from dynacompile.build.autotune import Measure, tune
from dynacompile.build.device import measure_on_device
from dynacompile.build.pool import pool_for
from dynacompile.build.store import Store
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked
from dynacompile.ir.index import Extent
from dynacompile.ir.schedule import Candidate, CudaKernel, KernelSource

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
    return {name: built[name, index] for name, index in chosen.items()}


def build_candidates(sources: Mapping[str, KernelSource], wanted: Sequence[tuple[str, int]], env: Env, store: Store) -> dict[tuple[str, int], CudaKernel]:
    """The kernel of each (source, candidate), each distinct one compiled once."""
    keys = {(name, index): kernel_key(sources[name], sources[name].candidates[index]) for name, index in wanted}
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
        jobs = [job(sources[name], sources[name].candidates[index]) for name, index in missing.values()]
        for (key, (name, _)), (facts, cubin) in zip(missing.items(), pool_for(env).compile(jobs), strict=True):
            kernel = sources[name].kernel
            extra = facts["params"] - len(kernel.params) - len(kernel.symbols)
            packed[key] = pack({"symbol": facts["symbol"], "warps": facts["warps"], "shared": facts["shared"], "extra": extra}, cubin)
            store.put(key, packed[key])
    return {(name, index): unpack(packed[key], sources[name].grids[index]) for (name, index), key in keys.items()}


def job(source: KernelSource, candidate: Candidate) -> dict:
    """What a worker needs to compile one candidate."""
    return {
        "text": source.text,
        "entry": source.entry,
        "pointers": [POINTERS[p.dtype] for p in source.kernel.params],
        "scalars": ["fp64" if s.real else "i64" if source.wide else "i32" for s in source.kernel.symbols],
        "constants": dict(candidate.blocks),
        "warps": candidate.warps,
        "stages": candidate.stages,
        "target": ["cuda", architecture(source.kernel.device), 32],
    }


def kernel_key(source: KernelSource, candidate: Candidate) -> str:
    """Hex digest of all that the cubin depends on."""
    text = re.sub(r"^# .*\n", "", source.text, flags=re.MULTILINE)
    text = re.sub(rf"\b{re.escape(source.entry)}\b", "kernel", text)
    rest = {k: v for k, v in job(source, candidate).items() if k not in ("text", "entry") and v != []}
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


def unpack(data: bytes, grid: tuple[Extent, Extent, Extent]) -> CudaKernel:
    (length,) = struct.unpack(">I", data[:4])
    facts = json.loads(data[4 : 4 + length])
    return CudaKernel(cubin=data[4 + length :], symbol=facts["symbol"], grid=grid, warps=facts["warps"], shared=facts["shared"], extra=facts["extra"])
