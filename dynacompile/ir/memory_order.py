"""Questions about strides whose answer changes no result.

For most operations the order in which the operands' dimensions lie in memory decides how the result lies: the result is dense, in that order. Torch's rules
first ask whether an operand is contiguous, which for `x[:, :5]` is whether `x` has just 5 columns, and the answer would be a guard: the entry would
serve that one size, or all but that one. A contiguous operand is a special case that gives the same, unless all have a dimension of one element, whose stride
says nothing of an order. `reshape`, `contiguous` and what chooses a memory format are not among these operations: what they give depends on the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten
BY_ORDER = frozenset(
    {
        aten.clone, aten._to_copy, aten.copy_, aten.copy, aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like, aten.rand_like, aten.randn_like,
        aten.randint_like, aten.bernoulli, aten.bernoulli_, aten.native_dropout, aten.native_dropout_backward, aten.fill_, aten.zero_, aten.uniform_,
        aten.normal_, aten.sum, aten.mean, aten.amax, aten.amin, aten.prod, aten.any, aten.all, aten.argmax, aten.argmin, aten.max, aten.min, aten.var,
        aten.std, aten.var_mean, aten.std_mean, aten.linalg_vector_norm, aten.norm, aten._softmax, aten._log_softmax, aten._softmax_backward_data,
        aten._log_softmax_backward_data, aten._safe_softmax, aten.logsumexp, aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.cummax, aten.cummin,
        aten.sort, aten.topk, aten.kthvalue, aten.median, aten.gather, aten.scatter, aten.scatter_add, aten.scatter_reduce, aten.index_add, aten.index_copy,
        aten.index_fill, aten.index_select, aten.index_put, aten.index_put_, aten.masked_fill, aten.masked_fill_, aten.masked_scatter, aten.where, aten.flip,
        aten.roll, aten.tril, aten.triu, aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.dot, aten.addmv, aten.embedding,
        aten.embedding_dense_backward, aten.constant_pad_nd, aten.stack, aten.slice_scatter, aten.select_scatter, aten.slice_backward,
        aten.select_backward, aten.new_zeros, aten.new_ones, aten.new_empty, aten.new_full, aten.native_layer_norm, aten.native_layer_norm_backward,
        aten.repeat, aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
        aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update, aten._batch_norm_with_update_functional, aten.native_group_norm,
    }
)  # fmt: skip
VIEWS_OF_PRIMS = frozenset({"as_strided", "broadcast_in_dim", "collapse", "collapse_view", "reshape", "slice", "split_dim", "squeeze", "transpose", "view_of"})
SMALL = 1  # what sizes and strides are compared with to tell broadcast and empty dimensions, which do change results


def goes_by_order(operation: Any, arguments: Any) -> bool:
    """Whether nothing that the operation gives depends on whether an operand is contiguous."""
    packet = getattr(operation, "overloadpacket", None)
    known = packet in BY_ORDER or torch.Tag.pointwise in getattr(operation, "tags", ()) or is_kernel_of_prims(operation)
    return known and not has_dimension_of_one(list(tensors_in(arguments)))


def is_kernel_of_prims(operation: Any) -> bool:
    return getattr(operation, "namespace", None) == "prims" and operation.name().partition("::")[2].partition(".")[0] not in VIEWS_OF_PRIMS


def has_dimension_of_one(operands: list[torch.Tensor]) -> bool:
    """Whether all operands that have a dimension, counted from the last, have one element along it."""
    rank = max((t.dim() for t in operands), default=0)
    sizes = [[t.shape[-d] for t in operands if t.dim() >= d] for d in range(1, rank + 1)]
    return any(all(type(n) is int and n == 1 for n in along) for along in sizes)


def tensors_in(arguments: Any) -> Iterator[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for a in arguments:
            yield from tensors_in(a)


def general_answer(condition: Any, general: bool) -> bool | None:
    """For a question that torch has an answer to where nothing is known, which every operand gets by then; None where the question is not about strides.
    general: that answer."""
    if general:
        is_of_strides = condition.is_Relational and condition.rel_op == "!=" and not any(side.is_Integer and side <= SMALL for side in condition.args)
    else:
        is_of_strides = condition.is_Boolean and not condition.is_Relational
    return general if is_of_strides else None
