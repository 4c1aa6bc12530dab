"""Joins of long lists of tensors (stack, cat): run once on tensors without elements, with no fake for each member, and recorded as one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.list_operations import MANY, GeneralError, is_plain, look_of
from dynacompile.capture.recorded import Operation
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue, SequenceValue
from dynacompile.ir.captured import Site
from dynacompile.ir.looks import Later, Look
from dynacompile.ir.nodes import new_node
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.graph_state import GraphState

JOINS = frozenset({torch.stack, torch.cat, torch.concat, torch.concatenate, torch.hstack, torch.vstack})


def record_join(recorder: GraphState, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value], site: Site) -> Value | None:
    """The result of a join, once it is recorded; None where the general way has to be gone, which says what is wrong with its arguments."""
    if not args or not isinstance(args[0], SequenceValue) or len(args[0].items) < MANY or args[0].pytype() not in (list, tuple) or not is_plain(recorder):
        return None
    members = [args[0].settled(i) for i in range(len(args[0].items))]
    others = [*args[1:], *kwargs.values()]
    if not all(type(m) is TensorValue and m.number() is None for m in members) or not all(type(v) is ConstantValue and type(v.value) is int for v in others):
        return None
    numbers, named = [v.value for v in args[1:]], {k: v.value for k, v in kwargs.items()}  # type: ignore[attr-defined]
    try:
        look = joined(recorder, target, members, numbers, named)  # type: ignore[arg-type]
    except GeneralError:
        return None
    kind = args[0].pytype()
    node = new_node(recorder.graph, "call_function", target, (kind(m.node for m in members), *numbers), named, target.__name__)  # type: ignore[attr-defined]
    later = Later(look)
    node.meta["later"] = later
    result = TensorValue(node, later, recorder=recorder)
    recorder.note_node(node, site)
    recorder.ops += 1
    given = (ListValue(members), *args[1:])
    recorder.log.append(lambda: Operation("call_function", target, given, dict(kwargs), result, site, (node,), frozenset()))
    return result


def joined(recorder: GraphState, target: Any, members: Sequence[TensorValue], numbers: Sequence[int], named: Mapping[str, int]) -> Look:
    """What the result looks like."""
    looks: list[Look] = [look_of(recorder.looks, m) for m in members]
    if any(type(look) is not Look for look in looks) or len({look.device for look in looks}) > 1:
        raise GeneralError
    with of_torch.DisableTorchDispatch():
        empty = {look: torch.empty_strided(look.size, look.stride, dtype=look.dtype, device="meta") for look in dict.fromkeys(looks)}
        try:
            made = target([empty[look] for look in looks], *numbers, **named)
        except (RuntimeError, TypeError, IndexError) as reason:
            raise GeneralError from reason
    if not made.is_contiguous():
        raise GeneralError
    return recorder.looks.of(made.size(), made.stride(), made.dtype, looks[0].device)
