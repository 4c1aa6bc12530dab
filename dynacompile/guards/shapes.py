"""Conditions on sizes, strides, ints and floats: postfix programs for the native machine, and the Python twin that explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynacompile.errors import Unsupported
from dynacompile.guards.tree import Tree
from dynacompile.ir.captured import Guard
from dynacompile.ir.expressions import Expression, Quantity, evaluated
from dynacompile.ir.guard_facts import ShapeFacts, plain_twin
from dynacompile.ir.source import Source

INSTRUCTIONS = (
    *("constant", "size", "stride", "value", "real", "given"),
    *("add", "mul", "floordiv", "mod", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "same", "sub", "truediv", "pow", "decimals"),
    *("not", "neg", "abs", "finite", "tofloat", "trunc", "floor", "ceil", "round", "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh"),
)
"""Of the native machine, as enum Count of shapes.cpp: those with arguments, (number), (node, dimension), (node, dimension), (node), (node),
(bits); those of two operands; those of one."""


def compile_shape(tree: Tree, node: int, guard: Guard, index: int) -> None:
    facts: ShapeFacts = guard.expected  # type: ignore[assignment]
    nodes = tuple(tree.node(q.source, index) for q in facts.quantities)
    tree.relate("shape", nodes, index, 0, tuple(shape_program(facts.expression, facts.quantities)))


def shape_program(expression: Expression, quantities: tuple[Quantity, ...]) -> Iterator[int]:
    """An expression in postfix form. Raises Unsupported for a constant of more than 64 bits, which the native core does not compute with."""
    operation, *operands = expression
    if operation in ("constant", "given"):
        if isinstance(operands[0], int) and not -(2**63) <= operands[0] < 2**63:
            raise Unsupported(
                "symbolic-number", f"an expression on sizes and numbers has the constant {operands[0]}, of more than 64 bits", "compile with dynamic=False"
            )
        yield from (INSTRUCTIONS.index(operation), operands[0])
    elif operation == "quantity":
        quantity = quantities[operands[0]]
        yield from (INSTRUCTIONS.index(quantity.kind), operands[0])
        if quantity.kind in ("size", "stride"):
            yield quantity.dim
    else:
        for operand in operands:
            yield from shape_program(operand, quantities)
        yield INSTRUCTIONS.index(operation)


def explain_shape(guard: Guard, value: Any, find: Callable[[Source], Any]) -> Iterator[tuple[str, str, str]]:
    facts: ShapeFacts = guard.expected  # type: ignore[assignment]
    numbers = []
    for quantity in facts.quantities:
        found, name = find(quantity.source), quantity.source.text()
        wanted = {"value": int, "real": float}.get(quantity.kind, torch.Tensor)
        if type(found) is not wanted if wanted is not torch.Tensor else not isinstance(found, torch.Tensor):
            yield f"type({name})", wanted.__name__, type(found).__qualname__
            return
        found = plain_twin(found) if isinstance(found, torch.Tensor) else found
        if wanted is torch.Tensor and found.dim() <= quantity.dim:
            yield f"{name}.dim()", f"{quantity.dim + 1} or more", str(found.dim())
            return
        numbers.append(quantity.read(found))
    try:
        holds = evaluated(facts.expression, numbers)
    except (ArithmeticError, ValueError):
        holds = 0
    if not holds:
        yield facts.text(), "True", f"False ({', '.join(f'{q.text()} = {n}' for q, n in zip(facts.quantities, numbers))})"
