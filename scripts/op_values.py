"""Runs pointwise ops and reductions on special values (NaN, infinities, signed zeros, denormals, the ends of each dtype) and compares with eager.

Usage: python scripts/op_values.py [--backend reference|default] [--ops GLOB,...] [--families unary,binary,reduction] [--gradients]

One graph holds an op for all dtypes that it takes. Told are differences in value beyond rounding, in NaN or infinity, and in the sign of zero.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import operator
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

import dynacompile

RAISED = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, dynacompile.exc.DynacompileError)  # what an op may, or the compiler
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
ACTIVATIONS = ("relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "hardtanh", "hardsigmoid", "hardswish") + (
    *("hardshrink", "softshrink", "tanhshrink", "leaky_relu", "logsigmoid", "threshold", "rrelu"),
)


def right(op: Callable, value: Any) -> Callable:
    return lambda x: op(x, value)


def left(op: Callable, value: Any) -> Callable:
    return lambda x: op(value, x)


ARITHMETIC = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")}
MORE: dict[str, Callable] = {
    **{f"{name}.{n}": right(o, n) for name, o in ARITHMETIC.items() for n in (3, -2, 0.7, -2.5, 1e30)},
    **{f"{n}.{name}": left(o, n) for name, o in ARITHMETIC.items() for n in (3, -2.5)},
    "where": lambda x: torch.where(x > 0, x, -x if x.dtype != torch.bool else x),
    "clamp.both": lambda x: torch.clamp(x, -1, 2),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.25),
    "lerp.far": lambda x: torch.lerp(x, x.flip(0), 0.75),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x, value=2),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(0), x, value=2),
    "nan_to_num": torch.nan_to_num,
    "pow.2": lambda x: x**2,
    "pow.3": lambda x: x**3,
    "pow.half": lambda x: x**0.5,
    "pow.minus_half": lambda x: x**-0.5,
    "pow.minus_1": lambda x: x**-1.0,
    "pow.2.5": lambda x: x**2.5,
    "rpow.2": lambda x: 2.0**x,
    "rpow.minus": lambda x: (-1.5) ** x,
    "rpow.0": lambda x: 0.0**x,
    "rpow.1": lambda x: 1.0**x,
    "softmax": lambda x: torch.softmax(x.reshape(-1, 4), 1),
    "log_softmax": lambda x: torch.log_softmax(x.reshape(-1, 4), 1),
    "logsumexp": lambda x: torch.logsumexp(x.reshape(-1, 4), 1),
    "norm.2": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4), 2, 1),
    "norm.inf": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4), math.inf, 1),
    "norm.minus_inf": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4), -math.inf, 1),
    "norm.0": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4), 0, 1),
    "norm.3": lambda x: torch.linalg.vector_norm(x.reshape(-1, 4), 3, 1),
    "max.dim": lambda x: torch.max(x.reshape(-1, 4), 1),
    "min.dim": lambda x: torch.min(x.reshape(-1, 4), 1),
    "max.column": lambda x: torch.max(x.reshape(4, -1), 0),
    "cummax": lambda x: torch.cummax(x, 0),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x.reshape(-1, 4), (4,)),
    **{f"to.{str(d).split('.')[1]}": right(torch.Tensor.to, d) for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)},
    "to.bool": lambda x: x.to(torch.bool),
}
PAIRS: dict[str, Callable] = {
    "div.trunc": lambda x, y: torch.div(x, y if x.dtype.is_floating_point else y.abs() | 1, rounding_mode="trunc"),  # least / -1 ends the process
    "div.floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "add.alpha": lambda x, y: torch.add(x, y, alpha=2),
    "where.pair": lambda x, y: torch.where(x < y, x, y),
}
DIES = frozenset({"lcm"})
"""Eager's own ends the process on the least integer."""
LIMITS = {torch.float16: (4e-3, 1e-3), torch.bfloat16: (2e-2, 1e-2), torch.float32: (2e-5, 1e-6), torch.float64: (1e-9, 1e-12)}


def special(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        ends = [info.min, info.min + 1, info.max, info.max - 1]
        return torch.tensor(sorted({*ends, 0, 1, 2, 3, 5, 7, 63, 100, *(() if info.min == 0 else (-1, -2, -3, -7))}), dtype=dtype)
    f = torch.finfo(dtype)
    up = [0.0, f.tiny, f.tiny / 2, f.smallest_normal * f.eps, 1e-3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 20.0, 88.0, 100.0, 1e4, f.max, math.inf]
    return torch.tensor([*up, *(-v for v in up), math.nan], dtype=torch.float64).to(dtype)


def line(dtype: torch.dtype) -> torch.Tensor:
    """Special values again and again, at all places of a vector, and in a rest that fills none."""
    values = special(dtype)
    return values.repeat(60)[:140] if values.numel() < 3 else torch.cat([values, values.roll(7), values.flip(0), values.roll(3)])[:140]


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    values = special(dtype)
    return values.repeat_interleave(values.numel()), values.repeat(values.numel())


def rows_of(dtype: torch.dtype) -> torch.Tensor:
    """[n, 21]: rows of ordinary numbers, each with one special value in it, or all of them."""
    values = special(dtype)
    generator = torch.Generator().manual_seed(0)
    plain = torch.randint(0, 2 if dtype == torch.bool else 5, (values.numel() + 2, 21), generator=generator).to(dtype)
    for i, value in enumerate(values):
        plain[i, (5 * i) % 21] = value
    plain[-1] = values.repeat(21)[:21]
    return plain


def cases(families: list[str]) -> Iterator[tuple[str, Callable, Callable[[torch.dtype], tuple], Any]]:
    """(name, call, arguments for a dtype, OpInfo or None)."""
    by_name = {op.name: op for op in common_methods_invocations.op_db if not op.variant_test_name}
    for name, op in by_name.items():
        if isinstance(op, UnaryUfuncInfo) and "unary" in families:
            yield name, op.op, lambda d: (line(d),), op
        if isinstance(op, BinaryUfuncInfo) and "binary" in families and name not in DIES:
            yield name, op.op, pairs, op
        if isinstance(op, ReductionOpInfo) and "reduction" in families and not name.startswith("masked"):
            yield name, op.op, lambda d: (rows_of(d),), op
            if name not in ("count_nonzero",):
                yield f"{name}.rows", (lambda call: lambda x: call(x, dim=1))(op.op), lambda d: (rows_of(d),), op
                yield f"{name}.columns", (lambda call: lambda x: call(x, dim=0))(op.op), lambda d: (rows_of(d).t().contiguous(),), op
    if "binary" in families:
        for name, call in PAIRS.items():
            yield name, call, pairs, None
    if "unary" in families:
        for name in ACTIVATIONS:
            call = getattr(torch.nn.functional, name)
            yield (
                f"F.{name}",
                (lambda x: torch.nn.functional.threshold(x, 0.5, 2.0)) if name == "threshold" else call,
                lambda d: (line(d),),
                by_name.get(f"nn.functional.{name}"),
            )
        for name, call in MORE.items():
            yield name, call, lambda d: (line(d),), None


def many(call: Callable, count: int) -> Callable:
    def fn(*given):
        return [call(*given[i : i + count]) for i in range(0, len(given), count)]

    return fn


def leaves(tree: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def differs(got: torch.Tensor, want: torch.Tensor, given: tuple) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {tuple(got.shape)}, eager's {want.dtype} {tuple(want.shape)}"
    rtol, atol = LIMITS.get(want.dtype, (0, 0))
    wrong = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    told = "value"
    if not wrong.any() and want.dtype.is_floating_point:
        wrong = (want == 0) & (got == 0) & (got.signbit() != want.signbit())
        told = "sign of zero"
    if not wrong.any():
        return ""
    places = wrong.flatten().nonzero().flatten()[:4].tolist()
    at = [tuple(g.flatten()[p].item() for g in given) if all(g.numel() == want.numel() for g in given) else p for p in places]
    return (
        f"{told} {want.dtype} at {at}: {[got.flatten()[p].item() for p in places]}, eager's {[want.flatten()[p].item() for p in places]} ({int(wrong.sum())})"
    )


def attempt(call: Callable, *args: Any) -> Any:
    torch.manual_seed(0)
    try:
        return call(*args)
    except RAISED as error:
        return error


def examined(call: Callable, given: list[tuple], options: dict, gradients: bool) -> list[str]:
    """Differences over all argument tuples, which eager takes."""
    dynacompile.reset()
    fn = many(call, len(given[0]))
    flat = [t.clone().requires_grad_(gradients) for args in given for t in args]
    other = [t.clone().requires_grad_(gradients) for args in given for t in args]
    want = fn(*flat)
    got = attempt(dynacompile.compile(fn, isolate_recompiles=True, fullgraph=True, options=options), *other)
    if isinstance(got, Exception):
        return [f"{type(got).__name__}: {str(got).splitlines()[0]}"]
    told = []
    for args, a, b in zip(given, got, want, strict=True):
        told += [d for x, y in zip(leaves(a), leaves(b), strict=True) if (d := differs(x, y, args))]
    if gradients:
        told += gradient_differences(given, (got, other), (want, flat))
    return told


def gradient_differences(given: list[tuple], ours: tuple, eager: tuple) -> list[str]:
    grads = []
    for result, inputs in (ours, eager):
        ends = [t for t in leaves(result) if t.grad_fn is not None]
        grads.append(torch.autograd.grad(ends, inputs, [torch.ones_like(t) for t in ends], allow_unused=True) if ends else ())
    flat = [args for args in given for _ in args]
    return [f"gradient {d}" for a, b, args in zip(*grads, flat, strict=False) if a is not None and b is not None and (d := differs(a, b, args))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("reference", "default"), default="default")
    parser.add_argument("--ops", type=lambda s: s.split(","), default=["*"])
    parser.add_argument("--families", type=lambda s: s.split(","), default=["unary", "binary", "reduction"])
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--dtypes", type=lambda s: [getattr(torch, n) for n in s.split(",")], default=list(DTYPES))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    common_methods_invocations.wrapper_set_seed = lambda op, *given, **named: op(*given, **named)
    torch.set_num_threads(1)
    options = {"reference": True} if args.backend == "reference" else {}
    start, ops, wrong = time.perf_counter(), 0, 0
    for name, call, make, op in cases(args.families):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in args.ops):
            continue
        given = [make(d) for d in args.dtypes if (op is None or d in op.supported_dtypes("cpu")) and (d.is_floating_point or not args.gradients)]
        given = [g for g in given if not isinstance(attempt(call, *g), Exception)]
        if not given:
            continue
        ops += 1
        told = examined(call, given, options, args.gradients)
        wrong += bool(told)
        for one in told:
            print(f"{name:28s} {one[:420]}", flush=True)
    print(f"{ops} ops, {wrong} with differences, {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
