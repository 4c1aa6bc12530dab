"""Collectives in graphs: each call of the user is one call, in the program's order, begun early and waited for late, and what it reads is kept until then."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile
from dynacompile.autograd.passes.buckets import bucket_collectives
from dynacompile.events import GraphBroke, Scheduled
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch
from tests.lower.tracing import stages, trace

ops = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def two_processes():
    dynacompile.reset()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def counted(function, *args, options=None) -> dict[str, int]:
    """How often each collective is called by the programs of a compiled call, backward included."""
    told: list = []
    end = dynacompile.subscribe(told.append)
    made = dynacompile.compile(function, options=options)(*args)
    if isinstance(made, torch.Tensor) and made.requires_grad:
        made.sum().backward()
    end()
    assert not [e for e in told if isinstance(e, GraphBroke)]
    found: dict[str, int] = {}
    for event in told:
        if isinstance(event, Scheduled):
            for op, count in event.calls:
                if "c10d" in op:
                    name = op.partition("_c10d_functional.")[2].partition(".")[0] or op
                    found[name] = found.get(name, 0) + count
    return found


def test_a_result_that_nothing_uses_is_still_reduced():
    def function(x):
        functional.all_reduce(x * 2, "sum", [0, 1])
        return x + 1

    assert counted(function, torch.ones(4)) == {"all_reduce": 1, "wait_tensor": 1}


def test_equal_collectives_are_two():
    def function(x):
        return functional.all_reduce(x, "sum", [0, 1]) + functional.all_reduce(x, "sum", [0, 1])

    assert counted(function, torch.ones(4)) == {"all_reduce": 2, "wait_tensor": 2}


def test_a_constant_is_reduced_by_each_call_and_not_while_compiling():
    def function(x):
        return x * functional.all_reduce(torch.tensor(3.0), "sum", [0, 1])

    with torch.profiler.profile() as seen:
        assert counted(function, torch.ones(4)) == {"all_reduce": 1, "wait_tensor": 1}
    assert sum(event.name == "c10d::allreduce_" for event in seen.events()) == 1


def test_a_backward_repeats_no_collective():
    weight = torch.ones(64, requires_grad=True)

    def function(x):
        return (weight * functional.all_reduce(x.sin(), "sum", [0, 1])).exp()

    assert counted(function, torch.ones(64)) == {"all_reduce": 1, "wait_tensor": 1}


def steps(function, *args) -> list[str]:
    """What runs, in order: names of collectives, and `kernel`."""
    _, plan = stages(trace(function, args))
    told = [step.op._schema.name.partition("::")[2] if isinstance(step, Extern) else "kernel" for step in plan.steps if isinstance(step, (Extern, Launch))]
    return told


def test_begun_early_and_waited_for_late():
    def function(x, y):
        begun = ops.all_reduce(x, "sum", "0")
        waited = ops.wait_tensor(begun)
        other = y.sin().sum(0).exp().sum() * y  # two passes over y
        return other, waited + 1

    told = steps(function, torch.ones(8), torch.ones(6, 7))
    assert told[0] == "all_reduce" and told[-2:] == ["wait_tensor", "kernel"] and told.count("kernel") >= 2, told


def test_collectives_keep_their_order():
    def function(x, y):
        second = (y.sum(0).exp().sum() * x).sum()
        first = ops.all_reduce(second, "sum", "0")
        last = ops.all_reduce(x, "max", "0")
        return ops.wait_tensor(last), ops.wait_tensor(first)

    plan = stages(trace(function, (torch.ones(8), torch.ones(6, 7))))[1]
    assert [step.args[1] for step in plan.steps if isinstance(step, Extern) and step.op is ops.all_reduce.default] == ["sum", "max"]


def test_what_is_sent_lives_until_it_has_been_waited_for():
    def function(x):
        sent = x * 2
        begun = ops.all_gather_into_tensor(sent, 2, "0")
        other = (x.sum(0, keepdim=True) + x).sin().sum(1).exp()
        return other, ops.wait_tensor(begun) + 1

    plan = stages(trace(function, (torch.ones(6, 7),)))[1]
    gathers = next(step for step in plan.steps if isinstance(step, Extern) and step.op is ops.all_gather_into_tensor.default)
    waits = next(step for step in plan.steps if isinstance(step, Extern) and step.op is ops.wait_tensor.default)
    assert gathers.args[0].buffer in waits.after


def test_a_collective_without_a_wait_is_waited_for():
    def function(x):
        return ops.all_gather_into_tensor(x * 2, 2, "0") * 1

    assert counted(function, torch.ones(4)) == {"all_gather_into_tensor": 1, "wait_tensor": 1}


def reported(x, sync_dist=False):
    told.append(("reported", len(x)))


told: list = []
dynacompile.after_graph(reported, talks="sync_dist")


@pytest.mark.parametrize("talks", [True, False])
@pytest.mark.parametrize(
    "begin",
    [
        lambda x, mesh: functional.all_reduce(x, "sum", [0, 1]),
        lambda x, mesh: dist.all_reduce(x),
        lambda x, mesh: DTensor.from_local(x, mesh, [Partial()]).full_tensor(),
    ],
    ids=["functional", "in place", "of a DTensor"],
)
def test_a_collective_behind_a_call_that_talks_after_the_graph_comes_after_it(begin, talks):
    """As `self.log(..., sync_dist=True)` of Lightning: a rank in eager makes that call first."""

    def function(x, mesh):
        reported(x, sync_dist=talks)
        return begin(x * 2, mesh)

    breaks: list = []
    end = dynacompile.subscribe(lambda event: breaks.append(event) if isinstance(event, GraphBroke) else None)
    told.clear()
    dynacompile.compile(function)(torch.ones(4), init_device_mesh("cpu", (2,)))
    end()
    assert told == [("reported", 4)]
    assert [("called after the graph" in event.reason, event.code) for event in breaks] == [(True, "collective")] * talks


JOINED = {"collective_bytes": 1 << 10}


def joined(function, *args, options=JOINED) -> dict[str, int]:
    return counted(function, *args, options=options)


def sums_of_three(x, y):
    first, second = functional.all_reduce(x.sum(0), "sum", [0, 1]), functional.all_reduce(y.sum(0), "sum", [0, 1])
    mean = first / 2
    third = functional.all_reduce(x * y.sum(), "sum", [0, 1])
    return mean * second, third + mean


def test_small_collectives_of_one_kind_are_one_call_where_that_is_asked_for():
    given = torch.ones(4, 3), torch.ones(4, 3)
    assert joined(sums_of_three, *given) == {"all_reduce_coalesced": 1, "wait_tensor": 3}
    assert counted(sums_of_three, *given) == {"all_reduce": 3, "wait_tensor": 3}


@pytest.mark.parametrize(
    "begin, joined_name",
    [
        (lambda x: ops.all_reduce(x, "max", "0"), "all_reduce_coalesced"),
        (lambda x: ops.all_gather_into_tensor(x, 2, "0"), "all_gather_into_tensor_coalesced"),
        (lambda x: ops.reduce_scatter_tensor(x, "sum", 2, "0"), "reduce_scatter_tensor_coalesced"),
    ],
    ids=["all_reduce", "all_gather", "reduce_scatter"],
)
def test_kinds_that_are_joined(begin, joined_name):
    def function(x, y):
        a, b = begin(x * 2), begin(y * 3)
        return ops.wait_tensor(a) + 1, ops.wait_tensor(b) + 1

    assert joined(function, torch.ones(4), torch.ones(6)) == {joined_name: 1, "wait_tensor": 2}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(
            lambda x, y: ops.wait_tensor(ops.all_reduce(ops.wait_tensor(ops.all_reduce(x, "sum", "0")) * 2, "sum", "0")) + y, id="one reads the other"
        ),
        pytest.param(lambda x, y: tuple(map(ops.wait_tensor, (ops.all_reduce(x, "sum", "0"), ops.all_reduce(y, "max", "0")))), id="of other kinds"),
        pytest.param(lambda x, y: tuple(map(ops.wait_tensor, (ops.all_reduce(x, "sum", "0"), ops.all_reduce(y.int(), "sum", "0")))), id="of other types"),
        pytest.param(
            lambda x, y: tuple(map(ops.wait_tensor, (ops.all_reduce(x.repeat(200), "sum", "0"), ops.all_reduce(y.repeat(200), "sum", "0")))), id="large"
        ),
    ],
)
def test_what_is_not_joined(function):
    assert joined(function, torch.ones(4), torch.ones(4)) == {"all_reduce": 2, "wait_tensor": 2}


def test_a_collective_between_two_others_keeps_its_place():
    def function(x, y):
        begun = ops.all_reduce(x * 2, "sum", "0"), ops.broadcast(y, 0, "0"), ops.all_reduce(y * 2, "sum", "0")
        return [ops.wait_tensor(one) for one in begun]

    assert joined(function, torch.ones(4), torch.ones(4)) == {"all_reduce": 2, "broadcast": 1, "wait_tensor": 3}


def test_random_numbers_that_need_a_result_keep_their_place():
    def function(x, y):
        first = ops.wait_tensor(ops.all_reduce(x * 2, "sum", "0"))
        coins = torch.bernoulli(first.sigmoid())
        return coins + torch.rand(4) + ops.wait_tensor(ops.all_reduce(y * 2, "sum", "0"))

    assert joined(function, torch.ones(4), torch.ones(4)) == {"all_reduce": 2, "wait_tensor": 2}


@pytest.mark.skipif(torch.__version__ < "2.12", reason="eager's torch 2.11 scatters no gradient that is broadcast")
def test_a_backward_joins_its_own():
    def function(x, y):
        return functional.all_gather_tensor_autograd(x.sin(), 0, [0, 1]).sum() + functional.all_gather_tensor_autograd(y.sin(), 0, [0, 1]).sum()

    given = torch.ones(4, requires_grad=True), torch.ones(6, requires_grad=True)
    assert joined(function, *given) == {"all_gather_into_tensor_coalesced": 1, "reduce_scatter_tensor_coalesced": 1, "wait_tensor": 4}


def test_a_call_comes_before_what_writes_what_it_sends():
    def function(x, y):
        first = ops.all_reduce(x, "sum", "0")
        x.mul_(2)
        return ops.wait_tensor(first), ops.wait_tensor(ops.all_reduce(y, "sum", "0"))

    graph = bucket_collectives(make_fx(function, tracing_mode="fake")(torch.ones(4), torch.ones(4)).graph, 1 << 20)
    assert sum(node.target is ops.all_reduce.default for node in graph.nodes) == 2
