"""Products with epilogues for the tests of their Triton templates: functions, operands, and what fusing by force makes of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F

from dynacompile.codegen.triton import emit_kernel
from dynacompile.codegen.triton import products as templates
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.products import Decision, Joint
from dynacompile.ir.schedule import Kernel, KernelSource, Launch, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import products, schedule
from tests.lower.tracing import products_are_calls, trace

ENV = Env(CompileConfig(verify=True), lambda event: None, "test", -1, Path("unused"), rely=lambda name, read, value: None)
GPU = torch.device("cuda", 0)
BF16, F32, F8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def always(joint: Joint) -> Decision:
    return Decision(True, "the test says so")


def plan_on_gpu(function: Callable, args: tuple[torch.Tensor, ...], env: Env = ENV, choose: Callable[[Joint], Decision] | None = always) -> Schedule:
    """The schedule of a function of tensors on a GPU; none is needed."""
    with products_are_calls():
        program = lower(trace(function, args), replace(env, emit=lambda event: None))
    moved = replace(program, buffers={name: replace(b, device=GPU) for name, b in program.buffers.items()})
    return schedule(moved, env) if choose is None else schedule(moved, env, choose=choose)


def multiplied(precision: str) -> AbstractContextManager:
    """Products of float32 are planned as under this setting of torch."""
    return patch.object(products, "float32_precision", lambda: precision)


def on_cpu(plan: Schedule) -> Schedule:
    """A schedule for a GPU, to be interpreted on the CPU."""
    cpu = torch.device("cpu")
    kernels = {name: replace(k, device=cpu) for name, k in plan.kernels.items()}
    return replace(plan, device=cpu, buffers={name: replace(b, device=cpu) for name, b in plan.buffers.items()}, kernels=kernels)


@dataclass(frozen=True)
class Case:
    """A function, the sizes of its operands, and their dtype. turned: the second operand is given transposed. blocks: other sizes of tiles."""

    function: Callable
    sizes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = BF16
    turned: tuple[int, ...] = ()
    copied: bool = True
    precision: str = "ieee"

    def args(self) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        found = []
        for i, size in enumerate(self.sizes):
            made = torch.randn(size[::-1] if i in self.turned else size, generator=generator).to(self.dtype)
            if self.dtype == F8 and i > 1:
                made = made.to(BF16 if i == 4 else F32)  # scales, then a bias
            found.append(made.t() if i in self.turned else made)
        return tuple(found)

    def plan(self, env: Env = ENV) -> Schedule:
        with multiplied(self.precision):
            return plan_on_gpu(self.function, self.args(), env)


def gradient(grad: torch.Tensor, weight: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(grad @ weight, before)


def kept(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.addmm(b, x, w)
    return before, F.gelu(before, approximate="tanh")


def gated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ a) * (x @ b)


def gated_and_kept(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    gate, up = x @ a, x @ b
    return gate, up, F.silu(gate) * up


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).view(4, 32, 2, 64).transpose(1, 2) * 0.5).contiguous()


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch._scaled_mm(x, w.t(), scale_a=a, scale_b=b, bias=bias, out_dtype=BF16))


def scaled_fast(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), a, b, bias, out_dtype=BF16, use_fast_accum=True).sigmoid()


def scaled_rows(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), scale_a=a, scale_b=b, out_dtype=BF16).float() * 2


CASES: dict[str, Case] = {
    "gelu of a linear layer": Case(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((128, 96), (96, 128), (128,)), turned=(1,)),
    "float16": Case(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), ((128, 96), (96, 128), (128,)), torch.float16, turned=(1,)),
    "plain operands": Case(lambda x, w: torch.relu(x @ w), ((128, 96), (96, 128))),
    "first operand transposed": Case(lambda x, w: (x @ w).float(), ((128, 96), (96, 128)), turned=(0,)),
    "both operands transposed": Case(lambda x, w: (x @ w).sigmoid(), ((128, 96), (96, 128)), turned=(0, 1)),
    "odd sizes": Case(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), ((67, 72), (72, 100), (100,)), turned=(1,)),
    "sizes that no descriptor takes": Case(lambda x, w: torch.relu(x @ w), ((65, 71), (71, 67)), copied=False),
    "ends that descriptors fill in": Case(lambda x, w: torch.relu(x @ w), ((72, 88), (88, 104))),
    "before and after": Case(kept, ((128, 64), (64, 128), (128,)), turned=(1,)),
    "gradient of gelu": Case(gradient, ((128, 64), (64, 128), (128, 128))),
    "residual": Case(lambda x, w, r: x @ w + r, ((128, 64), (64, 128), (128, 128)), turned=(1,)),
    "residual as the bias": Case(lambda r, x, w: torch.addmm(r, x, w).tanh(), ((128, 128), (128, 64), (64, 128))),
    "scale of rows": Case(lambda x, w, s: (x @ w) * s[:, None].float(), ((128, 64), (64, 128), (128,))),
    "result transposed": Case(lambda x, w: torch.relu(x @ w).t().contiguous(), ((128, 64), (64, 128))),
    "gate and values": Case(gated, ((128, 64), (64, 128), (64, 128)), turned=(1, 2)),
    "gate and values that stay": Case(gated_and_kept, ((128, 64), (64, 128), (64, 128)), turned=(1, 2)),
    "heads": Case(heads, ((128, 64), (64, 128))),
    "factors": Case(lambda c, x, w: torch.addmm(c, x, w, alpha=0.5, beta=-2).relu(), ((128,), (128, 64), (64, 128))),
    "a factor of zero": Case(lambda c, x, w: torch.addmm(c, x, w, alpha=0.5, beta=0).relu(), ((128,), (128, 64), (64, 128))),
    "a column is added": Case(lambda c, x, w: torch.addmm(c, x, w).relu(), ((128, 1), (128, 64), (64, 128))),
    "float32": Case(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((128, 96), (96, 128), (128,)), F32, turned=(1,), copied=False),
    "float32, first operand transposed": Case(lambda x, w: torch.relu(x @ w), ((72, 88), (88, 104)), F32, turned=(0,), copied=False),
    "float32, batch": Case(lambda x, w: torch.bmm(x, w).sigmoid(), ((2, 72, 88), (2, 88, 104)), F32, copied=False),
    "tf32": Case(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((128, 96), (96, 128), (128,)), F32, turned=(1,), precision="tf32"),
    "tf32, gate and values": Case(gated_and_kept, ((128, 64), (64, 128), (64, 128)), F32, turned=(1, 2), precision="tf32"),
    "8-bit numbers": Case(scaled, ((128, 96), (128, 96), (), (), (128,)), F8),
    "8-bit numbers, fast sums": Case(scaled_fast, ((72, 96), (80, 96), (), (), (80,)), F8),
    "8-bit numbers, scales of rows and columns": Case(scaled_rows, ((72, 96), (80, 96), (72, 1), (1, 80)), F8),
    "batch": Case(lambda x, w: torch.relu(torch.bmm(x, w)), ((3, 72, 80), (3, 80, 104))),
    "batch, second operand transposed": Case(lambda q, k: torch.bmm(q, k.mT) * 0.125, ((4, 96, 64), (4, 72, 64))),
    "batch, first operand transposed": Case(lambda q, k: torch.bmm(q.mT, k).float(), ((2, 64, 96), (2, 64, 72))),
    "batch, one matrix for all": Case(lambda x, w: torch.bmm(x, w.expand(3, 64, 96)).tanh(), ((3, 72, 64), (64, 96))),
    "batch, result transposed": Case(lambda x, w: torch.relu(torch.bmm(x, w)).mT.contiguous(), ((3, 64, 64), (3, 64, 96))),
    "batch, odd sizes": Case(lambda x, w: torch.relu(torch.bmm(x, w)), ((3, 65, 71), (3, 71, 67)), copied=False),
    "batch, something added": Case(lambda c, x, w: torch.baddbmm(c, x, w, alpha=0.125).sigmoid(), ((3, 96, 80), (3, 96, 64), (3, 64, 80))),
    "batch, the same added to all": Case(lambda c, x, w: torch.baddbmm(c, x, w, beta=0.5).sigmoid(), ((1, 96, 80), (3, 96, 64), (3, 64, 80))),
    "batch, a mask of heads": Case(lambda q, k, mask: torch.bmm(q, k.mT).view(2, 2, 96, 72) * 0.1 + mask, ((4, 96, 64), (4, 72, 64), (2, 1, 1, 72))),
    "batch, heads side by side": Case(lambda p, v: torch.bmm(p, v).view(2, 2, 96, 64).transpose(1, 2).reshape(192, 128) * 2, ((4, 96, 72), (4, 72, 64))),
    "batch, gate and values": Case(lambda x, a, b: F.silu(torch.bmm(x, a)) * torch.bmm(x, b), ((2, 72, 64), (2, 64, 80), (2, 64, 80)), copied=False),
}
if torch.__version__ < "2.12":  # whose product for CPUs, which is compared with, takes single scales alone
    del CASES["8-bit numbers, scales of rows and columns"]


def fused(case: Case, env: Env = ENV) -> tuple[Schedule, Launch, KernelSource]:
    """The schedule, which is one launch, and the kernel's text."""
    plan = case.plan(env)
    (launch,) = [s for s in plan.steps if isinstance(s, Launch)]
    return plan, launch, emit_kernel(plan.kernels[launch.kernel], env)


def with_copies(kernel: Kernel) -> KernelSource:
    """The text for a device without processors, which has descriptors of tensors for few tiles, too."""
    with patch.object(templates, "PROCESSORS", 0):
        return emit_kernel(kernel, ENV)
