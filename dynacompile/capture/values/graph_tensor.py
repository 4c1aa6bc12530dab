"""A tensor of the graph as data: its node, its metadata, and what the frame has done to it. What Python can ask of it is `tensors/tensor.py`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.fx

from dynacompile.capture.breaks import NotConstant
from dynacompile.capture.known_numbers import known_number
from dynacompile.capture.values.base import Value
from dynacompile.ir.looks import Later, appearance, give
from dynacompile.ir.nodes import new_node_after
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.ir.source import Source


class Members:
    """The list that an operation gave, and the nodes that take its members."""

    def __init__(self, node: torch.fx.Node, count: int):
        self.node, self.count, self.last = node, count, node

    def take(self, index: int, given: object) -> torch.fx.Node:
        made = self.last = new_node_after(self.last, "call_function", operator.getitem, (self.node, index), {}, "getitem")
        give(made, given)
        made.meta["site"] = self.node.meta["site"]
        made.stack_trace = self.node.stack_trace
        return made


@dataclass(frozen=True, slots=True)
class Member:
    of: Members
    index: int

    def take(self, given: object) -> torch.fx.Node:
        return self.of.take(self.index, given)


class Maker(Protocol):
    """Is told when the fake of a tensor is made."""

    def made(self, value: GraphTensor, fake: torch.Tensor) -> None: ...


class GraphTensor(Value):
    """node: its value in the graph. given: its metadata, as a fake that may be made later. real: the tensor at capture, for inputs only. recorder: is told when
    the fake is made. writes: how often it was written by then. new_grad, new_data: what the frame assigned to `.grad` and `.data`. is_number: a Python float in
    eager. has_become: it was no view, and stands for a view of what it was. has_array: an array of NumPy is over its memory."""

    def __init__(self, node: torch.fx.Node | Member, fake: torch.Tensor | Later, source: Source | None = None, real: Any = None, recorder: Maker | None = None):
        self.given, self.source, self.real, self.recorder = fake, source, real, recorder
        self.member = node if type(node) is Member else None
        self._node: torch.fx.Node | None = None if type(node) is Member else node  # type: ignore[assignment]
        self.writes = 0
        self.new_grad: Value | None = None
        self.new_data: Value | None = None
        self.attributes: dict[str, Value] = {}  # what the frame assigned beside that
        self.is_number = False
        self.has_become = False
        self.has_array = False
        self.told_leaf = False  # whether there is a guard on it
        self.read_grad: tuple[Any, Value] | None = None  # the gradient that was read last, and its value
        self.asked_type: type | None = None  # of the tensor at capture, once it was asked for; the one that the frame has made it of

    @property
    def node(self) -> torch.fx.Node:
        """Its value in the graph; one of a list is taken from it at the first use."""
        if self._node is None:
            assert self.member is not None
            self._node = self.member.take(self.given)
        return self._node

    @node.setter
    def node(self, node: torch.fx.Node) -> None:
        self._node, self.member = node, None

    @property
    def has_node(self) -> bool:
        return self._node is not None

    @property
    def fake(self) -> torch.Tensor:
        """Its metadata, in memory of its own, with the version that it has by now."""
        given = self.given
        if type(given) is Later:
            given = self.given = given.get()
            assert self.recorder is not None
            self.recorder.made(self, given)
        return given  # type: ignore[return-value]

    @fake.setter
    def fake(self, fake: torch.Tensor) -> None:
        self.given = fake

    @property
    def sample(self) -> torch.Tensor:
        """A fake of the same metadata, for who does not look at its memory, or its version."""
        given = self.given
        return given.look.sample if type(given) is Later else given  # type: ignore[return-value]

    @property
    def has_fake(self) -> bool:
        return type(self.given) is not Later

    def appearance(self) -> tuple:
        """What Python can read of it, but its values."""
        given = self.given
        return given.look.appearance if type(given) is Later else appearance(given)  # type: ignore[arg-type]

    def count_writes(self, count: int) -> None:
        """Notes that operations have written it."""
        if type(self.given) is Later:
            self.writes += count
            return
        for _ in range(count):
            of_torch.increment_version([self.given])  # type: ignore[list-item]

    def describe(self) -> str:
        return f"tensor {self.source.text() if self.source else self.node.name}"

    def pytype(self) -> type:
        real = self.real
        found = self.asked_type
        if real is None:
            return found or torch.Tensor
        if found is None:
            is_parameter = getattr(real, "_is_param", False) if type(real) is torch.Tensor else isinstance(real, torch.nn.Parameter)
            found = self.asked_type = torch.nn.Parameter if is_parameter else torch.Tensor
        return found

    def number(self) -> Any:
        """The number that it holds, where the frame made it of a known one; else None."""
        given = self.given
        return None if type(given) is Later else known_number(given)

    def identity(self) -> Any:
        raise NotConstant("tensor")

    def argument(self) -> tuple[Any, Any]:
        return self.node, self.fake

    def field(self, cx: Context, name: str, raw: Any) -> Value:
        """What torch's getter `raw` gives."""
        raise NotImplementedError(type(self).__name__)
