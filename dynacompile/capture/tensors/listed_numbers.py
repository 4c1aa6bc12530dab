"""Tensors that are made of lists of Python's numbers: `torch.tensor([h, w])`, `torch.tensor([t.reward for t in batch])`, `x[[i, j]]`.

Numbers that are the same in each call are constants of the graph. Where some vary, residual code makes the tensor before the graph, whatever they are, and
it is an input. Where some were read from tensors, or are sizes that depend on values, the graph puts them together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.symbols import MOST_INT, NeedsSymbols
from dynacompile.capture.tensors.random_state import RandomState
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.values.base import Lazy, Value
from dynacompile.capture.values.constant import ConstantValue, UnreadBool
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.shapes import as_static, unbacked
from dynacompile.ir.source import Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.tensors.tensor import TensorValue
    from dynacompile.capture.values.context import Context

MOST = 256  # numbers of a list: each that varies costs a symbol, and guards
KINDS = (bool, int, float)
OF_TYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}
"""What torch takes for types of Python's as `dtype`."""
LISTS = (list, tuple, torch.Size)


def of_list(cx: Context, value: Value, options: Mapping[str, Value]) -> Value | None:
    """torch.tensor(value, **options) of a list of numbers, in lists or not, some of which vary; None of anything else."""
    if cx.bodies or not options.keys() <= {"dtype", "device"} or not isinstance(value, SequenceValue) or (sizes := sizes_of(value)) is None:
        return None
    count = torch.Size(sizes).numel()
    numbers = list(numbers_in(value)) if count <= MOST else []
    in_graph = any(isinstance(n, ReadNumber) or isinstance(n, SymbolicInt) and unbacked(n.sym) for n in numbers)
    if not in_graph and not any(varies(cx, n) for n in numbers):
        return None
    if not in_graph:
        ask_for_alike(cx, numbers)
    numbers = [n.force() if isinstance(n, Lazy) else n for n in numbers]
    dtype, device = dtype_of(numbers, options.get("dtype")), device_of(options.get("device"))
    if dtype is None or device is None or not all(map(fits, numbers)):
        return None
    given: dict[str, Value] = {"dtype": ConstantValue(dtype), "device": ConstantValue(device)}
    if in_graph:
        return put_together(cx, numbers, sizes, given)
    if cx.recorder.in_inference != cx.recorder.begins_in_inference:
        return None
    args = [nested(numbers, sizes), *given.values()]
    return cx.state(RandomState).make(cx, torch.tensor, args, tuple(given), torch.zeros(sizes, dtype=dtype, device=device))


def sizes_of(value: SequenceValue) -> tuple[int, ...] | None:
    """The sizes of a tensor of lists; None where they hold other things than numbers, or differ in length."""
    if value.cls not in LISTS:
        return None
    items = value.items
    for place, item in enumerate(items):
        if isinstance(item, Lazy) and type(item.real) in LISTS:
            items[place] = item.force()
    inner = {sizes_of(item) if isinstance(item, SequenceValue) else () if is_number(item) else None for item in items}
    first = inner.pop() if len(inner) == 1 else None
    return None if first is None else (len(items), *first)


def numbers_in(value: SequenceValue) -> Iterator[Value]:
    for item in value.items:
        if isinstance(item, SequenceValue):
            yield from numbers_in(item)
        else:
            yield item


def is_number(value: Value) -> bool:
    if isinstance(value, Lazy):
        return type(value.real) in KINDS
    return isinstance(value, (ReadNumber, SymbolicInt, SymbolicFloat, UnreadBool)) or isinstance(value, ConstantValue) and type(value.value) in KINDS


def varies(cx: Context, number: Value) -> bool:
    """Whether other calls of the entry may have another number there."""
    if isinstance(number, Lazy):
        return cx.policy is not None and number.source in cx.policy.varied
    if isinstance(number, SymbolicInt):
        return isinstance(as_static(number.sym), torch.SymInt)
    return isinstance(number, (SymbolicFloat, UnreadBool))


def ask_for_alike(cx: Context, numbers: Sequence[Value]) -> None:
    """Has the frame captured again, with all numbers as varying that lie in the same lists as those of the list that do, at other places."""
    known = frozenset() if cx.policy is None else cx.policy.varied
    paths = {places_of(n.source) for n in numbers if n.source is not None and varies(cx, n)}
    found = {n.source: n.pytype() for n in numbers if n.source is not None and n.source not in known and places_of(n.source) in paths}
    if found:
        flags = frozenset(source for source, cls in found.items() if cls is bool)
        raise NeedsSymbols(numbers=frozenset(found) - flags, flags=flags)


def places_of(source: Source) -> tuple:
    """A path without the numbers of items: that of all numbers at the same place of the items of lists."""
    return tuple("item" if type(step) is Item and type(step.key) is int else step.own() for step in source.steps())


def dtype_of(numbers: Sequence[Value], given: Value | None) -> torch.dtype | None:
    """The type of the tensor; None where a number may be out of its range, which raises."""
    kinds = {n.pytype() for n in numbers}
    inferred = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
    dtype = None if given is None else given.constant()
    dtype = inferred if dtype is None else OF_TYPES.get(dtype, dtype)
    if not isinstance(dtype, torch.dtype):
        return None
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool or dtype is torch.int64 and float not in kinds:
        return dtype
    plain = all(isinstance(n, UnreadBool) or isinstance(n, SymbolicInt) and n.source is not None for n in numbers)
    return dtype if dtype is torch.int32 and plain else None


def fits(number: Value) -> bool:
    """Whether 64 bits hold an int. For one that is computed of others the entry relies on that: more would raise, which is the program's to do."""
    if isinstance(number, SymbolicInt) and not unbacked(number.sym):
        return isinstance(number.argument()[0], torch.SymInt)
    return not (isinstance(number, ConstantValue) and number.pytype() is int) or -MOST_INT - 1 <= number.value <= MOST_INT


def device_of(given: Value | None) -> torch.device | None:
    device = None if given is None else given.constant()
    if device is None:
        return torch.get_default_device()
    return torch.device(device) if isinstance(device, (str, torch.device)) else None


def nested(items: Sequence[Value], sizes: Sequence[int]) -> Value:
    if len(sizes) == 1:
        return ListValue(list(items))
    step = torch.Size(sizes[1:]).numel()
    return ListValue([nested(items[i * step : (i + 1) * step], sizes[1:]) for i in range(sizes[0])])


def put_together(cx: Context, numbers: Sequence[Value], sizes: Sequence[int], given: dict[str, Value]) -> Value | None:
    parts: list[Value] = []
    for number in numbers:
        if not isinstance(number, ReadNumber):
            parts.append(cx.op("call_function", torch.full, [TupleValue([]), number], given))
        elif number.with_tensors(cx):
            parts.append(cx.op("call_method", "to", [number.tensor], {**given, "copy": ConstantValue(True)}))
        else:
            return None
    made = cx.op("call_function", torch.stack, [ListValue(parts)], {})
    return made if len(sizes) == 1 else cx.op("call_method", "reshape", [made, TupleValue([ConstantValue(n) for n in sizes])], {})


def index(cx: Context, target: Any, args: Sequence[Value]) -> Value | None:
    """A tensor's subscript, with lists of ints that vary as tensors; None where there are none."""
    if len(args) < 2:
        return None
    keys = args[1].items if isinstance(args[1], TupleValue) and args[1].cls is tuple else [args[1]]
    made = {place: as_places(cx, key) for place, key in enumerate(keys) if isinstance(key, ListValue) and key.items}
    if all(found is None for found in made.values()):
        return None
    parts = [made.get(place) or key for place, key in enumerate(keys)]
    return cx.op("call_function", target, [args[0], parts[0] if keys is not args[1].items else TupleValue(parts), *args[2:]], {})  # type: ignore[attr-defined]


def as_places(cx: Context, key: ListValue) -> Value | None:
    """A list of ints as a tensor on the CPU, as torch makes it of a subscript."""
    if not all(item.pytype() is int for item in key.items):
        return None
    return of_list(cx, key, {"device": ConstantValue(torch.device("cpu"))})


def made_like(cx: Context, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """tensor.new_tensor(list)"""
    tensor: TensorValue = args[0]  # type: ignore[assignment]
    if len(args) != 2:
        return None
    return of_list(cx, args[1], {"dtype": ConstantValue(tensor.fake.dtype), "device": ConstantValue(tensor.fake.device), **kwargs})


def made_of(cx: Context, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    return of_list(cx, args[0], kwargs) if len(args) == 1 else None


RULES: dict[Any, Callable[[Context, Any, Sequence[Value], Mapping[str, Value]], Value | None]] = {
    torch.tensor: made_of,
    torch.as_tensor: made_of,
    torch.asarray: made_of,
    "new_tensor": made_like,
    operator.getitem: lambda cx, target, args, kwargs: index(cx, target, args),
    operator.setitem: lambda cx, target, args, kwargs: index(cx, target, args),
}
"""Operations that take lists of numbers; each gives what comes in the place of the operation, or None."""
