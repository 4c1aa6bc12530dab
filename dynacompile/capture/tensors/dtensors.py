"""DTensor: what the user's code does with meshes, placements and local tensors. torch's module is loaded by programs that use it, and by nothing here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.wrappers import FIELDS, METHODS, WrapperTensor, guard_modes, same_mesh, same_value
from dynacompile.capture.values.base import WRAPPERS, Method, Value, bind_arguments
from dynacompile.capture.values.constant import FIXED, ConstantValue
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ops.placed import FromLocal, FullTensor, Redistribute, ToLocal
from dynacompile.ops.wrappers import DTENSORS

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.ir.source import Source

# Of meshes and groups, what neither talks to others nor makes groups.
ASKED = frozenset(
    "size ndim shape mesh_dim_names device_type get_rank get_local_rank get_coordinate get_group get_all_groups".split()
    + "__getitem__ __len__ name rank group_name".split()
)


class FixedValue(ConstantValue):
    """An immutable object of torch.distributed: a placement."""

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant(type(self.value).__name__)


class AskedValue(FixedValue):
    """A mesh or a group, of which some can be asked."""

    def get_attr(self, cx: Context, name: str) -> Value:
        if name not in ASKED:
            raise unsupported("unknown-attribute", f"{type(self.value).__name__}.{name}")
        return super().get_attr(cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in ASKED:
            raise unsupported("unknown-operation", f"{type(self.value).__name__}.{name}()")
        return super().method(cx, name, args, kwargs)

    def get_item(self, cx: Context, key: Value) -> Value:
        return self.method(cx, "__getitem__", [key], {})


def wrap_placement(cx: Context, real: Any, source: Source) -> Value:
    if getattr(real, "mask_buffer", None) is not None:
        raise unsupported("unknown-object", f"{source.text()}, a placement that holds a tensor,")
    cx.guard("MATCH", source, same_value(real))
    return FixedValue(real, source)


def wrap_mesh(cx: Context, real: Any, source: Source) -> Value:
    if real.get_coordinate() is None:
        raise unsupported("unknown-object", f"{source.text()}, a mesh that this process is not in,")
    cx.guard("MATCH", source, same_mesh(real))
    return AskedValue(real, source)


def wrap_group(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return AskedValue(real, source)


def prepare() -> None:
    """Fills the tables with what torch.distributed.tensor has, where a program has loaded it."""
    module: Any = sys.modules.get(DTENSORS)
    if not (hasattr(module, "distribute_tensor") and hasattr(module, "DTensor")) or module.DTensor in PREPARED:
        return
    PREPARED.add(module.DTensor)
    placements = sys.modules[f"{DTENSORS}.placement_types"]
    for cls in (c for c in vars(placements).values() if isinstance(c, type) and issubclass(c, placements.Placement) and c is not placements.Placement):
        FIXED[cls], WRAPPERS[cls] = FixedValue, wrap_placement
        constructor(cls)
    FIXED[module.DeviceMesh], WRAPPERS[module.DeviceMesh] = AskedValue, wrap_mesh
    handles(module.DTensor.from_local, one_operation=True)(row_from_local)
    handles(module.distribute_tensor)(row_distribute)
    for name in METHODS:
        handles(getattr(module.DTensor, name), one_operation=True)(by_name(name))


PREPARED: set[Any] = set()


def constructor(cls: type) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.pure(cls, args, kwargs)


def by_name(name: str) -> Callable[[Context, list[Value], dict[str, Value]], Value]:
    """A method that is called by way of its class."""

    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or not isinstance(args[0], WrapperTensor):
            raise unsupported("would-raise", f"DTensor.{name}() of no DTensor")
        return METHODS[name](cx, args[0], args[1:], kwargs)

    return row


for _group in (dist.ProcessGroup,) if dist.is_available() else ():
    FIXED[_group], WRAPPERS[_group] = AskedValue, wrap_group


def fixed(cx: Context, name: str, value: Value) -> Any:
    """An argument that is no tensor, with placements as a tuple."""
    value = cx.force(value)
    try:
        return tuple(cx.force(item).constant() for item in value.items) if isinstance(value, SequenceValue) else value.constant()
    except NotConstant as reason:
        raise unsupported("unknown-operation", f"{name} with a {reason} argument") from reason


NONE = ConstantValue(None)
NO = ConstantValue(False)


def row_from_local(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["local_tensor", "device_mesh", "placements", "run_check", "shape", "stride", "grad_placements"]
    missing: dict[str, Value | None] = {**dict.fromkeys(names[1:], NONE), "run_check": NO}
    if len(args) > 3:
        raise raises(TypeError, f"DTensor.from_local() takes from 1 to 3 positional arguments but {len(args)} were given")
    local, *rest = bind_arguments("from_local", names, args, kwargs, missing)
    options = {name: fixed(cx, "DTensor.from_local()", value) for name, value in zip(names[1:], rest, strict=True)}
    if not isinstance(local, TensorValue) or isinstance(local, WrapperTensor) or options["device_mesh"] is None:
        raise unsupported("unknown-operation", "DTensor.from_local() of no plain tensor, or without a mesh")
    if options.pop("run_check"):
        raise unsupported("collective", "DTensor.from_local(run_check=True)")
    guard_modes(cx)
    given = tuple((name, value) for name, value in options.items() if value is not None)  # `grad_placements` is none of torch 2.11's
    return cx.op("call_function", FromLocal(given), [local], {})


def method_redistribute(cx: Context, tensor: WrapperTensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["device_mesh", "placements", "async_op", "forward_dtype", "backward_dtype"]
    bound = bind_arguments("redistribute", names, args, kwargs, {**dict.fromkeys(names, NONE), "async_op": NO})
    options = {name: fixed(cx, "DTensor.redistribute()", value) for name, value in zip(names, bound, strict=True)}
    given = tuple((name, value) for name, value in options.items() if value is not None)
    return cx.op("call_function", Redistribute(given), [tensor], {})


def method_to_local(cx: Context, tensor: WrapperTensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (placements,) = bind_arguments("to_local", ["grad_placements"], args, kwargs, {"grad_placements": NONE})
    return cx.op("call_function", ToLocal((("grad_placements", fixed(cx, "DTensor.to_local()", placements)),)), [tensor], {})


def method_full_tensor(cx: Context, tensor: WrapperTensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (placements,) = bind_arguments("full_tensor", ["grad_placements"], args, kwargs, {"grad_placements": NONE})
    return cx.op("call_function", FullTensor((("grad_placements", fixed(cx, "DTensor.full_tensor()", placements)),)), [tensor], {})


METHODS.update(redistribute=method_redistribute, to_local=method_to_local, full_tensor=method_full_tensor)
FIELDS["placements"] = lambda cx, tensor: cx.of(tensor.fake._spec.placements)  # type: ignore[attr-defined]
FIELDS["device_mesh"] = lambda cx, tensor: cx.of(tensor.fake._spec.mesh)  # type: ignore[attr-defined]


def row_distribute(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Without a rank that its values come from, a tensor is cut by each rank for itself."""
    raise unsupported("collective", "distribute_tensor()")


__all__ = ["AskedValue", "FixedValue", "HANDLERS", "Method", "prepare", "torch"]
