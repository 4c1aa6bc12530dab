"""What a GPU is expected to take for a product of matrices and what is computed of its results, as one kernel and as two, without measuring.

The library's kernels come nearer to the tensor cores' rate than ours, the more the longer the sum. One kernel saves the memory traffic of the results
between the two, and a launch. It is chosen only where the model expects a clear gain.
"""

from __future__ import annotations

from math import prod

from dynacompile.ir.index import hint
from dynacompile.ir.loops import Nest
from dynacompile.ir.products import Decision, Joint

RATE = 7.0e8  # multiply-adds and additions in a microsecond, of the library's products of 16-bit numbers on an H200
BYTES = 4.0e6  # that a kernel moves in a microsecond
LAUNCH = 3.0  # microseconds of a kernel beside its work
SLOWER = 1.12  # how much longer our products take than the library's
CLEAR = 0.97  # of the time apart that one kernel may take


def expected(joint: Joint) -> Decision:
    operations = 2 * joint.m * joint.n * joint.k
    library = sum(LAUNCH + operations / RATE for op in joint.nest.body if op.name == "product")
    apart = library + LAUNCH + traffic(joint.reader, joint) / BYTES
    moved = traffic(joint.nest, joint) / BYTES
    fused = library * SLOWER + max(0.0, moved - results(joint) / BYTES)
    if fused < CLEAR * apart:
        return Decision(True, "the model of the device expects a gain", fused_us=fused, apart_us=apart)
    return Decision(False, "the model of the device expects no clear gain", fused_us=fused, apart_us=apart)


def results(joint: Joint) -> int:
    """Bytes of the products' results."""
    return sum(joint.buffers[out].bytes for call in joint.calls for out in call.outputs if out is not None)


def traffic(nest: Nest, joint: Joint) -> int:
    """Bytes that a kernel moves for each point of its results, operands of products not counted."""
    deep = {a.var for a in nest.r_axes}
    found = {(a.buffer, a.index) for a in (*nest.loads(), *nest.stores()) if deep.isdisjoint(a.index.variables())}
    return sum(min(joint.buffers[b].dtype.itemsize * prod(hint(a.size) for a in nest.x_axes if i.stride(a.var)), joint.buffers[b].bytes) for b, i in found)
