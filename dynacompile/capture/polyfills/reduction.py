"""What object defines for copies: `__reduce_ex__` and `__getstate__`."""

from __future__ import annotations

import copyreg
from typing import Any


def reduce_ex(self: Any, protocol: int) -> Any:
    """object.__reduce_ex__, by a protocol from 2 on."""
    cls = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    if hasattr(cls, "__getnewargs_ex__"):
        args, kwargs = self.__getnewargs_ex__()
        if kwargs:
            return copyreg.__newobj_ex__, (cls, args, kwargs), *parts(self)  # type: ignore[attr-defined]
    else:
        args = self.__getnewargs__() if hasattr(cls, "__getnewargs__") else ()
    return copyreg.__newobj__, (cls, *args), *parts(self)  # type: ignore[attr-defined]


def parts(self: Any) -> tuple[Any, Any, Any]:
    """The state, and the items of a list or a dict."""
    return self.__getstate__(), iter(self) if isinstance(self, list) else None, iter(self.items()) if isinstance(self, dict) else None


def getstate(self: Any) -> Any:
    """object.__getstate__"""
    state = self.__dict__ if hasattr(self, "__dict__") and self.__dict__ else None
    slots = {name: getattr(self, name) for name in slot_names(type(self)) if hasattr(self, name)}
    return (state, slots) if slots else state


def slot_names(cls: type) -> list[str]:
    """Of a class and those that it derives from, as copyreg has them."""
    names = []
    for base in cls.__mro__:
        given = base.__dict__.get("__slots__", ())
        for name in (given,) if isinstance(given, str) else given:
            if name in ("__dict__", "__weakref__"):
                continue
            names.append(f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") and base.__name__.lstrip("_") else name)
    return names
