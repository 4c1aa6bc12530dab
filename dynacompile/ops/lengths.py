"""Functions of torch that take a length as a number, in terms of others that take symbols: ranges of floats, windows, frequencies, pools over whole dimensions.

The former would have an entry for each length. Each function computes what ATen does, in its order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.nn import functional as F

from dynacompile.ops.one_hot import one_hot
from dynacompile.private import of_torch

Chooser = Callable[[Sequence[Any], dict[str, Any]], Any]
FLOATS = (torch.float32, torch.float64)
OPTIONS = frozenset({"dtype", "device"})


def linspace(start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """As ATen counts: up from `start` in the first half, and down from `end` in the second."""
    dtype = dtype or torch.get_default_dtype()
    first, last = (torch.full((), n, dtype=dtype, device=device) for n in (start, end))
    step = (last - first) / torch.sym_max(steps - 1, 1)
    place = torch.arange(steps, device=device)
    return torch.where(place < torch.sym_max(steps // 2, 1), first + step * place.to(dtype), last - step * (steps - 1 - place).to(dtype))


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    return torch.pow(base, linspace(start, end, steps, dtype=dtype, device=device))


def arange(*ends: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Of floats that are multiples of a power of two, whose count is one of ints."""
    start, end, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]
    dtype = dtype or torch.get_default_dtype()
    place = torch.arange(count_of(start, end, step), device=device).to(dtype)
    return place if step == 1 and start == 0 else place * step + start


def count_of(start: Any, end: Any, step: Any) -> Any:
    """How many steps there are before the end, which is not negative where the step leads there."""
    first, last, by = (n if isinstance(n, torch.SymInt) else Fraction(n) for n in (start, end, step))
    parts = math.lcm(*(n.denominator for n in (first, last, by) if isinstance(n, Fraction)))
    whole = [n * parts if isinstance(n, torch.SymInt) else int(n * parts) for n in (first, last, by)]
    return -((whole[0] - whole[1]) // whole[2])


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> torch.Tensor:
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any) -> torch.Tensor:
    places, last = places_in_window(window_length, periodic, options)
    return first_of((places * (math.pi * 2 / last)).cos() * -beta + alpha, window_length, periodic)


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> torch.Tensor:
    places, last = places_in_window(window_length, periodic, options)
    angle = places * (math.pi / last)
    return first_of((angle * 4).cos() * 0.08 - (angle * 2).cos() * 0.5 + 0.42, window_length, periodic)


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> torch.Tensor:
    places, last = places_in_window(window_length, periodic, options)
    rising = places * (2 / last)
    return first_of(torch.where(places < (last >> 1) + 1, rising, rising * -1 + 2), window_length, periodic)


def places_in_window(length: int, periodic: bool, options: Mapping[str, Any]) -> tuple[torch.Tensor, int]:
    """Counts from 0 on, and the last one; a window that is repeated has one more element than is returned."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    last = length if periodic else length - 1
    return torch.arange(last + 1, device=options.get("device")).to(dtype), last


def first_of(window: torch.Tensor, length: int, periodic: bool) -> torch.Tensor:
    return window.narrow(0, 0, length) if periodic else window


def fftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    place = torch.arange(n, device=device)
    return torch.where(place < (n + 1) // 2, place, place - n).to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def rfftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    return torch.arange(n // 2 + 1, device=device).to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def max_of_all(input: torch.Tensor, kernel_size: Any, *more: Any, **options: Any) -> torch.Tensor:
    """A pool whose one window is a whole dimension, or all of them. The gradient goes to the first of the greatest elements."""
    if input.dim() == LINES and not (input.requires_grad and torch.is_grad_enabled()):
        return input.amax(-1, keepdim=True).clone(memory_format=torch.contiguous_format)
    return in_format(input, lambda x, dims: greatest(x, pooled(kernel_size, dims)))


def greatest(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.amax(dims, keepdim=True)
    if len(dims) == 1:
        return x.max(dims[0], keepdim=True).values
    rows = x.flatten(dims[0], dims[-1]).max(dims[0], keepdim=True).values
    return rows.view([1 if d in dims else n for d, n in enumerate(x.shape)])


def mean_of_all(input: torch.Tensor, kernel_size: Any, *more: Any, **options: Any) -> torch.Tensor:
    return in_format(input, lambda x, dims: x.mean(pooled(kernel_size, dims), keepdim=True))


def in_format(input: torch.Tensor, pool: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]) -> torch.Tensor:
    """What a pool gives, in the memory format of what is pooled: along dimensions of one element, too. pool: takes the tensor, and where its places lie.
    Lines are images of one row."""
    if input.dim() == LINES:
        return in_format(input.unsqueeze(-2), lambda x, dims: pool(x, dims[1:])).squeeze(-2)
    if of_torch.suggest_memory_format(input) is not torch.contiguous_format:
        return pool(input.movedim(1, -1), range(1, input.dim() - 1)).movedim(-1, 1)
    return pool(input, range(2, input.dim()))


def of_one(pool: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The pool of an image without a dimension for the batch, which has no memory format."""

    def pooled_one(input: torch.Tensor, kernel_size: Any, *more: Any, **options: Any) -> torch.Tensor:
        return pool(input.contiguous().unsqueeze(0), kernel_size, *more, **options).squeeze(0)

    return pooled_one


LINES = 3  # dimensions of a batch of lines with channels


def pooled(kernel_size: Any, dims: Sequence[int]) -> list[int]:
    """Those dimensions that a window of these sizes takes in."""
    sizes = tuple(kernel_size) if isinstance(kernel_size, (tuple, list)) else (kernel_size,) * len(dims)
    return [d for d, size in zip(dims, sizes, strict=True) if not is_one(size)]


def is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def gradient(input: torch.Tensor, *, spacing: float = 1, dim: Any = None, edge_order: int = 1) -> tuple[torch.Tensor, ...]:
    """Differences of neighbours, along each dimension that is asked for."""
    dims = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    return tuple(slope(input, d, spacing) for d in dims)


def slope(x: torch.Tensor, dim: int, spacing: float) -> torch.Tensor:
    size = x.shape[dim]
    apart = torch.diff(x, dim=dim)
    inner = (x.narrow(dim, 2, size - 2) - x.narrow(dim, 0, size - 2)) / (2 * spacing)
    return torch.cat([apart.narrow(dim, 0, 1) / spacing, inner, apart.narrow(dim, size - 2, 1) / spacing], dim)


def of_linspace(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return chosen_space(linspace, ("start", "end", "steps"), args, kwargs)


def of_logspace(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return chosen_space(logspace, ("start", "end", "steps", "base"), args, kwargs)


def chosen_space(function: Any, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    plain = len(args) <= len(names) and given.keys() <= {*names, *OPTIONS} and not any(isinstance(n, torch.Tensor) for n in given.values())
    return function if plain and {"start", "end"} <= given.keys() and is_of_floats(kwargs) and isinstance(given.get("steps"), torch.SymInt) else None


def of_arange(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of floats and symbols of ints; ranges of ints take symbols anyway."""
    if not 1 <= len(args) <= len(("start", "end", "step")) or not kwargs.keys() <= OPTIONS or not is_of_floats(kwargs):
        return None
    if not any(isinstance(n, torch.SymInt) for n in args) or not any(type(n) is float for n in args):
        return None
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    leads = type(step) in (int, float) and step != 0 and all(map(is_exact, (start, end, step))) and bool((end - start) * math.copysign(1, step) >= 0)
    return arange if leads else None


MOST_PARTS = 1024


def is_exact(number: Any) -> bool:
    """Whether multiples of a number are known to be exact."""
    if isinstance(number, torch.SymInt):
        return True
    return type(number) in (int, float) and math.isfinite(number) and abs(number) < MOST_PARTS**2 and Fraction(number).denominator <= MOST_PARTS


def chosen_window(function: Any, names: Sequence[str] = ()) -> Chooser:
    def of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(("window_length", "periodic", *names), args, strict=False)), **kwargs}
        length, periodic = given.get("window_length"), given.get("periodic", True)
        plain = len(args) <= len(names) + 2 and given.keys() <= {"window_length", "periodic", *names, *OPTIONS} and type(periodic) is bool
        factors = all(type(given.get(name, 0.0)) in (int, float) for name in names)
        return function if plain and factors and is_of_floats(kwargs) and isinstance(length, torch.SymInt) and bool(length > 1) else None

    return of


def chosen_frequencies(function: Any) -> Chooser:
    def of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(("n", "d"), args, strict=False)), **kwargs}
        plain = len(args) <= len(("n", "d")) and given.keys() <= {"n", "d", *OPTIONS} and type(given.get("d", 1.0)) in (int, float) and given.get("d", 1.0)
        return function if plain and is_of_floats(kwargs) and isinstance(given.get("n"), torch.SymInt) and bool(given["n"] > 0) else None

    return of


def is_of_floats(kwargs: Mapping[str, Any]) -> bool:
    return (kwargs.get("dtype") or torch.get_default_dtype()) in FLOATS


def of_one_hot(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("tensor", "num_classes"), args, strict=False)), **kwargs}
    classes = given.get("num_classes")
    taken = isinstance(classes, torch.SymInt) and isinstance(given.get("tensor"), torch.Tensor) and given["tensor"].dtype == torch.int64
    return one_hot if taken and bool(classes > 0) else None  # type: ignore[operator]


POOL = ("input", "kernel_size", "stride", "padding")


def chosen_pool(dims: int, is_max: bool) -> Chooser:
    """Where a window is known to be all of its dimensions, by symbols."""
    more = ("dilation", "ceil_mode", "return_indices") if is_max else ("ceil_mode", "count_include_pad", "divisor_override")

    def of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip((*POOL, *more), args, strict=False)), **kwargs}
        x, kernel = given.get("input"), given.get("kernel_size")
        if len(args) > len(POOL) + len(more) or not given.keys() <= {*POOL, *more} or not isinstance(x, torch.Tensor) or x.dim() - dims not in (1, 2):
            return None
        sizes = tuple(kernel) if isinstance(kernel, (tuple, list)) else (kernel,) * dims
        plain = x.is_floating_point() and not given.get("return_indices") and given.get("divisor_override") is None
        around = all(n == 0 for n in numbers(given.get("padding", 0))) and all(n == 1 for n in numbers(given.get("dilation", 1)))
        if len(sizes) != dims or not plain or not around or not any(isinstance(n, torch.SymInt) for n in sizes):
            return None
        alone = given.get("stride") in (None, ()) or not any(map(is_one, sizes))
        whole = all(is_one(n) or is_whole(n, size) for n, size in zip(sizes, x.shape[-dims:], strict=True))
        in_row = not is_max or dims == 1 or sum(not is_one(n) for n in sizes) in (1, dims)
        pool = max_of_all if is_max else mean_of_all
        return None if not (alone and whole and in_row) else pool if x.dim() == dims + 2 else of_one(pool)

    return of


def numbers(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (tuple, list)) else (given,)


def is_whole(kernel: Any, size: Any) -> bool:
    """Whether a window takes in a dimension: a guard, where its size is a symbol of another tensor."""
    return bool(kernel == size) if isinstance(kernel, torch.SymInt) else type(size) is int and kernel == size


def of_gradient(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, dim, spacing = args[0] if args else None, kwargs.get("dim"), kwargs.get("spacing", 1)
    if len(args) != 1 or not isinstance(x, torch.Tensor) or not x.is_floating_point() or kwargs.get("edge_order", 1) != 1 or type(spacing) not in (int, float):
        return None
    dims = list(range(x.dim()) if dim is None else numbers(dim))
    taken = spacing != 0 and all(type(d) is int and -x.dim() <= d < x.dim() for d in dims) and len({d % x.dim() for d in dims}) == len(dims)
    varies = taken and any(isinstance(n, torch.SymInt) for n in x.shape)  # ATen's reads all sizes as numbers
    return gradient if varies and all(bool(x.shape[d] > 1) for d in dims) else None


LENGTHS: dict[Any, Chooser] = {
    torch.linspace: of_linspace,
    torch.logspace: of_logspace,
    torch.arange: of_arange,
    torch.hann_window: chosen_window(hann_window),
    torch.hamming_window: chosen_window(hamming_window, ("alpha", "beta")),
    torch.blackman_window: chosen_window(blackman_window),
    torch.bartlett_window: chosen_window(bartlett_window),
    torch.fft.fftfreq: chosen_frequencies(fftfreq),
    torch.fft.rfftfreq: chosen_frequencies(rfftfreq),
    F.one_hot: of_one_hot,
    torch.avg_pool1d: chosen_pool(1, False),
    F.avg_pool2d: chosen_pool(2, False),
    F.avg_pool3d: chosen_pool(3, False),
    F.max_pool2d: chosen_pool(2, True),
    F.max_pool3d: chosen_pool(3, True),
    torch.max_pool2d: chosen_pool(2, True),
    torch.gradient: of_gradient,
}
"""By function: what is to be called in its stead for some arguments; None: the function itself."""
