"""Whether a function passes numbers on in the forms alone that its row in `ops.passed_numbers` knows. Which these are is up to torch and its version.

The function is traced twice on fakes, forward and backward, with other stand-ins. Operators then have to be given the same numbers both times, once each
known form is taken for what it stands for: any other that torch computes of a stand-in differs, and would be a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from dynacompile.ir.fakes import answers_devices, fake_mode
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import hint_of
from dynacompile.ops.passed_numbers import PASSING, SYMBOLIC, StandIns, has_static_sizes, stand_in
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, TorchDispatchMode

APART = 0x1234  # between the stand-ins of the two traces
MEANT = (0.375, 0.8125, 0.59375)
"""What stands in both of them for the numbers, in their order: no two forms of these are alike."""
known: dict[tuple, bool] = {}


@answers_devices
class Operators(TorchDispatchMode):
    """Notes the operators that run, with the numbers that they are given."""

    def __init__(self, stand_ins: StandIns):
        super().__init__()
        self.stand_ins, self.found = stand_ins, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append((str(func), *map(self.noted, of_torch.tree_leaves((args, kwargs or {})))))
        return func(*args, **(kwargs or {}))

    def noted(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return None if isinstance(part, FakeTensor) else str(part.tolist())
        return repr(self.stand_ins.meaning(part))


def has_known_forms(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Of a function with numbers that are symbols, and in their place in the row. args, kwargs: with fakes for tensors."""
    asked = (kind, target, torch.is_grad_enabled(), *look_of((args, kwargs)))
    if asked not in known:

        def agree() -> bool:
            return operators(kind, target, args, kwargs, 0) == operators(kind, target, args, kwargs, APART)

        try:
            known[asked] = agree()
        except Exception as error:  # noqa: BLE001  (the numbers are constants then, and the function is run again)
            check_recurs(error, agree)
            known[asked] = False
    return known[asked]


def look_of(parts: Any) -> Iterator[Any]:
    """What the operators may depend on, as far as it can be compared."""
    for part in of_torch.tree_leaves(parts):
        if isinstance(part, torch.Tensor):
            cast = torch.is_autocast_enabled(part.device.type) and torch.get_autocast_dtype(part.device.type)
            yield part.dtype, part.device, tuple(map(hint_of, part.shape)), part.requires_grad, has_static_sizes([part]), part.is_contiguous(), cast
        else:
            yield type(part), None if isinstance(part, SYMBOLIC) else repr(part)


def operators(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], first: int) -> list[Any]:
    """The operators of the forward and the backward. first: the number of the first stand-in. Raises what the function raises on fakes."""
    numbers = iter(MEANT)
    meant = {name: next(numbers) if isinstance(PASSING[target].given(args, kwargs, name), SYMBOLIC) else None for name in PASSING[target].numbers}
    mode, stand_ins = fake_mode(), StandIns(first)
    given, named = stand_in(target, args, kwargs, stand_ins, meant)
    tensors = [t for t in of_torch.tree_leaves((given, named)) if isinstance(t, torch.Tensor)]
    rules = nullcontext() if has_static_sizes(tensors) else of_torch.enable_python_dispatcher()
    with mode, rules:
        leaves = {id(t): like(t) for t in tensors}
        copies = {place: leaf.clone() if leaf.requires_grad else leaf for place, leaf in leaves.items()}
        given, named = of_torch.tree_map(lambda part: copies[id(part)] if isinstance(part, torch.Tensor) else static(part), (given, named))
        with Operators(stand_ins) as seen:
            made = getattr(given[0], target)(*given[1:], **named) if kind == "call_method" else target(*given, **named)
            roots = [t for t in of_torch.tree_leaves(made) if isinstance(t, torch.Tensor) and t.requires_grad]
            wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
            if roots and wanted:
                torch.autograd.grad([t.sum() for t in roots], wanted, allow_unused=True)
    return seen.found


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Another of its sizes, strides and kind, without symbols."""
    sizes, strides = tuple(map(hint_of, tensor.shape)), tuple(map(hint_of, tensor.stride()))
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device, requires_grad=tensor.requires_grad)


def static(part: Any) -> Any:
    return int(part.node.hint) if isinstance(part, torch.SymInt) and part.node.has_hint() else part
