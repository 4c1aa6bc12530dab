"""Pointwise ATen ops as formulas over the scalar core.

A row: overload -> (operand dtype, samples, formula). `o` emits scalar ops (`o.exp(x)`), values have operators, numbers stay numbers.
Operand dtype: see `table.Row`.
A formula that does not cover its arguments raises NotCovered: the op is then a call of ATen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dynacompile.ops.scalars import NEAREST


class NotCovered(Exception):
    """These arguments are outside what a row's formula can express."""


def _clamp(o, x, low=None, high=None):
    if low is not None:
        x = o.max(x, low)
    return x if high is None else o.min(x, high)


def _gelu(o, x, approximate="none"):
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + o.tanh(inner))
    return x * 0.5 * (1.0 + o.erf(x * math.sqrt(0.5)))


def _gelu_backward(o, g, x, approximate="none"):
    if approximate == "tanh":
        beta, kappa = math.sqrt(2.0 / math.pi), 0.044715
        t = o.tanh(beta * (x + kappa * (x * x * x)))
        inner = beta * (1.0 + 3.0 * kappa * (x * x))
        return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
    cdf = 0.5 * (1.0 + o.erf(x * math.sqrt(0.5)))
    pdf = o.exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (cdf + x * pdf)


def _pow_scalar(o, x, exponent):
    if not isinstance(exponent, (int, float)):  # eager has roots and products for some exponents
        raise NotCovered
    if float(exponent).is_integer() and abs(exponent) <= 16 and (exponent >= 0 or o.compute.is_floating_point):
        result = o.power(x, abs(int(exponent)))
        return result if exponent >= 0 else 1.0 / result
    if exponent in (0.5, -0.5) and o.out != torch.float16:  # of minus infinity, eager's float16 alone takes C's power
        return o.sqrt(x) if exponent > 0 else o.rsqrt(x)
    return _pow(o, x, exponent)


def _pow(o, x, exponent):
    if not o.compute.is_floating_point:
        raise NotCovered
    return o.exp2(exponent) if x == 2 else o.pow(x, exponent)


def _nearest(o, x):
    return getattr(o, NEAREST[o.out])(x) if o.out in NEAREST else x


def _div_mode(o, x, y, rounding_mode=None):
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return o.floordiv(x, y)
    if o.compute.is_floating_point:
        return o.trunc(_nearest(o, x / y))  # eager truncates a quotient that its dtype holds
    return o.floordiv(x - o.fmod(x, y), y)


def _sign(o, x):
    if x.dtype == torch.bool:
        return x
    return o.cast(x > 0, x.dtype) - o.cast(x < 0, x.dtype)


def _nan_to_num(o, x, nan=0.0, posinf=None, neginf=None):
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(o.out)
    x = o.select(o.isnan(x), 0.0 if nan is None else nan, x)
    x = o.select(o.eq(x, math.inf), limits.max if posinf is None else posinf, x)
    return o.select(o.eq(x, -math.inf), limits.min if neginf is None else neginf, x)


def _lerp(o, x, end, weight):
    if isinstance(weight, (int, float)):
        return x + weight * (end - x) if abs(weight) < 0.5 else end - (end - x) * (1 - weight)
    return o.select(o.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1.0 - weight))


def _softplus(o, x, beta=1, threshold=20):
    scaled = x * beta
    return o.select(scaled > threshold, x, o.log1p(o.exp(scaled)) / beta)


def _softplus_backward(o, g, x, beta, threshold):
    z = o.exp(x * beta)
    return o.select(x * beta > threshold, g, g * z / (z + 1.0))


def _elu(o, x, alpha=1, scale=1, input_scale=1):
    return o.select(x > 0, x * scale, o.expm1(x * input_scale) * (alpha * scale))


def _elu_backward(o, g, alpha, scale, input_scale, is_result, x):
    negative = g * input_scale * (x + alpha * scale) if is_result else g * (input_scale * alpha * scale) * o.exp(x * input_scale)
    return o.select(x > 0, g * scale, negative)


def _hardtanh_backward(o, g, x, low, high):
    return o.select((x > low) & (x < high), g, 0.0)


def _hardswish_backward(o, g, x):
    return o.select(x <= -3.0, 0.0, o.select(x >= 3.0, g, g * (x / 3.0 + 0.5)))


def _silu_backward(o, g, x):
    s = o.sigmoid(x)
    return g * s * (1.0 + x * (1.0 - s))


def _mish(o, x):
    return x * o.tanh(o.select(x > 20.0, x, o.log1p(o.exp(x))))


def _xlogy(o, x, y):
    x, y = (v if hasattr(v, "dtype") else o.constant(v) for v in (x, y))
    return o.select(o.isnan(y), y, o.select(o.eq(x, 0), 0.0, x * o.log(y)))


def _fmax(o, x, y):
    return o.select(o.isnan(x), y, o.select(o.isnan(y), x, o.max(x, y))) if x.dtype.is_floating_point else o.max(x, y)


def _fmin(o, x, y):
    return o.select(o.isnan(x), y, o.select(o.isnan(y), x, o.min(x, y))) if x.dtype.is_floating_point else o.min(x, y)


def _floored(name: str) -> Callable:
    return lambda o, x: getattr(o, name)(x) if x.dtype.is_floating_point else x


def _isnan(o, x):
    return o.isnan(x) if x.dtype.is_floating_point else o.constant(False, torch.bool)


def _isinf(o, x):
    return o.eq(o.abs(x), math.inf) if x.dtype.is_floating_point else o.constant(False, torch.bool)


def _where(o, condition, a, b):
    return o.select(o.test(condition), o.cast(a, o.compute), o.cast(b, o.compute))


def _masked_fill(o, x, mask, value):
    return o.select(o.test(mask), o.cast(value, o.compute), o.cast(x, o.compute))


def _same(o, x, *_, **__):
    return x


def _convert(o, x, *_, **__):
    """x as the result's dtype holds it: what reads it further on sees the rounded number, as in eager."""
    return _nearest(o, o.cast(x, o.compute)) if o.out in NEAREST else x


def _unary(name: str) -> Callable:
    return lambda o, x: getattr(o, name)(x)


FLOAT_UNARY = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf")

POINTWISE: dict[str, tuple[str, str, Callable]] = {
    **{f"{name}.default": ("out", "unary_float", _unary(name)) for name in FLOAT_UNARY},
    "log10.default": ("out", "unary_float", lambda o, x: o.log(x) * (1.0 / math.log(10.0))),
    "tan.default": ("out", "unary_float", lambda o, x: o.sin(x) / o.cos(x)),
    "atan.default": ("out", "unary_float", lambda o, x: o.atan2(x, 1.0)),
    "reciprocal.default": ("out", "unary_float", lambda o, x: 1.0 / x),
    "neg.default": ("out", "unary", lambda o, x: -x),
    "abs.default": ("out", "unary", lambda o, x: o.abs(x)),
    "sign.default": ("out", "unary", _sign),
    "sgn.default": ("out", "unary", _sign),
    "floor.default": ("out", "unary", _floored("floor")),
    "ceil.default": ("out", "unary", _floored("ceil")),
    "trunc.default": ("out", "unary", _floored("trunc")),
    "round.default": ("out", "unary", _floored("round")),
    "frac.default": ("out", "unary_floats", lambda o, x: x - o.trunc(x)),
    "square.default": ("out", "unary", lambda o, x: x * x),
    "isnan.default": ("own", "unary_special", _isnan),
    "isinf.default": ("own", "unary_special", _isinf),
    "logical_not.default": ("own", "unary_any", lambda o, x: ~o.test(x)),
    "bitwise_not.default": ("out", "unary_bits", lambda o, x: ~x),
    "signbit.default": ("own", "unary", lambda o, x: o.atan2(o.cast(x, torch.float32), -1.0) < 0.0 if x.dtype.is_floating_point else x < 0),
    "nan_to_num.default": ("out", "unary_special", _nan_to_num),
    # activations
    "relu.default": ("out", "unary", lambda o, x: o.max(x, 0)),
    "relu6.default": ("out", "unary_floats", lambda o, x: _clamp(o, x, 0, 6)),
    "leaky_relu.default": ("out", "unary_slope", lambda o, x, slope=0.01: o.select(x > 0, x, x * slope)),
    "leaky_relu_backward.default": ("out", "leaky_backward", lambda o, g, x, slope, result: o.select(x > 0, g, g * slope)),
    "gelu.default": ("out", "unary_gelu", _gelu),
    "gelu_backward.default": ("out", "gelu_backward", _gelu_backward),
    "silu.default": ("out", "unary_floats", lambda o, x: x * o.sigmoid(x)),
    "silu_backward.default": ("out", "binary_floats", _silu_backward),
    "mish.default": ("out", "unary_floats", _mish),
    "elu.default": ("out", "unary_floats", _elu),
    "elu_backward.default": ("out", "elu_backward", _elu_backward),
    "softplus.default": ("out", "unary_floats", _softplus),
    "softplus_backward.default": ("out", "softplus_backward", _softplus_backward),
    "hardtanh.default": ("out", "unary_floats", lambda o, x, low=-1, high=1: _clamp(o, x, low, high)),
    "hardtanh_backward.default": ("out", "bounded_backward", _hardtanh_backward),
    "hardsigmoid.default": ("out", "unary_floats", lambda o, x: _clamp(o, x + 3.0, 0.0, 6.0) / 6.0),
    "hardsigmoid_backward.default": ("out", "binary_floats", lambda o, g, x: o.select((x > -3.0) & (x < 3.0), g * (1.0 / 6.0), 0.0)),
    "hardswish.default": ("out", "unary_floats", lambda o, x: x * _clamp(o, x + 3.0, 0.0, 6.0) / 6.0),
    "hardswish_backward.default": ("out", "binary_floats", _hardswish_backward),
    "sigmoid_backward.default": ("out", "binary_floats", lambda o, g, y: g * ((1.0 - y) * y)),
    "tanh_backward.default": ("out", "binary_floats", lambda o, g, y: g * (1.0 - y * y)),
    "threshold.default": ("out", "threshold", lambda o, x, bound, value: o.select(x <= bound, value, x)),
    "threshold_backward.default": ("out", "threshold_backward", lambda o, g, x, bound: o.select(x <= bound, 0, g)),
    "clamp.default": ("out", "clamp", _clamp),
    "clamp.Tensor": ("out", "clamp_tensor", _clamp),
    "clamp_min.default": ("out", "unary_number", lambda o, x, low: o.max(x, low)),
    "clamp_min.Tensor": ("out", "binary", lambda o, x, low: o.max(x, low)),
    "clamp_max.default": ("out", "unary_number", lambda o, x, high: o.min(x, high)),
    "clamp_max.Tensor": ("out", "binary", lambda o, x, high: o.min(x, high)),
    # arithmetic
    "add.Tensor": ("out", "binary_alpha", lambda o, x, y, alpha=1: x + (y if alpha == 1 else alpha * y)),
    "add.Scalar": ("out", "unary_number", lambda o, x, y, alpha=1: x + y * alpha),
    "sub.Tensor": ("out", "binary_alpha_numbers", lambda o, x, y, alpha=1: x - (y if alpha == 1 else alpha * y)),
    "sub.Scalar": ("out", "unary_number", lambda o, x, y, alpha=1: x - y * alpha),
    "rsub.Tensor": ("out", "binary_alpha_numbers", lambda o, x, y, alpha=1: y - (x if alpha == 1 else alpha * x)),
    "rsub.Scalar": ("out", "unary_number", lambda o, x, y, alpha=1: y - (x if alpha == 1 else alpha * x)),
    "mul.Tensor": ("out", "binary", lambda o, x, y: x * y),
    "mul.Scalar": ("out", "unary_number", lambda o, x, y: x * y),
    "div.Tensor": ("out", "binary_nonzero", lambda o, x, y: x / y),
    "div.Scalar": ("out", "unary_number", lambda o, x, y: x / y),
    "div.Tensor_mode": ("out", "div_mode", _div_mode),
    "div.Scalar_mode": ("out", "div_mode_number", _div_mode),
    "floor_divide.default": ("out", "binary_nonzero", lambda o, x, y: o.floordiv(x, y)),
    "remainder.Tensor": ("out", "binary_nonzero", lambda o, x, y: o.mod(x, y)),
    "remainder.Scalar": ("out", "unary_number", lambda o, x, y: o.mod(x, y)),
    "fmod.Tensor": ("out", "binary_nonzero", lambda o, x, y: o.fmod(x, y)),
    "fmod.Scalar": ("out", "unary_number", lambda o, x, y: o.fmod(x, y)),
    "pow.Tensor_Scalar": ("out", "pow_number", _pow_scalar),
    "pow.Tensor_Tensor": ("out", "pow_tensor", _pow),
    "pow.Scalar": ("out", "pow_scalar", _pow),
    "maximum.default": ("out", "binary", lambda o, x, y: o.max(x, y)),
    "minimum.default": ("out", "binary", lambda o, x, y: o.min(x, y)),
    "fmax.default": ("out", "binary", _fmax),
    "fmin.default": ("out", "binary", _fmin),
    "atan2.default": ("out", "binary_nonzero", lambda o, x, y: o.atan2(x, y)),
    "xlogy.Tensor": ("out", "xlogy", _xlogy),
    "addcmul.default": ("out", "ternary", lambda o, x, a, b, value=1: x + (a * b if value == 1 else value * a * b)),
    "addcdiv.default": ("out", "ternary", lambda o, x, a, b, value=1: x + (a / b if value == 1 else value * a / b)),
    "lerp.Scalar": ("out", "lerp_number", _lerp),
    "lerp.Tensor": ("out", "lerp_tensor", _lerp),
    # comparisons and logic
    **{
        f"{name}.{overload}": ("args", "compare" if overload == "Tensor" else "compare_number", f)
        for overload in ("Tensor", "Scalar")
        for name, f in {
            "eq": lambda o, x, y: o.eq(x, y),
            "ne": lambda o, x, y: o.ne(x, y),
            "lt": lambda o, x, y: o.lt(x, y),
            "le": lambda o, x, y: o.le(x, y),
            "gt": lambda o, x, y: o.lt(y, x),
            "ge": lambda o, x, y: o.le(y, x),
        }.items()
    },
    "logical_and.default": ("own", "binary_any", lambda o, x, y: o.test(x) & o.test(y)),
    "logical_or.default": ("own", "binary_any", lambda o, x, y: o.test(x) | o.test(y)),
    "logical_xor.default": ("own", "binary_any", lambda o, x, y: o.test(x) ^ o.test(y)),
    "bitwise_and.Tensor": ("out", "binary_bits", lambda o, x, y: x & y),
    "bitwise_or.Tensor": ("out", "binary_bits", lambda o, x, y: x | y),
    "bitwise_xor.Tensor": ("out", "binary_bits", lambda o, x, y: x ^ y),
    "bitwise_and.Scalar": ("out", "bits_number", lambda o, x, y: x & y),
    "bitwise_or.Scalar": ("out", "bits_number", lambda o, x, y: x | y),
    "bitwise_xor.Scalar": ("out", "bits_number", lambda o, x, y: x ^ y),
    "bitwise_left_shift.Tensor": ("out", "shift", lambda o, x, y: o.shl(x, y)),
    "bitwise_right_shift.Tensor": ("out", "shift", lambda o, x, y: o.shr(x, y)),
    "bitwise_left_shift.Tensor_Scalar": ("out", "bits_number", lambda o, x, y: o.shl(x, y)),
    "bitwise_right_shift.Tensor_Scalar": ("out", "bits_number", lambda o, x, y: o.shr(x, y)),
    "where.self": ("own", "where", _where),
    "masked_fill.Scalar": ("own", "masked_fill", _masked_fill),
    "masked_fill.Tensor": ("own", "masked_fill_tensor", _masked_fill),
    # copies
    "clone.default": ("own", "unary_any", _same),
    "contiguous.default": ("own", "unary_any", _same),
    "lift_fresh_copy.default": ("own", "unary_any", _same),
    "_to_copy.default": ("own", "to_copy", _convert),
    "copy.default": ("own", "copy", lambda o, x, source, non_blocking=False: _convert(o, source)),
    "fill.Scalar": ("own", "unary_number", lambda o, x, value: o.cast(value, o.compute)),
    "fill.Tensor": ("own", "fill_tensor", lambda o, x, value: value),
}
