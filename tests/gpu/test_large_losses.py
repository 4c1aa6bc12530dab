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
