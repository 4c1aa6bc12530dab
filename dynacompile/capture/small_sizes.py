"""Sizes that depend on values, where they are 0 or 1. Torch's rules for fakes can't know such a size, and go on as if it were some other number: they take the
size that it meets for an equal one, `squeeze` leaves it, and `max` finds a greatest element. Here an operation is run again with each of the small numbers in
the size's place, and the shapes of its results are compared with those that the rule gives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.node import map_aggregate

from dynacompile.capture.operands import target_name
from dynacompile.capture.refused_types import is_of_torch
from dynacompile.capture.symbols import Symbols
from dynacompile.ir.recurrence import check_recurs
from dynacompile.private import of_torch

SMALL = (1, 0, -1)
OTHER = 7
"""What further numbers of which nothing is known are meanwhile."""
LENIENT = frozenset({"max", "min", "median", "mode", "adaptive_avg_pool1d"})
"""Operations that take a dimension without elements on the meta device, and nowhere else."""
MOST = 1 << 22
"""Elements of operands with which these run on the CPU."""
REFUSED = object()
Known = Mapping[Any, Any]
"""By symbol, what it is."""
Operation = tuple[str, Any, Sequence[Any], Mapping[str, Any]]
"""Its kind, target and arguments."""


@dataclass(frozen=True)
class Before:
    """What torch knows before an operation: what it took for equal, the bounds of symbols, and the conditions that a run has to show."""

    equal: Known
    bounds: Known
    conditions: frozenset[Any]


def before(symbols: Symbols) -> Before:
    return Before(dict(symbols.env.replacements), dict(symbols.env.var_to_range), frozenset(conditions(symbols)))


def forget(symbols: Symbols, known: Before) -> None:
    """Takes back what torch has found in an operation that failed midway."""
    env = symbols.env
    for table, found in ((env.replacements, known.equal), (env.var_to_range, known.bounds)):
        table.clear()
        table.update(found)
    for listed in env.deferred_runtime_asserts.values():
        listed[:] = [assumption for assumption in listed if assumption.expr in known.conditions]
    env.num_deferred_runtime_asserts = len(conditions(symbols))
    env._update_version_counter()


def conditions(symbols: Symbols) -> list[Any]:
    return [assumption.expr for listed in symbols.env.deferred_runtime_asserts.values() for assumption in listed]


def is_repeatable(kind: str, target: Any) -> bool:
    """Whether an operation is one of torch's own, which does nothing but compute: others may talk to processes, or run a user's code."""
    if isinstance(target, of_torch.OpOverload):
        return target.namespace == "aten"
    if isinstance(target, of_torch.OpOverloadPacket):
        return target._qualified_op_name.startswith("aten::")
    module = str(getattr(target, "__module__", None) or "torch")
    return kind == "call_method" or (is_of_torch(target) and not module.startswith((torch.distributed.__name__, "torch._higher_order_ops")))


def taken_wrongly(symbols: Symbols, operation: Operation, result: Any, known: Before) -> Iterator[tuple[Any, int, bool]]:
    """Symbols, each with a number for which the operation's results have other shapes than its rule gives; and whether it raises an error there."""
    numbers = [n for value in of_torch.tree_leaves(operation[2:]) for n in numbers_of(value)]
    found = [c for c in conditions(symbols) if c not in known.conditions]
    of_values = tuple(dict.fromkeys(s for n in numbers for s in n.node._expr.xreplace(known.equal).free_symbols if s in symbols.unbacked))
    for those in dict.fromkeys([*((s,) for s in of_values), of_values] if of_values else ()):
        for small in SMALL:
            given = dict.fromkeys(those, sympy.Integer(small))
            if any(number not in known.bounds[s] for s, number in given.items()) or not is_possible(symbols, numbers, given, known.equal):
                continue
            made = run(symbols, operation, given, known.equal)
            if made is REFUSED:
                if small == 0 and run(symbols, operation, {}, known.equal) is not REFUSED:
                    yield those[0], small, True
                continue
            broken = any(c.free_symbols & given.keys() and c.xreplace(given).xreplace(sizes(symbols, c)) == sympy.false for c in found)
            rules, real = tensors(result), tensors(made)
            if broken or len(rules) != len(real) or not all(fits(symbols, *pair, given, known.equal) for pair in zip(rules, real)):
                yield those[0], small, False


def required(symbols: Symbols, operation: Operation, known: frozenset[Any]) -> set[Any]:
    """Symbols that an operation has fixed since, and that it does not take with another number: torch asks for sizes that must be equal as it asks for those
    by which it merely chooses. known: those that were fixed before."""
    new = symbols.env.small.coincidences - known
    equal = {s: value for s, value in symbols.env.replacements.items() if s not in new}
    if run(symbols, operation, {}, equal) is REFUSED:
        return set()
    return {s for s in new if run(symbols, operation, {s: symbols.env.replacements[s] + 1}, equal) is REFUSED}


def numbers_of(value: Any) -> list[Any]:
    parts = value.shape if isinstance(value, torch.Tensor) else (value.start, value.stop, value.step) if isinstance(value, slice) else (value,)
    return [n for n in parts if isinstance(n, torch.SymInt)]


def tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in of_torch.tree_leaves(result) if isinstance(t, torch.Tensor)]


def is_possible(symbols: Symbols, numbers: Sequence[torch.SymInt], given: Known, known: Known) -> bool:
    """Whether earlier operations let the program come here with such numbers."""
    try:
        found = [number(symbols, n, given, known) for n in numbers]
    except ZeroDivisionError:
        return False
    return all(n >= -1 for n in found)


def sizes(symbols: Symbols, expression: Any) -> dict[Any, Any]:
    return {s: sympy.Integer(symbols.env.backed_var_to_val.get(s, OTHER)) for s in expression.free_symbols}


def number(symbols: Symbols, value: Any, given: Known, known: Known) -> Any:
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    expr = value.node._expr.xreplace(known).xreplace(given)
    expr = expr.xreplace(sizes(symbols, expr))
    return float(expr) if isinstance(value, torch.SymFloat) else bool(expr) if isinstance(value, torch.SymBool) else int(expr)


def run(symbols: Symbols, operation: Operation, given: Known, known: Known) -> Any:
    """What an operation gives for operands without data, whose other sizes are those of this call; REFUSED where it does not take them. given: a number for a
    symbol."""
    kind, target, args, kwargs = operation
    device = "meta"
    if target_name(target) in LENIENT and sum(math.prod(number(symbols, n, given, known) for n in t.shape) for t in tensors(operation[2:])) <= MOST:
        device = "cpu"

    def operand(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros([number(symbols, n, given, known) for n in value.shape], dtype=value.dtype, device=device)
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device)
        return torch.device(device) if isinstance(value, torch.device) else number(symbols, value, given, known)

    def made() -> Any:
        positional, named = map_aggregate((tuple(args), dict(kwargs)), operand)
        if named.get("device") is not None:
            named["device"] = device
        return getattr(positional[0], target)(*positional[1:], **named) if kind == "call_method" else target(*positional, **named)

    # An operation without operands that are tensors runs on the CPU, where it may draw numbers: the program's own draws come later.
    with torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return made()
        except Exception as error:  # noqa: BLE001  (an operation says by an error of any class what it does not take)
            check_recurs(error, made)
            return REFUSED


def fits(symbols: Symbols, rule: torch.Tensor, real: torch.Tensor, given: Known, known: Known) -> bool:
    """Whether a result has the sizes that the rule says, but for sizes that are values themselves."""
    if rule.dim() != real.dim():
        return False
    return all(has_own(symbols, a, known) or number(symbols, a, given, known) == b for a, b in zip(rule.shape, real.shape))


def has_own(symbols: Symbols, size: Any, known: Known) -> bool:
    """Whether a size of a result is a value that the operation itself gives."""
    return isinstance(size, torch.SymInt) and any(
        s not in symbols.unbacked and s not in symbols.env.backed_var_to_val for s in size.node._expr.xreplace(known).free_symbols
    )
