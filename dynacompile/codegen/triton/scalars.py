"""How each row of ops.scalars reads in Triton, per family of dtypes, and the device functions that some rows call.

Choices: what eager's CUDA kernels round exactly (division, square root, remainder) is rounded exactly here too, through the correctly
rounded instructions or libdevice, which eager uses as well. Exceptions, because kernels would else be bound by arithmetic instead of
memory: erf, tanh, sigmoid, sin and cos in float32 (a few ulp), the normal distribution function (where 1 + erf would cancel it is nearer to the
exact one than eager's), a row divided by one number (1.5 ulp, but exact where the last bit decides,
see `edges`), and, where the results are rounded to 16 bits anyway, exponentials and divisions that are good to about 1e-6, and the normal
distribution function to 7e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import dynacompile.codegen.triton.scan_functions as scan_functions
import dynacompile.codegen.triton.trigonometry as trigonometry
from dynacompile.errors import Unsupported

POINTERS: dict[torch.dtype, str] = {
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",  # operands of products alone
}  # fmt: skip
VALUES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8", torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64",
    torch.float32: "tl.float32", torch.float64: "tl.float64",
}  # fmt: skip
BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


@dataclass(frozen=True)
class Row:
    """Templates over {0}, {1}, ... (atoms: names or literals), None where the family has no such op.

    wide: the float64 form where it differs from `real`. fast: the float32 form in kernels whose results are rounded to 16 bits anyway.
    infix: Python literals may stand for constant operands.
    """

    real: str | None
    integer: str | None = None
    boolean: str | None = None
    wide: str | None = None
    fast: str | None = None
    infix: bool = False


def infix(sign: str, boolean: str | None = None) -> Row:
    text = f"{{0}} {sign} {{1}}"
    return Row(text, text, boolean, infix=True)


def function(name: str) -> Row:
    return Row(f"{name}({{0}})")


ROWS: dict[str, Row] = {
    "add": infix("+", "{0} | {1}"),
    "sub": infix("-"),
    "mul": infix("*", "{0} & {1}"),
    "truediv": Row("tl.div_rn({0}, {1})", wide="{0} / {1}", fast="{0} / {1}"),
    "floordiv": Row("floor_divide({0}, {1})", "floor_divide_integer({0}, {1})"),
    "mod": Row("remainder({0}, {1})", "remainder_integer({0}, {1})"),
    "fmod": Row("libdevice.fmod({0}, {1})", "{0} % {1}"),
    "neg": Row("{0} * -1.0", "-{0}"),  # Triton's unary minus is 0 - a, which loses the sign of zero
    "abs": Row("tl.abs({0})", "tl.abs({0})", "{0}"),
    "min": Row("tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "tl.minimum({0}, {1})", "{0} & {1}"),
    "max": Row("tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "tl.maximum({0}, {1})", "{0} | {1}"),
    "exp": Row("libdevice.exp({0})", fast="tl.exp({0})"),
    "exp2": Row("libdevice.exp2({0})", fast="tl.exp2({0})"),
    "expm1": function("libdevice.expm1"),
    "log": function("libdevice.log"),
    "log2": function("libdevice.log2"),
    "log1p": function("libdevice.log1p"),
    "sqrt": Row("tl.sqrt_rn({0})", wide="tl.sqrt({0})"),
    "rsqrt": Row("libdevice.rsqrt({0})"),
    "sin": Row("sin_f32({0})", wide="libdevice.sin({0})"),
    "cos": Row("cos_f32({0})", wide="libdevice.cos({0})"),
    "tanh": Row("tanh_f32({0})", wide="libdevice.tanh({0})"),
    "sigmoid": Row("sigmoid_f32({0})", wide="1.0 / (1.0 + libdevice.exp({0} * -1.0))"),
    "erf": Row("erf_f32({0})", wide="libdevice.erf({0})"),
    "ndtr": Row("ndtr_f32({0})", fast="ndtr_narrow({0})"),
    "pow": Row("libdevice.pow({0}, {1})"),
    "atan2": Row("libdevice.atan2({0}, {1})"),
    "floor": Row("floor_f32({0})", "{0}", wide="tl.floor({0})"),
    "ceil": Row("ceil_f32({0})", "{0}", wide="tl.ceil({0})"),
    "trunc": Row("libdevice.trunc({0})", "{0}"),
    "round": Row("libdevice.rint({0})", "{0}"),
    "nearest_bf16": Row("nearest_bf16({0})"),
    "nearest_f16": Row("{0}.to(tl.float16).to(tl.float32)"),
    "isnan": Row("{0} != {0}", "{0} != {0}", "{0} != {0}"),
    "eq": infix("==", "{0} == {1}"),
    "ne": infix("!=", "{0} != {1}"),
    "lt": infix("<", "({0} == 0) & {1}"),
    "le": infix("<=", "({0} == 0) | {1}"),
    "and": Row(None, "{0} & {1}", "{0} & {1}"),
    "or": Row(None, "{0} | {1}", "{0} | {1}"),
    "xor": Row(None, "{0} ^ {1}", "{0} ^ {1}"),
    "not": Row(None, "~{0}", "{0} == 0"),
    "shl": Row(None, "shift_left({0}, {1}, {bits})"),
    "shr": Row(None, "shift_right({0}, {1}, {bits})"),
    "where": Row("tl.where({0}, {1}, {2})", "tl.where({0}, {1}, {2})", "tl.where({0}, {1}, {2})"),
    "uniform": Row(None, "uniform({0}, {1}, {2}, {3})"),
}


def adder(count: int) -> str:
    """The function by which `count` sums are reduced together."""
    a, b = ([f"{side}{i}" for i in range(count)] for side in "ab")
    return f"""
@triton.jit
def sums_of_{count}({", ".join(a + b)}):
    return {", ".join(f"{x} + {y}" for x, y in zip(a, b, strict=True))}
"""


DEVICE_FUNCTIONS: dict[str, str] = {
    **trigonometry.FUNCTIONS,
    "reciprocal": """
@triton.jit
def reciprocal(a):
    # 1 / a in one instruction, for a of ordinary size
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1)
""",
    "power_of_two": """
@triton.jit
def power_of_two(a):
    # 2^a in one instruction; what is too small for a normal number is 0
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1)
""",
    "sigmoid_f32": """
@triton.jit
def sigmoid_f32(a):
    return reciprocal(1.0 + power_of_two(a * -1.4426950408889634))
""",
    "tanh_f32": """
@triton.jit
def tanh_f32(a):
    # to 2.5e-7: a polynomial near zero, where 1 - 2 / (1 + exp(2a)) would cancel; a factor, not a summand, keeps the sign of zero
    far = 1.0 - 2.0 * reciprocal(1.0 + power_of_two(a * 2.8853900817779268))
    s = a * a
    p = ((-0.005895142909139395 * s + 0.02079595811665058) * s - 0.053783826529979706) * s + 0.13331924378871918
    return tl.where(s < 0.36, a * (s * (p * s - 0.33333298563957214) + 1.0), far)
""",
    "erf_f32": """
@triton.jit
def erf_f32(a):
    # a * P(a^2), fitted for the least relative error (3.5e-7) up to 3.92, where erf rounds to 1
    a = tl.minimum(tl.maximum(a, -3.92, propagate_nan=tl.PropagateNan.ALL), 3.92, propagate_nan=tl.PropagateNan.ALL)
    s = a * a * 0.13015410245730946 - 1.0
    p = 0.001904415199533105 * s + (-0.0044994717463850975)
    p = p * s + 0.0025830520316958427
    p = p * s + (-0.0031031861435621977)
    p = p * s + 0.013324882835149765
    p = p * s + (-0.023390695452690125)
    p = p * s + 0.030280297622084618
    p = p * s + (-0.042087141424417496)
    p = p * s + 0.05820036306977272
    p = p * s + (-0.07429391145706177)
    p = p * s + 0.09062797576189041
    p = p * s + (-0.1091548278927803)
    p = p * s + 0.13408273458480835
    p = p * s + (-0.18010924756526947)
    p = p * s + 0.36073681712150574
    # a bound on the result, so that 1 + erf is a sum of its own: joined with the product, it would not be 0 far below 0
    return tl.minimum(tl.maximum(a * p, -1.0, propagate_nan=tl.PropagateNan.ALL), 1.0, propagate_nan=tl.PropagateNan.ALL)
""",
    "floor_f32": """
@triton.jit
def floor_f32(a):
    # Triton's takes numbers below the normal ones for 0
    whole = tl.floor(a)
    return tl.where((whole == 0) & (a < 0), -1.0, whole)
""",
    "ceil_f32": """
@triton.jit
def ceil_f32(a):
    whole = tl.ceil(a)
    return tl.where((whole == 0) & (a > 0), 1.0, whole)
""",
    "ndtr_f32": """
@triton.jit
def ndtr_f32(a):
    # the normal distribution function: 2^P(|a|) below zero, fitted to 4e-9 and, of small values, to a relative 1e-6; 0 from where 1 + erf is 0 in float32
    b = tl.abs(a)
    p = b * (-2.8819675519491043e-08) + 8.511469786753878e-07
    p = p * b + (-1.0810534149641171e-05)
    p = p * b + 7.513474702136591e-05
    p = p * b + (-0.0002737936738412827)
    p = p * b + (-1.468045957153663e-05)
    p = p * b + 0.006967549212276936
    p = p * b + (-0.052456799894571304)
    p = p * b + (-0.45921528339385986)
    p = p * b + (-1.1511049270629883)
    p = p * b + (-1.0)
    tail = tl.where(b > 5.5437, 0.0, power_of_two(p))
    return tl.where(a > 0, 1.0 - tail, tail)
""",
    "ndtr_narrow": """
@triton.jit
def ndtr_narrow(a):
    # as ndtr_f32, fitted for the least relative error (7e-6)
    b = tl.abs(a)
    p = b * (-1.8348101775700343e-06) + 6.159827171359211e-05
    p = p * b + (-0.0009305246639996767)
    p = p * b + 0.008507889695465565
    p = p * b + (-0.05396006628870964)
    p = p * b + (-0.4584643840789795)
    p = p * b + (-1.1512510776519775)
    p = p * b + (-0.9999952912330627)
    tail = tl.where(b > 5.5437, 0.0, power_of_two(p))
    return tl.where(a > 0, 1.0 - tail, tail)
""",
    "require": """
@triton.jit
def require(inside):
    tl.device_assert(inside, "a position is out of range")
""",
    "words": """
@triton.jit
def words(seed, sequence, block):
    # the four words of a block of a sequence of cuRAND's generator: Philox 4x32-10
    c0, c1 = block.to(tl.uint32), (block.to(tl.uint64) >> 32).to(tl.uint32)
    c2, c3 = sequence.to(tl.uint32), (sequence.to(tl.uint64) >> 32).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed.to(tl.uint64) >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        a, b = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, b.to(tl.uint32), (a >> 32).to(tl.uint32) ^ c3 ^ k1, a.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3
""",
    "unit": """
@triton.jit
def unit(word):
    # as cuRAND makes floats in (0, 1] of words
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
""",
    "uniform": """
@triton.jit
def uniform(seed, sequence, block, place):
    sequence, block = tl.broadcast(sequence, block)
    w0, w1, w2, w3 = words(seed, sequence, block)
    return unit(tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3)))
""",
    "uniform_by_fours": """
@triton.jit
def uniform_by_fours(seed, element, block):
    # of a tile along which each four neighbours have one sequence, and its four words in turn
    left, _ = tl.split(tl.reshape(element, (element.numel // 4, 2, 2)))
    first, _ = tl.split(left)
    sequence, block = tl.broadcast(first // 4, block)
    w0, w1, w2, w3 = words(seed, sequence, block)
    return tl.reshape(tl.join(tl.join(unit(w0), unit(w2)), tl.join(unit(w1), unit(w3))), element.shape)
""",
    "nearest_bf16": """
@triton.jit
def nearest_bf16(a):
    return a.to(tl.bfloat16).to(tl.float32)
""",
    "split_reciprocal": """
@triton.jit
def split_reciprocal(a):
    # factors (f, g) with v * f * g = v / a to 1.5 ulp, also where 1 / a would leave the range of float32
    g = tl.where(tl.abs(a) < 7.888609052210118e-31, 1.2676506002282294e30, tl.where(tl.abs(a) > 1.2676506002282294e30, 7.888609052210118e-31, 1.0))
    return tl.div_rn(tl.full(a.shape, 1.0, tl.float32), a * g), g
""",
    "floor_divide_integer": """
@triton.jit
def floor_divide_integer(a, b):
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
""",
    "remainder_integer": """
@triton.jit
def remainder_integer(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "remainder": """
@triton.jit
def remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "floor_divide": """
@triton.jit
def floor_divide(a, b):
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    whole = tl.where(quotient == 0, tl.where((a < 0) != (b < 0), -0.0, 0.0), whole)
    return tl.where(b == 0, a / b, whole)
""",
    "shift_left": """
@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    valid = (b >= 0) & (b < bits)
    return tl.where(valid, a << tl.where(valid, b, 0), 0)
""",
    "shift_right": """
@triton.jit
def shift_right(a, b, bits: tl.constexpr):
    return a >> tl.where((b >= 0) & (b < bits), b, bits - 1)
""",
    "nan_max": """
@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "nan_min": """
@triton.jit
def nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    **{f"sums_of_{n}": adder(n) for n in (2, 3, 4)},
    "add_product": """
@triton.jit
def add_product(a, b, total):
    return tl.dot(a, b, total)
""",
    "add_product_ieee": """
@triton.jit
def add_product_ieee(a, b, total):
    return tl.dot(a, b, total, input_precision="ieee")
""",
    "add_product_tf32": """
@triton.jit
def add_product_tf32(a, b, total):
    return tl.dot(a, b, total, input_precision="tf32")
""",
    "add_product_tf32x3": """
@triton.jit
def add_product_tf32x3(a, b, total):
    # of float32, on the tensor cores: each factor as the sum of two numbers that they multiply
    return tl.dot(a, b, total, input_precision="tf32x3")
""",
    "add_product_fast": """
@triton.jit
def add_product_fast(a, b, total):
    # of 8-bit numbers: sums as the tensor cores keep them, with fewer bits than float32
    return tl.dot(a, b, total)
""",
    "add_product_whole": """
@triton.jit
def add_product_whole(a, b, total):
    # of 8-bit numbers: what the tensor cores sum up of one block is added in float32
    return tl.dot(a, b, total, max_num_imprecise_acc=a.shape[1])
""",
    "halves": """
@triton.jit
def halves(a, rows: tl.constexpr, columns: tl.constexpr):
    # the columns of a on the left and those on the right
    return tl.split(tl.permute(tl.reshape(a, (rows, 2, columns // 2)), (0, 2, 1)))
""",
    "product": """
@triton.jit
def product(a, b):
    return a * b
""",
    "arg_max": """
@triton.jit
def arg_max(a, i, b, j):
    tie = (a == b) | ((a != a) & (b != b))
    take = (b > a) | ((b != b) & (a == a)) | (tie & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
""",
    "arg_min": """
@triton.jit
def arg_min(a, i, b, j):
    tie = (a == b) | ((a != a) & (b != b))
    take = (b < a) | ((b != b) & (a == a)) | (tie & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
""",
    **scan_functions.FUNCTIONS,
}


def pointer(dtype: torch.dtype) -> str:
    """Triton's name of a pointer to `dtype` in a signature, for example "*bf16"."""
    return "*" + named(POINTERS, dtype)


def element(dtype: torch.dtype) -> str:
    """Triton's expression for the dtype of what a pointer points to."""
    return {torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16"}.get(dtype) or named(VALUES, dtype)


def value(dtype: torch.dtype) -> str:
    """Triton's expression for a dtype that values are computed in."""
    return named(VALUES, dtype)


def named(names: dict[torch.dtype, str], dtype: torch.dtype) -> str:
    if dtype not in names:
        raise Unsupported("triton-dtype", f"no Triton kernel computes in {dtype}", "keep the op in eager, or cast to a supported dtype")
    return names[dtype]


def row(name: str, dtype: torch.dtype, fast: bool) -> tuple[str, bool]:
    """The template of scalar op `name` on operands of `dtype`, and whether literals may stand in it."""
    entry = ROWS[name]
    if dtype == torch.bool:
        text = entry.boolean
    elif dtype.is_floating_point:
        special = entry.wide if dtype == torch.float64 else entry.fast if fast else None
        text = special or entry.real
    else:
        text = entry.integer
    if text is None:
        raise Unsupported("triton-scalar", f"no Triton form of {name} on {dtype}")
    return text, entry.infix and dtype != torch.bool


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """`text` (of dtype source) in dtype target: floats truncate towards zero, bool tests != 0, small unsigned wrap as eager's do."""
    if source == target:
        return text
    if target == torch.bool:
        return f"{text} != 0"
    if source.is_floating_point and target in BITS and BITS[target] < 32:
        return f"{text}.to({'tl.int64' if target == torch.uint8 else 'tl.int32'}).to({value(target)})"
    return f"{text}.to({value(target)})"


def literal(number: float | int | bool, dtype: torch.dtype) -> str:
    """A Python literal of `number` for a value of `dtype`; of -0.0 an expression, since Triton (3.6) makes 0.0 of that literal."""
    if dtype == torch.bool:
        return str(bool(number))
    if dtype.is_floating_point:
        real = float(number)
        if real == 0 and math.copysign(1, real) < 0:
            return f"(tl.full((), 0.0, {value(dtype)}) * -1.0)"
        return f'float("{real}")' if real != real or real in (float("inf"), float("-inf")) else repr(real)
    return str(int(number))
