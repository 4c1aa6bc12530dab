"""Calls and function objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.calling import called
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.values.base import NULL, Keywords, Lazy, Method, Value
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.mapping import pairs_of
from dynacompile.capture.values.sequence import ListValue

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr


@opcode("KW_NAMES", effect=0)
def kw_names(f: SymbolicFrame, i: Instr) -> None:
    f.kw_names = f.code.co_consts[i.arg]


def pair(f: SymbolicFrame) -> tuple[Value, Value]:
    """What a call takes below its arguments."""
    first, second = f.pop_many(2)
    return first, second


@opcode("CALL", effect=lambda arg, jump: -1 - arg)
def call(f: SymbolicFrame, i: Instr) -> None:
    """Stack: a callable and NULL, in the version's order, or a callable and its bound argument; then the arguments."""
    names, f.kw_names = f.kw_names, ()
    args = f.pop_unread(i.arg)
    function, bound = called(*pair(f), NULL)
    if not (isinstance(function, Method) and isinstance(function.owner, ListValue) and function.name == "append"):  # which keeps them as they are
        args = [v.force() if isinstance(v, Lazy) else v for v in args]
    args = bound + args
    kwargs = dict(zip(names, args[len(args) - len(names) :])) if names else {}
    f.calling = function
    f.push(function.call(f.cx, args[: len(args) - len(names)], kwargs))


@opcode("CALL_FUNCTION_EX", effect=lambda arg, jump: -2 - (arg & 1))
def call_function_ex(f: SymbolicFrame, i: Instr) -> None:
    kwargs: dict[str, Value] = Keywords() if i.arg & 1 else {}
    if i.arg & 1:
        for key, value in pairs_of(f.cx, f.pop()):
            name = key.constant()
            if not isinstance(name, str):
                raise unsupported("would-raise", "keywords must be strings")
            kwargs[name] = value
    args = f.pop().listed(f.cx)
    function, _ = called(*pair(f), NULL)
    f.calling = function
    f.push(function.call(f.cx, args, kwargs))


@opcode("MAKE_FUNCTION", effect=lambda arg, jump: -bin(arg & 15).count("1"))
def make_function(f: SymbolicFrame, i: Instr) -> None:
    code = f.pop().constant()
    cells = [c for c in f.pop().elements(f.cx) if isinstance(c, CellValue)] if i.arg & 8 else []
    annotations = f.pop() if i.arg & 4 else None
    keyword_defaults = {k.constant(): v for k, v in pairs_of(f.cx, f.pop())} if i.arg & 2 else {}
    defaults = f.pop().elements(f.cx) if i.arg & 1 else []
    made = FunctionValue(code, f.scope, code.co_qualname, [d for d in defaults if not isinstance(d, Lazy)], keyword_defaults, cells)
    made.annotations = annotations
    f.push(made)


@opcode("LOAD_BUILD_CLASS", effect=1)
def load_build_class(f: SymbolicFrame, i: Instr) -> None:
    raise unsupported("unknown-operation", "a class statement inside the function")
