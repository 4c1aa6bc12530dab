"""Random reductions in one to three passes over tensors whose axes lie in any order in memory, as C++ kernels, against the oracle of kernels.

Groups of neighbours, transposed operands, values of rows, of columns and of groups, and outputs of each kind meet in them.
From seed 100000 on they reduce all elements of rows that have gaps between them, which tasks share out, the last of them fewer. From seed 200000 on they
write over what they read: numbers of rows that are read first and stored last (statistics, counters), and results in the memory of operands.

    python -m tests.fuzz.reductions FIRST LAST
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch

from dynacompile.ir.body import without_dead
from dynacompile.ir.index import Index
from dynacompile.ir.loops import Access
from dynacompile.ir.schedule import Kernel
from tests.codegen.cpp_running import Library
from tests.codegen.triton_cases import BF16, F16, F32, F64, I8, I32, I64, U8, Build, oracle, storages

BATCH = 24  # kernels of a library
SIZES = (2, 3, 4, 7, 8, 12, 16, 17, 24, 33, 40, 64, 100)
MOST = 150_000  # points
ERRORS = {F32: 2e-5, BF16: 2e-2, F16: 4e-3, F64: 1e-12}  # beside the largest value, as differences of large values are stored


WIDER = 100_000
IN_PLACE = 200_000
TAILS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130)
DONOR = "_before"  # what the name of an operand ends with whose memory the result of the rest of the name takes
COUNTERS = (I64, I32, I8, U8)


def of_everything(seed: int) -> Kernel:
    """Reductions of all elements of rows with gaps."""
    choose = random.Random(seed)
    rows, length, gap = choose.randint(100, 1500), choose.choice((*range(2, 70), 96, 100, 130, 257)), choose.randint(1, 5)
    dtype = choose.choice((F32, F32, BF16, F64))
    wide = F64 if dtype is F64 else F32
    b = Build(f"reductions_{seed}", (), (rows, length))
    v = b.load("x", dtype, b.at(length + gap, 1, offset=choose.randint(0, 3)))
    for k in range(choose.randint(1, 2)):
        taken = b.reduce(choose.choice(("sum", "sum", "max")), b.mul(v, v) if choose.random() < 0.3 else v)
        b.store(f"out{k}", wide, b.at(0, 0), taken)
    return b.kernel()


def kernel(seed: int) -> Kernel:
    if seed >= IN_PLACE:
        return InPlace(seed).kernel()
    if seed >= WIDER:
        return of_everything(seed)
    choose = random.Random(seed)
    while True:
        x = [choose.choice(SIZES) for _ in range(choose.randint(1, 2))]
        r = [choose.choice(SIZES) for _ in range(choose.randint(1, 2))]
        if 500 < prod(x) * prod(r) < MOST:
            break
    b = Build(f"reductions_{seed}", tuple(x), tuple(r))
    sizes = [*x, *r]

    def place(order: list[int]) -> list[int]:
        """Strides of axes that lie so in memory, outermost first; 0 for those that it leaves out."""
        strides, step = [0] * len(sizes), 1
        for axis in reversed(order):
            strides[axis], step = step, step * sizes[axis]
        return strides

    def order(axes: list[int], usual: bool) -> list[int]:
        return sorted(axes) if usual else choose.sample(axes, len(axes))

    everything = list(range(len(sizes)))
    channels_last = [*range(len(x) - 1), *range(len(x), len(sizes) - 1), len(x) - 1, len(sizes) - 1]
    orders = [everything, channels_last, order(everything, False)]
    layout = choose.choice(orders)
    dtype = choose.choice((F32, F32, F32, BF16, F64))
    wide = F64 if dtype is F64 else F32
    v = b.load("x", dtype, b.at(*place(layout)))
    if choose.random() < 0.6:
        v = b.add_(v, b.load("y", dtype, b.at(*place(choose.choice([layout, *orders])))))
    for name in ("own", "other"):
        if choose.random() < 0.4:
            axes = choose.sample(everything, choose.randint(1, len(sizes) - 1))
            v = b.mul(v, b.load(name, wide, b.at(*place(order(axes, choose.random() < 0.5)))))
    rows = b.at(*place(order(list(range(len(x))), choose.random() < 0.8)))
    outputs = 0
    for number in range(choose.randint(1, 3)):
        kind = choose.choice(("sum", "sum", "max", "min"))
        taken = b.reduce(kind, b.mul(v, v) if choose.random() < 0.3 else v)
        if kind == "sum":
            taken = b.truediv(taken, b.const(float(prod(r)), wide))
        if choose.random() < 0.5:
            b.store(f"row{number}", wide, rows, taken)
            outputs += 1
        v = b.sub(v, taken) if choose.random() < 0.7 else b.add_(v, b.tanh(taken))
    if not outputs or choose.random() < 0.7:
        b.store("out", dtype, b.at(*place(choose.choice([layout, layout, *orders]))), v)
    return b.kernel()


class InPlace:
    """A kernel that writes over what it reads. As those of schedules, it stores after all loads; what it writes over is read at the stored element alone,
    and so that the point is the same. Without axes r it is pointwise."""

    def __init__(self, seed: int):
        self.choose = choose = random.Random(seed)
        x, r = self.grouped() if choose.random() < 0.3 else self.any_sizes()
        self.b = Build(f"reductions_{seed}", tuple(x), tuple(r))
        self.sizes, self.rows = [*x, *r], len(x)
        self.dtype = choose.choice((F32, F32, F32, BF16, F16, F64))
        self.wide = F64 if self.dtype is F64 else F32
        self.pending: list[tuple[str, torch.dtype, Index, int]] = []  # stores
        everything = list(range(len(self.sizes)))
        self.orders = [everything, everything[::-1], self.shuffled(everything), [*everything[: len(x) - 1], *everything[len(x) :], len(x) - 1]]
        if len(r) > 1:
            self.orders.append([*range(len(x) - 1), *range(len(x), len(everything) - 1), len(x) - 1, len(everything) - 1])
        self.layout = self.orders[-1] if len(r) == 2 and r[1] <= 16 and choose.random() < 0.8 else choose.choice(self.orders)

    def any_sizes(self) -> tuple[list[int], list[int]]:
        choose = self.choose
        few = choose.random() < 0.25  # rows, whose elements threads share out
        most = choose.choice((200_000, 400_000) if few else (2_000, 20_000, 150_000, 300_000))
        while True:
            x = [choose.choice((1, 2, 3, 7, 16, 17, 65) if few else TAILS) for _ in range(choose.randint(1, 2 if few else 3))]
            r = [choose.choice((64, 100, 257, 1000, 9000) if few else (*TAILS, 200, 1000)) for _ in range(choose.choice((1, 2) if few else (0, 1, 1, 2, 2)))]
            if most // 50 < prod(x) * prod(r) < most and (not few or prod(r) * max(x) > 70_000):
                return x, r

    def grouped(self) -> tuple[list[int], list[int]]:
        """Groups of a few neighbours."""
        choose = self.choose
        r = [choose.choice((16, 17, 31, 64, 130, 1000)), choose.choice((2, 3, 4, 5, 7, 8, 9, 12, 15, 16))]
        groups = choose.choice([n for n in TAILS if n * r[1] >= 32])
        return [choose.choice((1, 2, 3)), groups] if choose.random() < 0.6 else [groups], r

    def shuffled(self, axes: list[int]) -> list[int]:
        return self.choose.sample(axes, len(axes))

    def at(self, order: list[int]) -> Index:
        """Elements of axes that lie so in memory, outermost first."""
        strides, step = [0] * len(self.sizes), 1
        for axis in reversed(order):
            strides[axis], step = step, step * self.sizes[axis]
        return self.b.at(*strides)

    def rows_at(self) -> Index:
        return self.at(list(range(self.rows)) if self.choose.random() < 0.8 else self.shuffled(list(range(self.rows))))

    def changed(self, name: str, dtype: torch.dtype, index: Index, into: bool) -> int:
        """The value of what will be written over; `later` stores there. into: the memory is an operand's, and the result has a name of its own."""
        self.targets.append((name, dtype, index))
        return self.b.load(name + DONOR if into else name, dtype, index)

    def kernel(self) -> Kernel:
        b, choose, wide = self.b, self.choose, self.wide
        self.targets: list[tuple[str, torch.dtype, Index]] = []
        whole = self.at(self.layout)
        over = choose.random() < 0.5
        v = self.changed("x", self.dtype, whole, not self.reduces or choose.random() < 0.5) if over else b.load("x", self.dtype, whole)
        for name in ("y", "z"):
            if choose.random() < 0.4:
                v = b.add_(v, b.load(name, self.dtype, self.at(choose.choice((self.layout, *self.orders)))))
        if choose.random() < 0.4 and len(self.sizes) > 1:
            axes = choose.sample(range(len(self.sizes)), choose.randint(1, len(self.sizes) - 1))
            v = b.mul(v, b.load("own", wide, self.at(sorted(axes))))
        kept = [self.kept(i) for i in range(choose.randint(0 if over else 1, 3))]
        values = [old for kind, old in kept if kind == "number"]
        if values and choose.random() < 0.4:
            v = b.sub(v, choose.choice(values))  # elements meet what is there before
        for _ in range(choose.randint(1, 3) if self.reduces else 0):
            taken = b.reduce(choose.choice(("sum", "sum", "max", "min")), b.mul(v, v) if choose.random() < 0.3 else v)
            taken = b.mul(taken, b.const(1 / prod(self.sizes[self.rows :]), wide))
            values.append(taken)
            v = b.sub(v, taken) if choose.random() < 0.6 else b.add_(v, b.tanh(taken))
        values = values or [v]
        for name, dtype, index in self.targets:
            if name == "x":
                new = v if choose.random() < 0.5 else b.max_(v, b.const(0.0, wide))
            elif dtype in COUNTERS:
                new = b.add_(kept[int(name[4:])][1], b.const(choose.choice((1, 3)), b.body[kept[int(name[4:])][1]].dtype))
            else:
                new = b.add_(b.mul(kept[int(name[4:])][1], b.const(choose.choice((0.9, -1.0, 1.0)), wide)), choose.choice(values))
                new = b.where(b.lt(choose.choice(values), b.const(0.3, wide)), new, choose.choice(values)) if choose.random() < 0.2 else new
            self.pending.append((name, dtype, index, new))
        if choose.random() < 0.5:
            self.pending.append(("out", self.dtype, self.at(choose.choice((self.layout, self.layout, *self.orders))), v))
        for name, dtype, index, value in choose.sample(self.pending, len(self.pending)):
            b.store(name, dtype, index, value)
        b.body = list(without_dead(b.body))
        used = {op.attr.buffer for op in b.body if isinstance(op.attr, Access)}
        b.params = {name: parameter for name, parameter in b.params.items() if name in used}
        return b.kernel()

    @property
    def reduces(self) -> bool:
        return self.rows < len(self.sizes)

    def kept(self, i: int) -> tuple[str, int]:
        """What is known of a row, and changed: a number or a counter."""
        into = self.choose.random() < 0.3
        if self.choose.random() < 0.2:
            return "counter", self.changed(f"kept{i}", self.choose.choice(COUNTERS), self.rows_at(), into)
        return "number", self.changed(f"kept{i}", self.choose.choice((self.wide, self.wide, self.dtype)), self.rows_at(), into)


def shared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With the memory of operands that results are written into."""
    return {name: tensors.get(name + DONOR, t) for name, t in tensors.items()}


def differing(seeds: range) -> Iterator[tuple[int, str]]:
    """Seeds whose kernel stores other numbers than the oracle, and what differs."""
    with tempfile.TemporaryDirectory() as folder:
        for first in range(seeds.start, seeds.stop, BATCH):
            kernels = {str(seed): kernel(seed) for seed in range(first, min(first + BATCH, seeds.stop))}
            library = Library(kernels, Path(folder) / str(first))
            for name, made in kernels.items():
                tensors = storages(made, int(name))
                expected = shared({k: t.clone() for k, t in tensors.items()})
                tensors = shared(tensors)
                oracle(made, expected)
                library(name, list(tensors.values()))
                for parameter, want in expected.items():
                    if parameter.endswith(DONOR):
                        continue
                    if not want.dtype.is_floating_point:
                        if not torch.equal(tensors[parameter], want):
                            yield int(name), f"{parameter}: {tensors[parameter][:8].tolist()} beside {want[:8].tolist()}"
                        continue
                    error, scale = (tensors[parameter].double() - want.double()).abs().max().item(), max(1.0, want.double().abs().max().item())
                    if not error <= ERRORS[want.dtype] * scale:
                        yield int(name), f"{parameter}: {error} beside {scale}"


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    found = 0
    for seed, what in differing(range(first, last)):
        found += 1
        print(f"seed {seed}: {what}\n{kernel(seed).nest.text()}", flush=True)
    print(f"{last - first} kernels, {found} differ")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
