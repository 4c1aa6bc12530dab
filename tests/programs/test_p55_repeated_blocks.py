"""Modules that are alike are followed once: the graphs and guards are those of following each, and what differs is noticed."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile import pipeline
from dynacompile.capture.frames.interpreter import SymbolicFrame
from dynacompile.capture.frames.repeats import Repetition
from tests.checking import check

SEEN: list = []
WIDTH = 4


class Block(nn.Module):
    """Reads a little of everything."""

    extra = None

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.scale, self.flag, self.names = 2.0, True, ["a", "b"]
        self.settings = {"shift": 1.0}
        self.register_buffer("table", torch.randn(WIDTH))

    def forward(self, x, mask=None, pair=(None, None)):
        y = self.inner(self.norm(x)).relu_()
        y = F.gelu(y) if self.flag else y.tanh()
        if "b" in self.names and self.training:
            y = y * self.scale
        if hasattr(self, "late"):
            y = y - 1
        y = self.outer(y) + self.settings["shift"] * self.table
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        if pair[0] is not None:
            y = y * pair[0]
        return x + y if self.extra is None else self.extra(x) + y


class Stack(nn.Module):
    def __init__(self, depth=6, make=Block):
        super().__init__()
        self.blocks = nn.ModuleList(make(i) for i in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Masked(Stack):
    def forward(self, x):
        mask = x > 0
        for block in self.blocks:
            x = block(x, mask, pair=(x, None))
        return x


class Inner(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.first, self.second = Block(seed), Block(seed + 100)

    def forward(self, x):
        return self.second(self.first(x)), x


class Nested(Stack):
    def __init__(self):
        super().__init__(4, Inner)

    def forward(self, x):
        for block in self.blocks:
            x, before = block(x)
        return x - before


def x():
    torch.manual_seed(9)
    return torch.randn(3, WIDTH)


def captured(model, *args, followed=False, monkeypatch=None, **compiling):
    """The text of the graph and the guards of a compiled model, and how many instructions were interpreted and calls repeated."""
    graphs, steps, repeated = [], [0], [0]
    step, record = SymbolicFrame.step, Repetition.record

    def counted(self):
        steps[0] += 1
        return step(self)

    def recorded(self):
        repeated[0] += 1
        return record(self)

    def keep(graph, fakes):
        graphs.append(graph)
        return graph.forward

    with monkeypatch.context() as patch:
        patch.setattr(SymbolicFrame, "step", counted)
        patch.setattr(Repetition, "record", recorded)
        if followed:
            patch.setattr(pipeline, "FrameFacts", lambda frame: None)
        dynacompile.reset()
        compiled = dynacompile.compile(model, backend=keep, **compiling)
        compiled(*args)
    guards = {str(g) for entry in dynacompile.cache_entries(compiled) for g in entry.guards}
    return [g.code for g in graphs], [[n.meta.get("site") for n in g.graph.nodes] for g in graphs], guards, steps[0], repeated[0]


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4)


class Sizes(nn.Module):
    """Reads sizes, computes with them, and branches on them."""

    def __init__(self, seed):
        super().__init__()
        self.inner, self.heads = nn.Linear(WIDTH, WIDTH), 2

    def forward(self, x, rows=None):
        batch, width = x.shape[0], x.shape[-1]
        y = self.inner(x).view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
        y = y.flatten(2).view(batch, self.heads, -1)[:, :, : x.shape[1] + 1].sum(-1, keepdim=True)
        x = x + y.mean(1, keepdim=True) / (batch + x.shape[1])
        return x * 2 if batch > 3 else x - torch.ones(rows or batch, 1, width)


class Deep(Stack):
    """A stack of `Sizes`, which are also given one."""

    def __init__(self):
        super().__init__(6, Sizes)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, x.shape[0]).relu()
        return x


@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("make, count", [(Stack, 4), (Masked, 4), (Nested, 4), (encoder, 2), (Deep, 4)])
def test_graphs_and_guards_are_those_of_following(make, count, dynamic, monkeypatch):
    model = make()
    value = torch.randn(2, 3, 8) if make is encoder else torch.randn(3, 5, WIDTH) if make is Deep else x()
    code, sites, guards, steps, repeated = captured(model, value, monkeypatch=monkeypatch, dynamic=dynamic)
    wanted, places, facts, all_steps, none = captured(model, value, followed=True, monkeypatch=monkeypatch, dynamic=dynamic)
    assert (code, sites) == (wanted, places)
    assert guards == facts
    assert repeated == count and none == 0 and steps < all_steps


def test_a_deeper_stack_takes_a_loop_round_more(monkeypatch):
    steps = [captured(Stack(depth), x(), monkeypatch=monkeypatch)[3] for depth in (4, 8, 16)]
    assert steps[1] - steps[0] == (steps[2] - steps[1]) / 2 <= 4 * 12


@pytest.mark.parametrize("make", [Stack, Masked, Nested])
@pytest.mark.parametrize("training", [True, False])
def test_with_kernels(make, training):
    check(make().train(training), x(), rtol=1e-4, atol=1e-5)


# --- what differs ---


def other_class(block):
    class Other(Block):
        def forward(self, x, mask=None):
            return super().forward(x, mask) * 3

    block.__class__ = Other


def tie(block):
    block.outer.bias = nn.Parameter(block.norm.weight.detach().clone())
    block.norm.weight = block.outer.bias


def wide(block):
    block.inner, block.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)


CHANGES = {
    "scale": lambda b: setattr(b, "scale", 3.0),
    "kind of scale": lambda b: setattr(b, "scale", 2),
    "flag": lambda b: setattr(b, "flag", False),
    "names": lambda b: b.names.pop(),
    "settings": lambda b: b.settings.update(shift=-1.0),
    "late": lambda b: setattr(b, "late", None),
    "training": lambda b: b.eval(),
    "training of a child": lambda b: b.norm.eval(),
    "epsilon": lambda b: setattr(b.norm, "eps", 0.5),
    "bias": lambda b: setattr(b.inner, "bias", None),
    "requires_grad": lambda b: b.inner.weight.requires_grad_(False),
    "extra": lambda b: setattr(b, "extra", torch.sin),
    "extra module": lambda b: setattr(b, "extra", nn.Linear(WIDTH, WIDTH)),
    "class": other_class,
    "own forward": lambda b: setattr(b, "forward", lambda x: x * 2),
    "hook": lambda b: b.inner.register_forward_hook(lambda m, args, out: out * 2),
    "width": wide,
    "strides": lambda b: setattr(b.inner, "weight", nn.Parameter(b.inner.weight.detach().t().contiguous().t())),
    "tied": tie,
    "another child": lambda b: setattr(b, "norm", nn.RMSNorm(WIDTH)),
    "no norm": lambda b: setattr(b, "norm", nn.Identity()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_block_that_differs(name):
    torch.manual_seed(1)
    model = Stack()
    CHANGES[name](model.blocks[3])
    check(model, x(), options={"backend": "eager"})


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ("class", "own forward", "hook")])
def test_a_block_that_differs_later(name):
    """Guards of repeated blocks are their own."""
    torch.manual_seed(1)
    model = Stack()
    run = dynacompile.compile(model, backend="eager", isolate_recompiles=True, fallback="none")
    assert torch.equal(run(x()), model(x()))
    CHANGES[name](model.blocks[4])
    assert torch.equal(run(x()), model(x()))


@pytest.mark.parametrize("seed", range(12))
def test_random_stacks(seed, monkeypatch):
    """Several changes in several blocks, objects that blocks share, modules that come twice."""
    chosen = random.Random(seed)
    model = Stack(8)
    for name in chosen.sample(sorted(CHANGES.keys() - {"width"}), 3):
        CHANGES[name](model.blocks[chosen.randrange(8)])
    for part in chosen.sample(["inner", "norm", "settings", "names"], 2):
        first, second = chosen.sample(range(8), 2)
        setattr(model.blocks[second], part, getattr(model.blocks[first], part))
    model.blocks[chosen.randrange(8)] = model.blocks[chosen.randrange(8)]
    assert captured(model, x(), monkeypatch=monkeypatch)[:2] == captured(model, x(), followed=True, monkeypatch=monkeypatch)[:2]
    check(model, x(), options={"backend": "eager"}, breaks=None, graphs=None)


# --- what the frame does between calls ---


class Counting(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x).relu() * self.calls).sin()


class Between(Stack):
    """what: what happens before the fourth block."""

    def __init__(self, what):
        super().__init__(6)
        self.what, self.shared = what, {"shift": 1.0}
        for block in self.blocks:
            block.settings = self.shared

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if i == 3:
                self.what(self, block, x)
            x = block(x)
        return x


def set_flag(model, block, x):
    block.flag = False


def set_shared(model, block, x):
    model.shared["shift"] = 5.0


def drop_name(model, block, x):
    block.names.remove("b")


def set_child(model, block, x):
    block.norm.eps = 0.25


def write_buffer(model, block, x):
    block.table.add_(1)


def write_with_gradient(model, block, x):
    block.table.mul_(x.sum(0))


def new_buffer(model, block, x):
    block.table = x.sum(0)


@pytest.mark.parametrize("what", [set_flag, set_shared, drop_name, set_child, write_buffer, new_buffer])
def test_changes_between_calls(what):
    check(Between(what), x(), options={"backend": "eager"}, recompiles=int(what in (set_shared, drop_name)), backward=False)


def test_blocks_that_change_themselves():
    check(Stack(4, Counting), x(), options={"backend": "eager"})


class Modes(Stack):
    def forward(self, x):
        for i, block in enumerate(self.blocks):
            with torch.set_grad_enabled(i != 3), torch.autocast("cpu", torch.bfloat16, enabled=i == 4):
                x = block(x)
        return x


class ReadsModes(Block):
    def forward(self, x):
        return super().forward(x) * (2 if torch.is_grad_enabled() else 3)


def test_modes_between_calls():
    check(Modes(6, ReadsModes), x(), options={"backend": "eager"})


class Pairs(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        z = self.linear(x).sin() + self.linear(y)
        return z * 2 if x is y else z.cos() * 3 + y


class Aliased(Stack):
    def forward(self, x):
        one, two = x + 1, x + 2
        for i, block in enumerate(self.blocks):
            one, two = block(one, two if i % 3 else one), one
        return one + two


def test_arguments_that_are_one_tensor():
    check(Aliased(8, Pairs), x(), options={"backend": "eager"})


class Views(nn.Module):
    """Gives a view of what it makes, and writes to what it is given."""

    def __init__(self, seed):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x).cos()
        y.mul_(2)
        z = y.view(-1).add_(1)
        return z.view(y.shape), y


class Writing(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x).sin() * 2
        x.add_(y.detach())
        return y.tanh()


class Chained(Stack):
    def forward(self, x):
        kept = []
        for block in self.blocks:
            x, y = block(x)
            kept += [x, y]
        kept[2].mul_(3)  # seen through kept[3], and through nothing else
        return tuple(kept)


def test_results_that_are_views_of_what_a_block_made():
    check(Chained(5, Views), x(), options={"backend": "eager"}, backward=False)
    with torch.no_grad():
        check(Chained(5, Views), x(), backward=False, rtol=1e-4, atol=1e-5)


def test_blocks_that_write_their_arguments():
    check(Stack(5, Writing), x() * 1, options={"backend": "eager"}, backward=False)


class Gaining(nn.Module):
    """Writes what requires gradients into what did not, and tells by what it is given."""

    def __init__(self, seed):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.outer(self.inner(x.detach()).sin()).detach() * (2 if x.requires_grad else 3)
        y[0] = self.inner.bias
        return y


def test_tensors_that_come_to_require_gradients():
    check(Stack(5, Gaining), x(), options={"backend": "eager"})


class ReadsShared(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shared", shared)

    def forward(self, x):
        return self.outer(self.inner(x).sin()).cos() * (2 if self.shared.requires_grad else 3)


class Sharing(nn.Module):
    """Blocks that read whether the buffer that they share requires gradients; the frame writes it in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.register_buffer("shared", torch.zeros(WIDTH))
        self.blocks = nn.ModuleList(ReadsShared(self.shared) for _ in range(6))

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if i == 3:
                self.shared.add_(self.blocks[0].inner.bias)
            x = block(x)
        return x


def test_a_shared_buffer_comes_to_require_gradients():
    run = dynacompile.compile(Sharing(), backend="eager", isolate_recompiles=True, fallback="none")
    assert torch.equal(run(x()), Sharing()(x()))


class Dropping(Block):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


def test_random_numbers_are_drawn_in_each():
    check(Stack(5, Dropping), x(), options={"backend": "eager"})


class Breaking(Block):
    def forward(self, x):
        y = super().forward(x)
        SEEN.append(len(SEEN))
        return y


def test_blocks_with_an_effect():
    SEEN.clear()
    model = Stack(4, Breaking)
    dynacompile.compile(model, backend="eager", fallback="none", isolate_recompiles=True)(x())
    assert SEEN == [0, 1, 2, 3]


class Early(Stack):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if x.sum() > 1e9:
                return x
        return x * 2


def test_breaks_between_calls():
    check(Early(4), x(), options={"backend": "eager"}, graphs=None, breaks=None, backward=False)


def test_a_slice_of_blocks_after_a_break():
    class Sliced(Stack):
        def forward(self, x):
            for block in self.blocks[1:]:
                x = block(x)
                print(end="")
            return x

    check(Sliced(4), x(), options={"backend": "eager"}, graphs=None, breaks=None)


class Scaled(Stack):
    """A stack that multiplies what its blocks give by a number of the call."""

    def forward(self, x, rate):
        for block in self.blocks:
            x = block(x) * rate
        return x


class OwnRate(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.rate = 0.5 + seed

    def forward(self, x):
        y = self.inner(x).relu() * 2.0 + 1.0
        return y * self.rate


def test_blocks_beside_a_symbol_are_followed_once(monkeypatch):
    (*_, constant, repeated), (*_, symbolic, again) = (
        captured(Scaled(), x(), 0.5, monkeypatch=monkeypatch, options={"varying": varying}) for varying in ((), ("rate",))
    )
    assert repeated == again == 4  # the first block alone gets an input
    assert abs(symbolic - constant) < 128, (symbolic, constant)


def test_blocks_of_symbolic_sizes_have_the_conditions_of_the_first():
    model = Deep()
    compiled = dynacompile.compile(model, dynamic=True, backend="eager", isolate_recompiles=True)
    for shape in ((2, 3), (3, 7), (3, 3), (4, 6), (9, 2)):
        value = torch.randn(*shape, WIDTH)
        torch.testing.assert_close(compiled(value), model(value))
    assert len(dynacompile.cache_entries(compiled)) == 2  # at most three rows, or more


def test_symbols_that_blocks_have_are_those_of_each_block():
    model = Stack(5, OwnRate)
    compiled = dynacompile.compile(model, backend="eager", options={"varying": ("rate",)}, isolate_recompiles=True)
    for call in range(3):
        for i, block in enumerate(model.blocks):
            block.rate = 0.25 * (i + 1) + call
        torch.testing.assert_close(compiled(x()), model(x()))
    assert len(dynacompile.cache_entries(compiled)) == 1
