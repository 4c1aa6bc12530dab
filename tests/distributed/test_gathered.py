"""Parameters that a graph gathers, as fully sharded training with collectives in the graph does: one graph, gathers that begin beside the work before them,
few of them at a time, and gathers made again in the backward where that is asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch, Schedule
from tests.distributed.by_parameter import gathering, gathers_again, keeps_gathers

DEPTH, WIDTH = 4, 64
WEIGHT = 4 * WIDTH * WIDTH  # bytes


def net(mesh, **how) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(DEPTH)]
    return gathering(nn.Sequential(*layers), mesh, **how)


def plans(model: nn.Module, **options) -> list[Schedule]:
    """Of the forward and the backward of one graph."""
    found: list[Schedule] = []
    told = dynacompile.explain(model, backward=True, options=options, observer=lambda stage, made: found.append(made) if isinstance(made, Schedule) else None)(
        torch.randn(4, WIDTH)
    )
    assert not told.breaks and len(found) == 2, told.breaks
    return found


def steps(plan: Schedule) -> list[str]:
    """What runs, in order: `gather 0`, `wait 0`, ... of gathers, in the order in which they begin, `scatter 0`, ... of reductions, `work`."""
    names: dict[str, str] = {}
    told = []
    for step in plan.steps:
        if isinstance(step, Extern) and "c10d" in step.op._schema.name:
            kind = {"all_gather_into_tensor": "gather", "reduce_scatter_tensor": "scatter"}.get(step.op._schema.name.partition("::")[2])
            if kind is not None:
                number = sum(name.startswith(kind) for name in names.values())
                told.append(f"{kind} {number}")
                names[str(step.outputs[0])] = told[-1]
            else:
                told.append(f"wait {names[step.args[0].buffer]}")
        elif isinstance(step, Launch | Extern):
            told.append("work")
    return told


def under_way(told: list[str], kind: str) -> int:
    """The most collectives of a kind that have begun and are not waited for at once."""
    count = most = 0
    for name in told:
        count += name.startswith(kind)
        most = max(most, count)
        count -= name.startswith(f"wait {kind}")
    return most


def assert_beside_the_work_before(told: list[str], count: int) -> None:
    """Each gather begins before the first work that follows the wait for the one before it, and is waited for after that."""
    for k in range(count - 1):
        work = next(i for i, name in enumerate(told) if name == "work" and i > told.index(f"wait gather {k}"))
        assert told.index(f"gather {k + 1}") < work < told.index(f"wait gather {k + 1}"), (k, told)


@pytest.mark.parametrize("room", [0, WEIGHT, 2 * WEIGHT, 1 << 30], ids=["one", "one beside it", "two", "all"])
def test_a_gather_begins_beside_the_work_that_needs_the_one_before(mesh, room):
    forward = steps(plans(net(mesh), flight_bytes=room)[0])
    assert_beside_the_work_before(forward, DEPTH)
    assert under_way(forward, "gather") == (DEPTH if room == 1 << 30 else max(room // WEIGHT, 1)), forward


@pytest.mark.parametrize("room", [0, 1 << 30], ids=["one", "all"])
def test_gradients_that_are_scattered_are_not_all_held_to_the_end(mesh, room):
    told = steps(plans(net(mesh), flight_bytes=room)[1])
    assert under_way(told, "scatter") == (DEPTH if room else 1), told
    for k in range(DEPTH - 1):  # beside the work of the layer before
        assert "work" in told[told.index(f"scatter {k}") : told.index(f"wait scatter {k}")], told


def test_gathers_made_again_begin_beside_the_work_of_the_layer_behind(mesh):
    """The backward gathers the last layer's weight first. The first layer's input needs no gradient."""
    told = steps(plans(net(mesh), flight_bytes=0, regather=True)[1])
    assert sum(name.startswith("gather") for name in told) == DEPTH - 1
    assert_beside_the_work_before(told, DEPTH - 1)
    assert under_way(told, "gather") == 1 and under_way(told, "scatter") == 1, told


@pytest.mark.parametrize(
    "how, options, again",
    [
        pytest.param({}, {}, False, id="kept"),
        pytest.param({}, {"regather": True}, True, id="the option"),
        pytest.param({"contexts": gathers_again}, {}, True, id="a policy"),
        pytest.param({"contexts": keeps_gathers}, {}, False, id="a policy that keeps them"),
        pytest.param({"dtype": torch.bfloat16}, {"regather": True}, True, id="another type"),
        pytest.param({"dim": lambda name: 1}, {"regather": True}, True, id="cut by columns"),
    ],
)
def test_what_is_gathered_again_is_not_kept(mesh, how, options, again):
    model = net(mesh, **how)
    if "dtype" in how:
        model = nn.Sequential(Cast(how["dtype"]), *model)
    forward, backward = plans(model, **options)
    whole = [name for name in forward.outputs if name is not None and forward.buffers[name].numel == WIDTH * WIDTH]
    assert sum(name.startswith("gather") for name in steps(backward)) == (DEPTH - 1 if again else 0)
    assert len(whole) == (0 if again else DEPTH - 1), forward.outputs


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def test_small_gathers_and_reductions_are_joined_where_that_is_asked_for(mesh):
    forward, backward = plans(net(mesh), regather=True, collective_bytes=2 * WEIGHT, flight_bytes=4 * WEIGHT)
    names = [step.op._schema.name.partition("::")[2] for plan in (forward, backward) for step in plan.steps if isinstance(step, Extern)]
    assert names.count("all_gather_into_tensor") == names.count("reduce_scatter_tensor") == 0, names
    assert names.count("all_gather_into_tensor_coalesced") >= 2 and names.count("reduce_scatter_tensor_coalesced") >= 2, names
