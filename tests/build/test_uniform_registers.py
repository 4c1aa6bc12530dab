"""What ptxas before CUDA 12.9 got wrong is seen in the machine code, and such a kernel is built another way."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from dynacompile.build import uniform_registers
from dynacompile.build.uniform_registers import may_have_it, unwritten
from tests.workers import triton_worker

# As nvdisasm prints them: two products whose descriptors share their common part, right and wrong.
SOUND = """
        /*1590*/                   UMOV UR10, UR4 ;
        /*15a0*/                   UMOV UR11, 0x80000020 ;
        /*15d0*/                   UIADD3 UR10, UP0, UR4, 0x2, URZ ;
        /*15f0*/                   UIADD3.X UR11, UR4, -0x7fffffe0, URZ, UP0, !UPT ;
        /*1600*/                   UIADD3.64 UR14, UR10, 0x3e, URZ ;
        /*1610*/                   HGMMA.64x16x8.F32.TF32 R32, R56, gdesc[UR8], R32 ;
        /*1620*/                   HGMMA.64x16x8.F32.TF32 R24, R52, gdesc[UR12], RZ, !UPT ;
"""
BROKEN = """
        /*1800*/                   UIADD3 UR4, UP0, UR5, 0x2, URZ ;
        /*1820*/                   UMOV UR10, UR4 ;
        /*1850*/                   HGMMA.64x16x8.F32.TF32 R32, R44, gdesc[UR8], R32 ;
"""
KERNEL = """
import triton
import triton.language as tl
@triton.jit
def product(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a = tl.load(a_ptr + i[:, None] * SIZE + i[None, :])
    b = tl.load(b_ptr + i[:, None] * SIZE + i[None, :])
    tl.store(c_ptr + i[:, None] * SIZE + i[None, :], tl.dot(a, b))
"""
JOB = {
    "text": KERNEL,
    "entry": "product",
    "pointers": ["*bf16", "*bf16", "*fp32"],
    "constants": {"SIZE": 64},
    "warps": 4,
    "stages": 1,
    "target": ["cuda", 90, 32],
}


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    return triton_worker()


def test_what_is_read_before_it_is_written():
    before = "        /*0010*/                   ULDC.64 UR4, c[0x0][0x218] ;\n"
    assert unwritten(before + SOUND) == []
    found = unwritten("        /*0010*/                   UMOV UR11, URZ ;\n" + BROKEN)
    assert found == ["/*1800*/                   UIADD3 UR4, UP0, UR5, 0x2, URZ ;"]
    assert unwritten(BROKEN)[1] == "/*1850*/                   HGMMA.64x16x8.F32.TF32 R32, R44, gdesc[UR8], R32 ;", "the second half of UR10's pair"
    assert unwritten("        /*0020*/              @!P2 LDG.E.128 R8, desc[UR20][R4.64] ;"), "of a predicated instruction"


def test_which_kernels_are_looked_at():
    assert may_have_it("wgmma.mma_async.sync", "12.8") and may_have_it("wgmma.mma_async.sync", "11.9")
    assert not may_have_it("wgmma.mma_async.sync", "12.9") and not may_have_it("wgmma.mma_async.sync", "13.0") and not may_have_it("mma.sync", "12.8")


def test_a_broken_kernel_is_built_without_hoppers_matrix_instructions(worker, monkeypatch):
    monkeypatch.setattr(worker.uniform_registers, "may_have_it", lambda ptx, version: "wgmma" in ptx)
    _, ptx, cubin = worker.compile_sound(JOB)
    assert "wgmma.mma_async" in ptx and uniform_registers.unwritten(uniform_registers.disassemble(cubin, worker.knobs.nvidia.nvdisasm.path)) == []
    monkeypatch.setattr(worker.uniform_registers, "unwritten", lambda listing: ["UIADD3 UR4, UP0, UR5, 0x2, URZ ;"])
    facts, cubin = worker.compile_job(JOB)
    assert facts["symbol"] == "product" and "HGMMA" not in uniform_registers.disassemble(cubin, worker.knobs.nvidia.nvdisasm.path)
    assert "DISABLE_MMA_V3" not in os.environ
