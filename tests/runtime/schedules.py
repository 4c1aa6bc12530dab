"""Hand-made schedules: the runtime's input, without the stages before it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from dynacompile.ir.loops import Buffer, Extern, Nest, Ref
from dynacompile.ir.schedule import Allocate, BuiltKernel, CpuKernel, Free, Kernel, Launch, Module, Param, Place, ReferenceKernel, Schedule, Step
from dynacompile.libraries import load_library

CPU = torch.device("cpu")
F32 = torch.float32

KERNELS = """
#define A ((const float*)p[0])
#define B ((const float*)p[1])
#define EACH for (int i = 0; i < 6; ++i)
extern "C" void add(void* const* p) { EACH ((float*)p[2])[i] = A[i] + B[i]; }
extern "C" void mul(void* const* p) { EACH ((float*)p[2])[i] = A[i] * B[i]; }
extern "C" void twice(void* const* p) { EACH ((float*)p[1])[i] = 2 * A[i]; }
extern "C" void relu(void* const* p) { EACH ((float*)p[1])[i] = A[i] > 0 ? A[i] : 0; }
extern "C" void increment(void* const* p) { EACH ((float*)p[0])[i] += 1; }
"""
MODES = {"add": "in in out", "mul": "in in out", "twice": "in out", "relu": "in out", "increment": "inout"}
ORACLES: dict[str, Callable] = {
    "add": lambda a, b, o: o.copy_(a + b),
    "mul": lambda a, b, o: o.copy_(a * b),
    "twice": lambda a, o: o.copy_(2 * a),
    "relu": lambda a, o: o.copy_(a.relu()),
    "increment": lambda a: a.add_(1),
}


def compile_kernels(folder: Path) -> Path:
    source = folder / "kernels.cpp"
    source.write_text(KERNELS)
    library = folder / "kernels.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def buffer(
    name: str,
    size: tuple[int, ...] = (2, 3),
    stride: tuple[int, ...] | None = None,
    kind: str = "temp",
    dtype: torch.dtype = F32,
    offset: int = 0,
    base: str | None = None,
) -> Buffer:
    return Buffer(name, dtype, CPU, size, contiguous(size) if stride is None else stride, kind, offset, base)


def given(name: str, size: tuple[int, ...] = (2, 3), stride: tuple[int, ...] | None = None, dtype: torch.dtype = F32) -> Buffer:
    return buffer(name, size, stride, "input", dtype)


def kernel(name: str) -> Kernel:
    params = tuple(Param(f"p{i}", F32, mode) for i, mode in enumerate(MODES[name].split()))
    return Kernel(name, Nest(name, (), ()), params, CPU)


def run_oracle(k: Kernel, tensors: list[torch.Tensor]) -> None:
    """A reference interpreter for the kernels above."""
    ORACLES[k.name](*(t[:6] for t in tensors))


@dataclass(frozen=True)
class Maker:
    """Makes modules whose kernels are built from KERNELS (library None: reference kernels)."""

    library: Path | None

    def __call__(
        self, inputs: tuple, outputs: tuple, buffers: list[Buffer], steps: list[Step], arena: int = 0, constants: Mapping[str, torch.Tensor] | None = None
    ) -> Module:
        kernels = {s.kernel: kernel(s.kernel) for s in steps if isinstance(s, Launch)}
        schedule = Schedule(inputs, outputs, {b.name: b for b in buffers}, kernels, tuple(steps), arena, CPU, constants or {})
        built: dict[str, BuiltKernel] = {name: ReferenceKernel(k) for name, k in kernels.items()}
        if self.library is not None:
            library = load_library(self.library.read_bytes(), self.library)
            built = {name: CpuKernel(library, name) for name in kernels}
        return Module(schedule, built)


def extern(
    op: torch._ops.OpOverload,
    args: tuple,
    outputs: tuple[str | None, ...],
    out: torch._ops.OpOverload | None = None,
    mutates: tuple[str, ...] = (),
    **kwargs: object,
) -> Extern:
    return Extern(str(op), op, args, kwargs, outputs, out, mutates)


__all__ = [
    "CPU",
    "F32",
    "Allocate",
    "Extern",
    "Free",
    "Launch",
    "Maker",
    "Place",
    "Ref",
    "buffer",
    "compile_kernels",
    "extern",
    "given",
    "kernel",
    "run_oracle",
]
