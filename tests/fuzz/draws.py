"""python -m tests.fuzz.draws FIRST LAST [--backend NAME] [--show]: programs that draw from generators of Python, NumPy and torch.

A program is its seed: a function of a tensor and of three generators, whose lines draw numbers and tensors, compute with them, take places and windows by
them, branch on them and on the tensor, seed generators and make others, and return what they have. It is called several times, from several states.
What the calls return, its types, and the state of every generator after each call are eager's.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dynacompile

FLOATS = """R.random()|R.uniform(0.5, 2)|R.gauss(0, 1)|R.betavariate(0.4, 0.4)|R.choice([0.5, 1.0, 2.0])|R.expovariate(2.0)|np.random.rand()
np.random.beta(0.4, 0.4)|np.random.uniform(0.5, 2)|np.random.normal()|N.random()|N.normal(0, 1)|N.beta(2, 2)|random.Random(7).random()|R.triangular(0, 1, 0.3)
np.random.random()|np.random.RandomState(3).rand()|np.random.default_rng(5).random()|R.normalvariate(0, 1)"""
INTS = "R.randint(0, 3)|R.randrange(4)|R.randrange(1, 4)|np.random.randint(4)|np.random.randint(0, 4)|R.getrandbits(2)|R.choice([0, 2, 3])|R.randint(-2, 3)"
COMPUTE = """y = y * F|y = y + F|F = F * 2|F = 1 - F|F = F + I|y = y + I|I = I + 1|y = y * (F + 1.0)|y = torch.where(torch.rand(()) < F, y, -y)
y = y / (F * F + 1)|y = y + F * torch.randn_like(y)|y = torch.lerp(y, -y, F)|kept.append(F)|kept.append(I)|kept.append((F, I))|F = max(F, 0.5)|I = int(F * 4)
y = y + torch.rand(int((x[0] > 0.5).sum())).sum()|y = y + x[0, torch.randint(8, (int(x[1, 1].sum()),))].mean()
y = y + torch.rand(int(x[2].sum()) % 3 + 2, generator=g).sum()
y = y.masked_fill(torch.rand(y.shape) < F, 0.0)|y = y + torch.rand(y.shape, generator=g)|y = y + torch.rand(4, generator=g).sum() * F"""
PLACES = """y = y + x[:, I]|y = y + x[I].sum()|y = y + x[:, I : I + 4].sum()|y = y + x[..., I : I + 2, None].sum()
z = x[I : I + 2, I : I + 3] * 2; kept.append(z)|w = x[:, :, I]; y = y + w.sum()|y = y + x.narrow(1, 0, 4).sum() + x[:, I:].sum()
y = y.roll(1) + x[1, I : I + 1].sum()"""
BRANCHES = """if F < 0.6: y = y * 2|if I == 1: y = y - 1|y = -y if F > 1 else y + F|if (x.sum() > 4) and F > 0.2: y = y + 3|if (x > 0.5).any(): y = y + DRAW
for _ in range(2): y = y + DRAW|while F > 0.8: F = F / 2|if bool((y > 0).any()): y = y * DRAW
assert F < 100|if torch.rand(2, generator=g).sum() > 1: y = y * 3"""
STATES = """R.seed(4)|np.random.seed(5)|torch.manual_seed(6)|g.manual_seed(7)|R.shuffle(kept)|y = y + R.sample([1, 2, 3], 2)[0]
state = R.getstate(); DRAW; R.setstate(state)"""
KINDS = {"COMPUTE": 6, "PLACES": 3, "BRANCHES": 2, "STATES": 1, "DRAWS": 4}


def lines_of(text: str) -> list[str]:
    return [line for row in text.split("\n") for line in row.split("|")]


SETS = {name: lines_of(globals()[name]) for name in ("FLOATS", "INTS", "COMPUTE", "PLACES", "BRANCHES", "STATES")}


def generate(seed: int) -> str:
    """The source of a program."""
    pick = random.Random(seed)
    owner = pick.choice(("random", "random", "r"))
    drawn = lambda name: pick.choice(SETS[name]).replace("R.", f"{owner}.").replace("N.", "rng.")  # noqa: E731
    floats, ints, body = ["f0"], ["i0"], [f"f0 = {drawn('FLOATS')}", f"i0 = {drawn('INTS')}"]
    for place in range(1, pick.randint(2, 7)):
        (kind,) = pick.choices(list(KINDS), list(KINDS.values()))
        if kind == "DRAWS":
            names, table = pick.choice(((floats, "FLOATS"), (ints, "INTS")))
            names.append(f"{names[0][0]}{place}")
            body.append(f"{names[-1]} = {drawn(table)}")
            continue
        line = pick.choice(SETS[kind]).replace("DRAW", drawn("FLOATS")).replace("R.", f"{owner}.")
        known = line.replace("F.", "\0").replace("F", pick.choice(floats)).replace("\0", "F.")
        body.append(known.replace("I", pick.choice(ints)))
    if pick.random() < 0.2:
        body.insert(pick.randrange(2, len(body) + 1), "with torch.no_grad(): y = y * 2")
    lines = ["def fn(x, r, rng, g):", "    y, kept = x[..., 0] * 1, []", *(f"    {line}" for line in body)]
    return "\n".join([*lines, f"    return y, kept, {pick.choice((*floats, *ints, 'None'))}"])


def function_of(source: str) -> Callable[..., Any]:
    names = {"torch": torch, "random": random, "np": np}
    exec(source, names)
    return names["fn"]  # type: ignore[return-value]


def seen(fn: Callable[..., Any], seed: int) -> Any:
    """What a call gives, and how it leaves the generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    r, rng, g = random.Random(seed + 1), np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    x = torch.rand(6, 8, 9, requires_grad=bool(seed % 2))
    try:
        given = fn(x, r, rng, g)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    y = given[0]
    grad = torch.autograd.grad(y.sum(), x)[0].tolist() if y.requires_grad else None
    states = random.random(), r.random(), np.random.rand(), rng.random(), torch.rand(()).item(), torch.rand((), generator=g).item()
    return told(given), y.requires_grad, grad, states


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    return [told(one) for one in value] if isinstance(value, (list, tuple)) else (type(value), value)


def difference(source: str, backend: str = "eager", calls: int = 3) -> str | None:
    """What differs from eager; None where nothing does. With `fullgraph=True`, too, where that compiles."""
    for whole in (False, True):
        compiled = dynacompile.compile(function_of(source), isolate_recompiles=True, backend=backend, fullgraph=whole)
        for seed in range(calls):
            expected, found = seen(function_of(source), seed), seen(compiled, seed)
            if found == "Unsupported" and whole:
                break
            if repr(found) != repr(expected):  # NaNs are equal here
                return f"call {seed}, fullgraph={whole}: {str(found)[:300]}, eager: {str(expected)[:300]}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--show", action="store_true")
    chosen = parser.parse_args()
    count = 0
    for seed in range(chosen.first, chosen.last):
        source = generate(seed)
        if chosen.show:
            print(source)
        found = difference(source, chosen.backend)
        count += found is not None
        if found is not None:
            print(f"seed {seed}: {found}", flush=True)
    print(f"{chosen.last - chosen.first} programs, {count} differ")


if __name__ == "__main__":
    main()
