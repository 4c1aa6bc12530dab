"""Runs a captured graph on functional tensors: in-place ops and views become values, and what they did is read off at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.autograd.masks import AROUND, ATTENTION, Masks, mask_of, with_attention, with_rows
from dynacompile.autograd.record import Recorder
from dynacompile.errors import Unsupported
from dynacompile.ir.memory import Folded, overlaps
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import as_static, exceeds, expression_of, is_undecidable, same_size
from dynacompile.ops.attention import by_operator
from dynacompile.ops.backward_steps import Step, TensorHook, Tracing
from dynacompile.ops.batch_norm import batch_norm, functional_batch_norm, functional_instance_norm, instance_norm
from dynacompile.ops.checks import checked_quantile
from dynacompile.ops.fused_steps import FUSED_STEPS
from dynacompile.ops.list_writes import LIST_WRITES
from dynacompile.ops.one_hot import one_hot
from dynacompile.ops.passed_numbers import PASSING, casts_without_symbols, has_static_sizes, stand_in, varies
from dynacompile.ops.randomness import bernoulli, dropout, functional_dropout
from dynacompile.ops.regions import FORMS, traced
from dynacompile.ops.scans import cummax, cummin, cumprod
from dynacompile.ops.unsafe_splits import UNSAFE_FUNCTIONS, UNSAFE_METHODS
from dynacompile.ops.wrappers import Enter, Leave, is_wrapper, leaves_of
from dynacompile.private import of_torch
from dynacompile.private.of_torch import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, UnsupportedOperatorException

STATIC = "compile with dynamic=False"
SUBSTITUTES: dict[object, Callable] = {
    torch.batch_norm: batch_norm,
    torch.nn.functional.batch_norm: functional_batch_norm,
    torch.instance_norm: instance_norm,
    torch.nn.functional.instance_norm: functional_instance_norm,
    torch.bernoulli: bernoulli,
    torch.dropout: dropout,
    torch.nn.functional.dropout: functional_dropout,
    torch.nn.functional.one_hot: one_hot,
    torch.cumprod: cumprod,
    torch.cummax: cummax,
    torch.cummin: cummin,
    torch.quantile: checked_quantile(torch.quantile),
    torch.nanquantile: checked_quantile(torch.nanquantile),
    **FUSED_STEPS,
    **LIST_WRITES,
    **UNSAFE_FUNCTIONS,
}
METHODS: dict[str, Callable] = {
    "bernoulli": bernoulli,
    "cumprod": cumprod,
    "cummax": cummax,
    "cummin": cummin,
    "quantile": SUBSTITUTES[torch.quantile],
    "nanquantile": SUBSTITUTES[torch.nanquantile],
    **UNSAFE_METHODS,
}
"""Torch-level functions and methods whose ATen form hides a write to an input, or does not count it, or whether it drew in place, or that results share
memory, or looks at values, or is for torch's own kernels alone."""


class Retake(torch.autograd.Function):
    """The identity, with a result that is neither a leaf nor a view: it may be mutated in place as a non-leaf input may."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return of_torch.to_functional_tensor(of_torch.from_functional_tensor(tensor))

    @staticmethod
    def backward(ctx, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


@dataclass(frozen=True)
class FunctionalInput:
    """One graph input. fake: its value before the graph runs, without autograd history (an int or float: itself). leaf: what gradients are
    taken with respect to. value: what the graph is given; it is mutated where the graph mutates the input. differentiable: it wants a gradient."""

    fake: Any
    leaf: Any
    value: Any
    differentiable: bool = False

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.fake, FakeTensor)


@contextmanager
def functionalization() -> Iterator[None]:
    of_torch.enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        of_torch.disable_functionalization()


@contextmanager
def ambient_state() -> Iterator[None]:
    """Grad mode and autocast as they are outside, restored whatever the graph's own nodes set; no cache of autocast weights meanwhile."""
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    records = grad and not torch.is_inference_mode_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with of_torch.InferenceMode(False), torch.autograd.set_multithreading_enabled(False):  # type: ignore[attr-defined]
            torch.set_grad_enabled(records)
            yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        torch.set_grad_enabled(grad)


def wrap_inputs(recorder: Recorder, names: Sequence[str], fakes: Sequence[object]) -> list[FunctionalInput]:
    """Placeholders of the recorder's graph and functional tensors for them. A fake that occurs twice (tied weights) is one value."""
    seen: dict[int, FunctionalInput] = {}
    inputs = []
    for name, fake in zip(names, fakes, strict=True):
        if isinstance(fake, torch.SymBool):
            raise Unsupported("symbolic-number", f"input {name} is a symbolic truth value", STATIC)
        if id(fake) in seen and isinstance(fake, FakeTensor):
            recorder.graph.placeholder(name).meta["val"] = seen[id(fake)].fake
            inputs.append(seen[id(fake)])
            continue
        seen[id(fake)] = wrapped = wrap(recorder, name, fake)
        inputs.append(wrapped)
    return inputs


def wrap(recorder: Recorder, name: str, fake: object) -> FunctionalInput:
    if not isinstance(fake, torch.Tensor):
        recorder.placeholder(name, fake)
        return FunctionalInput(fake, fake, fake)
    plain = recorder.fake(torch.ops.aten.detach.default, fake) if fake.requires_grad else fake
    recorder.placeholder(name, plain)
    leaf = of_torch.to_functional_tensor(plain)
    if not fake.requires_grad:
        return FunctionalInput(plain, leaf, leaf)
    leaf.requires_grad_(True)
    if fake.is_leaf:
        return FunctionalInput(plain, leaf, leaf, True)
    with torch.enable_grad():
        return FunctionalInput(plain, leaf, Retake.apply(leaf), True)


@dataclass(frozen=True)
class Memory:
    """Memory that the graph makes: the tensor that it was made for, and that tensor as capture saw it, with eager's strides (None: not known)."""

    tensor: torch.Tensor
    eager: FakeTensor | None


Note = Callable[[Sequence[torch.Tensor], Any, Recorder], None]


@dataclass(frozen=True)
class Interpreted:
    """What a graph gave. outputs: flat. memories: those that it made. inference: which of these are inference tensors'. laid: results of operations,
    and those in their place that have eager's strides, or that leave a wrapper. hooked: tensors that have hooks. values: of the graph's nodes."""

    outputs: tuple
    memories: dict[int, Memory]
    inference: InferenceMemory
    laid: list[tuple[torch.Tensor, torch.Tensor]]
    hooked: list[torch.Tensor]
    values: Mapping[torch.fx.Node, Any]


def interpret(graph: torch.fx.GraphModule, values: Sequence[object], recorder: Recorder, tracing: Tracing, note: Note, masks: Masks) -> Interpreted:
    """Runs a torch-level graph node by node. note: is told of the results of each operation that gives several, and of its target.
    masks: reads those of attention."""
    env: dict[torch.fx.Node, Any] = {}
    remaining = iter(values)
    memories: dict[int, Memory] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            memories.setdefault(storage(value), Memory(value, inner(value)))
    given, folded = set(memories), Folded()
    inference = InferenceMemory()
    laid: list[tuple[torch.Tensor, torch.Tensor]] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = as_static(next(remaining))
            continue
        if node.op == "get_attr":
            env[node] = attribute(graph, str(node.target))
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            made = {memory: m for memory, m in memories.items() if memory not in given}
            hooked = [env[n.args[0]] for n in graph.graph.nodes if isinstance(n.target, TensorHook)]
            return Interpreted(tuple(args[0]) if isinstance(args[0], (tuple, list)) else (args[0],), made, inference, laid, hooked, env)
        if isinstance(node.meta.get("val"), torch.SymInt):  # a size that capture has computed
            env[node] = as_static(node.meta["val"])
            continue
        if inference.see(node):
            env[node] = None
            continue
        recorder.begin(node.meta.get("site"))
        refuse_lazy(node, recorder)
        step = functools.partial(interpret_node, node, (args, kwargs), env, memories, recorder, tracing, (folded, inference, note, laid, masks))
        try:
            step()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise Unsupported("data-dependent", f"{node.target} needs values that only a run gives", "", str(recorder.site or "")) from error
        except UnsupportedOperatorException as error:
            hint = "register one with torch.library.register_fake"
            raise Unsupported("no-fake", f"{error.func} has no fake (meta) implementation", hint, str(recorder.site or "")) from error
        except RuntimeError as error:  # torch has no narrower class for an op that does not take these sizes, strides or dtypes
            check_recurs(error, step)
            reason = f"{node.target} can't be traced: {(str(error).splitlines() or [''])[0]}"
            raise Unsupported("not-traceable", reason, "leave it outside of the compiled function, and please report it", str(recorder.site or "")) from error
    raise AssertionError("a graph without an output")


class InferenceMemory:
    """Memory that a graph makes between nodes that enter and leave inference mode: gradients are off there, by other nodes, and the tensors that the
    caller gets of that memory are inference tensors. detached: those of them that were detached behind the mode, which count their writes, and may be
    written."""

    def __init__(self) -> None:
        self.depth = 0
        self.storages: set[int] = set()
        self.detached: list[torch.Tensor] = []

    def see(self, node: torch.fx.Node) -> bool:
        """Whether the node enters or leaves the mode."""
        if node.target is of_torch.enter_inference_mode and not node.args[0]:
            raise Unsupported("context-manager", "inference mode is left inside of a graph", "leave it outside of the compiled function")
        step = STEPS.get(node.target, 0)
        self.depth += step
        return step != 0

    def note(self, made: torch.Tensor, operands: Sequence[torch.Tensor]) -> None:
        if self.depth and all(storage(made) != storage(t) for t in operands):
            self.storages.add(storage(made))

    def note_detached(self, node: torch.fx.Node, result: object) -> None:
        is_detached = node.target in DETACHES or (node.target is getattr and node.args[1] == "data")
        if is_detached and not self.depth and isinstance(result, torch.Tensor) and storage(result) in self.storages:
            self.detached.append(result)


DETACHES = frozenset({"detach", torch.detach})
STEPS: dict[object, int] = {of_torch.enter_inference_mode: 1, of_torch.exit_inference_mode: -1}


def interpret_node(
    node: torch.fx.Node,
    arguments: tuple,
    env: dict[torch.fx.Node, Any],
    memories: dict[int, Memory],
    recorder: Recorder,
    tracing: Tracing,
    seen: tuple[Folded, InferenceMemory, Note, list[tuple[torch.Tensor, torch.Tensor]], Masks],
) -> None:
    """Adds what the node gives to `env`, and the memory that it makes to `memories`."""
    args, kwargs = arguments
    folded, inference, note, laid, masks = seen
    operands = [env[n] for n in node.all_input_nodes if isinstance(env[n], torch.Tensor)]
    versions = [t._version for t in operands]
    if node.target in FORMS:
        env[node] = traced(node.target, args, node.meta["val"], recorder.keep)
        return
    if isinstance(node.target, Step):
        env[node] = node.target.traced(args, tracing)
        if isinstance(node.target, Enter):
            note_inside(env[node], node.meta.get("val"), memories)
        if isinstance(node.target, Leave):
            laid += zip(leaves_of(args[0]), env[node], strict=True)
        return
    if node.target is torch.autograd.graph.increment_version:  # counted as a write, and none
        env[node] = node.target(*args)
        return
    rules: AbstractContextManager = nullcontext()
    # torch's rules in Python take some of them apart in other ways, or draw what eager does not
    has_rules = recorder.fake_mode.shape_env is not None
    if has_rules and (node.target in PASSING and has_static_sizes(operands) or casts_without_symbols(operands, args, kwargs)):
        rules = of_torch.DisablePythonDispatcher()
    if varies(node.target, args, kwargs):
        args, kwargs = stand_in(node.target, args, kwargs, recorder.stand_ins)
    attends = node.target is by_operator or node.target in ATTENTION or node.target in AROUND
    with rules:
        result = run_attention(node, args, kwargs, masks, recorder) if attends else run_node(node, args, kwargs)
    recorder.stand_ins.check(node.target)
    env[node] = with_dtypes(functional(result), node.meta.get("val"))
    for operand, version in zip(operands, versions, strict=True):
        for part in leaves_of(operand) if operand._version != version else ():
            recorder.writes[storage(part)] = node
            refuse_folded(node, part, folded, recorder)
            keep_strides(memories[storage(part)], part, recorder)
    results = tensors_of(env[node])
    if len(results) > 1 and node.target not in LIST_WRITES:
        note(results, node.target, recorder)
    if any(map(is_wrapper, results)):
        recorder.wrappers += results
        note_inside(env[node], node.meta.get("val"), memories)
        return
    read = [t for n in node.all_input_nodes for t in tensors_of(env[n])]  # those of lists, too
    folded.note(node.target, results, operands)
    for made in results:
        inference.note(made, read)
    inference.note_detached(node, env[node])
    if isinstance(env[node], torch.Tensor) and storage(env[node]) not in memories:
        plain = env[node]
        env[node] = as_eager(plain, None if node.target is by_operator and is_copied(node) else node.meta.get("val"), memories)
        if env[node] is not plain:
            laid.append((plain, env[node]))


def note_inside(made: Any, seen: Any, memories: dict[int, Memory]) -> None:
    """Tells of the memory inside of tensors that wrap others."""
    for wrapper, eager in zip(tensors_of(made), tensors_of(seen), strict=True):
        for part, shown in zip(leaves_of(wrapper), leaves_of(eager), strict=True):
            memories.setdefault(storage(part), Memory(part, shown if isinstance(shown, FakeTensor) else None))


def run_attention(node: torch.fx.Node, args: tuple, kwargs: dict[str, Any], masks: Masks, recorder: Recorder) -> object:
    """Runs a node that is attention, or that calls it, with the simplest mask that is the same."""

    def simplify(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask = mask_of(args, kwargs)
        if mask is None or not of_torch.is_functional_tensor(mask):
            return args, kwargs
        return masks.simplify(node, recorder.node_of(inner(mask)), args, kwargs)

    if node.target is by_operator:
        *operands, form = args
        return form.traced(*operands, reader=ReadMasks(node, masks, recorder), attention=lambda **given: F.scaled_dot_product_attention(**rowed(given)))
    if isinstance(node.target, FunctionType):
        return with_attention(node.target, simplify)(*args, **kwargs)
    args, kwargs = simplify(args, kwargs)
    return run_node(node, args, kwargs)


@dataclass(frozen=True)
class ReadMasks:
    """What is known of the masks of an attention that a node stands for."""

    node: torch.fx.Node
    masks: Masks
    recorder: Recorder

    def kind(self, given: dict[str, Any]) -> str:
        return self.masks.kind(self.node, self.recorder.node_of(inner(given["attn_mask"])), given)

    def refuse(self, place: str, reason: str) -> None:
        self.masks.refused.setdefault(place, reason)

    def sees(self, visible: torch.Tensor) -> bool:
        return self.masks.sees(self.recorder.node_of(inner(visible)))


def is_copied(node: torch.fx.Node) -> bool:
    """Whether what a node gives is only read by what lays it out anew, as heads are put together again: its own strides do not matter then."""
    turns, made = list(node.users), node.meta.get("val")
    if not turns or not isinstance(made, FakeTensor) or any(turn.target not in TURNS or not turn.users for turn in turns):
        return False
    return all(user.target in COPIES and storage(user.meta["val"]) != storage(made) for turn in turns for user in turn.users)


TURNS = frozenset({"transpose", "permute", "swapaxes", "swapdims", torch.transpose, torch.permute, torch.swapaxes})
COPIES = frozenset({"contiguous", "reshape", "flatten", torch.reshape, torch.flatten})


def rowed(given: dict[str, Any]) -> dict[str, Any]:
    return given if given.get("attn_mask") is None else {**given, "attn_mask": with_rows(given["attn_mask"])}


def as_eager(result: torch.Tensor, eager: object, memories: dict[int, Memory]) -> torch.Tensor:
    """The result with the strides of eager's, where a decomposition chose others for memory of its own: views and in-place ops go by strides."""
    if isinstance(eager, FakeTensor) and different_strides(result, eager):
        strides, sizes = eager.stride(), eager.shape
        order = sorted(range(eager.dim()), key=lambda d: (-strides[d], -sizes[d], d))
        packed = result.permute(order).clone(memory_format=torch.contiguous_format)
        laid = packed.permute([order.index(d) for d in range(len(order))])
        if not different_strides(laid, eager):
            result = laid
    own = inner(result) if of_torch.is_functional_tensor(result) else None  # what `torch.tensor` makes on the meta device is none
    memories[storage(result)] = Memory(result, eager if isinstance(eager, FakeTensor) else own)
    return result


def functional(result: object) -> object:
    """What an operation on numbers alone, such as torch.mul(3, 2), gives is no functional tensor: nothing that it took was."""
    return of_torch.to_functional_tensor(result) if isinstance(result, FakeTensor) else result


def with_dtypes(result: object, eager: object) -> object:
    """Tensors as eager has them where a decomposition keeps more digits, as of the statistics that a norm gives beside its result."""
    if isinstance(result, (tuple, list)) and isinstance(eager, (tuple, list)) and len(result) == len(eager):
        return type(result)([with_dtypes(r, e) for r, e in zip(result, eager)]) if type(result) in (tuple, list) else result
    if isinstance(result, torch.Tensor) and isinstance(eager, torch.Tensor) and result.dtype != eager.dtype:
        return result.to(eager.dtype)
    return result


def keep_strides(memory: Memory, written: torch.Tensor, recorder: Recorder) -> None:
    """Gives written memory back the strides that it had: written through a view, its new value is made from that view, with strides of its own. The view
    then is one of the memory again, at once, since operations that are made of others go by its strides before they ask for its value."""
    tensor = memory.tensor
    if memory.eager is None:
        return
    value = inner(tensor)
    moved = different_strides(value, memory.eager)
    if not moved and written is tensor:
        return
    if moved:
        value = recorder.copy_of(recorder.node_of(value), memory.eager.stride()).meta["val"]
    with torch.no_grad():
        of_torch.functionalize_replace(tensor, value)
    of_torch.functionalize_commit_update(tensor)
    inner(written)


def different_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Where it matters: of dimensions with several elements."""
    if not same_size(a.shape, b.shape) and a.shape != b.shape:
        return False
    unlike = [(s, t, size) for s, t, size in zip(a.stride(), b.stride(), a.shape, strict=True) if expression_of(s) != expression_of(t)]
    return bool(unlike) and exceeds(a.numel(), 0) and any(is_undecidable(s, t) or s != t for s, t, size in unlike if exceeds(size, 1))


def refuse_lazy(node: torch.fx.Node, recorder: Recorder) -> None:
    """A lazy conjugate of the user's own may be written through, or returned as the view that it is. One in new memory is computed."""
    seen = node.meta.get("val")
    if not isinstance(seen, torch.Tensor) or not (seen.is_conj() or seen.is_neg()):
        return
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    if any(isinstance(t, torch.Tensor) and storage(t) == storage(seen) and (t.is_conj(), t.is_neg()) != (seen.is_conj(), seen.is_neg()) for t in operands):
        hint = "use torch.conj_physical, or torch.view_as_real, in its place"
        raise Unsupported("lazy-conjugate", f"{node.target} makes a tensor that is conjugated or negated where it is read", hint, str(recorder.site or ""))


def refuse_folded(node: torch.fx.Node, written: torch.Tensor, folded: Folded, recorder: Recorder) -> None:
    if folded.has(written):
        reason = f"{node.target} writes a view of which several elements are one, as in an expanded tensor"
        raise Unsupported("overlapping-write", reason, "write what it is a view of", str(recorder.site or ""))


def tensors_of(result: object) -> list[torch.Tensor]:
    """The tensors that an operation gives."""
    return [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(t, torch.Tensor)]


def run_node(node: torch.fx.Node, args: Any, kwargs: Any) -> object:
    if node.op == "call_function":
        assert callable(node.target)
        return SUBSTITUTES.get(node.target, node.target)(*args, **kwargs)
    if node.op == "call_method":
        assert isinstance(node.target, str)
        if node.target in METHODS:
            return METHODS[node.target](*args, **kwargs)
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    raise Unsupported("graph-node", f"a {node.op} node ({node.target}) in a captured graph: modules are inlined by capture")


def attribute(graph: torch.fx.GraphModule, path: str) -> object:
    value: object = graph
    for name in path.split("."):
        value = getattr(value, name)
    return value


def inner(tensor: torch.Tensor) -> FakeTensor:
    """The fake value that a functional tensor has now."""
    if not of_torch.is_functional_tensor(tensor):
        raise Unsupported("device", f"a tensor of the device {tensor.device.type}, which torch makes of numbers past functionalization")
    with of_torch.AutoDispatchBelowADInplaceOrView():  # what views of views give is ours to decide
        of_torch.functionalize_sync(tensor)
    value = of_torch.from_functional_tensor(tensor)
    assert isinstance(value, FakeTensor)
    return value


def layout(tensor: torch.Tensor) -> tuple:
    """What an in-place op on data leaves as it is. The stride of a dimension with one element is none of it: rules for fakes give others there."""
    strides = tuple(0 if type(n) is int and n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.shape, strides, tensor.storage_offset(), tensor.dtype


def storage(tensor: torch.Tensor) -> int:
    """Identity of the memory that a tensor and its views share."""
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class MutatedInput:
    """Input `index` has a new value. in_graph: no gradient flows through the mutation, so the forward graph may write it itself."""

    index: int
    value: torch.Tensor
    in_graph: bool


def mutated_inputs(inputs: Sequence[FunctionalInput], names: Sequence[str]) -> list[MutatedInput]:
    found, seen = [], set()
    for i, entry in enumerate(inputs):
        if not entry.is_tensor or id(entry) in seen:
            continue
        seen.add(id(entry))
        if inner(entry.value) is entry.fake:
            continue
        value = entry.value
        if overlaps(entry.fake):
            raise Unsupported(
                "overlapping-inputs", f"input {names[i]} is written, and its own elements share memory, as in an expanded tensor", "clone it first"
            )
        if layout(value) != layout(entry.fake):
            raise Unsupported("input-geometry-mutated", f"the sizes, strides or storage of input {names[i]} change in place", "return a new tensor instead")
        keeps_history = isinstance(value.grad_fn, Retake._backward_cls)  # written under no_grad, or through a detached tensor
        found.append(MutatedInput(i, value, in_graph=keeps_history or value.is_leaf))
    refuse_overlaps(inputs, names, found)
    return found


def refuse_overlaps(inputs: Sequence[FunctionalInput], names: Sequence[str], mutated: Sequence[MutatedInput]) -> None:
    sharing: dict[int, list[int]] = {}
    for j, entry in enumerate(inputs):
        if entry.is_tensor:
            sharing.setdefault(storage(entry.fake), []).append(j)
    for m in mutated:
        for j in sharing[storage(inputs[m.index].fake)]:
            if inputs[j] is not inputs[m.index]:
                reason = f"input {names[m.index]} is mutated and shares memory with input {names[j]}"
                raise Unsupported("overlapping-inputs", reason, "clone one of them before the call")
