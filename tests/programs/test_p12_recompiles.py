"""Recompiles as a user meets them: which calls share an entry, who counts for which limit, and what each event says."""

from __future__ import annotations

import copy
import functools
import logging
import threading
import warnings

import pytest
import torch

import dynacompile
from dynacompile import native
from dynacompile.events import Compiled, GuardFailed, LimitHit, Recompiled
from dynacompile.observe.log import line, log_subscriber


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
    given = {"backend": "eager", "isolate_recompiles": True, "options": {"fallback": "none", "verify": True}, **options}
    return dynacompile.compile(fn, **given)


def only(events, kind):
    return [e for e in events if isinstance(e, kind)]


def same(run, fn, *args):
    assert torch.equal(run(*args), fn(*args))


# walkthroughs


def test_a_flag_has_two_entries(events):
    def fn(x, flag):
        return x + 1 if flag else x - 1

    run, x = compiled(fn), torch.ones(3)
    for flag in (True, False, True, False, True):
        same(run, fn, x, flag)
    assert len(only(events, Compiled)) == 2
    assert [e.failed for e in only(events, Recompiled)] == [("flag: True -> False",)]


def test_three_shapes_take_two_compilations(events):
    def fn(x):
        return torch.relu(x) * 2

    run = compiled(fn)
    for shape in ((4, 8), (8, 16), (32, 64), (4, 8), (5, 7)):
        same(run, fn, torch.randn(shape))
    assert len(only(events, Compiled)) == 2
    (again,) = only(events, Recompiled)
    assert again.failed == ("x.size(0): 4 -> 8", "x.size(1): 8 -> 16")
    assert again.done == "made x.size(0), x.size(1) dynamic"
    assert again.override == "dynamic={'x': {0: {}, 1: {}}}"


def test_an_int_that_changes_is_made_dynamic(events):
    def fn(x, k):
        return x + k

    run = compiled(fn)
    for k in (2, 3, 4, 5):
        same(run, fn, torch.ones(2), k)
    assert [e.done for e in only(events, Recompiled)] == ["made k dynamic"]


def test_an_attribute_that_flips(events):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.use_relu = True

        def forward(self, x):
            return x.relu() if self.use_relu else x.tanh()

    net = Net()
    run, x = compiled(net), torch.randn(4)
    for flag in (True, False, True, False):
        net.use_relu = flag
        same(run, net, x)
    assert len(only(events, Compiled)) == 2
    (again,) = only(events, Recompiled)
    assert again.failed == ("self.use_relu: True -> False",) and again.done == "new entry" and "test_p12_recompiles.py" in again.site


def test_static_next_to_dynamic(events):
    def fn(x):
        return x * 3

    static, dynamic = compiled(fn, dynamic=False), compiled(fn, dynamic=True)
    for n in (2, 3, 4):
        for run in (static, dynamic):
            same(run, fn, torch.ones(n))
    assert [len(dynacompile.cache_entries(run)) for run in (static, dynamic)] == [3, 1]
    assert not {e.bucket for e in only(events, Recompiled)} - {static.buckets[0].id}


# whose bucket


def test_own_bucket_first_then_the_shared_one_read_only(events):
    def fn(x):
        return x + 1

    shared = compiled(fn, isolate_recompiles=False, dynamic=False)
    own = compiled(fn, dynamic=False, fallback="default", options={})
    alone = compiled(fn, dynamic=False)
    two, three = torch.ones(2), torch.ones(3)
    shared(two)
    own(two)
    assert len(only(events, Compiled)) == 1 and dynacompile.cache_entries(own) == ()
    assert dynacompile.cache_entries(shared)[0].hits == 2
    own(three)
    alone(two)
    assert [len(dynacompile.cache_entries(run)) for run in (shared, own, alone)] == [1, 1, 1]
    shared(three)
    assert len(dynacompile.cache_entries(shared)) == 2, "what an isolated compile made serves nobody else"


def test_entries_are_in_order_of_use():
    run = compiled(lambda x: x + 1, dynamic=False)
    for n in (2, 3, 4, 3, 2):
        run(torch.ones(n))
    sizes = [next(g for g in e.guards if "sizes" in g).partition("sizes ")[2][:3] for e in dynacompile.cache_entries(run)]
    assert sizes == ["[2]", "[3]", "[4]"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x).relu()


def test_a_full_bucket_silences_no_other(events):
    """Policy, reference, reward and value: the policy's bucket is full, the others go on."""
    names = ("policy", "reference", "reward", "value")
    models = {name: Model() for name in names}
    runs = {name: compiled(model, dynamic=False, recompile_limit=2, inplace=True, name=name) for name, model in models.items()}
    with pytest.warns(RuntimeWarning, match="region 'policy' reached recompile_limit=2"):
        for n in (2, 3, 4, 5):
            runs["policy"](torch.ones(n, 3))
    for name in names[1:]:
        for n in (2, 3):
            runs[name](torch.ones(n, 3))
    assert {e.region for e in only(events, LimitHit)} == {"policy"}
    assert {name: len(dynacompile.cache_entries(run)) for name, run in runs.items()} == dict.fromkeys(names, 2)
    hits = sum(e.hits for e in dynacompile.cache_entries(runs["policy"]))
    runs["policy"](torch.ones(2, 3))
    assert sum(e.hits for e in dynacompile.cache_entries(runs["policy"])) == hits + 1, "entries of a full bucket still serve"


def test_ids_survive_copies_methods_and_partials(events):
    class Owner:
        def scale(self, x):
            return x * 2

    Owner.scale = compiled(Owner.scale)
    x = torch.ones(2)
    for call in (Owner().scale, functools.partial(Owner.scale, Owner()), copy.copy(Owner()).scale):
        assert torch.equal(call(x), x * 2)
    assert len(only(events, Compiled)) == 1


def test_ids_survive_resume_functions_nested_frames_and_exceptions(events):
    def inner(x):
        return x + 1

    blocked = dynacompile.disable(lambda: None)

    def fn(x, fails):
        y = inner(x)
        blocked()
        y = y * 2
        if fails:
            raise KeyError("mine")
        blocked()
        return y + 1

    run = compiled(fn)
    bucket = run.buckets[0].id
    x = torch.ones(2)
    for fails in (False, True, False):
        if fails:
            with pytest.raises(KeyError, match="mine"):
                run(x, fails)
        else:
            same(run, fn, x, fails)
        assert native.core().current_region() is None
    assert len(only(events, Compiled)) > 3 and {e.bucket for e in only(events, Compiled)} == {bucket}


def test_a_thread_is_in_the_region_that_it_calls(events):
    def fn(x):
        return x + 1

    run = compiled(fn)
    regions = []

    def work():
        regions.append(native.core().current_region())
        run(torch.ones(2))

    def outer(x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x

    compiled(outer)(torch.ones(2))
    assert regions == [None]
    assert [e.bucket for e in only(events, Compiled) if "fn" in e.frame and "<locals>.fn" in e.frame] == [run.buckets[0].id]


def test_buckets_of_modules():
    model, x = Model(), torch.ones(2, 3)
    twin = compiled(model)
    twin(x)
    assert [len(b.entries) for b in twin.buckets] == [1] and "1 entries" in str(twin.buckets[0])
    assert not hasattr(model, "buckets")
    compiled(model, inplace=True)
    assert [len(b.entries) for b in model.buckets] == [0]
    model(x)
    model(x)
    assert [len(b.entries) for b in model.buckets] == [1] and model.buckets[0].entries[0].hits == 2
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    assert tuple(copy.deepcopy(model).buckets) == ()
    dynacompile.restore(model)
    assert not hasattr(model, "buckets")


def test_a_module_with_buckets_of_its_own_keeps_them():
    class Hashed(Model):
        def __init__(self):
            super().__init__()
            self.buckets = torch.nn.Embedding(4, 3)

    model = Hashed()
    assert isinstance(compiled(model).buckets, torch.nn.Embedding)
    compiled(model, inplace=True)
    assert isinstance(model.buckets, torch.nn.Embedding)
    dynacompile.restore(model)
    assert isinstance(model.buckets, torch.nn.Embedding)


def test_each_object_counts_for_itself(events):
    """Classes are known by identity: five of them are no storm."""
    table = {type(f"Key{i}", (), {}): i for i in range(5)}

    def fn(x, key):
        return x + table[key]

    run, x = compiled(fn, recompile_limit=2), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for key in [*table, *table]:
            same(run, fn, x, key)
    assert len(only(events, Compiled)) == 5 and not only(events, LimitHit)
    for dtype in (torch.float64, torch.int64):
        with pytest.warns(RuntimeWarning, match="recompile_limit=2") if dtype is torch.int64 else warnings.catch_warnings():
            same(run, fn, x.to(dtype), next(iter(table)))


# what is said


def test_overrides_are_keywords_and_help(events):
    """tests/programs/test_p12_advice.py tries them one by one."""

    def fn(x, k):
        return x * k

    x = torch.ones(2, 3)
    story = [(x, 2), (torch.ones(4, 3), 2), (x.double(), 2)]
    run = compiled(fn, recompile_limit=2)
    with pytest.warns(RuntimeWarning) as warned:
        for given in story:
            same(run, fn, *given)
    (again,), (hit,) = only(events, Recompiled), only(events, LimitHit)
    assert (again.override, hit.override) == ("dynamic={'x': {0: {}}}", "recompile_limit=4")
    (text,) = [str(w.message) for w in warned if issubclass(w.category, RuntimeWarning)]
    for part in (f"bucket {run.buckets[0].id}", "recompile_limit=2", hit.guard, hit.override):
        assert part in text
    assert hit.done == "eager" and hit.entries == 2 and hit.failed == ("x.dtype: torch.float32 -> torch.float64",) and hit.guard in hit.failed


def test_the_log_tells_all_of_it(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "dynacompile")
    for topics, present, absent in (
        ("recompiles", ("recompile ", "x.size(0): 2 -> 3", "done: new entry", "limit ", "done: eager", "to allow more"), ("guards ",)),
        ("guards", ("guards ", "checked in ", "guard ", "2 -> 3"), ("recompile ", "TENSOR_MATCH x: Tensor")),
        ("verbose_guards", ("guards ", "TENSOR_MATCH x: Tensor, torch.float32, cpu, sizes [2]", "GLOBAL_STATE"), ("recompile ",)),
    ):
        monkeypatch.setenv("DYNACOMPILE_LOGS", topics)
        caplog.clear()
        end = dynacompile.subscribe(log_subscriber())
        try:
            with warnings.catch_warnings(record=True):
                run = compiled(lambda x: x + 1, dynamic=False, recompile_limit=2)
                for n in (2, 3, 4):
                    run(torch.ones(n))
        finally:
            end()
        text = "\n".join(record.getMessage() for record in caplog.records)
        assert all(part in text for part in present), text
        assert not any(text.startswith(part) or f"\n{part}" in text for part in absent), text


def test_explain_shows_what_lookups_cost():
    told = dynacompile.explain(lambda x: x + 1, backend="eager")(torch.ones(2))
    (graph,) = told.graphs
    assert graph.guards == told.guards > 0 and graph.lookup_ns > 0 and graph.cold_ns > 0
    assert f"{graph.guards} guards ({graph.lookup_ns:.0f} ns, {graph.cold_ns:.0f} ns with cold caches)" in str(told)


def test_all_differences_are_told(events):
    def fn(x, k, flag):
        return x * k if flag else x

    run = compiled(fn, dynamic=False)
    run(torch.ones(2), 2.0, True)
    run(torch.ones(3, dtype=torch.float64), 3.0, False)
    (again,) = only(events, Recompiled)
    assert set(again.failed) == {"x.dtype: torch.float32 -> torch.float64", "x.size(0): 2 -> 3", "k: 2.0 -> 3.0", "flag: True -> False"}
    text = line(again)
    assert all(part in text for part in (*again.failed, "entry 2 of 8", "done: new entry", again.frame)) and again.seconds > 0


def test_many_alike_changes_are_one_line_and_all_in_the_trace(events):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(7)))
            self.head = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.encoder(x))

    net = Net()
    run, x = compiled(net), torch.randn(2, 3)
    run(x)
    net.encoder.requires_grad_(False)
    net.head.bias.requires_grad_(False)
    run(x)
    (again,) = only(events, Recompiled)
    assert again.failed == ("self.*.requires_grad: True -> False (15 of them)",)
    net.encoder.requires_grad_(True)
    net.head.bias.requires_grad_(True)
    net.head.weight.requires_grad_(False)
    net.encoder.requires_grad_(False)
    events.clear()
    run(x)
    (again,) = only(events, Recompiled)
    assert set(again.failed) <= {"self.head.weight.requires_grad: True -> False", "self.head.bias.requires_grad: False -> True"}
    dynacompile.reset()
    run(x.clone())
    net.encoder.requires_grad_(True)
    events.clear()
    run(x)
    (again,) = only(events, Recompiled)
    assert again.failed == ("self.encoder.*.requires_grad: False -> True (14 of them)",)
    assert len([e for e in events if isinstance(e, GuardFailed)]) == 14


@pytest.mark.parametrize("other", [None, "a", b"a", ..., torch.float32], ids=str)
def test_what_no_number_equals_does_not_pin_a_counter(other, events):
    class Counts:
        steps, last = 5, None

    def fn(x, counts):
        return x + 1 if counts.steps == counts.last else x + 2 if counts.steps != counts.last and counts.steps not in (None, "b") else x

    counts = Counts()
    counts.last = other
    run, x = compiled(fn, options={"fallback": "none", "varying": ["steps"]}), torch.ones(2)
    for counts.steps in range(5, 10):
        same(run, fn, x, counts)
    assert len(only(events, Compiled)) == 1
