"""What a CPU is expected to take for a product of matrices as a call of the library and as loops of ours, by its extents, without measuring.

The library's products of large matrices are several times faster than our loops, which keep no blocks in registers (a template does, for many rows and a
second operand that fits a cache: `choose_blocks`). But a call of it costs a microsecond, of 16-bit numbers about 15, it does each product of a batch by
itself, leaves most lanes empty where an extent is small, and has no fast products of integers.
The numbers are those of 900 products of random extents on an AVX-512 core. Loops are chosen only where a clear gain is expected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LANES = 16  # numbers of 32 bits that are computed at once
STEP = 0.62e-3  # microseconds of a multiplication and addition of that many
POINT = 1.0e-3  # of a vector of results beside its steps
DOT = 1.7e-3  # of a result whose products are summed across the lanes
TURN = 1.6e-3  # of a result that is stored by itself
CALL = 0.25  # of a kernel beside its work
CLEAR = 0.8  # of the library's time that loops may take
MANY, NARROWEST = 256, 32  # rows of the first operand, and the second one's shorter side, from which blocks of ours are faster than the library
CACHED = 1 << 18  # elements of a second operand that stay in a core's cache while the rows go by
BLOCKS_RATE = 100e3  # multiplications in a microsecond, of float32
MOST = 4_000_000  # multiplications, above which the library's threads are not idle
HALVES = (torch.bfloat16, torch.float16)
SLOWER = {torch.float64: 3.2, torch.int64: 6.0, torch.int32: 2.2, torch.bfloat16: 1.35, torch.float16: 1.35}
INTEGERS = 1.6e3  # multiplications in a microsecond of the library's integer products
LIBRARY_CALL, HALF_CALL = 0.85, 15.5  # microseconds of a call, and of one with 16-bit numbers
HALF_RATE = {torch.bfloat16: 500e3, torch.float16: 130e3}  # multiplications in a microsecond
PLAIN = 16**3  # multiplications of 16-bit numbers up to which, and those with vectors, a simple loop of the library does them
PLAIN_RATE, VECTOR_RATE = 1.5e3, 6e3
NAIVE = 400  # multiplications of float32 below which ATen computes each product of a batch itself
NAIVE_RATE = 1.4e3
EACH, HALF_EACH = 0.08, 0.09  # microseconds of another product of a batch beside its work, and of one of 16-bit numbers


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


def choose(product: Product) -> Choice:
    ours, library = loops_us(product), library_us(product)
    if product.steps > MOST:
        return Choice(False, "the library is faster with large matrices", ours, library)
    if ours < CLEAR * library:
        return Choice(True, "loops are expected to take less time than a call of the library", ours, library)
    return Choice(False, "the library is expected to take less time than loops", ours, library)


def choose_blocks(product: Product) -> Choice | None:
    """Of a product of float32 matrices that our template takes less time for than the library: it keeps blocks of results in registers and copies the second
    operand alone. Measured with 60 shapes on AVX-512 cores: 1.0 to 1.5 times as fast as the library with one thread, 1.1 to 1.3 with two."""
    if product.m < MANY or min(product.n, product.k) < NARROWEST or product.n * product.k > CACHED:
        return None
    return Choice(True, "blocks of rows are expected to take less time than a call of the library", CALL + product.steps / BLOCKS_RATE, library_us(product))


def loops_us(product: Product) -> float:
    """Lanes along the columns where the second operand's rows are consecutive, along the rows where the first one's columns are, else along the sums."""
    batch, m, n, k = max(product.batch, 1), product.m, product.n, product.k
    lanes = LANES * 4 // max(product.dtype.itemsize, 4)
    step = STEP * SLOWER.get(product.dtype, 1.0) / (LANES / lanes)
    if k == 1:
        return CALL + batch * m * vectors(n, lanes) * step
    if not product.along_b and (product.along_a or 2 * n >= lanes):
        return CALL + batch * m * vectors(n, lanes) * (k * step + POINT)
    if not product.along_a and m >= LANES:
        return CALL + batch * n * (vectors(m, lanes) * (k * step + POINT) + (m * TURN if n > 1 else 0))
    if not product.along_a:
        return CALL + product.steps * TURN
    return CALL + batch * m * n * (DOT * (1.5 if product.dtype in HALVES else 1) + vectors(k, lanes) * step)


def library_us(product: Product) -> float:
    smallest = min(product.m, product.n)
    if not product.dtype.is_floating_point:
        return LIBRARY_CALL + product.steps / INTEGERS
    if product.dtype in HALVES:
        each = product.m * product.n * product.k
        if each > PLAIN and smallest > 1:
            return HALF_CALL + HALF_EACH * product.batch + product.steps / HALF_RATE[product.dtype]
        if product.batch:
            return (HALF_CALL if product.steps > PLAIN else LIBRARY_CALL) + HALF_EACH * product.batch + product.steps / HALF_RATE[product.dtype]
        return LIBRARY_CALL + product.steps / (VECTOR_RATE if smallest == 1 else PLAIN_RATE)
    if product.batch and product.m * product.n * product.k < NAIVE:
        return LIBRARY_CALL + product.steps / NAIVE_RATE
    rate = library_rate(product, smallest) / (product.dtype.itemsize / 4)
    return LIBRARY_CALL + EACH * product.batch + product.steps / rate


def library_rate(product: Product, smallest: int) -> float:
    """Multiplications in a microsecond, of float32."""
    if product.batch:
        least = min(smallest, product.k)
        return 17e3 if smallest <= 4 else 75e3 if least >= 12 else 45e3 if least >= 6 else 25e3
    if smallest <= 4:
        return 45e3 if 1 < product.m <= 4 else 17e3
    return min(80e3 if smallest >= 12 else 40e3, 35e3 if product.k <= 4 else 80e3)


def vectors(n: int, lanes: int) -> float:
    """Vectors that n numbers fill; one that is at most half full is narrower."""
    return -(-n // lanes) if n > lanes // 2 else 0.75
