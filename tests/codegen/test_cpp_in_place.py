"""Results in the memory of operands, each made of another's: every element is read before anything is stored there, whatever the types say of it."""

from __future__ import annotations

import pytest
import torch

from dynacompile.ir.schedule import Kernel

from .cpp_running import Library
from .triton_cases import BF16, F16, F32, F64, I32, I64, Build, oracle, storages

TYPES = {"same": (F32, F32), "numbers": (I32, F32), "wide": (I64, F64), "halves": (BF16, F16)}


def turned(have: torch.dtype, wanted: torch.dtype, form: str) -> Kernel:
    """Three operands, whose memory takes the results of the next operand."""
    points, steps = (65, 33) if form != "few" else (3, 2)
    b = Build(f"turned_{form}", (points, steps) if form != "rows" else (points,), () if form != "rows" else (steps,))
    place = {"lanes": b.at(steps, 1), "apart": b.at(3 * steps, 3), "crossed": b.at(1, points), "few": b.at(steps, 1), "rows": b.at(3, 0)}[form]
    wide = F64 if wanted is F64 else F32
    loaded = [b.load(f"old{i}", have, place) for i in range(3)]
    values = [v if b.body[v].dtype is wide else b.cast(v, wide) for v in loaded]
    if form == "crossed":
        values = [b.add_(v, b.load("straight", wide, b.at(steps, 1))) for v in values]
    if form == "rows":
        taken = b.reduce("sum", b.mul(b.load("x", wide, b.at(steps, 1)), values[0]))
        values = [b.add_(values[0], taken), *values[1:]]
    for i in range(3):
        b.store(f"new{i}", wanted, place, values[(i + 1) % 3])
    return b.kernel()


CASES = {f"{form}_{types}": (form, *TYPES[types]) for form in ("lanes", "apart", "crossed", "few", "rows") for types in TYPES}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: turned(have, wanted, form) for name, (form, have, wanted) in CASES.items()}, tmp_path_factory.mktemp("store"))


def shared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensors[name.replace("new", "old")].view(t.dtype) for name, t in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_results_take_the_memory_of_operands(library, name):
    form, have, wanted = CASES[name]
    kernel = turned(have, wanted, form)
    tensors = storages(kernel, 1)
    expected = shared({k: t.clone() for k, t in tensors.items()})
    tensors = shared(tensors)
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    for i in range(3):
        torch.testing.assert_close(tensors[f"new{i}"], expected[f"new{i}"], rtol=1e-2 if wanted is F16 else 1e-5, atol=1e-4, equal_nan=True)
