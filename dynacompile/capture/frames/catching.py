"""Operations whose errors depend on values, where the frame may take what they raise.

A graph runs after the frame was followed, so what an operation of it raises comes past the frame's own `except` clauses. An operation that may raise
within one that would take its error is left to Python, unless the whole call can start again (`capture/tensors/restarting.py`). Blocks that only clean up
(`finally`, `with`) see the error too late as well, but let it pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.refused_numbers import holds
from dynacompile.capture.tensors.entry_conditions import LOOKUPS, MOST_IN_CLAUSES, is_inside
from dynacompile.capture.tensors.raising import AT_PLACES, DIVISIONS, FILLS, OF_MATRICES, OF_NUMBERS
from dynacompile.capture.tensors.restarting import may_restart
from dynacompile.capture.tensors.switches import Switches
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.cpython.instructions import Handler, Instr
from dynacompile.errors import Unsupported
from dynacompile.ir.symbolic_graphs import picked
from dynacompile.ops.checks import is_held
from dynacompile.ops.python_numbers import PYTHON_NUMBER, called_name

if TYPE_CHECKING:
    from dynacompile.capture.bytecode import Decoded
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.capture.values.base import Value
    from dynacompile.capture.values.context import Context

ERRORS: Sequence[type] = (IndexError, RuntimeError)
"""The classes of what operators raise by values: these, and no subclass of them."""
OF_PYTHON: Sequence[type] = (ValueError, ZeroDivisionError, OverflowError)
"""What Python's functions raise of numbers that are read from tensors."""
OF_A_MATRIX: Sequence[type] = (*ERRORS, torch.linalg.LinAlgError)
WITHOUT_KERNELS: Sequence[type] = (*ERRORS, NotImplementedError)
OUT_OF_MEMORY = torch.OutOfMemoryError
"""What any operation may raise on a GPU. Clauses that name it expect it; one for RuntimeError or Exception may stand around a whole model, and counts for
the operations that are listed here."""
BETWEEN: dict[str, tuple[Sequence[str], Callable[[float, float], bool]]] = {
    "normal_": (("mean", "std"), lambda mean, std: std >= 0),
    "uniform_": (("from", "to"), lambda least, most: least <= most and abs(least) < 1e30 > abs(most)),
}
"""Draws that don't raise with two such numbers, which are 0 and 1 where they are not given."""
SUBSCRIPTS = (operator.getitem, operator.setitem)
NAMES = OF_MATRICES | OF_NUMBERS | AT_PLACES | DIVISIONS | FILLS | {f"linalg_{name}" for name in OF_MATRICES} | {"getitem", "setitem"}
TRANSFORMS = ("fft_", "stft", "istft")
FEW_KERNELS = frozenset(
    {
        torch.complex32,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        *(dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype.itemsize == 1 and dtype.is_floating_point),
    }
)
"""Types for which CPUs have no kernels of most operators."""
WIDE = (torch.float32, torch.float64)
LOADS = frozenset({"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_CHECK", "BUILD_TUPLE"})


def refuse_caught(cx: Context, frames: Sequence[SymbolicFrame], target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Breaks the graph where a clause around an operation may take what it raises, and the call can't start again. Of rows that are looked up, guards may say
    that they are there."""
    name = target if type(target) is str else getattr(target, "__name__", "")
    if target is PYTHON_NUMBER:
        name, errors = called_name(args[1].constant()), OF_PYTHON
    elif lacks_kernels(name, (*args, *kwargs.values())):
        errors = WITHOUT_KERNELS
    elif name == picked.__name__ or cx.symbols is not None and cx.symbols.unbacked:  # places and sizes that values decide
        errors = ERRORS
    elif name in BETWEEN and is_drawn_safely(name, args, kwargs):
        return
    elif name in NAMES and may_raise(target, name.removeprefix("linalg_"), args):
        errors = OF_A_MATRIX if name.removeprefix("linalg_") in OF_MATRICES else ERRORS
    else:
        errors = ()
    if errors and cx.state(Switches).changed and not may_restart(cx, name):
        raise unsupported("setting", name)
    for frame in frames:
        if any(takes(frame, handler, errors) for handler in handlers_around(frame.decoded, frame.current)):
            if not may_restart(cx, name) and not (target in LOOKUPS and is_inside(cx, target, args, kwargs, MOST_IN_CLAUSES)):
                raise unsupported("caught-error", name)
            return


def is_drawn_safely(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether a tensor is filled with random numbers, between or around numbers that are known and right, in a type which has all of them."""
    names, holds_for = BETWEEN[name]
    given = dict(zip(names, (ConstantValue(0.0), ConstantValue(1.0)))) | dict(zip(names, args[1:])) | dict(kwargs)
    numbers = [value.value for key in names if isinstance(value := given[key], ConstantValue) and type(value.value) in (int, float)]
    return len(args) < 4 and given.keys() == set(names) and len(numbers) == 2 and holds_for(*numbers) and args[0].sample.dtype in WIDE  # type: ignore[attr-defined]


def lacks_kernels(name: str, given: Iterable[Value]) -> bool:
    """Whether CPUs may have no kernel for these operands, which fakes don't ask for: of FEW_KERNELS for most operations, of halves for Fourier transforms."""
    dtypes = {tensor.sample.dtype for tensor in tensors_of(given) if tensor.sample.device.type == "cpu"}
    return not dtypes.isdisjoint(FEW_KERNELS) or torch.float16 in dtypes and name.startswith(TRANSFORMS)


def tensors_of(given: Iterable[Value]) -> Iterator[TensorValue]:
    for value in given:
        if isinstance(value, TensorValue):
            yield value
        elif isinstance(value, (ListValue, TupleValue)):
            yield from tensors_of(value.items)


def may_raise(target: Any, name: str, args: Sequence[Value]) -> bool:
    if name in OF_MATRICES or name in OF_NUMBERS:
        return True
    tensors = [a.sample for a in args if isinstance(a, TensorValue)]
    if not any(tensor.device.type == "cpu" for tensor in tensors):
        return False
    if name in DIVISIONS:
        return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors) and not is_another_number_than_zero(args[-1], tensors)
    if name in FILLS:
        return len(tensors) == 3 and not is_held(tensors[0].dtype, tensors[2].dtype)
    return name in AT_PLACES or target in SUBSCRIPTS and len(args) > 1 and has_places(args[1])


def is_another_number_than_zero(value: Value, tensors: Sequence[torch.Tensor]) -> bool:
    """What a tensor's type can't hold may become zero there."""
    return isinstance(value, ConstantValue) and value.value != 0 and all(holds(tensor.dtype, value.value) for tensor in tensors)


def has_places(key: Value) -> bool:
    """Whether a key of a tensor has places whose values are known when the graph runs, or which nobody has compared with sizes: tensors of ints, and lists."""
    parts = key.items if isinstance(key, TupleValue) else [key]
    return any(isinstance(part, ListValue) or isinstance(part, TensorValue) and part.sample.dtype != torch.bool for part in parts)


def handlers_around(decoded: Decoded, instr: Instr) -> Iterator[Handler]:
    """What the exception table has for an instruction, innermost first."""
    seen: set[int] = set()
    handler = decoded.handler_of(instr)
    while handler is not None and handler.target.index not in seen:
        seen.add(handler.target.index)
        yield handler
        handler = decoded.handler_of(handler.target)


def takes(frame: SymbolicFrame, handler: Handler, errors: Sequence[type]) -> bool:
    """Whether a handler is an `except` clause for one of the errors, or for memory that runs out. One that can't be read counts as such, where there are
    errors."""
    instrs, at = frame.decoded.instrs, handler.target.index
    if instrs[at].op != "PUSH_EXC_INFO":
        return False
    at += 1
    if instrs[at].op == "POP_TOP":  # `except:`
        return bool(errors)
    while True:
        begin = at
        while instrs[at].op in LOADS:
            at += 1
        if any(one.op == "CHECK_EG_MATCH" for one in instrs[begin : begin + 10]):
            return bool(errors)
        if instrs[at].op != "CHECK_EXC_MATCH":  # `finally:`, `with`, or what follows the last clause
            return False
        wanted = named(frame, instrs[begin:at]) if errors or not are_builtins(frame, instrs[begin:at]) else None
        if wanted is None and errors or wanted is not None and matches(wanted, errors):
            return True
        jump = next(one for one in instrs[at:] if one.op.startswith("POP_JUMP"))
        if jump.target is None:
            return bool(errors)
        at = jump.target.index


def are_builtins(frame: SymbolicFrame, loads: Sequence[Instr]) -> bool:
    """Whether all classes before a match are builtins, of which none is OUT_OF_MEMORY: no guard is needed to know that."""
    names = [frame.code.co_names[instr.arg >> 1] for instr in loads if instr.op == "LOAD_GLOBAL"]
    return all(name not in frame.scope.table for name in names) and all(instr.op in ("LOAD_GLOBAL", "BUILD_TUPLE") for instr in loads)


def named(frame: SymbolicFrame, loads: Sequence[Instr]) -> Value | None:
    """What the instructions before a match load, of which the entry then relies on being the same; None where that is not read off the names."""
    cx, names = frame.cx, frame.code.co_names
    found: list[Value] = []
    for instr in loads:
        try:
            if instr.op == "LOAD_GLOBAL":
                found.append(frame.scope.load(cx, names[instr.arg >> 1]))
            elif instr.op == "LOAD_ATTR":
                found[-1] = found[-1].get_attr(cx, names[instr.arg])
            elif instr.op == "BUILD_TUPLE":
                found[len(found) - instr.arg :] = [TupleValue(found[len(found) - instr.arg :])]
            else:
                return None
        except Unsupported:
            return None
    return found[-1] if found else None


def matches(wanted: Value, errors: Sequence[type]) -> bool:
    parts = wanted.items if isinstance(wanted, TupleValue) else [wanted]
    if any(isinstance(part, ClassValue) and part.real is OUT_OF_MEMORY for part in parts):
        return True
    return bool(errors) and any(not isinstance(part, ClassValue) or any(issubclass(error, part.real) for error in errors) for part in parts)
