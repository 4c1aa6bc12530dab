"""The table of guard kinds. A row says how a guard becomes checks of the native machine, and how it explains what differs.

To add a kind: write its two functions and its row here, its payload in `ir/guard_facts.py`, its samples in tests/guards/samples.py.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch

from dynacompile.guards.evaluate import MISSING, has_attribute
from dynacompile.guards.shapes import compile_shape, explain_shape
from dynacompile.guards.structure import compile_function, compile_module, explain_function, explain_module
from dynacompile.guards.tree import Tree
from dynacompile.guards.wording import Difference, Find, differing, named, other_names, shown, text
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.guard_facts import (
    AUTOCAST_DEVICES,
    Disjoint,
    GlobalState,
    Identity,
    global_state,
    identity,
    is_a,
    memory_range,
    plain_twin,
)
from dynacompile.ir.namespaces import MISSING as ABSENT
from dynacompile.ir.namespaces import Namespaces
from dynacompile.ir.source import Source
from dynacompile.ir.wording import shortened, shown_name
from dynacompile.native import core as native_core
from dynacompile.private import of_torch
from dynacompile.quoting import without_values


@dataclass(frozen=True)
class Kind:
    """compile(tree, node, guard, index): adds the guard's checks. explain(guard, value, find): what differs, nothing where it holds."""

    compile: Callable[[Tree, int, Guard, int], None]
    explain: Callable[[Guard, Any, Find], Iterator[Difference]]


def simple(op: str) -> Callable[[Tree, int, Guard, int], None]:
    """A kind whose payload is the machine's own."""
    return lambda tree, node, guard, index: tree.check(op, node, guard.expected, index)


# --- tensors ---


def compile_tensor(tree: Tree, node: int, guard: Guard, index: int) -> None:
    facts: TensorFacts = guard.expected  # type: ignore[assignment]
    tree.check("tensor", node, (facts.type, facts.dtype, facts.device, facts.requires_grad, facts.sizes, facts.strides, facts.wraps), index)


def is_plain(tensor: torch.Tensor) -> bool:
    lazy = tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    wrapped = tensor.is_nested or tensor.is_quantized or of_torch.is_functorch_wrapped_tensor(tensor)
    return tensor.layout is torch.strided and not lazy and not wrapped and not is_a(tensor, of_torch.FakeTensor)


def explain_tensor(guard: Guard, tensor: Any, find: Find) -> Iterator[Difference]:
    facts: TensorFacts = guard.expected  # type: ignore[assignment]
    name, kind = text(guard), type(tensor)
    if kind is not facts.type:
        yield f"type({name})", *named(facts.type, kind)
        return
    tensor = tensor if facts.wraps else plain_twin(tensor)
    if not facts.wraps and not is_plain(tensor):
        odd = "a wrapped, conjugate, negated or quantized tensor"
        yield name, "a plain strided tensor", odd if tensor.layout is torch.strided else f"layout {tensor.layout}"
        return
    yield from differing(f"{name}.dtype", facts.dtype, tensor.dtype)
    actual = tensor.device
    if facts.device.type != actual.type or (facts.device.index is not None and actual.index is not None and facts.device.index != actual.index):
        yield f"{name}.device", str(facts.device), str(actual)
    yield from differing(f"{name}.requires_grad", facts.requires_grad, tensor.requires_grad)
    if len(facts.sizes) != tensor.dim():
        yield f"{name}.dim()", str(len(facts.sizes)), str(tensor.dim())
        return
    for i, (was, now) in enumerate(zip(facts.sizes, tensor.shape)):
        if was is not None and was != now:
            yield f"{name}.size({i})", str(was), str(now)
    for i, (was, now) in enumerate(zip(facts.strides or (), tensor.stride())):
        if was is not None and was != now:
            yield f"{name}.stride({i})", str(was), str(now)


# --- values ---


def compile_equals(tree: Tree, node: int, guard: Guard, index: int) -> None:
    tree.check("is" if isinstance(guard.expected, Enum) else "equals", node, guard.expected, index)


def explain_equals(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    yield from differing(text(guard), guard.expected, value)


def explain_type(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    if type(value) is not guard.expected:
        yield f"type({text(guard)})", *named(guard.expected, type(value))


def as_identity(expected: Any) -> Identity:
    return expected if isinstance(expected, Identity) else identity(expected)


def is_gone(expected: Any) -> bool:
    """Whether the object that an Identity names has died: None is nobody's successor."""
    return isinstance(expected, Identity) and isinstance(expected.get, weakref.ref) and expected.get() is None


def compile_id(tree: Tree, node: int, guard: Guard, index: int) -> None:
    wanted = guard.expected.get() if isinstance(guard.expected, Identity) else guard.expected
    if is_gone(guard.expected):
        raise ValueError(f"the object that the guard on {text(guard)} names is gone")
    tree.check("is", node, wanted, index)


def explain_id(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted = as_identity(guard.expected)
    if wanted.get() is not value or is_gone(wanted):
        now = identity(value).text
        yield text(guard), f"one {wanted.text}" if now == wanted.text else wanted.text, f"another {now}" if now == wanted.text else now


def compile_none(tree: Tree, node: int, guard: Guard, index: int) -> None:
    tree.check("equals", node, None, index)


def explain_none(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    if value is not None:
        yield text(guard), "None", shown(value)


def compile_presence(op: str) -> Callable[[Tree, int, Guard, int], None]:
    return lambda tree, node, guard, index: tree.check(op, node, (guard.expected.name, guard.expected.present), index)  # type: ignore[attr-defined]


def explain_hasattr(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted: Any = guard.expected
    if has_attribute(value, wanted.name) != wanted.present:
        yield f"hasattr({text(guard)}, {shown_name(wanted.name)})", str(wanted.present), str(not wanted.present)


def explain_contains(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted: Any = guard.expected
    if not is_a(value, dict):
        yield f"type({text(guard)})", "dict", type(value).__qualname__
    elif dict.__contains__(value, wanted.name) != wanted.present:
        yield f"{shown_name(wanted.name)} in {text(guard)}", str(wanted.present), str(not wanted.present)


def explain_keys(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    if not is_a(value, dict) or type(value).__iter__ not in (dict.__iter__, OrderedDict.__iter__):
        yield f"type({text(guard)})", "dict", type(value).__qualname__
    else:
        yield from other_names(f"list({text(guard)})", guard.expected, tuple(value))  # type: ignore[arg-type]


def explain_set(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted: Any = guard.expected
    same = {element: element for element in wanted}
    if type(value) not in (set, frozenset):
        yield f"type({text(guard)})", "set", type(value).__qualname__
    elif len(value) != len(wanted) or any(not is_element(v) or v not in same or type(same[v]) is not type(v) for v in value):
        yield f"elements of {text(guard)}", shortened(", ".join(sorted(map(shown, wanted)))), f"others ({len(value)})"


def explain_order(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted: Any = guard.expected
    if type(value) not in (set, frozenset):
        yield f"type({text(guard)})", "set", type(value).__qualname__
    else:
        yield from other_names(f"list({text(guard)})", wanted, tuple(value))


def is_element(value: Any) -> bool:
    return not is_a(value, torch.Tensor) and bool(native_core().can_be_key(value))


def explain_length(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    base = next((t for t in (list, tuple, dict, set, frozenset, str, bytes, deque, range) if is_a(value, t)), None)
    if base is None or (base in (deque, range) and type(value) is not base):
        yield f"type({text(guard)})", "a builtin container", type(value).__qualname__
    elif base.__len__(value) != guard.expected:
        yield f"len({text(guard)})", str(guard.expected), str(base.__len__(value))


# --- relations and state ---


def compile_duplicate(tree: Tree, node: int, guard: Guard, index: int) -> None:
    tree.relate("same", (node, tree.node(guard.expected, index)), index)  # type: ignore[arg-type]


def explain_duplicate(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    other: Any = guard.expected
    found = find(other)
    if value is not found or found is MISSING:
        yield f"{text(guard)} is {other.text()}", "True", "False"


def distinct_sources(guard: Guard) -> tuple[Source, ...]:
    return (*(() if guard.source is None else (guard.source,)), *guard.expected)  # type: ignore[misc]


def compile_distinct(tree: Tree, node: int, guard: Guard, index: int) -> None:
    tree.relate("distinct", tuple(tree.node(source, index) for source in distinct_sources(guard)), index)


def explain_distinct(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    seen: dict[int, Source] = {}
    for source in distinct_sources(guard):
        found = find(source)
        if found is MISSING:
            yield source.text(), "present", "missing"
            continue
        first = seen.setdefault(id(found), source)
        if first is not source:
            yield f"{first.text()} is {source.text()}", "False", "True"


def compile_disjoint(tree: Tree, node: int, guard: Guard, index: int) -> None:
    facts: Disjoint = guard.expected  # type: ignore[assignment]
    tree.relate("disjoint", tuple(tree.node(source, index) for source in (*facts.written, *facts.others)), index, len(facts.written))


def explain_disjoint(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    facts: Disjoint = guard.expected  # type: ignore[assignment]
    sources = (*facts.written, *facts.others)
    values = [find(source) for source in sources]
    for source, found in zip(sources, values):
        if not is_a(found, torch.Tensor):
            yield f"type({source.text()})", "Tensor", "missing" if found is MISSING else type(found).__qualname__
            return
    ranges = sorted((*memory_range(tensor), i) for i, tensor in enumerate(values))
    reaching: list[tuple[int, int]] = []  # of the ranges that begin before this one, the ends of those that may reach it
    for begin, end, i in ranges:
        reaching = [(until, j) for until, j in reaching if until > begin]
        for j in sorted(j for _, j in reaching):
            first, second = min(i, j), max(i, j)
            if begin < end and first < len(facts.written):
                yield f"memory shared by {sources[first].text()} (written) and {sources[second].text()}", "none", "some"
        if begin < end:
            reaching.append((end, i))


STATE_NAMES = {
    "grad_mode": "grad mode",
    "inference_mode": "inference mode",
    "default_dtype": "default dtype",
    "deterministic": "deterministic algorithms",
    "torch_function": "torch function",
    "function_modes": "torch function modes",
    "dispatch_modes": "dispatch modes",
    "functorch": "functorch transforms",
    "module_hooks": "hooks for all modules",
}


def compile_state(tree: Tree, node: int, guard: Guard, index: int) -> None:
    s: GlobalState = guard.expected  # type: ignore[assignment]
    autocast = [dtype if enabled else None for enabled, dtype in s.autocast]
    row = (
        s.grad_mode,
        s.inference_mode,
        *autocast,
        s.default_dtype,
        s.deterministic,
        s.torch_function,
        s.function_modes,
        s.dispatch_modes,
        s.functorch,
        s.module_hooks,
    )
    tree.check("state", -1, row, index)


def shown_state(value: Any) -> str:
    if is_a(value, bool):
        return "on" if value else "off"
    return shown_modes(value) if is_a(value, tuple) else shown(value)


def shown_modes(modes: tuple[object, ...]) -> str:
    return ", ".join(str(mode) if is_a(mode, torch.device) else type(mode).__name__ for mode in modes) or "none"


def is_same_mode(mode: object, other: object) -> bool:
    return mode is other or is_a(mode, torch.device) and is_a(other, torch.device) and mode == other


def explain_state(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    was: GlobalState = guard.expected  # type: ignore[assignment]
    now = global_state(native_core().function_modes())
    for field in fields(GlobalState):
        before, after = getattr(was, field.name), getattr(now, field.name)
        if field.name == "autocast":
            for device, old, new in zip(AUTOCAST_DEVICES, before, after):
                if old != new:
                    yield f"autocast on {device}", str(old[1]) if old[0] else "off", str(new[1]) if new[0] else "off"
        elif field.name == "function_modes":
            if len(before) != len(after) or not all(map(is_same_mode, before, after)):
                devices = all(is_a(mode, torch.device) for mode in (*before, *after))
                yield "default device" if devices else STATE_NAMES[field.name], shown_modes(before), shown_modes(after)
        elif before != after:
            yield STATE_NAMES[field.name], shown_state(before), shown_state(after)


def compile_names(tree: Tree, node: int, guard: Guard, index: int) -> None:
    names: Namespaces = guard.expected  # type: ignore[assignment]
    tree.check("names", -1, (*names.holders(), names.hold, names.counter()), index)


def explain_names(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    names: Namespaces = guard.expected  # type: ignore[assignment]
    for what, was, now in names.changes():
        texts = ["missing" if value is ABSENT else shown(value) for value in (was, now)]
        yield what, texts[0], f"another {texts[1]}" if texts[0] == texts[1] else texts[1]


def compile_match(tree: Tree, node: int, guard: Guard, index: int) -> None:
    tree.check("match", node, (guard.expected.holds, guard.expected.is_fixed), index)  # type: ignore[attr-defined]


def explain_match(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    wanted: Any = guard.expected
    if not wanted.holds(value):
        yield text(guard), wanted.text, shortened(wanted.shows(value))


def explain_flag(guard: Guard, value: Any, find: Find) -> Iterator[Difference]:
    flag: Any = guard.expected
    yield from differing(without_values(flag.name), flag.value, flag.read())


KINDS: Mapping[str, Kind] = {
    "TENSOR_MATCH": Kind(compile_tensor, explain_tensor),
    "EQUALS": Kind(compile_equals, explain_equals),
    "TYPE": Kind(simple("type"), explain_type),
    "ID": Kind(compile_id, explain_id),
    "NONE": Kind(compile_none, explain_none),
    "HASATTR": Kind(compile_presence("has_attribute"), explain_hasattr),
    "DICT_KEYS": Kind(simple("dict_keys"), explain_keys),
    "DICT_CONTAINS": Kind(compile_presence("dict_has"), explain_contains),
    "LENGTH": Kind(simple("length"), explain_length),
    "FUNCTION": Kind(compile_function, explain_function),
    "MODULE": Kind(compile_module, explain_module),
    "DUPLICATE_INPUT": Kind(compile_duplicate, explain_duplicate),
    "NOT_ALIASED": Kind(compile_distinct, explain_distinct),
    "DISJOINT": Kind(compile_disjoint, explain_disjoint),
    "GLOBAL_STATE": Kind(compile_state, explain_state),
    "SHAPE": Kind(compile_shape, explain_shape),
    "SET": Kind(simple("set"), explain_set),
    "SET_ORDER": Kind(simple("set_order"), explain_order),
    "NAMESPACES": Kind(compile_names, explain_names),
    "MATCH": Kind(compile_match, explain_match),
    "FLAG": Kind(lambda tree, node, guard, index: tree.check("flag", -1, (guard.expected.read, guard.expected.value), index), explain_flag),  # type: ignore[attr-defined]
}
