"""Tensors that wrap others, such as DTensors: the graph takes and gives the tensors inside, operations between are the class's own."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.symbols import NeedsNumbers
from dynacompile.capture.tensors.tensor import FACTS, TensorValue
from dynacompile.capture.tensors.tensor_inputs import has_history
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.descriptors import bind_descriptor, class_source
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.captured import TensorFacts
from dynacompile.ir.fakes import answers_devices
from dynacompile.ir.guard_facts import Match
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.source import Attr, DictAttr, Source
from dynacompile.markers import disable
from dynacompile.ops.collectives import is_pending_class
from dynacompile.ops.wrappers import DTENSORS, Leave, Wrapping, inner_of, is_dtensor_class, is_wrapper, leaves_of, tensors_in, wrapping_of
from dynacompile.private.of_torch import FakeTensor, TorchDispatchMode

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

Field = Callable[["Context", "WrapperTensor"], Value]
Row = Callable[["Context", "WrapperTensor", list[Value], dict[str, Value]], Value]
FIELDS: dict[str, Field] = {}  # of DTensor
METHODS: dict[str, Row] = {}


class WrapperTensor(TensorValue):
    """fake: a wrapper of fakes. parts: what is inside, of one that exists before the frame, by attribute."""

    parts: dict[str, TensorValue] = {}

    def pytype(self) -> type:
        return type(self.fake)

    def describe(self) -> str:
        return f"{super().describe()} ({self.pytype().__qualname__})"

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.parts:
            return self.part(name)
        cls = self.pytype()
        if is_dtensor_class(cls) and name in FIELDS:
            return FIELDS[name](cx, self)
        raw = cx.lookup(cls, name)
        if is_dtensor_class(cls) and name in METHODS:
            return Method(self, name)
        if raw is MISSING or name in FACTS or raw is cx.lookup(torch.Tensor, name):
            return super().get_attr(cx, name)
        if not is_trusted(cls.__module__) and isinstance(raw, (types.FunctionType, property, classmethod, staticmethod)):
            return bind_descriptor(cx, raw, self, cx.class_value(cls, None), name, class_source(cls, name))
        raise unsupported("tensor-attribute", f"{self.describe()}.{name}")

    def appearance(self) -> tuple:
        wrapping = wrapping_of(self.fake)
        return (*super().appearance(), wrapping if is_dtensor_class(wrapping.cls) else object())  # what classes say of themselves need not be comparable

    def part(self, name: str) -> Value:
        """What is inside, as the program has it."""
        value = self.parts[name]
        if value.real.requires_grad or is_pending_class(type(value.real)):
            raise unsupported("tensor-attribute", f"{self.describe()}.{name}, which requires gradients, or is the result of a collective that is under way,")
        return value

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if is_dtensor_class(self.pytype()) and name in METHODS:
            return METHODS[name](cx, self, args, kwargs)
        return super().method(cx, name, args, kwargs)

    def can_be_grad(self, value: Value) -> bool:
        return super().can_be_grad(value) and (not isinstance(value, TensorValue) or isinstance(value, WrapperTensor))


def wrap_wrapper(cx: Context, real: Any, source: Source) -> Value:
    """A wrapper that exists before the frame."""
    cls = type(real)
    if not has_history(real):
        raise unsupported("unknown-object", f"{source.text()}, a view of which autograd knows nothing any more, as its memory was written since")
    wrapping = wrapping_of(real)
    if is_dtensor_class(cls):
        check_placed(wrapping, source.text())
    check_whole(wrapping, inner_of(real, wrapping), source.text())
    if any(cx.known_value(part) is not None for part in inner_of(real, wrapping)):
        raise unsupported("tensor-subclass", f"{source.text()}, of {cls.__qualname__}, holds a tensor that is read by itself,")
    value = cx.recorder.wrapper_input(real, wrapping, source)
    assert isinstance(value, WrapperTensor)
    fake = value.fake
    cx.guard("TENSOR_MATCH", source, TensorFacts(cls, fake.dtype, fake.device, fake.requires_grad, tuple(fake.shape), tuple(fake.stride()), wraps=True))
    for name, part in value.parts.items():
        inside, pending = part.fake, is_pending_class(type(part.real))
        facts = TensorFacts(type(part.real), inside.dtype, inside.device, part.real.requires_grad, tuple(inside.shape), tuple(inside.stride()), pending)
        cx.guard("TENSOR_MATCH", Attr(source, name), facts)
        cx.know(part.real, part, Attr(source, name))
    guard_context(cx, wrapping, source)
    return value


class PendingTensor(TensorValue):
    """The result of a collective that may be under way. The graph is given what it is in the end."""

    def pytype(self) -> type:
        return type(self.real)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in FACTS or cx.lookup(torch.Tensor, name) is cx.lookup(self.pytype(), name):
            return super().get_attr(cx, name)
        raise unsupported("tensor-attribute", f"{self.describe()}.{name}")


def wrap_pending(cx: Context, real: Any, source: Source) -> Value:
    if not has_history(real) or real.is_inference() or type(real.elem) is not torch.Tensor or real.elem.layout is not torch.strided:
        raise unsupported("tensor-subclass", f"{source.text()}, of {type(real).__qualname__}, is no result of a collective on plain tensors")
    value = cx.recorder.pending_input(real, source)
    fake = value.fake
    facts = TensorFacts(type(real), fake.dtype, fake.device, fake.requires_grad, tuple(fake.shape), tuple(fake.stride()), wraps=True)
    cx.guard("TENSOR_MATCH", source, facts)
    return value


def check_whole(wrapping: Wrapping, parts: tuple[torch.Tensor, ...], what: str) -> None:
    """Refuses wrappers that are no wrappers of dense plain tensors."""
    kind = wrapping.cls.__qualname__
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    if any(type(part) not in plain and not is_pending_class(type(part)) for part in parts):
        inside = next(type(part).__qualname__ for part in parts if type(part) is not torch.Tensor)
        raise unsupported("tensor-subclass", f"{what}, of {kind}, wraps a tensor of {inside},")
    if any(part.layout is not torch.strided or part.is_conj() or part.is_neg() for part in parts) or not parts:
        raise unsupported("tensor-subclass", f"{what}, of {kind}, wraps no dense tensor,")


def check_placed(wrapping: Wrapping, what: str) -> None:
    """Refuses DTensors that this process has no part in, and those whose placement holds a tensor."""
    placed = wrapping.context
    if placed["mesh"].get_coordinate() is None:
        raise unsupported("tensor-subclass", f"{what}, a DTensor on a mesh that this process is not in,")
    if any(getattr(p, "mask_buffer", None) is not None for p in placed["placements"]):
        raise unsupported("tensor-subclass", f"{what}, a DTensor that is yet to be masked,")


@answers_devices
class RefuseRandom(TorchDispatchMode):
    """Refuses operations on DTensors for which torch changes the state of the device's generator, by the place of each process in the mesh."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        dispatcher = sys.modules[DTENSORS].DTensor._op_dispatcher  # type: ignore[attr-defined]
        if func in dispatcher._random_ops and any(is_wrapper(t) and t.device.type != "cpu" for t in tensors_in([*args])):  # type: ignore[attr-defined]
            raise unsupported("random-state", f"{func} of a DTensor on a device")
        return func(*args, **(kwargs or {}))


def refusing(operands: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
    """Around an operation on these."""
    return RefuseRandom() if any(is_dtensor_class(type(t)) for t in operands) else nullcontext()


def guard_modes(cx: Context) -> None:
    """What decides how operations on DTensors are carried out. Loss parallelism is a change of the handlers."""
    dispatcher = sys.modules[DTENSORS].DTensor._op_dispatcher  # type: ignore[attr-defined]
    handlers, are_same = dict(dispatcher._custom_op_handlers), "DTensor._op_dispatcher._custom_op_handlers are as they were"
    cx.flag(are_same, disable(lambda: bool(dispatcher._custom_op_handlers == handlers)))
    cx.flag("DTensor._op_dispatcher._allow_implicit_replication", lambda: bool(dispatcher._allow_implicit_replication))


def guard_context(cx: Context, wrapping: Wrapping, source: Source) -> None:
    """Guards what a wrapper is beside the tensors inside."""
    if not is_dtensor_class(wrapping.cls):
        is_alike = disable(lambda value: is_wrapper(value) and bool(wrapping_of(value).context == wrapping.context))
        cx.guard("MATCH", source, Match(str(wrapping.context), is_alike, False, context_text))
        return
    guard_modes(cx)
    spec, placed = Attr(source, "_spec"), wrapping.context
    cx.guard("TYPE", spec, placed.kind)
    for name, value in placed.values:
        if name == "mesh":
            cx.guard("MATCH", DictAttr(spec, name), same_mesh(value))
        elif value is None or isinstance(value, bool):
            cx.guard("EQUALS", DictAttr(spec, name), value)
        else:
            cx.guard("MATCH", DictAttr(spec, name), same_value(value))


def context_text(value: Any) -> str:
    return str(wrapping_of(value).context) if is_wrapper(value) else type(value).__qualname__


def same_value(wanted: Any) -> Match:
    """Of immutable values."""
    return Match(str(wanted), disable(lambda value: type(value) is type(wanted) and bool(value == wanted)), True)


def same_mesh(wanted: Any) -> Match:
    """Equal meshes may have groups of their own: a collective over one is no collective over the other."""
    groups = group_names(wanted)
    return Match(str(wanted), disable(lambda value: type(value) is type(wanted) and bool(value == wanted) and group_names(value) == groups), True)


def group_names(mesh: Any) -> list[str]:
    return [mesh.get_group(dim).group_name for dim in range(mesh.ndim)]


def tensor_value(node: torch.fx.Node, fake: torch.Tensor) -> TensorValue:
    """The value of a tensor that the frame makes."""
    if not is_wrapper(fake):
        return TensorValue(node, fake)
    if any(isinstance(n, torch.SymInt) for t in (fake, *leaves_of(fake)) for n in t.shape):
        raise NeedsNumbers(f"a {type(fake).__qualname__}, which wraps other tensors")
    return WrapperTensor(node, fake)


def check_written(written: Sequence[torch.Tensor], inputs: Collection[GraphTensor]) -> None:
    """Refuses writes to wrappers of before the frame that autograd follows: the graph is given the tensors inside, whose writes it does not."""
    if not inputs or not torch.is_grad_enabled():
        return
    memories = {memory(part): value for value in inputs for part in inner_of(value.fake)}
    for tensor in written:
        if is_wrapper(tensor) and tensor.requires_grad:
            found = next((memories[memory(part)] for part in inner_of(tensor) if memory(part) in memories), None)
            if found is not None:
                raise unsupported("mutation", f"{found.describe()} is written and requires gradients")


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def leave_of(value: WrapperTensor, cx: Context, outputs: Sequence[TensorValue]) -> Leave:
    """What takes apart a wrapper that the graph gives. Refuses one that shares memory with another tensor that exists after the graph: autograd would not
    know of that."""
    wrapping = wrapping_of(value.fake)
    check_whole(wrapping, inner_of(value.fake, wrapping), "a result of the graph")
    if is_dtensor_class(wrapping.cls):
        check_placed(wrapping, "a result of the graph")
    own = {memory(part) for part in inner_of(value.fake, wrapping)}
    others = [other.fake for other in (*outputs, *cx.recorder.tensors.values()) if other is not value and other.has_fake]  # one that has none shares none
    others += [part.fake for input in cx.recorder.wrappers.values() if isinstance(input, WrapperTensor) for part in input.parts.values()]
    if any(memory(part) in own for other in others for part in leaves_of(other)):
        raise unsupported("aliased-wrapper", f"{value.describe()} shares memory with another tensor")
    return Leave(wrapping)
