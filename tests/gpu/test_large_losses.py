"""Cross entropies of linear layers with many classes on the GPU: eager's results, in a part of its memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import LossChunked

pytestmark = pytest.mark.gpu
ROWS, WIDTH, CLASSES = 8192, 256, 50257
LOGITS = ROWS * CLASSES * 2
LIMIT = 1 << 26


class Head(nn.Module):
    def __init__(self, bias: bool, **loss: object):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(WIDTH, CLASSES, bias), loss

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = self.layer(x)
            return F.cross_entropy(logits.view(-1, CLASSES).float(), targets.view(-1), **self.loss)


class ScaledHead(Head):
    """Caps the logits, as Gemma 2, and scales them by what is learned, as CLIP. Their classes are padded, since no multiple of 8."""

    def __init__(self, **loss: object):
        super().__init__(bias=True, **loss)
        self.scale = nn.Parameter(torch.tensor(0.25))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.loss_of(self.layer(x), targets)

    def loss_of(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = 5 * torch.tanh((logits + 2) / 5) * self.scale.exp()
        return F.cross_entropy(logits.view(-1, CLASSES).float(), targets.view(-1), **self.loss)


def step(call, model, x, targets):
    """The loss, its gradients, and the bytes that were taken above what there was before."""
    model.zero_grad()
    x.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = call(x, targets)
    loss.sum().backward()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters())], peak


def exact(model, x, targets):
    """The gradients in float32 and by parts of the rows, which is near enough for half precision."""
    layer = model.layer
    return F.cross_entropy(F.linear(x.float(), layer.weight, layer.bias).view(-1, CLASSES), targets.view(-1), **model.loss)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    "loss", [{}, {"ignore_index": 7, "label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none"}], ids=["mean", "smoothed", "sum", "rows"]
)
def test_results_and_memory(bias, loss):
    model = Head(bias, **loss).cuda()
    x = torch.randn(8, ROWS // 8, WIDTH, generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()
    targets = torch.randint(0, CLASSES, (8, ROWS // 8), generator=torch.Generator().manual_seed(2)).cuda()
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(model, isolate_recompiles=True, options={"logits_bytes": LIMIT})
        step(compiled, model, x, targets)
        given, peak = step(compiled, model, x, targets)
    finally:
        end()
    assert [e.chunked for e in events if isinstance(e, LossChunked)] == [True]
    wanted, whole = step(model, model, x, targets)
    best, _ = step(lambda x, t: exact(model, x, t), model, x, targets)
    for have, want, right in zip(given, wanted, best, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        errors = [(t.double() - right.double()).abs().max().item() for t in (have, want)]
        assert errors[0] <= 2 * errors[1] + 1e-3 * right.abs().max().item()
    parameters = sum(p.numel() * 4 for p in model.parameters()) + x.numel() * 4
    assert peak <= LIMIT + 3 * parameters + (8 << 20), "chunks, and the operands and gradients"
    assert peak < LOGITS < whole


@pytest.mark.parametrize("dynamic", [False, True], ids=["constant rows", "symbolic rows"])
@pytest.mark.parametrize("loss", [{"label_smoothing": 0.1}, {"reduction": "none"}], ids=["smoothed", "rows"])
def test_scaled_logits_of_padded_classes(loss, dynamic):
    model = ScaledHead(**loss).cuda()
    events: list = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(model, isolate_recompiles=True, dynamic=dynamic, options={"logits_bytes": LIMIT})
    try:
        for length in (ROWS // 8, ROWS // 8 - 300) if dynamic else (ROWS // 8,):
            x = torch.randn(8, length, WIDTH, generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()
            targets = torch.randint(0, CLASSES, (8, length), generator=torch.Generator().manual_seed(2)).cuda()
            given, peak = step(compiled, model, x, targets)
            wanted, whole = step(model, model, x, targets)
            best, _ = step(lambda x, t: model.loss_of(F.linear(x, model.layer.weight, model.layer.bias), t), model, x, targets)
            for have, want, right in zip(given, wanted, best, strict=True):
                assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
                errors = [(t.double() - right.double()).abs().max().item() for t in (have, want)]
                rows = 8 * length if loss.get("reduction") == "none" and not right.dim() else 1
                assert errors[0] <= 2 * errors[1] + 4e-3 * max(right.abs().max().item(), 0.0 if right.dim() else rows)
            assert peak < LOGITS < whole or length < ROWS // 8
    finally:
        end()
    assert [e.chunked for e in events if isinstance(e, LossChunked)] == [True]


def test_float32():
    torch.manual_seed(0)
    weight, x = torch.randn(5003, 64, device="cuda", requires_grad=True), torch.randn(1000, 64, device="cuda", requires_grad=True)
    targets = torch.randint(0, 5003, (1000,), device="cuda")

    def loss_of(x, weight, targets):
        return F.cross_entropy(x @ weight.t(), targets)

    compiled = dynacompile.compile(loss_of, isolate_recompiles=True, options={"logits_bytes": 1 << 22})
    results = []
    for call in (loss_of, compiled):
        loss = call(x, weight, targets)
        results.append([loss, *torch.autograd.grad(loss * 3, (x, weight))])
    torch.testing.assert_close(results[1], results[0], rtol=2e-3, atol=1e-4)
