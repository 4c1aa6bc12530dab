"""python -m tests.fuzz.read_values FIRST LAST [--backend NAME] [--show]: programs that read numbers from tensors which they, or others, write in place.

A program is its seed: a function of two tensors and a module, whose lines write tensors (counted by torch or not: in place, to `out=`, through views,
`.data` and arrays of NumPy, by lists, fused steps, gradient scalers and batch norms, or by a function that is not compiled), read them (`item()`,
`tolist()`, `bool()`, comparisons, texts), keep what they read, and branch on it. It is called several times. Between the calls values change in place, and
the two tensors become one, parts of one memory, or two again. What the calls return, and all tensors after each, are eager's.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile

NAMES = ["a", "b", "c", "m.kept", "m.count", "m.norm.running_mean", "m.ts[0]", "m.ts[1]", "m.flag", "m.found"]
WRITES = """X.add_(1)|X.sub_(Y.sum())|X.mul_(-1)|X.fill_(-2)|X.zero_()|X.neg_()|X[...] = X - 1|X.data.add_(1)|X.data.copy_(-X)|X.detach().sub_(2)
X.view(-1).add_(1)
X.copy_(Y.sum() - 1)|torch.add(X, 1, out=X)|X.numpy()[...] = -1|X.clamp_(max=0)|X.view(-1)[0] = 3|X.masked_fill_(X > 0, -1)|X.set_(X + 1)|X.data = X - 1
torch._foreach_add_([X, Y], 1)|torch._foreach_neg_(m.ts)|torch._foreach_add_(m.ts, -1)|torch._amp_foreach_non_finite_check_and_unscale_(m.ts, m.found, m.scale)
torch._amp_foreach_non_finite_check_and_unscale_([a], m.found, m.scale)|torch._amp_foreach_non_finite_check_and_unscale_(m.ts[:2], c, m.scale)
torch._fused_sgd_(m.ts, [t + 1 for t in m.ts], [], weight_decay=0, momentum=0, lr=1, dampening=0, nesterov=False, maximize=False, is_first_step=True)
torch._amp_update_scale_(m.scale, m.steps, m.found, 2.0, 0.5, 1)|m.norm(torch.stack([a.view(-1)[:3], a.view(-1)[:3]]))|torch.relu_(X)|F.relu(X, inplace=True)
F.batch_norm(torch.stack([a, -a]), m.kept, m.spread, training=True)|poke(X)|poke(X)|m.kept = m.kept - 1|m.kept += 1|m.count += 1|m.loose = X - 1
torch.nn.init.ones_(X)|torch._foreach_mul_([X, m.ts[2]], -1)|m.ts[3].add_(X.sum())|torch.sub(X, 1, out=X)|X.index_fill_(0, torch.tensor([0]), -1)"""
FLAGS = """(X > 0).all()|(X == Y.sum()).any()|X.sum() > 0|torch.isfinite(X).all()|X.any()|X.sum().item() > 1|bool((X < 0).any())|float(X.sum()) < 2
X.view(-1)[0].item() == -1|torch.equal(X, Y)|torch.allclose(X, Y.sum())|X.tolist() == Y.tolist()|int(X.sum()) % 2 == 0|m.count == 3|m.found.item() == 0
not X.sum()|X.max() > Y.min()|sum(v.item() for v in [m.found, m.scale]) < 2|m.steps.item() > 0|(m.loose > 0).all()|X.mean().item() >= 0 or Y.any()"""
READS = """X.sum().item()|X.tolist()|float(X.view(-1)[0])|f"{X}"|f"{X.sum().item():.2f}"|"sum %s" % X.sum().item()|str(X.tolist())|bool(X.any())|m.found.item()
X.sum().item() * 2 + 1|max(X.sum().item(), 1.0)|repr(X.max())|int(m.count)|X.sum().item() + Y.sum().item()|X.clone()|X + 1|X.sum() * Y.sum().item()"""


def lines_of(text: str) -> list[str]:
    return [line for row in text.split("\n") for line in row.split("|")]


SETS = {"WRITES": lines_of(WRITES), "FLAGS": lines_of(FLAGS), "READS": lines_of(READS)}
CHANGES = lines_of("""m.ts[1].fill_(math.inf)|a[0] = math.inf|X.add_(1)|X.neg_()|X.fill_(2)|X.fill_(-1)|X.data.sub_(1)|m.found.fill_(1)|m.found.zero_()
m.count.add_(1)|pass""")
ARGUMENTS = {
    "apart": "a, b = torch.ones(3), -torch.ones(3)",
    "same": "a = b = torch.ones(3)",
    "view": "a = torch.ones(3); b = a.view(3)",
    "part": "base = torch.ones(5); a, b = base[:3], base[2:]",
    "detached": "a = torch.ones(3); b = a.detach()",
    "data": "a = torch.ones(3); b = a.data",
    "buffer": "a = m.kept; b = torch.ones(3)",
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("spread", torch.ones(3))
        self.register_buffer("count", torch.tensor(1))
        self.register_buffer("flag", torch.tensor(0.0))
        self.norm = torch.nn.BatchNorm1d(3)
        self.ts = [torch.full((2,), float(i - 1)) for i in range(9)]
        self.found, self.scale, self.steps = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0, dtype=torch.int32)
        self.loose = torch.ones(2)


@dynacompile.disable
def poke(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(-1).add_(1)


@dataclass(frozen=True)
class Program:
    source: str
    calls: tuple[tuple[str, str], ...]  # what is changed before each call, and its arguments
    inference: bool

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "poke": poke}
        exec(self.source, names)
        return names["f"]


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    kept: list[str] = []
    out = ["def f(a, b, m, log):", f"    c = {pick.choice(('torch.zeros(())', 'torch.full((), 0.0)', 'm.found.clone()', 'a[0]', 'a.sum()'))}"]
    most_used = [pick.choice(NAMES) for _ in range(2)]

    def name() -> str:
        return pick.choice(most_used if pick.random() < 0.6 else NAMES)

    def filled(kind: str) -> str:
        return pick.choice(SETS[kind]).replace("X", name()).replace("Y", name())

    def statement(depth: int) -> Iterator[str]:
        way, pad = pick.randrange(12), "    " * depth
        if way < 4:
            yield pad + filled("WRITES")
        elif way < 6:
            yield f"{pad}log.append({filled('READS')})"
        elif way == 6:
            kept.append(f"v{len(kept)}")
            yield f"{pad}{kept[-1]} = {filled('FLAGS')}"
        elif way == 7 and kept and depth == 1:
            yield f"{pad}if {pick.choice(kept)}: log.append({filled('READS')})"
            yield f"{pad}else: {filled('WRITES')}"
        elif way == 8 and depth == 1:
            yield f"{pad}for t in m.ts[:{pick.choice((2, 9))}]:"
            asked, done = pick.choice(("(t > 0).all()", "t.sum().item() > 0", "t.any()")), pick.choice(("t.sub_(1)", "log.append(t.sum())", "t.neg_()"))
            yield f"{pad}    if {asked}: {done}"
        elif depth == 1:
            yield f"{pad}if {filled('FLAGS')}:"
            names = len(kept)
            yield from statement(2)
            if pick.random() < 0.5:
                del kept[names:]
                yield f"{pad}else:"
                yield from statement(2)
            del kept[names:]
        else:
            yield pad + filled("WRITES")

    for _ in range(pick.randint(2, 7)):
        out += statement(1)
    out.append(f"    return {filled('READS')}")
    calls = []
    arguments = "apart"
    for _ in range(pick.randint(3, 7)):
        change = pick.choice(CHANGES).replace("X", pick.choice([n for n in NAMES if n != "c"]))
        arguments = pick.choice(list(ARGUMENTS)) if pick.random() < 0.3 else arguments
        calls.append((change, ARGUMENTS[arguments]))
    return Program("\n".join(out) + "\n", tuple(calls), pick.random() < 0.1)


def seen(value: Any) -> str:
    """Texts tell what is equal: numbers are small, and operations are eager's own."""
    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype} {tuple(value.shape)} {value.tolist()}"
    return f"[{', '.join(map(seen, value))}]" if isinstance(value, list) else repr(value)


def outcomes(program: Program, wrap: Callable[[Callable], Callable]) -> Iterator[tuple[str, str, str]]:
    """What each call gives, what it has logged, and what all tensors hold then."""
    torch.manual_seed(0)
    function, m = wrap(program.function()), Model()
    for change, arguments in program.calls:
        names: dict[str, Any] = {"torch": torch, "math": math, "m": m}
        exec(arguments, names)
        with torch.inference_mode(program.inference), torch.no_grad():
            exec(change, names)
        log: list[Any] = []
        try:
            with torch.inference_mode(program.inference), torch.no_grad():
                result = seen(function(names["a"], names["b"], m, log))
        except Exception as error:  # noqa: BLE001 - its class is compared
            result = type(error).__name__
        tensors = [names["a"], names["b"], *m.buffers(), *m.ts, m.found, m.scale, m.steps, m.loose]
        yield result, seen(log), seen(tensors)


def difference(program: Program, **options: Any) -> str | None:
    """What the compiled program does otherwise."""
    dynacompile.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = outcomes(program, lambda f: f)
        got = outcomes(program, lambda f: dynacompile.compile(f, isolate_recompiles=True, **options))
        for call, (want, have) in enumerate(zip(wanted, got, strict=True)):
            if want != have:
                return f"call {call}: " + "; ".join(f"eager {w}, compiled {h}" for w, h in zip(want, have) if w != h)
            if want[0].endswith(("Error", "Exception")):  # what a call leaves behind that raised
                break
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.read_values", description="Compare programs that read what is written, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--show", action="store_true", help="print the programs alone")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        told = "" if given.show else difference(program, backend=given.backend)
        if told is not None:
            failed += 1
            print(f"seed {seed}: {told}\n{program.source}{program.calls}\n", flush=True)
    print(f"{given.last - given.first} programs, {0 if given.show else failed} differ")
    return 1 if failed and not given.show else 0


if __name__ == "__main__":
    raise SystemExit(main())
