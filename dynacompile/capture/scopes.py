"""Global names: what code reads in the dict of its module and in the builtins, and what is raised where neither has them."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.exceptions import undefined
from dynacompile.capture.values.functions import is_trusted
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.source import Builtin, Constant, Global, Item

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


class Globals:
    """A globals dict as code sees it. is_root: it is the one of the captured frame."""

    def __init__(self, table: dict[str, Any], is_root: bool):
        self.table, self.is_root = table, is_root
        self.module = str(table.get("__name__", "globals"))
        self.trusted = not is_root and is_trusted(self.module)

    def load(self, cx: Trace, name: str) -> Value:
        return cx.global_of(self.table, name, lambda: self.read(cx, name), lambda: self.deleted(cx, name))

    def read(self, cx: Trace, name: str) -> Value:
        real = self.table.get(name, MISSING)
        if real is not MISSING:
            if self.is_root:
                return cx.wrap(real, Global(name))
            if not self.trusted:
                return cx.wrap(real, Item(Constant(self.table, self.module), name))
            cx.names.of_dict(self.table, self.module, name)
            return cx.wrap(real, Constant(real, f"{self.module}.{name}"))
        if name not in cx.builtins:
            raise self.missing(cx, name)
        real = cx.builtins[name]
        return cx.wrap(real, Builtin(name) if self.is_root else Constant(real, name))

    def deleted(self, cx: Trace, name: str) -> Value:
        """What is read after the frame deleted a name."""
        if name in cx.builtins:
            raise unsupported("would-raise", f"name {name!r} is deleted, and a builtin")
        absent(cx, cx.builtins, name, "builtins")
        raise undefined(cx, name)

    def missing(self, cx: Trace, name: str) -> Raised:
        """What is raised for a name that neither the dict nor the builtins have, which is guarded."""
        absent(cx, self.table, name, self.module)
        absent(cx, cx.builtins, name, "builtins")
        return undefined(cx, name)

    def require(self, cx: Trace, name: str) -> None:
        """Before a deletion, which does not look at the builtins."""
        if (id(self.table), name) not in cx.effects.globals and name not in self.table:
            absent(cx, self.table, name, self.module)
            raise undefined(cx, name)
        self.load(cx, name)


def absent(cx: Trace, table: dict[str, Any], name: str, module: str) -> None:
    cx.flag(f"{name!r} in {module}", partial(operator.contains, table, name))
