"""What can be compiled, and in which form it comes back: a function as a region, a module as a twin or in place."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from dynacompile.capture.values.replaced import MADE_BY
from dynacompile.capture.values.rows import HANDLERS
from dynacompile.config import CompileConfig
from dynacompile.entries import BucketView, EntryView
from dynacompile.errors import ConfigError
from dynacompile.native import core as native_core
from dynacompile.native import usable as native_usable
from dynacompile.private import of_torch
from dynacompile.region_info import buckets_of, runs_later
from dynacompile.regions import Dispatch, make_region
from dynacompile.session import SESSION

REGION = "__dynacompile_region__"
MODULE = "__dynacompile_module__"  # the module that a twin was made of
OF_ABSTRACT_CLASSES = ("__abstractmethods__", "_abc_impl")
COMPOSABLE = "torch.distributed._composable_state"  # loaded by programs that use it, and by nothing here
OPERATORS = (of_torch.OpOverload, of_torch.OpOverloadPacket, of_torch.CustomOpDef)


def compile_function(fn: Callable[..., Any], config: CompileConfig, dispatch: Dispatch | None = None, name: str | None = None) -> Any:
    """A region around a callable; a compiled one is taken apart and compiled anew. name: what it is called; None: by its own name. Raises ConfigError for
    what is not called."""
    fn, in_config = original(fn), name is not None
    if has_no_frame(fn):
        made = standing_for(fn)
        region = make_region(made, config, fn, name or made.__name__, dispatch, made.__code__, stands_for=True, in_config=in_config)
        return compiled_again_from_pickles(region, config, dispatch, name)
    if isinstance(fn, FunctionType):
        region = make_region(fn, config, fn, name or qualified(fn), dispatch, target_of(fn), in_config=in_config)
        return compiled_again_from_pickles(region, config, dispatch, name)
    if isinstance(fn, MethodType) and isinstance(inner := original(fn.__func__), FunctionType):
        return MethodType(make_region(inner, config, inner, name or qualified(inner), of_method(dispatch), target_of(inner), in_config=in_config), fn.__self__)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(compile_function(fn.__func__, config, dispatch, name))
    if isinstance(fn, type):
        return compile_class(fn, config, dispatch)
    call = original(getattr(type(fn), "__call__", None))  # noqa: B004  (the function itself is what is compiled)
    if isinstance(call, FunctionType):
        return MethodType(make_region(call, config, type(fn), name or type(fn).__qualname__, of_method(dispatch), target_of(call), in_config=in_config), fn)
    raise ConfigError(f"compile() takes what can be called: a function, a method, an nn.Module, a class or an object with __call__, not {fn!r}")


def compiled_again_from_pickles(region: Any, *options: Any) -> Any:
    """The region, which a pickle holds as its function and the options where no name leads to it: a function of another function for cloudpickle, or one
    beside which the compiled one has a name of its own."""
    if (state := getattr(region, "_region_state", None)) is not None:
        state.owner.again = (compile_function, *options)
    return region


def has_no_frame(fn: Any) -> bool:
    """Whether a call of `fn` is no frame that could be compiled: it is written in C, or capture knows it as one operation, or it is left to Python."""
    function = original(fn.__func__) if isinstance(fn, MethodType) else fn
    if isinstance(function, FunctionType):
        return SESSION.start() and (function in HANDLERS or native_core().left_to_python(function.__code__) == "recursive")
    if isinstance(fn, (*OPERATORS, functools.partial)):
        return True
    is_python = isinstance(fn, type) or isinstance(original(getattr(type(fn), "__call__", None)), FunctionType)  # noqa: B004
    return callable(fn) and not is_python


def compile_class(cls: type, config: CompileConfig, dispatch: Dispatch | None) -> type:
    """Has the calls of the class's objects compiled, and gives the class. Raises ConfigError where they are no Python code."""
    slot = "_call_impl" if issubclass(cls, torch.nn.Module) and cls.__call__ is torch.nn.Module.__call__ else "__call__"
    call = original(getattr(cls, slot, None))
    if not isinstance(call, FunctionType):
        raise ConfigError(f"compile() takes a class whose objects have a Python __call__, which is what is compiled; {cls.__qualname__} has none")
    target = code_of_forward(cls) if slot == "_call_impl" else target_of(call)
    setattr(cls, slot, make_region(call, config, cls, cls.__qualname__, of_method(dispatch), target))
    return cls


def code_of_forward(cls: type) -> CodeType | None:
    """What a module's class computes, where that is Python code."""
    forward = getattr(cls, "forward", None)  # of an instance's own, as torch.compile gives its modules one, the class knows nothing
    return target_of(forward) if isinstance(forward, FunctionType) and forward is not torch.nn.Module.forward else None


def target_of(fn: FunctionType) -> CodeType:
    """The code that a compile of `fn` is about. A wrapper in a folder that is left to Python, as decorators of contextlib and torch make, runs as
    Python where it wraps a function that is compiled by itself, which is the target then: compiling both would break twice where that function breaks.
    A wrapper of library code alone, as an optimizer's step, is the target itself.
    """
    seen: list[FunctionType] = []
    waiting = [fn]
    while waiting:
        seen.append(inner := waiting.pop())
        if native_usable()[0] and SESSION.start() and native_core().is_skipped(inner.__code__):
            waiting += [f for f in wrapped_by(inner) if not any(f is other for other in (*seen, *waiting))]
        elif inner is fn or not runs_later(inner.__code__):
            return inner.__code__
    return fn.__code__


def wrapped_by(fn: FunctionType) -> list[FunctionType]:
    """The function that a wrapper says to wrap; where it says none, those that it closes over."""
    inner = getattr(fn, "__wrapped__", None)
    found = [cell.cell_contents for cell in fn.__closure__ or () if is_filled(cell)] if inner is None else [inner]
    bare = [original(f.__func__ if isinstance(f, MethodType) else f) for f in found]
    return [f for f in bare if isinstance(f, FunctionType)]


def is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (reading it is the question)
    except ValueError:
        return False
    return True


def standing_for(fn: Callable[..., Any], of: Any = None) -> FunctionType:
    """A Python function that calls `fn`, whose own call is no frame that is compiled: one for the hook to meet. Its code is its own, as its entries are.
    of: what it is named for; None: `fn`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    of = of or (fn.func if isinstance(fn, functools.partial) else fn)
    name = str(fn) if isinstance(fn, OPERATORS) else str(getattr(of, "__qualname__", None) or getattr(of, "__name__", None) or type(fn).__name__)
    own = (*call.__code__.co_consts, id(fn))  # codes that are equal would share what is kept by code
    made = FunctionType(call.__code__.replace(co_name=name, co_qualname=name, co_consts=own), call.__globals__, name, None, call.__closure__)
    return functools.update_wrapper(made, fn)  # type: ignore[return-value]


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
    usable, _ = native_usable()
    if not usable:
        return ()
    found = getattr(type(target), REGION, None) or getattr(target, "_compiled_call_impl", None) if isinstance(target, torch.nn.Module) else target
    found = found.__func__ if isinstance(found, MethodType) else found
    if not isinstance(found, native_core().Region):
        raise ConfigError(f"cache_entries() takes what compile() returned, not {target!r}")
    return buckets_of(found)


def original(fn: Any) -> Any:
    """The function below a region, `fn` itself where it is none."""
    usable, _ = native_usable()
    return fn._region_function if usable and isinstance(fn, native_core().Region) else fn


def qualified(fn: Callable[..., Any]) -> str:
    return fn.__qualname__.replace("<locals>.", "")


def twin(module: torch.nn.Module, config: CompileConfig, dispatch: Dispatch | None = None) -> torch.nn.Module:
    """A module that shares `module`'s state (its `__dict__`) and differs in its call alone, which is compiled.

    Its class is a subclass made for it, named as the original's; the compiled frames see the original as `self`. Other objects of that class, which
    `type(compiled)(...)` and torch's replicas are, have state of their own, and are compiled as themselves.
    """
    module = original_module(module)
    cls = type(module)
    own = None if isinstance(module, torch.fx.GraphModule) else getattr(cls, "__call__", None)  # noqa: B004  (the function itself is what is compiled)
    if is_made_by_torch(cls):
        region = region_around(module, config, cls.__name__, dispatch)
    else:
        inherited: Callable[..., Any] = of_torch.module_call_impl
        fn = own if isinstance(own, FunctionType) and own is not torch.nn.Module.__call__ else inherited
        region = make_region(fn, config, cls, cls.__name__, of_method(dispatch), code_of_forward(cls))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return region(module if type(self) is kind and self.__dict__ is module.__dict__ else self, *args, **kwargs)

    def reduced(self: Any, protocol: Any) -> Any:
        return (twin, (original_module(self), config, dispatch)) if type(self) is kind else super(kind, self).__reduce_ex__(protocol)

    def copied(self: Any) -> Any:
        return twin(copy.copy(original_module(self)), config, dispatch) if type(self) is kind else copy_of_changed(self, kind)

    def deep_copied(self: Any, memo: dict) -> Any:
        return twin(copy.deepcopy(original_module(self), memo), config, dispatch) if type(self) is kind else deep_copy_of_changed(self, kind, memo)

    namespace = {
        "__call__": call,
        REGION: region,
        MODULE: module,
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": reduced,
        "__copy__": copied,
        "__deepcopy__": deep_copied,
    }
    if not hasattr(module, "buckets"):
        namespace["buckets"] = property(lambda self: buckets_of(region), doc="its buckets of entries")
    kind = passing_on(type(cls))(cls.__name__, (cls,), namespace)
    made = object.__new__(kind)
    object.__setattr__(made, "__dict__", module.__dict__)
    share_state(module, made)
    return made


def passing_on(metaclass: Any) -> Any:
    """A metaclass for twins' classes: what is set on such a class is set on the class that it stands for, as its calls look there."""

    def place(kind: Any, name: str) -> Any:
        own = vars(kind)
        return kind.__base__ if MODULE in own and name not in own and name not in OF_ABSTRACT_CLASSES else None

    def set_attribute(kind: Any, name: str, value: Any) -> None:
        there = place(kind, name)
        if there is None:
            metaclass.__setattr__(kind, name, value)
        else:
            setattr(there, name, value)

    def delete_attribute(kind: Any, name: str) -> None:
        there = place(kind, name)
        if there is None:
            metaclass.__delattr__(kind, name)
        else:
            delattr(there, name)

    return type(metaclass.__name__, (metaclass,), {"__setattr__": set_attribute, "__delattr__": delete_attribute, "__module__": metaclass.__module__})


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module that a twin stands for; one that is no twin itself. For another object of a twin's class it is one of the original class with its state."""
    cls = type(module)
    if MODULE not in cls.__dict__:
        return module
    first = cls.__dict__[MODULE]
    if module.__dict__ is first.__dict__:
        return first
    plain = object.__new__(type(first))
    object.__setattr__(plain, "__dict__", module.__dict__)
    return plain


def copy_of_changed(module: Any, kind: Any) -> torch.nn.Module:
    """copy.copy() of an object whose class was made of a twin's, as parametrizations do, without the twin's own methods. kind: the twin's class."""
    own = getattr(super(kind, module), "__copy__", None)
    if own is not None:
        return own()
    make, args, state = super(kind, module).__reduce_ex__(4)[:3]
    made = make(*args)
    made.__setstate__(state)
    return made


def deep_copy_of_changed(module: Any, kind: Any, memo: dict) -> torch.nn.Module:
    own = getattr(super(kind, module), "__deepcopy__", None)
    if own is not None:
        return own(memo)
    made = memo[id(module)] = object.__new__(type(module))
    object.__setattr__(made, "__dict__", copy.deepcopy(module.__dict__, memo))
    return made


def is_made_by_torch(cls: type) -> bool:
    """Whether objects of the class are what torch.compile gives for modules."""
    return cls.__qualname__ == "OptimizedModule" and cls.__module__.endswith(MADE_BY)


def region_around(
    module: torch.nn.Module, config: CompileConfig, name: str, dispatch: Dispatch | None, in_config: bool = False, caller: CodeType | None = None
) -> Any:
    """The region of what torch.compile gives for a module. Its call begins Dynamo, in a frame that is not compiled; capture of a frame around it goes on with
    the module that it was made of."""
    made = standing_for(of_torch.module_call_impl, type(module._orig_mod))
    return make_region(made, config, type(module), name, of_method(dispatch), made.__code__, stands_for=True, in_config=in_config, caller=caller)


def share_state(module: torch.nn.Module, made: torch.nn.Module) -> None:
    """Gives a twin what torch keeps for its module by identity: the state of `fully_shard` and of its likes, which their methods look up."""
    if COMPOSABLE in sys.modules and module in of_torch.module_states:
        of_torch.module_states[made] = of_torch.module_states[module]


def compile_in_place(module: torch.nn.Module, config: CompileConfig, name: str | None, dispatch: Dispatch | None = None) -> torch.nn.Module:
    """Puts a region in the slot that `nn.Module.__call__` looks at; state_dict, pickles and copies are not touched."""
    cls, shown, in_config = type(module), name or type(module).__name__, name is not None
    caller = of_torch.module_wrapped_call_impl.__code__
    if is_made_by_torch(cls):
        region = region_around(module, config, shown, dispatch, in_config, caller)
    else:
        region = make_region(of_torch.module_call_impl, config, cls, shown, of_method(dispatch), code_of_forward(cls), in_config=in_config, caller=caller)
    module._compiled_call_impl = MethodType(region, module)
    if getattr(module, "buckets", ()) == () or isinstance(module.buckets, Buckets):
        module.__dict__["buckets"] = Buckets(region)
    return module


def nothing_compiled(module: torch.nn.Module) -> bool:
    """Whether no call has come through the region of a module compiled in place so far: whoever calls its `forward` goes around it."""
    region = original_region(module)
    return region is not None and not is_met(region)


def is_met(region: Any) -> bool:
    states = [region._region_state] if region._region_states is None else region._region_states.values()
    return any(state.met for state in states)


def was_called(compiled: Callable[..., Any]) -> bool:
    """Whether a call has come through a compiled function or method so far; True where the native core does not work here."""
    region = compiled.__func__ if isinstance(compiled, MethodType) else compiled
    return not native_usable()[0] or not isinstance(region, native_core().Region) or is_met(region)


def share_names(compiled: Any, own: Iterable[tuple[str, str]]) -> None:
    """Of a function, method or module compiled in place: but for `own`, what its `dynamic` and `varying` name may be another compile's. own: an option and a
    name each."""
    if (owner := info_of(compiled)) is not None:
        owner.own_names = frozenset(own)


def absent_names(compiled: Any) -> Mapping[tuple[str, str], str] | None:
    """The names that it shares with other compiles and does not have, with what is told of each. None where that is not known."""
    owner = info_of(compiled)
    return None if owner is None else owner.absent


def info_of(compiled: Any) -> Any:
    """What is known of the region of a function, method or module compiled in place; None where there is no region."""
    region = original_region(compiled) if isinstance(compiled, torch.nn.Module) else getattr(compiled, "__func__", compiled)
    return region._region_state.owner if native_usable()[0] and isinstance(region, native_core().Region) else None


def original_region(module: torch.nn.Module) -> Any:
    """The region of a module compiled in place; None where the native core does not work here."""
    call = getattr(module, "_compiled_call_impl", None)
    found = getattr(call, "__func__", None)
    return found if native_usable()[0] and isinstance(found, native_core().Region) else None


def tell_nothing_compiled(module: torch.nn.Module) -> None:
    """An event and a warning that calls of a module compiled in place go around it. Raises Unsupported where it was compiled with fullgraph."""
    region = original_region(module)
    if region is not None:
        region._region_state.owner.nothing_called()


def restore(module: torch.nn.Module) -> torch.nn.Module:
    """Undoes `compile(module, inplace=True)`. Raises ConfigError for a module that is not compiled in place."""
    if getattr(module, "_compiled_call_impl", None) is None:
        raise ConfigError(f"{type(module).__name__} is not compiled in place, so there is nothing to restore; it needs compile(module, inplace=True) first")
    module._compiled_call_impl = None
    if isinstance(module.__dict__.get("buckets"), Buckets):
        del module.__dict__["buckets"]
    return module
