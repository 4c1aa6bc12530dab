"""Random graphs over parameters whose gradients leave the backward early, as where processes reduce them, and what autograd can be asked, against eager.

python -m tests.fuzz.early_gradients FIRST LAST [--backend reference|default|aot_eager] [--show]: prints the seeds that differ, and by what. Numbers are
small ints, so that sums are exact in any order, and gradients must agree to the bit. torch's fake process group of two processes stands for the other ones;
hooks on parameters stand for DDP's, and check that each runs once, on a gradient that is final.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile

BACKENDS: dict[str, dict[str, Any]] = {
    "reference": {"options": {"reference": True}},
    "default": {},
    "aot_eager": {"backend": "aot_eager"},
}
POINTWISE = ("{a}.relu()", "{a} + {v}", "{a} * {v}", "{a} - {s}", "torch.where({a} > 0, {a}, {s})", "{a} + {a2}", "{a} * {a2}", "{a} + {m}", "{a}.flip(0)")
PRODUCTS = ("{a} @ {m}", "torch.nn.functional.linear({a}, {m}, {v})", "{a} @ {m}.t()", "({m} @ {m2}) @ {a}", "torch.addmm({v}, {a}, {m})")
VIEWS = ("{a} + {m}[1]", "{a} * {m}.view(-1)[:4]", "{a} + {m}.t().contiguous()", "{a} + torch.cat([{v}[:2], {v}[2:]])", "{a} + {m}.sum(0)", "{a} - {v}.sum()")
CUT = ("{a}.detach() + {v}", "({a} + {m}.detach())", "{a}.clone().mul_({v})")
SHOWN = ("{a}", "{a}.sum()", "{a}.square().sum()", "{a}[1:]", "{a}.t()", "{a}.view(-1)")
EXACT = 1 << 14  # larger results may come of sums that are rounded
QUERIES = ("backward", "twice", "some", "inputs", "raises", "again", "higher", "hooked", "batched")


class Model(nn.Module):
    """Parameters: matrices m0.., vectors v0.., and numbers s0..; forward is the program."""

    def __init__(self, sizes: tuple[int, int, int], seed: int, source: str):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for kind, count, shape in zip("mvs", sizes, ((4, 4), (4,), (1,)), strict=True):
            for i in range(count):
                setattr(self, f"{kind}{i}", nn.Parameter(torch.randint(-2, 3, shape, generator=generator).float()))
        space: dict[str, Any] = {"torch": torch}
        exec(compile(source, f"<seed {seed}>", "exec"), space)
        self.program: Callable[..., tuple[torch.Tensor, ...]] = space["program"]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.program(self, x)


def written(rng: random.Random, sizes: tuple[int, int, int]) -> str:
    names = ["x"]
    lines = []
    for i in range(rng.randint(3, 9)):
        kind = rng.choices((PRODUCTS, POINTWISE, VIEWS, CUT), (4, 4, 2, 1))[0]
        given = {k: f"self.{k[0]}{rng.randrange(n)}" for k, n in (("m", sizes[0]), ("m2", sizes[0]), ("v", sizes[1]), ("s", sizes[2]))}
        text = rng.choice(kind).format(a=rng.choice(names[-3:]), a2=rng.choice(names), **given)
        lines.append(f"t{i} = ({text}).clamp(-4, 4)")
        names.append(f"t{i}")
    shown = [rng.choice(SHOWN).format(a=rng.choice(names[1:] if k else names[-2:])) for k in range(rng.choices((1, 2, 3), (5, 3, 2))[0])]
    if rng.random() < 0.3:
        lines.append(f"r = {shown[0]}")
        shown = ["r", "r.square().sum()", *shown[1:]]
    return "def program(self, x):\n    " + "\n    ".join([*lines, f"return ({', '.join(shown)},)"]) + "\n"


class Told:
    """A model, how it is called, and what its hooks see. failing: the parameter whose hook raises; changed: that whose hook changes the gradient."""

    def __init__(self, model: Model, call: Callable[..., tuple[torch.Tensor, ...]]):
        self.model, self.call = model, call
        self.seen: dict[str, list[torch.Tensor]] = {}
        self.failing = self.changed = ""
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: self.hook(name, p))

    def hook(self, name: str, p: torch.Tensor) -> None:
        if p.grad is None:  # a gradient that this pass does not lead to, which docs/reliability.md lists
            return
        self.seen.setdefault(name, []).append(p.grad.clone())
        if name == self.failing:
            raise ValueError("of the hook")
        if name == self.changed:
            p.grad.mul_(2)

    def grads(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.model.parameters()]

    def ask(self, query: str, x: torch.Tensor, rng: random.Random) -> list[Any]:
        """What one question gives. Both sides are asked with equal generators."""
        self.model.zero_grad()
        self.seen.clear()
        self.failing = self.changed = ""
        names = [name for name, _ in self.model.named_parameters()]
        some = rng.sample(list(self.model.parameters()), rng.randint(1, len(names)))
        outputs = [y for y in self.call(x) if y.requires_grad]
        which = [y for y in outputs if rng.random() < 0.7] or outputs[:1]
        if not which:
            return []
        total = sum(y.square().sum() if query == "higher" else y.sum() for y in which)
        assert isinstance(total, torch.Tensor)
        found: list[Any] = []
        match query:
            case "twice":
                total.backward(retain_graph=True)
                total.backward()
            case "some":
                found += torch.autograd.grad(total, some, allow_unused=True, retain_graph=True)
                total.backward()
            case "inputs":
                total.backward(inputs=some)
            case "raises":
                self.failing = rng.choice(names)
                try:
                    total.backward()
                except ValueError as error:
                    return [str(error)]
            case "higher":
                first = [g for g in torch.autograd.grad(total, [x, *some], allow_unused=True, create_graph=True) if g is not None and g.requires_grad]
                if first:
                    sum(g.sum() for g in first).backward()  # type: ignore[union-attr]
            case "hooked":
                self.changed = rng.choice(names)
                total.backward()
            case "batched":
                found += torch.autograd.grad(total, some, torch.tensor([1.0, 2.0]), is_grads_batched=True, allow_unused=True)
            case _:
                total.backward()
        again = {"twice": 2, "again": 1}.get(query, 1)
        for name, values in self.seen.items():
            assert len(values) <= again, f"the hook of {name} ran {len(values)} times"
            grad = dict(self.model.named_parameters())[name].grad
            assert grad is not None and torch.equal(values[-1] * (2 if name == self.changed else 1), grad), f"the gradient of {name} was not final"
        return [*found, *self.grads(), x.grad]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        exact = max(a.abs().max().item(), b.abs().max().item()) < EXACT if a.numel() and b.numel() else True
        return torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item(), equal_nan=True)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or (isinstance(a, str) and a == b)


def run(seed: int, backend: str = "reference", show: bool = False) -> str:
    """By what the program of a seed differs, or an empty string."""
    rng = random.Random(seed)
    sizes = (rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2))
    source = written(rng, sizes)
    if show:
        print(source)
    model = Model(sizes, seed, source)
    twin = copy.deepcopy(model)
    given = dict(BACKENDS[backend])
    given["options"] = {**given.get("options", {}), "gradient_bytes": rng.choice((1, 16, 80))}
    mine, theirs = Told(model, dynacompile.compile(model, **given)), Told(twin, twin)
    for k, query in enumerate(["backward", *rng.choices(QUERIES, k=4)]):
        x = torch.randint(-2, 3, (4, 4), generator=torch.Generator().manual_seed(seed + k)).float().requires_grad_(rng.random() < 0.7)
        asked = rng.random()
        answers = []
        for told, own in ((mine, x), (theirs, x.detach().clone().requires_grad_(x.requires_grad))):
            try:
                answers.append(told.ask(query, own, random.Random(asked)))
            except RuntimeError as error:  # both sides, or it is a difference
                answers.append([f"RuntimeError: {str(error)[:40]}"])
            except AssertionError as error:
                return f"{query}: {error}"
        if not same(*answers):
            return f"{query}: {answers[0]} is not {answers[1]}"
    return ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="reference", choices=list(BACKENDS))
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args(argv)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    differ = 0
    for seed in range(args.first, args.last):
        difference = run(seed, args.backend, args.show)
        if difference:
            differ += 1
            print(f"seed {seed}: {difference[:600]}", flush=True)
        dynacompile.reset()
    dist.destroy_process_group()
    print(f"{args.last - args.first} programs, {differ} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
