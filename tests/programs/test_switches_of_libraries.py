"""Switches of torch's libraries that a frame sets and sets back: operations that read them see what eager's see, and calls leave the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, GraphBroke
from tests.scenarios import attempt, check_same

MATMUL, CUDNN, MKLDNN = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
SWITCHES = {
    "allow_tf32": (lambda: MATMUL.allow_tf32, lambda v: setattr(MATMUL, "allow_tf32", v)),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "half_sums": (lambda: MATMUL.allow_bf16_reduced_precision_reduction, lambda v: setattr(MATMUL, "allow_bf16_reduced_precision_reduction", v)),
    "cudnn": (lambda: CUDNN.enabled, lambda v: setattr(CUDNN, "enabled", v)),
    "benchmark": (lambda: CUDNN.benchmark, lambda v: setattr(CUDNN, "benchmark", v)),
    "cudnn_tf32": (lambda: CUDNN.allow_tf32, lambda v: setattr(CUDNN, "allow_tf32", v)),
    "mkldnn": (lambda: MKLDNN.enabled, lambda v: setattr(MKLDNN, "enabled", v)),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
}


def switches():
    return {name: attempt(read) for name, (read, _) in SWITCHES.items()}  # torch refuses to read a mixture of old and new names


ALLOWED = "__allow_nonbracketed_mutation_flag"


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, ALLOWED, True)  # torch.testing's own test utilities forbid it
    before = {name: read() for name, (read, _) in SWITCHES.items()}
    yield
    MATMUL.fp32_precision = "none"
    for name, value in before.items():
        SWITCHES[name][1](value)


def told(fn, *arguments, calls=2):
    """What calls show where the switches are as torch has them, and where a program has set some."""

    def story(wrap):
        run = wrap(fn)
        for tf32, benchmark in ((False, False), (True, True)):
            for _ in range(calls):
                torch.set_float32_matmul_precision("high" if tf32 else "highest")
                CUDNN.benchmark, CUDNN.enabled, MKLDNN.enabled = benchmark, True, True
                yield attempt(run, *(a.clone() for a in arguments)), switches()

    return story


def by_attribute(x):
    y = x @ x
    before = MATMUL.allow_tf32
    MATMUL.allow_tf32 = True
    seen = MATMUL.allow_tf32
    z = y @ x
    MATMUL.allow_tf32 = before
    return z @ x, seen, MATMUL.allow_tf32


def in_a_clause(x):
    before = MATMUL.allow_tf32
    try:
        MATMUL.allow_tf32 = not before
        return (x @ x).softmax(-1)
    finally:
        MATMUL.allow_tf32 = before


def left_set(x):
    CUDNN.benchmark = not CUDNN.benchmark
    MATMUL.allow_bf16_reduced_precision_reduction = False
    return x @ x, CUDNN.benchmark


def by_a_manager(x):
    y = x.sin()
    with CUDNN.flags(enabled=False, benchmark=True):
        y = y @ x
        seen = CUDNN.enabled, CUDNN.benchmark
    return y.cos(), seen, CUDNN.enabled


def nothing_changes(x):
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    torch.backends.cuda.enable_flash_sdp(True)
    return x @ x


def by_precision(x):
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "tf32"
    y = x @ x
    MATMUL.fp32_precision = before
    return y + 1


def in_a_loop(x):
    for step in range(4):
        MATMUL.allow_tf32 = step % 2 == 0
        x = (x @ x).tanh()
    return x


def elementwise_alone(x):
    """Nothing in it is read by what is set."""
    MKLDNN.enabled = False
    y = x * 2 + 1
    MKLDNN.enabled = True
    return y


class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        before = MATMUL.allow_tf32
        MATMUL.allow_tf32 = False
        x = self.inner(x)
        MATMUL.allow_tf32 = before
        return x


def in_modules(x):
    torch.manual_seed(0)
    for layer in [Precise() for _ in range(3)]:
        x = layer(x)
    return x.detach()


WHOLE = [by_attribute, in_a_clause, left_set, by_a_manager, nothing_changes, by_precision, in_a_loop, elementwise_alone]


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", WHOLE)
def test_switches_of_other_devices_end_no_graph(fn, backend):
    events = check_same(told(fn, torch.linspace(0, 1, 16).reshape(4, 4)), backend=backend, fullgraph=True, least=None, rtol=1e-4, atol=1e-5)
    assert not [e for e in events if isinstance(e, GraphBroke)]


def test_like_modules_that_set_a_switch():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Precise() for _ in range(4))), torch.randn(2, 4)
    want, events = model(x), []
    end = dynacompile.subscribe(events.append)
    got = dynacompile.compile(model, backend="eager", fullgraph=True)(x)
    end()
    torch.testing.assert_close(got, want)
    assert sum(isinstance(e, Compiled) for e in events) == 1


def products_without_onednn(x):
    y = x @ x
    MKLDNN.enabled = False
    z = y @ x
    MKLDNN.enabled = True
    return z.sin(), y


def more_precision(x):
    torch.set_float32_matmul_precision("high")
    y = x @ x
    torch.set_float32_matmul_precision("highest")
    return y


def another_attention(x):
    torch.backends.cuda.enable_flash_sdp(False)
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    torch.backends.cuda.enable_flash_sdp(True)
    return y


def by_another_name(x):
    before = torch.get_float32_matmul_precision()
    MATMUL.allow_tf32 = not MATMUL.allow_tf32
    y = x + 1, torch.get_float32_matmul_precision(), MATMUL.fp32_precision
    torch.set_float32_matmul_precision(before)
    return y, MATMUL.allow_tf32


def with_a_break(x):
    with CUDNN.flags(enabled=False):
        y = x @ x
        dynacompile.graph_break()
        y = y.sin(), CUDNN.enabled
    return y, CUDNN.enabled


def of_no_bool(x):
    y = x + 1
    MATMUL.allow_tf32 = 1
    return y


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [products_without_onednn, more_precision, another_attention, by_another_name, with_a_break, of_no_bool])
def test_operations_that_may_read_a_switch(fn, backend):
    check_same(told(fn, torch.linspace(0, 1, 16).reshape(4, 4)), backend=backend, least=None, rtol=1e-4, atol=1e-5)


def test_the_break_names_the_switch():
    events = check_same(told(products_without_onednn, torch.ones(4, 4)), backend="eager")
    assert {e.code for e in events if isinstance(e, GraphBroke)} == {"setting"}


def raises_between(x, at):
    MATMUL.allow_tf32 = not MATMUL.allow_tf32
    y = x[at]
    MATMUL.allow_tf32 = not MATMUL.allow_tf32
    return y


def raises_in_a_clause(x, at):
    before = CUDNN.enabled
    try:
        CUDNN.enabled = False
        return x.index_select(0, at) + 1
    finally:
        CUDNN.enabled = before


def raises_in_a_manager(x, at):
    with CUDNN.flags(enabled=False):
        return x[at] * 2


def asserts_between(x, at):
    CUDNN.benchmark = not CUDNN.benchmark
    if not (at < 4).all():
        raise AssertionError("far")
    CUDNN.benchmark = not CUDNN.benchmark
    return x * 2


def asserts_behind(x, at):
    y = x * 2
    CUDNN.benchmark = not CUDNN.benchmark
    if (at > 3).any():
        raise ValueError("far")
    return y


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [raises_between, raises_in_a_clause, raises_in_a_manager, asserts_between, asserts_behind])
def test_errors_leave_switches_as_eager_does(fn, backend):
    def story(wrap):
        run = wrap(fn)
        for last in (3, 4, 2, 9, 1, 7, 0):
            CUDNN.enabled, CUDNN.benchmark, MATMUL.allow_tf32 = True, False, False
            yield attempt(run, torch.linspace(0, 1, 4), torch.tensor([0, last])), switches()

    check_same(story, backend=backend, least=None)


def test_recompiles_where_a_program_has_set_what_the_frame_reads():
    """A switch that the frame saves is guarded."""
    events = check_same(told(by_attribute, torch.ones(4, 4)), backend="eager")
    assert sum(isinstance(e, Compiled) for e in events) == 2


def test_where_torch_allows_no_switch_to_be_set_the_frame_raises(monkeypatch):
    compiled, x = dynacompile.compile(by_attribute_of_cudnn, backend="eager", isolate_recompiles=True), torch.ones(2, 2)
    for allowed in (True, False, True, False, True):
        monkeypatch.setitem(torch.backends.flags_frozen.__globals__, ALLOWED, allowed)
        got, want = attempt(compiled, x), attempt(by_attribute_of_cudnn, x)
        assert repr(got) == repr(want) and isinstance(want, torch.Tensor) == allowed, (got, want)


def by_attribute_of_cudnn(x):
    CUDNN.benchmark = not CUDNN.benchmark
    y = x.sin()
    CUDNN.benchmark = not CUDNN.benchmark
    return y
