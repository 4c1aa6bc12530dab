"""What the frame changes outside of its own variables; replayed by the residual code after the graph has run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.residual import is_loadable, reached
from dynacompile.capture.tensors.function_modes import FunctionModes
from dynacompile.capture.tensors.modules import ModuleValue, Table
from dynacompile.capture.tensors.random_state import RandomState
from dynacompile.capture.tensors.settings import Settings
from dynacompile.capture.tensors.switches import Switches
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.dict_objects import DictObjectValue
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.keys import key_of
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.sequence import ListValue
from dynacompile.capture.values.sequence_objects import ListObjectValue, TupleObjectValue
from dynacompile.capture.values.sets import SetValue
from dynacompile.capture.values.writing import Assumed

if TYPE_CHECKING:
    import torch.fx

    from dynacompile.capture.values.writing import Writer
    from dynacompile.cpython.instructions import Position


OF_OBJECTS, OF_DICTS = ("stored", "removed"), ("content", "stored", "reordered")
OWN = (ListValue, DequeValue, ListObjectValue, SetValue, DictValue, DictObjectValue, TupleObjectValue, ObjectValue, ExceptionValue, CellValue)
CONTENTS = {ObjectValue: OF_OBJECTS, ModuleValue: OF_OBJECTS, DictValue: OF_DICTS, Table: OF_DICTS}
"""Fields that have what was stored into a value: with those of then, it is replayed as it was then."""


def content_of(value: Value) -> dict[str, Any]:
    """What is stored in a value by now; empty where another change can't be told from it."""
    return {name: copy.copy(getattr(value, name)) for name in CONTENTS.get(type(value), ())}


def stored_in(value: Value) -> set[object]:
    """Names and keys that the replay of a value stores to."""
    if isinstance(value, DictValue):
        return {key_of(key) for key, _ in value.changes()}
    return {name for name, new in value.stored.items() if isinstance(new, Value)} if isinstance(value, ObjectValue) else set()


@contextmanager
def of_then(value: Value, content: dict[str, Any]) -> Iterator[None]:
    """The value has that content meanwhile."""
    now = {name: getattr(value, name) for name in content}
    vars(value).update(content)
    try:
        yield
    finally:
        vars(value).update(now)


@dataclass(frozen=True)
class Call:
    """A call that residual code makes. keywords: the names of the last arguments. position: the user's place."""

    function: Callable
    args: list[Value]
    keywords: tuple[str, ...]
    position: Position


class Effects:
    """touched: values with a changed content, in the order of their first change, and `count` at their last one; each knows how to `replay` it.

    own_cells: the residual code makes the cells of the frame itself, so stores to them count.
    modes: the torch-function modes that the frame is in. settings: of torch, that the frame changes. switches: those of torch's
    libraries. random: the state of random generators.
    calls: those that report something to others and have no result, in their order. held: objects that they are given, that exist outside.
    hidden: names of attributes that they may change.
    count: of changes so far; outside: of those to what exists outside of the frame's own variables.
    moved: iterators that were asked for items and sets that have changed, and `moves` at the last time. Where the frame made them, nothing is replayed.
    globals: (id of a globals dict, name) -> (the dict, whether it is the frame's, the new value or None for a deletion). removed: those of them
    that the frame deleted, and whether it had set them before that, so that it does not matter if they were there.
    class_attributes: (class, name) -> what the frame assigned.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        """refuse: raises Unsupported where what exists outside of the frame can't be changed after the graph."""
        self.refuse = refuse
        self.touched: dict[Value, int] = {}
        self.globals: dict[tuple[int, str], tuple[dict, bool, Value | None]] = {}
        self.removed: dict[tuple[int, str], bool] = {}
        self.class_attributes: dict[tuple[type, str], Value] = {}
        self.calls: list[Call] = []
        self.held: set[Value] = set()
        self.hidden: frozenset[str] = frozenset()
        self.assumed: list[Assumed] = []
        self.required: list[Value] = []
        self.modes = FunctionModes()
        self.settings = Settings()
        self.switches = Switches()
        self.random = RandomState()
        self.own_cells = False
        self.count = self.outside = self.moves = 0
        self.moved: dict[Value, int] = {}

    def touch(self, value: Value) -> None:
        if value in self.held:
            raise unsupported("after-graph", f"{value.describe()} changes after a call that is made after the graph was given it")
        if self.is_outside(value):
            self.refuse()
            self.outside += 1
        self.count += 1
        self.touched[value] = self.count

    def move(self, value: Value) -> None:
        self.moves += 1
        self.moved[value] = self.moves

    def moves_older(self, since: int, serial: int) -> bool:
        """Whether an iterator or a set that was there before `next_serial()` gave `serial` has moved since `moves` was `since`."""
        return self.moves != since and any(at > since and value.serial < serial for value, at in self.moved.items())

    def store_global(self, table: dict, is_root: bool, name: str, value: Value | None) -> None:
        self.refuse()
        self.outside += 1
        stored = self.globals.pop((id(table), name), None)
        if value is None:
            self.removed.setdefault((id(table), name), stored is not None)
        self.globals[id(table), name] = (table, is_root, value)

    def store_class_attribute(self, cls: type, name: str, value: Value) -> None:
        self.refuse()
        self.outside += 1
        self.class_attributes[cls, name] = value

    def defer(self, function: Callable, args: list[Value], position: Position, keywords: tuple[str, ...] = ()) -> None:
        self.refuse()
        self.outside += 1
        self.calls.append(Call(function, args, keywords, position))

    def check_seen(self, name: str) -> None:
        """Raises Unsupported where a call that is yet to be made may change the attributes of that name."""
        if name in self.hidden:
            raise unsupported("after-graph", f"{name} is read, which {self.calls[-1].function.__qualname__} may have changed: it is called after the graph")

    def assume(self, condition: Value, function: Callable | None, args: list[Value], position: Position, after: torch.fx.Node) -> None:
        self.outside += 1
        last = self.assumed[-1].count if self.assumed else 0
        changed = {value: content_of(value) for value in self.pending() if self.touched[value] > last}
        self.assumed.append(Assumed(condition, function, args, position, after, changed, self.count))

    def require(self, condition: Value) -> None:
        """A tensor of one bool without which the call starts again as Python, before any change."""
        self.outside += 1
        self.required.append(condition)

    def shows_own(self) -> bool:
        """Whether a list, dict or object that the frame made is stored in what exists outside of it, where code that is given nothing of the frame finds it."""
        stored = [value for value in self.values() if not isinstance(value, TensorValue)]
        return any(isinstance(value, OWN) and not self.is_outside(value) for value in reached(stored))

    def asked(self) -> list[Value]:
        """Values that what is assumed, and what is required, is asked with."""
        return [*self.required, *(value for one in self.assumed for value in (one.condition, *one.args))]

    def overtaken(self) -> int | None:
        """How many assumptions come before the first one that can't be asked when all changes before it have been made: one of the changed values, or what it
        was given, has changed again since. None where there is no such one."""
        for place, one in enumerate(self.assumed):
            for value, content in one.changed.items():
                with of_then(value, content):
                    given, then = reached(value.replay_values()), stored_in(value)  # type: ignore[attr-defined]
                if self.touched[value] > one.count and not (content and then <= stored_in(value)):
                    return place
                if any(self.touched.get(part, 0) > one.count or isinstance(part, CellValue) for part in given if not is_loadable(part)):
                    return place
        return None

    def is_outside(self, value: Value) -> bool:
        return value.exists(self.own_cells) if isinstance(value, CellValue) else value.source is not None

    def changes_older(self, since: int, serial: int) -> bool:
        """Whether anything has changed since `count` was `since`, but for values of OWN that were made after `next_serial()` gave `serial`: they hold
        their content themselves, and no tensor or module is among them."""
        return any(at > since and not (value.serial > serial and type(value) in OWN and not self.is_outside(value)) for value, at in self.touched.items())

    def pending(self) -> list[Value]:
        """Touched values that exist outside of the frame, so that others can see the change."""
        return [v for v in self.touched if self.is_outside(v)]

    def values(self) -> list[Value]:
        """Values that the replay stores or stores into."""
        out: list[Value] = []
        for value in self.pending():
            out.append(value)
            out.extend(value.replay_values())  # type: ignore[attr-defined]
        for one in self.assumed:
            for value, content in one.changed.items():
                with of_then(value, content):
                    out.extend(value.replay_values())  # type: ignore[attr-defined]
        out.extend(value for _, _, value in self.globals.values() if value is not None)
        out.extend(arg for call in self.calls for arg in call.args)
        out.extend(arg for call in self.random.last for arg in call.args)
        out.extend(self.modes.changed())
        return out

    def __bool__(self) -> bool:
        return bool(self.pending()) or not self.is_contents()

    def is_contents(self) -> bool:
        """Whether all that has changed is the content of values."""
        return not (self.globals or self.class_attributes or self.calls or self.modes.is_changed() or self.settings.calls or self.switches.calls or self.random)

    def replay(self, out: Writer) -> None:
        """Changes, in their order, with the questions about what was assumed between them."""
        made: dict[Value, int] = {}  # changes that have been made, by their count
        for one in self.assumed:
            for value, content in one.changed.items():
                with of_then(value, content):
                    value.replay(out)  # type: ignore[attr-defined]
            made |= dict.fromkeys(one.changed, one.count)
            out.unless(one)
        for value in self.pending():
            if self.touched[value] > made.get(value, 0):
                value.replay(out)  # type: ignore[attr-defined]
        for key, (table, is_root, new) in self.globals.items():
            if self.removed.get(key):
                self.replay_global(out, key[1], table, is_root, ConstantValue(None))
            if key in self.removed:
                self.replay_global(out, key[1], table, is_root, None)
            if new is not None:
                self.replay_global(out, key[1], table, is_root, new)
        self.replay_calls(out)
        self.settings.replay(out, before=False)
        self.switches.replay(out)
        self.random.replay(out, before=False)

    def replay_global(self, out: Writer, name: str, table: dict, is_root: bool, new: Value | None) -> None:
        if new is not None:
            out.value(new)
        if is_root:
            out.named("DELETE_GLOBAL" if new is None else "STORE_GLOBAL", name)
            return
        out.const(table)
        out.const(name)
        out.emit("DELETE_SUBSCR" if new is None else "STORE_SUBSCR")

    def replay_calls(self, out: Writer) -> None:
        """Last, as handlers of logs may write what the frame writes."""
        here = out.position
        for call in self.calls:
            out.position = call.position
            out.call_function(call.function, call.args, call.keywords)
            out.emit("POP_TOP")
        out.position = here
