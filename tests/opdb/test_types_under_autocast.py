"""Types of results on fakes under autocast are eager's, also by torch's rules for symbolic sizes. What autocast does on GPUs is asked of fakes of their
tensors, for which no GPU is needed; `tests/gpu` compares these with a GPU's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from dynacompile.ir.fakes import FakeMode, fake_mode
from dynacompile.ir.looks import new_fake
from dynacompile.ir.shapes import symbolic_mode, symbolic_rules
from tests.faked_gpus import autocast

pytestmark = pytest.mark.filterwarnings("ignore")
CHUNKS = 16
DTYPES = (torch.float32, torch.bfloat16)
MODES = {"fakes": fake_mode, "fakes beside symbols": lambda: symbolic_mode(lambda: None)}
ELSEWHERE = {
    **dict.fromkeys(("nn.functional.interpolate", "nn.functional.upsample_bilinear", "nn.functional.upsample_nearest"), "capture calls ATen's operators"),
    "linalg.pinv": "capture leaves it to Python",
}
"""Operations whose rules for fakes cast otherwise, and what becomes of them."""


def types(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> list[torch.dtype] | None:
    """Of the tensors that a function gives; None where it refuses what it is given."""
    try:
        with autocast(device):
            return [t.dtype for t in tree_leaves(function(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    except Exception:  # noqa: BLE001 - by whatever error
        return None


def calls(chunk: int) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    """Operations with what a sample of each type gives them."""
    for op in op_db[chunk::CHUNKS]:
        for dtype in DTYPES if op.name not in ELSEWHERE else ():
            try:
                sample = next(iter(op.sample_inputs("cpu", dtype)))
            except Exception:  # noqa: BLE001 - not of this type
                continue
            args = [sample.input, *sample.args]
            if all(t.layout is torch.strided for t in tree_leaves((args, sample.kwargs)) if isinstance(t, torch.Tensor)):
                yield op, args, sample.kwargs


def types_of_fakes(op: Any, args: list[Any], kwargs: dict[str, Any], device: str) -> dict[str, list[torch.dtype]]:
    """By `MODES`, without those that are refused."""
    found = {}
    for name, make in MODES.items():
        mode = make()
        given = tree_map(functools.partial(fake, mode, torch.device(device)), (args, kwargs))
        with symbolic_rules(mode), mode:
            found[name] = types(op.op, *given, device.partition(":")[0])
    return {name: value for name, value in found.items() if value is not None}


def fake(mode: FakeMode, device: torch.device, value: Any) -> Any:
    return new_fake(mode, value.size(), value.stride(), value.dtype, device) if isinstance(value, torch.Tensor) else value


@pytest.fixture(autouse=True)
def quiet():
    """Torch logs what its rules for fakes refuse."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_on_cpus(chunk):
    compared = 0
    for op, args, kwargs in calls(chunk):
        wanted = types(op.op, tree_map(detached, args), kwargs, "cpu")
        if wanted is None:
            continue
        for name, found in types_of_fakes(op, args, kwargs, "cpu").items():
            assert found == wanted, (op.name, name, args)
            compared += 1
    assert compared > 50


def detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_on_gpus_by_every_kind_of_rule(chunk):
    compared = 0
    for op, args, kwargs in calls(chunk):
        found = types_of_fakes(op, args, kwargs, "cuda:0")
        assert len({*map(tuple, found.values())}) < 2, (op.name, found, args)
        compared += len(found) > 1
    assert compared > 30
