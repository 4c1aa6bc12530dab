"""contextvars.ContextVar, and threading.local: what they hold depends on the context and the thread that a call runs in, where guards ask, too."""

from __future__ import annotations

import contextvars
import operator
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Method, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.objects import ObjectValue, OpaqueValue
from dynacompile.ir.guard_facts import Flag, Presence, identity
from dynacompile.ir.namespaces import MISSING, defines
from dynacompile.ir.source import Applied, Constant, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class ContextVariable(Value):
    """tokens: of the sets that no reset has undone, in order."""

    def __init__(self, real: contextvars.ContextVar, source: Source):
        self.real, self.source = real, source
        self.tokens: list[TokenValue] = []

    def pytype(self) -> type:
        return contextvars.ContextVar

    def identity(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "name":
            return ConstantValue(self.real.name)
        return Method(self, name) if name in ("get", "set", "reset") else super().get_attr(cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "get" and len(args) < 2 and not kwargs:
            found = self.now(cx, *args)
            if found is None:
                raise raises(LookupError, "a context variable without a value", known=False)
            return found
        if name == "set" and len(args) == 1 and not kwargs:
            cx.effects.touch(self)
            self.tokens.append(TokenValue(self, args[0]))
            return self.tokens[-1]
        if name == "reset" and len(args) == 1 and not kwargs:
            if not self.tokens or args[0] is not self.tokens[-1]:
                raise unsupported("unknown-function", f"{self.describe()}.reset() of another set than the last")
            cx.effects.touch(self)
            self.tokens.pop()
            return ConstantValue(None)
        return super().method(cx, name, args, kwargs)

    def now(self, cx: Context, otherwise: Value | None = None) -> Value | None:
        """Its value, or its own default where `otherwise` is not given; None where it has none."""
        if self.tokens:
            return self.tokens[-1].value
        unset = is_unset(self.real)
        cx.guard("FLAG", None, Flag(f"whether {self.real.name} is unset", partial(is_unset, self.real), unset))
        if unset and otherwise is not None:
            return otherwise
        try:
            return cx.wrap(self.real.get(), Applied(Constant(self.real, self.real.name), contextvars.ContextVar.get, ".get()"))
        except LookupError:
            return None

    def replay_values(self) -> Sequence[Value]:
        return self.tokens[-1:]

    def replay(self, out: Writer) -> None:
        """Residual code makes the token by a set."""


class TokenValue(Value):
    """What `variable.set(value)` gives. Residual code sets the variable where it makes the token."""

    def __init__(self, variable: ContextVariable, value: Value):
        self.variable, self.value = variable, value

    def pytype(self) -> type:
        return contextvars.Token

    def truth(self, cx: Context) -> bool:
        return True

    def children(self) -> Sequence[Value]:
        return (self.variable, self.value)

    def rebuild(self, out: Writer) -> None:
        if self.variable.tokens != [self]:
            raise unsupported("rebuild", f"one of several sets of {self.variable.describe()}")
        out.call_function(contextvars.ContextVar.set, [self.variable, self.value])
        out.remember(self)


def is_unset(variable: contextvars.ContextVar) -> bool:
    return variable.get(MISSING) is MISSING


@wraps(contextvars.ContextVar)
def wrap_variable(cx: Context, real: contextvars.ContextVar, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return ContextVariable(real, source)


DICT_OF_THREAD = operator.attrgetter("__dict__")  # no descriptor of the class leads there


@dataclass(frozen=True)
class DictOfMainThread:
    """Of an instance of threading.local whose class has an `__init__`, which Python calls with the first access in each thread: no other one is asked."""

    def __call__(self, real: threading.local) -> dict[str, Any]:
        return DICT_OF_THREAD(real) if in_main_thread() else {}


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class ThreadLocal(ObjectValue):
    """An instance of threading.local: its attributes are those of the thread. namespace_of: what gives its dict."""

    def __init__(self, real: threading.local, source: Source, namespace_of: Callable[[Any], dict[str, Any]]):
        super().__init__(type(real), real, source)
        self.namespace_of = namespace_of

    has_dict = True

    def own_dict(self) -> dict[str, Any]:
        return self.real.__dict__

    def dict_source(self) -> Source:
        assert self.source is not None
        return Applied(self.source, self.namespace_of, ".__dict__")

    def lookup(self, cx: Context, name: str) -> Value | None:
        return self.namespace if name == "__dict__" else super().lookup(cx, name)

    def wrap_own(self, cx: Context, name: str) -> Value:
        return cx.wrap(self.own_dict()[name], Item(self.dict_source(), name))

    def guard_presence(self, cx: Context, name: str, is_there: bool) -> None:
        cx.guard("DICT_CONTAINS", self.dict_source(), Presence(name, is_there))

    def replace_namespace(self, cx: Context, value: Value) -> None:
        raise unsupported("setattr", f"{self.describe()}.__dict__ = ...")


def wrap_thread_local(cx: Context, real: threading.local, source: Source) -> Value:
    """The first access in another thread runs an `__init__` of the class, which guards may not do: what the main thread finds is another's only there."""
    cls = type(real)
    cx.guard("TYPE", source, cls)
    has_init = isinstance(cls.__init__, types.FunctionType)
    if isinstance(cls.__getattribute__, types.FunctionType) or defines(cls, "__slots__") or has_init and not in_main_thread():
        return OpaqueValue(real, source)
    if not has_init:
        return ThreadLocal(real, source, DICT_OF_THREAD)
    cx.flag("whether it is the main thread", in_main_thread)
    return ThreadLocal(real, source, DictOfMainThread())
