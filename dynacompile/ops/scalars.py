"""The closed core of scalar operations that every target renders. Everything else expands into these.

A row gives the number of operands, how the result's dtype follows from them, and what it means in torch (the oracle). Values in a
body are computed in: bool, int32, int64, uint8, int8, int16, float32, float64. bfloat16 and float16 exist in memory only: a load
widens to float32, a store rounds, and so do nearest_bf16 and nearest_f16 where the program converts explicitly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

import dynacompile.ops.philox as philox


@dataclass(frozen=True)
class Scalar:
    """operands: how many. result: "same" as the operands (which agree), "bool", or "attr" (the op's own dtype). run: on torch tensors."""

    operands: int
    result: Literal["same", "bool", "attr"]
    run: Callable


def _floordiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


SCALARS: dict[str, Scalar] = {
    "add": Scalar(2, "same", torch.add),
    "sub": Scalar(2, "same", torch.sub),
    "mul": Scalar(2, "same", torch.mul),
    "truediv": Scalar(2, "same", torch.true_divide),  # floats only
    "floordiv": Scalar(2, "same", _floordiv),
    "mod": Scalar(2, "same", torch.remainder),  # sign of the divisor, as Python and torch.remainder
    "fmod": Scalar(2, "same", torch.fmod),  # sign of the dividend, as C; for integers the C remainder
    "neg": Scalar(1, "same", torch.neg),
    "abs": Scalar(1, "same", torch.abs),
    "min": Scalar(2, "same", torch.minimum),  # NaN wins
    "max": Scalar(2, "same", torch.maximum),  # NaN wins
    "exp": Scalar(1, "same", torch.exp),
    "exp2": Scalar(1, "same", torch.exp2),
    "expm1": Scalar(1, "same", torch.expm1),
    "log": Scalar(1, "same", torch.log),
    "log2": Scalar(1, "same", torch.log2),
    "log1p": Scalar(1, "same", torch.log1p),
    "sqrt": Scalar(1, "same", torch.sqrt),
    "rsqrt": Scalar(1, "same", torch.rsqrt),
    "sin": Scalar(1, "same", torch.sin),
    "cos": Scalar(1, "same", torch.cos),
    "tanh": Scalar(1, "same", torch.tanh),
    "sigmoid": Scalar(1, "same", torch.sigmoid),
    "erf": Scalar(1, "same", torch.erf),
    "pow": Scalar(2, "same", torch.pow),  # floats only; integer powers expand into mul
    "atan2": Scalar(2, "same", torch.atan2),
    "floor": Scalar(1, "same", torch.floor),
    "ceil": Scalar(1, "same", torch.ceil),
    "trunc": Scalar(1, "same", torch.trunc),
    "round": Scalar(1, "same", torch.round),  # half to even
    "nearest_bf16": Scalar(1, "same", lambda a: a.to(torch.bfloat16).to(a.dtype)),  # float32 only
    "nearest_f16": Scalar(1, "same", lambda a: a.to(torch.float16).to(a.dtype)),  # float32 only
    "isnan": Scalar(1, "bool", torch.isnan),
    "eq": Scalar(2, "bool", torch.eq),
    "ne": Scalar(2, "bool", torch.ne),
    "lt": Scalar(2, "bool", torch.lt),
    "le": Scalar(2, "bool", torch.le),
    "and": Scalar(2, "same", torch.bitwise_and),  # bool or integers
    "or": Scalar(2, "same", torch.bitwise_or),
    "xor": Scalar(2, "same", torch.bitwise_xor),
    "not": Scalar(1, "same", torch.bitwise_not),
    "shl": Scalar(2, "same", torch.bitwise_left_shift),
    "shr": Scalar(2, "same", torch.bitwise_right_shift),
    "where": Scalar(3, "same", torch.where),  # (bool, a, b): the dtype of a and b
    "cast": Scalar(1, "attr", lambda a: a),  # to the op's dtype: float to int truncates, to bool tests != 0
    "uniform": Scalar(4, "attr", philox.uniform),  # (seed, sequence, block, place), int64: cuRAND's float32 in (0, 1] there
}

NEAREST = {torch.bfloat16: "nearest_bf16", torch.float16: "nearest_f16"}

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
PLACES = ("argmax", "argmin")
SCANS = ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")
"""Of numbers. logaddexp: the logarithm of the sum of exponentials, of infinities as torch.logaddexp."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of a buffer of `dtype` are computed."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
