"""Sums whose rows several tasks share out."""

from __future__ import annotations

import pytest
import torch

from .cpp_running import Library
from .triton_cases import F32, Build


@pytest.mark.parametrize("length", [33, 65, 96, 129])
def test_the_last_task_of_a_sum_has_fewer_rows(length, tmp_path):
    """Rows with gaps are no one row, and what lies behind the last one is not read."""
    kernels, tensors = {}, {}
    for rows in (767, 768, 1001):
        b = Build(f"total_{rows}", (), (rows, length))
        b.store("out", F32, b.at(0, 0), b.reduce("sum", b.load("x", F32, b.at(length + 3, 1))))
        kernels[f"total_{rows}"] = b.kernel()
        given = torch.full(((rows + 16) * (length + 3),), 1e9)
        given.as_strided((rows, length), (length + 3, 1)).fill_(1)
        tensors[f"total_{rows}"] = (given, torch.zeros(1), rows * length)
    library = Library(kernels, tmp_path)
    for name, (given, stored, expected) in tensors.items():
        library(name, [given, stored])
        assert stored.item() == expected
