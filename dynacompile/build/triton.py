"""Triton sources to cubins: from the store, or in the pool of workers; no GPU needed.

The key is the text without names and comments, the candidate, the pointers' types, the GPU's architecture and the versions, so that
equal kernels of different models, processes and hosts share one entry.

A kernel with symbols has forms (`build/forms.py`). The one that the example's sizes need is built at once. Another is built when a call first needs it,
with those of the program's other kernels that it may need, too, and that call waits.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import struct
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import prod
from typing import TypeVar

import torch

import dynacompile.build.forms as forms
from dynacompile.build.alignment import multiples
from dynacompile.build.autotune import Measure, named, tune
from dynacompile.build.claims import once
from dynacompile.build.device import measure_on_device
from dynacompile.build.forms import Property
from dynacompile.build.pool import key_of_settings, pool_for
from dynacompile.build.store import Store
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked, KernelRefused
from dynacompile.ir.index import Extent, Symbol, hint
from dynacompile.ir.schedule import SCRATCH, Candidate, CudaKernel, Forms, Kernel, KernelSource

K = TypeVar("K")
MOST_SHARED = 227 << 10  # bytes of shared memory of a program on Hopper
REFUSED = b"refused"  # the store's word for what Triton compiles, but no GPU can run
FORMAT = "7"  # of a stored kernel, and of what the worker asks of Triton
DEFAULT_ARCH = 90
POINTERS = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.float8_e4m3fn: "*fp8e4nv", torch.float8_e5m2: "*fp8e5",
}  # fmt: skip

LIST_TABLES = ["*i32", "*i64", "*i64"]  # of a kernel over a list: see codegen/triton/emit.py


def build_triton(sources: Mapping[str, KernelSource], env: Env, store: Store, measure: Measure | None = None) -> dict[str, CudaKernel]:
    """The built kernel of each source: its first candidate, or, under max-autotune and with a GPU (or a `measure`), the fastest.

    Raises BuildError where Triton is missing or refuses a source.
    """
    chosen = dict.fromkeys(sources, 0)
    if env.config.autotune and (measure is not None or torch.cuda.is_available()):
        chosen = tune(sources, lambda wanted: build_candidates(sources, wanted, env, store), env, store, measure or measure_on_device)
    kernels, built = build_chosen(sources, chosen, env, store)
    others = OtherForms(kernels, env, store)
    return {name: others.beside(name, kernel) for name, kernel in built.items()}


Chosen = dict[str, tuple[KernelSource, Candidate]]


def build_chosen(sources: Mapping[str, KernelSource], chosen: Mapping[str, int], env: Env, store: Store) -> tuple[Chosen, dict[str, CudaKernel]]:
    """The candidate of each source, and its kernel. What Triton refuses (it has faults that blocks of another size don't meet), or what takes more shared
    memory than there is, is not chosen: the next candidate is, and where there is none, the first that Triton compiles in the form for every call. Raises
    BuildError where it refuses all."""
    kernels: Chosen = {}
    built: dict[str, CudaKernel] = {}
    waiting = {name: ways_to_build(sources[name], index) for name, index in chosen.items()}
    while waiting:
        tried = {name: (sources[name], *order.pop(0)) for name, order in waiting.items()}
        found = build_forms(tried, env, store, {name for name in tried if waiting[name]})
        kernels |= {name: tried[name][:2] for name in found}
        built |= found
        waiting = {name: order for name, order in waiting.items() if name not in found}
    return {name: kernels[name] for name in chosen}, {name: built[name] for name in chosen}


def ways_to_build(source: KernelSource, chosen: int) -> list[tuple[Candidate, int]]:
    """Candidates with the form that the example needs, the chosen one first, and then with the form that relies on nothing, where that is another."""
    general = general_ways(source, chosen)
    first = [(candidate, forms.first(source, candidate)) for candidate, _ in general]
    return [*first, *(way for way in general if way not in first)]


def general_ways(source: KernelSource, chosen: int) -> list[tuple[Candidate, int]]:
    """Candidates, the chosen one first, with the form that relies on nothing."""
    order = sorted(source.candidates, key=lambda candidate: candidate != source.candidates[chosen])
    return [(candidate, forms.count(source, candidate) - 1) for candidate in order]


class OtherForms:
    """The forms of a program's kernels that its first call does not need. Where a call needs one, so do its other kernels: one batch builds them."""

    def __init__(self, kernels: Mapping[str, tuple[KernelSource, Candidate]], env: Env, store: Store):
        self.kernels, self.env, self.store = kernels, env, store
        self.lock = threading.Lock()  # programs run on several threads
        self.built: dict[tuple[str, int], CudaKernel] = {}

    def beside(self, name: str, kernel: CudaKernel) -> CudaKernel:
        """`kernel`, which is built, with the way to its other forms."""
        count = forms.count(*self.kernels[name])
        if count == 1:
            return kernel
        return replace(kernel, forms=Forms(forms.chooses(*self.kernels[name]), count, forms.first(*self.kernels[name]), functools.partial(self.form, name)))

    def form(self, name: str, number: int) -> CudaKernel:
        """Raises BuildError, which names the kernel, where Triton refuses each that would do."""
        with self.lock:
            if (name, number) not in self.built:
                self.build_changed(forms.changed(*self.kernels[name], number))
                if (name, number) not in self.built:
                    self.built[name, number] = self.for_every_call(name)
            return self.built[name, number]

    def build_changed(self, changed: Set[Property]) -> None:
        """The forms that differ in these properties, without those that Triton refuses. The lock is held, whose block has no comprehension
        (`Session.living_codes` says why)."""
        wanted = {n: (*kernel, forms.with_changed(*kernel, frozenset(changed))) for n, kernel in self.kernels.items()}
        wanted = {n: w for n, w in wanted.items() if w[2] != forms.first(*self.kernels[n]) and (n, w[2]) not in self.built}
        for n, made in build_forms(wanted, self.env, self.store, wanted.keys()).items():
            self.built[n, wanted[n][2]] = made

    def for_every_call(self, name: str) -> CudaKernel:
        """A form that relies on nothing, of the first candidate for which Triton does not refuse it. The lock is held."""
        source, chosen = self.kernels[name]
        ways = general_ways(source, source.candidates.index(chosen))
        for way in ways[:-1]:
            if found := build_forms({name: (source, *way)}, self.env, self.store, {name}):
                return found[name]
        return build_forms({name: (source, *ways[-1])}, self.env, self.store)[name]


def build_candidates(sources: Mapping[str, KernelSource], wanted: Sequence[tuple[str, int]], env: Env, store: Store) -> dict[tuple[str, int], CudaKernel]:
    """Candidates in the form that the example needs, without those that Triton refuses."""
    return build_forms(first_forms(sources, wanted), env, store, set(wanted))


def first_forms(sources: Mapping[str, KernelSource], wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[KernelSource, Candidate, int]]:
    """Candidates in the form that the example needs."""
    found = {(name, index): (sources[name], sources[name].candidates[index]) for name, index in wanted}
    return {place: (*kernel, forms.first(*kernel)) for place, kernel in found.items()}


def build_forms(wanted: Mapping[K, tuple[KernelSource, Candidate, int]], env: Env, store: Store, optional: Set[K] = frozenset()) -> dict[K, CudaKernel]:
    """The kernel of each (source, candidate, form), each distinct one compiled once. optional: those that are left out where Triton refuses them. Raises
    BuildError where it refuses another."""
    keys = {place: kernel_key(*kernel) for place, kernel in wanted.items()}
    packed: dict[str, bytes] = {}
    missing: dict[str, K] = {}
    for place, key in keys.items():
        if key in packed or key in missing:
            continue
        found = store.get(key)
        env.emit(CacheLooked(region=env.region, bucket=env.bucket, tier="binaries", key=key, hit=found is not None))
        if found is None:
            missing[key] = place
        else:
            packed[key] = found

    def find(key: str) -> bool:
        found = store.get(key)
        if found is not None:
            packed[key] = found
        return found is not None

    def make(keys: Sequence[str]) -> None:
        places = [missing[key] for key in keys]
        jobs = [job(*wanted[place]) for place in places]
        may_fail = {i for i, place in enumerate(places) if place in optional}
        for key, place, (facts, cubin) in zip(keys, places, pool_for(env).compile(jobs, may_fail), strict=True):
            kernel, error = wanted[place][0].kernel, against(facts, *wanted[place][:2])
            if error and place not in optional:
                raise BuildError(f"Triton's kernel {wanted[place][0].entry} can't run: {error}")
            if error:
                env.emit(KernelRefused(region=env.region, bucket=env.bucket, kernel=wanted[place][0].entry, candidate=named(wanted[place][1]), error=error))
                packed[key] = REFUSED
                if facts["ok"]:  # an error of the compiler may be one of the machine, and gone tomorrow
                    store.put(key, REFUSED)
                continue
            extra = facts["params"] - (len(LIST_TABLES) if kernel.is_list else len(kernel.params)) - len(kernel.symbols)
            packed[key] = pack({"symbol": facts["symbol"], "warps": facts["warps"], "shared": facts["shared"], "extra": extra}, cubin)
            store.put(key, packed[key])

    if missing:
        once(store, list(missing), find, make, f"a kernel of {env.region}")
    for place, key in keys.items():
        if packed[key] == REFUSED and place not in optional:
            raise BuildError(f"Triton's kernel {wanted[place][0].entry} can't run: it needs more memory than there is, as was found before")
    return {place: unpack(packed[key], grid_of(*wanted[place][:2]), wanted[place][0].kernel.symbols) for place, key in keys.items() if packed[key] != REFUSED}


def may_be_refused(source: KernelSource) -> bool:
    """Whether its candidates take so much of a processor that one of them may not fit."""
    return source.kernel.nest.is_product or source.kernel.call is not None


def against(facts: dict, source: KernelSource, candidate: Candidate) -> str:
    """Why a kernel can't run that Triton has compiled, or has not; "" where it can."""
    if not facts["ok"]:
        return facts["error"][:200]
    if may_be_refused(source) and facts["shared"] > MOST_SHARED:
        return f"it needs {facts['shared']} bytes of shared memory"
    own = SCRATCH if any(p.mode == "scratch" for p in source.kernel.params) else 0
    scratch = facts["scratch"] * prod(map(hint, grid_of(source, candidate)))
    return f"it needs {scratch} bytes of memory for descriptors" if scratch > own else ""


def grid_of(source: KernelSource, candidate: Candidate) -> tuple[Extent, Extent, Extent]:
    return source.grids[source.candidates.index(candidate)]


def job(source: KernelSource, candidate: Candidate, form: int = 0) -> dict:
    """What a worker needs to compile one form of a candidate."""
    even = forms.has(source, candidate, form).get(Property.EVEN)
    return {
        "text": source.text,
        "entry": source.entry,
        "pointers": pointers_of(source.kernel),
        "scalars": ["fp64" if s.real else "i64" if source.wide else "i32" for s in source.kernel.symbols],
        "multiples": list(multiples(source.kernel)) if even else [],
        **({"fuses": False} if source.exact else {}),
        **({"flushes": True} if source.kernel.call is not None else {}),  # attention's weights, which are next to 1 or don't count
        "constants": forms.constants(source, candidate, form),
        "warps": candidate.warps,
        "stages": candidate.stages,
        "target": ["cuda", architecture(source.kernel.device), 32],
    }


def pointers_of(kernel: Kernel) -> list[str]:
    """The types of what it takes in front of its symbols."""
    return LIST_TABLES if kernel.is_list else [POINTERS[p.dtype] for p in kernel.params if p.mode != "scratch"]


def kernel_key(source: KernelSource, candidate: Candidate, form: int = 0) -> str:
    """Hex digest of all that the cubin depends on."""
    text = re.sub(r"^# .*\n", "", source.text, flags=re.MULTILINE)
    text = re.sub(rf"\b{re.escape(source.entry)}\b", "kernel", text)
    rest = {k: v for k, v in job(source, candidate, form).items() if k not in ("text", "entry") and v != []}
    return hashlib.sha256(json.dumps(["triton", FORMAT, triton_version(), text, rest, *key_of_settings()], sort_keys=True).encode()).hexdigest()


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
