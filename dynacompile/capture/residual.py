"""Emits the residual code of a frame: call the graph, recreate values, replay effects, return or resume."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.bytecode import Decoded
from dynacompile.capture.calling import CallWriter
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import NULL, Lazy, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.capture.values.writing import Assumed
from dynacompile.cpython.instructions import NOWHERE, Handler, Instr, Position
from dynacompile.errors import VerifyError
from dynacompile.ir.captured import GRAPH
from dynacompile.ir.source import (
    Applied,
    Attr,
    Builtin,
    ClosureCell,
    Constant,
    DefaultArg,
    DictAttr,
    Entry,
    Free,
    Global,
    Item,
    Length,
    Local,
    Made,
    Referent,
    Registered,
    Remembered,
    Source,
    TypeOf,
    ValueAt,
)
from dynacompile.native import core as native_core
from dynacompile.private import of_torch


class Pool:
    """A table of constants or names of a code object; constants are told apart by identity."""

    def __init__(self, start: Iterable[Any], by_identity: bool):
        self.items = list(start)
        self._by_identity = by_identity
        self._found = {self.key(item): i for i, item in enumerate(self.items)}

    def key(self, item: Any) -> Any:
        return id(item) if self._by_identity else item

    def index(self, item: Any) -> int:
        found = self._found.get(self.key(item))
        if found is None:
            found = self._found[self.key(item)] = len(self.items)
            self.items.append(item)
        return found


class Builder(CallWriter):
    """Collects the instructions of one residual code object.

    keeps_cells: the residual code makes the frame's own cells, so that functions and resume code can share them.
    """

    def __init__(self, decoded: Decoded, keeps_cells: bool):
        code = decoded.code
        self.code = code
        self.instrs: list[Instr] = []
        self.handlers: list[Handler] = []
        self.position: Position = (code.co_firstlineno, None, None, None)
        self.consts = Pool([], by_identity=True)
        self.names = Pool(code.co_names, by_identity=False)
        self.params = code.co_varnames[: parameter_count(code)]
        self.varnames = list(self.params)
        self.cells = code.co_cellvars if keeps_cells else ()
        self.handling = 0  # exceptions that the code handles here
        self.outputs: dict[Value, int] = {}
        self.arrays: set[int] = set()  # ids of arrays of numpy, parts of which were made
        self.made: dict[int, Value] = {}  # results of calls before the graph, by their place
        self.uses: dict[Value, int] = {}
        self._original = decoded.slots
        self._temps: dict[Value, str] = {}
        self._building: set[Value] = set()
        self._output_slot: str | None = None
        self._elsewhere: set[str] = set()  # variables that are set on paths that end

    # single instructions

    def emit(self, op: str, arg: int = 0, target: Instr | None = None) -> Instr:
        instr = Instr(op, arg, target, self.position)
        self.instrs.append(instr)
        return instr

    def const(self, value: Any) -> None:
        self.emit("LOAD_CONST", self.consts.index(value))

    def named(self, op: str, name: str) -> None:
        self.emit(op, self.names.index(name))

    def load_attr(self, name: str) -> None:
        self.named("LOAD_ATTR", name)

    def load_method(self, name: str) -> None:
        """Replaces the top by its method, ready for `call`."""
        self.named("LOAD_METHOD", name)

    def store_attr(self, name: str) -> None:
        self.named("STORE_ATTR", name)

    def del_attr(self, name: str) -> None:
        self.named("DELETE_ATTR", name)

    def push_null(self) -> None:
        self.emit("PUSH_NULL")

    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None:
        """Calls with `count` arguments, the last of them by the given keywords."""
        if keywords:
            self.emit("KW_NAMES", self.consts.index(keywords))
        self.emit("CALL", count)

    def call_function(self, function: Any, args: Sequence[Value], keywords: tuple[str, ...] = ()) -> None:
        """function(*args), the last of them by the given keywords; the function itself is a constant."""
        self.callee(function)
        for arg in args:
            self.value(arg)
        self.call(len(args), keywords)

    def call_method_on_top(self, name: str, argument: Any) -> None:
        """top.name(argument), keeping top and dropping the result."""
        self.emit("COPY", 1)
        self.load_method(name)
        self.const(argument)
        self.call(1)
        self.emit("POP_TOP")

    def local(self, op: str, name: str) -> None:
        self.emit(op, self.slot(name))

    def slot(self, name: str) -> int:
        if name not in self.varnames:
            self.varnames.append(name)
        return self.varnames.index(name)  # cells and free variables are shifted by `finish`, when all locals are known

    def cell_op(self, op: str, name: str, slot: int | None, free: int | None) -> None:
        """An instruction on a cell of the frame, which has a slot, or a place among the free variables, or is found by its name."""
        index = slot if free is None else len(self._original) - len(self.code.co_freevars) + free
        self.emit(op + " by name", self.original_slot(name) if index is None else index)

    def original_slot(self, name: str) -> int:
        """localsplus index of a cell or free variable in the original frame."""
        return len(self._original) - 1 - self._original[::-1].index(name)

    def new_temp(self) -> str:
        name = f".t{len(self.varnames)}"
        self.slot(name)
        return name

    def temps(self) -> list[str]:
        """The variables of the residual code's own that are set by now."""
        return [name for name in self.varnames[len(self.params) :] if name not in self._elsewhere]

    # sources

    def source(self, source: Source) -> None:
        """Pushes the object at a source."""
        match source:
            case Local(name, slot):
                if name in self.cells:
                    self.emit("LOAD_DEREF by name", slot)
                else:
                    self.local("LOAD_FAST", name)
            case Free(_, index):
                self.emit("LOAD_DEREF by name", len(self._original) - len(self.code.co_freevars) + index)
            case Global(name) | Builtin(name):
                self.emit("LOAD_GLOBAL", self.names.index(name) << 1)
            case Constant(value, _):
                self.const(value)
            case Attr(Constant(value, _), name) if isinstance(value, type) and not is_trusted(type(value).__module__):
                self.callee(type.__getattribute__)  # as guards read it: a `__getattribute__` of the metaclass is not asked
                self.const(value)
                self.const(name)
                self.call(2)
            case Attr(base, name) | DictAttr(base, name):
                self.source(base)
                self.load_attr(name)
            case Registered(base, table, name):
                self.source(base)
                self.load_attr(table)
                self.const(name)
                self.emit("BINARY_SUBSCR")
            case Entry(base, key, container):
                self.callee(container.__getitem__)
                self.source(base)
                self.const(key)
                self.call(2)
            case Item(base, key):
                self.source(base)
                self.const(key)
                self.emit("BINARY_SUBSCR")
            case Remembered(base):
                self.callee(native_core().link_result)
                self.source(base)
                self.call(1)
            case Referent(base):
                with self.calling():
                    self.source(base)
                self.call(0)
            case Made(place):
                self.value(self.made[place])
            case Applied(base, function):
                self.callee(function)
                self.source(base)
                self.call(1)
            case ValueAt(base, place):
                self.callee(value_at)
                self.source(base)
                self.const(place)
                self.call(2)
            case Length(base):
                self.callee(len)
                self.source(base)
                self.call(1)
            case TypeOf(base):
                self.callee(type)
                self.source(base)
                self.call(1)
            case ClosureCell(base, _, index):
                self.source(base)
                self.load_attr("__closure__")
                self.const(index)
                self.emit("BINARY_SUBSCR")
                self.load_attr("cell_contents")
            case DefaultArg(base, key):
                self.source(base)
                self.load_attr("__defaults__" if isinstance(key, int) else "__kwdefaults__")
                self.const(key)
                self.emit("BINARY_SUBSCR")
            case _:
                raise VerifyError("capture", f"no residual code for a source of kind {type(source).__name__}")

    # values

    def count(self, values: Iterable[Value]) -> None:
        """Notes how often each value is used, before any is built. One that is also referred to weakly is kept when it is built."""
        work, weak = list(values), dict[Value, None]()
        while work:
            value = work.pop()
            seen = self.uses.get(value, 0)
            self.uses[value] = seen + 1
            if seen == 0 and not is_loadable(value):
                work.extend(value.children())
                if (referred := value.referred()) is not None:
                    weak[referred] = None
        for value in weak:
            if value in self.uses:
                self.uses[value] += 1

    def value(self, value: Value) -> None:
        """Pushes a value; one that is used several times is built once."""
        if value is NULL:
            self.push_null()
            return
        temp = self._temps.get(value)
        if temp is not None:
            self.local("LOAD_FAST", temp)
            return
        if is_loadable(value):
            self.source(value.source)  # type: ignore[arg-type]
            return
        if is_immediate(value):
            self.const(value.value)  # type: ignore[attr-defined]
            return
        if value in self._building:
            raise unsupported("rebuild", f"{value.describe()}, which contains itself")
        self._building.add(value)
        value.rebuild(self)
        self._building.discard(value)
        if self.uses.get(value, 0) > 1:
            self.remember(value)

    def remember(self, value: Value) -> None:
        """Keeps the top of the stack as `value`, for later uses."""
        if value not in self._temps:
            name = self.new_temp()
            self.emit("COPY", 1)
            self.local("STORE_FAST", name)
            self._temps[value] = name

    def has(self, value: Value) -> bool:
        return value in self._temps

    def keep(self, value: Value) -> None:
        """Takes the top of the stack as `value`."""
        name = self.new_temp()
        self.local("STORE_FAST", name)
        self._temps[value] = name

    def prepare(self, value: Value) -> None:
        """Builds a value before effects can change what it is loaded from."""
        if is_immediate(value) or value in self._temps or value is NULL:
            return
        self.value(value)
        if value in self._temps:
            self.emit("POP_TOP")
            return
        self.keep(value)

    def tuple_of(self, values: Sequence[Value]) -> None:
        for value in values:
            self.value(value)
        self.emit("BUILD_TUPLE", len(values))

    # the graph

    def call_graph(self, roots: Sequence[Source], uncounted: Sequence[GraphTensor]) -> None:
        """Calls the graph and keeps its outputs in a local. uncounted: inputs whose version stays as it is."""
        for value in uncounted:
            self.callee(of_torch.unsafe_set_version_counter)
            self.source(value.source)
            self.emit("COPY", 1)
            self.load_attr("_version")
            self.emit("BUILD_TUPLE", 1)
            self.emit("SWAP", 2)
            self.emit("BUILD_TUPLE", 1)
            self.emit("SWAP", 2)
        self.callee(GRAPH)
        for root in roots:
            self.source(root)
        self.call(len(roots))
        self._output_slot = self.new_temp()
        self.local("STORE_FAST", self._output_slot)
        for _ in uncounted:
            self.call(2)
            self.emit("POP_TOP")

    def graph_output(self, value: Value) -> None:
        if self._output_slot is None:
            raise VerifyError("capture", f"{value.describe()} is needed, but there is no graph")
        self.local("LOAD_FAST", self._output_slot)
        self.const(self.outputs[value])
        self.emit("BINARY_SUBSCR")

    def unless(self, assumed: Assumed) -> None:
        """Raises what an assumption says, where its condition is false. What is built for that is not kept: the other path has not got it."""
        before, self.position = self.position, assumed.position
        known, count = dict(self._temps), len(self.varnames)
        self.value(assumed.condition)
        jump = self.emit("POP_JUMP_IF_TRUE")
        if assumed.function is None:
            self.value(assumed.args[0])
            self.emit("RAISE_VARARGS", 1)
        else:
            self.call_function(assumed.function, assumed.args)
            self.emit("POP_TOP")
        jump.target = self.emit("NOP")
        self._elsewhere.update(self.varnames[count:])
        self._temps = known
        self.position = before

    def grad_mode(self, mode: bool) -> None:
        self.callee(of_torch.set_grad_enabled)
        self.const(mode)
        self.call(1)
        self.emit("POP_TOP")

    # the code object

    def finish(self) -> tuple[list[Instr], dict[str, Any]]:
        """All instructions with a prologue, and the fields of the code object."""
        fields: dict[str, Any] = {"co_varnames": tuple(self.varnames), "co_cellvars": tuple(self.cells), "co_freevars": self.code.co_freevars}
        layout = tuple(self.varnames) + tuple(c for c in self.cells if c not in self.varnames) + self.code.co_freevars
        first_free = len(layout) - len(self.code.co_freevars)
        original_free = len(self._original) - len(self.code.co_freevars)
        for instr in self.instrs:
            if instr.op.endswith(" by name"):
                instr.op = instr.op.removesuffix(" by name")
                if instr.arg >= original_free:
                    instr.arg = first_free + instr.arg - original_free
                else:
                    instr.arg = layout.index(self._original[instr.arg])
        prologue = [Instr("COPY_FREE_VARS", len(self.code.co_freevars), None, NOWHERE)] if self.code.co_freevars else []
        prologue += [Instr("MAKE_CELL", layout.index(name), None, NOWHERE) for name in self.cells]
        prologue.append(Instr("RESUME", 0, None, self.position))
        fields |= {"co_consts": tuple(self.consts.items) or (None,), "co_names": tuple(self.names.items)}
        return prologue + self.instrs, fields


def value_at(table: dict[Any, Any], place: int) -> Any:
    return next(islice(table.values(), place, None))


def is_immediate(value: Value) -> bool:
    """Whether it is a constant of the code that uses it."""
    return isinstance(value, ConstantValue) and not value.is_unread and not isinstance(value.value, (float, complex))


def is_loadable(value: Value) -> bool:
    """Whether the residual code can load the object itself."""
    if isinstance(value, ConstantValue) and not value.is_unread:  # of a NaN it may matter which one it is
        return isinstance(value.source, Global) and type(value.value) in (float, complex) and value.value != value.value
    return value.source is not None and not value.is_made or isinstance(value, Lazy)


def parameter_count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)


def outputs_in(values: Iterable[Value]) -> list[TensorValue]:
    """Tensors that the graph must return, for these values to be rebuilt."""
    found: dict[TensorValue, None] = {}
    seen: set[Value] = set()
    work = list(values)[::-1]
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, TensorValue):
            if value.source is None:
                found.setdefault(value)
                work.extend(reversed(list(value.children())))
        elif not is_loadable(value):
            work.extend(reversed(list(value.children())))
    return list(found)


def reached(values: Sequence[Value]) -> list[Value]:
    """The values, and those that their rebuilding needs."""
    seen: dict[Value, None] = {}
    work = list(values)
    while work:
        value = work.pop()
        if value not in seen:
            seen[value] = None
            work.extend(() if is_loadable(value) else value.children())
    return list(seen)
