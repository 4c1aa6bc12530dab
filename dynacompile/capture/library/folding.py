"""Rows for functions without side effects of the standard library: computed at once on numbers, strings and containers of them."""

from __future__ import annotations

import cmath
import inspect
import math
import operator
import os
import pickle
import posixpath
import re
import struct
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.partials import PartialValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

PURE: tuple[Any, ...] = (
    *(f for f in vars(cmath).values() if isinstance(f, types.BuiltinFunctionType)),
    *(getattr(math, name) for name in ("fsum", "dist", "sumprod") if hasattr(math, name)),
    *(getattr(re, name) for name in ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "escape")),
    *(getattr(posixpath, name) for name in ("join", "basename", "dirname", "split", "splitext", "normpath", "isabs")),
    *(getattr(operator, name) for name in ("countOf", "indexOf")),
    struct.pack,
    struct.unpack,
    struct.calcsize,
    int.from_bytes,
    float.fromhex,
    bytes.fromhex,
    str.maketrans,
    sys.getrecursionlimit,
)


def fold(real: Any) -> None:
    name = getattr(real, "__name__", str(real))

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for value in (*args, *kwargs.values()):
            if isinstance(value, TensorValue):
                raise unsupported("to-python", f"{name} of {value.describe()}")
            if isinstance(value, ConstantValue) and isinstance(value.value, re.RegexFlag) and value.value & re.DEBUG:
                raise unsupported("print", f"re.{name}() with re.DEBUG")
        return cx.fold(real, args, kwargs)


for _real in PURE:
    fold(_real)


@handles(os.fspath)
def row_fspath(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], ObjectValue):
        return args[0].method(cx, "__fspath__", [], {})
    return cx.pure(os.fspath, args, kwargs)


def kind_test(real: Callable[[Any], bool], test: Callable[[Value], bool]) -> None:
    """A question of inspect about what kind of object something is."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (value,) = args
        return ConstantValue(test(value))


def has_flag(flag: int) -> Callable[[Value], bool]:
    def test(value: Value) -> bool:
        function = getattr(value, "function", value)
        if (
            isinstance(value, (ObjectValue, PartialValue))
            or isinstance(function, FunctionValue)
            and "_is_coroutine_mark" in {*function.own_dict(), *function.stored}
        ):
            raise unsupported("unknown-function", f"a question about the code of {value.describe()}")
        return isinstance(function, FunctionValue) and bool(function.code.co_flags & flag)

    return test


kind_test(inspect.isclass, lambda value: issubclass(value.pytype(), type))
kind_test(inspect.isfunction, lambda value: issubclass(value.pytype(), types.FunctionType))
kind_test(inspect.ismethod, lambda value: issubclass(value.pytype(), types.MethodType))
kind_test(inspect.ismodule, lambda value: issubclass(value.pytype(), types.ModuleType))
kind_test(inspect.isbuiltin, lambda value: issubclass(value.pytype(), types.BuiltinFunctionType))
kind_test(inspect.isgenerator, lambda value: issubclass(value.pytype(), types.GeneratorType))
kind_test(inspect.isgeneratorfunction, has_flag(inspect.CO_GENERATOR))
kind_test(inspect.iscoroutinefunction, has_flag(inspect.CO_COROUTINE))


@handles(torch.result_type)
def row_result_type(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        raise unsupported("unknown-function", "torch.result_type by keyword")
    return ConstantValue(torch.result_type(*(a.fake if isinstance(a, TensorValue) else a.constant() for a in args)))  # type: ignore[call-overload]


@handles(pickle.dumps)
def row_dumps(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of numbers, and flat containers of them: for other objects the bytes tell, too, which of them are one."""
    value = args[0]
    parts = value.elements(cx) if isinstance(value, (ListValue, TupleValue)) else [value]
    if isinstance(value, DictValue):
        pairs = pairs_of(cx, value)
        value = DictValue.of(pairs)
        parts = [part for key, part in pairs] if all(key.pytype() is str for key, _ in pairs) else [value]
    if not all(isinstance(part, ConstantValue) and type(part.value) in (int, float, bool, type(None)) for part in parts):
        raise unsupported("unknown-function", f"pickle.dumps of {value.describe()}")
    return cx.fold(pickle.dumps, [value, *args[1:]], kwargs)
