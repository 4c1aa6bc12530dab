"""Tensors that exist before the frame runs: which of them become inputs of the graph, and what is guarded of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.shared_memory import relation
from dynacompile.capture.values.base import Value
from dynacompile.ir.captured import TensorFacts
from dynacompile.ir.source import Applied, Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def check_kind(real: torch.Tensor, source: Source) -> None:
    """Refuses tensors that fakes can't stand for."""
    if real.is_conj() or real.is_neg():
        raise unsupported("unknown-object", f"{source.text()}, a lazily conjugated or negated tensor")
    if real.layout is not torch.strided or real.is_quantized or real.is_nested:
        raise unsupported("unknown-object", f"{source.text()}, a tensor that is not dense")
    if of_torch.is_functional_tensor(real) or of_torch.is_functorch_wrapped_tensor(real):
        raise unsupported("unknown-object", f"{source.text()}, a tensor of a transform that is running")
    if not has_history(real):
        raise unsupported("unknown-object", f"{source.text()}, a view of which autograd knows nothing any more, as its memory was written since")


def has_history(real: torch.Tensor) -> bool:
    """Whether autograd tells of a tensor's past. Of one of several views that an operation gave it does not once their memory was written."""
    try:
        return real.is_leaf or real.grad_fn is not None
    except RuntimeError:
        return False


def wrap_tensor(cx: Context, real: torch.Tensor, source: Source) -> Value:
    """A tensor that exists before the frame runs becomes an input of the graph."""
    check_kind(real, source)
    for group in cx.manner.shares:
        if source in group:
            return wrap_shared(cx, real, source, group)
    value = cx.recorder.input(real, source)
    cx.guard("TENSOR_MATCH", source, cx.recorder.facts(value))  # of what was traced, also where another thread changes the tensor's metadata meanwhile
    return value


def wrap_shared(cx: Context, real: torch.Tensor, source: Source, group: frozenset[Source]) -> Value:
    """A tensor that shares memory which the frame writes. The entry is for tensors at these places of one memory."""
    value, first = cx.recorder.shared_input(real, source, group)
    fake = value.fake
    cx.guard("TENSOR_MATCH", source, TensorFacts(type(real), fake.dtype, fake.device, fake.requires_grad, tuple(real.shape), tuple(real.stride())))
    cx.guard("EQUALS", Applied(source, torch.Tensor.storage_offset, ".storage_offset()"), real.storage_offset())
    if first == source:
        memory = cx.recorder.memories[group][0]
        facts = TensorFacts(torch.Tensor, fake.dtype, fake.device, False, tuple(memory.fake.shape), (1,))
        cx.guard("TENSOR_MATCH", memory.source, facts)
    else:
        root, other, one_memory = relation(first, source)
        cx.guard("DUPLICATE_INPUT", root, other)
        cx.guard_relation(one_memory)
    return value
