"""More of what researchers write around a model: loops over time, policies, preferences, samplers of tokens, precision and optimizers of their own."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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


@pytest.mark.parametrize("name", MADE)
def test_step(name):
    check_step(MADE[name])
