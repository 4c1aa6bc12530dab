"""The protocol of `__torch_function__`: who overrides a call of a torch function, in which order they are asked, and with what.

Of a function that torch wrote in Python the code is followed, which asks by itself. One written in C is called with stand-ins for its arguments:
these tell whether it would ask, whom, and by which name and arguments, so that nothing of that has to be written down here.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import get_default_nowrap_functions

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.tensors.function_modes import DeviceMode, FunctionModes
from dynacompile.capture.tensors.subclasses import converted
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.tensor_fields import AccessValue
from dynacompile.capture.tensors.torch_functions import OPS
from dynacompile.capture.values.base import Keywords, Lazy, Value
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.functions import function_value
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.sequence import SequenceValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.source import Constant
from dynacompile.native import core as native_core
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

OVERRIDE = "__torch_function__"
NOTHING: Mapping[str, Value] = types.MappingProxyType({})
REFUSALS = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError)  # of a call with stand-ins; eager's own call decides
NOT_IMPLEMENTED = ConstantValue(NotImplemented)
ENABLED, NOT_FOR_SUBCLASSES, DISABLED = range(3)  # as GlobalState.torch_function


class AskedError(TypeError):
    """A stand-in was asked. A TypeError, as methods of operators turn these into NotImplemented, and it shows which do."""


@dataclass(frozen=True)
class Question:
    """How torch asks: function(*args, **kwargs), None for no keywords at all.

    relevant: the arguments that override it. kinds: the classes that torch names. swallows: a TypeError becomes NotImplemented.
    """

    function: Any
    args: list[Value]
    kwargs: dict[str, Value] | None
    relevant: list[Value]
    kinds: list[type]
    swallows: bool


class StandIns:
    """Objects that stand for those that override torch functions. heard: what they were asked, first things first."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []
        self.classes: dict[type, type] = {}

    def plain(self) -> torch.Tensor:
        """What stands for a tensor that overrides nothing."""
        return torch.empty((), device="meta")

    def of(self, cls: type) -> Any:
        made = self.classes.get(cls)
        if made is None:
            made = self.classes[cls] = self.make(torch.Tensor if issubclass(cls, torch.Tensor) else object)
        return self.plain().as_subclass(made) if issubclass(made, torch.Tensor) else made()

    def make(self, base: type) -> type:
        def ask(cls: type, function: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> None:
            self.heard.append((function, types, args, kwargs))
            raise AskedError

        return type("StandIn", (base,), {OVERRIDE: classmethod(ask)})

    def mode(self) -> torch.overrides.TorchFunctionMode:
        """One that hears of every call."""

        def ask(mode: Any, function: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> None:
            self.heard.append((function, types, args, kwargs))
            raise AskedError

        return type("StandIn", (torch.overrides.TorchFunctionMode,), {OVERRIDE: ask})()


class Overrides:
    """The protocol, as it is in force while one frame is interpreted. state: as GlobalState.torch_function."""

    def __init__(self, cx: Context, modes: FunctionModes, state: int = ENABLED):
        self.cx, self.state = cx, state
        self.modes = modes
        self.known: dict[type, bool] = {}
        self._stand_ins: StandIns | None = None

    @contextmanager
    def without(self, state: int = NOT_FOR_SUBCLASSES) -> Iterator[None]:
        """Nobody is asked meanwhile."""
        before, self.state = self.state, max(state, self.state)
        try:
            yield
        finally:
            self.state = before

    def in_force(self) -> AbstractContextManager[None]:
        """For code of the user that runs while the frame is captured, when torch asks nobody otherwise."""
        return of_torch.EnableTorchFunction() if self.state == ENABLED else nullcontext()

    # who overrides

    def class_overrides(self, cls: type) -> bool:
        """Whether instances of a class are asked. Plain tensors have the method, too, and are not."""
        found = self.known.get(cls)
        if found is None:
            raw = MISSING if cls is torch.Tensor else self.cx.lookup(cls, OVERRIDE)
            found = self.known[cls] = raw is not MISSING and raw is not of_torch.disabled_torch_function_impl
        return found

    def overrides(self, value: Value) -> bool:
        if not isinstance(value, (ObjectValue, TensorValue, Lazy, TupleValue)) or not self.class_overrides(value.pytype()):
            return False
        if isinstance(value, TupleValue):
            raise unsupported("unknown-object", f"a tuple that defines {OVERRIDE}, {value.describe()},")
        return True

    def concerns(self, args: Sequence[Value], kwargs: Mapping[str, Value] = NOTHING) -> bool:
        """Whether a mode, one of the arguments, or of the items of these, may be asked."""
        if self.is_watched() or self.state != ENABLED:
            return self.is_watched()
        known = self.known
        for value in flat((*args, *kwargs.values())):
            plain = type(value) is TensorValue and known.get(value.pytype()) is False  # as the members of long lists are
            if not plain and self.overrides(value):
                return True
        return False

    def is_watched(self) -> bool:
        """Whether a mode that the frame has entered is asked about each call."""
        return self.state != DISABLED and self.modes.watched

    def is_on(self) -> bool:
        """Whether there is any mode."""
        return self.state != DISABLED and bool(self.modes.stack)

    # calls

    def call(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """function(*args, **kwargs) of a function of torch, where a mode or one of its arguments overrides it; None where none does."""
        if not self.concerns(args, kwargs):
            return self.call_elsewhere(function, args, kwargs) if self.is_on() else None
        is_torch_s = str(getattr(function, "__module__", None) or "torch").partition(".")[0] == "torch"
        if isinstance(function, types.FunctionType) and not is_torch_s:
            self.modes.refuse(function.__qualname__)
        elif not is_torch_s or isinstance(function, types.BuiltinFunctionType) and function not in OPS and function is not of_torch.set_grad_enabled:
            return None
        if isinstance(function, types.FunctionType):
            return function_value(self.cx, function, Constant(function, function.__qualname__)).call(self.cx, args, kwargs)
        question = self.question(function, args, kwargs)
        if not isinstance(question, Question):
            return question
        if not question.swallows:
            return self.ask(question)
        found = self.cx.unless_missing(lambda: self.ask(question), TypeError)
        return NOT_IMPLEMENTED if found is None else found

    def method(self, tensor: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """torch.Tensor.name(tensor, *args, **kwargs), as `call`."""
        function = getattr(torch.Tensor, name, None)
        return None if function is None else self.call(function, [tensor, *args], kwargs)

    def call_elsewhere(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The same, where modes say no more than on which device tensors are made."""
        with self.modes.popped() as mode:
            assert isinstance(mode, DeviceMode)
            named = mode.placed(function, kwargs)
            if named is not kwargs:
                return self.cx.wrap(function, Constant(function, function.__name__)).call(self.cx, args, named)
        if not self.modes.elsewhere:
            return None
        if isinstance(function, types.FunctionType) and str(function.__module__).startswith("torch."):
            return function_value(self.cx, function, Constant(function, function.__qualname__)).call(self.cx, args, kwargs)
        if isinstance(function, types.FunctionType):  # unlike kernels of operators, which no mode sees
            self.modes.refuse(function.__qualname__, makes_tensors=True)
        return None

    def getter(self, tensor: Value, name: str) -> Value | None:
        """tensor.name, where a mode is asked about it; None where it is not."""
        raw = self.cx.lookup(tensor.pytype(), name) if self.is_watched() else MISSING
        if isinstance(raw, types.GetSetDescriptorType):
            question = self.question(raw.__get__, [tensor], {})
            return self.ask(question) if isinstance(question, Question) else None
        if isinstance(raw, property):
            self.modes.refuse(f"the attribute {name} of a tensor")
        return None

    def ask(self, question: Question) -> Value:
        real = question.function
        function = self.cx.wrap(real, Constant(real, getattr(real, "__name__", OVERRIDE)))
        return self.dispatch(function, question.relevant, question.args, question.kwargs, question.kinds)

    def dispatch(
        self,
        function: Value,
        relevant: Sequence[Value],
        args: Sequence[Value],
        kwargs: dict[str, Value] | None,
        kinds: Sequence[type] | None = None,
    ) -> Value:
        """What the innermost mode, or the first of the relevant arguments gives that implements the function. kinds: their classes, as torch names them."""
        cx, asked = self.cx, in_order(relevant)
        named = [value.pytype() for value in asked] if kinds is None else kinds
        given: list[Value] = [function, TupleValue([cx.class_value(kind, None) for kind in named]), TupleValue(args)]
        if kwargs is not None:
            given.append(DictValue.of([(ConstantValue(name), value) for name, value in kwargs.items()]))
        if self.is_on():
            with self.modes.popped() as mode:
                if isinstance(mode, DeviceMode):
                    return function.call(cx, list(args), mode.placed(function.identity(), Keywords(kwargs or {})))
                result = mode.get_attr(cx, OVERRIDE).call(cx, list(given), {})
            if not is_not_implemented(result):
                return result
        for value in asked if self.state == ENABLED else ():
            if value.pytype() is torch.Tensor:
                result = self.default(torch.Tensor, *given)
            else:
                result = value.get_attr(cx, OVERRIDE).call(cx, list(given), {})
            if not is_not_implemented(result):
                return result
        raise raises(TypeError, f"no implementation found for {function.describe()} on {', '.join(v.pytype().__name__ for v in asked)}", known=False)

    def default(self, cls: type, function: Value, kinds: Value, args: Value, kwargs: Value) -> Value:
        """torch.Tensor.__torch_function__ of a class: calls the function while nobody is asked."""
        if not all(issubclass(cls, kind.constant()) for kind in kinds.elements(self.cx)):
            return NOT_IMPLEMENTED
        named = {} if isinstance(kwargs, ConstantValue) else {k.constant(): v for k, v in pairs_of(self.cx, kwargs)}
        with self.without():
            result = function.call(self.cx, args.elements(self.cx), named)
        if isinstance(function, AccessValue) and function.real in get_default_nowrap_functions():
            return result
        return converted(self.cx, result, cls)

    def question(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Question | Value | None:
        """How torch asks about a call; NotImplemented where it says so without asking, None where it does not ask."""
        stands = self._stand_ins = self._stand_ins or StandIns()
        made: dict[type, Value] = {}
        given, named = [self.stand_in(a, made) for a in args], {k: self.stand_in(v, made) for k, v in kwargs.items()}
        stands.heard.clear()
        result, refused = None, False

        def ask() -> Any:
            return function(*given, **named) if named or isinstance(kwargs, Keywords) else function(*given)

        with of_torch.EnableTorchFunction(), unheard(), stands.mode() if self.is_watched() else nullcontext():
            try:
                result = ask()
            except REFUSALS as reason:
                check_recurs(reason, ask)
                refused = True
        if not stands.heard and refused and self.is_watched():
            raise unsupported("unknown-operation", f"{function.__name__} of {', '.join(a.describe() for a in args)}, in a torch-function mode")
        if not stands.heard:
            return NOT_IMPLEMENTED if result is NotImplemented else None
        asked, kinds, passed, keywords = stands.heard[0]
        if len(passed) != len(given) or any(a is not b for a, b in zip(passed, given)) or (keywords or {}).keys() != kwargs.keys():
            raise unsupported("unknown-operation", f"{function.__name__} hands other arguments to {OVERRIDE}")
        relevant = [made[kind] for kind in kinds if kind in made]
        shown = subclasses_first([made[kind].pytype() if kind in made else kind for kind in kinds])
        return Question(asked, args, None if keywords is None else kwargs, relevant, shown, result is NotImplemented)

    def stand_in(self, value: Value, made: dict[type, Value]) -> Any:
        """An object that torch's parsers take as they take the argument. made: stand-in classes -> the first value of each."""
        value = self.cx.force(value)
        stands = self._stand_ins
        assert stands is not None
        if self.state == ENABLED and self.overrides(value):
            found = stands.of(value.pytype())
            made.setdefault(type(found), value)
            return found
        if isinstance(value, TensorValue):
            return stands.plain() if value.pytype() is torch.Tensor else torch.nn.Parameter(stands.plain())  # which overrides nothing
        if isinstance(value, SequenceValue) and value.cls in (list, tuple):
            return value.cls(self.stand_in(item, made) for item in value.items)
        if isinstance(value, SliceValue):
            return slice(*(self.stand_in(part, made) for part in value.parts))
        if isinstance(value, (SymbolicInt, SymbolicFloat)):
            return value.pytype()(2)
        try:
            return value.constant()
        except NotConstant:
            return stands


class WhileCompiling:
    """In the place of a pattern in a filter of warnings, which are the process's: matches those of threads that compile."""

    def match(self, text: str) -> bool:
        return native_core().is_compiling_frame()


UNHEARD: Any = ("ignore", WhileCompiling(), Warning, None, 0)


@contextmanager
def unheard() -> Iterator[None]:
    """This thread's warnings are not shown."""
    warnings.filters.insert(0, UNHEARD)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if UNHEARD in warnings.filters:
            warnings.filters.remove(UNHEARD)  # type: ignore[attr-defined]


def flat(values: Sequence[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, SequenceValue):
            yield value
            yield from flat(value.items)
        elif isinstance(value, SliceValue):
            yield from value.parts
        else:
            yield value


def in_order(relevant: Sequence[Value]) -> list[Value]:
    """One value of each class."""
    first: dict[type, Value] = {}
    for value in relevant:
        first.setdefault(value.pytype(), value)
    return [first[cls] for cls in subclasses_first(list(first))]


def subclasses_first(classes: Sequence[type]) -> list[type]:
    """Left to right, but subclasses before their superclasses."""
    found: list[type] = []
    for cls in classes:
        place = next((i for i, other in enumerate(found) if issubclass(cls, other)), len(found))
        found.insert(place, cls)
    return found


def is_not_implemented(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is NotImplemented
