"""Functions that are called under a default device: inside of `with torch.device(...)`, or after `torch.set_default_device`.

On the device "meta" tensors have no values, so where each one is made shows in every result.
"""

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled
from tests.scenarios import attempt, check_same


def depth():
    return torch._C._len_torch_function_stack()


@contextlib.contextmanager
def default(device):
    """`torch.set_default_device`, and what it was."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def both(outer, inner):
    with default(outer), torch.device(inner):
        yield


WAYS = {
    "cpu": lambda: torch.device("cpu"),
    "meta": lambda: torch.device("meta"),
    "set_cpu": lambda: default("cpu"),
    "set_meta": lambda: default("meta"),
    "cpu_inside_of_meta": lambda: both("meta", "cpu"),
    "meta_inside_of_cpu": lambda: both("cpu", "meta"),
}


def where(tree):
    """What shows of tensors without values."""
    return torch.utils._pytree.tree_map(lambda t: (t.device, t.shape, t.dtype, t.requires_grad) if isinstance(t, torch.Tensor) else t, tree)


def x():
    return torch.linspace(-1, 2, 4)


def check_in(way, fn, *, breaks=0, entries=1, make=x, backend="eager"):
    """Three calls under a default device show what eager shows, and leave the stack of modes as they found it."""

    def story(wrap):
        run = wrap(fn)
        for _ in range(3):
            with WAYS[way]():
                before = depth()
                given = make()
                yield where(attempt(run, given)), where(given), depth() == before, torch.get_default_device()
            yield depth(), torch.get_default_device()

    events = check_same(story, backend=backend, least=None)
    assert sum(isinstance(e, GraphBroke) for e in events) == breaks
    assert not [e.reason for e in events if isinstance(e, FrameSkipped)]
    assert sum(isinstance(e, Compiled) for e in events) == entries
    return events


def factories(x):
    made = torch.zeros(2), torch.ones(2), torch.empty(1).fill_(3), torch.full((2,), 1.5), torch.arange(3), torch.eye(2), torch.linspace(0, 1, 4), torch.rand(2)
    return *made, torch.randn(2), torch.randint(4, (2,)), torch.randperm(3), torch.tril_indices(2, 2), torch.scalar_tensor(1), torch.hann_window(4)


def values(x):
    return torch.tensor([1.0, 2.0]), torch.tensor(3), torch.as_tensor([3, 4]), torch.as_tensor(x), torch.asarray(2.0), torch.tensor(x.shape[0])


def with_a_device(x):
    named = torch.zeros(2, device="cpu"), torch.ones(2, device="meta"), torch.zeros(2, device=None), torch.zeros(2, device=x.device)
    return *named, x.new_zeros(2), torch.zeros_like(x), torch.full_like(x, 2), x * 2, torch.Tensor([1, 2]), torch.Generator().device


def asked(x):
    modes = torch.overrides._get_current_function_mode_stack()
    return torch.get_default_device(), depth(), [(type(mode), mode.device) for mode in modes], torch.zeros(1).device == torch.get_default_device()


def nested(x):
    with torch.device("meta"):
        y = torch.zeros(2)
        with torch.device("cpu"):
            z = torch.zeros(2), depth()
        y = y, torch.ones(2)
    return y, z, torch.zeros(2)


def inlined(x):
    def made(n):
        return torch.arange(n)

    return [made(n) for n in range(3)]


def library(x):
    square = torch.ones(4, 4).tril()
    return (
        torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
        F.scaled_dot_product_attention(square[None], square[None], square[None], attn_mask=square.bool()),
        F.softmax(square, -1),
        F.cross_entropy(square, torch.zeros(4, dtype=torch.long)),
        torch.einsum("ij,jk->ik", square, square),
        torch.nn.utils.rnn.pad_sequence([torch.ones(2), torch.ones(3)]),
    )


def transformed(x):
    return torch.func.vmap(lambda row: row * 2 + torch.ones(1))(torch.zeros(3, 2)), torch.func.grad(lambda t: (t * torch.ones(3)).sum())(torch.ones(3))


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda t: t * torch.ones(4), torch.zeros(4), use_reentrant=False)


def by_hand(x):
    device = torch.device("meta")
    device.__enter__()
    y = torch.zeros(2)
    type(device).__exit__(device, None, None, None)
    return y, torch.zeros(2), depth()


def popped(x):
    if depth() == 0:
        return torch.zeros(2)
    with torch.overrides._pop_mode_temporarily() as mode:
        y = torch.zeros(2)
    return y, torch.zeros(2), type(mode), depth()


def set_and_unset(x):
    before = torch.get_default_device()
    torch.set_default_device("meta")
    y = torch.zeros(3)
    torch.set_default_device(None)
    return y, before, torch.ones(2), depth()


ONE_GRAPH = [factories, values, with_a_device, asked, nested, inlined, library, transformed, checkpointed, by_hand, popped]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn, way):
    check_in(way, fn)


def classes(x):
    return F.one_hot(torch.arange(3) % 2, 2)  # which asks for the largest class, so "meta" will not do


@pytest.mark.parametrize("way", ["cpu", "set_cpu"])
@pytest.mark.parametrize("fn", [factories, values, inlined, library, classes])
def test_with_kernels(fn, way):
    def story(wrap):
        run = wrap(fn)
        for _ in range(2):
            torch.manual_seed(1)
            with WAYS[way]():
                yield run(x())

    events = check_same(story, rtol=1e-5, atol=1e-6, fullgraph=True)
    assert sum(isinstance(e, Compiled) for e in events) == 1


@pytest.mark.parametrize("way", ["cpu", "meta"])
def test_a_frame_that_sets_the_default_device(way):
    def story(wrap):
        run = wrap(set_and_unset)
        for _ in range(2):
            with contextlib.suppress(RuntimeError), WAYS[way]():  # torch takes the mode of the block off, too
                yield where(run(x())), depth()
            while depth():
                torch._C._pop_torch_function_stack()

    check_same(story, backend="eager")


def leaves_another(x):
    torch.set_default_device("cpu" if torch.get_default_device().type == "meta" else "meta")
    return torch.zeros(3), torch.get_default_device()


def test_a_frame_that_leaves_another_default_device():
    def story(wrap):
        run = wrap(leaves_another)
        for before in (None, "cpu", "meta"):
            with default(before):
                yield where(run(x())), torch.get_default_device(), depth(), where(torch.zeros(1))
        yield depth(), torch.get_default_device()

    check_same(story, backend="eager", fullgraph=True)


def enters(device):
    device.__enter__()
    return torch.zeros(2)


def leaves(device):
    y = torch.zeros(2)
    device.__exit__(None, None, None)
    return y, torch.ones(2)


def test_a_device_that_is_left_on():
    def story(wrap):
        begin, end = wrap(enters), wrap(leaves)
        for _ in range(2):
            with torch.device("cpu"):
                yield where(begin(torch.device("meta"))), depth(), torch.zeros(1).device
                yield where(end(torch.device("meta"))), depth(), torch.zeros(1).device
            yield depth()

    check_same(story, backend="eager", fullgraph=True)


def breaks_between(x):
    y = torch.zeros(2)
    dynacompile.graph_break()
    return y, torch.ones(3), depth()


def breaks_in_a_block(x):
    with torch.device("meta"):
        y = torch.zeros(2)
        dynacompile.graph_break()
        z = torch.ones(3), depth()
    return y, z, torch.ones(4), depth()


def breaks_in_two_blocks(x):
    with torch.device("meta"):
        with torch.device("cpu"), torch.no_grad():
            y = torch.zeros(2)
            dynacompile.graph_break()
            z = torch.ones(3), depth()
        z = z, torch.ones(5)
    return y, z, torch.ones(4), depth()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fn", [breaks_between, breaks_in_a_block, breaks_in_two_blocks])
def test_breaks(fn, way):
    check_in(way, fn, breaks=1, entries=2)


def raises_in_a_block(x):
    y = torch.zeros(2)
    try:
        with torch.device("meta"):
            y = torch.ones(3)
            raise KeyError("three")
    except KeyError as error:
        return y, str(error), torch.zeros(2), depth()


@pytest.mark.parametrize("way", WAYS)
def test_exceptions(way):
    check_in(way, raises_in_a_block)


def mixes(x):
    return x + torch.zeros(4)


def test_a_mix_of_devices_raises_what_eager_raises():
    def story(wrap):
        run = wrap(mixes)
        for device in ("meta", "cpu", "meta"):
            with torch.device(device):
                yield attempt(run, torch.ones(4, device="cpu"))
            yield depth()

    check_same(story, backend="eager")


def test_each_device_is_an_entry_and_each_block_is_not():
    def story(wrap):
        run = wrap(factories)
        for way in ("meta", "cpu", "set_meta", "meta", "cpu", "set_cpu", "meta_inside_of_cpu"):
            with WAYS[way]():
                yield where(run(torch.ones(3, device="cpu")))
        yield where(run(torch.ones(3)))

    events = check_same(story, backend="eager", fullgraph=True)
    assert sum(isinstance(e, Compiled) for e in events) == 4
    assert [e.failed for e in events if isinstance(e, Recompiled)] == [
        ("default device: meta -> cpu",),
        ("default device: cpu -> cpu, meta",),
        ("default device: cpu, meta -> none",),
    ]


def test_sizes_vary():
    def story(wrap):
        run = wrap(lambda x: (x * torch.arange(x.shape[0]) + torch.zeros(x.shape[0]), torch.full((x.shape[0],), x.shape[0])))
        with torch.device("cpu"):
            for count in (3, 5, 7):
                yield run(torch.ones(count))

    events = check_same(story, fullgraph=True)
    assert sum(isinstance(e, Compiled) for e in events) == 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask) + torch.arange(4.0)


@pytest.mark.parametrize("way", ["cpu", "set_cpu"])
@pytest.mark.parametrize("inside", [False, True], ids=["backward_after", "backward_inside"])
def test_training(way, inside):
    def story(wrap):
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def train(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            if inside:
                loss.backward()
            return loss

        forward, step = wrap(train), wrap(optimizer.step)
        for _ in range(3):
            with WAYS[way]():
                loss = forward(torch.linspace(-1, 1, 12).reshape(3, 4))
                if not inside:
                    loss.backward()
                step()
            yield loss, [p.detach().clone() for p in net.parameters()]

    check_same(story, rtol=1e-4, atol=1e-5)


class Reads(torch.autograd.Function):
    """Whose results say where forward and backward make their tensors."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (2.0 if torch.zeros(3).device.type == "meta" else 3.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.full((4,), 5.0) + x * (7.0 if torch.zeros(3).device.type == "meta" else 1.0)


class Scale:
    value = 2.0


SCALE = Scale()


class ReadsMore(Reads):
    """Which capture follows, as it reads more than its arguments."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * SCALE.value * (2.0 if torch.zeros(3).device.type == "meta" else 3.0)


def hooked(x):
    y = x * 2
    y.register_hook(lambda grad: grad * torch.full((4,), 5.0))
    return y * 3


FUNCTIONS = {"leaf": lambda x: Reads.apply(x), "followed": lambda x: ReadsMore.apply(x), "hook": hooked}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("way", ["cpu", "meta", "set_meta"])
def test_backward_passes_are_in_no_mode(fn, way, backend):
    def story(wrap):
        run = wrap(FUNCTIONS[fn])
        for backward in (torch.Tensor.backward, torch.autograd.backward):
            for inside in (True, False):
                given = torch.linspace(-1, 2, 4, device="cpu").requires_grad_()
                with WAYS[way]():
                    made = run(given).sum()
                    if inside:
                        backward(made)
                if not inside:
                    backward(made)
                yield made, given.grad, depth()

    events = check_same(story, backend=backend, fullgraph=True)
    assert sum(isinstance(e, Compiled) for e in events) == 1


def test_gradients_of_gradients():
    def story(wrap):
        run = wrap(lambda x: (x * torch.arange(4.0, device=x.device)).sin().square())
        for way in ("meta", "cpu"):
            given = torch.linspace(-1, 2, 4, device="cpu").requires_grad_()
            with WAYS[way]():
                (grad,) = torch.autograd.grad(run(given).sum(), given, create_graph=True)
                (twice,) = torch.autograd.grad(grad.sum(), given)
            yield grad, twice

    check_same(story, rtol=1e-4, atol=1e-5)


def test_a_forward_without_a_mode_and_a_backward_in_one():
    """The backward is compiled at its first use, in a mode that is not the compiler's."""

    def story(wrap):
        run = wrap(lambda x: (x * torch.arange(4.0)).sin().square() + torch.zeros(4))
        for _ in range(2):
            given = torch.linspace(-1, 2, 4).requires_grad_()
            made = run(given).sum()
            with torch.device("meta"):
                (grad,) = torch.autograd.grad(made, given, create_graph=True)
                (twice,) = torch.autograd.grad(grad.sum(), given)
            yield grad, twice

    check_same(story, rtol=1e-4, atol=1e-5)


def test_operators_run_in_no_mode():
    @torch.library.custom_op("dynacompile_p59::where_made", mutates_args=())
    def where_made(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(4) + x.to("cpu") if torch.ones(4).device.type == "cpu" else x.clone()

    @where_made.register_fake
    def fake(x):
        return torch.empty(4, device="cpu")

    def story(wrap):
        run = wrap(lambda x: where_made(x) + torch.zeros(4, device="cpu"))
        for way in ("meta", "cpu", "meta"):
            with WAYS[way]():
                yield run(torch.ones(4, device="cpu"))

    check_same(story, backend="eager", fullgraph=True)


class Log(TorchFunctionMode):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_user_beside_a_device_is_asked_by_python():
    def story(wrap):
        names = []
        run = wrap(lambda x: torch.zeros(2) + x)
        with torch.device("cpu"), Log(names):
            yield run(torch.ones(2)), names
        with Log(names), torch.device("cpu"):
            yield run(torch.ones(2)), names
        with torch.device("cpu"):
            yield run(torch.ones(2)), names

    events = check_same(story, backend="eager")
    assert {e.reason[:13] for e in events if isinstance(e, FrameSkipped)} == {"[active-mode]"}


def test_a_mode_that_the_frame_enters_beside_a_device():
    def run(x):
        names = []
        with Log(names):
            y = torch.zeros(2)
            with torch.device("cpu"):
                z = torch.ones(2)
        return y, z, names, torch.zeros(3)

    for way in WAYS:
        check_in(way, run)


@pytest.mark.parametrize("raised", [None, KeyboardInterrupt, ValueError])
def test_the_compiler_is_in_no_mode(raised):
    seen = []

    def backend(graph, inputs):
        seen.append((depth(), torch.zeros(1).device))
        if raised is not None:
            raise raised
        return lambda *args: seen.append((depth(), torch.zeros(1).device)) or graph(*args)

    run = dynacompile.compile(lambda x: x + torch.zeros(2), backend=backend, isolate_recompiles=True, options={"fallback": "none"})
    with torch.device("meta"), torch.device("cpu") as device:
        before = torch.overrides._get_current_function_mode_stack()
        with contextlib.nullcontext() if raised is None else pytest.raises(raised):
            run(torch.ones(2, device=device))
        with contextlib.suppress(KeyboardInterrupt, ValueError):
            run(torch.ones(2, device=device))
        after = torch.overrides._get_current_function_mode_stack()
        assert len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))
    assert depth() == 0
    assert set(seen) == {(0, torch.device("cpu"))}


def test_compiled_in_the_background():
    run = dynacompile.compile(factories, backend="eager", isolate_recompiles=True, options={"background": True, "fallback": "none"})
    for way in ("meta", "cpu", "set_meta"):
        with WAYS[way]():
            expected = where(factories(x()))
            assert where(run(x())) == expected
        assert dynacompile.wait(120)
        with WAYS[way]():
            assert where(run(x())) == expected
    assert len(dynacompile.cache_entries(run)) == 2
    assert depth() == 0


def test_handlers_of_signals_are_in_the_modes_of_the_program():
    seen = []

    def note(place):
        seen.append((place, depth(), torch.zeros(1).device.type))

    def backend(graph, inputs):
        note("compiler")
        signal.raise_signal(signal.SIGUSR1)
        note("compiler")
        return graph

    before = signal.signal(signal.SIGUSR1, lambda *_: note("handler"))
    try:
        run = dynacompile.compile(lambda x: x + torch.zeros(2), backend=backend, isolate_recompiles=True, options={"fallback": "none"})
        with torch.device("meta"):
            run(torch.ones(2))
            note("program")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [("compiler", 0, "cpu"), ("handler", 1, "meta"), ("compiler", 0, "cpu"), ("program", 1, "meta")]


def test_threads_have_default_devices_of_their_own():
    run = dynacompile.compile(lambda x: (torch.zeros(2), x + 1), backend="eager", isolate_recompiles=True, options={"fallback": "none"})

    def call(device):
        with default(device):
            return [run(torch.ones(2))[0].device.type for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert list(pool.map(call, ("meta", "cpu", None))) == [["meta"] * 5, ["cpu"] * 5, ["cpu"] * 5]
    assert depth() == 0
