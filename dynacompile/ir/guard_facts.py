"""Payloads of guards (`Guard.expected`), and how to read them off live objects. Capture makes them, the guard machine checks them.

| kind             | expected                          | holds while                                                                    |
|------------------|-----------------------------------|--------------------------------------------------------------------------------|
| TENSOR_MATCH     | ir.captured.TensorFacts           | same type, dtype, device, requires_grad, sizes, strides; a plain strided tensor |
| EQUALS           | an immutable constant             | same type and value, floats bit by bit                                         |
| TYPE             | a type                            | type(x) is it                                                                  |
| ID               | Identity, or the object           | x is that object, and it still lives                                           |
| NONE             | -                                 | x is None                                                                      |
| HASATTR          | Presence(name, present)           | the type or the instance dict has the name; `__getattr__` is not asked         |
| DICT_KEYS        | tuple of constants                | a dict with these keys in this order                                           |
| DICT_CONTAINS    | Presence(key, present)            | the dict has the key, or has not                                               |
| SET              | frozenset of str, int, bytes, None, functions, classes | a set or frozenset of these elements                      |
| SET_ORDER        | tuple of what SET takes           | a set or frozenset that gives these elements in this order                     |
| LENGTH           | int                               | a builtin container of this length                                             |
| FUNCTION         | FunctionFacts, or the function    | a Python function with this code and these globals                             |
| MODULE           | ModuleFacts                       | class; of training flag, registered names, hook counts what was read           |
| DUPLICATE_INPUT  | another Source                    | both are one object                                                            |
| NOT_ALIASED      | tuple of Sources                  | all are different objects (the guard's own source may be None)                 |
| DISJOINT         | Disjoint(written, others)         | the written tensors share no memory with each other nor with the others        |
| GLOBAL_STATE     | GlobalState (source None)         | the thread's modes are as they were                                            |
| FLAG             | Flag (source None)                | a setting of torch that the frame read is as it was                            |
| MATCH            | Match(text, holds, is_fixed)      | a function says so: of what a tensor that wraps others is beside these          |
| NAMESPACES       | ir.namespaces.Namespaces (source None) | names in classes and modules lead to what they led to           |
| SHAPE            | ShapeFacts (source None)          | a condition on sizes, strides, ints and floats                                 |
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodWrapperType
from typing import Any, TypeGuard, TypeVar
from weakref import ReferenceType, ref

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module

from dynacompile.ir.captured import TensorFacts
from dynacompile.ir.expressions import Expression, Quantity, shown
from dynacompile.ir.frozen import record
from dynacompile.ir.source import Source
from dynacompile.private import of_torch

Kind = TypeVar("Kind")
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    nn_module._global_forward_hooks,
    nn_module._global_forward_pre_hooks,
    nn_module._global_backward_hooks,
    nn_module._global_backward_pre_hooks,
)
AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Identity:
    """One object, not kept alive where it can be referred to weakly. text: how to call it in an explanation."""

    get: Any = field(repr=False)  # () -> the object, or None when it is gone
    text: str


@record
class Presence:
    """A name or key that is there (or, present=False, is not)."""

    name: Hashable
    present: bool = True


@dataclass(frozen=True)
class Disjoint:
    """Sources of tensors. written: the graph writes them, so that whoever shares their memory would see it."""

    written: tuple[Source, ...]
    others: tuple[Source, ...]


@dataclass(frozen=True)
class ShapeFacts:
    """expression: over the quantities by index; it holds where its value is not 0."""

    quantities: tuple[Quantity, ...]
    expression: Expression

    def text(self) -> str:
        return shown(self.expression, [q.text() for q in self.quantities])


@dataclass(frozen=True)
class Flag:
    """A setting of torch: `read()` gives a constant, without running code of the user. name: how a user would write it."""

    name: str
    read: Any = field(repr=False, compare=False)  # () -> the setting as of now
    value: Hashable = None


@dataclass(frozen=True)
class Match:
    """What a value is to be: `holds(value)` tells, without running code of the user, but for the methods of a class that graphs are traced through. text:
    how to show it. is_fixed: of an object that holds once it always does, as it is immutable."""

    text: str
    holds: Any = field(repr=False, compare=False)  # (value) -> bool
    is_fixed: bool = True
    shows: Any = field(default=str, repr=False, compare=False)  # (value) -> what it is, as `text` says it


@dataclass(frozen=True)
class FunctionFacts:
    """code and globals of a Python function; its closure and defaults have sources, and guards, of their own.

    globals: None for those of the frame. An entry that held on to its frame's globals would never end, where these hold the frame's function.
    """

    reference: ReferenceType[CodeType]
    globals: dict[str, Any] | None = field(repr=False)

    @property
    def code(self) -> CodeType | None:
        return self.reference()


@dataclass(frozen=True)
class ModuleFacts:
    """What was read of an nn.Module's structure; None: not read.

    parameters, buffers, modules: all names of that table in order. hooks: sizes of HOOK_TABLES. lacks: (table, name), the names that were looked for and
    are not there; the table "__dict__" is the instance dict itself.
    """

    type: type
    training: bool | None = None
    parameters: tuple[str, ...] | None = None
    buffers: tuple[str, ...] | None = None
    modules: tuple[str, ...] | None = None
    hooks: tuple[int, ...] | None = None
    lacks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GlobalState:
    """What torch reads from thread and process state.

    autocast: (enabled, dtype) per AUTOCAST_DEVICES, the dtype None where not enabled. function_modes: the torch-function modes, outermost first: a device
    for one that does nothing but make it the default, as each `with torch.device(...)` makes another, and any other mode itself.
    torch_function: 0 enabled, 1 disabled for subclasses, 2 disabled. dispatch_modes: their number. module_hooks: number of hooks for all modules.
    functorch: a transform of torch.func, the vmap of autograd's own, or a level of forward-mode differentiation, is active.
    """

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[tuple[bool, torch.dtype | None], ...]
    default_dtype: torch.dtype
    deterministic: bool
    torch_function: int
    function_modes: tuple[object, ...]
    dispatch_modes: int
    functorch: bool
    module_hooks: int

    @property
    def has_modes(self) -> bool:
        """Whether there is a torch-function mode that sees more than the functions which make tensors."""
        return not all(is_a(mode, torch.device) for mode in self.function_modes)


def is_a(value: object, kinds: type[Kind] | tuple[type[Kind], ...]) -> TypeGuard[Kind]:
    """Whether the class of an object is one of these, or derives from one. isinstance() also reads its `__class__`, which may run the program's code."""
    return issubclass(type(value), kinds)


def identity(value: object) -> Identity:
    """The payload of an ID guard on `value`."""
    text = type(value).__name__
    if is_a(value, (type, FunctionType)):
        text += f" {value.__qualname__}"  # type: ignore[attr-defined]
    try:
        return Identity(weakref.ref(value), text)
    except TypeError:
        return Identity(lambda: value, text)


def hashes_by_identity(value: object) -> bool:
    """Whether a dict or set finds an object without running code of the user: a class, a function, a special form of typing."""
    cls = type(value)
    return cls in (BuiltinFunctionType, MethodWrapperType) or cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__


def function_facts(function: FunctionType, frame_globals: dict[str, Any] | None = None) -> FunctionFacts:
    """frame_globals: of the frame whose guard it is."""
    own = function.__globals__
    return FunctionFacts(ref(function.__code__), None if own is frame_globals else own)


def hook_counts(module: torch.nn.Module) -> tuple[int, ...]:
    return tuple(len(module.__dict__[table]) for table in HOOK_TABLES)


def module_facts(module: torch.nn.Module) -> ModuleFacts:
    """All of it. Read from the instance dict alone: no descriptor or `__getattr__` runs."""
    own = module.__dict__
    return ModuleFacts(
        type=type(module),
        training=own["training"],
        parameters=tuple(own["_parameters"]),
        buffers=tuple(own["_buffers"]),
        modules=tuple(own["_modules"]),
        hooks=hook_counts(module),
        lacks=() if "forward" in own else (("__dict__", "forward"),),
    )


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """All sizes and strides static."""
    return TensorFacts(type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tuple(tensor.shape), tuple(tensor.stride()))


def plain_twin(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that looks the same, of one whose class may override torch's functions, or hide what torch says of it."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    with of_torch.DisableTorchFunctionSubclass(), torch.enable_grad():
        if torch.Tensor.is_leaf.__get__(tensor):  # type: ignore[attr-defined]
            twin = of_torch.make_subclass(torch.Tensor, tensor, torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]
        else:
            twin = torch.Tensor.as_subclass(tensor, torch.Tensor)
    twin.__dict__.update({name: mark for name, mark in tensor.__dict__.items() if name.startswith("_dynamo_")})  # sizes that are to be dynamic
    return twin


def memory_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a strided tensor's first byte and past its last; (0, 0) where it has no memory.

    Asked for the address, not for the storage: a storage that was asked for has an object of Python's for as long as it lives."""
    tensor = plain_twin(tensor)
    count, itemsize = tensor.numel(), tensor.itemsize
    if not count or tensor.layout is not torch.strided or not (memory := of_torch.data_address(tensor)):
        return (0, 0)
    if not tensor.is_contiguous():
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # type: ignore[assignment]  # sizes of a real tensor are ints
    begin = memory + tensor.storage_offset() * itemsize
    return begin, begin + count * itemsize  # type: ignore[return-value]


def in_batches_of_gradients() -> bool:
    """Whether the vmap is active that autograd has of its own, for gradients of several at once."""
    key = of_torch.dispatch_key_parse("VmapMode")
    return bool(of_torch.dispatch_tls_local_include_set().has(key))


def global_state(function_modes: Sequence[object] | None = None) -> GlobalState:
    """The state now; to be taken before the capture enters modes of its own. function_modes: those of the call that is compiled, which are off while the
    compiler runs; None: those that are on."""
    modes = of_torch.get_current_function_mode_stack() if function_modes is None else function_modes
    return GlobalState(
        grad_mode=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=tuple((True, torch.get_autocast_dtype(d)) if torch.is_autocast_enabled(d) else (False, None) for d in AUTOCAST_DEVICES),
        default_dtype=torch.get_default_dtype(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        torch_function=0 if of_torch.is_torch_function_enabled() else 2 if of_torch.is_torch_function_all_disabled() else 1,
        function_modes=tuple(mode.device if type(mode) is of_torch.DeviceContext else mode for mode in modes),
        dispatch_modes=of_torch.len_torch_dispatch_stack(),
        functorch=of_torch.peek_interpreter_stack() is not None or in_batches_of_gradients() or of_torch.is_tracing() or forward_ad._current_level >= 0,
        module_hooks=sum(map(len, GLOBAL_HOOKS)),
    )
