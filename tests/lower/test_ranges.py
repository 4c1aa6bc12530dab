"""Ranges of the values of bodies: no value lies outside, and what is decided by them is decided so at every point."""

from __future__ import annotations

import random

import pytest
import torch

from dynacompile.codegen.triton import emit_kernel
from dynacompile.ir.body import Body
from dynacompile.ir.index import Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, LoopProgram, Nest
from dynacompile.ir.ranges import FITS, compared, narrow, ranges
from dynacompile.ir.sizes import Sizes
from dynacompile.ops.scalars import SCALARS
from dynacompile.schedule import schedule
from dynacompile.schedule.simplify import without_certain_choices
from tests.lower.tracing import UNFUSED

SIZE, I64, I32, F32 = 40, torch.int64, torch.int32, torch.float32
WHOLE = ("add", "sub", "mul", "max", "min", "neg")
REAL = (*WHOLE, "floor", "ceil", "trunc")


def random_body(seed: int) -> Body:
    """Of values of one axis: computed places, comparisons and choices, with numbers that are large now and then."""
    rng, body = random.Random(seed), Body()
    axis = atom(Var("x0", SIZE))
    values = {I64: [body.emit("index", (), I64, axis * rng.choice((1, 3)) - rng.choice((0, 7)))], I32: [], F32: []}
    bools: list[int] = []
    for _ in range(14):
        dtype = rng.choice([d for d in values if values[d]])
        kind = rng.choice(("op", "op", "cast", "constant", "compare", "where"))
        pick = lambda dtype=dtype: rng.choice(values[dtype])  # noqa: E731
        if kind == "constant":
            number = rng.choice((0, 1, 5, 39, -3, 2**20, 2**31)) if dtype != I32 else rng.choice((0, 1, -9, 2**30))
            values[dtype].append(body.emit("constant", (), dtype, number * (0.5 if dtype == F32 else 1)))
        elif kind == "cast":
            target, found = rng.choice((I64, I32, F32)), pick()
            known = ranges(body.ops, {})[found]
            if target != dtype and (dtype != F32 or known is not None and max(map(abs, known)) < 2**31):
                values[target].append(body.emit("cast", (found,), target))
        elif kind == "compare":
            bools.append(body.emit(rng.choice(("lt", "le", "eq", "ne")), (pick(), pick()), torch.bool))
        elif kind == "where" and bools:
            values[dtype].append(body.emit("where", (rng.choice(bools), pick(), pick()), dtype))
        elif kind == "op":
            name = rng.choice(REAL if dtype == F32 else WHOLE)
            values[dtype].append(body.emit(name, tuple(pick() for _ in range(SCALARS[name].operands)), dtype))
    for dtype, kept in values.items():
        if kept:
            body.store(kept[-1], f"out_{dtype}", axis)
    if bools:
        body.store(bools[-1], "out_bool", axis)
    return body


def evaluated(ops) -> dict[int, torch.Tensor]:
    points, found = torch.arange(SIZE), {}
    for i, op in enumerate(ops):
        if op.name == "index":
            found[i] = torch.tensor([int(op.attr.subs({v: int(x) for v in op.attr.variables()}).constant) for x in points], dtype=op.dtype)
        elif op.name == "constant":
            found[i] = torch.full((SIZE,), op.attr, dtype=op.dtype)
        elif op.name == "cast":
            found[i] = found[op.args[0]].to(op.dtype)
        elif op.name != "store":
            found[i] = SCALARS[op.name].run(*(found[a] for a in op.args))
    return found


@pytest.mark.parametrize("part", range(4))
def test_no_value_lies_outside_of_its_range(part):
    decided = narrowed = 0
    for seed in range(150 * part, 150 * (part + 1)):
        ops = random_body(seed).ops
        values, known, small = evaluated(ops), ranges(ops, {}), narrow(ops, {})
        for i, value in values.items():
            if known[i] is not None:
                assert known[i][0] <= value.min() and value.max() <= known[i][1], (seed, i, ops[i], known[i])
            if i in small:
                narrowed += 1
                assert FITS[0] <= value.min() and value.max() <= FITS[1], (seed, i)
        nest = Nest("any", (Axis(Var("x0", SIZE), "x"),), tuple(ops), ())
        simple = without_certain_choices(nest, {})
        decided += len(simple.body) < len(nest.body)
        again = evaluated(simple.body)
        for before, after in zip([op for op in ops if op.name == "store"], [op for op in simple.body if op.name == "store"], strict=True):
            assert before.attr.buffer == after.attr.buffer
            assert torch.equal(values[before.args[0]], again[after.args[0]]), (seed, before)
    assert decided > 20 and narrowed > 100


def test_comparisons():
    assert compared("lt", (0, 4), (5, 9)) is True and compared("lt", (5, 9), (0, 5)) is False and compared("lt", (0, 5), (5, 9)) is None
    assert compared("le", (0, 5), (5, 9)) is True and compared("le", (6, 9), (0, 5)) is False and compared("le", (5, 9), (0, 5)) is None
    assert compared("eq", (0, 4), (5, 9)) is False and compared("ne", (0, 4), (5, 9)) is True and compared("eq", (0, 5), (5, 9)) is None


def test_sums_that_wrap_around_have_the_range_of_their_dtype():
    body = Body()
    large = body.emit("constant", (), I32, 2**30)
    body.emit("add", (large, body.emit("constant", (), I32, 2**30 + 1)), I32)
    assert ranges(body.ops, {})[-1] == (-(2**31), 2**31 - 1)


def test_kernels_know_what_places_others_have_written():
    """A table of rows that are in their dimension for certain, and one that is an input."""

    def program(gather: bool):
        body, axis = Body(), atom(Var("x0", SIZE))
        place = body.emit("index", (), I64, axis)
        body.store(body.emit("min", (place, body.emit("constant", (), I64, 9)), I64), "table", axis)
        reader = Body()
        row = reader.emit("load", (), I64, Access("table", axis))
        row = reader.emit("where", (reader.emit("lt", (row, reader.emit("constant", (), I64, 0)), torch.bool), reader.emit("neg", (row,), I64), row), I64)
        reader.store(reader.emit("load", (), F32, Access("source", atom(Var(f"%{row}", 10)))), "out", axis)
        axes = (Axis(Var("x0", SIZE), "x"),)
        gpu = torch.device("cuda", 0)
        buffers = {
            "table": Buffer("table", I64, gpu, (SIZE,), (1,), "temp" if gather else "input"),
            "source": Buffer("source", F32, gpu, (10,), (1,), "input"),
            "out": Buffer("out", F32, gpu, (SIZE,), (1,), "temp"),
        }
        steps = (Nest("write", axes, tuple(body.ops)), Nest("read", axes, tuple(reader.ops)))
        inputs = ("source",) if gather else ("source", "table")
        return LoopProgram(inputs, ("out",), buffers, steps if gather else steps[1:], {}, Sizes())

    kernels = list(schedule(program(True), UNFUSED).kernels.values())
    reader = kernels[-1]
    assert {p.range for p in reader.params} == {(0, 9), None} and len(reader.nest.body) == 3
    assert "require" not in emit_kernel(reader, UNFUSED).text
    (reader,) = schedule(program(False), UNFUSED).kernels.values()
    assert {p.range for p in reader.params} == {None} and "require(" in emit_kernel(reader, UNFUSED).text
