"""Functions that torch.jit.script made: the Python function that each was made of is followed, with the arguments that the script takes.

A script is checked when it is made: it reads no global numbers, and each of its arguments has a type. Arguments of these types are the same to both; an int
for a float is converted, as the script does, and so is a list for a tuple; a list is copied. Functions that it calls are those of that time, so none may have
been replaced since. Dicts and classes are left to the script, and so is what torch.jit.trace made: what that computes is what one call did, and not what the
function says.
"""

from __future__ import annotations

import inspect
import math
import re
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue, RefusedValue
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Constant, Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NUMBERS = {"int": int, "float": float, "bool": bool, "str": str}


class ScriptedFunction(CallableValue):
    """parameters: names and types of the script's arguments."""

    def __init__(self, real: torch.jit.ScriptFunction, function: Any, source: Source):
        self.real, self.function, self.source = real, function, source
        schema: Any = real.schema  # torch's stubs take the property for a method
        self.parameters = [(a.name, str(a.type)) for a in schema.arguments]

    def describe(self) -> str:
        return f"{self.function.__qualname__} (ScriptFunction)"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kinds = dict(self.parameters)
        given = [self.taken(cx, kind, value) for (_, kind), value in zip(self.parameters, args, strict=False)]
        named = {name: self.taken(cx, kinds.get(name, ""), value) for name, value in kwargs.items()}
        if len(args) > len(self.parameters):
            raise unsupported("unknown-function", f"{self.describe()} with more arguments than it has")
        function = cx.wrap(self.function, Constant(self.function, f"the function of {self.source.text()}"))
        return function.call(cx, given, named)

    def taken(self, cx: Context, kind: str, value: Value) -> Value:
        """An argument as the script has it."""
        value = cx.force(value)
        optional = kind.startswith("Optional[")
        wanted = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
        cls = value.pytype()
        if optional and cls is type(None):
            return value
        if wanted == "Tensor" and isinstance(value, TensorValue):
            return value
        if wanted == "float" and cls is int and isinstance(value, ConstantValue):
            return ConstantValue(float(value.value))
        if wanted in NUMBERS and cls is NUMBERS[wanted]:
            return value
        parts = parts_of(wanted) if cls in (list, tuple) and isinstance(value, SequenceValue) else None
        if parts is not None:
            items = value.elements(cx)
            if wanted.startswith("List["):
                return ListValue([self.taken(cx, parts[0], item) for item in items])
            if len(items) == len(parts):
                return TupleValue([self.taken(cx, part, item) for part, item in zip(parts, items)])
        raise unsupported("unknown-function", f"{self.describe()} with {value.describe()} for an argument of type {kind or 'unknown'}")


def parts_of(kind: str) -> list[str] | None:
    """The types between the brackets of `Tuple[...]` or `List[...]`; None of other types."""
    if not kind.startswith(("Tuple[", "List[")):
        return None
    found, depth = [""], 0
    for letter in kind[kind.index("[") + 1 : -1]:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


@wraps(torch.jit.ScriptFunction)
def wrap_script(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    own: dict[str, Any] = real.__dict__
    function = own.get("_torchdynamo_inline") if own.get("__name__") == "ScriptFunction" else None  # these names are script's, and not trace's
    if function is None or not calls_what_it_did(real, function):
        return RefusedValue(real, "unknown-function", source, f"{real.name} (ScriptFunction)")
    return ScriptedFunction(real, function, source)


def calls_what_it_did(script: Any, function: FunctionType) -> bool:
    """Whether the functions that a function reads by name are those that its script calls, and theirs likewise. Of what it reads in modules beside torch's
    that is not known."""
    known = inspect.getclosurevars(function)
    for value in (*known.globals.values(), *known.nonlocals.values()):
        if isinstance(value, ModuleType):
            if value is not math and value.__name__.partition(".")[0] != torch.__name__:
                return False
        elif isinstance(value, (FunctionType, torch.jit.ScriptFunction)) and (value.__module__ or "").partition(".")[0] != torch.__name__:
            called: Any = value if isinstance(value, torch.jit.ScriptFunction) else of_torch.script_of_function(value)
            if called is None or not re.search(re.escape(called.qualified_name) + r"(?![\w.])", script.code):
                return False
            if isinstance(value, FunctionType) and value is not function and not calls_what_it_did(called, value):
                return False
    return True
