"""What researchers write around a model: losses, routers, schedules, averages, samplers and small state machines, each one graph and equal to eager's."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.steps import check_step, mlp, r

MADE: dict = {}


def program(make):
    """A step, by its name."""
    MADE[make.__name__] = make
    return make


@program
def ema_update():
    model, average = mlp(), mlp().requires_grad_(False)

    def step(decay):
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters()):
                ours.lerp_(theirs, 1 - decay)
            for ours, theirs in zip(average.buffers(), model.buffers()):
                ours.copy_(theirs)
        return sum(p.sum() for p in average.parameters())

    return step, lambda i: (0.9,), [average]


@program
def teacher_and_student():
    student = mlp()
    teacher = copy.deepcopy(student).eval()
    for p in teacher.parameters():
        p.requires_grad = False

    def step(x, temperature=2.0):
        with torch.no_grad():
            soft = F.softmax(teacher(x) / temperature, -1)
        logits = student(x)
        loss = F.kl_div(F.log_softmax(logits / temperature, -1), soft, reduction="batchmean") * temperature**2
        return loss + 0.1 * F.mse_loss(logits, soft.detach())

    return step, lambda i: (r(3, 4),), [student]


@program
def clipping_by_norm():
    model = mlp()

    def step(x, limit):
        loss = model(x).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        return loss.detach(), norm, [g * scale for g in grads]

    return step, lambda i: (r(3, 4), 0.5), [model]


@dataclass
class Config:
    width: int = 4
    dropout: float = 0.0
    losses: dict = field(default_factory=lambda: {"mse": 1.0, "cosine": 0.5})
    schedule: tuple = (10, 100)

    @property
    def total(self):
        return sum(self.losses.values())


LOSSES = {}


def loss_named(name):
    def register(fn):
        LOSSES[name] = fn
        return fn

    return register


@loss_named("mse")
def mse(a, b):
    return (a - b).pow(2).mean()


@loss_named("cosine")
def cosine(a, b, *, eps=1e-8):
    return 1 - F.cosine_similarity(a, b, dim=-1, eps=eps).mean()


@program
def a_registry_of_losses():
    model, config = mlp(), replace(Config(), dropout=0.1)

    def step(x, y):
        out = model(x)
        parts = {name: weight * LOSSES[name](out, y) for name, weight in config.losses.items()}
        return sum(parts.values()) / config.total, {f"loss/{k}": v.detach() for k, v in sorted(parts.items())}

    return step, lambda i: (r(3, 4), r(3, 4)), [model]


class Cosine:
    """A schedule of one's own."""

    def __init__(self, base, warmup, total):
        self.base, self.warmup, self.total = base, warmup, total

    def __call__(self, step):
        if step < self.warmup:
            return self.base * (step + 1) / self.warmup
        return 0.5 * self.base * (1 + math.cos(math.pi * (step - self.warmup) / (self.total - self.warmup)))


@program
def a_schedule_object():
    weights, schedule = nn.Parameter(torch.ones(4)), Cosine(0.1, 3, 10)

    def step(x, rate):
        loss = (weights * x).pow(2).sum()
        (grad,) = torch.autograd.grad(loss, [weights])
        with torch.no_grad():
            weights.sub_(rate * grad)
        return loss.detach()

    return step, lambda i: (r(4), torch.tensor(schedule(i))), [weights]


@program
def metric_accumulators():
    totals, counts = defaultdict(float), defaultdict(int)

    def step(x, y):
        found = {"loss": (x - y).pow(2).mean(), "accuracy": (x.argmax(-1) == y.argmax(-1)).float().mean()}
        for name, value in found.items():
            totals[name] = totals[name] + value.detach() * x.shape[0]
            counts[name] += 1
        return {name: totals[name] / 3 for name in totals}

    return step, lambda i: (r(3, 4), r(3, 4)), []


class Stopper:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.stopped = patience, torch.tensor(math.inf), torch.tensor(0), False

    def update(self, loss):
        better = loss < self.best
        self.best = torch.where(better, loss, self.best)
        self.bad = torch.where(better, torch.zeros_like(self.bad), self.bad + 1)
        return self.bad >= self.patience


@program
def early_stopping():
    stopper = Stopper(2)
    return lambda x: (stopper.update(x.mean()), stopper.best, stopper.bad), lambda i: (r(3) + i,), []


def rearrange(x, pattern, **sizes):
    """A small einops.rearrange."""
    left, right = (side.replace("(", " ( ").replace(")", " ) ").split() for side in pattern.split("->"))

    def groups(tokens):
        found, inside = [], None
        for token in tokens:
            if token == "(":
                inside = []
            elif token == ")":
                found.append(tuple(inside))
                inside = None
            elif inside is None:
                found.append((token,))
            else:
                inside.append(token)
        return found

    for group, size in zip(groups(left), x.shape):
        unknown = [n for n in group if n not in sizes]
        if unknown:
            sizes[unknown[0]] = size // math.prod(sizes[n] for n in group if n in sizes)
    names = [n for g in groups(left) for n in g]
    x = x.reshape([sizes[n] for n in names])
    order = [n for g in groups(right) for n in g]
    return x.permute([names.index(n) for n in order]).reshape([math.prod(sizes[n] for n in g) for g in groups(right)])


@program
def einops_by_hand():
    def step(x):
        heads = rearrange(x, "b t (h d) -> b h t d", h=2)
        scores = (heads @ heads.transpose(-1, -2)).softmax(-1)
        return rearrange(scores @ heads, "b h t d -> b t (h d)"), rearrange(x, "b (p q) c -> (b p) (q c)", p=3)

    return step, lambda i: (r(2, 6, 4).requires_grad_(),), []


class Experts(nn.Module):
    def __init__(self, count=3, top=2):
        super().__init__()
        self.gate, self.experts, self.top = nn.Linear(4, count), nn.ModuleList([mlp() for _ in range(count)]), top

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.gate(flat).softmax(-1)
        weights, chosen = probs.topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        tokens = torch.arange(flat.shape[0]).repeat_interleave(self.top)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).reshape(-1, 1)
            out = out.index_add(0, tokens, expert(flat[tokens]) * share)
        load = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        return out.view_as(x), len(self.experts) * (load * probs.mean(0)).sum()


@program
def mixture_of_experts():
    model = Experts()

    def step(x):
        out, balance = model(x)
        return out.pow(2).mean() + 0.01 * balance

    return step, lambda i: (r(2, 3, 4),), [model]


class Queue(nn.Module):
    """Momentum contrast: a queue of keys in a buffer."""

    def __init__(self, size=6, width=4):
        super().__init__()
        self.encoder = nn.Linear(width, width)
        self.momentum = copy.deepcopy(self.encoder).requires_grad_(False)
        self.register_buffer("keys", F.normalize(torch.randn(size, width), dim=-1))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, k):
        where = (self.at + torch.arange(k.shape[0])) % self.keys.shape[0]
        self.keys[where] = k
        self.at.copy_((self.at + k.shape[0]) % self.keys.shape[0])

    @torch.no_grad()
    def follow(self, m=0.9):
        for a, b in zip(self.momentum.parameters(), self.encoder.parameters()):
            a.mul_(m).add_(b, alpha=1 - m)

    def forward(self, x, y):
        q = F.normalize(self.encoder(x), dim=-1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.momentum(y), dim=-1)
        logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.keys.clone().T], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        self.enqueue(k)
        return loss


@program
def a_contrastive_queue():
    model = Queue()
    return model, lambda i: (r(2, 4), r(2, 4)), [model]


@program
def info_nce():
    temperature = nn.Parameter(torch.tensor(0.1).log())

    def step(a, b):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        logits = a @ b.T / temperature.exp().clamp(min=1e-2)
        labels = torch.arange(a.size(0), device=a.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return step, lambda i: (r(3, 4).requires_grad_(), r(3, 4)), [temperature]


class Quantizer(nn.Module):
    def __init__(self, count=5, width=4, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(count, width))
        self.register_buffer("sizes", torch.ones(count))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, z):
        distances = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.T + self.codes.pow(2).sum(1)
        index = distances.argmin(1)
        hot = F.one_hot(index, self.codes.shape[0]).type(z.dtype)
        picked = hot @ self.codes
        if self.training:
            with torch.no_grad():
                self.sizes.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums.mul_(self.decay).add_(hot.T @ z, alpha=1 - self.decay)
                self.codes.copy_(self.sums / self.sizes.clamp(min=1e-5).unsqueeze(1))
        commitment = F.mse_loss(z, picked.detach())
        return z + (picked - z).detach(), index, commitment


@program
def straight_through_quantizer():
    encoder, quantizer = nn.Linear(4, 4), Quantizer()

    def step(x):
        z, index, commitment = quantizer(encoder(x))
        return F.mse_loss(z, x) + 0.25 * commitment, index

    return step, lambda i: (r(6, 4),), [encoder, quantizer]


class Diffusion:
    def __init__(self, steps=10):
        self.steps = steps
        betas = torch.linspace(1e-4, 0.2, steps)
        self.alphas_bar = torch.cumprod(1 - betas, 0)
        self.tables = {"signal": self.alphas_bar.sqrt(), "noise": (1 - self.alphas_bar).sqrt()}

    def take(self, name, t, like):
        return self.tables[name].gather(0, t).view(-1, *(1,) * (like.dim() - 1))

    def noised(self, x, t, noise):
        return self.take("signal", t, x) * x + self.take("noise", t, x) * noise


@program
def diffusion_schedule():
    model, diffusion = mlp(), Diffusion()

    def step(x):
        t = torch.randint(0, diffusion.steps, (x.shape[0],))
        noise = torch.randn_like(x)
        snr = diffusion.alphas_bar[t] / (1 - diffusion.alphas_bar[t])
        error = (model(diffusion.noised(x, t, noise)) - noise).pow(2).mean(-1)
        return (error * snr.clamp(max=5.0) / snr).mean()

    return step, lambda i: (r(4, 4),), [model]


@program
def ddim_sampling():
    model, diffusion = mlp().requires_grad_(False), Diffusion()

    def sample(x):
        for t in reversed(range(0, diffusion.steps, 3)):
            a, before = diffusion.alphas_bar[t], diffusion.alphas_bar[t - 3] if t >= 3 else torch.tensor(1.0)
            e = model(x)
            x0 = ((x - (1 - a).sqrt() * e) / a.sqrt()).clamp(-1, 1)
            x = before.sqrt() * x0 + (1 - before).sqrt() * e
        return x

    return sample, lambda i: (r(2, 4),), []


@pytest.mark.parametrize("name", MADE)
def test_step(name):
    check_step(MADE[name])
