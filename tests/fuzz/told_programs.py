"""What a training program leaves behind at each of its events, told with eager's functions and with compiled ones."""

from __future__ import annotations

import dataclasses
import hashlib
import linecache
import random
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

import dynacompile
from dynacompile.events import Compiled, GraphBroke, LimitHit

BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "reference": {"options": {"reference": True}},
    "default": {},
}
TOLERANCE = {torch.bfloat16: 6e-2, torch.float16: 1e-2}
TOLD_IN_PART = (
    "modified by an inplace operation",
    "backward through the graph a second time",
    "nference tensor",
    "custom backward associated with the custom Function",
)
"""Errors of autograd, whose messages name nodes, versions and sizes."""
ADDRESS = re.compile(r"0x[0-9a-f]+|\bid=\d+|object at \S+")


class Eager:
    """How a program compiles: not at all."""

    name = "plain"

    def __call__(self, target: Any, **options: Any) -> Any:
        return target

    def inplace(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        return module

    def reset(self) -> None:
        pass


class Compiling(Eager):
    def __init__(self, backend: str):
        self.name = backend

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        options = {"isolate_recompiles": True, **BACKENDS[self.name], **given}
        if "options" in BACKENDS[self.name]:
            options["options"] = {**BACKENDS[self.name]["options"], **given.get("options", {})}
        return options

    def __call__(self, target: Any, **options: Any) -> Any:
        return dynacompile.compile(target, **self.options(options))

    def inplace(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        dynacompile.compile(module, inplace=True, **self.options(options))
        return module

    def reset(self) -> None:
        dynacompile.reset()


class Notes:
    """The facts of a run, in their order. A program calls it with a label and with what is to be told."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []
        self.loose = False
        self.versions: dict[int, tuple[weakref.ref, int]] = {}  # of tensors that were told, by their ids
        self.kept: list[Any] = []  # what has an id in a note, which nothing else may have meanwhile

    def __call__(self, label: str, *things: Any) -> None:
        places: dict[int, str] = {}
        memory: dict[int, str] = {}
        told = [self.told(thing, f"{i}", places, memory) for i, thing in enumerate(things)]
        self.kept.clear()
        self.items.append((label, told))
        self.items.append((f"{label} (random state)", random_state()))
        self.items.append((f"{label} (modes)", modes()))

    def attempt(self, label: str, call: Callable[[], Any], *things: Any) -> Any:
        """Runs the call and tells of its result or error, and of things afterwards. Gives the result, or None."""
        result, error = None, None
        try:
            result = call()
        except Exception as raised:  # noqa: BLE001  (the point is to compare it)
            error = told_error(raised)
        self(label, error, result, *things)
        return result

    def told(self, value: Any, path: str, places: dict[int, str], memory: dict[int, str], depth: int = 0) -> Any:
        if isinstance(value, torch.Tensor):
            return self.told_tensor(value, path, places, memory)
        if type(value) is float:
            return Numbers(torch.tensor([value], dtype=torch.float32), self.loose)
        if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.Size, torch.device)):
            return value
        if depth > 6:
            return type(value).__name__
        if id(value) in places and isinstance(value, (list, dict, torch.nn.Module)):
            return f"is {places[id(value)]}"
        places[id(value)] = path
        self.kept.append(value)
        if isinstance(value, torch.nn.Module):
            value = module_state(value)
        elif isinstance(value, torch.optim.Optimizer):
            value = value.state_dict()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {"class": type(value).__name__, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}}
        if isinstance(value, dict):
            return {str(k): self.told(v, f"{path}.{k}", places, memory, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *(self.told(v, f"{path}.{i}", places, memory, depth + 1) for i, v in enumerate(value))]
        return f"{type(value).__name__}"

    def told_tensor(self, value: torch.Tensor, path: str, places: dict[int, str], memory: dict[int, str]) -> Any:
        if id(value) in places:
            return f"is {places[id(value)]}"
        places[id(value)] = path
        self.kept.append(value)
        if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
            return f"uninitialized {type(value).__name__}"
        facts = [type(value).__name__, value.dtype, tuple(value.shape), value.layout, value.requires_grad, value.is_leaf, value.is_inference()]
        facts.append(self.is_written(value))
        if value.layout is torch.sparse_coo:
            return [
                facts,
                self.told_tensor(value.detach().coalesce().indices(), path, {}, {}),
                self.told_tensor(value.detach().coalesce().values(), path, {}, {}),
            ]
        facts.append(tuple(s for s, n in zip(value.stride(), value.shape) if n > 1) if value.numel() else ())
        shared = None
        if value.untyped_storage().nbytes():
            shared = memory.setdefault(value.untyped_storage().data_ptr(), path)
        plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        numbers = Numbers(plain.reshape(-1).clone(), self.loose)
        grad = value.grad if value.is_leaf or value.retains_grad else None
        return [facts, numbers, shared, None if grad is None else self.told_tensor(grad, f"{path}.grad", places, memory)]

    def is_written(self, value: torch.Tensor) -> bool | None:
        """Whether autograd counts a write since the tensor was told last; None where it was not, or where writes are not counted."""
        if value.is_inference():
            return None
        seen, version = self.versions.get(id(value), (None, 0))
        self.versions[id(value)] = (weakref.ref(value), value._version)
        return value._version != version if seen is not None and seen() is value else None


class Numbers:
    """The elements of a tensor, which agree up to rounding."""

    def __init__(self, flat: torch.Tensor, loose: bool):
        self.flat, self.loose = flat, loose

    def difference(self, other: Numbers) -> str:
        a, b = self.flat, other.flat
        if a.shape != b.shape:
            return f"{a.shape} elements, eager: {b.shape}"
        if not a.is_floating_point() and not a.is_complex():
            return "" if torch.equal(a, b) else f"{a.tolist()[:8]}, eager: {b.tolist()[:8]}"
        rounding = max(TOLERANCE.get(a.dtype, 2e-4), 3e-1 if self.loose else 0.0)
        wide = torch.complex128 if a.is_complex() else torch.float64
        # Programs that diverge multiply what was rounded.
        scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
        rounding = max(rounding, 0.3 if scale > 1e5 else 0.0)
        if torch.allclose(a.to(wide), b.to(wide), rtol=rounding, atol=rounding * max(scale, 1.0), equal_nan=True):
            return ""
        return f"{a.tolist()[:8]}, eager: {b.tolist()[:8]}"


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """Parameters, buffers and plain attributes of all submodules."""
    state: dict[str, Any] = {}
    for name, part in module.named_modules():
        state[f"{name}:{type(part).__name__}"] = [part.training, sorted(part._non_persistent_buffers_set)]
        state |= {f"{name}.{k}": v for k, v in part._parameters.items()}
        state |= {f"{name}.{k}": v for k, v in part._buffers.items()}
        for key, value in sorted(part.__dict__.items()):
            if isinstance(value, (bool, int, float, str, list, dict, tuple, torch.Tensor)) and not key.startswith("_") and key not in ("training", "buckets"):
                state[f"{name}.{key}"] = value
    return state


def random_state() -> list[Any]:
    return [
        hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        hash(random.getstate()),
        hash(numpy.random.get_state()[1].tobytes() + bytes([numpy.random.get_state()[2] % 256])),
    ]


def modes() -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
    ]


def told_error(raised: BaseException) -> str:
    text = ADDRESS.sub("...", str(raised)).removeprefix("dynacompile: ")
    known = next((k for k in TOLD_IN_PART if k in text), None)
    return f"{type(raised).__name__}: {known or (text.splitlines()[0] if text else '')}"


def restore_modes() -> None:
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_cache_enabled(True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)


def run(story: Callable[[Any, Notes], None], wrap: Eager, loose: bool = False) -> list[tuple[str, Any]]:
    """The facts that a story tells. An error that leaves it is one of them."""
    notes = Notes()
    notes.loose = loose
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    wrap.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            story(wrap, notes)
    except Exception as raised:  # noqa: BLE001
        notes.items.append(("left by", told_error(raised)))
        notes.items.append(("modes", modes()))
    finally:
        restore_modes()
    return notes.items


def unlike(got: Any, want: Any, path: str = "") -> str:
    """The first fact that differs, or nothing."""
    if isinstance(got, Numbers) and isinstance(want, Numbers):
        found = got.difference(want)
        return found and f"{path}: {found}"
    if isinstance(got, dict) and isinstance(want, dict):
        if list(got) != list(want):
            return f"{path}: keys {[k for k in got if k not in want] or list(got)}, eager: {[k for k in want if k not in got] or list(want)}"
        return next((found for k in want if (found := unlike(got[k], want[k], f"{path}.{k}"))), "")
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        lengths = f"{path}: {len(got)} parts, eager: {len(want)}" if len(got) != len(want) else ""
        return next((found for i, (a, b) in enumerate(zip(got, want)) if (found := unlike(a, b, f"{path}[{i}]"))), lengths)
    return "" if type(got) is type(want) and got == want else f"{path}: {shown(got)}, eager: {shown(want)}"


def shown(value: Any) -> str:
    if isinstance(value, Numbers):
        return str(value.flat.tolist()[:8])
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(v) for v in value) + "]"
    return repr(value)


def differences(got: list[tuple[str, Any]], want: list[tuple[str, Any]]) -> Iterator[str]:
    """By fact. got, want: of the compiled and of the eager run."""
    for (label, a), (other, b) in zip(got, want):
        if label != other:
            yield f"{label}, eager: {other} {shown(b)[:300]} {shown(a)[:300]}"
            return
        if found := unlike(a, b, label):
            yield found[:600]
    if len(got) != len(want):
        yield f"{len(got)} facts, eager: {len(want)}; {got[-1] if len(got) > len(want) else want[-1]}"


@dataclasses.dataclass
class Compiles:
    """What the compiler did in a run."""

    entries: int = 0
    breaks: dict[str, str] = dataclasses.field(default_factory=dict)
    limits: int = 0

    def __call__(self, event: Any) -> None:
        if isinstance(event, Compiled):
            self.entries += 1
        elif isinstance(event, LimitHit):
            self.limits += 1
        elif isinstance(event, GraphBroke):
            self.breaks[event.code] = f"{event.reason} at {event.site}"


def compare(story: Callable[[Any, Notes], None], backend: str, want: list[tuple[str, Any]], loose: bool = False) -> tuple[list[str], Compiles]:
    """What differs from eager's facts, and what was compiled."""
    compiles = Compiles()
    end = dynacompile.subscribe(compiles)
    try:
        found = list(differences(run(story, Compiling(backend), loose), want))
    finally:
        end()
    if "internal" in compiles.breaks:
        found.append(f"internal: {compiles.breaks['internal']}")
    return found, compiles


def story_of(source: str, name: str) -> Callable[[Any, Notes], None]:
    """The function `story` of a text, whose lines tracebacks and compilers find."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    module = sys.modules["told_program"] = types.ModuleType("told_program")  # where dataclasses look for their module
    exec(compile(source, name, "exec"), module.__dict__)
    return module.__dict__["story"]
