"""Index algebra over symbols against Python's integers, at every size and every point."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dynacompile.ir.extents import ceil_div
from dynacompile.ir.index import Index, Symbol, Var, atom, constant, evaluated, extent, never_negative
from dynacompile.ir.sizes import Source, code, sizes_of, values_of

N, M = Symbol("n", 4, 2, 6), Symbol("m", 3, 2, 5)
X, Y, Z = Var("x", atom(N)), Var("y", atom(M)), Var("z", 3)
SIZES = list(product(range(2, 7), range(2, 6)))
small = st.integers(-3, 4)
DIVISORS = (atom(N), atom(M), atom(N) * atom(M), atom(N) * 3, atom(M) * 2 + 1, atom(N) + atom(M), 3)


def points() -> list[dict]:
    return [{N: n, M: m, X: x, Y: y, Z: z} for n, m in SIZES for x in range(n) for y in range(m) for z in range(3)]


POINTS = points()


@st.composite
def indices(draw) -> Index:
    terms = [atom(X), atom(Y), atom(Z), atom(N), atom(X) * atom(M), atom(Y) * atom(N), atom(X) * atom(M) * 3 + atom(Y) * 3, atom(N) * atom(M)]
    total = constant(draw(small))
    for t in draw(st.lists(st.sampled_from(terms), max_size=4)):
        total = total + t * draw(small)
    return total


@settings(max_examples=80, deadline=None)
@given(indices(), st.sampled_from(DIVISORS))
def test_divisions(index, divisor):
    quotient, rest = index // divisor, index % divisor
    for p in POINTS[::7]:
        value, by = index.evaluate(p), evaluated(divisor, p)
        assert evaluated(quotient, p) == value // by
        assert evaluated(rest, p) == value % by


@settings(max_examples=150, deadline=None)
@given(indices())
def test_what_is_never_negative(index):
    if never_negative(index):
        assert all(index.evaluate(p) >= 0 for p in POINTS)


def test_strides_are_extents():
    index = atom(X) * atom(M) * 2 + atom(X) * 5 + atom(Y)
    assert index.stride(X) == atom(M) * 2 + 5 and index.stride(Y) == 1 and index.stride(Z) == 0
    assert (index // atom(M)).stride(X) is None


def test_reshapes_fold():
    flat = atom(Var("i", atom(N) * atom(M) * 8))
    row = atom(X) * atom(M) * 8 + atom(Y) * 8
    assert row // (atom(M) * 8) == atom(X) and row % (atom(M) * 8) == atom(Y) * 8 and row // 8 % atom(M) == atom(Y)
    assert flat // (atom(N) * atom(M) * 8) == 0
    assert extent(atom(N) * 8 // 8) == atom(N) and extent(atom(N) // atom(N)) == 1


def test_equal_means_equal_in_every_call():
    assert atom(N) != 4 and atom(N) * 2 == 2 * atom(N) and not atom(N) % 2 == 0 and atom(N) * 4 % 2 == 0
    assert atom(N) < 5 and atom(N) > atom(M)  # the example's


def test_values_of_a_call():
    halves = ceil_div(atom(N) * atom(M), 4)
    sizes = sizes_of(halves.symbols(), (Source(N, 0, None), Source(M, 1, None)))
    values = values_of(sizes, [5, 3])
    assert evaluated(halves, values) == 4 and [s.name for s in sizes.symbols[:2]] == ["n", "m"]
    places = {s: i for i, s in enumerate(sizes.symbols)}
    assert code(atom(N) * 2 + 1, places) == (0, 1, 0, 2, 1, 0, 3, 0, 2, 0)
