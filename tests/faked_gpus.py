"""What operations give on GPUs, where there is none: fakes of tensors on CPUs that say they are on a GPU, and autocast for that device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.fx

import dynacompile
from dynacompile.ir import fakes, looks


@contextmanager
def autocast(device: str) -> Iterator[None]:
    """To bfloat16, also where torch.autocast does nothing, as there is no such device."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, torch.bfloat16)
    torch.set_autocast_enabled(device, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


@contextmanager
def fakes_on_gpus() -> Iterator[None]:
    """Fakes of tensors on CPUs are on a GPU. They have no gradients: autograd asks for the device."""
    make = looks.new_fake

    def on_gpu(mode: Any, size: Any, stride: Any, dtype: Any, device: Any, *more: Any) -> Any:
        return make(mode, size, stride, dtype, torch.device("cuda", 0) if device.type == "cpu" else device, *more)

    with patch.object(looks, "new_fake", on_gpu), patch.object(fakes, "new_fake", on_gpu):
        yield


def types_on_gpus(function: Callable[..., Any], args: Sequence[torch.Tensor], **options: Any) -> list[torch.dtype]:
    """Those that capture finds for the tensors that a function gives under autocast. args: on CPUs, without gradients."""
    found: list[torch.dtype] = []

    def note(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        found[:] = [node.meta["val"].dtype for node in output.all_input_nodes]
        return graph.forward

    with autocast("cuda"), fakes_on_gpus():
        dynacompile.compile(function, backend=note, fullgraph=True, isolate_recompiles=True, **options)(*args)
    return found
