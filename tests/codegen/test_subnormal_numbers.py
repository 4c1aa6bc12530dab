"""Functions of libdevice take numbers below the normal ones for what they are, as in eager's kernels. Needs no GPU: the PTX tells."""

from __future__ import annotations

import re

import pytest

from dynacompile.codegen.triton.scalars import DEVICE_FUNCTIONS, ROWS
from tests.workers import triton_worker

HEADER = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
# one instruction of an exponential below whose result eager flushes, too; a reciprocal whose operand is a normal number
OWN = {"ex2.approx.ftz.f32", "rcp.approx.ftz.f32"}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.real is not None and "libdevice" in row.real and "{3}" not in row.real])
def test_no_function_flushes(name):
    text = f"""{HEADER}{"".join(DEVICE_FUNCTIONS.values())}
@triton.jit
def kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, {ROWS[name].real.format("a", "b")})
"""
    job = {"text": text, "entry": "kernel", "pointers": ["*fp32"] * 3, "constants": {"BLOCK": 128}, "warps": 1, "stages": 1, "target": ["cuda", 90, 32]}
    worker = triton_worker()
    found = {flushes: set(re.findall(r"\S*\.ftz\S*", worker.compile_text({**job, "flushes": flushes})[1])) for flushes in (False, True)}
    assert found[False] <= OWN
    if name in ("log", "log1p", "expm1", "atan2", "pow", "rsqrt"):
        assert found[True] - OWN, "they would, if asked to"
