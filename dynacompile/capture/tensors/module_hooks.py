"""Calls of modules that have hooks: forward hooks are inlined, those of the backward pass become operations of the graph (ops/module_hooks.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictLike, DictValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import HOOK_TABLES, identity
from dynacompile.ir.source import Constant, DictAttr, Item, Source, ValueAt
from dynacompile.ops.module_hooks import Enter, HookedCall, Leave, Start

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class HookedModule(Value):
    """A module as its hooks see it."""

    real: torch.nn.Module


def has_hooks(module: torch.nn.Module) -> bool:
    return any(module.__dict__[table] or getattr(nn_module, f"_global{table}") for table in HOOK_TABLES)


def call_with_hooks(cx: Context, module: HookedModule, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Module._call_impl, in its order: of each kind the hooks for all modules come first."""
    own = module.real.__dict__
    backward = BackwardHooks(cx, module)
    try:
        for key, hook in hooks(cx, module, "_forward_pre_hooks"):
            if key in own["_forward_pre_hooks_with_kwargs"]:
                result = hook.call(cx, [module, TupleValue(args), dict_of(kwargs)], {})
                if not is_none(result):
                    new_args, new_kwargs = result.elements(cx)
                    args, kwargs = new_args.elements(cx), keywords(cx, new_kwargs)
                continue
            result = hook.call(cx, [module, TupleValue(args)], {})
            if not is_none(result):
                args = result.elements(cx) if isinstance(result, TupleValue) else [result]
        args = backward.enter(args)
        output = module.get_attr(cx, "forward").call(cx, args, kwargs)
        for key, hook in hooks(cx, module, "_forward_hooks"):
            with_kwargs = key in own["_forward_hooks_with_kwargs"] or key in nn_module._global_forward_hooks_with_kwargs
            result = hook.call(cx, [module, TupleValue(args), *([dict_of(kwargs)] if with_kwargs else []), output], {})
            output = output if is_none(result) else result
        return backward.leave(output)
    except Raised as reason:
        if own["_forward_hooks_always_called"] or nn_module._global_forward_hooks_always_called:
            raise unsupported("hooks", f"{module.describe()}, which raises and has hooks that are called nevertheless,") from reason
        raise


def refuse_changed(cx: Context, module: HookedModule, tables: Sequence[str] = HOOK_TABLES) -> None:
    """Hooks are called as they were before the frame. Where it has changed them, as a hook that removes itself does, Python calls those that there are."""
    for owner, prefix in ((module.real.__dict__, ""), (vars(nn_module), "_global")):
        for table in tables:
            known = cx.known_value(owner[prefix + table])
            if isinstance(known, DictValue) and (known.reordered or known.changes()):
                raise unsupported("hooks", f"{module.describe()}, whose hooks the frame has changed,")


def hooks(cx: Context, module: HookedModule, table: str) -> Iterator[tuple[int, Value]]:
    """The forward hooks of a table, by their number. Modules that are alike have hooks of other numbers: where these say nothing, the module's own are known by
    their places."""
    refuse_changed(cx, module, (table,))
    for key, hook in dict(getattr(nn_module, f"_global{table}")).items():
        cx.guard("DICT_KEYS", everywhere(table), tuple(getattr(nn_module, f"_global{table}")))
        yield key, cx.wrap(hook, Item(everywhere(table), key))
    own, source = module.real.__dict__[table], DictAttr(module.source, table)
    said = [f"{table}_with_kwargs", *(("_forward_hooks_always_called",) if table == "_forward_hooks" else ())] if own else []
    by_number = any(module.real.__dict__[name] for name in said)
    for name in said:
        cx.guard("LENGTH", DictAttr(module.source, name), len(module.real.__dict__[name]))
    if by_number:
        cx.guard("DICT_KEYS", source, tuple(own))
    for place, (key, hook) in enumerate(dict(own).items()):
        yield key, cx.wrap(hook, Item(source, key) if by_number else ValueAt(source, place))


def everywhere(table: str) -> Source:
    return Item(Constant(nn_module.__dict__, nn_module.__name__), f"_global{table}")


def tables(cx: Context, module: HookedModule, table: str) -> Iterator[tuple[Source, dict[int, Any]]]:
    """Those of a kind that are not empty, with their keys guarded. That others are empty, their lengths say, which are guarded, too."""
    places = (everywhere(table), DictAttr(module.source, table))
    for source, found in zip(places, (getattr(nn_module, f"_global{table}"), module.real.__dict__[table])):
        if found:
            cx.guard("DICT_KEYS", source, tuple(found))
            yield source, dict(found)


class BackwardHooks:
    """Those of one call. Their Python is the backward pass's to run: the graph has them as they are, so the entry is for that module and these hooks."""

    def __init__(self, cx: Context, module: HookedModule):
        self.cx, self.module = cx, module
        self.token: Value | None = None
        self.call: HookedCall | None = None
        (full, legacy), before = module.real._get_backward_hooks(), module.real._get_backward_pre_hooks()
        if legacy:
            raise unsupported("hooks", f"{module.describe()}, by register_backward_hook,")
        self.full, self.before = bool(full), bool(before)
        if not full and not before:
            return
        cx.overrides.modes.refuse(f"what the backward hooks of {module.describe()} need")
        if cx.bodies:
            raise unsupported("hooks", f"{module.describe()}, inside of a graph of its own,")
        cx.guard("ID", module.source, identity(module.real))
        for table in ("_backward_hooks", "_backward_pre_hooks"):
            for source, found in tables(cx, module, table):
                for key, hook in found.items():
                    cx.guard("ID", Item(source, key), identity(hook))

    def enter(self, args: list[Value]) -> list[Value]:
        """The arguments behind torch's autograd node."""
        if self.full or self.before:
            self.call = HookedCall(self.module.real, len(args), self.full, self.before)
            return self.passed(Enter(self.call), args)
        return args

    def leave(self, output: Value) -> Value:
        """What the module gives, behind the other node."""
        if self.call is None:
            return output
        step = Leave(self.call)
        if isinstance(output, TensorValue):
            return self.passed(step, [output])[0]
        if not isinstance(output, TupleValue) or output.cls is not tuple and not hasattr(output.cls, "_fields"):
            raise unsupported("hooks", f"{self.module.describe()}, which gives neither a tensor nor a tuple,")
        items = output.elements(self.cx)
        passed = self.passed(step, items)
        return output if passed is items else TupleValue(passed, output.cls)

    def passed(self, step: Enter | Leave, values: list[Value]) -> list[Value]:
        cx = self.cx
        given = [cx.force(value) for value in values]
        found = [value for value in given if isinstance(value, TensorValue)]
        if not torch.is_grad_enabled() or not any(value.fake.requires_grad for value in found):
            return values
        if any(type(value) is not TensorValue for value in found):
            raise unsupported("hooks", f"{self.module.describe()}, around tensors of a subclass,")
        if self.token is None:
            self.token = cx.op("call_function", Start(step.call), [found[0]], {})
        none = ConstantValue(None)
        made = cx.op("call_function", step, [self.token, *(v if isinstance(v, TensorValue) else none for v in given)], {})
        cx.recorder.mark_unrepeatable()  # it is this module's alone
        return [new if isinstance(old, TensorValue) else old for old, new in zip(given, made.elements(cx))]


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


def dict_of(kwargs: dict[str, Value]) -> DictValue:
    return DictValue.of([(ConstantValue(k), v) for k, v in kwargs.items()])


def keywords(cx: Context, value: Value) -> dict[str, Value]:
    if not isinstance(value, DictLike):
        raise unsupported("would-raise", "keyword arguments must be a dict")
    return {str(k): value.at(cx, k) for k in value.keys(cx)}
