"""Storages of tensors and addresses in them: what a program can ask is which tensors share memory, and where in it they begin.

Fakes that are computed from one another share storages as eager's tensors do. Whether two inputs share memory is guarded by their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.tensor import METHODS, TensorValue
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.ir.expressions import Quantity
from dynacompile.ir.guard_facts import ShapeFacts
from dynacompile.ir.source import Applied, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

ASKED = frozenset({"data_ptr", "nbytes", "size", "__len__", "element_size"})


class StorageValue(Value):
    """`tensor.untyped_storage()`."""

    def __init__(self, owner: TensorValue):
        self.owner = owner

    def describe(self) -> str:
        return f"the storage of {self.owner.describe()}"

    def pytype(self) -> type:
        return torch.UntypedStorage

    def identity(self) -> Any:
        raise unsupported("tensor-attribute", f"{self.describe()} as a key, or compared by identity,")

    def length(self, cx: Context) -> int:
        resized = cx.recorder.resized.get(storage_of(self.owner.fake))
        if resized is not None:
            return resized
        origin = origin_of(cx, self.owner)
        if origin is None:
            return int(self.owner.fake.untyped_storage().nbytes())
        nbytes = origin.real.untyped_storage().nbytes()
        cx.guard("EQUALS", Applied(storage_source(origin), torch.UntypedStorage.nbytes, ".nbytes()"), nbytes)
        return nbytes

    def truth(self, cx: Context) -> bool:
        return self.length(cx) > 0

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "device":
            return ConstantValue(self.owner.fake.device)
        if name in ("is_cuda", "is_cpu"):
            return ConstantValue(self.owner.fake.device.type == name.removeprefix("is_"))
        return Method(self, name) if name in ASKED or name == "resize_" else super().get_attr(cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "resize_" and len(args) == 1 and not kwargs and type(self.owner) is TensorValue:
            return self.resize(cx, args[0])
        if name not in ASKED or args or kwargs:
            raise unsupported("tensor-attribute", f"{self.describe()}.{name}()")
        if name == "data_ptr":
            if storage_of(self.owner.fake) in cx.recorder.resized:
                raise unsupported("tensor-attribute", f"the address of {self.describe()}, which was resized")
            return AddressValue(self.owner, of_storage=True)
        return ConstantValue(1 if name == "element_size" else self.length(cx))

    def resize(self, cx: Context, size: Value) -> Value:
        """After the graph, which has read by then what it reads there. A backward pass may read it later than that."""
        nbytes = size.constant() if type(size) is ConstantValue else None
        if type(nbytes) is not int or nbytes < 0:
            raise unsupported("tensor-attribute", f"{self.describe()}.resize_({size.describe()})")
        if nbytes == self.length(cx):
            return self
        if cx.bodies or any(isinstance(item.fake, torch.Tensor) and item.fake.requires_grad for item in cx.recorder.inputs):
            raise unsupported("tensor-attribute", f"{self.describe()}.resize_() beside tensors that require gradients")
        place = storage_of(self.owner.fake)
        cx.effects.defer(resize_storage, [self.owner, size], cx.frames[0].current.position)
        cx.recorder.resized[place] = nbytes
        cx.recorder.held.add(place)
        return self

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)
        out.load_method("untyped_storage")
        out.call(0)


def resize_storage(tensor: torch.Tensor, nbytes: int) -> None:
    tensor.untyped_storage().resize_(nbytes)


class AddressValue(Value):
    """`tensor.data_ptr()`, or that of its storage: an int that is known by what it equals alone."""

    def __init__(self, owner: TensorValue, of_storage: bool = False):
        if not owner.fake.numel():
            raise unsupported("tensor-attribute", f"the address of {owner.describe()}, which is empty")
        self.owner, self.of_storage = owner, of_storage

    def describe(self) -> str:
        return f"the address of {self.owner.describe()}"

    def pytype(self) -> type:
        return int

    def identity(self) -> Any:
        raise unsupported("tensor-attribute", f"{self.describe()} as a key")

    def truth(self, cx: Context) -> bool:
        return True

    def equals(self, cx: Context, other: Value) -> bool:
        if isinstance(other, ConstantValue) and other.value == 0:
            return False
        if not isinstance(other, AddressValue):
            raise unsupported("tensor-attribute", f"{self.describe()}, which is compared with {other.describe()}")
        if not share_storage(cx, self.owner, other.owner):
            return False
        return self.of_storage and other.of_storage or self.place(cx) == other.place(cx)

    def place(self, cx: Context) -> int:
        """Where in the storage, in bytes."""
        return 0 if self.of_storage else offset_of(cx, self.owner) * self.owner.fake.itemsize

    def rebuild(self, out: Writer) -> None:
        if self.owner.source is None:  # residual code may have it elsewhere in memory than the frame would
            raise unsupported("rebuild", self.describe())
        out.value(self.owner)
        if self.of_storage:
            out.load_method("untyped_storage")
            out.call(0)
        out.load_method("data_ptr")
        out.call(0)


def origin_of(cx: Context, value: TensorValue) -> TensorValue | None:
    """The input in whose storage a tensor lies; None where the frame made the storage."""
    here = storage_of(value.fake)
    known = (cx.recorder.tensors.get(item.name) for item in cx.recorder.inputs)
    inputs = (given for given in known if given is not None and given.has_fake)  # an input without a fake so far shares no memory with others
    found = next((given for given in inputs if storage_of(given.fake) == here), None)
    if found is not None and type(found) is not TensorValue:  # guards would ask its class
        raise unsupported("tensor-attribute", f"the storage of {found.describe()}")
    return found


def storage_source(origin: TensorValue) -> Source:
    assert origin.source is not None
    return Applied(origin.source, torch.Tensor.untyped_storage, ".untyped_storage()")


def share_storage(cx: Context, left: TensorValue, right: TensorValue) -> bool:
    if storage_of(left.fake) == storage_of(right.fake):
        return True
    given, other = origin_of(cx, left), origin_of(cx, right)
    if given is None or other is None:
        return False
    same = given.real.untyped_storage().data_ptr() == other.real.untyped_storage().data_ptr()
    sources = [Applied(storage_source(one), torch.UntypedStorage.data_ptr, ".data_ptr()") for one in (given, other)]
    condition = ("eq" if same else "ne", ("quantity", 0), ("quantity", 1))
    cx.guard_relation(ShapeFacts(tuple(Quantity(source, "value") for source in sources), condition))
    return same


def offset_of(cx: Context, value: TensorValue) -> int:
    """tensor.storage_offset()"""
    offset, origin = value.fake.storage_offset(), origin_of(cx, value)
    if origin is not None:
        real = origin.real.storage_offset()
        cx.guard("EQUALS", Applied(origin.source, torch.Tensor.storage_offset, ".storage_offset()"), real)  # type: ignore[arg-type]
        itemsize, given = value.fake.itemsize, origin.fake
        offset += (real - given.storage_offset()) * given.itemsize // itemsize
    if type(offset) is not int:
        raise unsupported("tensor-attribute", f"the offset of {value.describe()}, which depends on sizes that vary")
    return offset


def untyped_storage(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return StorageValue(value)


def data_ptr(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return AddressValue(value)


def storage_offset(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(offset_of(cx, value))


def is_set_to(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (other,) = args
    if not isinstance(other, TensorValue):
        raise unsupported("would-raise", "is_set_to() of what is no tensor")
    alike = value.fake.shape == other.fake.shape and value.fake.stride() == other.fake.stride() and value.fake.dtype == other.fake.dtype
    return ConstantValue(alike and AddressValue(value).equals(cx, AddressValue(other)))


def is_inference(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if value.source is not None:
        cx.guard("EQUALS", Applied(value.source, torch.Tensor.is_inference, ".is_inference()"), value.real.is_inference())
    return ConstantValue(cx.recorder.is_inference(value.fake))


METHODS |= {
    "untyped_storage": untyped_storage,
    "data_ptr": data_ptr,
    "storage_offset": storage_offset,
    "is_set_to": is_set_to,
    "is_inference": is_inference,
}
