"""Losses in chunks whose logits are scaled, capped, shifted or cast by themselves behind the layer: as Gemma 2, Cohere, Granite and CLIP write them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd import large_losses
from tests.autograd.test_large_losses import CLASSES, LIMIT, WHOLE, WIDTH, chunks_count_as_large, decided, differentiated, held, operands, schedules

assert chunks_count_as_large, "a fixture of this file, too"


def loss_of(logits, targets, **options):
    return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1), **options)


def scaled(x, weight, bias, targets):
    return loss_of(F.linear(x, weight, bias) * 0.25, targets)


def by_a_temperature(x, weight, bias, targets):
    return loss_of(F.linear(x, weight).float() / 0.7, targets, reduction="none")


def soft_capped(x, weight, bias, targets):
    """As transformers' Gemma 2."""
    logits = F.linear(x, weight)
    logits = logits / 5.0
    logits = torch.tanh(logits)
    logits = logits * 5.0
    shifted = logits.float()[..., :-1, :].contiguous()
    return F.cross_entropy(shifted.view(-1, CLASSES), targets[..., 1:].reshape(-1), label_smoothing=0.1)


def by_a_sigmoid(x, weight, bias, targets):
    return loss_of(30 * torch.sigmoid((F.linear(x, weight) + 5) / 7.5), targets, reduction="sum")


def in_place(x, weight, bias, targets):
    logits = F.linear(x, weight, bias).view(-1, CLASSES)
    logits *= 0.5
    logits.div_(2)
    return loss_of(logits, targets)


def capped_with_logarithms(x, weight, bias, targets):
    logits = 5 * (F.linear(x, weight) / 5).tanh().view(-1, CLASSES)
    return loss_of(logits, targets) + 1e-2 * logits.logsumexp(-1).square().mean()


def scaled_and_picked(x, weight, bias, targets):
    return F.log_softmax(F.linear(x, weight).clamp(-3, 4) / 0.8, -1).gather(-1, targets.unsqueeze(-1))


def by_a_tensor(x, weight, bias, targets):
    """As CLIP, whose scale is learned."""
    return loss_of(F.linear(x, weight) * bias[0].exp(), targets)


def over_a_tensor_by_rows(x, weight, bias, targets):
    return loss_of((1 - F.linear(x, weight)) / (bias[1].sigmoid() + 0.5), targets, reduction="none")


def rounded(x, weight, bias, targets):
    """Scaled with 16 bits, as eager does it."""
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of((F.linear(x, weight) * 3.3).float(), targets)


FORMS = (
    scaled, by_a_temperature, soft_capped, by_a_sigmoid, in_place, capped_with_logarithms, scaled_and_picked, by_a_tensor, over_a_tensor_by_rows, rounded
)  # fmt: skip


def compiled(form, backend: str, **options):
    return dynacompile.compile(form, backend=backend, isolate_recompiles=True, options={"logits_bytes": LIMIT, **options})


def with_gradients(call) -> list[torch.Tensor]:
    given = operands()
    value = call(*given)
    grads = torch.autograd.grad(value.sum(), given[:3], allow_unused=True)
    return [value, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_the_logits_are_never_whole(form):
    """Nor is anything of their size computed from them, in the forward or the backward."""
    pair, told = differentiated(form, operands())
    assert [chunked for chunked, _ in told] == [True]
    for plan in schedules(pair):
        assert max(plan.buffers[name].numel for name in held(plan)) <= max(WHOLE // 3, CLASSES * WIDTH)
        assert form is rounded or plan.arena <= LIMIT + 6 * (CLASSES + WHOLE // CLASSES) * WIDTH + 4096, "a chunk of logits, and its gradient"


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_values_and_gradients_are_eagers(form):
    """To the rounding of bfloat16 where the layer has that."""
    tolerance = 1e-2 if form is rounded else 2e-4
    for got, wanted in zip(with_gradients(compiled(form, "aot_eager")), with_gradients(form), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", [soft_capped, by_a_tensor], ids=lambda f: f.__name__)
def test_built_kernels(form):
    for got, wanted in zip(with_gradients(compiled(form, "default")), with_gradients(form), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("form", [scaled, soft_capped, by_a_tensor], ids=lambda f: f.__name__)
def test_what_is_kept_for_the_backward_is_the_gradients(form):
    facts = differentiated(form, operands())[0].facts
    assert facts["saved_bytes"] <= 4 * (WHOLE // CLASSES + CLASSES) * WIDTH + 4 * CLASSES + 16 and facts["recomputed_ops"] <= 2


def test_logits_of_half_precision_are_rounded_where_eager_rounds_them():
    """A scale that rounds, in bfloat16 and behind a cast: the two losses differ, and each is eager's own."""

    def early(x, weight, bias, targets):
        return loss_of((F.linear(x, weight) * 3.3).float(), targets, reduction="none")

    def late(x, weight, bias, targets):
        return loss_of(F.linear(x, weight).float() * 3.3, targets, reduction="none")

    given = [t.bfloat16() if t.is_floating_point() else t for t in operands(grad=False)]
    wanted = [form(*given) for form in (early, late)]
    got = [compiled(form, "aot_eager")(*given) for form in (early, late)]
    assert (wanted[0] - wanted[1]).abs().max() > 1e-3, "the order is seen"
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


INNER, OUTER = (-2.999, 1.999), (-2.001, 3.001)


@pytest.mark.parametrize("bounds, backend", [(INNER, "aot_eager"), (OUTER, "aot_eager"), (INNER, "default")], ids=["inner", "outer", "built kernels"])
def test_bounds_of_a_clamp_are_rounded_to_half_precision(backend, bounds):
    """As in eager, where a logit that is the rounded bound has a gradient: here one of ten is such."""

    def clamped(x, weight, targets):
        return loss_of(F.linear(x, weight).clamp(*bounds), targets)

    x, weight, _, targets = operands(grad=False)
    given = [t.round().clamp(-1, 1).bfloat16().requires_grad_() for t in (x, weight)]
    results = []
    for call in (clamped, compiled(clamped, backend)):
        results.append(torch.autograd.grad(call(*given, targets), given))
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("tensors", [False, True], ids=["numbers", "tensors"])
def test_logits_that_are_bounds_of_a_clamp_have_eagers_gradients(tensors):
    """Which differ between versions of torch, and between numbers and tensors."""
    low, high = (torch.tensor(-2.0), torch.tensor(3.0)) if tensors else (-2, 3)

    def clamped(x, weight, targets):
        return loss_of(F.linear(x, weight).clamp(low, high), targets)

    x, weight, _, targets = operands(grad=False)
    given = [t.round().clamp(-1, 1).requires_grad_() for t in (x, weight)]
    wanted, got = (torch.autograd.grad(call(*given, targets), given) for call in (clamped, compiled(clamped, "aot_eager")))
    torch.testing.assert_close(got, wanted)


def padded_and_capped(logits, scale):
    """What is added makes classes that are padded differ from zero."""
    return 4 * torch.tanh((logits * scale + 3) / 4)


def padded_and_divided(logits, scale):
    return (2 - logits).sigmoid() * 6 / scale


def padded_and_clamped(logits, scale):
    return (logits / 0.7 - 2).clamp(-5, 4.5).float() * scale


@pytest.mark.parametrize("options", [None, {"reference": True}], ids=["eager", "interpreted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("points", [padded_and_capped, padded_and_divided, padded_and_clamped], ids=lambda f: f.__name__)
def test_classes_that_are_padded_do_not_count(points, dtype, options, monkeypatch):
    """As on GPUs, on which products of an odd number of classes are slow; in the loss, the gradients, and that of the scale."""
    made, loss_made = [], large_losses.loss_made
    monkeypatch.setattr(large_losses, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(large_losses, "has_wide_sums", lambda: False)
    monkeypatch.setattr(large_losses, "loss_made", lambda *given: (made.append(loss_made(*given)), made[-1])[1])
    x, weight, bias, targets = operands(grad=False)
    odd, targets = CLASSES - 3, targets.clamp(max=CLASSES - 4)

    def form(x, weight, bias, scale):
        logits = points(F.linear(x, weight, bias), scale)
        return F.cross_entropy(logits.view(-1, odd), targets.view(-1), label_smoothing=0.2, weight=weights.to(logits.dtype))

    weights = torch.linspace(0.5, 1.5, odd)
    call = compiled(form, "default" if options else "aot_eager", **(options or {}))
    results = []
    for called, kind in ((form, torch.float64), (form, dtype), (call, dtype)):
        given = [t.to(dtype).to(kind).requires_grad_() for t in (x / 2, weight[:odd], bias[:odd], torch.tensor(1.25))]
        value = called(*given)
        results.append([value, *torch.autograd.grad(value * 8, given)])
    assert [loss.padded for loss in made] == [512]
    for exact, wanted, got in zip(*results, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        errors = [(t.double() - exact).abs().max().item() for t in (got, wanted)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps * exact.abs().max().item()


def by_a_vector(x, weight, bias, targets):
    return loss_of(F.linear(x, weight) * bias, targets)


def squared(x, weight, bias, targets):
    logits = F.linear(x, weight)
    return loss_of(logits * logits, targets)


def scaled_behind_the_softmax(x, weight, bias, targets):
    return F.nll_loss((F.log_softmax(F.linear(x, weight), -1) * 2).view(-1, CLASSES), targets.view(-1))


def logarithms_before_the_scale(x, weight, bias, targets):
    logits = F.linear(x, weight).view(-1, CLASSES)
    return loss_of(logits * 0.5, targets) + logits.logsumexp(-1).mean()


def tanh_that_is_written(x, weight, bias, targets):
    logits = F.linear(x, weight).tanh_()
    logits *= 30
    return loss_of(logits, targets)


def clamped_by_learned_bounds(x, weight, bias, targets):
    return loss_of(F.linear(x, weight).clamp(-bias[0].exp(), bias[1].exp()), targets)


def rounded_down(x, weight, bias, targets):
    return loss_of(torch.div(F.linear(x, weight), 2, rounding_mode="floor"), targets)


@pytest.mark.parametrize(
    "form, reasons",
    [
        (by_a_vector, []),
        (squared, ["the logits have another use: the loss itself"]),
        (scaled_behind_the_softmax, ["the logits are changed by an operation that is not followed"]),
        (logarithms_before_the_scale, ["the logarithms are not those of the loss's logits"]),
        (clamped_by_learned_bounds, ["the logits are changed by an operation that is not followed"]),
        (rounded_down, ["the logits are changed by an operation that is not followed"]),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_others_stay_whole(form, reasons):
    assert decided(form, *operands()) == [(False, r) for r in reasons]


@pytest.mark.filterwarnings("ignore:.*is compiled in name only")
def test_a_result_that_autograd_keeps_and_the_program_writes_is_eagers_error():
    """The program then runs as Python."""
    for call in (tanh_that_is_written, compiled(tanh_that_is_written, "aot_eager")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(*operands()).backward()


def a_scale_that_is_written(x, weight, bias, targets):
    scale = bias[0].detach().clone()
    logits = F.linear(x, weight) + scale
    scale.add_(1)
    return loss_of(logits.sigmoid(), targets) * scale


def a_layer_that_is_written(x, weight, bias, targets):
    logits = F.linear(x, weight.detach()) * 0.5
    weight.detach().mul_(2)
    return loss_of(logits, targets)


def logits_that_are_written_without_gradient(x, weight, bias, targets):
    logits = F.linear(x, weight)
    with torch.no_grad():
        logits.mul_(2)
    return loss_of(logits, targets)


@pytest.mark.parametrize("form", [a_scale_that_is_written, a_layer_that_is_written, logits_that_are_written_without_gradient], ids=lambda f: f.__name__)
def test_a_write_between_is_seen(form):
    grad = form is not a_layer_that_is_written
    wanted, given = operands(grad=grad), operands(grad=grad)
    results = []
    for call, taken in ((form, wanted), (compiled(form, "aot_eager"), given)):
        value = call(*taken)
        results.append([value, *(torch.autograd.grad(value, taken[:2]) if grad else taken[:2])])
    torch.testing.assert_close(results[1], results[0])
    assert [chunked for chunked, _ in decided(form, *operands(grad=grad))] == [True, False]
