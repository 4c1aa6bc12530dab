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

__all__ = ["emit_kernel"]


def emit_kernel(kernel: Kernel, env: Env) -> KernelSource:
    """Triton source of `kernel`, with candidates and their grids. The function takes the params' storage pointers (16-byte aligned),
    then the symbols, then the blocks as constexprs; of a kernel over a list, three tables in the pointers' place: (member, program of that member) for
    each program, each member's own numbers, and each member's pointers. Raises Unsupported for a dtype or op that Triton has no form of."""
    if kernel.call is not None:
        return emit_attention(kernel)
    source = emit_product(prepared(kernel)) if kernel.nest.is_product else emit_nest(prepared(kernel))
    return replace(source, kernel=kernel)


def prepared(kernel: Kernel) -> Kernel:
    """With places that are numbers as such in indices; where results are rounded to 16 bits, with distribution functions as one op each, for which fewer
    instructions are enough."""
    kernel = replace(kernel, nest=replace(kernel.nest, body=with_numbers(kernel.nest.body)))
    if not rounds_to_16_bits(kernel.nest, {p.name: p.dtype for p in kernel.params}):
        return kernel
    return replace(kernel, nest=logistic(normal(kernel.nest)))
