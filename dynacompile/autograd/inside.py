"""Writes down operations on tensors that wrap others, while a graph is differentiated: the class's own dispatch runs, and what it does to the tensors inside is
recorded.

Functionalization stands above a class's dispatch, and takes apart what it is given: it would hand a plain tensor beside a wrapper on without its history. So it
is off, and each operation on plain tensors begins above it anew, whether the graph or a dispatch makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from dynacompile.autograd.record import Recorder
from dynacompile.ops.wrappers import InPlaceOfTracing, ask_unseen, is_wrapper_class, tensors_in
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, TorchDispatchMode

FUNCTIONALIZE = of_torch.DispatchKeySet(of_torch.functionalize_key)
Arguments = tuple[tuple, Mapping[str, Any]]


class WrapperRecorder(Recorder):
    """As Recorder, of a graph in which some values wrap others."""

    _depth = 0  # operations that are being recorded: what these call is plain

    @contextmanager
    def entered(self) -> Iterator[None]:
        ask_unseen()
        with Inside(self), of_torch.ExcludeDispatchKeyGuard(FUNCTIONALIZE), self:
            yield

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self._depth:
            return self.handle(func, types, args, kwargs or {})
        if any(map(is_wrapper_class, types)):
            return func(*args, **(kwargs or {}))
        return self.dispatched(self, func, types, (args, kwargs or {}))

    def dispatched(self, mode: TorchDispatchMode, func: Any, types: Sequence[type], given: Arguments) -> Any:
        """An operation on plain tensors. mode: that which has met it."""
        tensors = [t for t in tensors_in([*given[0], *given[1].values()]) if isinstance(t, torch.Tensor)]
        if any(map(of_torch.is_functional_tensor, tensors)):
            with mode, functionalized():
                return func(*given[0], **given[1])
        with disable_proxy_modes_tracing(), self.recording():
            made = self.handle(func, types, *given)
            if any(isinstance(t, FakeTensor) for t in tensors):
                return made if mode is self else self.as_in_eager(func, types, given, made)
        return as_functional(made)  # of no tensor: it may be written in place

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def as_in_eager(self, func: Any, types: Sequence[type], given: Arguments, made: Any) -> Any:
        """What an operation on the tensors inside of wrappers gives, with eager's strides, which the class's dispatch goes by."""
        if func not in self.table:
            return made
        eager = self.fake_mode.dispatch(func, types, *given)
        laid = [self.laid_out(m, e) for m, e in zip(flat(made), flat(eager), strict=True)]
        return type(made)(laid) if isinstance(made, (tuple, list)) else laid[0]

    def laid_out(self, made: Any, eager: Any) -> Any:
        if not isinstance(made, FakeTensor) or made.stride() == eager.stride() or made.shape != eager.shape:
            return made
        return self.copy_of(self.node_of(made), eager.stride()).meta["val"]


class Inside(InPlaceOfTracing):
    """Below the recorder on the stack of modes: gets what the dispatch of wrappers calls."""

    def __init__(self, recorder: WrapperRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        return self.recorder.dispatched(self, func, types, (args, kwargs or {}))


@contextmanager
def functionalized() -> Iterator[None]:
    """Operations on functional tensors come to functionalization again."""
    included, excluded = of_torch.dispatch_tls_local_include_set(), of_torch.dispatch_tls_local_exclude_set()
    with of_torch.ForceDispatchKeyGuard(included, excluded - FUNCTIONALIZE):
        yield


def as_functional(made: Any) -> Any:
    if isinstance(made, (tuple, list)):
        return type(made)(map(as_functional, made))
    return of_torch.to_functional_tensor(made) if isinstance(made, FakeTensor) else made


def flat(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)
