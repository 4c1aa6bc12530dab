"""Steps of optimizers over parameters on a GPU whose step counts lie on the CPU: what is launched, without a GPU. tests/gpu/test_lists.py runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dynacompile
from dynacompile.autograd import differentiate, differentiate_parts, find_parts
from dynacompile.codegen import generate
from dynacompile.codegen.reference import run_program
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch, Schedule
from dynacompile.lower import lower
from dynacompile.pipeline import lower_parts
from dynacompile.schedule import schedule, schedule_parts
from tests.lower.tracing import ENV

CPU = torch.device("cpu")
SHAPES = ((33, 64), (64,), (7,), (100, 17))
LARGE = ((4000, 3000), (3000,), (2000, 1000), (300,))  # values between their operations would take more than a list may keep alive


@dataclass(frozen=True)
class Graph:
    """The torch-level graph of a step, and fakes of its inputs with all but the step counts on a GPU."""

    module: torch.fx.GraphModule
    fakes: list


class Propagation(torch.fx.Interpreter):
    """Puts the fakes of what each node gives where later stages look for them."""

    def run_node(self, n: torch.fx.Node) -> object:
        n.meta["val"] = result = super().run_node(n)
        return result


def graph_of(make: Callable, count: int, counts_on_gpu: bool = False, clip: bool = False, shapes: tuple = SHAPES) -> Graph:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shapes[i % len(shapes)])) for i in range(count)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = make(parameters)
    optimizer.step()
    found: list = []

    def step() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()

    def backend(module, inputs, *_):
        found.append((module, inputs))
        return module.forward

    dynacompile.compile(step, backend=backend, fullgraph=True, isolate_recompiles=True)()
    ((module, inputs),) = found
    mode = FakeTensorMode(static_shapes=True)
    with mode, torch.no_grad():
        fakes = [fake_of(t, counts_on_gpu) if isinstance(t, torch.Tensor) else t for t in inputs]
        Propagation(module).run(*fakes)
    return Graph(module, fakes)


def fake_of(tensor: torch.Tensor, counts_on_gpu: bool) -> torch.Tensor:
    device = "cpu" if tensor.dim() == 0 and not counts_on_gpu else "cuda:0"
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return torch.nn.Parameter(fake) if tensor.requires_grad else fake


def plan_of(graph: Graph) -> Schedule:
    parts = find_parts(graph.module, graph.fakes)
    found = None if parts is None else differentiate_parts(parts, ENV)
    if found is not None:
        return schedule_parts(lower_parts(found, ENV), ENV)
    return schedule(lower(differentiate(graph.module, graph.fakes, ENV).forward, ENV), ENV)


def launches(plan: Schedule) -> list[tuple[str, int]]:
    """The device and the number of members of each launch."""
    return sorted((plan.kernels[s.kernel].device.type, len(s.sizes)) for s in plan.steps if isinstance(s, Launch))


def calls(plan: Schedule) -> int:
    return sum(isinstance(s, Extern) for s in plan.steps)


FORMS: dict[str, Callable] = {
    "single": lambda ps: torch.optim.AdamW(ps, foreach=False),
    "foreach": lambda ps: torch.optim.AdamW(ps, foreach=True),
    "amsgrad": lambda ps: torch.optim.AdamW(ps, foreach=True, amsgrad=True),
    "nadam": lambda ps: torch.optim.NAdam(ps, foreach=True),
}


@pytest.mark.parametrize("count", [12, 40])
@pytest.mark.parametrize("form", ["single", "foreach", "amsgrad"])
def test_step_counts_on_the_cpu_are_one_list_there(form, count):
    plan = plan_of(graph_of(FORMS[form], count))
    assert launches(plan) == [("cpu", count), ("cuda", count)] and calls(plan) == 0


def test_step_counts_on_the_gpu_need_no_kernel_on_the_cpu():
    plan = plan_of(graph_of(FORMS["foreach"], 12, counts_on_gpu=True))
    assert launches(plan) == [("cuda", 12), ("cuda", 12)] and calls(plan) == 0 and plan.host_arena == 0


def test_momentum_without_step_counts():
    plan = plan_of(graph_of(lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=True), 12))
    assert launches(plan) == [("cuda", 12)] and calls(plan) == 0


def test_clipping_and_the_step():
    """One call stacks the norms."""
    plan = plan_of(graph_of(FORMS["foreach"], 12, clip=True))
    assert launches(plan) == [("cpu", 12), ("cuda", 0), ("cuda", 12), ("cuda", 12)] and calls(plan) <= 1


@pytest.mark.slow
def test_large_parameters_are_members_too():
    """What a kernel computes between its loads and its stores takes no memory."""
    plan = plan_of(graph_of(FORMS["foreach"], 12, shapes=LARGE))
    assert launches(plan) == [("cpu", 12), ("cuda", 12)]


def test_each_kernel_is_written_for_its_device():
    plan = plan_of(graph_of(FORMS["foreach"], 12))
    assert sorted(s.language for s in generate(plan, ENV).kernels.values()) == ["cpp", "triton"]


def test_norms_that_are_summed_in_parts():
    """Each shape comes several times, and each time has partial sums of its own, as many as its size needs."""
    plan = plan_of(graph_of(FORMS["single"], 12, clip=True, shapes=((600, 4096), (900, 4096), (500, 333))))
    partial = [name for name in plan.buffers if "_partial" in name]
    assert len(partial) == 12
    assert launches(plan) == [("cpu", 12), ("cuda", 0), *[("cuda", 12)] * 3]


@pytest.mark.parametrize("form", FORMS)
def test_values(form):
    """The program with everything on the CPU, against the graph."""
    graph = graph_of(FORMS[form], 4)
    program = lower(differentiate(graph.module, graph.fakes, ENV).forward, ENV)
    given = [torch.rand(t.shape) + 1 if isinstance(t, torch.Tensor) else t for t in graph.fakes]
    wanted, got = ([t.clone() if isinstance(t, torch.Tensor) else t for t in given] for _ in range(2))
    graph.module(*wanted)
    run_program(replace(program, buffers={n: replace(b, device=CPU) for n, b in program.buffers.items()}), got)
    torch.testing.assert_close([t for t in got if isinstance(t, torch.Tensor)], [t for t in wanted if isinstance(t, torch.Tensor)])
