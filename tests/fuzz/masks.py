"""python -m tests.fuzz.masks FIRST LAST: masks of attention that follow from the graph, against their values in eager.

A program is its seed: a chain of statements that makes masks of constants, counters, comparisons, triangles, views, selections, in-place writes and casts,
over fixed or symbolic sizes. Three things are asked:
- each value that `autograd.known_values` knows of the functional graph is the one that running the graph gives, bit by bit;
- "all" and "causal" are said of masks alone that are so in eager;
- attention with the mask gives eager's results and gradients (one program in --attend, by default 4).
How many masks hide nothing, or are causal, and stay nevertheless, is counted: that is slower and not wrong.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.fx
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd.decompose import decomposition_table
from dynacompile.autograd.joint import trace_joint
from dynacompile.autograd.known_values import KnownValues, computed
from dynacompile.events import MaskRead
from tests.autograd.recording import record

LOWEST = "torch.finfo(torch.float32).min"
COUNTERS = (
    "torch.arange({n})", "torch.arange({n}) + {c}", "torch.arange({c}, {c} + {n})", "torch.arange(0, 2 * {n}, 2)", "torch.arange({n} + {a})[{a}:]",
    "torch.arange({n}).to(torch.int32)", "torch.arange({n}).float()", "torch.arange({n} - 1, -1, -1)", "3 - torch.arange({n})", "torch.zeros({n}).long()",
    "torch.arange({n})[None].expand(2, {n})[1]", "torch.cat([torch.arange({n} - 1), torch.tensor([{c}])])", "torch.arange({n}).view(1, {n}).select(0, -1)",
)  # fmt: skip
FACTORIES = (
    "torch.ones({n}, {m}, dtype=torch.bool)", "torch.zeros({n}, {m}, dtype=torch.bool)", "torch.full((1, 1, {n}, {m}), True)",
    "torch.ones(2, {m}, dtype=torch.bool)[:, None, None, :].expand(2, 1, {n}, {m})", "torch.ones({n}, {m}).tril({c}).bool()",
    "torch.ones({n}, {m}, dtype=torch.bool).triu({c})", "torch.ones({n}, {m}).triu({c}) == 0", "torch.ones({n}, 1, dtype=torch.bool).expand({n}, {m})",
    "torch.ones(2, 1, {n}, {m}, dtype=torch.bool).tril()", "torch.ones({n} + 2, {m} + 2, dtype=torch.bool).tril()[{a}:{a} + {n}, {b}:{b} + {m}]",
    "torch.ones({m}, {n}, dtype=torch.bool).triu().t()", "torch.ones({m}, {n}, dtype=torch.bool).triu()[None].transpose(1, 2)[0]",
    "torch.ones({n}, {m}, dtype=torch.bool).view({n}, 1, {m}).squeeze(1).tril()", "torch.ones(2, {m}, dtype=torch.bool)[torch.arange(2)[:, None, None, None]"
    ", torch.arange({m})].expand(2, 1, {n}, {m})",
)  # fmt: skip
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
JOINED = ("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "torch.logical_and({x}, {y})", "torch.where({x}, {y}, True)", "torch.where({x}, False, {y})")
ALONE = ("~{x}", "{x}.logical_not()", "{x}.float().bool()", "{x}.clone()", "({x}.int() - 1) == 0", "({x}.float() * 2 - 1) > 0", "{x}.masked_fill(~{x}, False)")
WRITES = ("{x}[..., {a}:] = {t}", "{x}[..., {a}, :] = {t}", "{x}[..., :{a}] &= {t}", "{x}.fill_({t})", "{x}.masked_fill_({x}, {t})", "{x}.logical_not_()")
BIASES = (
    "torch.where({x}, 0.0, -math.inf)", "torch.zeros({n}, {m}).masked_fill(~{x}, " + LOWEST + ")", "(1.0 - {x}.float()) * " + LOWEST,
    "torch.where({x}, 0.0, -1e4)", "{x}.float().log()", "torch.where({x}, 0.5, 0.0)", "({x}.float() - 1).clamp(max=0.0) * 3",
    "torch.full({x}.shape, -math.inf).masked_fill({x}, 0.0)", "torch.where({x}, torch.zeros({n}, {m}), torch.full((), " + LOWEST + "))",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    seed: int
    n: int
    m: int
    symbolic: bool
    lines: tuple[str, ...]

    def text(self) -> str:
        return "\n".join(["import math, torch", "def make(n, m):", *(f"    {line}" for line in self.lines), "    return mask"])

    def function(self) -> Callable[[int, int], torch.Tensor]:
        scope: dict = {}
        exec(self.text(), scope)
        return scope["make"]


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    n = rng.choice((1, 2, 3, 5, 6, 8))
    symbolic = rng.random() < 0.25
    m = n if symbolic or rng.random() < 0.7 else rng.choice((1, 2, 4, 7))
    lines: list[str] = []

    def fill(text: str, **more: str) -> str:
        numbers = {"c": str(rng.choice((-2, -1, 0, 0, 0, 1, 2, 5))), "a": str(rng.choice((0, 0, 1, 2))), "b": str(rng.choice((0, 0, 1, 2)))}
        return text.format_map({"n": "n", "m": "m", "t": rng.choice(("True", "False")), **numbers, **more})

    def mask() -> str:
        if rng.random() < 0.5:
            return fill(rng.choice(FACTORIES))
        rows = fill(rng.choice(COUNTERS[:1] * 6 + COUNTERS))
        columns = fill(rng.choice(COUNTERS[:1] * 6 + COUNTERS), n="m")
        sides = [f"({rows})[:, None]", rng.choice((f"({columns})", f"({columns})[None, :]", fill("{c}")))]
        rng.shuffle(sides)
        found = f"({sides[0]} {rng.choice(COMPARISONS)} {sides[1]})"
        return found if rng.random() < 0.8 else f"(({sides[0]} - {sides[1]} + 0) {rng.choice(COMPARISONS)} {rng.choice((-2, 0, 1))})"

    lines.append(f"mask = {mask()}")
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.5:
            lines.append(f"other = {mask()}")
            lines.append("mask = " + fill(rng.choice(JOINED), x="mask", y="other"))
        elif kind < 0.8:
            lines.append("mask = " + fill(rng.choice(ALONE), x="mask"))
        else:
            lines.append("mask = mask.clone()")
            lines.append(fill(rng.choice(WRITES), x="mask"))
    if rng.random() < 0.4:
        lines.append("mask = " + fill(rng.choice(BIASES), x="mask"))
    return Program(seed, n, m, symbolic, tuple(lines))


def kind_in_eager(mask: torch.Tensor, n: int, m: int) -> str:
    seen = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min
    lower = torch.ones(n, m, dtype=torch.bool).tril()
    if bool(seen.all()):
        return "all"
    return "causal" if n == m and bool((seen == lower).all()) and bool((hidden == ~lower).all()) else "other"


def wrong_values(program: Program, counts: Counter) -> list[str]:
    """What is known of the program's functional graph, and is not what running it gives."""
    make = program.function()
    graph, fakes = record(lambda x: (x.clone(), make(program.n, program.m)), [torch.ones(2)])[:2]
    joint = trace_joint(graph, fakes, decomposition_table())
    values = Run(joint).all(torch.ones(2))
    known, told = KnownValues(), []
    for node, real in values.items():
        value = known.of(node)
        counts["values" if value is not None else "values not known"] += 1
        if value is None:
            continue
        found = computed(value, node)
        if found is not None and not torch.equal(found.expand(real.shape).nan_to_num(7.0), real.nan_to_num(7.0)):
            told.append(f"{node}: {node.target}: known {found}, and is {real}")
    return told


class Run(torch.fx.Interpreter):
    """Of a traced graph."""

    def __init__(self, joint) -> None:
        module = torch.fx.GraphModule(dict(joint.constants), joint.graph)
        super().__init__(module, garbage_collect_values=False)
        self.originals = dict(zip(module.graph.nodes, joint.graph.nodes, strict=True))

    def all(self, *inputs: torch.Tensor) -> dict[torch.fx.Node, torch.Tensor]:
        self.run(*inputs)
        return {self.originals[n]: t for n, t in self.env.items() if isinstance(t, torch.Tensor) and n.op == "call_function"}


def read_and_compare(program: Program) -> tuple[str, str]:
    """(what was read of the mask, what it is), after attention with the mask has been compared with eager."""
    make = program.function()

    def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k, v = x, *y.chunk(2, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=make(q.shape[-2], k.shape[-2] if program.n != program.m else q.shape[-2]))

    generator = torch.Generator().manual_seed(program.seed)
    x = torch.randn(2, 3, program.n, 4, generator=generator).requires_grad_()
    y = torch.randn(2, 3, program.m, 8, generator=generator).requires_grad_()
    mask = make(program.n, program.m)
    want = attend(x, y)
    wanted = torch.autograd.grad(want.square().sum(), (x, y))
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        dynacompile.reset()
        got = dynacompile.compile(attend, backend="aot_eager", dynamic=program.symbolic or None)(x, y)
        gotten = torch.autograd.grad(got.square().sum(), (x, y))
    finally:
        end()
    for ours, eagers in zip((got, *gotten), (want, *wanted), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5, equal_nan=True)
    (read,) = {e.found for e in events if isinstance(e, MaskRead)}
    return read, kind_in_eager(mask, program.n, program.m)


def check_program(program: Program, attends: bool, counts: Counter) -> None:
    """Raises AssertionError for what is wrong."""
    try:
        mask = program.function()(program.n, program.m)
        mask.expand(2, 3, program.n, program.m)
    except (RuntimeError, IndexError):
        counts["no program"] += 1
        return
    told = wrong_values(program, counts)
    assert not told, "\n".join(told)
    if attends:
        read, real = read_and_compare(program)
        assert read in ("kept", real), f"read as {read}, and is {real}"
        counts[f"{real}{', kept' if read == 'kept' and real != 'other' else ''}{', symbolic' if program.symbolic else ''}"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.masks", description="Compare what is known of masks with their values.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--attend", type=int, default=4, help="of so many programs one is compiled with attention, too")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            check_program(program, seed % given.attend == 0, counts)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed} (n={program.n}, m={program.m}): {type(error).__name__}: {str(error)[:600]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; masks: {dict(sorted(counts.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
