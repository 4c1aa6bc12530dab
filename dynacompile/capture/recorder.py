"""The graph of one frame as it grows: nodes, fake tensors for their metadata, placeholders."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.joins import JOINS, record_join
from dynacompile.capture.known_numbers import Pairs, Reads, alike, any_known, as_numbers, forget, known_number
from dynacompile.capture.list_operations import LIST_OPS, is_plain, record_over_lists
from dynacompile.capture.operands import as_dtype, constant_of, first_line, has_wide_int, is_asked, target_name, tensors_in
from dynacompile.capture.overlap import is_refused_write, reaches_out, shares_part, writes_twice
from dynacompile.capture.recorded import Operation, as_it_is, memory_of, storage_of
from dynacompile.capture.refused_types import check_out_types, check_types, is_of_torch
from dynacompile.capture.results import ALL, Results
from dynacompile.capture.shared_memory import whole, whole_source
from dynacompile.capture.symbols import NeedsNumbers, NeedsSymbols, Symbols, Unbacked, is_marked
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue, is_constant_object
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicInt, is_symbolic, number_value
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.capture.values.wrappers import PendingTensor, WrapperTensor, check_written, refusing, tensor_value
from dynacompile.capture.wider import may_outgrow, without_write
from dynacompile.errors import Unsupported
from dynacompile.ir.captured import GraphInput, Site, TensorFacts
from dynacompile.ir.fakes import fake_mode, fake_of, with_history, wrapper_fake
from dynacompile.ir.looks import Later, Look, Looks, give
from dynacompile.ir.memory import Folded
from dynacompile.ir.nodes import copy_node, new_node, new_placeholder
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.rounds import Again
from dynacompile.ir.shapes import is_undecided, symbolic_rules
from dynacompile.ir.source import Attr, Source
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.ops.collectives import is_collective, not_computed
from dynacompile.ops.fused_steps import FUSED_STEPS
from dynacompile.ops.wrappers import Enter, Wrapping, begun, is_wrapper
from dynacompile.private.of_torch import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, TorchDispatchMode

QUANTIZING = frozenset({"quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic", "dequantize", "int_repr"})
STRIDED = ("as_strided", torch.as_strided)


class Draws(TorchDispatchMode):
    """Notes whether random numbers are drawn."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own wrapper around every dispatch is for its compiler, not for ours."""
        return False


class Recorder:
    """Runs each operation on fake tensors, and adds it to the graph if it makes or writes tensors.

    site: gives the user's place of the operation being recorded. use: is told of each operation.
    """

    def __init__(self, site: Callable[[], Site], use: Callable[[], None], symbols: Symbols | None = None, heeds_marks: bool = False):
        self.graph = self.root = torch.fx.Graph()  # graph: the one that grows now, below `root` while the body of a transform is traced
        self.symbols, self.heeds_marks = symbols, heeds_marks
        self.mode = fake_mode() if symbols is None else symbols.mode
        self.looks = Looks(self.mode)
        self.results = Results(self.mode, self.looks)
        self.asked: list[GraphInput] = []  # of classes that override torch's functions
        self.inputs: list[GraphInput] = []
        self.tensors: dict[str, TensorValue] = {}  # those of the inputs that are tensors, by the names of their placeholders
        self.values: dict[int, TensorValue] = {}  # id of a fake -> the value it belongs to; the values keep the fakes alive
        self.versions: dict[int, int] = {}  # id of an input's fake -> its version at the start
        self.counted: dict[int, int] = {}  # the same, as torch counts them
        self.tensor_facts: dict[tuple[Look, type], TensorFacts] = {}
        self.ops = 0
        self.rolled = 0  # of these, operations that are no nodes of their own
        self.limit = math.inf  # of the others
        self.graphs: dict[str, torch.fx.GraphModule] = {}  # bodies that the graph, or another body, refers to by name
        self.watch: Draws | None = None
        self.bases: dict[int, TensorValue] = {}  # id of a storage -> the tensor that the frame read `.data` of
        self.data_written: dict[int, TensorValue] = {}  # id of a fake -> a tensor whose `.data` was written
        self.silent: Counter[int] = Counter()  # id of a storage -> writes of it that not all of its tensors' versions count
        self.turned = 0  # tensors that require gradients since an operation wrote them
        self.folded = Folded()
        self.in_inference = False  # whether the frame is in inference mode
        self.begins_in_inference = False
        self.inference_memory: set[int] = set()  # storages of inference tensors
        self.inference_inputs: set[int] = set()  # of those that the graph is given
        self.memories: dict[frozenset[Source], tuple[TensorValue, Source]] = {}  # that several inputs share, and the first of these
        self.held: set[int] = set()  # storages of tensors that calls after the graph are given
        self.shown: set[int] = set()  # of those that guards or residual code read
        self.optional: dict[torch.fx.Node, None] = {}  # nodes without which the graph does the same, where nothing takes what they give
        self.nodes: list[torch.fx.Node] = []  # that have a result, in order
        self.log: list[Operation | Callable[[], Operation] | None] = []  # all that was recorded, in order, or what makes it; None: no operation alone
        self._site, self._use = site, use
        self._last_placeholder: torch.fx.Node | None = None
        self._last_entrance: torch.fx.Node | None = None  # of the nodes behind the placeholders that make wrappers
        self.begins_with_gradients = torch.is_grad_enabled()
        self.wrappers: dict[int, WrapperTensor] = {}  # id of the fake of an input that lies inside of one

    def input(self, real: torch.Tensor, source: Source) -> TensorValue:
        """A placeholder for a tensor that exists before the frame runs."""
        if self.symbols is None and self.heeds_marks and is_marked(real):
            raise NeedsSymbols
        look = self.look(real, source)
        if look is not None:
            later = Later(look)
            node = self.placeholder(source, later)
            self.inputs.append(GraphInput(node.name, source, later))
            value = self.tensors[node.name] = TensorValue(node, later, source, real, self)
            return value
        fake = self.fake(real, source)
        node = self.placeholder(source, fake)
        self.inputs.append(GraphInput(node.name, source, fake, is_asked(type(real))))
        if self.inputs[-1].is_asked:
            self.asked.append(self.inputs[-1])
        value = self.tensors[node.name] = self.values[id(fake)] = TensorValue(node, fake, source, real)
        self.begin(fake)
        if real.is_inference():
            self.inference_memory.add(storage_of(fake))
            self.inference_inputs.add(storage_of(fake))
        return value

    def look(self, real: torch.Tensor, source: Source) -> Look | None:
        """What an input looks like, where its metadata is all that there is to its fake."""
        if type(real) not in PLAIN_CLASSES or not real.is_leaf or real.is_inference():
            return None
        if self.symbols is not None and not self.symbols.has_static_extents(real, source):
            return None
        return self.looks.of(real.size(), real.stride(), real.dtype, real.device, real.requires_grad)

    def made(self, value: TensorValue, fake: torch.Tensor) -> None:
        """The fake of a tensor is there now."""
        self.values[id(fake)] = value
        if value.has_node:
            give(value.node, fake)
        if value.real is not None:
            self.begin(fake)
        value.count_writes(value.writes)

    def facts(self, value: TensorValue) -> TensorFacts:
        """What the guard on an input demands."""
        cls, given = type(value.real), value.given
        if type(given) is Later:
            look = given.look
            found = self.tensor_facts.get((look, cls))
            if found is None:
                found = TensorFacts(cls, look.dtype, look.device, look.grad, tuple(look.size), look.stride)
                self.tensor_facts[look, cls] = found
            return found
        fake = value.fake
        return TensorFacts(cls, fake.dtype, fake.device, fake.requires_grad, *self.static_parts(fake, value.source))

    def shared_input(self, real: torch.Tensor, source: Source, group: frozenset[Source]) -> tuple[TensorValue, Source]:
        """A tensor that exists before the frame runs, as a view of the memory that it shares with others; and the one of these that was met first."""
        if group not in self.memories:
            self.memories[group] = self.input(whole(real), whole_source(source)), source
        memory, first = self.memories[group]
        place = tuple(real.shape), tuple(real.stride()), real.storage_offset()
        with self.mode:
            fake = memory.fake.as_strided(*place)
        node = self.graph.call_function(torch.as_strided, (memory.node, *place))
        self.annotate(node, fake)
        value = self.values[id(fake)] = TensorValue(node, fake, source, real)
        self.begin(fake)
        return value, first

    def wrapper_input(self, real: Any, wrapping: Wrapping, source: Source) -> WrapperTensor:
        """Placeholders for the tensors inside of a wrapper that exists before the frame, and the wrapper of these."""
        if self.heeds_marks and is_marked(real) or real.is_inference():
            raise unsupported("tensor-subclass", f"{source.text()}, of {wrapping.cls.__qualname__}, is marked as dynamic, or an inference tensor,")
        recorded = real.requires_grad and self.begins_with_gradients
        nodes, fakes, parts = [], [], {}
        for name in wrapping.inner:
            inside, at = getattr(real, name), Attr(source, name)
            fake = fake_of(self.mode, begun(inside).detach())
            is_recorded = recorded and (fake.is_floating_point() or fake.is_complex())
            given = with_history(fake_of(self.mode, begun(inside).detach())) if is_recorded else fake
            node = self.placeholder(at, given)
            self.inputs.append(GraphInput(node.name, at, given, wrapper=source))
            value = self.tensors[node.name] = self.values[id(given)] = TensorValue(node, given, at, inside)
            self.begin(given)
            nodes.append(node)
            fakes.append(fake)
            parts[name] = value if given is fake else self.detached(node, fake, at, inside)
        made = wrapper_fake(self.mode, real, wrapping, fakes)
        enter = self.at_begin(Enter(wrapping), tuple(nodes), made)
        wrapper = self.values[id(made)] = WrapperTensor(enter, made, source, real)
        wrapper.parts = parts
        self.begin(made)
        for node in nodes:
            self.wrappers[id(self.tensors[node.name].fake)] = wrapper
        return wrapper

    def pending_input(self, real: Any, source: Source) -> PendingTensor:
        """A placeholder for what the result of a collective is in the end."""
        fake: torch.Tensor = fake_of(self.mode, begun(real).detach())
        if real.requires_grad:
            fake = fake.requires_grad_() if real.is_leaf else with_history(fake)
        node = self.placeholder(source, fake)
        self.inputs.append(GraphInput(node.name, source, fake, is_pending=True))
        value = self.tensors[node.name] = self.values[id(fake)] = PendingTensor(node, fake, source, real)
        self.begin(fake)
        return value

    def detached(self, placeholder: torch.fx.Node, fake: torch.Tensor, source: Source, real: torch.Tensor) -> TensorValue:
        """The tensor inside of a wrapper as the program has it: gradients of the wrapper do not come by it."""
        value = self.values[id(fake)] = TensorValue(self.at_begin("detach", (placeholder,), fake), fake, source, real)
        return value

    def at_begin(self, target: Any, args: tuple[torch.fx.Node, ...], value: object) -> torch.fx.Node:
        """A node that comes before all operations."""
        last = self._last_entrance or self._last_placeholder
        assert last is not None
        with self.root.inserting_after(last):
            node = self.root.create_node("call_method" if isinstance(target, str) else "call_function", target, args)
        node.meta["val"] = node.meta["example_value"] = value
        node.meta["site"] = self._site()
        self._last_entrance = node
        return node

    def number_input(self, source: Source, number: torch.SymInt | torch.SymFloat) -> torch.fx.Node:
        """A placeholder for a symbolic int or float that exists before the frame runs, or is computed then."""
        node = self.placeholder(source, number)
        self.inputs.append(GraphInput(node.name, source, number))
        return node

    def placeholder(self, source: Source, value: object) -> torch.fx.Node:
        """A new placeholder behind those that there are."""
        text = source.text()
        node = new_placeholder(self.root, "self_" if text == "self" else text, self._last_placeholder)  # a graph's forward has a self of its own
        give(node, value)
        self._last_placeholder = node
        return node

    def placeholder_of(self, source: Source) -> torch.fx.Node:
        """The placeholder of the tensor at a source."""
        value = next(self.tensors[i.name] for i in self.inputs if i.source == source)
        return value.node if value.has_fake else self.values[id(value.fake)].node

    def fake(self, real: torch.Tensor, source: Source) -> torch.Tensor:
        return fake_of(self.mode, real) if self.symbols is None else self.symbols.fake(real, source)

    def static_parts(self, real: torch.Tensor, source: Source) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """Sizes and strides of an input, None for those that may vary."""
        return (tuple(real.shape), tuple(real.stride())) if self.symbols is None else self.symbols.static_parts(source)

    def op(self, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Runs and records one operation. kind: call_function or call_method."""
        self.refuse_more()
        if kind == "call_function" and target in LIST_OPS and is_plain(self):
            over_lists = record_over_lists(self, target, args, kwargs, self._site())
            if over_lists is not None:
                return over_lists
        if kind == "call_function" and target in JOINS:
            join = record_join(self, target, args, kwargs, self._site())
            if join is not None:
                return join
        before = len(self.nodes)
        made, writes = self.run_and_record(kind, target, args, kwargs)
        given = tuple(map(as_it_is, args)), {k: as_it_is(v) for k, v in kwargs.items()}
        self.log.append(Operation(kind, target, *given, made, self._site(), tuple(self.nodes[before:]), writes))
        return made

    def done(self, since: int) -> list[Operation | None]:
        """What was recorded since the log had that length."""
        self.log[since:] = [entry() if callable(entry) else entry for entry in self.log[since:]]
        return self.log[since:]  # type: ignore[return-value]

    def refuse_more(self) -> None:
        if self.ops - self.rolled >= self.limit:
            raise unsupported("too-many-operations", self.limit)

    def copy(self, operation: Operation, nodes: dict[torch.fx.Node, torch.fx.Node]) -> None:
        """Adds the nodes of an operation again, on others: `nodes` has those for its operands, and gets the new ones."""
        self.refuse_more()
        if operation.writes and self.held:  # which of the other tensors it writes is not asked
            raise unsupported("after-graph", "a tensor is written after a call that is made after the graph was given another")
        for node in operation.nodes:
            nodes[node] = copy_node(self.graph, node, lambda operand: nodes.get(operand, operand))
            self.nodes.append(nodes[node])
        self.ops += bool(operation.nodes)

    def repeat(self, again: Again, operands: tuple[torch.fx.Node, ...], count: int, writes: bool) -> torch.fx.Node:
        """Adds one node for operations that were recorded for other operands. count: how many they are."""
        self.refuse_more()
        if writes and self.held:  # which of the other tensors they write is not asked
            raise unsupported("after-graph", "a tensor is written after a call that is made after the graph was given another")
        node = new_node(self.graph, "call_function", again, operands, {}, again.__name__)
        node.meta["site"] = again.nodes[0].meta["site"]
        self.ops += count
        self.rolled += count - 1
        self.log.append(None)
        return node

    def copy_fresh(self, operation: Operation, nodes: dict[torch.fx.Node, torch.fx.Node], look: Look) -> TensorValue:
        """As `copy`, of an operation with one result, in memory of its own: a tensor like that one."""
        self.copy(operation, nodes)
        node = nodes[operation.nodes[0]]
        later = Later(look)
        give(node, later)
        return TensorValue(node, later, recorder=self)

    def run_and_record(self, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[Value, frozenset[int]]:
        """What the operation gives, and the storages that it writes."""
        try:
            pairs = [a.argument() for a in args]
            named = {k: v.argument() for k, v in kwargs.items()}
        except NotConstant as value:
            raise unsupported("unknown-operation", f"{target_name(target)} with a {value} argument") from value
        if target_name(target) in QUANTIZING:
            raise unsupported("op-unsupported", f"{target_name(target)}: fakes do not know quantized tensors")
        if target in STRIDED and (len(args) > 3 or "storage_offset" in kwargs):
            raise unsupported("tensor-attribute", "as_strided with an offset, which counts from the start of the storage")
        if target in STRIDED and reaches_out(pairs, named):
            raise unsupported("tensor-attribute", "as_strided beyond the elements of the tensor, into what else its storage has")
        fakes = [p[1] for p in pairs]
        fake_kwargs = {k: p[1] for k, p in named.items()}
        if any(map(has_wide_int, (*fakes, *fake_kwargs.values()))):
            raise unsupported("unknown-operation", f"{target_name(target)} with an int of more than 64 bits")
        operands = tensors_in((fakes, fake_kwargs))
        outs = tensors_in(fake_kwargs.get("out"))
        inputs = {k: v for k, v in fake_kwargs.items() if k != "out"}
        given = tensors_in((fakes, inputs))
        if writes_twice(target_name(target), fakes):
            raise unsupported("aliased-mutation", f"{target_name(target)} writes some memory twice")
        check_types(target, [*fakes, *inputs.values()], given)
        if outs and is_of_torch(target):
            check_out_types(target, outs, tensors_in(self.run(kind, target, fakes, inputs)))
        if len(operands) > 1 and not outs:
            self.check_written_size(kind, target, fakes, fake_kwargs, operands)
        pairs, named = [as_dtype(target, p) for p in pairs], {k: as_dtype(target, p) for k, p in named.items()}
        before = [(self.version(f), f.requires_grad) for f in operands]
        sizes = [out.shape for out in outs]
        self.mode.touched.clear()
        if any_known(operands):
            result, pairs, named = self.run_known(kind, target, pairs, named)
        else:
            result = self.run_or_repeat(kind, target, fakes, fake_kwargs, operands)
        written = self.note_writes(operands, [version for version, _ in before])
        self.turned += sum(f.requires_grad != required for f, (_, required) in zip(operands, before))
        writes = bool(written)
        if writes:
            self.check_asked()
            check_written(written, self.wrappers.values())
        if any(out.shape != size for out, size in zip(outs, sizes)):
            raise unsupported("op-failed", f"{target_name(target)}: the operand to be written takes other sizes")
        if any(shares_part(out, t) for out in outs for t in given):
            raise unsupported("op-failed", f"{target_name(target)}: the operand to be written shares a part of its memory with another")
        if writes and len(operands) > 1 and written[0] is operands[0] and is_refused_write(target, fakes, operands):
            raise unsupported("op-failed", f"{target_name(target)}: operands share a part of their memory")
        if self.inference_memory and not self.in_inference:
            self.check_inference(operands, written)
        if self.inference_inputs and not self.begins_in_inference and any(storage_of(t) in self.inference_inputs for t in written):
            raise unsupported("mutation", "an inference tensor of the caller's is written, in a block of inference mode,")
        self.check_held(map(storage_of, written))
        if any(map(self.folded.has, written)):
            raise unsupported("aliased-mutation", f"{target_name(target)} writes a view of which several elements are one")
        made = tensors_in(result)
        for t in made:
            if not isinstance(t, FakeTensor) and type(t) is not torch.Tensor and not is_wrapper(t):
                raise unsupported("unknown-object", f"the result of {target_name(target)}, a {type(t).__name__}")
            if t.layout is not torch.strided or t.is_nested:
                raise unsupported("unknown-object", f"the result of {target_name(target)}, a tensor that is not dense")
            if self.in_inference and all(storage_of(t) != storage_of(f) for f in operands):
                self.inference_memory.add(storage_of(t))
        self.folded.note(target, made, operands)
        if self.bases:
            self.check_bases(written)
        fresh = self.symbols.fresh() if self.symbols is not None else ()
        if not writes and not fresh and (known := self.known(result)) is not None:
            return known, frozenset()
        make = self.graph.create_node if self.symbols is None else functools.partial(add_node, self.graph)
        if self.graph is not self.root and self.symbols is not None:  # the body of a transform takes constants alone
            pairs = [(torch.fx.node.map_aggregate(p[0], constant_of), p[1]) for p in pairs]
            named = {k: (torch.fx.node.map_aggregate(p[0], constant_of), p[1]) for k, p in named.items()}
        node = make(kind, target, tuple(p[0] for p in pairs), {k: p[0] for k, p in named.items()})
        self.annotate(node, result)
        self.ops += 1
        given_back = self.result(node, result)
        if fresh:
            self.note_values(fresh, given_back, args)
        return given_back, frozenset(map(storage_of, written))

    def begin(self, fake: torch.Tensor) -> None:
        """Notes how often an input has been written before the frame does."""
        self.versions[id(fake)], self.counted[id(fake)] = self.version(fake), fake._version

    def version(self, fake: torch.Tensor) -> int:
        """How often a tensor was written, by whatever operation."""
        return fake._version + self.silent[memory_of(fake)] if self.silent else fake._version

    def note_writes(self, operands: Sequence[torch.Tensor], before: Sequence[int]) -> list[torch.Tensor]:
        """Those operands that the last operation has written. before: their versions.

        Torch counts no version where an operator gives nothing back (fused steps, checks of gradient scalers), for running statistics, nor for a tensor
        whose `.data` is written.
        """
        written = [f for f, version in zip(operands, before) if self.version(f) != version]
        touched = self.mode.touched
        if not touched:
            return written
        counted = {id(f) for f in written}
        silent = {memory for f in operands if id(f) not in counted and (memory := memory_of(f)) in touched}
        silent |= self.bases.keys() & map(storage_of, written) if self.bases else set()
        self.silent.update(silent)
        return [f for f, version in zip(operands, before) if self.version(f) != version] if silent else written

    def note_values(self, fresh: Sequence[Any], value: Value, args: Sequence[Value]) -> None:
        """Notes where symbols that depend on values are shown: in sizes of a result, or by a number that is read from the first argument."""
        assert self.symbols is not None
        if isinstance(value, SymbolicInt) and isinstance(args[0], TensorValue):
            self.symbols.unbacked[value.sym.node.expr] = Unbacked(args[0], next(iter(reversed(self.graph.nodes))), None)
        for owner in [value, *value.children()]:
            if isinstance(owner, TensorValue):
                for dim, size in enumerate(owner.fake.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr in fresh:
                        self.symbols.unbacked.setdefault(size.node.expr, Unbacked(owner, owner.node, dim))
        if any(symbol not in self.symbols.unbacked for symbol in fresh):
            raise unsupported("data-dependent-shape", "an operation")

    def effect(self, kind: str, target: Any, args: tuple, value: Any) -> None:
        """Records a call for what it does to its operands, or to autograd. value: what it gives."""
        self.annotate(self.graph.create_node(kind, target, args), value)
        self.ops += 1
        self.log.append(None)

    def call_graphs(self, target: Any, arguments: Callable[..., tuple], graphs: dict[str, torch.fx.GraphModule], fakes: tuple) -> Value:
        """Records a call that takes graphs. arguments: makes its arguments of the nodes of the graphs; fakes: what it gives."""
        nodes = []
        for role, graph in graphs.items():
            name = f"{role}_{len(self.graphs)}"
            self.graphs[name] = graph
            nodes.append(self.graph.create_node("get_attr", name))
        node = self.graph.call_function(target, arguments(*nodes))
        self.annotate(node, fakes)
        self.ops += 1
        self.log.append(None)
        return self.result(node, fakes)

    def owner(self, graph: torch.fx.Graph) -> torch.nn.Module:
        """A module with the bodies that a graph refers to."""
        root = torch.nn.Module()
        for node in graph.nodes:
            if node.op == "get_attr":
                root.add_module(node.target, self.graphs[node.target])
        return root

    def data_of(self, value: TensorValue) -> Value:
        """`.data`: the same memory, unknown to autograd."""
        self.bases.setdefault(storage_of(value.fake), value)
        forget(value.fake)  # writes to `.data` have versions of their own
        return self.op("call_function", getattr, [value, ConstantValue("data")], {})

    def check_bases(self, written: list[torch.Tensor]) -> None:
        """Refuses to write the memory of `.data` where autograd kept the tensor already: eager's backward would see the new values."""
        for fake in written:
            base = self.bases.get(storage_of(fake))
            if base is None:
                continue
            if base.source is not None and type(base) is not TensorValue:  # whose version residual code would ask its class for
                raise unsupported("mutation", f"{base.describe()}.data is written")
            self.data_written[id(base.fake)] = base
            if base.fake.requires_grad and any(t.requires_grad and not t.is_leaf for user in base.node.users for t in tensors_in(user.meta.get("val"))):
                raise unsupported("mutation", f"{base.describe()}.data is written after an operation that gradients go through")

    def check_held(self, written: Iterable[int]) -> None:
        """Refuses to write the memory of what a call after the graph was given."""
        if self.held and not self.held.isdisjoint(written):
            raise unsupported("after-graph", "a tensor is written after a call that is made after the graph was given it")

    def check_inference(self, operands: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Leaves to torch what it may refuse outside of inference mode: to write inference tensors, and to save them for a backward pass."""
        given = [t for t in operands if storage_of(t) in self.inference_memory]
        records = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
        if given and (records or any(t is w for t in given for w in written)):
            raise unsupported("mutation" if written else "autograd-call", "an inference tensor used outside of inference mode")

    def is_inference(self, fake: torch.Tensor) -> bool:
        return storage_of(fake) in self.inference_memory

    def check_asked(self) -> None:
        """Refuses to write inputs that the graph gets an alias of where autograd follows them: the alias would have a history of its own."""
        for item in self.asked:
            if item.fake.requires_grad and self.is_counted(id(item.fake)):  # type: ignore[attr-defined]
                raise unsupported("mutation", f"{item.source.text()}, of a class that overrides torch's functions, is written and requires gradients")

    @contextmanager
    def at(self, site: Site) -> Iterator[None]:
        """What is recorded meanwhile is of that place."""
        before, self._site = self._site, lambda: site
        try:
            yield
        finally:
            self._site = before

    @contextmanager
    def watching(self) -> Iterator[Draws]:
        """Sees whether what is recorded meanwhile draws random numbers."""
        outer, self.watch = self.watch, Draws()
        try:
            yield self.watch
        finally:
            if outer is not None:
                outer.seen |= self.watch.seen
            self.watch = outer

    def check_written_size(self, kind: str, target: Any, fakes: list[Any], kwargs: dict[str, Any], operands: Sequence[torch.Tensor]) -> None:
        """Raises Unsupported where the operation would write to its first operand a result of other sizes."""
        plain = without_write(kind, target)
        if plain is None or not may_outgrow(operands) or not is_of_torch(target):
            return
        result = self.run(*plain, fakes, kwargs)
        if isinstance(result, torch.Tensor) and result.shape != operands[0].shape:
            raise unsupported("op-failed", f"{target_name(target)}: a result that its first operand has no place for")

    def run_or_repeat(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], operands: Sequence[torch.Tensor]) -> Any:
        """As `run`; an operation that was run on fakes of the same metadata gives a result like the one of that time."""
        key = self.results.key(kind, target, args, kwargs) if self.watch is None else None
        result: Any = self.results.again(key, args)
        if result is None and self.watch is None:
            result = self.results.each(target, args, kwargs, lambda few: self.run(kind, target, list(few), kwargs))
            if result is not ALL:
                return result
            result = None
        if result is None:
            before = [f._version for f in operands]
            result = self.run(kind, target, args, kwargs)
            others = operands[1:] if operands and result is operands[0] else operands
            if not self.mode.touched or self.mode.touched.isdisjoint(map(memory_of, others)):
                self.results.note(key, result, args, operands, before)
        return result

    def run(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], reads: Reads | None = None) -> Any:
        """One operation on fakes. What the user's operation may raise is up to torch: every exception that it raises means that eager is to run it."""
        try:
            return self.run_once(kind, target, args, kwargs, reads)
        except (Unsupported, NeedsNumbers):
            raise
        except Exception as reason:
            if not isinstance(reason, RecursionError):
                check_recurs(reason, lambda: self.run_once(kind, target, args, kwargs, reads))
            if isinstance(reason, (DataDependentOutputException, DynamicOutputShapeException)) or isinstance(reason, RuntimeError) and is_undecided(reason):
                raise unsupported("data-dependent-shape", target_name(target)) from reason
            raise unsupported("op-failed", f"{target_name(target)}: {type(reason).__name__}: {first_line(reason)}") from reason

    def run_once(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], reads: Reads | None) -> Any:
        if target in FUSED_STEPS:  # whose numbers say nothing of what is written; asking a symbol for its value would make it a constant
            kwargs = {k: 1.0 if isinstance(v, torch.SymFloat) else v for k, v in kwargs.items()}
        operands = tensors_in((args, kwargs))
        if any(map(is_wrapper, operands)) and any(isinstance(n, torch.SymInt) for n in (*args, *kwargs.values())):
            raise NeedsNumbers("a tensor that wraps others")
        apart = not_computed(operands) if is_collective(target) else refusing(operands)
        with self.mode, symbolic_rules(self.mode), reads or nullcontext(), self.watch or nullcontext(), apart:
            if kind == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return target(*args, **kwargs)

    def run_known(self, kind: str, target: Any, args: Pairs, kwargs: dict[str, tuple]) -> tuple[Any, Pairs, dict[str, tuple]]:
        """As `run`, where the values of operands are known; and the arguments, with numbers for those that the operation reads as such."""
        fakes, named = [p[1] for p in args], {k: p[1] for k, p in kwargs.items()}
        reads = Reads()
        result = self.run(kind, target, fakes, named, reads)
        if not reads.seen or any(id(fake) not in self.values or known_number(fake) is None for fake in reads.seen.values()):
            return result, args, kwargs
        numbers, named_numbers = as_numbers(reads, lambda fake: self.values[id(fake)].node, args, kwargs)
        if isinstance(result, torch.Tensor) and not any(result is fake for fake in fakes):
            again = self.run(kind, target, [p[1] for p in numbers], {k: p[1] for k, p in named_numbers.items()})
            if not alike(result, again):
                return result, args, kwargs
        return result, numbers, named_numbers

    def known(self, result: Any) -> Value | None:
        """The value of a result that needs no node: an operand itself, or plain data."""
        if isinstance(result, torch.Tensor):
            return self.values.get(id(result))
        if self.symbols is not None and is_symbolic(result):
            return number_value(self.symbols, result)
        if result is not None and is_constant_object(result):
            return ConstantValue(result)
        if type(result) in (tuple, list) and result and not any(True for _ in tensors_in(result)):
            cls = TupleValue if type(result) is tuple else ListValue
            items = [self.known(item) if item is not None else ConstantValue(None) for item in result]
            return cls([i for i in items if i is not None]) if None not in items else None
        return None

    def annotate(self, node: torch.fx.Node, result: Any) -> None:
        node.meta["val"] = node.meta["example_value"] = result
        self.note_node(node, self._site())

    def note_node(self, node: torch.fx.Node, site: Site) -> None:
        """Notes where the user's code has an operation that was recorded."""
        self._use()
        node.meta["site"] = site
        self.nodes.append(node)
        node.stack_trace = f'  File "{site.file}", line {site.line}, in {site.function}'

    def result(self, node: torch.fx.Node, result: Any) -> Value:
        if isinstance(result, torch.Tensor):
            found = self.values.get(id(result))
            if found is None:
                found = self.values[id(result)] = tensor_value(node, result)
            return found
        if isinstance(result, (tuple, list)):
            items = [self.element(node, i, item) for i, item in enumerate(result)]
            return ListValue(items) if type(result) is list else TupleValue(items, type(result))
        if self.symbols is not None and is_symbolic(result):
            return number_value(self.symbols, result)
        if result is None or is_constant_object(result):
            return ConstantValue(result)
        raise unsupported("unknown-object", f"a result of type {type(result).__name__} of {node.name}")

    def element(self, node: torch.fx.Node, index: int, item: Any) -> Value:
        if isinstance(item, torch.Tensor) and id(item) in self.values:
            return self.values[id(item)]
        if not isinstance(item, (torch.Tensor, tuple, list)):
            return self.result(node, item)
        part = new_node(self.graph, "call_function", operator.getitem, (node, index), {}, "getitem")
        self.annotate(part, item)
        return self.result(part, item)

    def state_change(self, target: Any, *args: Any) -> torch.fx.Node:
        """A node that changes the state of the interpreter (grad mode, autocast) for the nodes after it."""
        node = self.graph.call_function(target, args)
        node.meta["site"] = self._site()
        self.log.append(None)
        return node

    def python_effect(self, target: Any, args: list[Value]) -> None:
        """A node that is there for what it does to Python."""
        node = add_node(self.graph, "call_function", target, tuple(a.argument()[0] for a in args), {})
        self.annotate(node, None)
        self.ops += 1
        self.log.append(None)

    def drop_unused(self, outputs: Iterable[torch.fx.Node]) -> None:
        """Takes the optional nodes away that nothing takes."""
        kept = set(outputs)
        for node in reversed(self.optional):
            if not node.users and node not in kept:
                self.graph.erase_node(node)
                self.ops -= 1

    def written_inputs(self) -> list[GraphInput]:
        return [i for i in self.inputs if (value := self.tensors.get(i.name)) is not None and self.was_written(value)]

    def was_written(self, value: TensorValue) -> bool:
        """Whether the frame wrote an input so far."""
        if not value.has_fake:
            return value.writes > 0
        return self.is_counted(id(value.fake)) or id(value.fake) in self.data_written

    def is_counted(self, key: int) -> bool:
        """Whether writes to an input changed its version."""
        wrapper = self.wrappers.get(key)
        if wrapper is not None and self.version(wrapper.fake) != self.versions[id(wrapper.fake)]:
            return True
        return self.version(self.values[key].fake) != self.versions[key]

    def input_versions(self) -> dict[int, int]:
        """The version that each input has now, by the id of its fake."""
        return {key: self.version(self.values[key].fake) for key in self.versions}

    def uncounted(self) -> list[TensorValue]:
        """Inputs that are written through `.data` alone, which autograd must not notice."""
        return [value for key, value in self.data_written.items() if key in self.versions and value.fake._version == self.counted[key]]

    def fresh_inputs(self) -> tuple[GraphInput, ...]:
        """The inputs with the metadata they have before the graph runs, also where the graph writes them."""
        out = []
        for item in self.inputs:
            value = self.tensors.get(item.name)
            if value is not None and self.was_written(value):
                fresh = self.fresh(item, value)
                give(value.node, fresh)
                item = replace(item, given=fresh)
            out.append(item)
        return tuple(out)

    def fresh(self, item: GraphInput, value: TensorValue) -> object:
        """The fake of an input, as it is before the graph runs."""
        if type(item.given) is Later:
            return Later(item.given.look)
        if item.wrapper is None:
            return self.fake(value.real, item.source)
        inside = fake_of(self.mode, begun(value.real).detach())
        return with_history(inside) if value.fake.requires_grad else inside


PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
