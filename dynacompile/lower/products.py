"""Products of matrices on CPUs that are no calls of the library, where they take less time than one.

Small ones are a nest that sums over the extent that the operands share, which joins the kernels around it: casts of its operands, its bias, its activation.
Its sum is made in float32 for 16-bit numbers and rounded once, as the library does. Many rows times a small matrix are a template of ours, as are products of
16-bit numbers where the library takes these one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.env import Env
from dynacompile.events import ProductDecided
from dynacompile.ir.index import Index, hint, strided
from dynacompile.ir.loops import Buffer, Extern
from dynacompile.lower.context import Lowering, geometry, origin
from dynacompile.lower.reduction import Loops
from dynacompile.lower.values import Expander, Value
from dynacompile.ops.product_costs import Choice, Product, choose, choose_blocks
from dynacompile.ops.scalars import compute_dtype

aten = torch.ops.aten
DTYPES_OF_PRODUCTS = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64})
BLOCK_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
BLOCK_VECTORS = frozenset({"AVX2", "AVX512"})
SUMMANDS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}


@dataclass(frozen=True)
class Operands:
    """added: what the product is added to. Factors of a call that names none are 1."""

    a: Buffer
    b: Buffer
    added: Buffer | None
    beta: float
    alpha: float


def lower_small_product(low: Lowering, node: torch.fx.Node) -> bool:
    """Appends the nest where loops are expected to be faster. False: nothing was done."""
    found = operands_of(low, node)
    if found is None:
        return False
    product = product_of(found)
    choice = choose(product)
    low.products.append((node, choice))
    if choice.loops:
        emit_product(low, node, found, product)
    return choice.loops


def decided(env: Env, node: torch.fx.Node, choice: Choice) -> ProductDecided:
    times: dict[str, Any] = {"fused_us": choice.loops_us, "apart_us": choice.library_us}
    site = str(node.meta.get("site") or "")
    return ProductDecided(region=env.region, bucket=env.bucket, product=node.name, members=(), fused=choice.loops, reason=choice.reason, site=site, **times)


def operands_of(low: Lowering, node: torch.fx.Node) -> Operands | None:
    """Those of a product of matrices with known extents on the CPU, else None."""
    count = SUMMANDS.get(node.target)  # type: ignore[call-overload]
    if count is None or low.device.type != "cpu" or not node.kwargs.keys() <= {"beta", "alpha"}:
        return None
    buffers = [low.buffer_of(n) for n in node.args]
    factors = [node.kwargs.get(name, 1) for name in ("beta", "alpha")]
    sizes = [n for b in buffers for n in (*b.size, *b.stride, b.offset)]
    if any(type(n) is not int for n in sizes) or any(b.numel == 0 for b in buffers) or any(type(f) not in (int, float) for f in factors):
        return None
    val = node.meta["val"]
    if val.dtype not in DTYPES_OF_PRODUCTS or any(b.dtype != val.dtype or b.device.type != "cpu" for b in buffers):
        return None
    if not val.dtype.is_floating_point and factors != [1, 1]:
        return None
    beta, alpha = (float(f) for f in factors)  # type: ignore[arg-type]
    return Operands(buffers[count], buffers[count + 1], buffers[0] if count and beta else None, beta, alpha)


def product_of(found: Operands) -> Product:
    """Its extents, and how the operands lie."""
    (m, k), n = found.a.size[-2:], found.b.size[-1]
    batch = found.a.size[0] if len(found.a.size) == 3 else 0
    rows_of_b = found.b.stride[-1] == 1 or n == 1
    return Product(batch, m, n, k, found.a.dtype, consecutive(found.a, -1), not rows_of_b and consecutive(found.b, -2))  # type: ignore[arg-type]


def consecutive(buffer: Buffer, dim: int) -> bool:
    return buffer.stride[dim] == 1 or buffer.size[dim] == 1


def emit_product(low: Lowering, node: torch.fx.Node, found: Operands, product: Product) -> None:
    val = node.meta["val"]
    dtype = compute_dtype(val.dtype)
    loops = Loops(low, (max(product.batch, 1), product.m, product.n, product.k), [3], False)
    into = low.add(node.name, val)
    low.values[node] = node.name
    o = low.expander(val.dtype)
    rank = len(found.a.size)
    a, b = (loaded(low, o, loops, buffer, places[3 - rank :]) for buffer, places in ((found.a, (0, 1, 3)), (found.b, (0, 3, 2))))
    value = loops.reduced(o, "sum", o.cast(a * b, dtype))
    if found.alpha != 1:
        value = value * found.alpha
    if found.added is not None:
        added = low.load(o, found.added, broadcast(loops, found.added))
        value = value + (added if found.beta == 1 else added * found.beta)
    low.finish(o, value, into, loops.axes, loops.output[3 - rank :], node)


def loaded(low: Lowering, o: Expander, loops: Loops, buffer: Buffer, places: Sequence[int]) -> Value:
    return low.load(o, buffer, strided([loops.input[p] for p in places], buffer.stride, buffer.offset))


def broadcast(loops: Loops, buffer: Buffer) -> Index:
    """Where a point of the results reads what is added to them."""
    indices = loops.output[3 - len(buffer.size) :]
    return strided(indices, [0 if n == 1 else s for n, s in zip(buffer.size, buffer.stride, strict=True)], buffer.offset)


def lower_blocked_product(low: Lowering, node: torch.fx.Node, args: tuple, kwargs: dict[str, object]) -> bool:
    """Appends the call with its template where that is expected to be faster. False: nothing was done. args, kwargs: as the call has them, with a Ref for each
    tensor."""
    product = blocked_product_of(low, node)
    choice = None if product is None else choose_blocks(product)
    if choice is None:
        return False
    low.products.append((node, choice))
    result = low.add(node.name, node.meta["val"])
    low.values[node] = result.name
    low.steps.append(Extern(node.name, node.target, args, kwargs, (result.name,), origins=(origin(node),), template="blocked_product"))  # type: ignore[arg-type]
    return True


def blocked_product_of(low: Lowering, node: torch.fx.Node) -> Product | None:
    """The extents of a product of two matrices that our template computes, else None: of float32 or 16-bit numbers on a CPU with the vectors that it was
    measured with. Of each operand either rows or columns are consecutive. The number of rows, and the extent that is summed over, may be symbols."""
    count = SUMMANDS.get(node.target)  # type: ignore[call-overload]
    if count is None or low.device.type != "cpu" or node.kwargs or torch.backends.cpu.get_cpu_capability() not in BLOCK_VECTORS:
        return None
    *added, a, b = (low.buffer_of(n) for n in node.args)
    size, stride = geometry(node.meta["val"])
    known = (*a.stride, *b.size[1:], *b.stride, b.offset, *stride)
    if len(size) != 2 or any(type(n) is not int for n in known) or stride[1] != 1 or 1 not in b.stride or 1 not in a.stride or 0 in (*a.size, *b.size):
        return None
    dtype = node.meta["val"].dtype
    if dtype not in BLOCK_DTYPES or not all(is_of(low, buffer, dtype) for buffer in (a, b, *added)) or not all(adds_rows(buffer, size) for buffer in added):
        return None
    return Product(0, hint(size[0]), hint(size[1]), hint(a.size[1]), dtype, a.stride[1] == 1, b.stride[1] != 1)


def is_of(low: Lowering, buffer: Buffer, dtype: torch.dtype) -> bool:
    owner = low.buffers[buffer.base or buffer.name]
    return buffer.dtype == owner.dtype == dtype and buffer.device.type == "cpu"


def adds_rows(buffer: Buffer, size: Sequence[object]) -> bool:
    """Whether what is added is a row for all rows, or a row for each."""
    rows = buffer.size[:-1]
    return len(rows) <= 1 and buffer.size[-1] == size[1] and buffer.stride[-1] == 1 and all(n in (1, size[0]) for n in rows)
