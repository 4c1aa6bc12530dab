"""The public functions. Each is a few lines over `targets`, `regions` and `observe`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Any, Never

import torch

from dynacompile.backends import BACKENDS
from dynacompile.background import BACKGROUND
from dynacompile.complaints import Reporting
from dynacompile.config import CompileConfig
from dynacompile.env import misspelt_variables
from dynacompile.errors import ConfigError, nearest
from dynacompile.events import Observer, Subscriber
from dynacompile.native import core as native_core
from dynacompile.observe.decompile import decompiled
from dynacompile.observe.explain import Explanation, explanation
from dynacompile.observe.log import log_subscriber
from dynacompile.observe.trace import trace_subscriber
from dynacompile.private import of_torch
from dynacompile.regions import Dispatch
from dynacompile.session import SESSION
from dynacompile.targets import cache_entries as cache_entries
from dynacompile.targets import compile_function, compile_in_place, twin
from dynacompile.targets import restore as restore


def compile(
    target: Any = None,
    *,
    backend: str | Callable[..., Any] = "default",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None | Mapping[str, Any] = None,
    isolate_recompiles: bool | str = False,
    recompile_limit: int | None = None,
    fallback: str | None = None,
    dispatch: Callable[..., Any] | None = None,
    dispatch_options: Mapping[Any, Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    inplace: bool = False,
    name: str | None = None,
    **misspelt: Never,
) -> Any:
    """Compiles a function, a method or an nn.Module.

    target: the function or module; without one, a decorator with these options.
    backend: "default", "eager", "aot_eager", "inductor", or a callable (GraphModule, example_inputs) -> callable.
    mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
    fullgraph: a graph break raises Unsupported.
    dynamic: None: the first entry has the sizes of its call; a size or int that changes later becomes a symbol, and that entry serves all
        its values. True: all sizes are symbols at once. False: every size gets its own entry. {name: {dim: {min: 1, max: 4096}}}: these
        dimensions are symbols, and a program that can't have them so is an error.
    isolate_recompiles: False: entries are shared with all non-isolated compiles; True or "instance": own entries, own limit;
        "class": shared by the compiles of one module class.
    recompile_limit: entries per code object; when it is reached this region runs that code eagerly, and says so once.
    fallback: "default": entries of non-isolated compiles serve this one too; "none": its own alone.
    dispatch: called with each call's arguments (without self), gives a hashable key: each key has a bucket of its own, with its own limit.
    dispatch_options: key, or "*" for all other keys -> options of compile() that hold for that key's bucket.
    options: further fields of dynacompile.config.CompileConfig.
    inplace: compile the module itself; undone by restore(module). name: what events call this region of a function, or of a module in
        place, and the config that names it: what would prevent a recompile is told as a line of that config.

    A function comes back as a native callable with its name, signature and attributes; a module as a twin that shares its state (or,
    in place, as itself). Raises ConfigError for a wrong option.
    """
    values = {
        "backend": backend,
        "mode": mode,
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "isolate_recompiles": isolate_recompiles,
        "recompile_limit": recompile_limit,
        "fallback": fallback,
    }
    check_keywords(misspelt)
    for parameter, given, wanted, said in (
        ("options", options, (Mapping, type(None)), "a mapping of options to values"),
        ("dispatch_options", dispatch_options, (Mapping, type(None)), "a mapping of keys to options"),
        ("inplace", inplace, (bool,), "a bool"),
        ("name", name, (str, type(None)), "a str"),
    ):
        if not isinstance(given, wanted):
            raise ConfigError(f"{parameter} must be {said}, not {given!r}")
    for key in options or {}:
        if key in values and not (key == "fallback" and fallback is None):
            raise ConfigError(f"option {key!r} is a parameter of compile(): pass it there, not in options")
    config = CompileConfig.of({**values, **(options or {})})
    chosen = user_dispatch(dispatch, dispatch_options, config)
    if target is None:
        return lambda later: compile_target(later, config, inplace, name, chosen)
    return compile_target(target, config, inplace, name, chosen)


def check_keywords(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for keywords that compile() does not take."""
    for key in given:
        if key in CompileConfig.names():
            raise ConfigError(f"{key!r} is no parameter of compile(), but an option: options={{{key!r}: {given[key]!r}}}")
        if key == "disable":
            raise ConfigError("compile() has no parameter 'disable', as torch.compile has: leave compile() out, or see dynacompile.disable()")
        known = [name for name, parameter in inspect.signature(compile).parameters.items() if parameter.kind == parameter.KEYWORD_ONLY]
        raise ConfigError(f"compile() has no parameter {key!r}: {nearest(key, {*known, *CompileConfig.names()})}")


def user_dispatch(choose: Callable[..., Any] | None, settings: Mapping[Any, Mapping[str, Any]] | None, config: CompileConfig) -> Dispatch | None:
    """The dispatch of one compile, its settings checked now rather than at the first call of each key."""
    if choose is None:
        if settings:
            raise ConfigError("dispatch_options are for the keys of dispatch=: pass that, too")
        return None
    if not callable(choose):
        raise ConfigError(f"dispatch must be a callable (*args, **kwargs) -> key, not {type(choose).__name__}")
    for key, options in (settings or {}).items():
        if not isinstance(options, Mapping):
            raise ConfigError(f"dispatch_options[{key!r}] must map options to values, not {options!r}")
        CompileConfig.of(options)
    made = Dispatch(choose, dict(settings or {}))
    for key in made.settings:
        made.config(key, config)
    return made


def compile_target(target: Any, config: CompileConfig, inplace: bool, name: str | None, dispatch: Dispatch | None) -> Any:
    if isinstance(target, torch.nn.Module):
        return compile_in_place(target, config, name, dispatch) if inplace else twin(target, config, dispatch)
    if inplace:
        raise ConfigError(f"inplace=True takes an nn.Module, not {type(target).__name__}")
    return compile_function(target, config, dispatch, name)


def isolated(scope: Any = None) -> AbstractContextManager[Any]:
    """Functions and modules that are compiled inside of the block share buckets of entries with each other only, where they would use the default bucket
    or that of a class: what was compiled before does not count against their limits. Gives a scope, for another block to go on with it.
    """
    return SESSION.isolated(scope)


def reset() -> None:
    """Drops every entry of every compile. The compiled objects stay valid, and compile again at their next call."""
    BACKGROUND.drop()
    SESSION.reset()


def wait(timeout: float | None = None) -> bool:
    """Waits until nothing is compiled in the background any more, at most for `timeout` seconds. False where that was too short. Entries that are there
    then serve the next calls; what a compile raised is raised by the next call of its region."""
    return BACKGROUND.wait(timeout)


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Calls `subscriber(event)` for every event of the compiler, until the returned function is called."""
    return SESSION.bus.subscribe(subscriber)


def explain(fn: Any, *, backward: bool = False, observer: Observer | None = None, **options: Any) -> Callable[..., Explanation]:
    """`explain(fn)(*args)` compiles `fn` afresh, runs it once and tells what was made of it: graphs, ops, breaks, guards, kernels, seconds.

    backward: also run backward from the sum of the results that need gradients, which compiles it, and adds to the leaves' `.grad`.
    observer: called with each stage's name and what it handed on. options: those of compile().
    """

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        given = {"isolate_recompiles": True, "options": {"fallback": "none"}, **options}
        compiled = compile(fn, **{**given, "options": {**(given["options"] or {}), "background": False}})
        with SESSION.bus.recording() as events, SESSION.bus.observing(observer):
            result = compiled(*args, **kwargs)
            ends = [t for t in of_torch.tree_leaves(result) if isinstance(t, torch.Tensor) and t.grad_fn is not None] if backward else []
            if ends:
                torch.autograd.backward([t.sum() for t in ends])
        return explanation(events, result)

    return explained


def decompile(target: Any) -> str:
    """What runs in the stead of a compiled function, method or module: the residual code of each of its entries, resume functions included, as Python."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    while not isinstance(function, FunctionType):
        inner = getattr(function, "__func__", None) or getattr(function, "_region_function", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            raise ConfigError(f"decompile() takes a function, a method or a module, not {type(target).__name__}")
        function = inner
    texts: list[str] = []
    seen: set[CodeType] = set()
    work = [function.__code__]
    while work:
        code = work.pop(0)
        if code in seen:
            continue
        seen.add(code)
        for _, entry in native_core().entries(code):
            texts.append(decompiled(entry.info.captured))
            work += entry.info.captured.resumes
    return "\n\n".join(texts) or f"# no entry of {function.__qualname__} is compiled"


def list_backends() -> tuple[str, ...]:
    """Names that `backend=` takes."""
    return tuple(BACKENDS)


def subscribe_from_environment() -> None:
    """Attaches the log (DYNACOMPILE_LOGS) and the JSONL trace (DYNACOMPILE_TRACE) where the environment asks for them. What is wrong there is a warning."""
    for given, known in misspelt_variables().items():
        with Reporting(f"reading {given}"):
            raise ConfigError(f"nothing reads this variable: did you mean {known}?")
    for variable, made in (("DYNACOMPILE_LOGS", log_subscriber), ("DYNACOMPILE_TRACE", trace_subscriber)):
        with Reporting(f"reading {variable}"):
            if (subscriber := made()) is not None:
                SESSION.bus.subscribe(subscriber)
