"""From real objects to values: which kind an object is of."""

from __future__ import annotations

import enum
import logging
import threading
import types
import typing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import dynacompile.capture.tensors.torch_kinds  # noqa: F401 - as above
from dynacompile.capture.breaks import unsupported
from dynacompile.capture.library import (  # noqa: F401 - importing them fills their tables
    builtins,
    copies,
    folding,
    iteration,
    memoized,
    running_frames,
    texts,
    type_questions,
)
from dynacompile.capture.tensors.modules import wrap_module
from dynacompile.capture.tensors.numpy_numbers import number_of
from dynacompile.capture.tensors.reports import wrap_logger
from dynacompile.capture.tensors.subclasses import wrap_subclass
from dynacompile.capture.tensors.tensor_inputs import wrap_tensor
from dynacompile.capture.values import (  # noqa: F401 - importing them fills their tables
    comparing,
    contexts,
    counters,
    deques,
    given_iterators,
    given_sequences,
    given_views,
    itertools_rows,
    null_contexts,
    partials,
    proxies,
    python_modules,
    references,
    signatures,
    type_hints,
)
from dynacompile.capture.values.base import WRAPPERS, Value
from dynacompile.capture.values.classes import UnboundMethod, wrap_class
from dynacompile.capture.values.constant import FIXED, ConstantValue, is_constant_object
from dynacompile.capture.values.context_variables import wrap_thread_local
from dynacompile.capture.values.dict_objects import is_dict_class, wrap_dict_object
from dynacompile.capture.values.enum_members import EnumMember, wrap_member
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.object_parts import instance_dict
from dynacompile.capture.values.objects import wrap_object
from dynacompile.capture.values.partials import is_partial_class, wrap_partial_object
from dynacompile.capture.values.python_modules import wrap_python_module
from dynacompile.capture.values.sequence import TupleValue, is_namedtuple, wrap_namedtuple
from dynacompile.capture.values.sequence_objects import is_list_class, is_tuple_class, wrap_list_object, wrap_tuple_object
from dynacompile.capture.values.symbolic import NUMBERS, is_symbolic, number_value
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Constant, Source
from dynacompile.native import core as native_core

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

DESCRIPTIONS = (types.CodeType, typing.TypeVar)  # of code and of types


def wrap(cx: Context, real: Any, source: Source) -> Value:
    """The value of an object that exists before the frame runs; installs the guards of its kind."""
    cls = type(real)
    wrapper = WRAPPERS.get(cls)
    if wrapper is not None:
        return wrapper(cx, real, source)
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return wrap_tensor(cx, real, source)
    if cls is native_core().Region:  # a compiled function in a compiled function: one graph
        cx.guard("ID", source, identity(real))
        if real._region_states is not None:  # each key has options of its own, which the graph around the call has not
            return RefusedValue(real, "nested-region", source, f"{real.__qualname__}, which has a dispatch,")
        return cx.wrap(real._region_function, Constant(real._region_function, source.text()))
    if issubclass(cls, torch.Tensor):
        return wrap_subclass(cx, real, source)
    if issubclass(cls, types.ModuleType):
        return wrap_python_module(cx, real, source)
    if issubclass(cls, torch.nn.Module):
        return wrap_module(cx, real, source)
    if issubclass(cls, enum.Enum):
        return wrap_member(cx, real, source)
    if issubclass(cls, type):
        return wrap_class(cx, real, source)
    if is_namedtuple(cls) and not (cls.__dictoffset__ and instance_dict(real)):
        return wrap_namedtuple(cx, real, source)
    if issubclass(cls, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        cx.guard("ID", source, identity(real))
        return UnboundMethod(real.__objclass__, real.__name__, source)
    if issubclass(cls, (logging.Logger, logging.LoggerAdapter)):
        return wrap_logger(cx, real, source)
    if cls.__module__.partition(".")[0] in ("logging", "numpy"):
        cx.guard("TYPE", source, cls)
        return RefusedValue(real, "logging" if cls.__module__.startswith("logging") else "unknown-object", source, f"{source.text()} ({cls.__name__})")
    if issubclass(cls, threading.local):
        return wrap_thread_local(cx, real, source)
    if issubclass(cls, dict) and is_dict_class(cls):
        return wrap_dict_object(cx, real, source)
    if issubclass(cls, list) and is_list_class(cls):
        return wrap_list_object(cx, real, source)
    if is_partial_class(cls):
        return wrap_partial_object(cx, real, source)
    if is_tuple_class(cls):
        return wrap_tuple_object(cx, real, source)
    return wrap_object(cx, real, source)


def value_of(cx: Context, real: Any) -> Value:
    """The value of an immutable object that capture computed or found in a code object."""
    if isinstance(real, torch.Size) and is_symbolic(real):
        return number_value(cx.symbols, real)  # type: ignore[arg-type]  # there are symbols
    if type(real) is tuple:
        return TupleValue([cx.of(item) for item in real])
    if isinstance(real, type):
        return cx.class_value(real, None)
    if isinstance(real, (types.BuiltinFunctionType, types.FunctionType, types.ModuleType)):
        return cx.wrap(real, Constant(real, getattr(real, "__name__", "function")))
    if isinstance(real, type_hints.HINTS):
        return type_hints.HintValue(real)
    if isinstance(real, enum.Enum):
        return EnumMember(real)
    if is_constant_object(real) or isinstance(real, DESCRIPTIONS):
        return FIXED.get(type(real), ConstantValue)(real)
    if isinstance(real, np.generic):
        return number_of(real)
    if isinstance(real, NUMBERS):
        return number_value(cx.symbols, real)  # type: ignore[arg-type]  # there are symbols
    raise unsupported("unknown-object", f"a {type(real).__name__} computed by a builtin")
