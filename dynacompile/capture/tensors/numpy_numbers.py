"""NumPy's functions on Python numbers: computed while capturing; what they give is the number that NumPy gives.

Torch takes NumPy's real numbers where it takes Python's, with the same result, and reads their type in `torch.tensor(number)` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Lazy, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.ir.source import Applied, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NUMBERS = (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
KNOWN = (*NUMBERS, np.bool_)
FUNCTIONS = """
    all allclose amax amin any append arange argmax argmin argsort argwhere around array array_equal array_split asarray atleast_1d atleast_2d average
    bincount broadcast_to ceil clip column_stack concatenate convolve corrcoef count_nonzero cov cross cumprod cumsum deg2rad diag diagonal diff digitize dot
    can_cast einsum empty empty_like expand_dims eye fix flatnonzero flip fliplr flipud floor full full_like geomspace
    hanning hstack histogram identity indices inner interp intersect1d
    isclose isin isscalar issubdtype kron linspace logspace max mean median meshgrid min moveaxis nan_to_num ndim nonzero ones ones_like outer pad percentile
    polyfit polyval prod ptp quantile rad2deg ravel repeat reshape roll rot90 round searchsorted shape size sort split squeeze stack std sum swapaxes take
    take_along_axis tensordot tile trace transpose tri tril triu triu_indices tril_indices unique unravel_index unwrap vander var vdot vstack where zeros
    zeros_like
    """.split()
"""Without effects, and of their arguments alone."""


class NumpyNumber(ConstantValue):
    """A number of NumPy's that capture knows."""

    def describe(self) -> str:
        return f"a {type(self.value).__name__}"

    def argument(self) -> tuple[Any, Any]:
        if type(self.value) not in NUMBERS:  # torch computes in other types with these than with Python's
            raise NotConstant(type(self.value).__name__)
        return self.value.item(), self.value

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("real", "imag"):
            return computed(cx, getattr, [self, ConstantValue(name)], {})
        return super().get_attr(cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return computed(cx, self.own(name), args, kwargs)


@wraps(*KNOWN)
def wrap_number(cx: Context, real: np.generic, source: Source) -> Value:
    """One that exists before the frame: a constant of the entry, until it is seen to change from call to call."""
    cx.guard("TYPE", source, type(real))
    number, plain = real.item(), Applied(source, np.generic.item, ".item()")
    if not isinstance(number, bool) and cx.symbolic_number(number, plain) is not None:
        return RefusedValue(real, "unknown-object", source, f"{source.text()} ({type(real).__name__}), which changes from call to call,")
    cx.guard("EQUALS", plain, number)
    return NumpyNumber(real, source)


def number_of(real: np.generic) -> Value:
    if type(real) not in KNOWN:
        raise unsupported("unknown-object", f"a {type(real).__name__} of numpy")
    return NumpyNumber(real)


def computed(cx: Context, function: Callable, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """function(*args, **kwargs) where all that it reads is known; a warning of NumPy's is left to Python to give."""
    name = f"numpy.{function.__name__}"
    if {"out", "where"} & set(kwargs):
        raise unsupported("unknown-function", f"{name} with out= or where=")
    try:
        reals, named = [plain(cx, a) for a in args], {k: plain(cx, v) for k, v in kwargs.items()}
    except NotConstant as reason:
        raise unsupported("unknown-function", f"{name} of a {reason}") from reason
    try:
        with np.errstate(all="raise"):
            result = function(*reals, **named)
    except FloatingPointError as reason:
        raise unsupported("would-raise", f"{name}: {reason}") from reason
    except (TypeError, ValueError) as reason:
        raise unsupported("would-raise", f"{name}: {type(reason).__name__}: {reason}") from reason
    return cx.of(result)


def plain(cx: Context, value: Value) -> Any:
    """The object that a value stands for, lists and tuples of constants included. Raises NotConstant."""
    if isinstance(value, TensorValue):
        raise NotConstant("tensor")
    if isinstance(value, SequenceValue) and value.cls in (list, tuple):
        return value.cls(plain(cx, item) for item in value.elements(cx))
    return value.constant()


def inferred_dtype(cx: Context, value: Value) -> torch.dtype | None:
    """The type that `torch.tensor(value)` takes from NumPy's numbers; None where there are none."""
    if not holds_numbers(value):
        return None
    try:
        return torch.tensor(plain(cx, value)).dtype
    except (TypeError, ValueError, OverflowError) as reason:
        raise unsupported("would-raise", f"torch.tensor: {type(reason).__name__}: {reason}") from reason


def holds_numbers(value: Value) -> bool:
    if isinstance(value, Lazy) and (type(value.real) in KNOWN or type(value.real) in (list, tuple)):  # an item that nobody has read yet
        value = value.force()
    return isinstance(value, NumpyNumber) or isinstance(value, SequenceValue) and any(map(holds_numbers, value.items))


PURE = {id(getattr(np, name)): getattr(np, name) for name in FUNCTIONS} | {  # by identity: what hashes is up to NumPy
    id(f): f for name in ("norm", "det", "inv", "solve", "eigvalsh") for f in (getattr(np.linalg, name),)
}


def is_pure(real: Any) -> bool:
    """Whether a function of NumPy's, of whichever kind, is one without effects."""
    return id(real) in PURE


def number_class(cls: type) -> None:
    """`np.float32(2)`."""

    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return computed(cx, cls, args, kwargs)


for _cls in KNOWN:
    number_class(_cls)
