"""Kernels of flex_attention without a GPU: programs for a CPU that have them, run by Triton's interpreter, or as their operators are defined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention as flex

from dynacompile import pipeline
from dynacompile.codegen.reference import run_kernel
from dynacompile.codegen.triton.attention import emit_attention
from dynacompile.codegen.triton.interpret import run
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource, Member
from dynacompile.ir.sizes import computed, real_of
from dynacompile.lower import indexing
from dynacompile.ops.attention_kernels import DEVICES

Choose = Callable[[KernelSource], Candidate]


def first(source: KernelSource) -> Candidate:
    return source.candidates[0]


@contextmanager
def on_cpu() -> Iterator[None]:
    """Programs for CPUs have the kernels, too, and eager does not refuse gradients there."""
    before = set(DEVICES)
    DEVICES.add("cpu")
    try:
        with patch.object(indexing, "raises", lambda device: False), patch.object(flex, "_validate_device", lambda *operands: None):
            yield
    finally:
        DEVICES.clear()
        DEVICES.update(before)


@contextmanager
def by_triton(choose: Choose = first) -> Iterator[list[Kernel]]:
    """Triton's interpreter runs them, where the option `reference` is on; TRITON_INTERPRET=1 must have been set before Triton was imported. Gives a list of the
    kernels that have run."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    seen: list[Kernel] = []

    def run_by_triton(kernel: Kernel | Member, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        if isinstance(kernel, Member) or kernel.call is None:
            run_kernel(kernel, tensors, sizes)
            return
        seen.append(kernel)
        source = emit_attention(kernel)
        run(source.text, source.entry, *launch(source, choose(source), sizes), [*tensors, *numbers(kernel, sizes)])

    with on_cpu(), patch.object(pipeline, "run_kernel", run_by_triton):
        yield seen


@contextmanager
def only_noted() -> Iterator[list[Kernel]]:
    """Kernels of attention are noted, and no kernel runs, where the option `reference` is on: for sizes that an interpreter is too slow for."""
    seen: dict[str, Kernel] = {}

    def note(kernel: Kernel | Member, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        if isinstance(kernel, Kernel) and kernel.call is not None:
            seen.setdefault(kernel.digest(), kernel)

    found: list[Kernel] = []
    with on_cpu(), patch.object(pipeline, "run_kernel", note):
        yield found
    found.extend(seen.values())


def launch(source: KernelSource, candidate: Candidate, sizes: Sequence[int]) -> tuple[dict[str, int], tuple[int, int, int]]:
    """The constants of a candidate, and its grid in a call with these values of symbols."""
    values = dict(zip(source.kernel.symbols, sizes, strict=True))
    x, y, z = (computed(n, values) for n in source.grids[source.candidates.index(candidate)])
    return dict(candidate.blocks), (x, y, z)


def numbers(kernel: Kernel, sizes: Sequence[int]) -> list[Any]:
    return [real_of(n) if symbol.real else n for symbol, n in zip(kernel.symbols, sizes, strict=True)]
