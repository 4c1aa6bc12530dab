"""nn.Module trees, trained for two steps each by check's two calls."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import check


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, layers=2, width=16, vocabulary=32, context=12):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


class Residuals(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        for _name, layer in self.layers.items():
            x = x + layer(x) * self.scale
        return x


class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.fc(x))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.last = None

    def forward(self, x):
        y = self.fc(x)
        self.last = y.detach()
        return y


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)


class Derived(Base):
    factor = 3.0

    @property
    def doubled(self):
        return self.factor * 2

    @staticmethod
    def shift(x):
        return x + 1

    def forward(self, x):
        return self.shift(super().forward(x) * self.doubled)


def seeded(make):
    torch.manual_seed(1)
    return make()


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("make", [Mlp, Residuals, Dropout, Derived, Counter])
def test_small_modules(make):
    check(seeded(make), x(5, 8), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [Mlp, Dropout])
def test_eval(make):
    check(seeded(make).eval(), x(5, 8), rtol=1e-4, atol=1e-5)


def test_input_gradient():
    check(seeded(Mlp), x(5, 8).requires_grad_(), rtol=1e-4, atol=1e-5)


def test_block():
    check(seeded(Block), x(2, 12, 16).requires_grad_(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_gpt(training):
    tokens = torch.randint(0, 32, (2, 12), generator=torch.Generator().manual_seed(0))
    check(seeded(Gpt).train(training), tokens, tokens.roll(-1, 1), rtol=1e-4, atol=1e-5)


def test_gpt_without_targets():
    check(seeded(Gpt), torch.randint(0, 32, (2, 12), generator=torch.Generator().manual_seed(0)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_conv_net(training):
    check(seeded(ConvNet).train(training), x(2, 3, 16, 16), rtol=1e-3, atol=1e-4)


def test_sequential():
    check(nn.Sequential(seeded(Mlp), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(-1)), x(5, 8), rtol=1e-4, atol=1e-5)


def test_forward_hook():
    model = seeded(Mlp)
    model.fc1.register_forward_hook(lambda module, args, out: out * 2)
    check(model, x(5, 8), rtol=1e-4, atol=1e-5, graphs=None)


def test_frozen_parameters():
    model = seeded(Mlp)
    model.fc1.weight.requires_grad_(False)
    check(model, x(5, 8), rtol=1e-4, atol=1e-5)


def test_module_as_argument():
    check(lambda m, t: m(t).sum(), seeded(Mlp), x(5, 8), rtol=1e-4, atol=1e-5)


def test_transformer_encoder_layer():
    check(seeded(lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)), x(2, 6, 16), rtol=1e-4, atol=1e-5, graphs=None)
