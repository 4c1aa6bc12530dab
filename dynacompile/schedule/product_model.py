"""What a GPU is expected to take for a product of matrices and what is computed of its results, as one kernel and as two, without measuring.

One kernel saves the memory traffic of the results between the two, and a launch. But while it computes what follows, nothing keeps the tensor cores busy,
so that this comes on top of the product's time: its memory traffic or its arithmetic, whichever takes longer, and a part of the other. A kernel of its own
hides the arithmetic behind the traffic. Our products take about the time of the library's where their tiles fill the device evenly. One kernel is chosen
only where a clear gain is expected.
"""

from __future__ import annotations

from math import prod

import torch

from dynacompile.ir.index import hint
from dynacompile.ir.loops import Nest
from dynacompile.ir.normal import normal
from dynacompile.ir.products import Decision, Joint

CAPABILITY = (9, 0)
RATE = 7.5e8  # multiplications and additions in a microsecond, of the library's products of 16-bit numbers on an H200
BYTES = 4.0e6  # that kernels move in a microsecond
SIMPLE = 2.6e7  # simple operations on numbers of 32 bits in a microsecond
LAUNCH = 4.0  # microseconds of a kernel beside its work
SLOWER = 1.01  # how much longer our products take than the library's, with tiles that fill the device evenly
CLEAR = 0.96  # of the time apart that one kernel may take
BESIDE = 0.3  # of the shorter of traffic and arithmetic that the longer one does not hide
EVEN = 0.85  # of the device that tiles must fill, on average
TILE = (128, 256)
PROCESSORS = 132
LINE = 16  # bytes
COSTS = {
    "erf": 19,
    "ndtr": 7,
    "tanh": 24,
    "sigmoid": 10,
    "exp": 8,
    "truediv": 10,
    "sqrt": 8,
    "rsqrt": 6,
    "log": 12,
    "pow": 40,
    "sin": 25,
    "cos": 25,
}  # in simple operations
FREE = frozenset(("load", "store", "constant", "product", "index"))


def expected(joint: Joint) -> Decision:
    if not is_known(joint):
        return Decision(False, "kernels for products are made for GPUs of compute capability 9.0")
    count = sum(op.name == "product" for op in joint.nest.body)
    if count > 1:
        return Decision(False, "two products at once are slower than the library's two", fused_us=0.0, apart_us=0.0)
    if any(joint.buffers[name].dtype.itemsize != 2 for name in operands(joint)):
        return Decision(False, "products of float32 and of 8-bit numbers are the library's where nothing is measured")
    tiles = joint.batch * -(-joint.m // TILE[0]) * -(-joint.n // TILE[1])
    filled = tiles / (-(-tiles // PROCESSORS) * PROCESSORS)
    library = LAUNCH + max(2 * joint.batch * joint.m * joint.n * joint.k / RATE, (read(joint) + results(joint)) / BYTES)
    apart = library + LAUNCH + traffic(joint.reader, joint) / BYTES
    further = max(0, traffic(joint.nest, joint) - results(joint)) / BYTES
    arithmetic = joint.batch * joint.m * joint.n * operations(joint) / SIMPLE
    fused = library * SLOWER + max(further, arithmetic) + BESIDE * min(further, arithmetic)
    if not is_aligned(joint):
        return Decision(False, "its operands do not lie as the bulk copy engine takes them", fused_us=fused, apart_us=apart)
    if filled < EVEN:
        return Decision(False, f"its tiles fill {filled:.0%} of the device", fused_us=fused, apart_us=apart)
    if fused < CLEAR * apart:
        return Decision(True, "the model of the device expects a gain", fused_us=fused, apart_us=apart)
    return Decision(False, "the model of the device expects no clear gain", fused_us=fused, apart_us=apart)


def is_known(joint: Joint) -> bool:
    """Whether kernels for products are made for the device; where there is none to ask, they are."""
    device = joint.buffers[joint.nest.stores()[0].buffer].device
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) == CAPABILITY


def is_aligned(joint: Joint) -> bool:
    """Rows of the operands start at multiples of 16 bytes."""
    deep = {a.var for a in joint.nest.r_axes}
    for access in joint.nest.loads():
        if not deep.isdisjoint(access.index.variables()):
            unit = LINE // joint.buffers[access.buffer].dtype.itemsize
            strides = [access.index.stride(a.var) for a in joint.nest.axes]
            if access.index.constant % unit or any(s not in (0, 1) and s % unit for s in strides):
                return False
    return True


def operations(joint: Joint) -> int:
    """Simple operations for each point of the results."""
    rows, columns = (joint.nest.body[i].attr.index.variables() for i in next(op.args for op in joint.nest.body if op.name == "product"))
    others = [a.index.variables() for a in joint.nest.loads() if a.buffer not in operands(joint)]
    wide = any(joint.buffers[a.buffer].dtype.itemsize != 2 for a in joint.nest.stores())
    matrices = any(v & (rows - columns) and v & (columns - rows) for v in others)
    nest = joint.nest if wide or matrices else normal(joint.nest)  # then gelu was measured to take less
    return sum(COSTS.get(op.name, 1) for op in nest.body if op.name not in FREE)


def results(joint: Joint) -> int:
    """Bytes of the products' results."""
    return sum(joint.buffers[out].bytes for call in joint.calls for out in call.outputs if out is not None)


def operands(joint: Joint) -> set[str]:
    """The memory of the matrices that the products multiply."""
    deep = {a.var for a in joint.nest.r_axes}
    return {a.buffer for a in joint.nest.loads() if not deep.isdisjoint(a.index.variables())}


def read(joint: Joint) -> int:
    return sum(joint.buffers[name].bytes for name in operands(joint))


def traffic(nest: Nest, joint: Joint) -> int:
    """Bytes that a kernel moves for each point of its results, operands of products not counted."""
    deep = {a.var for a in nest.r_axes}
    found = {(a.buffer, a.index) for a in (*nest.loads(), *nest.stores()) if deep.isdisjoint(a.index.variables())}
    return sum(min(joint.buffers[b].dtype.itemsize * prod(hint(a.size) for a in nest.x_axes if i.stride(a.var)), joint.buffers[b].bytes) for b, i in found)
