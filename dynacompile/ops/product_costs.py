"""What a CPU is expected to take for a product of matrices as a call of the library, as loops, and as blocks of ours, by its extents, without measuring.

The library's products of large matrices are several times faster than our loops, which keep no blocks in registers. But a call of it costs a microsecond,
it does each product of a batch by itself, leaves most lanes empty where an extent is small, and has no fast products of integers. Blocks are a template
(codegen/cpp/product.h) that keeps results in registers; it reads 16-bit numbers as float32, for which the library has no fast products either where the
processor multiplies none such. The numbers are those of 900 products of random extents on an AVX-512 core, and of 460 on an AVX2 core (AMD, Zen 3). Loops are
chosen only where a clear gain is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from dynacompile.private import of_torch

HALVES = (torch.bfloat16, torch.float16)
CLEAR = 0.8  # of the library's time that loops may take
MOST = 4_000_000  # multiplications, above which the library's threads are not idle
NARROWEST = 32  # of the second operand's shorter side, from which blocks are faster than the library
PLAIN = 16**3  # multiplications of 16-bit numbers up to which, and those with vectors, a simple loop of the library does them
NAIVE = 400  # multiplications of float32 below which ATen computes each product of a batch itself


@dataclass(frozen=True)
class Half:
    """16-bit numbers in the library. native: the processor has instructions that multiply them; else the library takes them one by one. call, each:
    microseconds of a call, and of another product of a batch. rate: multiplications in a microsecond; plain, vector: of small products, and with a vector."""

    native: bool
    call: float
    each: float
    rate: float
    plain: float
    vector: float


@dataclass(frozen=True)
class Processor:
    """What a core with some set of instructions takes, in microseconds.

    lanes: numbers of 32 bits that are computed at once. step: a multiplication and addition of that many. point: a vector of results beside its steps. dot: a
    result whose products are summed across the lanes. turn: a result that is stored by itself. call: a kernel beside its work. slower: other dtypes' steps.
    library_call, each: a call of the library, and another product of a batch. integers, naive: multiplications in a microsecond of the library's integer
    products, and of those that ATen computes itself. rate: of the library, as a share of that of an AVX-512 core; thin: of operands of at most four rows.
    rows, turned_rows: of the first operand from which blocks are faster than the library, turned: where the second one's columns are consecutive. cached:
    elements of a second operand for which blocks pay. blocks, packed: multiplications in blocks, and elements of a second operand that are copied, in a
    microsecond."""

    lanes: int
    step: float
    point: float
    dot: float
    turn: float
    call: float
    slower: Mapping[torch.dtype, float]
    library_call: float
    each: float
    integers: float
    naive: float
    rate: float
    thin: float
    rows: int
    turned_rows: int
    cached: int
    blocks: float
    packed: float
    halves: Mapping[torch.dtype, Half]


NATIVE = {torch.bfloat16: Half(True, 15.5, 0.09, 500e3, 1.5e3, 6e3), torch.float16: Half(True, 15.5, 0.09, 130e3, 1.5e3, 6e3)}
BY_ONE = Half(False, 2.0, 0.07, 1.2e3, 1.2e3, 1.2e3)
AVX512 = Processor(
    lanes=16, step=0.62e-3, point=1.0e-3, dot=1.7e-3, turn=1.6e-3, call=0.25,
    slower={torch.float64: 3.2, torch.int64: 6.0, torch.int32: 2.2, torch.bfloat16: 1.35, torch.float16: 1.35},
    library_call=0.85, each=0.08, integers=1.6e3, naive=1.4e3, rate=1.0, thin=1.0,
    rows=256, turned_rows=256, cached=1 << 18, blocks=100e3, packed=1e3, halves=NATIVE,
)  # fmt: skip
AVX2 = Processor(
    lanes=8, step=0.71e-3, point=0.8e-3, dot=3.1e-3, turn=0.4e-3, call=0.35,
    slower={torch.float64: 1.5, torch.int64: 3.0, torch.int32: 2.0, torch.bfloat16: 2.3, torch.float16: 1.5},
    library_call=2.0, each=0.28, integers=470.0, naive=280.0, rate=0.22, thin=0.3,
    rows=64, turned_rows=8, cached=1 << 19, blocks=38e3, packed=1.2e3, halves=dict.fromkeys(HALVES, BY_ONE),
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """batch: 0 where it is a product of two matrices. along_a, along_b: the extent that the operands share lies consecutive in the first one, and in the
    second; else the other extent does."""

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    along_a: bool
    along_b: bool

    @property
    def steps(self) -> int:
        return max(self.batch, 1) * self.m * self.n * self.k


@dataclass(frozen=True)
class Choice:
    """Microseconds that each way is expected to take."""

    loops: bool
    reason: str
    loops_us: float = 0.0
    library_us: float = 0.0


def processor() -> Processor:
    """This machine's."""
    found = AVX512 if torch.backends.cpu.get_cpu_capability() == "AVX512" else AVX2
    return replace(found, halves={d: NATIVE[d] if library_multiplies(d) else BY_ONE for d in HALVES})


def library_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of such 16-bit numbers on this machine."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    asked = {torch.bfloat16: of_torch.is_mkldnn_bf16_supported, torch.float16: of_torch.is_mkldnn_fp16_supported}.get(dtype)
    return asked is not None and bool(asked())


def choose(product: Product, on: Processor | None = None) -> Choice:
    """Loops or a call of the library."""
    on = on or processor()
    ours, library = loops_us(product, on), library_us(product, on)
    if product.steps > MOST:
        return Choice(False, "the library is faster with large matrices", ours, library)
    if ours < CLEAR * library:
        return Choice(True, "loops are expected to take less time than a call of the library", ours, library)
    return Choice(False, "the library is expected to take less time than loops", ours, library)


def choose_blocks(product: Product, on: Processor | None = None) -> Choice | None:
    """Of a product of two matrices that blocks take less time for than the library, and than loops. Measured with 60 shapes of float32 on AVX-512 cores (1.0 to
    1.5 times as fast as the library with one thread, 1.1 to 1.3 with two) and with 80 on AVX2 cores (0.9 to 1.9, 1.14 in the mean); of 16-bit numbers there,
    with 12 shapes, 2.6 to 60."""
    on = on or processor()
    ours, library, loops = blocks_us(product, on), library_us(product, on), loops_us(product, on)
    if product.dtype in HALVES:
        pays = not on.halves[product.dtype].native and ours < CLEAR * library
    else:
        pays = product.dtype == torch.float32 and product.along_a and are_blocks(product, on)
    if not pays or loops < ours + on.call:  # loops join the kernels around them, which is one call less
        return None
    return Choice(True, "blocks of rows are expected to take less time than a call of the library", ours, library)


def are_blocks(product: Product, on: Processor) -> bool:
    """Whether blocks of float32 were faster than the library with such extents."""
    rows = on.turned_rows if product.along_b else on.rows
    return product.m >= rows and min(product.n, product.k) >= NARROWEST and product.n * product.k <= on.cached


def blocks_us(product: Product, on: Processor) -> float:
    return on.call + product.n * product.k / on.packed + product.steps / on.blocks


def loops_us(product: Product, on: Processor) -> float:
    """Lanes along the columns where the second operand's rows are consecutive, along the rows where the first one's columns are, else along the sums."""
    batch, m, n, k = max(product.batch, 1), product.m, product.n, product.k
    lanes = on.lanes * 4 // max(product.dtype.itemsize, 4)
    step = on.step * on.slower.get(product.dtype, 1.0) / (on.lanes / lanes)
    if k == 1:
        return on.call + batch * m * vectors(n, lanes) * step
    if not product.along_b and (product.along_a or 2 * n >= lanes):
        return on.call + batch * m * vectors(n, lanes) * (k * step + on.point)
    if not product.along_a and m >= on.lanes:
        return on.call + batch * n * (vectors(m, lanes) * (k * step + on.point) + (m * on.turn if n > 1 else 0))
    if not product.along_a:
        return on.call + product.steps * on.turn
    return on.call + batch * m * n * (on.dot * (1.5 if product.dtype in HALVES else 1) + vectors(k, lanes) * step)


def library_us(product: Product, on: Processor) -> float:
    smallest = min(product.m, product.n)
    if not product.dtype.is_floating_point:
        return on.library_call + product.steps / on.integers
    if product.dtype in HALVES:
        half, each = on.halves[product.dtype], product.m * product.n * product.k
        if each > PLAIN and smallest > 1:
            return half.call + half.each * product.batch + product.steps / half.rate
        if product.batch:
            return (half.call if product.steps > PLAIN else on.library_call) + half.each * product.batch + product.steps / half.rate
        return on.library_call + product.steps / (half.vector if smallest == 1 else half.plain)
    if product.batch and product.m * product.n * product.k < NAIVE:
        return on.library_call + product.steps / on.naive
    rate = library_rate(product, smallest, on) / (product.dtype.itemsize / 4)
    return on.library_call + on.each * product.batch + product.steps / rate


def library_rate(product: Product, smallest: int, on: Processor) -> float:
    """Multiplications in a microsecond, of float32."""
    if product.batch:
        least = min(smallest, product.k)
        return on.thin * 17e3 if smallest <= 4 else on.rate * (75e3 if least >= 12 else 45e3 if least >= 6 else 25e3)
    if smallest <= 4:
        return on.thin * (45e3 if 1 < product.m <= 4 else 17e3)
    return on.rate * min(80e3 if smallest >= 12 else 40e3, 35e3 if product.k <= 4 else 80e3)


def vectors(n: int, lanes: int) -> float:
    """Vectors that n numbers fill; one that is at most half full is narrower."""
    return -(-n // lanes) if n > lanes // 2 else 0.75
