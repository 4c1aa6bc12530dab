"""Global names: what code reads in the dict of its module and in the builtins, and what is raised where neither has them."""

from __future__ import annotations

import operator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.exceptions import undefined
from dynacompile.capture.values.namespaces import NamespaceValue
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import Flag
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.source import Builtin, Constant, Global, Item

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


POLYFILLS = "dynacompile.capture.polyfills"


class Globals:
    """A globals dict as code sees it. is_root: it is the one of the captured frame."""

    def __init__(self, table: dict[str, Any], is_root: bool):
        self.table, self.is_root = table, is_root
        self.module = str(table.get("__name__", "globals"))
        self.trusted = not is_root and is_trusted(self.module)
        self.is_ours = self.module.startswith(POLYFILLS)  # which nobody changes

    @cached_property
    def namespace(self) -> GlobalsDict:
        return GlobalsDict(self)

    def load(self, cx: Context, name: str) -> Value:
        return cx.global_of(self.table, name, lambda: self.read(cx, name), lambda: self.deleted(cx, name))

    def read(self, cx: Context, name: str) -> Value:
        real = self.table.get(name, MISSING)
        if real is not MISSING:
            if self.is_root:
                return cx.wrap(real, Global(name))
            if not self.trusted:
                return cx.wrap(real, Item(Constant(self.table, self.module), name))
            if not self.is_ours:
                cx.names.of_dict(self.table, self.module, name)
            return cx.wrap(real, Constant(real, f"{self.module}.{name}"))
        if name not in cx.builtins:
            raise self.missing(cx, name)
        real = cx.builtins[name]
        return cx.wrap(real, Builtin(name) if self.is_root else Constant(real, name))

    def deleted(self, cx: Context, name: str) -> Value:
        """What is read after the frame deleted a name."""
        if name in cx.builtins:
            raise unsupported("would-raise", f"name {name!r} is deleted, and a builtin")
        absent(cx, cx.builtins, name, "builtins")
        raise undefined(cx, name)

    def missing(self, cx: Context, name: str) -> Raised:
        """What is raised for a name that neither the dict nor the builtins have, which is guarded."""
        absent(cx, self.table, name, self.module)
        absent(cx, cx.builtins, name, "builtins")
        return undefined(cx, name)

    def require(self, cx: Context, name: str) -> None:
        """Before a deletion, which does not look at the builtins."""
        if (id(self.table), name) not in cx.effects.globals and name not in self.table:
            absent(cx, self.table, name, self.module)
            raise undefined(cx, name)
        self.load(cx, name)


class GlobalsDict(NamespaceValue):
    """A globals dict as an object: `globals()`, `function.__globals__`."""

    def __init__(self, scope: Globals):
        self.scope = scope

    def describe(self) -> str:
        return f"the globals of {self.scope.module}"

    def identity(self) -> Any:
        return self.scope.table

    def find_name(self, cx: Context, name: str) -> Value | None:
        changed = cx.effects.globals.get((id(self.scope.table), name))
        if changed is not None:
            return changed[2]
        if name in self.scope.table:
            return self.scope.load(cx, name)
        absent(cx, self.scope.table, name, self.scope.module)
        return None

    def names(self, cx: Context) -> list[str]:
        table, changes = self.scope.table, cx.effects.globals
        cx.guard("FLAG", None, Flag(f"the names in {self.scope.module}", partial(tuple, table), tuple(table)))
        changed = {name: value[2] for (key, name), value in changes.items() if key == id(table)}
        if not changed.keys().isdisjoint(name for key, name in cx.effects.removed if key == id(table)):
            raise unsupported("unknown-operation", f"all of {self.describe()}, some of which were removed")
        return [*(n for n in table if changed.get(n, table) is not None), *(n for n, value in changed.items() if value is not None and n not in table)]

    def put(self, cx: Context, name: str, value: Value) -> None:
        cx.effects.store_global(self.scope.table, self.scope.is_root, name, value)

    def drop(self, cx: Context, name: str) -> None:
        cx.effects.store_global(self.scope.table, self.scope.is_root, name, None)

    def rebuild(self, out: Writer) -> None:
        out.const(self.scope.table)


def absent(cx: Context, table: dict[str, Any], name: str, module: str) -> None:
    cx.flag(f"{name!r} in {module}", partial(operator.contains, table, name))
