"""Views of dicts that exist before the frame: `named.values()` as an argument, `self.names = table.keys()` as an attribute."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import KeysView, ValuesView
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.dict_objects import DictObjectValue
from dynacompile.capture.values.mapping import DictLike, DictView
from dynacompile.ir.source import Applied, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

VIEWS = tuple(type(getattr(cls(), kind)()) for cls in (dict, OrderedDict) for kind in ("keys", "values", "items"))


def dict_of(view: Any) -> Any:
    """The dict of a view: what its `mapping` shows."""
    return gc.get_referents(view)[0]


@wraps(*VIEWS)
def wrap_view(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    kind = "keys" if isinstance(real, KeysView) else "values" if isinstance(real, ValuesView) else "items"
    owner = cx.wrap(dict_of(real), Applied(source, dict_of, "'s dict"))
    if isinstance(owner, DictObjectValue):
        found = owner.container_method(cx, kind, [], {})
        assert isinstance(found, DictView)
        found.source = source
        return found
    if not isinstance(owner, DictLike):
        raise unsupported("unknown-object", f"{source.text()}, a view of {owner.describe()}")
    return DictView(owner, kind, source)
