"""What can be reached from some objects, as it was, and how it is put back in the same objects.

A walk over the object graph keeps a shallow copy of every container, attribute dictionary, slot and closure cell, and one copy of every tensor
storage. Putting back writes what differs, in place: whoever holds one of the objects sees what was there before.
"""

from __future__ import annotations

import array
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch

from dynacompile.callbacks.saveable import EMPTY, Left, Unrepeatable, class_state, is_compilers, is_left_alone, is_library, named_globals, native_state, wrapped
from dynacompile.callbacks.tensor_state import KeptTensor, Storages, inner_tensors

MOST_OBJECTS = 3_000_000  # a walk over more takes seconds

Path = tuple[Any, str] | None  # the way to the owner, and the step from there
Child = tuple[Any, str]  # a value, and the step to it
NAMED = "the global "
ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


@dataclass(slots=True)
class Kept:
    """`restore(owner, was)` writes what differs."""

    owner: Any
    was: Any
    restore: Callable[[Any, Any], None]


@dataclass
class Snapshot:
    """Add roots, then `copy` once; `put_back` may run any number of times. Raises Unrepeatable where something that was added can't be put back."""

    kept: list[Kept] = field(default_factory=list)
    tensors: list[KeptTensor] = field(default_factory=list)
    arrays: list[np.ndarray] = field(default_factory=list)
    storages: Storages = field(default_factory=Storages)
    seen: dict[int, Any] = field(default_factory=dict)  # by identity; the values are kept alive, so that no identity is used twice
    left: dict[int, Left] = field(default_factory=dict)  # by identity, why that object can't be saved
    later: list[tuple[Any, Path]] = field(default_factory=list)
    is_tolerant: bool = False

    def add(self, root: Any, name: str) -> None:
        """Keeps everything that can be reached from `root`, which messages call `name`."""
        self.walk([(root, (None, name))])

    def add_shallow(self, owner: Any) -> None:
        """Keeps which values the attributes of `owner` have, and not what these values hold."""
        self.keep(vars(owner), list(vars(owner).items()), restore_dict)

    def add_deferred(self) -> None:
        """Walks what library functions close over and what globals and classes hold. Nothing says that a step uses it, so what can't be saved there is left
        as the step leaves it; an open file or an iterator that a method names is refused all the same."""
        self.is_tolerant = True
        while self.later:
            stack, self.later = self.later, []
            self.walk(stack)

    def walk(self, stack: list[tuple[Any, Path]]) -> None:
        while stack:
            value, path = stack.pop()
            if type(value) in ATOMS:
                continue
            if id(value) not in self.seen:
                self.seen[id(value)] = value
                if len(self.seen) > MOST_OBJECTS:
                    raise Unrepeatable(f"the module holds more than {MOST_OBJECTS:,} objects, which are too many to save")
                try:
                    children = self.visit(value)
                    stack += [(child, (path, step)) for child, step in children if type(child) not in ATOMS]
                except Left as left:
                    self.left[id(value)] = left
            if (left_over := self.left.get(id(value))) and self.is_refused(left_over, path):
                raise Unrepeatable(f"`{told(path)}` {left_over}")

    def is_refused(self, left: Left, path: Path) -> bool:
        """Whether what can't be saved is no reason to leave it alone here."""
        is_named = path is not None and path[0] is None and path[1].startswith(NAMED)
        return not self.is_tolerant or (left.is_consumed and is_named)

    def keep(self, owner: Any, was: Any, restore: Callable[[Any, Any], None]) -> None:
        self.kept.append(Kept(owner, was, restore))

    def visit(self, value: Any) -> Iterable[Child]:
        """Keeps the state of `value` itself; the values that it holds."""
        kind = type(value)
        if kind in PLAIN:
            return ROWS[kind](self, value)
        if is_left_alone(value):
            return ()
        if is_compilers(value):
            return [(wrapped(value), "")]
        for base in kind.__mro__:
            if base in ROWS:
                return [*ROWS[base](self, value), *self.attributes(value)]
        if reason := native_state(kind):
            raise Left(*reason)
        return self.attributes(value)

    def attributes(self, value: Any) -> Iterator[Child]:
        """Instance dictionary, slots, and, once for each, the classes that the user wrote."""
        kind = type(value)
        try:
            named = object.__getattribute__(value, "__dict__")
        except AttributeError:
            named = None
        if type(named) is dict:
            self.keep(named, list(named.items()), restore_dict)
            yield from ((held, f".{name}") for name, held in named.items())
        for base in kind.__mro__:
            if "__slots__" in vars(base):
                yield from self.slots(value, base)
            yield base, f".__class__({base.__qualname__})"

    def slots(self, value: Any, base: type) -> Iterator[Child]:
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType:
                was = slot_value(slot, value)
                self.keep((slot, value), was, restore_slot)
                if was is not EMPTY:
                    yield was, f".{name}"

    # rows of the table below: each keeps one kind of state

    def list_items(self, value: list[Any]) -> Iterable[Child]:
        was = list(list.__iter__(value))
        self.keep(value, was, restore_list)
        return [(held, f"[{i}]") for i, held in enumerate(was) if type(held) not in ATOMS]

    def dict_items(self, value: dict[Any, Any]) -> Iterable[Child]:
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        was = list(kind.items(value))
        self.keep(value, was, restore_dict)
        return [*((held, f"[{key!r}]" if type(key) in ATOMS else "[...]") for key, held in was), *((key, " key") for key, _ in was if type(key) not in ATOMS)]

    def set_items(self, value: set[Any]) -> Iterable[Child]:
        was = list(set.__iter__(value))
        self.keep(value, was, restore_set)
        return [(held, "{...}") for held in was]

    def deque_items(self, value: deque[Any]) -> Iterable[Child]:
        was = list(deque.__iter__(value))
        self.keep(value, was, restore_deque)
        return [(held, f"[{i}]") for i, held in enumerate(was)]

    def fixed_items(self, value: tuple[Any, ...] | frozenset[Any]) -> Iterable[Child]:
        items = tuple.__iter__(value) if isinstance(value, tuple) else frozenset.__iter__(value)
        return [(held, f"[{i}]") for i, held in enumerate(items)]

    def proxied_items(self, value: types.MappingProxyType[Any, Any]) -> Iterable[Child]:
        return [(held, f"[{key!r}]") for key, held in value.items()]

    def bytes_of(self, value: bytearray | array.array[Any]) -> Iterable[Child]:
        self.keep(value, value[:], restore_sequence)
        return ()

    def array_values(self, value: np.ndarray) -> Iterable[Child]:
        if not value.flags.writeable:
            return ()
        if isinstance(value, np.memmap):
            raise Left("is an array that writes to a file")
        self.arrays.append(value)
        return [(held, "[...]") for held in value.ravel().tolist()] if value.dtype.hasobject else ()

    def tensor_values(self, value: torch.Tensor) -> Iterable[Child]:
        kept = KeptTensor.of(value)
        self.tensors.append(kept)
        inner = inner_tensors(value)
        if not inner:
            self.storages.add(value)
        held = [(kept.base, "._base"), (kept.grad, ".grad"), (kept.hooks, "._backward_hooks"), (kept.after_hooks, "._post_accumulate_grad_hooks")]
        return [*held, *inner]

    def torch_generator(self, value: torch.Generator) -> Iterable[Child]:
        self.keep(value, value.get_state(), restore_torch_generator)
        return ()

    def python_generator(self, value: Random) -> Iterable[Child]:
        self.keep(value, value.getstate(), Random.setstate)
        return ()

    def numpy_generator(self, value: np.random.Generator) -> Iterable[Child]:
        return self.bit_generator(value.bit_generator)

    def bit_generator(self, value: Any) -> Iterable[Child]:
        self.keep(value, value.state, restore_bit_generator)
        return ()

    def numpy_random_state(self, value: np.random.RandomState) -> Iterable[Child]:
        self.keep(value, value.get_state(), np.random.RandomState.set_state)
        return ()

    def function_state(self, value: types.FunctionType) -> Iterable[Child]:
        """Cells, defaults and, for functions that the user wrote, the globals that they name."""
        cells = list(value.__closure__ or ())
        held: list[Child] = [(cell, f".{name}") for cell, name in zip(cells, value.__code__.co_freevars)]
        held += [(value.__defaults__, ".__defaults__"), (value.__kwdefaults__, ".__kwdefaults__")]
        scope = named_globals(value)
        if scope is None:
            self.later += [(child, (None, f"{value.__qualname__}{step}")) for child, step in held]
            return ()
        self.keep(value.__globals__, scope, restore_names)
        self.later += [(child, (None, f"{NAMED}{name}")) for name, child in scope.items() if child is not EMPTY]
        return held

    def cell_contents(self, value: types.CellType) -> Iterable[Child]:
        was = cell_value(value)
        self.keep(value, was, restore_cell)
        return () if was is EMPTY else [(was, "")]

    def method_owner(self, value: Any) -> Iterable[Child]:
        return [(value.__self__, ".__self__"), (value.__func__, ".__func__")]

    def builtin_owner(self, value: Any) -> Iterable[Child]:
        return [(value.__self__, ".__self__")]

    def partial_call(self, value: partial[Any]) -> Iterable[Child]:
        return [(value.func, ".func"), (value.args, ".args"), (value.keywords, ".keywords")]

    def class_attributes(self, value: type) -> Iterable[Child]:
        """Of classes that the user wrote: what is counted or collected in class attributes, and what the methods name."""
        state = class_state(value)
        if state is None:
            return ()
        self.keep(value, state, restore_class)
        methods = [held for held in vars(value).values() if isinstance(held, (types.FunctionType, staticmethod, classmethod, property))]
        functions = [fn for held in methods for fn in functions_of(held)]
        self.later += [(held, (None, f"{NAMED}{value.__qualname__}.{name}")) for name, held in state.items()]
        self.later += [(fn, (None, f"{value.__qualname__}.{fn.__name__}")) for fn in functions]
        return ()

    def module_names(self, value: types.ModuleType) -> Iterable[Child]:
        """Of modules that the user wrote, which a function names."""
        if not is_library(value.__name__):
            was = list(vars(value).items())
            self.keep(vars(value), was, restore_dict)
            self.later += [(held, (None, f"{value.__name__}.{name}")) for name, held in was]
        return ()

    # the copies

    def copy(self) -> None:
        self.storages.copy()
        for values in self.arrays:
            self.keep(values, np.ndarray.copy(values), restore_array)

    @property
    def array_bytes(self) -> int:
        return sum(values.nbytes for values in self.arrays)

    def put_back(self) -> None:
        """Objects first, then which storage each tensor has, then the storages' bytes, then what counts the writes to them."""
        for kept in self.kept:
            kept.restore(kept.owner, kept.was)
        for tensor in sorted(self.tensors, key=lambda kept: kept.base is not None):  # views after what they look into
            tensor.put_back()
        self.storages.put_back()
        viewed = {id(tensor.base) for tensor in self.tensors}
        for tensor in self.tensors:
            if tensor.base is None and id(tensor.tensor) not in viewed:  # a view tells by the count whether its history is up to date
                tensor.put_version_back()


ROWS: dict[type, Callable[[Snapshot, Any], Iterable[Child]]] = {
    list: Snapshot.list_items,
    dict: Snapshot.dict_items,
    set: Snapshot.set_items,
    deque: Snapshot.deque_items,
    tuple: Snapshot.fixed_items,
    frozenset: Snapshot.fixed_items,
    types.MappingProxyType: Snapshot.proxied_items,
    bytearray: Snapshot.bytes_of,
    array.array: Snapshot.bytes_of,
    np.ndarray: Snapshot.array_values,
    torch.Tensor: Snapshot.tensor_values,
    torch.Generator: Snapshot.torch_generator,
    Random: Snapshot.python_generator,
    np.random.Generator: Snapshot.numpy_generator,
    np.random.BitGenerator: Snapshot.bit_generator,
    np.random.RandomState: Snapshot.numpy_random_state,
    types.FunctionType: Snapshot.function_state,
    types.CellType: Snapshot.cell_contents,
    types.MethodType: Snapshot.method_owner,
    types.BuiltinFunctionType: Snapshot.builtin_owner,
    partial: Snapshot.partial_call,
    type: Snapshot.class_attributes,
    types.ModuleType: Snapshot.module_names,
}
PLAIN = frozenset((list, dict, set, deque, tuple, frozenset, bytearray, types.CellType, types.MethodType, types.ModuleType, type))  # rows that say all


def functions_of(held: Any) -> list[types.FunctionType]:
    functions = (held.fget, held.fset, held.fdel) if isinstance(held, property) else (getattr(held, "__func__", held),)
    return [fn for fn in functions if isinstance(fn, types.FunctionType)]


def told(path: Path) -> str:
    """The way to a value as a user writes it: `net.blocks[0].cache`, without the dictionaries that modules keep their parts in."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    text = ""
    for step in reversed(steps):
        if text.endswith(("._modules", "._parameters", "._buffers")) and step.startswith("["):
            text, step = text.rpartition(".")[0], "." + step[2:-2]
        text += step
    return text.strip(".") or "the module"


def same(now: Iterable[Any], was: list[Any]) -> bool:
    return all(map(operator.is_, now, was))


def restore_list(owner: list[Any], was: list[Any]) -> None:
    if list.__len__(owner) != len(was) or not same(list.__iter__(owner), was):
        list.__setitem__(owner, slice(None), was)


def restore_dict(owner: dict[Any, Any], was: list[tuple[Any, Any]]) -> None:
    """Writes the values that differ where the keys are as they were, and fills it anew otherwise, so that its order is the same, too."""
    kind = OrderedDict if isinstance(owner, OrderedDict) else dict
    if dict.__len__(owner) == len(was) and same(kind.keys(owner), [key for key, _ in was]):
        for key, value in was:
            if dict.__getitem__(owner, key) is not value:
                kind.__setitem__(owner, key, value)
        return
    kind.clear(owner)
    for key, value in was:
        kind.__setitem__(owner, key, value)


def restore_set(owner: set[Any], was: list[Any]) -> None:
    if set.__len__(owner) != len(was) or {id(held) for held in set.__iter__(owner)} != {id(held) for held in was}:
        set.clear(owner)
        set.update(owner, was)


def restore_deque(owner: deque[Any], was: list[Any]) -> None:
    if deque.__len__(owner) != len(was) or not same(deque.__iter__(owner), was):
        deque.clear(owner)
        deque.extend(owner, was)


def restore_sequence(owner: Any, was: Any) -> None:
    if owner != was:
        owner[:] = was


def restore_array(owner: np.ndarray, was: np.ndarray) -> None:
    if owner.shape != was.shape:
        np.ndarray.resize(owner, was.shape, refcheck=False)
    if owner.dtype.hasobject or owner.tobytes() != was.tobytes():
        np.ndarray.__setitem__(owner, ..., was)


def restore_bit_generator(owner: Any, was: Any) -> None:
    owner.state = was


def restore_torch_generator(owner: torch.Generator, was: torch.Tensor) -> None:
    owner.set_state(was)


def slot_value(slot: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return EMPTY


def restore_slot(owner: tuple[types.MemberDescriptorType, Any], was: Any) -> None:
    slot, value = owner
    if slot_value(slot, value) is was:
        return
    if was is EMPTY:
        slot.__delete__(value)
    else:
        slot.__set__(value, was)


def cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def restore_cell(cell: types.CellType, was: Any) -> None:
    if cell_value(cell) is was:
        return
    if was is EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = was


def restore_names(scope: dict[str, Any], was: dict[str, Any]) -> None:
    for name, value in was.items():
        if value is EMPTY:
            scope.pop(name, None)
        elif scope.get(name, EMPTY) is not value:
            scope[name] = value


def restore_class(owner: type, was: dict[str, Any]) -> None:
    now = class_state(owner) or {}
    for name in now.keys() - was.keys():
        type.__delattr__(owner, name)
    for name, value in was.items():
        if now.get(name, EMPTY) is not value:
            type.__setattr__(owner, name, value)
