"""Which objects a snapshot saves, which it leaves alone, and which it refuses."""

from __future__ import annotations

import concurrent.futures
import datetime
import decimal
import enum
import functools
import io
import logging
import operator
import os
import pathlib
import random
import re
import sys
import sysconfig
import threading
import types
import uuid
import weakref
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.utils.data import DataLoader

from dynacompile.private import of_torch


class Unrepeatable(Exception):
    """Why a step can't be repeated without a trace, as the screen says it."""


class Left(Exception):
    """Why one object can't be put back. is_consumed: reading it changes it."""

    def __init__(self, why: str, is_consumed: bool = False):
        super().__init__(why)
        self.is_consumed = is_consumed


class Empty:
    """The value of a slot, cell or name that has none."""


EMPTY = Empty()
LIBRARIES = frozenset(
    (*sys.stdlib_module_names, "torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics", "numpy", "wandb")
)
COMPILERS = ("torch._dynamo.", "torch._inductor.", "torch._functorch.", "triton.", "dynacompile.", "dynacompile_native")
LIBRARY_FOLDERS = frozenset(("site-packages", "dist-packages"))
STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib"))

# Values, whose state never changes or is whether a lock is held.
VALUES: tuple[type, ...] = (
    enum.Enum,
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    pathlib.PurePath,
    uuid.UUID,
    random.SystemRandom,
    re.Pattern,
    re.Match,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
    np.dtype,
    np.generic,
    np.ufunc,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    torch.Stream,
    torch.Event,
    BaseException,
    types.CodeType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    property,
    staticmethod,
    classmethod,
    type(functools.lru_cache(len)),  # a cache: what it returns is the same with and without
    weakref.ref,
    weakref.ProxyType,
    weakref.CallableProxyType,
    type(threading.Lock()),
    type(threading.RLock()),
    type(torch.ops),
    of_torch.OpOverload,
    of_torch.OpOverloadPacket,
)
# What holds the run together. A step that uses one of them otherwise than by reading is caught in the act, see watch.py.
MACHINERY: tuple[type, ...] = (
    L.Trainer,
    L.LightningDataModule,
    Strategy,
    Profiler,
    Logger,
    _Loop,
    DataLoader,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    concurrent.futures.Executor,
    torch.fx.Graph,
    torch.fx.Node,
    types.FrameType,
    types.TracebackType,
)
# Native types that map text to numbers and are the same after a call.
ENCODERS = ("tokenizers", "sentencepiece", "tiktoken", "regex")


@functools.cache
def is_library(module: str) -> bool:
    """Whether the module of that name was installed, rather than written for this training. Unknown modules, as a notebook's, were written for it."""
    top = module.partition(".")[0]
    if top == "dynacompile":
        return not module.startswith("dynacompile.recipes")
    file = getattr(sys.modules.get(module), "__file__", None)
    if top in LIBRARIES or file is None:
        return top in LIBRARIES
    return not LIBRARY_FOLDERS.isdisjoint(pathlib.Path(file).parts) or os.path.realpath(file).startswith(STANDARD_LIBRARY)


def is_left_alone(value: Any) -> bool:
    """Values, and Lightning's machinery."""
    return issubclass(type(value), (*VALUES, *MACHINERY)) or scope_of(value).partition(".")[0] in ENCODERS


def is_compilers(value: Any) -> bool:
    """Whether a compiler made it, or a transform of functions: nothing of it is saved but what it runs. A compiled module is one as any other."""
    scope = scope_of(value)
    return scope.startswith(COMPILERS) and not scope.startswith("dynacompile.recipes") and not isinstance(value, nn.Module)


def scope_of(value: Any) -> str:
    """The name of the module in which a function, or the class of an object, was written."""
    return str(value.__globals__.get("__name__", "") if type(value) is types.FunctionType else type(value).__module__)


def wrapped(value: Any) -> Any:
    """The function that a compiler's function runs, which is the user's; None for what runs none."""
    attributes = ("_region_function", "__wrapped__") if callable(value) else ()
    return next((inner for name in attributes if (inner := getattr(value, name, None)) is not None), None)


@functools.cache
def native_state(kind: type) -> tuple[str, bool] | None:
    """Why instances of `kind` can't be saved, as the arguments of Left: a class in its MRO keeps state in memory that Python code does not reach.

    That is seen from the sizes of instances: a class that is written in Python adds its slots, `__dict__` and `__weakref__`, and nothing else.
    """
    for base in kind.__mro__[:-1]:
        members = vars(base)
        slots = sum(type(member) is types.MemberDescriptorType for member in members.values()) if "__slots__" in members else 0
        added = base.__basicsize__ - (base.__base__ or object).__basicsize__
        if added <= 8 * (slots + ("__dict__" in members) + ("__weakref__" in members)) and not base.__itemsize__:
            continue
        if issubclass(kind, io.IOBase):
            return "is an open file", True
        if hasattr(kind, "__next__") or issubclass(kind, (types.CoroutineType, types.AsyncGeneratorType)):
            return f"is an iterator ({kind.__qualname__}), which can't be rewound", True
        return f"is an object whose state is not Python's ({kind.__module__}.{kind.__qualname__})", False
    return None


def class_state(kind: type) -> dict[str, Any] | None:
    """The attributes of a class that a step may set: none of the methods and descriptors. None: the class belongs to a library."""
    if not isinstance(kind.__module__, str) or is_library(kind.__module__):
        return None
    hidden = (types.FunctionType, staticmethod, classmethod, property, types.MemberDescriptorType, types.GetSetDescriptorType)
    return {name: value for name, value in vars(kind).items() if not isinstance(value, hidden) and not (name.startswith("__") and name.endswith("__"))}


def named_globals(fn: types.FunctionType) -> dict[str, Any] | None:
    """The globals that a function of the user's names, EMPTY where there is none of that name (yet). None: the function belongs to a library."""
    scope = fn.__globals__
    if is_library(scope.get("__name__", "")):
        return None
    return {name: scope.get(name, EMPTY) for name in names_in(fn.__code__)}


def names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names
