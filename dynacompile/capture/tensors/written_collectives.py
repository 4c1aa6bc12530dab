"""Collectives that write into tensors, as `dist.all_reduce(x)` does: functional ones, whose results are written there once they have ended.

torch's own functional collectives call the same operations of the process group, so that a rank which runs as Python meets the same calls. Where that does not
hold, as of `all_gather` into a list, the call is left to Python. Autograd knows nothing of these writes in eager, nor here: they are those of `.data`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.dtensors import FixedValue, wrap_placement
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import WRAPPERS, Value, bind_arguments
from dynacompile.capture.values.constant import FIXED, ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.errors import Unsupported
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NONE, NO = ConstantValue(None), ConstantValue(False)


class LeftPending(Unsupported):
    """The graph ends while a collective is under way that the frame has not waited for: then Python is to begin it."""


class WorkValue(Value):
    """What `async_op=True` gives. finish: waits for the collective and writes its result."""

    def __init__(self, name: str, finish: Callable[[], None]):
        self.name, self.finish = name, finish
        self.is_done = False

    def describe(self) -> str:
        return f"the work of dist.{self.name}()"

    def pytype(self) -> type:
        return dist.Work

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name != "wait":
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        return WaitMethod(self)

    def wait(self, cx: Context) -> None:
        if not self.is_done:
            self.is_done = True
            cx.state(Works).open.remove(self)
            self.finish()


class Works:
    """open: collectives that the frame has begun and not waited for."""

    def __init__(self) -> None:
        self.open: list[WorkValue] = []


class WaitMethod(Value):
    def __init__(self, work: WorkValue):
        self.work = work

    def describe(self) -> str:
        return f"{self.work.describe()}.wait"

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise unsupported("collective", "Work.wait() with a time-out")
        self.work.wait(cx)
        return ConstantValue(True)


def refuse_pending(cx: Context) -> None:
    """Where a graph ends."""
    if cx.state(Works).open:
        reason = unsupported("collective", f"dist.{cx.state(Works).open[0].name}(async_op=True), which the function does not wait for,")
        raise LeftPending(reason.code, reason.reason, reason.hint)


def group_of(cx: Context, value: Value) -> Any:
    """A process group that this process is in, guarded; None is the default one."""
    value = cx.force(value)
    try:
        group = value.identity()
    except NotConstant as reason:
        raise unsupported("collective", f"a collective over a {reason}") from reason
    if group is None:
        group = world(cx)
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise unsupported("collective", "a collective over no group, or one that this process is not in,")
    cx.flag("torch.distributed is coalescing", lambda: bool(dist.distributed_c10d._world.pg_coalesce_state))
    if dist.distributed_c10d._world.pg_coalesce_state:
        raise unsupported("collective", "a collective that is to be coalesced with others")
    return group


def world(cx: Context) -> Any:
    """The default group, while it is that."""
    real: Any = dist.group.WORLD
    cx.flag("dist.group.WORLD", lambda: dist.group.WORLD is real)
    return real


def checked(cx: Context, name: str, value: Value) -> TensorValue:
    """A tensor that a collective may read or write: a plain one, as backends ask for, that gradients do not come to."""
    value = cx.force(value)
    if type(value) is not TensorValue or not value.fake.is_contiguous() or value.fake.is_complex() or value.fake.is_inference():
        raise unsupported("collective", f"dist.{name}() of no plain contiguous tensor")
    if value.fake.requires_grad:
        raise unsupported("collective", f"dist.{name}() of a tensor that requires gradients, which it hides from autograd,")
    return value


def write(cx: Context, target: TensorValue, made: Value) -> None:
    """Writes the result of a collective, unseen by autograd."""
    waited = cx.op("call_function", of_torch.wait_tensor, [made], {})
    if tuple(waited.fake.shape) != tuple(target.fake.shape):  # type: ignore[attr-defined]
        waited = cx.op("call_method", "view", [waited, cx.of(target.fake.shape)], {})
    cx.op("call_method", "copy_", [cx.recorder.data_of(target), waited], {})


def finished(cx: Context, name: str, is_async: bool, finish: Callable[[], None]) -> Value:
    if not is_async:
        finish()
        return NONE
    work = WorkValue(name, finish)
    cx.state(Works).open.append(work)
    return work


def is_async(cx: Context, name: str, value: Value) -> bool:
    wanted = bool(cx.force(value).constant())
    if wanted and not cx.manner.works:
        raise unsupported("collective", f"dist.{name}(async_op=True), which the function does not wait for,")
    return wanted


def reduction(cx: Context, name: str, value: Value) -> ConstantValue:
    """The name of a reduction."""
    real = cx.force(value).constant()
    found = names_of_reductions().get(real) if type(real) in FIXED else None
    if found is None:
        raise unsupported("collective", f"dist.{name}() by {value.describe()}")
    return ConstantValue(found)


def names_of_reductions() -> dict[Any, str]:
    return {getattr(dist.ReduceOp, name): name.lower() for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")}


def row_all_reduce(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    default = FixedValue(dist.ReduceOp.SUM)
    tensor, op, group, later = bind_arguments("all_reduce", ["tensor", "op", "group", "async_op"], args, kwargs, {"op": default, "group": NONE, "async_op": NO})
    target, begun = checked(cx, "all_reduce", tensor), is_async(cx, "all_reduce", later)
    name = ConstantValue(group_of(cx, group).group_name)
    made = cx.op("call_function", of_torch.functional_all_reduce, [target, reduction(cx, "all_reduce", op), name], {})
    return finished(cx, "all_reduce", begun, lambda: write(cx, target, made))


def row_broadcast(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["tensor", "src", "group", "async_op", "group_src"]
    tensor, src, group, later, group_src = bind_arguments("broadcast", names, args, kwargs, {"src": NONE, "group": NONE, "async_op": NO, "group_src": NONE})
    target, begun, over = checked(cx, "broadcast", tensor), is_async(cx, "broadcast", later), group_of(cx, group)
    root, own = cx.force(src).constant(), cx.force(group_src).constant()
    if (root is None) == (own is None):
        raise unsupported("would-raise", "dist.broadcast() takes one of src and group_src")
    place = cx.guarded_call(dist.get_group_rank, [over, root], {}) if own is None else own
    made = cx.op("call_function", of_torch.functional_broadcast, [target, ConstantValue(place), ConstantValue(over.group_name)], {})
    return finished(cx, "broadcast", begun, lambda: write(cx, target, made))


def gathers(name: str, op: Any, reduces: bool, grows: bool) -> Callable[[Context, list[Value], dict[str, Value]], Value]:
    """A collective that reads one tensor and writes another, which is as many times larger as the group has ranks, or smaller."""

    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        names = ["output", "input", *(["op"] if reduces else []), "group", "async_op"]
        renamed = {{"output_tensor": "output", "input_tensor": "input"}.get(k, k): v for k, v in kwargs.items()}
        defaults = {"op": FixedValue(dist.ReduceOp.SUM), "group": NONE, "async_op": NO}
        output, given, *op_value, group, later = bind_arguments(name, names, args, renamed, {k: v for k, v in defaults.items() if k in names})
        target, source = checked(cx, name, output), checked(cx, name, given)
        begun, over = is_async(cx, name, later), group_of(cx, group)
        size = dist.get_world_size(over)
        small, large = (source, target) if grows else (target, source)
        if small.fake.dtype != large.fake.dtype or small.fake.numel() * size != large.fake.numel():
            raise unsupported("would-raise", f"dist.{name}() of tensors whose sizes do not fit")
        if not grows and (not source.fake.dim() or source.fake.shape[0] % size):
            source = cx.op("call_method", "view", [source, ConstantValue(-1)], {})  # type: ignore[assignment]
        if grows and not source.fake.dim():
            source = cx.op("call_method", "view", [source, ConstantValue(1)], {})  # type: ignore[assignment]
        reduced = [reduction(cx, name, op_value[0])] if reduces else []
        made = cx.op("call_function", op, [source, *reduced, ConstantValue(size), ConstantValue(over.group_name)], {})
        return finished(cx, name, begun, lambda: write(cx, target, made))

    return row


def row_world(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`dist.group.WORLD`."""
    return cx.of(world(cx))


if dist.is_available():
    FIXED[type(dist.ReduceOp.SUM)] = FixedValue
    WRAPPERS[type(dist.ReduceOp.SUM)] = wrap_placement
    handles(dist.all_reduce)(row_all_reduce)
    handles(dist.broadcast)(row_broadcast)
    for _name, _op, _reduces, _grows in (
        ("all_gather_into_tensor", of_torch.functional_all_gather, False, True),
        ("all_gather_single", of_torch.functional_all_gather, False, True),
        ("reduce_scatter_tensor", of_torch.functional_reduce_scatter, True, False),
        ("reduce_scatter_single", of_torch.functional_reduce_scatter, True, False),
    ):
        if hasattr(dist, _name):
            handles(getattr(dist, _name))(gathers(_name, _op, _reduces, _grows))
    handles(type(dist.group).__dict__["WORLD"].fget)(row_world)
