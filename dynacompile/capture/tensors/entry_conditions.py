"""Branches on what the inputs alone decide: `if (mask == 1).all(): mask = None`. The condition is asked before the graph, as a guard, so that each of its
answers has an entry, and none has a break.

A frame may ask conditions of any number of inputs, a few of each, since each computes anew what rounds of a loop have made of the input. The number of
entries that nothing but answers tells apart is bounded, too: where a call meets `MOST_ANSWERS` such entries, none of which has its answers, the next entry
has breaks there, and serves all of them.

Numbers that a buffer of ints holds, as the places where the fields of a layer begin, are guarded likewise where Python needs them: for sizes, the bounds of
slices, loops. That is tried where a frame would break otherwise, and where no symbol can stand for them.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.bytecode import is_resume
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.refused_types import is_of_torch
from dynacompile.capture.tensors.assumptions import DRAWS, Inside, is_harmless, name_of
from dynacompile.capture.tensors.number_conditions import answer_of_numbers
from dynacompile.capture.tensors.random_state import RandomState
from dynacompile.capture.tensors.settings import Settings
from dynacompile.capture.tensors.tensor import PLAIN_CLASSES, TensorValue, decides
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.constant import ConstantValue, SliceValue, is_none
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.ir.source import Applied, Local
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.base import Value
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.recording import Recording
    from dynacompile.errors import Unsupported
    from dynacompile.ir.captured import Guard

LOOKUPS = (torch.nn.functional.embedding, operator.getitem)
MOST_CONDITIONS = 2  # of an input
MOST_IN_CLAUSES = 8  # of an input, where a break is the alternative
MOST_NUMBERS = 16  # of an input, which Python needs
MOST_ANSWERS = 4  # entries of a frame
MOST_OPERATIONS = 32
MOST_BYTES = 1 << 20  # of the input: an entry reads it once more


class Conditions:
    """asked: how many conditions on inputs guards ask. of_inputs: of them, how many by the input, and whether they are about rows. answers: of those that were
    asked, by the tensor and its version. numbers: that inputs hold, by the input and how it is read. knows_more: guards could tell a number, but were not to.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.of_inputs: Counter[tuple[torch.fx.Node, bool]] = Counter()
        self.answers: dict[tuple[torch.fx.Node, int, int | None], bool] = {}
        self.numbers: dict[tuple[torch.fx.Node, str], int] = {}
        self.knows_more = False


class AsksNumbers(Exception):
    """The frame breaks, maybe where Python needs numbers that inputs hold: guards are to tell them. otherwise: what is raised where that does not keep it
    whole."""

    def __init__(self, otherwise: Unsupported | None):
        self.otherwise = otherwise


class Condition:
    """Computes a tensor of one bool from an input. steps: in order; an argument that is a `Step` stands for what that one gave. stores: whether some step
    stores into what another one made. It is asked of other inputs, too, of which a conversion may give the input itself: so it works on a copy then."""

    def __init__(self, steps: list[tuple[str, Any, tuple, dict[str, Any]]]):
        self.steps = steps
        self.stores = any(target is operator.setitem for _, target, _, _ in steps)

    def __call__(self, given: object) -> Any:
        """Whether it holds, as a guard asks; None of what is no plain tensor, whose methods may be the user's, and of one that is long."""
        if type(given) not in PLAIN_CLASSES or given.numel() * given.itemsize > MOST_BYTES:  # type: ignore[attr-defined]
            return None
        with of_torch.DisableTorchFunction():  # modes had their say when the steps were recorded
            try:
                own: Any = given.clone() if self.stores else given  # type: ignore[attr-defined]
                if own.stride() != given.stride():  # type: ignore[attr-defined]  # what is a view of the input might be none of the copy
                    return None
                return self.holds(own)
            except (RuntimeError, IndexError):  # a place outside of a tensor, which the program will meet by itself
                return None

    @torch.no_grad()
    def holds(self, given: object) -> Any:
        values: list[Any] = [given]
        for kind, target, args, kwargs in self.steps:
            args, kwargs = torch.fx.node.map_aggregate((args, kwargs), lambda part: values[part.place] if isinstance(part, Step) else part)  # type: ignore[misc]
            values.append(getattr(args[0], target)(*args[1:], **kwargs) if kind == "call_method" else target(*args, **kwargs))
        return self.told(values[-1])

    def told(self, result: Any) -> Any:
        return bool(result)


class Reading(Condition):
    """Computes an int from an input."""

    def told(self, result: Any) -> Any:
        return int(result)


def may_ask(entries: Sequence[Sequence[Guard]]) -> bool:
    """Whether the next entry of a frame may ask conditions. entries: of each that exists, the guards that do not hold for the call."""
    return sum(bool(failed) and all(map(is_condition, failed)) for failed in entries) < MOST_ANSWERS


def is_condition(guard: Guard) -> bool:
    return isinstance(guard.source, Applied) and isinstance(guard.source.function, Condition)


class Step:
    def __init__(self, place: int):
        self.place = place

    def __repr__(self) -> str:
        return f"#{self.place}"


@decides
def decided(cx: Context, condition: TensorValue) -> bool | None:
    """Whether a tensor of one bool is true, where an input, or a number that varies, decides that and a guard may ask; else None."""
    if condition.fake.numel() != 1:
        return None
    answer = answer_to(cx, condition)
    return answer_of_numbers(cx, condition) if answer is None else answer


def look_up(cx: Context, target: object, made: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Notes of an embedding, and of a tensor that tensors index, that it raises nothing and writes nothing, where guards say so; of `gather` on GPUs,
    which an error would stop."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if isinstance(made, TensorValue) and (
        target in LOOKUPS
        and is_inside(cx, target, args, kwargs, MOST_CONDITIONS)
        or name == "gather"
        and made.fake.device.type != "cpu"
        and gathers_inside(cx, args, kwargs)
    ):
        cx.state(Inside).nodes.add(made.node)


def gathers_inside(cx: Context, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    if len(args) != 3 or kwargs or not isinstance(args[0], TensorValue) or not isinstance(args[2], TensorValue) or not isinstance(args[1], ConstantValue):
        return False
    size = args[0].fake.size(args[1].value) if args[0].fake.dim() else 0
    return type(size) is int and bool(answer_to(cx, args[2], size))


def is_inside(cx: Context, target: object, args: Sequence[Value], kwargs: Mapping[str, Value], most: int) -> bool:
    """Whether guards say that an embedding, or a tensor that tensors index, looks up rows that are there, and writes nothing. most: conditions of an input."""
    norms = [*args[3:4], *(value for name, value in kwargs.items() if name == "max_norm")]
    if len(args) < 2 or not all(map(is_none, norms)):
        return False
    tensor, places = args[:2] if target is operator.getitem else args[1::-1]
    items = places.items if isinstance(places, SequenceValue) else [places]
    if not isinstance(tensor, TensorValue) or not all(isinstance(item, TensorValue) and item.fake.dtype in (torch.int64, torch.int32) for item in items):
        return False
    rows = tensor.fake.shape[: len(items)]
    return all(type(n) is int for n in rows) and all(answer_to(cx, item, n, most) for item, n in zip(items, rows))  # type: ignore[arg-type]


def answer_to(cx: Context, tensor: TensorValue, rows: int | None = None, most: int = MOST_CONDITIONS) -> bool | None:
    """Whether a tensor of one bool is true, or, with a number of rows, whether a tensor of ints holds places of rows alone; None where no guard may ask.
    most: conditions that may be asked of an input."""
    if cx.state(TorchModes).autocasts or cx.bodies or cx.state(Settings).changed:
        return None
    answers, asking = cx.state(Conditions).answers, (tensor.node, cx.recorder.version(tensor.fake), rows)
    if asking in answers:
        return answers[asking]
    found = operations_of(cx.recorder, tensor.node)
    if found is None:
        return None
    placeholder, operations = found
    listed = steps_of(placeholder, operations)
    if rows is not None:
        places, at_least, below, both = (Step(len(listed) + i) for i in range(4))
        listed += [("call_method", "ge", (places, 0), {}), ("call_method", "lt", (places, rows), {})]
        listed += [("call_function", torch.logical_and, (at_least, below), {}), ("call_method", "all", (both,), {})]
    if placeholder is None:
        cx.recorder.optional.update(dict.fromkeys(n for n in operations if n.target is not operator.setitem))
        return bool(cx.guarded_call(Condition(listed).holds, [None], {}))
    of_inputs, about = cx.state(Conditions).of_inputs, (placeholder, rows is not None)
    if not (cx.manner.asks_inputs or cx.fullgraph) or of_inputs[about] >= most or is_resume(cx.frames[0].code):
        return None
    given = given_as(cx, placeholder)
    if given is None:
        return None
    asked = Condition(listed)
    answer = cx.guarded_call(asked, [given.real], {})
    if answer is None:
        return None
    cx.state(Conditions).asked += 1
    of_inputs[about] += 1
    answers[asking] = answer
    cx.recorder.shown.add(storage_of(given.fake))
    cx.recorder.optional.update(dict.fromkeys(n for n in operations if n.target is not operator.setitem))
    cx.guard("EQUALS", Applied(given.source, asked, f" in the condition at {cx.site()}"), answer)
    return answer


def known_number(cx: Context, tensor: TensorValue) -> int | None:
    """The int that a tensor of one element holds, where an input alone decides it, and a guard may say so; else None."""
    fake = tensor.fake
    if fake.numel() != 1 or fake.is_floating_point() or fake.is_complex() or cx.state(TorchModes).autocasts or cx.bodies or cx.state(Settings).changed:
        return None
    found = operations_of(cx.recorder, tensor.node)
    given = given_as(cx, found[0]) if found is not None and found[0] is not None else None
    if found is None or given is None or not cx.fullgraph and not (cx.manner.asks_inputs and is_settled(given)):
        return None
    placeholder, operations = found
    listed = steps_of(placeholder, operations)
    numbers, key = cx.state(Conditions).numbers, (given.node, repr(listed))
    if key not in numbers:
        if sum(node is placeholder for node, _ in numbers) >= MOST_NUMBERS:
            return None
        if not cx.manner.numbers:
            cx.state(Conditions).knows_more = True
            return None
        asked = Reading(listed)
        number = cx.guarded_call(asked, [given.real], {})
        if number is None:
            return None
        numbers[key] = number
        cx.recorder.shown.add(storage_of(given.fake))
        cx.guard("EQUALS", Applied(given.source, asked, f" in the number at {cx.site()}"), number)
    cx.recorder.optional.update(dict.fromkeys(n for n in operations if n.target is not operator.setitem))
    return numbers[key]


def is_settled(given: TensorValue) -> bool:
    """Whether an input holds ints, as attribute of an object: what an argument holds, or what is computed of floats, may be another number in each call."""
    return not isinstance(given.source, Local) and not given.fake.is_floating_point() and not given.fake.is_complex()


def given_as(cx: Context, placeholder: torch.fx.Node) -> TensorValue | None:
    """The input behind a placeholder, where it is as the call has given it, and guards may read it."""
    given = next((v for v in cx.recorder.values.values() if v.node is placeholder), None)
    if (
        type(given) is not TensorValue
        or given.source is None
        or given.source in cx.state(RandomState).drawn
        or cx.recorder.was_written(given)
        or cx.recorder.is_inference(given.fake)
        or given.real.requires_grad
    ):
        return None
    return given


def with_known_numbers(cx: Context, args: Sequence[Value], kwargs: Mapping[str, Value]) -> tuple[list[Value], dict[str, Value]] | None:
    """Operands with numbers in place of the tensors among them whose number guards may tell; None where there are none."""
    changed = False

    def known(value: Value, inside: bool) -> Value:
        nonlocal changed
        if type(value) is TensorValue and inside and not value.fake.dim() and (number := known_number(cx, value)) is not None:
            changed = True
            return ConstantValue(number)
        if isinstance(value, SliceValue):
            return SliceValue([known(part, True) for part in value.parts])
        if isinstance(value, (ListValue, TupleValue)):
            items = [known(item, True) for item in value.items]
            return value if all(a is b for a, b in zip(items, value.items)) else TupleValue(items)
        return value

    given = [known(value, place > 0) for place, value in enumerate(args)], {name: known(value, True) for name, value in kwargs.items()}
    return given if changed else None


def operations_of(recorder: Recording, node: torch.fx.Node) -> tuple[torch.fx.Node | None, list[torch.fx.Node]] | None:
    """The one input that a node depends on, None for none, and the operations between them, with those that store into what they make; None where there are
    more inputs, or operations do more."""
    writes = stores_by_memory(node)
    needed: dict[torch.fx.Node, None] = {}
    work = [node]
    while work:
        one = work.pop()
        if one not in needed:
            needed[one] = None
            work.extend(one.all_input_nodes)
            work.extend(writes.get(memory_of(one), ()))
    inputs = [n for n in needed if n.op == "placeholder"]
    operations = [n for n in node.graph.nodes if n in needed and n.op != "placeholder"]
    if len(inputs) > 1 or len(operations) > MOST_OPERATIONS or operations[-1:] not in ([node], []) or any(memory_of(n) in writes for n in inputs):
        return None
    if not all(is_asked_freely(recorder, n, writes.get(memory_of(n), ())) for n in operations):
        return None
    return next(iter(inputs), None), operations


def stores_by_memory(node: torch.fx.Node) -> dict[object, list[torch.fx.Node]]:
    """The operations of a graph that store into parts of tensors, by the memory that they write."""
    found: dict[object, list[torch.fx.Node]] = {}
    for one in node.graph.nodes:
        if one.target is operator.setitem and isinstance(one.args[0], torch.fx.Node):
            found.setdefault(memory_of(one.args[0]), []).append(one)
    found.pop(None, None)
    return found


def memory_of(node: torch.fx.Node) -> object:
    """What stands for the memory of a result; None where that is no tensor."""
    value = node.meta.get("val")
    return storage_of(value) if isinstance(value, torch.Tensor) else None


def steps_of(placeholder: torch.fx.Node | None, operations: Sequence[torch.fx.Node]) -> list[tuple[str, Any, tuple, dict[str, Any]]]:
    place = {n: Step(i) for i, n in enumerate(operations, 1)} | ({} if placeholder is None else {placeholder: Step(0)})
    return [(n.op, n.target, *torch.fx.node.map_arg((n.args, n.kwargs), place.__getitem__)) for n in operations]  # type: ignore[arg-type]


def is_asked_freely(recorder: Recording, node: torch.fx.Node, stores: Sequence[torch.fx.Node] = ()) -> bool:
    """Whether an operation is one that may run once more: without effects, without random numbers, of sizes that are known, and of a result that nobody
    but `stores` has written since."""
    if node.target is operator.setitem:
        return has_known_numbers(node)
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or recorder.version(result) not in (0, len(stores)) or not is_of_torch(node.target):
        return False
    harmless = is_harmless(node) or node.target is operator.getitem  # at places that are tensors, too
    return harmless and has_known_numbers(node) and math.prod(result.shape) <= MOST_BYTES and not is_random(node)


def has_known_numbers(node: torch.fx.Node) -> bool:
    return not any(isinstance(part, (torch.SymInt, torch.SymFloat)) for part in of_torch.tree_leaves((node.args, node.kwargs)))


def is_random(node: torch.fx.Node) -> bool:
    name = name_of(node)
    return name in DRAWS or "rand" in name or "dropout" in name or "attention" in name
