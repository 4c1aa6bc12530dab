"""What researchers write around a model: losses, routers, schedules, averages, samplers and small state machines, each one graph and equal to eager's."""

from __future__ import annotations

import copy
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, GraphBroke

MADE: dict = {}


def program(make):
    """make() gives the function of one step, a function that gives its arguments, by the number of the step, and what else to compare."""
    MADE[make.__name__] = make
    return make


def r(*shape, scale=1.0):
    return torch.randn(*shape) * scale


def mlp(width=4):
    return nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))


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


class State(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor


@program
def a_recurrent_loop():
    cell, head = nn.LSTMCell(4, 5), nn.Linear(5, 4)

    def step(xs, state=None):
        state = state or State(xs.new_zeros(xs.shape[1], 5), xs.new_zeros(xs.shape[1], 5))
        outs = []
        for x in xs.unbind(0):
            state = State(*cell(x, state))
            outs.append(head(state.hidden))
        return torch.stack(outs), state

    return step, lambda i: (r(4, 2, 4),), [cell, head]


@program
def truncated_backpropagation():
    cell = nn.GRUCell(4, 4)

    def step(xs):
        h, losses = torch.zeros(xs.shape[1], 4), []
        for i, x in enumerate(xs):
            if i % 2 == 0:
                h = h.detach()
            h = cell(x, h)
            losses.append((h - x).abs().mean())
        return torch.stack(losses).mean()

    return step, lambda i: (r(5, 2, 4),), [cell]


@program
def a_step_of_beam_search():
    embed, out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def step(tokens, scores, done):
        beams = scores.shape[1]
        logp = F.log_softmax(out(embed(tokens[..., -1])), -1)
        logp = logp.masked_fill(done.unsqueeze(-1), float("-inf"))
        logp[..., 0] = torch.where(done, torch.zeros_like(scores), logp[..., 0])
        total = (scores.unsqueeze(-1) + logp).flatten(1)
        scores, picked = total.topk(beams, dim=1)
        parents, words = picked // 7, picked % 7
        tokens = torch.cat([tokens.gather(1, parents.unsqueeze(-1).expand_as(tokens)), words.unsqueeze(-1)], -1)
        return tokens, scores, done.gather(1, parents) | (words == 0)

    return step, lambda i: (torch.randint(7, (2, 3, 2 + i)), r(2, 3), torch.zeros(2, 3, dtype=torch.bool)), [embed]


@program
def sampling_with_penalties():
    def step(logits, seen, temperature=0.8, top=3, p=0.9):
        scores = logits.gather(1, seen)
        logits = logits.scatter(1, seen, torch.where(scores < 0, scores * 1.2, scores / 1.2)) / temperature
        kept = logits.topk(top, -1).values[..., -1, None]
        logits = logits.masked_fill(logits < kept, float("-inf"))
        ordered, index = logits.sort(descending=True)
        drop = ordered.softmax(-1).cumsum(-1) > p
        drop[..., 1:] = drop[..., :-1].clone()
        drop[..., 0] = False
        probs = logits.masked_fill(drop.scatter(1, index, drop), float("-inf")).softmax(-1)
        return probs, torch.multinomial(probs, 1)

    return step, lambda i: (r(2, 8), torch.randint(8, (2, 3))), []


@program
def speculative_sampling():
    def step(draft, target, tokens, u):
        p, q = target.softmax(-1), draft.softmax(-1)
        ratio = (p.gather(-1, tokens[..., None]) / q.gather(-1, tokens[..., None])).squeeze(-1)
        accepted = (u < ratio).int().cumprod(-1)
        count = accepted.sum(-1)
        rest = (p - q).clamp(min=0)
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)
        at = count.clamp(max=tokens.shape[-1] - 1)
        return count, torch.where(accepted.bool(), tokens, -1), rest[torch.arange(len(at)), at].argmax(-1)

    return step, lambda i: (r(2, 3, 5), r(2, 3, 5), torch.randint(5, (2, 3)), torch.rand(2, 3)), []


@program
def lora_by_replaced_forwards():
    model = mlp().requires_grad_(False)
    added = nn.ParameterDict()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            key = name.replace(".", "_")
            added[f"{key}_a"] = nn.Parameter(torch.randn(2, layer.in_features) * 0.1)
            added[f"{key}_b"] = nn.Parameter(torch.zeros(layer.out_features, 2) + 0.01)

            def forward(x, before=layer.forward, key=key):
                return before(x) + (x @ added[f"{key}_a"].T) @ added[f"{key}_b"].T * 0.5

            layer.forward = forward
    return model, lambda i: (r(3, 4),), [added]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = mlp(), nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.actor(h), validate_args=False), self.critic(h).squeeze(-1)


@program
def clipped_policy_loss():
    policy = Policy()

    def step(batch, clip=0.2):
        dist, value = policy(batch["obs"])
        ratio = (dist.log_prob(batch["action"]) - batch["logp"]).exp()
        adv = batch["adv"]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        gain = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
        clipped = batch["value"] + (value - batch["value"]).clamp(-clip, clip)
        miss = torch.max((value - batch["ret"]).pow(2), (clipped - batch["ret"]).pow(2)).mean()
        with torch.no_grad():
            info = {"kl": ((ratio - 1) - ratio.log()).mean(), "clipped": ((ratio - 1).abs() > clip).float().mean()}
        return -gain + 0.5 * miss - 0.01 * dist.entropy().mean(), info

    def batch(i):
        return ({"obs": r(6, 4), "action": torch.randint(3, (6,)), "logp": r(6, scale=0.1) - 1, "adv": r(6), "value": r(6), "ret": r(6)},)

    return step, batch, [policy]


@program
def generalized_advantages():
    def step(rewards, values, dones, gamma=0.99, lam=0.95):
        out, last = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
        for t in reversed(range(rewards.shape[0])):
            alive = 1.0 - dones[t].float()
            delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
            out[t] = last = delta + gamma * lam * alive * last
        return out, out + values[:-1]

    return step, lambda i: (r(4, 2), r(5, 2), torch.rand(4, 2) < 0.3), []


@program
def preference_loss():
    policy, reference = nn.Linear(4, 6), nn.Linear(4, 6).requires_grad_(False)

    def logps(model, x, labels, mask):
        logp = model(x).log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return (logp * mask).sum(-1)

    def step(x, labels, mask, beta=0.1, smoothing=0.05):
        ours = logps(policy, x, labels, mask).chunk(2)
        with torch.no_grad():
            theirs = logps(reference, x, labels, mask).chunk(2)
        chosen, rejected = (a - b for a, b in zip(ours, theirs))
        z = beta * (chosen - rejected)
        loss = -F.logsigmoid(z) * (1 - smoothing) - F.logsigmoid(-z) * smoothing
        return loss.mean(), {"margin": z.detach().mean(), "accuracy": (z > 0).float().mean()}

    return step, lambda i: (r(4, 3, 4), torch.randint(6, (4, 3)), (torch.rand(4, 3) < 0.8).float()), [policy]


@program
def accumulated_gradients():
    model = mlp()

    def step(xs, ys):
        total = 0.0
        for x, y in zip(xs.chunk(3), ys.chunk(3)):
            total = total + F.smooth_l1_loss(model(x), y) / 3
        return total

    return step, lambda i: (r(6, 4), r(6, 4)), [model]


@program
def mixed_precision_without_a_scaler():
    model, norm = mlp(), nn.LayerNorm(4)

    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = norm(model(x))
            with torch.autocast("cpu", enabled=False):
                loss = F.mse_loss(out.float(), y)
        return loss, out.dtype

    return step, lambda i: (r(3, 4), r(3, 4)), [model, norm]


@program
def focal_and_dice():
    def step(logits, target, gamma=2.0, alpha=0.25):
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p = torch.sigmoid(logits)
        pt = p * target + (1 - p) * (1 - target)
        focal = ((alpha * target + (1 - alpha) * (1 - target)) * ce * (1 - pt) ** gamma).mean()
        overlap = 2 * (p * target).flatten(1).sum(-1)
        return focal + (1 - (overlap + 1) / (p.flatten(1).sum(-1) + target.flatten(1).sum(-1) + 1)).mean()

    return step, lambda i: (r(2, 3, 3).requires_grad_(), (torch.rand(2, 3, 3) < 0.4).float()), []


@program
def mixup_and_smoothing():
    model = nn.Linear(4, 5)
    beta = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4))

    def step(x, y):
        lam, order = torch.rand(()), torch.randperm(x.shape[0])
        mixed = lam * x + (1 - lam) * x[order]
        logits = model(mixed)
        loss = lam * F.cross_entropy(logits, y, label_smoothing=0.1) + (1 - lam) * F.cross_entropy(logits, y[order], label_smoothing=0.1)
        return loss, beta.mean

    return step, lambda i: (r(4, 4), torch.randint(5, (4,))), [model]


@program
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def step(real, fake):
        mix = torch.rand(real.shape[0], 1)
        between = mix * real + (1 - mix) * fake
        slope = torch.func.vmap(torch.func.grad(lambda x: critic(x).sum()))(between)
        return critic(fake).mean() - critic(real).mean(), (slope.norm(dim=-1) - 1).pow(2).mean()

    return step, lambda i: (r(3, 4), r(3, 4)), [critic]


@program
def a_window_of_losses():
    window = deque(maxlen=3)

    def step(x):
        window.append(x.mean())
        values = torch.stack(list(window))
        return values.mean(), values.std() if len(window) > 1 else values.sum()

    return step, lambda i: (r(4),), []


@program
def rotary_attention_with_a_cache():
    class Cache:
        def __init__(self):
            self.k, self.v, self.seen = torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8, 4), torch.zeros((), dtype=torch.long)

        def update(self, k, v):
            at = self.seen + torch.arange(k.shape[2])
            self.k.index_copy_(2, at, k)
            self.v.index_copy_(2, at, v)
            self.seen.add_(k.shape[2])
            return self.k, self.v, torch.arange(8) <= at[:, None]

    cache, frequencies = Cache(), 1.0 / 100 ** (torch.arange(0, 4, 2) / 4)

    def rotate(x, positions):
        angles = positions[:, None] * frequencies
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def step(q, k, v):
        positions = cache.seen + torch.arange(q.shape[2])
        q, k = rotate(q, positions), rotate(k, positions)
        keys, values, mask = cache.update(k, v)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    return step, lambda i: (r(1, 2, 2, 4), r(1, 2, 2, 4), r(1, 2, 2, 4)), []


@program
def sinkhorn_matching():
    def step(cost, rounds=5, eps=0.1):
        logs = -cost / eps
        for _ in range(rounds):
            logs = logs - logs.logsumexp(-1, keepdim=True)
            logs = logs - logs.logsumexp(-2, keepdim=True)
        plan = logs.exp()
        return (plan * cost).sum(), plan.argmax(-1)

    return step, lambda i: (r(3, 3).abs().requires_grad_(),), []


@program
def an_optimizer_of_ones_own():
    model = mlp()
    state = {name: {"m": torch.zeros_like(p), "v": torch.zeros_like(p), "step": torch.zeros(())} for name, p in model.named_parameters()}

    def step(x, lr=1e-2, betas=(0.9, 0.99), eps=1e-8):
        loss = model(x).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(model.named_parameters(), grads):
                s = state[name]
                s["step"] += 1
                s["m"].lerp_(g, 1 - betas[0])
                s["v"].mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
                hat = s["m"] / (1 - betas[0] ** s["step"])
                p.addcdiv_(hat, (s["v"] / (1 - betas[1] ** s["step"])).sqrt().add_(eps), value=-lr)
        return loss.detach()

    return step, lambda i: (r(3, 4),), [model]


def leaves(watched):
    return [t for w in watched for t in ((w,) if isinstance(w, torch.Tensor) else (*w.parameters(), *w.buffers()))]


def run(make, wrap):
    """Results, gradients of the arguments and of what is watched, and its values, after each of four steps."""
    torch.manual_seed(0)
    fn, arguments, watched = make()
    call, told, others = wrap(fn), [], []
    for i in range(4):
        torch.manual_seed(i)
        args = arguments(i)
        out = call(*args)
        flat = pytree.tree_leaves(out)
        losses = [t for t in flat if isinstance(t, torch.Tensor) and t.requires_grad]
        if losses:
            sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in losses).backward()
        given = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        seen = [*given, *leaves(watched)]
        others.append([t for t in flat if not isinstance(t, torch.Tensor)])
        told.append(
            (
                [t.detach().clone() for t in flat if isinstance(t, torch.Tensor)],
                [None if t.grad is None else t.grad.clone() for t in seen if t.is_leaf],
                [t.detach().clone() for t in seen],
                torch.get_rng_state(),
            )
        )
    return told, others


@pytest.mark.parametrize("name", MADE)
def test_step(name):
    want, wanted = run(MADE[name], lambda fn: fn)
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        got, others = run(
            MADE[name], lambda fn: dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True})
        )
    finally:
        end()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert others == wanted
    assert [e for e in events if isinstance(e, GraphBroke)] == []
    assert [e for e in events if isinstance(e, Compiled) and e.ops > 0]
