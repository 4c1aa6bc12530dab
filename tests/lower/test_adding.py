"""Sums at places lower to nests that add, with what eager computes and raises."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import dynacompile
from dynacompile.events import GraphBroke
from dynacompile.ir.loops import Extern, Nest
from dynacompile.ir.schedule import Launch, Schedule
from tests.checking import check

from .tracing import ENV, compare, lower, schedule, trace


def adding_nests(function, *args: torch.Tensor) -> list[Nest]:
    return [step for step in lower(trace(function, args, decompose=False), ENV).steps if isinstance(step, Nest) and step.adds]


def places(count: int, below: int, *more: int) -> torch.Tensor:
    return torch.randint(0, below, (count, *more), generator=torch.Generator().manual_seed(1))


ROWS, VALUES, ROW_PLACES = torch.randn(20, 64), torch.randn(3000, 64), places(3000, 20)
FORMS = {
    "index_add": (lambda x, i, v: x.index_add(0, i, v), ROWS, ROW_PLACES, VALUES),
    "index_add-alpha": (lambda x, i, v: x.index_add(0, i, v, alpha=0.5), ROWS, ROW_PLACES, VALUES),
    "index_add-between": (lambda x, i, v: x.index_add(1, i, v), torch.randn(4, 20, 5), places(300, 20), torch.randn(4, 300, 5)),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i.unsqueeze(1).expand_as(v), v), ROWS, ROW_PLACES, VALUES),
    "scatter_add-along-rows": (lambda x, i, v: x.scatter_add(1, i, v), torch.randn(30, 9), places(30, 9, 100), torch.randn(40, 120)),
    "scatter_reduce": (lambda x, i, v: x.scatter_reduce(0, i, v, "sum"), torch.randn(9, 70), places(50, 9, 70), torch.randn(50, 70)),
    "index_put": (lambda x, i, v: torch.ops.aten.index_put(x, [None, i - 64], v, True), ROWS, places(100, 64), torch.randn(20, 1)),
    "index_put-two": (lambda x, i, v: torch.ops.aten.index_put(x, [i % 20, i], v, True), ROWS, places(2000, 64), torch.randn(2000)),
    "elements": (lambda x, i, v: x.index_add(0, i, v), torch.randn(50), places(40000, 50), torch.randn(40000)),
    "ints": (lambda x, i, v: x.index_add(0, i, v), places(9, 100, 64), places(300, 9), places(300, 1000, 64)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_at_places_is_one_nest(form):
    function, *args = FORMS[form]
    assert len(adding_nests(function, *args)) == 1
    compare(trace(function, args, decompose=False), args, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_results_are_eagers(form):
    function, *args = FORMS[form]
    check(function, *args, breaks=0, rtol=1e-4, atol=1e-4)


def test_what_is_added_is_computed_in_the_nest():
    graph = trace(lambda x, i, v: x.index_add(0, (i * 3) % 20, v.sin() * 2), (ROWS, ROW_PLACES, VALUES), decompose=False)
    plan = schedule(lower(graph, ENV), ENV)
    (kernel,) = [k for k in plan.kernels.values() if k.nest.adds]
    assert "sin" in [op.name for op in kernel.nest.body]


def test_parts_of_a_long_list_have_sums_of_their_own():
    (nest,) = adding_nests(*FORMS["elements"])
    assert [(a.role, a.size) for a in nest.axes] == [("x", 8), ("r", 5000)]


def test_an_epilogue_waits_for_all_points():
    compare(trace(lambda x, i, v: x.index_add(0, i, v).relu() + v[:20], (ROWS, ROW_PLACES, VALUES), decompose=False), (ROWS, ROW_PLACES, VALUES))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, v: F.embedding(i, x),
        lambda x, i, v: F.embedding(i, x, padding_idx=3),
        lambda x, i, v: x.index_select(0, i),
        lambda x, i, v: x[i],
        lambda x, i, v: x.gather(0, i[:, None].expand(-1, 64)),
    ],
    ids=["embedding", "padding", "index_select", "index", "gather"],
)
def test_gradients_of_reads(function):
    check(lambda x, i, v: (function(x, i, v) * v).sin(), ROWS.clone().requires_grad_(), ROW_PLACES, VALUES, breaks=0, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool])
def test_dtypes_that_eager_rounds_in_ways_of_its_own_are_calls(dtype):
    args = ROWS.to(dtype), ROW_PLACES, VALUES.to(dtype)
    program = lower(trace(lambda x, i, v: x.index_add(0, i, v), args, decompose=False), ENV)
    assert [step.op for step in program.steps if isinstance(step, Extern)] == [torch.ops.aten.index_add.default]


@pytest.mark.parametrize("place", [20, -1, 2**40])
@pytest.mark.parametrize(
    "form", ["index_add", "index_add-alpha", "index_add-between", "scatter_add", "scatter_add-along-rows", "scatter_reduce", "index_put-two", "elements"]
)
def test_places_outside_raise_what_eager_raises(form, place):
    function, into, where, values = FORMS[form]
    where = where.clone()
    where.view(-1)[17] = place if place != -1 or form != "index_put-two" else -100
    if form == "index_put-two":
        where[where != where[17]] %= 20
        function = lambda x, i, v: torch.ops.aten.index_put(x, [i], v, True)  # noqa: E731
        values = torch.randn(1, 64)
    if place == 20 and into.shape[0] > 20:
        where.view(-1)[17] = 1000
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(into, where, values)
    for reference in (True, False):
        with pytest.raises((IndexError, RuntimeError)) as ours:
            dynacompile.compile(function, options={"reference": reference, "fallback": "none"})(into, where, values)
        assert (ours.type, str(ours.value).partition("\n")[0]) == (eager.type, str(eager.value).partition("\n")[0])


def test_an_error_leaves_what_was_given_as_it_was():
    def step(x, i, v):
        return x.index_add_(0, i, v)

    x, where = ROWS.clone(), ROW_PLACES.clone()
    where[5] = 20
    with pytest.raises(RuntimeError, match="index 20 is out of bounds"):
        dynacompile.compile(step)(x, where, VALUES)
    assert torch.equal(x, ROWS)


def test_sizes_that_differ_from_call_to_call():
    compiled = dynacompile.compile(FORMS["index_add"][0], dynamic=True)
    broke = []
    end = dynacompile.subscribe(lambda e: broke.append(e) if isinstance(e, GraphBroke) else None)
    for rows, count, width in ((20, 3000, 64), (7, 2000, 48), (300, 5, 17), (33, 4096, 200), (5, 0, 8)):
        x, i, v = torch.randn(rows, width), places(count, rows), torch.randn(count, width)
        torch.testing.assert_close(compiled(x, i, v), x.index_add(0, i, v), rtol=1e-4, atol=1e-4)
    end()
    assert not broke


def test_deterministic_algorithms_give_the_same_sums():
    function, *args = FORMS["elements"]
    compiled = dynacompile.compile(function)
    want = compiled(*args)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(compiled(*args), want)
    finally:
        torch.use_deterministic_algorithms(False)


def test_nests_that_add_are_no_members_of_lists():
    def many(x, i, v):
        return [(x + n).index_add(0, i, v) for n in range(3)]

    graph = trace(lambda *args: tuple(many(*args)), (ROWS, ROW_PLACES, VALUES), decompose=False)
    plan = compare(graph, (ROWS, ROW_PLACES, VALUES), rtol=1e-4, atol=1e-4)
    assert not any(step.sizes for step in plan.steps if isinstance(step, Launch) and plan.kernels[step.kernel].nest.adds)


def on_gpus(function, args: list[torch.Tensor]) -> Schedule:
    """What is launched on a GPU, without one."""
    with FakeTensorMode(static_shapes=True), torch.no_grad():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda:0") for t in args]
        return schedule(lower(make_fx(function)(*fakes), ENV), ENV)


GPU_FORMS = {
    **FORMS,
    "embedding": (lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50, -1, False), torch.randn(8, 40, 64), places(8, 50, 40)),
    "embedding-padded": (lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50, 3, False), torch.randn(8, 40, 64), places(8, 50, 40)),
}


@pytest.mark.parametrize("form", GPU_FORMS)
def test_gpus_start_the_sum_and_add_in_one_kernel_more(form):
    function, *args = GPU_FORMS[form]
    plan = on_gpus(function, args)
    assert [type(s) for s in plan.steps if isinstance(s, (Launch, Extern))] == [Launch, Launch]
    assert sum(k.nest.adds for k in plan.kernels.values()) == 1


def test_what_is_added_on_gpus_is_computed_as_it_is_added():
    plan = on_gpus(lambda x, i, v: x.index_add(0, i, (v * 2).sin()), [ROWS, ROW_PLACES, VALUES])
    (adding,) = (k for k in plan.kernels.values() if k.nest.adds)
    assert "sin" in [op.name for op in adding.nest.body] and len(plan.kernels) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int16, torch.uint8])
def test_sums_that_gpus_have_no_atomic_operation_for_are_atens(dtype):
    plan = on_gpus(lambda x, i, v: x.index_add(0, i, v), [ROWS.to(dtype), ROW_PLACES, VALUES.to(dtype)])
    assert any(isinstance(s, Extern) for s in plan.steps) and not any(k.nest.adds for k in plan.kernels.values())


def test_deterministic_sums_on_gpus_are_atens():
    torch.use_deterministic_algorithms(True)
    try:
        plan = on_gpus(FORMS["index_add"][0], list(FORMS["index_add"][1:]))
    finally:
        torch.use_deterministic_algorithms(False)
    assert any(isinstance(s, Extern) for s in plan.steps) and not any(k.nest.adds for k in plan.kernels.values())


WRITES = {
    "scatter_.src": lambda x, i, v: x.new_zeros(40, 9).scatter(0, i, v.sin()),
    "scatter_.value": lambda x, i, v: torch.ones_like(x).scatter(0, i, 2.5),
    "scatter_reduce_.two": lambda x, i, v: torch.full_like(x, 0.5).scatter_reduce(0, i, v, "amax"),
    "index_put_.default": lambda x, i, v: torch.ops.aten.index_put(torch.zeros_like(x), [i[0].argsort()], v),
    "masked_scatter_.default": lambda x, i, v: torch.zeros_like(v).masked_scatter(i > 20, x),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_what_was_filled_for_them_need_no_copy(name):
    args = torch.randn(40, 9), torch.stack([torch.randperm(40)[:9] for _ in range(9)]), torch.randn(9, 9)
    program = lower(trace(WRITES[name], args), ENV)
    assert [str(step.op) for step in program.steps if isinstance(step, Extern) and step.mutates] == [f"aten.{name}"]
    compare(trace(WRITES[name], args), args)


def test_writes_to_what_is_read_elsewhere_stay_copies():
    args = torch.randn(40, 9), torch.randint(0, 40, (9, 9)), torch.randn(9, 9)
    for fn in (
        lambda x, i, v: (x.scatter(0, i, v), x),
        lambda x, i, v: ((z := torch.zeros_like(x)).scatter(0, i, v), z),
        lambda x, i, v: x.sin().scatter(0, i, v),
    ):
        assert not any(isinstance(step, Extern) and step.mutates for step in lower(trace(fn, args), ENV).steps)
        compare(trace(fn, args), args)


def test_a_fill_that_is_its_own_places_is_copied():
    """Places that change while they are read would be others."""

    def numbered(x: torch.Tensor) -> torch.Tensor:
        places = torch.zeros(8, dtype=torch.int64)
        return torch.ops.aten.index_put(places, [places], x)

    args = (torch.full((8,), 5),)
    assert not any(isinstance(step, Extern) and step.mutates for step in lower(trace(numbered, args), ENV).steps)
    compare(trace(numbered, args), args)
