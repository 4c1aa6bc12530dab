"""Hand-written kernels for CUDA schedules: PTX, which the driver compiles as it loads it. One thread per element, as many as given."""

from __future__ import annotations

import torch

from dynacompile.ir.loops import Buffer, Nest
from dynacompile.ir.schedule import CudaKernel, Kernel, Launch, Module, Param, Schedule

CUDA = torch.device("cuda", 0)
WARPS = 4
BODIES = {  # loads of the first params in %f1, %f2; the value to store in %f3
    "add": (2, "add.f32 %f3, %f1, %f2;"),
    "mul": (2, "mul.f32 %f3, %f1, %f2;"),
    "twice": (1, "add.f32 %f3, %f1, %f1;"),
    "increment": (1, "add.f32 %f3, %f1, 0f3F800000;"),
}
MODES = {"add": "in in out", "mul": "in in out", "twice": "in out", "increment": "inout"}


def text(name: str, elements: int, shared: int = 0) -> str:
    """A kernel over f32 pointers, with two further null pointers at the end, as Triton's. shared > 0: it goes through dynamic shared memory."""
    loads, body = BODIES[name]
    params = len(MODES[name].split())
    declared = ",\n".join(f".param .u64 p{i}" for i in range(params + 2))
    lines = [f"ld.param.u64 %rd{i}, [p{i}]; cvta.to.global.u64 %rd{i}, %rd{i}; add.u64 %rd{i}, %rd{i}, %rd9;" for i in range(params)]
    lines += [f"ld.global.f32 %f{i + 1}, [%rd{i}];" for i in range(loads)]
    lines.append(body)
    if shared:
        lines += [
            "cvt.u32.u64 %r5, %rd9;",
            "mov.u32 %r6, memory;",
            f"and.b32 %r5, %r5, {WARPS * 32 * 4 - 1};",
            "add.u32 %r6, %r6, %r5;",
            "st.shared.f32 [%r6], %f3;",
            "ld.shared.f32 %f3, [%r6];",
        ]
    lines.append(f"st.global.f32 [%rd{params - 1}], %f3;")
    code = "\n".join(lines)
    extern = ".extern .shared .align 16 .b8 memory[];" if shared else ""
    return f"""
.version 7.0
.target sm_70
.address_size 64
{extern}
.visible .entry {name}({declared})
{{
.reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<10>; .reg .f32 %f<4>;
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
setp.ge.u32 %p, %r4, {elements};
@%p bra done;
mul.wide.u32 %rd9, %r4, 4;
{code}
done: ret;
}}
"""


def cuda_kernel(name: str, elements: int, shared: int = 0) -> CudaKernel:
    blocks = -(-elements // (32 * WARPS))
    return CudaKernel(text(name, elements, shared).encode() + b"\0", name, (blocks, 1, 1), WARPS, shared, 2)


def on(device: torch.device, *buffers: Buffer) -> list[Buffer]:
    return [Buffer(b.name, b.dtype, device, b.size, b.stride, b.kind, b.offset, b.base) for b in buffers]


def cuda_module(
    inputs: tuple, outputs: tuple, buffers: list[Buffer], steps: list, arena: int = 0, elements: int = 6, shared: int = 0, device: torch.device = CUDA
) -> Module:
    names = dict.fromkeys(s.kernel for s in steps if isinstance(s, Launch))
    kernels = {n: Kernel(n, Nest(n, (), ()), tuple(Param(f"p{i}", torch.float32, m) for i, m in enumerate(MODES[n].split())), device) for n in names}
    schedule = Schedule(inputs, outputs, {b.name: b for b in on(device, *buffers)}, kernels, tuple(steps), arena, device)
    return Module(schedule, {n: cuda_kernel(n, elements, shared) for n in names})
