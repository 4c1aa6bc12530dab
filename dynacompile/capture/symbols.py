"""The symbols of one capture: which sizes, ints and floats are symbolic, where they come from, and the conditions that the entry relies on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.fx

from dynacompile.capture.bytecode import LOOP_SUFFIX, STACK_PREFIX
from dynacompile.errors import MarkViolated
from dynacompile.ir.captured import Guard, Site
from dynacompile.ir.expressions import Expression, Formula, Quantity, Term, as_expression, evaluated, formula, largest, magnitudes, moved
from dynacompile.ir.fakes import fake_with
from dynacompile.ir.guard_facts import ShapeFacts, plain_twin
from dynacompile.ir.shapes import (
    LARGEST,
    LEAST,
    Bounds,
    ShapePolicy,
    expression_of,
    narrow,
    new_real,
    new_symbol,
    symbolic_mode,
)
from dynacompile.ir.source import Local, Made, Registered, Source, dotted
from dynacompile.private.of_torch import FakeTensor

Extent = int | torch.SymInt
MOST_INT = 2**63 - 1


class NeedsSymbols(Exception):
    """A static capture met a tensor that is marked as dynamic, or a varying number, (loops) an int that each round of a loop changes, (numbers)
    numbers that the frame itself changes, or that lie beside others that vary, (flags) bools that do, or (values) what depends on the values of tensors:
    the frame is to be captured with symbols. if_whole: where it then has no break."""

    def __init__(
        self,
        loops: bool = False,
        numbers: frozenset[Source] = frozenset(),
        values: bool = False,
        if_whole: bool = False,
        flags: frozenset[Source] = frozenset(),
    ):
        self.loops, self.numbers, self.values, self.if_whole, self.flags = loops, numbers, values, if_whole, flags

    @property
    def is_of_symbols(self) -> bool:
        """Whether more than bools vary, for which there are no symbols."""
        return bool(self.numbers) or not self.flags


class NeedsNumbers(Exception):
    """A capture with symbols met what can't have them: the frame is to be captured with constants in their place."""


SAME_SIZE = "mark what has to have the same size, too, as a batch's targets; or change that line; dynacompile.maybe_mark_dynamic allows a constant"


@dataclass(frozen=True)
class Mark:
    """What the user asked of a dimension. strict: anything less is an error."""

    bounds: Bounds
    strict: bool


class Shower(Protocol):
    """A tensor of the graph, as far as symbols look at it."""

    @property
    def node(self) -> torch.fx.Node: ...
    @property
    def fake(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Unbacked:
    """Where a run shows a number that depends on values: the node that is it, or the size of `owner` along `dim`. owner: a tensor that it can be
    read from after the graph."""

    owner: Shower
    node: torch.fx.Node
    dim: int | None


@dataclass
class Symbols:
    """site: gives the user's place that is being captured.

    quantities: what each symbol stands for. numbers: ints and floats that are no sizes, as torch knows them. equal: quantities of which capture
    assumes that they are an expression over others. conditions: on floats, and the places that rely on them.
    unbacked: symbols that depend on the values of tensors.
    """

    policy: ShapePolicy
    site: Callable[[], Site]
    quantities: dict[Any, Quantity] = field(default_factory=dict)
    numbers: dict[Quantity, torch.SymInt | torch.SymFloat] = field(default_factory=dict)
    _bounds: dict[Any, Bounds] = field(default_factory=dict)
    _strict: dict[Any, Mark] = field(default_factory=dict)
    _values: dict[Any, float] = field(default_factory=dict)
    _made: dict[Any, torch.SymInt] = field(default_factory=dict)
    _at_call: dict[Quantity, float] = field(default_factory=dict)
    _conditions: dict[Formula, Site] = field(default_factory=dict)
    unbacked: dict[Any, Unbacked] = field(default_factory=dict)
    _equal: list[tuple[Quantity, torch.SymInt]] = field(default_factory=list)
    _extents: dict[Source, tuple[list[Extent], list[Extent]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mode = symbolic_mode(self.site, bool(self.policy.values))
        self.env: Any = self.mode.shape_env

    def fake(self, real: torch.Tensor, source: Source) -> FakeTensor:
        """A fake of an input tensor, with symbols for the dimensions that the policy or a mark names. The same symbols each time."""
        real = plain_twin(real)
        return fake_with(self.mode, real, *self.extents(real, source))

    def extents(self, real: torch.Tensor, source: Source) -> tuple[list[Extent], list[Extent]]:
        """The sizes and strides of an input tensor."""
        if source not in self._extents:
            sizes = [self.size(real, source, dim) for dim in range(real.dim())]
            self._extents[source] = sizes, self.strides(real, source, sizes)
        return self._extents[source]

    def has_static_extents(self, real: torch.Tensor, source: Source) -> bool:
        """Whether an input tensor of torch's own classes has no symbols among its sizes and strides."""
        return not any(isinstance(n, torch.SymInt) for extents in self.extents(real, source) for n in extents)

    def size(self, real: torch.Tensor, source: Source, dim: int) -> Extent:
        value = real.size(dim)
        mark = self.mark(real, source, dim)
        if mark is None:
            return value
        low = (1 if self.policy.ones else LEAST) if mark.bounds.low is None else mark.bounds.low
        quantity = Quantity(source, "size", dim)
        if not low <= value <= (LARGEST if mark.bounds.high is None else mark.bounds.high):
            if mark.strict and (value > 1 or mark.bounds.low is not None):
                bound = f"below its min, {low}" if value < low else f"above its max, {mark.bounds.high}"
                self.violated(quantity.text(), f"is {value} here, which is {bound}", None, "give the mark a range that holds all sizes")
            return value
        if value < LEAST:  # which shows nothing of what larger sizes need
            return value
        return self.symbol(quantity, value, Bounds(max(low, 1), mark.bounds.high), mark if mark.strict else None)

    def mark(self, real: torch.Tensor, source: Source, dim: int) -> Mark | None:
        """What is asked of a dimension; None where it is static, as of a tensor that residual code makes alike in each call."""
        if isinstance(source.root, Made):
            return None
        if self.policy.declared:
            name = source.text()
            declared = {**self.policy.declared.get(dotted(name), {}), **self.policy.declared.get(name, {})}.get(dim)
            if declared is not None:
                return Mark(declared, True)
        if dim in marked(real, "_dynamo_static_indices"):
            return None
        if dim in marked(real, "_dynamo_dynamic_indices"):
            return Mark(range_mark(real, dim), True)
        if dim in marked(real, "_dynamo_weak_dynamic_indices"):
            return Mark(Bounds(), False)
        if dim in self.policy.sizes.get(source, ()):
            return Mark(Bounds(), False)
        return Mark(Bounds(), False) if self.policy.everything and not is_state(source, real) else None

    def strides(self, real: torch.Tensor, source: Source, sizes: list[Extent]) -> list[Extent]:
        """Strides as products of sizes where they are that now, which the entry then relies on; else as they are."""
        known: dict[int, Extent] = {}
        found: list[Extent] = [0] * real.dim()
        for dim in sorted(range(real.dim()), key=lambda d: (real.stride(d), real.size(d), -d)):
            value = real.stride(dim)
            stride = known.get(value, value)
            quantity = Quantity(source, "stride", dim)
            if isinstance(stride, int) and stride > 1 and dim in self.policy.strides.get(source, ()):
                stride = self.symbol(quantity, value, Bounds(0), None)
            elif isinstance(stride, torch.SymInt):
                self._equal.append((quantity, stride))
            found[dim] = stride
            known.setdefault(value * real.size(dim), stride * sizes[dim])
        return found

    def static_parts(self, source: Source) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """Sizes and strides with None where they may vary."""
        sizes, strides = self._extents[source]
        return tuple(n if isinstance(n, int) else None for n in sizes), tuple(n if isinstance(n, int) else None for n in strides)

    def has_static_sizes(self) -> bool:
        """Whether sizes and strides of all tensors are constants so far: the only symbols are ints and floats that exist before the frame."""
        return not self.unbacked and all(quantity.kind in ("value", "real") for quantity in self.quantities.values())

    def sources(self) -> Iterator[Source]:
        """Where the numbers lie that are symbols so far."""
        return (quantity.source for quantity in self._at_call if not isinstance(quantity.source, Formula))

    def number(self, real: float, source: Source) -> Quantity | None:
        """An int or float that exists before the frame, as a quantity of each call; None where it is static."""
        quantity = Quantity(source, "real" if isinstance(real, float) else "value")
        if quantity in self._at_call:
            return quantity
        asked = source in self.policy.numbers or self.policy.loops and counts_loop(source) or is_varying(real, source, self.policy)
        chosen = asked or self.policy.everything and isinstance(source, Local) and real not in (0, 1)
        allowed = self.policy.floats if isinstance(real, float) else self.policy.ints
        if not chosen or not allowed or not (math.isfinite(real) if isinstance(real, float) else abs(real) <= LARGEST):
            return None
        self._at_call[quantity] = real
        return quantity

    def value(self, term: Term) -> Any:
        """What a number is at this call. Raises ArithmeticError or ValueError where Python would."""
        if isinstance(term, Quantity):
            return self.value(term.source) if isinstance(term.source, Formula) else self._at_call[term]
        return evaluated(term.expression, [self._at_call[q] for q in term.quantities]) if isinstance(term, Formula) else term

    def number_of(self, term: Formula | Quantity) -> torch.SymInt | torch.SymFloat:
        """A number of a call as torch knows it: a symbol of its own, so that torch computes nothing of it in another order than the program."""
        if isinstance(term, Formula) and term.expression == ("quantity", 0):
            term = term.quantities[0]
        quantity = term if isinstance(term, Quantity) else Quantity(term, "real" if term.is_real else "value")
        if quantity not in self.numbers:
            value = self.value(quantity)
            if quantity.kind == "value":
                self.numbers[quantity] = self.symbol(quantity, value, Bounds(), None)
            else:
                made = self.numbers[quantity] = new_real(self.env, quantity.text(), value)
                self.quantities[made.node.expr], self._values[made.node.expr] = quantity, value
        return self.numbers[quantity]

    def term(self, number: torch.SymInt) -> Formula | None:
        """An int that torch computes, as a formula; None where it has a form that has none."""
        symbols = sorted(number.node.expr.free_symbols, key=str)
        expression = as_expression(number.node.expr, {s: i for i, s in enumerate(symbols)})
        return None if expression is None else expanded(expression, [self.quantities[s] for s in symbols])

    def fresh(self) -> list[Any]:
        """The symbols for values that operations have made since the last question."""
        pending = self.env.pending_fresh_unbacked_symbols
        found = list(pending)
        pending.clear()
        return found

    def bound(self, number: torch.SymInt, low: int, high: int) -> None:
        """Of an int that only a run shows: from where to where it surely lies."""
        narrow(self.env, number.node.expr, low, high)

    def within_64_bits(self, number: torch.SymInt) -> torch.SymInt | int:
        """An int that torch's operations may take: they, graphs and kernels compute with 64 bits. Where it may have more, the entry relies on that it
        has not; where it has more at this call, what it is computed of is constant."""
        symbols = sorted(number.node.expr.free_symbols, key=str)
        if any(s in self.unbacked for s in symbols):
            return number
        expression = as_expression(number.node.expr, {s: i for i, s in enumerate(symbols)})
        bounds = None if expression is None else magnitudes(expression)
        limits = [max(abs(self._bounds[s].low or 0), abs(self._bounds[s].high or 0)) for s in symbols]
        if bounds is None:
            return number if expression is None and not self.may_exceed(number) else self.specialized(number, symbols)
        wide = [b for b in bounds if largest(b, limits) > MOST_INT]
        conditions = [expanded(("le", b, ("constant", MOST_INT)), [self.quantities[s] for s in symbols]) for b in wide]
        if not all(map(self.holds, conditions)):
            return self.specialized(number, symbols)
        for condition in conditions:
            self._conditions.setdefault(condition, self.site())
        return number

    def may_exceed(self, number: torch.SymInt) -> bool:
        """Whether torch knows no bounds of 64 bits for an int that has a form that guards have not."""
        known = self.env.bound_sympy(number.node.expr)
        return not (known.lower.is_Integer and known.upper.is_Integer and -MOST_INT <= known.lower and known.upper <= MOST_INT)

    def specialized(self, number: torch.SymInt, symbols: Sequence[Any]) -> int:
        """The int at this call, for an entry that serves these values of its symbols alone."""
        for symbol in symbols:
            int(self._made[symbol])
        return int(number)

    def holds(self, condition: Formula) -> bool:
        """Whether the guard machine finds the condition true at this call."""
        try:
            return bool(self.value(condition))
        except (ArithmeticError, ValueError):
            return False

    def rely(self, operation: str, *operands: Term) -> None:
        """The entry holds where the condition does."""
        self._conditions.setdefault(formula(operation, *operands), self.site())

    def symbol(self, quantity: Quantity, value: int, bounds: Bounds, mark: Mark | None) -> torch.SymInt:
        made = new_symbol(self.env, quantity, value, bounds.low, bounds.high)
        symbol = made.node.expr
        self.quantities[symbol] = quantity
        self._made[symbol] = made
        self._values[symbol] = value
        self._at_call[quantity] = value
        self._bounds[symbol] = Bounds(-LARGEST if bounds.low is None else bounds.low, LARGEST if bounds.high is None else bounds.high)
        if mark is not None:
            self._strict[symbol] = mark
        return made

    # what the entry relies on

    def guards(self) -> tuple[Guard, ...]:
        """One guard for each condition on sizes, strides, ints and floats. To be taken when nobody compiles any more. Raises MarkViolated."""
        found: dict[Guard, None] = {}
        places: dict[Any, Site] = {}
        for guard in self.env.guards:
            places.setdefault(self.env.replace(guard.expr), guard.sloc.framework_loc)
            for symbol in guard.expr.free_symbols:
                places.setdefault(symbol, guard.sloc.framework_loc)
        self.check_marks(places)
        for symbol, quantity in self.quantities.items():
            found.update(dict.fromkeys(self.range_guards(symbol, quantity)))
            value = self.env.replace(symbol)
            if value != symbol:
                found.update(dict.fromkeys(self.equality(quantity, value, places.get(symbol))))
        for quantity, stride in self._equal:
            value = expression_of(stride)
            if isinstance(value, int):
                found[shape_guard(formula("eq", quantity, value))] = None
            else:
                found.update(dict.fromkeys(self.equality(quantity, value, None)))
        for guard in self.env.guards:
            expr = self.env.replace(guard.expr)
            if expr not in (True, False):
                found.update(dict.fromkeys(self.condition(expr, guard.sloc.framework_loc)))
        found.update((shape_guard(condition, place), None) for condition, place in self._conditions.items())
        return tuple(found)

    def range_guards(self, symbol: Any, quantity: Quantity) -> Iterator[Guard]:
        if quantity.kind == "real":
            return
        for operation, limit in (("ge", self._bounds[symbol].low), ("le", self._bounds[symbol].high)):
            yield shape_guard(formula(operation, quantity, limit))  # type: ignore[arg-type]

    def equality(self, quantity: Quantity, value: Any, place: Site | None) -> list[Guard]:
        if quantity.kind == "real" and value.is_number:
            return [shape_guard(formula("same", quantity, self.value(quantity)), place)]
        symbols = sorted(value.free_symbols, key=str)
        expression = as_expression(value, {s: i + 1 for i, s in enumerate(symbols)})
        if expression is None:
            return self.constants(symbols, place)
        return [shape_guard(expanded(("eq", ("quantity", 0), expression), (quantity, *(self.quantities[s] for s in symbols))), place)]

    def condition(self, expr: Any, place: Site | None) -> list[Guard]:
        symbols = sorted(expr.free_symbols, key=str)
        expression = as_expression(expr, {s: i for i, s in enumerate(symbols)})
        condition = None if expression is None else expanded(expression, [self.quantities[s] for s in symbols])
        if condition is None or not self.holds(condition):  # it has no form, or a number of more than 64 bits in it
            return self.constants(symbols, place)
        return [shape_guard(condition, place)]

    def constants(self, symbols: Sequence[Any], place: Site | None) -> list[Guard]:
        """The symbols are as they are at this call: for a condition that the guard machine has no instructions for."""
        return [shape_guard(formula("same", self.quantities[s], self._values[s]), place) for s in symbols]

    def check_marks(self, places: Mapping[Any, Site]) -> None:
        """Raises MarkViolated where the program needs one value, or fewer values, of a dimension that the user marked as dynamic. A size for which it does
        something else than for others, as a view instead of a copy, has an entry of its own, as 0 and 1 have."""
        for symbol, mark in self._strict.items():
            name = self.quantities[symbol].text()
            value = self.env.replace(symbol)
            if self._values[symbol] < LEAST or symbol in self.env.small.coincidences:
                continue
            if value.is_Integer:
                self.violated(name, f"the program is right only where it is {value}", places.get(symbol))
            now = self.env.var_to_range[symbol]
            low, high = self._bounds[symbol].low, self._bounds[symbol].high
            for bound, asked, sign in ((now.lower, low, ">="), (now.upper, high, "<=")):
                given = mark.bounds.low if sign == ">=" else mark.bounds.high
                if given is not None and bound.is_Integer and int(bound) != asked and int(bound) > LEAST:
                    self.violated(name, f"the program is right only where it is {sign} {bound}, the mark says {sign} {asked}", places.get(symbol))

    def violated(self, name: str, what: str, place: Site | None, hint: str = SAME_SIZE) -> None:
        raise MarkViolated(f"{name} is marked as dynamic, but {what}" + (f"\n  at {place}" if place is not None else ""), hint)


def expanded(expression: Expression, quantities: Sequence[Quantity]) -> Formula:
    """An expression over what a call brings, where some of `quantities` may be computed of others."""
    found: dict[Quantity, int] = {}
    return Formula(moved(expression, quantities, found), tuple(found))


def shape_guard(condition: Formula, place: Site | None = None) -> Guard:
    return Guard("SHAPE", None, ShapeFacts(condition.quantities, condition.expression), place)


def marked(tensor: torch.Tensor, name: str) -> Collection[int]:
    """Dimensions that a mark names; the attributes are those of torch's own marks."""
    return tensor.__dict__.get(name, ()) if hasattr(tensor, "__dict__") else ()


def is_marked(tensor: torch.Tensor) -> bool:
    kept = getattr(tensor, "__dict__", None)
    return bool(kept) and bool(kept.get("_dynamo_dynamic_indices") or kept.get("_dynamo_weak_dynamic_indices"))  # type: ignore[union-attr]


def range_mark(tensor: torch.Tensor, dim: int) -> Bounds:
    for found in tensor.__dict__.get("_dynamo_dynamic_range", ()):
        if found.dim == dim:
            return Bounds(found.min, found.max)
    return Bounds()


def counts_loop(source: Source | None) -> bool:
    """Whether an int comes from a loop that goes on after a graph break: it is another one each time."""
    if source is None:
        return False
    root = source.root
    return isinstance(root, Local) and root.name.startswith(STACK_PREFIX) and root.name.endswith(LOOP_SUFFIX)


def is_varying(real: float, source: Source, policy: ShapePolicy) -> bool:
    """Whether the user said of a number that it varies, by its name or the end of its path: steps, model.steps, lr of group['lr'], betas[0] of
    group['betas'][0]."""
    if not policy.varying or not (policy.floats if isinstance(real, float) else policy.ints):
        return False
    text = source.text()
    return any(is_named(text, name) for name in policy.varying)


def is_named(text: str, name: str) -> bool:
    """Whether `varying` means, by `name`, the number with the path `text`."""
    return text == name or text.endswith(("." + name, as_key(name)))


def as_key(name: str) -> str:
    """The end of the path of a dict's item that is called by a name: ['lr'], ['betas'][0]."""
    key, bracket, rest = name.partition("[")
    return f"[{key!r}]{bracket}{rest}"


def is_state(source: Source, real: torch.Tensor) -> bool:
    """Parameters and buffers of modules: their sizes change with the module alone."""
    return isinstance(real, torch.nn.Parameter) or any(isinstance(part, Registered) for part in source.steps())
