"""Results of matmuls that are saved for backward and have rows of an odd size: their rows start at even addresses, since matmuls and kernels
are several times slower otherwise. Nothing but our own two graphs sees such a tensor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.facts import is_view
from dynacompile.ir.recurrence import check_recurs
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

aten = torch.ops.aten
MATMULS = frozenset((aten.mm.default, aten.addmm.default))
EVEN = 8  # elements that a row's size should be a multiple of
UNIT = 64  # elements that a padded row is a multiple of
LEAST = 1 << 20  # elements of a result that is worth it


def pad_saved(saved: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node]) -> None:
    """Gives saved results of matmuls, and views of them, fakes with padded rows. outputs: nodes that the user sees."""
    for node in saved:
        value = node.meta.get("val")
        if node.target in MATMULS and node not in outputs and isinstance(value, FakeTensor) and is_odd(value):
            found = {node: padded(value)}
            if follow(node, found, outputs):
                for changed, fake in found.items():
                    changed.meta["val"] = fake


def is_odd(value: FakeTensor) -> bool:
    halves = value.dtype in (torch.bfloat16, torch.float16)
    static = all(isinstance(n, int) for n in value.shape)
    return static and value.device.type == "cuda" and halves and value.is_contiguous() and value.shape[1] % EVEN != 0 and value.numel() >= LEAST


def padded(value: FakeTensor) -> FakeTensor:
    width = -(-value.shape[1] // UNIT) * UNIT
    with value.fake_mode:
        return torch.empty_strided(value.shape, (width, 1), dtype=value.dtype, device=value.device)  # type: ignore[return-value]


def under(mode: FakeTensorMode, target: Any, args: Any, kwargs: Any) -> Any:
    with mode:
        return target(*args, **kwargs)


def follow(node: torch.fx.Node, found: dict[torch.fx.Node, FakeTensor], outputs: Sequence[torch.fx.Node]) -> bool:
    """Adds the fakes of all views of the node; False where one is an output, names strides, or can't be had of padded rows."""
    for user in node.users:
        if not is_view(user):
            continue
        if user in outputs or user.target is aten.as_strided.default:
            return False
        args = torch.fx.map_arg(user.args, lambda n: found.get(n, n.meta.get("val")))
        view = functools.partial(under, found[node].fake_mode, user.target, args, user.kwargs)
        try:
            value = view()
        except (RuntimeError, ValueError) as error:  # a view across rows
            check_recurs(error, view)
            return False
        if not isinstance(value, FakeTensor):
            return False
        found[user] = value
        if not follow(user, found, outputs):
            return False
    return True
