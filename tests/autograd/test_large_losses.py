"""Cross entropies of linear layers with many classes: which are computed in chunks of rows, what memory they take, and what the chunks run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd import differentiate, large_losses
from dynacompile.codegen.reference import run_schedule
from dynacompile.env import Env
from dynacompile.errors import ConfigError
from dynacompile.events import LossChunked
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Allocate, Launch, Place, Reuse, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import lists, memory, schedule
from tests.lower.tracing import ENV, products_are_calls
from tests.schedule.test_layout import on

ROWS, WIDTH, CLASSES = 96, 16, 500
LIMIT = 2 * 16 * CLASSES * 4  # bytes of 16 rows of logits, and of their gradient
WHOLE = ROWS * CLASSES


def differentiated(form, arguments, limit: int = LIMIT, budget: float = 1.0) -> tuple[ForwardBackward, list[tuple[bool, str]]]:
    """The forward and the backward graph of a function, and what was decided of its losses."""
    found: list[ForwardBackward] = []
    events: list = []
    config = ENV.with_config(logits_bytes=limit, memory_budget=budget).config

    def backend(graph, examples):
        fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        found.append(differentiate(graph, fakes, Env(config, events.append, "test", -1, ENV.cache)))
        return graph

    dynacompile.compile(form, backend=backend, isolate_recompiles=True, dynamic=False)(*arguments)
    return found[0], [(e.chunked, e.reason) for e in events if isinstance(e, LossChunked)]


def operands(dtype: torch.dtype = torch.float32, grad: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator, dtype=dtype).requires_grad_(grad) for s in ((4, ROWS // 4, WIDTH), (CLASSES, WIDTH), (CLASSES,))]
    return [*made, torch.randint(0, CLASSES, (4, ROWS // 4), generator=generator)]


def plain(x, weight, bias, targets):
    return F.cross_entropy(F.linear(x, weight, bias).view(-1, CLASSES), targets.view(-1))


def shifted(x, weight, bias, targets):
    logits = F.linear(x, weight)
    return F.cross_entropy(logits[..., :-1, :].contiguous().view(-1, CLASSES).float(), targets[..., 1:].reshape(-1))


def moved(x, weight, bias, targets):
    return F.cross_entropy(torch.matmul(x, weight.t()).transpose(1, 2), targets, label_smoothing=0.1, ignore_index=3)


def summed(x, weight, bias, targets):
    return F.nll_loss(F.log_softmax(F.linear(x, weight, bias), -1).flatten(0, 1), targets.flatten(), reduction="sum")


def by_rows(x, weight, bias, targets):
    return F.cross_entropy(F.linear(x, weight, bias).view(-1, CLASSES), targets.view(-1), reduction="none")


def under_autocast(x, weight, bias, targets):
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(F.linear(x, weight, bias).view(-1, CLASSES).float(), targets.view(-1))


@pytest.fixture(autouse=True)
def chunks_count_as_large(monkeypatch):
    """Like kernels over small temporaries become one, which holds them all."""
    monkeypatch.setattr(lists, "LASTING", {})


FORMS = (plain, shifted, moved, summed, by_rows, under_autocast)


def schedules(pair: ForwardBackward) -> list[Schedule]:
    return [schedule(lower(graph, ENV), ENV) for graph in (pair.forward, pair.backward) if graph is not None]


def held(plan: Schedule) -> list[str]:
    """The buffers that memory is taken for."""
    return [s.buffer for s in plan.steps if isinstance(s, (Place, Allocate))] + [o for s in plan.steps if isinstance(s, Extern) for o in s.outputs if o]


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_the_logits_are_never_whole(form, grad):
    arguments = operands(grad=grad)
    pair = differentiated(form, arguments)[0]
    plans = schedules(pair)
    assert len(plans) == 1 + grad
    for plan in plans:
        largest = max(plan.buffers[name].numel for name in held(plan))
        assert largest <= max(WHOLE // 3, CLASSES * WIDTH), "a chunk is a third of the logits at most"
        assert form is under_autocast or plan.arena <= LIMIT + 4 * (CLASSES + ROWS) * WIDTH + 4096, "a chunk of logits, and its gradient"


def test_what_is_kept_for_the_backward_is_the_gradients():
    facts = differentiated(plain, operands())[0].facts
    assert (facts["saved_bytes"], facts["saved_inputs"]) == (4 * (ROWS + CLASSES) * WIDTH + 4 * CLASSES, 0)
    assert facts["recomputed_ops"] == 0
    facts = differentiated(by_rows, operands())[0].facts
    assert facts["saved_bytes"] < 4 * ROWS * CLASSES // 10 and facts["saved_inputs"] >= 2


def test_the_steps_of_a_pass():
    """The golden of the schedule: one kernel for all chunks, products in place."""
    with products_are_calls():
        forward, backward = schedules(differentiated(plain, operands())[0])
    steps = [s.kernel if isinstance(s, Launch) else s.op.__name__ for s in forward.steps if isinstance(s, (Launch, Extern))]
    chunk = ["mm.default", "ne_add_amax_ones_mul", "mm.out", "addmm_.default", "addmm_.default"]
    first = ["mm.default", "ne_add_amax_ones_mul", "mm.out", "mm.default", "mm.default"]
    start = steps.index("mm.default")
    assert set(steps[:start]) == {"empty_like", "new_ones", "check_classes.default", "ne_sum", "split_with_sizes_copy.default"}
    rest = [s for s in steps[start:] if "sum_div" not in s]
    assert rest == [*first, *chunk * 5]
    assert [s.kernel for s in backward.steps if isinstance(s, Launch)] == ["mul"], "one launch multiplies the three gradients by the incoming one"


def test_on_gpus_classes_are_padded_and_sums_are_wide(monkeypatch):
    monkeypatch.setattr(large_losses, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(memory, "LARGE", 1)

    def odd(x, weight, bias, targets):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(F.linear(x, weight[:-3]).view(-1, CLASSES - 3), targets.clamp(max=CLASSES - 4).view(-1))

    forward = differentiated(odd, operands())[0].forward
    with products_are_calls():
        plan = schedule(on(lower(forward, ENV), "cuda"), ENV)
    products = [s for s in plan.steps if isinstance(s, Extern) and "mm" in s.op.__name__]
    logits = [s for s in products if s.outputs[0] and plan.buffers[s.outputs[0]].dtype == torch.bfloat16]
    assert {plan.buffers[s.outputs[0]].size[1] for s in logits} == {512}
    assert [s.op for s in products].count(torch.ops.aten.addmm.dtype_out) == len(logits) - 1
    assert max(plan.buffers[name].numel for name in held(plan)) <= ROWS // 2 * 512
    assert {s.outputs[0] for s in logits} <= {s.donor for s in plan.steps if isinstance(s, Reuse)}, "the gradients take the memory of the logits"


def test_chunks_on_gpus_are_long_beside_what_their_sums_cost(monkeypatch):
    """Of half precision, and where no number of bytes is given; what is held grows with it."""
    monkeypatch.setattr(large_losses, "is_on_gpu", lambda tensor: True)
    monkeypatch.setitem(large_losses.LIMITS, "cpu", LIMIT // 2)
    monkeypatch.setitem(large_losses.CHUNKS, "cpu", LIMIT // 2)
    monkeypatch.setattr(large_losses, "LEAST_ROWS", 64)
    monkeypatch.setattr(large_losses, "ALIGNED", 8)

    def reason(form, limit):
        return decided(form, *operands(), limit=limit)[0][1].rpartition("by ")[2]

    assert (reason(plain, 0), reason(plain, LIMIT // 2)) == ("16 rows", "16 rows")
    assert (reason(under_autocast, 0), reason(under_autocast, LIMIT // 4)) == ("48 rows", "16 rows")


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_interpreted_kernels_are_eager(form):
    arguments = operands(grad=False)
    plan = schedule(lower(differentiated(form, arguments)[0].forward, ENV), ENV)
    given = dict(zip(("x", "weight", "bias", "targets"), arguments, strict=True))
    torch.testing.assert_close(run_schedule(plan, [given[name] for name in plan.inputs])[0], form(*arguments), rtol=2e-3, atol=2e-3)


def decided(form, *arguments, limit=LIMIT, budget=1.0):
    return differentiated(form, arguments, limit, budget)[1]


def test_a_memory_budget_is_also_one_of_logits(monkeypatch):
    monkeypatch.setitem(large_losses.LIMITS, "cpu", WHOLE * 4)
    assert decided(plain, *operands(), limit=0) == []
    assert [chunked for chunked, _ in decided(plain, *operands(), limit=0, budget=0.9)] == [True]
    assert decided(plain, *operands(), limit=WHOLE * 4, budget=0.1) == [], "a number of bytes that is given counts alone"
    monkeypatch.setitem(large_losses.LIMITS, "cpu", WHOLE * 4 * 16)
    assert decided(plain, *operands(), limit=0, budget=0.0) == [], "small logits stay whole"


def test_sizes_decide():
    size = WHOLE * 4
    assert decided(plain, *operands(), limit=size) == []
    assert decided(plain, *operands(), limit=-1) == []
    assert decided(plain, *operands(), limit=0) == [], "by default, small ones are whole"
    assert decided(plain, *operands(), limit=size - 1) == [(True, f"{size} bytes of logits are more than {size - 1}: they are computed by 32 rows")]


@pytest.mark.parametrize("rows, most, expected", [(16384, 1335, 1280), (1000, 300, 256), (100, 30, 25), (1, 5, 1), (10_000, 1, 256)])
def test_chunks_are_even(rows, most, expected):
    assert large_losses.rows_of_chunk(rows, 10, most * 10) == expected


def returned(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    return F.cross_entropy(logits, targets.view(-1)), logits


def z_loss(x, weight, bias, targets):
    logits = F.linear(x, weight, bias).view(-1, CLASSES)
    return F.cross_entropy(logits, targets.view(-1), label_smoothing=0.1, ignore_index=3) + 1e-2 * logits.logsumexp(-1).square().mean()


def z_loss_first(x, weight, bias, targets):
    logits, flat = F.linear(x, weight), targets.view(-1)
    z = torch.logsumexp(logits.double(), dim=2, keepdim=True)
    return (z**2).sum() * 1e-3 + F.cross_entropy(logits.view(-1, CLASSES).double(), flat, reduction="sum")


def z_loss_of_rows(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    return F.cross_entropy(logits, targets.view(-1), reduction="none") * bias[0] + logits.logsumexp(1).tanh()


def class_weights(x, weight, bias, targets, **loss):
    logits = F.linear(x, weight, bias).view(-1, CLASSES)
    return F.cross_entropy(logits, targets.view(-1), weight=bias.detach().abs() + 0.1, ignore_index=3, **loss)


def class_weights_smoothed(x, weight, bias, targets):
    return class_weights(x, weight, bias, targets, label_smoothing=0.2)


def class_weights_summed(x, weight, bias, targets):
    return class_weights(x, weight, bias, targets, reduction="sum")


def class_weights_of_rows(x, weight, bias, targets):
    return class_weights(x, weight, bias, targets, reduction="none", label_smoothing=0.2)


def class_weights_and_z_loss(x, weight, bias, targets):
    logits = F.linear(x, weight, bias).view(-1, CLASSES)
    own = F.cross_entropy(logits, targets.view(-1), weight=bias.detach().abs() + 0.1)
    return own + 1e-2 * torch.logsumexp(logits, -1).square().mean()


def gathered(x, weight, bias, targets):
    return F.log_softmax(F.linear(x, weight, bias), -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def gathered_probabilities(x, weight, bias, targets):
    return torch.gather(F.linear(x, weight).softmax(dim=-1, dtype=torch.float64), 2, targets[..., None]).log()


def gathered_of_shifted_rows(x, weight, bias, targets):
    return torch.take_along_dim(F.linear(x, weight, bias).log_softmax(-1)[:, :-1], targets[:, 1:, None], dim=-1).sum()


def indexed(x, weight, bias, targets):
    logarithms = F.log_softmax(F.linear(x, weight, bias).view(-1, CLASSES), 1)
    return -logarithms[torch.arange(ROWS), targets.view(-1) - CLASSES].mean()


def gathered_logits_and_logarithms(x, weight, bias, targets):
    logits = F.linear(x, weight, bias)
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


PICKED = (gathered, gathered_probabilities, gathered_of_shifted_rows, indexed, gathered_logits_and_logarithms)
FURTHER = (
    *PICKED, z_loss, z_loss_first, z_loss_of_rows, class_weights, class_weights_smoothed, class_weights_summed, class_weights_of_rows, class_weights_and_z_loss
)  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("form", FURTHER, ids=lambda f: f.__name__)
def test_logarithms_weights_of_classes_and_picked_classes_come_from_the_chunks(form, backend):
    """Values and gradients are eager's, and the logits are never whole."""
    pair, told = differentiated(form, operands())
    assert [chunked for chunked, _ in told] == [True]
    for plan in schedules(pair):
        assert max(plan.buffers[name].numel for name in held(plan)) <= max(WHOLE // 3, CLASSES * WIDTH)
    results = []
    for call in (form, dynacompile.compile(form, backend=backend, isolate_recompiles=True, options={"logits_bytes": LIMIT})):
        given = operands()
        value = call(*given)
        grads = torch.autograd.grad(value.sum(), given[:3], allow_unused=True)
        results.append([value, *(g for g in grads if g is not None)])
    for got, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


def logarithms_of_other_rows(x, weight, bias, targets):
    logits = F.linear(x, weight)
    return F.cross_entropy(logits[:, 1:].reshape(-1, CLASSES), targets[:, 1:].reshape(-1)) + logits.logsumexp(-1).mean()


def logarithms_without_gradient(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    with torch.no_grad():
        z = logits.logsumexp(-1).mean()
    return F.cross_entropy(logits, targets.view(-1)), z


def logarithms_before_targets(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    z = logits.logsumexp(-1).mean()
    return F.cross_entropy(logits, (targets + 1).clamp(max=CLASSES - 1).view(-1)) + z


def logarithms_over_rows(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    return F.cross_entropy(logits, targets.view(-1)) + logits.logsumexp(0).mean()


def two_gathers(x, weight, bias, targets):
    logarithms = F.log_softmax(F.linear(x, weight), -1)
    return logarithms.gather(-1, targets[..., None]) - logarithms.gather(-1, targets[..., None].flip(0))


def gathered_of_other_rows(x, weight, bias, targets):
    return F.log_softmax(F.linear(x, weight), -1).gather(-1, targets[:, :5, None])


def indexed_in_another_order(x, weight, bias, targets):
    return F.log_softmax(F.linear(x, weight).view(-1, CLASSES), -1)[torch.arange(ROWS).flip(0), targets.view(-1)]


def indexed_by_a_counter_that_is_written(x, weight, bias, targets):
    rows = torch.arange(ROWS)
    rows.sub_(1)
    return -F.log_softmax(F.linear(x, weight, bias).view(-1, CLASSES), 1)[rows, targets.view(-1)].mean()


def gathered_logits(x, weight, bias, targets):
    return F.linear(x, weight).gather(-1, targets[..., None])


def loss_of_a_softmax(x, weight, bias, targets):
    return F.cross_entropy(F.linear(x, weight).softmax(-1).view(-1, CLASSES), targets.view(-1))


def probabilities(x, weight, bias, targets):
    return F.cross_entropy(F.linear(x, weight).view(-1, CLASSES), F.one_hot(targets.view(-1), CLASSES).float())


def ending(x, weight, bias, targets):
    logits = F.linear(x, weight)
    with torch.no_grad():
        logits = logits.view(-1, CLASSES).double()
    return F.cross_entropy(logits, targets.view(-1)) * bias.sum()


def written(x, weight, bias, targets):
    logits = F.linear(x, weight.detach())
    weight.detach().mul_(2)
    return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1))


def written_through_data(x, weight, bias, targets):
    logits = F.linear(x, weight.detach())
    weight.data.mul_(2)
    return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1))


def targets_written_behind_the_logarithms(x, weight, bias, targets):
    logits = F.linear(x, weight.detach()).view(-1, CLASSES)
    flat = targets.view(-1)
    logarithms = logits.logsumexp(-1)
    targets[:, 1:].zero_()
    return F.cross_entropy(logits, flat) + logarithms.mean()


@pytest.mark.parametrize(
    "form, reasons",
    [
        (returned, ["the logits have another use: output"]),
        (logarithms_before_targets, ["the logarithms are taken before the targets are known"]),
        (logarithms_of_other_rows, ["the logarithms are not those of the loss's rows"]),
        (logarithms_without_gradient, ["gradients end between the layer and the logarithms"]),
        (logarithms_over_rows, ["the logarithms are not of sums over the classes"]),
        (probabilities, ["the targets are no int64 classes"]),
        (ending, ["gradients end between the layer and the loss"]),
        (two_gathers, ["the logits have another use: gather"] * 2),
        (gathered_of_other_rows, []),
        (indexed_in_another_order, []),
        (indexed_by_a_counter_that_is_written, []),
        (gathered_logits, []),
        (loss_of_a_softmax, ["the softmax is not the loss's own"]),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_others_stay_whole(form, reasons):
    assert decided(form, *operands()) == [(False, r) for r in reasons]


@pytest.mark.parametrize(
    "form, backend", [(written, "aot_eager"), (written, "default"), (written_through_data, "aot_eager"), (targets_written_behind_the_logarithms, "aot_eager")]
)
def test_a_write_between_is_seen(form, backend):
    wanted, given = operands(grad=False), operands(grad=False)
    compiled = dynacompile.compile(form, backend=backend, isolate_recompiles=True, options={"logits_bytes": LIMIT})
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        torch.testing.assert_close(compiled(*given), form(*wanted))
    finally:
        end()
    torch.testing.assert_close(given, wanted)
    assert [e.chunked for e in events if isinstance(e, LossChunked)] == [True, False]


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("form", [gathered, indexed], ids=lambda f: f.__name__)
def test_places_that_are_no_class_raise_eagers_error(form, backend):
    *given, targets = operands()
    targets[2, 3] += 2 * CLASSES
    compiled = dynacompile.compile(form, backend=backend, isolate_recompiles=True, options={"logits_bytes": LIMIT})
    errors = []
    for call in (form, compiled):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            call(*given, targets)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


def test_places_that_are_written_before_the_backward_are_refused():
    *given, targets = operands()
    loss = dynacompile.compile(gathered, backend="aot_eager", isolate_recompiles=True, options={"logits_bytes": LIMIT})(*given, targets).sum()
    targets.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        return F.cross_entropy(self.head(self.token(tokens).tanh()).view(-1, CLASSES).float(), tokens.roll(-1, 1).reshape(-1))


def test_built_kernels_of_a_tied_layer_with_a_scaled_loss_and_a_hook():
    torch.manual_seed(0)
    model, tokens, seen = Tied(), torch.randint(0, CLASSES, (4, ROWS // 4)), []
    model.token.weight.register_hook(lambda g: seen.append(g.clone()))
    compiled = dynacompile.compile(model, isolate_recompiles=True, options={"logits_bytes": LIMIT})
    results = []
    for call in (model, compiled):
        model.zero_grad()
        loss = call(tokens)
        (loss * 65536.0).backward(retain_graph=True)
        loss.backward()
        results.append((loss.detach(), model.token.weight.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(seen[2:], seen[:2], rtol=1e-4, atol=2e-3)


def test_all_targets_ignored():
    arguments, wanted = operands(), operands()
    compiled = dynacompile.compile(plain, backend="aot_eager", isolate_recompiles=True, options={"logits_bytes": LIMIT})
    for call, given in ((plain, wanted), (compiled, arguments)):
        given[3].fill_(-100)
        loss = call(*given)
        assert loss.isnan()
        loss.backward()
    for have, want in zip(arguments[:3], wanted[:3], strict=True):
        torch.testing.assert_close(have.grad, want.grad, equal_nan=True)


def test_symbolic_numbers_of_classes_keep_the_logits_whole():
    compiled = dynacompile.compile(plain, backend="aot_eager", dynamic=True, isolate_recompiles=True, options={"logits_bytes": LIMIT})
    torch.testing.assert_close(compiled(*operands()), plain(*operands()))


@pytest.mark.parametrize("wrong", [-2, 1.5, True, "64"])
def test_the_option_is_a_number_of_bytes(wrong):
    with pytest.raises(ConfigError, match="logits_bytes must be an int"):
        dynacompile.compile(plain, options={"logits_bytes": wrong})
