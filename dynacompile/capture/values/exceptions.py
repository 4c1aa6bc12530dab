"""Exceptions that the program raises and handles, and what the interpreter keeps on the stack meanwhile."""

from __future__ import annotations

import sys
import types
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.symbols import NeedsNumbers, NeedsSymbols
from dynacompile.capture.values.base import Method, Value, bind_arguments, next_serial
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.descriptors import bind_descriptor, class_source, is_data_descriptor
from dynacompile.capture.values.own_methods import refuse_own
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.errors import Unsupported
from dynacompile.ir.guard_facts import Flag, Presence
from dynacompile.ir.namespaces import MISSING, class_lookup, is_computed, is_data
from dynacompile.ir.source import Attr, DictAttr, Source

if TYPE_CHECKING:
    from types import CodeType

    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer
    from dynacompile.cpython.instructions import Position


class ExceptionValue(Value):
    """An exception. args: None where it exists before the frame, or where capture does not know its message.

    raised: it was raised while capture followed, so that its traceback and context are not those of a new one.
    cause, context: as `raise ... from` and the exceptions being handled set them. trail: the code and place of each frame at the first raise.
    step: the first step of the captured frame at which it was handed to a handler of that frame.
    """

    def __init__(self, cls: type, args: list[Value] | None, source: Source | None = None, real: BaseException | None = None):
        self.cls, self.args, self.source, self.real, self.serial = cls, args, source, real, next_serial()
        self.stored: dict[str, Value] = {}
        self.raised = False
        self.step: int | None = None
        self.cause: Value | None = None
        self.context: ExceptionValue | None = None
        self.trail: tuple[tuple[CodeType, Position], ...] = ()
        self.thrown = False  # by generator.throw(): then it has no context, whatever is being handled

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Context) -> bool:
        refuse_own(cx, self.cls, "__bool__", "__len__")
        return True

    def known_args(self) -> list[Value]:
        if self.args is None:
            raise unsupported("unknown-attribute", f"the arguments of a {self.cls.__name__}")
        return self.args

    def get_attr(self, cx: Context, name: str) -> Value:
        refuse_own(cx, self.cls, "__getattribute__", "__getattr__")
        if name in self.stored:
            return self.stored[name]
        if self.real is not None and name in self.real.__dict__ and not is_data_descriptor(cx.lookup(self.cls, name)):
            return cx.wrap(self.real.__dict__[name], DictAttr(self.source, name))
        if name == "args" and self.real is not None:
            return cx.wrap(self.real.args, Attr(self.source, "args"))
        if name == "args":
            return TupleValue(self.known_args())
        if name == "__class__":
            return cx.class_value(self.cls, None)
        if name in CHAIN and self.source is None:
            return self.link(cx, name)
        if name == "__traceback__" and self.source is None:
            return TracebackValue() if self.raised else ConstantValue(None)
        if name == "value" and issubclass(self.cls, StopIteration):
            return (self.known_args() or [ConstantValue(None)])[0]
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, types.MemberDescriptorType) and self.real is not None:
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        if name == "name" and self.source is None and raw is vars(NameError)["name"]:
            return ConstantValue(None)
        if name in ("__init__", "with_traceback", "__str__") and not isinstance(raw, types.FunctionType):
            return Method(self, name)
        if self.source is not None and not is_data_descriptor(raw):
            self.guard_absent(cx, name, raw)
        if raw is MISSING:
            raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        if isinstance(raw, (types.FunctionType, staticmethod, classmethod)) or is_data(raw) or is_computed(raw):
            return bind_descriptor(cx, raw, self, cx.class_value(self.cls, None), name, class_source(self.cls, name))
        raise unsupported("unknown-attribute", f"{self.cls.__name__}.{name}")

    def guard_absent(self, cx: Context, name: str, raw: Any) -> None:
        """That the object itself has no such attribute. raw: what its class has."""
        if raw is MISSING:
            cx.guard("HASATTR", self.source, Presence(name, False))
        else:
            cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))

    def link(self, cx: Context, name: str) -> Value:
        if name == "__suppress_context__":
            return ConstantValue(self.cause is not None)
        if name == "__context__" and self.context is None and self.raised and not self.thrown and not callers_handle_nothing(cx):
            raise unsupported("unknown-attribute", f"the context of a {self.cls.__name__}: what a caller handles, of which capture does not know")
        return (self.cause if name == "__cause__" else self.context) or ConstantValue(None)

    def has_attr(self, cx: Context, name: str) -> bool:
        refuse_own(cx, self.cls, "__getattribute__", "__getattr__")
        if self.real is None:
            return name in self.stored or cx.lookup(self.cls, name) is not MISSING
        cx.guard("HASATTR", self.source, Presence(name, found := hasattr(self.real, name)))
        return found

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if name == "__traceback__" and self.raised and isinstance(value, TracebackValue):
            return
        if name == "__cause__" and self.source is None and (isinstance(value, ExceptionValue) or isinstance(value, ConstantValue) and value.value is None):
            self.cause = value
            return
        if self.source is not None or name.startswith("__") or cx.lookup(self.cls, name) not in (MISSING, vars(NameError)["name"]):
            raise unsupported("setattr", f"{self.describe()}.{name}")
        self.stored[name] = value

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__init__" and not kwargs:
            if self.source is not None:
                raise unsupported("mutation", f"{self.describe()}.__init__()")
            self.args = args
            return ConstantValue(None)
        if name == "with_traceback" and self.raised and len(args) == 1 and isinstance(args[0], TracebackValue):
            return self
        if name == "__str__":
            return self.text(cx)
        return super().method(cx, name, args, kwargs)

    def text(self, cx: Context) -> Value:
        """str(self)."""
        refuse_own(cx, self.cls, "__str__")
        written = cx.lookup(self.cls, "__str__")
        if isinstance(written, types.FunctionType) or written is object.__str__ or issubclass(self.cls, (OSError, SyntaxError, UnicodeError, ImportError)):
            raise unsupported("unknown-operation", f"str() of a {self.cls.__name__}")
        args = self.get_attr(cx, "args").elements(cx)
        if len(args) == 1 and not isinstance(args[0], ConstantValue):
            return HANDLERS[repr if issubclass(self.cls, KeyError) else str](cx, args, {})
        try:
            parts = [part.constant() for part in args]
            return ConstantValue(str((KeyError if issubclass(self.cls, KeyError) else Exception)(*parts)))
        except NotConstant as reason:
            raise unsupported("unknown-operation", f"str() of a {self.cls.__name__}") from reason

    def children(self) -> Sequence[Value]:
        chain = [v for v in (self.cause, self.context) if v is not None]
        return [*(self.args or ()), *self.stored.values(), *chain]

    def rebuild(self, out: Writer) -> None:
        if self.raised or self.args is None:
            raise unsupported("rebuild", f"a {self.cls.__name__} that was raised")
        self.rebuild_chain(out)

    def can_be_made(self) -> bool:
        """Whether the residual code can make an equal exception with an equal chain, traceback aside."""
        links = [v for v in (self.cause, self.context) if isinstance(v, ExceptionValue)]
        return (self.source is not None or self.args is not None and not self.thrown) and all(v.can_be_made() for v in links)

    def rebuild_chain(self, out: Writer) -> None:
        """The exception with what it was raised from or during, whose own tracebacks are lost."""
        if self.source is not None or out.has(self):
            out.value(self)
            return
        own = isinstance(class_lookup(self.cls, "__init__"), types.FunctionType)
        out.callee(self.cls.__new__ if own else self.cls)
        if own:
            out.const(self.cls)
        for arg in self.args or ():
            out.value(arg)
        out.call(len(self.args or ()) + own)
        for name, value in self.stored.items():
            attach(out, name, value)
        for name, link in (("__context__", self.context), ("__cause__", self.cause)):
            if link is not None:
                attach(out, name, link)


def attach(out: Writer, name: str, value: Value) -> None:
    """Sets an attribute of the top of the stack."""
    out.emit("COPY", 1)
    value.rebuild_chain(out) if isinstance(value, ExceptionValue) else out.value(value)
    out.emit("SWAP", 2)
    out.store_attr(name)


CHAIN = ("__cause__", "__context__", "__suppress_context__")


class Handling:
    """exception: the one that is being handled."""

    def __init__(self) -> None:
        self.exception: ExceptionValue | None = None


class HandledValue(Value):
    """What PUSH_EXC_INFO keeps: the exception that was being handled before. step: that of the captured frame at which this one was raised."""

    def __init__(self, previous: ExceptionValue | None, step: int | None):
        self.previous, self.step = previous, step

    def describe(self) -> str:
        return "the state of an exception handler"

    def pytype(self) -> type:
        return types.TracebackType


class TracebackValue(Value):
    """The traceback of an exception that was raised while capture followed, of which nothing is known but that it is one."""

    is_copy = True

    def pytype(self) -> type:
        return types.TracebackType

    def truth(self, cx: Context) -> bool:
        return True


def callers_handle_nothing(cx: Context) -> bool:
    """Whether no caller of the frame handles an exception, which is guarded."""
    error = sys.exc_info()[1]
    while isinstance(error, (Unsupported, NotConstant, NeedsSymbols, NeedsNumbers)):  # of capture itself
        error = error.__context__
    if error is None:
        cx.guard("FLAG", None, Flag("sys.exc_info()", sys.exc_info, (None, None, None)))
    return error is None


@handles(sys.exc_info)
def row_exc_info(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    error = cx.state(Handling).exception
    if error is not None:
        return TupleValue([cx.class_value(error.cls, None), error, TracebackValue()])
    if not callers_handle_nothing(cx):
        raise unsupported("unknown-function", "sys.exc_info() of what a caller handles")
    return TupleValue([ConstantValue(None)] * 3)


@handles(sys.exception)
def row_exception(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return row_exc_info(cx, args, kwargs).items[1]  # type: ignore[attr-defined]


def make_exception(cx: Context, cls: type, args: list[Value], kwargs: dict[str, Value]) -> ExceptionValue:
    """cls(*args, **kwargs)."""
    init = cx.lookup(cls, "__init__")
    if not isinstance(init, types.FunctionType):
        refuse_own(cx, cls, "__init__")
    if cls.__new__ is not BaseException.__new__ and issubclass(cls, (BaseExceptionGroup, OSError)):
        raise unsupported("unknown-function", f"making a {cls.__name__}")
    if issubclass(cls, UnicodeError) and cls is not UnicodeError or issubclass(cls, SyntaxError) and len(args) > 1:  # which ask for arguments of certain types
        raise unsupported("unknown-function", f"making a {cls.__name__}")
    if isinstance(cx.lookup(cls, "__new__"), (staticmethod, types.FunctionType)):
        raise unsupported("unknown-function", f"making a {cls.__name__}")
    made = ExceptionValue(cls, list(args))
    if isinstance(init, types.FunctionType):
        given = cx.call_real(init, class_source(cls, "__init__"), [made, *args], kwargs)
        if not is_none(given):
            raise unsupported("would-raise", f"{cls.__name__}.__init__() gives something")
    elif kwargs:
        bind_arguments(cls.__name__, [], [], kwargs, {})
    return made


def exception_of(cx: Context, value: Value, refusal: str = "exceptions must derive from BaseException") -> ExceptionValue:
    """What `raise value` raises. refusal: what Python says of an object that is no exception."""
    if isinstance(value, ExceptionValue):
        return value
    try:
        cls: Any = value.constant()
    except NotConstant as reason:
        raise unsupported("raise", f": {value.describe()}") from reason
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        raise raised_here(cx, TypeError, refusal)
    refuse_own(cx, type(cls), "__call__")
    return make_exception(cx, cls, [], {})


def raised(value: ExceptionValue) -> Raised:
    """The signal that the program raises `value` here."""
    return Raised(f": {value.cls.__name__}", value, value.cls)


def raised_here(cx: Context, cls: type, message: str, **attributes: Hashable) -> Raised:
    """The signal that an instruction raises cls(message), with these attributes."""
    value = ExceptionValue(cls, [ConstantValue(message)])
    value.stored |= {name: ConstantValue(content) for name, content in attributes.items()}
    reason = Raised(f"{cls.__name__}: {message}", value, cls, None, "would-raise")
    reason.trail = value.trail = cx.trail()
    return reason


def undefined(cx: Context, name: str) -> Raised:
    """The signal that a global name is not defined."""
    return raised_here(cx, NameError, f"name {name!r} is not defined", name=name)


def raised_by_statement(cx: Context, value: ExceptionValue, cause: Value | None = None) -> Raised:
    """The signal of `raise value from cause`.

    Such a statement gives the exception that is being handled to `value` as its context, also to one that was raised before: what it had for a
    context is lost then, and where a caller handles one capture does not know which is new.
    """
    refuse_own(cx, type(value.cls), "__subclasscheck__")  # which Python asks about what is raised
    if value is not cx.state(Handling).exception and (value.raised or value.source is not None):
        if cx.state(Handling).exception is not None or value.context is not None:
            raise unsupported("raise", f": a {value.cls.__name__} that was raised before")
    if isinstance(cause, ExceptionValue) and value in links_of(cause):
        raise unsupported("raise", f": a {value.cls.__name__} that becomes its own cause")
    if cause is not None:
        if value.source is not None:
            raise unsupported("raise", f": a {value.cls.__name__} gets a cause")
        value.cause = cause
    reason = raised(value)
    reason.anew = value.source is not None and value is not cx.state(Handling).exception
    reason.trail = cx.trail()
    value.trail = value.trail or reason.trail
    return reason


def links_of(value: ExceptionValue) -> list[ExceptionValue]:
    """An exception and all that its causes and contexts lead to."""
    found: list[ExceptionValue] = []
    waiting = [value]
    while waiting:
        link = waiting.pop()
        if link not in found:
            found.append(link)
            waiting += [v for v in (link.cause, link.context) if isinstance(v, ExceptionValue)]
    return found


def note_attribute(reason: Raised, owner: Value, name: str) -> None:
    """Access to an attribute tells an AttributeError without a name whose attribute it was."""
    if not issubclass(reason.cls, AttributeError) or reason.value is None and reason.args_ is None:
        return
    value = value_of_raised(reason)
    if value.source is None and "name" not in value.stored and "obj" not in value.stored:
        value.stored |= {"name": ConstantValue(name), "obj": owner}


def thrown(value: ExceptionValue) -> Raised:
    """The signal that generator.throw() raises `value` where the generator stopped."""
    value.thrown = value.thrown or value.source is None and not value.raised
    reason = raised(value)
    reason.linked = True
    return reason


def value_of_raised(reason: Raised) -> ExceptionValue:
    if reason.value is None:
        reason.value = ExceptionValue(reason.cls, None if reason.args_ is None else [ConstantValue(a) for a in reason.args_])
    return reason.value


def stopped_inside(value: ExceptionValue) -> ExceptionValue:
    """What becomes of a StopIteration that leaves a generator's own code: a RuntimeError from it."""
    made = ExceptionValue(RuntimeError, [ConstantValue("generator raised StopIteration")])
    made.cause = made.context = value
    value.raised = True
    return made
