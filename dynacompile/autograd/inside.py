"""Operations on tensors that wrap others, while a graph is differentiated: the class's own dispatch runs, and what it does to the tensors inside is recorded.

Such an operation comes to the recorder below functionalization, as any other does. What the dispatch then does to the tensors inside, which are functional, is
below it, too, and has to begin above it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._python_dispatch import TorchDispatchMode

from dynacompile.ops.wrappers import is_wrapper_class

FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
Handle = Callable[[Any, Sequence[type], tuple, dict[str, Any]], Any]


class Inside(TorchDispatchMode):
    """Below the recorder on the stack of modes: gets what the dispatch of wrappers calls. It stands in the place of torch's mode for tracing, so that torch's
    collectives are waited for at once, and DTensor, which asks fakes what an operation gives, takes it off meanwhile."""

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.PROXY
        self.handle = handle

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        if any(map(torch._is_functional_tensor, tensors_in((args, kwargs)))):
            with self, functionalized():
                return func(*args, **(kwargs or {}))
        with disable_proxy_modes_tracing():
            return self.handle(func, types, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own wrapper around every dispatch is for its compiler, not for ours."""
        return False


@contextmanager
def functionalized() -> Iterator[None]:
    """Functional tensors are such again, inside of an operation that they are hidden in."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - FUNCTIONALIZE):
        yield


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))
