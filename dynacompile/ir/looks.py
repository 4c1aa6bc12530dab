"""What tensors look like to Python, and fakes that are made when somebody asks for them.

An optimizer's step takes thousands of tensors of a few looks. What capture decides of one, it decides of all that look the same, so that most of them need no
fake at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode


class Look:
    """The metadata of a strided tensor that has memory of its own, from its first element on, and no history. `Looks` has one object for each.

    sample: a fake that looks so, which nobody writes. appearance: see the function. is_small: one element, or none."""

    __slots__ = ("size", "stride", "dtype", "device", "grad", "mode", "sample", "appearance", "is_small")

    def __init__(self, mode: FakeTensorMode, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, grad: bool):
        self.size, self.stride, self.dtype, self.device, self.grad, self.mode = size, stride, dtype, device, grad, mode
        self.sample = self.make()
        self.appearance = appearance(self.sample)
        self.is_small = self.sample.numel() <= 1

    def make(self) -> FakeTensor:
        """A fake of its own. It is none of inference mode, which may be on where it is made later."""
        with torch.inference_mode(False), of_torch.DisableTorchDispatch():
            return new_fake(self.mode, self.size, self.stride, self.dtype, self.device, self.grad)


class Looks:
    """The looks that one capture has met."""

    def __init__(self, mode: FakeTensorMode):
        self.mode = mode
        self.known: dict[tuple, Look] = {}

    def of(self, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, grad: bool = False) -> Look:
        key = size, stride, dtype, device, grad
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Look(self.mode, *key)
        return found


class Later:
    """A fake that is made at its first use."""

    __slots__ = ("look", "made")

    def __init__(self, look: Look):
        self.look = look
        self.made: FakeTensor | None = None

    def get(self) -> FakeTensor:
        if self.made is None:
            self.made = self.look.make()
        return self.made


class LaterList:
    """Fakes of which some are made later. kind: list or tuple."""

    __slots__ = ("items", "kind")

    def __init__(self, items: list[Any], kind: Any):
        self.items, self.kind = items, kind

    def only(self, places: Sequence[int]) -> LaterList:
        """Some of them."""
        return LaterList([self.items[k] for k in places], self.kind)


def made(given: Any) -> Any:
    """A fake, a list of fakes, or what is none, itself."""
    if type(given) is LaterList:
        return given.kind(map(made, given.items))
    return given.get() if type(given) is Later else given


def sample_of(given: Any) -> Any:
    """A fake of the same metadata as one that may not be made yet. Its memory is not the same."""
    if type(given) is LaterList:
        return given.kind(map(sample_of, given.items))
    return given.look.sample if type(given) is Later and given.made is None else made(given)


def given_by(node: torch.fx.Node) -> Any:
    """What fx keeps of a node's result as `val`, or what that is made of later."""
    found = node.meta.get("val")
    return node.meta.get("later") if found is None else found


def value_of(node: torch.fx.Node) -> Any:
    """What fx keeps of a node's result as `val`, or, where that is to be made later, a sample of it."""
    return sample_of(given_by(node))


def give(node: torch.fx.Node, fake: object) -> None:
    """Notes what a node stands for, a fake that may be made later."""
    meta = node.meta
    if type(fake) is Later:
        meta.pop("val", None)
        meta.pop("example_value", None)
        meta["later"] = fake
    else:
        meta.pop("later", None)
        meta["val"] = meta["example_value"] = fake


def appearance_of(given: Any) -> tuple:
    """The appearance of a fake that may not be made yet."""
    return given.look.appearance if type(given) is Later and given.made is None else appearance(made(given))


def appearance(fake: torch.Tensor) -> tuple:
    """What Python can read of a tensor, but its values. Symbolic sizes look like no others: comparing them would install guards."""
    if fake._has_symbolic_sizes_strides:  # type: ignore[attr-defined]
        return (object(),)
    return appearance_at(fake, tuple(fake.shape), tuple(fake.stride()), fake.storage_offset())


def appearance_at(fake: torch.Tensor, *geometry: Any) -> tuple:
    """The same, with what is given for its sizes, strides and storage offset."""
    place = (*geometry, fake.dtype, fake.device)
    history = (fake.requires_grad, fake.is_leaf, fake.retains_grad, fake._is_view(), fake.is_inference())
    return (type(fake), *place, *history, fake.is_conj(), fake.is_neg())


def memory_of(given: Any) -> int:
    """A number that fakes have in common whose memory is the same. One that is not made has memory of its own."""
    return id(given) if type(given) is Later and given.made is None else made(given).untyped_storage()._cdata


def new_fake(
    mode: FakeTensorMode, size: Sequence[int | torch.SymInt], stride: Sequence[int | torch.SymInt], dtype: torch.dtype, device: torch.device, grad: bool = False
) -> FakeTensor:
    """A fake in memory of its own. grad: whether it requires gradients. Torch's dispatch must be off (`_DisableTorchDispatch`).

    Torch's constructor sets two dozen attributes one by one, by descriptors, which takes four times as long as all else. They are the same for all fakes
    of one mode and device: the first one is constructed, and the others get its attributes."""
    elements = torch.empty_strided(size, stride, dtype=dtype, device="meta")  # type: ignore[call-overload]
    alike: dict[torch.device, dict[str, Any]] = mode.__dict__.setdefault("_dynacompile_fakes", {})
    attributes = alike.get(device)
    if attributes is None:
        made = FakeTensor(mode, elements, device)
        if device.index is not None or device.type == "cpu":  # torch completes another one by the current device
            alike[device] = {name: value for name, value in made.__dict__.items() if value is not mode}
        made.requires_grad_(grad)
        return made
    made = MAKE_SUBCLASS(FakeTensor, elements, grad, dispatch_device=True, device_for_backend_keys=device)
    of_torch.set_throw_on_mutable_data_ptr(made)
    made.__dict__.update(attributes, fake_mode=mode)
    return made


MAKE_SUBCLASS: Any = of_torch.make_subclass
