"""Runs a program eagerly and compiled, and tells what a user could see differ: results and their identities, exceptions, arguments,
globals, objects' state, gradients, printed text, the random state."""

from __future__ import annotations

import contextlib
import io
import math
import random
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import dynacompile
from dynacompile.events import Event, FrameSkipped, GraphBroke
from tests.fuzz.language import library, object_library
from tests.fuzz.language.programs import Program
from tests.scenarios import strides

LIBRARIES = {name: compile(module.SOURCE, f"<{name}>", "exec") for name, module in (("library", library), ("objects", object_library))}
INTERNAL = ("internal", "verify", "bug")  # in the code or reason of no break
SECONDS = 20


class TooSlow(BaseException):
    """Raised by the alarm."""


@dataclass
class Sight:
    """What is seen after one call: tokens, in order, and the tensors that they count.

    spans: first and last byte of each tensor. gradients: the leaves of those that are gradients. sharing: leaves of the story with a gradient that overlapped
    another tensor."""

    tokens: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)
    sharing: set[int] = field(default_factory=set)
    _seen: dict[int, int] = field(default_factory=dict)
    _storages: dict[int, int] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def look(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, str, complex, bytes, range, slice, torch.dtype, torch.Size, torch.device):
            self.tokens.append(f"{kind.__name__} {value!r}")
            return
        if isinstance(value, (type, types.BuiltinFunctionType, types.ModuleType)):
            self.tokens.append(f"{kind.__name__} {value.__name__}")
            return
        if not isinstance(value, tuple):
            if id(value) in self._seen:
                self.tokens.append(f"same as {self._seen[id(value)]}")
                return
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        self.tokens.append(kind.__qualname__)
        if isinstance(value, torch.Tensor):
            self.tensor(value)
        elif isinstance(value, (tuple, list)):
            self.many(value)
        elif isinstance(value, (set, frozenset)):
            self.many(sorted(value, key=repr))
        elif isinstance(value, dict):
            self.many([part for pair in value.items() for part in pair])
        elif isinstance(value, BaseException):
            self.error(value)
            return
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, types.MethodType):
            self.many([value.__self__, value.__func__])
        if isinstance(value, torch.nn.Module) or hasattr(value, "__dict__") and not isinstance(value, (types.FunctionType, torch.Tensor, types.MethodType)):
            self.look_dict(vars(value))
        for cls in kind.__mro__:
            for name in cls.__dict__.get("__slots__", ()):
                if hasattr(value, name) and cls.__module__ in ("library", "objects", "program"):
                    self.tokens.append(f"slot {name}")
                    self.look(getattr(value, name))

    def look_dict(self, names: dict[str, Any]) -> None:
        for name, value in list(names.items()):
            if name.startswith("__"):
                continue
            self.tokens.append(f".{name}")
            self.look(value)

    def many(self, values: Any) -> None:
        self.tokens.append("(")
        for value in values:
            self.look(value)
        self.tokens.append(")")

    def tensor(self, value: torch.Tensor) -> None:
        memory = self._storages.setdefault(value.untyped_storage().data_ptr(), len(self._storages)) if value.numel() else -1
        self.keep(value, f" memory={memory}")
        if value.is_leaf and value.grad is not None:
            self.tokens.append("gradient")
            self.gradient(value.grad, id(value))

    def gradient(self, value: torch.Tensor, leaf: int) -> None:
        """Its memory has no number: `share_memory` tells whether it is another tensor's."""
        if id(value) in self._seen:
            return self.look(value)
        self._seen[id(value)] = len(self._seen)
        self.gradients[len(self.tensors)] = leaf
        self.keep(value, "")

    def keep(self, value: torch.Tensor, more: str) -> None:
        self.tokens.append(f"tensor {len(self.tensors)}: {facts(value)}{more}")
        self.tensors.append(value.detach().clone())
        self.spans.append(span(value))
        self._kept.append(value)

    def share_memory(self) -> set[int]:
        """The places of gradients that overlap another tensor, or whose leaf's gradient did in an earlier call."""
        for place, leaf in self.gradients.items():
            first, last = self.spans[place]
            if any(low <= last and first <= high for other, (low, high) in enumerate(self.spans) if other != place):
                self.sharing.add(leaf)
        return {place for place, leaf in self.gradients.items() if leaf in self.sharing}

    def function(self, value: types.FunctionType) -> None:
        self.tokens.append(f"{value.__qualname__} line {value.__code__.co_firstlineno}")
        self.many(value.__defaults__ or ())
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                self.tokens.append(f"cell {name} empty")
                continue
            self.tokens.append(f"cell {name}")
            self.look(content)

    def error(self, value: BaseException | None, depth: int = 0) -> None:
        if value is None:
            self.tokens.append("no exception")
            return
        self.tokens.append(f"{type(value).__name__}: {value}")
        if not isinstance(value, RuntimeError):
            self.many(value.args)
        if hasattr(value, "number"):
            self.tokens.append(f"number {value.number}")
        if depth < 3:
            self.tokens.append("cause")
            self.error(value.__cause__, depth + 1)
            self.tokens.append("context")
            self.error(value.__context__, depth + 1)


def facts(value: torch.Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)} {strides(value)} grad={value.requires_grad} leaf={value.is_leaf}"


def span(value: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte; of a tensor without elements, none."""
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    return (value.data_ptr(), value.data_ptr() + reach * value.element_size() - 1) if value.numel() else (0, -1)


@dataclass
class Story:
    """What one run of a program showed, a Sight per call."""

    sights: list[Sight] = field(default_factory=list)
    sharing: set[int] = field(default_factory=set)  # of all its sights
    broken: str = ""  # an exception of the compiler itself


def names_of(program: Program) -> dict[str, Any]:
    """The namespace that the program makes; its libraries are modules of its own."""
    names: dict[str, Any] = {"__name__": "program"}
    made = {name: types.ModuleType(name) for name in LIBRARIES}
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        for name, code in LIBRARIES.items():
            exec(code, vars(made[name]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(program.source, f"<program {program.seed}>", "exec")
        exec(code, names)
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    return names


def tell(program: Program, wrap: Callable[[Any], Any]) -> Story:
    """Runs the calls of the program; `wrap` compiles what is called."""
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    plain_modes()
    names = names_of(program)
    wrapped: dict[int, Any] = {}
    story = Story()
    calls = names["calls"]()
    while True:
        try:
            target, args = next(calls)
        except Exception as error:  # noqa: BLE001 - StopIteration, or an argument can't be made
            story.sights.append(Sight([f"the end {type(error).__name__} {error}"]))
            return story
        if id(target) not in wrapped:
            wrapped[id(target)] = wrap(target)
        story.sights.append(call(wrapped[id(target)], args, names, story.sharing))


def plain_modes() -> None:
    """What a run that went wrong may have left."""
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)


def call(target: Callable[..., Any], args: tuple, names: dict[str, Any], sharing: set[int]) -> Sight:
    result: Any = None
    raised: BaseException | None = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = target(*args)
        except Exception as error:  # noqa: BLE001 - it is compared
            raised = error
            forget_frames(error)  # what their variables hold ends now, in both runs
        sight = Sight(sharing=sharing)
        for value in called(result):
            sight.look(value)
    sight.tokens.append(f"random {hash(tuple(torch.get_rng_state().tolist()))} {hash(random.getstate())}")
    sight.tokens.append(f"grad mode {torch.is_grad_enabled()} autocast {torch.is_autocast_enabled('cpu')}")
    plain_modes()
    if raised is None:
        roots = [t for t in tensors_of(result) if t.requires_grad and t.is_floating_point() and t.grad_fn is not None]
        try:
            if roots:
                torch.autograd.backward([(t * torch.arange(t.numel(), dtype=t.dtype).reshape(t.shape)).sum() for t in roots])
        except RuntimeError as error:
            sight.tokens.append(f"backward: {error}")
    sight.tokens.append("result")
    sight.look(result)
    sight.tokens.append("raised")
    sight.error(raised)
    sight.tokens.append("arguments")
    sight.many(args)
    sight.tokens.append("globals")
    made = names_of_library(names)
    sight.look_dict({k: v for k, v in names.items() if k in STATE or k not in made})
    sight.tokens.append(f"printed {printed.getvalue()!r}")
    return sight


def forget_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


STATE = ("LOG", "STEPS", "GLIST", "GDICT", "GBOX", "GINT", "model")


def names_of_library(names: dict[str, Any]) -> set[str]:
    made = {k for k, v in names.items() if isinstance(v, (types.ModuleType, types.FunctionType, type, types.BuiltinFunctionType))}
    return made | {"Box", "calls"}


def called(result: Any) -> Iterator[Any]:
    """What functions that the program returns give."""
    for item in result.values() if type(result) is dict else result if type(result) in (list, tuple) else ():
        for inner in item if type(item) is list else [item]:
            if isinstance(inner, types.FunctionType) and inner.__code__.co_argcount >= 1:
                try:
                    yield inner(torch.ones(2, 3) if inner.__code__.co_varnames[0].startswith("t") else 3)
                except Exception as error:  # noqa: BLE001 - it is compared
                    yield f"{type(error).__name__}: {error}"


def tensors_of(tree: Any, depth: int = 0) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if depth < 4 and isinstance(tree, (list, tuple)):
        return [t for item in tree for t in tensors_of(item, depth + 1)]
    if depth < 4 and isinstance(tree, dict):
        return [t for item in tree.values() for t in tensors_of(item, depth + 1)]
    return []


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Seconds of this process's own time."""

    def ring(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def difference(program: Program, reference: bool = False) -> str | None:
    """What differs between the eager and the compiled program, None if nothing does. reference: through all stages, kernels interpreted."""
    try:
        with limited(SECONDS // 2):
            want = tell(program, lambda fn: fn)
    except TooSlow:
        return None
    except Exception as error:  # noqa: BLE001 - the program is wrong
        return f"not a program: {type(error).__name__}: {error}"
    dynacompile.reset()
    events: list[Event] = []
    how: dict[str, Any] = {"options": {"reference": True, "fallback": "none"}} if reference else {"backend": "eager", "options": {"fallback": "none"}}
    end = dynacompile.subscribe(events.append)
    try:
        with limited(SECONDS):
            got = tell(program, lambda fn: dynacompile.compile(fn, isolate_recompiles=True, **how))
    except TooSlow:
        return "too slow"
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        return f"outside of a call: {type(error).__name__}: {error}"
    finally:
        end()
        torch.set_grad_enabled(True)
    for event in events:
        said = event.code + " " + event.reason if isinstance(event, GraphBroke) else event.reason if isinstance(event, FrameSkipped) else ""
        if any(word in said.lower() for word in INTERNAL) or "please report" in said and "op-failed" not in said:
            return f"internal: {said}"
    return compare(got, want, reference)


def compare(got: Story, want: Story, reference: bool) -> str | None:
    for number, (a, b) in enumerate(zip(got.sights, want.sights, strict=False)):
        section = "functions"
        for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
            if x in ("result", "raised", "arguments", "globals", "gradient"):
                section = x
            if x != y:
                internal = "internal: " if "a bug in dynacompile" in x else ""
                return f"{internal}call {number}, {section}: {x} after {a.tokens[max(0, i - 3) : i]}, eager's {y}"
        if len(a.tokens) != len(b.tokens):
            return f"call {number}, {section}: {len(a.tokens)} tokens, eager's {len(b.tokens)}"
        ours, theirs = a.share_memory(), b.share_memory()
        if not reference and ours != theirs or ours - theirs:
            return f"call {number}: gradients {sorted(ours)} share memory, eager's {sorted(theirs)}"
        for i, (t, u) in enumerate(zip(a.tensors, b.tensors, strict=True)):
            if i in theirs - ours:  # eager accumulates into both at once: docs/ops.md
                continue
            if not same(t, u, reference):
                return f"call {number}: tensor {i} is {t.tolist()}, eager's {u.tolist()}"
    return None


def same(t: torch.Tensor, u: torch.Tensor, reference: bool) -> bool:
    if reference and t.is_floating_point():
        return torch.allclose(t, u, rtol=1e-4, atol=1e-5, equal_nan=True)
    if t.is_floating_point() and t.numel() <= 64:
        return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(t.flatten().tolist(), u.flatten().tolist(), strict=True))
    return torch.equal(t, u)
