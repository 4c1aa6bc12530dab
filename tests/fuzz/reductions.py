"""Random reductions in one to three passes over tensors whose axes lie in any order in memory, as C++ kernels, against the oracle of kernels.

Groups of neighbours, transposed operands, values of rows, of columns and of groups, and outputs of each kind meet in them.
From seed 100000 on they reduce all elements of rows that have gaps between them, which tasks share out, the last of them fewer.

    python -m tests.fuzz.reductions FIRST LAST
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

from dynacompile.ir.schedule import Kernel
from tests.codegen.cpp_running import Library
from tests.codegen.triton_cases import BF16, F32, F64, Build, oracle, storages

BATCH = 24  # kernels of a library
SIZES = (2, 3, 4, 7, 8, 12, 16, 17, 24, 33, 40, 64, 100)
MOST = 150_000  # points
ERRORS = {F32: 2e-5, BF16: 2e-2, F64: 1e-12}  # beside the largest value, as differences of large values are stored


WIDER = 100_000


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


def differing(seeds: range) -> Iterator[tuple[int, str]]:
    """Seeds whose kernel stores other numbers than the oracle, and what differs."""
    with tempfile.TemporaryDirectory() as folder:
        for first in range(seeds.start, seeds.stop, BATCH):
            kernels = {str(seed): kernel(seed) for seed in range(first, min(first + BATCH, seeds.stop))}
            library = Library(kernels, Path(folder) / str(first))
            for name, made in kernels.items():
                tensors = storages(made, int(name))
                expected = {k: t.clone() for k, t in tensors.items()}
                oracle(made, expected)
                library(name, list(tensors.values()))
                for parameter, want in expected.items():
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
