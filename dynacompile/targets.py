"""What can be compiled, and in which form it comes back: a function as a region, a module as a twin or in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from dynacompile import native
from dynacompile.config import CompileConfig
from dynacompile.entries import BucketView, EntryView
from dynacompile.errors import ConfigError
from dynacompile.regions import Dispatch, buckets_of, make_region

REGION = "__dynacompile_region__"


def compile_function(fn: Callable[..., Any], config: CompileConfig, dispatch: Dispatch | None = None) -> Any:
    """A region around a Python function or bound method; a compiled one is taken apart and compiled anew."""
    fn = original(fn)
    if isinstance(fn, MethodType):
        return MethodType(make_region(fn.__func__, config, fn.__func__, qualified(fn.__func__), of_method(dispatch)), fn.__self__)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(compile_function(fn.__func__, config, dispatch))
    if not isinstance(fn, FunctionType):
        call = getattr(type(fn), "__call__", None)  # noqa: B004  (the function itself is what is compiled)
        if isinstance(fn, type) or not isinstance(call, FunctionType):
            raise ConfigError(f"compile() takes a Python function, a method, an nn.Module or an object with a Python __call__, not {fn!r}")
        return MethodType(make_region(call, config, type(fn), type(fn).__qualname__, of_method(dispatch)), fn)
    return make_region(fn, config, fn, qualified(fn), dispatch)


def of_method(dispatch: Dispatch | None) -> Dispatch | None:
    """The user's dispatch for a function that gets `self` first."""
    if dispatch is None:
        return None
    choose = dispatch.choose
    return Dispatch(lambda self, *args, **kwargs: choose(*args, **kwargs), dispatch.settings)


def cache_entries(target: Any) -> tuple[EntryView, ...]:
    """Every entry of a compiled function, method or module. Raises ConfigError for what is not compiled."""
    return tuple(entry for bucket in buckets(target) for entry in bucket.entries)


class Buckets(Sequence[BucketView]):
    """`module.buckets` of a module that is compiled in place: views of its region's buckets as of now. A copy of the module is not compiled, and has none."""

    def __init__(self, region: Any):
        self.region = region

    def __getitem__(self, index: Any) -> Any:
        return buckets_of(self.region)[index]

    def __len__(self) -> int:
        return len(buckets_of(self.region))

    def __repr__(self) -> str:
        return "\n".join(map(str, self))

    def __reduce__(self) -> tuple[type, tuple]:
        return tuple, ()


def buckets(target: Any) -> tuple[BucketView, ...]:
    usable, _ = native.usable()
    if not usable:
        return ()
    found = getattr(type(target), REGION, None) or getattr(target, "_compiled_call_impl", None) if isinstance(target, torch.nn.Module) else target
    found = found.__func__ if isinstance(found, MethodType) else found
    if not isinstance(found, native.core().Region):
        raise ConfigError(f"cache_entries() takes what compile() returned, not {target!r}")
    return buckets_of(found)


def original(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function below a region, `fn` itself where it is none."""
    usable, _ = native.usable()
    return fn._region_function if usable and isinstance(fn, native.core().Region) else fn


def qualified(fn: Callable[..., Any]) -> str:
    return fn.__qualname__.replace("<locals>.", "")


def twin(module: torch.nn.Module, config: CompileConfig, dispatch: Dispatch | None = None) -> torch.nn.Module:
    """A module that shares `module`'s state (its `__dict__`) and differs in its call alone, which is compiled.

    Its class is a subclass made for it, named as the original's; the compiled frames see the original as `self`.
    """
    cls = type(module)
    own = getattr(cls, "__call__", None)  # noqa: B004  (the function itself is what is compiled)
    inherited: Callable[..., Any] = torch.nn.Module._call_impl
    region = make_region(
        own if isinstance(own, FunctionType) and own is not torch.nn.Module.__call__ else inherited, config, cls, cls.__name__, of_method(dispatch)
    )

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return region(module, *args, **kwargs)

    namespace = {
        "__call__": call,
        REGION: region,
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": lambda self, protocol: (twin, (module, config, dispatch)),
        "__deepcopy__": lambda self, memo: twin(copy.deepcopy(module, memo), config, dispatch),
    }
    if not hasattr(module, "buckets"):
        namespace["buckets"] = property(lambda self: buckets_of(region), doc="its buckets of entries")
    metaclass: Any = type(cls)
    made = object.__new__(metaclass(cls.__name__, (cls,), namespace))
    object.__setattr__(made, "__dict__", module.__dict__)
    return made


def compile_in_place(module: torch.nn.Module, config: CompileConfig, name: str | None, dispatch: Dispatch | None = None) -> torch.nn.Module:
    """Puts a region in the slot that `nn.Module.__call__` looks at; state_dict, pickles and copies are not touched."""
    region = make_region(torch.nn.Module._call_impl, config, type(module), name or type(module).__name__, of_method(dispatch))
    module._compiled_call_impl = MethodType(region, module)
    if getattr(module, "buckets", ()) == () or isinstance(module.buckets, Buckets):
        module.__dict__["buckets"] = Buckets(region)
    return module


def restore(module: torch.nn.Module) -> torch.nn.Module:
    """Undoes `compile(module, inplace=True)`. Raises ConfigError for a module that is not compiled in place."""
    if getattr(module, "_compiled_call_impl", None) is None:
        raise ConfigError(f"{type(module).__name__} is not compiled in place, so there is nothing to restore; it needs compile(module, inplace=True) first")
    module._compiled_call_impl = None
    if isinstance(module.__dict__.get("buckets"), Buckets):
        del module.__dict__["buckets"]
    return module
