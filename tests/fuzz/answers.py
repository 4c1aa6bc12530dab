"""What a function makes of a tensor, or has, and one question about it: numbers and texts that are read, storages, addresses, generators, arrays, fields of
classes, managers, modules, and what else capture has values of their own for.

`python -m tests.fuzz.answers FIRST LAST [--show]`: each seed is one of some 70 objects and one of some 110 questions, and half of them ask inside of `try`.
Results, or the exception and its text, are compared; objects are compared by their types.
"""

from __future__ import annotations

import decimal
import enum
import fractions
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

PRELUDE = """
import collections, copy, decimal, enum, fractions, functools, logging, math, operator, random
import numpy as np, torch
from torch import nn
class Twelve(enum.IntEnum): WHOLE = 12
LINEAR, LOG = nn.Linear(3, 3), logging.getLogger("answers")
SEQUENCE, OPTIMIZER = nn.Sequential(LINEAR, nn.ReLU()), torch.optim.SGD(LINEAR.parameters(), lr=0.1)
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): return a * 2
    @staticmethod
    def backward(ctx, g): return g * 2
def same(a): return a
"""
OBJECTS = """t.sum().item()|t.sum().long().item()|(t.sum() > 0).item()|str(t.sum().item())|f"{t.sum():.2f}"|t.untyped_storage()|t.data_ptr()|t.numpy()
t.untyped_storage().data_ptr()|torch.Generator()|torch.default_generator|torch.manual_seed(3)|random.Random(3)|np.random.RandomState(3)|t.sum().numpy()
np.random.default_rng(3)|torch.get_rng_state()|np.float32(t.shape[0])|np.int64(2)|np.bool_(True)|torch.Tensor.shape|torch.Tensor.grad.__get__|t.dtype|t.device
t.shape|t.shape[0]|t.shape[0] * 2|t.shape[0] / 2|t|t + 1|t.sum()|t.sum().long()|LINEAR.weight|LINEAR|SEQUENCE|SEQUENCE._modules|LINEAR._parameters|Twice.apply
torch.sin|t.sin|torch.ops.aten.sin.default|nn.functional.relu|torch.profiler.record_function("a")|torch.no_grad()|torch.device("cpu")|torch.autocast("cpu")|LOG
torch.finfo(t.dtype)|same|functools.partial(same, 1)|Twelve|Twelve.WHOLE|nn.Linear|torch|torch.func.vmap(same)|np.add|slice(1, t.shape[0])|range(t.shape[0])
t.tolist()|t[0].tolist()|t.max(0)|(t, 1)|{"a": t}|[t]|None|t.grad_fn|t.data|np.arange(3)|OPTIMIZER|SEQUENCE.forward|t.numel() > 3|iter(t)|nn.Identity()
SEQUENCE[0:1]"""
QUESTIONS = """v == v|v != v|v == 12|v != 12.0|v == "a"|v == None|v is None|v in (1, 2)|v in [v]|bool(v)|not v|1 if v else 2|type(v).__name__|isinstance(v, int)
isinstance(v, (float, str))|isinstance(v, torch.Tensor)|callable(v)|hasattr(v, "shape")|hasattr(v, "missing")|hasattr(v, "__len__")|hasattr(v, "device")|len(v)
hasattr(v, "imag")|hasattr(v, "H")|hasattr(v, "name")|getattr(v, "missing", 7)|getattr(v, "real", 7)|getattr(v, "training", 7)|hash(v) == hash(v)|{v: 1}[v]
v == np.float64(12)|np.float64(12) == v|v == 12 + 0j|v == decimal.Decimal(12)|v == Twelve.WHOLE|v == fractions.Fraction(12)|id(v) == id(v)|v < 13|v >= 2|v + 1
2 * v|-v|abs(v)|v and 3|v or 4|int(v)|float(v)|round(v, 1)|str(type(v))|v.__class__.__name__|isinstance(v, collections.abc.Hashable)|v[0]|[v][0] is v|v / True
isinstance(v, collections.abc.Callable)|v == torch.float32|v == (1,)|max(v, 3)|min(v, 3.5)|sum([v, 1])|sorted([v, 1])[0] is v|all([v])|divmod(v, 5)|v ** 2
v % 3|v // 2|v / 2|v == True|True == v|v is True|operator.index(v)|math.isnan(v)|math.floor(v)|v.missing|repr(v) == repr(v)|[v] == [v]|(v,) == (v,)|[v].count(v)
isinstance(v, np.generic)|np.isscalar(v)|torch.is_tensor(v)|copy.copy(v) == v|complex(v)|v & 1|~v|v << 1|v == 12 == v|pow(v, 2)|v.__eq__(12)|v in {12: 1}|v.imag
v in (12 + 0j,)|v in [Twelve.WHOLE]|v.is_integer()|v.conjugate()|v.numerator|v.item()|v.upper()|v.split(".")|"%d" % v|"%c" % v|"%x" % v|f"{v:d}"|f"{v:.2f}"
f"{v:s}"|f"{v:zz}"|"{:>{w}}".format(v, w=9)|"%5.1f;" % v|"{0[0]}".format(v)|"{0.real}".format(v)|format(v, "e")|f"{v:c}"|"%s" % v == "%s" % v"""
PLAIN = (int, float, complex, str, bytes, type(None), np.generic, decimal.Decimal, fractions.Fraction, torch.dtype, torch.device)


def parts(text: str) -> list[str]:
    return [part for line in text.split("\n") for part in line.split("|") if part]


def program(seed: int) -> str:
    draw = random.Random(seed)
    made, asked = draw.choice(parts(OBJECTS)), draw.choice(parts(QUESTIONS))
    if draw.random() < 0.5:
        return f"def asks(t):\n  v = {made}\n  return {asked}, t * 2\n"
    clause = "except Exception as error: r = type(error).__name__, str(error)"
    return f"def asks(t):\n  u, v = t * 2, {made}\n  try: r = {asked}\n  {clause}\n  return r, u\n"


def shown_as(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return str(result.dtype), tuple(result.shape), result.requires_grad, str(result.tolist())
    if isinstance(result, np.ndarray):
        return str(result.dtype), result.shape, str(result.tolist())
    if isinstance(result, (list, tuple)):
        return type(result).__name__, [shown_as(part) for part in result]
    return type(result).__name__, str(result) if isinstance(result, (*PLAIN, enum.Enum)) else ""


def outcome(function: Callable[..., Any], t: torch.Tensor) -> Any:
    torch.manual_seed(0)
    try:
        return shown_as(function(t))
    except Exception as error:  # noqa: BLE001  (it is compared)
        return type(error).__name__, str(error)


def difference(seed: int) -> str | None:
    names: dict[str, Any] = {}
    exec(PRELUDE + program(seed), names)
    t = torch.full((3, 4), random.Random(~seed).choice([1.0, 0.5, float("nan"), float("-inf")]))
    dynacompile.reset()
    compiled = dynacompile.compile(names["asks"], backend="eager", isolate_recompiles=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(names["asks"], t)
        for call in range(2):
            got = outcome(compiled, t)
            if got != want:
                return f"{program(seed)}call {call + 1}: {str(got)[:300]}, eager: {str(want)[:300]}"
    return None


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, difference, program))
