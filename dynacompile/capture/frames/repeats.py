"""Modules that are alike are followed once.

What one call of a module read below that module, its guards, and what it did, its operations, are a cache entry for the calls of other modules: where
all of these guards hold of another module and its arguments look the same to Python, following its code would give the same operations. They are
recorded again, with the other module's tensors, and not a line of Python is interpreted. What this rests on is what entries of frames rest on: guards
that hold while the capture would be the same. It is for calls that change nothing but tensors; all others are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dynacompile.capture.recorded import Operation, storage_of
from dynacompile.capture.tensors.entry_conditions import Conditions
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.wrappers import tensor_value
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue, SliceValue, is_constant_object
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicInt
from dynacompile.errors import VerifyError
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import GlobalState, ModuleFacts, global_state
from dynacompile.ir.looks import appearance_at
from dynacompile.ir.shapes import expression_of
from dynacompile.ir.source import Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import FrameContext

WORTH = 4  # operations of a call; where there are fewer, following it is cheaper than looking whether it repeats
KEPT = 4  # calls of one class that later ones are compared with


# torch's modes, the contexts that are entered, and the numbers of changes to what modules can reach, of changes to whether tensors require gradients, and of
# conditions on inputs that guards ask
State = tuple[GlobalState, tuple[int, ...], int, int, int]


class Facts(Protocol):
    """What lies at the sources of the frame, before it runs."""

    def value(self, source: Source) -> Any:
        """The object at a source; raises LookupError where there is none."""

    def hold(self, guards: Sequence[Guard]) -> bool: ...


class DiffersError(Exception):
    """A call is not a repetition."""


@dataclass(frozen=True)
class Repeatable:
    """One call of a module that was followed."""

    source: Source
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    looks: tuple[tuple, ...]  # what the tensors among the arguments looked like before the call
    state: State
    guards: tuple[Guard, ...]
    operations: tuple[Operation, ...]
    needed: frozenset[int]  # the operations whose results others can see: these run on fakes of their own
    result: Value


class Repeats:
    """The calls of modules in one capture."""

    def __init__(self, cx: FrameContext, facts: Facts):
        self.cx, self.facts = cx, facts
        self.calls: dict[type, list[Repeatable]] = {}

    def call(self, module: ModuleValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What `module(*args, **kwargs)` gives."""
        if type(module) is not ModuleValue or not self.is_plain() or isinstance(next(iter(module.source.steps())), Constant):
            return module.follow(self.cx, args, kwargs)
        for known in reversed(self.calls.get(module.cls, ())):
            again = Repetition(self.cx, self.facts, known, module)
            if again.matches(args, kwargs):
                return again.record()
        return self.follow(module, args, kwargs)

    def is_plain(self) -> bool:
        """Whether no size depends on values, no body of an operator is being traced, and no exception is handled."""
        cx, recorder = self.cx, self.cx.recorder
        known = cx.symbols is None or not cx.symbols.unbacked
        plain = known and not cx.bodies and cx.handling is None and recorder.watch is None and not recorder.bases
        return plain and not cx.overrides.modes.watched

    def reads_symbols_of(self, module: ModuleValue) -> bool:
        """Whether an attribute of the module, or of what it has, is a symbol, on which its guards say nothing."""
        symbols = self.cx.symbols
        return symbols is not None and any(is_below(source, module.source) for source in symbols.sources())

    def follow(self, module: ModuleValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx = self.cx
        fresh = not was_read(module)
        state, guards, operations = state_now(cx), len(cx.guards), len(cx.recorder.log)
        given = (tuple(args), dict(kwargs))
        looks = tuple(look(value) for value in tensors_in(*args, *kwargs.values()))
        result = module.follow(cx, args, kwargs)
        done = cx.recorder.done(operations)
        if not fresh or len(done) < WORTH or not self.is_plain() or self.reads_symbols_of(module):
            return result
        if all(isinstance(entry, Operation) for entry in done) and state_now(cx) == state:
            found = [cx.guards["MODULE", module.source], *islice(cx.guards.values(), guards, None)]
            below = tuple(g for g in found if g.source is not None and is_below(g.source, module.source))
            call = Repeatable(module.source, *given, looks, state, below, tuple(done), needed(done, result), result)  # type: ignore[arg-type]
            if is_closed(call):
                self.calls[module.cls] = [*self.calls.get(module.cls, ())[-KEPT + 1 :], call]
        return result


class Repetition:
    """The attempt to take a call of `module` for a repetition of `known`. moved: sources below the one module -> what they are below the other.

    tensors: id of a value of `known` -> the value that stands for it. shared: objects that have a value already, and the way that leads there, too.
    """

    def __init__(self, cx: FrameContext, facts: Facts, known: Repeatable, module: ModuleValue):
        self.cx, self.facts, self.known, self.module = cx, facts, known, module
        self.moved: dict[Source, Source] = {known.source: module.source}
        self.tensors: dict[int, Value] = {}
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self.shared: list[tuple[Any, Source]] = []
        self.guards: list[Guard] = []

    def matches(self, args: list[Value], kwargs: dict[str, Value]) -> bool:
        known = self.known
        if len(args) != len(known.args) or list(kwargs) != list(known.kwargs) or state_now(self.cx) != known.state:
            return False
        try:
            for then, now in zip((*known.args, *known.kwargs.values()), (*args, *kwargs.values())):
                self.compare(then, now)
            if known.looks != tuple(look(value) for value in tensors_in(*args, *kwargs.values())):
                return False
            self.compare_memory()
            self.guards = [self.move_guard(guard) for guard in known.guards]
            self.check_inputs()
            self.check_changes()
        except (DiffersError, LookupError):
            return False
        return self.facts.hold(self.guards)

    # arguments

    def compare(self, then: Value, now: Value) -> None:
        """Whether two arguments look the same to Python."""
        if isinstance(then, TensorValue) and isinstance(now, TensorValue):
            if type(then) is not TensorValue or type(now) is not TensorValue:
                raise DiffersError
            if then is not now and (then.source is not None or now.source is not None or is_marked(then) or is_marked(now)):
                raise DiffersError
            if self.tensors.get(id(then), now) is not now:
                raise DiffersError
            self.stand_for(then, now)
        elif isinstance(then, ConstantValue) and isinstance(now, ConstantValue):
            if type(then.value) is not type(now.value) or repr(then.value) != repr(now.value) or then.value != now.value:
                raise DiffersError
        elif isinstance(then, SymbolicInt) and isinstance(now, SymbolicInt):
            if then.source != now.source or expression_of(then.sym) != expression_of(now.sym):
                raise DiffersError
        elif type(then) is TupleValue and type(now) is TupleValue and then.cls is now.cls and len(then.items) == len(now.items):
            for left, right in zip(then.items, now.items):
                self.compare(left, right)
        elif then is not now or then.source is None:
            raise DiffersError

    def compare_memory(self) -> None:
        """Arguments that are one tensor, or share memory, must be or do so in both calls."""
        made = {id(value): value for value in tensors_in(*self.known.args, *self.known.kwargs.values())}
        pairs = [(value, self.tensors[key]) for key, value in made.items() if key in self.tensors]
        for of in (id, lambda value: storage_of(value.fake)):
            if pattern(of(then) for then, _ in pairs) != pattern(of(now) for _, now in pairs):
                raise DiffersError

    # what the call read

    def move(self, source: Source) -> Source:
        """The source below the module that has the place of a source below the other one; objects that have a value already keep their source."""
        found = self.moved.get(source)
        if found is not None:
            return found
        base = getattr(source, "base", None)
        above = None if base is None else self.move(base)
        if above is base:
            found = source
        else:
            found = replace(source, base=above)  # type: ignore[call-arg, type-var]
            real = self.facts.value(found)
            first = None if is_constant_object(real) else self.cx.ways.get(id(real))
            if first is not None and first != found:
                if isinstance(first, Constant):
                    raise DiffersError
                self.shared.append((real, found))
                found = first
        self.moved[source] = found
        return found

    def move_guard(self, guard: Guard) -> Guard:
        assert guard.source is not None
        expected = self.move(guard.expected) if isinstance(guard.expected, Source) else guard.expected
        return replace(guard, source=self.move(guard.source), expected=expected)

    def check_inputs(self) -> None:
        """Tensors of the module that the frame has not written; as many as there were."""
        seen = set()
        for guard in self.guards:
            if guard.kind == "TENSOR_MATCH" and guard.source is not None:
                real = self.facts.value(guard.source)
                value = self.cx.known.get(id(real))
                if id(real) in seen or value is not None and (not isinstance(value, TensorValue) or self.cx.recorder.was_written(value)):
                    raise DiffersError
                seen.add(id(real))

    def check_changes(self) -> None:
        """Guards tell what was there before the frame; what the frame has changed since, they don't tell."""
        pending = self.cx.effects.pending()
        changed = {value.source for value in pending}
        if any(value.source is None for value in pending):  # a closure's cell
            raise DiffersError
        for guard in self.guards if changed else ():
            if guard.kind != "DUPLICATE_INPUT" and any(step in changed for step in guard.source.steps()):  # type: ignore[union-attr]
                raise DiffersError

    # recording

    def record(self) -> Value:
        cx = self.cx
        for real, source in self.shared:
            cx.guard_same(real, source)
        for guard in self.guards:
            self.install(guard)
        for index, operation in enumerate(self.known.operations):
            self.perform(operation, index in self.known.needed)
        return self.renamed(self.known.result)

    def perform(self, operation: Operation, needed: bool) -> None:
        """An operation once more: on fakes, or, where nobody will ask for what it gives, as nodes that share the fakes of the first time."""
        recorder = self.cx.recorder
        args, kwargs = tuple(map(self.renamed, operation.args)), {k: self.renamed(v) for k, v in operation.kwargs.items()}
        if needed:
            with recorder.at(operation.site):
                self.bind(operation.result, recorder.op(operation.kind, operation.target, list(args), kwargs))
            return
        before = len(recorder.nodes)
        recorder.copy(operation, self.nodes)
        for leaf in leaves(operation.result):
            if isinstance(leaf, TensorValue) and id(leaf) not in self.tensors and leaf.node in self.nodes:
                self.tensors[id(leaf)] = tensor_value(self.nodes[leaf.node], leaf.fake)
        made = tuple(recorder.nodes[before:])
        recorder.log.append(replace(operation, args=args, kwargs=kwargs, result=self.renamed(operation.result), nodes=made))

    def install(self, guard: Guard) -> None:
        cx, source = self.cx, guard.source
        assert source is not None
        if guard.kind == "MODULE":
            value = cx.wrap(self.facts.value(source), source)
            assert isinstance(value, ModuleValue) and isinstance(guard.expected, ModuleFacts)
            value.rely_on_all(cx, guard.expected)
        elif guard.kind == "TENSOR_MATCH":
            cx.wrap(self.facts.value(source), source)
        elif source != guard.expected:
            cx.guard_as(guard)

    def renamed(self, value: Value) -> Value:
        if isinstance(value, TensorValue):
            found = self.tensors.get(id(value))
            if found is None:
                found = value
                if value.source is not None and (source := self.move(value.source)) != value.source:
                    found = self.cx.wrap(self.facts.value(source), source)
                self.stand_for(value, found)
            return found
        if not any(True for _ in tensors_in(value)):
            return value if not isinstance(value, ListValue) else ListValue(value.items)
        assert isinstance(value, (TupleValue, ListValue))
        items = [self.renamed(item) for item in value.items]
        return TupleValue(items, value.cls) if isinstance(value, TupleValue) else ListValue(items)

    def bind(self, then: Value, now: Value) -> None:
        before, after = list(leaves(then)), list(leaves(now))
        if len(before) != len(after):
            raise VerifyError("capture", "a repeated operation gave another number of results")
        for left, right in zip(before, after):
            if isinstance(left, TensorValue) != isinstance(right, TensorValue):
                raise VerifyError("capture", "a repeated operation gave a result of another kind")
            if isinstance(left, TensorValue):
                self.stand_for(left, right)

    def stand_for(self, then: TensorValue, now: Value) -> None:
        assert isinstance(now, TensorValue)
        self.tensors[id(then)] = now
        self.nodes[then.node] = now.node


def state_now(cx: FrameContext) -> State:
    changes = cx.effects.count if cx.effects.shows_own() else 0
    conditions = cx.state(Conditions).asked
    return global_state(cx.overrides.modes.devices()), tuple(map(id, cx.modes.autocasts)), cx.effects.outside + changes, cx.recorder.turned, conditions


def was_read(module: ModuleValue) -> bool:
    return module.facts != ModuleFacts(module.cls) or bool(module.tables or module.stored or module.read)


def is_below(source: Source, root: Source) -> bool:
    return any(step == root for step in source.steps())


def look(tensor: TensorValue) -> tuple:
    """What Python can read of a tensor. Symbolic sizes are those of the same expressions: comparing them as numbers would make guards."""
    fake: Any = tensor.sample
    if type(tensor) is not TensorValue or not fake._has_symbolic_sizes_strides:
        return tensor.appearance()
    return appearance_at(fake, *(tuple(map(expression_of, part)) for part in (fake.shape, fake.stride(), (fake.storage_offset(),))))


def leaves(value: Value) -> Iterator[Value]:
    """The values that tuples and lists are made of."""
    if isinstance(value, (TupleValue, ListValue)):
        for item in value.items:
            yield from leaves(item)
    else:
        yield value


def tensors_in(*values: Value) -> Iterator[TensorValue]:
    return (leaf for value in values for leaf in leaves(value) if isinstance(leaf, TensorValue))


def needed(operations: Sequence[Operation], result: Value) -> frozenset[int]:
    """Those that make the result, or memory that it is a part of. All, where one writes what was there before."""
    everything, made = frozenset(range(len(operations))), set[int]()
    for operation in operations:
        before = set().union(*map(memory, (*operation.args, *operation.kwargs.values())))
        if not operation.writes <= made:
            return everything
        made |= memory(operation.result) - before
    shown = memory(result)
    return frozenset(i for i, operation in enumerate(operations) if (memory(operation.result) | operation.writes) & shown)


def memory(value: Value) -> set[int]:
    """The storages of the tensors in a value."""
    return {storage_of(tensor.fake) for tensor in tensors_in(value)}


def is_closed(call: Repeatable) -> bool:
    """Whether operations take nothing but arguments, tensors of before the frame, their own results, and constants; and the result is such a value."""
    known = {id(value) for value in tensors_in(*call.args, *call.kwargs.values())}
    for operation in call.operations:
        for value in (*operation.args, *operation.kwargs.values()):
            if not all(is_known(leaf, known) for leaf in leaves(value)):
                return False
        known |= {id(leaf) for leaf in leaves(operation.result)}
    return is_plain_result(call.result) and all(is_known(leaf, known) for leaf in leaves(call.result))


def is_plain_result(value: Value) -> bool:
    return type(value) in (TensorValue, ConstantValue, SymbolicInt) or type(value) is TupleValue and all(map(is_plain_result, value.items))


def is_known(value: Value, known: set[int]) -> bool:
    if isinstance(value, TensorValue):
        return (id(value) in known or value.source is not None) and not is_marked(value)
    return isinstance(value, (ConstantValue, SliceValue, SymbolicInt)) and not any(isinstance(child, TensorValue) for child in value.children())


def is_marked(value: TensorValue) -> bool:
    """Whether capture knows more of a tensor than its metadata."""
    return bool(value.attributes) or value.new_grad is not None or value.is_number or value.number() is not None


def pattern(keys: Iterator[int]) -> list[int]:
    """For each key, the position of the first one that is the same."""
    first: dict[int, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]
