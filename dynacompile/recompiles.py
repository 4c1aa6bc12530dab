"""What a recompile says: which facts differ from the nearest entry, what was done about it, and which override would prevent it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from dynacompile.config import KEYWORDS, CompileConfig
from dynacompile.guards.changes import is_number_change
from dynacompile.guards.program import Failure, evaluate, failures
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.expressions import Expression, Quantity, evaluated
from dynacompile.ir.guard_facts import ShapeFacts, is_a, plain_twin
from dynacompile.ir.source import UNNAMED, Registered, Source, dotted
from dynacompile.ir.wording import shown_name
from dynacompile.quoting import printable, without_values


def nearest_failures(frame: Any, entries: list[Any]) -> list[Failure]:
    """All failing guards of the entry that fails the fewest."""
    return min((failures(entry.info.captured.guards, frame) for entry in entries), key=len, default=[])


def texts(failed: list[Failure]) -> tuple[str, ...]:
    """Each as `source: old -> new`. Strides of a tensor whose sizes differ follow from those, and are left out."""
    resized = {f.guard.source for f in failed if is_part(f, "size(")}
    return summarised(tuple(f.text for f in failed if not (is_part(f, "stride(") and f.guard.source in resized)))


def is_part(failure: Failure, part: str) -> bool:
    """Whether a tensor's size or stride differs."""
    return failure.guard.kind == "TENSOR_MATCH" and failure.subject.rpartition(".")[2].startswith(part)


def summarised(failed: tuple[str, ...]) -> tuple[str, ...]:
    """`self.training: True -> False` stands for the same change in its submodules, which are counted, and one line for the same change of MANY tensors or
    attributes: `self.encoder.*.requires_grad: True -> False (14 of them)`."""
    return grouped(below_modules(failed))


def grouped(failed: tuple[str, ...]) -> tuple[str, ...]:
    groups: dict[tuple[str, str], list[str]] = {}
    for text in failed:
        subject, _, change = text.partition(": ")
        groups.setdefault((subject.rpartition(".")[2], change), []).append(subject)
    told: list[str] = []
    for (part, change), subjects in groups.items():
        if len(subjects) < MANY:
            told += [f"{subject}: {change}" for subject in subjects]
        else:
            told.append(f"{common(subjects)}{part}: {change} ({len(subjects)} of them)")
    return tuple(told)


def common(subjects: Sequence[str]) -> str:
    """The path that all have in common, and a star for what comes after it."""
    paths = [dotted(subject).split(".")[:-1] for subject in subjects]
    depth = next((i for i, parts in enumerate(zip(*paths)) if len(set(parts)) > 1), min(map(len, paths)))
    return "".join(f"{name}." for name in (*paths[0][:depth], "*"))


def below_modules(failed: tuple[str, ...]) -> tuple[str, ...]:
    """With `self.training: True -> False` in the place of the same change in its submodules."""
    kept: list[str] = []
    below: dict[str, int] = {}
    for text in sorted(failed, key=len):
        path, found, change = text.partition(".training: ")
        above = next((k for k in below if found and k.endswith(change) and path.startswith(k.partition(".training: ")[0] + ".")), None)
        if above is not None:
            below[above] += 1
            continue
        kept.append(text)
        if found:
            below[text] = 0
    return tuple(f"{text} (and in {below[text]} submodules)" if below.get(text) else text for text in failed if text in kept)


MANY = 4
"""From so many alike changes on, one line tells of all; each has a GuardFailed event of its own."""


def frame_name(code: CodeType) -> str:
    return printable(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")


def done_about(guards: Sequence[Guard], before: Iterable[Iterable[Guard]]) -> str:
    """What the new entry is: for all values of a size, number or text that was a constant in the entries before, or one more for the values of its call."""
    entries = [list(entry) for entry in before]
    known = {quantity for entry in entries for quantity in symbolic(entry)}
    fixed = pinned(guards)
    fresh = [without_values(q.text()) for q in symbolic(guards) if q not in known and q not in fixed and q.kind != "stride"]
    were: set[Source | None] = {g.source for entry in entries for g in entry if g.kind == "EQUALS" and type(g.expected) in (float, bool, str)}
    were -= {g.source for g in guards if g.kind == "EQUALS"}
    others = [without_values(g.source.text()) for g in guards if g.kind == "TYPE" and g.source is not None and g.source in were]
    fresh += [name for name in others if name not in fresh]
    return f"made {', '.join(fresh)} dynamic" if fresh else "new entry"


def symbolic(guards: Iterable[Guard]) -> tuple[Quantity, ...]:
    """Sizes, strides and ints that an entry takes as they come."""
    return tuple(dict.fromkeys(q for guard in guards if isinstance(guard.expected, ShapeFacts) for q in guard.expected.quantities))


@dataclass(frozen=True)
class Advice:
    """What to do about a recompile. options: settings of compile() under which the entry before would have served the call. expected: where there are
    none, why there is another entry."""

    options: Mapping[str, Any] = field(default_factory=dict)
    expected: str = ""


def advice(failed: Sequence[Failure], guards: Sequence[Guard], frame: Any, config: CompileConfig, from_another: bool) -> Advice:
    """Settings that would have prevented a recompile, or why it is expected. guards: of the entry that was made. from_another: the entries before were
    made for other compiles, which share their bucket with this one."""
    if not failed:
        return Advice(expected="the entry before is gone meanwhile")
    if from_another:
        return Advice({"isolate_recompiles": True})
    unread = {guard.source for guard in guards if guard.kind == "TYPE"} - {guard.source for guard in guards if guard.kind == "EQUALS"}
    passed_on = [f for f in failed if f.guard.kind == "EQUALS" and type(f.guard.expected) in (bool, str) and f.guard.source in unread]
    failed = [failure for failure in failed if failure not in passed_on]
    for failure in failed:
        if reason := lasting(failure, frame, config):
            return Advice(expected=reason)
    if passed_on:
        return Advice(expected=f"{without_values(passed_on[0].subject)} is a constant at first, and the new entry, which never reads it, serves other values")
    resized = any(f.guard.kind == "TENSOR_MATCH" for f in failed)
    if kept := [f.subject for f in failed if resized and is_kept(f, guards, frame)]:
        return Advice(
            expected=f"{without_values(kept[0])}, a number of a module, stays a constant where a size changes in the same call: `varying` names a symbol"
        )
    if not serves(guards, {f.guard.source: f for f in failed if f.guard.source is not None}, frame):
        return Advice(expected="the program does something else for these sizes and numbers, or needs them as constants")
    numbers = tuple(dict.fromkeys(f.guard.source.text() for f in failed if f.guard.kind == "EQUALS" and f.guard.source is not None))
    if unnamed := [name for name in numbers if name.startswith(UNNAMED)]:  # what the stack holds at a graph break
        return Advice(expected=f"{without_values(unnamed[0])}, a number that Python computed there, is a constant at first, and a symbol in the new entry")
    if hidden := [name for name in numbers if without_values(name) != name or "\\" in name or '"' in name]:
        return Advice(expected=f"{without_values(hidden[0])} is a constant at first, and a symbol in the new entry, which serves its other values")
    sizes = [f for f in failed if f.guard.kind == "TENSOR_MATCH"]
    dims = named_dims(sizes, config) if sizes else {}
    return Advice({**({"dynamic": True if dims is None else dims} if sizes else {}), **({"varying": numbers} if numbers else {})})


def is_kept(failure: Failure, guards: Sequence[Guard], frame: Any) -> bool:
    """Whether a module's number differs and the new entry has not tried a symbol for it (`guards.changes.policy_after`)."""
    modules = {guard.source for guard in guards if guard.kind == "MODULE"}
    source = failure.guard.source
    is_constant = any(guard.kind == "EQUALS" and guard.source == source for guard in guards)
    return is_constant and source is not None and is_number_change(failure, frame) and any(step in modules for step in source.steps())


def lasting(failure: Failure, frame: Any, config: CompileConfig) -> str:
    """Why no setting makes one entry serve both; empty where one may."""
    guard, part = failure.guard, failure.subject.rpartition(".")[2]
    if is_number_change(failure, frame):
        if type(guard.expected) is float and config.backend == "inductor":
            return "backend=inductor: each float has an entry of its own"
        special = f"specialize_{type(guard.expected).__name__}"
        return f"{special}=True: each value has an entry of its own" if getattr(config, special) else number_under(config)
    if guard.kind == "SHAPE":
        return "the program does something else for these sizes and numbers"
    if guard.kind != "TENSOR_MATCH" or guard.source is None:
        return expected_of(guard, failure.subject)
    if not part.startswith(("size(", "stride(")):
        return f"{TENSOR_PARTS.get(part, 'each kind of tensor')} has an entry of its own"
    if config.dynamic is False:
        return "dynamic=False: each size has an entry of its own"
    if any(isinstance(step, Registered) for step in guard.source.steps()):
        return "sizes of parameters and buffers are constants"
    if part.startswith("size(") and {failure.was, failure.now} & {"0", "1"}:
        ones = "; under specialize_zero_one=False size 1 has none, where the program does the same for it" if "1" in (failure.was, failure.now) else ""
        return f"sizes 0 and 1 have entries of their own{ones}"
    return ""


def number_under(config: CompileConfig) -> str:
    return "dynamic=False: each number has an entry of its own" if config.dynamic is False else ""


TENSOR_PARTS: Mapping[str, str] = {
    "dtype": "each dtype",
    "device": "each device",
    "requires_grad": "a tensor that requires gradients and one that does not each",
    "dim()": "each number of dimensions",
}
EXPECTED: Mapping[str, str] = {
    "EQUALS": "each value has an entry of its own",
    "TYPE": "each type has an entry of its own",
    "ID": "each object has an entry of its own: the program, or what it calls, is another one",
    "NONE": "None and other values have an entry each",
    "HASATTR": "an attribute that comes or goes is another program",
    "DICT_KEYS": "other keys are another program",
    "DICT_CONTAINS": "other keys are another program",
    "LENGTH": "each length has an entry of its own",
    "FUNCTION": "each function has an entry of its own",
    "MODULE": "each structure of a module has an entry of its own",
    "DUPLICATE_INPUT": "arguments that are one object, and those that are several, have an entry each",
    "NOT_ALIASED": "arguments that are one object, and those that are several, have an entry each",
    "DISJOINT": "arguments that share memory with what is written have an entry of their own",
    "GLOBAL_STATE": "each grad mode, autocast and other setting of torch has an entry of its own",
    "SET": "other elements are another program",
    "SET_ORDER": "another order of a set is another program: iterate over sorted(...), or over a list",
    "NAMESPACES": "a global or attribute that the program reads is another one",
    "FLAG": "each value of the setting has an entry of its own",
    "MATCH": "tensors that wrap others in another way, as by other placements on a mesh, have an entry of their own",
}
"""Why no setting has one entry serve both, by the kind of the guard; sizes, numbers and parts of tensors aside."""


def expected_of(guard: Guard, subject: str) -> str:
    return "training and evaluation have an entry each" if subject.endswith("training") else EXPECTED.get(guard.kind, "the program is another one")


def serves(guards: Sequence[Guard], before: Mapping[Source, Failure], frame: Any) -> bool:
    """Whether an entry with these guards would have served the call before, too, were it not for the guards on what is a constant in it: its symbols take
    the numbers of that call. Then the program does the same for both, and settings that make symbols from the start have one entry for both."""
    static = {guard.source: guard.expected for guard in guards if guard.kind == "TENSOR_MATCH"}
    constants = {guard.source for guard in guards if guard.kind == "EQUALS"} | {q.source for q in pinned(guards) if q.kind in ("value", "real")}
    for source, failure in before.items():
        old, new = failure.guard.expected, static.get(source)
        if isinstance(old, TensorFacts):
            if not isinstance(new, TensorFacts) or constant(old.sizes, new.sizes) or old.strides and new.strides and constant(old.strides, new.strides):
                return False
        elif source in constants:
            return False
    return all(holds_before(guard.expected, before, frame) for guard in guards if isinstance(guard.expected, ShapeFacts))


def constant(was: Sequence[int | None], now: Sequence[int | None]) -> bool:
    """Whether one of the extents was and is a constant, and another one."""
    return len(was) != len(now) or any(w is not None and n is not None and w != n for w, n in zip(was, now))


def pinned(guards: Iterable[Guard]) -> frozenset[Quantity]:
    """The quantities that an entry takes one value of alone."""
    conditions = [guard.expected for guard in guards if isinstance(guard.expected, ShapeFacts)]
    return frozenset(c.quantities[0] for c in conditions if c.expression[0] in ("eq", "same") and len(c.quantities) == 1 and is_pin(c.expression))


def is_pin(expression: Expression) -> bool:
    return {operand[0] for operand in expression[1:] if isinstance(operand, tuple)} <= {"quantity", "constant", "given"}


def holds_before(facts: ShapeFacts, before: Mapping[Source, Failure], frame: Any) -> bool:
    """Whether a condition on sizes and numbers held for the call before."""
    try:
        return bool(evaluated(facts.expression, [number_before(q, before.get(q.source), frame) for q in facts.quantities]))
    except (ArithmeticError, ValueError):
        return False


def number_before(quantity: Quantity, failure: Failure | None, frame: Any) -> Any:
    """What the call before brought, as far as its entry tells; else what this one brings."""
    old: Any = None if failure is None else failure.guard.expected
    if isinstance(old, TensorFacts) and quantity.kind in ("size", "stride"):
        was = (old.sizes if quantity.kind == "size" else old.strides or ())[quantity.dim]
    else:
        was = old
    if was is not None:
        return was
    now = evaluate(quantity.source, frame)
    return quantity.read(plain_twin(now) if is_a(now, torch.Tensor) else now)


def named_dims(failed: Sequence[Failure], config: CompileConfig) -> dict[str, dict[int, Any]] | None:
    """`dynamic` with the dimensions that differ, and those that it names already; None where a tensor has no name that a config can have."""
    known = config.dynamic if isinstance(config.dynamic, Mapping) else {}
    dims = {str(name): {int(dim): dict(bounds or {}) for dim, bounds in of.items()} for name, of in known.items()}
    for failure in failed:
        source, part = failure.guard.source, failure.subject.rpartition(".")[2]
        assert source is not None
        name = dotted(source.text())
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) is None:
            return None
        if part.startswith("size("):
            dims.setdefault(name, {}).setdefault(int(part[5:-1]), {})
    return dims


def override(info_name: str, key: tuple[Any, ...], options: Mapping[str, Any], in_config: bool) -> str:
    """Settings as the user can paste them: a keyword of compile(), an entry of dispatch_options for a key of a dispatch, or a line of config for a module
    that a config names; empty where there are none."""
    if not options:
        return ""
    if key:
        return f"dispatch_options={{{shown_name(key[0])}: {dict(options)!r}}}"
    if in_config:
        glob = re.sub(r"[^\w.*-]+", "*", info_name)  # what Hydra would read as more than a name is matched, not named
        return f"compile.modules={{{glob}: {as_config(options)}}}"
    direct = {name: value for name, value in options.items() if name in KEYWORDS}
    others = {name: value for name, value in options.items() if name not in KEYWORDS}
    return ", ".join(f"{name}={value!r}" for name, value in (direct | ({"options": others} if others else {})).items())


def as_config(value: Any) -> str:
    """A value as YAML and Hydra read it, on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {as_config(item)}' for name, item in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(as_config(item) for item in value)}]"
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][\w.]*", value) else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
