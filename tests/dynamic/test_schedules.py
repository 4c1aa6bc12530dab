"""Numbers that a schedule sets: how many entries a function has for them that takes another one in each call."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled, GraphBroke, Scheduled
from dynacompile.ir import passed_forms
from dynacompile.ops.passed_numbers import PASSING, Given, passing

NUMBERS = (0.1, 0.25, 0.4, 0.55)
EACH = len(NUMBERS)
X = torch.linspace(-1.5, 2.0, 24).view(2, 3, 4)
CLASSES, SIGNS = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])


def rows(x):
    return x.view(6, 4)


def pairs(x):
    return rows(x), rows(x).flip(0)


def triple(x):
    return rows(x), rows(x) * 2, rows(x).flip(0)


def empty(x):
    return torch.empty_like(x, requires_grad=False)


def attend(x, **given):
    return F.scaled_dot_product_attention(x[None], x[None], x[None], **given)


def attend_by_hand(x, v):
    return F.dropout((x @ x.mT * v).softmax(-1), v) @ x


def heads(x, v, training=True):
    weights = torch.ones(12, 4) / 3
    return F.multi_head_attention_forward(x, x, x, 4, 2, weights, None, None, None, False, v, torch.eye(4), None, training=training)[0]


def embed(x, v):
    return F.embedding(CLASSES, rows(x).detach().clone(), max_norm=v) + rows(x)


def averaged(x, v):
    mean, var = x.new_zeros(3), x.new_ones(3)
    return F.batch_norm(x, mean, var, training=True, momentum=v, eps=v / 2), mean, var


DRAWS = {
    "dropout": lambda x, v: F.dropout(x, v),
    "dropout in place": lambda x, v: F.dropout(x * 2, v, inplace=True),
    "dropout of channels last": lambda x, v: F.dropout(x[None].to(memory_format=torch.channels_last), v),
    "torch.dropout": lambda x, v: torch.dropout(x, v, True),
    "native_dropout": lambda x, v: torch.native_dropout(x, v, True)[0],
    "dropout1d": lambda x, v: F.dropout1d(x, v),
    "dropout2d": lambda x, v: F.dropout2d(x[None], v),
    "dropout3d": lambda x, v: F.dropout3d(x[None, None], v),
    "dropout2d in evaluation": lambda x, v: F.dropout2d(x[None], v, False),
    "alpha_dropout": lambda x, v: F.alpha_dropout(x, v, training=True),
    "alpha_dropout in evaluation": lambda x, v: F.alpha_dropout(x, v),
    "feature_alpha_dropout": lambda x, v: F.feature_alpha_dropout(x, v, training=True),
    "attention, dropout": lambda x, v: attend(x, dropout_p=v),
    "attention by hand": attend_by_hand,
    "layer of attention": heads,
    "layer of attention in evaluation": lambda x, v: heads(x, v, False),
    "normal_": lambda x, v: x + empty(x).normal_(v, 2 * v),
    "normal_, deviation": lambda x, v: x + empty(x).normal_(std=v),
    "normal_, one number twice": lambda x, v: x + empty(x).normal_(v, v),
    "normal_ of another order": lambda x, v: x + torch.empty(3, 2, 4).transpose(0, 1).normal_(0, v),
    "uniform_": lambda x, v: x + empty(x).uniform_(-v, 2 * v),
    "uniform_, one bound": lambda x, v: x + empty(x).uniform_(v, 0.75),
    "bernoulli_": lambda x, v: x + empty(x).bernoulli_(v),
    "bernoulli": lambda x, v: x + torch.bernoulli(x.detach(), v),
    "exponential_": lambda x, v: x + empty(x).exponential_(v),
    "log_normal_": lambda x, v: x + empty(x).log_normal_(v, v),
    "cauchy_": lambda x, v: x + empty(x).cauchy_(v, v),
    "geometric_": lambda x, v: x + empty(x).geometric_(v),
    "normal of a size": lambda x, v: x + torch.normal(v, 2 * v, (2, 3, 4)),
    "normal around a tensor": lambda x, v: torch.normal(x.detach(), v) * x,
    "normal as far as a tensor": lambda x, v: torch.normal(v, x.detach().abs()) * x,
    "init.normal_": lambda x, v: x + nn.init.normal_(torch.empty(2, 3, 4), 0.0, v),
    "init.xavier_normal_": lambda x, v: x + nn.init.xavier_normal_(torch.empty(3, 4), gain=v),
    "init.kaiming_uniform_": lambda x, v: x + nn.init.kaiming_uniform_(torch.empty(3, 4), a=v),
    "gumbel_softmax": lambda x, v: F.gumbel_softmax(x, tau=v),
    "rrelu": lambda x, v: F.rrelu(x, v / 2, v, training=True),
    "depth": lambda x, v: x * torch.empty(2, 1, 1).bernoulli_(1 - v).div_(1 - v),
    "compared with draws": lambda x, v: x * (torch.rand(2, 1, 1) < v),
    "Normal, sampled": lambda x, v: x + torch.distributions.Normal(0.0, v).sample((4,)),
    "Bernoulli, sampled": lambda x, v: x + torch.distributions.Bernoulli(v).sample((4,)),
    "Exponential, sampled": lambda x, v: x + torch.distributions.Exponential(v).sample((4,)),
    "Gamma, sampled": lambda x, v: x + torch.distributions.Gamma(v, 2.0).sample((4,)),
    "Uniform": lambda x, v: x + torch.distributions.Uniform(-v, v).sample((4,)),
}

TRAINING = {
    "layer_norm": lambda x, v: F.layer_norm(x, (4,), x[0, 0] * 2, x[0, 1], v),
    "group_norm": lambda x, v: F.group_norm(x, 3, eps=v),
    "rms_norm": lambda x, v: F.rms_norm(x, (4,), eps=v),
    "batch_norm": lambda x, v: F.batch_norm(x, None, None, training=True, eps=v),
    "batch_norm, momentum": averaged,
    "batch_norm in evaluation": lambda x, v: F.batch_norm(x, x.new_zeros(3), x.new_ones(3), eps=v),
    "instance_norm": lambda x, v: F.instance_norm(x, eps=v),
    "local_response_norm": lambda x, v: F.local_response_norm(x, 2, alpha=v, k=v + 1),
    "normalize": lambda x, v: F.normalize(x, eps=v),
    "attention, scale": lambda x, v: attend(x, scale=v),
    "attention, scale, causal": lambda x, v: attend(x, scale=v, is_causal=True),
    "attention, scale, by products": lambda x, v: F.scaled_dot_product_attention(x, x, x, scale=v),
    "embedding": embed,
    "cosine_similarity": lambda x, v: F.cosine_similarity(*pairs(x), eps=v),
    "pairwise_distance": lambda x, v: F.pairwise_distance(*pairs(x), eps=v),
    "cdist": lambda x, v: torch.cdist(rows(x), rows(x) + 1, p=v + 1),
    "pdist": lambda x, v: F.pdist(rows(x), p=v + 1),
    "triplet_margin_loss": lambda x, v: F.triplet_margin_loss(*triple(x), margin=v, eps=v / 2),
    "triplet_margin_with_distance_loss": lambda x, v: F.triplet_margin_with_distance_loss(*triple(x), margin=v),
    "margin_ranking_loss": lambda x, v: F.margin_ranking_loss(rows(x)[:, 0], rows(x)[:, 1] ** 2, SIGNS, margin=v),
    "cosine_embedding_loss": lambda x, v: F.cosine_embedding_loss(*pairs(x), SIGNS, margin=v),
    "hinge_embedding_loss": lambda x, v: F.hinge_embedding_loss(rows(x)[:, 0], SIGNS, margin=v),
    "multi_margin_loss": lambda x, v: F.multi_margin_loss(rows(x), CLASSES, margin=v),
    "poisson_nll_loss": lambda x, v: F.poisson_nll_loss(x.exp(), x.detach().abs(), log_input=False, eps=v),
    "gaussian_nll_loss": lambda x, v: F.gaussian_nll_loss(x, x.detach() * 2, x.exp(), eps=v),
    "huber_loss": lambda x, v: F.huber_loss(x, x.detach() ** 2, delta=v),
    "smooth_l1_loss": lambda x, v: F.smooth_l1_loss(x, x.detach() ** 2, beta=v),
    "cross_entropy, smoothing": lambda x, v: F.cross_entropy(rows(x), CLASSES, label_smoothing=v),
    "cross_entropy, weights": lambda x, v: F.cross_entropy(rows(x), CLASSES, weight=torch.tensor([1.0, v, 1.0, 2 * v])),
    "weight of positives": lambda x, v: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), pos_weight=torch.tensor([v])),
    "kl_div": lambda x, v: F.kl_div(F.log_softmax(x / v, -1), F.softmax(x.detach() / v, -1), reduction="batchmean") * v * v,
    "focal": lambda x, v: ((1 - x.sigmoid()) ** v * F.logsigmoid(x)).mean(),
    "quantile": lambda x, v: (torch.quantile(x, v), x.quantile(v, dim=1, keepdim=True), torch.quantile(x, q=v, dim=-1, interpolation="higher")),
    "nanquantile": lambda x, v: torch.nanquantile(x, v, dim=1),
    "quantiles": lambda x, v: torch.quantile(x, torch.tensor([v, 1 - v])),
    "clipped by norm": lambda x, v: x * torch.clamp(v / (torch.linalg.vector_norm(x) + 1e-6), max=1.0),
    "foreach_lerp_": lambda x, v: torch._foreach_lerp_([torch.zeros(2, 3, 4)], [x.detach()], v),
    "mixed": lambda x, v: v * x + (1 - v) * x.flip(0),
}

OTHERS = {
    "celu": lambda x, v: F.celu(x, v),
    "elu": lambda x, v: F.elu(x, v),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v),
    "softplus": lambda x, v: F.softplus(x, v + 1, 20 * v),
    "threshold": lambda x, v: F.threshold(x, v, v / 2),
    "rrelu in evaluation": lambda x, v: F.rrelu(x, v / 2, v),
    "softshrink": lambda x, v: F.softshrink(x, v),
    "hardshrink": lambda x, v: F.hardshrink(x, v),
    "logit": lambda x, v: torch.logit(x.sigmoid(), v / 3) + torch.special.logit(x.sigmoid(), eps=v / 4),
    "nan_to_num": lambda x, v: torch.nan_to_num(x.log(), nan=v) + x.log().nan_to_num(v, neginf=-v),
    "clamp": lambda x, v: torch.clamp(x, -v, v) + (x * 1).clamp_(v) + x.clip(max=v),
    "full": lambda x, v: x + torch.full((4,), v) + torch.full_like(x, v) + x.new_full((4,), v) + torch.empty(4).fill_(v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v) + torch.addcdiv(x, x, x.exp(), value=v),
    "linspace": lambda x, v: x + torch.linspace(-v, v, 4) + torch.logspace(-v, v, 4),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "pad halves": lambda x, v: F.pad(x.bfloat16(), (1, 2), value=v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "masked_fill of halves": lambda x, v: x.bfloat16().masked_fill(x > 0, v),
    "pow": lambda x, v: x.exp() ** v,
    "base": lambda x, v: v**x + torch.pow(v, x),
    "float_power": lambda x, v: torch.float_power(x.exp(), v),
    "renorm": lambda x, v: torch.renorm(x, 2, 0, v),
    "xlogy": lambda x, v: torch.special.xlogy(x.exp(), v) + torch.xlogy(v, x.exp()),
    "where": lambda x, v: torch.where(x > 0, x, v) + torch.where(x > 0, v, 2 * v),
    "isclose": lambda x, v: x * torch.isclose(x, x * 1.2, rtol=v) * torch.isclose(x, x * 1.2, atol=v),
    "tensor": lambda x, v: x * torch.tensor([v, 1 - v, v * 2, 0.5]) + torch.tensor([[v], [1], [2]]) + torch.as_tensor(v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(1, 3, 4, dtype=torch.long), v),
    "products": lambda x, v: torch.baddbmm(x[:, :, :3], x, x.transpose(1, 2), beta=v, alpha=v),
    "fake_quantize": lambda x, v: torch.fake_quantize_per_tensor_affine(x, v, 0, -8, 7),
    "correction": lambda x, v: torch.std(x, -1, correction=v),
    "Normal": lambda x, v: torch.distributions.Normal(0.0, v).log_prob(x) + torch.distributions.Normal(x, v).log_prob(x * 2),
}

CONSTANTS = {
    "order of a norm": lambda x, v: torch.norm(x, v + 1, dim=-1),
    "order of a distance": lambda x, v: F.pairwise_distance(*pairs(x), p=v + 1),
    "order of renorm": lambda x, v: torch.renorm(x, v + 1, 0, 1.0),
    "base of logspace": lambda x, v: x + torch.logspace(0, 1, 4, base=1 + v),
    "exponents of lists": lambda x, v: torch._foreach_pow([x.exp()], v)[0],
    "interpolated": lambda x, v: F.interpolate(x, scale_factor=1 + v / 100, mode="linear", recompute_scale_factor=False),
}
"""An entry for each number: torch computes with the number in Python or C++, by cases, or sizes follow from it."""


def close_to(got, want, what):
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda message: f"{what}: {message}")


def compared(fn, numbers=NUMBERS, backend="aot_eager", x=X, **options):
    """Calls with each number, and compares results, gradients and random states with eager's; gives the events."""
    compiled, events = dynacompile.compile(fn, isolate_recompiles=True, backend=backend, **options), []
    end = dynacompile.subscribe(events.append)
    try:
        for v in numbers:
            found = []
            for function in (fn, compiled):
                torch.manual_seed(3)
                random.seed(7)
                leaf = x.clone().requires_grad_()
                made = function(leaf, v)
                outputs = [made] if isinstance(made, torch.Tensor) else [*made]
                loss = sum(t.float().sum() for t in outputs if t.requires_grad)
                if isinstance(loss, torch.Tensor):
                    loss.backward()
                found.append([t.detach() for t in (*outputs, leaf.grad, torch.rand(2)) if t is not None])
            for want, got in zip(*found, strict=True):
                close_to(got, want, f"{v}")
    finally:
        end()
    assert not [e for e in events if isinstance(e, GraphBroke)]
    return events


def entries(events):
    return sum(isinstance(e, Compiled) for e in events)


@pytest.mark.whole
@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    assert entries(compared(DRAWS[name])) == 2


@pytest.mark.whole
@pytest.mark.parametrize("name", TRAINING)
def test_losses_and_norms(name):
    assert entries(compared(TRAINING[name])) == 2


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    assert entries(compared(OTHERS[name])) == 2


FIXED_EXPONENTS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)  # of _foreach_pow, whose argument is a symbol since torch 2.15


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_that_are_constants(name):
    found = entries(compared(CONSTANTS[name]))
    assert found == EACH or (name == "exponents of lists" and found == 2 and not FIXED_EXPONENTS)


LAUNCHED = {**DRAWS, **TRAINING, **OTHERS}
MORE = {"cross_entropy, weights", "quantiles", "base", "tensor", "weight of positives", "Uniform", "Normal", "products"}
MORE |= {name for name in DRAWS if name.endswith("sampled")}
"""Where the number is written into a tensor, or torch's rule for it is another one."""


@pytest.mark.parametrize("name", sorted(LAUNCHED.keys() - MORE))
def test_kernels_are_those_of_constants(name):
    """One more is the sum of results, where the first number was left out."""
    events = compared(LAUNCHED[name], NUMBERS[:2], "default", options={"reference": True})
    first, second = (i for i, e in enumerate(events) if isinstance(e, Compiled))
    of_one, of_many = ([e for e in part if isinstance(e, Scheduled)] for part in (events[: first + 1], events[first + 1 : second + 1]))
    count = lambda programs: sum(len(p.calls) + sum(k[1] for k in p.kernels) for p in programs)  # noqa: E731
    assert count(of_many) <= count(of_one)


BUILT = ["dropout", "dropout2d", "alpha_dropout", "attention, dropout", "normal_", "uniform_", "layer_norm", "attention, scale", "attention, scale, causal"]


@pytest.mark.parametrize("name", [*BUILT, "huber_loss", "quantile", "pad", "masked_fill", "tensor", "cdist"])
def test_built(name):
    assert entries(compared(LAUNCHED[name], backend="default")) == 2


SIZED = [
    "dropout",
    "dropout2d",
    "alpha_dropout",
    "normal_",
    "uniform_",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "attention, scale",
    "normalize",
    "nan_to_num",
]


@pytest.mark.parametrize("name", SIZED)
def test_beside_symbolic_sizes(name):
    fn, events = LAUNCHED[name], []
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=True, options={"reference": True})
    end = dynacompile.subscribe(events.append)
    try:
        for n, v in enumerate(NUMBERS, 2):
            x = torch.linspace(-1.5, 2.0, 12 * n).view(n, 3, 4)
            torch.manual_seed(n)
            want = fn(x, v)
            torch.manual_seed(n)
            close_to(compiled(x, v), want, f"{n}")
    finally:
        end()
    assert entries(events) == 1


HALVES = [
    "dropout",
    "alpha_dropout",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "attention, scale",
    "huber_loss",
    "smooth_l1_loss",
    "celu",
    "normalize",
    "nan_to_num",
]


def compared_with_constants(fn, x):
    """As `compared`, of rounded numbers, where a program with the number as a constant is the oracle."""
    options = {"isolate_recompiles": True, "options": {"reference": True}}
    compiled = dynacompile.compile(fn, **options)
    for v in NUMBERS[:3]:
        found = []
        for call in (dynacompile.compile(lambda x, v=v: fn(x, v), **options), lambda x, v=v: compiled(x, v)):
            torch.manual_seed(3)
            leaf = x.clone().requires_grad_()
            made = call(leaf)
            made.sum().backward()
            found.append((made.detach(), leaf.grad))
        for want, got in zip(*found, strict=True):
            close_to(got, want, f"{v}")
    return dynacompile.cache_entries(compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVES)
def test_half_precision(name, dtype):
    assert len(compared_with_constants(LAUNCHED[name], X.to(dtype))) == 2


AUTOCAST = ["dropout", "layer_norm", "rms_norm", "attention, scale", "cosine_similarity", "cdist", "cosine_embedding_loss", "smooth_l1_loss"]


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast(name):
    def program(x, v):
        with torch.autocast("cpu", torch.bfloat16):
            return LAUNCHED[name](x @ torch.eye(4), v)

    assert len(compared_with_constants(program, X)) == 2


@pytest.mark.parametrize("numbers", [(0.1, 0.25, 0.0, 1.0, 0.5, 0.75), (0, 0.5, 1, 0.25, 0.75)])
@pytest.mark.parametrize("name", ["dropout", "dropout2d", "attention, dropout", "bernoulli_", "dropout in place"])
def test_nothing_and_all(name, numbers):
    """Rates of 0 and 1 are entries of their own."""
    assert entries(compared(LAUNCHED[name], numbers)) <= 4


REFUSED = {
    "dropout": (DRAWS["dropout"], 1.5),
    "attention": (DRAWS["attention, dropout"], -0.5),
    "normal_": (DRAWS["normal_, deviation"], -1.0),
    "uniform_": (DRAWS["uniform_, one bound"], 1.0),
    "bernoulli_": (DRAWS["bernoulli_"], 1.5),
    "exponential_": (DRAWS["exponential_"], -1.0),
    "huber_loss": (TRAINING["huber_loss"], -1.0),
    "smooth_l1_loss": (TRAINING["smooth_l1_loss"], -1.0),
    "triplet_margin_loss": (lambda x, v: F.triplet_margin_loss(*triple(x), margin=v), -1.0),
    "cdist": (lambda x, v: torch.cdist(rows(x), rows(x), p=v), -1.0),
    "celu": (OTHERS["celu"], 0.0),
    "quantile": (TRAINING["nanquantile"], 1.5),
    "Normal": (DRAWS["Normal, sampled"], -1.0),
    "Normal, nothing": (DRAWS["Normal, sampled"], 0.0),
    "Normal, nothing in float32": (DRAWS["Normal, sampled"], 1e-60),
    "Bernoulli": (DRAWS["Bernoulli, sampled"], 1.5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_torch_refuses(name):
    fn, number = REFUSED[name]
    compiled = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True})
    for v in (0.25, 0.5):
        compiled(X, v)
    for call in (fn, compiled):
        with pytest.raises((RuntimeError, ValueError)):
            call(X, number)


@pytest.mark.parametrize("order", [1.0, 2.0, 1.5, math.inf, 0.0])
def test_orders_of_distances_that_have_formulas_of_their_own(order):
    compared(lambda x, v: torch.cdist(rows(x), rows(x) + 1, p=v), (1.25, 1.5, order, 3.0), "default", options={"reference": True})


def test_rates_of_modules():
    """Which a callback sets."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.drop, self.norm = nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.drop(self.linear(x)))

    model = Model()
    compiled, events = dynacompile.compile(model, isolate_recompiles=True, options={"reference": True}), []
    end = dynacompile.subscribe(events.append)
    try:
        for p in (0.5, 0.4, 0.3, 0.2, 0.1):
            model.drop.p = p
            torch.manual_seed(1)
            want = model(X)
            torch.manual_seed(1)
            torch.testing.assert_close(compiled(X), want)
        assert entries(events) == 2
        model.eval()
        for p in (0.5, 0.4, 0.3):
            model.drop.p = p
            torch.testing.assert_close(compiled(X), model(X))
    finally:
        end()
    assert entries(events) <= 4


QUANTILES = {
    "of all": lambda x, v: torch.quantile(x, v),
    "of rows": lambda x, v: x.quantile(v, dim=-1),
    "of columns": lambda x, v: torch.quantile(x, q=v, dim=0, keepdim=True),
    "of all, as large": lambda x, v: torch.quantile(x, v, keepdim=True),
    "several": lambda x, v: torch.quantile(x, torch.tensor([0.25, 0.5]) * v, dim=1, keepdim=True),
    "several of all": lambda x, v: torch.quantile(x, torch.tensor([0.25, 0.5]) * v),
    "among numbers": lambda x, v: torch.nanquantile(x, v, dim=0),
    "among numbers of all": lambda x, v: x.nanquantile(v),
    "one that is known": lambda x, v: torch.quantile(x * v, 0.3, dim=0),
    **{way: lambda x, v, way=way: torch.quantile(x, v, dim=0, interpolation=way) for way in ("lower", "higher", "midpoint", "nearest")},
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_of_symbolic_sizes(name, backend):
    fn, options = QUANTILES[name], {"options": {"reference": True}} if backend == "default" else {}
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=True, backend=backend, **options)
    for n, v in enumerate(NUMBERS, 4):
        found = []
        for call in (fn, compiled):
            x = torch.randn(n, 5, generator=torch.Generator().manual_seed(n))
            x[1, 2] = math.nan
            x.requires_grad_()
            made = call(x, v)
            made.nan_to_num().sum().backward()
            found.append((made.detach(), x.grad))
        for want, got in zip(*found, strict=True):
            close_to(got, want, f"{n}")
    assert len(dynacompile.cache_entries(compiled)) == 1


def test_ints():
    """Of a schedule that counts."""
    assert entries(compared(lambda x, n: F.triplet_margin_loss(*triple(x), margin=n) + F.layer_norm(x, (4,), eps=n).sum(), (1, 2, 3, 4))) <= 2


def test_forms_that_a_row_does_not_know_make_constants(monkeypatch):
    """As where another version of torch computes something else of a number on its way to an operator."""
    monkeypatch.setitem(PASSING, F.celu, passing("input alpha", alpha=Given(apart=(0.0,))))
    monkeypatch.setattr(passed_forms, "known", {})
    compiled = dynacompile.compile(lambda x, v: F.celu(x, v), isolate_recompiles=True, options={"reference": True})
    for v in NUMBERS:
        ours, eagers = (X.clone().requires_grad_() for _ in range(2))
        compiled(ours, v).sum().backward()
        F.celu(eagers, v).sum().backward()
        torch.testing.assert_close(ours.grad, eagers.grad)
    assert len(dynacompile.cache_entries(compiled)) == len(NUMBERS)


def test_each_function_with_a_row_is_known_to_torch():
    assert all(callable(target) or hasattr(torch.Tensor, target) for target in PASSING)
