"""Programs whose sizes are computed of their inputs' sizes and of an int: slices, paddings, factories, reshapes, broadcasts, reductions and branches, forward
and backward, in float64, called with sizes that change, 0 and 1 among them.

    python -m tests.fuzz.derived_sizes FIRST LAST [--backend aot_eager|reference|default] [--show]

A statement is kept if eager runs it for the first call's sizes. Where eager raises for a later call's, the compiled program has to raise, too. From seed
100000 on the int is read from a tensor; from 150000 on there are masks, too. From 200000 on numbers are keys of dicts, members of sets and arguments of
functions with caches; from 250000 on so is the int that is read from a tensor. From 300000 on
places of tensors are read and written by ints; from 400000 on tensors are made of lists of numbers, from 450000 on with the int that is read from a tensor.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import dynacompile
from tests.fuzz.command import main
from tests.fuzz.compare import apart, weights

NUMBERS = (
    "{a} - {b}", "{a} + {b}", "{a} * {b}", "{a} // 2", "{a} % 2", "{a} % 3", "-{a} % 4", "-(-{a} // 2)", "{a} // {b}", "{a} - 1", "{a} - 2", "{a} + 1",
    "max({a}, {b})", "min({a}, {b})", "abs({a} - {b})", "{t}.shape[-1]", "{t}.size(0)", "{t}.numel()", "len({t})", "{t}.stride(0)", "({a} + 1) // 2",
    "int({a} > {b})", "divmod({a}, 3)[1]", "{a} if {a} != 1 else {b}",
)  # fmt: skip
TENSORS = (
    "{t}[:{n}]", "{t}[{n}:]", "{t}[..., :{n}]", "{t}[..., -{n}:]", "{t}[{n}]", "{t}.narrow({d}, 0, {n})", "{t}.split({n})[0]", "{t}.split({n}, {d})[-1]",
    "{t}.chunk(2, {d})[-1]", "{t}.unbind({d})[0]", "{t}.unfold({d}, {n}, 1)", "{t}.diagonal()", "{t}.tril({n})", "{t}.roll({n}, {d})", "{t}.flip({d})",
    "{t}.index_select({d}, torch.arange({n}))", "{t}.new_ones({n}, {m}) * {f}", "{t}.new_full(({n},), {f})", "torch.zeros({n}, {m}, dtype=torch.float64)",
    "torch.arange({n}, dtype=torch.float64)", "torch.eye({n}, {m}, dtype=torch.float64)", "F.pad({t}, (0, {n}))", "F.pad({t}, ({n}, 1), value={f})",
    "{t}.sum({d}, keepdim=True)", "{t}.mean({d}, keepdim=True)", "{t}.sum({d})", "{t}.sum()", "{t}.amax({d})", "{t}.var({d}, correction=0)", "{t}.prod({d})",
    "{t}.cumsum({d})", "{t}.cumprod({d})", "{t}.logcumsumexp({d})", "{t}.softmax({d})", "F.layer_norm({t}, {t}.shape[-1:])", "{t}.logsumexp({d})",
    "{t}.unsqueeze({d})", "{t}.squeeze({d})", "{t}.squeeze()", "{t}.transpose({d}, {e})", "{t}.movedim({d}, {e})", "{t}.contiguous()", "{t}.reshape(-1)",
    "{t}.reshape(-1, {n})", "{t}.reshape({n}, -1)", "{t}.reshape({n}, {m}, -1)", "{t}.view({n}, -1)", "{t}.flatten()", "{t}.flatten({d}, {e})",
    "{t}.unflatten({d}, (-1, {n}))", "{t}.expand({n}, *{t}.shape)", "{t}.expand({n}, -1)", "torch.broadcast_to({t}, ({n}, {m}))",
    "{t}.sum_to_size({n}, 1)", "{t}.repeat({n}, 1)", "{t}.repeat(2, {n}, 1)", "{t}.repeat_interleave({n}, {d})", "{t}.tile({n})",
    "torch.stack([{t}, {t}], {d})",
    "torch.cat([{t}, {u}], {d})", "torch.cat([{t}, {t}[:{n}]])", "{t} + {u}", "{t} * {u}", "{t} - {u}", "{t} / ({u}.square() + 1)", "{t} + {u}", "{t} * {u}",
    "{t}[:{n}] * 2 + {u}", "torch.where({u} > 0, {t}[:{n}], {u})", "{t}.new_ones({n}, {m}) + {u}", "{t}[..., :{n}].sum_to_size({n}, 1) - {u}",
    "torch.where({t} > 0, {t}, {u})", "torch.maximum({t}, {u})", "{t}.masked_fill({u} > 0, {f})", "{t}.lerp({u}, 0.25)", "{t} @ {u}", "{t} @ {u}.t()",
    "torch.outer({t}.flatten(), {u}.flatten())", "{t} * {n}", "{t} / ({n} + 1)", "{t}.sin()", "{t}.relu()", "{t} * ({n} == 1)", "{t} * {f}",
    "({t} * 2 if {n} == 1 else {t} + {u})", "({t}.sum(0, keepdim=True) if {n} > 2 else {t})", "({u} if {n} == {m} else {t}.exp())",
    "({t}.sin() if {t}.shape[{d}] < 2 else {t} * 3)", "({t} if {u}.shape == {t}.shape else {u})", "{t}.gather({d}, torch.zeros_like({t}, dtype=torch.int64))",
    "{t}.index_add(0, torch.arange({n}), {u}[:{n}])", "F.mse_loss({t}, {t}.roll(1, {d}))", "{t}.view_as({u})",
)  # fmt: skip
WRITES = ("{t}[:{n}] = {f}", "{t}[{n}:] *= 2", "{t}[..., :{n}] += 1", "{t}[:{n}] = {u}[:{n}]", "{t}[..., 0] = {u}", "{t}.mul_({u})", "{t}[{t} > 0] = {f}")
PLACED = ("{t}[{n}] = {f}", "{t}[{n}] = {u}", "{t}[-{n}] *= 2", "{t}[..., {n}] = {t}[..., {m} - 1]", "{t}[{n}, :{m}] += 1", "{t}[:{n}, {m}] = {u}[0]")
READ_AT = ("{t}[{n}]", "{t}[..., {n}]", "{t}[-{n}]", "{t}[None, {n}, {m}:]", "{t}[{n}, {m}]", "{t}[:, -{n}]")
MASKED = (
    "{t}[{t} > 0]", "{t}[{t} > {f}]", "{t}[{t} > 0] * {t}[{t} > {f}]", "{t}[{t} < 0] + {t}[{t} < {f}]", "{t}[{t} > 0] + {u}", "{t}.nonzero()[:, 0] * {f}",
    "torch.arange({n}) * {t}[{t} > 0]", "torch.cat([{t}[{t} > 0], {u}.flatten()])", "torch.where({t}[{t} > 0] > {f}, {u}, 0.0)", "{t}[{t} > 0].sum() * {u}",
)  # fmt: skip
KEYED = (
    "{{{a}: 1, {b}: 2}}[{a}]", "len({{{a}, {b}, 3}})", "sorted({{{a}, {b}}})[0]", "int({a} in {{1, {b}, 4}})", "{{{a}: {b}}}.get({m}, 0)", "max({{{a}, {b}}})",
    "dict([({a}, 1), ({b}, 2)])[{b}]", "cached({a})", "cached({a}, {b})", "cached({a}, extra={b})", "cached(({a}, 2))[0]", "len(set([{a}, {b}, 2]))",
    "sum({{i: i + 1 for i in ({a}, {b})}}.values())", "Counter([{a}, {b}, 1])[{m}]", "list(dict.fromkeys([{a}, {b}, 1]))[-1]", "TABLE.get({a}, 7)",
    "TABLE[{a}] if {a} in TABLE else 2", "{{({a}, {b}): 3}}[{a}, {b}]", "int(frozenset([{a}]) == {{{b}}})", "len({{{a}, {b}}} & {{{m}, 2}})", "taken({a}, {b})",
    "{{{a}, {b}, 5}}.pop() * 0 + 1", "len({{{a}: 0}} | {{{b}: 1}})", "defaultdict(int, {{{a}: 3}})[{b}]", "{{{a}: {b}, {m}: 1}}.popitem()[1]", "counted({a})",
    "{{{t}.shape: 2}}[{t}.shape]", "cached({t}.shape)[0]", "int({t}.shape in {{{u}.shape}})", "{{True: 5, {a}: 6}}[1]", "int({a} in range({b}))",
    "[4, 1, {a}].index({a})",
)  # fmt: skip
LISTED = (
    "torch.tensor([{n}, {m}]) * {f}", "torch.tensor([{n} * 0.5, {a}, {f}])", "torch.tensor([[{n}, {m}], [{a}, 1]], dtype=torch.float64)",
    "torch.tensor([{n} > {m}, True]) * {f}", "torch.tensor([{n} > {m}, {a} == 1], dtype=torch.float64)", "torch.as_tensor(({n}, {m}, {a})) + {f}",
    "torch.tensor([i * {n} for i in range(3)]) * {f}", "torch.tensor({t}.shape) * {f}", "{t}.new_tensor([{n}, {m}])", "{t}.new_tensor([{n} / 3, {f}])",
    "torch.DoubleTensor([{n}, {a} + {f}])", "{t}.flatten()[[{n} % {t}.numel(), -1]]", "{t}[[0, {n}]]", "{t}[..., [{n}, 0, {m}]]", "{t}[[{n}, 0], [0, {m}]]",
    "torch.tensor([{n}, {m}]).sum() * {t}", "{t} * torch.tensor([{f}, {n}])[{m} % 2]", "torch.tensor([{n}, {m}], dtype=torch.int32) * {f}",
    "torch.stack([torch.tensor({n} * {f}), torch.tensor(1.0)])", "torch.tensor([[{n}], [{m}]]).expand(2, 3) * {f}", "torch.tensor([-{n}, {m}]).abs().sqrt()",
)  # fmt: skip
LISTED_WRITES = (
    "{t}[[0, {n}]] = {f}",
    "{t}[..., [{n}, 0]] *= 2",
    "{t}[[{n}]] = {u}",
    "{t}.flatten()[[{n}, {m}]] = torch.tensor([{a}, 1.0], dtype=torch.float64)",
)
SIZES = (0, 1, 1, 2, 3, 4, 4, 5, 6, 8)
MOST = 3000  # elements of a tensor
READING = 100_000
MASKING = 150_000
PLACING = 300_000
LISTING = 400_000
READ_LISTS = 450_000
KEYING = 200_000
READ_KEYS = 250_000
TABLE = {0: 3, 1: 1, 2: 4, 4: 2, 8: 1}


def surroundings() -> dict[str, Any]:
    """What a program finds among its globals: functions whose caches are its own."""

    @functools.lru_cache(maxsize=4)
    def cached(n: Any, extra: int = 1) -> Any:
        return n if isinstance(n, tuple) else abs(n) + extra

    @functools.cache
    def counted(n: int) -> int:
        return sum(1 for i in range(n) if i % 2 == 0)

    def taken(n: int, m: int, known: Any = None) -> int:
        known = {n: m} if known is None else known
        known[m] = known.setdefault(n, 1) + 1
        return len(known)

    own = {"cached": cached, "counted": counted, "taken": taken, "TABLE": dict(TABLE), "Counter": Counter, "defaultdict": defaultdict}
    return {"torch": torch, "F": F, **own}


@dataclass(frozen=True)
class Program:
    """calls: the sizes of x and y, and k. dynamic, lenient: how it is compiled; lenient: size 1 needs no entry of its own.
    reads: k is read from a tensor."""

    seed: int
    source: str
    calls: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    dynamic: bool | None
    lenient: bool
    reads: bool = False

    def function(self) -> Callable[..., Any]:
        space = surroundings()
        exec(compile(self.source, f"<program {self.seed}>", "exec"), space)
        return space["program"]

    def arguments(self, call: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
        generator = torch.Generator().manual_seed(self.seed * 16 + call)
        of_x, of_y, k = self.calls[call]
        x, y = (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in (of_x, of_y))
        return x, y, torch.tensor(k) if self.reads else k


class Writer:
    """Statements that run for one call's arguments."""

    def __init__(self, seed: int, x: torch.Tensor, y: torch.Tensor, k: int):
        further = LISTED if seed >= LISTING else MASKED if MASKING <= seed < KEYING else READ_AT if seed >= PLACING else ()
        self.forms = (*TENSORS, *(8 * further))
        self.writes = (*WRITES, *(3 * (LISTED_WRITES if seed >= LISTING else PLACED) if seed >= PLACING else ()))
        self.pick, self.lines = random.Random(seed), []
        self.of_numbers = (*NUMBERS[:6], *KEYED) if KEYING <= seed < PLACING else NUMBERS
        self.share = 0.5 if KEYING <= seed < PLACING else 0.25
        self.space: dict[str, Any] = {**surroundings(), "x": x, "y": y, "k": k}
        self.tensors, self.numbers = ["x", "y"], ["k", "x.shape[0]", "y.shape[-1]", "x.size(-1)"]

    def filled(self, form: str) -> str:
        pick, (t, u) = self.pick, (self.pick.choice(self.tensors[-4:] + ["x", "y"]) for _ in range(2))
        rank = max(1, self.space[t].dim())
        n, m, a, b = (pick.choice(self.numbers) if pick.random() < 0.85 else str(pick.randint(1, 4)) for _ in range(4))
        return form.format(t=t, u=u, n=n, m=m, a=a, b=b, d=pick.randrange(-rank, rank), e=pick.randrange(rank), f=pick.choice(("0.5", "-1.25", "2.0")))

    def add(self) -> None:
        pick = self.pick
        chance = pick.random()
        try:
            if chance < self.share:
                text = self.filled(pick.choice(self.of_numbers))
                value = eval(text, self.space)
                if not isinstance(value, int) or not -3 <= value <= 40:
                    return
                name = f"n{len(self.lines)}"
                self.numbers.append(name)
            elif chance < self.share + 0.07:
                made = next((t for t in reversed(self.tensors) if t not in "xy"), None)
                if made is None:
                    return
                copy, name = f"{made}.clone()", f"t{len(self.lines)}"
                self.space[name] = eval(copy, self.space)
                self.tensors.append(name)
                write = self.filled(pick.choice(self.writes).replace("{t}", name))
                try:
                    exec(write, self.space)
                except Exception:
                    self.tensors.pop()
                    raise
                self.lines += [f"{name} = {copy}", write]
                return
            else:
                text = self.filled(pick.choice(self.forms))
                value = eval(text, self.space)
                if value.numel() > MOST or not value.detach().isfinite().all() or value.numel() and value.detach().abs().max() > 1e4:
                    return
                name = f"t{len(self.lines)}"
                self.tensors.append(name)
        except Exception:  # noqa: BLE001 - no statement for these sizes
            return
        self.space[name] = value
        self.lines.append(f"{name} = {text}")


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    ranks = pick.randint(1, 3), pick.randint(1, 2)
    shapes = [tuple(pick.choice(SIZES[1:]) for _ in range(rank)) for rank in ranks]
    calls = [(shapes[0], shapes[1], pick.randint(1, 4))]
    for _ in range(pick.randint(2, 4)):
        one, other, k = calls[-1]
        if pick.random() < 0.4:  # sizes that were equal stay equal
            renamed = {n: pick.choice(SIZES) for n in {*one, *other}}
            one, other = (tuple(renamed[n] for n in shape) for shape in (one, other))
        else:
            one, other = (tuple(pick.choice(SIZES) if pick.random() < 0.4 else n for n in shape) for shape in (one, other))
        calls.append((one, other, k if pick.random() < 0.7 else pick.randint(0, 4)))
    program = Program(seed, "", tuple(calls), pick.choice((True, True, None)), pick.random() < 0.3)
    writer = Writer(seed, *program.arguments(0))
    wanted = pick.randint(3, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(8 * wanted):
            if len(writer.lines) >= wanted:
                break
            writer.add()
    made = [t for t in writer.tensors if t not in "xy"] or ["x * 2"]
    results = list(dict.fromkeys([made[-1], *(pick.choice(made) for _ in range(2)), *([writer.numbers[-1]] if pick.random() < 0.5 else [])]))
    body = "".join(f"    {line}\n" for line in writer.lines)
    reads = READING <= seed < KEYING or READ_KEYS <= seed < PLACING or seed >= READ_LISTS
    body = f"    k = k.item()\n{body}" if reads else body
    return Program(seed, f"def program(x, y, k):\n{body}    return {', '.join(results)},\n", program.calls, program.dynamic, program.lenient, reads)


def outcome(function: Callable, program: Program, call: int) -> tuple[list[Any], list[torch.Tensor | None]] | Exception:
    """Results and gradients of x and y; or the error."""
    x, y, k = program.arguments(call)
    try:
        made = list(function(x, y, k))
        roots = [t for t in made if isinstance(t, torch.Tensor) and t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [weights(t) for t in roots])
    except (RuntimeError, LookupError, ValueError, ZeroDivisionError, TypeError) as error:
        return error
    return made, [x.grad, y.grad]


def check_program(program: Program, counts: Counter, backend: str = "reference") -> None:
    """Raises AssertionError for what differs from eager."""
    dynacompile.reset()
    options: dict[str, Any] = {"fallback": "none", "verify": True, "specialize_zero_one": not program.lenient}
    if backend == "reference":
        backend, options["reference"] = "default", True
    compiled = dynacompile.compile(program.function(), backend=backend, isolate_recompiles=True, dynamic=program.dynamic, options=options)
    for call in range(len(program.calls)):
        want, got = outcome(program.function(), program, call), outcome(compiled, program, call)
        counts["errors" if isinstance(want, Exception) else "calls"] += 1
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert isinstance(got, Exception) and isinstance(want, Exception), f"call {call}: {str(got)[:700]}, and eager {str(want)[:300]}"
            continue
        for i, (a, b) in enumerate(zip(got[0] + got[1], want[0] + want[1], strict=True)):
            where = f"call {call}: " + (f"result {i}" if i < len(want[0]) else f"gradient of {'xy'[i - len(want[0])]}")
            if not isinstance(b, torch.Tensor):
                assert type(a) is type(b) and a == b, f"{where}: {a!r}, eager's {b!r}"
                continue
            assert isinstance(a, torch.Tensor), f"{where}: {a!r}"
            assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad), f"{where}: {a.shape}, eager's {b.shape}"
            told = apart(a.detach(), b.detach(), b.detach())
            assert told is None, f"{where}: {told}"


if __name__ == "__main__":
    raise SystemExit(main("derived_sizes", "Compare programs over computed sizes with eager's.", generate, check_program, backend="reference"))
