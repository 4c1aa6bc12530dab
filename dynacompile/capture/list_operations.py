"""Operations over long lists of tensors (foreach, fused steps of optimizers): run on fakes of one member of each kind, and recorded as one node.

What an operation does to one member it does to all that look the same, in memory of their own. So the others need no fakes, and the results become nodes of
their own only where something takes them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.known_numbers import known_number
from dynacompile.capture.operands import tensors_in
from dynacompile.capture.recorded import Operation, storage_of
from dynacompile.capture.refused_numbers import check_numbers
from dynacompile.capture.refused_types import check_members, check_types
from dynacompile.capture.results import UnknownError, fresh_look, member_token, token
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue, UnreadBool
from dynacompile.capture.values.graph_tensor import Member, Members
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.captured import Site
from dynacompile.ir.looks import Later, LaterList, Looks
from dynacompile.ir.nodes import new_node

if TYPE_CHECKING:
    from dynacompile.capture.graph_state import GraphState

LIST_OPS = frozenset(
    getattr(torch, name)
    for name in dir(torch)
    if name.startswith("_foreach_") and name != "_foreach_copy_" or name.startswith("_fused_") and name.endswith("_")
)
MANY = 8  # members, from which on those that look the same are taken for each other
NUMBERS = (ConstantValue, UnreadBool, SymbolicFloat, SymbolicInt)


class GeneralError(Exception):
    """The operation is one for the general way of recording."""


@dataclass
class Call:
    """One operation over lists. columns: the lists among its arguments, by position or name; singles: its other arguments."""

    target: Any
    args: Sequence[Value]
    kwargs: Mapping[str, Value]
    columns: dict[int | str, list[Value]] = field(default_factory=dict)
    count: int = 0

    def read(self) -> None:
        given: list[tuple[int | str, Value]] = [*enumerate(self.args), *self.kwargs.items()]
        for place, value in given:
            if isinstance(value, SequenceValue) and value.pytype() in (list, tuple):
                if value.items:
                    self.columns[place] = [value.settled(i) for i in range(len(value.items))]
            elif type(value) is TensorValue:
                if value.number() is not None or value.has_fake and is_odd(value.fake):
                    raise GeneralError
            elif type(value) not in NUMBERS or isinstance(value, ConstantValue) and isinstance(value.value, (list, tuple)):
                raise GeneralError
        self.count = len(self.columns.get(0, ()))
        if self.count < MANY or any(len(column) != self.count for column in self.columns.values()):
            raise GeneralError

    def kinds(self, looks: Looks) -> list[list[int]]:
        """The members by how they look."""
        tokens = [[look_of(looks, value) for value in column] for column in self.columns.values()]
        found: dict[tuple, list[int]] = {}
        for k, key in enumerate(zip(*tokens)):
            found.setdefault(key, []).append(k)
        return list(found.values())

    def check_memory(self) -> None:
        """What is written is not also read, or written twice. Fused steps write several of their lists."""
        if not self.target.__name__.endswith("_"):
            return
        written = list(self.columns.values()) if self.target.__name__.startswith("_fused_") else [self.columns[0]]
        others = [column for column in self.columns.values() if not any(column is w for w in written)]
        others.append([value for value in (*self.args, *self.kwargs.values()) if type(value) is TensorValue])
        memory = [memory_of(value) for column in written for value in column if type(value) is TensorValue]
        apart = set(memory)
        if len(apart) < len(memory) or any(memory_of(value) in apart for column in others for value in column if type(value) is TensorValue):
            raise GeneralError


def is_odd(fake: torch.Tensor) -> bool:
    """Whether there is more to a fake than its metadata."""
    try:
        token(fake)
    except UnknownError:
        return True
    return False


def look_of(looks: Looks, value: Value) -> Any:
    """Equal for members that look the same."""
    if type(value) is TensorValue:
        given: Any = value.given
        if type(given) is Later:
            return given.look
        try:
            found = member_token(given)
        except UnknownError as reason:
            raise GeneralError from reason
        if given._is_view():
            return found
        return looks.of(given.size(), given.stride(), given.dtype, given.device, given.requires_grad)
    if type(value) is ConstantValue and type(value.value) in (int, float, bool):
        return type(value.value), repr(value.value)
    raise GeneralError


def memory_of(value: TensorValue) -> int:
    return storage_of(value.fake) if value.has_fake else id(value)


def is_plain(recorder: GraphState) -> bool:
    """Whether no machinery watches each operation by itself."""
    odd = recorder.bases or recorder.asked or recorder.inference_memory or recorder.folded or recorder.held or recorder.watch is not None
    static = recorder.symbols is None or recorder.symbols.has_static_sizes()
    return static and not odd and recorder.graph is recorder.root and recorder.results.key("call_function", torch.add, (), {}) is not None


def record_over_lists(recorder: GraphState, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value], site: Site) -> Value | None:
    """The result of an operation over lists, once it is recorded; None where the general way has to be gone."""
    call = Call(target, args, kwargs)
    try:
        call.read()
        kinds = call.kinds(recorder.looks)
        call.check_memory()
        first = [places[0] for places in kinds]
        few = {place: [column[k] for k in first] for place, column in call.columns.items()}
        fakes = {place: [fake_of(value) for value in column] for place, column in few.items()}
        written = [f for place, column in fakes.items() for f in column if isinstance(f, torch.Tensor)] if target.__name__.endswith("_") else []
        if any(map(recorder.folded.has, written)) or any(known_number(f) is not None for f in written):
            raise GeneralError
        made, counts = run(recorder, call, few, fakes)
    except GeneralError:
        return None
    for place, column in call.columns.items():
        for count, places in zip(counts[place], kinds, strict=True):
            if count:
                for k in places[1:]:
                    column[k].count_writes(count)  # type: ignore[attr-defined]
    node = new_node(recorder.graph, "call_function", target, call_args(call), call_kwargs(call), target.__name__)
    result = results(recorder, call, node, made, kinds)
    recorder.note_node(node, site)
    recorder.ops += 1
    snapshot = {place: ListValue(column) for place, column in call.columns.items()}
    given = tuple(snapshot.get(i, a) for i, a in enumerate(args)), {k: snapshot.get(k, v) for k, v in kwargs.items()}
    recorder.log.append(lambda: logged(call, given, result, node, site))
    return result


def logged(call: Call, given: tuple[tuple[Value, ...], dict[str, Value]], result: Value, node: torch.fx.Node, site: Site) -> Operation:
    """As it is noted for calls that repeat it: with all that it may have written."""
    writes = frozenset(storage_of(v.fake) for v in all_tensors(call)) if call.target.__name__.endswith("_") else frozenset()
    parts = [member.node for member in result.items if isinstance(member, TensorValue)] if isinstance(result, (ListValue, TupleValue)) else []
    return Operation("call_function", call.target, *given, result, site, (node, *parts), writes)


def all_tensors(call: Call) -> list[TensorValue]:
    written = call.columns.values() if call.target.__name__.startswith("_fused_") else (call.columns[0],)
    return [value for column in written for value in column if isinstance(value, TensorValue)]


def fake_of(value: Value) -> Any:
    return value.argument()[1]


def run(recorder: GraphState, call: Call, few: Mapping[int | str, list[Value]], fakes: Mapping[int | str, list[Any]]) -> tuple[Any, dict[int | str, list[int]]]:
    """What the operation gives for the first member of each kind: the type of its list of results, and the looks of these, None where they are the members
    of the first list; None where it gives nothing. And how often it wrote each member."""
    before = {place: [version(recorder, f) for f in column] for place, column in fakes.items()}
    singles = {place: value.argument()[1] for place, value in (*enumerate(call.args), *call.kwargs.items()) if place not in fakes}

    def argument(place: int | str) -> Any:
        if place not in fakes:
            return singles[place]
        given: Any = call.args[place] if isinstance(place, int) else call.kwargs[place]
        return given.pytype()(fakes[place])

    args, kwargs = [argument(i) for i in range(len(call.args))], {k: argument(k) for k in call.kwargs}
    check_types(call.target, [*args, *kwargs.values()], tensors_in((args, kwargs)))
    check_numbers(call.target, args, kwargs)
    check_members(call.target, args, kwargs)
    recorder.mode.touched.clear()
    result = recorder.run("call_function", call.target, args, kwargs)
    tensors = [(f, b) for place, column in fakes.items() for f, b in zip(column, before[place]) if isinstance(f, torch.Tensor)]
    recorder.note_writes([f for f, _ in tensors], [b for _, b in tensors])
    counts = {place: [version(recorder, f) - b for f, b in zip(column, before[place])] for place, column in fakes.items()}
    if result is None:
        return None, counts
    if not isinstance(result, (list, tuple)) or len(result) != len(fakes[0]):
        raise GeneralError
    if all(r is f for r, f in zip(result, fakes[0])):
        return (type(result), None), counts
    operands = [f for column in fakes.values() for f in column if isinstance(f, torch.Tensor)]
    looks = [fresh_look(recorder.looks, r, operands) for r in result]
    if any(look is None for look in looks):
        raise GeneralError
    return (type(result), looks), counts


def version(recorder: GraphState, fake: Any) -> int:
    return recorder.version(fake) if isinstance(fake, torch.Tensor) else 0


def call_args(call: Call) -> tuple:
    return tuple(node_argument(call, i, value) for i, value in enumerate(call.args))


def call_kwargs(call: Call) -> dict[str, Any]:
    return {name: node_argument(call, name, value) for name, value in call.kwargs.items()}


def node_argument(call: Call, place: int | str, value: Value) -> Any:
    """A list as a node has it: where it is what another operation over lists gave, that operation's node."""
    column = call.columns.get(place)
    if column is None:
        return value.argument()[0]
    first = column[0]
    member = first.member if type(first) is TensorValue else None
    if member is not None and member.index == 0 and member.of.count == call.count:
        if all(type(v) is TensorValue and v.member is not None and v.member.of is member.of and v.member.index == i for i, v in enumerate(column)):
            return member.of.node
    return value.pytype()(v.node if type(v) is TensorValue else v.argument()[0] for v in column)


def results(recorder: GraphState, call: Call, node: torch.fx.Node, made: Any, kinds: Sequence[Sequence[int]]) -> Value:
    if made is None:
        node.meta["val"] = node.meta["example_value"] = None
        return ConstantValue(None)
    kind, looks = made
    if looks is None:
        node.meta["later"] = LaterList([value.given for value in call.columns[0]], kind)  # type: ignore[attr-defined]
        return ListValue(call.columns[0]) if kind is list else TupleValue(call.columns[0])
    laters: list[Any] = [None] * call.count
    for look, places in zip(looks, kinds, strict=True):
        for k in places:
            laters[k] = Later(look)
    node.meta["later"] = LaterList(laters, kind)
    owner = Members(node, call.count)
    items: list[Value] = [TensorValue(Member(owner, i), later, recorder=recorder) for i, later in enumerate(laters)]
    return ListValue(items) if kind is list else TupleValue(items)
