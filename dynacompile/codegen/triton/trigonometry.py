"""float32 sine and cosine for Triton: an argument is brought to r with |r| <= pi/2 and sin(r) = sin(a), or cos(a); one polynomial does the rest.

Ordinary arguments take three fused steps with pi in three parts (Cody and Waite, Software Manual for the Elementary Functions, 1980). One
branch for four elements leads to the others, which multiply the significand by those bits of 1/pi that decide (Payne and Hanek, Radian
Reduction for Trigonometric Functions, 1983): libdevice branches for each element, and that alone makes kernels bound by arithmetic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PACK = 4  # elements that share a branch
FAR = 65536.0  # up to here three parts of pi are exact enough
SHIFT = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, whose parity is the sum's last bit
PI = (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14)
INVERSE = (0x00000000, 0x517CC1B7, 0x27220A94, 0xFE13ABE8, 0xFA9A6EE0, 0x6DB14ACC, 0x9E21C820, 0xFF28B1D5)  # 1/pi, from bit 2^31 on
QUIET_NAN = "0f7FC00000"


def bits(number: float) -> str:
    """A float32 constant of PTX."""
    return "0f" + struct.pack(">f", number).hex().upper()


def reduction(cosine: bool, pack: int) -> str:
    """PTX that takes `pack` elements, behind as many results: their r."""
    lines = ["{", ".reg .pred far, q;", ".reg .f32 t, n, r;", ".reg .f64 d;", ".reg .b64 l;"]
    lines += [f".reg .b32 {names};" for names in ("s, b, o, m, c, p0, p1", ", ".join(f"w{i}" for i in range(7)))]
    for i in range(pack):
        lines += near(f"${i}", f"${i + pack}", cosine)
    lines += [f"abs.f32 t, ${pack};", f"setp.gt.f32 far, t, {bits(FAR)};"]
    for i in range(1, pack):
        lines += [f"abs.f32 t, ${i + pack};", f"setp.gt.or.f32 far, t, {bits(FAR)}, far;"]
    lines.append("@!far bra DONE;")
    for i in range(pack):
        lines += distant(f"${i}", f"${i + pack}", cosine)
    return " ".join([*lines, "DONE:", "}"])


def near(result: str, x: str, cosine: bool) -> Iterator[str]:
    """a = n pi + r, for cosines with n halfway between integers; an odd integer turns the sign."""
    yield f"fma.{'rm' if cosine else 'rn'}.f32 t, {x}, {bits(0.3183098861837907)}, {bits(SHIFT)};"
    yield f"sub.f32 n, t, {bits(SHIFT)};"
    if cosine:
        yield f"add.f32 n, n, {bits(0.5)};"
    for k, part in enumerate(PI):
        yield f"fma.rn.f32 r, n, {bits(-part)}, {'r' if k else x};"
    yield "shl.b32 s, t, 31;"
    if cosine:
        yield "xor.b32 s, s, 0x80000000;"
    yield f"xor.b32 {result}, r, s;"


def distant(result: str, x: str, cosine: bool) -> Iterator[str]:
    """The same for |a| > FAR: 96 bits of 1/pi from weight 2^-e on, times the significand m of a = m 2^e, is a / pi modulo 2 in fixed point."""
    yield f"mov.b32 b, {x};"
    yield "and.b32 m, b, 0x7fffff;"
    yield "or.b32 m, m, 0x800000;"
    yield "bfe.u32 o, b, 23, 8;"
    yield "sub.u32 o, o, 119;"
    words = [f"0x{w:08x}" for w in INVERSE]
    for shift, count in ((4, 4), (2, 5), (1, 4)):  # by whole words; four remain
        yield f"and.b32 s, o, {32 * shift};"
        yield "setp.ne.u32 q, s, 0;"
        yield from (f"selp.b32 w{i}, {words[i + shift]}, {words[i]}, q;" for i in range(count))
        words = [*(f"w{i}" for i in range(count)), *words[count:]]
    for i in range(3):
        yield f"shf.l.wrap.b32 w{i}, w{i + 1}, w{i}, o;"
    yield "mul.hi.u32 c, m, w2;"
    yield "cvt.u64.u32 l, c;"
    yield "mad.wide.u32 l, m, w1, l;"
    yield "mov.b64 {p0, c}, l;"
    yield "mad.lo.u32 p1, m, w0, c;"
    if cosine:
        yield "sub.u32 p1, p1, 0x40000000;"
    yield "mov.b64 l, {p0, p1};"
    yield "shl.b64 l, l, 1;"
    yield "cvt.rn.f64.s64 d, l;"
    yield f"mul.f64 d, d, 0d{struct.pack('>d', 3.141592653589793 / 2**64).hex().upper()};"
    yield "cvt.rn.f32.f64 r, d;"
    yield "shl.b32 s, p1, 1;"
    yield "xor.b32 s, s, p1;"
    yield f"xor.b32 s, s, {'0xffffffff' if cosine else 'b'};"
    yield "and.b32 s, s, 0x80000000;"
    yield "xor.b32 r, r, s;"
    yield "setp.eq.u32 q, o, 136;"
    yield f"selp.f32 r, {QUIET_NAN}, r, q;"
    yield f"abs.f32 t, {x};"
    yield f"setp.gt.f32 q, t, {bits(FAR)};"
    yield f"selp.f32 {result}, r, {result}, q;"


def reduce_function(name: str, cosine: bool) -> str:
    """Tiles of fewer than PACK elements, such as a number of a row, are taken one by one."""

    def taking(pack: int) -> str:
        constraints = ",".join(["=&f"] * pack + ["f"] * pack)
        return f'tl.inline_asm_elementwise("{reduction(cosine, pack)}", "{constraints}", [a], dtype=tl.float32, is_pure=True, pack={pack})'

    return f"""
@triton.jit
def {name}(a):
    # r with |r| <= pi/2 and sin(r) = {"cos" if cosine else "sin"}(a)
    if a.numel % {PACK} == 0:
        r = {taking(PACK)}
    else:
        r = {taking(1)}
    return r
"""


FUNCTIONS = {
    "reduce_sine": reduce_function("reduce_sine", False),
    "reduce_cosine": reduce_function("reduce_cosine", True),
    "half_period": """
@triton.jit
def half_period(r):
    # sin(r) for |r| <= pi/2
    z = r * r
    p = ((2.60397996e-06 * z + (-0.000198089547)) * z + 0.00833304878) * z + (-0.166666567)
    return (p * r) * z + r
""",
    "cos_f32": """
@triton.jit
def cos_f32(a):
    # to 2.1 ulp
    return half_period(reduce_cosine(a))
""",
    "sin_f32": """
@triton.jit
def sin_f32(a):
    # to 1.8 ulp; the sum loses the sign of a zero
    r = reduce_sine(a)
    s = half_period(r)
    return ((s.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | (r.to(tl.int32, bitcast=True) & -0x80000000)).to(tl.float32, bitcast=True)
""",
}
