"""Results of operations that were run on fakes of the same metadata before: made anew, without torch's dispatch.

A loop over parameters runs the same operations on tensors that look the same. What an operation gives under no_grad, in memory of its own, depends on the
operation, on its constants, and on the metadata of its operands. An operation that writes its first operand and gives it back counts a version there.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch

from dynacompile.ir.fakes import FakeMode
from dynacompile.ir.looks import Look, Looks
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
OPERATORS = frozenset(getattr(operator, name) for name in operator.__all__)
OTHER = ("builtins", "math")
QUESTIONS = frozenset((torch.is_complex, torch.is_floating_point))  # of the dtype alone


class UnknownError(Exception):
    """An argument that no key can be made of."""


class Results:
    """What operations of one capture gave, by what they were and what they took."""

    def __init__(self, mode: FakeMode, looks: Looks) -> None:
        self.mode, self.met = mode, looks
        self.looks: dict[tuple, Look] = {}
        self.writes: dict[tuple, int] = {}  # of operations in place, the versions that they count

    def key(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple | None:
        """Equal for operations whose results look the same; None where that cannot be told."""
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or of_torch.is_any_autocast_enabled() or of_torch.len_torch_function_stack():
            return None
        if kind == "call_function" and not (target in OPERATORS or type(target) is BuiltinFunctionType and target.__module__ not in OTHER):
            return None
        try:
            named = tuple([(k, token(v)) for k, v in kwargs.items()]) if kwargs else ()
            memories = [a.untyped_storage()._cdata for a in (*args, *kwargs.values()) if type(a) is FakeTensor]
            together = tuple(map(memories.index, memories)) if len(set(memories)) < len(memories) else None
            return kind, target, torch.get_default_dtype(), together, tuple([token(a) for a in args]), named
        except UnknownError:
            return None

    def again(self, key: tuple | None, args: Sequence[Any]) -> Any:
        """A result like the one that was noted for a key; `args` are written where it was. None where there is none."""
        if key is None:
            return None
        if key[1] in QUESTIONS and args and type(args[0]) is FakeTensor:
            return key[1](args[0])
        if (count := self.writes.get(key)) is not None:
            for _ in range(count):
                of_torch.increment_version([args[0]])
            self.mode.touched.add(args[0].untyped_storage()._cdata)
            return args[0]
        look = self.looks.get(key)
        return None if look is None else look.make()

    def note(self, key: tuple | None, result: object, args: Sequence[Any], operands: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        """Tells of a result, where all about it is its metadata: it has memory of its own, and nothing was written, or it is the first operand, which was."""
        if key is None or type(result) is not FakeTensor or result.constant is not None or result._is_view():
            return
        if args and result is args[0]:
            memory = result.untyped_storage()._cdata
            after = self.key(key[0], key[1], args, {})
            if after is None or after[:-1] != key[:-1]:  # sizes, for example, change in place
                return
            if (
                operands[0] is result
                and result._version > versions[0]
                and all(t.untyped_storage()._cdata != memory and t._version == v for t, v in zip(operands[1:], versions[1:]))
            ):
                self.writes[key] = result._version - versions[0]
            return
        look = fresh_look(self.met, result, operands)
        if look is not None and all(t._version == v for t, v in zip(operands, versions, strict=True)):
            self.looks[key] = look


def fresh_look(looks: Looks, result: torch.Tensor, operands: Sequence[torch.Tensor]) -> Look | None:
    """The metadata of a result that has memory of its own, in which its elements lie side by side; None where there is more to it."""
    if type(result) is not FakeTensor or result.constant is not None or result._is_view() or result._version or result._has_symbolic_sizes_strides:
        return None
    if result.requires_grad or result.is_conj() or result.is_neg() or result.is_inference() or not result.is_contiguous() or result.storage_offset():
        return None
    memory = result.untyped_storage()
    if memory.nbytes() != result.numel() * result.itemsize or any(t.untyped_storage()._cdata == memory._cdata for t in operands):
        return None
    return looks.of(result.size(), result.stride(), result.dtype, result.device)


def member_token(arg: Any) -> Any:
    """As `token`, for members of lists: where in its memory one begins does not matter to operations that give no views."""
    found = token(arg)
    return (*found[:3], *found[4:]) if type(arg) is FakeTensor else found


def token(arg: Any) -> Any:
    kind = type(arg)
    if kind is FakeTensor:
        if arg.constant is not None or arg.is_inference() or arg.is_conj() or arg.is_neg() or arg.layout is not torch.strided:
            raise UnknownError
        if arg._has_symbolic_sizes_strides:
            raise UnknownError
        return FakeTensor, arg.size(), arg.stride(), arg.storage_offset(), arg.dtype, arg.device, arg.requires_grad, arg._is_view()
    if kind in PLAIN:
        return kind, repr(arg) if kind is float else arg
    if kind is torch.SymFloat or kind is torch.SymInt:  # whatever the operation relies on, it does each time
        return kind, arg.node.expr
    if kind is tuple or kind is list or kind is torch.Size:
        return (kind, *map(token, arg))
    raise UnknownError
