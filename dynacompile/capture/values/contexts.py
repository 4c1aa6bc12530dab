"""Context managers whose enter and exit capture performs itself."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue, FunctionValue
from dynacompile.capture.values.rows import handles
from dynacompile.errors import Unsupported

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import CallWriter, Writer


class EnteredByHand(Unsupported):
    """Residual code would have to make a manager in the state of one that was entered by no with statement: then Python is to enter it."""


def entered_by_hand(what: str) -> EnteredByHand:
    reason = unsupported("rebuild", f"{what}, which was entered by hand,")
    return EnteredByHand(reason.code, reason.reason, reason.hint)


class ContextValue(Value):
    """A manager whose enter and exit capture performs itself. by_hand: how often it was entered by no with statement."""

    by_hand = 0

    def enter(self, cx: Context) -> Value:
        raise NotImplementedError(type(self).__name__)

    def exit(self, cx: Context) -> None:
        raise NotImplementedError(type(self).__name__)

    def can_enter_again(self) -> bool:
        """Whether a block that is left after a break, and entered again by what follows, is as one that was not left."""
        return False

    def opens(self) -> int:
        """How many blocks of the graph it has begun by now, beside the grad mode; -1 where it has ended one."""
        return 0

    def grad_modes(self) -> tuple[bool, bool] | None:
        """The grad mode outside of the block and at its begin; None for a manager that leaves it alone."""
        return None

    def rebuild_new(self, out: CallWriter) -> None:
        """Code that makes such a manager, to be entered at once."""
        self.rebuild(out)  # type: ignore[arg-type]

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__exit__":
            return ExitValue(self)
        if name == "__enter__":
            return EnterValue(self)
        return super().get_attr(cx, name)

    def rebuild_entered(self, out: Writer) -> None:
        """Residual code that makes the manager and enters it, and leaves it on the stack."""
        self.load(out)
        out.emit("COPY", 1)
        out.load_method("__enter__")
        out.call(0)
        out.emit("POP_TOP")

    def load(self, out: Writer) -> None:
        out.value(self)

    def latest(self, entered: list[Any]) -> Any:
        """What the last enter() noted of itself, for exit()."""
        if not entered:
            raise unsupported("context-manager", f"{self.describe()}, which was entered before the frame,")
        return entered.pop()

    def refuse_entered(self) -> None:
        """Of a manager that is entered by hand, residual code can't make one in that state."""
        if self.by_hand:
            raise entered_by_hand(self.describe())


class RepeatableContext(ContextValue):
    """A manager that decorates functions, too: each call of the function enters a manager of its own. enters_each_step: of a generator, each step does."""

    enters_each_step = False

    def again(self) -> ContextValue:
        """A manager like this one, not entered yet."""
        raise NotImplementedError(type(self).__name__)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator."""
        if len(args) != 1 or kwargs or not isinstance(args[0], CallableValue):
            raise unsupported("context-manager", f"{self.describe()} as a decorator inside the frame")
        if self.enters_each_step and isinstance(args[0], FunctionValue) and args[0].code.co_flags & inspect.CO_GENERATOR:
            raise unsupported("context-manager", f"{self.describe()} as the decorator of a generator")
        return DecoratedValue(self, args[0])


class DecoratedValue(CallableValue):
    """A function that runs in a manager: `torch.no_grad()(function)`."""

    def __init__(self, context: RepeatableContext, function: Value):
        self.context, self.function = context, function

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = self.context.again()
        context.enter(cx)
        try:
            result = self.function.call(cx, args, kwargs)
        except Raised:
            context.exit(cx)
            raise
        context.exit(cx)
        return result

    def children(self) -> Sequence[Value]:
        return (self.context, self.function)

    def rebuild(self, out: Writer) -> None:
        with out.calling():
            out.value(self.context)
        out.value(self.function)
        out.call(1)


class EnterValue(CallableValue):
    def __init__(self, context: ContextValue):
        self.context = context

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not cx.manner.by_hand:
            raise unsupported("context-manager", f"{self.context.describe()}, entered by hand around a break,")
        self.context.by_hand += 1
        return self.context.enter(cx)


class ExitValue(CallableValue):
    """The bound __exit__ that a with statement keeps on the stack."""

    def __init__(self, context: ContextValue):
        self.context = context

    def describe(self) -> str:
        return f"{self.context.describe()}.__exit__"

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.context.exit(cx)
        self.context.by_hand = max(self.context.by_hand - 1, 0)
        return ConstantValue(None)

    def children(self) -> Sequence[Value]:
        return self.context.children()

    def rebuild(self, out: Writer) -> None:
        self.context.rebuild_entered(out)
        out.load_attr("__exit__")


def entered(manager: Any) -> Any:
    """The `__exit__` of a manager that is entered."""
    manager.__enter__()
    return manager.__exit__


@handles(entered)
def row_entered(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (manager,) = args
    if not isinstance(manager, ContextValue):
        raise unsupported("context-manager", manager.describe())
    manager.enter(cx)
    return ExitValue(manager)


def perform(cx: Context, function: Value, args: list[Value]) -> Value | None:
    """`type(manager).__enter__(manager)` or `__exit__`, of a manager that capture performs; None for other calls."""
    manager = args[0] if args else None
    name = function.real.__name__ if isinstance(function, FunctionValue) and function.real is not None else ""
    if isinstance(manager, ContextValue) and name in ("__enter__", "__exit__") and getattr(manager.pytype(), name) is function.identity():
        return manager.get_attr(cx, name).call(cx, args[1:], {})
    return None
