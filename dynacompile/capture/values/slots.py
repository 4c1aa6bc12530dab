"""Special methods that classes written in C define, called by name: `value.__add__(other)`, `value.__len__()`, `value.__setattr__(name, new)`.

Each is a slot of the class, which an operator, a builtin function or an access to an attribute fills. A slot answers NotImplemented to what is not of the
class that defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import Raised
from dynacompile.capture.operator_names import BINARY, INPLACE, UNARY
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.own_methods import IN_C
from dynacompile.capture.values.rows import HANDLERS
from dynacompile.ir.namespaces import class_lookup

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

OPERATORS = {method: name for name, method in UNARY.items() if name != "inv"} | {f"__{name}__": name for name in INPLACE}
OPERATORS |= {methods[0]: name for name, methods in BINARY.items()}
REFLECTED = {reflected: name for name, (method, reflected) in BINARY.items() if reflected not in OPERATORS}
BY_IDENTITY = {"__eq__": True, "__ne__": False}  # what object's own give of the object itself
BY_NAME = frozenset({"__getattribute__", "__setattr__", "__delattr__"})
BUILTINS: dict[str, Callable] = {"__str__": str, "__repr__": repr, "__hash__": hash, "__bool__": bool, "__len__": len, "__iter__": iter}


def slot_method(cx: Context, value: Value, name: str, args: list[Value]) -> Value | None:
    """value.name(*args); None where the class does not define it in C, or it is no slot that is known here."""
    raw = class_lookup(value.pytype(), name)
    if not isinstance(raw, IN_C):
        return None
    if name in BY_IDENTITY and raw.__objclass__ is object and len(args) == 1:
        return ConstantValue(BY_IDENTITY[name] if value is args[0] else NotImplemented)
    if name in OPERATORS or name in REFLECTED:
        return by_operator(cx, value, name, args, raw.__objclass__)
    if name in BUILTINS and not args:
        return HANDLERS[BUILTINS[name]](cx, [value], {})
    if name in BY_NAME and not (args and issubclass(args[0].pytype(), str)):
        return None
    match name, args:
        case "__call__", _:
            return value.call(cx, args, {})
        case "__getattribute__", [key]:
            return value.get_attr(cx, key.constant())
        case "__setattr__", [key, new]:
            value.set_attr(cx, key.constant(), new)
            return ConstantValue(None)
        case "__delattr__", [key]:
            value.del_attr(cx, key.constant())
            return ConstantValue(None)
        case "__setitem__", [key, new] if type(value).set_item is not Value.set_item:
            value.set_item(cx, key, new)
            return ConstantValue(None)
        case "__delitem__", [key] if type(value).del_item is not Value.del_item:
            value.del_item(cx, key)
            return ConstantValue(None)
        case "__getitem__", [key] if type(value).get_item is not Value.get_item:
            return value.get_item(cx, key)
        case "__contains__", [item] if type(value).contains is not Value.contains:
            return value.contains(cx, item)
        case "__init__", []:
            return ConstantValue(None) if raw is object.__init__ else None
    return None


def by_operator(cx: Context, value: Value, name: str, args: list[Value], owner: type) -> Value | None:
    """An operator, between values of which the class of the slot knows both."""
    if not all(issubclass(arg.pytype(), owner) for arg in args):
        return None
    try:
        return cx.operator(REFLECTED[name], [*args, value]) if name in REFLECTED else cx.operator(OPERATORS[name], [value, *args])
    except Raised as reason:
        if reason.cls is TypeError and reason.value is None:  # the message of the slot is another one
            reason.args_ = None
        raise
