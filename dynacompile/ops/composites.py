"""Functions of torch that its own code takes apart by numbers, or by elements of tensors, taken apart by symbols. Along symbolic sizes, or for numbers that
vary, the former would have an entry for each, and the latter break the graph."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional as F

from dynacompile.ops.checks import require_all
from dynacompile.ops.lengths import LENGTHS, chosen_pool, linspace
from dynacompile.private import of_torch


def take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    """Both are broadcast but along `dim`."""
    places = torch.broadcast_shapes(changed(input.shape, dim, indices.shape), indices.shape)
    elements = torch.broadcast_shapes(changed(indices.shape, dim, input.shape), input.shape)
    return torch.gather(input.broadcast_to(elements), dim, indices.broadcast_to(places))


def changed(shape: Sequence[Any], dim: int, other: Sequence[Any]) -> list[Any]:
    """`shape` with the size of `other` along `dim`."""
    made = list(shape)
    made[dim] = other[dim]
    return made


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    rank = max(input.dim(), other.dim())
    rows, columns = ((1,) * (rank - t.dim()) + tuple(t.shape) for t in (input, other))
    left, right = [n for size in rows for n in (size, 1)], [n for size in columns for n in (1, size)]
    return (input.reshape(left) * other.reshape(right)).reshape([a * b for a, b in zip(rows, columns, strict=True)])


def max_pool1d(
    input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False
) -> torch.Tensor:
    """What ATen does where there are gradients: it pools over two dimensions, one of them of one element."""
    steps = None if stride is None or stride == () else (1, number(stride))
    kernel, around, apart = (1, number(kernel_size)), (0, number(padding)), (1, number(dilation))
    return F.max_pool2d(input.unsqueeze(-2), kernel, steps, around, apart, ceil_mode).squeeze(-2)


def max_pool1d_in_order(*args: Any, **kwargs: Any) -> torch.Tensor:
    """What it does on CPUs where there are none: the result lies in order, however `input` lies."""
    return max_pool1d(*args, **kwargs).clone(memory_format=torch.contiguous_format)


def number(given: Any) -> Any:
    return given[0] if isinstance(given, (tuple, list)) else given


def cross_entropy(
    input: torch.Tensor, target: torch.Tensor, *, weight: torch.Tensor | None = None, reduction: str = "mean", label_smoothing: float = 0.0
) -> torch.Tensor:
    """Of probabilities, [batch, classes, ...] or [classes] both."""
    dim = 1 if input.dim() > 1 else 0
    classes = input.shape[dim]
    wanted = target * (1 - label_smoothing) + label_smoothing / classes if label_smoothing > 0 else target
    terms = torch.log_softmax(input, dim) * wanted
    if weight is not None:
        terms = terms * weight.view([classes if d == dim else 1 for d in range(input.dim())])
    if reduction == "none":
        return -terms.sum(dim)
    return -terms.sum() / (input.numel() // classes) if reduction == "mean" else -terms.sum()


def cov(input: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """[variables, observations], or observations of one variable -> [variables, variables], or a number; the divisor is positive."""
    rows = input if input.dim() == 2 else input.view(1, -1)
    apart = rows - (rows.sum(1) / rows.shape[1]).unsqueeze(1)
    return (apart @ apart.t().conj() / (rows.shape[1] - correction)).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """[variables, observations], or observations of one variable -> [variables, variables], or a number."""
    covariance = cov(input)
    if covariance.dim() == 0:
        return covariance / covariance
    deviations = covariance.diag().sqrt()
    return (covariance / deviations.unsqueeze(1) / deviations.unsqueeze(0)).clip(-1, 1)


def power(input: torch.Tensor, exponent: float) -> torch.Tensor:
    """The gradient of a tensor to a number asks what the number is; that to a tensor does not."""
    return torch.pow(input, torch.full((), exponent, dtype=input.dtype, device=input.device))


def power_of(base: float, exponent: torch.Tensor) -> torch.Tensor:
    """As `power`: the gradient asks what the base is."""
    return torch.pow(torch.full((), base, dtype=exponent.dtype, device=exponent.device), exponent)


def power_by(exponent: torch.Tensor, base: float) -> torch.Tensor:
    """`exponent.__rpow__(base)`."""
    return power_of(base, exponent)


def float_power(input: torch.Tensor, exponent: float) -> torch.Tensor:
    return power(input.double(), exponent)


def xlogy(input: torch.Tensor, other: float) -> torch.Tensor:
    return torch.xlogy(input, torch.full((), other, dtype=input.dtype, device=input.device))


def quantile(input: torch.Tensor, q: float | torch.Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> torch.Tensor:
    """A number as a tensor, which ATen makes of it, too. Along symbolic sizes, as ATen finds it: in C++ it reads sizes as numbers in torch 2.11."""
    q = as_tensor(q, input)
    return by_ranks(input, q, dim, keepdim, interpolation) if is_symbolic(input) else torch.quantile(input, q, dim, keepdim, interpolation=interpolation)


def nanquantile(input: torch.Tensor, q: float | torch.Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> torch.Tensor:
    """As `quantile`."""
    q = as_tensor(q, input)
    if is_symbolic(input):
        return by_ranks(input, q, dim, keepdim, interpolation, among_numbers=True)
    return torch.nanquantile(input, q, dim, keepdim, interpolation=interpolation)


def unread_quantile(input: torch.Tensor, q: float | torch.Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """Where torch's own would read q."""
    return by_ranks(input, as_tensor(q, input), dim, keepdim, interpolation)


def unread_nanquantile(input: torch.Tensor, q: float | torch.Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """As `unread_quantile`."""
    return by_ranks(input, as_tensor(q, input), dim, keepdim, interpolation, among_numbers=True)


def reads_points(input: torch.Tensor) -> bool:
    """Whether torch.quantile reads q while it is traced, to see that it is from 0 to 1, which torch 2.11 does on CPUs: the graph would break there."""
    try:
        torch.quantile(input.new_zeros(1), input.new_zeros(()))
    except of_torch.DataDependentOutputException:
        return True
    return False


def as_tensor(q: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return q if isinstance(q, torch.Tensor) else torch.full((), q, dtype=like.dtype, device=like.device)


def by_ranks(input: torch.Tensor, q: torch.Tensor, dim: int | None, keepdim: bool, interpolation: str, among_numbers: bool = False) -> torch.Tensor:
    """[..., n, ...], [] or [k] -> [...] or [k, ...]: between the elements of the sorted rows whose ranks are about q * (n - 1). A row with NaN gives NaN, or is
    one without these (among_numbers)."""
    if q.device.type == "cpu":
        require_all((q >= 0) & (q <= 1), "quantile() q values must be in the range [0, 1]")
    place = 0 if dim is None else dim % input.dim()
    rows = input.reshape(-1) if dim is None else input.movedim(place, -1)
    ordered = rows.sort(-1).values
    unknown = ordered.isnan()
    flat = q.reshape(-1).to(dtype_of_ranks(q.dtype))
    if among_numbers:
        ranks = (flat * ((~unknown).sum(-1, keepdim=True) - 1)).clamp(min=0)
    else:
        last = ordered.shape[-1] - 1
        ranks = torch.where(unknown.any(-1, keepdim=True), torch.full((), last, dtype=flat.dtype, device=q.device), flat * last)
    if interpolation in ROUNDED:
        values = ordered.gather(-1, ROUNDED[interpolation](ranks).long())
    else:
        below = ranks.long()
        weights = (torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below).to(q.dtype)
        values = torch.lerp(ordered.gather(-1, below), ordered.gather(-1, ranks.ceil().long()), weights)
    if keepdim:
        sizes = [1] * input.dim() if dim is None else changed(input.shape, place, [1] * input.dim())
        made = values.movedim(-1, 0).reshape(-1, *sizes)
    else:
        made = values.movedim(-1, 0)
    return made.squeeze(0) if q.dim() == 0 else made


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}
MOST_OF_ROW = 2**24  # elements: more have no rank in float32, and versions of torch with such ranks refuse them


def dtype_of_ranks(values: torch.dtype) -> torch.dtype:
    return torch.float64 if has_double_ranks() else values


@functools.cache
def has_double_ranks() -> bool:
    """Whether eager computes ranks among float32 values in float64, as torch does since 2.15: 0.2 as float32 is a little more than a fifth, which a product
    of float32 rounds away."""
    with of_torch.DisableTorchFunction(), of_torch.disable_current_modes(), torch.no_grad():
        values = torch.arange(6, dtype=torch.float32, device="cpu")
        return torch.quantile(values, 0.2, interpolation="higher").item() == 2.0


NUMBERS = (torch.SymInt, torch.SymFloat)


def rrelu(input: torch.Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> torch.Tensor:
    """Of evaluation."""
    torch._check(lower <= upper, lambda: "Lower bound should be less than or equal to the upper bound")
    return F.leaky_relu(input, (lower + upper) / 2, inplace)


def lerp(input: torch.Tensor, end: torch.Tensor, weight: float) -> torch.Tensor:
    """As `power`; in float32 where tensors are of half precision, as ATen's kernels."""
    wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    return torch.lerp(input.to(wide), end.to(wide), torch.full((), weight, dtype=wide, device=input.device)).to(input.dtype)


def smoothed_cross_entropy(*args: torch.Tensor, label_smoothing: float, **kwargs: Any) -> torch.Tensor:
    """Of classes: the loss follows a line from that without smoothing to that with nothing else, which may be infinite."""
    if label_smoothing == 0:
        return F.cross_entropy(*args, **kwargs)  # type: ignore[arg-type]
    plain, even = (F.cross_entropy(*args, label_smoothing=n, **kwargs) for n in (0.0, 1.0))  # type: ignore[misc, arg-type]
    return plain * (1 - label_smoothing) + even * label_smoothing


def affine_grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool | None = None) -> torch.Tensor:
    """[N, d, d + 1] affine maps, [N, C, *places] -> [N, *places, d]: the product that ATen's operator calls, which autocast casts, and whose gradient the
    operator's own takes of tensors that it fills."""
    places = size[2:]
    if align_corners is None or (align_corners and 1 in places):
        F.affine_grid(theta.detach(), size, align_corners)  # type: ignore[arg-type]  # warns
    base = [spaced(theta, n, bool(align_corners)).view(-1, *(1,) * d).expand(places) for d, n in enumerate(reversed(places))]
    rows = torch.stack([*base, theta.new_ones(()).expand(places)], -1).view(1, -1, len(places) + 1).expand(theta.shape[0], -1, -1)
    return rows.bmm(theta.transpose(1, 2)).view(theta.shape[0], *places, len(places))


def spaced(like: torch.Tensor, steps: int, align_corners: bool) -> torch.Tensor:
    """From -1 to 1, the middles of as many equal parts, or their ends. One step is at 0."""
    if not isinstance(steps, torch.SymInt) and steps == 1:
        return like.new_zeros(1)
    made = (linspace if isinstance(steps, torch.SymInt) else torch.linspace)(-1.0, 1.0, steps, dtype=like.dtype, device=like.device)
    return made if align_corners else made * (steps - 1) / steps


def undropped(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Dropout that drops nothing gives its argument; torch's rule for symbolic sizes copies it, and writes to the copy would be lost."""
    return input


def lstm(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of sequences. torch 2.11's rule for symbolic sizes gives the last states a dimension of one element too many: [layers, 1, batch, features]."""
    y, *states = torch.lstm(*args)
    hidden, cell = (s.squeeze(1) if s.dim() > STATE_DIMENSIONS else s for s in states)
    return y, hidden, cell


STATE_DIMENSIONS = 3  # layers in both directions, batch, features


def is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape))


def of_take_along_dim(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    if len(args) not in (2, 3) or not isinstance(dim, int) or "out" in kwargs or not any(map(is_symbolic, args[:2])):
        return None
    return take_along_dim if args[0].dim() == args[1].dim() > 0 else None


def of_kron(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return kron if len(args) == 2 and not kwargs and any(map(is_symbolic, args)) else None


def of_max_pool1d(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0] if args else kwargs.get("input")
    if not isinstance(x, torch.Tensor) or x.dim() not in (2, 3) or not x.is_floating_point() or len(args) > 6 or kwargs.get("return_indices"):
        return None
    if (whole := chosen_pool(1, True)(args, kwargs)) is not None:
        return whole
    given = {**dict(zip(("kernel_size", "stride", "padding", "dilation"), args[1:5], strict=False)), **kwargs}
    if any(isinstance(n, (tuple, list)) and len(n) != 1 and not (name == "stride" and not n) for name, n in given.items()):
        return None  # torch refuses it
    if x.device.type == "cpu" and not (x.requires_grad and torch.is_grad_enabled()):
        return max_pool1d_in_order
    return max_pool1d if is_symbolic(x) else None


def of_lerp(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 3 or kwargs or not isinstance(args[2], (torch.SymInt, torch.SymFloat)) or not torch.is_grad_enabled():
        return None
    taken = all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in args[:2]) and args[0].dtype == args[1].dtype
    return lerp if taken and any(t.requires_grad for t in args[:2]) else None


def of_cross_entropy(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    smoothing = kwargs.get("label_smoothing")
    if len(args) > 1 and isinstance(smoothing, torch.SymFloat) and isinstance(args[1], torch.Tensor) and not args[1].is_floating_point():
        return smoothed_cross_entropy if bool(smoothing >= 0) and bool(smoothing <= 1) else None
    if (
        len(args) != 2
        or not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in args)
        or kwargs.keys() - {"weight", "label_smoothing", "reduction"}
    ):
        return None
    x, target = args
    smooth, weight, reduction = kwargs.get("label_smoothing", 0.0), kwargs.get("weight"), kwargs.get("reduction", "mean")
    refused = (
        reduction not in ("none", "mean", "sum") or not 0 <= smooth <= 1 or (weight is not None and weight.shape != x.shape[1 if x.dim() > 1 else 0 :][:1])
    )
    return cross_entropy if is_symbolic(x) and x.dim() > 0 and not refused and tuple(x.shape) == tuple(target.shape) else None


def of_lstm(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Also of sizes that are numbers: beside symbols all operations go by the same rules."""
    is_of_sequences = len(args) == ARGUMENTS_OF_LSTM and not kwargs and isinstance(args[1], (tuple, list))
    return lstm if is_of_sequences and getattr(getattr(args[0], "fake_mode", None), "shape_env", None) is not None else None


ARGUMENTS_OF_LSTM = 9


def of_power(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    taken = len(args) == 2 and not kwargs and isinstance(args[0], torch.Tensor) and isinstance(args[1], (torch.SymInt, torch.SymFloat))
    return power if taken and args[0].requires_grad and args[0].is_floating_point() and torch.is_grad_enabled() else None


def of_power_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return power_of if len(args) == 2 and not kwargs and is_base(args[0], args[1]) else None


def of_power_by(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return power_by if len(args) == 2 and not kwargs and is_base(args[1], args[0]) else None


def is_base(base: Any, exponent: Any) -> bool:
    """Whether a number that varies is the base of a power whose gradient is wanted."""
    taken = isinstance(base, NUMBERS) and isinstance(exponent, torch.Tensor) and exponent.is_floating_point()
    return taken and exponent.requires_grad and torch.is_grad_enabled()


def of_pow(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return of_power(args, kwargs) or of_power_of(args, kwargs)


def of_float_power(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    taken = len(args) == 2 and not kwargs and isinstance(args[0], torch.Tensor) and not args[0].is_complex() and isinstance(args[1], NUMBERS)
    return float_power if taken else None


def of_xlogy(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    taken = len(args) == 2 and not kwargs and isinstance(args[0], torch.Tensor) and isinstance(args[1], NUMBERS)
    return xlogy if taken and args[0].is_floating_point() and args[0].requires_grad else None


def of_quantile(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return chosen_quantile(args, kwargs, quantile, unread_quantile)


def of_nanquantile(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return chosen_quantile(args, kwargs, nanquantile, unread_nanquantile)


def chosen_quantile(args: Sequence[Any], kwargs: dict[str, Any], by_torch: Callable[..., Any], unread: Callable[..., Any]) -> Any:
    """One of two functions where q is a number that varies, or a size does, or torch would read q, and torch takes the arguments."""
    given = {**dict(zip(("input", "q", "dim", "keepdim"), args, strict=False)), **kwargs}
    x, q, dim, way = given.get("input"), given.get("q"), given.get("dim"), given.get("interpolation", "linear")
    if len(args) > 4 or "out" in given or not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.float64):
        return None
    is_read = isinstance(x, of_torch.FakeTensor) and reads_points(x)
    by_ranks = is_symbolic(x) or is_read
    if isinstance(q, torch.Tensor):
        taken = by_ranks and q.dim() < 2 and q.dtype == x.dtype and q.device == x.device
    else:
        taken = isinstance(q, (float, torch.SymFloat)) and (by_ranks or isinstance(q, torch.SymFloat)) and bool(q >= 0) and bool(q <= 1)
    if not taken:
        return None
    if not by_ranks:
        return by_torch
    known = all(n > 0 for n in numbers_of(x.shape)) and x.dim() > 0 and way in (*ROUNDED, "linear", "midpoint")
    fits = known and (dim is None or (type(dim) is int and -x.dim() <= dim < x.dim()))
    if not fits or not bool((x.numel() if dim is None else x.shape[dim]) <= MOST_OF_ROW):
        return None
    return unread if is_read else by_torch


def of_rrelu(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = {"training": False, **dict(zip(("input", "lower", "upper", "training"), args, strict=False)), **kwargs}
    bounds = [given.get(name) for name in ("lower", "upper")]
    return rrelu if given["training"] is False and any(isinstance(n, NUMBERS) for n in bounds) else None


def of_cov(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return cov if len(args) == 1 and kwargs.keys() <= {"correction"} and has_observations(args[0], kwargs.get("correction", 1)) else None


def of_corrcoef(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return corrcoef if len(args) == 1 and not kwargs and has_observations(args[0], 1) else None


def of_dropout(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = {"p": 0.5, "training": True, **dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **kwargs}
    p, training = given["p"], given.get("train", given["training"])
    taken = len(args) < 5 and isinstance(given.get("input"), torch.Tensor) and type(p) in (int, float) and 0 <= p <= 1 and type(training) is bool
    return undropped if taken and not given.get("inplace") and (not training or p == 0) else None


def of_affine_grid(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("theta", "size", "align_corners"), args, strict=False)), **kwargs}
    theta, size = given.get("theta"), given.get("size")
    if len(args) > 3 or not isinstance(theta, torch.Tensor) or not isinstance(size, (tuple, list)) or not takes_grid(theta, size):
        return None
    is_filled = theta.requires_grad and torch.is_grad_enabled() and 1 in numbers_of(size[2:])
    varies = any(isinstance(n, torch.SymInt) for n in size)  # the operator's rule for fakes counts steps by numbers
    return affine_grid if varies or is_filled or torch.is_autocast_enabled(theta.device.type) else None


def takes_grid(theta: torch.Tensor, size: Sequence[Any]) -> bool:
    """What torch takes; in half precision it fills no grid of one step, and `linspace` counts no symbols."""
    places, known = len(size) - 2, numbers_of(size)
    is_map = places in (2, 3) and theta.is_floating_point() and tuple(theta.shape) == (size[0], places, places + 1)
    exact = theta.dtype in (torch.float32, torch.float64)
    return bool(is_map) and all(n > 0 for n in known) and (exact or (len(known) == len(size) and 1 not in known[2:]))


def numbers_of(size: Sequence[Any]) -> list[int]:
    return [n for n in size if not isinstance(n, torch.SymInt)]


def has_observations(x: Any, correction: Any) -> bool:
    """More than the correction, which torch warns of otherwise."""
    return isinstance(x, torch.Tensor) and x.dim() in (1, 2) and x.is_floating_point() and isinstance(correction, int) and bool(x.shape[-1] > correction)


COMPOSITES: dict[Any, Callable[[Sequence[Any], dict[str, Any]], Any]] = {
    torch.take_along_dim: of_take_along_dim,
    "take_along_dim": of_take_along_dim,
    torch.kron: of_kron,
    "kron": of_kron,
    torch.cov: of_cov,
    "cov": of_cov,
    torch.corrcoef: of_corrcoef,
    "corrcoef": of_corrcoef,
    torch.max_pool1d: of_max_pool1d,
    F.max_pool1d: of_max_pool1d,
    F.cross_entropy: of_cross_entropy,
    **dict.fromkeys((torch.lerp, "lerp"), of_lerp),
    F.dropout: of_dropout,
    torch.dropout: of_dropout,
    F.affine_grid: of_affine_grid,
    torch.affine_grid_generator: of_affine_grid,
    **dict.fromkeys((torch.pow, operator.pow), of_pow),
    **dict.fromkeys(("pow", "__pow__"), of_power),
    "__rpow__": of_power_by,
    **dict.fromkeys((torch.float_power, "float_power"), of_float_power),
    **dict.fromkeys((torch.xlogy, torch.special.xlogy, "xlogy"), of_xlogy),
    **dict.fromkeys((torch.quantile, "quantile"), of_quantile),
    **dict.fromkeys((torch.nanquantile, "nanquantile"), of_nanquantile),
    F.rrelu: of_rrelu,
    torch.lstm: of_lstm,
    **LENGTHS,
}
"""By function, or name of a method: what is to be called in its stead for some arguments; None: the function itself."""


def composite(kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Kind and target of the operation to record: torch's own, or one of these functions."""
    chosen = COMPOSITES[target](args, kwargs) if target in COMPOSITES else None
    return (kind, target) if chosen is None else ("call_function", chosen)


def without_defaults(target: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that say something: a function of torch in Python that asks modes and tensors to take its place names all that it takes."""
    defaults = defaults_of(target) if kwargs and isinstance(target, FunctionType) else {}
    return {k: v for k, v in kwargs.items() if k not in defaults or not is_default(v, defaults[k])}


def is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


@functools.cache
def defaults_of(function: FunctionType) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
