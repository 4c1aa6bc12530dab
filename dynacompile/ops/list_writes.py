"""Operations that write lists of tensors in place, so that autograd sees each write.

Functionalization writes the members of `torch._foreach_mul_` and its like without counting that in their versions. Autograd goes by versions: it would not
give a view, or what it is a view of, the history of the write, nor refuse a backward that reads what was written over. Where autograd has a part in an
operation, each member is written by the operation on one tensor, as eager's own loop over members does.

It also computes all members before it writes any, where eager's loop writes one after the other. Where a member reads what an earlier one has written,
the operation is one for each member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

PREFIX = "_foreach_"
OTHER_NAMES = {"maximum_": "clamp_min_", "minimum_": "clamp_max_"}
"""What eager calls for one member, where that has another name."""
UNDIFFERENTIATED = frozenset({"copy_"})
"""What eager refuses to differentiate over a list."""
NAMED = {"addcdiv_": ("tensor1", "tensor2", "value"), "addcmul_": ("tensor1", "tensor2", "value")}
"""Parameters of the operation on one tensor, where the last one has to be named."""


def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation over lists that writes its first one, which counts its writes."""
    name = operation.__name__.removeprefix(PREFIX)
    method = getattr(torch.Tensor, OTHER_NAMES.get(name, name), None)

    def write(self: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        is_recorded, is_ordered = has_history(self, args, kwargs), reads_written(self, (*args, *kwargs.values()))
        by_member = name not in UNDIFFERENTIATED if is_recorded else is_ordered
        members = arguments_of_members(name, len(self), args, kwargs) if method is not None and by_member else None
        if method is not None and members is not None:
            for tensor, (given, named) in zip(self, members, strict=True):
                method(tensor, *given, **named)
            return self
        if is_ordered:
            for k, tensor in enumerate(self):
                operation([tensor], *(only(k, v) for v in args), **{key: only(k, v) for key, v in kwargs.items()})
            made: Any = self
        else:
            made = operation(self, *args, **kwargs)
        torch.autograd.graph.increment_version(self)
        return made

    return write


def reads_written(written: Sequence[torch.Tensor], given: Sequence[Any]) -> bool:
    """Whether the operation on one member reads memory that those before it have written: eager's loop over members then reads what they wrote. Lists of
    other lengths are refused by the operation itself."""
    if any(isinstance(v, (list, tuple)) and len(v) != len(written) for v in given):
        return False
    before: set[int] = set()
    for k, tensor in enumerate(written):
        if any(memory(t) in before for v in (written, *given) for t in tensors_in(only(k, v))):
            return True
        before.add(memory(tensor))
    return False


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def only(k: int, value: Any) -> Any:
    """A list's member, as a list; what all members have in common as it is."""
    return [value[k]] if isinstance(value, (list, tuple)) else value


def has_history(*given: Any) -> bool:
    """Whether autograd records the operation."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(given))


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for part in value for t in tensors_in(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def arguments_of_members(name: str, count: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[tuple, dict[str, Any]]] | None:
    """What each member is written with; None where that is in no list: numbers of all members in one tensor."""
    names = NAMED.get(name, ())
    placed = dict(zip(names, args)) if names else {}
    if names and isinstance(placed.get("value"), torch.Tensor):
        return None
    rest, named = (() if names else args), {**placed, **kwargs}
    if any(isinstance(v, (list, tuple)) and len(v) != count for v in (*rest, *named.values())):
        return None  # refused by the operation itself

    def of(value: Any, k: int) -> Any:
        return value[k] if isinstance(value, (list, tuple)) else value

    return [(tuple(of(v, k) for v in rest), {key: of(v, k) for key, v in named.items()}) for k in range(count)]


LIST_WRITES = {getattr(torch, name): counted(getattr(torch, name)) for name in dir(torch) if name.startswith(PREFIX) and name.endswith("_")}
