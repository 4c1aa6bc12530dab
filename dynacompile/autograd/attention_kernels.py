"""flex_attention by kernels of ours, on GPUs: whether they take it, and how it is traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.fx

from dynacompile.autograd.score_functions import Before, Refused, functions_of
from dynacompile.env import Env
from dynacompile.ir.shapes import as_static
from dynacompile.ops.attention import Reader
from dynacompile.ops.attention_kernels import DEVICES, Attention, Form
from dynacompile.ops.flexible_attention import Blocks, Flexible, FlexibleKernel, autocast, laid_like

HALVES = (torch.float16, torch.bfloat16)
WIDEST = 512  # elements of a head
EVERYWHERE = Blocks((0, 0), 0, 0)  # no block is skipped


@dataclass(frozen=True)
class ByKernels:
    """flex_attention in the place of a node. before: what its functions read is computed so. operator: where its mask is one that torch's kernels know, and no
    function changes the scores, they compute it."""

    flexible: Flexible
    form: Form
    before: tuple[Before, Before]
    operator: FlexibleKernel | None

    def __repr__(self) -> str:
        return "ByKernels()"  # in the text of graphs

    def traced(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: torch.Tensor, reader: Reader, attention: Callable[..., torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        query, key, value = autocast(query, key, value)
        with torch.autocast(query.device.type, enabled=False):
            if self.operator is not None:
                made = self.operator.without_mask(*self.operator.given(query, key, value, rest), reader, attention)
                if made is not None:
                    return (laid_like(made, query),)
            key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
            operands = [t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value)]
            first, second = self.flexible.reads
            given = rest[:first], rest[first : first + second]
            reads = [read for before, own in zip(self.before, given, strict=True) for read in before.run(own, query.device)]
            made = Attention.apply(self.form, *operands, *reads, *rest[first + second :])
        return made if self.flexible.auxiliary else made[:1]


def by_kernels(node: torch.fx.Node, operator: FlexibleKernel | None, env: Env) -> ByKernels:
    """operator: see ByKernels. Raises Refused."""
    flexible: Flexible = node.target  # type: ignore[assignment]
    operands = [n.meta["val"] for n in node.args]  # type: ignore[union-attr]
    query, key, value = operands[:3]
    if query.device.type not in DEVICES:
        raise Refused("kernels of ours for it run on GPUs alone")
    dtypes = {t.dtype for t in autocast(query, key, value)}
    if len(dtypes) > 1 or dtypes.isdisjoint((*HALVES, torch.float32)):
        raise Refused("its operands have no dtype, or several, that the tensor cores multiply")
    shapes = [[as_static(n) for n in t.shape] for t in (query, key, value)]
    if any(type(shape[d]) is not int for shape in shapes for d in (1, 3)):
        raise Refused("its heads differ in number or size from call to call")
    if any(shape[3] > WIDEST for shape in shapes):
        raise Refused(f"its heads have more than {WIDEST} elements")
    if any(type(n) is int and n == 0 for shape in shapes for n in shape):
        raise Refused("it has no elements")
    tensors = [t for t in operands if isinstance(t, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    found = functions_of(flexible.score, flexible.mask, torch.float32, recorded)
    if found.wanted and torch.are_deterministic_algorithms_enabled():
        raise Refused("the gradients of what its function reads are sums in no fixed order, and algorithms are to be deterministic")
    (dtype,) = dtypes
    if env.config.precise and dtype in HALVES:
        raise Refused("every result of half precision is to be rounded as in eager")
    reads = sum(len(b.reads) for b in found.before)
    blocks = flexible.blocks or EVERYWHERE
    precision = precision_of(env) if dtype == torch.float32 else "ieee"
    form = Form(found.score, found.mask, found.derivative, found.numbers, reads, blocks, found.wanted, flexible.scale, precision)
    return ByKernels(flexible, form, found.before, operator)


def float32_precision() -> str:
    return torch.backends.cuda.matmul.fp32_precision


def precision_of(env: Env) -> str:
    """Of products of float32: as torch's setting says, which is then guarded; with float32's digits where nothing may rely on that."""
    if env.config.precise:
        return "exact"
    if env.rely is None:
        return "ieee"
    env.rely("torch.backends.cuda.matmul.fp32_precision", float32_precision, float32_precision())
    return "tf32" if float32_precision() == "tf32" else "ieee"
