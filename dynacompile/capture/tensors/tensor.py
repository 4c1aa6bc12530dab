"""Tensors: a node of the graph and its metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.tensors.symbolic_places import view_at
from dynacompile.capture.tensors.tensor_scalars import with_tensor_scalar
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.descriptors import bind_descriptor
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.sequence import ListValue, SequenceIterator, SequenceValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.namespaces import MISSING, class_lookup, defines, is_data
from dynacompile.ir.source import Attr, Constant
from dynacompile.ir.symbolic_graphs import is_window, picked, placed, shown_by_run
from dynacompile.ops.flexible_attention import index_by_points

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

# Attributes that are plain data of the fake tensor.
FACTS = frozenset(
    {
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "requires_grad",
        "is_leaf",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_xpu",
        "is_mps",
        "is_sparse",
        "is_sparse_csr",
        "is_quantized",
        "is_nested",
        "is_mkldnn",
        "itemsize",
        "nbytes",
        "is_vulkan",
        "is_xla",
    }
)
PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})
# Methods that read the one number of a tensor, and what they give for it.
READING: dict[str, Callable] = {
    **dict.fromkeys(("item", "tolist"), lambda number: number),
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
}
# Methods that end the graph, by the reason.
BREAKING = {
    **dict.fromkeys(
        ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__", "__repr__", "__format__", "__str__"),
        "to-python",
    ),
    **dict.fromkeys(("backward", "register_post_accumulate_grad_hook", "retain_grad"), "autograd-call"),
    **dict.fromkeys(
        (
            "storage",
            "_is_view",
            "set_",
            "resize_",
            "resize_as_",
            "share_memory_",
            "pin_memory",
            "is_shared",
            "is_pinned",
            "apply_",
            "map_",
            "map2_",
            "as_strided_",
            "rename_",
            "rename",
            "refine_names",
            "record_stream",
            "dim_order",
            "to_sparse",
            "to_dense",
            "sparse_mask",
            "__reduce__",
            "__reduce_ex__",
            "__deepcopy__",
            "__dlpack__",
            "__setstate__",
        ),
        "tensor-attribute",
    ),
}


INTS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
MOST_ITEMS = 64  # of a tensor that becomes a list of symbols

# Methods that change what a tensor object is, by the method whose result it is from then on.
BECOMING = {name: name.rstrip("_") for name in ("detach_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")}


OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}_": f"i{name}" for name in ("add", "sub", "mul")},
    "multiply": "mul",
    "subtract": "sub",
    "div": "truediv",
    "div_": "itruediv",
    "divide": "truediv",
    "true_divide": "truediv",
}
"""Methods that do what an operator does."""


DECIDERS: list[Callable[[Context, TensorValue], bool | None]] = []
"""Who may know whether a tensor is true before the graph runs, in the order in which they are asked; each gives None where it does not know."""


def index_of(cx: Context, key: Value) -> Value:
    """An index of a tensor, with tensors in place of arrays of NumPy."""
    if not isinstance(key, TupleValue):
        return key.as_index(cx, True)
    items = [item.as_index(cx, False) for item in key.items]
    return key if all(a is b for a, b in zip(items, key.items)) else TupleValue(items)


def decides(decider: Callable[[Context, TensorValue], bool | None]) -> Callable[[Context, TensorValue], bool | None]:
    """Registers who may know whether a tensor is true."""
    DECIDERS.append(decider)
    return decider


def decided(cx: Context, condition: TensorValue) -> bool | None:
    """Whether a tensor of one number is true; None where that is not known before the graph."""
    return next((answer for decider in DECIDERS if (answer := decider(cx, condition)) is not None), None)


READERS: dict[str, Callable[[Context, TensorValue], Value | None]] = {}  # item() and tolist() of tensors whose numbers are not symbols


METHODS: dict[str, Callable[[Context, TensorValue, list[Value], dict[str, Value]], Value]] = {}  # methods that are no operations, by name


SETTERS: dict[str, Callable[[Context, TensorValue, Value], None]] = {}  # of fields of a tensor that the frame may assign, by name


# What torch.Tensor has by itself. What others have put there since is Python, and followed.
TORCH_S = {name: raw for base in reversed(torch.Tensor.__mro__) for name, raw in base.__dict__.items()}


class Patches:
    """By name, what stands in the place of an attribute of torch.Tensor, of those that were looked up."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}


def patched(cx: Context, name: str) -> Any:
    """What somebody put in the place of an attribute of torch.Tensor, or added to the class; None where it is torch's own, or missing."""
    known = cx.state(Patches).known
    found = known.get(name, cx)
    if found is cx:
        raw = cx.lookup(torch.Tensor, name)
        is_torch_s = raw is MISSING or raw is TORCH_S.get(name) or is_data(raw) or is_trusted(getattr(raw, "__module__", None))
        found = known[name] = None if is_torch_s else raw
    return found


def points_of(key: Value) -> list[Value]:
    """The parts of an index of tensors, and numbers beside them."""
    parts: list[Value] = list(key.items) if isinstance(key, SequenceValue) else [key]
    numbers = [part for part in parts if isinstance(part, ConstantValue) and type(part.value) is int]
    points = [part for part in parts if isinstance(part, TensorValue)]
    return parts if points and len(points) + len(numbers) == len(parts) else []


def is_place(key: Value) -> bool:
    """Whether an index is a tensor of one int, which torch takes for that int."""
    return isinstance(key, TensorValue) and not key.fake.dim() and key.fake.dtype in INTS - {torch.uint8}


def depends_on_values(key: Value, in_slices: bool) -> bool:
    """Whether an int in a subscript depends on the values of tensors. in_slices: also one in a slice, which says how much it is that is taken."""
    if isinstance(key, TupleValue):
        return any(depends_on_values(part, in_slices) for part in key.items)
    if isinstance(key, SliceValue):
        return in_slices and any(depends_on_values(part, in_slices) for part in key.parts)
    return isinstance(key, SymbolicInt) and shown_by_run(key.sym)


def takes_windows(key: Value, fake: torch.Tensor) -> bool:
    """Whether the slices of a subscript that depend on values take as much of the tensor in each run, and lie in it; there is one."""
    parts = key.items if isinstance(key, TupleValue) else [key]
    if any(isinstance(part, (SequenceValue, TensorValue)) or isinstance(part, ConstantValue) and type(part.value) is bool for part in parts):
        return False  # which take dimensions of another number
    taken = [part for part in parts if not (isinstance(part, ConstantValue) and part.value is None)]
    dots = next((i for i, part in enumerate(taken) if isinstance(part, ConstantValue) and part.value is Ellipsis), len(taken))
    dims = [*range(dots), -1, *range(fake.dim() - len(taken) + dots + 1, fake.dim())]
    moving = [(part, dim) for part, dim in zip(taken, dims) if isinstance(part, SliceValue) and depends_on_values(part, True)]
    return bool(moving) and all(is_window(part.argument()[1], fake.size(dim)) for part, dim in moving)


def refuse_patched(cx: Context, *names: str) -> None:
    """Of methods that Python looks up by itself."""
    for name in names:
        if patched(cx, name) is not None:
            raise unsupported("unknown-function", f"torch.Tensor.{name}, which was replaced,")


class TensorValue(GraphTensor):
    """A tensor of the graph, and what operators, attributes and methods of it give."""

    def truth(self, cx: Context) -> bool:
        refuse_patched(cx, "__bool__")
        if (found := cx.overrides.call(torch.Tensor.__bool__, [self], {})) is not None:
            return found.truth(cx)
        number = self.number()
        if number is not None:
            return bool(number)
        answer = decided(cx, self)
        if answer is None:
            raise unsupported("data-dependent-branch", f"bool({self.describe()})")
        return answer

    def length(self, cx: Context) -> int:
        refuse_patched(cx, "__len__")
        if (found := cx.overrides.call(torch.Tensor.__len__, [self], {})) is not None:
            return int(found.constant())
        if not self.fake.dim():
            raise unsupported("would-raise", "len() of a 0-d tensor")
        return int(self.fake.shape[0])

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if (raw := patched(cx, name)) is not None:
            return bind_descriptor(cx, raw, self, cx.class_value(self.pytype(), None), name, Attr(Constant(torch.Tensor, "Tensor"), name))
        if (found := cx.overrides.getter(self, name)) is not None:
            return found
        if name == "is_leaf" and self.real is not None:
            return ConstantValue(self.is_leaf(cx))
        if name == "requires_grad" and self.sample.requires_grad and self.sample._is_view() and cx.recorder.is_inference(self.sample):
            return ConstantValue(False)  # unlike a view that is made under no_grad, one of an inference tensor does not say what its base says
        if name in FACTS:
            return cx.of(getattr(self.sample, name))
        if name in VIEWS:
            return cx.op("call_function", getattr, [self, ConstantValue(name)], {})
        if name == "grad":
            return self.grad(cx)
        if name == "__class__":
            return cx.of(self.pytype())
        if name == "data":
            return cx.recorder.data_of(self)
        if name == "grad_fn" and (not self.fake.requires_grad or (self.fake.is_leaf if self.real is None else self.is_leaf(cx))):
            return ConstantValue(None)
        if name in ("grad_fn", "_version", "_backward_hooks", "names", "_grad", "_base"):
            raise unsupported("tensor-attribute", f"{self.describe()}.{name}")
        if callable(class_lookup(torch.Tensor, name)):
            return Method(self, name)
        if self.real is not None and name in getattr(self.real, "__dict__", {}):
            return cx.wrap(self.real.__dict__[name], Attr(self.source, name))
        raise unsupported("tensor-attribute", f"{self.describe()}.{name}")

    def field(self, cx: Context, name: str, raw: Any) -> Value:
        """What torch's getter gives."""
        return self.plain_field(cx, name)

    def set_plain(self, cx: Context, name: str, value: Value) -> None:
        """object.__setattr__."""
        self.set_attr(cx, name, value)

    def plain_field(self, cx: Context, name: str) -> Value:
        """What torch's getter gives, where nobody overrides it."""
        return self.get_attr(cx, name)

    def set_field(self, cx: Context, name: str, value: Value) -> None:
        self.set_attr(cx, name, value)

    def is_leaf(self, cx: Context) -> bool:
        """Of an input, as it was before the frame."""
        if not self.told_leaf and self.real.requires_grad:
            cx.guard("EQUALS", Attr(self.source, "is_leaf"), self.real.is_leaf)
            self.told_leaf = True
        return bool(self.real.is_leaf)

    def grad(self, cx: Context) -> Value:
        if self.new_grad is not None:
            return self.new_grad
        if self.real is None:
            if not self.fake.requires_grad or not self.fake.is_leaf:
                return ConstantValue(None)
            raise unsupported("tensor-attribute", f"{self.describe()}.grad")
        if not self.is_leaf(cx):
            if not self.real.retains_grad:  # torch warns, and gives what was assigned
                raise unsupported("tensor-attribute", f"{self.describe()}.grad, of a tensor that keeps none,")
            cx.guard("EQUALS", Attr(self.source, "retains_grad"), True)
        kept = cx.grads.get(id(self.real))
        real = self.real.grad if kept is None else kept[1]
        if self.read_grad is None or self.read_grad[0] is not real:
            self.read_grad = real, cx.wrap(real, Attr(self.source, "grad"))
        return self.read_grad[1]

    def computes(self, cx: Context, name: str) -> bool:
        return False

    def has_attr(self, cx: Context, name: str) -> bool:
        cx.overrides.getter(self, name)
        if isinstance(cx.lookup(torch.Tensor, name), property) and name not in FACTS and name not in VIEWS:
            raise unsupported("tensor-attribute", f"whether there is a {self.describe()}.{name}")
        if name in ("imag", "mT", "mH", "H"):  # where there is none, torch raises RuntimeError
            self.get_attr(cx, name)
        if defines(torch.Tensor, name) or name in self.attributes:
            return True
        if self.real is not None:
            cx.guard("HASATTR", self.source, Presence(name, hasattr(self.real, name)))
            return hasattr(self.real, name)
        return False

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if defines(torch.Tensor, name):
            cx.overrides.modes.refuse(f"{self.describe()}.{name} = ...")
        if name == "requires_grad":
            METHODS["requires_grad_"](cx, self, [value], {})
            return
        if name in SETTERS:
            SETTERS[name](cx, self, value)
            return
        if not defines(torch.Tensor, name):  # the user's own
            cx.effects.touch(self)
            self.attributes[name] = value
            return
        if name != "grad" or self.source is None or not self.can_be_grad(value):
            raise unsupported("tensor-attribute", f"{self.describe()}.{name} = ...")
        cx.effects.touch(self)
        self.new_grad = value

    def can_be_grad(self, value: Value) -> bool:
        """Whether torch accepts a value as this tensor's gradient."""
        if isinstance(value, TensorValue):
            wanted, given = self.fake, value.fake
            return value is not self and wanted.shape == given.shape and wanted.dtype == given.dtype and wanted.device == given.device
        return isinstance(value, ConstantValue) and value.value is None

    def replay_values(self) -> Sequence[Value]:
        return [*self.attributes.values(), *(new for new in (self.new_data, self.new_grad) if new is not None)]

    def replay(self, out: Writer) -> None:
        for name, new in (("data", self.new_data), ("grad", self.new_grad)):
            if new is not None:
                out.value(new)
                out.value(self)
                out.store_attr(name)
        for name, value in self.attributes.items():
            out.value(value)
            out.value(self)
            out.store_attr(name)

    def get_item(self, cx: Context, key: Value) -> Value:
        refuse_patched(cx, "__getitem__")
        found = cx.overrides.call(torch.Tensor.__getitem__, [self, key], {})
        if found is not None:
            return found
        key = index_of(cx, key)
        if cx.bodies and cx.bodies[-1].is_mapped and (parts := points_of(key)):
            points = [part for part in parts if isinstance(part, TensorValue)]
            fixed = [SliceValue([ConstantValue(None)] * 3) if part in points else part for part in parts]
            first = self if len(points) == len(parts) else cx.op("call_function", operator.getitem, [self, TupleValue(fixed)], {})
            return cx.op("call_function", index_by_points, [first, *points], {})
        if cx.symbols is not None and cx.symbols.policy.values and not cx.bodies:
            if depends_on_values(key, True) and takes_windows(key, self.fake):
                return cx.op("call_function", picked, [self, key, ConstantValue(True)], {})
            if is_place(key) and self.fake.dim() or depends_on_values(key, False):
                return cx.op("call_function", picked, [self, key], {})
        view = view_at(cx, self, key)
        return cx.op("call_function", operator.getitem, [self, key], {}) if view is None else view

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        refuse_patched(cx, "__setitem__")
        if cx.overrides.call(torch.Tensor.__setitem__, [self, key, value], {}) is not None:
            return
        key = index_of(cx, key)
        if any(isinstance(k, ConstantValue) and isinstance(k.value, bool) for k in (key, *(key.items if isinstance(key, SequenceValue) else ()))):
            raise unsupported("unknown-operation", "assignment to a tensor by a bool as index")
        if isinstance(key, TensorValue) and key.fake.dtype == torch.bool and not (key.fake.dim() or self.fake.dim()) and self.is_filled_by(value):
            cx.op("call_method", "masked_fill_", [self, key, value], {})  # where indexing would count the values that are true
            return
        if cx.symbols is not None and cx.symbols.policy.values and not cx.bodies and (depends_on_values(key, True) or depends_on_values(value, True)):
            if torch.is_grad_enabled() and isinstance(value, TensorValue) and value.fake.requires_grad and not self.fake.requires_grad:
                raise unsupported("data-dependent-shape", "an assignment by which a tensor comes to require gradients")  # parts of the graph know it as it was
            cx.op("call_function", placed, [self, key, value], {})
            return
        view = view_at(cx, self, key)
        cx.op("call_function", operator.setitem, [self, key, value] if view is None else [view, ConstantValue(...), value], {})

    def is_filled_by(self, value: Value) -> bool:
        """Whether a fill with a value converts as an assignment does."""
        return self.fake.is_floating_point() and isinstance(value, ConstantValue) and type(value.value) in (int, float)

    def contains(self, cx: Context, item: Value) -> Value:
        refuse_patched(cx, "__contains__")
        if (found := cx.overrides.call(torch.Tensor.__contains__, [self, item], {})) is not None:
            return ConstantValue(found.truth(cx))
        if not isinstance(item, TensorValue) and not (isinstance(item, ConstantValue) and isinstance(item.value, (int, float, complex))):
            raise raises(RuntimeError, f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {item.pytype()}.")
        raise unsupported("data-dependent-branch", f"... in {self.describe()}")

    def iterate(self, cx: Context) -> IteratorValue:
        refuse_patched(cx, "__iter__")
        if (found := cx.overrides.call(torch.Tensor.__iter__, [self], {})) is not None:
            return found.iterate(cx)
        return SequenceIterator(cx.op("call_function", torch.unbind, [self], {}))  # type: ignore[arg-type]

    def foretell(self, cx: Context) -> None:
        if cx.overrides.is_watched():
            self.method(cx, "__len__", [], {})

    def listed(self, cx: Context) -> list[Value]:
        iterator = self.iterate(cx)
        self.foretell(cx)
        return iterator.drain(cx)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if patched(cx, name) is not None:
            return self.get_attr(cx, name).call(cx, args, kwargs)
        if (args or kwargs or cx.overrides.is_on()) and (found := cx.overrides.method(self, name, args, kwargs)) is not None:
            return found
        code = BREAKING.get(name)
        if name in READING and not args and not kwargs and (number := self.number()) is not None and (name != "tolist" or not self.fake.dim()):
            return cx.pure(READING[name], [ConstantValue(number)], {})
        if name in ("item", "tolist") and not args and not kwargs and (found := self.read(cx, name)) is not None:
            return found
        if name in OPERATORS and len(args) == 1 and not kwargs and args[0].pytype() is not type(self) and is_read_number(args[0]):
            return cx.operator(OPERATORS[name], [self, *args])
        if name in METHODS:
            return METHODS[name](cx, self, args, kwargs)
        if code is not None:
            raise unsupported(code, f"{self.describe()}.{name}()")
        if name == "__len__" and self.fake.dim():
            return cx.of(self.fake.shape[0])
        if name == "__setitem__" and len(args) == 2:
            self.set_item(cx, *args)
            return ConstantValue(None)
        if name in BECOMING:
            return self.become(cx, name, args, kwargs)
        if name == "new" and len(args) == 1 and isinstance(args[0], SequenceValue) and not kwargs and args[0].pytype() in (list, tuple):
            return cx.op("call_method", "new_tensor", [self, *args], {"dtype": ConstantValue(self.fake.dtype)})
        if name == "new" and all(isinstance(a, ConstantValue) for a in args) and not kwargs:
            sizes = args[0] if len(args) == 1 and isinstance(args[0].constant(), torch.Size) else TupleValue(args)
            return cx.op("call_method", "new_empty", [self, sizes], {})
        if name == "new" or (name == "type" and not args and not kwargs):
            return cx.pure(self.fake.type, [], {}) if name == "type" else self.refuse(name)
        if name == "type_as" and len(args) == 1 and isinstance(args[0], TensorValue):
            return cx.op("call_method", "type_as", [self, args[0]], {})
        if name == "new_tensor" and len(args) == 1 and isinstance(args[0], SymbolicFloat):  # torch adds it to 0 there, which loses the sign of -0
            return self.method(cx, "new_full", [TupleValue([]), args[0]], kwargs)
        found = with_tensor_scalar(cx, name, [self, *args], kwargs)
        return cx.op("call_method", name, [self, *args], kwargs) if found is None else found

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """torch.Tensor.name(self, ...), where torch leaves that to object"""
        if name != "__setattr__":
            return self.method(cx, name, args, kwargs)
        self.set_plain(cx, args[0].constant(), args[1])
        return ConstantValue(None)

    def read(self, cx: Context, name: str) -> Value | None:
        """item() or tolist() of ints, as symbols, and of floats in torch's optimizers; None where that ends the graph."""
        if name == "item" and self.fake.is_floating_point() and not self.fake.dim() and is_step_of_optimizer(cx):
            return self.as_number(cx)
        sizes = tuple(self.fake.shape)
        if type(self) is not TensorValue or cx.bodies or not all(type(n) is int for n in sizes) or name == "item" and self.fake.numel() != 1:
            return None
        if cx.symbols is None or not cx.symbols.policy.values or self.fake.dtype not in INTS:
            return READERS[name](cx, self)
        if name == "item" or not sizes:
            kept = cx.op("call_method", "clone", [self], {})
            return cx.op("call_method", "item", [kept], {})
        return None if sizes[0] > MOST_ITEMS else ListValue([row.method(cx, "tolist", [], {}) for row in self.elements(cx)])

    def as_number(self, cx: Context) -> Value:
        """A tensor that stands for the Python float that this one holds now."""
        made = cx.op("call_method", "clone" if self.fake.dtype == torch.float64 else "double", [self], {})
        assert isinstance(made, TensorValue)
        made.is_number = True
        return made

    def become(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The object stands for a view of what it was, from here on."""
        is_view = self.fake._is_view() and not self.has_become
        refused = is_view and (name == "detach_" or self.fake.requires_grad)  # autograd may not let such a view be changed
        refused = refused or (not is_view and self.fake.requires_grad and shares_input(cx, self.fake))  # a view of it would be one of the input
        is_forgetting = name == "detach_" and self.fake.requires_grad and bool(self.node.users)  # what was computed of it can't be differentiated any more
        outside = cx.recorder.is_inference(self.fake) and not cx.state(TorchModes).inference  # an inference tensor's metadata is as good as written
        if self.source is not None or refused or is_forgetting or outside:
            return self.refuse(name)
        view = cx.op("call_method", BECOMING[name], [self, *args], kwargs)
        if name != "detach_" and not self.fake.is_inference():  # what keeps the tensor for a gradient sees a write
            torch.autograd.graph.increment_version(self.fake)
            cx.recorder.python_effect(torch.autograd.graph.increment_version, [view])
        if name != "detach_" and not is_view and isinstance(view, TensorValue) and not view.fake.requires_grad:
            view = cx.op("call_method", "detach", [view], {})  # a tensor that was no view is none
        if isinstance(view, TensorValue) and view is not self:
            self.node, self.fake, self.has_become = view.node, view.fake, not is_view
            cx.recorder.values[id(view.fake)] = self
        return self

    def refuse(self, name: str) -> Value:
        raise unsupported("tensor-attribute", f"{self.describe()}.{name}()")

    def children(self) -> Sequence[Value]:
        return list(self.attributes.values())

    def rebuild(self, out: Writer) -> None:
        out.graph_output(self)
        if (cls := self.pytype()) is not torch.Tensor:
            self.rebuild_class(out, cls)
        self.rebuild_attributes(out)

    def rebuild_class(self, out: Writer, cls: type) -> None:
        """The graph's output is a new tensor that nobody else has, so it can become one of a class."""
        out.emit("COPY", 1)
        out.const(cls)
        out.emit("SWAP", 2)
        out.store_attr("__class__")

    def rebuild_attributes(self, out: Writer) -> None:
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)


def is_read_number(value: Value) -> bool:
    """Whether it is a Python number that the graph has as a tensor."""
    return isinstance(getattr(value, "tensor", None), TensorValue)


def is_step_of_optimizer(cx: Context) -> bool:
    """Whether the code that runs is that of torch's optimizers, which computes with the numbers that it reads, and branches on what comes of them."""
    return str(cx.frames[-1].scope.table.get("__name__")).startswith("torch.optim.")


def shares_input(cx: Context, fake: torch.Tensor) -> bool:
    memory = fake.untyped_storage()._cdata
    return any(value.has_fake and value.fake.untyped_storage()._cdata == memory for value in cx.recorder.tensors.values())
