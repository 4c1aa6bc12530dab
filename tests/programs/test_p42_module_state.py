"""Modules that change themselves, look at themselves, make others, or are wrapped: buffers, containers, parametrizations, hooks."""

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn

from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("late", None)

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.mean.clamp_(-1, 1)
        self.seen += 1
        if self.late is None:
            self.late = torch.ones(4)
        self.late[1] += 1
        return x - self.mean + self._buffers["mean"] + self.get_buffer("late") * len(list(self.buffers()))


def test_buffers_are_assigned_and_read_back():
    def story(wrap):
        model = Averaging()
        compiled = wrap(model)
        for _ in range(3):
            yield compiled(arg()), model.mean, model.seen, model.late, list(model.state_dict())

    events = check_same(story)
    assert sum(type(e).__name__ == "Compiled" for e in events) == 2  # `late` is None at first


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.full((4,), 0.5), torch.ones(4)])
        self.named = nn.ParameterDict({"a": torch.full((4,), 0.25), "b": torch.ones(4)})
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"l": nn.Linear(4, 4), "r": nn.ReLU()})
        self.plain = [self.layers[0], nn.Tanh()]

    def forward(self, x):
        for w in self.weights:
            x = x * w
        for name, w in self.named.items():
            x = x + w * len(name) + self.named[name]
        for layer in reversed(self.layers):
            x = layer(x)
        for layer in self.layers[1:]:
            x = layer(x)
        for layer in [*self.table.values(), *self.plain]:
            x = layer(x)
        known = dict(self.named_parameters())
        return x + known["weights.0"] + self.named.a + self.get_submodule("table.l")(x) + sum(p.sum() for p in self.parameters())


class Making(nn.Module):
    def forward(self, x):
        return nn.Softmax(dim=-1)(nn.Sequential(nn.ReLU(), nn.Tanh())(x)) + nn.Identity()(x)


class Forwarding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.inner(x) * self.in_features + self.weight.sum() + ("inner" in self.__dict__)


class Calling(nn.Linear):
    def __call__(self, x, times=2):
        return super().__call__(x) * times


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        self.layer.requires_grad_(False)
        return self.layer(x)


@pytest.mark.parametrize("make", [Containers, Making, Forwarding, Frozen, lambda: Calling(4, 4)])
def test_modules(make):
    torch.manual_seed(0)
    check(make(), arg(), options=EAGER)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


WRAPPED = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "old spectral_norm": nn.utils.spectral_norm,
    "own": lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric()),
}


@pytest.mark.parametrize("wrapped", list(WRAPPED))
@pytest.mark.filterwarnings("ignore")
def test_parametrizations(wrapped):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    WRAPPED[wrapped](model[0])
    check(model, arg(), options=EAGER)


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda mod, args, out: out * 2),
    "pre": lambda m: m.register_forward_pre_hook(lambda mod, args, kw: ((args[0] * 2,), kw), with_kwargs=True),
    "full backward": lambda m: m.register_full_backward_hook(lambda mod, gi, go: tuple(g * 2 for g in gi)),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda mod, go: tuple(g * 2 for g in go)),
}


@pytest.mark.parametrize("kind", list(HOOKS))
def test_hooks(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    HOOKS[kind](model[0])
    check(model, arg(), graphs=None, breaks=None, options=EAGER)


def test_lazy_modules_are_compiled_when_they_are_initialised():
    def story(wrap):
        torch.manual_seed(0)
        compiled = wrap(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)))
        for _ in range(3):
            yield compiled(arg().detach())

    check_same(story, backend="eager")
