"""Idioms around models: registries, enums, patterns, dispatch, layered settings, inner loops, actors and critics, each one graph and equal to eager's."""

from __future__ import annotations

import abc
import copy
import enum
import functools
import itertools
import math
import operator
from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.checking import check
from tests.programs.steps import check_step, mlp, r

MADE: dict = {}


def program(make):
    """A step, by its name."""
    MADE[make.__name__] = make
    return make


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


class Reduction(str, enum.Enum):  # noqa: UP042  (as configurations have them)
    MEAN = "mean"
    SUM = "sum"
    NONE = "none"


@program
def enum_modes():
    def step(x, mode, red):
        y = x * 2 if mode is Mode.TRAIN else x * 3
        if red == Reduction.MEAN:
            y = y.mean()
        elif red == "sum":
            y = y.sum()
        return F.mse_loss(y, y.detach() * 0, reduction=Reduction.NONE.value), mode.value, f"{red.value}/{mode.name}"

    return step, lambda i: (r(3, 4).requires_grad_(), list(Mode)[i % 2], list(Reduction)[i % 3]), []


class Block(nn.Module):
    registry = {}

    def __init_subclass__(cls, name=None, **kw):
        super().__init_subclass__(**kw)
        Block.registry[name or cls.__name__.lower()] = cls

    @classmethod
    def build(cls, name, *a, **k):
        return cls.registry[name](*a, **k)


class Residual(Block, name="res"):
    def __init__(self, w=4):
        super().__init__()
        self.f = nn.Linear(w, w)

    def forward(self, x):
        return x + self.f(x)


class Gated(Block):
    def __init__(self, w=4):
        super().__init__()
        self.f = nn.Linear(w, 2 * w)

    def forward(self, x):
        a, b = self.f(x).chunk(2, -1)
        return a * b.sigmoid()


@program
def registry_of_blocks():
    net = nn.Sequential(*(Block.build(n) for n in ("res", "gated", "res")))

    def step(x):
        feats = OrderedDict()
        for i, (_name, layer) in enumerate(net.named_children()):
            x = layer(x)
            feats[f"{type(layer).__name__}_{i}"] = x
        return feats, sum(v.pow(2).mean() for v in feats.values())

    return step, lambda i: (r(2, 4),), [net]


@program
def hooks_that_collect_features():
    net = mlp()
    got = {}

    def save(name):
        def hook(m, inp, out):
            got[name] = out.detach().norm()

        return hook

    for n, m in net.named_modules():
        if isinstance(m, nn.Linear):
            m.register_forward_hook(save(n))

    def step(x):
        got.clear()
        y = net(x)
        return y.mean(), dict(got)

    return step, lambda i: (r(2, 4),), [net]


@program
def checkpointed_blocks():
    blocks = nn.ModuleList([mlp() for _ in range(3)])

    def step(x):
        for b in blocks:
            x = checkpoint(b, x, use_reentrant=False)
        return x.sum()

    return step, lambda i: (r(2, 4),), [blocks]


@program
def sharpness_aware():
    net = mlp()

    def step(x):
        params = dict(net.named_parameters())

        def loss(p):
            return torch.func.functional_call(net, p, (x,)).pow(2).mean()

        g = torch.autograd.grad(loss(params), list(params.values()))
        n = torch.sqrt(sum(v.pow(2).sum() for v in g)) + 1e-12
        moved = {k: p + 0.05 * v / n for (k, p), v in zip(params.items(), g)}
        return loss(moved)

    return step, lambda i: (r(2, 4),), [net]


@program
def maml_inner_loop():
    net = mlp()

    def step(xs, ys, xq, yq, lr=0.1):
        params = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(net, params, xs), ys)
            grads = torch.autograd.grad(loss, params.values(), create_graph=True)
            params = {k: p - lr * g for (k, p), g in zip(params.items(), grads)}
        return F.mse_loss(torch.func.functional_call(net, params, xq), yq)

    return step, lambda i: (r(2, 4), r(2, 4), r(2, 4), r(2, 4)), [net]


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor | None = None
    extras: dict = field(default_factory=dict)

    def __getitem__(self, k):
        return getattr(self, k) if isinstance(k, str) else list(vars(self).values())[k]

    @property
    def total(self):
        return self.loss + sum(self.extras.values(), torch.zeros(()))


@program
def dataclass_outputs():
    net = mlp()

    def step(x):
        out = Output(loss=net(x).mean(), extras={"l2": sum(p.pow(2).sum() for p in net.parameters()) * 1e-3})
        out = replace(out, logits=net(x))
        return out.total, out["logits"], out[0], {f.name for f in fields(out)} == {"loss", "logits", "extras"}

    return step, lambda i: (r(2, 4),), [net]


def flatten(tree, prefix=()):
    for k, v in tree.items():
        if isinstance(v, dict):
            yield from flatten(v, (*prefix, k))
        else:
            yield "/".join((*prefix, k)), v


@program
def nested_metrics():
    def step(x):
        tree = {"train": {"loss": x.mean(), "grad": {"norm": x.norm()}}, "lr": 0.1}
        flat = dict(flatten(tree))
        best = max((k for k in flat if k != "lr"), key=len)
        return flat, best, sorted(flat, key=lambda k: (-len(k), k))

    return step, lambda i: (r(3).requires_grad_(),), []


@program
def partial_losses_and_operators():
    losses = [functools.partial(F.huber_loss, delta=0.5), functools.partial(F.l1_loss, reduction="sum"), lambda a, b: (a - b).abs().amax()]

    def step(a, b):
        vals = [f(a, b) for f in losses]
        return functools.reduce(operator.add, (w * v for w, v in zip(itertools.count(1), vals)))

    return step, lambda i: (r(3).requires_grad_(), r(3)), []


@program
def match_on_config():
    def act(cfg):
        match cfg:
            case {"kind": "relu"}:
                return F.relu
            case {"kind": "leaky", "slope": s}:
                return lambda v: F.leaky_relu(v, s)
            case str(name) if hasattr(torch, name):
                return getattr(torch, name)
            case (f, *rest):
                return lambda v: functools.reduce(lambda acc, g: act(g)(acc), (f, *rest), v)
            case None:
                return lambda v: v

    def step(x):
        out = [act(c)(x) for c in ({"kind": "relu"}, {"kind": "leaky", "slope": 0.1}, "tanh", ("sigmoid", {"kind": "relu"}), None)]
        return torch.stack(out).sum(0)

    return step, lambda i: (r(3).requires_grad_(),), []


@program
def swa_and_lookahead():
    net = mlp()
    slow = [p.detach().clone() for p in net.parameters()]
    n = torch.zeros(())

    def step(x, sync):
        loss = net(x).pow(2).mean()
        gs = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), gs):
                p -= 0.1 * g
            if sync:
                for s, p in zip(slow, net.parameters(), strict=True):
                    s.add_(0.5 * (p - s))
                    p.copy_(s)
            n.add_(1)
        return loss.detach(), n

    return step, lambda i: (r(2, 4), i % 2 == 1), [net]


@program
def masked_language_model():
    emb = nn.Embedding(10, 4)
    head = nn.Linear(4, 10)
    head.weight = emb.weight

    def step(ids):
        special = (ids == 0) | (ids == 1)
        probs = torch.full(ids.shape, 0.3).masked_fill(special, 0)
        masked = torch.bernoulli(probs).bool()
        labels = torch.where(masked, ids, torch.full_like(ids, -100))
        ids = ids.masked_fill(masked & torch.bernoulli(torch.full(ids.shape, 0.8)).bool(), 2)
        return F.cross_entropy(head(emb(ids)).transpose(1, 2), labels, ignore_index=-100, reduction="sum")

    return step, lambda i: (torch.randint(10, (2, 5)),), [emb, head]


@program
def ctc_like_dp():
    def step(lp, n):
        T, S = lp.shape
        a = [lp.new_full((S,), -1e4)]
        a[0] = torch.where(torch.arange(S) < 1, lp[0], a[0])
        for t_ in range(1, T):
            prev = a[-1]
            shifted = F.pad(prev[:-1], (1, 0), value=-1e4)
            a.append(torch.logaddexp(prev, shifted) + lp[t_])
        return -torch.stack(a)[n - 1, -1]

    return step, lambda i: (r(5, 3).requires_grad_(), 4), []


@program
def scan_ssm():
    A = nn.Parameter(-torch.rand(4))
    B = nn.Parameter(r(4))
    C = nn.Parameter(r(4))

    def step(x, dt):
        dA = (dt[..., None] * A).exp()
        dBx = dt[..., None] * B * x[..., None]
        h = torch.zeros(x.shape[0], 4)
        ys = []
        for i in range(x.shape[1]):
            h = dA[:, i] * h + dBx[:, i]
            ys.append((h * C).sum(-1))
        return torch.stack(ys, 1)

    return step, lambda i: (r(2, 5), torch.rand(2, 5)), [A, B, C]


@program
def graph_network():
    lin = nn.Linear(8, 4)
    upd = nn.GRUCell(4, 4)

    def step(h, edges):
        src, dst = edges
        m = F.relu(lin(torch.cat([h[src], h[dst]], -1)))
        agg = torch.zeros_like(h).scatter_add(0, dst[:, None].expand_as(m), m)
        deg = torch.zeros(h.size(0)).index_add_(0, dst, torch.ones(len(dst))).clamp_(min=1)
        mx = torch.full_like(h, -1e9).scatter_reduce(0, dst[:, None].expand_as(m), m, "amax", include_self=True)
        return upd(agg / deg[:, None], h), mx.clamp(min=-1)

    return step, lambda i: (r(4, 4), torch.randint(4, (2, 6))), [lin, upd]


@program
def abstract_strategy():
    class Strategy(abc.ABC):
        @abc.abstractmethod
        def weight(self, t): ...
        def __call__(self, x, t):
            return x * self.weight(t)

        @staticmethod
        def clip(v, lo=0.0, hi=1.0):
            return max(lo, min(hi, v))

    class Linear(Strategy):
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

        def weight(self, t):
            return self.clip(self.a * t)

    class Expo(Linear):
        def weight(self, t):
            return 1 - math.exp(-super().weight(t))

    both = (Linear(0.1), Expo(0.3))
    return (lambda x, t_: torch.stack([s(x, t_) for s in both]).sum()), lambda i: (r(3).requires_grad_(), i), []


@functools.singledispatch
def norm_of(v):
    raise TypeError(type(v))


@norm_of.register
def _(v: torch.Tensor):
    return v.norm()


@norm_of.register(list)
def _(v):
    return sum(norm_of(i) for i in v)


@norm_of.register
def _(v: dict):
    return {k: norm_of(i) for k, i in v.items()}


@program
def single_dispatch():
    return (lambda x: norm_of({"a": x, "b": [x, x * 2]})), lambda i: (r(3).requires_grad_(),), []


@program
def kv_dict_chainmap():
    base = {"lr": 0.1, "wd": 0.01}

    def step(x, **over):
        c = ChainMap(over, base)
        return x * c["lr"] + c.get("wd", 0), dict(c), "lr" in over

    return (lambda x, i: step(x, **({"lr": 0.2} if i % 2 else {}))), lambda i: (r(3), i), []


@program
def token_packing():
    def step(ids, eos):
        ends = (ids == eos).int()
        doc = ends.cumsum(-1) - ends
        same = doc[:, :, None] == doc[:, None, :]
        causal = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool).tril()
        start = torch.where(F.pad(ends[:, :-1], (1, 0), value=1).bool(), torch.arange(ids.shape[-1]), 0).cummax(-1).values
        return same & causal, torch.arange(ids.shape[-1]) - start

    return step, lambda i: (torch.randint(4, (2, 6)), 0), []


@program
def property_cached_masks():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(4, 4)
            self._masks = {}

        def mask(self, n):
            if n not in self._masks:
                self._masks[n] = torch.ones(n, n).tril()
            return self._masks[n]

        @functools.cached_property
        def scale(self):
            return 1 / math.sqrt(self.w.in_features)

        def forward(self, x):
            s = (self.w(x) @ x.transpose(-1, -2)) * self.scale
            return (s.masked_fill(self.mask(x.shape[1]) == 0, -1e9)).softmax(-1) @ x

    m = M()
    return m, lambda i: (r(2, 3, 4),), [m]


@program
def unet_skips():
    d = nn.ModuleList([nn.Conv2d(1, 2, 3, padding=1, stride=2), nn.Conv2d(2, 4, 3, padding=1, stride=2)])
    u = nn.ModuleList([nn.ConvTranspose2d(4, 2, 2, 2), nn.ConvTranspose2d(4, 1, 2, 2)])

    def step(x, t_):
        skips = []
        emb = torch.cat([f(t_[:, None] * torch.exp(torch.arange(2) * -1.0)) for f in (torch.sin, torch.cos)], -1)
        for l in d:
            skips.append(x)
            x = F.silu(l(x))
        x = x + emb[:, :, None, None]
        for l in u:
            x = l(x)
            s = skips.pop()
            x = torch.cat([x, s], 1) if skips else x + s
        return x

    return step, lambda i: (r(2, 1, 8, 8), torch.rand(2)), [d, u]


@program
def vae_and_kl_annealing():
    enc, dec = nn.Linear(4, 4), nn.Linear(2, 4)

    def step(x, beta, *, sample=True):
        mu, logv = enc(x).chunk(2, -1)
        q = torch.distributions.Normal(mu, (0.5 * logv).exp(), validate_args=False)
        z = q.rsample() if sample else mu
        kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu), validate_args=False)).sum(-1)
        return (F.mse_loss(dec(z), x, reduction="none").sum(-1) + beta * kl).mean(), {"kl": kl.mean().detach()}

    return step, lambda i: (r(3, 4), min(1.0, i / 2)), [enc, dec]


@program
def gumbel_and_reinforce():
    net = nn.Linear(4, 3)
    base = torch.zeros(())

    def step(x, reward, tau):
        logits = net(x)
        y = F.gumbel_softmax(logits, tau=tau, hard=True)
        lp = (logits.log_softmax(-1) * y.detach()).sum(-1)
        with torch.no_grad():
            base.lerp_(reward.mean(), 0.1)
        return (-(reward - base.clone()) * lp).mean() + (y * torch.arange(3)).sum()

    return step, lambda i: (r(3, 4), r(3), torch.tensor(0.5)), [net]


@program
def soft_actor_critic():
    pi = nn.Linear(4, 4)
    qs = nn.ModuleList([nn.Linear(6, 1) for _ in range(2)])
    tq = copy.deepcopy(qs).requires_grad_(False)
    la = nn.Parameter(torch.zeros(()))

    def act(o):
        m, s = pi(o).chunk(2, -1)
        s = s.clamp(-5, 2).exp()
        e = torch.randn_like(m)
        a = m + s * e
        lp = (-0.5 * e**2 - s.log() - 0.5 * math.log(2 * math.pi)).sum(-1) - (2 * (math.log(2) - a - F.softplus(-2 * a))).sum(-1)
        return a.tanh(), lp

    def step(o, a, rew, o2, done):
        with torch.no_grad():
            a2, lp2 = act(o2)
            v = torch.min(*(q(torch.cat([o2, a2], -1)).squeeze(-1) for q in tq)) - la.exp() * lp2
            y = rew + 0.99 * (1 - done) * v
        lq = sum(F.mse_loss(q(torch.cat([o, a], -1)).squeeze(-1), y) for q in qs)
        an, lp = act(o)
        lpi = (la.exp().detach() * lp - torch.min(*[q(torch.cat([o, an], -1)).squeeze(-1) for q in qs])).mean()
        lalpha = -(la * (lp.detach() - 2)).mean()
        with torch.no_grad():
            for p, t2 in zip(qs.parameters(), tq.parameters()):
                t2.data.mul_(0.99).add_(p.data, alpha=0.01)
        return lq + lpi + lalpha

    return step, lambda i: (r(3, 4), r(3, 2), r(3), r(3, 4), torch.zeros(3)), [pi, qs, la]


@pytest.mark.parametrize("name", MADE)
def test_step(name):
    check_step(MADE[name])


class Shown(Mapping):
    def __init__(self, content):
        self.content = content

    def __getitem__(self, key):
        return self.content[key]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)


class Keyed:
    def keys(self):
        return ["aa", "b"]

    def __getitem__(self, key):
        return key * 2


def into_dicts(x, made):
    def named(**kwargs):
        return kwargs

    filled = {"aa": 5}
    filled.update(made, q=2)
    return x + 1, dict(made), {**made}, dict(made, z=1), filled, named(**made)


MAPPINGS = {
    "ChainMap": lambda: ChainMap({"lr": 0.1}, {"wd": 2}),
    "UserDict": lambda: UserDict(ab=1, cd=2),
    "proxy": lambda: MappingProxyType({"ab": 1}),
    "Mapping": lambda: Shown({"ab": 1, "cd": 3}),
    "keys alone": lambda: Keyed(),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_mapping_becomes_a_dict(name):
    """Its keys are asked for, though its elements are pairs of letters: of one that the frame makes, and of one that it is given."""
    check(lambda x: into_dicts(x, MAPPINGS[name]()), torch.ones(2), options={"backend": "eager"})
    made = MAPPINGS[name]()
    check(lambda x: into_dicts(x, made), torch.ones(2), options={"backend": "eager"})
