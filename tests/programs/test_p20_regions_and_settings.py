"""Modules compiled in place inside compiled parents; class attributes and settings of torch that change between calls."""

import pytest
import torch

import dynacompile
from dynacompile import pipeline
from dynacompile.events import Compiled, GraphBroke, Recompiled
from dynacompile.schedule.contractions import float32_precision
from tests.checking import check


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.lin(x).relu()


class Net(torch.nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x * 2


def listen():
    events = []
    return events, dynacompile.subscribe(events.append)


def test_nested_regions_keep_their_own_entries():
    dynacompile.reset()
    net = Net()
    x = torch.randn(3, 4)
    want = net(x)
    for block in net.blocks:
        dynacompile.compile(block, inplace=True, fullgraph=True)
    dynacompile.compile(net, inplace=True)
    events, end = listen()
    torch.testing.assert_close(net(x), want)
    torch.testing.assert_close(net(x), want)
    end()
    assert {e.code for e in events if isinstance(e, GraphBroke)} <= {"nested-region", "in-loop"}
    inner = [e for e in events if isinstance(e, Compiled) and e.region == "Block" and e.ops]
    assert inner and all(e.region in ("Block", "Net") for e in events if isinstance(e, Compiled))
    want.sum().backward()


def test_undoing_a_nested_region_recompiles_the_parent_once():
    dynacompile.reset()
    net = Net(1)
    x = torch.randn(3, 4)
    want = net(x)
    compiled = dynacompile.compile(net)
    torch.testing.assert_close(compiled(x), want)
    dynacompile.compile(net.blocks[0], inplace=True)
    torch.testing.assert_close(compiled(x), want)
    dynacompile.restore(net.blocks[0])
    events, end = listen()
    torch.testing.assert_close(compiled(x), want)
    end()
    assert not [e for e in events if isinstance(e, (Compiled, Recompiled))]


def test_property_is_replaced(monkeypatch):
    class Config:
        scale = 2.0

        @property
        def double(self):
            return self.scale * 2

    config = Config()
    compiled = dynacompile.compile(lambda x: x * config.double, fullgraph=True)
    x = torch.ones(3)
    assert compiled(x).tolist() == [4.0] * 3
    monkeypatch.setattr(Config, "double", property(lambda self: self.scale * 5))
    assert compiled(x).tolist() == [10.0] * 3


def reads_precision(x):
    return x * 2 if torch.get_float32_matmul_precision() == "highest" else x * 3


def reads_cudnn(x):
    return x * 2 if torch.backends.cudnn.benchmark else x * 3


def reads_tf32(x):
    return x * 2 if torch.backends.cuda.matmul.allow_tf32 else x * 3


def reads_flash(x):
    return x * 2 if torch.backends.cuda.flash_sdp_enabled() else x * 3


SETTINGS = {
    reads_precision: (torch.set_float32_matmul_precision, "highest", "high"),
    reads_cudnn: (torch._C._set_cudnn_benchmark, False, True),
    reads_tf32: (lambda v: setattr(torch.backends.cuda.matmul, "allow_tf32", v), False, True),
    reads_flash: (torch.backends.cuda.enable_flash_sdp, True, False),
}


@pytest.mark.parametrize("fn", SETTINGS)
def test_settings_are_guarded(fn):
    put, usual, other = SETTINGS[fn]
    compiled = dynacompile.compile(fn, fullgraph=True)
    x = torch.ones(3)
    try:
        for value in (usual, other, usual, other):
            put(value)
            assert torch.equal(compiled(x), fn(x))
    finally:
        put(usual)


def test_settings_that_what_is_compiled_relies_on_are_guarded(monkeypatch):
    """A product of float32 in a kernel of ours is rounded as torch's setting says: of the forward alone, since guards hold when that runs."""
    plan, relied = pipeline.planned, []

    def relying(graph, env, *args):
        relied.append(env.rely is not None)
        if env.rely is not None:
            env.rely("torch.backends.cuda.matmul.fp32_precision", float32_precision, float32_precision())
        return plan(graph, env, *args)

    monkeypatch.setattr(pipeline, "planned", relying)
    compiled = dynacompile.compile(lambda x: x.sin() * 2, fullgraph=True, isolate_recompiles=True)
    x, before = torch.ones(3, requires_grad=True), torch.backends.cuda.matmul.fp32_precision
    try:
        for value in ("ieee", "tf32", "ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = value
            (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
            assert torch.allclose(gradient, 2 * x.cos())
    finally:
        torch._C._set_fp32_precision_setter("cuda", "matmul", before)
    assert relied == [True, False] * 2


def test_number_times_equals_tensor():
    def fn(x):
        scale = 2
        scale *= x
        scale += 1
        return scale

    check(fn, torch.randn(3))
