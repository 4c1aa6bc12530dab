"""Real numbers computed of sizes, such as 2 / (n - 1), and floats that a call brings, as values of a body."""

from __future__ import annotations

from typing import Any

import torch

from dynacompile.errors import Unsupported
from dynacompile.ir.symbols import from_sympy, symbol
from dynacompile.lower.values import Expander, Value

EXACT = torch.float64  # what Python computes them in


def number(o: Expander, value: torch.SymFloat) -> Value | float:
    """The value of a symbolic float, in float64; a float where it is one number in every call."""
    expr = value.node.expr
    return float(expr) if expr.is_number else emit(o, expr, value.node.shape_env)


def emit(o: Expander, expr: Any, env: Any) -> Value:
    if expr.is_number:
        return o.constant(float(expr), EXACT)
    name = type(expr).__name__
    if expr.is_Symbol and not expr.is_integer:
        return o.given(symbol(expr, env))
    if expr.is_Symbol or name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "CeilToInt", "FloorToInt"):
        if not expr.is_integer:
            raise unknown(expr)
        return o.constant(from_sympy(expr, env), EXACT)
    args = [emit(o, a, env) for a in expr.args]
    match name:
        case "ToFloat":
            return args[0]
        case "FloatTrueDiv" | "IntTrueDiv":
            return args[0] / args[1]
        case "Add":
            return sum(args[1:], args[0])
        case "Mul":
            product = args[0]
            for a in args[1:]:
                product = product * a
            return product
        case "Pow" | "FloatPow" | "PowByNatural":
            exponent = expr.args[1]
            if exponent == -1:
                return 1.0 / args[0]
            if exponent in (0.5, -0.5):
                return o.sqrt(args[0]) if exponent > 0 else 1.0 / o.sqrt(args[0])
            return o.pow(args[0], args[1])
        case "OpaqueUnaryFn_sqrt":
            return o.sqrt(args[0])
        case "Max" | "Min":
            result = args[0]
            for a in args[1:]:
                result = o.apply(name.lower(), result, a)
            return result
    raise unknown(expr)


def unknown(expr: Any) -> Unsupported:
    return Unsupported("symbolic-shape", f"a number is {expr}, which compiled programs don't evaluate", "compile with dynamic=False")
