"""States of random kinds that steps of training change and read, for `inert.py`: what makes each, and the change."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import nn

import dynacompile


@dataclasses.dataclass
class Step:
    """The step that runs, as effects see it."""

    module: Any
    batch: list[Any]
    index: int
    loss: torch.Tensor


@dataclasses.dataclass
class Record:
    count: int = 0
    parts: list[Any] = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("later", "value")

    def __init__(self) -> None:
        self.value = 0


class Named(dict):
    """A dict with attributes of its own."""


class Cycle:
    def __init__(self) -> None:
        self.me = self
        self.count = 0
        self.others = [self]


class Shared:
    """Its class attributes are the state of all."""

    total = 0
    seen: list[int] = []


class Key:
    """Compares by identity."""


LEDGER: dict[str, list[float]] = {"losses": []}
TOTAL = 0


def forget() -> None:
    """What programs share is as before any of them."""
    global TOTAL
    TOTAL, Shared.total = 0, 0
    LEDGER["losses"].clear()
    Shared.seen.clear()


def shared() -> tuple[Any, ...]:
    """What programs share, as it is now."""
    return TOTAL, Shared.total, list(Shared.seen), list(LEDGER["losses"])


def closure() -> Callable[[], int]:
    count, seen = 0, []

    def bump() -> int:
        nonlocal count
        count += 1
        seen.append(count)
        return count + len(seen)

    return bump


# Each effect changes the state `name` of `owner` and returns a small number that depends on it.


def grow_list(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.append(step.loss.item())
    if len(held) > 3:
        held.pop(0)
        held.reverse()
    return sum(held)


def nest(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held["a"]["b"].append(step.index)
    held["a"][f"new{len(held['a'])}"] = [len(held["a"])]
    return len(held["a"]) + sum(held["a"]["b"])


def reorder(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    key = next(iter(held))
    held[key] = held.pop(key) + 1
    held[f"k{len(held)}"] = 1
    return sum((place + 1) * value for place, value in enumerate(held.values()))


def move(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.move_to_end(next(iter(held)), last=step.index % 2 == 0)
    held.setdefault(step.index, 0)
    return sum((place + 1) * key for place, key in enumerate(held))


def toggle_set(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held ^= {len(held), step.index}
    return len(held) + sum(held)


def rotate(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.append(step.loss.item())
    held.rotate(1)
    return held[0]


def write_bytes(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held[0] = (held[0] + 1) % 100
    held.extend([1])
    return held[0] + len(held)


def write_array(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held[...] = held * 0.5 + 1
    return float(held.sum())


def write_objects(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held[0].append(1)
    held[1] = len(held[0])
    return held[1]


def rebind(owner: Any, name: str, step: Step) -> float:
    first, *rest = getattr(owner, name)
    setattr(owner, name, (first + 1, *rest))
    rest[0].append(first)
    return first + len(rest[0])


def record(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.count += 1
    held.parts.append(held.count)
    return sum(held.parts)


def slot(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.value += 1
    if hasattr(held, "later"):
        del held.later
    else:
        held.later = held.value
    return held.value + hasattr(held, "later")


def write_tensor(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.mul_(0.5).add_(step.loss.detach())
    return held.sum().item()


def replace_tensor(owner: Any, name: str, step: Step) -> float:
    setattr(owner, name, getattr(owner, name) * 0.5 + step.loss.detach())
    return getattr(owner, name).sum().item()


def write_view(owner: Any, name: str, step: Step) -> float:
    base, view = getattr(owner, name)
    view.add_(1)
    base[0] += step.loss.detach()
    return base.sum().item()


def swap_storage(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.data = torch.cat([held.data, held.data[:1]])[:12] + 1
    return held.sum().item() + held.numel()


def resize(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    size = len(held)
    held.resize_(size + 1)[size] = step.index
    return held.sum().item()


def graph(owner: Any, name: str, step: Step) -> float:
    """A tensor without history gets one, by a write into it, and loses it in the next step."""
    held = getattr(owner, name)
    had_one = held.grad_fn is not None
    if held.requires_grad:
        held.detach_()
    held.mul_(0.5).add_(step.module.net[0].weight.sum())
    return held.sum().item() + had_one


def graph_of_view(owner: Any, name: str, step: Step) -> float:
    """A view gets a history at every other step, and is replaced at the others."""
    base, view = getattr(owner, name)
    if view.grad_fn is None:
        view.mul_(0.5).add_(step.module.net[0].weight.sum())
    else:
        base = base.detach()
        setattr(owner, name, (base, base[1:]))
    return base.sum().item() + base.is_leaf


def parameter(owner: Any, name: str, step: Step) -> float:
    with torch.no_grad():
        step.module.net[4].weight.mul_(0.99)
    step.module.net[4].bias.data = step.module.net[4].bias.data * 0.99
    return 0.0


def freeze(owner: Any, name: str, step: Step) -> float:
    weight = step.module.net[0].weight
    weight.requires_grad_(not weight.requires_grad)
    return float(weight.requires_grad)


def hook(owner: Any, name: str, step: Step) -> float:
    step.module.net[0].register_forward_hook(lambda module, given, out: out * 1.01)
    step.module.net[4].weight.register_hook(lambda grad: grad * 1.01)
    return len(step.module.net[0]._forward_hooks)


def mode(owner: Any, name: str, step: Step) -> float:
    step.module.net[2].train(not step.module.net[2].training)
    return float(step.module.net[2].training)


def come_and_go(owner: Any, name: str, step: Step) -> float:
    if "passing" in vars(owner):
        del owner.passing
    else:
        owner.passing = step.index
    return float("passing" in vars(owner))


def draw(owner: Any, name: str, step: Step) -> float:
    return float(torch.rand(1, generator=getattr(owner, name)))


def draw_python(owner: Any, name: str, step: Step) -> float:
    return getattr(owner, name).random() + random.random()


def draw_numpy(owner: Any, name: str, step: Step) -> float:
    return float(getattr(owner, name).random()) + float(np.random.rand())


def cycle(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.count += 1
    held.others.append(held.me)
    return held.count + len(held.others)


def call(owner: Any, name: str, step: Step) -> float:
    return getattr(owner, name)()


class Counts(nn.Module):
    """A module with state of every kind that one has: a buffer, running statistics, an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)
        self.register_buffer("total", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.total.add_(1)
        self.norm(x)
        return self.total + self.calls + self.norm.running_mean.sum()


def call_module(owner: Any, name: str, step: Step) -> float:
    return getattr(owner, name)(step.batch[1].detach()).item()


def class_attribute(owner: Any, name: str, step: Step) -> float:
    Shared.total += 1
    Shared.seen.append(step.index)
    return Shared.total + len(Shared.seen)


def global_names(owner: Any, name: str, step: Step) -> float:
    global TOTAL
    TOTAL += 1
    LEDGER["losses"].append(step.loss.item())
    return TOTAL + sum(LEDGER["losses"])


def metric(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    value = held(step.loss.detach().reshape(1), torch.zeros(1))
    step.module.log(name, held, on_epoch=True, on_step=True)
    return float(value)


def collect(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.update(step.loss.detach())
    return float(held.compute())


def rate(owner: Any, name: str, step: Step) -> float:
    for group in step.module.trainer.optimizers[0].param_groups:
        group["lr"] *= 0.9
    return 0.0


def optimizer_state(owner: Any, name: str, step: Step) -> float:
    state = step.module.trainer.optimizers[0].state
    for values in state.values():
        for value in values.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.mul_(0.9)
    return float(len(state))


def gradient(owner: Any, name: str, step: Step) -> float:
    weight = step.module.net[4].weight
    before = 0.0 if weight.grad is None else weight.grad.sum().item()
    if step.index % 2 and weight.grad is not None:
        weight.grad.add_(1)
    else:
        weight.grad = torch.ones_like(weight)
    return before


def change_batch(owner: Any, name: str, step: Step) -> float:
    step.batch[0].mul_(1.1)
    step.batch.append(len(step.batch))
    return len(step.batch)


def log_by_turns(owner: Any, name: str, step: Step) -> float:
    step.module.log(f"{name}/{step.index % 3}", step.loss, on_epoch=True, reduce_fx=("mean", "max", "min")[step.index % 3])
    return 0.0


def weak(owner: Any, name: str, step: Step) -> float:
    keys, table = getattr(owner, name)
    keys.append(Key())
    table[keys[-1]] = len(keys)
    return sum(table.values())


def many(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    torch._foreach_mul_(held, 0.5)
    held.append(step.loss.detach())
    return sum(value.sum().item() for value in held)


def keep_loss(owner: Any, name: str, step: Step) -> float:
    getattr(owner, name).append(step.loss)
    return len(getattr(owner, name))


def subclassed(owner: Any, name: str, step: Step) -> float:
    held = getattr(owner, name)
    held.count = getattr(held, "count", 0) + 1
    held[held.count] = held.count
    return sum(held.values())


def add_layer(owner: Any, name: str, step: Step) -> float:
    step.module.add_module(f"layer{len(step.module._modules)}", nn.Linear(1, 1))
    return len(step.module._modules)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, str, Step], float]]] = {
    "list": (list, grow_list),
    "nested": (lambda: {"a": {"b": []}}, nest),
    "ordered keys": (lambda: {"x": 1, "y": 2, "z": 3}, reorder),
    "ordered dict": (lambda: collections.OrderedDict.fromkeys(range(4), 0), move),
    "set": (lambda: {3, 5}, toggle_set),
    "deque": (lambda: collections.deque([1.0, 2.0], maxlen=3), rotate),
    "bytearray": (lambda: bytearray(b"ab"), write_bytes),
    "array": (lambda: array.array("i", [1, 2]), write_bytes),
    "numpy": (lambda: np.arange(4.0), write_array),
    "numpy view": (lambda: np.arange(8.0).reshape(2, 4)[:, ::2], write_array),
    "numpy objects": (lambda: np.array([[], 0, "x"], dtype=object), write_objects),
    "tuple": (lambda: (0, [], "x"), rebind),
    "dataclass": (Record, record),
    "slots": (Slotted, slot),
    "tensor": (lambda: torch.ones(3), write_tensor),
    "expanded tensor": (lambda: torch.ones(1, 3)[:, :1], write_tensor),
    "replaced tensor": (lambda: torch.ones(3), replace_tensor),
    "views": (lambda: (lambda base: (base, base[1:].t()))(torch.zeros(3, 3)), write_view),
    "swapped storage": (lambda: torch.ones(3), swap_storage),
    "resized": (lambda: torch.ones(3), resize),
    "history": (lambda: torch.ones(3), graph),
    "history of a view": (lambda: (lambda base: (base, base[1:]))(torch.zeros(3)), graph_of_view),
    "buffer": (lambda: nn.Buffer(torch.ones(3)), write_tensor),
    "replaced buffer": (lambda: nn.Buffer(torch.ones(3)), replace_tensor),
    "parameter": (lambda: None, parameter),
    "frozen": (lambda: None, freeze),
    "hooks": (lambda: None, hook),
    "mode": (lambda: None, mode),
    "attribute": (lambda: None, come_and_go),
    "torch generator": (lambda: torch.Generator().manual_seed(5), draw),
    "python generator": (lambda: random.Random(6), draw_python),
    "numpy generator": (lambda: np.random.default_rng(7), draw_numpy),
    "cycle": (Cycle, cycle),
    "closure": (closure, call),
    "class attribute": (lambda: None, class_attribute),
    "globals": (lambda: None, global_names),
    "metric": (torchmetrics.MeanAbsoluteError, metric),
    "list metric": (torchmetrics.CatMetric, lambda owner, name, step: (getattr(owner, name).update(step.loss.detach()), len(getattr(owner, name).value))[1]),
    "running metric": (lambda: torchmetrics.wrappers.Running(torchmetrics.SumMetric(), window=2), collect),
    "learning rate": (lambda: None, rate),
    "optimizer state": (lambda: None, optimizer_state),
    "gradient": (lambda: None, gradient),
    "batch": (lambda: None, change_batch),
    "logs": (lambda: None, log_by_turns),
    "weak keys": (lambda: ([], weakref.WeakKeyDictionary()), weak),
    "list of tensors": (lambda: [torch.ones(2), torch.ones(())], many),
    "kept losses": (list, keep_loss),
    "dict with attributes": (Named, subclassed),
    "layers": (lambda: None, add_layer),
}
WRAPPED: dict[str, tuple[Callable[[], Any], Callable[[Any, str, Step], float]]] = {
    "compiled module": (lambda: torch.compile(Counts(), backend="eager"), call_module),
    "module compiled in place": (lambda: dynacompile.compile(Counts(), inplace=True, backend="eager"), call_module),
    "module compiled by us": (lambda: dynacompile.compile(Counts(), backend="eager"), call_module),
    "compiled closure": (lambda: torch.compile(closure(), backend="eager"), call),
    "closure compiled by us": (lambda: dynacompile.compile(closure(), backend="eager"), call),
    "closure left to Python": (lambda: dynacompile.disable(closure()), call),
    "closure that torch.compile leaves": (lambda: torch.compiler.disable(closure()), call),
    "partial of a closure": (lambda: functools.partial(closure()), call),
    "wrapped closure": (lambda: functools.wraps(closure())(closure()), call),
}
"""States within what compilers and others make of functions and modules. Programs have one of them from seed WITH_WRAPPED on."""
