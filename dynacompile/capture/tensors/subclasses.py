"""Tensors of subclasses of torch.Tensor. In the graph they are plain; class and attributes are theirs in residual code.

What their class defines in Python is followed, and so is its `__torch_function__`, which torch's own functions, methods and fields ask.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.tensors.tensor import METHODS, TensorValue
from dynacompile.capture.tensors.tensor_fields import C_FIELD
from dynacompile.capture.tensors.tensor_inputs import check_kind
from dynacompile.capture.tensors.wrappers import wrap_pending, wrap_wrapper
from dynacompile.capture.values.base import IteratorValue, Method, Value, bind_arguments
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, by_own_hook, class_source, is_data_descriptor
from dynacompile.capture.values.functions import function_value
from dynacompile.capture.values.object_parts import instance_dict
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.sequence import ListValue, TupleValue, is_namedtuple
from dynacompile.ir.captured import TensorFacts
from dynacompile.ir.guard_facts import Presence, identity, plain_twin
from dynacompile.ir.namespaces import MISSING, class_lookup
from dynacompile.ir.source import Attr, Constant, DictAttr, Source
from dynacompile.ops.collectives import is_pending_class
from dynacompile.ops.wrappers import is_wrapper_class
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

C_METHOD = (types.MethodDescriptorType, types.WrapperDescriptorType)
HOOKS = ("__getattribute__", "__delattr__", "__set_name__")


class SubclassTensor(TensorValue):
    """cls: its class. is_alias: made by as_subclass(). What TensorValue does is what torch does where nobody overrides it."""

    is_alias = False

    def __init__(self, node: torch.fx.Node, fake: torch.Tensor, cls: type, source: Source | None = None, real: Any = None):
        super().__init__(node, fake, source, real)
        self.cls = cls

    def pytype(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{super().describe()} ({self.cls.__qualname__})"

    # attributes

    def get_attr(self, cx: Context, name: str) -> Value:
        fallback = cx.lookup(self.cls, "__getattr__")
        if not isinstance(fallback, types.FunctionType):
            found = self.lookup(cx, name)
            if found is None:
                raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
            return found
        found = cx.unless_missing(lambda: self.lookup(cx, name))
        return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)]) if found is None else found

    def lookup(self, cx: Context, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        if name == "__class__":
            return cx.class_value(self.cls, None)
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, C_FIELD):
            if name == "__dict__":
                raise unsupported("unknown-attribute", f"{self.describe()}.__dict__")
            return self.field(cx, name, raw)
        if raw is not MISSING and is_data_descriptor(raw):
            return self.bound(cx, name, raw)
        if name in self.attributes:
            return self.attributes[name]
        own = instance_dict(self.real)
        if name in own:
            return cx.wrap(own[name], DictAttr(self.source, name))
        self.guard_absent(cx, name, raw)
        assigned = assigned_attribute(cx, self.cls, name)
        if assigned is not None or raw is MISSING:
            return assigned
        if is_torch_s(name, raw) and callable(raw) and not isinstance(raw, type):
            self.guard_method(cx, name, raw)
            return Method(self, name)
        return self.bound(cx, name, raw)

    def bound(self, cx: Context, name: str, raw: Any) -> Value:
        return bind_descriptor(cx, raw, self, cx.class_value(self.cls, None), name, class_source(self.cls, name))

    def guard_absent(self, cx: Context, name: str, raw: Any) -> None:
        if self.source is not None and raw is MISSING:
            cx.guard("HASATTR", self.source, Presence(name, False))
        elif self.source is not None and not is_torch_s(name, raw):
            cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))

    def guard_method(self, cx: Context, name: str, raw: Any) -> None:
        """The class may come to define a method of that name."""
        if isinstance(raw, (types.FunctionType, *C_METHOD)):
            cx.guard("ID", Attr(Constant(self.cls, self.cls.__qualname__), name), identity(raw))

    def field(self, cx: Context, name: str, raw: Any) -> Value:
        """What torch's getter gives."""
        found = cx.overrides.call(raw.__get__, [self], {})
        return self.plain_field(cx, name) if found is None else found

    def plain_field(self, cx: Context, name: str) -> Value:
        if self.real is not None and name in ("grad", "_grad", "_backward_hooks") or name == "grad_fn" and self.real is not None and self.fake.requires_grad:
            raise unsupported("tensor-attribute", f"{self.describe()}.{name}")
        return super().get_attr(cx, name)

    def is_leaf(self, cx: Context) -> bool:
        if self.fake.requires_grad:  # its getter would ask the class, also in a guard
            raise unsupported("tensor-attribute", f"{self.describe()}.is_leaf")
        return True

    def computes(self, cx: Context, name: str) -> bool:
        return True

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if by_own_hook(cx, self, self.cls, "__setattr__", [ConstantValue(name), value]) is None:
            self.set_plain(cx, name, value)

    def set_plain(self, cx: Context, name: str, value: Value) -> None:
        """object.__setattr__."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, property) and raw.fset is not None:
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fset, Constant(raw.fset, f"{name}.fset"), [self, value])
        elif isinstance(raw, C_FIELD):
            if cx.overrides.call(raw.__set__, [self, value], {}) is None:
                self.set_field(cx, name, value)
        elif raw is not MISSING and (is_data_descriptor(raw) or is_torch_s(name, raw)):
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        else:
            cx.effects.touch(self)
            self.attributes[name] = value

    def set_field(self, cx: Context, name: str, value: Value) -> None:
        if name != "requires_grad":  # residual code would ask the class once more
            raise unsupported("tensor-attribute", f"{self.describe()}.{name} = ...")
        super().set_attr(cx, name, value)

    # methods

    def special(self, cx: Context, name: str, args: list[Value]) -> Value | None:
        """type(self).name(self, *args), where a class below torch.Tensor defines it in Python; else None."""
        raw = cx.lookup(self.cls, name)
        if not isinstance(raw, types.FunctionType) or is_torch_s(name, raw):
            self.guard_method(cx, name, raw)
            return None
        return cx.call_real(raw, class_source(self.cls, name), [self, *args])

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """torch.Tensor.name(self, *args, **kwargs)."""
        found = cx.overrides.method(self, name, args, kwargs)
        if found is not None:
            return found
        row = PLAIN.get(name)
        return row(cx, self, args) if row is not None and not kwargs else super().method(cx, name, args, kwargs)

    def asked(self, cx: Context, name: str, args: list[Value]) -> Value | None:
        """What the class gives for one of Python's protocols; None where nobody overrides it."""
        found = self.special(cx, name, args)
        return cx.overrides.method(self, name, args, {}) if found is None else found

    def truth(self, cx: Context) -> bool:
        found = self.asked(cx, "__bool__", [])
        return super().truth(cx) if found is None else bool(found.constant())

    def length(self, cx: Context) -> int:
        found = self.asked(cx, "__len__", [])
        return super().length(cx) if found is None else found.constant()

    def get_item(self, cx: Context, key: Value) -> Value:
        found = self.asked(cx, "__getitem__", [key])
        return super().get_item(cx, key) if found is None else found

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        if self.asked(cx, "__setitem__", [key, value]) is None:
            super().set_item(cx, key, value)

    def contains(self, cx: Context, item: Value) -> Value:
        found = self.asked(cx, "__contains__", [item])
        return super().contains(cx, item) if found is None else ConstantValue(found.truth(cx))

    def iterate(self, cx: Context) -> IteratorValue:
        found = self.special(cx, "__iter__", [])
        if found is None and cx.overrides.concerns([self]):  # torch's own asks for two methods of the tensor
            iterate: Any = torch.Tensor.__iter__
            found = function_value(cx, iterate, Constant(iterate, "Tensor.__iter__")).call(cx, [self], {})
        if found is None:
            return super().iterate(cx)
        if not isinstance(found, IteratorValue):
            raise unsupported("unknown-object", f"iterating {self.describe()}")
        return found

    # residual code

    def rebuild(self, out: Writer) -> None:
        """An alias in eager is one here."""
        if self.is_alias and not (self.fake.is_leaf and self.fake.requires_grad):
            out.callee(alias_of)
            out.graph_output(self)
            out.const(self.cls)
            out.call(2)
        else:
            out.graph_output(self)
            self.rebuild_class(out, self.cls)
        self.rebuild_attributes(out)


def plain_set_item(cx: Context, self: SubclassTensor, args: list[Value]) -> Value:
    TensorValue.set_item(self, cx, *args)
    return ConstantValue(None)


Plain = Callable[["Context", SubclassTensor, list[Value]], Value]
PLAIN: dict[str, Plain] = {  # protocols as methods, where nobody overrides them
    "__getitem__": lambda cx, self, args: TensorValue.get_item(self, cx, *args),
    "__setitem__": plain_set_item,
    "__len__": lambda cx, self, args: cx.of(self.fake.shape[0]) if self.fake.dim() else ConstantValue(TensorValue.length(self, cx)),
    "__iter__": lambda cx, self, args: TensorValue.iterate(self, cx),
    "__contains__": lambda cx, self, args: TensorValue.contains(self, cx, *args),
    "__bool__": lambda cx, self, args: ConstantValue(TensorValue.truth(self, cx)),
}


def is_torch_s(name: str, raw: Any) -> bool:
    """Whether a class attribute is the one that torch.Tensor has."""
    return raw is not MISSING and class_lookup(torch.Tensor, name) is raw


# making them


def alias_of(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """An output of the graph as a tensor of a class. One that has a history is the alias itself, on which other outputs may hang."""
    if tensor.grad_fn is None:
        return torch.Tensor.as_subclass(tensor, cls)
    tensor.__class__ = cls
    return tensor


BIASES = "torch.nn.attention.bias"  # causal biases of attention are written as a user would; importing the module imports torch.compile


def check_class(cls: type, what: str) -> None:
    """Refuses classes whose tensors are not plain ones with a class and attributes."""
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
        raise unsupported("tensor-subclass", f"{what}, of {cls.__qualname__}, defines __torch_dispatch__")
    if any(isinstance(class_lookup(cls, hook), types.FunctionType) for hook in HOOKS) or hasattr(cls, "__del__"):
        raise unsupported("tensor-subclass", f"{what}, of {cls.__qualname__}, whose attributes are looked up by code of its own,")
    if cls.__basicsize__ != torch.Tensor.__basicsize__ or any("__slots__" in base.__dict__ for base in cls.__mro__ if base not in torch.Tensor.__mro__):
        raise unsupported("tensor-subclass", f"{what}, of {cls.__qualname__}, has slots or fields written in C")
    if cls.__module__.partition(".")[0] == "torch" and cls.__module__ != BIASES:
        raise unsupported("tensor-subclass", f"{what}, of {cls.__qualname__}, is of a class of torch's own")
    if type(cls) is not type(torch.Tensor) and cls.__torch_function__ is not of_torch.disabled_torch_function_impl:  # type: ignore[attr-defined]
        raise unsupported("tensor-subclass", f"{what}, of {cls.__qualname__}, has a metaclass")


def guard_override(cx: Context, cls: type) -> None:
    """The class keeps torch's own `__torch_function__`; where it has one of its own, following that guards it."""
    raw, source = cx.lookup(cls, "__torch_function__"), Attr(Constant(cls, cls.__qualname__), "__torch_function__")
    if isinstance(raw, classmethod):
        if is_torch_s("__torch_function__", raw):
            cx.guard("ID", Attr(source, "__func__"), identity(raw.__func__))
    else:
        cx.guard("ID", source, identity(raw.__func__ if isinstance(raw, staticmethod) else raw))


def wrap_subclass(cx: Context, real: torch.Tensor, source: Source) -> Value:
    """A tensor of a subclass that exists before the frame."""
    cls = type(real)
    if is_wrapper_class(cls):
        return wrap_wrapper(cx, real, source)
    if is_pending_class(cls):
        return wrap_pending(cx, real, source)
    check_class(cls, source.text())
    twin = plain_twin(real)
    check_kind(twin, source)
    guard_override(cx, cls)
    plain = cx.recorder.input(real, source)
    value = cx.recorder.values[id(plain.fake)] = SubclassTensor(plain.node, plain.fake, cls, source, real)
    sizes, strides = cx.recorder.static_parts(twin, source)
    cx.guard("TENSOR_MATCH", source, TensorFacts(cls, twin.dtype, twin.device, twin.requires_grad, sizes, strides))
    return value


def as_subclass(cx: Context, value: Value, cls: type) -> Value:
    """value.as_subclass(cls): a new object over the same memory, which autograd knows for an alias."""
    made = of_class(cx, cx.op("call_function", torch.ops.aten.alias.default, [value], {}), cls)
    if isinstance(made, SubclassTensor):
        made.is_alias = True
    return made


def of_class(cx: Context, made: Value, cls: type) -> Value:
    """A tensor that the frame has just made, as one of a class."""
    if not isinstance(made, TensorValue):
        raise unsupported("unknown-object", f"{made.describe()} as a tensor of {cls.__qualname__}")
    if cls is torch.Tensor:
        return made
    check_class(cls, "a tensor made in the frame")
    guard_override(cx, cls)
    value = cx.recorder.values[id(made.fake)] = SubclassTensor(made.node, made.fake, cls)
    cx.recorder.mark_unrepeatable()
    return value


def converted(cx: Context, value: Value, cls: type) -> Value:
    """What torch.Tensor.__torch_function__ makes of a result."""
    if cls is torch.Tensor:
        return value
    if isinstance(value, TensorValue):
        return value if issubclass(value.pytype(), cls) else as_subclass(cx, value, cls)
    if isinstance(value, TupleValue):
        if is_namedtuple(value.cls):
            raise unsupported("unknown-object", f"a named tuple as the result of a function on {cls.__qualname__}")
        return TupleValue([converted(cx, item, cls) for item in value.elements(cx)], value.cls)
    if isinstance(value, ListValue):
        return ListValue([converted(cx, item, cls) for item in value.elements(cx)])
    return value


def method_as_subclass(cx: Context, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs or not isinstance(args[0], ClassValue) or not issubclass(args[0].real, torch.Tensor):
        raise unsupported("would-raise", "as_subclass() takes a subclass of torch.Tensor")
    return as_subclass(cx, tensor, args[0].real)


METHODS["as_subclass"] = method_as_subclass


@handles(of_torch.tensor_convert)
def row_convert(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, cls = bind_arguments("_convert", ["ret", "cls"], args, kwargs, {})
    return converted(cx, value, cls.constant())


@handles(torch.Tensor.__new__)
def row_new(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torch.Tensor.__new__(cls, ...): of a tensor, an alias."""
    cls, *rest = args
    if len(rest) == 1 and isinstance(rest[0], TensorValue) and not kwargs:
        return as_subclass(cx, rest[0], cls.constant())
    return of_class(cx, HANDLERS[torch.Tensor](cx, rest, kwargs), cls.constant())


@handles(of_torch.make_subclass)
def row_make_subclass(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, tensor, required = bind_arguments("_make_subclass", ["cls", "data", "require_grad"], args, kwargs, {"require_grad": ConstantValue(False)})
    if not isinstance(tensor, TensorValue):
        raise unsupported("autograd-call", f"making a leaf, a {cls.constant().__qualname__}, of {tensor.describe()}")
    made = of_class(cx, cx.op("call_method", "detach", [tensor], {}), cls.constant())
    return METHODS["requires_grad_"](cx, made, [required], {})  # type: ignore[arg-type]
