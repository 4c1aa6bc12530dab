"""Index algebra against Python's integers."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dynacompile.ir.bounds import never_negative
from dynacompile.ir.divisions import recombined
from dynacompile.ir.index import Div, Index, Mod, Symbol, Var, atom, constant, render

VARIABLES = (Var("a", 4), Var("b", 3), Var("c", 5))
POINTS = [dict(zip(VARIABLES, p, strict=True)) for p in product(*(range(v.size) for v in VARIABLES))]
small = st.integers(-7, 7)


def affine(draw) -> tuple[Index, str]:
    index, text = constant(draw(small)), ""
    text = str(index.constant)
    for v in VARIABLES:
        c = draw(small)
        index, text = index + atom(v) * c, f"{text} + {v.name} * {c}"
    return index, f"({text})"


@st.composite
def expressions(draw, depth: int = 3) -> tuple[Index, str]:
    """An index and the Python expression that it should equal."""
    kind = draw(st.sampled_from(["affine", "add", "sub", "scale", "times", "div", "mod"])) if depth else "affine"
    if kind == "affine":
        return affine(draw)
    a, x = draw(expressions(depth=depth - 1))
    if kind in ("div", "mod"):
        d = draw(st.integers(1, 12))
        return (a // d, f"({x} // {d})") if kind == "div" else (a % d, f"({x} % {d})")
    if kind == "scale":
        c = draw(small)
        return a * c, f"({x} * {c})"
    b, y = draw(expressions(depth=depth - 1))
    return {"add": (a + b, f"({x} + {y})"), "sub": (a - b, f"({x} - {y})"), "times": (a * b, f"({x} * {y})")}[kind]


def truth(text: str, point: dict[Var, int]) -> int:
    return eval(text, {v.name: n for v, n in point.items()})


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_values(pair: tuple[Index, str]) -> None:
    index, text = pair
    values = [truth(text, p) for p in POINTS]
    assert [index.evaluate(p) for p in POINTS] == values
    low, high = index.bounds()
    assert (low is None or low <= min(values)) and (high is None or high >= max(values))


@settings(max_examples=200, deadline=None)
@given(expressions(), expressions(depth=1))
def test_substitution(pair: tuple[Index, str], other: tuple[Index, str]) -> None:
    index, text = pair
    value = other[0] % 4
    replaced = index.subs({VARIABLES[0]: value})
    assert [replaced.evaluate(p) for p in POINTS] == [truth(text, {**p, VARIABLES[0]: value.evaluate(p)}) for p in POINTS]


@settings(max_examples=200, deadline=None)
@given(expressions(depth=2), expressions(depth=2))
def test_equal_ones_hash_equal(one: tuple[Index, str], two: tuple[Index, str]) -> None:
    a, b = one[0] + two[0], two[0] + one[0]
    assert a == b and hash(a) == hash(b)
    assert a - b == constant(0)


@settings(max_examples=200, deadline=None)
@given(expressions(depth=1))
def test_stride(pair: tuple[Index, str]) -> None:
    index, _ = pair
    for v in VARIABLES:
        stride = index.stride(v)
        if stride is not None:
            assert all(index.evaluate({**p, v: 1}) - index.evaluate({**p, v: 0}) == stride for p in POINTS)


def test_reshapes_fold() -> None:
    row, column = atom(Var("i", 6)), atom(Var("j", 8))
    flat = row * 8 + column
    assert flat // 8 == row and flat % 8 == column
    assert (flat // 4) % 2 == column // 4
    assert (row * 16 + column) // 16 == row
    assert (flat * 2) // 16 == row


SYMBOLS = tuple(Symbol(name, 5, 2) for name in "stu")


@st.composite
def sizes_of_symbols(draw) -> Index:
    """A product of up to three sizes, each a symbol and a number: positive in every call."""
    product = constant(draw(st.integers(1, 4)))
    for s in draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=3)):
        product = product * (atom(s) + draw(st.integers(0, 3)))
    return product


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_quotients_by_sums_of_symbols_are_pythons_and_do_not_grow(data):
    divisor, factor, rest = data.draw(sizes_of_symbols()), data.draw(sizes_of_symbols()), data.draw(sizes_of_symbols())
    a, b = (atom(Var(name, 3)) for name in "ab")
    index = a * (divisor * factor) + b * rest + data.draw(st.integers(0, 9))
    quotient, remainder = index // divisor, index % divisor
    for values in product((2, 3, 7), repeat=3):
        for x, y in product(range(3), repeat=2):
            known = {**dict(zip(SYMBOLS, values, strict=True)), Var("a", 3): x, Var("b", 3): y}
            number, by = index.evaluate(known), divisor.evaluate(known)
            assert (quotient.evaluate(known), remainder.evaluate(known)) == divmod(number, by)
    longest = max(len(m) for m, _ in index.terms)
    assert all(len(m) <= longest for part in (quotient, remainder) for m, _ in part.terms)


@settings(max_examples=100, deadline=None)
@given(sizes_of_symbols(), sizes_of_symbols(), sizes_of_symbols())
def test_digits_by_symbols_are_put_together(low, high, factor):
    number = atom(Var("n", low * high * 3))
    whole = number % low * factor + (number // low) % high * (low * factor)
    assert recombined(whole) == number % (low * high) * factor
    assert recombined(number % low * factor + number // low * (low * factor)) == number * factor


def numerators(index):
    """Of all quotients and remainders within an index."""
    for monomial, _ in index.terms:
        for a in monomial:
            if isinstance(a, (Div, Mod)):
                yield a.numerator
                yield from numerators(a.numerator)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_divided_is_not_negative_where_the_index_is_not(data):
    """C cuts quotients off towards zero, where Python's are floors."""
    size, divisor = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 9))
    a, b = Var("a", size), Var("b", data.draw(st.integers(2, 9)))
    index = atom(a) * -1 + (size - 1) + atom(b) * data.draw(st.integers(0, 9))
    if data.draw(st.booleans()):
        index = index * data.draw(st.integers(1, 3)) // data.draw(st.integers(1, 4))
    for part in (index // divisor, index % divisor, index // divisor % 3):
        assert all(never_negative(n) for n in numerators(part)), part
    for x, y in product(range(size), range(b.size)):
        known = {a: x, b: y}
        number = index.evaluate(known)
        assert ((index // divisor).evaluate(known), (index % divisor).evaluate(known)) == divmod(number, divisor)


def test_text_for_kernels_floors_what_may_be_negative():
    unknown = atom(Symbol("s", 5, None)) - atom(Var("a", 3))
    assert render(unknown // 2, lambda v: v.name, ("floor", "mod")) == "floor(a * (-1) + s, 2)"
    assert render(unknown % 2, lambda v: v.name, ("floor", "mod")) == "mod(a * (-1) + s, 2)"
    assert render(atom(Var("a", 3)) // 2, lambda v: v.name, ("floor", "mod")) == "((a) / 2)"
