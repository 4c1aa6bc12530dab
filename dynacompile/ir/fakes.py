"""Fake tensors: metadata without memory, made without the machinery for symbolic shapes and without loading Dynamo.

torch's fake mode imports all of Dynamo, seconds of a first compile: for two switches in its constructor, for one at each new operation,
and in a wrapper by which Dynamo would leave its dispatch alone. Where Dynamo isn't loaded, a stand-in answers for the switches' defaults
while we compile (`dynamo_unloaded`), and there is nothing to leave alone. Whoever asks the stand-in for anything else gets the real module's.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import torch

from dynacompile.ir.guard_facts import plain_twin
from dynacompile.ir.layouts import LAYOUTS, PRESERVED, as_preserved, as_wide, is_iterated, is_widened_early, iterated_strides, laid_out
from dynacompile.ir.looks import new_fake
from dynacompile.ir.pointwise_fakes import pointwise_fake
from dynacompile.ir.shape_envs import SYMBOLIC
from dynacompile.ir.view_fakes import VIEWS, statically, view_fake
from dynacompile.ir.written_operands import Written, argument, written_by
from dynacompile.ops.wrappers import Wrapping
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

CreationMeta, get_creation_meta = of_torch.CreationMeta, of_torch.get_creation_meta  # type: ignore[attr-defined]
DYNAMO = f"{torch.__name__}._dynamo"
M = TypeVar("M")
MOST_CACHED = 10_000
NOTHING: Mapping[str, Any] = {}
CALL_THROUGH = "__dynamo_disable"  # attribute in which torch's wrapper remembers what to call


class Computed(torch.autograd.Function):
    """Gives its second argument, an own tensor of any strides, a history that ends at the first."""

    @staticmethod
    def forward(ctx, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


WITH_DEVICES: set[type] = {FakeTensor, FakeTensorMode}
"""Modes, and the class of fakes, that answer for the device of a fake what it says. The native core answers in their stead: see `fake_devices.cpp`."""


def answers_devices(mode: type[M]) -> type[M]:
    """Of a mode that passes on the question which device a fake is on."""
    WITH_DEVICES.add(mode)
    return mode


@answers_devices
class FakeMode(FakeTensorMode):
    """The native core makes its handler one that can be interrupted: see `ModeMethod`.

    writes: by operator. touched: storages that operators have written, until somebody empties it.
    """

    HANDLER = FakeTensorMode.__torch_dispatch__
    writes: dict[Any, Written | None]
    touched: set[int]

    def dispatch(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        """Torch's, whose results, kept or not, are laid out as eager's."""
        found = view_fake(self, func, args) if func in VIEWS else pointwise_fake(self, func, args, kwargs or NOTHING)
        if found is not None:
            return found
        run: Any = super().dispatch
        made = run(func, types, args, kwargs or {})
        if func in VIEWS:
            found = view_fake(self, func, args)  # by the guards that the rule made
            found = view_fake(self, func, args, made) if found is None else found
            if found is not None:
                return found
        if func not in self.writes:
            self.writes[func] = written_by(func)
        if (written := self.writes[func]) is not None:
            self.touched.update(t.untyped_storage()._cdata for t in written.tensors(args, kwargs or {}))
        layout = LAYOUTS.get(func)

        def again(op: Any, *operands: Any, **options: Any) -> Any:
            return run(op, (), operands, options)

        if is_iterated(func) and isinstance(made, torch.Tensor) and (strides := iterated_strides(func, made, args, kwargs or NOTHING)) is not None:
            return made if tuple(strides) == made.stride() else again(torch.ops.aten.new_empty_strided.default, made, made.size(), strides)
        if layout is None and func not in PRESERVED and not is_widened_early(func, made, args):
            return made

        if func in PRESERVED:
            return as_preserved(again, made, args, kwargs or NOTHING)
        return as_wide(again, func, made, args, kwargs or NOTHING) if layout is None else laid_out(layout, again, made, args)

    def _dispatch_impl(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Any) -> Any:
        """Torch's, which no result that it keeps comes through. Up to torch 2.11 the positions and counts of `unique` have the elements' type there, and
        `split` fails along a dimension without elements, whose one part is the whole. `nansum` over no dimensions is over all. Sums of bfloat16 in bags
        need no list of each index's bag on CPUs, which the rule makes. `native_dropout` that leaves all as it is gives its argument. Norms of weights
        in half precision are in float32. The margin loss of one row is a number, also unreduced. Torch has no rule for what cuDNN samples by a grid. Up to
        torch 2.11 `select` takes a place outside, and `select_scatter` still does: kernels would read there. Vector norms keep dimensions of one
        element that are counted from the end, and over all of one element they are of the type in which they are computed. `copy_` to what is not
        expanded needs to know nothing of its density."""
        if func in SAMPLED:
            with self:
                return SAMPLED[func](*args)
        if func in PLACED:
            refuse_outside(args[0], *(argument(n, name, args, kwargs) for n, name in enumerate(("dim", "index"), PLACED[func])))
        run: Any = super()._dispatch_impl
        if func is SPLIT and args[0].dim() and is_zero(args[0].shape[dim := argument(2, "dim", args, kwargs) or 0]):
            return [run(torch.ops.aten.slice.Tensor, types, (args[0], dim), {})]
        if func is COPY and is_writable(args[0]):
            with self:
                of_torch.refs.expand(args[1], args[0].size())
            return args[0]
        if func is torch.ops.aten.nansum.default and len(args) > 1 and not args[1]:
            args = (args[0], None, *args[2:])
        if func is VECTOR_NORM:
            args = with_dims(*args)
        if func in COMPOSED:
            with self:
                return run(func, types, args, kwargs)
        if func in OF_CORRECTION and isinstance((kwargs or NOTHING).get("correction"), (torch.SymInt, torch.SymFloat)):
            kwargs = {**kwargs, "correction": 0}  # which results' sizes do not follow from; the rule takes a number
        if func in DEFAULT_TYPES and (kwargs or NOTHING).get("dtype") is None and (dtype := DEFAULT_TYPES[func](args)) is not None:
            kwargs = {**(kwargs or NOTHING), "dtype": dtype}
        made = run(func, types, args, kwargs)
        if func is EMBEDDING_BAG and adds_at_once(args, kwargs or NOTHING):
            return made[0], made[1].new_empty(0), *made[2:]
        if func is DROPOUT and made[0] is args[0]:
            return run(torch.ops.aten.clone.default, types, (args[0],), {}), made[1]
        if func is WEIGHT_NORM and made[1].dtype is torch.float16:
            return made[0], made[1].new_empty(made[1].shape, dtype=torch.float32)
        if func in OF_ROWS and args[1].dim() <= OF_ROWS[func]:
            number = args[0].new_empty(())
            return (number, *made[1:]) if isinstance(made, tuple) else number
        if func in UNIQUE:
            return made[0], *(t if t.dtype is torch.int64 else t.new_empty(t.shape, dtype=torch.int64) for t in made[1:])
        return made


COMPOSED = frozenset({torch.ops.aten.native_layer_norm.default, torch.ops.aten.view.default, of_torch.aten_unsafe_view, torch.ops.aten.select.int})
"""Operations whose rules for fakes call others with no mode on. Torch then looks, at each of these calls, for the mode by the tensors' type, and
imports torch.distributed.tensor to compare the type with DTensor: 0.2 s and 27,000 objects in the process. The rules give the same with the mode on."""


VECTOR_NORM = torch.ops.aten.linalg_vector_norm.default
OF_CORRECTION = frozenset(getattr(torch.ops.aten, name).correction for name in ("var", "std", "var_mean", "std_mean"))


def with_dims(x: torch.Tensor, ord: float = 2, dims: Sequence[int] | None = None, *more: Any) -> tuple[Any, ...]:
    """The arguments of a vector norm with its dimensions counted from the front."""
    rank = x.dim()
    if not rank or any(not -rank <= dim < rank for dim in dims or ()):
        return (x, ord, dims, *more)
    return (x, ord, [dim % rank for dim in dims] if dims else list(range(rank)), *more)


SAMPLED: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.cudnn_grid_sampler.default: lambda image, grid: image.new_empty((*image.shape[:2], *grid.shape[1:3])),
    torch.ops.aten.cudnn_grid_sampler_backward.default: lambda image, grid, gradient: (image.new_empty(image.shape), grid.new_empty(grid.shape)),
}
"""What GPUs do for `grid_sample` of an image between elements, with zeros outside and aligned corners; all results are contiguous."""


OF_ROWS = {torch.ops.aten.multilabel_margin_loss_forward.default: 1, torch.ops.aten.multi_margin_loss.default: 0}
"""By loss: how many dimensions the target of one row has."""


PLACED = {torch.ops.aten.select.int: 1, torch.ops.aten.select_scatter.default: 2}
"""Operations at one place along a dimension, and which argument the dimension is; the place is the next one."""


def refuse_outside(x: torch.Tensor, dim: int, index: int | torch.SymInt) -> None:
    """Raises as eager where the place lies outside, with a guard where it or the size is a symbol."""
    if -x.dim() <= dim < x.dim() and (holds(index >= x.shape[dim]) or holds(index < -x.shape[dim])):
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")


def holds(condition: bool | torch.SymBool) -> bool:
    """Whether it holds in this call; False where that depends on values."""
    return condition if isinstance(condition, bool) else sys.modules[SYMBOLIC].guard_or_false(condition)


def type_of_filled(args: Sequence[Any]) -> torch.dtype | None:
    """Of complex numbers eager's is complex64 where the default is float16; the rule's is complex32."""
    if not isinstance(args[1], complex):
        return None
    with of_torch.DisableTorchDispatch():
        return torch.ops.aten.full.default([0], 1j, device="cpu").dtype


def type_of_spaced(args: Sequence[Any]) -> torch.dtype | None:
    """Between complex ends the numbers are complex in eager; the rule does not look at ends that are tensors."""
    tells = any(isinstance(end, complex) or isinstance(end, torch.Tensor) and end.is_complex() for end in args[:2])
    return torch.get_default_dtype().to_complex() if tells else None


DEFAULT_TYPES: Mapping[Any, Callable[[Sequence[Any]], torch.dtype | None]] = {
    torch.ops.aten.full.default: type_of_filled,
    **{
        getattr(packet, name): type_of_spaced
        for packet in (torch.ops.aten.linspace, torch.ops.aten.logspace)
        for name in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
}
"""Operations whose rules for fakes, where no type is named, choose another than eager: the type by the arguments; None leaves it to the rule."""


def adds_at_once(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager's kernel adds bfloat16 rows of a table into their bags as it reads them."""
    weight, scale = args[0], argument(6, "per_sample_weights", args, kwargs)
    is_sum = not argument(4, "mode", args, kwargs)
    padding = argument(8, "padding_idx", args, kwargs)
    is_read_by_rows = weight.stride(1) == 1 and (scale is None or scale.stride(0) == 1)
    return weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and is_sum and (padding is None or padding < 0) and is_read_by_rows


def is_writable(x: torch.Tensor) -> bool:
    """Whether some sizes or strides are symbols, and the tensor is known not to be expanded. Torch's rule first asks whether it is dense, by a
    guard."""
    symbolic = any(isinstance(n, torch.SymInt) for n in (*x.size(), *x.stride()))
    return symbolic and all(stride > 0 if type(stride) is int else statically(stride > 0) for stride in x.stride())


COPY = torch.ops.aten.copy_.default
DROPOUT = torch.ops.aten.native_dropout.default
EMBEDDING_BAG = of_torch.aten_embedding_bag
SPLIT = torch.ops.aten.split.Tensor
WEIGHT_NORM = of_torch.aten_weight_norm_interface
UNIQUE = frozenset({of_torch.aten_unique2, torch.ops.aten.unique_dim.default, torch.ops.aten.unique_consecutive.default})


def is_zero(size: int | torch.SymInt) -> bool:
    return type(size) is int and size == 0


def fake_mode(**settings: Any) -> FakeMode:
    """A mode for static shapes, unless `settings` say otherwise. Torch keeps the metadata of all results of fakes by their operation and arguments,
    constants too, without a bound."""
    if len(FakeTensorMode.cache) > MOST_CACHED:
        FakeTensorMode.cache_clear()
    with dynamo_unloaded():
        return constructed({"allow_non_fake_inputs": False, "static_shapes": True, **settings})


def fake_of(mode: FakeTensorMode, real: torch.Tensor) -> FakeTensor:
    """A fake with the size, strides, dtype, device and requires_grad of a strided tensor; its storage offset is 0, its storage its own.

    A tensor that autograd computed gives a fake that is no leaf, so that in-place operations are refused where eager refuses them; so does a view of a leaf.
    A view of what autograd computed gives a view: custom functions may not write these where they give several tensors.
    """
    real = plain_twin(real)
    return fake_with(mode, real, real.size(), real.stride())


def fake_with(mode: FakeTensorMode, real: torch.Tensor, size: Sequence[int | torch.SymInt], stride: Sequence[int | torch.SymInt]) -> FakeTensor:
    """As `fake_of`, with a size and stride of its own."""
    is_computed = real.requires_grad and not real.is_leaf
    writable = is_computed and not refuses_writes(real)
    with of_torch.DisableTorchDispatch():
        fake = new_fake(mode, size, stride, real.dtype, real.device, real.requires_grad and not writable)
        if writable:
            with torch.enable_grad():
                fake = Computed.apply(torch.empty((), requires_grad=True), fake)
    if is_computed and (not writable or real._is_view()):
        with torch.enable_grad():
            return torch.ops.aten.alias.default(fake)
    return fake


def with_history(value: torch.Tensor) -> torch.Tensor:
    """A fake that autograd has computed."""
    with of_torch.DisableTorchDispatch(), torch.enable_grad():
        return Computed.apply(torch.empty((), requires_grad=True), value)


def wrapper_fake(mode: FakeTensorMode, real: torch.Tensor, wrapping: Wrapping, parts: Sequence[FakeTensor]) -> torch.Tensor:
    """A wrapper of fakes, with the place in autograd's graph of a real one."""
    with mode:
        made = wrapping.rebuild(parts)
    if getattr(real, "_is_param", False):
        made._is_param = True  # type: ignore[attr-defined]
    if not real.requires_grad:
        return made
    if real.is_leaf:
        return made.requires_grad_()
    if not refuses_writes(real):
        return with_history(made)
    with torch.enable_grad(), mode:
        return torch.ops.aten.alias.default(made.requires_grad_())


def refuses_writes(view: torch.Tensor) -> bool:
    """Whether autograd lets nobody write a tensor that it computed: a view of a leaf, or one of several views that an operation gave, or made under no_grad."""
    if not view._is_view():
        return False
    base: Any = view._base
    return base.is_leaf or get_creation_meta(view) != CreationMeta.DEFAULT


class StandIn(ModuleType):
    """Answers for a module that isn't loaded: with `known` values, else by loading it."""

    def __init__(self, name: str, known: dict[str, Any]):
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real(), name, value)

    def real(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


CONFIG = StandIn(f"{DYNAMO}.config", {"fake_tensor_cache_enabled": True, "fake_tensor_cache_crosscheck_enabled": False, "_custom_ops_profile": None})
PACKAGE = StandIn(DYNAMO, {"config": CONFIG})


LOCK = threading.RLock()
open_stand_ins = 0
"""How many `dynamo_unloaded` are open, on all threads."""


def begin_child() -> None:
    """In a forked process no other thread changes the stand-in's place."""
    global LOCK
    LOCK = threading.RLock()


os.register_at_fork(after_in_child=begin_child)


@contextmanager
def dynamo_unloaded() -> Iterator[None]:
    """While it is open, and where Dynamo isn't loaded, torch's own uses of it are answered by the stand-in. Nests, and may be open on several threads:
    whoever else reads `torch._dynamo` meanwhile is given the stand-in, which loads the module when it is asked for anything of it."""
    stand_in(1)
    try:
        yield
    finally:
        stand_in(-1)


def stand_in(change: int) -> None:
    global open_stand_ins
    with LOCK:
        open_stand_ins += change
        if open_stand_ins and DYNAMO not in sys.modules and torch.__dict__.get("_dynamo") is not PACKAGE:
            leave_dynamo_unloaded()
            torch.__dict__["_dynamo"] = PACKAGE
        elif not open_stand_ins and torch.__dict__.get("_dynamo") is PACKAGE:
            del torch.__dict__["_dynamo"]


CHANGED = ((globals(), "open_stand_ins"), (torch.__dict__, "_dynamo", PACKAGE))
"""What is set for the whole process: (dict, key), and what we put there, where others may put something else meanwhile."""


def import_unless_dynamo(name: str, *arguments: Any, **keywords: Any) -> Any:
    """As `__import__`; an import of the module that the stand-in answers for gives torch itself, whose attribute the stand-in is."""
    return torch if name in (DYNAMO, CONFIG.__name__) else __import__(name, *arguments, **keywords)


class Traceback:
    """In the place of the module `traceback` where a mode is made, which keeps the stack of its maker for torch's messages, text and all."""

    @staticmethod
    def extract_stack() -> list[Any]:
        return []


def constructed(settings: dict[str, Any]) -> FakeMode:
    """A FakeMode, whose constructor imports Dynamo: it is run with an `import` of its own. In sys.modules, all threads would see the stand-in."""
    constructor: Any = FakeTensorMode.__init__
    own = {"__builtins__": {**vars(builtins), "__import__": import_unless_dynamo}, "traceback": Traceback}
    construct = FunctionType(constructor.__code__, {**constructor.__globals__, **own}, constructor.__name__, constructor.__defaults__, constructor.__closure__)
    construct.__kwdefaults__ = constructor.__kwdefaults__
    made = FakeMode.__new__(FakeMode)
    made.writes, made.touched = {}, set()
    construct(made, **settings)
    return made


LOOKED_AT: dict[int, Any] = {}
"""What torch's tables had when they were looked through: objects by id, kept so that ids stay theirs. Each is looked at once."""


def leave_dynamo_unloaded() -> None:
    """Has torch's wrappers around dispatch modes and Python meta functions call straight through. Safe to repeat."""
    wrapped: list[Any] = [FakeTensorMode.__torch_dispatch__]
    for table in (of_torch.meta_table, of_torch.decomposition_table):
        wrapped += table.values()
    for module in (of_torch.refs, of_torch.refs_nn_functional, of_torch.refs_special, of_torch.decompositions):
        wrapped += vars(module).values()
    if LOOKED_AT.keys() >= set(map(id, wrapped)):
        return
    seen: dict[int, Any] = {}
    while wrapped:
        function = wrapped.pop()
        if id(function) in seen or id(function) in LOOKED_AT:
            continue
        seen[id(function)] = function
        if not isinstance(function, FunctionType):
            continue
        inner = [cell.cell_contents for cell in function.__closure__ or () if isinstance(cell.cell_contents, FunctionType)]
        if function.__code__ is WRAPPER:
            inner[0].__dict__.setdefault(CALL_THROUGH, inner[0])
        wrapped += inner
    LOOKED_AT.update(seen)  # at the end: an interrupt may come before


WRAPPER = of_torch.disable_dynamo(of_torch.prims_wrappers.elementwise_type_promotion_wrapper.__call__).__code__  # of every wrapper that torch makes
