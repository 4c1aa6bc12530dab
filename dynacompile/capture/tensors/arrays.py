"""Arrays of NumPy. Those that the frame makes of numbers are known: NumPy itself computes with them while capture follows. Those that exist before the
frame, or come of tensors, are tensors of the graph that share their memory; rows say which functions agree with operations of torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.array_rows import METHOD_ROWS, OPERATORS, ROWS, torch_type
from dynacompile.capture.tensors.numpy_numbers import KNOWN, NumpyNumber
from dynacompile.capture.tensors.random_state import MadeValue, RandomState
from dynacompile.capture.tensors.tensor import METHODS, TensorValue
from dynacompile.capture.tensors.tensor_inputs import wrap_tensor
from dynacompile.capture.values.base import IteratorValue, Method, Value, wraps
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.objects import OpaqueValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, SequenceIterator, TupleValue
from dynacompile.ir.namespaces import class_lookup, defines
from dynacompile.ir.source import Applied, Made, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

DTYPES = {np.dtype(t): getattr(torch, np.dtype(t).name) for t in (np.float64, np.float32, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)}
WRITES = frozenset("fill sort partition put resize setflags byteswap itemset setfield".split())
FIELDS = frozenset("shape dtype ndim size itemsize nbytes strides".split())


class ArrayRoots:
    """ids: of arrays over whose memory the frame has tensors."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


class ArrayValue(Value):
    """known: the array itself, of one that the frame made of numbers; nobody else has it. tensor: what stands for it in the graph."""

    def __init__(self, known: np.ndarray | None, tensor: TensorValue | None = None, source: Source | None = None, is_scalar: bool = False):
        self.known, self.tensor, self.source, self.is_scalar = known, tensor, source, is_scalar

    def describe(self) -> str:
        return "an array of numpy" if self.source is None else f"{self.source.text()} (ndarray)"

    def pytype(self) -> type:
        return self.dtype.type if self.is_scalar else np.ndarray

    @property
    def dtype(self) -> np.dtype:
        return self.known.dtype if self.known is not None else next(d for d, t in DTYPES.items() if t is self.tensor.fake.dtype)  # type: ignore[union-attr]

    def identity(self) -> Any:
        raise unsupported("unknown-object", f"{self.describe()} as a key, or compared by identity,")

    def constant(self) -> Any:
        raise NotConstant("array of numpy")

    # as a tensor

    def as_tensor(self, cx: Context) -> TensorValue:
        """The tensor that shares its memory. From here on the array is not known."""
        if self.tensor is None:
            assert self.known is not None
            if self.known.dtype not in DTYPES or root_of(self.known) is not self.known and id(root_of(self.known)) in cx.state(ArrayRoots).ids:
                raise unsupported("unknown-object", f"a tensor over {self.describe()}")
            cx.state(ArrayRoots).ids.add(id(root_of(self.known)))
            cx.keep(root_of(self.known))
            self.tensor, self.known = constant_tensor(cx, self.known), None
        return self.tensor

    def as_index(self, cx: Context, alone: bool) -> Value:
        """Torch reads an array as it reads a list: whole numbers become int64, and of one that is the whole index each row would be an index."""
        shape, dtype = self.shape_of(cx), self.dtype
        if self.is_scalar or not shape or alone and len(shape) != 1 or dtype.kind not in "ib":
            return self
        if self.known is not None and dtype.kind == "i":
            return ArrayValue(self.known.astype(np.int64)).as_tensor(cx)
        found = self.as_tensor(cx)
        return found if dtype.itemsize == 8 or dtype.kind == "b" else cx.op("call_method", "to", [found, ConstantValue(torch.int64)], {})  # type: ignore[return-value]

    def shape_of(self, cx: Context) -> Sequence[Any]:
        return self.known.shape if self.known is not None else self.as_tensor(cx).fake.shape

    def value(self, cx: Context) -> np.ndarray | None:
        """The array itself, where it is known still; a part of one that became a tensor is not."""
        if self.known is not None and id(root_of(self.known)) in cx.state(ArrayRoots).ids:
            raise unsupported("unknown-object", f"{self.describe()}, which shares memory with a tensor")
        return self.known

    # as Python has it

    def truth(self, cx: Context) -> bool:
        if (known := self.value(cx)) is not None:
            return bool(cx.guarded_call(bool, [known], {}))
        return self.as_tensor(cx).truth(cx)

    def length(self, cx: Context) -> int:
        shape = self.known.shape if self.known is not None else self.as_tensor(cx).fake.shape
        if not shape:
            raise raises(TypeError, "len() of unsized object")
        return int(shape[0])

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in FIELDS and self.known is not None:
            return cx.of(getattr(self.known, name))
        if name == "dtype":
            return ConstantValue(self.dtype)
        if name in ("shape", "ndim", "nbytes", "itemsize"):
            found = self.as_tensor(cx).get_attr(cx, name)
            return TupleValue(found.elements(cx)) if name == "shape" else found
        if name == "size":
            return self.as_tensor(cx).method(cx, "numel", [], {})
        if name == "T":
            return self.method(cx, "transpose", [], {})
        if name == "__class__" or not callable(class_lookup(self.pytype(), name)):
            return super().get_attr(cx, name)
        return Method(self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.pytype(), name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("tolist", "item") and self.known is None and not args:
            return self.as_tensor(cx).method(cx, name, [], {})
        if self.value(cx) is not None:
            if name in WRITES:
                raise unsupported("unknown-function", f"{self.describe()}.{name}()")
            return folded(cx, getattr(np.ndarray, name), [self, *args], kwargs)
        row = METHOD_ROWS.get(name)
        if row is None:
            raise unsupported("unknown-function", f"{self.describe()}.{name}()")
        return row(cx, [self, *args], kwargs)

    def get_item(self, cx: Context, key: Value) -> Value:
        if self.value(cx) is not None and is_known(cx, key):
            return folded(cx, operator.getitem, [self, key], {})
        self.refuse_scalar("[...]")
        found = self.as_tensor(cx).get_item(cx, index_of(cx, key))
        if found.fake.dim():  # type: ignore[attr-defined]
            return ArrayValue(None, found)  # type: ignore[arg-type]
        if has_ellipsis(key):  # which gives an array without dimensions, over the same memory
            raise unsupported("unknown-operation", f"{self.describe()}[..., i] of no dimension")
        return ArrayValue(None, cx.op("call_method", "clone", [found], {}), is_scalar=True)  # type: ignore[arg-type]

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        if self.value(cx) is not None and is_known(cx, key) and is_known(cx, value):
            assert self.known is not None
            cx.guarded_call(operator.setitem, [self.known, plain(cx, key), plain(cx, value)], {})
            return
        self.refuse_scalar("[...] = ...")
        written = self.as_tensor(cx)
        if isinstance(value, ArrayValue):
            tensor = value.as_tensor(cx)
            if value.dtype != self.dtype:  # which torch refuses to write at places that tensors name
                value = cx.op("call_method", "to", [tensor, ConstantValue(torch_type(self.dtype))], {})
            else:  # NumPy reads all of what it writes first
                value = cx.op("call_method", "clone", [tensor], {}) if storage_of(tensor.fake) == storage_of(written.fake) else tensor
        written.set_item(cx, index_of(cx, key), value)

    def refuse_scalar(self, what: str) -> None:
        if self.is_scalar:
            raise unsupported("unknown-operation", f"a number of numpy{what}")

    def iterate(self, cx: Context) -> IteratorValue:
        items = [self.get_item(cx, ConstantValue(i)) for i in range(self.length(cx))]
        return SequenceIterator(TupleValue(items))

    def children(self) -> Sequence[Value]:
        return () if self.tensor is None else (self.tensor,)

    def rebuild(self, out: Writer) -> None:
        if self.known is not None:
            if id(root_of(self.known)) in out.arrays:
                raise unsupported("rebuild", "an array of numpy that shares memory with another")
            out.arrays.add(id(root_of(self.known)))
            out.call_function(np.ndarray.copy, [ConstantValue(self.known), ConstantValue("K")])
            return
        out.value(self.tensor)  # type: ignore[arg-type]
        out.load_method("numpy")
        out.call(0)
        if self.is_scalar:
            out.const(())
            out.emit("BINARY_SUBSCR")


def root_of(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def tensor_of(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def constant_tensor(cx: Context, array: np.ndarray) -> TensorValue:
    """A tensor with the array's content, which residual code makes anew in each call."""
    kept = array.copy()
    place = len(cx.state(RandomState).first)
    cx.state(RandomState).hoist(cx, tensor_of, [ConstantValue(kept)], (), MadeValue(torch.Tensor))
    cx.hoisted = True
    made = cx.recorder.input(tensor_of(kept), Made(place))
    assert isinstance(made, TensorValue)
    return made


def index_of(cx: Context, key: Value) -> Value:
    """A subscript as torch takes it: slices that go backwards it does not take, and sizes that depend on values end the graph."""
    if isinstance(key, ArrayValue):
        return key.as_tensor(cx)
    if isinstance(key, TupleValue):
        return TupleValue([index_of(cx, item) for item in key.elements(cx)])
    if isinstance(key, SliceValue) and any(isinstance(p, ConstantValue) and type(p.value) is int and p.value < 0 for p in key.parts[2:]):
        raise unsupported("unknown-operation", "a slice of an array that goes backwards")
    return key


def has_ellipsis(key: Value) -> bool:
    parts = key.items if isinstance(key, TupleValue) else [key]
    return any(isinstance(part, ConstantValue) and part.value is Ellipsis for part in parts)


def plain(cx: Context, value: Value) -> Any:
    """What NumPy is given. Raises NotConstant."""
    if isinstance(value, ArrayValue):
        found = value.value(cx)
        if found is None:
            raise NotConstant("array of numpy")
        return found
    if isinstance(value, (TupleValue, ListValue)) and value.cls in (list, tuple):
        return value.cls(plain(cx, item) for item in value.elements(cx))
    if isinstance(value, TensorValue):
        raise NotConstant("tensor")
    return value.constant()


def is_known(cx: Context, value: Value) -> bool:
    try:
        plain(cx, value)
    except NotConstant:
        return False
    return True


def folded(cx: Context, function: Callable, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """function(*args, **kwargs) by NumPy, where all is known; a warning of NumPy's is left to Python to give."""
    name = getattr(function, "__name__", str(function))
    try:
        reals, named = [plain(cx, a) for a in args], {k: plain(cx, v) for k, v in kwargs.items()}
    except NotConstant as reason:
        raise unsupported("unknown-function", f"numpy.{name} of a {reason}") from reason
    try:
        with np.errstate(all="raise"):
            return tracked(cx, function(*reals, **named))
    except (FloatingPointError, TypeError, ValueError, IndexError) as reason:
        raise unsupported("would-raise", f"numpy.{name}: {type(reason).__name__}: {reason}") from reason


def tracked(cx: Context, result: Any) -> Value:
    if type(result) is np.ndarray:
        return ArrayValue(result)
    if isinstance(result, (tuple, list)) and type(result) in (tuple, list):
        items = [tracked(cx, item) for item in result]
        return TupleValue(items) if type(result) is tuple else ListValue(items)
    return NumpyNumber(result) if type(result) in KNOWN else cx.of(result)


def tensor_of_array(cx: Context, value: Value) -> TensorValue | None:
    """The tensor that shares the memory of an array of numpy; None for other values."""
    return value.as_tensor(cx) if isinstance(value, ArrayValue) else None


def call_numpy(cx: Context, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's without effects, of arrays some of which are tensors of the graph."""
    if function in (np.array, np.asarray) and len(args) == 1 and type(args[0]) is TensorValue and not kwargs.keys() - {"dtype"}:
        return array_of(cx, function, args[0], kwargs.get("dtype"))
    tensor = next((a for a in (*args, *kwargs.values()) if isinstance(a, TensorValue)), None)
    if tensor is not None and isinstance(function, np.ufunc) and function.nout == 1 and not kwargs and not cx.overrides.modes.watched:
        made = call_numpy(cx, function, [from_tensor(a) if isinstance(a, TensorValue) else a for a in args], {})
        assert isinstance(made, ArrayValue)
        return wrapped_array(cx, made.as_tensor(cx))
    if tensor is not None:  # which has a say in what the result is
        raise unsupported("to-python", f"numpy.{function.__name__} of {tensor.describe()}")
    if not all(is_known(cx, value) for value in (*args, *kwargs.values())):
        cx.flag("numpy.geterr()", errors_of_numpy)
        if not set(errors_of_numpy()) <= {"warn", "ignore"}:
            raise unsupported("unknown-function", f"numpy.{function.__name__} where numpy.seterr asks for more than warnings")
    if all(is_known(cx, value) for value in (*args, *kwargs.values())):
        return folded(cx, function, args, kwargs)
    row = ROWS.get(function)
    if row is None:
        raise unsupported("unknown-function", f"numpy.{function.__name__} of an array that is not known")
    try:
        return row(cx, args, kwargs)
    except NotConstant as reason:
        raise unsupported("unknown-function", f"numpy.{function.__name__} of a {reason}") from reason


def wrapped_array(cx: Context, made: TensorValue) -> Value:
    """What Tensor.__array_wrap__ makes of an array that a universal function of NumPy gives."""
    return cx.op("call_method", "to", [made, ConstantValue(torch.uint8)], {}) if made.fake.dtype is torch.bool else made


def array_of(cx: Context, function: Any, tensor: TensorValue, dtype: Value | None) -> Value:
    """np.array(tensor), which copies, and np.asarray(tensor), which does where it has to."""
    shared = from_tensor(tensor) if function is np.asarray else from_tensor(cx.op("call_method", "clone", [tensor], {}))  # type: ignore[arg-type]
    if dtype is None or isinstance(dtype, ConstantValue) and dtype.value is None:
        return shared
    wanted = dtype.constant()
    return shared if np.dtype(wanted) == shared.dtype else METHOD_ROWS["astype"](cx, [shared, dtype], {})


def errors_of_numpy() -> tuple[str, ...]:
    """What NumPy does at a division by zero, an overflow, an underflow, an invalid value."""
    return tuple(map(str, np.geterr().values()))


def from_tensor(value: TensorValue) -> ArrayValue:
    fake = value.fake
    if type(value) is not TensorValue or fake.requires_grad or fake.device.type != "cpu" or fake.dtype not in DTYPES.values():
        raise unsupported("to-python", f"{value.describe()} as an array of numpy")
    if isinstance(value.new_data, TensorValue):  # the real one has it later
        return ArrayValue(None, value.new_data)
    value.has_array = True
    return ArrayValue(None, value)


def array_operator(cx: Context, name: str, args: Sequence[Value]) -> Value:
    """operator.name(*args), of which one is an array."""
    if any(isinstance(a, TensorValue) for a in args):
        raise unsupported("unknown-operation", f"operator.{name} of a tensor and an array of numpy")
    if name in INPLACE_NAMES and isinstance(args[0], ArrayValue) and not args[0].is_scalar:
        found = call_numpy(cx, OPERATORS[INPLACE_NAMES[name]], list(args), {})
        if not isinstance(found, ArrayValue) or found.dtype != args[0].dtype:
            raise unsupported("unknown-operation", f"operator.{name} of arrays of several types")
        args[0].set_item(cx, ConstantValue(...), found)
        return args[0]
    return call_numpy(cx, OPERATORS[INPLACE_NAMES.get(name, name)], list(args), {})


INPLACE_NAMES = {f"i{name.rstrip('_')}": name for name in OPERATORS}


@wraps(np.ndarray)
def wrap_array(cx: Context, real: np.ndarray, source: Source) -> Value:
    cx.guard("TYPE", source, np.ndarray)
    if not is_shared(real):
        return OpaqueValue(real, source)
    cx.guard("EQUALS", Applied(source, is_shared, "'s layout"), True)
    tensor = wrap_tensor(cx, torch.from_numpy(real), Applied(source, torch.from_numpy, ""))
    return ArrayValue(None, tensor, source)  # type: ignore[arg-type]


def is_shared(array: np.ndarray) -> bool:
    """Whether a tensor can share the array's memory."""
    return array.dtype in DTYPES and array.dtype.isnative and array.flags.writeable and all(n >= 0 and not n % array.itemsize for n in array.strides)


@handles(torch.from_numpy)
def row_from_numpy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if not isinstance(value, ArrayValue) or value.is_scalar:
        raise unsupported("unknown-function", f"torch.from_numpy({value.describe()})")
    return value.as_tensor(cx)


def numpy(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """tensor.numpy()"""
    if args or kwargs:
        raise unsupported("to-python", f"{value.describe()}.numpy() with arguments")
    return from_tensor(value)


METHODS["numpy"] = numpy
