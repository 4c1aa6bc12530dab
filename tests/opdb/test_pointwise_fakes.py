"""Pointwise operations on fakes that look the same give what eager gives, and what torch's own rules for fakes give; all others are left to those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dynacompile.ir import fakes
from dynacompile.ir.fakes import fake_mode, fake_of
from dynacompile.ir.looks import appearance
from dynacompile.ir.pointwise_fakes import POINTWISE, pointwise_fake

SIZES = ((), (0,), (1,), (3,), (2, 3), (1, 3), (2, 1, 4), (2, 0, 3))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def arguments(op: Any, tensor: Any, number: float) -> list[Any]:
    """A tensor or number for each positional argument of the operation."""
    return [tensor() if "Tensor" in str(a.type) else number for a in op._schema.arguments if not a.kwarg_only and a.name != "alpha"]


def options(op: Any) -> list[dict[str, float]]:
    names = {a.name for a in op._schema.arguments if a.kwarg_only} & {"alpha", "value"}
    return [{}, *({name: number} for name in names for number in (2, 0.5))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", sorted(POINTWISE, key=str), ids=str)
def test_the_fake_looks_as_the_result_of_eager_and_of_torch_s_fakes(op, dtype, monkeypatch):
    for size in SIZES:
        for number in (2, 0.5):
            for kwargs in options(op):
                mode = fake_mode()
                real = op(*arguments(op, lambda: torch.ones(size, dtype=dtype), number), **kwargs)  # noqa: B023  (it is called at once)
                given = arguments(op, lambda: fake_of(mode, torch.ones(size, dtype=dtype)), number)  # noqa: B023
                found = pointwise_fake(mode, op, given, kwargs)
                assert found is not None
                assert (found.shape, found.stride(), found.dtype, found.fake_device) == (real.shape, real.stride(), real.dtype, real.device)
                with monkeypatch.context() as patched, mode:
                    patched.setattr(fakes, "pointwise_fake", lambda *_: None)
                    assert appearance(op(*given, **kwargs)) == appearance(found)
                with mode:
                    assert appearance(op(*given, **kwargs)) == appearance(found)


X = torch.ones(2, 3)
OTHERS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "another operation": (torch.ops.aten.maximum.default, (X, X), {}),
    "another size": (torch.ops.aten.add.Tensor, (X, torch.ones(3)), {}),
    "another type": (torch.ops.aten.add.Tensor, (X, X.double()), {}),
    "integers": (torch.ops.aten.add.Tensor, (X.long(), X.long()), {}),
    "other strides": (torch.ops.aten.add.Tensor, (X.t(), X.t()), {}),
    "a view of one element": (torch.ops.aten.mul.Tensor, (torch.ones(1).expand(2, 3), X), {}),
    "strides of a dimension of one element": (torch.ops.aten.neg.default, (torch.ones(4, 3)[::4],), {}),
    "another device": (torch.ops.aten.mul.Tensor, (X, torch.ones(2, 3, device="meta")), {}),
    "the meta device": (torch.ops.aten.neg.default, (torch.ones(2, 3, device="meta"),), {}),
    "a number on the CPU beside it": (torch.ops.aten.mul.Tensor, (X, torch.ones(())), {}),
    "a complex number": (torch.ops.aten.mul.Tensor, (X, 1j), {}),
    "a truth value": (torch.ops.aten.mul.Tensor, (X, True), {}),
    "a complex factor": (torch.ops.aten.add.Tensor, (X, X), {"alpha": 1j}),
    "complex tensors": (torch.ops.aten.abs.default, (X.cfloat(),), {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_all_else_is_left_to_torch(case):
    op, args, kwargs = OTHERS[case]
    mode = fake_mode()
    assert pointwise_fake(mode, op, [fake_of(mode, a) if isinstance(a, torch.Tensor) else a for a in args], kwargs) is None


def test_results_in_inference_mode_are_left_to_torch():
    mode = fake_mode()
    x = fake_of(mode, X)
    with torch.inference_mode():
        assert pointwise_fake(mode, torch.ops.aten.neg.default, [x], {}) is None


def test_sizes_that_are_symbols_are_left_to_torch():
    shapes = ShapeEnv()
    mode = fake_mode(shape_env=shapes, static_shapes=False)
    x = mode.from_tensor(torch.ones(5, 3), static_shapes=False)
    assert isinstance(x.shape[0], torch.SymInt)
    assert pointwise_fake(mode, torch.ops.aten.neg.default, [x], {}) is None
