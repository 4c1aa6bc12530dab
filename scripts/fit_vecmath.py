"""Prints the polynomial coefficients of dynacompile/codegen/cpp/vecmath.h: minimax fits by Remez exchange in 40 digits.

Each row is (name, function, low, high, degree, weight): the polynomial p minimises max |weight(x) * (p(x) - function(x))| on [low, high].
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import atan, cos, erf, exp, log, lu_solve, matrix, mp, mpf, ncdf, pi, polyval, sin, sqrt, taylor

mp.dps = 40
Real = Callable[[mpf], mpf]
HALF_LN2 = log(2) / 2
ROOT = sqrt(2) - 1  # log is reduced to 1 + f with f in [sqrt(1/2) - 1, sqrt(2) - 1]
ATANH = (ROOT / (2 + ROOT)) ** 2  # and s = f / (2 + f), in s * s


def series(f: Real, skip: int) -> Real:
    """(f(x) - its Taylor terms below x^skip) / x^skip, also near 0, where the difference would cancel."""
    near = taylor(f, 0, skip + 16)

    def rest(x: mpf) -> mpf:
        if abs(x) < mpf("0.02"):
            return polyval(near[skip:][::-1], x)
        return (f(x) - polyval(near[:skip][::-1], x)) / x**skip

    return rest


def in_square(f: Real, skip: int) -> Real:
    """As series, for an odd or even f, in terms of z = x * x."""
    rest = series(f, skip)
    return lambda z: rest(sqrt(z))


def remez(f: Real, low: mpf, high: mpf, degree: int, weight: Real) -> tuple[list[mpf], mpf]:
    """The coefficients, lowest first, and the weighted error."""
    count = degree + 2
    points = [(low + high) / 2 - (high - low) / 2 * cos(pi * (i + mpf(1) / 2) / count) for i in range(count)]
    grid = [(low + high) / 2 - (high - low) / 2 * cos(pi * (i + mpf(1) / 2) / 400) for i in range(400)]
    values = [(x, f(x), weight(x)) for x in grid]
    for _ in range(12):
        system = matrix([[x**k for k in range(degree + 1)] + [(-1) ** i / weight(x)] for i, x in enumerate(points)])
        solution = lu_solve(system, matrix([f(x) for x in points]))
        coefficients = [solution[k] for k in range(degree + 1)]
        errors = [w * (polyval(coefficients[::-1], x) - y) for x, y, w in values]
        extremes: list[int] = []
        for i, e in enumerate(errors):
            if extremes and (errors[extremes[-1]] > 0) == (e > 0):
                if abs(e) > abs(errors[extremes[-1]]):
                    extremes[-1] = i
            else:
                extremes.append(i)
        while len(extremes) > count:
            extremes.pop(0 if abs(errors[extremes[0]]) < abs(errors[extremes[-1]]) else -1)
        if len(extremes) < count:
            break
        points = [grid[i] for i in extremes]
    return coefficients, max(abs(e) for e in errors)


def one(x: mpf) -> mpf:
    return mpf(1)


def complement(x: mpf) -> mpf:
    """-log(1 - erf(x)): nearly a parabola."""
    return -log(1 - erf(x))


def atanh_rest(z: mpf) -> mpf:
    """R(z) of log(1 + f) = 2s + s * R(s * s), s = f / (2 + f), divided by z."""
    return in_square(lambda s: log((1 + s) / (1 - s)), 3)(z)


FITS = [
    ("EXP_F32", series(exp, 2), -HALF_LN2, HALF_LN2, 4, lambda r: abs(r) + mpf("0.01")),
    ("EXP_F64", series(exp, 2), -HALF_LN2, HALF_LN2, 10, lambda r: abs(r) + mpf("0.01")),
    ("LOG_F32", series(lambda f: log(1 + f), 3), -ROOT / (1 + ROOT), ROOT, 8, lambda f: f * f + mpf("0.001")),
    ("LOG_F64", atanh_rest, mpf(0), ATANH, 7, one),
    ("ERF_NEAR", in_square(erf, 1), mpf(0), mpf("0.81"), 6, one),
    ("ERF_FAR", complement, mpf("0.9"), mpf("3.95"), 9, lambda x: exp(-complement(x))),
    ("SIN", in_square(sin, 3), mpf("1e-9"), (pi / 2) ** 2, 3, lambda z: z * sqrt(z) / sin(sqrt(z))),
    ("LOG2_F64", lambda z: atanh_rest(z) / log(2), mpf(0), ATANH, 5, one),
    ("EXP2_F64", lambda r: exp(r * log(2)), mpf("-0.5"), mpf("0.5"), 9, one),
    ("ATAN_F64", in_square(atan, 1), mpf(0), mpf(1), 13, one),
]


def erf_quarters() -> None:
    """Six coefficients of erf(a) / a for each quarter of 0 <= a < 4, in u = 4a - k, by interpolation in Chebyshev nodes."""
    nodes = [(1 + cos(pi * (i + mpf(1) / 2) / 6)) / 2 for i in range(6)]
    powers = matrix([[u**j for j in range(6)] for u in nodes])
    rows = [lu_solve(powers, matrix([erf(a) / a for a in ((k + u) / 4 for u in nodes)])) for k in range(16)]
    print("ERF_QUARTERS")
    for j in range(6):
        print("    " + ", ".join(mp.nstr(r[j], 9) for r in rows))


def erf_eighths() -> None:
    """Seven coefficients of erf(a) / a for each of eight pieces of width 8/15 around k 8/15, in f = a 15/8 - k, likewise."""
    nodes = [cos(pi * (i + mpf(1) / 2) / 7) / 2 for i in range(7)]
    powers = matrix([[f**j for j in range(7)] for f in nodes])
    rows = [lu_solve(powers, matrix([erf(a) / a if a else 2 / sqrt(pi) for a in ((k + f) * 8 / 15 for f in nodes)])) for k in range(8)]
    print("ERF_EIGHTHS")
    for j in range(7):
        print("    " + ", ".join(mp.nstr(r[j] if abs(r[j]) > mpf("1e-15") else mpf(0), 9) for r in rows))


def ndtr_pieces() -> None:
    """Six coefficients of the normal distribution function for each piece of width 3/8 around (k - 16) 3/8, in f = x 8/3 - (k - 16), likewise. The first
    piece starts at 0, the last reaches 1, and what is nothing against float32 (at the symmetric piece) is 0: denormal constants would be slow."""
    nodes = [cos(pi * (i + mpf(1) / 2) / 6) / 2 for i in range(6)]
    powers = matrix([[f**j for j in range(6)] for f in nodes])
    rows = []
    for k in range(32):
        start = ncdf(mpf(-6)) if k == 0 else mpf(0)
        solution = lu_solve(powers, matrix([ncdf((k - 16 + f) * 3 / 8) - start for f in nodes]))
        rows.append([mpf(0) if abs(c) < mpf("1e-15") else c for c in solution])
    rows[0][0], rows[31][0] = mpf(0), mpf(1)
    print("NDTR_PIECES")
    for j in range(6):
        print("    " + ", ".join(mp.nstr(r[j], 9) for r in rows))


def main() -> None:
    for name, f, low, high, degree, weight in FITS:
        coefficients, error = remez(f, low, high, degree, weight)
        digits = 17 if name.endswith("F64") else 9
        print(f"{name} on [{mp.nstr(low, 5)}, {mp.nstr(high, 5)}], weighted error {mp.nstr(error, 3)}")
        print("    " + ", ".join(mp.nstr(c, digits) for c in coefficients))
    erf_quarters()
    erf_eighths()
    ndtr_pieces()


if __name__ == "__main__":
    main()
