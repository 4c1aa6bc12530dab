"""python -m tests.fuzz.rounds FIRST LAST: loops over lists of tensors, with rounds that are repeated and with each of them followed.

A program is its seed: loops over parameters, gradients and the state that a dict has of each, with lists that are filled and read, numbers of rounds,
variables that go from round to round, branches, identities, tensors that occur twice, and numbers that are symbols in half of the programs. Two
captures are compared, one with every round followed: graphs, guards and residual code are the same. Results, changed inputs among them, are eager's, and
so they are in a second call whose inputs may differ.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile
from dynacompile import native
from dynacompile.capture.frames import rounds
from dynacompile.ir.captured import Captured

HEADS = (
    "for p in ps:", "for i, p in enumerate(ps):", "for p, q in zip(ps, qs):", "for i, (p, q) in enumerate(zip(ps, qs)):", "for q in qs:",
    "for i, q in enumerate(qs):", "for i in range(len(ps)):", "for p in ps[1:]:", "for p, q in zip(ps, reversed(qs)):",
)  # fmt: skip
# What a line needs of the variables above; lines that need others are left out.
LINES = (
    "g = p.grad", "if p.grad is None: continue", "out.append(p)", "grads.append(p.grad)", "s = state[p]", "n = len(state[p])",
    "out.append(state[p]['a'])", "out.append(s['b'])", "if len(s) == 2: out.append(s['a'])", "if p.requires_grad: out.append(p.detach())",
    "x = p * 2.0", "x = qs[i] + 1.0", "p.mul_(0.5)", "p.add_(q, alpha=0.1)", "qs[i].mul_(2.0)", "q.add_(1.0)", "s['a'].lerp_(p, 0.1)", "s['b'] += 1",
    "x = p.sqrt().add_(1e-3)", "out.append(p + 1.0)", "out.append(q.exp())", "out.append((p, q))", "total = total + p.sum()", "count += 1",
    "count += p.dim()", "last = p", "if p is ps[2]: out.append(p * 3.0)", "if q is ps[0]: q.add_(1.0)", "if p in state: out.append(p)",
    "if i == 4: out.append(p)", "out.append(p * i)", "if len(out) > 3: out.append(p.neg())", "if len(out) > 2: out.pop()", "out.append(out[-1])",
    "out.append(i)", "state[p]['c'] = p * 2", "p.tag = 1", "flag |= torch.is_complex(p)", "flag = flag or p.is_floating_point()", "x = twice(p)",
    "out.append(twice(q))", "found[i] = p", "found.append(x)", "for k in range(2): out.append(p + k)", "if p.dim() > 1: p.sub_(0.25)",
    "if p.shape[0] == 3: out.append(p.flatten())", "x = p.t() if p.dim() == 2 else p", "if i > 5: break",
    "try:\n    out.append(state[p]['z'])\nexcept KeyError:\n    out.append(p)", "x = torch.cat([p.flatten(), q.flatten()])",
    "x = torch.stack([p, p])", "out.append(x)", "out.append(g)", "a, b = p, q", "out.append(a)", "qs[i] = p", "out.append(qs[i])",
    "out.append(more[i])", "p.grad = None", "out.append(p.grad * 2)", "torch._foreach_add_([p, q], 1.0)", "g = g + p if g is not None else p",
    "out.append(float(rate) * p)", "x = p.data", "out.append(isinstance(p, torch.nn.Parameter))", "out.append(p.shape)", "out.append(p.device)",
    "if rate > 0.5: p.mul_(rate)", "if i == 4: flag = True", "if flag: q.mul_(3.0)", "if p.dim() == 1: flag = True",
    "if p.shape[0] == 2: out.append(q)", "x = p.exp().t_()", "x.t_()", "if p.grad is None: flag = not flag", "if flag: out.append(p)",
    "if flag is None: p.mul_(2.0)", "q.copy_(p)", "out.append(p.view(-1))", "out.append(s)", "p = p * 2.0", "out.append(state.get(p))", "x = [p, q]",
    "out.extend(x)", "x = p[0]", "p.mul_(1 - rate * 0.1)", "p.add_(q, alpha=-rate)", "if rate: q.add_(rate)", "x = p * (rate / (1 - 0.5 ** size))",
    "rate = rate * 0.5", "p.sub_(size)", "out.append(p + torch.zeros(size, 1, 1))", "out.append(torch.arange(size) * rate)", "if size == 3: p.add_(1.0)",
    "out.append(size * rate)", "out.append(more[size])", "x = [rate * i for _ in range(2)]",
    "out.append(p.to(q.device))", "out.append(q.float())", "x = q.to(torch.float32)",
    "out.append(s.get('a'))", "out.append(state[p].get('c'))", "out.append(s.get('z', p))", "x = s.get('a')", "s.get('a').mul_(0.5)",
    "out.append(q.to(p.dtype))", "x = (p + 1.0).contiguous()", "x.mul_(0.5)", "grads.append(p.to(torch.float64))",
)  # fmt: skip
AFTER = ("out.append(total)", "out.append(count)", "out.append(last)", "out.append(flag)", "out.append([t * 2 for t in out if isinstance(t, torch.Tensor)])",
         "out += [1 - 0.5 ** s['b'] for s in state.values()] if len(ps) < 4 else [1 - 0.5 ** state[p]['b'] for p in ps]",
         "torch._foreach_mul_(ps, 0.5)", "out.append(torch.stack([t.sum() for t in qs]))",
         "out.append({id(p): i for i, p in enumerate(ps)} and len(ps))")  # fmt: skip
# Generators that something empties, or leaves where it has seen enough.
GENERATORS = (
    "out.append(all(t is None or type(t) in (torch.Tensor, torch.nn.Parameter) for t in ps))", "out.append(all(t.dtype == torch.float32 for t in qs))",
    "out.append(any(p.dim() > 1 for p in ps))", "out.append(any(p.grad is None for p in ps))", "out.append(any(state[p]['a'].dim() == 1 for p in ps))",
    "out.extend(p * 2.0 for p in ps)", "out += list(p + q for p, q in zip(ps, qs) if p.dim() == q.dim())", "out.append(sum(p.numel() for p in ps))",
    "out.append(tuple(p.grad for p in ps))", "made = (q + 1.0 for q in qs)\nout.append(all(t.dim() < 3 for t in made))\nout += list(made)",
    "made = (p for p in ps if p.dim() == 2)\nout.append(any(True for t in made))\nout += list(made)", "out.append(max(len(p) for p in ps))",
    "out.append(all(q.add_(1.0).dim() == 2 for q in qs))", "out.append([i for i, p in enumerate(ps) if all(n > 1 for n in p.shape)])",
    "out += list(out.append(p) or p for p in ps)", "made = (p.mul_(0.5) for p in ps)\nnext(made)\nout += list(made)", "out.append(all(ps))",
    "out.append(all(count for p in ps))", "out.append(any(i > 3 and p is ps[4] for i, p in enumerate(ps)))", "out += sorted(p.dim() for p in ps)",
    "found = dict((p, q * 2.0) for p, q in zip(ps, qs))\nout += list(found.values())", "out.append(torch.stack(list(q.sum() for q in qs)))",
    "out += [torch.cat([t.flatten() for t in qs]), torch.hstack([t.sum() for t in qs])]", "out.append(torch.stack([q.mean() for q in qs] * 2, dim=0))",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    seed: int
    lines: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    twists: tuple[str, ...]
    varying: bool = False  # rate and size are symbols, and others in the second call

    def text(self) -> str:
        head = ["import torch", "def twice(t):", "    y = t * 2.0", "    return y + t", "def run(ps, qs, state, more, rate, size):"]
        first = ["out, grads, found, total, count, last, flag = [], [], [None] * len(ps), 0.0, 0, None, False", "with torch.no_grad():"]
        return "\n".join([*head, *(f"    {line}" for line in first), *(f"        {line}" for line in self.lines), "    return out, grads, found"])

    def function(self) -> Callable[..., Any]:
        scope: dict = {}
        exec(self.text(), scope)
        return scope["run"]

    def inputs(self, call: int) -> tuple:
        torch.manual_seed(self.seed)
        ps = [torch.nn.Parameter(torch.rand(s)) for s in self.shapes]
        for p in ps:
            p.grad = torch.rand_like(p)
        qs: list[Any] = [torch.rand(s) for s in self.shapes]
        more = [torch.rand(s) for s in self.shapes]
        state: dict[Any, dict[str, Any]] = {p: {"a": torch.rand_like(p).detach(), "b": torch.tensor(2.0)} for p in ps}
        given = (ps, qs, state, more, *((0.75, 3) if call == 0 or not self.varying else (0.5, 4)))
        for twist in self.twists[:1] if call == 0 else self.twists:
            TWISTS[twist](given)
        return given


def shared_state(given: tuple) -> None:
    ps, _, state, *_ = given
    state[ps[-2]]["a"] = state[ps[1]]["a"]


def without_gradient(given: tuple) -> None:
    given[0][3].grad = None


def same_twice(given: tuple) -> None:
    given[0][4] = given[0][1]


def same_second(given: tuple) -> None:
    given[1][5] = given[1][2]


def one_of_both(given: tuple) -> None:
    given[1][4] = given[0][0].detach()


def other_dtype(given: tuple) -> None:
    given[1][3] = given[1][3].double()


def number(given: tuple) -> None:
    given[2][given[0][4]]["b"] = 3


def another_key(given: tuple) -> None:
    given[2][given[0][3]]["d"] = 1


def strides(given: tuple) -> None:
    given[3][2] = torch.rand(*reversed(given[3][2].shape)).t() if given[3][2].dim() == 2 else given[3][2]


def same_gradient(given: tuple) -> None:
    given[0][4].grad = given[0][2].grad if given[0][4].shape == given[0][2].shape else given[0][4].grad


def attribute(given: tuple) -> None:
    given[0][3].tag = 5


TWISTS: dict[str, Callable[[tuple], None]] = {
    f.__name__: f
    for f in (
        *(shared_state, without_gradient, same_twice, same_second, one_of_both, other_dtype, number, another_key, strides, same_gradient, attribute),
        *(lambda given: None,),
    )
}


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    lines: list[str] = []
    for _ in range(rng.choice((1, 1, 2))):
        head = rng.choice(HEADS)
        lines.append(head)
        known = {"ps", "qs", "state"} | {name for name in ("p", "q", "i") if name in head.partition(" in ")[0]}
        body: list[str] = []
        for _ in range(rng.choice((2, 3, 4, 6))):
            line = rng.choice(LINES)
            if all(name in known for name in needed(line)):
                body.append(line)
                known |= {name for name in ("g", "s", "x", "a", "b", "n") if line.startswith((f"{name} =", f"{name}, b ="))}
        lines += [f"    {part}" for line in body or ["pass"] for part in line.split("\n")]
    lines += [rng.choice(AFTER)] if rng.random() < 0.4 else []
    more = random.Random(-seed - 1)
    lines += more.choice(GENERATORS).split("\n") if more.random() < 0.4 else []
    count = rng.choice((6, 7, 9))
    alike = rng.random() < 0.6
    shapes = tuple((3, 2) if alike or rng.random() < 0.5 else rng.choice(((3, 2), (4,), (2, 3))) for _ in range(count))
    kinds = list(TWISTS)
    return Program(seed, tuple(lines), shapes, tuple(rng.choice(kinds) if rng.random() < 0.6 else kinds[-1] for _ in range(2)), rng.random() < 0.5)


def needed(line: str) -> Iterator[str]:
    """The variables of the loop that a line reads."""
    plain = "".join(c if c.isalnum() or c == "_" else " " for c in line.replace(".add_(q", " q").replace("['a']", "").replace("['b']", "")).split()
    first = plain[0] if "=" in line and not line.startswith(("if", "p.", "q.", "qs", "out", "s[", "state", "found")) else None
    reads = plain[1:] if first in ("g", "s", "x", "n", "last") else plain
    yield from (name for name in ("p", "q", "i", "g", "s", "x", "a", "b") if name in reads and not (name in "ab" and line.startswith("a, b")))


@contextmanager
def following_all() -> Iterator[None]:
    before, rounds.KEPT = rounds.KEPT, 0
    try:
        yield
    finally:
        rounds.KEPT = before


def outcome(function: Callable[..., Any], given: tuple) -> tuple:
    try:
        result: Any = function(*given)
    except Exception as error:  # noqa: BLE001 - whatever eager raises is its answer
        result = type(error)
    return result, *given, [p.grad for p in given[0]], [getattr(p, "tag", None) for p in given[0]]


def shown(value: Any, seen: dict[int, int]) -> Any:
    """Values, identities among them, in a form that compares."""
    if isinstance(value, torch.Tensor):
        return seen.setdefault(id(value), len(seen)), tuple(value.shape), value.stride(), value.dtype, value.requires_grad, value.detach().double().tolist()
    if isinstance(value, (list, tuple)):
        return type(value), [shown(v, seen) for v in value]
    return [(shown(k, seen), shown(v, seen)) for k, v in value.items()] if isinstance(value, dict) else repr(value)


def told(captured: Captured) -> tuple:
    """The graph by the places of its nodes, guards, and residual code."""
    rows: list[Any] = []
    if captured.graph is not None:
        places = {node: i for i, node in enumerate(captured.graph.graph.nodes)}

        def place(node: torch.fx.Node) -> str:
            return f"%{places[node]}"

        for node in places:
            val = node.meta.get("val")
            look = (val.shape, val.stride(), val.dtype) if isinstance(val, torch.Tensor) else type(val)
            target = None if node.op == "placeholder" else node.target
            rows.append((node.op, str(target), repr(torch.fx.node.map_arg((node.args, node.kwargs), lambda n: place(n))), look, node.meta.get("site")))
    guards = Counter((g.kind, None if g.source is None else g.source.text(), described(g.expected)) for g in captured.guards if g.kind != "NAMESPACES")
    code = captured.code
    return rows, guards, (code.co_code, code.co_names, code.co_varnames), [i.source.text() for i in captured.inputs]


def described(expected: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", expected.text() if hasattr(expected, "text") and callable(expected.text) else repr(expected))


def different(left: Any, right: Any) -> str:
    if isinstance(left, Counter):
        return f"only repeated: {dict(left - right)}\nonly followed: {dict(right - left)}"
    if isinstance(left, list):
        place = next((i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))
        return f"at {place}: {left[place : place + 1]}\n{right[place : place + 1]}"
    return f"{left}\n{right}"


def captures(function: Any) -> list[tuple]:
    return [told(entry.info.captured) for _, entry in native.core().entries(function.__code__)]


def told_apart(program: Program) -> dict[str, Any]:
    """How a program is compiled: with numbers as symbols, or with all that differs between calls as constants."""
    return {"options": {"varying": ("rate", "size")}} if program.varying else {"dynamic": False}


def check_program(program: Program, counts: Counter) -> list[str]:
    found: list[str] = []
    given = [[program.inputs(call), program.inputs(call)] for call in range(2)]
    eager = program.function()
    wanted = [shown(outcome(eager, g[0]), {}) for g in given]
    del given
    made = []
    for manner in ("repeated", "followed"):
        function = program.function()
        compiled = dynacompile.compile(function, backend="eager", isolate_recompiles=True, **told_apart(program))
        for call in range(2):
            inputs = program.inputs(call)
            if manner == "followed":
                with following_all():
                    got = shown(outcome(compiled, inputs), {})
            else:
                got = shown(outcome(compiled, inputs), {})
            if got != wanted[call]:
                found.append(f"{manner}, call {call}: results differ")
        made.append(captures(function))
        counts[f"steps {manner}"] += sum(entry.info.captured.facts.get("steps", 0) for _, entry in native.core().entries(function.__code__))
    if len(made[0]) != len(made[1]):
        found.append(f"{len(made[0])} entries, and {len(made[1])} with each round followed")
    for one, other in zip(*made):
        for what, left, right in zip(("graph", "guards", "code", "inputs"), one, other):
            if left != right:
                found.append(f"{what} differs:\n{different(left, right)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    counts: Counter = Counter()
    for seed in range(args.first, args.last):
        program = generate(seed)
        if args.show:
            print(program.text(), program.twists)
        for difference in check_program(program, counts):
            counts["differ"] += 1
            print(f"seed {seed}: {difference[:1500]}\n{program.text()}\n{program.twists}")
        if seed % 20 == 19:
            dynacompile.reset()
    print(dict(counts))


if __name__ == "__main__":
    main()
