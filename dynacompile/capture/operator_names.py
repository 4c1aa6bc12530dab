"""What Python calls its operators: in bytecode, in the operator module, and as methods."""

from __future__ import annotations

# name in the operator module -> (method, reflected method)
BINARY: dict[str, tuple[str, str]] = {
    "add": ("__add__", "__radd__"),
    "and_": ("__and__", "__rand__"),
    "floordiv": ("__floordiv__", "__rfloordiv__"),
    "lshift": ("__lshift__", "__rlshift__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "mul": ("__mul__", "__rmul__"),
    "mod": ("__mod__", "__rmod__"),
    "or_": ("__or__", "__ror__"),
    "pow": ("__pow__", "__rpow__"),
    "rshift": ("__rshift__", "__rrshift__"),
    "sub": ("__sub__", "__rsub__"),
    "truediv": ("__truediv__", "__rtruediv__"),
    "xor": ("__xor__", "__rxor__"),
    "lt": ("__lt__", "__gt__"),
    "le": ("__le__", "__ge__"),
    "eq": ("__eq__", "__eq__"),
    "ne": ("__ne__", "__ne__"),
    "gt": ("__gt__", "__lt__"),
    "ge": ("__ge__", "__le__"),
}
INPLACE = {
    "iadd": "add",
    "iand": "and_",
    "ifloordiv": "floordiv",
    "ilshift": "lshift",
    "imatmul": "matmul",
    "imul": "mul",
    "imod": "mod",
    "ior": "or_",
    "ipow": "pow",
    "irshift": "rshift",
    "isub": "sub",
    "itruediv": "truediv",
    "ixor": "xor",
}
UNARY = {"neg": "__neg__", "pos": "__pos__", "invert": "__invert__", "abs": "__abs__", "inv": "__invert__"}
COMPARISONS = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
SYMBOLS = {
    "+": "add",
    "&": "and_",
    "//": "floordiv",
    "<<": "lshift",
    "@": "matmul",
    "*": "mul",
    "%": "mod",
    "|": "or_",
    "**": "pow",
    ">>": "rshift",
    "-": "sub",
    "/": "truediv",
    "^": "xor",
}
COMPARE_SYMBOLS = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
