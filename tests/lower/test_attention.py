"""Attention of float32 on CPUs as a kernel of ours: every shape, mask and layout against float64 and ATen, and when it is chosen."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.codegen.cpp import emit_kernel
from dynacompile.ir.schedule import Kernel
from dynacompile.lower import attention
from dynacompile.ops.attention_costs import VECTORS, Attention, choose
from dynacompile.ops.product_costs import Choice
from tests.lower.tracing import ENV, compare, stages, trace

GOLDEN = Path(__file__).parent.parent / "codegen" / "golden"
aten = torch.ops.aten
pytestmark = pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in VECTORS, reason="ATen's attention is called on such processors")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Attention of any size is a kernel of ours, where that computes it at all: the list of it."""
    made: list[Attention] = []

    def choose_ours(found: Attention) -> Choice:
        made.append(found)
        return Choice(True, "the test says so")

    monkeypatch.setattr(attention, "choose", choose_ours)
    return made


def heads(batch: int, count: int, rows: int, size: int, seed: int = 0) -> torch.Tensor:
    """As models have them: heads side by side in rows."""
    made = torch.randn(batch, rows, count, size, generator=torch.Generator().manual_seed(1000 * seed + rows))
    return made.transpose(1, 2).requires_grad_()


def plain(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def results(function: Callable, *args: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients."""
    out = function(*args)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [a for a in args if a.requires_grad], grad)]


def check(function: Callable, compiled: Callable, *args: torch.Tensor) -> None:
    """Errors against float64 are those of ATen's operator, but for chance."""
    have, eager = results(compiled, *args), results(function, *args)
    wide = results(function, *(a.detach().double().requires_grad_(a.requires_grad) if a.is_floating_point() else a for a in args))
    for one, other, exact in zip(have, eager, wide, strict=True):
        error, allowed = (one - exact).abs().max(), (other - exact).abs().max()
        assert all(s == t for n, s, t in zip(one.shape, one.stride(), other.stride(), strict=True) if n > 1)
        assert error <= 2 * allowed + 3e-6 * max(1, exact.abs().max()), (error, allowed, [a.shape for a in args])


@pytest.mark.slow
@pytest.mark.parametrize("function", [plain, causal])
@pytest.mark.parametrize("size", [1, 8, 16, 20, 48, 64, 100])
def test_lengths(function, size, ours):
    """One kernel for all lengths, which are symbols."""

    def sized(q, kv):
        return function(*(t.view(2, -1, 3, size).transpose(1, 2) for t in (q, *kv.chunk(2, 2))))

    compiled = dynacompile.compile(sized, isolate_recompiles=True)
    for rows, keys in ((3, 2), (8, 7), (5, 40), (33, 31), (130, 129), (64, 300), (300, 150)):
        args = [torch.randn(2, n, width * size, generator=torch.Generator().manual_seed(n + width)) for n, width in ((rows, 3), (keys, 6))]
        for t in args:
            dynacompile.mark_dynamic(t, 1)
        check(sized, compiled, *(t.requires_grad_() for t in args))
    assert [found.backward for found in ours] == [False, True]


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("function", [plain, causal])
def test_a_single_batch_head_query_or_key(function):
    compiled = dynacompile.compile(function, isolate_recompiles=True, recompile_limit=16)
    for batch, count, rows, keys in ((1, 1, 1, 1), (1, 2, 1, 70), (2, 1, 40, 1)):
        check(function, compiled, heads(batch, count, rows, 24), heads(batch, count, keys, 24, 1), heads(batch, count, keys, 24, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_parts_of_the_queries_of_few_heads():
    args = heads(1, 2, 400, 32), heads(1, 2, 270, 32, 1), heads(1, 2, 270, 32, 2)
    for function in (plain, causal):
        check(function, dynacompile.compile(function, isolate_recompiles=True), *args)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(37, 150), (1, 1, 37, 150), (2, 1, 1, 150), (2, 3, 37, 150), (1, 3, 37, 150)], ids=str)
def test_masks(shape, ours):
    args = heads(2, 3, 37, 20), heads(2, 3, 150, 20, 1), heads(2, 3, 150, 20, 2)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for mask in (bias, bias > -0.5, torch.where(bias > 0.2, bias, -math.inf)):
        compiled = dynacompile.compile(masked, isolate_recompiles=True)
        check(masked, compiled, *args, mask)
    assert len(ours) == 6


@pytest.mark.usefixtures("ours")
def test_queries_that_see_no_key():
    args = heads(1, 2, 9, 8), heads(1, 2, 40, 8, 1), heads(1, 2, 40, 8, 2)
    mask = torch.rand(1, 1, 9, 40, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[..., 2:5, :] = False
    compiled = dynacompile.compile(masked, isolate_recompiles=True)
    have, wanted = results(compiled, *args, mask), results(masked, *args, mask)
    torch.testing.assert_close(have, wanted)
    assert not have[0][:, :, 2:5].any()


def test_views_of_one_product(ours):
    """Queries, keys and values are parts of one tensor's rows; a gradient lies as ATen's does."""

    def function(x):
        q, k, v = (t.view(2, 40, 4, 16).transpose(1, 2) for t in x.split(64, 2))
        return causal(q, k, v).transpose(1, 2).reshape(2, 40, 64)

    x = torch.randn(2, 40, 192, generator=torch.Generator().manual_seed(1)).requires_grad_()
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    have = compiled(x)
    grads = torch.autograd.grad(have.square().sum(), x)
    assert [found.backward for found in ours] == [False, True]
    wanted = function(x)
    torch.testing.assert_close(have, wanted)
    torch.testing.assert_close(grads, torch.autograd.grad(wanted.square().sum(), x))


def test_operands_that_are_expanded_or_lie_apart(ours):
    wide = torch.randn(3, 2, 30, 50, generator=torch.Generator().manual_seed(1))
    q, k, v = wide[:, :, ::2, :24], wide[:1, :, :, 10:34].expand(3, 2, 30, 24), wide[:, :1, :, 20:44].expand(3, 2, 30, 24)
    compiled = dynacompile.compile(plain, isolate_recompiles=True)
    have = compiled(q, k, v)
    assert len(ours) == 1
    torch.testing.assert_close(have, plain(q, k, v))


@pytest.mark.parametrize("kept", ["dropout", "half", "columns", "long heads", "empty", "a scale below zero", "a symbol for a head's size"])
def test_what_stays_a_call_of_aten(kept, ours):
    size = 300 if kept == "long heads" else 16
    q, k, v = (torch.randn(2, 2, 0 if kept == "empty" else 12, size) for _ in range(3))
    if kept == "half":
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    if kept == "columns":
        k = k.transpose(2, 3).contiguous().transpose(2, 3)
    dropout, scale = 0.5 if kept == "dropout" else 0.0, -0.3 if kept == "a scale below zero" else None

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)

    compiled = dynacompile.compile(function, isolate_recompiles=True, dynamic=kept.startswith("a symbol") or None)
    torch.manual_seed(0)
    have = compiled(q, k, v)
    torch.manual_seed(0)
    torch.testing.assert_close(have, function(q, k, v))
    assert not ours


@pytest.mark.parametrize("forward", [True, False], ids=["forward is ours", "backward is ours"])
def test_one_of_the_two_may_be_atens(forward, monkeypatch):
    monkeypatch.setattr(attention, "choose", lambda found: Choice(found.backward is not forward, "the test says so"))
    check(causal, dynacompile.compile(causal, isolate_recompiles=True), heads(2, 2, 50, 16), heads(2, 2, 50, 16, 1), heads(2, 2, 50, 16, 2))


@pytest.mark.usefixtures("ours")
def test_large_scores_and_what_is_not_finite():
    args = [t.detach() * 40 for t in (heads(1, 2, 20, 16), heads(1, 2, 50, 16, 1), heads(1, 2, 50, 16, 2))]
    args[0][0, 0, 3, 2], args[1][0, 1, 7, 1], args[2][0, 0, 5, 0] = math.nan, math.inf, -math.inf
    have = dynacompile.compile(plain, isolate_recompiles=True)(*args)
    torch.testing.assert_close(have, plain(*args), equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("ours")
def test_a_scale_of_its_own():
    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=1.5)

    check(function, dynacompile.compile(function, isolate_recompiles=True), heads(1, 2, 20, 16), heads(1, 2, 50, 16, 1), heads(1, 2, 50, 16, 2))


@pytest.mark.usefixtures("ours")
def test_a_backward_that_is_differentiated_again():
    args = [heads(1, 2, 10, 8), heads(1, 2, 12, 8, 1), heads(1, 2, 12, 8, 2)]

    def twice(function):
        (first,) = torch.autograd.grad(function(*args).square().sum(), args[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), args)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = twice(plain)
    try:
        eager = twice(plain)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            twice(dynacompile.compile(plain, isolate_recompiles=True))
        return
    torch.testing.assert_close(eager, wanted)
    torch.testing.assert_close(twice(dynacompile.compile(plain, isolate_recompiles=True)), wanted)


@pytest.mark.usefixtures("ours")
def test_threads_change_no_bit():
    args = heads(3, 3, 70, 16), heads(3, 3, 70, 16, 1), heads(3, 3, 70, 16, 2)
    compiled = dynacompile.compile(causal, isolate_recompiles=True)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(compiled, *args))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("ours")
def test_interpreters_call_the_operator():
    args = heads(2, 2, 20, 16), heads(2, 2, 20, 16, 1), heads(2, 2, 20, 16, 2)
    reference = dynacompile.compile(causal, isolate_recompiles=True, options={"reference": True, "verify": True})
    assert all(torch.equal(a, b) for a, b in zip(results(reference, *args), results(causal, *args), strict=True))


def kernels_of(function: Callable, *args: torch.Tensor) -> list[Kernel]:
    _, plan = stages(trace(function, args, decompose=False))
    assert plan.facts()["externs"] == 0
    return list(plan.kernels.values())


@pytest.mark.usefixtures("ours")
def test_like_calls_are_one_kernel():
    def function(q, k, v):
        once, *_ = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return aten._scaled_dot_product_flash_attention_for_cpu(once, k, v, 0.0, True)[0]

    args = tuple(t.detach() for t in (heads(2, 2, 20, 16), heads(2, 2, 20, 16, 1), heads(2, 2, 20, 16, 2)))
    assert len(kernels_of(function, *args)) == 1


def joined(dim: int, also: bool = False) -> Callable:
    """The gradient of a tensor whose parts along `dim` are queries, keys and values; also: one of them is a result by itself."""

    def function(q, k, v, grad):
        out, logs = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logs, 0.0, False)
        whole = torch.cat([g.transpose(1, 2).reshape(2, 20, 48) for g in grads], dim)
        return (whole, grads[1]) if also else whole

    return function


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients_are_written_where_they_are_concatenated(dim):
    args = [heads(2, 3, 20, 16, i).detach() for i in range(4)]
    plan = compare(trace(joined(dim), args, decompose=False), args)
    assert plan.facts()["launches"] == 2 and plan.facts()["externs"] == 0
    torch.testing.assert_close(dynacompile.compile(joined(dim), isolate_recompiles=True)(*args), joined(dim)(*args))


@pytest.mark.usefixtures("ours")
def test_gradients_that_something_else_reads_are_copied():
    args = [heads(2, 3, 20, 16, i).detach() for i in range(4)]
    plan = compare(trace(joined(2, also=True), args, decompose=False), args)
    assert plan.facts()["launches"] == 3
    torch.testing.assert_close(dynacompile.compile(joined(2, also=True), isolate_recompiles=True)(*args), joined(2, also=True)(*args))


@pytest.mark.usefixtures("ours")
def test_golden():
    """The text of both kernels. To renew it after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/lower/test_attention.py"""

    def function(x, grad):
        q, k, v = (t.view(2, 40, 4, 16).transpose(1, 2) for t in x.split(64, 2))
        out, logs = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, *aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logs, 0.0, True)

    from_cpp = [emitted(kernel) for kernel in kernels_of(function, torch.randn(2, 40, 192), torch.randn(2, 4, 40, 16))]
    text = "\n".join(from_cpp)
    path = GOLDEN / "attention.cpp"
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def emitted(kernel: Kernel) -> str:
    return emit_kernel(kernel, ENV).text


@pytest.mark.parametrize(
    ("shape", "is_ours"),
    [
        (Attention(64, 128, 128, 32, True, False), True),
        (Attention(64, 128, 128, 32, True, True), True),
        (Attention(64, 128, 128, 32, False, True), True),
        (Attention(8, 16, 16, 16, False, False), True),
        (Attention(12, 1024, 1024, 64, False, False), True),
        (Attention(8, 1, 4096, 64, False, False), False),
        (Attention(64, 1, 128, 64, False, True), False),
        (Attention(8, 1, 4096, 64, True, False), True),
    ],
    ids=str,
)
def test_choices(shape, is_ours):
    """One query with many keys is ATen's: ours computes eight at once."""
    choice = choose(shape)
    assert choice.loops is is_ours
    assert (choice.loops_us < choice.library_us * 0.9) is is_ours


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_recorded_has_the_dtypes_of_what_is_computed(dtype):
    """Logarithms of sums are saved for the backward, in a dtype that torch 2.11 tells wrongly of float64."""
    query = torch.randn(2, 2, 5, 8, dtype=dtype, requires_grad=True)

    def attention(query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, query, query, is_causal=True).sin()

    (wanted,) = torch.autograd.grad(attention(query).sum(), query)
    for backend in ("default", "aot_eager"):
        (found,) = torch.autograd.grad(dynacompile.compile(attention, isolate_recompiles=True, backend=backend)(query).sum(), query)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, **({} if dtype.itemsize > 2 else {"rtol": 5e-2, "atol": 5e-2}))
