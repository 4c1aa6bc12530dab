"""Numbers that are not the same at every call: sizes of tensors, ints and floats that exist before the frame, and what is computed from them.

Whatever capture has no symbolic form for asks for the constant, which makes the number one: the entry then serves this value alone.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.symbols import Unbacked
from dynacompile.capture.values.base import Value, builtin_attribute
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.expressions import PARTIAL, Expression, Formula, Term, as_expression, formula, given
from dynacompile.ir.namespaces import defines
from dynacompile.ir.shapes import LARGEST, as_static, unbacked
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.symbols import Symbols
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

# Operators that torch.SymInt computes as Python does, for ints of any sign.
ARITHMETIC = frozenset({"add", "sub", "mul"})
NO_NUMBERS = (types.NoneType, str, bytes, tuple, types.EllipsisType, torch.dtype, torch.device)
"""What no number equals, whatever its value."""
COMPARISONS = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
UNCHANGED = frozenset({"pos", "index"})
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
BINARY_OPS = {"add": 0, "floordiv": 2, "mul": 5, "mod": 6, "pow": 8, "sub": 10, "truediv": 11}  # arguments of BINARY_OP
MATH = {f: f.__name__ for f in (math.sqrt, math.exp, math.log, math.log2, math.sin, math.cos, math.tan, math.tanh)}
FUNCTIONS: dict[Callable, str] = {int: "trunc", float: "tofloat", round: "round", math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc", **MATH}
BUILTINS: dict[str, Callable] = {"max": max, "min": min, "abs": abs, "neg": operator.neg, "decimals": round, **{name: f for f, name in FUNCTIONS.items()}}
BUILTINS |= {name: getattr(operator, name) for name in COMPARISONS}
REAL_OPERATORS = frozenset({"add", "sub", "mul", "truediv", "pow", "neg", "abs"})
LEAVES = ("constant", "given", "quantity")
EXACT = 2**53  # ints up to which floats know each
MOST_DECIMALS = 22
MOST_TERMS = 128  # of a formula, which each call computes
MOST_HELD = 16  # numbers at once, of the 32 that the stack of the native machine holds: conditions are formulas of formulas


def owner_of(shown: Unbacked) -> Value:
    """The tensor that a number which depends on values can be read from."""
    assert isinstance(shown.owner, Value)
    return shown.owner


ITEMS = ("__getitem__", "__setitem__", "__delitem__")  # what numbers do not have


class SymbolicInt(Value):
    """sym: its value in terms of symbols. source: where the int itself is, when it existed before the frame."""

    is_symbol = True

    def __init__(self, symbols: Symbols, sym: torch.SymInt, source: Source | None = None):
        self.symbols, self.sym, self.source = symbols, sym, source

    def describe(self) -> str:
        return f"the symbolic int {self.source.text() if self.source else self.sym}"

    def pytype(self) -> type:
        return int

    def constant(self) -> int:
        return int(self.sym)

    def truth(self, cx: Context) -> bool:
        return bool(self.sym != 0)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("real", "numerator"):
            return self
        if name in ("imag", "denominator"):
            return ConstantValue(0 if name == "imag" else 1)
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(int, name)

    def get_item(self, cx: Context, key: Value) -> Value:
        return ConstantValue(self.constant()).get_item(cx, key)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ITEMS:
            raise unsupported("would-raise", f"{self.pytype().__name__!r} object is not subscriptable")
        if name == "bit_length" and not args and not kwargs and self.sym.node.has_hint():
            bits = self.sym.node.hint.bit_length()
            if bits and bool(self.sym >= 1 << (bits - 1)) and bool(self.sym < 1 << bits):  # so is each number of as many bits
                return ConstantValue(bits)
        return ConstantValue(self.constant()).method(cx, name, args, kwargs)

    def contains(self, cx: Context, item: Value) -> Value:
        raise unsupported("would-raise", "argument of type 'int' is not iterable")

    def argument(self) -> tuple[Any, Any]:
        number = as_static(self.sym)
        if isinstance(number, torch.SymInt):
            number = self.symbols.within_64_bits(number)
        return number, number

    def children(self) -> Sequence[Value]:
        return [owner_of(self.symbols.unbacked[s]) for s in unbacked(self.sym)]

    def numbers(self) -> Iterator[Source]:
        if isinstance(number := as_static(self.sym), torch.SymInt):
            yield from (self.symbols.quantities[s].source for s in number.node.expr.free_symbols if s in self.symbols.quantities)

    def rebuild(self, out: Writer) -> None:
        number = as_static(self.sym)
        if isinstance(number, int):
            out.const(number)
            return
        rebuild_from(out, self.symbols, number.node.expr, self.constant)


class SymbolicBool(Value):
    """A condition on numbers that depend on the values of tensors: `operator.name(*args)`."""

    def __init__(self, symbols: Symbols, sym: torch.SymBool, name: str, args: Sequence[Value]):
        self.symbols, self.sym, self.name, self.args = symbols, sym, name, args

    def describe(self) -> str:
        return f"the condition {self.sym}"

    def pytype(self) -> type:
        return bool

    def truth(self, cx: Context) -> bool:
        """Of numbers that were read from tensors as they are, the condition on these may be known before the graph."""
        tensors = [self.read_from(arg) for arg in self.args]
        return bool(self.sym) if None in tensors else cx.operator(self.name, tensors).truth(cx)  # type: ignore[arg-type]

    def read_from(self, number: Value) -> Value | None:
        """The tensor of one int that is the number, or the number itself, where it is a constant."""
        shown = self.symbols.unbacked.get(number.sym.node.expr) if isinstance(number, SymbolicInt) else None
        return owner_of(shown) if shown is not None and shown.dim is None else number if isinstance(number, ConstantValue) else None

    def constant(self) -> bool:
        return bool(self.sym)

    def argument(self) -> tuple[Any, Any]:
        return self.sym, self.sym

    def children(self) -> Sequence[Value]:
        return [owner_of(self.symbols.unbacked[s]) for s in unbacked(self.sym)]

    def rebuild(self, out: Writer) -> None:
        rebuild_from(out, self.symbols, self.sym.node.expr, self.constant)


class SymbolicFloat(Value):
    """formula: how a call computes it. source: where the float itself is, when it existed before the frame."""

    is_symbol = True

    def __init__(self, symbols: Symbols, formula: Formula, source: Source | None = None):
        self.symbols, self.formula, self.source = symbols, formula, source

    def describe(self) -> str:
        return f"the symbolic float {self.formula.text()}"

    def pytype(self) -> type:
        return float

    def numbers(self) -> Iterator[Source]:
        yield from (quantity.source for quantity in self.formula.quantities)

    def constant(self) -> float:
        value = self.symbols.value(self.formula)
        self.symbols.rely("same", self.formula, value)
        return value

    def truth(self, cx: Context) -> bool:
        return decided(self.symbols, "ne", self.formula, 0)

    def get_attr(self, cx: Context, name: str) -> Value:
        return self if name == "real" else ConstantValue(0.0) if name == "imag" else builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(float, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ITEMS:
            raise unsupported("would-raise", f"{self.pytype().__name__!r} object is not subscriptable")
        return ConstantValue(self.constant()).method(cx, name, args, kwargs)

    def contains(self, cx: Context, item: Value) -> Value:
        raise unsupported("would-raise", "argument of type 'float' is not iterable")

    def argument(self) -> tuple[Any, Any]:
        number = self.symbols.number_of(self.formula)
        if not isinstance(as_static(number), torch.SymFloat):  # an operation of torch has asked for the value
            return self.symbols.value(self.formula), self.symbols.value(self.formula)
        return number, number

    def rebuild(self, out: Writer) -> None:
        emit(out, self.formula.expression, self.formula.quantities)


def rebuild_from(out: Writer, symbols: Symbols, expr: Any, constant: Callable[[], Any]) -> None:
    """Residual code that pushes what a SymPy expression is at a call; `constant` gives what it is at this one, for all, where there is no such code."""
    found = sorted(expr.free_symbols, key=str)
    expression = as_expression(expr, {s: i for i, s in enumerate(found)})
    if expression is None:
        out.const(constant())
        return
    emit(out, expression, [symbols.unbacked.get(s) or symbols.quantities[s] for s in found])


def emit(out: Writer, expression: Expression, quantities: Sequence[Any]) -> None:
    """Residual code that pushes the value of an expression."""
    operation, *operands = expression
    if operation == "constant":
        out.const(operands[0])
    elif operation == "given":
        out.const(given(operands[0]))
    elif operation == "quantity":
        quantity = quantities[operands[0]]
        if isinstance(quantity, Unbacked):
            out.value(owner_of(quantity))
            out.load_method("item" if quantity.dim is None else "size")
            if quantity.dim is not None:
                out.const(quantity.dim)
            out.call(int(quantity.dim is not None))
            return
        if isinstance(quantity.source, Formula):
            emit(out, quantity.source.expression, quantity.source.quantities)
            return
        out.source(quantity.source)
        if quantity.kind in ("size", "stride"):
            out.load_method(quantity.kind)
            out.const(quantity.dim)
            out.call(1)
    elif operation in BINARY_OPS:
        for operand in operands:
            emit(out, operand, quantities)
        out.emit("BINARY_OP", BINARY_OPS[operation])
    else:
        out.callee(BUILTINS[operation])
        for operand in operands:
            emit(out, operand, quantities)
        out.call(len(operands))


def exact(value: Value) -> Any:
    """An int of any size, constant or symbolic, for what Python computes."""
    return as_static(value.sym) if isinstance(value, SymbolicInt) else int(value.value)  # type: ignore[attr-defined]


def is_int(value: Value) -> bool:
    """Whether symbolic arithmetic takes it."""
    return isinstance(value, SymbolicInt) or isinstance(value, ConstantValue) and type(value.value) in (int, bool)


def symbolic_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args) of numbers of which one is symbolic; None where it has no symbolic form."""
    if not any(isinstance(a, (SymbolicInt, SymbolicFloat)) for a in args):
        return None
    if name in ("eq", "ne") and any(isinstance(a, ConstantValue) and type(a.value) in NO_NUMBERS for a in args):
        return ConstantValue(name == "ne")
    if name == "truediv" or not all(map(is_int, args)):
        return real_operator(cx, name, args)
    numbers = [exact(a) for a in args]
    if name in UNCHANGED:
        return args[0]
    if name == "neg":
        return cx.of(-numbers[0])
    if name == "abs":
        return cx.of(numbers[0] if numbers[0] >= 0 else -numbers[0])
    if name in ("floordiv", "mod"):
        return divided(cx, name, *numbers)
    if name in ("lshift", "rshift") and isinstance(numbers[1], int) and 0 <= numbers[1] < 31:
        return cx.of(numbers[0] * 2 ** numbers[1] if name == "lshift" else numbers[0] // 2 ** numbers[1])
    if name == "pow" and isinstance(numbers[1], int) and 1 <= numbers[1] <= 4:
        return cx.of(math.prod([numbers[0]] * numbers[1]))
    if name in ARITHMETIC:
        return cx.of(getattr(operator, name)(*numbers))
    if name not in COMPARISONS:
        return None
    found = getattr(operator, name)(*numbers)
    if isinstance(found, torch.SymBool) and unbacked(found):
        assert cx.symbols is not None
        return SymbolicBool(cx.symbols, found, name, args)
    return cx.of(bool(found))


def real_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args) of numbers of which one is symbolic, and whose result is a float or a comparison."""
    if name == "pos":
        return args[0]
    if name not in REAL_OPERATORS and name not in COMPARISONS or cx.symbols is None:
        return None
    terms = [term_of(cx.symbols, a) for a in args]
    if None in terms:
        return None
    if name in COMPARISONS:
        return ConstantValue(decided(cx.symbols, name, *terms))  # type: ignore[arg-type]
    return float_value(cx.symbols, name, *terms)  # type: ignore[arg-type]


def term_of(symbols: Symbols, value: Value) -> Term | None:
    """A number in a formula of floats; None for other values."""
    match value:
        case SymbolicFloat():
            return value.formula
        case SymbolicInt() if not unbacked(value.sym):
            found = symbols.term(value.sym)
            if found is None or not symbols.holds(formula("le", formula("abs", found), EXACT)):
                return None
            if found.expression != ("quantity", 0):
                symbols.rely("le", formula("abs", found), EXACT)
            return found
        case ConstantValue() if type(value.value) in (int, bool) and abs(value.value) <= EXACT or type(value.value) is float:
            return value.value
    return None


def decided(symbols: Symbols, name: str, *terms: Term) -> bool:
    """A comparison as it is at this call, which the entry then relies on."""
    holds = bool(symbols.value(formula(name, *terms)))
    if holds:
        symbols.rely(name, *terms)
    else:
        symbols.rely("not", formula(name, *terms))
    return holds


def float_value(symbols: Symbols, name: str, *terms: Term) -> Value | None:
    """The float name(*terms); None where Python raises, and where the formula gets too long."""
    made = formula(name, *terms)
    if is_long(made.expression):
        return None
    try:
        value = symbols.value(made)
    except (ArithmeticError, ValueError):
        return None
    if not math.isfinite(value):
        return None
    if name in PARTIAL:
        symbols.rely("finite", made)
    return SymbolicFloat(symbols, made)


def is_long(expression: Expression) -> bool:
    return length(expression) > MOST_TERMS or held(expression) > MOST_HELD


def length(expression: Expression) -> int:
    operation, *operands = expression
    return 1 if operation in LEAVES else 1 + sum(map(length, operands))


def held(expression: Expression) -> int:
    """How many numbers a stack holds at once while it computes the expression, operand by operand."""
    operation, *operands = expression
    return 1 if operation in LEAVES else max(before + held(operand) for before, operand in enumerate(operands))


def symbolic_function(cx: Context, function: Callable, args: Sequence[Value]) -> Value | None:
    """function(number) of a symbolic number, or math.pow(base, exponent); None where it has no symbolic form."""
    if function is math.pow:
        return symbolic_power(cx, args)
    if function is round and len(args) == 2:
        return symbolic_decimals(cx, *args)
    name = FUNCTIONS.get(function)
    if name is None or len(args) != 1 or not isinstance(args[0], (SymbolicInt, SymbolicFloat)) or cx.symbols is None:
        return None
    term = term_of(cx.symbols, args[0])
    if term is None:
        return None
    if name == "tofloat" or function in MATH:
        return args[0] if name == "tofloat" and isinstance(args[0], SymbolicFloat) else float_value(cx.symbols, name, term)
    if isinstance(args[0], SymbolicInt):
        return args[0]
    made = formula(name, term)
    if is_long(made.expression) or abs(cx.symbols.value(made)) > LARGEST:
        return None
    return cx.of(cx.symbols.number_of(made))


def symbolic_decimals(cx: Context, number: Value, digits: Value) -> Value | None:
    """round(number, digits); None where it has no symbolic form."""
    if not isinstance(digits, ConstantValue) or type(digits.value) is not int or not 0 <= digits.value <= MOST_DECIMALS or cx.symbols is None:
        return None
    if isinstance(number, SymbolicInt):
        return number
    term = term_of(cx.symbols, number) if isinstance(number, SymbolicFloat) else None
    return None if term is None else float_value(cx.symbols, "decimals", term, digits.value)


def symbolic_power(cx: Context, args: Sequence[Value]) -> Value | None:
    """math.pow(base, exponent), which is `**` of floats for a positive base."""
    if len(args) != 2 or not any(isinstance(a, (SymbolicInt, SymbolicFloat)) for a in args) or cx.symbols is None:
        return None
    base, exponent = (term_of(cx.symbols, a) for a in args)
    if base is None or exponent is None or not decided(cx.symbols, "gt", base, 0):
        return None
    return float_value(cx.symbols, "pow", formula("tofloat", base), formula("tofloat", exponent))


def divided(cx: Context, name: str, number: Any, divisor: Any) -> Value | None:
    """number // divisor, or %, of operands whose signs are guarded: torch's are Python's for a number that is not negative and a positive divisor.
    None where Python raises."""
    if isinstance(number, torch.SymInt) and isinstance(divisor, int) and divisor > 0 and unbacked(number):  # whose sign only a run shows
        return divided_by_torch(cx, name, number, divisor)
    if divisor == 0:
        return None
    if divisor < 0:
        number, divisor, sign = -number, -divisor, -1
    else:
        sign = 1
    if number >= 0:
        return cx.of(number // divisor if name == "floordiv" else number % divisor * sign)
    quotient = -((divisor - 1 - number) // divisor)
    return cx.of(quotient if name == "floordiv" else (number - quotient * divisor) * sign)


def divided_by_torch(cx: Context, name: str, number: torch.SymInt, divisor: int) -> Value:
    """The same of a number that depends on values, as an operation that a run performs. torch rounds down as Python does."""
    whole = cx.op("call_function", torch.scalar_tensor, [cx.of(number)], {"dtype": ConstantValue(torch.int64), "device": ConstantValue(torch.device("cpu"))})
    kwargs: dict[str, Value] = {"rounding_mode": ConstantValue("floor")} if name == "floordiv" else {}
    made = cx.op("call_function", torch.div if name == "floordiv" else torch.remainder, [whole, ConstantValue(divisor)], kwargs)
    return made.method(cx, "item", [], {})


def symbolic_extreme(cx: Context, function: Callable, args: Sequence[Value]) -> Value | None:
    """max() or min() of ints, or of floats, of which one is symbolic; None for others."""
    if len(args) > 1 and any(isinstance(a, SymbolicFloat) for a in args) and cx.symbols is not None:
        terms = [term_of(cx.symbols, a) for a in args if a.pytype() is float]
        if len(terms) < len(args) or None in terms:
            return None
        made = terms[0]
        for term in terms[1:]:
            made = formula(function.__name__, made, term)  # type: ignore[arg-type]
        return float_value(cx.symbols, "is", made)  # type: ignore[arg-type]
    if len(args) < 2 or not any(isinstance(a, SymbolicInt) for a in args) or not all(a.pytype() is int for a in args):
        return None
    if not all(isinstance(a, (SymbolicInt, ConstantValue)) for a in args):  # numbers that are kept as tensors
        return None
    numbers = [exact(a) for a in args]
    chosen = numbers[0]
    for number in numbers[1:]:
        chosen = torch.sym_max(chosen, number) if function is max else torch.sym_min(chosen, number)
    return cx.of(chosen)


def number_value(symbols: Symbols, number: Any) -> Value:
    """The value of a number or a size that torch computed symbolically. Floats and truth values become constants."""
    if isinstance(number, torch.SymInt):
        static = as_static(number)
        return ConstantValue(static) if isinstance(static, int) else SymbolicInt(symbols, number)
    if isinstance(number, torch.Size):
        return TupleValue([number_value(symbols, n) for n in number], torch.Size)
    if isinstance(number, torch.SymFloat):
        return ConstantValue(float(number))
    return ConstantValue(bool(number) if isinstance(number, torch.SymBool) else number)


def is_symbolic(real: Any) -> bool:
    """A number of torch that may vary, or a size with one."""
    if isinstance(real, torch.Size):
        return any(type(n) is not int for n in real)
    return isinstance(real, NUMBERS)
