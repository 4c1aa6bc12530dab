"""The inputs of the graph: a placeholder for each tensor and number that exists before the frame runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.graph_state import GraphState
from dynacompile.capture.operands import is_asked
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.shared_memory import whole, whole_source
from dynacompile.capture.symbols import NeedsSymbols, is_marked
from dynacompile.capture.tensors.tensor import PLAIN_CLASSES, TensorValue
from dynacompile.capture.tensors.wrappers import PendingTensor, WrapperTensor
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.ir.captured import GraphInput, TensorFacts
from dynacompile.ir.fakes import fake_of, with_history, wrapper_fake
from dynacompile.ir.looks import Later, Look, give
from dynacompile.ir.nodes import new_placeholder
from dynacompile.ir.source import Attr, Source
from dynacompile.ops.wrappers import Enter, Wrapping, begun


class Inputs(GraphState):
    """A graph that gets inputs."""

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

    def facts(self, value: GraphTensor) -> TensorFacts:
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

    def written_inputs(self) -> list[GraphInput]:
        """The inputs that the frame has written."""
        return [i for i in self.inputs if (value := self.tensors.get(i.name)) is not None and self.was_written(value)]

    def input_versions(self) -> dict[int, int]:
        """The version that each input has now, by the id of its fake."""
        return {key: self.version(self.values[key].fake) for key in self.versions}

    def uncounted(self) -> list[GraphTensor]:
        """Inputs that are written through `.data` alone, which autograd must not notice."""
        return [value for key, value in self.data_written.items() if key in self.versions and value.fake._version == self.counted[key]]

    def fresh_inputs(self, written: Sequence[GraphInput]) -> tuple[GraphInput, ...]:
        """The inputs with the metadata they have before the graph runs, also where the graph writes them. written: those that it writes."""
        fresh: dict[str, GraphInput] = {}
        for item in written:
            value = self.tensors[item.name]
            given = self.fresh(item, value)
            give(value.node, given)
            fresh[item.name] = item.given_as(given)
        return tuple([fresh.get(item.name, item) for item in self.inputs])

    def fresh(self, item: GraphInput, value: GraphTensor) -> object:
        """The fake of an input, as it is before the graph runs."""
        if type(item.given) is Later:
            return Later(item.given.look)
        if item.wrapper is None:
            return self.fake(value.real, item.source)
        inside = fake_of(self.mode, begun(value.real).detach())
        return with_history(inside) if value.fake.requires_grad else inside
