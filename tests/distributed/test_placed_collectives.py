"""Collectives of DTensors in graphs: as many as eager makes, in eager's order, begun as soon as they can be and waited for where their results are read."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

import dynacompile
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch, Schedule

BEGUN = "_c10d_functional::"


def schedules(function, *args) -> list[list[str]]:
    """What each program of a call and its backward runs, in order: names of collectives, and `kernel`."""
    plans: list[Schedule] = []
    told = dynacompile.explain(function, backward=True, observer=lambda stage, made: plans.append(made) if isinstance(made, Schedule) else None)(*args)
    assert not told.breaks
    return [[name(step) for step in plan.steps if isinstance(step, Launch) or is_collective(step)] for plan in plans]


def is_collective(step: object) -> bool:
    return isinstance(step, Extern) and "c10d" in step.op._schema.name


def name(step) -> str:
    return "kernel" if isinstance(step, Launch) else step.op._schema.name.partition("::")[2]


def begun_in_eager(function, *args) -> list[str]:
    with torch.profiler.profile() as seen:
        made = function(*args)
        if made.requires_grad:
            made.sum().backward()
    names = [event.name.removeprefix(BEGUN) for event in seen.events() if event.name.startswith(BEGUN)]
    return [name for name in names if name not in ("wait_tensor", "_wrap_tensor_autograd")]


def externs(function, *args) -> set[str]:
    found: set[str] = set()

    def see(stage: str, made: object) -> None:
        if isinstance(made, Schedule):
            found.update(name(step) for step in made.steps if isinstance(step, Extern))

    dynacompile.explain(function, observer=see)(*args)
    return found


def column_and_row(mesh: DeviceMesh) -> nn.Module:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3)))
    for block in net:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return net


def test_a_training_step_has_the_collectives_of_eager(mesh):
    """One for each block and direction: sums of several are not put together, since a rank in eager would make each by itself."""
    net, x = column_and_row(mesh), torch.ones(4, 8, requires_grad=True)
    wanted = begun_in_eager(net, x)
    forward, backward = schedules(net, x)
    assert [name for name in (*forward, *backward) if name not in ("kernel", "wait_tensor")] == wanted == ["all_reduce"] * 6
    assert forward.count("wait_tensor") == backward.count("wait_tensor") == 3


def test_independent_collectives_begin_before_any_is_waited_for(mesh):
    tensors = [distribute_tensor(torch.full((4, 6 + k), 1.0), mesh, [Shard(0)]) for k in range(3)]

    def function(tensors):
        whole = [t.redistribute(placements=[Replicate()]) for t in tensors]
        return sum(w.to_local().sin().sum() for w in whole)

    (told,) = schedules(function, tensors)
    assert told[:3] == ["all_gather_into_tensor"] * 3 and told.count("wait_tensor") == 3, told
    assert all(told[k + 1] in ("wait_tensor", "kernel") for k, name in enumerate(told) if name == "wait_tensor")


def test_what_needs_no_collective_runs_before_its_wait(mesh):
    x, y = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)]), torch.ones(6, 7)

    def function(x, y):
        whole = x.redistribute(placements=[Replicate()]).to_local()
        beside = y.sin().sum(0).exp().sum() * y  # two passes over y
        return beside.sum() + whole.sum()

    (told,) = schedules(function, x, y)
    assert told[0] == "all_gather_into_tensor" and told.index("wait_tensor") > told.index("kernel"), told


def test_a_result_that_no_one_reads_is_gathered_as_in_eager(mesh):
    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])

    def function(x: DTensor):
        x.full_tensor()
        return x.to_local() + 1

    wanted = begun_in_eager(function, x)
    (told,) = schedules(function, x)
    assert [name for name in told if name not in ("kernel", "wait_tensor")] == wanted == ["all_gather_into_tensor"]


def test_what_torch_asks_of_fakes_is_in_no_program(mesh):
    """To know what an operation gives, DTensor runs it on fakes of the sizes of all ranks together, and with that a check of classes that no rank has."""
    x, words = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)]), torch.arange(4)
    with loss_parallel():
        found = externs(nn.functional.cross_entropy, x, words)
    assert found and not any("check" in name for name in found), found
