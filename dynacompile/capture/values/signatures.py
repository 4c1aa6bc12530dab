"""inspect.signature of functions that exist before the frame. A signature is an object that never changes, whose methods are followed."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import Value
from dynacompile.capture.values.functions import BoundMethod, FunctionValue, function_value
from dynacompile.capture.values.rows import handles
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Attr, Constant, DictAttr

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


SAYS_SIGNATURE = {"__wrapped__", "__signature__", "__text_signature__"}


@handles(inspect.signature)
def row_signature(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of the innermost function where decorators wrap others, as Python's is."""
    bound = bool(args) and isinstance(args[0], BoundMethod)
    function = args[0].function if bound else args[0]  # type: ignore[attr-defined]
    while isinstance(function, FunctionValue) and isinstance(function.real, FunctionType) and "__wrapped__" in function.real.__dict__:
        if "__signature__" in function.real.__dict__ or function.source is None:
            break
        function = cx.wrap(function.real.__dict__["__wrapped__"], DictAttr(function.source, "__wrapped__"))
    real = function.real if isinstance(function, FunctionValue) and not function.stored and not function.fields else None
    if len(args) != 1 or kwargs or real is None or SAYS_SIGNATURE & set(real.__dict__):
        plain: Any = inspect.signature
        return function_value(cx, plain, Constant(plain, "inspect.signature")).call(cx, args, kwargs)
    for name in ("__defaults__", "__kwdefaults__"):
        found = getattr(real, name)
        cx.guard("NONE" if found is None else "ID", Attr(function.source, name), None if found is None else identity(found))
    signature = cx.guarded_call(inspect.signature, [MethodType(real, real) if bound else real], {})
    return cx.wrap(signature, Constant(signature, f"the signature of {real.__qualname__}"))
