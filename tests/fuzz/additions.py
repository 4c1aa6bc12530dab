"""Sums at places that are tensor elements: index_add, scatter_add, scatter_reduce, index_put and the gradients of reads at places, and these reads, with many
duplicates, negative places, places that lie outside, operands in any layout, and operations before and after, called with several sizes. Of reads, errors have
eager's messages, and what the program writes after them is not written where they raise.

    python -m tests.fuzz.additions FIRST LAST [--native]
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import dynacompile

KINDS = ("index_add", "scatter_add", "scatter_reduce", "index_put", "embedding", "gather", "index_select", "index", "index_pair")
READS = KINDS[4:]
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float16)
HALVES = DTYPES[-2:]
ERRORS = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # beside the largest sum of absolute values
BEFORE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "v": lambda v: v,
    "v * 2": lambda v: v * 2,
    "v.abs() + v": lambda v: v.abs() + v,
    "v - v.flip(0)": lambda v: v - v.flip(0),
    "v * v.sum(-1, keepdim=True).clamp(-1, 1)": lambda v: v * v.sum(-1, keepdim=True).clamp(-1, 1).to(v.dtype),
}
AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "y": lambda y: y,
    "y.relu()": lambda y: y.clamp(min=0),
    "y + y.amax(-1, keepdim=True)": lambda y: y + y.amax(-1, keepdim=True),
    "y.t()": lambda y: y.transpose(0, -1) * 3,
}


@dataclass(frozen=True)
class Program:
    """calls: sizes of the dimensions of values of each call, the size of the dimension that places are in, and whether a place lies outside."""

    seed: int
    kind: str
    dtype: torch.dtype
    dim: int
    rank: int
    before: str
    after: str
    alpha: int
    spread: bool
    layout: str
    start: str
    writes: bool
    calls: tuple[tuple[tuple[int, ...], int, bool], ...]

    def text(self) -> str:
        return repr(self)

    def function(self) -> Callable[..., torch.Tensor]:
        before, after, kind, dim, alpha = BEFORE[self.before], AFTER[self.after], self.kind, self.dim, self.alpha

        def add(into: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            values = before(values)
            if kind == "index_add":
                into = into.index_add(dim, places, values, alpha=alpha)
            elif kind == "scatter_add":
                into = into.scatter_add(dim, places, values)
            elif kind == "scatter_reduce":
                into = into.scatter_reduce(dim, places, values, "sum")
            else:
                into = torch.ops.aten.index_put(into, [*(None,) * dim, places], values, True)
            return after(into)

        def read(into: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            into = before(into)
            if kind == "embedding":
                found = F.embedding(places, into, padding_idx=0 if alpha > 1 else None)
            elif kind == "gather":
                found = into.gather(dim, places)
            elif kind == "index_select":
                found = into.index_select(dim, places)
            elif kind == "index_pair":
                found = into.unsqueeze(0)[(places % 1, *(slice(None),) * dim, places)]
                found = found.movedim(0, dim) if dim else found
            else:
                found = into[(*(slice(None),) * dim, places)]
            result = after((found * values).sin())
            if self.writes:
                values.copy_(places.reshape(-1)[:1])
            return result

        return read if kind in READS else add

    @property
    def has_gradients(self) -> bool:
        return self.kind in READS and self.dtype in (torch.float32, torch.float64) and not self.writes

    def arguments(self, call: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        sizes, count, outside = self.calls[call]
        generator = torch.Generator().manual_seed(self.seed * 16 + call)
        dim = 0 if self.kind == "embedding" else self.dim

        def numbers(shape: tuple[int, ...]) -> torch.Tensor:
            if self.dtype.is_floating_point:
                return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)
            return torch.randint(0 if self.dtype == torch.uint8 else -50, 50, shape, generator=generator).to(self.dtype)

        whole = self.kind in ("scatter_add", "scatter_reduce", "gather")
        shape = sizes if whole and not self.spread else (sizes[dim],)
        most = max(1, count // 8) if self.seed % 3 == 0 else count  # few elements that all points add to
        low = -most if self.kind in ("index_put", "index", "index_pair") and self.seed % 2 else 0
        places = torch.randint(low, most, shape, generator=generator) if count else torch.zeros(shape, dtype=torch.int64)
        if outside and places.numel():
            places.view(-1)[places.numel() // 2] = count if self.seed % 2 else -count - 1
        if whole and self.spread:
            places = places.view([sizes[d] if d == dim else 1 for d in range(self.rank)]).expand(sizes)
        into = numbers(tuple(count if d == dim else n for d, n in enumerate(sizes)))
        values = numbers(sizes)
        if self.layout == "transposed":
            values = values.transpose(0, -1).contiguous().transpose(0, -1)
        elif self.layout == "expanded" and self.rank > 1:
            values = values[..., :1].expand(sizes)
        elif self.layout == "part":
            values = torch.cat([values, values], -1)[..., : sizes[-1]]
        if self.start == "transposed":
            into = into.transpose(0, -1).contiguous().transpose(0, -1)
        return into, places, values


def generate(seed: int) -> Program:
    choose = random.Random(seed)
    kind = choose.choice(KINDS)
    dtype = choose.choice(DTYPES)
    rank = 2 if kind == "embedding" else choose.randint(1, 3)
    dim = 0 if kind == "embedding" else choose.randrange(rank)
    calls = []
    for _ in range(choose.randint(1, 4)):
        points = choose.choice((3, 700, 1100, 3000, 3000, 9000, 40960))
        sizes = [1] * rank
        for d in range(rank):
            sizes[d] = points if d == rank - 1 else choose.choice((1, 2, 7, 16, 33, 64))
            points = max(1, points // sizes[d])
        choose.shuffle(sizes)
        if choose.random() < 0.05:
            sizes[choose.randrange(rank)] = 0
        calls.append((tuple(sizes), choose.choice((1, 2, 5, 17, 64, 300)), choose.random() < 0.12))
    return Program(
        seed, kind, dtype, dim, rank, choose.choice(list(BEFORE)), choose.choice(list(AFTER)), choose.choice((1, 1, 2)), choose.random() < 0.4,
        choose.choice(("usual", "usual", "transposed", "expanded", "part")), choose.choice(("usual", "usual", "transposed")),
        kind in READS and choose.random() < 0.3, tuple(calls),
    )  # fmt: skip


def outcome(function: Callable, program: Program, call: int) -> tuple[list[torch.Tensor] | Exception, torch.Tensor]:
    """The result and the gradients, or the error; and the values afterwards."""
    into, places, values = program.arguments(call)
    try:
        if not program.has_gradients:
            return [function(into, places, values)], values
        into.requires_grad_()
        found = function(into, places, values.requires_grad_())
        return [found, *torch.autograd.grad(found.square().sum(), (into, values))], values
    except (RuntimeError, IndexError, ValueError) as error:
        return error, values


def message(error: Exception) -> str:
    return str(error).partition("\n")[0]


def check_program(program: Program, counts: Counter, native: bool = False) -> None:
    """Raises AssertionError for what differs from eager."""
    dynacompile.reset()
    function = program.function()
    precise = program.kind in READS and program.dtype in HALVES
    options = {"verify": True, "fallback": "none", "reference": not native, "precise": precise}
    compiled = dynacompile.compile(function, isolate_recompiles=True, options=options)
    for call in range(len(program.calls)):
        (want, kept), (got, left) = outcome(function, program, call), outcome(compiled, program, call)
        assert torch.equal(kept, left), f"call {call}: the values afterwards"
        counts["errors" if isinstance(want, Exception) else "sums"] += 1
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert type(got) is type(want), f"call {call}: {got!r}, and eager {want!r}"
            assert program.kind not in READS or message(got) == message(want), f"call {call}: {got!r}, and eager {want!r}"
            continue
        scale = max(float(t.detach().double().abs().max()) if t.numel() else 0.0 for t in want)  # a gradient may be the sum of many
        for ours, eagers in zip([t.detach() for t in got], [t.detach() for t in want], strict=True):
            assert (ours.shape, ours.dtype) == (eagers.shape, eagers.dtype)
            error = float((ours.double() - eagers.double()).abs().max()) if eagers.numel() else 0.0
            allowed = ERRORS.get(eagers.dtype, 0.0) * max(scale, 30.0)
            assert error <= allowed, f"call {call}: {error} beside {scale}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.additions", description="Compare sums at places with eager's.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="run C++ kernels, not the oracle of kernels")
    given = parser.parse_args()
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            check_program(program, counts, given.native)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ: {dict(sorted(counts.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
