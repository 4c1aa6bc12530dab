"""torch.func.functional_call: a module called with other tensors in the place of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import stateless

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.module_hooks import keywords
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictLike, DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NONE = ConstantValue(None)


@handles(torch.func.functional_call, stateless.functional_call)
def functional_call(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["module", "parameter_and_buffer_dicts", "args", "kwargs", "tie_weights", "strict"]
    if "parameters_and_buffers" in kwargs:
        names[1] = "parameters_and_buffers"
    defaults: dict[str, Value | None] = {"args": TupleValue([]), "kwargs": NONE, "tie_weights": ConstantValue(True), "strict": ConstantValue(False)}
    module, given, inputs, named, tied, strict = bind_arguments("functional_call", names, args, kwargs, defaults)
    if not isinstance(module, ModuleValue):
        raise unsupported("autograd-call", f"functional_call of {module.describe()}")
    tensors: dict[str, Value] = {}
    for part in given.elements(cx) if isinstance(given, SequenceValue) else [given]:
        if not isinstance(part, DictLike):
            raise unsupported("autograd-call", f"functional_call with {part.describe()}")
        own = {str(name): part.at(cx, name) for name in part.keys(cx)}
        if tensors.keys() & own.keys():
            raise unsupported("would-raise", "functional_call with dictionaries that have a name in common")
        tensors |= own
    if tied.truth(cx):
        tensors |= tied_names(cx, module.real, tensors)
    if strict.truth(cx) and tensors.keys() != own_tensors(module.real).keys():
        raise unsupported("would-raise", f"functional_call of {module.describe()} with other names than its own")
    positional = inputs.elements(cx) if isinstance(inputs, TupleValue) else [inputs]
    with swapped(cx, [(*slot_of(cx, module, name), value) for name, value in tensors.items()]), cx.following_each():
        return module.call(cx, positional, keywords(cx, named) if isinstance(named, DictLike) else {})


def tied_names(cx: Context, real: torch.nn.Module, tensors: dict[str, Value]) -> dict[str, Value]:
    """Other names of the replaced tensors."""
    own = own_tensors(real)
    replaced: dict[int, Value] = {}
    for name, value in tensors.items():
        if name in own and not cx.is_same(replaced.setdefault(id(own[name]), value), value):
            raise unsupported("would-raise", f"functional_call with two tensors for the one that {name!r} is a name of")
    return {name: replaced[id(t)] for name, t in own.items() if id(t) in replaced and name not in tensors}


def own_tensors(real: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(real.named_parameters(remove_duplicate=False)), **dict(real.named_buffers(remove_duplicate=False))}


def slot_of(cx: Context, module: ModuleValue, path: str) -> tuple[DictValue, Hashable]:
    """The table and the key of a tensor by its dotted name."""
    *parents, name = path.split(".")
    for parent in parents:
        found = module.table(cx, "_modules").at(cx, parent) if parent in module.real._modules else None
        if not isinstance(found, ModuleValue):
            raise unsupported("would-raise", f"{module.describe()} has no module {parent!r}")
        module = found
    for table in ("_parameters", "_buffers"):
        if name in module.table(cx, table).keys(cx):
            return module.table(cx, table), name
    raise unsupported("would-raise", f"{module.describe()} has no tensor {name!r}")


@contextmanager
def swapped(cx: Context, slots: list[tuple[DictValue, Hashable, Value]]) -> Iterator[None]:
    """Other values in the tables of modules, for a while."""
    before = [table.content[name] for table, name, _ in slots]
    for table, name, value in slots:
        table.content[name] = (table.content[name][0], value)
    yielded = False
    try:
        yield
        yielded = True
    finally:
        changed = any(table.content[name][1] is not value for table, name, value in slots)
        for (table, name, _), entry in zip(slots, before):
            table.content[name] = entry
    if yielded and changed:
        raise unsupported("mutation", "a module that assigns to its buffers, under functional_call")
