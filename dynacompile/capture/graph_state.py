"""The state of the graph of one frame as it grows: its nodes, the fakes that tell their metadata, and which of these were written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.known_numbers import Reads
from dynacompile.capture.missing_kernels import Kernels
from dynacompile.capture.operands import first_line, target_name, tensors_in
from dynacompile.capture.recorded import Operation, memory_of, storage_of
from dynacompile.capture.results import Results
from dynacompile.capture.small_sizes import before, forget, is_repeatable, required, taken_wrongly
from dynacompile.capture.symbols import NeedsNumbers, Symbols
from dynacompile.capture.tensors.wrappers import refusing
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.errors import Unsupported
from dynacompile.ir.captured import GraphInput, Site, TensorFacts
from dynacompile.ir.fakes import answers_devices, fake_mode
from dynacompile.ir.looks import Look, Looks, give
from dynacompile.ir.memory import Folded
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import is_undecided, symbolic_rules, unbacked
from dynacompile.ir.source import Source
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.ops.collectives import is_collective, not_computed
from dynacompile.ops.fused_steps import FUSED_STEPS
from dynacompile.ops.passed_numbers import StandIns, casts_without_symbols, has_static_sizes, stand_in, varies
from dynacompile.ops.wrappers import is_wrapper
from dynacompile.private.of_torch import DataDependentOutputException, DynamicOutputShapeException, TorchDispatchMode


@answers_devices
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


class GraphState:
    """What is known of the graph so far.

    site: gives the user's place of the operation being recorded. use: is told of each operation.
    """

    def __init__(self, site: Callable[[], Site], use: Callable[[torch.fx.Node], None], symbols: Symbols | None = None, heeds_marks: bool = False):
        self.graph = self.root = torch.fx.Graph()  # graph: the one that grows now, below `root` while the body of a transform is traced
        self.symbols, self.heeds_marks = symbols, heeds_marks
        self.mode = fake_mode() if symbols is None else symbols.mode
        self.looks = Looks(self.mode)
        self.results = Results(self.mode, self.looks)
        self.asked: list[GraphInput] = []  # of classes that override torch's functions
        self.inputs: list[GraphInput] = []
        self.tensors: dict[str, GraphTensor] = {}  # those of the inputs that are tensors, by the names of their placeholders
        self.values: dict[int, GraphTensor] = {}  # id of a fake -> the value it belongs to; the values keep the fakes alive
        self.versions: dict[int, int] = {}  # id of an input's fake -> its version at the start
        self.counted: dict[int, int] = {}  # the same, as torch counts them
        self.tensor_facts: dict[tuple[Look, type], TensorFacts] = {}
        self.ops = 0
        self.rolled = 0  # of these, operations that are no nodes of their own
        self.limit = math.inf  # of the others
        self.graphs: dict[str, torch.fx.GraphModule] = {}  # bodies that the graph, or another body, refers to by name
        self.watch: Draws | None = None
        self.bases: dict[int, GraphTensor] = {}  # id of a storage -> the tensor that the frame read `.data` of
        self.rebound: set[int] = set()  # ids of the fakes of tensors that have others' `.data`, and require gradients
        self.data_written: dict[int, GraphTensor] = {}  # id of a fake -> a tensor whose `.data` was written
        self.silent: Counter[int] = Counter()  # id of a storage -> writes of it that not all of its tensors' versions count
        self.turned = 0  # tensors that require gradients since an operation wrote them
        self.folded = Folded()
        self.kernels = Kernels()
        self.in_inference = False  # whether the frame is in inference mode
        self.begins_in_inference = False
        self.inference_memory: set[int] = set()  # storages of inference tensors
        self.inference_inputs: set[int] = set()  # of those that the graph is given
        self.memories: dict[frozenset[Source], tuple[GraphTensor, Source]] = {}  # that several inputs share, and the first of these
        self.resized: dict[int, int] = {}  # id of a storage -> the bytes that the frame gave it; it is resized after the graph
        self.held: set[int] = set()  # storages of tensors that calls after the graph are given
        self.shown: set[int] = set()  # of those that guards or residual code read
        self.optional: dict[torch.fx.Node, None] = {}  # nodes without which the graph does the same, where nothing takes what they give
        self.nodes: list[torch.fx.Node] = []  # that have a result, in order
        self.log: list[Operation | Callable[[], Operation] | None] = []  # all that was recorded, in order, or what makes it; None: no operation alone
        self._site, self._use = site, use
        self._last_placeholder: torch.fx.Node | None = None
        self._last_entrance: torch.fx.Node | None = None  # of the nodes behind the placeholders that make wrappers
        self.begins_with_gradients = torch.is_grad_enabled()
        self.if_whole = False  # as in Manner
        self.talks_later = ""
        self.follow: Callable[[Any, Sequence[Value], bool], None] = lambda target, args, writes: None  # is told of operations, and whether they write inputs
        self.wrappers: dict[int, GraphTensor] = {}  # id of the fake of an input that lies inside of one

    def made(self, value: GraphTensor, fake: torch.Tensor) -> None:
        """The fake of a tensor is there now."""
        self.values[id(fake)] = value
        if value.has_node:
            give(value.node, fake)
        if value.real is not None:
            self.begin(fake)
        value.count_writes(value.writes)

    def done(self, since: int) -> list[Operation | None]:
        """What was recorded since the log had that length."""
        self.log[since:] = [entry() if callable(entry) else entry for entry in self.log[since:]]
        return self.log[since:]  # type: ignore[return-value]

    def refuse_more(self) -> None:
        if self.ops - self.rolled >= self.limit:
            raise unsupported("too-many-operations", self.limit)

    def begin(self, fake: torch.Tensor) -> None:
        """Notes how often an input has been written before the frame does."""
        self.versions[id(fake)], self.counted[id(fake)] = self.version(fake), fake._version

    def version(self, fake: torch.Tensor) -> int:
        """How often a tensor was written, by whatever operation."""
        return fake._version + self.silent[memory_of(fake)] if self.silent else fake._version

    def effect(self, kind: str, target: Any, args: tuple, value: Any) -> None:
        """Records a call for what it does to its operands, or to autograd. value: what it gives."""
        self.annotate(self.graph.create_node(kind, target, args), value)
        self.ops += 1
        self.log.append(None)

    def owner(self, graph: torch.fx.Graph) -> torch.nn.Module:
        """A module with the bodies that a graph refers to."""
        root = torch.nn.Module()
        for node in graph.nodes:
            if node.op == "get_attr":
                root.add_module(node.target, self.graphs[node.target])
        return root

    def is_inference(self, fake: torch.Tensor) -> bool:
        return storage_of(fake) in self.inference_memory

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

    def annotate(self, node: torch.fx.Node, result: Any) -> None:
        node.meta["val"] = node.meta["example_value"] = result
        self.note_node(node, self._site())

    def note_node(self, node: torch.fx.Node, site: Site) -> None:
        """Notes where the user's code has an operation that was recorded."""
        self._use(node)
        node.meta["site"] = site
        self.nodes.append(node)
        node.stack_trace = f'  File "{site.file}", line {site.line}, in {site.function}'

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

    def stand_in(self, value: GraphTensor, input_: GraphTensor) -> None:
        """From here on `input_` is the input that `value` was, which becomes something else."""
        self.tensors |= {name: input_ for name, known in self.tensors.items() if known is value}
        self.values[id(input_.fake)] = input_
        self.bases[storage_of(input_.fake)] = input_  # writes to its memory count for themselves
        self.data_written |= {key: input_ for key, known in self.data_written.items() if known is value}

    def was_written(self, value: GraphTensor) -> bool:
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

    def mark_unrepeatable(self) -> None:
        """What is recorded here is no operation alone, so that what it is a part of is not repeated."""
        self.log.append(None)

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

    def run(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], reads: Reads | None = None) -> Any:
        """One operation on fakes. What the user's operation may raise is up to torch: every exception that it raises means that eager is to run it."""
        try:
            if self.symbols is not None and self.symbols.unbacked:
                return self.run_small(self.symbols, kind, target, args, kwargs, reads)
            fixed = frozenset(self.symbols.env.small.coincidences) if self.symbols is not None else frozenset()
            made = self.run_once(kind, target, args, kwargs, reads)
            if self.symbols is not None and len(fixed) < len(self.symbols.env.small.coincidences) and is_repeatable(kind, target):
                self.symbols.env.small.coincidences -= required(self.symbols, (kind, target, args, kwargs), fixed)
            return made
        except (Unsupported, NeedsNumbers):
            raise
        except Exception as reason:
            if isinstance(reason, RecursionError):
                raise unsupported("too-deep", target_name(target)) from reason
            check_recurs(reason, lambda: self.run_once(kind, target, args, kwargs, reads))
            if isinstance(reason, (DataDependentOutputException, DynamicOutputShapeException)) or isinstance(reason, RuntimeError) and is_undecided(reason):
                raise unsupported("data-dependent-shape", target_name(target)) from reason
            raise unsupported("op-failed", f"{target_name(target)}: {type(reason).__name__}: {first_line(reason)}") from reason

    def run_small(self, symbols: Symbols, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], reads: Reads | None) -> Any:
        """As `run_once`. Where its result would be wrong for a small size that depends on values, the frame breaks if it may; else each call checks that the
        size is another one."""
        if any(isinstance(value, torch.SymBool) and unbacked(value) for value in (*args, *kwargs.values())):
            raise unsupported("data-dependent-branch", f"a truth value that {target_name(target)} takes")
        known = before(symbols)
        try:
            result = self.run_once(kind, target, args, kwargs, reads)
        except Exception:
            forget(symbols, known)
            raise
        if is_repeatable(kind, target):
            for symbol, small, fails in taken_wrongly(symbols, (kind, target, args, kwargs), result, known):
                if self.if_whole and not fails:
                    raise unsupported("data-dependent-shape", target_name(target))
                torch._check(symbols.env.create_symintnode(symbol, hint=None) != small)
        return result

    def run_once(self, kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any], reads: Reads | None) -> Any:
        if target in FUSED_STEPS:  # whose numbers say nothing of what is written; asking a symbol for its value would make it a constant
            kwargs = {k: 1.0 if isinstance(v, torch.SymFloat) else v for k, v in kwargs.items()}
        operands = tensors_in((args, kwargs))
        rules = symbolic_rules(self.mode)
        if varies(target, args, kwargs):
            args, kwargs = stand_in(target, args, kwargs, StandIns())
            rules = nullcontext() if has_static_sizes(operands) else rules  # torch's rules in Python do not refuse all that its functions do
        elif self.symbols is not None and casts_without_symbols(operands, args, kwargs):
            rules = nullcontext()
        if any(map(is_wrapper, operands)) and any(isinstance(n, torch.SymInt) for n in (*args, *kwargs.values())):
            raise NeedsNumbers("a tensor that wraps others")
        apart = not_computed(operands) if is_collective(target) else refusing(operands)
        with self.mode, rules, reads or nullcontext(), self.watch or nullcontext(), apart:
            if kind == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return target(*args, **kwargs)
