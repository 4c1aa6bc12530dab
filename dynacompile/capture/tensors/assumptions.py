"""Assumptions: the graph takes a condition on tensors for true, and residual code asks it after the graph, and raises where it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.fx

from dynacompile.capture.tensors.raising import RAISING
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ExitValue
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context, Frame
    from dynacompile.capture.values.writing import Assumed

HARMLESS = frozenset(
    """
    add sub mul truediv floordiv neg pos pow abs sign rsub subtract multiply divide div true_divide negative reciprocal lerp addcmul addcdiv
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid logit
    lgamma digamma mvlgamma xlogy logaddexp softplus relu relu6 gelu silu elu selu leaky_relu hardtanh logsigmoid softsign mish softmax log_softmax
    logsumexp dropout sum mean prod var std amax amin norm all any max min maximum minimum clamp clamp_min clamp_max clip where masked_fill nan_to_num
    mod remainder fmod ceil floor round trunc frac long int bool
    eq ne lt le gt ge and_ or_ xor invert logical_and logical_or logical_not isfinite isnan isinf _is_all_true
    cumsum cumprod logcumsumexp cummax cummin sort argsort topk argmax argmin unfold fold pixel_shuffle normalize cosine_similarity
    matmul mm bmm baddbmm linear addmm einsum dot mv outer scaled_dot_product_attention conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d layer_norm group_norm rms_norm
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits max_pool2d avg_pool2d adaptive_avg_pool2d interpolate pad
    view reshape expand expand_as broadcast_to broadcast_tensors permute transpose t flatten unflatten unsqueeze squeeze chunk split cat stack concat
    unbind narrow select repeat tile flip roll movedim swapaxes tril triu diagonal diag diag_embed contiguous clone detach to type_as float double half
    bfloat16 view_as reshape_as fill zero zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_empty new_full rand rand_like
    randn randn_like eye arange linspace tensor grad _set_grad_enabled _enter_autocast _exit_autocast
    """.split()
)
"""Operations that do not mind what is in their tensors: they raise nothing, and stop no device, whatever the values are."""
RAISE = frozenset(name for name in RAISING if not name.endswith("_")) | {"getitem", "_sample_dirichlet", "_standard_gamma"}
"""Operations that raise by their values, and are harmless but for that."""
DRAWS = frozenset({"normal_", "uniform_"})  # harmless into a new tensor, with bounds that are numbers
VIEWS = frozenset({"data", "T", "mT", "H", "mH"})
WRITES = DRAWS | {"setitem"}
COMPARES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"})
NEW = frozenset({"empty", "empty_like", "new_empty", "zeros", "zeros_like", "new_zeros"})
FRESH = NEW | {"clone", "mul", "add", "sub", "truediv"}
IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "truediv"}
WITH = ("PUSH_EXC_INFO", "WITH_EXCEPT_START")
PASSES = ("COPY", "STOPITERATION_ERROR")  # begins of handlers that end one, and, on 3.12, that mind a StopIteration which leaves a generator


def may_assume(cx: Context, after_changes: bool = False) -> bool:
    """Whether an error may be raised after the graph instead of here. after_changes: also where contents of values have changed."""
    if len(cx.effects.assumed) == cx.manner.assumes or cx.bodies or not all(leads_out(inner) for inner in cx.frames):
        return False
    return cx.effects.is_contents() if after_changes else not cx.effects


def assume(cx: Context, condition: Value, function: Callable | None, args: list[Value]) -> None:
    """Takes a condition for true. function: what raises where it is false, given `args`; without one `args` is the exception."""
    after = next(iter(reversed(cx.recorder.graph.nodes)))
    cx.effects.assume(condition, function, args, cx.frames[0].current.position, after)


class Inside:
    """nodes: they look up rows, at places of which guards say that they are there."""

    def __init__(self) -> None:
        self.nodes: set[torch.fx.Node] = set()


def assumable(cx: Context) -> int | None:
    """How many of the assumptions may be made; None for all: from the first one on, up to the end or a break, the graph has to run through where it
    does not hold, or raise so that the call starts again, and change nothing that was there before. The last one before another operation is asked before it.
    """
    inside, shown = cx.state(Inside).nodes, Shown(cx)
    flags, fewer, made = [one.condition.node for one in cx.effects.assumed], cx.effects.overtaken(), 0  # type: ignore[attr-defined]
    for node in cx.recorder.graph.nodes:
        if made and node not in inside and (not passes(node) and not (cx.manner.restarts and raises_alone(node)) or shown.changes_by(node)):
            return made - 1 if fewer is None else min(made - 1, fewer)
        made += flags.count(node)
    return fewer


def raising_behind(cx: Context) -> list[str]:
    """Names of the operations behind the first assumption that raise by their values, at places that no guard knows: the call has to start again where one
    does, since eager may raise for the assumption first."""
    inside, flags, made = cx.state(Inside).nodes, {one.condition.node for one in cx.effects.assumed}, False  # type: ignore[attr-defined]
    found = []
    for node in cx.recorder.graph.nodes if flags else ():
        if made and node not in inside and not passes(node) and raises_alone(node):
            found.append(name_of(node))
        made |= node in flags
    return found


class Shown:
    """What assumptions show of the tensors of the graph where they do not hold: those of an error, those that `function` is asked with, and those that have
    been stored before where others see them. All are shown after the graph, and as they were: so they may not change in place later in the graph."""

    def __init__(self, cx: Context) -> None:
        self.order = {node: place for place, node in enumerate(cx.recorder.graph.nodes)}
        self.places = [self.order.get(one.after) for one in cx.effects.assumed if one.changed or not is_told_by_constants(one)]

    def changes_by(self, node: torch.fx.Node) -> bool:
        """Whether an operation that may be harmless changes a tensor that may be shown: any that was there at an assumption, before the operation."""
        if not writes(name_of(node)):
            return False
        made = self.order.get(made_by(node.args[0]), 0)
        return any(place is None or made <= place < self.order[node] for place in self.places)


def is_told_by_constants(one: Assumed) -> bool:
    """Whether its error shows no tensor, which may have changed by the time that it is raised."""
    error = one.args[0] if one.function is None and one.args else None
    return isinstance(error, ExceptionValue) and all(isinstance(arg, ConstantValue) for arg in error.known_args())


def passes(node: torch.fx.Node) -> bool:
    """Whether the operation may run where an assumption does not hold: it is harmless, or changes a tensor of the graph in place."""
    return is_harmless(node) or node.op != "placeholder" and is_in_place(name_of(node)) and is_own(node.args[0])


def raises_alone(node: torch.fx.Node) -> bool:
    """Whether all that the operation does beside its result is to raise, by its values: so it is on CPUs, where GPUs would stop."""
    made = next((part for part in of_torch.tree_leaves(node.meta.get("val")) if isinstance(part, torch.Tensor)), None)
    return name_of(node).removeprefix("linalg_") in RAISE and "out" not in node.kwargs and made is not None and made.device.type == "cpu"


def writes(name: str) -> bool:
    return name in WRITES or is_in_place(name)


def is_harmless(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return node.op in ("placeholder", "get_attr")
    name = name_of(node)
    if name == "getattr":
        return node.args[1] in VIEWS
    if name == "setitem":
        return fills_by_mask(*node.args)
    if name != "getitem" and name not in DRAWS:
        return name in HARMLESS and "out" not in node.kwargs
    first, *rest = of_torch.tree_leaves((node.args, node.kwargs))
    return not any(isinstance(part, torch.fx.Node) for part in rest) and (name == "getitem" or name_of(first) in NEW)


def fills_by_mask(tensor: Any, mask: Any, value: Any) -> bool:
    """Whether a number is stored into a new tensor, where a comparison says."""
    while isinstance(mask, torch.fx.Node) and name_of(mask) in ("expand_as", "expand", "view", "reshape"):
        mask = mask.args[0]
    return name_of(tensor) in ("mul", "clone") and isinstance(mask, torch.fx.Node) and name_of(mask) in COMPARES and not isinstance(value, torch.fx.Node)


def is_in_place(name: str) -> bool:
    return name in IN_PLACE or name.endswith("_") and not name.endswith("__") and name[:-1] in HARMLESS


def is_own(tensor: Any) -> bool:
    """Whether the graph itself has made a tensor, in memory that nothing else sees."""
    made = made_by(tensor)
    return isinstance(made, torch.fx.Node) and name_of(made) in FRESH and "out" not in made.kwargs


def made_by(tensor: Any) -> Any:
    """The operation of the graph behind a tensor, without those that change it in place."""
    while isinstance(tensor, torch.fx.Node) and is_in_place(name_of(tensor)):
        tensor = tensor.args[0]
    return tensor


def name_of(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def leads_out(frame: Frame) -> bool:
    """Whether what is raised here leaves the frame: only blocks of torch's managers are on its way."""
    handler = frame.decoded.handler_of(frame.current)
    while handler is not None:
        at = handler.target.index
        ops = tuple(instr.op for instr in frame.decoded.instrs[at : at + 2])
        if ops == WITH and not isinstance(frame.stack[handler.depth - 1], ExitValue) or ops != WITH and handler.target.op not in PASSES:
            return False
        handler = frame.decoded.handler_of(handler.target)
    return True
