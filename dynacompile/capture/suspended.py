"""Managers made of generators, around a break: a resume function is given what the generator holds, and makes both anew.

Once it is a Python object, a generator can't be followed. So where the with statement alone has a manager of `contextlib.contextmanager`, and the
manager alone has its generator, neither is made before the instruction that breaks: the variables and the stack of the generator become parameters
of the resume function, which begins with a generator that goes on at the yield. Nobody can tell the two from the ones before. Where the resume
function is left to Python, it makes real ones, by the same instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import _GeneratorContextManager
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.interpreter import GeneratorValue, SymbolicFrame
from dynacompile.capture.resume import Recipe, RecipeWriter
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace

MANAGER: Any = _GeneratorContextManager
ENTERED = {"gen", "__doc__"}  # attributes of one that was entered


def leaves(goes_on: Callable[..., Generator], doc: str | None, held: Sequence[Any]) -> Callable:
    """The `__exit__` of a manager whose generator `goes_on` makes of what it holds."""
    generator = goes_on(*held)
    generator.send(None)
    made = object.__new__(MANAGER)
    made.gen, made.__doc__ = generator, doc
    return made.__exit__


@handles(leaves)
def row_leaves(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, doc, held = args
    if not isinstance(function, FunctionValue) or not isinstance(held, TupleValue):
        raise unsupported("unknown-object", function.describe())
    frame = SymbolicFrame(cx, cx.codes.decode(function.code), function.scope, function.closure)
    frame.slots[: len(held.items)] = held.items  # unread
    generator = GeneratorValue(frame, function, [], {})
    cx.frames[0].generators.append(generator)
    generator.next(cx)
    made = ObjectValue(MANAGER)
    made.store(cx, "gen", generator)
    made.store(cx, "__doc__", doc)
    return BoundMethod(cx.wrap(MANAGER.__exit__, class_source(MANAGER, "__exit__")), made, None, "__exit__")


def own_generator(value: Value, alone: Callable[[Value], bool]) -> GeneratorValue | None:
    """The generator behind what a with statement keeps on the stack, where a resume function can make it anew."""
    if not isinstance(value, BoundMethod) or value.name != "__exit__" or value.source is not None or not alone(value):
        return None
    owner = value.owner
    if not isinstance(owner, ObjectValue) or owner.cls is not MANAGER or owner.source is not None or owner.stored.keys() != ENTERED:
        return None
    generator = owner.stored["gen"]
    if isinstance(generator, GeneratorValue) and generator.is_at_yield() and alone(owner) and alone(generator):
        return generator
    return None


def recipe_of_manager(value: Value, alone: Callable[[Value], bool]) -> tuple[Recipe, list[Value]] | None:
    """How a resume function makes the `__exit__` of such a manager, and the values that it needs; None where it is given the object."""
    out = RecipeWriter()
    return (Recipe(tuple(out.steps)), out.leaves) if write(value, alone, out) else None


def write(value: Value, alone: Callable[[Value], bool], out: RecipeWriter) -> bool:
    generator = own_generator(value, alone)
    if generator is None:
        return False
    function, held = generator.goes_on()
    out.push_null()
    out.const(leaves)
    out.leaf(function)
    out.leaf(value.owner.stored["__doc__"])  # type: ignore[attr-defined]
    for item in held:
        if not write(item, alone, out):
            out.leaf(item)
    out.tuple_of(len(held))
    out.call(3)
    return True


def own_generators(stack: Sequence[Value], alone: Callable[[Value], bool]) -> list[GeneratorValue]:
    """Those that are not made before the break."""
    found: list[GeneratorValue] = []
    work = list(stack)
    while work:
        generator = own_generator(work.pop(), alone)
        if generator is not None:
            found.append(generator)
            work += generator.frame.stack
    return found
