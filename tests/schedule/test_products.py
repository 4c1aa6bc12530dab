"""Which products of matrices are one kernel with what is computed of their results, and why others are not. None of it needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dynacompile.events import ProductDecided
from dynacompile.ir.products import Decision, Joint
from dynacompile.ir.schedule import Schedule
from dynacompile.schedule.contractions import float32_precision
from tests.codegen.product_cases import CASES, ENV, always, multiplied, plan_on_gpu

BF16 = torch.bfloat16


def never(joint: Joint) -> Decision:
    return Decision(False, "the test says so")


def planned(function: Callable, *sizes: tuple[int, ...], dtype: torch.dtype = BF16, choose: Callable | None = always, **config) -> tuple[Schedule, list]:
    events: list = []
    env = replace(ENV, emit=events.append).with_config(**config)
    args = tuple(torch.empty(size, dtype=dtype) for size in sizes)
    return plan_on_gpu(function, args, env, choose), [e for e in events if isinstance(e, ProductDecided)]


def counts(plan: Schedule) -> tuple[int, int]:
    """(launches, calls)."""
    return plan.facts()["launches"], plan.facts()["externs"]


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_one_launch(name):
    case = CASES[name]
    plan = case.plan()
    assert counts(plan) == (1, 0)
    assert counts(plan_on_gpu(case.function, case.args(), ENV, never))[1] >= 1


def test_results_that_nothing_else_reads_are_in_no_memory():
    fused, _ = planned(lambda x, w: torch.relu(x @ w), (128, 64), (64, 128))
    apart, _ = planned(lambda x, w: torch.relu(x @ w), (128, 64), (64, 128), choose=never)
    assert apart.facts()["bytes"] - fused.facts()["bytes"] == 128 * 128 * 2 - 2 * 128 * 64 * 2 - fused.arena, "a kernel's bytes count its operands"
    assert "mm" not in {s.buffer for s in fused.steps if hasattr(s, "buffer")}


def test_two_readers_of_one_product():
    """A kernel takes it in, and stores it for the product that reads it, too."""
    plan, events = planned(lambda x, w: (lambda y: (torch.relu(y), y @ y))(x @ w), (128, 64), (64, 128))
    assert counts(plan) == (1, 1)
    assert [e.fused for e in events] == [True]
    (kernel,) = plan.kernels.values()
    assert [p.mode for p in kernel.params] == ["in", "in", "out", "out", "scratch"]


def test_each_decision_is_told():
    for choose, fused in ((always, True), (never, False)):
        _, (event,) = planned(lambda x, w: torch.relu(x @ w), (128, 64), (64, 128), choose=choose)
        assert (event.fused, event.reason, event.product, event.members) == (fused, "the test says so", "mm", ("relu",))


REFUSED: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "its reader sums over its results": (lambda x, w: (x @ w).float().sum(1), ((128, 64), (64, 128))),
    "below 64": (lambda x, w: torch.relu(x @ w), ((32, 64), (64, 128))),
    "reads a part of its results": (lambda x, w: torch.relu((x @ w)[:64]), ((128, 64), (64, 128))),
    "reads several of its results": (lambda x, w: (lambda y: y + y.t())(x @ w), ((128, 64), (64, 128))),
    "writes to memory that the product reads": (lambda x, w: x.copy_(torch.relu(x @ w)), ((128, 128), (128, 128))),
    "takes in a product of other matrices": (lambda a, b, c, d: torch.relu(a @ b) * (c @ d), ((128, 64), (64, 128), (128, 64), (64, 128))),
    "the same product again": (lambda x, w: torch.bmm(x.expand(3, 128, 64), w.expand(3, 64, 128)).relu(), ((128, 64), (64, 128))),
    "takes in a product of other extents": (lambda a, b, c: torch.relu(a @ b) * (a[:, :64] @ c), ((128, 128), (128, 128), (64, 128))),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_by_name(reason):
    function, sizes = REFUSED[reason]
    _, events = planned(function, *sizes)
    assert any(reason in e.reason and not e.fused for e in events), [e.reason for e in events]


def relu_of_product(x, w):
    return torch.relu(x @ w)


def test_float32_is_the_librarys_where_nobody_guards_how_it_is_rounded():
    events: list = []
    plan = plan_on_gpu(relu_of_product, (torch.empty(128, 64), torch.empty(64, 128)), replace(ENV, emit=events.append, rely=None))
    (event,) = [e for e in events if isinstance(e, ProductDecided)]
    assert counts(plan) == (1, 1) and "not guarded" in event.reason


@pytest.mark.parametrize(("setting", "precision"), [("none", "ieee"), ("ieee", "ieee"), ("tf32", "tf32")])
def test_float32_is_rounded_as_torchs_setting_says_which_is_relied_on(setting, precision):
    told: list = []
    env = replace(ENV, rely=lambda name, read, value: told.append((name, read(), value)))
    with multiplied(setting):
        plan = plan_on_gpu(relu_of_product, (torch.empty(128, 64), torch.empty(64, 128)), env)
        plan_on_gpu(relu_of_product, (torch.empty(128, 64), torch.empty(64, 128)), env, never)
    (kernel,) = plan.kernels.values()
    assert [op.attr.precision for op in kernel.nest.body if op.name == "product"] == [precision]
    assert told == [("torch.backends.cuda.matmul.fp32_precision", setting, setting)], "what is the library's relies on nothing"


def test_the_setting_is_torchs():
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for wanted in ("tf32", "ieee"):
            torch.backends.cuda.matmul.fp32_precision = wanted
            assert float32_precision() == wanted
    finally:
        torch._C._set_fp32_precision_setter("cuda", "matmul", before)


def test_another_setting_is_the_librarys():
    with multiplied("bf16"):
        plan, (event,) = planned(relu_of_product, (128, 64), (64, 128), dtype=torch.float32)
    assert counts(plan) == (1, 1) and not event.fused


def test_16_bit_products_rely_on_no_setting():
    told: list = []
    plan_on_gpu(relu_of_product, (torch.empty(128, 64, dtype=BF16), torch.empty(64, 128, dtype=BF16)), replace(ENV, rely=lambda *facts: told.append(facts)))
    assert not told


@pytest.mark.parametrize("setting", ["tf32", "none"])
def test_float32_is_the_librarys_where_nothing_is_measured(setting):
    x, w, r = torch.empty(16384, 1024), torch.empty(1024, 1024), torch.empty(16384, 1024)
    with multiplied(setting):
        plan = plan_on_gpu(lambda x, w, r: x @ w + r, (x, w.t(), r), ENV, None)
    assert counts(plan) == (1, 1)


def test_precise_leaves_tf32_to_the_library():
    """The tensor cores cut off what it rounds."""
    for setting, fused in (("tf32", False), ("ieee", True)):
        with multiplied(setting):
            plan, (event,) = planned(relu_of_product, (128, 64), (64, 128), dtype=torch.float32, precise=True)
        assert event.fused == fused and counts(plan) == (1, 0 if fused else 1)


def test_a_product_between_others_is_in_no_circle():
    """What reads the first result is an operand of the second product, so that their common reader takes in the second alone."""
    plan, events = planned(lambda x, a, b: (lambda y: torch.relu(y) * (torch.tanh(y) @ b))(x @ a), (128, 64), (64, 128), (128, 128))
    assert [e.fused for e in events].count(True) >= 1
    plan.verify()


def test_precise_rounds_the_product_as_eager_does():
    for precise in (False, True):
        plan, _ = planned(lambda x, w: torch.relu(x @ w) * 3, (128, 64), (64, 128), precise=precise)
        (kernel,) = plan.kernels.values()
        rounded = [op for op in kernel.nest.body if op.name == "nearest_bf16" and kernel.nest.body[op.args[0]].name == "product"]
        assert bool(rounded) == precise


def residual(x, w, b, r):
    return torch.addmm(b, x, w.t()).float() + r.float()


def swiglu_gradient(dy, w, gate, up):
    g, s = (dy @ w).float(), torch.sigmoid(gate.float())
    silu = gate.float() * s
    return (g * silu).to(BF16), (g * up.float() * (s + silu * (1 - s))).to(BF16)


def gelu_and_before(x, w, b):
    y = torch.addmm(b, x, w.t())
    return y, F.gelu(y)


def tanh_and_before(x, w, b):
    y = torch.addmm(b, x, w.t())
    return y, F.gelu(y, approximate="tanh")


MODEL = {
    "the gradient of a gate": (swiglu_gradient, ((8192, 4096), (4096, 11008), (8192, 11008), (8192, 11008)), True),
    "the gradient of gelu, mostly arithmetic": (
        lambda g, w, y: torch.ops.aten.gelu_backward(g @ w, y, approximate="tanh"),
        ((16384, 768), (768, 3072), (16384, 3072)),
        False,
    ),
    "a residual": (residual, ((16384, 3072), (768, 3072), (768,), (16384, 768)), True),
    "gelu": (lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())), ((8192, 4096), (16384, 4096), (16384,)), True),
    "gelu, which backward needs the operand of": (gelu_and_before, ((16384, 768), (3072, 768), (3072,)), True),
    "gelu of float32 results, whose arithmetic nothing hides": (
        lambda x, w, b: F.gelu(torch.addmm(b, x, w.t()).float()),
        ((8192, 4096), (16384, 4096), (16384,)),
        False,
    ),
    "gelu by tanh, which backward needs the operand of": (tanh_and_before, ((16384, 768), (3072, 768), (3072,)), False),
    "the gradient of gelu by erf": (lambda g, w, y: torch.ops.aten.gelu_backward(g @ w, y), ((16384, 768), (768, 3072), (16384, 3072)), False),
    "gelu of experts": (lambda x, w: F.gelu(torch.bmm(x, w)), ((16, 1024, 2048), (16, 2048, 4096)), True),
    "the mask of scores, which are large": (
        lambda q, k, mask: torch.bmm(q, k.mT).float() * 0.125 + mask.float(),
        ((192, 1024, 64), (192, 1024, 64), (1, 1, 1024)),
        True,
    ),
    "few tiles of a batch": (lambda x, w, r: torch.bmm(x, w) + r, ((4, 256, 512), (4, 512, 256), (4, 256, 256)), False),
    "few tiles": (lambda x, w, r: x @ w + r, ((512, 4096), (4096, 512), (512, 512)), False),
    "odd rows": (lambda x, w, r: x @ w + r, ((4096, 67), (67, 4096), (4096, 4096)), False),
}


@pytest.mark.parametrize("name", MODEL)
def test_the_model_expects_what_was_measured(name):
    function, sizes, fused = MODEL[name]
    _, events = planned(function, *sizes, choose=None)
    assert events and {e.fused for e in events} == {fused}, events


def test_of_a_gate_and_its_values_one_product_at_most_is_fused():
    """Two at once are slower than the library's two."""
    plan, events = planned(lambda x, a, b: F.silu(x @ a.t()) * (x @ b.t()), (8192, 4096), (11008, 4096), (11008, 4096), choose=None)
    assert sum(e.fused for e in events) <= 1 and any("two products at once" in e.reason for e in events)
    assert counts(plan) in ((1, 1), (1, 2))
