"""torch.autograd.Function: `MyFunction.apply` becomes one operation of the graph, whose own forward and backward autograd's tracing runs."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.followed_functions import behind_once, followed
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import ATTRIBUTES, MAKERS, ClassValue
from dynacompile.capture.values.constant import ConstantValue, is_constant_object
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.errors import Unsupported
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.source import Attr, Constant, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

PARTS = ("forward", "setup_context", "backward")
QUIET_BUILTINS = frozenset(
    """abs all any bool dict divmod enumerate float getattr hasattr int isinstance len list max min pow range reversed round slice sorted str sum super tuple
    type zip None True False NotImplementedError RuntimeError ValueError TypeError AssertionError""".split()
)


class ApplyValue(CallableValue):
    """MyFunction.apply."""

    def __init__(self, cls: type):
        self.cls = cls

    def describe(self) -> str:
        return f"{self.cls.__qualname__}.apply"

    def pytype(self) -> type:
        return types.MethodType

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.overrides.modes.refuse(self.describe())
        if kwargs:
            raise unsupported("autograd-function", f"{self.describe()}, with arguments by keyword,")
        if not all(map(is_plain_argument, args)):
            return followed(cx, self.cls, args)
        try:
            takes_none = self.guard_parts(cx)
        except Unsupported:  # its parts read more than their arguments
            return followed(cx, self.cls, args)
        if cx.state(TorchModes).inference and cx.state(TorchModes).is_grad_enabled() and any(isinstance(a, TensorValue) and a.fake.requires_grad for a in args):
            raise unsupported("autograd-function", f"{self.describe()}, under grad mode inside of inference mode,")
        device = cx.overrides.modes.device if cx.overrides.is_on() else None
        apply = leaf(self.cls, takes_none, device)
        self.try_backward(cx, apply, [a.argument()[1] for a in args])
        return cx.op("call_function", apply, args, {})

    def guard_parts(self, cx: Context) -> bool:
        """The entry relies on the code of the function. Gives whether its backward may be given None."""
        seen: set[types.CodeType] = set()
        for name in PARTS:
            part = cx.lookup(self.cls, name)
            if isinstance(part, classmethod):  # which may read anything of the class
                raise unsupported("autograd-function", f"{self.describe()}, whose {name} is given the class,")
            if name == "setup_context" and self.cls.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
                continue
            part, source = getattr(part, "__func__", part), Attr(Constant(self.cls, self.cls.__qualname__), name)
            part, place = behind_once(cx, part, source) or (part, source)
            if not isinstance(part, types.FunctionType) or is_trusted(part.__module__):
                raise unsupported("autograd-function", f"{self.describe()}, whose {name} is not given,")
            guard_part(cx, part, place, self.describe(), seen)
        return any("set_materialize_grads" in names for code in seen for names in all_names(code))

    def try_backward(self, cx: Context, apply: Callable[..., Any], fakes: list[Any]) -> None:
        """Runs forward and backward on fakes, to see that both can be traced."""
        if not torch.is_grad_enabled():
            return
        try:
            self.run_on_fakes(cx, apply, fakes)
        except Exception as reason:  # whatever the user's code raises on fakes, eager is to run it
            check_recurs(reason, lambda: self.run_on_fakes(cx, apply, fakes))
            raise unsupported("autograd-function", f"{self.describe()}, which can't be traced ({type(reason).__name__}: {reason}),") from reason

    def run_on_fakes(self, cx: Context, apply: Callable[..., Any], fakes: list[Any]) -> None:
        with cx.recorder.mode:
            inputs = [f.detach().requires_grad_(f.requires_grad) if isinstance(f, torch.Tensor) else f for f in fakes]
            given = [stand_in(f, i) if isinstance(f, torch.Tensor) else f for f, i in zip(fakes, inputs)]
            found = apply(*given)
            outputs = [o for o in (found if isinstance(found, tuple) else (found,)) if isinstance(o, torch.Tensor) and o.requires_grad]
            wanted = [f for f in inputs if isinstance(f, torch.Tensor) and f.requires_grad]
            if outputs and wanted:
                torch.autograd.grad(outputs, wanted, [torch.empty_like(o) for o in outputs], allow_unused=True)

    def rebuild(self, out: Writer) -> None:
        out.const(self.cls)
        out.load_attr("apply")


class FunctionObject(Value):
    """`MyFunction()`, of which only `apply` is of use."""

    def __init__(self, cls: type):
        self.cls = cls

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        return ApplyValue(self.cls) if name == "apply" else super().get_attr(cx, name)

    def rebuild(self, out: Writer) -> None:
        out.call_function(self.cls.__new__, [ConstantValue(self.cls)])


def stand_in(fake: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """No leaf, which the function might write, and a view where the operand is one."""
    return tensor.clone()[...] if fake._is_view() else tensor.clone()


def leaf(cls: Any, takes_none: bool, device: torch.device | None) -> Callable[..., Any]:
    """takes_none: its backward may be given None for the gradients of results that are not used. device: where forward makes its tensors; backward runs
    without the modes of the call, as in eager."""

    def apply(*args: Any) -> Any:
        with nullcontext() if device is None else device:
            return cls.apply(*args)

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.takes_none = takes_none  # type: ignore[attr-defined]
    return apply


def is_plain_argument(value: Value) -> bool:
    """Tensors, constants, and containers of these: tensors inside of containers get no gradient, as in eager."""
    if isinstance(value, SequenceValue) and value.cls in (tuple, list):
        return all(map(is_plain_argument, value.items))
    if isinstance(value, DictValue) and value.cls is dict:
        return all(type(key) is str and is_plain_argument(value.settled(key)) for key in value.content)
    return isinstance(value, ConstantValue) or type(value) is TensorValue


def guard_part(cx: Context, function: types.FunctionType, source: Source, owner: str, seen: set[types.CodeType]) -> None:
    """Guards what a function reads besides its arguments; refuses one that could have effects which its result does not show."""
    code = function.__code__
    if code in seen:
        return
    seen.add(code)
    refused = f"{owner}, which reads or changes other things than its arguments,"
    if any(name != "__class__" for name in code.co_freevars) or code.co_flags & 0x20:
        raise unsupported("autograd-function", refused)
    if not all(is_constant_object(d) for d in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        raise unsupported("autograd-function", refused)
    cx.wrap(function, source)
    table = function.__globals__
    previous: object = None  # the variable, or the class of such a function, that the instruction before reads
    for instr in all_instructions(code):
        if is_function_class(previous) and instr.argval != "apply":
            helper = cx.lookup(previous, str(instr.argval)) if instr.opname in ("LOAD_ATTR", "LOAD_METHOD") else None  # type: ignore[arg-type]
            if not isinstance(helper, staticmethod) or not isinstance(helper.__func__, types.FunctionType):
                raise unsupported("autograd-function", refused)
            guard_part(cx, helper.__func__, class_source(previous, str(instr.argval)), owner, seen)  # type: ignore[arg-type]
        if (
            instr.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "DELETE_ATTR")
            or instr.opname == "STORE_ATTR"
            and code.co_varnames[:1] != (previous,)
        ):
            raise unsupported("autograd-function", refused)
        if instr.opname == "LOAD_GLOBAL":
            guard_global(cx, table, str(instr.argval), refused, owner, seen)
        is_global = instr.opname == "LOAD_GLOBAL"
        previous = table.get(str(instr.argval)) if is_global else instr.argval if instr.opname.startswith("LOAD_FAST") else None


def all_names(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Of attributes and globals, of the function and of those inside of it."""
    yield code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_names(const)


def all_instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Of the function, and of comprehensions and functions inside of it."""
    yield from dis.get_instructions(code)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_instructions(const)


def guard_global(cx: Context, table: dict[str, Any], name: str, refused: str, owner: str, seen: set[types.CodeType]) -> None:
    if name not in table:
        if name not in QUIET_BUILTINS:
            raise unsupported("autograd-function", refused)
        return
    value = table[name]
    source = Item(Constant(table, str(table.get("__name__"))), name)
    if isinstance(value, types.FunctionType) and not is_trusted(value.__module__):
        guard_part(cx, value, source, owner, seen)
        return
    trusted = is_trusted(value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None))
    if not is_constant_object(value) and not (trusted and isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type))):
        if not is_function_class(value):
            raise unsupported("autograd-function", refused)
    cx.wrap(value, source)


def is_function_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def row_apply(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a method that was read from its class before: `f = MyFunction.apply`."""
    cls = args[0].real if isinstance(args[0], ClassValue) else None
    apply = apply_of(cls) if isinstance(cls, type) else None
    if apply is None:
        raise unsupported("autograd-function", f"apply() of {args[0].describe()}")
    return apply.call(cx, args[1:], kwargs)


def apply_of(cls: type) -> Value | None:
    """cls.apply, of a class of the user's, or of the distributions, which are followed as such."""
    is_followed = cls.__module__.partition(".")[0] != "torch" or cls.__module__.startswith("torch.distributions.")
    return ApplyValue(cls) if issubclass(cls, torch.autograd.Function) and is_followed else None


ATTRIBUTES["apply"] = apply_of
if isinstance(torch.autograd.Function.apply, types.MethodType):  # of Python; it is one of C since torch 2.14.1, which `wrap_builtin` takes for the attribute
    handles(torch.autograd.Function.apply.__func__)(row_apply)
MAKERS[torch.autograd.Function] = FunctionObject
