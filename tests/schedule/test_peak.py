"""Bytes at the peak of memory, counted by hand for ten programs, and what is written in place of what."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F

from dynacompile.autograd import differentiate, made_again
from dynacompile.ir.schedule import Free, Place, Reuse, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.autograd.recording import record
from tests.lower.tracing import ENV, products_are_calls

N = 1024
M = N * N * 4  # bytes of one matrix
LINE = 64  # bytes of the smallest buffer in the arena


def square(requires_grad: bool = True) -> torch.Tensor:
    return torch.empty(N, N, requires_grad=requires_grad)


def plans(function: Callable, *args: torch.Tensor, budget: float = 1.0) -> tuple[Schedule, Schedule | None]:
    """The schedules of the forward and the backward."""
    graph, fakes, _ = record(function, list(args))
    pair = differentiate(graph, fakes, ENV.with_config(memory_budget=budget))
    forward = schedule(lower(pair.forward, ENV), ENV)
    if pair.backward is None:
        return forward, None
    contract = pair.contract
    first = len(contract.symbols) + len(contract.saved_inputs)
    return forward, schedule(lower(pair.backward, ENV), ENV, range(first, first + len(contract.saved_positions)))


def peaks(function: Callable, *args: torch.Tensor) -> list[int]:
    return [plan.facts()["peak"] for plan in plans(function, *args) if plan is not None]


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x


WIDE = (N, 4 * N)
ROW = N * 4  # bytes of one row
PROGRAMS: dict[str, tuple[Callable, Callable[[], list[torch.Tensor]], list[int]]] = {
    # the result alone
    "pointwise": (lambda x: (x.sin() + 1).exp(), lambda: [square(False)], [M]),
    # relu is written over the product; beside it there is the second product
    "two products": (lambda x, w: (x @ w).relu() @ w, lambda: [square(False), square(False)], [2 * M]),
    "four products": (lambda x, w: layers(x, w, w, w) @ w, lambda: [square(False), square(False)], [2 * M]),
    "softmax between products": (lambda x, w: (x @ w).softmax(-1) @ w, lambda: [square(False), square(False)], [2 * M]),
    # nothing is saved but the input
    "pointwise with a gradient": (torch.tanh, lambda: [square()], [M, M]),
    # the gradient of tanh is written over what tanh gave, and beside it there is the weight's gradient
    "one layer": (layers, lambda: [square(False), square()], [M, 2 * M]),
    # at the first layer: two gradients are done; the tanh's gradient, the weight's, and the input's
    "three layers": (layers, lambda: [square() for _ in range(4)], [3 * M, 5 * M]),
    "mean of three layers": (lambda *a: layers(*a).mean(), lambda: [square() for _ in range(4)], [3 * M + LINE + 4, 5 * M]),
    # the product and what gelu gives of it are saved, four matrices each; at the end: gelu's gradient, those of both weights, and the input's
    "gelu between products": (
        lambda x, w, v: F.gelu(x @ w) @ v,
        lambda: [square(), torch.empty(*WIDE, requires_grad=True), torch.empty(4 * N, N, requires_grad=True)],
        [9 * M, 13 * M],
    ),
    # scores in the place of the product; in the backward their gradient, q's and two of k's
    "attention": (lambda q, k: (q @ k.t()).softmax(-1) @ k, lambda: [square(), square()], [2 * M, 4 * M]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_at_the_peak(name: str) -> None:
    function, make, expected = PROGRAMS[name]
    assert peaks(function, *make()) == expected


def test_logits_are_saved_once_and_their_gradient_is_written_over_them() -> None:
    classes = 8
    args = [square(), torch.empty(N, classes * N, requires_grad=True), torch.empty(N, dtype=torch.int64)]
    forward, backward = plans(lambda x, w, t: F.cross_entropy(x @ w, t), *args)
    assert backward is not None
    logits = classes * M
    assert logits < forward.facts()["peak"] < logits + M // 16
    assert 2 * logits + M < backward.facts()["peak"] < 2 * logits + M + M // 16, "the logits' gradient, the weight's, and the input's"
    donors = [s.donor for s in backward.steps if isinstance(s, Reuse)]
    assert [backward.buffers[d].size for d in donors] == [(N, classes * N)]


def test_the_peak_is_where_most_is_alive() -> None:
    _, backward = plans(lambda *a: layers(*a).mean(), *(square() for _ in range(4)))
    assert backward is not None
    live = backward.live_bytes()
    assert live[0] == 3 * M, "what is saved"
    assert live[-1] == 4 * M, "the gradients"
    assert backward.facts()["unfused_peak"] >= max(live)


def test_saved_results_are_freed_at_their_last_use() -> None:
    _, backward = plans(lambda *a: layers(*a).mean(), *(square() for _ in range(4)))
    assert backward is not None
    freed = {s.buffer: i for i, s in enumerate(backward.steps) if isinstance(s, Free)}
    assert backward.given_up <= set(freed)
    touched = [set(getattr(s, "buffers", ())) for s in backward.steps]
    assert all(not any(name in names for names in touched[i:]) for name, i in freed.items())


def test_a_small_network_takes_no_more_at_the_peak_than_in_eager() -> None:
    with products_are_calls():
        _, backward = plans(lambda x, *w: chain(x, *w), torch.empty(64, 64), *(torch.empty(64, 64, requires_grad=True) for _ in range(10)))
    assert backward is not None
    facts = backward.facts()
    assert facts["peak"] <= facts["unfused_peak"]
    assert sum(isinstance(s, Free) for s in backward.steps) >= 10


def test_small_buffers_are_in_the_arena() -> None:
    x, w = torch.empty(16, 16), torch.empty(16, 16)
    with products_are_calls():
        forward, _ = plans(lambda x, w: layers(x, w, w, w), x, w)
    assert [type(s) for s in forward.steps if isinstance(s, Reuse | Free)] == []
    assert sum(isinstance(s, Place) for s in forward.steps) == 5
    assert forward.arena == 2 * 16 * 16 * 4


def deep(x, *weights):
    """A residual stream, to which blocks of two products add their results."""
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + F.gelu(F.layer_norm(x, (N,)) @ up) @ down
    return x.mean()


def chain(x, *weights):
    """Layers without a stream."""
    for w in weights:
        x = F.gelu(x @ w)
    return x.mean()


@pytest.mark.parametrize(("net", "count"), [(deep, 24), (chain, 16)])
def test_a_smaller_budget_takes_less_at_the_peak(net: Callable, count: int) -> None:
    args = [torch.empty(16 * N, N, requires_grad=True), *(square() for _ in range(count))]
    found = []
    for budget in (1.0, 0.7, 0.4, 0.1):
        forward, backward = plans(net, *args, budget=budget)
        assert backward is not None
        found.append(max(forward.facts()["peak"], backward.facts()["peak"]))
    assert found == sorted(found, reverse=True)
    assert found[1] < 0.9 * found[0] and found[2] < 0.65 * found[0] and found[3] < 0.55 * found[0]


def test_what_is_made_again_is_not_kept() -> None:
    """gelu between products, where the CPU is taken for a device on which memory traffic is cheap."""
    function, make, _ = PROGRAMS["gelu between products"]
    with patch.dict(made_again.DEVICES, {"cpu": made_again.Device(4.0e6, {4: 1.0}, 1.0, 0)}):
        forward, backward = plans(function, *make())
    assert backward is not None
    assert forward.facts()["peak"] == 9 * M, "both and the result, at the second product"
    live = backward.live_bytes()
    assert live[0] == 4 * M, "the product"
    assert max(live) == 13 * M, "at the end: gelu's gradient, those of both weights, and the input's"


def test_deep_nets_peak_by_what_is_made_again() -> None:
    args = [torch.empty(16 * N, N, requires_grad=True), *(square() for _ in range(8))]
    kept = peaks(deep, *args)
    with patch.dict(made_again.DEVICES, {"cpu": made_again.Device(4.0e6, {4: 1.0}, 1.0, 0)}):
        less = peaks(deep, *args)
    each = 16 * M
    assert [round(n / each) for n in kept] == [14, 13], "of four blocks the norms, products and gelus; the sum, and what the last product adds to it"
    assert [round(n / each) for n in less] == [10, 9], "the norms but the first, which comes from the input, the products, and the last gelu; as before"
