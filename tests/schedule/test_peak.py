"""Bytes at the peak of memory, counted by hand for ten programs, and what is written in place of what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from dynacompile.autograd import differentiate
from dynacompile.ir.schedule import Free, Place, Reuse, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.autograd.recording import record
from tests.lower.tracing import ENV

N = 1024
M = N * N * 4  # bytes of one matrix
LINE = 64  # bytes of a small buffer in the arena


def square(requires_grad: bool = True) -> torch.Tensor:
    return torch.empty(N, N, requires_grad=requires_grad)


def plans(function: Callable, *args: torch.Tensor) -> tuple[Schedule, Schedule | None]:
    """The schedules of the forward and the backward."""
    graph, fakes, _ = record(function, list(args))
    pair = differentiate(graph, fakes, ENV)
    forward = schedule(lower(pair.forward, ENV), ENV)
    if pair.backward is None:
        return forward, None
    contract = pair.contract
    first = len(contract.symbols) + len(contract.saved_inputs)
    return forward, schedule(lower(pair.backward, ENV), ENV, range(first, first + len(contract.saved_positions)))


def peaks(function: Callable, *args: torch.Tensor) -> list[int]:
    return [plan.facts()["peak"] for plan in plans(function, *args) if plan is not None]


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x


PROGRAMS: dict[str, tuple[Callable, list, list[int]]] = {}
