"""Losses in chunks where the number of rows is a symbol: one entry serves all numbers up to what its chunks hold, and never has the logits whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd import differentiate
from dynacompile.env import Env
from dynacompile.events import LossChunked
from dynacompile.ir.symbols import hint
from dynacompile.lower import lower
from dynacompile.schedule import lists, schedule
from tests.autograd.test_large_losses import held
from tests.lower.tracing import ENV

WIDTH, CLASSES = 16, 500
LIMIT = 2 * 16 * CLASSES * 4  # bytes of 16 rows of logits, and of their gradient


class Head(nn.Module):
    def __init__(self, form: str):
        super().__init__()
        self.form, self.layer = form, nn.Linear(WIDTH, CLASSES, bias=form == "by rows")

    def forward(self, x, targets):
        logits = self.layer(x)
        match self.form:
            case "plain":
                return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1))
            case "by rows":
                return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1), reduction="none")
            case "z loss":
                flat = logits.view(-1, CLASSES)
                return F.cross_entropy(flat, targets.view(-1), label_smoothing=0.1) + 1e-2 * flat.logsumexp(-1).square().mean()
        capped = 5 * torch.tanh(logits / 5)
        return F.cross_entropy(capped[..., :-1, :].reshape(-1, CLASSES).float(), targets[..., 1:].reshape(-1), ignore_index=3)


FORMS = ("plain", "by rows", "z loss", "shifted and capped")


def inputs(length: int, batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, WIDTH, generator=generator).requires_grad_()
    return x, torch.randint(0, CLASSES, (batch, length), generator=generator)


def with_gradients(call, model, *given) -> list[torch.Tensor]:
    value = call(*given)
    return [value, *torch.autograd.grad(value.sum() * 2, [given[0], *model.parameters()])]


def called(model, lengths, **options) -> list[tuple[int, bool]]:
    """Calls for inputs of each length, compared with eager: at which something was compiled, and whether its loss is in chunks."""
    compiled = dynacompile.compile(model, isolate_recompiles=True, **{"backend": "aot_eager", "dynamic": True, "options": {"logits_bytes": LIMIT}, **options})
    events: list = []
    end = dynacompile.subscribe(events.append)
    found = []
    try:
        for length in lengths:
            given = inputs(length)
            torch.testing.assert_close(with_gradients(compiled, model, *given), with_gradients(model, model, *given), rtol=2e-4, atol=2e-5)
            found += [(length, e.chunked) for e in events if isinstance(e, LossChunked)]
            events.clear()
    finally:
        end()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_one_entry_serves_many_sizes(form):
    """Those of fewer rows than there are chunks, too; up to twice those of the first call."""
    assert called(Head(form), (24, 30, 7, 2, 48)) == [(24, True)]


def test_more_rows_are_more_chunks():
    assert called(Head("plain"), (24, 30, 90, 60)) == [(24, True), (90, True)]


def test_logits_that_grow_are_chunked_when_they_are_large():
    """An entry whose logits are whole serves those that may be whole."""
    assert called(Head("plain"), (2, 4, 8, 40, 3)) == [(40, True)]


def test_a_size_that_changes_is_a_symbol():
    """Without an option: the second size makes it one."""
    assert called(Head("plain"), (24, 30, 28, 33), dynamic=None) == [(24, True), (30, True)]


def test_bounds_of_marks_hold():
    """Chunks are made for as many rows as the mark allows, and the entry serves all of them."""
    marks = {"x": {1: {"min": 2, "max": 64}}, "targets": {1: {"min": 2, "max": 64}}}
    assert called(Head("plain"), (8, 2, 64, 33), dynamic=marks) == [(8, True)]


@pytest.mark.further
def test_most_chunks_of_symbolic_sizes():
    """Of many rows each chunk is larger."""
    made: list = []
    end = dynacompile.subscribe(made.append)
    try:
        dynacompile.compile(Head("plain"), backend="aot_eager", isolate_recompiles=True, dynamic=True, options={"logits_bytes": LIMIT // 16})(*inputs(24))
    finally:
        end()
    assert [e.reason.split("computed ")[1] for e in made if isinstance(e, LossChunked)] == ["in 32 chunks"]


@pytest.mark.parametrize("form", FORMS)
def test_the_logits_are_never_whole(form, monkeypatch):
    """In bytes for the sizes of the call; buffers of the schedule have symbolic sizes."""
    monkeypatch.setattr(lists, "LASTING", {})
    pairs = []

    def backend(graph, examples):
        fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        pairs.append(differentiate(graph, fakes, Env(ENV.with_config(logits_bytes=LIMIT).config, lambda e: None, "test", -1, ENV.cache)))
        return graph

    dynacompile.compile(Head(form), backend=backend, isolate_recompiles=True, dynamic=True)(*inputs(24))
    assert pairs[0].backward is not None
    for graph in (pairs[0].forward, pairs[0].backward):
        plan = schedule(lower(graph, ENV), ENV)
        assert max(hint(plan.buffers[name].numel) for name in held(plan)) <= max(4 * 24 * CLASSES // 3, CLASSES * WIDTH)
        assert hint(plan.arena) <= LIMIT + 6 * (CLASSES + 4 * 24) * WIDTH + 4096, "a chunk of logits, and its gradient"


@pytest.mark.parametrize("options", ({"reference": True}, {}), ids=("interpreted", "built"))
def test_kernels(options):
    assert called(Head("shifted and capped"), (24, 7), backend="default", options={"logits_bytes": LIMIT, **options}) == [(24, True)]
