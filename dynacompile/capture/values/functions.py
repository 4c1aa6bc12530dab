"""Python functions, bound methods, closures and partials."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Lazy, Method, Value, has_finalizer, method_key, wraps
from dynacompile.capture.values.cells import CellValue, cell_value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.keys import key_of
from dynacompile.capture.values.mapping import DictLike, DictValue, OwnDicts, pairs_of
from dynacompile.capture.values.object_parts import DELETED, DictOwner, instance_dict_of
from dynacompile.capture.values.replaced import is_around_such_a_part, kept_in_python, replaced_by_dynamo
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import Presence, function_facts, identity
from dynacompile.ir.namespaces import MISSING, defines
from dynacompile.ir.source import Attr, Constant, DefaultArg, DictAttr, Source
from dynacompile.markers import DISABLED

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context, Scope
    from dynacompile.capture.values.writing import Writer


class CallableValue(Value):
    """What Python functions share: they are inlined when called."""

    def truth(self, cx: Context) -> bool:
        return True

    def pytype(self) -> type:
        return types.FunctionType

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__call__":
            return self.call(cx, args, kwargs)
        if name == "__get__" and self.pytype() is types.FunctionType:
            unbound = isinstance(args[0], ConstantValue) and args[0].value is None
            return self if unbound else BoundMethod(self, args[0])
        return super().method(cx, name, args, kwargs)


class FunctionValue(CallableValue, DictOwner):
    """A Python function. real: the object, for a function that exists before the frame runs."""

    def __init__(
        self,
        code: CodeType,
        scope: Scope,
        name: str,
        defaults: list[Value],
        kwdefaults: dict[str, Value],
        closure: list[CellValue],
        real: types.FunctionType | None = None,
        source: Source | None = None,
    ):
        self.code, self.scope, self.name, self.defaults, self.kwdefaults, self.closure = code, scope, name, defaults, kwdefaults, closure
        self.real, self.source = real, source
        self.annotations: Value | None = None  # names and values in turn, as MAKE_FUNCTION takes them
        self.fields: dict[str, Value] = {}  # what the frame has set, or made, of what every function has
        self.stored: dict[str, Value | object] = {}  # attributes that the frame has set in its __dict__, or deleted
        self.removed: dict[str, bool] = {}

    def describe(self) -> str:
        return f"function {self.name}"

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.inline(self, args, kwargs)

    def identity(self) -> Any:
        return self.real if self.real is not None else super().identity()

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in FIELDS:
            return self.field(cx, name)
        found = self.own_attribute(cx, name)
        if found is not None:
            return found
        if defines(types.FunctionType, name):
            return Method(self, name)
        if self.real is not None and name not in self.stored:
            cx.guard("HASATTR", self.source, Presence(name, False))
        raise raises(AttributeError, f"'function' object has no attribute {name!r}")

    def field(self, cx: Context, name: str) -> Value:
        """What is no entry of its __dict__."""
        if name in self.fields:
            return self.fields[name]
        match name:
            case "__class__":
                return cx.class_value(types.FunctionType, None)
            case "__dict__":
                self.claim_dict(cx)
                return instance_dict_of(self)
            case "__code__":
                return ConstantValue(self.code)
            case "__globals__":
                return self.scope.namespace
            case "__closure__":
                return TupleValue(self.closure) if self.closure else ConstantValue(None)
        if self.real is not None:
            return cx.of(getattr(self.real, name)) if name in NAMES else cx.wrap(getattr(self.real, name), Attr(self.source, name))
        self.fields[name] = self.made_with(cx, name)
        return self.fields[name]

    def made_with(self, cx: Context, name: str) -> Value:
        """What a function that the frame made has, as MAKE_FUNCTION leaves it."""
        code = self.code
        match name:
            case "__defaults__":
                return TupleValue(self.defaults) if self.defaults else ConstantValue(None)
            case "__kwdefaults__":
                return DictValue.of([(ConstantValue(key), value) for key, value in self.kwdefaults.items()]) if self.kwdefaults else ConstantValue(None)
            case "__name__":
                return ConstantValue(code.co_name)
            case "__qualname__":
                return ConstantValue(code.co_qualname)
            case "__module__":
                return ConstantValue(self.scope.table.get("__name__"))
            case "__doc__":
                first = code.co_consts[0] if code.co_consts else None
                return ConstantValue(first if isinstance(first, str) else None)
            case "__annotations__":
                flat, self.annotations = [] if self.annotations is None else self.annotations.elements(cx), None
                return DictValue.of(list(zip(flat[::2], flat[1::2])))
            case "__type_params__":
                return TupleValue([])
        raise unsupported("unknown-attribute", f"{self.describe()}.{name}")

    def has_attr(self, cx: Context, name: str) -> bool:
        if defines(types.FunctionType, name) or self.own_attribute(cx, name) is not None:
            return True
        if self.real is not None and name not in self.stored:
            cx.guard("HASATTR", self.source, Presence(name, False))
        return False

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if self.real is not None and (defines(types.FunctionType, name) or is_trusted(self.real.__module__)):
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        if name in FIELDS and not issubclass(value.pytype(), SETTABLE.get(name, ())):
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        if name not in FIELDS:
            self.put_own(cx, name, value)
            return
        if name == "__defaults__":
            self.defaults = value.elements(cx) if issubclass(value.pytype(), tuple) else []
        if name == "__kwdefaults__":
            self.kwdefaults = {str(key.constant()): new for key, new in pairs_of(cx, value)} if isinstance(value, DictLike) else {}
        self.fields[name] = value

    def del_attr(self, cx: Context, name: str) -> None:
        if name in FIELDS:
            raise unsupported("setattr", f"del {self.describe()}.{name}")
        if instance_dict_of(self).find_name(cx, name) is None:
            raise raises(AttributeError, f"'function' object has no attribute {name!r}")
        self.drop_own(cx, name)

    # its __dict__

    def own_dict(self) -> dict[str, Any]:
        return {} if self.real is None else self.real.__dict__

    def dict_source(self) -> Source:
        assert self.source is not None
        return Attr(self.source, "__dict__")

    def claim_dict(self, cx: Context) -> None:
        """Has a real `__dict__` be read and written by this value alone."""
        own = self.own_dict()
        owners = cx.state(OwnDicts).owners.setdefault(id(own), [])
        if self.real is None or self in owners:
            return
        owners.append(self)
        if len(owners) > 1 or cx.known_value(own) is not None:
            raise unsupported("unknown-object", f"{self.describe()}, whose __dict__ is known as a dict,")

    def own_attribute(self, cx: Context, name: str) -> Value | None:
        self.claim_dict(cx)
        if name in self.stored:
            value = self.stored[name]
            return value if isinstance(value, Value) else None
        return cx.wrap(self.own_dict()[name], DictAttr(self.source, name)) if name in self.own_dict() else None

    def put_own(self, cx: Context, name: str, value: Value) -> None:
        self.claim_dict(cx)
        cx.effects.touch(self)
        self.stored.pop(name, None)
        self.stored[name] = value

    def drop_own(self, cx: Context, name: str) -> None:
        cx.effects.touch(self)
        before = self.stored.pop(name, DELETED)
        if self.real is not None:
            self.stored[name] = DELETED
            self.removed.setdefault(name, before is not DELETED)

    def is_elsewhere(self, cx: Context, name: str) -> bool:
        return False

    # residual code

    def new_values(self) -> list[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)]

    def replay_values(self) -> Sequence[Value]:
        return self.new_values()

    def replay(self, out: Writer) -> None:
        if self.real is None:
            return
        for name, value in self.stored.items():
            if self.removed.get(name):
                self.replay_store(out, name, ConstantValue(None))
            if name in self.removed:
                out.value(self)
                out.del_attr(name)
            if isinstance(value, Value):
                self.replay_store(out, name, value)

    def replay_store(self, out: Writer, name: str, value: Value) -> None:
        out.value(value)
        out.value(self)
        out.store_attr(name)

    def children(self) -> Sequence[Value]:
        extra = [] if self.annotations is None else [self.annotations]
        return [*self.defaults, *self.kwdefaults.values(), *self.closure, *self.set_fields().values(), *self.new_values(), *extra]

    def set_fields(self) -> dict[str, Value]:
        """Those that MAKE_FUNCTION does not give."""
        return {name: value for name, value in self.fields.items() if name not in ("__defaults__", "__kwdefaults__") or self.scope.is_root}

    def rebuild(self, out: Writer) -> None:
        if self.scope.is_root:
            self.rebuild_own(out)
        else:
            self.rebuild_foreign(out)
        for name, value in (*self.set_fields().items(), *self.stored.items()):
            if isinstance(value, Value):
                out.emit("COPY", 1)
                out.value(value)
                out.emit("SWAP", 2)
                out.store_attr(name)

    def rebuild_own(self, out: Writer) -> None:
        flags = 0
        if self.defaults:
            flags |= 1
            out.tuple_of(self.defaults)
        if self.kwdefaults:
            flags |= 2
            for key, value in self.kwdefaults.items():
                out.const(key)
                out.value(value)
            out.emit("BUILD_MAP", len(self.kwdefaults))
        if self.annotations is not None:
            flags |= 4
            out.value(self.annotations)
        if self.closure:
            flags |= 8
            out.tuple_of(self.closure)
        out.const(self.code)
        out.emit("MAKE_FUNCTION", flags)

    def rebuild_foreign(self, out: Writer) -> None:
        """A function whose globals are not the frame's."""
        out.callee(types.FunctionType)
        out.const(self.code)
        out.const(self.scope.table)
        out.const(self.code.co_name)
        out.tuple_of(self.defaults) if self.defaults else out.const(None)
        out.tuple_of(self.closure) if self.closure else out.const(None)
        out.call(5)
        if self.kwdefaults:
            raise unsupported("rebuild", f"{self.describe()} with keyword defaults of another module")


FIELDS = frozenset(
    "__class__ __dict__ __code__ __globals__ __closure__ __defaults__ __kwdefaults__ __annotations__ __name__ __qualname__ __module__ __doc__ "
    "__type_params__ __builtins__".split()
) & frozenset(dir(types.FunctionType))
"""What every function has beside its __dict__."""
NAMES = frozenset({"__name__", "__qualname__"})
SETTABLE: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(NAMES, str),
    **dict.fromkeys(("__module__", "__doc__"), object),
    "__defaults__": (tuple, types.NoneType),
    "__kwdefaults__": (dict, types.NoneType),
    "__annotations__": dict,
    "__type_params__": tuple,
}
"""Of FIELDS, those that are followed where the frame sets them, and what they may be set to."""


class SpecialFunction(CallableValue):
    """A function whose call capture treats in a way of its own; else it is the function."""

    def __init__(self, function: FunctionValue):
        self.function, self.source = function, function.source

    def describe(self) -> str:
        return self.function.describe()

    def identity(self) -> Any:
        return self.function.identity()

    def get_attr(self, cx: Context, name: str) -> Value:
        return self.function.get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return self.function.has_attr(cx, name)


class BoundMethod(CallableValue):
    def __init__(self, function: Value, owner: Value, source: Source | None = None, name: str = ""):
        self.function, self.owner, self.source, self.name = function, owner, source, name

    def describe(self) -> str:
        return f"method {self.name or self.function.describe()}"

    def pytype(self) -> type:
        return types.MethodType

    def equals(self, cx: Context, other: Value) -> bool:
        return isinstance(other, BoundMethod) and cx.is_same(self.owner, other.owner) and cx.equal(self.function, other.function)

    def own_key(self) -> Hashable:
        return method_key(self.owner, key_of(self.function))

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(cx, [self.owner, *args], kwargs)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name != "__doc__" and defines(types.MethodType, name):
            return super().get_attr(cx, name)
        return self.function.get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(types.MethodType, name) or self.function.has_attr(cx, name)

    def is_read(self) -> bool:
        """Whether residual code reads the method from its owner. Reading from a class may run code of its metaclass."""
        return bool(self.name) and self.owner.source is not None and not issubclass(self.owner.pytype(), type)

    def children(self) -> Sequence[Value]:
        return (self.owner,) if self.is_read() else (self.function, self.owner)

    def rebuild(self, out: Writer) -> None:
        if self.is_read():
            out.value(self.owner)
            out.load_attr(self.name)
            return
        out.call_function(types.MethodType, [self.function, self.owner])


class RefusedValue(CallableValue):
    """A callable that capture must not look into: calling it breaks the graph by the named row."""

    def __init__(self, real: Any, code: str, source: Source, detail: str = ""):
        self.real, self.code, self.source, self.detail = real, code, source, detail

    def describe(self) -> str:
        return self.detail or getattr(self.real, "__qualname__", None) or self.source.text()

    def pytype(self) -> type:
        return type(self.real)

    def is_pending(self) -> bool:
        return has_finalizer(self.real)

    ends_late = is_pending

    def truth(self, cx: Context) -> bool:
        if any(cx.lookup(self.pytype(), name) is not MISSING for name in ("__bool__", "__len__")):
            raise unsupported("unknown-operation", f"bool({self.describe()})")
        return True

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported(self.code, self.describe())

    def get_attr(self, cx: Context, name: str) -> Value:
        """Methods of a refused object are refused when they are called."""
        found = getattr(type(self.real), name, None)
        if self.source is None or not callable(found):
            raise unsupported(self.code, f"{self.describe()}.{name}")
        return RefusedValue(getattr(self.real, name), self.code, Attr(self.source, name), f"{self.describe()}.{name}")

    def has_attr(self, cx: Context, name: str) -> bool:
        cx.guard("ID", self.source, identity(self.real))  # of a closure the code alone is guarded so far
        return hasattr(self.real, name)


class OptimizerStep(RefusedValue):
    """A step of torch.optim that torch leaves to Python. Its fused form is followed: it takes step counts wherever they lie."""

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fused = kwargs.get("fused")
        if isinstance(fused, ConstantValue) and fused.value is True:
            return cx.wrap(kept_in_python(self.real), DictAttr(self.source, "__wrapped__")).call(cx, args, kwargs)
        return super().call(cx, args, kwargs)


def is_disabled(function: types.FunctionType) -> bool:
    """Whether a function carries a mark to run as plain Python: ours, or the ones that torch.compiler.disable leaves."""
    marks = function.__dict__
    by_torch = bool(marks.get("_torchdynamo_disable")) or bool(marks.get("_torchdynamo_forbidden"))
    return DISABLED in marks or by_torch and not is_around_such_a_part(function)


SPECIAL: list[Callable[[Context, types.FunctionType, Source], Value | None]] = []
"""Who may take a Python function for one that is not to be inlined as it stands; each gives None for all others."""


@wraps(types.FunctionType)
def wrap_function(cx: Context, real: types.FunctionType, source: Source) -> Value:
    for row in SPECIAL:
        special = row(cx, real, source)
        if special is not None:
            return special
    covered = replaced_by_dynamo(real, source)
    if covered is not None:
        cx.guard("ID", source, identity(real))
        return cx.wrap(*covered)
    if is_disabled(real):
        cx.guard("ID", source, identity(real))
        return RefusedValue(real, "disabled", source)
    if type(real.__globals__) is not dict:  # the class says what a global is
        cx.guard("ID", source, identity(real))
        return RefusedValue(real, "unknown-object", source, f"function {real.__qualname__}, whose globals are a {type(real.__globals__).__name__},")
    cx.guard("FUNCTION", source, function_facts(real, cx.root_scope.table))
    return function_value(cx, real, source)


def function_value(cx: Context, real: types.FunctionType, source: Source) -> FunctionValue:
    """An existing function whose guard is installed."""
    defaults: list[Value] = [Lazy(cx, d, DefaultArg(source, i)) for i, d in enumerate(real.__defaults__ or ())]
    kwdefaults: dict[str, Value] = {k: Lazy(cx, d, DefaultArg(source, k)) for k, d in (real.__kwdefaults__ or {}).items()}
    cells = [cell_value(cx, cell, name, source, i) for i, (name, cell) in enumerate(zip(real.__code__.co_freevars, real.__closure__ or ()))]
    return FunctionValue(real.__code__, cx.scope_of(real, source), real.__qualname__, defaults, kwdefaults, cells, real, source)


def call_polyfill(cx: Context, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """A call of a function of the polyfills, which nobody changes."""
    return function_value(cx, function, Constant(function, function.__qualname__)).call(cx, args, kwargs or {})  # type: ignore[arg-type]


@wraps(types.MethodType)
def wrap_method(cx: Context, real: types.MethodType, source: Source) -> Value:
    cx.guard("TYPE", source, types.MethodType)
    return BoundMethod(cx.wrap(real.__func__, Attr(source, "__func__")), cx.wrap(real.__self__, Attr(source, "__self__")), source)
