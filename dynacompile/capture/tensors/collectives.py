"""torch.distributed: functional collectives become operations of the graph, facts of the process group are constants under a guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def group_fact(real: Callable[..., Any]) -> None:
    """`dist.get_rank(group)` and the like."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            groups = [a.identity() for a in (*args, *kwargs.values())]
        except NotConstant as reason:
            raise unsupported("unknown-operation", f"dist.{real.__name__} of a {reason}") from reason
        names = list(kwargs)
        count = len(args)

        def read() -> Any:
            return real(*groups[:count], **dict(zip(names, groups[count:])))

        return cx.flag(f"dist.{real.__name__}({', '.join(map(str, groups))})", read)


def plain(cx: Context, value: Value) -> Any:
    """A group as the functional collectives take it: a name, a group, a mesh, ranks."""
    if isinstance(value, SequenceValue):
        return value.cls(plain(cx, item) for item in value.elements(cx))
    return value.identity()


def group_name(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a group that functional collectives are given; groups live as long as the process group that the graph was made for."""
    cx.flag("dist.is_initialized()", dist.is_initialized)
    try:
        real_args, real_kwargs = [plain(cx, a) for a in args], {k: plain(cx, v) for k, v in kwargs.items()}
    except NotConstant as reason:
        raise unsupported("unknown-operation", f"a collective over a group made inside of the frame ({reason})") from reason
    return ConstantValue(str(functional._resolve_group_name(*real_args, **real_kwargs)))


def group_size(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(functional.c10d._get_group_size_by_name(*(a.constant() for a in args)))


def wait(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Results are waited for where the graph makes them."""
    return cx.op("call_function", of_torch.wait_tensor, args, kwargs)


if dist.is_available():
    functional = of_torch.functional_collectives

    for _real in (dist.is_available, dist.is_initialized, dist.is_torchelastic_launched, dist.get_rank, dist.get_world_size, dist.get_backend):
        group_fact(_real)
    handles(functional._resolve_group_name, *(f for f in (getattr(functional, "_resolve_group", None),) if f is not None))(group_name)
    handles(functional.c10d._get_group_size_by_name)(group_size)
    handles(functional._maybe_wrap_tensor, functional.wait_tensor, one_operation=True)(wait)
