"""Hand-written attention: which forms become torch's operator, what the graph then calls, what keeps it as written, and queries that see no key."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd import attention_patterns, differentiate
from dynacompile.env import Env
from dynacompile.errors import ConfigError
from dynacompile.events import AttentionFound, MaskRead
from dynacompile.ir.schedule import Launch
from dynacompile.lower import lower
from dynacompile.ops import attention_costs
from dynacompile.ops.attention import LOW, bearable
from dynacompile.schedule import schedule
from tests.lower.tracing import ENV

BATCH, HEADS, ROWS, WIDTH = 2, 4, 6, 16


def differentiated(form, *arguments, scores=1):
    """The forward graph of a function, what was decided of its attention, and what was read of its masks."""
    found, events = [], []

    def backend(graph, examples):
        fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        config = ENV.with_config(attention_scores=scores).config
        found.append(differentiate(graph, fakes, Env(config, events.append, "test", -1, ENV.cache)))
        return graph

    dynacompile.reset()
    dynacompile.compile(form, backend=backend, isolate_recompiles=True, dynamic=False)(*arguments)
    return found[0].forward, [(e.kernel, e.reason) for e in events if isinstance(e, AttentionFound)], [e.found for e in events if isinstance(e, MaskRead)]


def kernels(graph):
    return [n for n in graph.graph.nodes if "attention" in str(n.target)]


def operands(grad=True, dtype=torch.float32, sizes=(BATCH, HEADS, ROWS, WIDTH)):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sizes, generator=generator).to(dtype).requires_grad_(grad) for _ in range(3)]


def hidden(dead=False):
    """Where keys are hidden; the third query of the first row of the batch may see none."""
    mask = torch.rand(BATCH, 1, ROWS, ROWS, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[..., 0] = False
    if dead:
        mask[0, 0, 2] = True
    return mask


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1) @ v


def scaled_queries(q, k, v):
    return F.softmax(torch.matmul(q * 0.25, k.mT), dim=-1) @ v


def in_float32(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    return torch.matmul(nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def like_the_scores(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def without_dropout(q, k, v):
    return F.dropout(plain_weights(q, k), p=0.1, training=False) @ v


def plain_weights(q, k):
    return (q @ k.transpose(-2, -1)).div_(4.0).softmax(-1)


def triangle(q, k, v):
    scores = q @ k.transpose(-2, -1)
    below = torch.tril(torch.ones(scores.shape[-2:], dtype=torch.bool))
    return scores.masked_fill(~below, -math.inf).softmax(-1) @ v


def triangle_of_numbers(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return (scores + torch.full(scores.shape[-2:], torch.finfo(scores.dtype).min, dtype=scores.dtype).triu(1)).softmax(-1) @ v


def batches(q, k, v):
    q, k, v = (t.reshape(-1, ROWS, WIDTH) for t in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, v).view(BATCH, HEADS, ROWS, WIDTH)


def grouped(q, k, v):
    k, v = (t[:, :2].repeat_interleave(2, 1) for t in (k, v))
    return plain(q, k, v)


def grouped_by_five(q, k, v):
    q = q.unflatten(1, (2, 2))
    return plain(q, k[:, :2, None], v[:, :2, None]).flatten(1, 2)


FORMS = (plain, scaled_queries, in_float32, like_the_scores, without_dropout, triangle, triangle_of_numbers, batches, grouped, grouped_by_five)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("form", FORMS)
def test_forms_become_the_operator(form, grad):
    graph, found, read = differentiated(form, *operands(grad))
    assert found == [(True, "torch's operator needs no memory for the scores")]
    assert len(kernels(graph)) == 1
    assert not any(word in str(n.target) for n in graph.graph.nodes for word in ("softmax", "bmm", "amax"))
    assert read == (["causal"] if "triangle" in form.__name__ else [])


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (form, dtype)
        for form in FORMS
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        if dtype != torch.float64 or form not in (in_float32, like_the_scores)  # whose softmax has fewer digits
    ],
)
def test_as_exact_as_eager(form, dtype):

    def run(call, dtype):
        leaves = [t.detach().to(dtype).requires_grad_() for t in operands(dtype=given)]
        result = call(*leaves)
        return [result, *torch.autograd.grad(result, leaves, torch.ones_like(result).cumsum(-1))]

    given = dtype
    compiled = dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True, options={"attention_scores": 1})
    for have, want, best in zip(run(compiled, dtype), run(form, dtype), run(form, torch.float64), strict=True):
        errors = [(t.double() - best).abs().max().item() for t in (have, want)]
        # In float64 eager is its own measure: both are off by as much as the order of the sums makes them.
        roundings = 32 if dtype == torch.float64 else 4
        assert errors[0] <= 2 * errors[1] + roundings * torch.finfo(dtype).eps * best.abs().max().item()


def returns_weights(q, k, v):
    weights = plain_weights(q, k)
    return weights @ v, weights


def returns_scores(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores


def rounded_to_another_half(q, k, v):
    return (q.half() @ k.half().mT).bfloat16().half().softmax(-1) @ v.half()


def with_dropout(q, k, v):
    return F.dropout(plain_weights(q, k), 0.5) @ v


def of_rows(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def capped(q, k, v):
    return (q @ k.mT).tanh().softmax(-1) @ v


def hidden_by_little(q, k, v):
    return (q @ k.mT).masked_fill(some_keys(v), -1e4).softmax(-1) @ v


def some_keys(v):
    return (v.detach()[:, :1, :, 0] < 0)[:, :, None, :]


def hidden_and_biased(q, k, v):
    return ((q @ k.mT).masked_fill(some_keys(v), -1e9) + q.detach()[:, :, :, :1]).softmax(-1) @ v


def learned_bias(q, k, v):
    return (q @ k.mT + q[..., :1]).softmax(-1) @ v


def wider_bias(q, k, v):
    return (q @ k.mT + torch.ones(ROWS, dtype=torch.float64)).softmax(-1).float() @ v


def detached(q, k, v):
    return plain_weights(q, k).detach() @ v


def ends_gradients(q, k, v):
    weights = plain_weights(q, k)
    with torch.no_grad():
        return weights @ v


def written(q, k, v):
    mask = v.detach() * 0
    scores = (q @ k.mT) + mask[..., :1]
    mask.add_(1.0)
    return scores.softmax(-1) @ v + mask


def written_through_data(q, k, v):
    mask = v.detach() * 0
    scores = (q @ k.mT) + mask[..., :1]
    mask.data.add_(1.0)
    return scores.softmax(-1) @ v + mask


def scaled_by_a_number_written_through_a_view(q, k, v):
    factor = torch.full((), 0.25)
    factor.view(1).fill_(3.0)
    return (q @ k.mT * factor).softmax(-1) @ v


def scaled_by_a_number_written_as_a_list(q, k, v):
    factor = torch.full((), 0.25)
    torch._foreach_add_([factor], 1.0)
    return (q @ k.mT * factor).softmax(-1) @ v


def scaled_by_a_number_written_as_out(q, k, v):
    factor = torch.full((), 0.25)
    torch.mul(factor, 2, out=factor)
    return (q @ k.mT * factor).softmax(-1) @ v


def other_width(q, k, v):
    return plain(q, k, v[..., :4])


KEPT = {
    returns_weights: "the weights have another use: they are returned",
    returns_scores: "the scores have another use: they are returned",
    rounded_to_another_half: "scores or weights are rounded to fewer digits than the products have",
    with_dropout: "dropout draws random numbers, which must be eager's",
    of_rows: None,
    capped: None,
    hidden_by_little: "scores are hidden by a number that scores may reach",
    hidden_and_biased: "scores are changed after some were hidden by a number",
    learned_bias: "a bias gets a gradient",
    wider_bias: "a bias has more digits than the products",
    detached: None,
    ends_gradients: "gradients end between the products",
    written: "the graph writes an operand of the scores before it uses the weights",
    written_through_data: "the graph writes an operand of the scores before it uses the weights",
    scaled_by_a_number_written_through_a_view: None,
    scaled_by_a_number_written_as_a_list: None,
    scaled_by_a_number_written_as_out: None,
    other_width: "values have another width than queries",
}


@pytest.mark.parametrize("form", KEPT)
def test_what_stays_as_written_says_why(form):
    graph, found, _ = differentiated(form, *operands())
    reason = KEPT[form]
    assert [r for kernel, r in found if not kernel] == ([] if reason is None else [reason])
    assert not kernels(graph)


def test_deterministic_algorithms_do_not_keep_it_on_the_cpu():
    torch.use_deterministic_algorithms(True)
    try:
        assert differentiated(plain, *operands())[1][0][0]
    finally:
        torch.use_deterministic_algorithms(False)


def test_switched_off_kernels_keep_it():
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        assert differentiated(plain, *operands())[1] == [(False, "torch's kernels are switched off")]


@pytest.mark.parametrize(("rows", "dtype", "grad", "want"), [
    (512, torch.float32, False, True), (256, torch.float32, False, False), (1024, torch.float32, True, True), (512, torch.float32, True, False),
    (16, torch.bfloat16, False, True),
    (8, torch.bfloat16, False, False), (256, torch.float16, False, False), (1024, torch.bfloat16, True, False), (1024, torch.float64, False, False),
])  # fmt: skip
def test_sizes_at_which_it_is_faster(rows, dtype, grad, want, monkeypatch):
    monkeypatch.setattr(attention_costs, "VECTORS", ())  # as on a processor with none of the instructions that a kernel of ours wants
    arguments = [torch.zeros(1, 1, rows, 8, dtype=dtype, requires_grad=grad) for _ in range(3)]
    assert differentiated(plain, *arguments, scores=0)[1][0][0] == want


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in attention_costs.VECTORS, reason="ATen's attention is called on such processors")
@pytest.mark.parametrize(("queries", "keys", "width", "want"), [(32, 16, 8, True), (16, 16, 8, False), (8, 512, 8, False), (256, 256, 257, False)])
@pytest.mark.parametrize("grad", [True, False])
def test_sizes_at_which_a_kernel_of_ours_is_faster(queries, keys, width, want, grad):
    arguments = [torch.zeros(1, 1, rows, width, requires_grad=grad) for rows in (queries, keys, keys)]
    assert differentiated(plain, *arguments, scores=0)[1][0][0] == want


def test_precise_results_of_half_precision_are_as_written():
    config = {"precise": True, "attention_scores": 1}
    for dtype, want in ((torch.bfloat16, False), (torch.float32, True)):
        told = dynacompile.explain(plain, isolate_recompiles=True, options=config)(*operands(dtype=dtype))
        assert [a.kernel for a in told.attention] == [want]


def test_turned_off():
    graph, found, _ = differentiated(plain, *operands(), scores=-1)
    assert found == [] and not kernels(graph)
    for wrong in (-2, True, "all"):
        with pytest.raises(ConfigError, match="attention_scores must be an int"):
            dynacompile.compile(plain, options={"attention_scores": wrong})


def on_gpu(form, monkeypatch, grad):
    """What is decided on a GPU, of which the graph sees nothing else here."""
    rows = {("cpu", *row): size for (device, *row), size in attention_patterns.SMALLEST.items() if device == "cuda"}
    monkeypatch.setattr(attention_patterns, "SMALLEST", rows)
    return differentiated(form, *operands(grad, torch.bfloat16), scores=0)[1][0][0]


@pytest.mark.parametrize("grad", [True, False])
def test_half_precision_on_gpus(grad, monkeypatch):
    assert on_gpu(plain, monkeypatch, grad)


def test_biases_for_gpus_are_no_infinity_when_multiplied():
    fake = torch.tensor([0.0, -math.inf, torch.finfo(torch.float32).min, 3.0])
    assert bearable(fake) is fake, "on the CPU they stay"
    assert math.isfinite(LOW * math.log2(math.e)) and LOW + 1e6 == LOW


def filled(number):
    def form(q, k, v, mask):
        return (q @ k.mT).masked_fill(mask, number).softmax(-1) @ v

    return form


def chosen(number):
    def form(q, k, v, mask):
        return torch.where(mask, number, q @ k.mT).softmax(-1) @ v

    return form


def biased(number):
    def form(q, k, v, mask):
        return (q @ k.mT + torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, number)).softmax(-1) @ v

    return form


@pytest.mark.parametrize("dead", [False, True], ids=["", "one query sees nothing"])
@pytest.mark.parametrize("number", [-math.inf, torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("make", [filled, chosen, biased])
@pytest.mark.parametrize("backend", [pytest.param("aot_eager", marks=pytest.mark.further), "default"])
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_masks_of_inputs(make, number, dead, backend, grad):
    """Eager gives NaN to queries that see nothing, or the mean of the values, and gradients to match."""

    def run(call):
        leaves = operands(grad)
        result = call(*leaves, hidden(dead))
        return [result, *(torch.autograd.grad(result, leaves, torch.ones_like(result).cumsum(-1)) if grad else ())]

    form, events = make(number), []
    compiled = dynacompile.compile(form, backend=backend, isolate_recompiles=True, options={"attention_scores": 1})
    end = dynacompile.subscribe(events.append)
    have, want = run(compiled), run(form)
    end()
    (kernel,) = [e for e in events if isinstance(e, AttentionFound)]
    assert kernel.kernel == (make is not biased or not grad)
    assert kernel.kernel or kernel.reason == "a bias may hide all keys of a query, whose gradients torch's operator has otherwise"
    for one, other in zip(have, want, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert bool(want[0].isnan().any()) == (dead and number == -math.inf)


def test_masks_that_are_known_to_show_a_key_need_no_more():
    def banded(q, k, v):
        distance = torch.arange(ROWS)[:, None] - torch.arange(ROWS)
        return (q @ k.mT).masked_fill((distance < 0) | (distance > 2), -math.inf).softmax(-1) @ v

    graph, found, read = differentiated(banded, *operands())
    assert found[0][0] and read == ["kept"]
    assert not any("any" in str(n.target) for n in graph.graph.nodes)
    made = differentiated(filled(-math.inf), *operands(), hidden())[0]
    assert any("any" in str(n.target) for n in made.graph.nodes)


def test_one_program_serves_all_lengths():
    dynacompile.reset()
    compiled = dynacompile.compile(triangle, backend="aot_eager", dynamic=True, options={"attention_scores": 1})
    for rows in (6, 9, 17, 2, 33):
        q, k, v = operands(sizes=(2, 3, rows, 8))
        torch.testing.assert_close(compiled(q, k, v), triangle(q, k, v))


def test_gradients_of_gradients_are_the_written_form():
    compiled = dynacompile.compile(plain, backend="aot_eager", isolate_recompiles=True, options={"attention_scores": 1})
    results = []
    for call in (compiled, plain):
        leaves = operands(dtype=torch.float64)
        grads = torch.autograd.grad(call(*leaves).sin().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum((g * g).sum() for g in grads), leaves))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("together", [
    lambda t: t.transpose(1, 2).contiguous().view(BATCH, ROWS, -1), lambda t: t.transpose(1, 2).reshape(BATCH, ROWS, -1),
    lambda t: t.permute(0, 2, 1, 3).flatten(2),
])  # fmt: skip
def test_heads_that_are_put_together_are_not_copied(together):
    """The operator's result lies in memory as the heads put together would."""
    graph = differentiated(lambda q, k, v: together(plain(q, k, v)), *heads_of_rows())[0]
    assert not any("clone" in str(n.target) or "copy" in str(n.target) for n in graph.graph.nodes)
    graph = differentiated(lambda q, k, v: plain(q, k, v).view(BATCH, -1), *heads_of_rows())[0]
    assert any("clone" in str(n.target) for n in graph.graph.nodes), "views go by eager's strides"


def heads_of_rows():
    return [t.transpose(1, 2) for t in operands(sizes=(BATCH, ROWS, HEADS, WIDTH))]


@pytest.mark.parametrize("first", [False, True], ids=["sequence first", "batch first"])
@pytest.mark.parametrize("used", ["result", "weights"])
def test_the_layer_of_torch(first, used):
    """It computes weights by default, which few read."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=first)

    def form(x):
        made, weights = layer(x, x, x)
        return (made, weights) if used == "weights" else made

    x = torch.randn(2, 6, 32)
    graph, found, _ = differentiated(form, x)
    assert found == ([(False, "the layer's weights are read")] if used == "weights" else [(True, "torch's operator needs no memory for the scores")])
    assert len(kernels(graph)) == (used == "result")
    compiled = dynacompile.compile(form, isolate_recompiles=True, options={"attention_scores": 1})
    results = []
    for call in (compiled, form):
        layer.zero_grad()
        made = call(x)
        (made[0] if used == "weights" else made).sin().sum().backward()
        results.append([made if used == "result" else made[0], *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("given", "reason"), [
    ({"attn_mask": torch.zeros(6, 6)}, "the layer has a mask, which may hide all keys of a query"),
    ({"key_padding_mask": torch.zeros(2, 6, dtype=torch.bool)}, "the layer has a mask, which may hide all keys of a query"),
    ({"need_weights": False}, None),
])  # fmt: skip
def test_what_keeps_the_layer_of_torch(given, reason):
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    found = differentiated(lambda x: layer(x, x, x, **given)[0], torch.randn(2, 6, 32))[1]
    assert found == ([] if reason is None else [(False, reason)])
    if reason is None:
        dropped = nn.MultiheadAttention(32, 4, dropout=0.1)
        assert differentiated(lambda x: dropped(x, x, x)[0], torch.randn(2, 6, 32))[1] == [(False, "dropout draws random numbers, which must be eager's")]


def test_many_that_stay_are_traced_twice_at_most(monkeypatch):
    traced, module = [], sys.modules["dynacompile.autograd.differentiate"]
    real = module.trace_joint
    monkeypatch.setattr(module, "trace_joint", lambda *args, **kwargs: traced.append(1) or real(*args, **kwargs))
    model = Attending(6, "bias", True)
    found = differentiated(model, torch.zeros(2, 16, 32), torch.ones(2, 16))[1]
    assert [kernel for kernel, _ in found] == [False] * 6
    assert len(traced) == 2


def test_explained():
    told = str(dynacompile.explain(triangle, isolate_recompiles=True, options={"attention_scores": 1})(*operands()))
    assert "written attentions that run the operator of torch, 1: torch's operator needs no memory for the scores" in told
    assert "masks of attention, 1: causal" in told


class Attending(nn.Module):
    """Layers over one mask: a padding mask of an input, expanded or not, or a band. by_hand: not by torch's operator."""

    def __init__(self, layers, mask, by_hand):
        super().__init__()
        self.mask, self.by_hand = mask, by_hand
        self.layers = nn.ModuleList(nn.Linear(32, 96) for _ in range(layers))

    def forward(self, x, padding):
        (batch, rows, _), seen = x.shape, padding[:, None, None, :].bool()
        if self.mask == "band":
            distance = torch.arange(rows)[:, None] - torch.arange(rows)
            seen = ((distance >= 0) & (distance < 3))[None, None]
        if self.mask in ("expanded", "bias"):
            seen = seen.expand(batch, 1, rows, rows)
        bias = torch.where(seen, 0.0, torch.finfo(x.dtype).min)
        for layer in self.layers:
            q, k, v = (t.view(batch, rows, 4, 8).transpose(1, 2) for t in layer(x).chunk(3, -1))
            if self.by_hand:
                scores = (q @ k.transpose(-1, -2)) / math.sqrt(8)
                scores = scores + bias if self.mask == "bias" else scores.masked_fill(~seen, -math.inf)
                made = F.softmax(scores, -1) @ v
            else:
                made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias if self.mask == "bias" else seen)
            x = x + made.transpose(1, 2).reshape(batch, rows, 32)
        return x


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["operator", "by hand"])
@pytest.mark.parametrize("mask", ["padding", "expanded", "bias", "band"])
def test_a_mask_of_all_layers_is_made_once(mask, by_hand, grad):
    made = []
    for layers in (2, 12):
        model = Attending(layers, mask, by_hand).requires_grad_(grad)
        graph, found, _ = differentiated(model, torch.zeros(2, 16, 32), torch.ones(2, 16))
        calls = kernels(graph)
        by_kernel = not by_hand or found[0][0]
        assert by_kernel == (not (by_hand and grad and mask == "bias")), "a bias of an input may hide all keys"
        assert len([n for n in calls if "flash" in str(n.target)]) == layers * by_kernel
        assert len({n.kwargs.get("attn_mask") for n in calls}) == by_kernel
        plan = schedule(lower(graph, ENV), ENV)
        launches = [s.kernel for s in plan.steps if isinstance(s, Launch)]
        if by_kernel:
            of_layers = ("mul", "add")  # means of the values, and what a layer adds to its operand
            made.append([n for n in launches if "any" in n or "bitwise" in n or ("where" in n and not any(op in n for op in of_layers))])
    assert not made or (made[0] == made[1] and len(made[0]) == 1), "the kernels that make masks do not grow with the layers"


class Block(nn.Module):
    """A layer as small language models write it, with its triangle as a buffer."""

    def __init__(self, width=32, heads=4, length=16):
        super().__init__()
        self.heads, self.inner, self.outer = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, c // self.heads).transpose(1, 2) for t in self.inner(self.norm(x)).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :n, :n] == 0, float("-inf"))
        weights = self.drop(F.softmax(scores, dim=-1))
        return x + self.outer((weights @ v).transpose(1, 2).contiguous().view(b, n, c))


@pytest.mark.parametrize("training", [False, True])
def test_layers(training):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).train(training)
    events = []
    compiled = dynacompile.compile(model, isolate_recompiles=True, options={"attention_scores": 1})
    end = dynacompile.subscribe(events.append)
    results = []
    for call in (compiled, model):
        model.zero_grad()
        torch.manual_seed(1)
        made = call(torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(2)))
        made.sin().sum().backward()
        results.append([made, *(p.grad for p in model.parameters())])
    end()
    assert {e.kernel for e in events if isinstance(e, AttentionFound)} == {not training}
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
