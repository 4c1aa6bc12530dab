"""Autograd inside of the frame: tensors of the graph that come to require gradients, hooks on them, and torch.autograd.grad.

All three are operations of the graph, and tracing the graph for its derivative runs them as eager does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.tensors.bodies import Function, leaves
from dynacompile.capture.tensors.tensor import METHODS, TensorValue
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Method, Value, bind_arguments
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.partials import PartialValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.errors import Unsupported
from dynacompile.ir.source import Attr
from dynacompile.ops.backward_steps import TensorHook

if TYPE_CHECKING:
    from types import CodeType

    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

LASTING = frozenset({"ID", "FUNCTION", "TYPE", "TENSOR_MATCH", "MODULE", "GLOBAL_STATE"})
"""Kinds of guards on what a hook may read: what stays as it is until the backward pass, or is a tensor, which the graph keeps."""


Place = tuple["CodeType", int]  # of an instruction


class HookLeaves(Exception):
    """A tensor that has a hook in the graph leaves it, or a leaf that was made there: what asks for its gradient later is to see what the hook gave, so
    autograd itself has to have the hook, or the leaf. So it is with hooks that capture can't follow. after: whether a hook can be
    registered after the graph; else there is a break."""

    def __init__(self, place: Place, after: bool):
        self.place, self.after = place, after


@dataclass(frozen=True)
class Hook:
    """A hook that the graph has, and the closure cells that it read, with what was in them. place: the instruction that registers it."""

    cells: tuple[tuple[CellValue, Value | None], ...]
    tensor: TensorValue
    place: Place

    def is_as_read(self) -> bool:
        return all(cell.content is content for cell, content in self.cells)


@dataclass(frozen=True)
class LaterHook:
    """A hook that is registered after the graph. version: how often the tensor had been written when the program registered it."""

    tensor: TensorValue
    version: int
    place: Place


class Hooks:
    """all: those of tensors of the graph. later: those that are registered after it. leaves: tensors of the graph that `requires_grad_()` has made leaves, and
    where."""

    def __init__(self) -> None:
        self.all: list[Hook] = []
        self.later: list[LaterHook] = []
        self.leaves: list[tuple[TensorValue, Place]] = []

    def check_outputs(self, cx: Context, outputs: Iterable[Value]) -> None:
        """Raises HookLeaves where one of the graph's results has a hook in the graph, is no more the tensor that a later hook is meant for, or is a leaf that
        the graph has made and its backend would know no gradient of."""
        leaving = {id(value) for value in outputs}
        for leaf, place in [] if cx.manner.leaves_leave else self.leaves:
            if id(leaf) in leaving and leaf.fake.requires_grad:
                raise HookLeaves(place, after=False)
        for hook in self.all:
            if id(hook.tensor) in leaving:
                raise HookLeaves(hook.place, after=True)
        for later in self.later:
            if cx.recorder.version(later.tensor.fake) != later.version or not later.tensor.fake.requires_grad:
                raise HookLeaves(later.place, after=False)


def requires_grad(cx: Context, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`requires_grad_()`. A tensor of the graph becomes a leaf; that of an input outlives the graph, and is Python's to change."""
    (flag,) = bind_arguments("requires_grad_", ["requires_grad"], args, kwargs, {"requires_grad": ConstantValue(True)})
    wanted = bool(flag.truth(cx))
    is_quiet_view = tensor.fake.is_leaf and tensor.fake._is_view()  # made without gradients, it says what its base says, until it is told otherwise
    if tensor.fake.requires_grad is wanted and not (wanted and is_quiet_view):
        return tensor
    if is_quiet_view and tensor.fake.requires_grad:
        raise unsupported("autograd-call", f"{tensor.describe()}.requires_grad_(), of a view that was made without gradients,")
    if tensor.source is not None or cx.bodies or cx.state(TorchModes).inference or cx.recorder.is_inference(tensor.fake):
        raise unsupported("autograd-call", f"{tensor.describe()}.requires_grad_()")
    if not tensor.fake.is_leaf or not (tensor.fake.is_floating_point() or tensor.fake.is_complex()):
        raise unsupported("would-raise", f"{tensor.describe()}.requires_grad_({wanted})")
    place = cx.frames[-1].code, cx.frames[-1].current.index
    if place in cx.manner.no_hooks_at:
        raise unsupported("autograd-call", f"{tensor.describe()}.requires_grad_(), of a tensor that leaves the graph,")
    tensor.fake.requires_grad_(wanted)
    cx.state(Hooks).leaves.append((tensor, place))
    cx.recorder.effect("call_method", "requires_grad_", (tensor.node, wanted), tensor.fake)
    return tensor


@handles(torch.nn.Parameter)
def row_parameter(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The tensor detached, as a leaf. In the graph it is a plain tensor; residual code makes it a Parameter."""
    defaults: dict[str, Value | None] = {"data": ConstantValue(None), "requires_grad": ConstantValue(True)}
    given, required = bind_arguments("Parameter", ["data", "requires_grad"], args, kwargs, defaults)
    cx.overrides.modes.refuse("making an nn.Parameter")
    if isinstance(given, ConstantValue) and given.value is None:
        given = cx.op("call_function", torch.empty, [ConstantValue(0)], {})
    if type(given) is not TensorValue or given.is_number or cx.bodies:
        raise unsupported("autograd-call", f"making an nn.Parameter of {given.describe()}")
    made = cx.op("call_method", "detach", [given], {})
    assert isinstance(made, TensorValue)
    made.asked_type = torch.nn.Parameter
    cx.recorder.mark_unrepeatable()
    return requires_grad(cx, made, [required], {})


class HandleValue(Value):
    """What register_hook returns. place: of the call, which breaks the graph where the program needs the handle itself."""

    def __init__(self, place: Place):
        self.place = place

    def pytype(self) -> type:
        return torch.utils.hooks.RemovableHandle

    def describe(self) -> str:
        return "the handle of a tensor's hook"

    def get_attr(self, cx: Context, name: str) -> Value:
        return super().get_attr(cx, name) if name == "__class__" else Method(self, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("hooks", f"{self.describe()}.{name}()")

    def rebuild(self, out: Writer) -> None:
        raise HookLeaves(self.place, after=False)


def register_hook(cx: Context, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The hook becomes a graph of its own, which the gradient goes through. One on an input outlives the graph, and is registered after it."""
    (hook,) = bind_arguments("register_hook", ["hook"], args, kwargs, {})
    place = cx.frames[-1].code, cx.frames[-1].current.index
    if cx.bodies or place in cx.manner.no_hooks_at:
        raise unsupported("autograd-call", f"{tensor.describe()}.register_hook()")
    if not tensor.fake.requires_grad:
        raise unsupported("would-raise", f"{tensor.describe()}.register_hook() where it requires no gradient")

    if place in cx.manner.hooks_after or tensor.source is not None:
        if not isinstance(hook, FunctionValue) and not (isinstance(hook, BoundMethod) and hook.owner.source is not None):
            raise unsupported("hooks", f"{tensor.describe()}, which leaves the graph, with {hook.describe()},")
        cx.effects.defer(register, [tensor, hook], cx.frames[0].current.position)
        cx.state(Hooks).later.append(LaterHook(tensor, cx.recorder.version(tensor.fake), place))
        return HandleValue(place)

    def example(fake: torch.Tensor) -> torch.Tensor:
        with cx.recorder.mode:
            return torch.empty_like(fake).detach()

    known = set(cx.guards)
    cells = tuple((cell, cell.content) for cell in cells_of(hook))
    try:
        with cx.recorder.watching() as draws, torch.no_grad():
            body = Function(cx, "register_hook", hook, [tensor], {}, [0], example)
    except Raised as reason:  # it is the backward pass that runs the hook, and what it finds then may be other than now
        raise unsupported("hooks", f"{tensor.describe()}, with one that would raise now,") from reason
    except Unsupported as reason:
        if type(tensor) is not TensorValue:  # autograd knows the tensors inside of a wrapper alone while the graph runs
            raise
        raise HookLeaves(place, after=True) from reason  # Python runs it, in each backward pass
    if draws.seen:
        raise unsupported("random-state", "a tensor's hook")
    if any(key[0] not in LASTING for key in cx.guards.keys() - known):
        raise unsupported("hooks", f"{tensor.describe()}, with one that reads what may change until the backward pass,")
    if body.outputs and (body.outputs[0] is not body.result or body.outputs[0].fake.shape != tensor.fake.shape):
        raise unsupported("would-raise", f"{tensor.describe()}.register_hook() with a result that is no gradient")
    cx.state(Hooks).all.append(Hook(tuple((cell, cell.content) for cell, _ in cells), tensor, place))

    step = TensorHook(lambda grad, rest: next(iter(body.run((grad,), rest)[0]), None))
    cx.recorder.effect("call_function", step, (tensor.node, *body.rest), None)
    return HandleValue(place)


def register(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> None:
    """Registers a hook that is called where a gradient has come: a compiled node has several results, and tells its hooks of those without one, too."""
    tensor.register_hook(lambda grad: None if grad is None else hook(grad))


def cells_of(function: Value) -> Iterator[CellValue]:
    """The closure cells of a function and of functions in these."""
    pending, seen = [function], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionValue):
            yield from value.closure
            pending += [cell.content for cell in value.closure if cell.content is not None]
        elif isinstance(value, (BoundMethod, PartialValue)):
            pending.append(value.function)


METHODS["requires_grad_"] = requires_grad
METHODS["register_hook"] = register_hook


@handles(torch.autograd.grad, one_operation=True)
def grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched", "materialize_grads"]
    defaults: dict[str, Value | None] = {name: ConstantValue(None) for name in names[2:]}
    bound = dict(zip(names, bind_arguments("grad", names, args, kwargs, defaults)))
    if cx.state(Hooks).later:
        raise unsupported("autograd-call", "torch.autograd.grad behind a hook of a tensor that leaves the graph")
    if cx.bodies or is_given(bound["is_grads_batched"]):
        raise unsupported("autograd-call", "torch.autograd.grad of batched gradients, or inside of a graph of its own,")
    for name in ("outputs", "inputs"):
        if not isinstance(bound[name], (TensorValue, TupleValue, ListValue, ConstantValue)):
            bound[name] = TupleValue(bound[name].listed(cx))  # values of a dict, parameters of a module
    args, kwargs = [bound[name] for name in names[: len(args)]], {name: bound[name] for name in kwargs}
    asked = leaves(bound["inputs"])
    if not all(history_is_known(cx, asked)):
        raise unsupported("autograd-call", "torch.autograd.grad, where an input of the graph was computed before it,")
    return cx.op("call_function", torch.autograd.grad, args, kwargs)


def is_given(value: Any) -> bool:
    return not isinstance(value, ConstantValue) or bool(value.value)


def history_is_known(cx: Context, asked: list[TensorValue]) -> Iterator[bool]:
    """Whether what autograd goes through is in the graph: inputs are leaves without hooks, or the one that is not is the only one asked for, and does not
    retain the gradient that comes to it."""
    inputs = [value for value in cx.recorder.tensors.values() if isinstance(value, TensorValue) and value.sample.requires_grad]
    for value in inputs:
        yield value.real._backward_hooks is None
        cx.guard("NONE", Attr(value.source, "_backward_hooks"))  # type: ignore[arg-type]
        if not value.is_leaf(cx):
            yield len(asked) == 1 and asked[0] is value and sum(not v.is_leaf(cx) for v in inputs) == 1
            yield not value.real.retains_grad
            cx.guard("EQUALS", Attr(value.source, "retains_grad"), False)  # type: ignore[arg-type]
