"""Triton's interpreter as a harness: what a GPU would not forgive, it does not either."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.interpreted import started

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(from_ptr, to_ptr, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(to_ptr + x, tl.load(from_ptr + x, mask=x < 24, other=0.0){mask})
"""


@pytest.mark.parametrize(("mask", "sizes", "said"), [
    (", mask=x < 24", (24, 24), None),
    ("", (24, 32), None),
    ("", (24, 24), "accesses 8 of 16 elements outside"),
    (", mask=x < 24", (20, 24), "accesses 4 of 8 elements outside"),
])  # fmt: skip
def test_accesses_outside_of_tensors_are_errors(tmp_path, mask, sizes, said):
    tensors = [torch.ones(n) for n in sizes]
    jobs = [(KERNEL.replace("{mask}", mask), "copy", {"XBLOCK": 16}, (2, 1, 1), tensors)]
    ran = started(jobs, tmp_path / "cases.pt", tmp_path / "results.pt", timeout=300)
    assert (ran.returncode == 0) == (said is None), ran.stderr
    assert said is None or said in ran.stderr
