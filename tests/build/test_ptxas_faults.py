"""What ptxas gets wrong of pairs of 16-bit numbers is not given to it."""

from __future__ import annotations

import re

import pytest

from dynacompile.build import uniform_registers
from dynacompile.build.ptxas_faults import rewritten
from tests.workers import triton_worker

KERNEL = """
import triton
import triton.language as tl
@triton.jit
def places(x_ptr, y_ptr, s_ptr, z_ptr, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)[None, :]
    inside = r < 5376
    x = tl.load(x_ptr + (6 * (r // 6) - r % 6 + 5), mask=inside)
    y = tl.load(y_ptr + (r // 168 + 32 * ((r % 6 + 5) % 6) + 192 * (((r // 6) % 28 + 26) % 28)), mask=inside)
    product = x * (y - tl.load(s_ptr))
    total = tl.sum(tl.where(inside, product, 0.0), 1)[:, None]
    tl.store(z_ptr + r, product - total, mask=inside)
"""
JOB = {
    "text": KERNEL,
    "entry": "places",
    "pointers": ["*fp32"] * 4,
    "constants": {"BLOCK": 8192},
    "warps": 16,
    "stages": 1,
    "target": ["cuda", 90, 32],
}
"""As in a backward behind roll and layer_norm: of its elements, those behind 5376 are loaded by no thread, so that half a pair of places is read by nobody."""


POOL = """
import triton
import triton.language as tl
@triton.jit
def pool(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = x < n * 4
    place = 5 * (x // 4) + x % 4
    first = tl.load(x_ptr + place - 2, mask=inside & (x % 4 >= 2), other=float("-inf")).to(tl.float32)
    second = tl.load(x_ptr + place - 1, mask=inside & (x % 4 >= 1), other=float("-inf")).to(tl.float32)
    largest = tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)
    third = tl.load(x_ptr + place, mask=inside & (x % 2 == 0), other=float("-inf")).to(tl.float32)
    tl.store(y_ptr + x, tl.maximum(largest, third, propagate_nan=tl.PropagateNan.ALL), mask=inside)
"""


@pytest.mark.parametrize("pointer", ["*fp16", "*bf16"])
def test_maxima_of_halves_are_taken_one_by_one(pointer):
    job = {**JOB, "text": POOL, "entry": "pool", "pointers": [pointer] * 2, "scalars": ["i32"], "constants": {"BLOCK": 128}, "warps": 1}
    _, ptx, _ = triton_worker().compile_text(job)
    kind = pointer[1:].replace("fp", "f")
    assert f"max.NaN.{kind} " in ptx
    assert f"max.NaN.{kind}x2" not in ptx


def test_each_half_is_a_sum_of_its_own():
    packed = "\tadd.s16x2 \t%r210, %r134, %r206;\n\tadd.s32 \t%r1, %r2, %r3;\n"
    assert rewritten(packed) == (
        "\t{ .reg .b16 a0, a1, b0, b1; mov.b32 {a0, a1}, %r134; mov.b32 {b0, b1}, %r206; add.s16 a0, a0, b0; add.s16 a1, a1, b1; mov.b32 %r210, {a0, a1}; }\n"
        "\tadd.s32 \t%r1, %r2, %r3;\n"
    )
    assert "max.u16 a1, a1, b1;" in rewritten("max.u16x2 %r1, %r2, %r3;")
    assert "max.NaN.bf16 a0, a0, b0;" in rewritten("max.NaN.bf16x2 %r1, %r2, %r3;")
    assert rewritten("max.NaN.f32 %r1, %r2, %r3;") == "max.NaN.f32 %r1, %r2, %r3;"
    assert "setp.gt.f16 %p7, a0, b0; setp.gt.f16 %p8, a1, b1; }" in rewritten("\tsetp.gt.f16x2 \t%p7|%p8, %r63, %r66;")
    assert "mov.b32 {c0, c1}, %r4; fma.rn.bf16 a0, a0, b0, c0;" in rewritten("fma.rn.bf16x2 %r1, %r2, %r3, %r4;")
    assert rewritten("\tcvt.rn.f16x2.f32 \t%r1, %r97, %r96;") == "\tcvt.rn.f16x2.f32 \t%r1, %r97, %r96;"


def test_ptxas_gets_no_pairs():
    worker = triton_worker()
    _, ptx, cubin = worker.compile_text(JOB)
    assert "16x2" not in ptx
    assert "16x2" not in uniform_registers.disassemble(cubin, worker.knobs.nvidia.nvdisasm.path)


def test_whether_halves_are_numbers_is_asked_of_their_bits():
    one = "setp.num.bf16 %p1, %rs3, %rs4;"
    assert rewritten(one) == (
        "{ .reg .b16 m, n; and.b16 m, %rs3, 0x7FFF; and.b16 n, %rs4, 0x7FFF; setp.le.u16 %p1, m, 32640; setp.le.and.u16 %p1, n, 32640, %p1; }"
    )
    assert "setp.gt.u16 %p1, m, 31744; setp.gt.or.u16 %p1, n, 31744, %p1; }" in rewritten("setp.nan.f16 %p1, %rs3, %rs4;")
    both = rewritten("\tsetp.num.f16x2 \t%p2|%p3, %r1, %r12;")
    assert both.count("0x7FFF") == 4 and "and.b16 m, a1, 0x7FFF; and.b16 n, b1, 0x7FFF; setp.le.u16 %p3, m, 31744;" in both
    assert rewritten("setp.num.f32 %p1, %f1, %f2;") == "setp.num.f32 %p1, %f1, %f2;"


NOT_NAN = """
import triton
import triton.language as tl
@triton.jit
def magnitudes(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.abs(tl.load(x_ptr + i).to(tl.float32))
    tl.store(y_ptr + i, tl.where(x >= 0.0, x, 0.0))
"""


@pytest.mark.parametrize("pointer", ["*fp16", "*bf16"])
def test_ptxas_is_not_asked_whether_halves_are_numbers(pointer):
    worker = triton_worker()
    _, ptx, cubin = worker.compile_text({**JOB, "text": NOT_NAN, "entry": "magnitudes", "pointers": [pointer] * 2, "constants": {"BLOCK": 256}, "warps": 1})
    assert "0x7FFF" in ptx and not re.search(r"setp\.(num|nan)\.b?f16", ptx)
    assert ".NAN" not in uniform_registers.disassemble(cubin, worker.knobs.nvidia.nvdisasm.path)


ABSOLUTE = """
import triton
import triton.language as tl
@triton.jit
def absolute(x_ptr, y_ptr, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + r)
    a = COMPUTED
    tl.store(y_ptr + r, tl.where(a ASKED, a, 7.0))
"""


@pytest.mark.parametrize("asked", [">= -1.0", "> -1.0", "< 2.0", "<= 2.0"])
@pytest.mark.parametrize("computed", ["tl.abs(x)", "x * x", "tl.exp(x)", "tl.abs(x) + x * x"])
def test_comparisons_with_constants_are_made(computed, asked):
    """ptxas takes those that hold of all numbers for true, of NaN as well."""
    text = ABSOLUTE.replace("COMPUTED", computed).replace("ASKED", asked)
    job = {**JOB, "text": text, "entry": "absolute", "pointers": ["*fp32"] * 2, "constants": {"BLOCK": 32}, "warps": 1}
    worker = triton_worker()
    _, ptx, cubin = worker.compile_text(job)
    assert not re.search(r"setp\.(lt|le|gt|ge)\.f32 [^;]*0f", ptx)
    assert re.search("FSETP|FSET", uniform_registers.disassemble(cubin, worker.knobs.nvidia.nvdisasm.path))
