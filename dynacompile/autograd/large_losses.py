"""Finds the losses of a captured graph that are computed in chunks of rows: a linear layer over many classes, whose results go into a cross entropy alone,
or into a softmax of which one class of each row is picked.

The nodes of such a region keep their places, and do other things: the layer holds its operands, what reshapes or selects rows of the logits does
so with rows of the layer's input, casts do nothing, and the loss computes all. The region's meaning is that of eager up to rounding: logits are
rounded to the layer's dtype, as in eager, and all that follows is computed in float32 or float64.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.autograd.logit_points import CASTS, IN_PLACE, NAMES, logits_of, point_of, writes_what_is_kept, written_before
from dynacompile.autograd.picked_classes import LOG_SOFTMAX, PICKS, SOFTMAX, kind_of, picked_arguments
from dynacompile.env import Env
from dynacompile.events import LossChunked
from dynacompile.ir.shapes import as_static
from dynacompile.ir.symbols import LARGEST
from dynacompile.ops.chunked_losses import (
    HALVES,
    Loss,
    Pick,
    has_wide_sums,
    hold_indexed,
    hold_linear,
    hold_point,
    hold_product,
    hold_reshaped,
    hold_same,
    logsumexp_of,
    loss_of,
    picked_of,
)
from dynacompile.private.of_torch import FakeTensor, LazyGraphModule

Node = torch.fx.Node
LIMITS = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes of logits that may exist at a time."""
CHUNKS = {"cuda": 3 << 27, "cpu": 1 << 26}
"""Bytes of a chunk's logits, and of their gradient, where there are more than the limit; of a limit that the user gives, that limit."""
ALIGNED = 128
"""Rows of a chunk are a multiple of this, where there are as many."""
MOST_CHUNKS, MOST_SYMBOLIC = 64, 32
"""Chunks of a loss; of one whose number of rows is a symbol, whose chunks take twice as long to compile, and of which there are more."""
LEAST_ROWS = 2176
"""Of a chunk in half precision on GPUs, unless a number of bytes is given. Each chunk reads and writes the sum of the weight's gradients in float32, 8 bytes
for each of its elements, while the three products of the chunk take 6 operations for each and for every row. GPUs do about 160 of those in the time of a
byte, so that the sum costs a tenth of the products at 8 * 160 / 6 * 10 rows."""
EVEN, UNIT = 8, 64
"""In products of half precision on GPUs classes that are no multiple of the first are padded to a multiple of the second."""
GROWTH = 2
"""Chunks of a symbolic number of rows are made for so many times those of this call."""
LEAST_SHARE = 1 / 16
"""Of the limit, where a memory budget lowers it."""
LINEAR = frozenset({F.linear})
PRODUCTS = frozenset({torch.matmul, operator.matmul, torch.mm, "matmul", "mm", "__matmul__"})
RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze})
SOFTMAXES = LOG_SOFTMAX | SOFTMAX
FLOATS = (torch.float32, torch.float64, *HALVES)


@dataclass(frozen=True)
class Region:
    """chain: the layer, then what lies between it and the loss, then the loss, and what leads to the logarithms of the rows' sums of exponentials, where they
    are taken as well. steps: what each does instead."""

    chain: tuple[Node, ...]
    steps: tuple[tuple[Callable, tuple], ...]


def with_chunked_losses(graph: torch.fx.GraphModule, env: Env) -> torch.fx.GraphModule | None:
    """The graph with its large losses computed in chunks; None where it has none."""
    if env.config.logits_bytes < 0 or not any(n.target in ENDS for n in graph.graph.nodes):
        return None
    found = [r for n in graph.graph.nodes if (r := region_of(n, env)) is not None]
    if not found:
        return None
    copied = torch.fx.Graph()
    places: dict[Node, Node] = {}
    copied.output(copied.graph_copy(graph.graph, places))
    next(iter(reversed(copied.nodes))).meta = dict(next(iter(reversed(graph.graph.nodes))).meta)
    for region in found:
        for node, (target, args) in zip(region.chain, region.steps, strict=True):
            placed = places[node]
            placed.op, placed.target = "call_function", target
            placed.args, placed.kwargs = torch.fx.node.map_arg(args, places.__getitem__), {}
    return LazyGraphModule(graph, copied)


def region_of(node: Node, env: Env) -> Region | None:
    """The region that ends at a loss; None where it has none, or none that is large. An event tells of each large one."""
    given = loss_arguments(node)
    if given is None:
        return None
    chain, refused, path = chain_to(given["input"], node)
    if not chain or not isinstance(chain[0].meta.get("val"), FakeTensor):
        return None
    picked = kind_of(chain, bool(path)) if node.target in PICKS else ""
    if node.target in PICKS and not picked:
        return None
    logits = chain[0].meta["val"]
    if not isinstance(logits.shape[-1], int) or not all(isinstance(n, int) or n.node.has_hint() for n in logits.shape):
        return None
    limit = env.config.logits_bytes or int(LIMITS.get(logits.device.type, 0) * max(env.config.memory_budget, LEAST_SHARE))
    size = most_rows(logits) * logits.shape[-1] * logits.dtype.itemsize
    if not limit or (size <= limit and not is_symbolic(logits)):
        return None
    reason = refused or refused_sizes(path, picked, chain) or refused_loss(node, given, chain) or refused_layer(chain[0])
    reason = reason or refused_logarithms(path, node, given, chain)
    held = None if reason else steps_of(chain)
    if size <= limit:
        if held is not None:
            rely_on_most(logits, limit // (logits.shape[-1] * logits.dtype.itemsize))
        return None
    if held is None:
        tell(env, node, False, reason or "the logits are changed by an operation that is not followed", size)
        return None
    steps, is_turned = held
    last, target = chain[-1].meta["val"], given["target"].meta["val"]
    if not picked and is_turned != (last.dim() > 2):
        tell(env, node, False, "the classes are not the loss's axis of classes", size)
        return None
    loss = loss_made(logits, target, node, given, bool(path) or picked == "logit", picked, env)
    by = f"in {loss.chunks} chunks" if loss.chunks else f"by {loss.rows} rows"
    tell(env, node, True, f"{size} bytes of logits are more than {limit}: they are computed {by}", size)
    common = given["target"], loss, given["weight"]
    taken: list[tuple[Callable, tuple]] = [(hold_same, (n.args[0],)) for n in path[:-1]]
    taken += [(logsumexp_of, (n.args[0], *common, shape_at_run(n.meta["val"].shape), n.meta["val"].dtype)) for n in path[-1:]]
    end: tuple[Callable, tuple] = (loss_of, (chain[-1], *common))
    if picked:
        end = (picked_of, (chain[-1], given["target"], loss, Pick(picked, node.meta["val"].dtype)))
    return Region((*chain, node, *path), (*steps, end, *taken))


def loss_made(logits: torch.Tensor, target: torch.Tensor, node: Node, given: dict[str, Any], has_logarithms: bool, picked: str, env: Env) -> Loss:
    classes = logits.shape[-1]
    half = is_on_gpu(logits) and logits.dtype in HALVES
    row_bytes = (1 if is_on_gpu(logits) else 2) * classes * logits.dtype.itemsize  # on GPUs the gradient takes the memory of the logits
    count = most_rows(logits) if is_symbolic(logits) else target.numel()
    of_chunk = env.config.logits_bytes or max(CHUNKS[logits.device.type], LEAST_ROWS * row_bytes if half else 0)
    rows = rows_of_chunk(count, row_bytes, of_chunk, MOST_SYMBOLIC if is_symbolic(logits) else MOST_CHUNKS)
    chunks = 0
    if is_symbolic(logits):
        chunks = -(-count // rows)
        rely_on_most(logits, chunks * rows)
    return Loss(
        classes,
        rows,
        -(-classes // UNIT) * UNIT if half and classes % EVEN else classes,
        logits.dtype,
        torch.promote_types(logits.dtype, torch.float32) if picked else node.meta["val"].dtype,
        given["reduction"],
        given["ignore_index"],
        float(given.get("label_smoothing", 0.0)),
        half and has_wide_sums(),
        has_logarithms,
        ("index" if given["wraps"] else "gather") if picked else "",
        chunks,
    )


def is_symbolic(tensor: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in tensor.shape)


def most_rows(logits: torch.Tensor) -> int:
    """The rows that are expected: where their number is a symbol, as many as the user says that it may be, else twice those of this call."""
    rows = math.prod(logits.shape[:-1])
    if isinstance(rows, int):
        return rows
    known, now = rows.node.shape_env.bound_sympy(rows.node.expr).upper, int(rows.node.hint)
    return int(known) if known.is_Integer and int(known) < LARGEST else GROWTH * now


def rely_on_most(logits: torch.Tensor, most: int) -> None:
    """The entry serves calls of so many rows: those of more are compiled again, in chunks, or in more of them."""
    if not math.prod(logits.shape[:-1]) <= most:  # a condition that the entry's guards take over; it holds at this call
        raise AssertionError(f"{logits.shape} has more rows than {most}")


def refused_sizes(path: Sequence[Node], picked: str, chain: Sequence[Node]) -> str:
    """Why a number of rows that is a symbol can't be divided."""
    if not is_symbolic(chain[0].meta["val"]):
        return ""
    if picked or any(shape_at_run(n.meta["val"].shape) is None for n in path[-1:]):
        return "the sizes of what is taken differ from call to call"
    return ""


def shape_at_run(shape: Sequence[int | torch.SymInt]) -> tuple[int, ...] | None:
    """A shape to which what has as many elements is brought; None where more than one of its sizes differs from call to call."""
    found = tuple(n if isinstance(n, int) else -1 for n in shape)
    return found if found.count(-1) < 2 else None


def is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def tell(env: Env, node: Node, chunked: bool, reason: str, size: int) -> None:
    site = str(node.meta.get("site") or "")
    env.emit(LossChunked(region=env.region, bucket=env.bucket, chunked=chunked, reason=reason, bytes=size, site=site))


def rows_of_chunk(rows: int, row_bytes: int, limit: int, most_chunks: int = MOST_CHUNKS) -> int:
    """Chunks of about equal size, as few as the limit allows."""
    most = max(1, limit // row_bytes)
    fewest = -(-rows // most_chunks)
    most = max(most // ALIGNED * ALIGNED or most, aligned(fewest) if fewest > ALIGNED else fewest)
    even = -(-rows // -(-rows // most))
    return min(most, aligned(even)) if most >= ALIGNED else even


def aligned(rows: int) -> int:
    return -(-rows // ALIGNED) * ALIGNED


LOGARITHMS = frozenset({torch.logsumexp, torch.special.logsumexp, "logsumexp"})
LOGSUMEXP = inspect.signature(lambda input, dim, keepdim=False: None)
SIGNATURES = {f: inspect.signature(f) for f in (F.cross_entropy, F.nll_loss)}
ENDS = SIGNATURES.keys() | PICKS


def loss_arguments(node: Node) -> dict[str, Any] | None:
    """The arguments of a loss by name."""
    if node.target in PICKS:
        return picked_arguments(node)
    if node.op != "call_function" or node.target not in SIGNATURES:
        return None
    bound = SIGNATURES[node.target].bind(*node.args, **node.kwargs)  # type: ignore[index]
    bound.apply_defaults()
    found = dict(bound.arguments)
    return found if isinstance(found["input"], Node) and isinstance(found["target"], Node) else None


def chain_to(node: Node, loss: Node) -> tuple[list[Node], str, list[Node]]:
    """The layer and what lies between it and the loss; empty where no layer is there. Why not, where another operation takes some of it. The casts and the
    operation that take the logarithms of the rows' sums of exponentials, where one does so besides."""
    chain, user, reason = [node], loss, ""
    path: list[Node] = []
    while True:
        node = chain[0]
        written = written_before(node, user)
        others = [u for u in node.users if u is not user and u not in written]
        if len(others) == 1 and not path and (found := path_to_logarithms(others[0])):
            path, others = found, []
        if others or sum(a is node for a in all_arguments(user)) != 1:
            names = sorted(str(getattr(u.target, "__name__", u.target)) for u in others)
            reason = f"the logits have another use: {', '.join(names) or 'the loss itself'}"
        chain[1:1] = written
        if node.target in LINEAR or node.target in PRODUCTS:
            return chain, reason, path
        source = logits_of(node) if node.target in NAMES else node.args[0] if node.args and node.target in FOLLOWED else None
        if not isinstance(source, Node):
            return [], reason, path
        chain.insert(0, source)
        user = node


def path_to_logarithms(node: Node) -> list[Node]:
    """The casts from `node` on and the logarithms that they lead to; empty where they lead elsewhere."""
    path = [node]
    while path[-1].target in CASTS and len(path[-1].users) == 1:
        path.append(next(iter(path[-1].users)))
    return path if path[-1].target in LOGARITHMS else []


def refused_logarithms(path: Sequence[Node], node: Node, given: dict[str, Any], chain: Sequence[Node]) -> str:
    """Why the logarithms of the rows' sums of exponentials can't come from the pass that computes the loss."""
    if not path:
        return ""
    read, last = path[0].args[0], path[-1]
    values = [n.meta.get("val") for n in (*path, node)]
    if not all(type(v) is FakeTensor for v in values) or len({v.requires_grad for v in values}) != 1:  # type: ignore[union-attr]
        return "gradients end between the layer and the logarithms"
    before = chain[: chain.index(read) + 1]  # type: ignore[arg-type]
    of_rows = math.prod(read.meta["val"].shape[:-1]) == given["target"].meta["val"].numel()  # type: ignore[union-attr]
    if any(n.target in NAMES for n in chain[len(before) :]):
        return "the logarithms are not those of the loss's logits"
    if any(is_rounding(a, b) for a, b in zip((read, *path), path[:-1])):  # type: ignore[arg-type]
        return "the logarithms are those of rounded logits"
    if any(n.target in TURNS or n.target in SOFTMAXES for n in before) or not of_rows:
        return "the logarithms are not those of the loss's rows"
    bound = LOGSUMEXP.bind(*last.args, **last.kwargs).arguments
    dim = bound["dim"][0] if isinstance(bound["dim"], (tuple, list)) and len(bound["dim"]) == 1 else bound["dim"]
    if not isinstance(dim, int) or dim % read.meta["val"].dim() != read.meta["val"].dim() - 1 or not isinstance(bound.get("keepdim", False), bool):  # type: ignore[union-attr]
        return "the logarithms are not of sums over the classes"
    places = {n: i for i, n in enumerate(node.graph.nodes)}
    needed = [a for a in (given["target"], given["weight"]) if isinstance(a, Node)]
    if any(places[a] > places[last] for a in needed):
        return "the logarithms are taken before the targets are known"
    return ""


def all_arguments(node: Node) -> list[object]:
    found: list[object] = []
    torch.fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


INDEXES = frozenset({operator.getitem, "__getitem__"})
TURNS = frozenset({"transpose", "permute", "swapaxes", "mT", torch.transpose, torch.permute, torch.swapaxes})
POINTS = CASTS | NAMES.keys()
FOLLOWED = RESHAPES | CASTS | SOFTMAXES | INDEXES | TURNS


def refused_loss(node: Node, given: dict[str, Any], chain: Sequence[Node]) -> str:
    """Why a loss is left as it is."""
    target, value = given["target"].meta.get("val"), node.meta.get("val")
    if not isinstance(target, FakeTensor) or not isinstance(value, FakeTensor) or target.dtype != torch.int64:
        return "the targets are no int64 classes"
    if given["weight"] is not None and not are_weights(given["weight"], chain[0].meta["val"], chain[-1].meta["val"].dtype):
        return "the classes' weights are not constants of the logits' kind"
    if given.get("size_average") is not None or given.get("reduce") is not None or given["reduction"] not in ("mean", "sum", "none"):
        return "the reduction is not mean, sum or none"
    smoothing = given.get("label_smoothing", 0.0)
    if not isinstance(given["ignore_index"], int) or not isinstance(smoothing, (int, float)) or not 0 <= smoothing <= 1:
        return "a number of the loss is not known"
    softmaxes = [n.target for n in chain if n.target in SOFTMAXES]
    if node.target not in PICKS and (len(softmaxes) != (node.target is F.nll_loss) or any(s in SOFTMAX for s in softmaxes)):
        return "the softmax is not the loss's own"
    if target.dim() == 0 or target.device != chain[0].meta["val"].device:
        return "the target has no dimensions, or is on another device"
    if len({n.meta["val"].requires_grad for n in (*chain, node)}) != 1:
        return "gradients end between the layer and the loss"
    return ""


def are_weights(node: object, logits: torch.Tensor, read: torch.dtype) -> bool:
    """Whether a node's value can be the weights of classes: of the dtype in which the loss reads the logits, and without a gradient."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    plain = type(value) is FakeTensor and not value.requires_grad and value.dtype == read and value.device == logits.device
    return plain and value.shape == logits.shape[-1:]  # type: ignore[union-attr]


def refused_layer(node: Node) -> str:
    """Why a layer is left as it is."""
    operands = [a for a in all_arguments(node) if isinstance(a, Node)]
    values: list[Any] = [n.meta.get("val") for n in operands]
    logits = node.meta["val"]
    if len(operands) != len(node.args) + len(node.kwargs) - sum(a is None for a in (*node.args, *node.kwargs.values())) or node.kwargs.keys() - {"bias"}:
        return "the layer has arguments that are not followed"
    if any(type(v) is not FakeTensor or v.layout != torch.strided or v.dtype not in FLOATS or v.device != logits.device for v in values):
        return "the layer's operands are not plain tensors of floating point"
    sizes = [[as_static(n) for n in v.shape] for v in values]
    unknown = [n for found in (sizes[0][-1:], *sizes[1:]) for n in found if not isinstance(n, int)]
    if unknown or values[0].dim() < 2 or values[1].dim() != 2 or any(n == 0 for found in sizes for n in found if isinstance(n, int)):
        return "the layer's operands are no matrices of known sizes"
    if len(values) == 3 and values[2].shape != (logits.shape[-1],):
        return "the layer's bias is no vector"
    if any(wider(v.dtype, logits.dtype) and logits.dtype not in HALVES for v in values):
        return "the layer rounds its operands"
    return ""


def wider(one: torch.dtype, other: torch.dtype) -> bool:
    return one.itemsize > other.itemsize


def steps_of(chain: Sequence[Node]) -> tuple[list[tuple[Callable, tuple]], bool] | None:
    """What each node of a chain does instead, and whether the classes were moved to the second axis at last; None where one can't be followed."""
    layer = chain[0]
    operands = tuple(all_arguments(layer))
    steps: list[tuple[Callable, tuple]] = [(hold_linear if layer.target in LINEAR else hold_product, operands)]
    turned = False
    last = max((i for i, n in enumerate(chain) if i and (n.target in NAMES or is_rounding(chain[i - 1], n))), default=0)
    for i, (before, node) in enumerate(zip(chain, chain[1:]), 1):
        step = point_step(before, node) if i <= last and node.target in POINTS else step_of(before, node, turned)
        if step is None or (node.target in SOFTMAXES and i < last):
            return None
        steps.append(step)
        turned = turned or node.target in TURNS
    return steps, turned


def is_rounding(before: Node, node: Node) -> bool:
    """Whether a node is a cast that loses digits."""
    return node.target in CASTS and isinstance(node.meta.get("val"), FakeTensor) and loses_digits(before.meta["val"], node.meta["val"])


def loses_digits(read: torch.Tensor, made: torch.Tensor) -> bool:
    return made.dtype != read.dtype and made.dtype.itemsize <= read.dtype.itemsize


def point_step(before: Node, node: Node) -> tuple[Callable, tuple] | None:
    """What an operation on each logit does instead, or a cast before the last of these: it decides how their results are rounded."""
    read, made = before.meta["val"], node.meta.get("val")
    point = point_of(node) if node.target in NAMES else ("cast", ())
    if node.target in IN_PLACE and writes_what_is_kept(before):
        return None  # which eager's autograd refuses
    if point is None or type(made) is not FakeTensor or made.shape != read.shape or made.device != read.device or made.dtype not in FLOATS:
        return None
    return hold_point, (before, *point, made.dtype, node.target in IN_PLACE)


def step_of(before: Node, node: Node, turned: bool) -> tuple[Callable, tuple] | None:
    """What a node does instead. turned: the classes are the second axis already."""
    read, made = before.meta["val"], node.meta.get("val")
    if type(made) is not FakeTensor or made.device != read.device:
        return None
    if made.dtype not in FLOATS or loses_digits(read, made):
        return None
    if node.target in CASTS:
        return (hold_same, (before,)) if made.shape == read.shape else None
    if node.target in SOFTMAXES:
        return (hold_same, (before,)) if softmax_axis(node, made.dim()) == (1 if turned else made.dim() - 1) else None
    if turned:
        return None
    if node.target in TURNS:
        return (hold_same, (before,)) if is_turn(node, read, made) else None
    if node.target in INDEXES:
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        return (hold_indexed, (before, index)) if keeps_last(index, read.dim()) and made.shape[-1:] == read.shape[-1:] else None
    same_rows = made.dim() and made.shape[-1] == read.shape[-1] and math.prod(made.shape) == math.prod(read.shape)
    shape = shape_at_run(made.shape[:-1])
    return (hold_reshaped, (before, shape)) if same_rows and shape is not None else None


def softmax_axis(node: Node, rank: int) -> int | None:
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return axis % rank if isinstance(axis, int) else None


def is_turn(node: Node, read: torch.Tensor, made: torch.Tensor) -> bool:
    """The last axis becomes the second one, and the others keep their order."""
    rank = read.dim()
    wanted = (0, rank - 1, *range(1, rank - 1))
    given = [*node.args[1:], *node.kwargs.values()]
    order = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    if rank < 3 or not all(isinstance(d, int) for d in order):
        return False
    axes = tuple(d % rank for d in order)  # type: ignore[operator]
    if node.target in ("permute", torch.permute):
        return axes == wanted
    return rank == 3 and sorted(axes) == [1, 2]


def keeps_last(index: tuple, rank: int) -> bool:
    """An index by slices and numbers that leaves the last axis whole."""
    if not all(i is Ellipsis or type(i) is int or (isinstance(i, slice) and not any(isinstance(e, Node) for e in (i.start, i.stop, i.step))) for i in index):
        return False
    if Ellipsis in index:
        after = index[index.index(Ellipsis) + 1 :]
        return index.count(Ellipsis) == 1 and (not after or after[-1] == slice(None))
    return len(index) < rank or (len(index) == rank and index[-1] == slice(None))
