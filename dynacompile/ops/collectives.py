"""Operations that talk to other processes. Each rank has to make the same calls in the same order, so that none is dropped, merged, repeated or made while
compiling. They begin when they are called; until `wait_tensor` has returned, what they read and write is not to be touched."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"})
FUNCTIONAL = "torch.distributed._functional_collectives"  # loaded by programs that use it, and by nothing here
GATHERS = frozenset({"_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_gather_into_tensor_coalesced"})
WAITS = frozenset({"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"})


def is_pending_class(cls: type) -> bool:
    """Whether tensors of a class are results of collectives that may be under way: they wait when they are used."""
    return FUNCTIONAL in sys.modules and cls is of_torch.AsyncCollectiveTensor


def is_collective(op: object) -> bool:
    """Whether the op begins to talk to other processes, or waits for the end."""
    if isinstance(op, of_torch.OpOverloadPacket):
        return op._qualified_op_name.partition("::")[0] in NAMESPACES
    return isinstance(op, of_torch.OpOverload) and op.namespace in NAMESPACES


def is_wait(op: object) -> bool:
    return isinstance(op, of_torch.OpOverload) and op._schema.name in WAITS


def is_gather(op: object) -> bool:
    """Whether the op begins to give each process what all have."""
    return isinstance(op, of_torch.OpOverload) and op._schema.name in GATHERS


@contextmanager
def not_computed(operands: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block in which fakes whose value is known are as others: a fake mode calls the operator itself where it knows the values of all operands."""
    known = [(fake, fake.constant) for fake in operands if isinstance(fake, FakeTensor) and fake.constant is not None]
    for fake, _ in known:
        fake.constant = None
    try:
        yield
    finally:
        for fake, value in known:
            fake.constant = value
