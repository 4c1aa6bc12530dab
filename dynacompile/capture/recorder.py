"""The operations of the graph: each runs on fake tensors, and becomes a node if it makes or writes tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.inputs import Inputs
from dynacompile.capture.joins import JOINS, record_join
from dynacompile.capture.known_numbers import Pairs, Reads, alike, any_known, as_numbers, forget, known_number
from dynacompile.capture.list_operations import LIST_OPS, is_plain, record_over_lists
from dynacompile.capture.operands import as_dtype, constant_of, has_wide_int, target_name, tensors_in
from dynacompile.capture.overlap import crosses_history, is_refused_write, reaches_out, shares_part, writes_twice
from dynacompile.capture.recorded import Operation, as_it_is, memory_of, storage_of
from dynacompile.capture.refused_numbers import check_numbers
from dynacompile.capture.refused_types import check_members, check_out_types, check_types, is_of_torch
from dynacompile.capture.symbols import Unbacked
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.wrappers import WrapperTensor, check_written, tensor_value
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue, is_constant_object
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicInt, is_symbolic, number_value
from dynacompile.capture.wider import may_outgrow, without_write
from dynacompile.ir.looks import Later, Look, give
from dynacompile.ir.nodes import copy_node, new_node
from dynacompile.ir.passed_forms import has_known_forms
from dynacompile.ir.rounds import Again
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.ops.composites import COMPOSITES, composite, without_defaults
from dynacompile.ops.passed_numbers import settle, varies, with_constants
from dynacompile.ops.placed import Placing
from dynacompile.ops.wrappers import is_wrapper
from dynacompile.private.of_torch import FakeTensor

QUANTIZING = frozenset({"quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic", "dequantize", "int_repr"})
STRIDED = ("as_strided", torch.as_strided)


def talks(target: Any, args: Sequence[Value]) -> bool:
    """Whether an operation may begin to talk to other processes."""
    if isinstance(target, Placing) or (is_collective(target) and not is_wait(target)):
        return True
    if target == "detach":
        return False
    items = [item for arg in args for item in (arg.items if isinstance(arg, (ListValue, TupleValue)) else (arg,))]
    return any(isinstance(item, WrapperTensor) for item in items)


class Recorder(Inputs):
    """Runs each operation on fake tensors, and adds it to the graph if it makes or writes tensors."""

    def op(self, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Runs and records one operation. kind: call_function or call_method."""
        self.refuse_more()
        if self.talks_later and talks(target, args):
            raise unsupported("collective", self.talks_later)
        if kind == "call_function" and target in LIST_OPS and is_plain(self):
            over_lists = record_over_lists(self, target, args, kwargs, self._site())
            if over_lists is not None:
                self.follow(target, args, target_name(target).endswith("_"))
                return over_lists
        if kind == "call_function" and target in JOINS:
            join = record_join(self, target, args, kwargs, self._site())
            if join is not None:
                return join
        before = len(self.nodes)
        made, writes = self.run_and_record(kind, target, args, kwargs)
        self.note_operation(target, args, writes)
        given = tuple(map(as_it_is, args)), {k: as_it_is(v) for k, v in kwargs.items()}
        self.log.append(Operation(kind, target, *given, made, self._site(), tuple(self.nodes[before:]), writes))
        return made

    def let_go(self) -> None:
        """Forgets the frame's tensors: their values know the recorder that is told when they are made."""
        for table in (self.values, self.tensors, self.log):
            table.clear()  # type: ignore[attr-defined]

    def copy(self, operation: Operation, nodes: dict[torch.fx.Node, torch.fx.Node]) -> None:
        """Adds the nodes of an operation again, on others: `nodes` has those for its operands, and gets the new ones."""
        self.refuse_more()
        if operation.writes and self.held:  # which of the other tensors it writes is not asked
            raise unsupported("after-graph", "a tensor is written after a call that is made after the graph was given another")
        for node in operation.nodes:
            nodes[node] = copy_node(self.graph, node, lambda operand: nodes.get(operand, operand))
            self.nodes.append(nodes[node])
        self.ops += bool(operation.nodes)
        self.note_operation(operation.target, operation.args, operation.writes)

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
        self.follow(None, (), writes)
        return node

    def copy_fresh(self, operation: Operation, nodes: dict[torch.fx.Node, torch.fx.Node], look: Look) -> TensorValue:
        """As `copy`, of an operation with one result, in memory of its own: a tensor like that one."""
        self.copy(operation, nodes)
        node = nodes[operation.nodes[0]]
        later = Later(look)
        give(node, later)
        return TensorValue(node, later, recorder=self)

    def note_operation(self, target: Any, args: Sequence[Value], writes: frozenset[int]) -> None:
        """writes: the storages that it wrote."""
        self.follow(target, args, bool(writes) and any(storage_of(self.values[key].fake) in writes for key in self.versions if key in self.values))

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
        if target in COMPOSITES:
            told = without_defaults(target, fake_kwargs)
            kind, chosen = composite(kind, target, fakes, told)
            if chosen is not target:
                target, named, fake_kwargs = chosen, {k: named[k] for k in told}, told
        if varies(target, fakes, fake_kwargs):
            fakes, fake_kwargs = settle(target, fakes, fake_kwargs)
            if varies(target, fakes, fake_kwargs) and not has_known_forms(kind, target, fakes, fake_kwargs):
                fakes, fake_kwargs = with_constants(target, fakes, fake_kwargs)
        if any(map(has_wide_int, (*fakes, *fake_kwargs.values()))):
            raise unsupported("unknown-operation", f"{target_name(target)} with an int of more than 64 bits")
        operands = tensors_in((fakes, fake_kwargs))
        outs = tensors_in(fake_kwargs.get("out"))
        inputs = {k: v for k, v in fake_kwargs.items() if k != "out"}
        given = tensors_in((fakes, inputs))
        if writes_twice(target_name(target), fakes):
            raise unsupported("aliased-mutation", f"{target_name(target)} writes some memory twice")
        if crosses_history(target_name(target), fakes, fake_kwargs):
            raise unsupported("aliased-mutation", f"{target_name(target)} has gradients by members that earlier ones have written")
        check_types(target, [*fakes, *inputs.values()], given)
        check_numbers(target, fakes, inputs)
        check_members(target, fakes, inputs)
        if self.graph is self.root and not any(map(is_wrapper, operands)):
            self.kernels.check(kind, target, fakes, fake_kwargs, operands)
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
        if self.resized and (any(storage_of(t) in self.resized for t in operands) or any(t.requires_grad for t in made)):
            raise unsupported("after-graph", "a tensor is used, or gradients begin, after a storage was resized, which is done after the graph:")
        if self.rebound and any(t.requires_grad and id(t) not in self.rebound for t in made):
            self.check_rebound(operands)
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

    def data_of(self, value: GraphTensor) -> Value:
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

    def check_rebound(self, operands: Sequence[torch.Tensor]) -> None:
        """Leaves to another graph what gradients go through behind an assignment to `.data`: autograd is to keep the tensor itself for them."""
        if any(id(t) in self.rebound for t in operands):
            raise unsupported("tensor-attribute", "a tensor is used with gradients in the graph in which its .data was assigned, which")

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

    def check_asked(self) -> None:
        """Refuses to write inputs that the graph gets an alias of where autograd follows them: the alias would have a history of its own."""
        for item in self.asked:
            if item.fake.requires_grad and self.is_counted(id(item.fake)):  # type: ignore[attr-defined]
                raise unsupported("mutation", f"{item.source.text()}, of a class that overrides torch's functions, is written and requires gradients")

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
        if result is None:
            before = [f._version for f in operands]
            result = self.run(kind, target, args, kwargs)
            others = operands[1:] if operands and result is operands[0] else operands
            if not self.mode.touched or self.mode.touched.isdisjoint(map(memory_of, others)):
                self.results.note(key, result, args, operands, before)
        return result

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
