"""python -m dynacompile explain module:function "torch.randn(4, 8), flag=True": what the compiler makes of a call, forward and backward.

The target is `module:name` or `path/to/file.py:name`. What follows the colon is a Python expression over the names of that module: a function, a module
object, `Net(8)`. The arguments are Python expressions, too, in which torch and the names of the target's module can be used. Without arguments, a target
that takes none is called, and a tuple (function or module, argument, ...) that it returns is explained in its place.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dynacompile import api
from dynacompile.config import MODES
from dynacompile.errors import ConfigError, DynacompileError, nearest
from dynacompile.guards.program import described
from dynacompile.observe.explain import Explanation
from dynacompile.quoting import printable, printable_lines

SHOWN_GUARDS = 8  # of a graph, where --show guards does not ask for all
SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {  # --show: the stage, and the part of its hand-off
    "captured": ("capture", lambda captured: captured.text()),
    "guards": ("capture", lambda captured: "\n".join(str(described(guard)) for guard in captured.guards)),
    "forward": ("differentiate", lambda pair: pair.forward.code.strip()),
    "backward": ("differentiate", lambda pair: pair.backward.code.strip() if pair.backward is not None else "no backward: nothing needs a gradient"),
    "loops": ("lower", lambda program: program.text()),
    "schedule": ("schedule", lambda schedule: schedule.text()),
    "sources": ("generate", lambda sources: sources.text()),
}
SITE = re.compile(r"(?P<file>.+):(?P<line>\d+) in ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", metavar="module:function", help="or path/to/file.py:function")
    parser.add_argument("arguments", nargs="*", help='as between the parentheses of a call: "torch.randn(4, 8), flag=True"')
    parser.add_argument("--show", choices=SHOWN, action="append", default=[], help="also print what a stage handed on; may be given more than once")
    parser.add_argument("--mode", choices=MODES, help="as dynacompile.compile's")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    parser.add_argument("--forward-only", action="store_true", help="do not run backward")


def run(chosen: argparse.Namespace) -> str:
    """What is said of the call that the command line describes; hand-offs that are asked for are printed as they come. Raises ConfigError for a target or
    arguments that are none, with the part that is wrong."""
    function, args, kwargs = call_of(chosen.target, chosen.arguments)
    guards: list[list[str]] = []

    def observe(stage: str, result: Any) -> None:
        if stage == "capture":
            guards.append([str(described(guard)) for guard in result.guards])
        for name in chosen.show:
            if SHOWN[name][0] == stage:
                print(f"--- {name}\n{SHOWN[name][1](result)}\n")

    explained = api.explain(function, backward=not chosen.forward_only, observer=observe, mode=chosen.mode, dynamic=chosen.dynamic or None)
    try:
        told = explained(*args, **kwargs)
    except DynacompileError:
        raise
    except Exception as error:  # the user's own, which is told with the user's place
        raise ConfigError(f"the call of {chosen.target} raises {said(error)}") from error
    return "\n".join([str(told), *breaks_with_lines(told), *(guard_lines(guards) if "guards" not in chosen.show else [])])


def breaks_with_lines(told: Explanation) -> list[str]:
    """The user's line of each break, where it can be read."""
    lines = []
    for event in told.breaks:
        found = SITE.match(event.site)
        if found and (line := linecache.getline(found["file"], int(found["line"])).strip()):
            lines.append(f"  the graph ends at {found['file']}:{found['line']}: {printable(line)}")
    return lines


def guard_lines(guards: list[list[str]]) -> list[str]:
    lines = []
    for number, texts in enumerate(guards):
        lines.append(f"  guards of graph {number}:")
        lines += [f"    {printable(text)}" for text in texts[:SHOWN_GUARDS]]
        if len(texts) > SHOWN_GUARDS:
            lines.append(f"    and {len(texts) - SHOWN_GUARDS} more: --show guards")
    return lines


def call_of(target: str, arguments: Sequence[str]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function or module that `target` names, and its arguments. Raises ConfigError."""
    place, _, name = target.rpartition(":")
    if not place or not name.strip():
        raise ConfigError(f"{target!r} names no function: write module:function or file.py:function")
    module = loaded(place)
    names = {"torch": torch, **vars(module)}
    found = evaluated(name, names, f"{name!r} of {place}")
    if isinstance(found, type) or not callable(found):
        is_module = isinstance(found, type) and issubclass(found, torch.nn.Module)
        hint = f": write {place}:{name}(...) for an object of it" if is_module else ""
        raise ConfigError(f"{place}:{name} is {'a class' if isinstance(found, type) else f'a {type(found).__name__}'}, no function or module object{hint}")
    args, kwargs = values_of(arguments, names)
    check_fits(found, args, kwargs, target)
    if not arguments and not isinstance(found, torch.nn.Module):
        made = evaluated("found()", {"found": found}, target)
        if isinstance(made, tuple) and made and callable(made[0]):
            return made[0], tuple(made[1:]), {}
    return found, args, kwargs


def loaded(place: str) -> ModuleType:
    """The module of a dotted name, looked for in the current folder too, or of a file. Raises ConfigError."""
    if place.endswith(".py") or "/" in place:
        path = Path(place).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"there is no file {place}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{place} is no file of Python")
        loader, module = spec.loader, importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        imported(lambda: loader.exec_module(module), place)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        known = importlib.util.find_spec(place) is not None
    except (ModuleNotFoundError, ValueError):
        known = False
    if not known:
        near = nearest(place, sorted(path.stem for path in Path.cwd().glob("*.py")))
        raise ConfigError(f"there is no module {place!r} in {os.getcwd()} or among the installed ones ({near}). Files are named file.py:function")
    return imported(lambda: importlib.import_module(place), place)


def imported(load: Callable[[], Any], place: str) -> Any:
    try:
        return load()
    except Exception as error:  # whatever the user's file raises is told with its place
        raise ConfigError(f"importing {place} raises {said(error)}") from error


def values_of(arguments: Sequence[str], names: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values of arguments, each text being one or more of a call's. Raises ConfigError."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in arguments:
        try:
            call = ast.parse(f"_({text}\n)", mode="eval").body
        except SyntaxError as error:
            raise ConfigError(f"the argument {text!r} is no Python: {error.msg}") from None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ConfigError(f"the argument {text!r} is no part of a call")
        gather = {"_": lambda *a, **k: (a, k)}
        given, named = evaluated(f"_({text}\n)", {**names, **gather}, f"the argument {text!r}")
        args += given
        kwargs |= named
    return tuple(args), kwargs


def evaluated(expression: str, names: dict[str, Any], what: str) -> Any:
    """The value of a text that the user has written on the command line. Raises ConfigError, which begins with `what`."""
    try:
        return eval(expression, names)
    except NameError as error:
        near = nearest(error.name or "", sorted(name for name in names if not name.startswith("_")))
        raise ConfigError(f"{what}: there is no {error.name!r}: {near}") from None
    except SyntaxError as error:
        raise ConfigError(f"{what} is no Python expression: {error.msg}") from None
    except Exception as error:  # whatever the user's expression raises
        raise ConfigError(f"{what} raises {said(error)}") from error


def check_fits(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], target: str) -> None:
    """Raises ConfigError where a call with these arguments would be refused."""
    try:
        signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (TypeError, ValueError):  # C functions without one
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{target}{signature} does not fit its {len(args) + len(kwargs)} arguments: {error}") from None


def said(error: Exception) -> str:
    """An error on one line, with the innermost place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return printable_lines(f"{type(error).__name__}: {error}{place}")
