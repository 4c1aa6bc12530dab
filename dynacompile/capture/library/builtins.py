"""Rows for Python's builtins: numbers, types, attributes, containers."""

from __future__ import annotations

import builtins
import collections
import math
import operator
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, Unsupported, raises, unsupported
from dynacompile.capture.tensors.arrays import tensor_of_array
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.tensors.read_numbers import ReadNumber, computed, converted, whether
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.truncated_numbers import truncated
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.classes import ClassValue, super_of
from dynacompile.capture.values.constant import ConstantValue, SliceValue, has_one_object, is_none
from dynacompile.capture.values.functions import BoundMethod
from dynacompile.capture.values.identities import IdValue
from dynacompile.capture.values.keys import as_keys
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.set_tables import Table
from dynacompile.capture.values.sets import SetValue, table_of
from dynacompile.capture.values.symbolic import SymbolicBool, SymbolicFloat, SymbolicInt, symbolic_function
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import defines

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def fold(real: Any) -> None:
    """A row that computes on constants and gives up on everything else."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if any(isinstance(a, TensorValue) for a in args):
            raise unsupported("to-python", f"{real.__name__} of {next(a for a in args if isinstance(a, TensorValue)).describe()}")
        if any(isinstance(a, ReadNumber) for a in args) and not kwargs and (found := computed(cx, real, args)) is not None:
            return found
        return (None if kwargs else symbolic_function(cx, real, args)) or cx.pure(real, args, kwargs)


for _real in (
    chr,
    ord,
    bin,
    hex,
    oct,
    *(f for n, f in vars(math).items() if isinstance(f, types.BuiltinFunctionType) and n != "prod"),
):
    fold(_real)


def number(cls: type, method: str) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and isinstance(args[0], TensorValue):
            if args[0].number() is None or cx.overrides.is_watched():
                read = args[0].method(cx, "item", [], {}) if len(args) == 1 and not cx.overrides.is_watched() else None
                if read is None or isinstance(read, TensorValue):
                    raise unsupported("to-python", f"{cls.__name__}({args[0].describe()})")
                args = [read]
            else:
                args = [ConstantValue(args[0].number()), *args[1:]]  # type: ignore[attr-defined]
        if len(args) == 1 and (tensor := tensor_of_array(cx, args[0])) is not None:
            if tensor.fake.dim():  # a warning, or an error, by NumPy's version
                raise unsupported("to-python", f"{cls.__name__}({args[0].describe()})")
            args = [tensor.method(cx, "item", [], {})]
        if len(args) == 1 and isinstance(args[0], ReadNumber) and (found := converted(cx, args[0], cls)) is not None:
            return found
        if len(args) == 1 and cls is int and isinstance(args[0], ReadNumber) and (found := truncated(cx, args[0])) is not None:
            return found
        if args and isinstance(args[0], ObjectValue):
            return args[0].method(cx, method, [], {})
        if cls is int and len(args) == 1 and isinstance(args[0], SymbolicInt):
            return args[0]
        return (None if kwargs else symbolic_function(cx, cls, args)) or cx.pure(cls, args, kwargs)


number(int, "__int__")
number(float, "__float__")


@handles(bool)
def row_bool(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and type(args[0]) is TensorValue and args[0].fake.numel() == 1:
        return bool_of(cx, args[0])
    if args and isinstance(args[0], ReadNumber):
        return bool_of(cx, args[0])
    if args and isinstance(args[0], SymbolicBool):
        return args[0]
    if args and isinstance(args[0], SymbolicInt):
        return cx.operator("ne", [args[0], ConstantValue(0)])
    return ConstantValue(args[0].truth(cx) if args else False)


def bool_of(cx: Context, value: TensorValue | ReadNumber) -> Value:
    """Where the answer isn't known it is a number that is read from a tensor: who branches on it may know what to do, such as to raise after the graph."""
    try:
        return ConstantValue(value.truth(cx))
    except Unsupported as reason:
        if reason.code != "data-dependent-branch" or isinstance(value, TensorValue) and value.fake.dtype.is_complex:
            raise
    if isinstance(value, ReadNumber):
        return value if value.cls is bool else ReadNumber(value.asked(cx), bool)
    return whether(cx, value if value.fake.dtype is torch.bool else cx.operator("ne", [value, ConstantValue(0)]))


@handles(abs)
def row_abs(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.operator("abs", args)


@handles(pow)
def row_pow(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.operator("pow", args) if len(args) == 2 and not kwargs else cx.pure(pow, args, kwargs)


@handles(round)
def row_round(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], ObjectValue):
        return args[0].method(cx, "__round__", args[1:], kwargs)
    if isinstance(args[0], TensorValue):
        if type(args[0]) is not TensorValue:
            raise unsupported("unknown-operation", f"round({args[0].describe()})")
        if not hasattr(torch.Tensor, "__round__"):
            raise raises(TypeError, "type Tensor doesn't define __round__ method")
        cx.overrides.modes.refuse("round")
        return cx.op("call_method", "round", [args[0]], {} if len(args) == 1 else {"decimals": args[1]})
    if isinstance(args[0], ReadNumber) and not kwargs and (found := computed(cx, round, args)) is not None:
        return found
    return (None if kwargs else symbolic_function(cx, round, args)) or cx.pure(round, args, kwargs)


@handles(id)
def row_id(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of an object that exists before the frame and lives on, such as a module: tensors that come and go would each be another entry."""
    (value,) = args
    if value.is_copy or isinstance(value, (SymbolicInt, SymbolicFloat)):
        raise unsupported("unknown-operation", f"id({value.describe()})")
    if isinstance(value, ConstantValue) and value.source is not None and not has_one_object(value.value):
        cx.guard("ID", value.source, identity(value.value))
    real = getattr(value, "real", None)
    if real is None or value.source is None or isinstance(value, TensorValue) and not isinstance(real, torch.nn.Parameter):
        return IdValue(value)
    cx.guard("ID", value.source, identity(real))
    return ConstantValue(id(real))


@handles(getattr)
def row_getattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = name_of(args[1])
    cx.effects.check_seen(name)
    if len(args) == 3 and (isinstance(args[0], ObjectValue) and not isinstance(args[0], ModuleValue) or args[0].computes(cx, name)):
        found = cx.unless_missing(lambda: args[0].get_attr(cx, name))
        return args[2] if found is None else found
    if len(args) == 3 and not args[0].has_attr(cx, name):
        return args[2]
    return args[0].get_attr(cx, name)


@handles(hasattr)
def row_hasattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].finds_attr(cx, name_of(args[1])))


@handles(setattr)
def row_setattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].set_attr(cx, name_of(args[1]), args[2])
    return ConstantValue(None)


@handles(delattr)
def row_delattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].del_attr(cx, name_of(args[1]))
    return ConstantValue(None)


def name_of(value: Value) -> str:
    try:
        name = value.constant()
    except NotConstant as reason:
        raise unsupported("unknown-attribute", "an attribute whose name is not known") from reason
    if not isinstance(name, str):
        raise unsupported("would-raise", "attribute name must be string")
    return name


@handles(range)
def row_range(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if any(isinstance(a, TensorValue) for a in args):
        raise unsupported("to-python", "range() of a tensor")
    return cx.pure(range, args, kwargs)


@handles(slice)
def row_slice(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = ConstantValue(None)
    return SliceValue([none, args[0], none] if len(args) == 1 else [*args, none][:3])


@handles(tuple)
def row_tuple(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(args[0].listed(cx) if args else [])


@handles(list)
def row_list(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(args[0].listed(cx) if args else [])


@handles(set)
def row_set(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], SetValue):
        return SetValue.of(dict(args[0].content), None if args[0].table is None else args[0].table.derived("copy"))
    made = SetValue(as_keys(cx, args[0].elements(cx)) if args else [])
    if args and (table := table_of(args[0])) is not None:
        made.table = Table()
        made.table.do("update", table)
    return made


@handles(frozenset)
def row_frozenset(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], ConstantValue) and type(args[0].value) is frozenset:
        return args[0]
    if args and isinstance(args[0], SetValue) and args[0].table is None and len(args[0].content) > 1:  # whose table may be larger than one of its elements
        raise unsupported("unknown-operation", "a frozenset whose order is not known")
    elements = [TupleValue(a.elements(cx)) for a in args if not isinstance(a, SetValue) or a.table is None]  # which guards what they are
    if args and (given := table_of(args[0])) is not None:
        return ConstantValue(frozenset(given.keys if isinstance(given, Table) else given))
    return cx.pure(frozenset, elements, kwargs)


def make_dict(cls: type) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = DictValue({}, cls)
        for key, value in [*(pairs_of(cx, args[0]) if args else []), *((ConstantValue(k), v) for k, v in kwargs.items())]:
            made.put(key, value)
        return made


make_dict(dict)
make_dict(collections.OrderedDict)


@handles(collections.defaultdict)
def row_defaultdict(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0] if args else ConstantValue(None)
    if not is_none(factory) and not defines(factory.pytype(), "__call__"):
        raise raises(TypeError, "first argument must be callable or None")
    made = DictValue({}, collections.defaultdict, None, factory)
    for key, value in [*(pairs_of(cx, args[1]) if len(args) > 1 else []), *((ConstantValue(k), v) for k, v in kwargs.items())]:
        made.put(key, value)
    return made


@handles(collections.Counter)
def row_counter(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = DictValue({}, collections.Counter)
    made.method(cx, "update", args, kwargs)
    return made


@handles(dict.fromkeys)
def row_fromkeys(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictValue.of([(k, args[1] if len(args) > 1 else ConstantValue(None)) for k in as_keys(cx, args[0].elements(cx))])


def super_arguments(cx: Context) -> tuple[Value, Value]:
    """The class and the object that super() without arguments finds in the running frame."""
    frame = cx.frames[-1]
    names = frame.decoded.slots
    if "__class__" not in names or not frame.code.co_argcount:
        raise unsupported("would-raise", "super(): no arguments")
    first = frame.slots[0]
    owner = first.read(cx) if isinstance(first, CellValue) and names[0] in frame.code.co_cellvars else None if first is None else cx.force(first)
    cell = frame.slots[names.index("__class__")]
    if owner is None or not isinstance(cell, CellValue):
        raise unsupported("would-raise", "super(): arg[0] deleted")
    return cell.read(cx), owner


@handles(super)
def row_super(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        cell, owner = super_arguments(cx)
        return super_of(cell, owner)
    if len(args) != 2 or not isinstance(args[0], ClassValue):
        raise unsupported("unknown-function", "super() of this form")
    return super_of(args[0], args[1])


@handles(object)
def row_object(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@handles(types.MethodType)
def row_method(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not defines(args[0].pytype(), "__call__"):
        raise raises(TypeError, "first argument must be callable")
    if is_none(args[1]):
        raise raises(TypeError, "instance must not be None")
    return BoundMethod(args[0], args[1])


@handles(typing.cast)
def row_cast(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[1]


@handles(breakpoint, sys.settrace, sys.setprofile)
def row_watching(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("watching", "a trace function, a profile function or a debugger")


@handles(print, input, builtins.open)
def row_print(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("print", "print()")


@handles(vars)
def row_vars(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return row_frame(cx, args, kwargs)
    found = cx.unless_missing(lambda: args[0].get_attr(cx, "__dict__"))
    if found is None:
        raise raises(TypeError, "vars() argument must have __dict__ attribute")
    return found


@handles(types.SimpleNamespace)
def row_namespace(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise raises(TypeError, f"no positional arguments expected (got {len(args)})", known=False)
    made = ObjectValue(types.SimpleNamespace)
    made.stored.update(kwargs)
    return made


@handles(locals, eval, exec)
def row_frame(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("frame-variables", "a call of locals(), vars(), dir(), eval() or exec()")


@handles(dir)
def row_dir(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return row_frame(cx, args, kwargs)
    (value,) = args
    if isinstance(value, ClassValue) and cx.lookup(type(value.real), "__dir__") is type.__dict__["__dir__"]:
        return ListValue([ConstantValue(name) for name in names_of_class(cx, value.real)])
    if isinstance(value, ObjectValue) and cx.lookup(value.cls, "__dir__") is object.__dict__["__dir__"]:
        own = value.namespace.keys(cx)  # type: ignore[attr-defined]
        return ListValue([ConstantValue(name) for name in sorted({*own, *names_of_class(cx, value.cls)})])
    raise unsupported("unknown-function", f"dir({value.describe()})")


def names_of_class(cx: Context, cls: type) -> list[str]:
    cx.names.of_ancestry(cls)
    for base in cls.__mro__:
        cx.names.of_own(base)
    if cx.effects.class_attributes:
        raise unsupported("unknown-function", f"dir({cls.__qualname__}), after an attribute of a class was set")
    return dir(cls)


@handles(globals)
def row_globals(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.frames[-1].scope.namespace


@handles(compile, __import__)
def row_compile(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("unknown-function", "compile() or __import__()")


def operator_row(name: str) -> None:
    @handles(getattr(operator, name))
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.operator(name, args)


for _name in (
    "add",
    "and_",
    "floordiv",
    "matmul",
    "mul",
    "mod",
    "or_",
    "pow",
    "sub",
    "truediv",
    "xor",
    "lt",
    "le",
    "eq",
    "ne",
    "gt",
    "ge",
    "neg",
    "pos",
    "invert",
    "not_",
    "is_",
    "is_not",
    "contains",
    "getitem",
    "setitem",
    "delitem",
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "iand",
    "iconcat",
    "ifloordiv",
    "ilshift",
    "imatmul",
    "imod",
    "ior",
    "ipow",
    "irshift",
    "ixor",
    "inv",
    "abs",
    "concat",
    "truth",
    "index",
    "lshift",
    "rshift",
):
    operator_row(_name)
