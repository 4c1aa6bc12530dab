"""With blocks around a break, which a resume function enters itself: of torch's managers, and of managers made of generators.

Once it is a Python object, a generator can't be followed. So where the with statement alone has a manager of `contextlib.contextmanager`, and the
manager alone has its generator, neither is made before the instruction that breaks: the variables and the stack of the generator become parameters
of the resume function, which begins with a generator that goes on at the yield. Nobody can tell the two from the ones before. Where the resume
function is left to Python, it makes real ones, by the same instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.frames.interpreter import GeneratorValue, SymbolicFrame, as_frames_see
from dynacompile.capture.resume import Recipe, RecipeWriter
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.contexts import ContextValue, ExitValue, entered
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.private import of_python

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

MANAGER: Any = of_python.GeneratorContextManager
ENTERED = {"gen", "__doc__"}  # attributes of one that was entered


def leaves(goes_on: Callable[..., Generator], doc: str | None, held: Sequence[Any]) -> Callable:
    """The `__exit__` of a manager whose generator `goes_on` makes of what it holds."""
    generator = goes_on(*held)
    generator.send(None)
    made = object.__new__(MANAGER)
    made.gen, made.__doc__ = generator, doc
    return made.__exit__


@handles(leaves)
def row_leaves(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, doc, held = args
    if not isinstance(function, FunctionValue) or not isinstance(held, TupleValue):
        raise unsupported("unknown-object", function.describe())
    inner = as_frames_see(cx)
    frame = SymbolicFrame(inner, inner.codes.decode(function.code), function.scope, function.closure)
    frame.slots[: len(held.items)] = held.items  # unread
    generator = GeneratorValue(frame, function, [], {})
    inner.frames[0].generators.append(generator)
    generator.next(cx)
    made = ObjectValue(MANAGER)
    made.store(cx, "gen", generator)
    made.store(cx, "__doc__", doc)
    return BoundMethod(cx.wrap(MANAGER.__exit__, class_source(MANAGER, "__exit__")), made, None, "__exit__")


@dataclass(frozen=True)
class Made:
    """Which of the with blocks around a break a resume function makes itself.

    alone: whether a value is used at one place. blocks: of torch's managers, outermost first; again: those that are entered again.
    """

    alone: Callable[[Value], bool]
    blocks: Sequence[ExitValue]
    again: frozenset[Value]

    def generator_of(self, value: Value) -> GeneratorValue | None:
        """The generator behind what a with statement keeps on the stack, where the resume function makes it anew."""
        return own_generator(value, self.alone)

    def recipe_of(self, value: Value) -> tuple[Recipe, list[Value]] | None:
        """How the resume function makes what a with statement keeps, and the values that it needs; None where it is given the object."""
        out = RecipeWriter()
        return (Recipe(tuple(out.steps)), out.leaves) if self.write(value, out) else None

    def write(self, value: Value, out: RecipeWriter) -> bool:
        if isinstance(value, ExitValue) and value in self.again:
            self.write_entered(value.context, out)
            return True
        generator = self.generator_of(value)
        if generator is None:
            return False
        function, held = generator.goes_on()
        out.callee(leaves)
        out.leaf(function)
        out.leaf(value.owner.stored["__doc__"])  # type: ignore[attr-defined]
        for item in held:
            if not self.write(item, out):
                out.leaf(item)
        out.tuple_of(len(held))
        out.call(3)
        return True

    def write_entered(self, context: ContextValue, out: RecipeWriter) -> None:
        out.callee(entered)
        if context.source is not None:
            out.leaf(context)
        else:
            context.rebuild_new(out)
        out.call(1)


def made_by_resume(stack: Sequence[Value], alone: Callable[[Value], bool], enters: bool) -> Made:
    """Blocks of torch's managers are left after the break, and entered again by the resume function, so that it is not one that begins in their mode:
    a graph that begins without gradients can't turn them on. That it can't is why those around which they are off go on as they are.
    enters: the break itself changes a mode, as by another of them, which the ones around it must not be entered within."""
    blocks = [value for value in unfolded(stack, alone) if isinstance(value, ExitValue)]
    again = [block for block in blocks if block.context.can_enter_again() and not enters]
    modes = [pair for block in again if (pair := block.context.grad_modes()) is not None]
    if modes and not modes[0][0]:
        again = [block for block in again if block.context.grad_modes() is None]
    return Made(alone, blocks, frozenset(again))


def own_generator(value: Value, alone: Callable[[Value], bool]) -> GeneratorValue | None:
    if not isinstance(value, BoundMethod) or value.name != "__exit__" or value.source is not None or not alone(value):
        return None
    owner = value.owner
    if not isinstance(owner, ObjectValue) or owner.cls is not MANAGER or owner.source is not None or owner.stored.keys() != ENTERED:
        return None
    generator = owner.stored["gen"]
    if isinstance(generator, GeneratorValue) and generator.is_at_yield() and alone(owner) and alone(generator):
        return generator
    return None


def unfolded(stack: Sequence[Value], alone: Callable[[Value], bool]) -> Iterator[Value]:
    """The values of the stack, and in the place of managers those generators that are not made before the break, after what their stacks hold."""
    for value in stack:
        generator = own_generator(value, alone)
        if generator is None:
            yield value
        else:
            yield from unfolded(generator.frame.stack, alone)
            yield generator
