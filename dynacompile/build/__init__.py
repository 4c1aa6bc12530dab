"""Sources -> Module: kernels built by the compiler of their language, or found in the store."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

import torch

from dynacompile.build.cpp import build_cpp, expect_cpp
from dynacompile.build.pool import warm_workers
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton
from dynacompile.env import Env
from dynacompile.ir.schedule import BuiltKernel, KernelSource, Module, ReferenceKernel, Sources
from dynacompile.threads import begin

Builder = Callable[[Mapping[str, KernelSource], Env, Store], Mapping[str, BuiltKernel]]
BUILDERS: dict[str, Builder] = {"cpp": build_cpp, "triton": build_triton}


def expect_builds(env: Env) -> None:
    """Called before a compile: where the store is empty, what its first build needs starts in the background. With a GPU in use these are workers that
    build Triton kernels, else the trial of the C++ compiler."""
    if env.config.backend != "default" or env.config.reference or (env.cache / "binaries").exists():
        return
    if torch.cuda.is_initialized():
        warm_workers(env)
    else:
        expect_cpp(env, Store(env.cache / "binaries"))


def begin_build(sources: Sources, env: Env) -> Callable[[], Module]:
    """Starts to build on a thread of its own, most of which is waiting for compilers; the result waits for the end, and raises what it raised.

    Under autotuning, which measures, the building waits until it is asked for."""
    if env.config.autotune:
        return functools.partial(build, sources, env)
    process, building = os.getpid(), begin(functools.partial(build, sources, env), "dynacompile-build")
    return lambda: building() if os.getpid() == process else build(sources, env)  # a forked process has the future, not the thread


def build(sources: Sources, env: Env) -> Module:
    """A Module with every kernel of `sources` built. Raises BuildError, which names the compiler and the fix."""
    by_language: dict[str, dict[str, KernelSource]] = {}
    for name, source in sources.kernels.items():
        by_language.setdefault(source.language, {})[name] = source
    built: dict[str, BuiltKernel] = {name: ReferenceKernel(s.kernel) for name, s in by_language.pop("reference", {}).items()}
    if by_language:
        store = Store(env.cache / "binaries")
        for language, kernels in by_language.items():
            built.update(BUILDERS[language](kernels, env, store))
    return Module(sources.schedule, {name: built[name] for name in sources.kernels})
