"""Switches of torch's libraries that a frame sets: `torch.backends.cuda.matmul.allow_tf32 = True`, `torch.backends.cudnn.flags(enabled=False)`, and others of
`torch.backends`.

Kernels read a switch when they run, and each switch is read by operations on some devices alone. So all operations of a graph that may read a switch run
under the value that it has as the frame begins, which is guarded; an operation that may read another value ends the graph. What the frame sets is set by
residual code after the graph: where the graph may raise meanwhile, by its values, the call starts again as Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.looks import sample_of
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

UNAFFECTED = frozenset(
    """
    add sub mul truediv floordiv neg pos pow abs sign rsub subtract multiply divide div true_divide negative reciprocal exp log sqrt rsqrt square sin cos tan
    tanh sigmoid relu clamp clamp_min clamp_max clip where masked_fill mod remainder ceil floor round trunc long int bool sum mean amax amin max min
    iadd isub imul itruediv add_ sub_ mul_ div_ zero_ fill_ masked_fill_ copy_ clamp_ relu_ exp_
    eq ne lt le gt ge and_ or_ xor invert logical_and logical_or logical_not isfinite isnan isinf
    getattr getitem view reshape expand expand_as permute transpose t flatten unflatten unsqueeze squeeze chunk split cat stack unbind narrow contiguous
    clone detach to type_as float double half bfloat16 view_as zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_empty
    new_full arange linspace tensor rand randn rand_like randn_like _set_grad_enabled _enter_autocast _exit_autocast _enter_inference_mode
    _exit_inference_mode
    """.split()
)
"""Operations that no library computes which has a switch."""
PRECISIONS = frozenset({"none", "ieee", "tf32", "highest", "high", "medium"})
ATTENTION = ("attention", "encoder", "decoder")
SET_IN_ALL = ("all",)  # the last part of the names of those that others inherit from


@dataclass(frozen=True)
class Switch:
    """read: gives its value; store: sets it. key: the first arguments of both. devices: of the operations that read it. float32: one of those that say how
    float32 is multiplied, some of which are set by others. only: parts of the names of the operations that read it; none: all may."""

    read: Callable[..., Any]
    store: Callable[..., Any]
    devices: frozenset[str]
    key: tuple[str, ...] = ()
    float32: bool = False
    only: tuple[str, ...] = ()

    def name(self) -> str:
        return f"{self.read.__name__}({', '.join(self.key)})"

    def now(self) -> Any:
        return self.read(*self.key)

    def is_set_by(self, other: Switch) -> bool:
        return self.float32 and other.float32 and self != other and (other.key[1:] == SET_IN_ALL or self.key[1:] != SET_IN_ALL)

    def is_read_by(self, node: torch.fx.Node) -> bool:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("placeholder", "get_attr", "output") or name in UNAFFECTED or self.only and not any(part in name for part in self.only):
            return False
        return not self.devices.isdisjoint(devices_of(node))


class Switches:
    """changed: values of switches that are not as before the frame. calls: what sets each switch that the frame has set, the last one last. touched: those
    that may have given others another value."""

    def __init__(self) -> None:
        self.changed: dict[Switch, Any] = {}
        self.calls: dict[Switch, tuple[Any, ...]] = {}
        self.touched: set[Switch] = set()

    def value(self, cx: Context, switch: Switch) -> Any:
        if any(map(switch.is_set_by, self.touched)):
            raise unsupported("setting", f"{switch.name()}, which another switch has set")
        return self.changed[switch] if switch in self.changed else cx.flag(switch.name(), switch.now).constant()

    def store(self, cx: Context, switch: Switch, given: tuple[Any, ...]) -> None:
        before, value = self.value(cx, switch), given[0] if len(given) == 1 else given
        if type(value) is not type(before) or type(value) is str and value not in PRECISIONS and value != before:
            raise unsupported("would-raise", f"{switch.store.__name__}({value!r})")
        if switch.only == ATTENTION and cx.state(TorchModes).autocasts or cx.bodies:
            raise unsupported("setting", switch.name())
        cx.effects.refuse()
        cx.effects.outside += 1
        self.calls.pop(switch, None)
        self.calls[switch] = given
        if value != before or not switch.key:  # others may be set by the same value, too
            self.touched.add(switch)
        if value == before:
            return
        if switch in self.changed and value == cx.flag(switch.name(), switch.now).constant():
            del self.changed[switch]
        else:
            self.changed[switch] = value

    def use(self, node: torch.fx.Node) -> None:
        """An operation is recorded."""
        for switch in self.changed:
            if switch.is_read_by(node):
                raise unsupported("setting", switch.name())

    def replay(self, out: Writer) -> None:
        for switch, given in self.calls.items():
            out.call_function(switch.store, [ConstantValue(part) for part in (*switch.key, *given)])
            out.emit("POP_TOP")


def devices_of(node: torch.fx.Node) -> Iterator[str]:
    """Of an operation's operands and results."""
    for part in (node, *node.all_input_nodes):
        for value in of_torch.tree_leaves(sample_of(part.meta.get("val", part.meta.get("later")))):
            if isinstance(value, torch.Tensor):
                yield value.device.type


def switch(read: str, store: str, *devices: str, float32: bool = False, only: tuple[str, ...] = ()) -> Switch | None:
    """A row for a switch by the names of its functions; None where this torch has none."""
    reads, stores = getattr(of_torch.C, read, None), getattr(of_torch.C, store, None)
    if reads is None or stores is None:
        return None
    made = Switch(reads, stores, frozenset(devices), (), float32, only)

    @handles(reads)
    def row_read(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.of(cx.state(Switches).value(cx, made))

    @handles(stores)
    def row_store(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.state(Switches).store(cx, made, tuple(arg.constant() for arg in args))
        return ConstantValue(None)

    return made


PRECISION = Switch(torch.get_float32_matmul_precision, of_torch.C._set_float32_matmul_precision, frozenset({"cuda", "cpu"}), float32=True)
OF_BACKENDS = {"cuda": frozenset({"cuda"}), "mkldnn": frozenset({"cpu"}), "generic": frozenset({"cuda", "cpu"})}


@handles(torch.get_float32_matmul_precision, of_torch.C._get_float32_matmul_precision)
def read_precision(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.of(cx.state(Switches).value(cx, PRECISION))


@handles(PRECISION.store)
def store_precision(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.state(Switches).store(cx, PRECISION, tuple(arg.constant() for arg in args))
    return ConstantValue(None)


def by_backend(key: list[Value]) -> Switch:
    """The switch of a backend and an operation."""
    backend, operation = (part.constant() for part in key)
    if backend not in OF_BACKENDS or type(operation) is not str:
        raise unsupported("would-raise", f"the precision of {backend}, {operation}")
    return Switch(of_torch.C._get_fp32_precision_getter, of_torch.C._set_fp32_precision_setter, OF_BACKENDS[backend], (backend, operation), True)


@handles(of_torch.C._get_fp32_precision_getter)
def read_by_backend(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.of(cx.state(Switches).value(cx, by_backend(args)))


@handles(of_torch.C._set_fp32_precision_setter)
def store_by_backend(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    wanted = by_backend(args[:2])
    value = args[2].constant()
    cx.state(Switches).store(cx, wanted, (value,))
    return args[2]


switch("_get_cublas_allow_tf32", "_set_cublas_allow_tf32", "cuda", float32=True)
switch("_get_cublas_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_fp16_reduced_precision_reduction", "cuda")
switch("_get_cublas_allow_bf16_reduced_precision_reduction", "_set_cublas_allow_bf16_reduced_precision_reduction", "cuda")
switch("_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation", "cuda")
switch("_get_cudnn_enabled", "_set_cudnn_enabled", "cuda")
switch("_get_cudnn_benchmark", "_set_cudnn_benchmark", "cuda")
switch("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", "cuda")
switch("_get_cudnn_deterministic", "_set_cudnn_deterministic", "cuda")
switch("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32", "cuda", float32=True)
switch("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel", "cuda")
switch("_get_mkldnn_enabled", "_set_mkldnn_enabled", "cpu")
switch("_get_mkldnn_deterministic", "_set_mkldnn_deterministic", "cpu")
switch("_get_onednn_allow_tf32", "_set_onednn_allow_tf32", "cpu", float32=True)
switch("_get_nnpack_enabled", "_set_nnpack_enabled", "cpu", only=("conv",))
switch("_get_flash_sdp_enabled", "_set_sdp_use_flash", "cuda", "cpu", only=ATTENTION)
switch("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient", "cuda", "cpu", only=ATTENTION)
switch("_get_math_sdp_enabled", "_set_sdp_use_math", "cuda", "cpu", only=ATTENTION)
switch("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn", "cuda", "cpu", only=ATTENTION)
switch("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable", "cuda", "cpu", only=ATTENTION)
switch("_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction", "cuda", "cpu", only=ATTENTION)
