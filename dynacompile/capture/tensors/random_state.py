"""The state of random generators, which a frame seeds, saves, sets and draws from.

Operations of the graph draw from torch's default generator while the graph runs. What the frame does to it before the first of them, residual code does
before it calls the graph; what it does after the last one, after that. An operation that draws after the second kind ends the graph. Other generators are
Python's: calls that draw from one alone are made before the graph, in the frame's order, and their results are inputs of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value
from dynacompile.ir.source import Made
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

DRAWING = frozenset(
    str(op._qualified_op_name).rpartition("::")[2]
    for name in torch.ops.aten
    for op in (getattr(torch.ops.aten, name),)
    if any(torch.Tag.nondeterministic_seeded in getattr(op, overload).tags for overload in op.overloads())
) | frozenset(
    """dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout gumbel_softmax rrelu scaled_dot_product_attention
    multi_head_attention_forward lstm gru rnn_tanh rnn_relu fractional_max_pool2d fractional_max_pool3d flex_attention""".split()
)
"""Names of operations that may draw random numbers."""


@dataclass
class Call:
    """A call that residual code makes. made: what keeps its result, None for one that is dropped."""

    function: Callable[..., Any]
    args: list[Value]
    keywords: tuple[str, ...]
    made: MadeValue | None


class MadeValue(Value):
    """What a call made before the graph gives: a generator, or its state."""

    def __init__(self, cls: type):
        self.cls = cls

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Context) -> bool:
        if self.cls is torch.Generator:
            return True
        return super().truth(cx)

    def identity(self) -> Any:
        raise unsupported("random-state", self.describe())

    def rebuild(self, out: Writer) -> None:
        raise unsupported("random-state", f"{self.describe()}, which a call after the graph gives,")


class RandomState:
    """first: calls made before the graph, in order; `plain` of them nobody sees. last: those after it, of torch's default generators. drawn: inputs of the
    graph that other calls of the entry have other values of."""

    def __init__(self) -> None:
        self.plain = 0
        self.first: list[Call] = []
        self.last: list[Call] = []
        self.drawn: set[Made] = set()

    def __bool__(self) -> bool:
        return len(self.first) > self.plain or bool(self.last)

    def call(self, cx: Context, function: Callable[..., Any], args: Sequence[Value], made: MadeValue | None = None) -> None:
        """A call that changes a default generator, or reads its state (made)."""
        cx.effects.outside += 1
        before = not self.last and not any(map(may_draw, cx.recorder.nodes))
        if made is not None and not before:
            raise unsupported("random-state", f"{function.__name__} after an operation that draws random numbers")
        (self.first if before else self.last).append(Call(function, list(args), (), made))

    def hoist(self, cx: Context, function: Callable[..., Any], args: Sequence[Value], keywords: tuple[str, ...] = (), made: MadeValue | None = None) -> None:
        """A call that concerns no default generator: it is made before the graph."""
        cx.effects.outside += 1
        self.first.append(Call(function, list(args), keywords, made))

    def input(self, cx: Context, function: Callable[..., Any], args: Sequence[Value], keywords: tuple[str, ...], real: torch.Tensor) -> Value:
        """The input of the graph that a call gives which draws, made before it. real: a tensor like it, of any values."""
        source = Made(len(self.first))
        self.hoist(cx, function, args, keywords, MadeValue(torch.Tensor))
        self.drawn.add(source)
        cx.hoisted = True
        return cx.recorder.input(real, source)

    def make(self, cx: Context, function: Callable[..., Any], args: Sequence[Value], keywords: tuple[str, ...], real: torch.Tensor) -> Value:
        """The input of the graph that a call gives which nobody sees. real: a tensor like it, of any values."""
        source = Made(len(self.first))
        self.first.append(Call(function, list(args), keywords, MadeValue(torch.Tensor)))
        self.plain += 1
        self.drawn.add(source)
        cx.hoisted = True
        return cx.recorder.input(real, source)

    def check(self, target: Any) -> None:
        """Ends the graph before an operation that draws after a change of the generator that comes after the graph."""
        if self.last and name_may_draw(target):
            raise unsupported("setting", self.last[-1].function.__name__)

    def values(self) -> Iterator[Value]:
        for call in (*self.first, *self.last):
            yield from call.args

    def replay(self, out: Writer, before: bool) -> None:
        for place, call in enumerate(self.first if before else self.last):
            out.call_function(call.function, call.args, call.keywords)
            if call.made is None:
                out.emit("POP_TOP")
                continue
            out.keep(call.made)
            if call.made.cls is torch.Tensor and before:
                out.made[place] = call.made


def may_draw(node: torch.fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and name_may_draw(node.target)


def name_may_draw(target: Any) -> bool:
    """Whether an operation may draw random numbers: by its name, or because nobody knows it."""
    if isinstance(target, str):
        return target in DRAWING
    module = getattr(target, "__module__", None) or ""
    known = isinstance(target, type(torch.sin)) or module.partition(".")[0] in ("torch", "_operator", "operator", "builtins")
    return not known or getattr(target, "__name__", "") in DRAWING or isinstance(target, of_torch.OpOverload) and target.namespace != "aten"
