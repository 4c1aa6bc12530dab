"""Integers of bodies that follow from loop variables: the same values, with fewer operations, and of 32 bits where they fit."""

from __future__ import annotations

import random

import pytest
import torch

from dynacompile.codegen.reference import run_nest
from dynacompile.ir.body import Body
from dynacompile.ir.index import Index, Symbol, Var, atom
from dynacompile.ir.integers import settle_integers
from dynacompile.ir.loops import Access, Axis, Nest, verify_body

Q, K = Var("m", 7), Var("n", 9)
AXES = (Axis(Q, "x"), Axis(K, "x"))
LONG, INT, BOOL, FLOAT = torch.int64, torch.int32, torch.bool, torch.float32


class Build(Body):
    def index(self, index: Index) -> int:
        return self.emit("index", (), LONG, index)

    def const(self, number: int) -> int:
        return self.emit("constant", (), LONG, number)

    def op(self, name: str, *args: int) -> int:
        return self.emit(name, args, BOOL if name in ("lt", "le", "eq", "ne") else self.ops[args[-1]].dtype)

    def wrapped(self, value: int, size: int | Index) -> Index:
        """As a subscript reads it: negative places count from the end."""
        shift = self.const(size) if isinstance(size, int) else self.index(size)
        return atom(Var(f"%{self.op('where', self.op('lt', value, self.const(0)), self.op('add', value, shift), value)}", size))

    def read(self, index: Index) -> int:
        return self.emit("load", (), FLOAT, Access("table", index))

    def end(self, value: int) -> Nest:
        self.store(value, "out", atom(Q) * 9 + atom(K))
        return Nest("test", AXES, tuple(self.ops))


def settled(nest: Nest) -> Nest:
    made = Nest("test", AXES, settle_integers(nest.body))
    verify_body("test", made)
    return made


def run(nest: Nest, dtype: torch.dtype, table: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(63, dtype=dtype)
    run_nest(nest, {"out": out, "table": table, "numbers": torch.arange(9, dtype=INT) * 3 - 4})
    return out


def same(build: Build, value: int) -> Nest:
    nest = build.end(value)
    made, table = settled(nest), torch.randn(64)
    dtype = build.ops[value].dtype
    assert torch.equal(run(nest, dtype, table), run(made, dtype, table))
    return made


def names(nest: Nest) -> list[str]:
    return [op.name for op in nest.body]


def test_sums_are_one_index():
    b = Build()
    apart = b.op("sub", b.index(atom(Q)), b.index(atom(K)))
    nest = same(b, b.read(b.wrapped(b.op("add", apart, b.const(8)), 32)))
    assert names(nest) == ["load", "store"]
    assert nest.body[0].attr.index == atom(Q) - atom(K) + 8


def test_places_from_the_end():
    b = Build()
    nest = same(b, b.read(b.wrapped(b.op("sub", b.index(atom(Q)), b.index(atom(K))), 10)))
    (load,) = [op for op in nest.body if op.name == "load"]
    assert all(v.size is None for v in load.attr.index.variables()), "nobody tests a place that lies inside"


@pytest.mark.parametrize(("size", "tested"), [(7, False), (6, True)])
def test_clamped_places(size, tested):
    b = Build()
    apart = b.op("sub", b.index(atom(Q)), b.index(atom(K)))
    place = b.op("add", b.op("min", b.op("max", apart, b.const(-3)), b.const(3)), b.const(3))
    nest = settled(b.end(b.read(b.wrapped(place, size))))
    (load,) = [op for op in nest.body if op.name == "load"]
    assert any(v.size is not None for v in load.attr.index.variables()) == tested
    assert all(op.dtype != LONG for op in nest.body)


def test_places_that_memory_gives_are_tested():
    b = Build()
    value = b.emit("cast", (b.emit("load", (), INT, Access("numbers", atom(K))),), LONG)
    nest = settled(b.end(b.read(b.wrapped(value, 32))))
    assert [v.size for op in nest.body if op.name == "load" for v in op.attr.index.variables() if v.name[0] == "%"] == [32]


def test_comparisons_that_hold_everywhere():
    b = Build()
    both = b.op("and", b.op("lt", b.index(atom(Q)), b.const(7)), b.op("le", b.const(0), b.index(atom(K))))
    nest = same(b, b.emit("cast", (both,), FLOAT))
    assert "lt" not in names(nest) and "le" not in names(nest)


def test_what_does_not_fit_32_bits():
    b = Build()
    large = b.op("mul", b.op("abs", b.op("sub", b.index(atom(Q)), b.index(atom(K)))), b.const(2**31))
    nest = same(b, b.op("add", large, b.index(atom(Q))))
    assert [op.dtype for op in nest.body if op.name in ("mul", "add")] == [LONG, LONG]


def test_sizes_of_a_call():
    length = atom(Symbol("s", 9, 2))
    k = Var("n", length)
    b = Build()
    value = b.op("sub", b.index(length - 1), b.index(atom(k)))
    inside = b.read(b.wrapped(value, length))
    b.store(inside, "out", atom(k))
    ops = settle_integers(b.ops)
    assert [op.name for op in ops] == ["load", "store"] and ops[0].attr.index == length - 1 - atom(k)


def test_random_bodies():
    for seed in range(300):
        draw, b = random.Random(seed), Build()
        numbers = [b.index(atom(Q)), b.index(atom(K)), b.index(atom(Q) * 3 - atom(K) * 2 + 1), b.const(draw.choice((0, 1, 3, -2, 40000, 2**31)))]
        numbers.append(b.emit("cast", (b.emit("load", (), INT, Access("numbers", atom(K))),), LONG))
        truths = [b.op("lt", numbers[0], numbers[1])]
        for _ in range(draw.randint(1, 12)):
            x, y = draw.choice(numbers), draw.choice(numbers)
            match draw.choice(("arithmetic", "arithmetic", "compare", "where", "divide", "logic", "cast")):
                case "arithmetic":
                    numbers.append(b.op(draw.choice(("add", "sub", "mul", "min", "max")), x, y))
                case "compare":
                    truths.append(b.op(draw.choice(("lt", "le", "eq", "ne")), x, y))
                case "where":
                    numbers.append(b.op("where", draw.choice(truths), x, y))
                case "divide":
                    numbers.append(b.op(draw.choice(("floordiv", "mod")), x, b.const(draw.choice((1, 2, 5)))))
                case "logic":
                    truths.append(b.op(draw.choice(("and", "or")), draw.choice(truths), draw.choice(truths)))
                case "cast":
                    numbers.append(b.emit("cast", (draw.choice(truths),), LONG))
        value = draw.choice((numbers[-1], b.emit("cast", (numbers[-1],), FLOAT), b.emit("cast", (truths[-1],), FLOAT)))
        same(b, value)
