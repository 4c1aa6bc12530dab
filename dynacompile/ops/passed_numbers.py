"""Numbers that functions of torch take as C++ doubles, and pass on to ATen's operators: a schedule of a dropout's rate, the eps of a norm.

A symbol that becomes a double is a constant, and the entry then serves this number alone. So such a function is run on fakes with stand-ins in the place of
symbols: numbers that no program has by chance. Where an operator is given one, or a number that the function is known to compute of it (`Given.derived`), the
graph has the symbol, or what is computed of it. A row therefore states which numbers a function passes on, and for which of their values it does the same:
others are constants, as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

from dynacompile.errors import Unsupported
from dynacompile.ops.batch_norm import averaged_batch_norm
from dynacompile.private import of_torch

SYMBOLIC = (torch.SymInt, torch.SymFloat)
Derive = Callable[[Any], Any]


@dataclass(frozen=True)
class Given:
    """A number that is passed on where it is more than `low`, less than `high` and none of `apart`. derived: what is computed of it on the way, to the bit,
    of a float or a symbol."""

    low: float | None = None
    high: float | None = None
    apart: tuple[float, ...] = ()
    derived: tuple[Derive, ...] = ()

    def takes(self, number: Any) -> bool:
        """Adds guards where the number is a symbol: on ints with ints, which have a form."""
        low, high, apart = self.low, self.high, self.apart
        if isinstance(number, torch.SymInt):
            low = None if low is None else math.floor(low)
            high = None if high is None or math.isinf(high) else math.ceil(high)
            apart = tuple(int(n) for n in apart if n.is_integer())
        return (low is None or bool(number > low)) and (high is None or bool(number < high)) and all(bool(number != n) for n in apart)


@dataclass(frozen=True)
class Passing:
    """parameters: of the function, by position. numbers: those that it passes on. ascends: each of them is at least the one before. trains: the default of the
    parameter "training", without which a function has no use for the numbers; None: it has no such parameter."""

    parameters: tuple[str, ...]
    numbers: Mapping[str, Given]
    ascends: bool = False
    trains: bool | None = None

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        place = self.parameters.index(name)
        return args[place] if place < len(args) else kwargs.get(name)

    def has_use(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        training = None if self.trains is None else self.given(args, kwargs, "training")
        return self.trains is not False if training is None else bool(training)


def passing(parameters: str, ascends: bool = False, trains: bool | None = None, **numbers: Given) -> Passing:
    return Passing(tuple(parameters.split()), numbers, ascends, trains)


def root(number: Any) -> Any:
    return number**0.5 if isinstance(number, torch.SymFloat) else math.sqrt(number)


def kept(p: Any) -> Any:
    return 1 - p


def scale_of_kept(p: Any) -> Any:
    return 1.0 / (1.0 - p)


SATURATION = 1.7580993408473766  # of selu, as ATen writes it


def spread(p: Any) -> Any:
    """By what alpha dropout multiplies."""
    return 1.0 / root((SATURATION * SATURATION * p + 1) * (1 - p))


RATE = Given(0.0, 1.0, derived=(kept, scale_of_kept))
ALPHA_RATE = Given(0.0, 1.0, derived=(kept, spread, lambda p: SATURATION * spread(p), lambda p: SATURATION * spread(p) * p))
ANY, POSITIVE, SHARE = Given(), Given(0.0), Given(0.0, 1.0)
ATTENTION = passing("query key value attn_mask dropout_p is_causal scale enable_gqa", dropout_p=RATE, scale=Given(0.0, math.inf, derived=(root,)))
ORDER = Given(0.0, math.inf, apart=(1.0, 2.0))
"""Of a distance: each of the others has a formula of its own."""

PASSING: dict[Any, Passing] = {
    **dict.fromkeys((torch.dropout, torch.native_dropout, torch.feature_dropout), passing("input p train", p=RATE)),
    **dict.fromkeys((torch.alpha_dropout, torch.feature_alpha_dropout), passing("input p train", p=ALPHA_RATE)),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), passing("input p training inplace", trains=True, p=RATE)),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), passing("input p training inplace", trains=False, p=ALPHA_RATE)),
    F.scaled_dot_product_attention: ATTENTION,
    "normal_": passing("self mean std", mean=ANY, std=POSITIVE),
    "uniform_": Passing(("self", "from", "to"), {"from": ANY, "to": ANY}, ascends=True),
    "bernoulli_": passing("self p", p=SHARE),
    "exponential_": passing("self lambd", lambd=POSITIVE),
    "log_normal_": passing("self mean std", mean=ANY, std=POSITIVE),
    "cauchy_": passing("self median sigma", median=ANY, sigma=POSITIVE),
    "geometric_": passing("self p", p=SHARE),
    torch.normal: passing("mean std", mean=ANY, std=POSITIVE),
    torch.bernoulli: passing("input p", p=SHARE),
    "bernoulli": passing("self p", p=SHARE),
    F.rrelu: passing("input lower upper training inplace", ascends=True, lower=ANY, upper=ANY),
    F.multi_head_attention_forward: passing(
        "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v add_zero_attn dropout_p out_proj_weight out_proj_bias training",
        trains=True,
        dropout_p=RATE,
    ),
    F.local_response_norm: passing("input size alpha beta k", alpha=ANY, k=ANY),
    F.celu: passing("input alpha", alpha=Given(apart=(0.0,), derived=(lambda a: 1.0 / a,))),
    **dict.fromkeys((torch.logit, torch.special.logit), passing("input eps", eps=Given(0.0, 0.5, derived=(kept,)))),
    "logit": passing("self eps", eps=Given(0.0, 0.5, derived=(kept,))),
    F.layer_norm: passing("input normalized_shape weight bias eps", eps=ANY),
    torch.layer_norm: passing("input normalized_shape weight bias eps", eps=ANY),
    F.group_norm: passing("input num_groups weight bias eps", eps=ANY),
    torch.group_norm: passing("input num_groups weight bias eps", eps=ANY),
    F.rms_norm: passing("input normalized_shape weight eps", eps=ANY),
    torch.rms_norm: passing("input normalized_shape weight eps", eps=ANY),
    F.batch_norm: passing("input running_mean running_var weight bias training momentum eps", eps=ANY),
    averaged_batch_norm: passing("input running_mean running_var weight bias momentum eps", eps=ANY),
    F.instance_norm: passing("input running_mean running_var weight bias use_input_stats momentum eps", eps=ANY),
    F.cosine_similarity: passing("x1 x2 dim eps", eps=Given(0.0, derived=(lambda e: e * e,))),
    torch.cosine_similarity: passing("x1 x2 dim eps", eps=Given(0.0, derived=(lambda e: e * e,))),
    F.pairwise_distance: passing("x1 x2 p eps", eps=ANY),
    torch.pairwise_distance: passing("x1 x2 p eps", eps=ANY),
    torch.cdist: passing("x1 x2 p", p=ORDER),
    torch.pdist: passing("input p", p=ORDER),
    F.triplet_margin_loss: passing("anchor positive negative margin p eps", margin=POSITIVE, eps=ANY),
    F.margin_ranking_loss: passing("input1 input2 target margin", margin=ANY),
    F.cosine_embedding_loss: passing("input1 input2 target margin", margin=ANY),
    F.hinge_embedding_loss: passing("input target margin", margin=ANY),
    F.huber_loss: passing("input target reduction delta weight", delta=Given(0.0, derived=(lambda d: 0.5 * d,))),
    F.smooth_l1_loss: passing(
        "input target size_average reduce reduction beta", beta=Given(0.0, derived=(lambda b: 0.5 * b, lambda b: 0.5 / b, lambda b: 1 / b, lambda b: -b))
    ),
    F.multi_margin_loss: passing("input target p margin", margin=ANY),
    F.poisson_nll_loss: passing("input target log_input full size_average eps", eps=ANY),
    **dict.fromkeys((torch.nan_to_num, torch.nan_to_num_), passing("input nan posinf neginf", nan=ANY, posinf=ANY, neginf=ANY)),
    **dict.fromkeys(("nan_to_num", "nan_to_num_"), passing("self nan posinf neginf", nan=ANY, posinf=ANY, neginf=ANY)),
    torch.isclose: passing("input other rtol atol", rtol=POSITIVE, atol=POSITIVE),
    torch.fake_quantize_per_tensor_affine: passing("input scale zero_point quant_min quant_max", scale=POSITIVE),
    F.embedding: passing("input weight padding_idx max_norm", max_norm=POSITIVE),
    torch.embedding_renorm_: passing("weight indices max_norm norm_type", max_norm=POSITIVE),
}
"""By function, or name of a method."""

FIRST, STEP = 0x4D3B67 / 2**24, 1 / 2**24  # float32 holds each of them


class StandIns:
    """The numbers that stand for symbols while functions are traced, and what each of them stands for."""

    def __init__(self, first: int = 0) -> None:
        self._meant: dict[float, Any] = {}
        self._expected: list[set[float]] = []
        self._count = first

    def made(self, number: Any, given: Given, is_used: bool) -> float:
        """is_used: an operator is to meet it."""
        stand_in = FIRST + self._count * STEP
        self._count += 1
        forms = {stand_in: number} | {derive(stand_in): derive(number) for derive in given.derived}
        self._meant |= forms
        if is_used:
            self._expected.append(set(forms))
        return stand_in

    def meaning(self, argument: Any) -> Any:
        """What an argument of an operator stands for: itself, where it is no stand-in."""
        if type(argument) is not float or argument not in self._meant:
            return argument
        self._expected = [forms for forms in self._expected if argument not in forms]
        return self._meant[argument]

    def check(self, target: Any) -> None:
        """Raises Unsupported where no operator has met a number of the function that was just traced: it has computed something else of it."""
        if self._expected:
            self._expected.clear()
            raise Unsupported("symbolic-number", f"{target} passes on none of a number's known forms", "compile with dynamic=False")


def varies(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function has a row, and one of the numbers in it is a symbol."""
    row = PASSING.get(target)
    return row is not None and any(isinstance(row.given(args, kwargs, name), SYMBOLIC) for name in row.numbers)


def settle(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a function that `varies`: with constants for symbols, where one has a value for which the function does something else, or which it
    refuses."""
    row = PASSING[target]
    found, symbols = numbers_of(row, args, kwargs)
    each = list(found.values()) if row.ascends else []
    if all(row.numbers[name].takes(value) for name, value in symbols.items()) and all(bool(a <= b) for a, b in pairwise(each)):
        return list(args), dict(kwargs)
    return with_constants(target, args, kwargs)


def with_constants(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a function that `varies`, with constants for the numbers in its row: the entry serves these alone."""
    row = PASSING[target]
    _, symbols = numbers_of(row, args, kwargs)
    return replaced(row, args, kwargs, {name: int(n) if isinstance(n, torch.SymInt) else float(n) for name, n in symbols.items()})


def stand_in(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], stand_ins: StandIns, meant: Mapping[str, Any] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a function that `varies`, once they are settled, with stand-ins for the numbers that it passes on. meant: what they stand for, where
    that is something else."""
    row = PASSING[target]
    found, symbols = numbers_of(row, args, kwargs)
    is_used = row.has_use(args, kwargs)
    chosen = found if row.ascends else symbols
    means = {name: torch.sym_float(n) if isinstance(n, torch.SymInt) else n for name, n in chosen.items()} | {
        name: n for name, n in (meant or {}).items() if name in chosen and n is not None
    }
    return replaced(row, args, kwargs, {name: stand_ins.made(n, row.numbers[name], is_used) for name, n in means.items()})


def numbers_of(row: Passing, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers of a row that are given, and those of them that are symbols."""
    found = {name: value for name in row.numbers if isinstance(value := row.given(args, kwargs, name), (int, float, *SYMBOLIC))}
    return found, {name: value for name, value in found.items() if isinstance(value, SYMBOLIC)}


def replaced(row: Passing, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    given, named = list(args), dict(kwargs)
    for name, number in numbers.items():
        place = row.parameters.index(name)
        if place < len(given):
            given[place] = number
        else:
            named[name] = number
    return given, named


def has_static_sizes(operands: Sequence[torch.Tensor]) -> bool:
    """Whether functions that are composed of others need no rules of torch's in Python, which are there for symbolic sizes."""
    return not any(isinstance(n, torch.SymInt) for t in operands for n in (*t.shape, *t.stride()))


def casts_without_symbols(operands: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation runs under autocast and nothing of it is a symbol. torch's rules in Python take functions apart past the operators that autocast
    casts the operands of."""
    if not any(torch.is_autocast_enabled(t.device.type) for t in operands) or not has_static_sizes(operands):
        return False
    return not any(isinstance(n, SYMBOLIC) for n in of_torch.tree_leaves((args, kwargs)))
