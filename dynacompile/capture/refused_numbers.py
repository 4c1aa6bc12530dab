"""Numbers that eager refuses where a kernel meets them, which fakes don't notice: those that a type can't hold, negative powers of ints, and the like.

The graph would raise when it runs, or not at all: past the `except` clauses of the program, and after what the program does behind the operation. What is
refused is left to Python, which raises, or doesn't. Of numbers that vary from call to call a guard asks that the type holds them. Of tensors the values are not
known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operands import target_name, tensors_in
from dynacompile.capture.refused_types import is_integral, is_of_torch, of_members, rows_of
from dynacompile.ops.list_writes import PREFIX
from dynacompile.ops.scalars import NEAREST

Call = tuple[Sequence[Any], Mapping[str, Any]]
Number = int | float | complex
Places = tuple[int | str, ...]

OF_LISTS = ("clamp_min", "clamp_max", "maximum", "minimum", "pow")

HELD: dict[str, Places] = {
    **dict.fromkeys(("full", "full_like"), (1, "fill_value")),
    "new_full": (2, "fill_value"),
    **dict.fromkeys(("fill", "fill_"), (1, "value")),
    "fill_diagonal_": (1, "fill_value"),
    **dict.fromkeys(("masked_fill", "masked_fill_"), (2, "value")),
    "where": (1, 2, "input", "self", "other"),
    **dict.fromkeys(("clamp", "clamp_", "clip", "clip_"), (1, 2, "min", "max")),
    **dict.fromkeys(("clamp_min", "clamp_min_"), (1, "min")),
    **dict.fromkeys(("clamp_max", "clamp_max_"), (1, "max")),
    **dict.fromkeys(("pow", "pow_", "ipow", "__pow__", "__ipow__"), (1, "exponent")),
    **dict.fromkeys(("add", "add_", "sub", "sub_", "subtract", "subtract_", "rsub"), (2, "alpha")),
    **dict.fromkeys(("addcmul", "addcmul_", "addcdiv", "addcdiv_"), (3, "value")),
    **dict.fromkeys(("addmm", "addmm_", "addmv", "addmv_", "addbmm", "addbmm_", "baddbmm", "baddbmm_", "addr", "addr_"), ("alpha", "beta")),
    **dict.fromkeys(("lerp", "lerp_"), (2, "weight")),
    "linspace": (0, 1, "start", "end"),
    "scalar_tensor": (0, "s"),
    "tensor": (0, "data"),
    "setitem": (2,),
    "pad": (3, "value"),
    "constant_pad_nd": (2, "value"),
    **dict.fromkeys(("threshold", "threshold_", "_threshold"), (1, 2, "threshold", "value")),
    **dict.fromkeys(("hardtanh", "hardtanh_"), (1, 2, "min_val", "max_val")),
    "hardshrink": (1, "lambd"),
    "randint": (0, 1, "low", "high"),
    "randperm": (0, "n"),
    **dict.fromkeys((f"_foreach_{name}{end}" for name in OF_LISTS for end in ("", "_")), (1, "scalar", "scalars")),
}
"""By operation: the places and names of the numbers that have to fit in the type of the result."""

PROMOTING = frozenset(["where", *(name + end for name in ("clamp", "clip", "clamp_min", "clamp_max", "pow", "__pow__") for end in ("", "_"))])
"""With a float beside ints, the result is of floats."""
COMPUTING = frozenset({"lerp", "lerp_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"})
"""Those whose kernels for half precision take the number as one of single precision."""

AS_FLOATS = frozenset({"pad"})
"""Those that make a float of the number."""

Test = Callable[[Sequence[Any], Mapping[str, Any]], bool]
REFUSED: dict[str, tuple[str, Test]] = {}
"""By operation: what is refused, in words, and whether it is here."""


row = rows_of(REFUSED)


@row("a negative power of ints", "pow", "pow_", "ipow", "__pow__", "__ipow__", "_foreach_pow", "_foreach_pow_")
def negative_power(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    bases = tensors_in(args[:1])
    if not bases or not all(map(is_integral, bases)):
        return False
    return any(isinstance(n, (int, torch.SymInt)) and bool(n < 0) for n in known_at((1, "exponent"), args, kwargs))


ORDERS = ("lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal")
BOUNDED = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "threshold")


LISTS = ("_foreach_clamp_min", "_foreach_clamp_max", "_foreach_maximum", "_foreach_minimum")


@row("an order of complex numbers", *(name + end for name in (*ORDERS, *BOUNDED, *LISTS) for end in ("", "_")), "_threshold")
def order_of_complex_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(value, complex) for value in (*args, *kwargs.values())) or any(t.dtype.is_complex for t in tensors_in((args, kwargs)))


@row("a range of bools", "linspace")
def range_of_bools(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("dtype") is torch.bool


@row("an alpha of 0", "celu", "celu_")
def no_alpha(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return 0 in numbers_at((1, "alpha"), args, kwargs)


@row("an epsilon that is not positive", "batch_norm")
def no_epsilon(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    return training is True and any(bool(n <= 0) for n in known_at((7, "eps"), args, kwargs))


@row("a negative beta", "smooth_l1_loss")
def negative_beta(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(n < 0 for n in numbers_at((3, 5, "beta"), args, kwargs) if not isinstance(n, complex))


@row("an order below 1", "mvlgamma", "mvlgamma_", "multigammaln", "special_multigammaln")
def no_order(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(n < 1 for n in numbers_at((1, "p"), args, kwargs) if not isinstance(n, complex))


@row("a dimension that the operand does not have", "softmax", "log_softmax", "softmin", "sort", "argsort", "index_reduce", "index_reduce_")
def no_dimension(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return lacks_dimension((1, "dim"), args, kwargs)


@row("a dimension that the operand does not have", "gumbel_softmax")
def no_dimension_of_logits(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return lacks_dimension((4, "dim"), args, kwargs)


def lacks_dimension(places: Places, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    rank = max([1, *(t.dim() for t in tensors_in(args[:1]))])
    dims = (n for n in known_at(places, args, kwargs) if isinstance(n, (int, torch.SymInt)) and not isinstance(n, bool))
    return any(bool(n < -rank) or bool(n >= rank) for n in dims)


@row("negative strides", "empty_strided")
def negative_strides(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(n < 0 for n in numbers_at((1, "stride"), args, kwargs) if type(n) is int)


@row("a side that is neither left nor right", "searchsorted")
def no_side(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("side", "left") not in ("left", "right", None)


@row("a dilation below 1", "conv1d", "conv2d", "conv3d")
def no_dilation(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(n < 1 for n in numbers_at((5, "dilation"), args, kwargs) if type(n) is int)


@row("the extremes of no elements", "amax", "amin", "aminmax", "argmax", "argmin")
def no_elements(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return len(args) + len(kwargs) == 1 and any(type(n) is int and n == 0 for t in tensors_in(args) for n in t.shape)


@row("medians along a dimension without elements", "median", "nanmedian")
def no_elements_along(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    first = next(iter(tensors_in((args, kwargs))), None)
    dims = [] if first is None else [n for n in numbers_at((1, "dim"), args, kwargs) if type(n) is int and -first.dim() <= n < first.dim()]
    return any(type(first.shape[n]) is int and first.shape[n] == 0 for n in dims)  # type: ignore[union-attr]


@row("the extremes of no elements", "max", "min", "mode")
def no_elements_at_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return no_elements(args, kwargs) or no_elements_along(args, kwargs)


@row("boundaries in more than one dimension", "bucketize")
def no_row_of_boundaries(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    boundaries = args[1] if len(args) > 1 else kwargs.get("boundaries")
    return isinstance(boundaries, torch.Tensor) and boundaries.dim() != 1


def check_numbers(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises Unsupported where eager refuses numbers that an operation of torch's is given."""
    name = target_name(target)
    check_named(name, target, args, kwargs)
    one = name.removeprefix(PREFIX)
    if one != name and (one in REFUSED or one in HELD):
        for own, named in of_members(args, kwargs):
            check_named(one, target, own, named)


def check_named(name: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The same, by the rows of this name."""
    found, places = REFUSED.get(name), HELD.get(name)
    if (found is None and places is None) or not is_of_torch(target):
        return
    if found is not None and found[1](args, kwargs):
        raise unsupported("op-failed", f"{name}: {found[0]}")
    numbers = () if places is None else numbers_at(places, args, kwargs)
    if name in AS_FLOATS:
        numbers = (float(n) if isinstance(n, int) else n for n in numbers)
    if any(not holds(dtype, number) for number in numbers for dtype in dtypes_of(name, args, kwargs, number)):
        raise unsupported("op-failed", f"{name}: a number that the type of its result can't hold")
    varying = symbolic_at(places or (), args, kwargs)
    if any(not holds_all(dtype, number, name in AS_FLOATS) for number in varying for dtype in dtypes_of(name, args, kwargs, number)):
        raise unsupported("op-failed", f"{name}: a number that varies, and that the type of its result can't hold")


def numbers_at(places: Places, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Number]:
    return (n for n in given_at(places, args, kwargs) if type(n) in (int, float, complex))


def known_at(places: Places, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Ints and floats, and numbers that vary from call to call, of which guards are asked."""
    return (n for n in given_at(places, args, kwargs) if type(n) in (int, float) or isinstance(n, (torch.SymInt, torch.SymFloat)) and n.node.hint is not None)


def symbolic_at(places: Places, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.SymInt | torch.SymFloat]:
    """Those that vary from call to call, without those that the graph computes."""
    return (n for n in given_at(places, args, kwargs) if isinstance(n, (torch.SymInt, torch.SymFloat)) and n.node.hint is not None)


def given_at(places: Places, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for place in places:
        value = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
        yield from value if isinstance(value, (list, tuple)) else (value,)


def dtypes_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], number: Number | torch.SymInt | torch.SymFloat) -> set[torch.dtype]:
    """Those that have to hold a number: the one that is named, those of tensors but for masks, or that of the number."""
    named = {value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)}
    if named:
        return named
    if isinstance(number, torch.SymInt):
        alone = torch.int64
    else:
        alone = torch.get_default_dtype() if isinstance(number, torch.SymFloat) else torch.result_type(number, number)
    found = {t.dtype for t in tensors_in(args[:1] if name == "setitem" else (args, kwargs)) if t.dtype != torch.bool}
    if not found:
        return {alone}
    if name == "where" and not isinstance(number, complex):  # in half precision it has any number, inf among them
        found -= NEAREST.keys()
    elif name in COMPUTING:
        found = {torch.float32 if dtype in NEAREST else dtype for dtype in found}
    if name.removeprefix("_foreach_") in PROMOTING and not isinstance(number, (int, torch.SymInt)):
        found = {dtype if dtype.is_complex or dtype.is_floating_point and not isinstance(number, complex) else alone for dtype in found}
    return found


def holds(dtype: torch.dtype, number: Number) -> bool:
    """Whether a type can hold a number, as eager has it: types without a sign also hold negative ints."""
    if dtype == torch.bool:
        return True
    if isinstance(number, complex):
        return (dtype.is_complex or not number.imag) and holds(dtype, number.real) and holds(dtype, number.imag)
    if not dtype.is_floating_point and not dtype.is_complex:
        bounds = torch.iinfo(dtype)
        least = bounds.min or (-bounds.max if isinstance(number, int) else 0)
        return math.isfinite(number) and least <= number <= bounds.max
    return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max


def holds_all(dtype: torch.dtype, number: torch.SymInt | torch.SymFloat, as_float: bool) -> bool:
    """Whether a type can hold a number that varies from call to call. The entry is then for those that it can hold."""
    is_int = isinstance(number, torch.SymInt)
    if dtype in (torch.bool, torch.float64, torch.complex128) or (is_int and dtype == torch.int64):
        return True
    if dtype.is_floating_point or dtype.is_complex:
        most = torch.finfo(dtype).max
        return bool(number <= most) and bool(number >= -most)
    bounds = torch.iinfo(dtype)
    least = bounds.min or (-bounds.max if is_int and not as_float else 0)
    return bool(number <= bounds.max) and bool(number >= least)
