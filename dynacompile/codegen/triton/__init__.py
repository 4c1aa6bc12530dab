"""Triton: one readable, standalone module per kernel."""

from dataclasses import replace

from dynacompile.codegen.triton.attention import emit_attention
from dynacompile.codegen.triton.emit import emit_nest
from dynacompile.codegen.triton.products import emit_product
from dynacompile.codegen.triton.values import rounds_to_16_bits
from dynacompile.env import Env
from dynacompile.ir.body import with_numbers
from dynacompile.ir.normal import logistic, normal
from dynacompile.ir.schedule import Kernel, KernelSource
from dynacompile.ops.scalars import NEAREST

__all__ = ["emit_kernel", "is_exact"]

ROUNDINGS = frozenset(NEAREST.values())


def emit_kernel(kernel: Kernel, env: Env) -> KernelSource:
    """Triton source of `kernel`, with candidates and their grids. The function takes the params' storage pointers (16-byte aligned),
    then the symbols, then the blocks as constexprs; of a kernel over a list, three tables in the pointers' place: (member, program of that member) for
    each program, each member's own numbers, and each member's pointers. Raises Unsupported for a dtype or op that Triton has no form of."""
    if kernel.call is not None:
        return emit_attention(kernel)
    source = emit_product(prepared(kernel)) if kernel.nest.is_product else emit_nest(prepared(kernel))
    return replace(source, kernel=kernel, exact=env.config.precise or is_exact(kernel))


def is_exact(kernel: Kernel) -> bool:
    """Whether the last bit of its numbers counts: it rounds them on their way as eager does, or it finds the greatest or the least of some, which others look
    for among the same numbers in memory. A product and a sum that are joined to one instruction lack the rounding between them, also that to 16 bits."""
    body = kernel.nest.body
    return any(op.name in ROUNDINGS or (op.name == "reduce" and op.attr in ("max", "min") and op.dtype.is_floating_point) for op in body)


def prepared(kernel: Kernel) -> Kernel:
    """With places that are numbers as such in indices, and the normal distribution function as one op; where results are rounded to 16 bits, with the
    logistic one, too: fewer instructions are enough for them."""
    nest = normal(replace(kernel.nest, body=with_numbers(kernel.nest.body)))
    return replace(kernel, nest=logistic(nest) if rounds_to_16_bits(nest, {p.name: p.dtype for p in kernel.params}) else nest)
