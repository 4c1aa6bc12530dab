"""torch's ShapeEnv, made without Dynamo.

torch's own construction loads all of Dynamo, and its first symbol all of Inductor, 1.3 s of a first compile: the one for an exception of its translation
validator, which is off unless it is asked for, the other for the text of a stack that a structured trace would show, which nobody writes.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from dynacompile.private import of_torch
from dynacompile.private.of_torch import SLoc

SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
VALIDATOR = "torch.fx.experimental.validator"
OWN = threading.local()
"""`made`: references to this thread's ShapeEnvs, each with `repeats`: results of operations by what they were made of (`repeated_fakes.py`)."""
NO_VALIDATION = SimpleNamespace(translation_validation_enabled=lambda: False)
"""Validation compares Dynamo's guards with what they were translated from. Ours are others."""


def shape_env(site: Callable[[], Any], values: bool = False) -> Any:
    """A ShapeEnv in which equal sizes are not taken for the same, and whose guards carry the user's place, `site()`, as it was. values: operations
    whose results depend on values have symbols for these."""
    settle_structured_traces()
    env = constructed({"duck_shape": False, "allow_scalar_outputs": values, "allow_dynamic_output_shape_ops": values})
    place = weak(site)
    env._get_stack_summary = lambda is_debug=False, framework_loc=None: (SLoc(place(), None), "")
    env._log_guard = lambda prefix, guard, forcing_spec: None
    env.repeats = {}
    OWN.__dict__.setdefault("made", []).append(weakref.ref(env))
    return env


def constructed(settings: dict[str, Any]) -> Any:
    """A ShapeEnv, whose constructor imports the validator: it is run with an `import` of its own. In sys.modules, all threads would see what answers for it."""
    cls = importlib.import_module(SYMBOLIC).ShapeEnv
    env = cls.__new__(cls)
    env.__dict__["_init"] = MethodType(without_validator(cls._init), env)
    try:
        without_validator(cls.__init__)(env, **settings)
    finally:
        del env.__dict__["_init"]
    return env


@functools.cache
def without_validator(function: Any) -> Any:
    own = {**function.__globals__, "__builtins__": {**vars(builtins), "__import__": import_unless_validator}}
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def import_unless_validator(name: str, *arguments: Any, **keywords: Any) -> Any:
    return NO_VALIDATION if name == VALIDATOR else __import__(name, *arguments, **keywords)


def settle_structured_traces() -> None:
    """torch's handler of structured traces takes itself away at the first record where no folder is set for them (TORCH_TRACE). Until then each record is
    made, with the stack: this is the first."""
    if any(isinstance(handler, of_torch.LazyTraceHandler) and handler.root_dir is None for handler in of_torch.trace_log.handlers):
        of_torch.trace_structured("dynacompile", suppress_context=True)


def weak(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, which gives None once the object is gone whose method it is.

    What a ShapeEnv and a mode for fakes hold must not lead back to them: fakes hold both through C++, where the collector does not see them, so that
    a cycle of theirs outlives a first collection of what the program has dropped, and a full collection is rare.
    """
    if not isinstance(function, MethodType):
        return function
    reference = weakref.WeakMethod(function)

    def call() -> Any:
        method = reference()
        return None if method is None else method()

    return call


def forget_shape_envs() -> None:
    """Methods of ShapeEnv are cached by torch for all of its instances, which keeps the last hundreds of them and what they were asked. What is kept of
    operations leads back to its ShapeEnv."""
    for env in (reference() for reference in OWN.__dict__.pop("made", ())):
        if env is not None:
            env.repeats.clear()
    module = sys.modules.get(SYMBOLIC)
    for method in () if module is None else vars(module.ShapeEnv).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()
