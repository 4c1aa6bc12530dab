"""Parameters, buffers and modules that a frame registers, replaces and deletes: torch's own `__setattr__` and `__delattr__` are followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.checking import check


class Base(nn.Module):
    k: Any
    other = 7

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.x, self.x2 = nn.Linear(3, 3), nn.Linear(3, 3)
        self.p, self.q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3) * 3)
        self.register_buffer("b", torch.ones(3))
        self.register_buffer("n", torch.ones(3) * 2, persistent=False)
        self.k = 3


class DeletesOnce(Base):
    def forward(self, y):
        there = hasattr(self, "b"), hasattr(self, "n")
        if there[0]:
            y = self.x2(y) * self.b * self.n
            del self.b, self.n, self.x2, self.k
        return self.x(y), there, hasattr(self, "b"), "n" in self._buffers, hasattr(self, "k"), len(list(self.buffers()))


class Temporary(Base):
    def forward(self, y):
        self.t = y * 2
        z = self.x(self.t)
        del self.t
        return z, hasattr(self, "t")


class DeletesWhatIsNotThere(Base):
    def forward(self, y):
        try:
            del self.nothing
        except AttributeError as error:
            return self.x(y), str(error)


class AttributeForParameter(Base):
    def forward(self, y):
        self.k = 1
        if isinstance(self.q, nn.Parameter):
            del self.q
        self.q = 2
        return self.x(y) * self.q


class ModuleForAttribute(Base):
    def forward(self, y):
        self.k = self.x
        z = self.k(y)
        del self.k
        there = hasattr(self, "k")
        self.k = 2
        return z * self.k, there


class ClassAttribute(Base):
    def forward(self, y):
        self.other = 8
        z = self.x(y) * self.other
        del self.other
        return z * self.other, hasattr(self, "other")


class WeightOfOneCall(Base):
    def forward(self, y):
        weight = self.x.weight
        del self.x.weight
        self.x.weight = weight * 2
        z = self.x(y)
        del self.x.weight
        self.x.register_parameter("weight", weight)
        return z


class Sets(Base):
    def forward(self, y):
        self.q, self.b, self.n = None, None, None
        self.z, self.zz = self.x, self.p
        self.act, self.x2 = nn.ReLU(), nn.Identity()
        return self.act(self.x2(self.z(y) * self.zz))


class Swaps(Base):
    def forward(self, y):
        self.x, self.x2 = self.x2, self.x
        return self.x(y)


class Buffers(Base):
    def forward(self, y):
        self.n = nn.Buffer(y.detach() * 2)
        made = nn.Buffer(y.detach() * 3)
        return self.x(y) * self.n, isinstance(made, nn.Buffer), isinstance(y, nn.Buffer), isinstance(made, nn.Parameter)


@pytest.mark.parametrize(
    "cls", [DeletesOnce, Temporary, DeletesWhatIsNotThere, AttributeForParameter, ModuleForAttribute, ClassAttribute, WeightOfOneCall, Sets, Swaps, Buffers]
)
def test_in_one_graph(cls):
    module = cls()
    shown = []

    def call(module, y):
        result = module(y)
        shown.append((list(module._parameters), list(module._buffers), list(module._modules), sorted(module._non_persistent_buffers_set), sorted(vars(module))))
        return result, shown[-1]

    check(call, module, torch.ones(2, 3), recompiles=None, backward=False)


class AssignsTensorToParameter(Base):
    def forward(self, y):
        self.p = y
        return y


class AssignsNumberToBuffer(Base):
    def forward(self, y):
        self.b = 3
        return y


class AssignsNumberToModule(Base):
    def forward(self, y):
        self.x2 = 3
        return y


@pytest.mark.parametrize("cls", [AssignsTensorToParameter, AssignsNumberToBuffer, AssignsNumberToModule])
def test_what_torch_refuses(cls):
    check(cls(), torch.ones(2, 3), graphs=None, breaks=None)
