"""nn.Module trees, modes of torch, and side effects on modules, objects and globals."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import dynacompile
from dynacompile.capture.values.trusted_modules import TRUSTED
from dynacompile.events import Compiled, FrameSkipped, Recompiled
from tests.capture.driver import Driver, check, run


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.scale = 0.5
        self.names = ["a", "b"]

    @property
    def doubled(self):
        return self.scale * 2

    def mix(self, h):
        return F.gelu(self.up(h))

    def forward(self, x, *, residual=True):
        h = self.down(self.mix(self.norm(x))) * self.doubled * len(self.names)
        return x + h if residual else h


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.25))
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.tied = self.blocks[0].up
        self.register_buffer("offset", torch.ones(4))
        self.calls = 0
        self.seen = []

    def forward(self, x):
        x = self.first(x) + self.offset
        for i, block in enumerate(self.blocks):
            x = block(x, residual=i > 0)
        for block in self.blocks[1:]:
            x = x * block.scale
        return {name: head(x) for name, head in self.heads.items()}, self.blocks[-1](x), self.tied(x).sum()


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.steps = 0
        self.last = None
        self.history = []
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        self.steps += 1
        self.total.add_(x.sum(0))
        self.total = self.total * 1.0
        self.last = x * self.steps
        self.history.append(self.last)
        return self.bn(x) + self.total + self.last


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.lin.register_forward_hook(lambda module, args, out: out * 2)
        self.lin.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):
        return self.lin(x)


class OwnSuper(Block):
    def forward(self, x):
        return super().forward(x, residual=False) + 1

    def __getattr__(self, name):
        if name == "virtual":
            return 3
        return super().__getattr__(name)


class Virtual(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        out = x
        for name, p in self.named_parameters():
            out = out + p.sum() * len(name)
        for child in self.children():
            out = child(out)
        return out, len(list(self.modules())), hasattr(self, "lin"), hasattr(self, "nothing"), self.lin.in_features


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.conv = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.MaxPool2d(2))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.embed = nn.Embedding(5, 4)

    def forward(self, idx, image):
        e = self.embed(idx)
        a, _ = self.attention(e, e, e, need_weights=False)
        if self.training:
            a = self.drop(a)
        return a, self.conv(image).flatten(1)


def call(module, *args):
    return module(*args)


MODULES = [
    (lambda: (Block(), torch.randn(3, 4)), "block"),
    (lambda: (Tree(), torch.randn(3, 4)), "tree"),
    (lambda: (Tree().eval(), torch.randn(3, 4)), "eval"),
    (lambda: (Stateful(), torch.randn(3, 4)), "stateful"),
    (lambda: (Hooked(), torch.randn(3, 4)), "hooks"),
    (lambda: (OwnSuper(), torch.randn(3, 4)), "super"),
    (lambda: (Virtual(), torch.randn(3, 4)), "virtual"),
    (lambda: (Trained(), torch.tensor([[0, 1, 2]]), torch.randn(1, 1, 4, 4)), "layers"),
    (lambda: (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.randn(2, 3, 4)), "transformer"),
    (lambda: (nn.LSTM(4, 3), torch.randn(2, 3, 4)), "lstm"),
    (lambda: (nn.Sequential(nn.Softmax(-1), nn.Flatten(0), nn.Identity()), torch.randn(2, 2)), "small"),
]


@pytest.mark.parametrize("make", [m[0] for m in MODULES], ids=[m[1] for m in MODULES])
def test_module_in_one_graph(make):
    driver = check(make, call, graphs=1)
    assert not driver.skipped and all(c.break_ is None for c in driver.captured), [c.break_ for c in driver.captured]


def test_parameters_are_inputs_once_and_gradients_flow():
    tree = Tree()
    (heads, out, total), driver = run(call, tree, torch.randn(3, 4))
    names = [i.source.text() for i in driver.captured[0].inputs]
    assert len(names) == len(set(names)) and "module.blocks[0].up.weight" in names or "module.tied.weight" in names
    (out.sum() + total + sum(h.sum() for h in heads.values())).backward()
    assert all(p.grad is not None for p in tree.parameters())


def test_one_module_guard_per_module():
    _, driver = run(call, Tree(), torch.randn(3, 4))
    guards = driver.captured[0].guards
    modules = [g for g in guards if g.kind == "MODULE"]
    assert len(modules) == len({g.source for g in modules}) == 1 + 4 + 1 + 3 * 4 + 3
    assert any(g.kind == "DUPLICATE_INPUT" for g in guards)


def modes(x, w):
    a = x * w
    with torch.no_grad():
        b = a * w
        with torch.enable_grad():
            c = w * 2
    with torch.set_grad_enabled(False):
        d = w + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        e = a @ w.t()
    return a, b, c, d, e, torch.is_grad_enabled()


@torch.no_grad()
def decorated(x, w):
    return x * w, torch.is_grad_enabled()


def mode_leaks(x, w):
    torch.set_grad_enabled(False)
    y = x * w
    torch.set_grad_enabled(True)
    return y, x * w


def detached(x, w):
    y = (x * w).detach()
    z = w.clone()
    return y.requires_grad, z.requires_grad, (z + y).requires_grad, w.is_leaf, z.is_leaf, z + y, w.grad is None


def two():
    return torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)


@pytest.mark.parametrize("fn", [modes, decorated, mode_leaks, detached], ids=lambda f: f.__name__)
def test_modes(fn):
    driver = check(two, fn, graphs=1)
    assert not driver.skipped


def test_capture_leaves_modes_and_random_state_alone():
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        got, driver = run(call, nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), torch.randn(2, 4))
        assert got.dtype is torch.bfloat16 and not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
    torch.set_rng_state(state)


COUNTER = 0
LOG: list = []


def writes_global(x):
    global COUNTER
    COUNTER += 1
    LOG.append(COUNTER)
    return x + COUNTER


def test_globals_are_written():
    global COUNTER
    COUNTER = 4
    LOG.clear()
    got, driver = run(writes_global, torch.zeros(1))
    assert COUNTER == 5 and LOG == [5] and got.item() == 5 and driver.graphs == 1


def test_closure_cells_are_written():
    count = [0]
    n = 1

    def bump(x):
        nonlocal n
        n += 1
        count[0] = n
        return x + n

    got, driver = run(bump, torch.zeros(1))
    assert n == 2 and count == [2] and got.item() == 2 and driver.graphs == 1


def test_returned_functions_share_cells():
    def make(x):
        n = 0

        def bump():
            nonlocal n
            n += 1
            return x + n

        def read():
            return n

        bump()
        return bump, read

    (bump, read), _ = run(make, torch.zeros(1))
    assert read() == 1 and bump().item() == 2 and read() == 2


def test_same_tensor_twice_is_one_input():
    def add(x, y):
        return x + y

    x = torch.randn(3)
    _, driver = run(add, x, x)
    assert len(driver.captured[0].inputs) == 1
    assert [g.kind for g in driver.captured[0].guards].count("DUPLICATE_INPUT") == 1


def test_unread_values_have_no_guards():
    def add(x, y, options):
        return x + options["k"]

    _, driver = run(add, torch.randn(3), torch.randn(3), {"k": 1, "unused": object()})
    guarded = {g.source.text() for g in driver.captured[0].guards if g.source}
    assert "y" not in guarded and not any("unused" in text for text in guarded)


def write_one(x, y):
    x.add_(1)
    return x + y


def test_written_inputs_that_are_views_of_one_tensor_are_captured():
    base = torch.zeros(4)
    got, driver = run(write_one, base, base[:])
    assert got.tolist() == [2.0] * 4 and not driver.skipped
    assert base.tolist() == [1.0] * 4 and base._version == 1


def test_written_inputs_that_share_memory_otherwise_run_as_python():
    base = torch.zeros(4)
    other = torch.empty(0).set_(base)  # which is no view of it
    got, driver = run(write_one, base, other)
    assert got.tolist() == [2.0] * 4 and driver.skipped[0].code == "aliased-mutation"


def test_inputs_keep_their_metadata_before_the_graph():
    def write(x, w):
        x.add_(w)
        return x * 2

    _, driver = run(write, torch.zeros(3), torch.ones(3, requires_grad=True))
    (x, w) = driver.captured[0].inputs
    assert not x.fake.requires_grad and w.fake.requires_grad


def test_nodes_carry_the_users_line():
    _, driver = run(call, Block(), torch.randn(2, 4))
    sites = {n.meta["site"].function for n in driver.captured[0].graph.graph.nodes if n.op.startswith("call")}
    assert sites <= {"Block.forward", "Block.mix"} and "torch" in TRUSTED


def test_cached_results_of_lru_cache_stay_in_the_graph():
    @functools.lru_cache
    def cached(n):
        return n + 1

    def use(x):
        return x + cached(3)

    cached(3)
    got, driver = run(use, torch.zeros(2))
    assert got.tolist() == [4.0, 4.0] and driver.captured[0].break_ is None


def test_what_an_autograd_function_does_and_checkpoint_break_by_name():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            print(end="")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def use(x):
        y = Twice.apply(x + 1) * 1
        return torch.utils.checkpoint.checkpoint(torch.relu, y, use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext())) + 1

    x = torch.ones(2, requires_grad=True)
    got, driver = run(use, x)
    got.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert [c.break_.code for c in driver.captured if c.break_] == ["print", "checkpoint"]


def test_driver_can_run_methods():
    block = Block()
    x = torch.randn(2, 4)
    assert torch.equal(Driver()(block.forward, x), block(x))


def test_inference_mode():
    with torch.inference_mode():
        got, driver = run(call, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(2, 4))
        assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    assert driver.graphs == 1 and got.is_inference() and not got.requires_grad


def test_functions_decorated_in_the_frame():
    def use(x):
        def loud(fn):
            @functools.wraps(fn)
            def wrapper(*args):
                return fn(*args) * 2

            return wrapper

        @torch.no_grad()
        @loud
        def body(t):
            return t + 1

        return body(x), x * 2

    x = torch.ones(2, requires_grad=True)
    (a, b), driver = run(use, x)
    assert a.tolist() == [4.0, 4.0] and not a.requires_grad and b.requires_grad and driver.graphs == 1


def test_deep_recursion_is_left_to_python():
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    got, driver = run(down, torch.zeros(1), 300)
    assert got.item() == 300 and {c.break_.code for c in driver.captured if c.break_} | {s.code for s in driver.skipped} == {"too-deep"}


def test_what_torch_compile_has_compiled_is_followed():
    function = torch.compile(lambda x, *, k: x * k, backend="eager")
    wrapped, own, method = torch.compile(Block(), backend="eager"), Block(), Block()
    own.compile(backend="eager")
    bound = torch.compile(method.forward, backend="eager")

    def use(x):
        return function(x, k=2) + wrapped(x) + own(x) + bound(x)

    got, driver = run(use, torch.randn(2, 4))
    assert driver.graphs == 1 and not [c.break_ for c in driver.captured if c.break_]


@pytest.mark.parametrize("inplace", [False, True], ids=["twin", "in place"])
def test_a_module_that_torch_compile_has_compiled_is_compiled(inplace):
    block, events, hooked = Block(), [], []
    wrapped = torch.compile(block, backend="eager")
    wrapped.register_forward_hook(lambda module, args, output: hooked.append(output.shape))
    compiled = dynacompile.compile(wrapped, inplace=inplace, isolate_recompiles=True, backend="eager")
    end = dynacompile.subscribe(events.append)
    try:
        x = torch.randn(2, 4)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), block(x))
    finally:
        end()
    assert [event.ops > 0 for event in events if isinstance(event, Compiled)] and hooked == [(2, 4)] * 2
    assert not [event for event in events if isinstance(event, (FrameSkipped, Recompiled))]
    assert len(dynacompile.cache_entries(compiled)) == 1 and list(compiled.state_dict()) == list(wrapped.state_dict())


def test_what_torch_disables_is_left_to_python():
    disabled = torch.compiler.disable(lambda x: x + 1)
    _, driver = run(lambda x: disabled(x) * 2, torch.ones(2))
    assert [c.break_.code for c in driver.captured if c.break_] == ["disabled"]
