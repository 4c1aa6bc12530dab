"""Attention kernels: which of them a graph uses is a setting of torch, and a fact of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, bind_arguments, wraps
from dynacompile.capture.values.constant import ConstantValue, wrap_by_identity
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.markers import disable
from dynacompile.private import of_python, of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

wraps(SDPBackend)(wrap_by_identity)


class StateContext(ContextValue):
    """A manager that changes settings of torch. change: sets them and gives what they were; restore: sets them back.

    The graph holds both, so that operations see the settings when it is traced and when it runs.
    """

    def __init__(self, change: Callable[..., Any], restore: Callable[[Any], None], arguments: tuple):
        self.change, self.restore, self.arguments = change, restore, arguments
        self.active: list[tuple] = []

    def pytype(self) -> type:
        return of_python.GeneratorContextManager

    def enter(self, cx: Context) -> Value:
        self.active.append(cx.state(TorchModes).enter_autocast(self.change, self.restore, self.arguments))
        return DictValue({})

    def exit(self, cx: Context) -> None:
        cx.state(TorchModes).exit_autocast(self.latest(self.active))

    def opens(self) -> int:
        return int(bool(self.active))

    def can_enter_again(self) -> bool:
        return True

    def rebuild(self, out: Writer) -> None:
        self.refuse_entered()
        out.callee(Changed)
        for part in (self.change, self.restore, self.arguments):
            out.const(part)
        out.call(3)


class Changed:
    """The manager of a StateContext, where Python runs the rest of the block."""

    def __init__(self, change: Callable[..., Any], restore: Callable[[Any], None], arguments: tuple):
        self.change, self.restore, self.arguments = change, restore, arguments

    @disable
    def __enter__(self) -> None:
        self.before = self.change(*self.arguments)

    @disable
    def __exit__(self, *reason: object) -> None:
        self.restore(self.before)


@handles(Changed)
def make_changed(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A block of sdpa_kernel that goes on after a break."""
    guard_attention(cx)
    change, restore, arguments = args
    return StateContext(change.identity(), restore.identity(), tuple(part.constant() for part in arguments.elements(cx)))


SDPA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
}


def choose_attention(*enabled: bool) -> tuple[bool, ...]:
    """Switches the kinds of attention kernels, in the order of SDPA_BACKENDS; gives what they were."""
    before = tuple(getattr(of_torch, f"get_{name}_sdp_enabled")() for name in SDPA_BACKENDS)
    for name, value in zip(SDPA_BACKENDS, enabled):
        getattr(of_torch, f"set_sdp_use_{name}")(value)
    return before


def restore_attention(before: tuple[bool, ...]) -> None:
    choose_attention(*before)


@handles(sdpa_kernel)
def make_sdpa_kernel(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    backends, priority = bind_arguments("sdpa_kernel", ["backends", "set_priority"], args, kwargs, {"set_priority": ConstantValue(False)})
    if priority.truth(cx):
        raise unsupported("context-manager", "sdpa_kernel with set_priority")
    chosen = [backends.constant()] if isinstance(backends, ConstantValue) else [b.constant() for b in backends.elements(cx)]
    guard_attention(cx)
    return StateContext(choose_attention, restore_attention, tuple(b in chosen for b in SDPA_BACKENDS.values()))


def guard_attention(cx: Context) -> None:
    """What attention is computed with is a fact of the graph."""
    for name in SDPA_BACKENDS:
        read = getattr(of_torch, f"get_{name}_sdp_enabled")
        cx.flag(f"{read.__name__}()", read)


@handles(torch.nn.functional.scaled_dot_product_attention)
def attention(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not any(entry[2] is restore_attention for entry in cx.state(TorchModes).autocasts):
        guard_attention(cx)
    return cx.op("call_function", torch.nn.functional.scaled_dot_product_attention, args, kwargs)


@handles(of_torch.native_multi_head_attention)
def native_attention(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The attention of torch's own layers in inference: without weights its second result is None, where fakes have an empty tensor."""
    names = ["query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask", "need_weights"]
    names += ["average_attn_weights", "mask_type"]
    none, true = ConstantValue(None), ConstantValue(True)
    defaults: dict[str, Value | None] = {"mask": none, "need_weights": true, "average_attn_weights": true, "mask_type": none}
    given = bind_arguments("_native_multi_head_attention", names, args, kwargs, defaults)
    made = cx.op("call_function", of_torch.native_multi_head_attention, given, {})
    if given[names.index("need_weights")].truth(cx):
        return made
    return TupleValue([made.elements(cx)[0], none])


class AttentionParams(Value):
    """torch.backends.cuda.SDPAParams: what attention is to compute, for questions about its kernels."""

    def __init__(self, parts: Sequence[Value]):
        self.parts = parts

    def pytype(self) -> type:
        return torch.backends.cuda.SDPAParams

    def children(self) -> Sequence[Value]:
        return self.parts

    def rebuild(self, out: Writer) -> None:
        out.call_function(torch.backends.cuda.SDPAParams, list(self.parts))

    def is_on_cpu(self) -> bool:
        """Whether none of these kernels can be used, whatever the sizes are."""
        return any(isinstance(part, TensorValue) and part.fake.device.type == "cpu" for part in self.parts)

    def example(self) -> Any:
        """The same over fakes."""
        fakes: list[Any] = [part.fake if isinstance(part, TensorValue) else part.constant() for part in self.parts]
        if any(type(size) is not int for fake in fakes if isinstance(fake, torch.Tensor) for size in fake.shape):
            raise unsupported("unknown-function", "a question about kernels of attention, for sizes that vary,")
        return torch.backends.cuda.SDPAParams(*fakes)


@handles(torch.backends.cuda.SDPAParams)
def make_params(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa"]
    return AttentionParams(bind_arguments("SDPAParams", names, args, kwargs, {}))


def kernel_question(real: Callable[..., bool]) -> None:
    """A row for whether attention can use a kernel. What decides that beside the tensors is a fact of the graph."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        params, debug = bind_arguments(real.__name__, ["params", "debug"], args, kwargs, {"debug": ConstantValue(False)})
        if not isinstance(params, AttentionParams) or debug.truth(cx) or cx.state(TorchModes).autocasts:
            raise unsupported("unknown-function", real.__name__)
        guard_attention(cx)
        return cx.of(not params.is_on_cpu() and cx.guarded_call(real, [params.example()], {}))


for _real in (torch.backends.cuda.can_use_flash_attention, torch.backends.cuda.can_use_efficient_attention, torch.backends.cuda.can_use_cudnn_attention):
    kernel_question(_real)
