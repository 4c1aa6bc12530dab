"""Guards on functions and on the structure of modules."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from dynacompile.guards.tree import Tree
from dynacompile.guards.wording import Difference, Find, differing, named, other_names, text
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import HOOK_TABLES, FunctionFacts, ModuleFacts, function_facts
from dynacompile.ir.wording import shown_name
from dynacompile.quoting import printable


def as_function(expected: Any) -> FunctionFacts:
    return expected if isinstance(expected, FunctionFacts) else function_facts(expected)


def compile_function(tree: Tree, node: int, guard: Guard, index: int) -> None:
    facts = as_function(guard.expected)
    if facts.code is None:
        raise ReferenceError("the function that a guard is about is gone")
    tree.check("function", node, (facts.code, facts.globals), index)


def explain_function(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    facts = as_function(guard.expected)
    if not isinstance(value, FunctionType):
        yield f"type({text(guard)})", "function", type(value).__qualname__
        return
    code, wanted = facts.code, find.globals if facts.globals is None else facts.globals
    if value.__code__ is not code:
        was, now = ("a function that is gone" if c is None else printable(where(c)) for c in (code, value.__code__))
        yield f"{text(guard)}.__code__", was, now if now != was else f"another {now}"
    elif value.__globals__ is not wanted:
        yield f"{text(guard)}.__globals__", str(wanted.get("__name__")), str(value.__globals__.get("__name__"))


MODULE_TABLES = (("_parameters", "parameters"), ("_buffers", "buffers"), ("_modules", "modules"))


def compile_module(tree: Tree, node: int, guard: Guard, index: int) -> None:
    facts: ModuleFacts = guard.expected  # type: ignore[assignment]
    tree.check("type", node, facts.type, index)
    own = tree.step(node, "instance_dict")
    if facts.training is not None:
        tree.check("equals", tree.step(own, "dict_item", "training"), facts.training, index)
    for table, field in MODULE_TABLES:
        names = getattr(facts, field)
        if names is not None:
            tree.check("dict_keys", tree.step(own, "dict_item", table), names, index)
    for table, count in zip(HOOK_TABLES, facts.hooks or ()):
        tree.check("length", tree.step(own, "dict_item", table), count, index)
    for table, name in facts.lacks:
        tree.check("dict_has", own if table == "__dict__" else tree.step(own, "dict_item", table), (name, False), index)


def explain_module(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    facts: ModuleFacts = guard.expected  # type: ignore[assignment]
    name = text(guard)
    if type(value) is not facts.type:
        yield f"type({name})", *named(facts.type, type(value))
        return
    own = object.__getattribute__(value, "__dict__")
    if facts.training is not None:
        yield from differing(f"{name}.training", facts.training, own.get("training"))
    for table, field in MODULE_TABLES:
        names = getattr(facts, field)
        if names is not None:
            yield from other_names(f"list({name}.{table})", names, tuple(own.get(table, ())))
    for table, count in zip(HOOK_TABLES, facts.hooks or ()):
        yield from differing(f"len({name}.{table})", count, len(own.get(table, ())))
    for table, missing in facts.lacks:
        where = own if table == "__dict__" else own.get(table, ())
        yield from differing(f"{shown_name(missing)} in {name}.{table}", False, missing in where)


def where(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
