"""Constants, locals, cells, globals and imports."""

from __future__ import annotations

import builtins
import importlib.util
import sys
import types
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.values.base import NULL, Lazy
from dynacompile.capture.values.cells import UNBOUND, CellValue
from dynacompile.capture.values.exceptions import raised_here
from dynacompile.capture.values.python_modules import to_be_loaded
from dynacompile.ir.fakes import StandIn
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr


@opcode("LOAD_CONST", effect=1)
def load_const(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.literal(f.code.co_consts[i.arg]))


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", effect=1)
def load_fast(f: SymbolicFrame, i: Instr) -> None:
    value = f.slots[i.arg]
    if value is None:
        raise unbound(f, i)
    f.push(value)  # read by what takes it from the stack


@opcode("LOAD_FAST_AND_CLEAR", effect=1)
def load_fast_and_clear(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.slots[i.arg] or NULL)
    f.slots[i.arg] = None


@opcode("STORE_FAST", effect=-1)
def store_fast(f: SymbolicFrame, i: Instr) -> None:
    (value,) = f.pop_unread(1)
    before = f.slots[i.arg]
    f.slots[i.arg] = None if value is NULL else value
    f.dropped(before)


@opcode("DELETE_FAST", effect=0)
def delete_fast(f: SymbolicFrame, i: Instr) -> None:
    if f.slots[i.arg] is None:
        raise unbound(f, i)
    before, f.slots[i.arg] = f.slots[i.arg], None
    f.dropped(before)


@opcode("MAKE_CELL", effect=0)
def make_cell(f: SymbolicFrame, i: Instr) -> None:
    is_root = f.cx.frames[0] is f
    f.slots[i.arg] = CellValue(f.slots[i.arg], f.decoded.slots[i.arg], slot=i.arg if is_root else None)


@opcode("COPY_FREE_VARS", effect=0)
def copy_free_vars(f: SymbolicFrame, i: Instr) -> None:
    f.slots[f.decoded.first_free :] = list(f.closure)


@opcode("LOAD_CLOSURE", effect=1)
def load_closure(f: SymbolicFrame, i: Instr) -> None:
    f.push(cell_at(f, i))


@opcode("LOAD_DEREF", effect=1)
def load_deref(f: SymbolicFrame, i: Instr) -> None:
    f.push(filled_cell(f, i).read(f.cx))


@opcode("STORE_DEREF", effect=-1)
def store_deref(f: SymbolicFrame, i: Instr) -> None:
    cell_at(f, i).write(f.cx, f.pop())


@opcode("DELETE_DEREF", effect=0)
def delete_deref(f: SymbolicFrame, i: Instr) -> None:
    cell = filled_cell(f, i)
    if cell.content is None:
        raise unsupported("would-raise", f"deleting variable {cell.name!r}")
    if isinstance(cell.content, Lazy):  # another call may find the cell empty
        f.cx.guard("TYPE", cell.content.source, cell.content.pytype())
    cell.write(f.cx, None)


def cell_at(f: SymbolicFrame, i: Instr) -> CellValue:
    cell = f.slots[i.arg]
    if not isinstance(cell, CellValue):
        raise unsupported("would-raise", f"variable {f.decoded.slots[i.arg]!r} has no cell")
    return cell


def filled_cell(f: SymbolicFrame, i: Instr) -> CellValue:
    """A cell with a content, or one that was empty before the frame. That it is so in another call, too, is not guarded: its access is left to Python."""
    cell = cell_at(f, i)
    if cell.content is None and (cell.overwritten is not None or not (cell.was_empty and cell.exists(own_cells=False))):
        raise unbound(f, i)
    return cell


def unbound(f: SymbolicFrame, i: Instr) -> Raised:
    """What Python raises where a variable without a value is read or deleted."""
    name = f.decoded.slots[i.arg]
    if i.arg >= f.decoded.first_free and name not in f.cx.codes.cellvars(f.decoded):
        return raised_here(f.cx, NameError, f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope", name=name)
    return raised_here(f.cx, UnboundLocalError, UNBOUND.format(name))


@opcode("LOAD_GLOBAL", effect=lambda arg, jump: 1 + (arg & 1))
def load_global(f: SymbolicFrame, i: Instr) -> None:
    found = f.scope.load(f.cx, f.code.co_names[i.arg >> 1])
    if i.arg & 1:
        f.push_callable(found)
    else:
        f.push(found)


@opcode("STORE_GLOBAL", effect=-1)
def store_global(f: SymbolicFrame, i: Instr) -> None:
    f.cx.effects.store_global(f.scope.table, f.scope.is_root, f.code.co_names[i.arg], f.pop())


@opcode("DELETE_GLOBAL", effect=0)
def delete_global(f: SymbolicFrame, i: Instr) -> None:
    name = f.code.co_names[i.arg]
    f.scope.require(f.cx, name)
    f.cx.effects.store_global(f.scope.table, f.scope.is_root, name, None)


@opcode("LOAD_ASSERTION_ERROR", effect=1)
def load_assertion_error(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.of(AssertionError))


@opcode("IMPORT_NAME", effect=-1)
def import_name(f: SymbolicFrame, i: Instr) -> None:
    """An import of a module that is loaded already has no effect but its result, unless what is wanted from it is a module of it that is not."""
    fromlist, level = f.pop(), f.pop()
    name = absolute_name(f, f.code.co_names[i.arg], level.constant())
    wanted = name if fromlist.truth(f.cx) else name.partition(".")[0]
    f.cx.names.of_dict(builtins.__dict__, "builtins", "__import__")
    if type(builtins.__import__) is not types.BuiltinFunctionType:
        raise unsupported("import", name)
    for needed in (name, wanted):
        if needed not in sys.modules:
            raise to_be_loaded(needed)
        if not is_loaded(needed):
            raise unsupported("import", needed)
    if fromlist.truth(f.cx):
        for part in fromlist.constant():
            if is_to_be_loaded(sys.modules[name], part):
                raise to_be_loaded(f"{name}.{part}")
    for loaded in {name, wanted}:
        f.cx.names.of_dict(sys.modules, "sys.modules", loaded)
    f.push(f.cx.wrap(sys.modules[wanted], Constant(sys.modules[wanted], wanted)))


def absolute_name(f: SymbolicFrame, name: str, depth: int) -> str:
    """The name of a module that is imported relative to the package of the code, `depth` dots up. Python warns of other ways to tell the package, or raises."""
    if not depth:
        return name
    f.cx.names.of_dict(f.scope.table, "globals()", "__package__")
    package = f.scope.table.get("__package__")
    parents = package.split(".") if isinstance(package, str) and package else []
    if len(parents) < depth:
        raise unsupported("import", "." * depth + name)
    return ".".join(parents[: len(parents) - depth + 1] + [name] * bool(name))


def is_loaded(name: str) -> bool:
    """Whether an import finds a module without more ado: it asks what it finds for `__spec__`, which may run code of the program, or load the module."""
    module = sys.modules.get(name)
    if not isinstance(module, types.ModuleType) or isinstance(module, StandIn):
        return False
    return type(module).__getattribute__ is types.ModuleType.__getattribute__ and "__spec__" in module.__dict__


def is_to_be_loaded(package: types.ModuleType, name: str) -> bool:
    """Whether `from package import name` loads a module."""
    if not hasattr(package, "__path__") or name in vars(package) or f"{package.__name__}.{name}" in sys.modules:
        return False
    try:
        return importlib.util.find_spec(f"{package.__name__}.{name}") is not None
    except (ImportError, ValueError):  # of a finder that does not know the package
        return True


@opcode("IMPORT_FROM", effect=1)
def import_from(f: SymbolicFrame, i: Instr) -> None:
    """What the package has not got may be a module of it, where modules import each other."""
    package, name = f.peek(1), f.code.co_names[i.arg]
    found = f.cx.unless_missing(lambda: package.get_attr(f.cx, name))
    if found is None:
        raise unsupported("would-raise", f"{name!r} is not found in {package.describe()}")
    f.push(found)
