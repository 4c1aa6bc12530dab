"""What a step over many like parameters costs to compile: counts that hardly grow with the number of parameters, and results that are eager's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import dynacompile
from dynacompile import pipeline
from dynacompile.autograd.components import Component
from dynacompile.events import Compiled, StageFinished
from dynacompile.ir.looks import Later


@dataclass
class Cost:
    """compiles: entries that were made in four calls; steps: interpreted instructions; nodes: of the graph behind its inputs; fakes: that inputs have when
    like parts are looked for; kinds: parts that are compiled; described: parts that were made as graphs, to find that out; ops: operations that are lowered;
    launches: of one step."""

    compiles: int
    steps: int
    nodes: int
    fakes: int
    kinds: int
    described: int
    ops: int
    launches: int


def adam(ps, foreach):
    return torch.optim.AdamW(ps, lr=0.01, foreach=foreach)


def momentum(ps, foreach):
    return torch.optim.SGD(ps, lr=0.01, momentum=0.9, foreach=foreach)


def stepped(ps, make, foreach, clips):
    optimizer = make(ps, foreach)

    def step():
        if clips:
            torch.nn.utils.clip_grad_norm_(ps, 0.5, foreach=foreach or None)  # None asks for the types of all gradients
        optimizer.step()

    return step


def parameters(count: int) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(5, 3)) for _ in range(count)]
    for p in found:
        p.grad = torch.randn_like(p)
    return found


def cost(count: int, monkeypatch: pytest.MonkeyPatch, make: Callable, foreach: bool, clips: bool) -> Cost:
    """Of four steps, which change the parameters as eager's do."""
    ours, theirs = parameters(count), parameters(count)
    found: dict[str, int] = {}
    events: list = []
    search = pipeline.find_parts

    def find_parts(graph, given, *rest):
        found["nodes"] = sum(n.op not in ("placeholder", "output") for n in graph.graph.nodes)
        found["fakes"] = sum(type(g) is not Later or g.made is not None for g in given)
        return search(graph, given, *rest)

    described = Component.kind

    def kind(component):
        found["described"] = found.get("described", 0) + 1
        return described(component)

    monkeypatch.setattr(Component, "kind", kind)
    monkeypatch.setattr(pipeline, "find_parts", find_parts)
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(stepped(ours, make, foreach, clips), isolate_recompiles=True)
        eager = stepped(theirs, make, foreach, clips)
        for _ in range(4):
            compiled()
            eager()
    finally:
        end()
        monkeypatch.setattr(pipeline, "find_parts", search)
        monkeypatch.setattr(Component, "kind", described)
    torch.testing.assert_close(ours, theirs)
    facts = {e.stage: dict(e.facts) for e in events if isinstance(e, StageFinished)}
    compiles = sum(isinstance(e, Compiled) for e in events)
    ops = facts["differentiate"]["ops"]
    return Cost(compiles, facts["capture"]["steps"], kinds=facts["lower"]["parts"], ops=ops, launches=facts["schedule"]["launches"], **found)


# Instructions that are interpreted for one more parameter: those of the loop in which SGD stores its buffers, which changes dictionaries.
MOST_STEPS = {adam: 0, momentum: 40}


@pytest.mark.parametrize("clips", [False, True], ids=["step", "clipping-and-step"])
@pytest.mark.parametrize("foreach", [False, True], ids=["single-tensor", "foreach"])
@pytest.mark.parametrize("make", [adam, momentum])
def test_more_parameters_cost_a_few_nodes_each(make, foreach, clips, monkeypatch):
    few, many = cost(24, monkeypatch, make, foreach, clips), cost(48, monkeypatch, make, foreach, clips)
    assert (few.compiles, many.compiles) == (1, 1)
    assert (few.fakes, few.kinds, few.ops, few.launches) == (many.fakes, many.kinds, many.ops, many.launches)
    assert many.described == few.described <= many.kinds + 3  # a loop's first and last rounds are nodes of their own
    assert many.launches <= 4
    assert many.steps - few.steps <= 24 * MOST_STEPS[make]
    assert many.nodes - few.nodes <= 24 * 5


def kept(count: int) -> tuple[int, ...]:
    """Objects that an entry for so many parameters leaves to Python's search for garbage, and its guards."""
    ps = parameters(count)
    step = stepped(ps, adam, True, True)
    step()
    gc.collect()
    before = len(gc.get_objects())
    guards: list[int] = []
    end = dynacompile.subscribe(lambda e: guards.append(e.guards) if isinstance(e, Compiled) else None)
    compiled = dynacompile.compile(step, isolate_recompiles=True)
    try:
        compiled()
    finally:
        end()
    gc.collect()
    return len(gc.get_objects()) - before, *guards


def test_an_entry_keeps_few_objects_for_each_parameter():
    kept(24)
    (few, few_guards), (many, many_guards) = kept(24), kept(72)
    assert many - few <= 48 * 115
    assert many_guards - few_guards == 48 * 10


def test_no_search_for_garbage_passes_on_what_a_compile_is_about_to_drop(monkeypatch):
    """Until the guards are compiled: what survives a search would be searched again, with all objects of the process."""
    searches: list[tuple[str, int]] = []
    stage, names = pipeline.stage, []

    def named(name, *rest):
        names.append(name)
        return stage(name, *rest)

    finish = pipeline.Guarding.finish

    def finished(*given):
        names.append("finished")
        return finish(*given)

    monkeypatch.setattr(pipeline, "stage", named)
    monkeypatch.setattr(pipeline.Guarding, "finish", finished)
    step = stepped(parameters(72), adam, True, True)
    step()
    compiled = dynacompile.compile(step, isolate_recompiles=True)
    gc.collect()
    watch = lambda phase, info: searches.append((names[-1] if names else "", info["generation"])) if phase == "start" else None  # noqa: E731
    gc.callbacks.append(watch)
    try:
        compiled()
    finally:
        gc.callbacks.remove(watch)
    assert names[0] == "capture" and {*names[1:]} >= {"guards", "link", "finished"}
    assert [s for s in searches if s[0] not in ("", "finished")] == []
