"""One op as a C++ expression over scalars or vectors of W lanes; the names are those of vec.h and vecmath.h."""

from __future__ import annotations

import math

import torch

from dynacompile.errors import Unsupported
from dynacompile.ir.loops import Op

VALUES = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip
MEMORY = {**VALUES, torch.bfloat16: "bf16", torch.float16: "f16"}

INFIX = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "and": "&", "or": "|", "xor": "^"}
ROUNDING = ("floor", "ceil", "trunc", "round")
# on masks (vectors) and on bools: a comparison orders false before true
MASKS = {
    **dict.fromkeys(("and", "mul", "min"), "{0} & {1}"), **dict.fromkeys(("or", "add", "max"), "{0} | {1}"), **dict.fromkeys(("xor", "ne"), "{0} ^ {1}"),
    "eq": "~({0} ^ {1})", "lt": "~{0} & {1}", "le": "~{0} | {1}", "not": "~{0}", "where": "({0} & {1}) | (~{0} & {2})",
}  # fmt: skip
BOOLS = {
    **dict.fromkeys(("and", "mul", "min"), "{0} && {1}"), **dict.fromkeys(("or", "add", "max"), "{0} || {1}"), **dict.fromkeys(("xor", "ne"), "{0} != {1}"),
    "eq": "{0} == {1}", "lt": "!{0} && {1}", "le": "!{0} || {1}", "not": "!{0}", "where": "{0} ? {1} : {2}",
}  # fmt: skip


def value_type(dtype: torch.dtype) -> str:
    """The C++ type of a scalar value of `dtype`."""
    if dtype not in VALUES:
        raise Unsupported("dtype", f"the C++ target has no values of {dtype}", "cast to a real dtype of at most 64 bits")
    return VALUES[dtype]


def memory_type(dtype: torch.dtype) -> str:
    """The C++ type of an element in memory."""
    if dtype not in MEMORY:
        raise Unsupported("dtype", f"the C++ target has no tensors of {dtype}", "cast to a real dtype of at most 64 bits")
    return MEMORY[dtype]


def literal(value: object, dtype: torch.dtype) -> str:
    """A number as a C++ expression of exactly that scalar type."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        number = float(value)  # type: ignore[arg-type]
        suffix = "f" if dtype == torch.float32 else ""
        if math.isnan(number):
            return f'__builtin_nan{suffix}("")'
        if dtype == torch.float32:
            number = torch.tensor(number, dtype=torch.float64).to(torch.float32).item()
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
        if dtype == torch.float32:
            number = shortest(number)
        return repr(number) + suffix
    number = int(value)  # type: ignore[call-overload]
    if dtype == torch.int64:
        return f"{number}l" if number > -(2**63) else "(-9223372036854775807l - 1)"
    if dtype == torch.int32:
        return str(number) if number > -(2**31) else "(-2147483647 - 1)"
    return f"({value_type(dtype)}){number}"


def shortest(number: float) -> float:
    """The f32 `number` as the double with the fewest digits that rounds to it."""
    for digits in range(1, 10):
        candidate = float(f"{number:.{digits}g}")
        if math.isfinite(candidate) and torch.tensor(candidate, dtype=torch.float64).to(torch.float32).item() == number:
            return candidate
    return number


def scalar_op(op: Op, args: list[str], dtypes: list[torch.dtype]) -> str:
    """`op` on scalar operands. dtypes: the operands'."""
    source = dtypes[-1]
    if op.name == "cast":
        return convert(op, args[0], source)
    if source == torch.bool and op.name in BOOLS:
        return BOOLS[op.name].format(*args)
    if op.name in INFIX:
        return f"{args[0]} {INFIX[op.name]} {args[1]}"
    if op.name == "not":
        return f"~{args[0]}"
    return call(op, args, dtypes)


def vector_op(op: Op, args: list[str], dtypes: list[torch.dtype], lanes: list[bool]) -> str:
    """`op` where at least one operand has lanes; scalars go into all lanes."""
    source = dtypes[-1]
    full = [a if deep else f"all<W>({a})" for a, deep in zip(args, lanes, strict=True)]
    if op.name == "cast":
        return convert(op, full[0], source)
    if op.name == "where" and not lanes[0]:  # one decision for all lanes
        return f"{args[0]} ? {full[1]} : {full[2]}"
    if source == torch.bool and op.name in MASKS:
        return MASKS[op.name].format(*full)
    if op.name in INFIX:
        if source.is_floating_point:  # a scalar operand of the same type goes into all lanes by itself
            full = args
        return f"{full[0]} {INFIX[op.name]} {full[1]}"
    if op.name == "not":
        return f"~{full[0]}"
    return call(op, full, dtypes)


def convert(op: Op, arg: str, source: torch.dtype) -> str:
    if source == op.dtype:
        return arg
    return f"{'convert_bool' if source == torch.bool else 'convert'}<{value_type(op.dtype)}>({arg})"


def call(op: Op, args: list[str], dtypes: list[torch.dtype]) -> str:
    if op.name == "neg":
        return f"-{args[0]}"
    if op.name in ROUNDING and not dtypes[0].is_floating_point:
        return args[0]
    return f"{op.name}({', '.join(args)})"


def lowest(dtype: torch.dtype) -> object:
    return -math.inf if dtype.is_floating_point else False if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> object:
    return math.inf if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max


# kind -> (start, how two partial results combine). On bools, sums and maxima are "any", products and minima "all".
COMBINE = {
    "sum": (lambda dtype: 0, "{0} + {1}"),
    "prod": (lambda dtype: 1, "{0} * {1}"),
    "max": (lowest, "max({0}, {1})"),
    "min": (highest, "min({0}, {1})"),
    "any": (lambda dtype: False, "{0} | {1}"),
    "all": (lambda dtype: True, "{0} & {1}"),
}
ON_BOOL = {"sum": "any", "max": "any", "prod": "all", "min": "all"}


def reduction_kind(kind: str, dtype: torch.dtype) -> str:
    return ON_BOOL.get(kind, kind) if dtype == torch.bool else kind
