"""The context of one capture: guards, known objects, the graph, effects, and the stack of frames being interpreted."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

import dynacompile.capture.opcodes
import dynacompile.capture.tensors.override_rows  # noqa: F401 - as above
from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.bytecode import CodeCache
from dynacompile.capture.effects import Effects
from dynacompile.capture.frames.catching import refuse_caught
from dynacompile.capture.frames.interpreter import Choosing, Looping, SymbolicFrame, Watching, inline
from dynacompile.capture.frames.repeats import Facts, Repeats
from dynacompile.capture.frames.rounds import Rounds
from dynacompile.capture.library.kinds import value_of, wrap
from dynacompile.capture.library.operations import apply_operator, equal, is_same, matches
from dynacompile.capture.manner import Manner
from dynacompile.capture.polyfills import is_polyfill
from dynacompile.capture.recorder import Recorder
from dynacompile.capture.symbols import NeedsSymbols, Symbols, is_varying
from dynacompile.capture.tensors.checkpointing import OutsideWrites, refuse_amid_checkpoint
from dynacompile.capture.tensors.entry_conditions import look_up, with_known_numbers
from dynacompile.capture.tensors.generators import drawn
from dynacompile.capture.tensors.listed_numbers import RULES as LISTED
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.tensors.overrides import Overrides
from dynacompile.capture.tensors.random_state import RandomState
from dynacompile.capture.tensors.settings import Settings, fill
from dynacompile.capture.tensors.switches import Switches
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.ambient import called
from dynacompile.capture.values.base import Lazy, Value
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import UnreadBool, UnreadStr, is_constant_object
from dynacompile.capture.values.context import State, SubGraph
from dynacompile.capture.values.contexts import perform
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, class_source, guards_class_data
from dynacompile.capture.values.exceptions import ExceptionValue, Handling
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.keys import key_of
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.own_methods import refuse_asked
from dynacompile.capture.values.plain import plain, tracked
from dynacompile.capture.values.scopes import Globals
from dynacompile.capture.values.sequence import ListValue
from dynacompile.capture.values.slots import slot_method
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.errors import Unsupported
from dynacompile.ir.captured import Guard, Site
from dynacompile.ir.expressions import formula
from dynacompile.ir.guard_facts import Flag, ShapeFacts, identity
from dynacompile.ir.namespaces import IMMUTABLE_TYPE, MISSING, Names, class_lookup, is_computed, is_data
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.ir.source import Constant, Made, Source
from dynacompile.ops.wrappers import let_go_of_masks

if TYPE_CHECKING:
    from dynacompile.cpython.instructions import Position

NAMED = frozenset({"HASATTR", "DICT_CONTAINS", "FLAG"})  # kinds of guards of which one source may have several
CHANGING = frozenset({"HASATTR", "LENGTH", "DICT_KEYS", "DICT_CONTAINS", "SET", "SET_ORDER"})  # kinds of facts that change while an object stays the same
STEPS_OF_OPERATION = 32  # instructions that are traced for each operation that may be: models have 4 to 50, and those with many have few operations
MAX_DEPTH = 120
FOLLOWED = (torch.__file__.rpartition("/")[0] + "/", __file__.rpartition("/")[0] + "/")  # torch, and what capture follows in its stead


def is_refused_by_eager(optimizer: torch.optim.Optimizer) -> bool:
    """Capturable optimizers step parameters on the CPU in compiled programs alone."""
    return any(group.get("capturable") and any(p.device.type == "cpu" for p in group["params"]) for group in optimizer.param_groups)


class Trace:
    """State of one attempt to capture one frame; values call back into it. Dropped when the attempt ends."""

    def __init__(
        self,
        codes: CodeCache,
        root_globals: dict[str, Any],
        builtins: dict[str, Any],
        inference: bool,
        replays_reports: bool = True,
        policy: ShapePolicy | None = None,
        facts: Facts | None = None,
        manner: Manner | None = None,
    ):
        """policy: which sizes and ints are symbolic; None: none are, and the machinery for symbols is not loaded. facts: what the frame is called
        with, for modules that are alike to be followed once; None: each is followed."""
        self.codes, self.builtins, self.replays_reports, self.manner = codes, builtins, replays_reports, manner or Manner()
        self.frames: list[SymbolicFrame] = []
        self.policy, self.symbols = policy, Symbols(policy, self.site) if policy else None
        self.effects = Effects(lambda: refuse_amid_checkpoint(self))
        self.recorder = Recorder(self.site, self.use_settings, self.symbols, policy is not None)
        self.recorder.in_inference = self.recorder.begins_in_inference = inference
        self.recorder.if_whole = self.manner.if_whole
        self.modes = TorchModes(self.recorder, inference)
        self._handling = Handling()
        self._states: dict[type, Any] = {
            TorchModes: self.modes,
            RandomState: self.effects.random,
            Settings: self.effects.settings,
            Switches: self.effects.switches,
            Handling: self._handling,
        }
        self.recorder.follow = partial(self.state(OutsideWrites).note, self)
        self.overrides = Overrides(self, self.effects.modes)
        self.repeats = None if facts is None else Repeats(self, facts)
        self.rounds: Looping = Rounds(self)
        self.watching: Watching | None = None  # the round of a loop that is followed to be repeated
        self.arm: Choosing | None = None  # of a branch both of whose arms are followed
        self.guards: dict[tuple, Guard] = {}
        self.names = Names()  # what was looked up in classes, and in modules that are taken as they are
        self.known: dict[int, Value] = {}  # by id of the object
        self.literals: dict[int, Value] = {}  # by id of a tuple among the constants of code
        self.ways: dict[int, Source] = {}  # the source that such an object was first found at
        self.scopes: dict[int, Globals] = {id(root_globals): Globals(root_globals, True)}
        self.root_scope = self.scopes[id(root_globals)]
        self.bodies: list[SubGraph] = []  # functions that become graphs of their own, being traced
        self.steps, self.most_steps = 0, math.inf
        self.fullgraph = False  # a break is an error
        self.leaves_first_steps = False  # a call in which an optimizer makes its state runs as Python
        self.grads: Mapping[int, tuple[torch.Tensor, torch.Tensor | None]] = {}  # gradients of tensors as the call had them, where it has gone on
        self.hoisted = False  # residual code makes inputs of the graph before it
        self._sites: dict[tuple[int, int], Site] = {}
        self._kept: list[Any] = []
        self._left_at: Site | None = None  # where capture ended
        self._held_at: Site | None = None  # where capture is while no instruction is interpreted

    def state(self, kind: type[State]) -> State:
        """What a module keeps for the attempt, by the class of it; made when it is first asked for."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind()
        return found  # type: ignore[no-any-return]

    @property
    def handling(self) -> ExceptionValue | None:
        """The exception that is being handled."""
        return self._handling.exception

    @handling.setter
    def handling(self, exception: ExceptionValue | None) -> None:
        self._handling.exception = exception

    # values

    def wrap(self, real: Any, source: Source) -> Value:
        """The value of a real object; one object has one value, however it is reached."""
        if is_constant_object(real):
            return wrap(self, real, source)
        found = self.known.get(id(real))
        if found is None:
            found = wrap(self, real, source)
            self.known[id(real)] = found
            self.ways[id(real)] = source
            self._kept.append(real)
        elif self.ways[id(real)] != source:
            self.guard_same(real, source)
        return found

    def known_value(self, real: Any) -> Value | None:
        """The value that a real object has by now."""
        return self.known.get(id(real))

    def know(self, real: Any, value: Value, source: Source) -> None:
        """Gives a real object its value; who calls this keeps the object alive."""
        self.known[id(real)], self.ways[id(real)] = value, source

    def keep(self, real: Any) -> None:
        """An object that is known by its id lives as long as the trace."""
        self._kept.append(real)

    def guard_same(self, real: Any, source: Source) -> None:
        """A second way to an object that has a value already."""
        first = self.ways[id(real)]
        if isinstance(first, Constant):
            self.guard("ID", source, identity(real))
        elif isinstance(source, Constant):
            self.guard("ID", first, identity(real))
        else:
            self.guard("DUPLICATE_INPUT", source, first)

    def force(self, value: Value) -> Value:
        return value.force() if isinstance(value, Lazy) else value

    def of(self, real: Any) -> Value:
        return value_of(self, real)

    def literal(self, real: Any) -> Value:
        """The value of a constant of a code object; a tuple has one, as it is one object."""
        if type(real) is not tuple:
            return value_of(self, real)
        found = self.literals.get(id(real))
        if found is None:
            found = self.literals[id(real)] = value_of(self, real)
        return found

    def symbolic_number(self, real: float | str, source: Source) -> Value | None:
        """The value of an int or float that exists before the frame, where it is symbolic, and of a bool or text that varies."""
        if isinstance(real, (bool, str)):
            kind = UnreadBool if isinstance(real, bool) else UnreadStr
            return kind(self, real, source) if self.policy is not None and source in self.policy.flags else None
        if self.symbols is None and self.policy is not None and is_varying(real, source, self.policy):
            raise NeedsSymbols
        quantity = None if self.symbols is None or isinstance(source, Constant) else self.symbols.number(real, source)
        if quantity is None or self.symbols is None:
            return None
        self.guard("TYPE", source, type(real))
        if isinstance(real, float):
            return SymbolicFloat(self.symbols, formula("is", quantity), source)
        return SymbolicInt(self.symbols, self.symbols.number_of(quantity), source)  # type: ignore[arg-type]

    def class_value(self, cls: type, source: Source | None) -> Value:
        found = self.known.get(id(cls))
        if found is None:
            self.ways[id(cls)] = Constant(cls, cls.__qualname__)
            found = self.known[id(cls)] = ClassValue(cls, self.ways[id(cls)])
            self._kept.append(cls)
        return found

    def scope_of(self, function: FunctionType, source: Source) -> Globals:
        table = function.__globals__
        found = self.scopes.get(id(table))
        if found is None:
            found = self.scopes[id(table)] = Globals(table, False)
        return found

    def global_of(self, table: dict, name: str, make: Callable[[], Value], gone: Callable[[], Value] | None = None) -> Value:
        """gone: where the frame deleted the name."""
        stored = self.effects.globals.get((id(table), name))
        if stored is None:
            return make()
        if stored[2] is not None:
            return stored[2]
        if gone is None:
            raise unsupported("would-raise", f"name {name!r} is not defined")
        return gone()

    def lookup(self, cls: type, name: str, after: type | None = None) -> Any:
        """The raw attribute of a class, MISSING where there is none, which an entry relies on."""
        raw = class_lookup(cls, name, after)
        self.names.of_class(cls, name, after, raw, is_data(raw) and guards_class_data(cls, name, after))
        for hook in () if raw is MISSING or type(raw).__flags__ & IMMUTABLE_TYPE else ("__get__", "__set__", "__delete__"):
            self.names.of_class(type(raw), hook, None, class_lookup(type(raw), hook), False)
        return raw

    def class_attribute(self, owner: Value, name: str) -> Value | None:
        """What the class of `owner` defines in Python under a name, bound to it; None where it does not."""
        cls = owner.pytype()
        assigned = assigned_attribute(self, cls, name)
        if assigned is not None:
            return assigned
        raw = self.lookup(cls, name)
        if not isinstance(raw, (FunctionType, staticmethod, classmethod)) and not is_computed(raw) and not is_data(raw):
            return None
        return bind_descriptor(self, raw, owner, self.class_value(cls, None), name, class_source(cls, name))

    # guards

    def guard(self, kind: str, source: Source | None, expected: object = None) -> None:
        if isinstance(source, Constant) and kind not in CHANGING:  # the entry holds that object
            if kind == "FUNCTION" and not is_polyfill(source.value.__code__):  # type: ignore[attr-defined]
                self.names.of_code(source.value)  # type: ignore[arg-type]
            return
        if self.hoisted and source is not None and isinstance(source.root, Made):  # residual code makes it alike in each call
            return
        key = (kind, source, expected.name) if kind in NAMED else (kind, source)  # type: ignore[attr-defined]
        if key not in self.guards:
            if kind in CHANGING and self.policy is not None and source is not None and source in self.policy.changing:
                raise unsupported("changing-container", source.text())
            self.guards[key] = Guard(kind, source, expected, self.site())

    def guard_as(self, guard: Guard) -> None:
        """A guard as another one is, at its place in the user's code."""
        key = (guard.kind, guard.source, guard.expected.name) if guard.kind in NAMED else (guard.kind, guard.source)  # type: ignore[attr-defined]
        self.guards.setdefault(key, guard)

    def guard_relation(self, facts: ShapeFacts) -> None:
        """A condition on numbers of several sources."""
        self.guards.setdefault(("SHAPE", facts), Guard("SHAPE", None, facts, self.site()))

    def widen(self, kind: str, source: Source, expected: object) -> None:
        """A guard that there is already demands more: more was read of the object."""
        if not isinstance(source, Constant):
            first = self.guards.get((kind, source))
            self.guards[kind, source] = Guard(kind, source, expected, self.site() if first is None else first.site)

    def flag(self, name: str, read: Callable[[], Any], value: Any = None) -> Value:
        """A setting of torch as of now, guarded. value: what it is for the program, where capture has set it otherwise."""
        value = self.guarded_call(read, [], {}) if value is None else value
        self.guard("FLAG", None, Flag(name, read, value))
        return self.of(value)

    # operations

    def op(self, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.arm is not None and (written := self.arm.write(kind, target, args, kwargs)) is not None:
            return written
        if "generator" in kwargs and (made := drawn(self, kind, target, args, kwargs)) is not None:
            return made
        if (rule := LISTED.get(target)) is not None and (found := rule(self, target, args, kwargs)) is not None:
            return found
        self.effects.random.check(target)
        refuse_caught(self, self.frames, target, args, kwargs)
        try:
            made = self.recorder.op(kind, target, args, kwargs)
        except Unsupported as reason:
            if reason.code != "data-dependent-shape" or (known := with_known_numbers(self, args, kwargs)) is None:
                raise
            made = self.recorder.op(kind, target, *known)
        if self.effects.settings.fills(self, target):
            fill(self, made)
        if self.effects.assumed:
            look_up(self, target, made, args, kwargs)
        return made

    def operator(self, name: str, args: Sequence[Value]) -> Value:
        return apply_operator(self, name, args)

    def slot_method(self, value: Value, name: str, args: list[Value]) -> Value | None:
        return slot_method(self, value, name, args)

    def is_same(self, left: Value, right: Value) -> bool:
        return is_same(self, left, right)

    def equal(self, left: Value, right: Value) -> bool:
        return equal(self, left, right)

    def matches(self, left: Value, right: Value) -> bool:
        return matches(self, left, right)

    def pure(self, function: Callable, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Runs a function without side effects on constants. What it raises is what Python would raise."""
        try:
            real_args, real_kwargs = [a.constant() for a in args], {k: v.constant() for k, v in kwargs.items()}
        except NotConstant as reason:
            shown = ", ".join(a.describe() for a in args)
            raise unsupported("unknown-operation", f"{getattr(function, '__name__', function)}({shown})") from reason
        refuse_asked(self, function, [*real_args, *real_kwargs.values()])
        result = self.guarded_call(function, real_args, real_kwargs)
        return ListValue([self.of(item) for item in result]) if type(result) is list else self.of(result)

    def fold(self, function: Callable, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """As `pure`, of functions that leave the containers that they get alone."""
        try:
            real_args, real_kwargs = [plain(a) for a in args], {k: plain(v) for k, v in kwargs.items()}
        except NotConstant as reason:
            shown = ", ".join(a.describe() for a in args)
            raise unsupported("unknown-operation", f"{getattr(function, '__name__', function)}({shown})") from reason
        refuse_asked(self, function, [*real_args, *real_kwargs.values()])
        return tracked(self, self.guarded_call(function, real_args, real_kwargs))

    def guarded_call(self, function: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """function(*args, **kwargs), while the frame is captured. What it raises, the frame raises."""
        try:
            return called(self, function, args, kwargs)
        except Exception as reason:
            check_recurs(reason, lambda: function(*args, **kwargs))
            if isinstance(reason, decimal.DecimalException):  # which tells of signals by their classes
                raise unsupported("would-raise", f"decimal.{type(reason).__name__}") from reason
            builtin = type(reason).__module__ == "builtins" and not isinstance(reason, (OSError, UnicodeError))
            exact = builtin and all(is_constant_object(a) for a in reason.args)
            raise raises(type(reason), *(reason.args if exact else (str(reason),)), known=exact) from reason

    @contextmanager
    def following_each(self) -> Iterator[None]:
        """Each call of a module is followed, also where it is like an earlier one. For modules that have other things than their sources say."""
        before, self.repeats = self.repeats, None
        try:
            yield
        finally:
            self.repeats = before

    def call_module(self, module: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A call of a module, by its code or as an earlier one that was like it."""
        assert isinstance(module, ModuleValue)
        return module.follow(self, args, kwargs) if self.repeats is None else self.repeats.call(module, args, kwargs)

    def inline(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert isinstance(function, FunctionValue)
        if len(self.frames) > MAX_DEPTH:
            raise unsupported("too-deep", function.name)
        performed = perform(self, function, args)
        return inline(self, function, args, kwargs) if performed is None else performed

    def call_real(self, function: Callable, source: Source, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        return self.wrap(function, source).call(self, args, kwargs or {})

    def unless_missing(self, get: Callable[[], Value | None], missing: type | tuple[type, ...] = AttributeError) -> Value | None:
        """get(), or None where it raises `missing`."""
        depth, handling = len(self.frames), self.handling
        try:
            return get()
        except Raised as reason:
            if not issubclass(reason.cls, missing):
                raise
            del self.frames[depth:]
            self.handling = handling
            return None

    def check_first_step(self, table: Value, key: Value) -> None:
        """Leaves a call to Python in which an optimizer makes its state: what later calls do is what is compiled."""
        base = getattr(table.source, "base", None)
        if not self.leaves_first_steps or self.repeats is None or base is None or not isinstance(table, DictValue) or key_of(key) in table.content:
            return
        owner = self.repeats.facts.value(base)
        if isinstance(owner, torch.optim.Optimizer) and not isinstance(owner, torch.optim.LBFGS) and not is_refused_by_eager(owner):
            raise unsupported("first-step", type(owner).__name__)

    def use_settings(self, node: torch.fx.Node) -> None:
        self.effects.settings.use(self.frames)
        self.effects.switches.use(node)

    def let_go(self) -> None:
        """Forgets the frame's objects: values and the trace know each other, so that these would live on until the next collection of garbage.

        The last place stays: later stages ask symbols where they come from. torch's caches keep some symbols, and so the trace, for long.
        """
        self._left_at = self.site() if self.frames else None
        let_go_of_masks([value.fake for value in self.recorder.values.values()])
        self.recorder.let_go()
        for frame in self.frames:
            frame.let_go()
        tables = (self.known, self.literals, self.ways, self.guards, self._kept, self.frames, self.scopes, self._states)
        for table in tables:
            table.clear()  # type: ignore[attr-defined]
        del self.names, self.recorder, self.root_scope, self.codes, self.builtins, self.overrides, self.rounds, self.modes
        self.effects, self.handling, self.repeats, self.symbols, self.watching = Effects(lambda: None), None, None, None, None

    # places

    def limit(self, operations: int) -> None:
        """Ends the trace after so many operations, and instructions in proportion; 0: never."""
        self.recorder.limit = operations or math.inf
        self.most_steps = operations * STEPS_OF_OPERATION or math.inf

    def count_step(self) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            raise unsupported("too-long", self.most_steps)

    def site(self) -> Site:
        """The innermost place outside of torch, and of what is followed in its stead; the frame's own place where there is none."""
        if self._left_at is not None:
            return self._left_at
        if self._held_at is not None:
            return self._held_at
        for frame in reversed(self.frames):
            if not frame.code.co_filename.startswith(FOLLOWED):
                return self.site_of(frame)
        return self.site_of(self.frames[0])

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts, no instruction is interpreted."""
        before, self._held_at = self._held_at, self.site()
        try:
            yield
        finally:
            self._held_at = before

    def site_of(self, frame: SymbolicFrame) -> Site:
        line = frame.line()
        key = (id(frame.code), line)
        found = self._sites.get(key)
        if found is None:
            found = self._sites[key] = Site(frame.code.co_filename, line, frame.code.co_qualname)
        return found

    def stack_sites(self) -> tuple[Site, ...]:
        return tuple(self.site_of(frame) for frame in self.frames if not is_polyfill(frame.code))

    def trail(self) -> tuple[tuple[CodeType, Position], ...]:
        """Code and place of each frame, as a traceback has them: functions written in C, for which polyfills stand, are not in it."""
        return tuple((frame.code, frame.current.position) for frame in self.frames if not is_polyfill(frame.code))
