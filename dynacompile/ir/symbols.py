"""Torch's symbolic ints as extents. SymPy and torch's module for symbolic shapes are not imported: expressions are told apart by name."""

from __future__ import annotations

import sys
from math import lcm
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.bounds import never_negative
from dynacompile.ir.extents import derived
from dynacompile.ir.index import Extent, Index, Symbol, atom, constant, hint
from dynacompile.ir.index import extent as simplest
from dynacompile.ir.shape_envs import SYMBOLIC
from dynacompile.ir.shapes import EXAMPLE
from dynacompile.ir.sizes import Source

__all__ = ["extent", "hint", "is_symbolic", "sources"]

LARGEST = 2**31 - 1  # that a symbol may be: kernels compute with 32-bit positions along one dimension

ROUNDED = {"CeilToInt": -1, "FloorToInt": 1}  # the sign of what is floored, and of the result
MODULO = frozenset({"Mod", "PythonMod"})
OPERATIONS = {"FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "Max": "max", "Min": "min"}


def is_symbolic(value: object) -> bool:
    return isinstance(value, (torch.SymInt, Index))


def extent(value: int | torch.SymInt | Index) -> Extent:
    """A size as a number, or as an expression over symbols. Raises Unsupported for one that no input shows."""
    if not isinstance(value, torch.SymInt):
        return value
    known = value.node.maybe_as_int()
    if known is None and value.node.has_hint() and value.node.hint in (0, 1) and is_fixed(value):
        known = value.node.hint
    return known if known is not None else simplest(from_sympy(value.node.expr, value.node.shape_env))


def is_fixed(value: torch.SymInt) -> bool:
    """Whether the guards leave no other value than this call's. A size that was found to be 1 was broadcast, and its expression need not tell."""
    return sys.modules[SYMBOLIC].statically_known_true(value == value.node.hint)


def from_sympy(expr: Any, env: Any) -> Extent:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return whole_parts(symbol(expr, env), expr, env)
    name = type(expr).__name__
    if name in ROUNDED and type(expr.args[0]).__name__ == "IntTrueDiv":  # of two ints, as a float: exact, since sizes are below 2**53
        sign, (numerator, denominator) = ROUNDED[name], (from_sympy(a, env) for a in expr.args[0].args)
        return simplest(constant(sign) * quotient(simplest(constant(sign) * numerator), denominator))
    args = [from_sympy(a, env) for a in expr.args]
    if expr.is_Add:
        total: Index = constant(0)
        for a in args:
            total = total + a
        return simplest(whole_quotient(total))
    if expr.is_Mul:
        product: Index = constant(1)
        for a in args:
            product = product * a
        return simplest(product)
    if expr.is_Pow and isinstance(args[1], int) and args[1] > 0:
        power: Index = constant(1)
        for _ in range(args[1]):
            power = power * args[0]
        return simplest(power)
    operation = OPERATIONS.get(name)
    if operation is None or len(args) < 2:
        raise Unsupported("symbolic-shape", f"a size is {expr}, which compiled programs don't evaluate", "compile with dynamic=False")
    result = args[0]
    for a in args[1:]:
        result = quotient(result, a) if operation == "floordiv" else atom(derived(operation, result, a))
    return result


def whole_parts(one: Symbol, name: Any, env: Any) -> Index:
    """The symbol, as a multiple of another one where a guard says that a number divides it: what is split into so many parts, and put together again, has
    one form then."""
    if one.real or one.low is None or one.low < 0:
        return atom(one)
    divisors = [int(m.args[1]) for m in env.divisible if type(m).__name__ in MODULO and m.args[0] == name and m.args[1].is_Integer]
    parts = lcm(*(d for d in divisors if 0 < d <= LARGEST))
    return atom(derived("floordiv", atom(one), parts)) * parts if 1 < parts <= LARGEST else atom(one)


def whole_quotient(total: Index) -> Index:
    """a // b + c as (a + b * c) // b, one symbol: what is multiplied by it has one term, and not one for each."""
    if len(total.terms) != 1 or not total.constant:
        return total
    (monomial, coefficient), definition = total.terms[0], getattr(total.terms[0][0][0], "definition", None)
    if len(monomial) != 1 or coefficient != 1 or definition is None or definition[0] != "floordiv" or not isinstance(definition[2], int):
        return total
    _, numerator, divisor = definition
    if abs(total.constant) * divisor > LARGEST:
        return total
    return atom(derived("floordiv", numerator + total.constant * divisor, divisor))


def quotient(a: Extent, b: Extent) -> Extent:
    """a // b, without a symbol of its own where b divides a in every call."""
    if isinstance(a, Index) and (b > 0 if isinstance(b, int) else never_negative(b - 1)):
        found = a // b
        if all(type(factor) is Symbol for monomial, _ in found.terms for factor in monomial):
            return simplest(found)
    return atom(derived("floordiv", a, b))


def symbol(name: Any, env: Any) -> Symbol:
    example = env.backed_var_to_val.get(name)
    if not name.is_integer:
        return Symbol(str(name), float(example), None, None, real=True)
    known = env.var_to_range[name]
    low = int(known.lower) if known.lower.is_Integer else -LARGEST - 1
    high = int(known.upper) if known.upper.is_Integer and known.upper <= LARGEST else LARGEST
    return Symbol(str(name), max(low, min(high, EXAMPLE)) if example is None else int(example), low, high)


def sources(graph: torch.fx.GraphModule) -> tuple[tuple[Source, ...], tuple[tuple[int, Extent], ...]]:
    """Where a graph's placeholders show symbols: integers first, then extents, then strides; and what its integer inputs must be."""
    found: dict[Symbol, Source] = {}
    checks: list[tuple[int, Extent]] = []
    placeholders = [(i, n.meta.get("val")) for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")]
    for i, val in placeholders:
        if isinstance(val, torch.SymFloat):
            bare = bare_symbol(val)
            if bare is not None:
                found.setdefault(bare, Source(bare, i, None))
        elif isinstance(val, torch.SymInt):
            bare = bare_symbol(val)
            if bare is None or found.setdefault(bare, Source(bare, i, None)).position != i:
                checks.append((i, extent(val)))
    for i, val in placeholders:
        if isinstance(val, torch.Tensor):
            for d, n in enumerate(val.size()):
                bare = bare_symbol(n)
                if bare is not None:
                    found.setdefault(bare, Source(bare, i, d))
    for i, val in placeholders:
        if isinstance(val, torch.Tensor):
            for d, n in enumerate(val.stride()):
                bare = bare_symbol(n)
                if bare is not None:
                    found.setdefault(bare, Source(bare, i, d, True))
    return tuple(found.values()), tuple(checks)


def bare_symbol(value: object) -> Symbol | None:
    if not isinstance(value, (torch.SymInt, torch.SymFloat)) or not value.node.expr.is_Symbol:
        return None
    return symbol(value.node.expr, value.node.shape_env)
