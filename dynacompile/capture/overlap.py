"""Writes that eager refuses as their operands share memory, which fakes don't notice."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.shapes import hint_of, is_undecidable
from dynacompile.ops.list_writes import has_history, memory, only, tensors_in
from dynacompile.private import of_torch


def is_refused_write(target: Any, args: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """Whether the first operand, which the operation has written, shares a part of its memory with another one."""
    written: Any = operands[0]
    if target is operator.setitem:
        if any(isinstance(part, (torch.Tensor, list)) for part in (args[1] if isinstance(args[1], tuple) else (args[1],))):
            return False
        written = written[args[1]]
    apart = getattr(target, "__name__", target) in APART
    return any(shares_part(written, other) or (apart and is_same_memory(written, other)) for other in operands[1:])


APART = frozenset("index_add_ index_copy_ index_put_ index_reduce_ masked_scatter_ put_ scatter_ scatter_add_ scatter_reduce_".split())
"""Operations whose kernels refuse operands that share any memory with what they write, be it all of it in the same order."""


def is_same_memory(written: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor has the same elements in the same order."""
    if written.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    facts = [(*t.shape, *t.stride(), t.storage_offset()) for t in (written, other)]
    return not is_undecidable(*facts[0], *facts[1]) and facts[0] == facts[1]


def reaches_out(args: Sequence[tuple[Any, Any]], kwargs: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether as_strided gives elements behind those of its operand: how many there are is a fact of the storage, which nobody guards."""
    tensor = args[0][1]
    given = [a[1] for a in args[1:]] + [kwargs[name][1] for name in ("size", "stride") if name in kwargs]
    if len(given) < 2 or not isinstance(tensor, torch.Tensor):
        return True
    if is_undecidable(*given[0], *given[1], *tensor.shape, *tensor.stride()):
        return True
    return bool(reach(given[0], given[1]) > reach(tensor.shape, tensor.stride()))


def reach(sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The place of the last element."""
    return -1 if any(n == 0 for n in sizes) else sum((n - 1) * s for n, s in zip(sizes, strides))


def writes_twice(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation on a list of tensors writes some memory more than once: eager does one after the other, a graph all of them at once."""
    if not (name.startswith("_foreach_") and name.endswith("_") and args and isinstance(args[0], (list, tuple))):
        return False
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in args[0]:
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return any(may_share(a, b) for group in groups.values() for i, a in enumerate(group) for b in group[:i])


def crosses_history(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a member of a list that is written in place, and differentiated, reads what an earlier one has written: eager computes with what was written,
    and gives the gradients of what was there before all writes. In a graph both are of the same."""
    if not (name.startswith("_foreach_") and name.endswith("_") and args and isinstance(args[0], (list, tuple)) and len(args[0]) > 1):
        return False
    if not has_history(args, kwargs):
        return False
    groups: dict[int, list[torch.Tensor]] = {}
    others = [*args[1:], *kwargs.values()]
    for k, tensor in enumerate(args[0]):
        if any(may_share(t, before) for v in others for t in tensors_in(only(k, v)) for before in groups.get(memory(t), ())):
            return True
        groups.setdefault(memory(tensor), []).append(tensor)
    return False


def may_share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have, or may have, an element in common."""
    return a is b or shares_part(a, b) or is_same_part(a, b)


def is_same_part(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are all of the same elements, or may be."""
    if is_undecidable(*a.shape, *b.shape, a.storage_offset(), b.storage_offset()):
        return True
    return a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()


def shares_part(written: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they share some elements but not all in the same order. Eager refuses it where both are dense; else what it computes depends on the order in
    which its loop goes through them."""
    if written is other or written.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    if is_undecidable(*written.shape, *other.shape, written.storage_offset(), other.storage_offset()):
        return False  # only the values of tensors tell
    if not written.numel() or not other.numel():
        return False
    if not of_torch.is_non_overlapping_and_dense_or_false(written) or not of_torch.is_non_overlapping_and_dense_or_false(other):
        return not is_same_memory(written, other) and have_common_element(written, other)
    (begin, end), (other_begin, other_end) = extent(written), extent(other)
    if (begin, end) == (other_begin, other_end):
        return written.stride() != other.stride()
    return begin < other_end and other_begin < end


MOST_STEPS = 1000


def have_common_element(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage and dtype share an element; True, too, where that takes long to find out."""
    if a.dtype != b.dtype or is_undecidable(*a.stride(), *b.stride()):
        return False
    ranges: dict[int, tuple[int, int]] = {}  # of the difference of two elements' places: by stride, how often it is in it
    for tensor, sign in ((a, 1), (b, -1)):
        for size, stride in zip(map(hint_of, tensor.shape), map(hint_of, tensor.stride())):
            low, high = ranges.get(stride, (0, 0))
            ranges[stride] = (low, high + size - 1) if sign > 0 else (low - size + 1, high)
    terms = sorted((stride, low, high) for stride, (low, high) in ranges.items() if stride)
    reach = [(0, 0)]
    for stride, low, high in terms:
        reach.append((reach[-1][0] + low * stride, reach[-1][1] + high * stride))
    pending = [(hint_of(b.storage_offset()) - hint_of(a.storage_offset()), len(terms))]
    for _ in range(MOST_STEPS):
        if not pending:
            return False
        rest, count = pending.pop()
        if not count:
            if rest == 0:
                return True
            continue
        stride, low, high = terms[count - 1]
        least, most = reach[count - 1]
        first, last = max(low, -((most - rest) // stride)), min(high, (rest - least) // stride)
        pending += [(rest - k * stride, count - 1) for k in range(first, last + 1)]
    return True


def extent(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """Where a dense tensor begins and ends, in bytes."""
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + tensor.numel() * tensor.element_size()
