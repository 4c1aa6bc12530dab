"""Architectures of several families, written out small: each is one graph, in eval and in train mode, with eager's gradients and buffers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.checking import check


class Residual(nn.Module):
    def __init__(self, channels, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.BatchNorm2d(channels),
        )
        self.short = nn.Identity() if stride == 1 else nn.AvgPool2d(2)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.ModuleList([Residual(8), Residual(8, 2), Residual(8, 2)])
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x, seen = self.stem(x), []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            seen.append(x.mean((2, 3)) * (i + 1))
        return {"logits": self.head(sum(seen)), "pyramid": seen}


class LoopedLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cells = nn.Embedding(20, 8), nn.ModuleList([nn.LSTMCell(8, 8) for _ in range(2)])
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(8, 20)

    def forward(self, ids, state=None):
        x = self.embed(ids)
        states = state or [(x.new_zeros(x.shape[0], 8), x.new_zeros(x.shape[0], 8)) for _ in self.cells]
        outputs = []
        for step in x.unbind(1):
            for layer, cell in enumerate(self.cells):
                states[layer] = h, _ = cell(step, states[layer])
                step = self.drop(h)
            outputs.append(self.out(step))
        return torch.stack(outputs, 1), states


class Experts(nn.Module):
    """Top-k routing with a load-balancing loss, each expert on all tokens."""

    def __init__(self, width=8, experts=4, chosen=2):
        super().__init__()
        self.gate, self.chosen, self.load = nn.Linear(width, experts, bias=False), chosen, None
        self.experts = nn.ModuleDict({f"expert_{i}": nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)) for i in range(experts)})
        self.register_buffer("counts", torch.zeros(experts))

    def forward(self, x):
        weights, picks = self.gate(x).softmax(-1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        masks = F.one_hot(picks, len(self.experts)).to(x.dtype)
        with torch.no_grad():
            self.counts += masks.sum((0, 1, 2))
        self.load = masks.mean((0, 1, 2)).var()
        shares = (masks * weights.unsqueeze(-1)).sum(-2)
        return x + sum(shares[..., i, None] * expert(x) for i, expert in enumerate(self.experts.values()))


class MixtureStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Experts(), nn.LayerNorm(8), Experts())

    def forward(self, x):
        out = self.layers(x)
        return out, sum(m.load for m in self.modules() if isinstance(m, Experts))


def timestep_embedding(t, width):
    freqs = torch.exp(-math.log(1e4) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * freqs
    return torch.cat([angles.cos(), angles.sin()], -1)


class Block(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.norm, self.conv, self.time = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1), nn.Linear(16, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, t):
        return self.skip(x) + self.conv(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]


class DiffusionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.down = nn.ModuleList([Block(8, 8), Block(8, 16)])
        self.middle = Block(16, 16)
        self.up = nn.ModuleList([Block(32, 8), Block(16, 8)])

    def forward(self, x, t):
        t, skips, x = F.silu(timestep_embedding(t, 16)), [], self.stem(x)
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1), t)
        assert not skips
        return self.out(x)


class Attention(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.q, self.kv, self.out, self.heads = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width), heads

    def forward(self, x, memory=None, *, causal=False, cache=None):
        memory = x if memory is None else memory
        q, (k, v) = self.q(x), self.kv(memory).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        if cache is not None:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache.update(k=k, v=v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width=16, crossed=False):
        super().__init__()
        self.attend, self.cross = Attention(width), Attention(width) if crossed else None
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, width))

    def forward(self, x, memory=None, **options):
        x = x + self.attend(self.norms[0](x), **options)
        if self.cross is not None and memory is not None:
            x = x + self.cross(self.norms[1](x), memory)
        return x + self.mlp(self.norms[2](x))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.zeros(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(2)), nn.Linear(16, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Translator(nn.Module):
    """An encoder and a decoder that share their embedding with the output layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.out.weight = self.embed.weight
        self.encoder, self.decoder = nn.Sequential(Layer(), Layer()), nn.ModuleList([Layer(crossed=True) for _ in range(2)])

    def forward(self, source, target):
        memory, x = self.encoder(self.embed(source)), self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, causal=True)
        logits = self.out(x)
        return logits, nn.CrossEntropyLoss(label_smoothing=0.1)(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())


class GraphNet(nn.Module):
    """Messages along edges, summed at their targets."""

    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(12, 6), nn.GRUCell(6, 6)

    def forward(self, x, edges):
        for _ in range(2):
            sent = self.message(torch.cat([x[edges[0]], x[edges[1]]], -1)).relu()
            x = self.update(torch.zeros_like(x).index_add(0, edges[1], sent), x)
        return x.sum(0)


class StateSpace(nn.Module):
    """A selective scan, step by step, behind a causal depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.into, self.out = nn.Conv1d(8, 8, 3, padding=2, groups=8), nn.Linear(8, 8 + 2 * 4), nn.Linear(8, 8)
        self.rate = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(8, 1))

    def forward(self, x):
        x = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        step, b, c = self.into(x).split([8, 4, 4], -1)
        step, state, outputs = F.softplus(step), x.new_zeros(x.shape[0], 8, 4), []
        for i in range(x.shape[1]):
            decay = torch.exp(step[:, i, :, None] * -self.rate.exp())
            state = decay * state + (step[:, i] * x[:, i])[..., None] * b[:, i, None]
            outputs.append((state * c[:, i, None]).sum(-1))
        return self.out(torch.stack(outputs, 1))


def ids(*shape):
    return torch.arange(math.prod(shape)).reshape(shape) * 7 % 20


CASES = {
    "residual convolutions": lambda: (ConvNet(), torch.randn(2, 3, 8, 8)),
    "looped LSTM": lambda: (LoopedLstm(), ids(2, 4)),
    "mixture of experts": lambda: (MixtureStack(), torch.randn(2, 3, 8)),
    "diffusion U-Net": lambda: (DiffusionNet(), torch.randn(2, 1, 8, 8), torch.tensor([1, 500])),
    "vision transformer": lambda: (VisionTransformer(), torch.randn(2, 3, 8, 8)),
    "encoder and decoder": lambda: (Translator(), ids(2, 5), ids(2, 4)),
    "graph network": lambda: (GraphNet(), torch.randn(4, 6), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])),
    "state space": lambda: (StateSpace(), torch.randn(2, 5, 8)),
}


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_one_graph(name, train):
    torch.manual_seed(0)
    model, *inputs = CASES[name]()
    check(model.train(train), *inputs, options={"backend": "eager"}, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mixture of experts", "encoder and decoder"])
def test_kernels(name):
    torch.manual_seed(0)
    model, *inputs = CASES[name]()
    check(model.eval(), *inputs, rtol=1e-4, atol=1e-5)


def test_growing_cache():
    """A decoder layer that is called token by token: its cache has a new length each time."""
    layer = Layer().eval()

    def decode(layer, tokens):
        cache, outputs = {"k": tokens.new_zeros(1, 2, 0, 8), "v": tokens.new_zeros(1, 2, 0, 8)}, []
        for token in tokens.split(1, 1):
            outputs.append(layer(token, cache=cache))
        return torch.cat(outputs, 1), cache["k"].shape

    check(decode, layer, torch.randn(1, 4, 16), options={"backend": "eager"}, rtol=0, atol=0)
