"""Regions in company: threads, recursion, generators, exceptions, copies and pickles, calls that can't be captured, limits."""

import copy
import gc
import io
import pickle
import threading
import traceback
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, LimitHit, Recompiled
from tests.scenarios import attempt, check_same


def ramp(n=6):
    return torch.linspace(-1, 1, n)


def in_threads(call, arguments):
    """What each thread's call gave, or raised."""
    results = [None] * len(arguments)
    barrier = threading.Barrier(len(arguments))

    def work(i):
        barrier.wait()
        results[i] = attempt(call, *arguments[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    return results


def test_first_call_on_many_threads():
    events = []
    run = dynacompile.compile(lambda x: (x.sin() * 2 + 1).sum(), isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    results = in_threads(run, [(ramp(),)] * 6)
    end()
    want = (ramp().sin() * 2 + 1).sum()
    for result in results:
        torch.testing.assert_close(result, want)
    assert sum(isinstance(e, Compiled) for e in events) == 1
    assert not any(isinstance(e, Recompiled) for e in events)


def test_threads_with_different_inputs():
    run = dynacompile.compile(lambda x, k: (x * k).cos().sum(), isolate_recompiles=True, recompile_limit=64)
    arguments = [(ramp(4 + i % 3), i % 2 + 1) for i in range(12)]
    for _ in range(3):
        for result, (x, k) in zip(in_threads(run, arguments), arguments, strict=True):
            torch.testing.assert_close(result, (x * k).cos().sum())


def test_threads_that_train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    run = dynacompile.compile(net, isolate_recompiles=True)

    def step(x):
        return torch.autograd.grad(run(x).sum(), list(net.parameters()))

    want = torch.autograd.grad(net(ramp()).sum(), list(net.parameters()))
    for result in in_threads(step, [(ramp(),)] * 4):
        assert not isinstance(result, Exception), result
        for a, b in zip(result, want, strict=True):
            torch.testing.assert_close(a, b)


def test_threads_with_other_grad_modes():
    run = dynacompile.compile(lambda x: x * 2 + 1, isolate_recompiles=True)
    x = ramp().requires_grad_()

    def call(grad):
        with torch.set_grad_enabled(grad):
            return [run(x).requires_grad for _ in range(20)]

    for i, result in enumerate(in_threads(call, [(True,), (False,)] * 3)):
        assert result == [i % 2 == 0] * 20


def test_exceptions_on_one_thread_leave_the_others_alone():
    def fn(x, bad):
        y = x * 2
        if bad:
            raise KeyError("bad")
        return y + 1

    run = dynacompile.compile(fn, isolate_recompiles=True)
    results = in_threads(run, [(ramp(), i % 2 == 1) for i in range(8)])
    for i, result in enumerate(results):
        if i % 2:
            assert isinstance(result, KeyError) and str(result) == "'bad'"
        else:
            torch.testing.assert_close(result, ramp() * 2 + 1)


def test_recursion():
    def story(wrap):
        def fn(x, n):
            return x if n == 0 else run(x * 2 + n, n - 1)

        run = wrap(fn)
        yield run(ramp(), 3)
        yield run(ramp(), 0)

        def power(x, n):
            return x if n == 0 else power(x * 2 + n, n - 1)

        yield wrap(power)(ramp(), 5)

    check_same(story, recompile_limit=16)


def test_compiled_calls_compiled():
    def story(wrap):
        inner = wrap(lambda x: x.sin() + 1)
        outer = wrap(lambda x: inner(x * 2) * 3)
        yield outer(ramp()), inner(ramp()), outer(ramp())
        net = torch.nn.Linear(6, 2)
        wrapped = wrap(net)
        yield wrap(lambda x: wrapped(x).relu())(ramp())
        top = wrap(torch.nn.Sequential(wrap(torch.nn.Linear(6, 3)), torch.nn.ReLU()))
        yield top(ramp())

    check_same(story)


def test_generators():
    def story(wrap):
        def items(x):
            for i in range(3):
                yield x * i

        def total(x):
            return sum(items(x)) + sum(x * i for i in range(3)) + [*map(lambda v: v + 1, items(x))][-1]  # noqa: C417

        yield wrap(total)(ramp())
        yield list(wrap(items)(ramp()))

        def through(source):
            return [v * 2 for v in source]

        yield wrap(through)(items(ramp()))
        yield wrap(through)(iter([ramp(), ramp() + 1]))
        yield wrap(lambda xs: [a + b for a, b in zip(xs, xs[1:])])([ramp(), ramp(), ramp() * 2])

    check_same(story, least=None)


def test_generator_is_consumed_once():
    def story(wrap):
        source = iter([ramp(), ramp() * 2, ramp() * 3])
        run = wrap(lambda it: next(it) + 1)
        yield run(source)
        yield run(source)
        yield next(source)
        yield attempt(run, source)

    check_same(story, least=None)


def test_exceptions_in_between():
    def story(wrap):
        def fn(x, y):
            z = x * 2
            return z @ y

        run = wrap(fn)
        yield run(torch.ones(2, 2), torch.ones(2, 2))
        yield type(attempt(run, torch.ones(2, 2), torch.ones(3, 3)))
        yield run(torch.ones(2, 2), torch.ones(2, 2))
        yield type(attempt(run, torch.ones(2, 2), None))
        yield run(torch.ones(2, 3), torch.ones(3, 2))

    check_same(story)


def test_exceptions_keep_the_users_traceback():
    def inner(x):
        return x @ x

    def outer(x):
        y = x + 1
        return inner(y)

    error = attempt(dynacompile.compile(outer, isolate_recompiles=True), torch.ones(2, 3))
    names = [f.name for f in traceback.extract_tb(error.__traceback__)]
    assert names[-2:] == ["outer", "inner"]


class Counter:
    def __init__(self, k):
        self.k, self.calls = k, 0

    def go(self, x):
        self.calls += 1
        return x * self.k

    @staticmethod
    def fixed(x):
        return x + 1

    @classmethod
    def named(cls, x):
        return x * len(cls.__name__)

    def __call__(self, x):
        return self.go(x) - 1


def test_methods():
    def story(wrap):
        a, b = Counter(2.0), Counter(3.0)
        for made in (a, b, a):
            yield wrap(made.go)(ramp()), made.calls
            yield wrap(made)(ramp()), made.calls
        yield wrap(Counter.fixed)(ramp()), wrap(Counter.named)(ramp()), wrap(a.fixed)(ramp()), wrap(a.named)(ramp())
        unbound = wrap(Counter.go)
        yield unbound(a, ramp()), unbound(b, ramp()), a.calls, b.calls

    check_same(story)
    check_same(story, isolate_recompiles=False)


def test_methods_compiled_in_the_class():
    def story(wrap):
        class Thing:
            def __init__(self, k):
                self.k = k

            go = wrap(lambda self, x: x * self.k)
            fixed = staticmethod(wrap(lambda x: x + 1))
            named = classmethod(wrap(lambda cls, x: x * len(cls.__name__)))

        a, b = Thing(2.0), Thing(5.0)
        yield a.go(ramp()), b.go(ramp()), Thing.go(a, ramp()), a.fixed(ramp()), b.named(ramp()), Thing.named(ramp())
        a.k = 9.0
        yield a.go(ramp()), b.go(ramp())

    check_same(story)


class Block(torch.nn.Module):
    def __init__(self, width=4, p=0.0):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.p = p
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.count += 1
        return F.dropout(self.norm(self.linear(x)).relu(), self.p, self.training) + x


def nets(inplace):
    torch.manual_seed(0)
    net = Block()
    return net, dynacompile.compile(net, isolate_recompiles=True, inplace=inplace, options={"reference": True})


@pytest.mark.parametrize("inplace", [False, True], ids=["twin", "inplace"])
def test_copies(inplace):
    net, run = nets(inplace)
    x = torch.ones(2, 4)
    before = run(x)
    for copied in (copy.deepcopy(run), copy.copy(run), pickle.loads(pickle.dumps(run))):
        torch.testing.assert_close(copied(x), before)
        assert type(copied).__name__ == "Block" and isinstance(copied, Block)
        assert list(copied.state_dict()) == list(net.state_dict())
    deep = copy.deepcopy(run)
    with torch.no_grad():
        deep.linear.weight.zero_()
        deep.linear.bias.zero_()
    torch.testing.assert_close(run(x), before)
    assert not torch.equal(deep(x), before)
    torch.testing.assert_close(copy.deepcopy(net)(x), before)


@pytest.mark.parametrize("inplace", [False, True], ids=["twin", "inplace"])
def test_saving(inplace):
    net, run = nets(inplace)
    x = torch.ones(2, 4)
    want = run(x)
    file = io.BytesIO()
    torch.save(run, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), want)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    fresh = Block()
    fresh.load_state_dict(torch.load(file))
    torch.testing.assert_close(fresh(x), want)
    assert list(run.state_dict()) == list(Block().state_dict())
    assert [n for n, _ in run.named_parameters()] == [n for n, _ in Block().named_parameters()]
    assert [n for n, _ in run.named_modules()] == [n for n, _ in Block().named_modules()]


def test_twin_shares_its_module():
    net, run = nets(False)
    x = torch.ones(2, 4)
    run(x)
    assert net.count == 1 and run.count is net.count and run.linear is net.linear
    run.eval()
    assert not net.training
    run.p = 0.25
    assert net.p == 0.25
    run.to(torch.float64)
    assert net.linear.weight.dtype == torch.float64 and run(x.double()).dtype == torch.float64
    run.extra = torch.nn.Linear(2, 2)
    assert "extra.weight" in net.state_dict()
    del run.extra
    assert not hasattr(net, "extra")
    net.requires_grad_(False)
    assert not run(x.double()).requires_grad


def test_class_bucket_is_shared_and_instances_are_not():
    for isolate, expected in ((False, 1), ("class", 1), (True, 3)):
        dynacompile.reset()
        torch.manual_seed(0)
        blocks = [Block() for _ in range(3)]
        runs = [dynacompile.compile(b, isolate_recompiles=isolate, options={"reference": True, "fallback": "none"}) for b in blocks]
        events = []
        end = dynacompile.subscribe(events.append)
        for run, block in zip(runs, blocks, strict=True):
            torch.testing.assert_close(run(torch.ones(2, 4)), block(torch.ones(2, 4)))
        end()
        assert sum(isinstance(e, Compiled) and e.ops > 0 for e in events) == expected, isolate


def test_limit_warns_once_and_runs_eagerly():
    events = []
    run = dynacompile.compile(lambda x, k: x * k + 1, isolate_recompiles=True, recompile_limit=3, dynamic=False, options={"reference": True})
    end = dynacompile.subscribe(events.append)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in [*range(8), *range(8)]:
            torch.testing.assert_close(run(ramp(), k), ramp() * k + 1)
    end()
    assert sum(isinstance(e, LimitHit) for e in events) == 1
    assert sum(issubclass(w.category, RuntimeWarning) for w in caught) == 1
    assert sum(isinstance(e, Compiled) for e in events) == 3


def test_limit_of_one_region_leaves_the_other():
    def fn(x, k):
        return x * k + 1

    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        first = dynacompile.compile(fn, isolate_recompiles=True, recompile_limit=2, dynamic=False, options={"reference": True})
        for k in range(5):
            first(ramp(), k)
    events = []
    second = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True, "fallback": "none"})
    end = dynacompile.subscribe(events.append)
    torch.testing.assert_close(second(ramp(), 9), ramp() * 9 + 1)
    end()
    assert sum(isinstance(e, Compiled) for e in events) == 1


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def compiled_calls(run, *calls):
    events = []
    end = dynacompile.subscribe(events.append)
    for call in calls:
        attempt(run, *call)
    end()
    return sum(isinstance(e, Compiled) and e.ops > 0 for e in events), sum(isinstance(e, FrameSkipped) for e in events)


@pytest.mark.parametrize("mode", [Quiet, torch.autograd.forward_ad.dual_level, lambda: torch.device("cpu")], ids=["dispatch", "forward_ad", "device"])
def test_a_mode_around_one_call_leaves_the_others(mode):
    run = dynacompile.compile(lambda x: x * 2 + 1, isolate_recompiles=True, options={"reference": True})
    with mode():
        for _ in range(10):
            torch.testing.assert_close(run(ramp()), ramp() * 2 + 1)
    assert compiled_calls(run, (ramp(),)) == (1, 0)
    with mode():
        torch.testing.assert_close(run(ramp()), ramp() * 2 + 1)
    assert compiled_calls(run, (ramp(),)) == (0, 0)


def test_a_call_that_raises_leaves_the_others():
    def fn(x):
        if x.shape[0] != 6:
            raise ValueError("six")
        return x * 2 + 1

    run = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True})
    assert isinstance(attempt(run, ramp(3)), ValueError)
    assert compiled_calls(run, (ramp(),))[0] == 1
    for n in range(10, 20):
        assert isinstance(attempt(run, ramp(n)), ValueError)
    torch.testing.assert_close(run(ramp()), ramp() * 2 + 1)
    assert compiled_calls(run, (ramp(),)) == (0, 0)


def test_code_that_was_given_up_keeps_its_entries():
    def fn(x, y):
        x.add_(1)
        return y * 2

    run = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True})
    assert compiled_calls(run, (ramp(), ramp()))[0] == 1
    for _ in range(6):
        x = ramp()
        shared = torch.empty(0).set_(x)[1:]  # its memory, of which it is no view
        torch.testing.assert_close(run(x, shared), (ramp() + 1)[1:] * 2)
    entry = dynacompile.native.core().entries(fn.__code__)[0][1]
    before = entry.hits
    run(ramp(), ramp())
    assert entry.hits == before + 1


def test_reset_in_between():
    def story(wrap):
        run = wrap(lambda x: x * 2 + 1)
        x = ramp().requires_grad_()
        out = run(x)
        dynacompile.reset()
        out.sum().backward()
        yield x.grad, run(x)

    check_same(story)


def test_entries_die_with_their_function():
    def make():
        big = torch.zeros(1000)
        run = dynacompile.compile(lambda x: x + big.sum(), isolate_recompiles=True, options={"reference": True})
        run(ramp())
        return weakref.ref(big)

    dead = make()
    dynacompile.reset()
    gc.collect()
    assert dead() is None


def test_inputs_are_not_kept_alive():
    run = dynacompile.compile(lambda x, w: (x * w).tanh(), isolate_recompiles=True, options={"reference": True})
    w = ramp().requires_grad_()
    x = ramp()
    out = run(x, w)
    seen = weakref.ref(x)
    out.sum().backward()
    del x, out
    gc.collect()
    assert seen() is None
