"""Operations of torch's own samples, of operands of a type for which CPUs have no kernel, within a clause that takes the error and outside of one.

A seed names an operation, by its number among the samples, and a type: `python -m tests.fuzz.missing_kernels FIRST LAST [--backend NAME]`.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import dynacompile
from tests.fuzz.command import main

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64)
ERRORS = (RuntimeError, TypeError, IndexError, ValueError, AssertionError)
SEEDS = len(op_db) * len(DTYPES)


@dataclass(frozen=True)
class Program:
    """source: the operation, for who reads of a difference."""

    seed: int

    @property
    def operation(self) -> Any:
        return op_db[self.seed // len(DTYPES)]

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.seed % len(DTYPES)]

    @property
    def source(self) -> str:
        return f"{self.operation.name} {self.operation.variant_test_name} of {self.dtype}: "

    def calls(self) -> Iterator[tuple[tuple, dict]]:
        """Arguments of the operation, of the type that it has no kernel for. Of a type with kernels there are none."""
        own = self.operation.dtypes
        if self.dtype in own or not own:
            return
        of = torch.float32 if torch.float32 in own else min(own, key=str)

        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype != of:
                return value
            value = value.detach()
            return (value.real if value.is_complex() and not self.dtype.is_complex else value).to(self.dtype)

        torch.manual_seed(self.seed)
        for sample in itertools.islice(self.operation.sample_inputs("cpu", of, requires_grad=False), 2):
            yield pytree.tree_map(cast, (sample.input, *sample.args)), sample.kwargs


def check(program: Program, counts: Counter, backend: str = "eager") -> None:
    operation = program.operation.op

    def caught(*args: Any, **kwargs: Any) -> Any:
        try:
            return operation(*args, **kwargs)
        except ERRORS as error:
            return type(error).__name__

    def plain(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    for args, kwargs in program.calls():
        want = outcome(caught, args, kwargs)
        if not isinstance(want, str):  # it has a kernel all the same
            continue
        counts[want] += 1
        for function in (caught, plain):
            dynacompile.reset()
            how = {"options": {"reference": True}} if backend == "reference" else {"backend": backend}
            have = outcome(dynacompile.compile(function, isolate_recompiles=True, **how), args, kwargs)
            kind = type(have).__name__ if function is plain else have
            assert kind == want, f"{function.__name__}: {have!r}, eager {want}"


def outcome(function: Any, args: tuple, kwargs: dict) -> Any:
    args = pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - compared by its kind
            return error


if __name__ == "__main__":
    raise SystemExit(main("missing_kernels", "Compare operations without a kernel with eager.", Program, check, backend="eager"))
