"""The reference pages of the site, from docstrings, the dataclasses of the settings, the table of breaks and the commands' own help."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import dynacompile
from dynacompile import __main__ as command
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.capture.breaks import BREAKS
from dynacompile.config import CompileConfig
from dynacompile.errors import DynacompileError

ITEM = re.compile(r"^(?=`?\w+(?:, \w+)*`?: )", re.MULTILINE)


def pages() -> dict[str, str]:
    """Text of each page, by its place in the site."""
    made = {"python": python(), "options": options(), "commands": commands(), "breaks": breaks(), "events": of_events()}
    return {f"reference/{name}.md": text for name, text in made.items()}


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: paragraphs, and lines that begin with `name: ` as a list."""
    paragraphs = []
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        first, *items = (" ".join(part.split()) for part in ITEM.split(paragraph))
        listed = [f"- `{name}`: {text}" for name, _, text in (item.partition(": ") for item in items)]
        paragraphs += [escaped(part) for part in (first, "\n".join(listed)) if part]
    return "\n\n".join(paragraphs)


def escaped(text: str) -> str:
    """Text in which `<` and `*` mean themselves outside of code."""
    return "".join(part if at % 2 else re.sub(r"([<*_])", r"\\\1", part) for at, part in enumerate(re.split(r"(`[^`]*`)", text)))


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(headings)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cell(value) for value in line)} |" for line in lines)


def of_callable(name: str, fn: Callable[..., Any]) -> str:
    parameters = parameters_of(fn)
    whole = f"{name}({', '.join(parameters)})"
    shown = whole if len(whole) < 100 else f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"
    return f"## `{name}`\n\n```text\n{shown}\n```\n\n{prose(fn.__doc__)}"


def parameters_of(fn: Callable[..., Any]) -> list[str]:
    """The parameters as they are written, a `*` before those that are keywords alone."""
    texts: list[str] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        note = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        texts.append(f"{stars}{parameter.name}{note}{default}")
    return texts


def python() -> str:
    functions = [of_callable(f"dynacompile.{name}", fn) for name in dynacompile.__all__ if callable(fn := getattr(dynacompile, name))]
    errors = [(f"`{kind.__name__}`", " ".join((kind.__doc__ or "").split())) for kind in (DynacompileError, *DynacompileError.__subclasses__())]
    return "\n\n".join(
        [
            "# Python",
            "What `import dynacompile` gives, and the callback for Lightning. [Options](options.md) has what `options=` of `compile` takes.",
            *functions,
            of_callable("dynacompile.callbacks.DynamoCallback", DynamoCallback),
            "## `dynacompile.exc`\n\nThe errors that are raised.",
            table(("error", "means"), errors),
        ]
    )


def options() -> str:
    of_compile = [(f"`{field.name}`", f"`{field.default!r}`", field.metadata["affects"], field.metadata["doc"]) for field in dataclasses.fields(CompileConfig)]
    known = {field.name: field for field in dataclasses.fields(CompileSettings)}
    own = [(f"`{name}`", f"`{known[name].default!r}`", known[name].metadata["doc"]) for name in CompileSettings.own_names()]
    return "\n\n".join(
        [
            "# Options",
            "Keywords of `dynacompile.compile`, entries of its `options=`, keys of the config group `compile`, and of `compile.modules` for single modules. "
            "*code*: it changes what is compiled, and so is part of the cache's keys; *runtime*: how it is run; *report*: what is checked or told.",
            "## Of one compile",
            table(("option", "default", "affects", "meaning"), of_compile),
            "## Of the callback",
            "Keywords of `DynamoCallback`, and keys of the config group `compile`, beside those above. [Configs](../configs.md) says how they are set.",
            table(("setting", "default", "meaning"), own),
        ]
    )


def commands() -> str:
    texts = []
    parser = command.parser()
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, one in action.choices.items():
        texts.append(f"## `python -m dynacompile {name}`\n\n```text\n{one.format_help().strip()}\n```")
    return "\n\n".join(["# Commands", "`make` has the project's own: `make train`, `make test`, `make docs`, each with its set-up.", *texts])


def breaks() -> str:
    rows = [(f"`{code}`", escaped(row.reason.replace("{}", "…")), row.hint) for code, row in BREAKS.items()]
    return "\n\n".join(
        [
            "# Graph breaks",
            "Why a graph ends, by the code that is told, and what to do. A break costs speed and nothing else: Python goes on with the same values. "
            "[Capture](../capture.md) explains the frequent ones.",
            table(("code", "reason", "what to do"), rows),
        ]
    )


def of_events() -> str:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event]
    shared = {field.name for field in dataclasses.fields(events.Event)}
    parts = [
        "# Events",
        "What `dynacompile.subscribe` delivers, and what `compile_events.jsonl` of a run and a file of `DYNACOMPILE_TRACE` hold, one object of JSON a line. "
        "Every event has `region` (the compiled function or module), `bucket` and `at` (seconds since 1970).",
    ]
    for kind in kinds:
        own = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(kind) if field.name not in shared]
        about = "" if (kind.__doc__ or "").startswith(f"{kind.__name__}(") else prose(kind.__doc__)
        parts += [f"## `{kind.__name__}`", *([about] if about else []), table(("field", "type"), own)]
    return "\n\n".join(parts)
