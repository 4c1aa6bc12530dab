"""One copy of every tensor storage, and what else a step can change of a tensor."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from dynacompile.callbacks.saveable import Left
from dynacompile.private import of_torch

MOST_NODES = 20_000  # of an autograd graph that is looked through


@dataclass(slots=True)
class KeptTensor:
    """A tensor's identity, where its values are, and what autograd knows of it. `alias` shares the storage; `history` is a zero that `node`
    is part of."""

    tensor: torch.Tensor
    alias: torch.Tensor | None
    base: torch.Tensor | None
    node: Any
    history: torch.Tensor | None
    grad: torch.Tensor | None
    requires_grad: bool
    hooks: Any
    after_hooks: Any
    version: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> KeptTensor:
        """Raises Left for a tensor that can't be put back."""
        with of_torch.DisableTorchFunctionSubclass():
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                raise Left("is a lazy parameter that has no values yet")
            is_wrapper = dispatches(type(tensor))
            if is_wrapper and not hasattr(type(tensor), "__tensor_flatten__"):
                raise Left(f"is a tensor of the class {type(tensor).__qualname__}, which does not say what it is made of")
            if not is_wrapper and tensor.layout not in (torch.strided, torch.sparse_coo):
                raise Left(f"is a tensor of the layout {tensor.layout}")
            if tensor.grad_fn is not None and is_live(tensor.grad_fn):
                raise Left("holds a graph that no backward has run through yet, which can run once only: detach() what is kept or given to a metric")
            with torch.enable_grad():
                history = None if tensor.grad_fn is None else tensor.unsqueeze(0)[:0].sum()
            return cls(
                tensor,
                None if is_wrapper else tensor.detach(),
                tensor._base,
                tensor.grad_fn,
                history,
                tensor.grad if tensor.is_leaf or tensor.retains_grad else None,
                tensor.requires_grad,
                tensor._backward_hooks,
                tensor._post_accumulate_grad_hooks if tensor.is_leaf else None,
                None if tensor.is_inference() else tensor._version,
            )

    def put_back(self) -> None:
        """All but the values."""
        tensor = self.tensor
        with of_torch.DisableTorchFunctionSubclass(), torch.no_grad():
            if self.alias is not None and place(tensor) != place(self.alias):
                tensor.data = self.alias
            if tensor.grad_fn is not self.node:
                self.put_history_back()
            elif tensor.is_leaf:
                tensor.requires_grad_(self.requires_grad)
            if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not self.grad:
                tensor.grad = self.grad
            if tensor._backward_hooks is not self.hooks:
                tensor._backward_hooks = self.hooks
            if self.after_hooks is None and tensor.is_leaf and tensor._post_accumulate_grad_hooks:
                tensor._post_accumulate_grad_hooks.clear()

    def put_history_back(self) -> None:
        """A write in place has given the tensor a history, or another. A view can't lose it: a new view of its base, which was put back before, takes its place
        in the same object."""
        tensor = self.tensor
        if self.base is not None:
            with torch.enable_grad():
                torch.utils.swap_tensors(tensor, self.base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()))
            self.alias = tensor.detach()
        else:
            tensor.detach_().requires_grad_(self.history is None and self.requires_grad)
            if self.history is not None:
                with torch.enable_grad():
                    tensor.add_(self.history)
        self.node = tensor.grad_fn

    def put_version_back(self) -> None:
        """Autograd's count of writes, by which it refuses to use values that a step has changed since."""
        if self.version is not None and self.tensor._version != self.version:
            of_torch.unsafe_set_version_counter((self.tensor,), (self.version,))


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where the values are and how they are laid out."""
    if tensor.layout is not torch.strided:
        return tensor._indices().data_ptr(), tensor._values().data_ptr(), tensor.shape, tensor._nnz(), tensor.is_coalesced()
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@functools.cache
def dispatches(kind: type) -> bool:
    """Whether operations on such a tensor are its class's own, so that it need not have a storage."""
    return getattr(kind, "__torch_dispatch__", None) is not of_torch.C._disabled_torch_dispatch_impl


def inner_tensors(tensor: torch.Tensor) -> list[tuple[Any, str]]:
    """The tensors that a wrapper or a sparse tensor is made of; none for one that has a storage."""
    if dispatches(type(tensor)):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [(getattr(tensor, name), f".{name}") for name in names]
    if tensor.layout is not torch.strided:
        return [(tensor._indices(), "._indices()"), (tensor._values(), "._values()")]
    return []


def is_live(node: Any) -> bool:
    """Whether a backward from here would use what forward saved. After a backward through the graph there is nothing left to use."""
    stack, seen = [node], {node}
    while stack:
        node = stack.pop()
        if holds_values(node):
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > MOST_NODES:
            return True
    return False


def holds_values(node: Any) -> bool:
    kind: Any = type(node)
    for name in saved_names(kind):
        try:
            if getattr(node, name) is not None:
                return True
        except RuntimeError:  # freed by a backward, or written to since, so that a backward would be an error
            return False
    return False


@functools.cache
def saved_names(kind: Any) -> tuple[str, ...]:
    names = tuple(name.replace("_raw", "", 1) for name in dir(kind) if name.startswith("_raw_saved_"))
    return names or (("saved_tensors",) if hasattr(kind, "saved_tensors") else ())


@dataclass
class Storages:
    """The storages of the tensors that were added, each once, however many tensors look into it."""

    flat: dict[int, torch.Tensor] = field(default_factory=dict)  # by storage: its bytes
    saved: list[torch.Tensor] = field(default_factory=list)

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            return
        with of_torch.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage._cdata not in self.flat:
                self.flat[storage._cdata] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)

    def sizes(self) -> dict[torch.device, int]:
        """Bytes by device."""
        sizes: dict[torch.device, int] = {}
        for values in self.flat.values():
            sizes[values.device] = sizes.get(values.device, 0) + values.numel()
        return sizes

    def copy(self) -> None:
        self.saved = [values.clone() for values in self.flat.values()]

    def put_back(self) -> None:
        """Memory of the CPU is written only where it differs: it may be a file's, mapped for reading."""
        for values, saved in zip(self.flat.values(), self.saved):
            storage = values.untyped_storage()
            if storage.nbytes() != saved.numel():
                storage.resize_(saved.numel())
            if values.device.type != "cpu" or not torch.equal(values, saved):
                values.copy_(saved)
