"""Programs whose differentiation is compared with eager: name -> Program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tests.autograd.recording import autocast


@dataclass(frozen=True)
class Program:
    """fn is called with prepare(*leaves) (or the leaves); gradients are compared on the leaves."""

    fn: Callable
    leaves: Callable[[], Sequence[object]]
    prepare: Callable | None = None
    tolerance: float | None = None


PROGRAMS: dict[str, Program] = {}


def rand(*shape, grad=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + 17 * len(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def program(*leaves, prepare=None, tolerance=None):
    """Adds the function; leaves: shapes (no gradient), ("g", *shape) (with gradient), or callables."""

    def make():
        return [leaf() if callable(leaf) else rand(*leaf[1:], grad=True) if leaf and leaf[0] == "g" else rand(*leaf) for leaf in leaves]

    def add(fn):
        PROGRAMS[fn.__name__] = Program(fn, make, prepare, tolerance)
        return fn

    return add


def integers(high, *shape):
    return lambda: torch.arange(torch.Size(shape).numel()).mul(7).remainder(high).reshape(shape)


@program((5, 8), ("g", 16, 8), ("g", 16), ("g", 3, 16), ("g", 3))
def mlp(x, w1, b1, w2, b2):
    return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


@program(("g", 2, 6, 8), ("g", 8), ("g", 8), ("g", 24, 8), ("g", 24), ("g", 8, 8), ("g", 8), ("g", 32, 8), ("g", 32), ("g", 8, 32), ("g", 8), tolerance=1e-4)
def gpt_block(x, g1, c1, wq, bq, wo, bo, w1, b1, w2, b2):
    h = F.layer_norm(x, (8,), g1, c1)
    q, k, v = F.linear(h, wq, bq).split(8, dim=2)
    q, k, v = (t.view(2, 6, 2, 4).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(2, 6, 8)
    x = x + F.linear(y, wo, bo)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (8,), g1, c1), w1, b1), approximate="tanh"), w2, b2)


@program(("g", 2, 5, 8), ("g", 8, 8), tolerance=1e-4)
def attention_by_hand(x, w):
    q = (x @ w).view(2, 5, 2, 4).transpose(1, 2)
    scores = (q @ q.transpose(-2, -1)) / 2.0
    mask = torch.tril(torch.ones(5, 5))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return (F.softmax(scores, dim=-1) @ q).transpose(1, 2).reshape(2, 5, 8)


@program(("g", 2, 3, 8, 8), ("g", 4, 3, 3, 3), ("g", 4), ("g", 4), ("g", 4), (4,), lambda: torch.ones(4), tolerance=1e-4)
def conv_batch_norm_train(x, w, b, g, c, mean, var):
    y = F.batch_norm(F.conv2d(x, w, b, padding=1), mean, var, g, c, training=True, momentum=0.1)
    return F.max_pool2d(F.relu(y), 2)


@program(("g", 2, 3, 8, 8), ("g", 4, 3, 3, 3), ("g", 4), ("g", 4), (4,), lambda: torch.ones(4), tolerance=1e-4)
def conv_batch_norm_eval(x, w, g, c, mean, var):
    return F.adaptive_avg_pool2d(F.batch_norm(F.conv2d(x, w), mean, var, g, c, training=False), 1).flatten(1)


@program(("g", 2, 4, 3), ("g", 4), ("g", 4), tolerance=1e-4)
def batch_norm_without_statistics(x, g, c):
    return F.batch_norm(x, None, None, g, c, training=True)


@program(("g", 2, 4, 5), ("g", 4), ("g", 4), tolerance=1e-4)
def group_norm(x, g, c):
    return F.group_norm(x, 2, g, c)


@program(("g", 3, 6), ("g", 6))
def rms_norm(x, w):
    return F.rms_norm(x, (6,), w, 1e-6)


@program(("g", 4, 6))
def dropout_none(x):
    return F.dropout(x * 2, 0.0, training=True).sin()


@program(("g", 40, 6))
def dropout_half(x):
    return F.dropout(F.dropout(x, 0.5).exp(), 0.3, training=True)


@program(("g", 3, 4, 5))
def dropout_of_permuted(x):
    y = F.dropout(x.permute(2, 0, 1).exp(), 0.5)
    x = x.detach()
    return y, torch.bernoulli(x.permute(2, 0, 1), 0.3), torch.empty_like(x.transpose(0, 1)).normal_(1, 2), torch.rand_like(x.mT)


@program(("g", 8))
def unused_random_numbers(x):
    torch.rand(5)
    return x * torch.rand(8)


@program(("g", 10, 4), integers(10, 2, 3))
def tied_embedding(table, tokens):
    return F.linear(F.embedding(tokens, table).tanh(), table)


@program(("g", 10, 4), integers(10, 6), integers(10, 6), tolerance=1e-4)
def language_loss(table, tokens, targets):
    return F.cross_entropy(F.linear(F.embedding(tokens, table), table), targets)


@program(("g", 6, 5), lambda: torch.tensor([0, 4, -100, 2, -100, 1]), ("g", 5), prepare=lambda x, t, w: (x, t, w.detach().abs()), tolerance=1e-4)
def cross_entropy_weighted(x, t, w):
    return F.cross_entropy(x, t, weight=w), F.cross_entropy(x, t, reduction="sum"), F.cross_entropy(x, t, reduction="none", label_smoothing=0.1)


@program(("g", 2, 5, 3, 4), integers(5, 2, 3, 4), tolerance=1e-4)
def cross_entropy_images(x, t):
    return F.cross_entropy(x, t)


@program(("g", 4, 5), (4, 5), tolerance=1e-4)
def regression_losses(x, t):
    return F.mse_loss(x, t), F.l1_loss(x, t), F.smooth_l1_loss(x, t, beta=0.5), F.huber_loss(x, t, delta=0.7), F.mse_loss(x, t, reduction="none")


@program(("g", 4, 5), lambda: torch.rand(4, 5), (5,), tolerance=1e-4)
def binary_losses(x, t, w):
    t = t.sigmoid()  # probabilities, as the losses ask for
    log_likelihood = F.kl_div(x.log_softmax(-1), t, reduction="batchmean")
    return F.binary_cross_entropy_with_logits(x, t, pos_weight=w.abs()), F.binary_cross_entropy(x.sigmoid(), t), log_likelihood


@program(("g", 4, 6))
def relu_in_place(x):
    return (x * 2).relu_() + 1


@program(("g", 4, 6), prepare=lambda x: (x * 1,))
def input_mutated_under_grad(x):
    x.mul_(3)
    return x.sin()


@program(("g", 4, 6), prepare=lambda x: (x * 1,))
def mutated_input_returned(x):
    x.add_(1).mul_(2)
    return x, x.view(6, 4), x.sum()


@program(("g", 4), (4,))
def buffer_updated(x, buffer):
    with torch.no_grad():
        buffer.mul_(0.9).add_(x, alpha=0.1)
    return x * buffer


@program(("g", 4), (4,), lambda: torch.zeros((), dtype=torch.int64))
def buffer_saved_before_its_update(x, buffer, steps):
    y = x * buffer
    steps.add_(1)
    z = x.exp() * buffer.clone()
    return y + 1, z, steps


@program(("g", 4), (4,))
def buffer_gets_a_gradient(x, buffer):
    buffer.copy_(x * 2)
    return buffer.sum()


@program((6, 4), (6, 4))
def buffer_slices_written(x, cache):
    cache[2:4] = x[2:4] * 2
    cache[:, 0].add_(1)
    return cache.sum(), x


@program(("g", 4), (4,))
def parameter_step(w, g):
    with torch.no_grad():
        w.sub_(g * 0.1)
    return g * 2


@program(("g", 3, 4))
def views_returned(x):
    return x.t(), x.view(12), x[1:], x.detach(), x


@program(("g", 3, 4, 4, 2))
def view_is_multiplied_after_it_was_written(x):
    """Its strides decide whether the product reads it as a matrix, or a copy of it."""
    whole = x.clone()
    turned = whole.transpose(0, -1)
    whole[:1].mul_(0.5)
    turned.masked_fill_(turned > 0.5, 0.2)
    return turned @ turned.transpose(-1, -2), whole.flatten()


@program(("g", 3, 4, 2))
def reshaped_view_is_written_after_it_was(x):
    """What reshape gives of it is a copy in eager, so the second write does not reach the first tensor."""
    whole = x.clone()
    turned = whole.transpose(0, -1)
    turned.mul_(2)
    flat = turned.reshape(-1)
    flat.add_(1)
    return whole, turned, flat


@program(("g", 3, 4), prepare=lambda x: (x[1:].t(),))
def views_of_a_view(x):
    return x[1:], x.t() * 2


@program(("g", 3, 4))
def outputs_share_memory(x):
    y = x.exp()
    return y, y[0], y.t(), y.detach()


@program(("g", 3, 4))
def parts_share_memory(x):
    a, b = (x * 2).split(2, dim=1)
    return a, b, a * 1


@program(("g", 4))
def expanded_output(x):
    return (x * 2).expand(3, 4), x.sum().expand(2)


@program(("g", 4, 4))
def slice_of_intermediate(x):
    return x.exp()[:, 1:3], x.cos().t()


@program(("g", 4), ("g", 4))
def no_grad_part(x, w):
    with torch.no_grad():
        scale = x.abs().mean() + w
    return x * scale, scale


@program(("g", 4))
def enable_grad_inside(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return y, z


@program(("g", 4), ("g", 4))
def detached(x, w):
    y = (x * w).detach()
    return y * w, y.sin()


@program(("g", 4), ("g", 4), (4,))
def outputs_without_gradient(x, w, b):
    return x.argmax(), x > 0, b * 2, x * w, 3, None


@program(("g", 4), ("g", 4))
def input_unused(x, w):
    return x * 2


@program(("g", 4), ("g", 4))
def equal_outputs_stay_apart(x, w):
    return x.exp(), x.exp(), x.exp().view(2, 2), x.clone()


@program(("g", 4, 6), ("g", 8, 6), ("g", 8), tolerance=2e-2)
def autocast_linear(x, w, b):
    with autocast():
        y = F.linear(x, w, b)
        z = F.softmax(y, dim=-1)
    return y, z * 2


def half(*shape):
    return lambda: rand(*shape, grad=True, dtype=torch.bfloat16)


@program(half(6, 8), half(8), half(8, 8), tolerance=5e-2)
def bfloat16_norm_softmax(x, w, m):
    return F.softmax(F.layer_norm(x @ m, (8,), w), dim=-1)


@program(("g", 3, 4), lambda: 2.5)
def number_input(x, s):
    return x * s


@program(("g", 3, 4))
def activations(x):
    smooth = (F.silu, F.hardswish, F.mish, F.softplus, F.elu, F.logsigmoid, F.selu, F.gelu, F.glu)
    pieces = (F.hardsigmoid, F.leaky_relu, F.hardtanh, F.hardshrink, F.softshrink, F.relu6)
    return [f(x) for f in (*smooth, *pieces)]


@program(("g", 3, 4), ("g", 1))
def prelu(x, w):
    return F.prelu(x, w)


@program(("g", 3, 4))
def statistics(x):
    return x.var(), x.std(dim=1), x.norm(), x.norm(dim=0), x.logsumexp(1), x.max(dim=1).values, x.amin(0), x.prod(), torch.var_mean(x, 0)


@program(("g", 3, 4))
def shapes(x):
    a, b = x.chunk(2, dim=1)
    rows = x.unbind(0)
    joined = torch.stack([a, b]), torch.cat([rows[0], rows[2]]), x.repeat(2, 1)
    return joined, x[:, None].expand(3, 2, 4).sum(1), x.diagonal() * 2, x.roll(1, 0), F.pad(x, (1, 2)), x[:, ::2] * 1


@program(("g", 5, 4), integers(5, 3), integers(4, 5, 2))
def indexing(x, i, j):
    added = x.clone().index_add(0, i, x[:3]), x.clone().scatter_add(1, j, x[:, :2])
    return x[i], x.index_select(0, i), x.gather(1, j), added, x.sort(dim=0).values, x.topk(2).values


@program(("g", 3, 4))
def written_through_views(x):
    y = x * 2
    y[0].mul_(2)
    y[:, 1] = 0
    y.view(-1)[3:5].add_(x[0, :2])
    return y, y.sum()


@program(("g", 4))
def hidden_mutation(x):
    y = x * 2
    x.detach().add_(1)
    return y, x * 3


@program(("g", 4, 3, 2), ("g", 5, 2), ("g", 5), prepare=lambda x, w, b: (x.permute(1, 0, 2), w, b))
def linear_of_permuted(x, w, b):
    return F.linear(x, w, b), x.reshape(-1).sin()


@program(("g", 2, 3, 6, 6), ("g", 4, 3, 3, 3), prepare=lambda x, w: (x.to(memory_format=torch.channels_last), w), tolerance=1e-4)
def convolution_channels_last(x, w):
    return F.conv2d(x, w, padding=1).relu()


@program(("g", 4), prepare=lambda x: (x, x))
def same_input_twice(x, y):
    return x * y + x


@program((4,), prepare=lambda x: (x, x))
def same_input_twice_and_mutated(x, y):
    x.add_(1)
    return y * 2


@program(("g", 4))
def constant_returned(x):
    c = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return c, c * x, torch.tensor(2.0)


@program(("g", 4))
def decomposition_that_gives_its_argument(x):
    return F.layer_norm(x, (4,), torch.ones(4), x)


@program(("g", 4), ("g", 4))
def inputs_returned(x, y):
    return x, y, x, x + y


@program(("g", 2, 5, 8), ("g", 24, 8), ("g", 24), ("g", 8, 8), ("g", 8), tolerance=1e-4)
def multi_head_attention(x, w, b, wo, bo):
    x = x.transpose(0, 1)
    y, weights = F.multi_head_attention_forward(x, x, x, 8, 2, w, b, None, None, False, 0.0, wo, bo, training=True)
    return y, weights


@program(("g", 2, 4, 5, 4), (5, 5), tolerance=1e-4)
def attention_with_mask(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask), F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)


@program(("g", 3, 4))
def stride_zero_tangent(x):
    return (x * 2).sum(), (x * 3).mean(0).sum()


@program(("g", 3, 4), ("g", 4))
def scalar_powers(x, w):
    bounded = x.clamp(-0.5, 0.5), x.clamp_min(0.1), torch.where(x > 0, x, w), torch.maximum(x, w)
    return x.abs().pow(1.5) + x**2 + 2.0**w, bounded, x.abs().sqrt().lerp(w, 0.3)


@program(("g", 4), ("g", 4), ("g", 4))
def foreach(a, b, c):
    with torch.no_grad():
        torch._foreach_mul_([a, b], 0.5)
        torch._foreach_addcmul_([a, b], [c, c], [c, c], value=0.1)
        norms = torch._foreach_norm([a, b])
    return norms


@program((4,), (4,))
def inference(x, w):
    return x * w, (x + w).view(2, 2)


@program(("g", 2, 3, 6), ("g", 5, 3, 2), tolerance=1e-4)
def convolution_1d(x, w):
    return F.avg_pool1d(F.conv1d(x, w, stride=2), 2), F.interpolate(x, scale_factor=2)


@program(("g", 3, 4), ("g", 4))
def constants(x, w):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(0.5), (x * torch.ones(4) + torch.zeros(4)) * w, torch.arange(3)
