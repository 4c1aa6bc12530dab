"""Reads at places on CPUs lower to nests that are fused with what reads them, behind a check that raises what eager raises."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.codegen.cpp import emit_kernel
from dynacompile.ir.loops import Extern, Nest
from dynacompile.ir.schedule import Launch
from tests.checking import check

from .tracing import ENV, compare, lower, schedule, trace

aten = torch.ops.aten
TABLE, PLACES = torch.randn(20, 64), torch.randint(0, 20, (300,), generator=torch.Generator().manual_seed(1))
CUBE = torch.randn(6, 20, 16)
FORMS = {
    "embedding": (lambda x, i: F.embedding(i, x), TABLE, PLACES),
    "embedding-of-batches": (lambda x, i: F.embedding(i, x, padding_idx=3), TABLE, PLACES.view(30, 10)),
    "index_select": (lambda x, i: x.index_select(0, i), TABLE, PLACES),
    "index_select-between": (lambda x, i: x.index_select(1, i), CUBE, PLACES.int()),
    "index_select-last": (lambda x, i: x.index_select(2, i % 16), CUBE, PLACES),
    "index_select-elements": (lambda x, i: x.index_select(0, i), TABLE[:, 0], PLACES.repeat(5)),
    "gather": (lambda x, i: x.gather(0, i.unsqueeze(1).expand(-1, 64)), TABLE, PLACES),
    "gather-along-rows": (lambda x, i: x.gather(1, i.view(6, 50, 1).expand(-1, -1, 16)), CUBE, PLACES),
    "index": (lambda x, i: x[i], TABLE, PLACES),
    "index-from-the-end": (lambda x, i: x[i - 20], TABLE, PLACES),
    "index-between": (lambda x, i: x[:, i], CUBE, PLACES),
    "index-two": (lambda x, i: x[i % 6, i], CUBE, PLACES),
    "index-apart": (lambda x, i: x[i % 6, :, i % 16], CUBE, PLACES),
    "index-elements": (lambda x, i: x[i], TABLE[:, 0], PLACES.repeat(5)),
    "index-broadcast": (lambda x, i: x[i[:40, None] % 20, i[None, :60]], TABLE, PLACES),
}
WRONG = {name: (fn, x, i) for name, (fn, x, i) in FORMS.items() if name not in ("index-apart", "index-broadcast", "index_select-last")}


def steps_of(function, *args: torch.Tensor) -> tuple[list[Nest], list[Extern]]:
    steps = lower(trace(function, args, decompose=False), ENV).steps
    return [s for s in steps if isinstance(s, Nest)], [s for s in steps if isinstance(s, Extern)]


def reads_at_places(nest: Nest) -> bool:
    return any(v.name[0] == "%" for access in nest.loads() for v in access.index.variables())


@pytest.mark.parametrize("form", FORMS)
def test_a_read_is_one_nest_behind_checks(form):
    function, *args = FORMS[form]
    nests, calls = steps_of(function, *args)
    assert sum(map(reads_at_places, nests)) == 1 and len(calls) == (2 if form in ("index-two", "index-apart", "index-broadcast") else 1)
    assert all(call.outputs == (call.name,) for call in calls)
    compare(trace(function, args, decompose=False), args)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_results_are_eagers(form, dtype):
    function, x, places = FORMS[form]
    check(function, (x * 10).to(dtype), places, breaks=0)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_eagers(form):
    function, x, places = FORMS[form]
    check(lambda x, i: (function(x, i) * 2).sin(), x.clone().requires_grad_(), places, breaks=0, rtol=1e-4, atol=1e-4)


def launches(function, *args: torch.Tensor) -> int:
    return sum(isinstance(step, Launch) for step in schedule(lower(trace(function, args), ENV), ENV).steps)


@pytest.mark.parametrize("form", FORMS)
def test_what_follows_is_computed_as_it_is_read(form):
    function, *args = FORMS[form]
    assert launches(lambda x, i: function(x, i).sin() * 2, *args) == launches(function, *args)


def test_a_norm_of_what_is_read_is_one_kernel_with_the_read():
    assert launches(lambda x, i: F.layer_norm(F.embedding(i, x) * 2, (64,)), TABLE, PLACES) == 2


def test_places_that_two_reads_share_are_checked_once():
    _, calls = steps_of(lambda x, y, i: (x[i], y[i]), TABLE, TABLE + 1, PLACES)
    assert len(calls) == 1
    _, calls = steps_of(lambda x, y, i: (x[i], y[i]), TABLE, torch.randn(21, 64), PLACES)
    assert len(calls) == 2


def test_the_gradient_of_sums_at_places_reads_in_a_nest():
    def added(x, i, v):
        return x.index_put((i,), v.square(), accumulate=True)

    check(added, torch.randn(20), PLACES.repeat(10), torch.rand(3000, requires_grad=True), breaks=0)
    nests, calls = steps_of(lambda grad, i, v: grad[i] * v * 2, torch.randn(20), PLACES.repeat(10), torch.rand(3000))
    assert sum(map(reads_at_places, nests)) == 1 and len(calls) == 1


@pytest.mark.parametrize("form", ["embedding", "index_select", "gather", "index"])
def test_few_elements_are_a_call(form):
    function, x, places = FORMS[form]
    nests, calls = steps_of(function, x, places[:2])
    assert not nests and len(calls) == 1


def test_a_dimension_much_longer_than_what_is_read_is_a_call():
    nests, calls = steps_of(lambda x, i: x.index_select(1, i), torch.randn(10, 5000), PLACES[:200])
    assert not nests and len(calls) == 1


def error(function, *args) -> tuple[type, str]:
    with pytest.raises((IndexError, RuntimeError)) as found:
        function(*args)
    return found.type, str(found.value).partition("\n")[0]


@pytest.mark.parametrize("place", [1000, -1000, 2**30])
@pytest.mark.parametrize("form", WRONG)
def test_places_outside_raise_what_eager_raises(form, place):
    function, x, places = WRONG[form]
    if form == "index-two":
        function = lambda x, i: x[:, i][i % 6]  # noqa: E731
    wrong = places.clone()
    wrong.view(-1)[17] = place
    for reference in (True, False):
        compiled = dynacompile.compile(function, options={"reference": reference, "fallback": "none"})
        assert error(compiled, x, wrong) == error(function, x, wrong)
        torch.testing.assert_close(compiled(x, places), function(x, places))


@pytest.mark.parametrize("form", ["embedding", "index_select", "gather"])
def test_only_indices_count_from_the_end(form):
    function, x, places = FORMS[form]
    places = places.clone()
    places[5] = -1
    assert error(dynacompile.compile(function), x, places) == error(function, x, places)


def test_a_result_that_nothing_uses_raises():
    def function(x, i):
        x.index_select(0, i)
        return x + 1

    assert error(dynacompile.compile(function), TABLE, PLACES + 20) == error(function, TABLE, PLACES + 20)


@pytest.mark.parametrize("form", ["embedding", "index_select", "gather", "index"])
def test_an_error_comes_before_later_writes(form):
    """The write reads the places as the check does, so that one kernel could be both."""
    read = FORMS[form][0]

    def function(x, i, v):
        found = read(x, i)
        v.copy_(i * 2)
        return found

    places, v = PLACES.repeat(5), torch.zeros(1500)
    places[7] = 20
    error(dynacompile.compile(function), TABLE, places, v)
    assert not v.any()


def test_sizes_that_differ_from_call_to_call():
    compiled = dynacompile.compile(lambda x, i: x[i].sin(), dynamic=True, options={"fallback": "none"})
    for rows, count, width in ((20, 300, 64), (7, 2000, 48), (300, 5, 17), (33, 900, 20), (5, 0, 8)):
        x, places = torch.randn(rows, width), torch.randint(-rows, rows, (count,))
        torch.testing.assert_close(compiled(x, places), x[places].sin())
        if count:
            places[3] = rows
            assert error(compiled, x, places) == error(lambda x, i: x[i], x, places)


def test_places_of_lanes_are_scalars():
    """A place is loaded for each lane; none is taken out of a vector. The row that comes next is fetched."""

    def texts(function, *args):
        return [emit_kernel(k, ENV).text for k in schedule(lower(trace(function, args), ENV), ENV).kernels.values() if reads_at_places(k.nest)]

    (text,) = texts(*FORMS["index-elements"])
    assert "gather_each_lane<W>(" in text and "[l]" not in text and "load<W>(" not in text
    (text,) = texts(lambda x, i: F.embedding(i, x).softmax(-1), TABLE, PLACES)
    assert text.count("fetch(") == 1 and "Ahead" not in text and "gather" not in text
