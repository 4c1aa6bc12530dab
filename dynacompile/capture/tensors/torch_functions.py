"""torch's functions: which become nodes of the graph, which are known facts, which end it."""

from __future__ import annotations

import enum
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.after_graph import DeferredFunction
from dynacompile.capture.tensors.arrays import tensor_of_array
from dynacompile.capture.tensors.marked_functions import is_marked, marked_function
from dynacompile.capture.tensors.number_tensors import is_number_tensor
from dynacompile.capture.tensors.numpy_functions import NumpyFunction
from dynacompile.capture.tensors.numpy_numbers import inferred_dtype, is_pure
from dynacompile.capture.tensors.questions import is_question, question_row
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import BREAKING, METHODS, TensorValue
from dynacompile.capture.tensors.tensor import OPERATORS as METHOD_OPERATORS
from dynacompile.capture.tensors.tensor_scalars import with_tensor_scalar
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Method, Value, bind_arguments, wraps
from dynacompile.capture.values.classes import ATTRIBUTES
from dynacompile.capture.values.comparing import wrap_generic
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import SPECIAL, CallableValue, OptimizerStep, RefusedValue, function_value
from dynacompile.capture.values.replaced import hidden_from_dynamo, kept_in_python
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.rows import HANDLERS, handles, row_of
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.capture.values.sequence_objects import SequenceObjectValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.errors import Unsupported
from dynacompile.ir.guard_facts import function_facts, identity
from dynacompile.ir.namespaces import class_lookup, defines
from dynacompile.ir.source import Attr, Constant, Source
from dynacompile.markers import AFTER_GRAPH, ALLOWED, graph_break, is_compiling
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

OP_FOLDERS = tuple(getattr(of_torch.C, name) for name in ("_VariableFunctions", "_nn", "_fft", "_linalg", "_special"))
OPS = frozenset(
    f for folder in OP_FOLDERS for name in dir(folder) if not name.startswith("__") and isinstance(f := getattr(folder, name), types.BuiltinFunctionType)
)
# Python functions of torch that run on fakes as one node.
LEAF_MODULES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._tensor", "torch.linalg", "torch.fft", "torch.special", "torch._jit_internal", "torch.masked._ops"}
)
# Prefixes of modules whose functions end the graph, by the reason. The longest prefix decides.
REFUSED = {
    "torch.random": "random-state",
    "torch.cuda.random": "random-state",
    "torch.autograd": "autograd-call",
    "torch.autograd.function": "autograd-function",
    "torch.distributed": "collective",
    "torch.cuda": "unknown-function",
    "torch.multiprocessing": "unknown-function",
    "torch.serialization": "unknown-function",
    "torch._tensor_str": "to-python",
    "torch.func": "autograd-call",
    "torch._functorch": "autograd-call",
    "torch.compiler": "unknown-function",
    "torch.jit": "unknown-function",
    "torch.onnx": "unknown-function",
    "torch.profiler": "unknown-function",
    "torch.storage": "tensor-attribute",
    "warnings": "logging",
    "logging": "logging",
    "random": "random-state",
    "numpy": "unknown-function",
    "time": "unknown-function",
    "threading": "unknown-function",
    "subprocess": "unknown-function",
    "os": "unknown-function",
    "traceback": "unknown-function",
    "deepspeed": "collective",  # by hooks of modules; each call of these has a number of its own, which would be guarded
}
SCHEDULERS = "torch.optim.lr_scheduler"
# Modules below a refused one whose functions are inlined nevertheless.
INLINED = frozenset(
    {
        "torch.utils.checkpoint",
        "torch.distributed._functional_collectives",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "torch.distributed.tensor._api",
        "torch.distributed.tensor.parallel.style",
    }
)
# Functions of refused modules that are plain Python: outside of TorchScript they pass something on.
PLAIN = frozenset(f.__code__ for f in (torch.jit.annotate, torch.jit.script_if_tracing(len)))
# Functions of refused modules that are inlined nevertheless, and one of LEAF_MODULES that asks what a tensor holds.
FOLLOWED: frozenset[Any] = frozenset(
    {torch.random.fork_rng, torch.random.fork_rng.__wrapped__, torch.autograd.Function.__init__, F.gaussian_nll_loss}  # type: ignore[attr-defined]
)
# Facts that do not change while the process runs, or are guarded by GLOBAL_STATE.
STATE_FACTS = (
    torch.get_default_dtype,
    torch.cuda.is_available,
    torch.cuda.device_count,
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
    torch.backends.mps.is_available,
    torch.cuda.is_bf16_supported,
    torch.get_autocast_gpu_dtype,
    torch.get_autocast_cpu_dtype,
    torch.is_autocast_cpu_enabled,
    torch.amp.is_autocast_available,
    torch.promote_types,
    torch.can_cast,
    of_torch.get_privateuse1_backend_name,
    of_torch.get_tracing_state,
    torch.distributed.is_backend_available,
    torch.backends.cuda.is_flash_attention_available,
    *((torch.backends.cuda.is_ck_sdpa_available,) if hasattr(torch.backends.cuda, "is_ck_sdpa_available") else ()),
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    of_torch.jit_internal_is_scripting,
    of_torch.is_tracing,
)
TENSOR_METHODS = {real: name for name, real in vars(torch.Tensor).items() if isinstance(real, types.FunctionType)}
# Settings of torch.backends, read without arguments.
SETTINGS = (
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.onnx.is_in_onnx_export,
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    of_torch.get_warn_always,
    torch.cuda.is_initialized,
    torch.cuda.is_tf32_supported,
    *(getattr(torch, name) for name in ("is_autocast_ipu_enabled", "is_autocast_xla_enabled") if hasattr(torch, name)),
    *(
        getattr(torch.distributed, f"is_{name}_available")
        for name in ("gloo", "mpi", "nccl", "ucc", "xccl")
        if hasattr(torch.distributed, f"is_{name}_available")
    ),
    *(
        getattr(of_torch.C, name)
        for name in dir(of_torch.C)
        if name.startswith("_get_") and any(part in name for part in ("_cudnn_", "_cublas_", "_mkldnn_", "_sdp_", "_nnpack_", "float32_matmul", "overrideable"))
    ),
)


class TorchFunction(CallableValue):
    """A torch function that becomes a node of the graph."""

    def __init__(self, real: Any, source: Source | None = None):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"torch function {getattr(self.real, '__name__', self.real)}"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        name = getattr(self.real, "__name__", "")
        if isinstance(self.real, types.FunctionType):
            rely_on_names(cx, self.real)
        elif self.real in OPS and self.real not in PYTHON_VALUES:
            args, kwargs = [as_c_reads(cx, a) for a in args], type(kwargs)({name: as_c_reads(cx, a) for name, a in kwargs.items()})
        found = cx.overrides.call(self.real, args, kwargs)
        if found is not None:
            return found
        if is_replaced(cx, self.real):
            if not isinstance(self.real, types.FunctionType):
                raise unsupported("unknown-function", f"{self.describe()}, in whose place its module has another,")
            return function_value(cx, self.real, self.source or Constant(self.real, name)).call(cx, args, kwargs)
        method = TENSOR_METHODS.get(self.real) or (name if name in METHODS and self.real is getattr(torch, name, None) else None)
        if method is not None and args and isinstance(args[0], TensorValue):
            return args[0].method(cx, method, args[1:], kwargs)
        if BREAKING.get(name) == "tensor-attribute" and args and isinstance(args[0], TensorValue):
            raise unsupported("tensor-attribute", f"torch.{name}()")
        if self.real in PYTHON_VALUES and args and holds_tensors(args[0]):
            raise unsupported("to-python", f"torch.{name} of a list of tensors")
        if self.real in PYTHON_VALUES and args and (is_number_tensor(args[0]) or isinstance(args[0], ReadNumber)) and is_narrow(kwargs.get("dtype")):
            if len(args) == 1 and args[0].pytype() is int and kwargs.keys() <= {"dtype", "device"}:
                return cx.op("call_function", torch.full, [TupleValue([]), *args], kwargs)  # which raises where the type can't hold the number
            return self.refuse_call()
        if self.real in PYTHON_VALUES and len(args) == 1 and is_number_tensor(args[0]) and kwargs.keys() <= {"dtype", "device"}:
            return cx.op("call_method", "to", args, {"dtype": ConstantValue(torch.get_default_dtype()), **kwargs, "copy": ConstantValue(True)})
        if self.real in PYTHON_VALUES and args and (tensor := tensor_of_array(cx, args[0])) is not None:
            args = [tensor, *args[1:]]
            if self.real is torch.tensor:
                options = {"dtype": ConstantValue(tensor.fake.dtype), **kwargs, "copy": TRUE}
                return cx.op("call_method", "to", args, options) if "requires_grad" not in kwargs else self.refuse_call()
            if not kwargs:
                return tensor
        if self.real in PYTHON_VALUES and len(args) == 1 and isinstance(args[0], ReadNumber) and kwargs.keys() <= {"dtype", "device"}:
            if not args[0].with_tensors(cx):
                return self.refuse_call()
            wanted = {float: torch.get_default_dtype(), int: torch.int64, bool: torch.bool}[args[0].cls]
            options = {"device": ConstantValue(torch.get_default_device()), "dtype": ConstantValue(wanted), **kwargs, "copy": TRUE}
            return cx.op("call_method", "to", [args[0].tensor], options)
        if name in METHOD_OPERATORS and len(args) == 2 and not kwargs and any(isinstance(a, ReadNumber) for a in args):
            return cx.operator(METHOD_OPERATORS[name], args)
        if self.real in PYTHON_VALUES and len(args) == 1 and isinstance(args[0], (SymbolicInt, SymbolicFloat)) and kwargs.keys() <= {"dtype", "device"}:
            if not isinstance(args[0], SymbolicInt) or isinstance(args[0].argument()[1], torch.SymInt):
                return number_tensor(cx, args[0], kwargs)
            args = [ConstantValue(args[0].argument()[1])]
        if self.real in PYTHON_VALUES and args and "dtype" not in kwargs and (dtype := inferred_dtype(cx, args[0])) is not None:
            kwargs = {**kwargs, "dtype": ConstantValue(dtype)}
        found = with_tensor_scalar(cx, name, args, kwargs)
        if found is not None:
            return found
        try:
            return cx.op("call_function", self.real, args, kwargs)
        except Unsupported as reason:
            if not isinstance(self.real, types.FunctionType) or not isinstance(reason.__cause__, NotConstant):
                raise
        return function_value(cx, self.real, self.source or Constant(self.real, name)).call(cx, args, kwargs)  # a module or function among the arguments

    def refuse_call(self) -> Value:
        raise unsupported("unknown-function", f"{self.describe()} of this form")

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__"):
            return ConstantValue(getattr(self.real, name))
        if isinstance(self.real, of_torch.OpOverloadPacket):
            found = getattr(self.real, name, None)
            return TorchFunction(found) if isinstance(found, of_torch.OpOverload) else super().get_attr(cx, name)
        return super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)


def as_c_reads(cx: Context, value: Value) -> Value:
    """What a function written in C takes for a list of tensors: it reads lists and tuples of users' classes past the methods that these define."""
    if not isinstance(value, SequenceObjectValue) or cx.overrides.is_watched():
        return value
    items = value.table.elements(cx)
    plain = bool(items) and all(type(item) is TensorValue for item in items)
    return (TupleValue if value.container is tuple else ListValue)(items) if plain else value


def rely_on_names(cx: Context, function: types.FunctionType) -> None:
    """A function of torch in Python that runs as one operation calls others by their names: what these lead to, and its code, are as they were."""
    if id(function) in cx.names.coded:
        return
    cx.names.of_code(function)
    table, names = function.__globals__, function.__code__.co_names
    home = str(table.get("__name__"))
    if not is_trusted(home):
        return
    for name in names:
        real = table.get(name)
        if name in table:
            cx.names.of_dict(table, home, name)
        if isinstance(real, types.ModuleType) and is_trusted(real.__name__):
            for part in names:
                if part in real.__dict__:
                    cx.names.of_dict(real.__dict__, real.__name__, part)
        if isinstance(real, types.FunctionType) and real.__module__ in LEAF_MODULES:
            rely_on_names(cx, real)


def is_replaced(cx: Context, function: Any) -> bool:
    """Whether the module of a function of torch has one of somebody else's under its name: graphs of torch.fx call functions by their names."""
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    if not isinstance(function, (types.FunctionType, types.BuiltinFunctionType)) or home is None or not is_trusted(home.__name__):
        return False
    cx.names.of_dict(home.__dict__, home.__name__, function.__name__)
    found = home.__dict__.get(function.__name__, function)
    return found is not function and not is_trusted(getattr(found, "__module__", None))


TRUE = ConstantValue(True)
PYTHON_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)


def is_narrow(dtype: Value | None) -> bool:
    """Whether a type has fewer ints than those that are read from tensors."""
    wanted = dtype.value if isinstance(dtype, ConstantValue) else None
    return isinstance(wanted, torch.dtype) and wanted not in (torch.bool, torch.int64) and not wanted.is_floating_point and not wanted.is_complex


def holds_tensors(value: Value) -> bool:
    return isinstance(value, SequenceValue) and any(isinstance(item, TensorValue) or holds_tensors(item) for item in value.items)


def number_tensor(cx: Context, number: Value, options: dict[str, Value]) -> Value:
    """torch.tensor(number), or as_tensor, of a symbolic number, which torch would turn into a constant."""
    dtype = torch.int64 if isinstance(number, SymbolicInt) else torch.get_default_dtype()
    return cx.op("call_function", torch.full, [TupleValue([]), number], {"dtype": ConstantValue(dtype), **options})


def special_function(cx: Context, real: types.FunctionType, source: Source) -> Value | None:
    """The value of a Python function that is not to be inlined as it stands; None for all others."""
    row = HANDLERS.get(real) or HANDLERS.get(hidden_from_dynamo(real))
    if row is not None:
        cx.guard("ID", source, identity(real))
        return BuiltinValue(real, row, source)
    if real in FOLLOWED:
        return None
    module = real.__module__ or ""
    if module == SCHEDULERS and real.__name__ == "step" and not cx.fullgraph:  # where a break is an error, each count is an entry
        cx.guard("ID", source, identity(real))
        return RefusedValue(real, "schedule", source)
    if module in LEAF_MODULES and real.__globals__.get("__name__") in LEAF_MODULES or module == "torch.nn.functional":
        cx.guard("ID", source, identity(real))
        return TorchFunction(real, source)
    home = str(real.__globals__.get("__name__"))
    if AFTER_GRAPH in real.__dict__:
        cx.guard("ID", source, identity(real))
        return DeferredFunction(real, source)
    if ALLOWED in real.__dict__:
        cx.guard("ID", source, identity(real))
        return TorchFunction(real, source)
    if is_marked(real):
        cx.guard("ID", source, identity(real))
        return marked_function(cx, real, source)
    if real.__code__ in PLAIN or module in INLINED:
        return None
    if home == "functools" and (generic := wrap_generic(cx, real, source)) is not None:
        return generic
    if is_pure(real):
        cx.guard("ID", source, identity(real))
        return NumpyFunction(real, source)
    code = "disabled" if home == "torch._compile" and refusal(module) is None else refusal(module) or refusal(home)
    if code is not None:
        if is_question(real, code):
            cx.guard("ID", source, identity(real))
            return BuiltinValue(real, question_row(real, code), source)
        if real.__closure__:  # made anew by who puts it there, as by each block of context parallelism: Python calls it, whichever it is
            cx.guard("FUNCTION", source, function_facts(real, cx.root_scope.table))
        else:
            cx.guard("ID", source, identity(real))
        return RefusedValue(real, code, source) if kept_in_python(real) is None else OptimizerStep(real, code, source)
    return None


def refusal(module: str) -> str | None:
    """The reason for which functions of a module end the graph; None where they are followed."""
    if module in INLINED:
        return None
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        code = REFUSED.get(".".join(parts[:count]))
        if code is not None:
            return code
    return None


@wraps(
    of_torch.OpOverload,
    of_torch.OpOverloadPacket,
    of_torch.CustomOpDef,
)
def wrap_op(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return TorchFunction(real._opoverload if hasattr(real, "_opoverload") else real, source)


def bound_builtin(cx: Context, real: types.BuiltinFunctionType, source: Source) -> Value:
    """A method written in C, bound to an object. Where the object's class hides it by one of its own, only Python can call it."""
    name = real.__name__
    cx.guard("TYPE", source, type(real))
    if isinstance(class_lookup(type(real.__self__), name), types.FunctionType) or name in getattr(real.__self__, "__dict__", ()):
        return RefusedValue(real, "unknown-function", source)
    cx.guard("EQUALS", Attr(source, "__name__"), real.__name__)
    found = Method(cx.wrap(real.__self__, Attr(source, "__self__")), real.__name__)
    found.source = source
    return found


@wraps(type(F.conv2d))
def wrap_builtin(cx: Context, real: types.BuiltinFunctionType, source: Source) -> Value:
    """A function or bound method written in C."""
    owner = real.__self__
    made = ATTRIBUTES[real.__name__](owner) if isinstance(owner, type) and real.__name__ in ATTRIBUTES else None
    if made is not None:  # a method of a class that was read from it before
        cx.guard("TYPE", source, type(real))
        cx.guard("EQUALS", Attr(source, "__name__"), real.__name__)
        cx.wrap(owner, Attr(source, "__self__"))
        return made
    bound = owner is not None and not isinstance(owner, (types.ModuleType, type)) and defines(type(owner), real.__name__)
    if bound and real not in OPS and real not in HANDLERS:
        return bound_builtin(cx, real, source)
    cx.guard("ID", source, identity(real))
    row = HANDLERS.get(real)
    if row is not None:
        return BuiltinValue(real, row, source)
    if real in OPS:
        return TorchFunction(real, source)
    if is_pure(real):
        return NumpyFunction(real, source)
    code = refusal(real.__module__ or "") or "unknown-function"
    return BuiltinValue(real, question_row(real, code), source) if is_question(real, code) else RefusedValue(real, code, source)


def fact(real: Any) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.pure(real, args, kwargs)


for _real in STATE_FACTS:
    fact(_real)


@handles(torch.broadcast_shapes)
def row_broadcast_shapes(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.fold(torch.broadcast_shapes, args, kwargs)


@handles(torch.autograd.forward_ad.unpack_dual)
def row_unpack_dual(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Frames in which tensors may carry tangents are not captured, so there is none."""
    tensor, level = bind_arguments("unpack_dual", ["tensor", "level"], args, kwargs, {"level": ConstantValue(None)})
    if not isinstance(tensor, TensorValue) or level.constant() is not None:
        raise unsupported("autograd-call", "unpack_dual() of a level")
    return TupleValue([tensor, ConstantValue(None)], torch.autograd.forward_ad.UnpackedDualTensor)


def setting(real: Any) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.flag(f"{real.__name__}()", real)


for _real in SETTINGS:
    if row_of(_real) is None:  # no switch that a frame may set
        setting(_real)


@handles(torch.is_inference_mode_enabled)
def inference_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(cx.state(TorchModes).inference)


@handles(torch.is_autocast_cache_enabled)
def autocast_cache(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if cx.state(TorchModes).autocasts:
        raise unsupported("active-mode", ": torch.is_autocast_cache_enabled() in a block of torch.autocast")
    return cx.flag("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled, cx.state(TorchModes).autocast_cache)


@handles(torch.is_tensor)
def is_tensor(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(issubclass(args[0].pytype(), torch.Tensor))


@handles(is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def compiling(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(True)


@handles(torch.compiler.is_exporting)
def exporting(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(False)


@handles(of_torch.log_api_usage_once)
def log_usage(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(None)


@handles(graph_break)
def asked_break(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    reason = args[0] if args else kwargs.get("reason")
    text = reason.constant() if isinstance(reason, ConstantValue) else ""
    raise unsupported("asked", f": {text}" if text else "")


@handles(torch.Size)
def make_size(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.pure(torch.Size, [TupleValue([e for a in args for e in a.elements(cx)])], kwargs)


def constructor(cls: type) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.pure(cls, args, kwargs)


def typed_tensor(cls: Any, dtype: torch.dtype | None) -> None:
    """`torch.FloatTensor(sizes or values)`, and `torch.Tensor` of the default dtype."""

    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        options: dict[str, Value] = {"dtype": ConstantValue(dtype or torch.get_default_dtype())}
        if len(args) == 1 and args[0].pytype() is torch.Size and not kwargs:
            return cx.op("call_function", torch.empty, args, options)
        if len(args) == 1 and isinstance(args[0], SequenceValue) and not holds_tensors(args[0]) and not kwargs:
            return cx.op("call_function", torch.tensor, args, options)
        args = [ConstantValue(int(a.value)) if isinstance(a, ConstantValue) and isinstance(a.value, enum.IntEnum) else a for a in args]
        if kwargs or not all(a.pytype() is int and isinstance(a, (ConstantValue, SymbolicInt)) for a in args):
            raise unsupported("unknown-function", f"{cls.__name__} of other things than numbers")
        return cx.op("call_function", torch.empty, [TupleValue(args or [ConstantValue(0)])], options)


typed_tensor(torch.Tensor, None)
for _name, _dtype in (
    ("Float", torch.float32),
    ("Double", torch.float64),
    ("Half", torch.float16),
    ("Long", torch.int64),
    ("Int", torch.int32),
    ("Bool", torch.bool),
):
    typed_tensor(getattr(torch, f"{_name}Tensor"), _dtype)


for _cls in (torch.finfo, torch.iinfo):
    constructor(_cls)


@handles(torch.device)
def make_device(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = cx.overrides.call(torch.device, args, kwargs) if cx.overrides.is_watched() else None
    return cx.pure(torch.device, args, kwargs) if found is None else found


SPECIAL.append(special_function)
