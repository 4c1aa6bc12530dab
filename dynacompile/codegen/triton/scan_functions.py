"""How two elements of a scan combine, the earlier one first: device functions, by name."""

from __future__ import annotations

FUNCTIONS = {
    "scan_sum": """
@triton.jit
def scan_sum(a, b):
    return a + b
""",
    "scan_prod": """
@triton.jit
def scan_prod(a, b):
    return a * b
""",
    **{
        f"scan_{kind}": f"""
@triton.jit
def scan_{kind}(a, b):
    # the later of equal values, and NaN for good
    return tl.where((b {sign} a) | (b != b), b, a)
"""
        for kind, sign in (("max", ">="), ("min", "<="))
    },
    **{
        f"scan_arg{kind}": f"""
@triton.jit
def scan_arg{kind}(a, i, b, j):
    # the later of equal values, and the latest NaN
    later = (b {sign} a) | (b != b)
    return tl.where(later, b, a), tl.where(later, j, i)
"""
        for kind, sign in (("max", ">="), ("min", "<="))
    },
    "scan_sum_anew": """
@triton.jit
def scan_sum_anew(a, i, b, j):
    # i, j: whether a sum has started anew since the first of what a, b sum up
    return tl.where(j != 0, b, a + b), i | j
""",
    "scan_logaddexp": """
@triton.jit
def scan_logaddexp(a, s, b, t):
    # log(exp(a) s + exp(b) t) is the greater of a and b, and the logarithm of what is left
    less = tl.exp(tl.where(a == b, 0.0, -tl.abs(a - b)))
    return nan_max(a, b), tl.where(a >= b, s + t * less, s * less + t)
""",
}
