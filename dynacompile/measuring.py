"""Products of matrices under max-autotune: whether one kernel, or the library's products and a kernel after them, is faster, measured and remembered.

Each candidate of the one kernel is built and measured, and checked against the results of the library. What is measured is one sum of times with cold
caches: the same for both ways. The store keeps the winner, for the sizes, the epilogue, the device and the candidates.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from dynacompile.build.autotune import inputs, named, tuning_key
from dynacompile.build.device import measure_run
from dynacompile.build.store import Store
from dynacompile.build.triton import build_candidates, build_triton
from dynacompile.codegen import emit
from dynacompile.env import Env
from dynacompile.events import KernelTuned
from dynacompile.ir.index import hint
from dynacompile.ir.loops import Buffer, Extern, Ref, root
from dynacompile.ir.products import Choose, Decision, Joint
from dynacompile.ir.schedule import SCRATCH, Kernel
from dynacompile.schedule import expected, is_known
from dynacompile.schedule.emit import Kernels

SECONDS = 90.0  # of measuring in one program; the model of the device decides on the products that are left
CLEAR = 0.98  # of the time apart that one kernel may take, or noise would choose
NEAR = 2e-2  # of the largest result: what may differ between one rounding and several of 16-bit numbers
SCRATCH_NAME = "descriptors"


def choice(env: Env) -> Choose:
    """What decides on the products of one program."""
    if not env.config.autotune or env.config.reference or not torch.cuda.is_available():
        return expected
    return Measured(env, Store(env.cache / "binaries"))


@dataclass
class Measured:
    """Measures until its seconds are spent."""

    env: Env
    store: Store
    spent: float = field(default=0.0)

    def __call__(self, joint: Joint) -> Decision:
        decided = expected(joint)
        if not is_known(joint):
            return decided
        way = Ways(joint, self.env)
        known = self.store.get(way.key)
        if known is not None:
            fused, fused_us, apart_us = json.loads(known)
            return Decision(bool(fused), "measured before", True, fused_us, apart_us)
        if self.spent > SECONDS:
            return decided
        begun = time.perf_counter()
        try:
            found = way.measured(self.store)
        except torch.OutOfMemoryError:
            found = None
        self.spent += time.perf_counter() - begun
        if found is None:
            return replace(decided, reason="the device has no room to measure in")
        self.store.put(way.key, json.dumps([found.fused, found.fused_us, found.apart_us]).encode())
        return found


class Ways:
    """The two ways to do a joint, and what they need to run."""

    def __init__(self, joint: Joint, env: Env):
        device = joint.buffers[joint.nest.stores()[0].buffer].device
        scratch = Buffer(SCRATCH_NAME, torch.uint8, device, (SCRATCH,), (1,), "temp")
        self.joint, self.env = joint, env
        self.buffers: Mapping[str, Buffer] = {**joint.buffers, SCRATCH_NAME: scratch}
        self.kernel, self.names = kernel_of(joint, self.buffers, True)
        self.reader, self.reader_names = kernel_of(joint, self.buffers, False)
        self.source = emit(self.kernel, env)
        geometry = [self.geometry(step) for step in joint.calls]
        parts = [tuning_key(self.source), self.reader.digest(), geometry, self.source.text]
        self.key = "product-" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def geometry(self, step: Extern) -> list[object]:
        given = [self.buffers[name] for name in refs_of(step)]
        return [
            str(step.op),
            sorted((name, str(a)) for name, a in step.kwargs.items() if not isinstance(a, Ref)),
            [(b.size, b.stride, b.offset) for b in given],
        ]

    def measured(self, store: Store) -> Decision | None:
        """None where the device has no room."""
        data = inputs(self.source, self.kernel.device)
        if data is None:
            return None
        memory = {name: centred(tensor) for name, tensor in zip(self.names, data, strict=True)}
        wanted, apart_us = self.apart(memory, store)
        times: dict[int, float] = {}
        indices = range(len(self.source.candidates))
        built = build_candidates({"product": self.source}, [("product", i) for i in indices], self.env, store)
        for (_, index), kernel in built.items():
            own = {name: memory[name] if p.mode == "in" else poisoned(memory[name]) for name, p in zip(self.names, self.kernel.params, strict=True)}
            us = measure_run(kernel, [own[name] for name in self.names])
            if all(agree(own[name], tensor) for name, tensor in wanted.items()):
                times[index] = us
        if not times:
            return Decision(False, "no candidate of one kernel gives the library's results", True)
        best = min(times, key=lambda i: times[i])
        store.put(tuning_key(self.source), str(best).encode())
        shown = ((named(self.source.candidates[i]), us) for i, us in times.items())
        winner = named(self.source.candidates[best])
        tuned = KernelTuned(region=self.env.region, bucket=self.env.bucket, kernel=self.source.entry, winner=winner, candidates=tuple(shown))
        self.env.emit(tuned)
        fused = times[best] < CLEAR * apart_us
        return Decision(fused, "one kernel is faster" if fused else "the library and a kernel are as fast", True, times[best], apart_us)

    def apart(self, memory: Mapping[str, torch.Tensor], store: Store) -> tuple[dict[str, torch.Tensor], float]:
        """What the library's products and the kernel after them store, and the microseconds that they take."""
        own = {name: memory[name] if p.mode == "in" else poisoned(memory[name]) for name, p in zip(self.names, self.kernel.params, strict=True)}
        calls = []
        for step in self.joint.calls:
            out = self.buffers[step.outputs[0]]  # type: ignore[index]
            own.setdefault(out.name, torch.empty(out.storage_elements, dtype=out.dtype, device=own[self.names[0]].device))
            args = [self.view(own, a.buffer) if isinstance(a, Ref) else a for a in step.args]
            kwargs = {name: self.view(own, a.buffer) if isinstance(a, Ref) else a for name, a in step.kwargs.items()}
            calls.append((step.out, args, {**kwargs, "out": self.view(own, out.name)}))
        kernel = build_triton({"reader": emit(self.reader, self.env)}, self.env, store)["reader"]
        given = [own[name] for name in self.reader_names]

        def products() -> None:
            for call, args, kwargs in calls:
                call(*args, **kwargs)  # type: ignore[misc]

        us = measure_run(kernel, given, products)
        return {name: own[name] for name, p in zip(self.names, self.kernel.params, strict=True) if p.mode in ("out", "inout")}, us

    def view(self, own: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        buffer = self.buffers[name]
        return own[root(self.buffers, name)].as_strided([*map(hint, buffer.size)], [*map(hint, buffer.stride)], hint(buffer.offset))


def kernel_of(joint: Joint, buffers: Mapping[str, Buffer], fused: bool) -> tuple[Kernel, tuple[str, ...]]:
    kernels, nest = Kernels(buffers), joint.nest if fused else joint.reader
    name, names = kernels.launch(nest, scratch=(SCRATCH_NAME,) if nest.is_product else ())
    return kernels.by_name[name], names


def refs_of(step: Extern) -> Sequence[str]:
    return [a.buffer for a in (*step.args, *step.kwargs.values()) if isinstance(a, Ref)]


def centred(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers on both sides of zero, so that activations have both."""
    if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:  # torch does not compute in 8-bit floats
        return (tensor.float() - 0.5).to(tensor.dtype)
    return tensor.sub_(0.5) if tensor.dtype.is_floating_point else tensor


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """As large, with numbers in it that a kernel must overwrite."""
    return torch.full_like(tensor, float("nan")) if tensor.dtype.is_floating_point else torch.empty_like(tensor)


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    wrote = ~torch.isnan(b)
    return bool(torch.isnan(a).eq(~wrote).all()) and bool(((a - b).abs()[wrote] <= NEAR * b[wrote].abs().max()).all())
