"""Results in the memory of operands, each made of another's: every element is read before anything is stored there."""

from __future__ import annotations

import pytest
import torch

from dynacompile.ir.schedule import Kernel

from .cpp_running import Library
from .triton_cases import BF16, F32, F64, I8, I64, Build, oracle, storages

TYPES = {"f32": F32, "f64": F64, "bf16": BF16, "i8": I8, "i64": I64}


def turned(dtype: torch.dtype, form: str) -> Kernel:
    """Three operands, whose memory takes the results of the next operand."""
    points, steps = (65, 33) if form != "few" else (3, 2)
    b = Build(f"turned_{form}", (points, steps) if form != "rows" else (points,), () if form != "rows" else (steps,))
    place = {"lanes": b.at(steps, 1), "apart": b.at(3 * steps, 3), "crossed": b.at(1, points), "few": b.at(steps, 1), "rows": b.at(3, 0)}[form]
    values = [b.load(f"old{i}", dtype, place) for i in range(3)]
    wide = b.body[values[0]].dtype
    if form == "crossed":
        values = [b.add_(v, b.load("straight", wide, b.at(steps, 1))) for v in values]
    if form == "rows":
        taken = b.reduce("sum", b.mul(b.load("x", wide, b.at(steps, 1)), values[0]))
        values = [b.add_(values[0], taken), *values[1:]]
    for i in range(3):
        b.store(f"new{i}", dtype, place, values[(i + 1) % 3])
    return b.kernel()


CASES = {f"{form}_{types}": (form, TYPES[types]) for form in ("lanes", "apart", "crossed", "few", "rows") for types in TYPES}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: turned(dtype, form) for name, (form, dtype) in CASES.items()}, tmp_path_factory.mktemp("store"))


def shared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensors[name.replace("new", "old")] for name, t in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_results_take_the_memory_of_operands(library, name):
    form, dtype = CASES[name]
    kernel = turned(dtype, form)
    tensors = storages(kernel, 1)
    expected = shared({k: t.clone() for k, t in tensors.items()})
    tensors = shared(tensors)
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    for i in range(3):
        torch.testing.assert_close(tensors[f"new{i}"], expected[f"new{i}"], rtol=1e-2 if dtype is BF16 else 1e-5, atol=1e-4)
