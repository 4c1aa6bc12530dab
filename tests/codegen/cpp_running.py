"""Runs emitted C++ kernels on tensors: many kernels in a few libraries, called through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dynacompile.build.cpp import build_cpp
from dynacompile.build.store import Store
from dynacompile.codegen.cpp import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.schedule import Kernel

ENV = Env(CompileConfig(cpp_flags=os.environ.get("DYNACOMPILE_TEST_CPP_FLAGS", "")), lambda event: None, "test", -1, Path("unused"))


class Library:
    """Built kernels by name."""

    def __init__(self, kernels: Mapping[str, Kernel], folder: Path):
        sources = {name: emit_kernel(replace(kernel, name=name), ENV) for name, kernel in kernels.items()}
        self.texts = {name: s.text for name, s in sources.items()}
        self.kernels = build_cpp(sources, ENV, Store(folder))

    def __call__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Runs a kernel on one tensor per param, in place."""
        built = self.kernels[name]
        pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        getattr(ctypes.CDLL(str(built.library)), built.symbol)(pointers)
