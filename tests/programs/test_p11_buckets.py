"""Buckets as a user meets them: isolation, dispatch, limits, eviction, and what they show."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dynacompile
from dynacompile import native
from dynacompile.errors import ConfigError, RecompileLimitError, Unsupported
from dynacompile.events import Compiled, Evicted, GraphBroke, Guarded, GuardFailed, LimitHit, Recompiled


@pytest.fixture(autouse=True)
def fresh():
    dynacompile.reset()


@pytest.fixture
def events():
    seen = []
    end = dynacompile.subscribe(seen.append)
    yield seen
    end()


def compiled(fn, **options):
    return dynacompile.compile(fn, backend="eager", dynamic=False, **options)


def count(events, kind):
    return sum(isinstance(e, kind) for e in events)


def batches(*sizes):
    return [torch.ones(size) for size in sizes]


def test_factory_pattern(events):
    """One function compiled by a factory: isolated compiles have a limit each, shared ones share theirs."""

    def make(isolated):
        def scale(x, factor):
            return x * factor

        return compiled(scale, isolate_recompiles=isolated, recompile_limit=2, fallback="none")

    own = [make(True) for _ in range(4)]
    for factor, run in enumerate(own):
        for x in batches(2, 3):
            assert torch.equal(run(x, factor), x * factor)
    assert count(events, Compiled) == 8 and count(events, LimitHit) == 0
    shared = [make(False) for _ in range(4)]
    with pytest.warns(RuntimeWarning, match="recompile_limit=2 of bucket -1"):
        for factor, run in enumerate(shared):
            for x in batches(2, 3):
                assert torch.equal(run(x, factor), x * factor)
    assert count(events, Compiled) == 10


def test_two_limits_on_one_function(events):
    def fn(x):
        return x + 1

    small, large = (compiled(fn, isolate_recompiles=True, recompile_limit=n, fallback="none") for n in (1, 3))
    with pytest.warns(RuntimeWarning, match="recompile_limit=1"):
        for x in batches(2, 3, 4):
            assert torch.equal(small(x), x + 1) and torch.equal(large(x), x + 1)
    assert [len(dynacompile.cache_entries(f)) for f in (small, large)] == [1, 3]
    assert count(events, LimitHit) == 1


def test_four_copies_of_one_model():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x).relu()

    copies = [Net() for _ in range(4)]
    runs = [compiled(net, isolate_recompiles="instance", recompile_limit=2, fallback="none") for net in copies]
    for net, run in zip(copies, runs):
        for x in (torch.randn(2, 3), torch.randn(4, 3)):
            torch.testing.assert_close(run(x), net(x))
    assert [len(dynacompile.cache_entries(run)) for run in runs] == [2] * 4


def test_sixty_four_modules_share_an_entry(events):
    def call(module, x):
        return module(x)

    run = compiled(call)
    for _ in range(64):
        module, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
        assert torch.equal(run(module, x), module(x))
    assert count(events, Compiled) == 1 and count(events, LimitHit) == 0


def test_train_and_eval_have_an_entry_each(events):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.0))
    run, x = compiled(net), torch.randn(2, 3)
    for i in range(10):
        net.train(i % 2 == 0)
        assert torch.equal(run(x), net(x))
    assert count(events, Compiled) == 2
    net.train()
    for _ in range(3):
        run(x).sum().backward()
        with torch.inference_mode():
            assert run(x).is_inference()
    assert count(events, Compiled) == 3


def test_modules_that_do_not_read_the_flag_have_one_entry(events):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    run, x = compiled(net), torch.randn(2, 3)
    for i in range(6):
        net.train(i % 2 == 0)
        assert torch.equal(run(x), net(x))
    assert count(events, Compiled) == 1


def test_dispatch_has_a_bucket_for_each_key(events):
    def fn(x):
        return x * 2

    run = compiled(
        fn,
        dispatch=lambda x: "small" if x.numel() < 4 else "large",
        dispatch_options={"small": {"recompile_limit": 4}, "*": {"recompile_limit": 1}},
        fallback="none",
    )
    with pytest.warns(RuntimeWarning, match=r"To allow more: dispatch_options=\{'large': \{'recompile_limit': 2\}\}"):
        for x in batches(1, 2, 3, 8, 9, 1, 8):
            assert torch.equal(run(x), x * 2)
    by_name = {bucket.region.rsplit("[")[-1]: bucket for bucket in run.buckets}
    assert {name: (b.limit, len(b.entries)) for name, b in by_name.items()} == {"'small']": (4, 3), "'large']": (1, 1)}
    assert len({b.id for b in run.buckets}) == 2 and count(events, LimitHit) == 1


def test_dispatch_of_a_module_gets_the_arguments_alone():
    net = torch.nn.Linear(3, 3)
    keys = []

    def choose(x, scale=1):
        keys.append((tuple(x.shape), scale))
        return x.size(0)

    for run in (compiled(net, dispatch=choose), compiled(net, dispatch=choose, inplace=True)):
        for n in (2, 4, 2):
            assert run(torch.ones(n, 3)).shape == (n, 3)
        assert len(dynacompile.cache_entries(run)) == 2
    assert keys == [((n, 3), 1) for n in (2, 4, 2)] * 2


@pytest.mark.parametrize("form", ["function", "module", "in place", "method"])
def test_a_dispatch_inside_of_a_compiled_function_is_asked(form, events):
    keys = []

    def choose(x):
        keys.append(x.size(0))
        return x.size(0)

    net = torch.nn.Linear(3, 3)
    target = {"function": lambda x: net(x), "method": net.forward}.get(form, net)
    called = compiled(target, dispatch=choose, **({"inplace": True} if form == "in place" else {}))
    outer = compiled(lambda x: called(x + 1) * 2)
    for n in (2, 4, 2):
        x = torch.ones(n, 3)
        torch.testing.assert_close(outer(x), torch.nn.functional.linear(x + 1, net.weight, net.bias) * 2)
    assert keys == [2, 4, 2]
    assert {e.code for e in events if isinstance(e, GraphBroke)} == {"nested-region"}
    with pytest.raises(Unsupported, match="region of its own"):
        compiled(lambda x: called(x + 1) * 2, fullgraph=True)(torch.ones(2, 3))


def test_wrong_dispatches_are_named():
    with pytest.raises(ConfigError, match="dispatch must be a callable"):
        compiled(lambda x: x, dispatch=3)
    with pytest.raises(ConfigError, match="recompile_limit"):
        compiled(lambda x: x, dispatch=len, dispatch_options={"*": {"recompile_limits": 3}})
    with pytest.raises(ConfigError, match="pass that, too"):
        compiled(lambda x: x, dispatch_options={"*": {}})
    run = compiled(lambda x: x + 1, dispatch=lambda x: [])
    with pytest.raises(TypeError, match="unhashable"):
        run(torch.ones(2))

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        compiled(lambda x: x + 1, dispatch=fails)(torch.ones(2))


def test_views_tell_guards_hits_cost_and_last_use():
    def fn(x, k):
        return x + k

    run = compiled(fn, isolate_recompiles=True, fallback="none")
    for x in batches(2, 2, 2, 3):
        run(x, 1)
    latest, older = dynacompile.cache_entries(run)
    assert (latest.hits, older.hits) == (1, 3)
    assert latest.last_used >= older.last_used > 0 and min(latest.seconds, *latest.lookup_ns, latest.bytes) > 0
    assert any(g.startswith("TENSOR_MATCH x: Tensor, torch.float32") for g in latest.guards) and any(g == "EQUALS k: 1" for g in latest.guards)
    assert f"bucket {run.buckets[0].id} of" in str(run.buckets[0]) and "3 hits" in str(run.buckets[0])
    with pytest.raises(ConfigError, match="what compile"):
        dynacompile.cache_entries(fn)


def test_max_entries_drops_the_least_recently_used(events):
    def fn(x):
        return x + 1

    run = compiled(fn, isolate_recompiles=True, fallback="none", options={"max_entries": 2})
    for x in batches(2, 3, 2, 4, 2, 3):
        assert torch.equal(run(x), x + 1)
    sizes = [next(g for g in e.guards if "sizes" in g).split("sizes ")[1][:3] for e in dynacompile.cache_entries(run)]
    assert sizes == ["[3]", "[2]"] and count(events, Evicted) == 2 and count(events, Compiled) == 4


def test_max_bytes_bounds_a_bucket(events):
    def fn(x):
        return x + 1

    first = compiled(fn, isolate_recompiles=True, fallback="none")
    first(torch.ones(2))
    size = dynacompile.cache_entries(first)[0].bytes
    run = compiled(fn, isolate_recompiles=True, fallback="none", options={"max_bytes": 3 * size})
    for x in batches(2, 3, 4, 5, 6):
        assert torch.equal(run(x), x + 1)
    kept = dynacompile.cache_entries(run)
    assert len(kept) == 3 and sum(e.bytes for e in kept) <= 3 * size and count(events, Evicted) == 2


def test_limits_that_raise():
    def fn(x):
        return x + 1

    for options in ({"fullgraph": True}, {"options": {"fail_on_recompile_limit_hit": True}}):
        run = compiled(fn, isolate_recompiles=True, fallback="none", recompile_limit=1, **options)
        run(torch.ones(2))
        with pytest.raises(RecompileLimitError, match=r"x.size\(0\): 2 -> 3"):
            run(torch.ones(3))
        assert torch.equal(run(torch.ones(2)), torch.ones(2) + 1)
    run = compiled(fn, isolate_recompiles=True, fallback="none", options={"error_on_recompile": True})
    run(torch.ones(2))
    with pytest.raises(RecompileLimitError, match="error_on_recompile"):
        run(torch.ones(3))


def test_accumulated_limit_is_for_each_code_object(events):
    def fn(x):
        return x + 1

    runs = [compiled(fn, isolate_recompiles=True, fallback="none", options={"accumulated_recompile_limit": 3}) for _ in range(2)]
    with pytest.warns(RuntimeWarning, match="accumulated_recompile_limit=3"):
        for x in batches(2, 3):
            for run in runs:
                assert torch.equal(run(x), x + 1)
    assert count(events, Compiled) == 3


def test_objects_that_are_known_by_identity_count_each_for_itself(events):
    def fn(x, function):
        return x + 1 if function is len else x + 2

    run = compiled(fn, isolate_recompiles=True, fallback="none", recompile_limit=2)
    x = torch.ones(2)
    for function in [len, sum, max, min, abs] * 2:
        assert torch.equal(run(x, function), fn(x, function))
    assert count(events, Compiled) == 5 and count(events, LimitHit) == 0


def test_a_recompile_explains_itself(events, monkeypatch):
    monkeypatch.setenv("DYNACOMPILE_LOGS", "verbose_guards")

    def fn(x, k):
        return x * k

    run = compiled(fn, isolate_recompiles=True, fallback="none", recompile_limit=4)
    run(torch.ones(4, 8), 2)
    run(torch.ones(8, 16, requires_grad=True), 2)
    (again,) = [e for e in events if isinstance(e, Recompiled)]
    assert again.failed == ("x.requires_grad: False -> True", "x.size(0): 4 -> 8", "x.size(1): 8 -> 16")
    assert (again.entries, again.limit, again.done, again.bucket) == (2, 4, "new entry", run.buckets[0].id)
    assert "test_p11_buckets.py" in again.frame and again.seconds > 0
    assert not again.override and "requires gradients" in again.expected
    assert [e.was for e in events if isinstance(e, GuardFailed)] == ["False", "4", "8", "8"]
    guarded = [e for e in events if isinstance(e, Guarded)]
    assert len(guarded) == 2 and all(e.lookup_ns > 0 and e.cold_ns > 0 and len(e.texts) == e.guards for e in guarded)
    text = "\n".join(dynacompile.observe.log.line(e) for e in events)
    assert "entry 2 of 4" in text and "done: new entry" in text and "TENSOR_MATCH x: Tensor, torch.float32, cpu, sizes [4, 8]" in text


@pytest.mark.slow
def test_dropped_objects_leave_nothing():
    """Four thousand compiles of one function, eighty of them called."""
    namespace = {"torch": torch}
    exec("def fn(x):\n    return x + 1\n", namespace)
    fn, x = namespace["fn"], torch.ones(2)

    def once(called):
        run = compiled(fn, isolate_recompiles=True, fallback="none")
        if called:
            run(x)
        return weakref.ref(run)

    once(True)
    gc.collect()
    names, objects, resident = len(namespace), len(gc.get_objects()), resident_kib()
    refs = [once(i % 50 == 0) for i in range(4000)]
    assert not any(ref() for ref in refs)
    del refs
    gc.collect()
    assert native.core().entries(fn.__code__) == [] and len(namespace) == names
    assert len(gc.get_objects()) < objects + 500 and resident_kib() < resident + 8192


def resident_kib():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


@pytest.mark.slow
def test_eviction_and_reset_while_the_entry_runs():
    def inner(x):
        dynacompile.reset()
        gc.collect()
        return x * 2

    def fn(x):
        y = x + 1
        inner.blocked(y)
        return inner(y) + y

    inner.blocked = dynacompile.disable(lambda y: dynacompile.reset())
    run = compiled(fn, isolate_recompiles=True, fallback="none")
    x = torch.ones(3)
    for _ in range(4):
        assert torch.equal(run(x), torch.full((3,), 6.0))


def test_a_written_tensor_beside_a_symbolic_int(events):
    """The entry holds for its own call, though one of its inputs is no tensor: nothing is compiled twice."""

    def fn(values):
        values[0].mul_(values[1])
        return values[0] + 1

    run = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True})
    for k in (2, 3, 4, 5, 6):
        ours, theirs = torch.ones(2), torch.ones(2)
        assert torch.equal(run([ours, k]), fn([theirs, k])) and torch.equal(ours, theirs)
    assert count(events, Compiled) == 2


def test_compiles_of_a_block_have_buckets_of_their_own():
    def fn(x):
        return x + 1

    x = torch.ones(2)
    outside = dynacompile.compile(fn)
    outside(x)
    with dynacompile.isolated() as scope:
        inside = dynacompile.compile(fn)
    with dynacompile.isolated(scope):
        again = dynacompile.compile(fn)
    with dynacompile.isolated():
        other = dynacompile.compile(fn)
    ids = [one._region_state.bucket for one in (outside, inside, again, other)]
    assert ids[0] == -1 and ids[1] == ids[2] >= 0 and ids[3] not in ids[:3]
