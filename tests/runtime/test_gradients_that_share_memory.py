"""Where eager gives two leaves gradients that share memory, it adds each pass to both of them; a compiled backward gives each its own (docs/ops.md)."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.fuzz.language.observe import compare, tell
from tests.fuzz.language.programs import Program

PASSES = 3


def stacked(a, b):
    return torch.stack([a, b]).sum(0)


def scaled(a, b):
    return torch.stack([a, b]).sum(0) * 2


def joined(a, b):
    return torch.cat([a[None], b[None]]).sum(0)


def viewed(a, b):
    return (a.view(-1) + b.view(-1)) * 1


def gradients(call) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    for _ in range(PASSES):
        result = call(a, b)
        result.backward(torch.ones_like(result))
    return a.grad, b.grad


@pytest.mark.parametrize("fn", [stacked, scaled, joined, viewed])
@pytest.mark.parametrize("reference", [True, False], ids=["interpreted", "built"])
def test_sums_of_passes(fn, reference):
    each = gradients_of_one_pass(fn)
    for got, one in zip(gradients(dynacompile.compile(fn, options={"reference": reference, "fallback": "none"})), each, strict=True):
        assert torch.equal(got, PASSES * one)
    a, b = gradients(fn)
    assert a.data_ptr() == b.data_ptr()
    assert torch.equal(a, each[0] + (PASSES - 1) * (each[0] + each[1])), "eager sums as it should: the row in docs/ops.md can go"


def gradients_of_one_pass(fn) -> tuple[torch.Tensor, ...]:
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    result = fn(a, b)
    return torch.autograd.grad(result, (a, b), torch.ones_like(result))


def test_the_fuzzer_leaves_them_out():
    source = "import torch\ndef program(a, b):\n    return torch.stack([a, b]).sum(0)\ndef calls():\n"
    source += "    a, b, c = (torch.randn(2, 3, requires_grad=True) for _ in range(3))\n"
    source += "    yield program, (a, b)\n    yield program, (a, c)\n    yield program, (b, c)\n"
    program = Program(0, source)
    want = tell(program, lambda fn: fn)
    got = tell(program, lambda fn: dynacompile.compile(fn, options={"reference": True, "fallback": "none"}))
    assert compare(got, want, reference=True) is None
    assert "share memory" in (compare(got, want, reference=False) or ""), "graphs that eager runs share what eager shares"
    assert "share memory" in (compare(want, got, reference=True) or ""), "a compiled gradient that shares where eager's does not is a difference"
