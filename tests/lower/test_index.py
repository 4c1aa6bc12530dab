"""Index algebra against Python's integers."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dynacompile.ir.index import Index, Var, atom, constant

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
