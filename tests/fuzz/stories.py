"""Random stories: a frame as text and what its caller does with the results, told with eager's frame and with the compiled one."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile

BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "reference": {"options": {"reference": True}},
}
ERRORS = (
    "modified by an inplace operation",
    "backward through the graph a second time",
    "backward through the same graph",
    "leaf Variable that requires grad",
    "does not require grad",
    "not to have been used in the graph",
    "more than one element of the written-to tensor",
    "some elements of the input tensor and the written-to tensor",
    "nference tensor",
    "can only",
    "is a view and",
    "cannot return more than one Variable",
)
"""What tells errors of autograd apart; the rest of such a message names nodes, versions and sizes."""


UNTOLD = "RuntimeError: A view was created"
"""Of such views autograd tells nothing any more. Ours are made after the write that is the reason."""


@dataclass(frozen=True)
class Story:
    """source: Python text that defines `frame`, and `story(frame)`, a generator of what is to be compared."""

    source: str

    def told(self, wrap: Callable[[Any], Any]) -> list[Any]:
        scope: dict[str, Any] = {"torch": torch, "told_of": told_of, "values_of": values_of, "is_told": is_told, "attempt": attempt}
        exec(compile(self.source, "<story>", "exec"), scope)
        torch.manual_seed(0)
        out = []
        for item in scope["story"](wrap(scope["frame"])):
            out.append(item)
        out.append(("random state", torch.get_rng_state().sum().item()))
        out.append(("modes", torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return out


def is_told(value: Any) -> bool:
    """Whether what happened before an error of a frame is to be as in eager: not where a kernel refuses what fakes take, for a graph is all or nothing."""
    return not isinstance(value, str) or any(value.endswith(kind) for kind in ERRORS)


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        text = str(error)
        kind = next((known for known in ERRORS if known in text), text.removeprefix("dynacompile: ").splitlines()[0][:50] if text else "")
        return f"{type(error).__name__}: {kind}"


def told_of(value: Any, known: tuple = (), versions: bool = True) -> Any:
    """What a caller can see of a result. known: tensors that it may share memory with. versions: whether their versions count."""
    if isinstance(value, (tuple, list)):
        return [told_of(item, known, versions) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach()
    numbers = plain.reshape(-1).tolist()
    history = attempt(lambda: (value.requires_grad, value.is_leaf, value.grad_fn is None))
    shared = [value is t or shares(value, t) for t in known]
    version = value._version if versions and any(value is t for t in known) and not value.is_inference() else 0
    strides = tuple(s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1)
    facts = (tuple(value.shape), strides, value.dtype, type(value).__name__, value.is_inference(), value._is_view() and any(shared))
    return [numbers, facts, history, shared, version]


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def values_of(value: Any) -> Any:
    """The numbers and type of tensors, as gradients are compared: how autograd made them shows in their strides and versions."""
    if isinstance(value, (tuple, list)):
        return [values_of(item) for item in value]
    return [told_of(value)[0], value.dtype, tuple(value.shape), value.requires_grad] if isinstance(value, torch.Tensor) else value


def unlike(got: Any, want: Any, path: str = "") -> str:
    """The first part that differs."""
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        lengths = f"{path}: {len(got)} parts, eager: {len(want)}" if len(got) != len(want) else ""
        return next((found for i, (a, b) in enumerate(zip(got, want)) if (found := unlike(a, b, f"{path}[{i}]"))), lengths)
    if isinstance(got, float) and isinstance(want, float) and (math.isclose(got, want, rel_tol=1e-3, abs_tol=1e-4) or got != got and want != want):
        return ""
    return "" if got == want else f"{path}: {got}, eager: {want}"


def first_pair(got: Any, want: Any) -> tuple[Any, Any]:
    """The first parts that differ, each whole: of an error and a list, the list."""
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        return next((first_pair(a, b) for a, b in zip(got, want) if unlike(a, b)), (got, want))
    return got, want


HOOKED = "TypeError: unsupported operand type(s) for *: 'NoneType' and "
"""What the hooks of the programs raise where no gradient comes."""
VIEW_INPUT = "(torch.linspace(-1, 2, 6).requires_grad_() * 1).view(2, 3)"
ASKED = re.compile(r"torch\.autograd\.grad\(.*, \[(x\d)\], allow_unused")
CHANGED = re.compile(r"yield str\(attempt\(lambda: (?:change\(|quiet\(|zero\()?(x\d)\b")


def gives_hooks_none(source: str, got: Any, want: Any) -> bool:
    """One node of a compiled graph stands for several of eager's: a hook runs, with None, where another part of the node runs, or is not run."""
    other = want if got == HOOKED else got
    return "register_hook" in source and HOOKED in (got, want) and not (isinstance(other, str) and "Error: " in other)


def reads_for_another(source: str, got: Any, want: Any) -> bool:
    """An input that eager keeps for one gradient, and the compiled backward reads for another one, was written, and that other one alone is asked for."""
    asked = ASKED.search(source)
    refused = got == "RuntimeError: modified by an inplace operation" and isinstance(want, list)
    return asked is not None and refused and any(name != asked[1] for name in CHANGED.findall(source))


def is_detached_in_place(source: str, got: Any, want: Any) -> bool:
    """A result was detached in place after a graph break, and eager keeps it for what is computed of it."""
    told = str(want).startswith("RuntimeError: Trying to use a saved tensor that has been detache")
    return ".detach_()" in source and told and (got == "None" or got == "RuntimeError: modified by an inplace operation")


def has_another_history(source: str, got: Any, want: Any) -> bool:
    """An input that is a view has a new node once its memory was written detached, which in eager nothing before has led to."""
    asked = ASKED.search(source)
    written = asked is not None and f"{asked[1]} = {VIEW_INPUT}" in source and f"{asked[1]}.detach().add_(1)" in source
    return written and want is None and isinstance(got, list)


CHANGED_RESULT = re.compile(r"yield str\(attempt\(lambda: (?:change\(|quiet\(|zero\()?out\[")


def cannot_run_again(source: str, got: Any, want: Any) -> bool:
    """A result that eager does not keep was written after the call, the backward reads it, and the graph can't run again for it: the frame or its caller
    wrote an input, or an earlier backward pass has freed what was kept."""
    refused = got == "RuntimeError: modified by an inplace operation" and want == "None"
    if not refused or CHANGED_RESULT.search(source) is None:
        return False
    return CHANGED.search(source) is not None or source.count("backward(") > 1 or writes_inputs(Story(source))


def writes_inputs(story: Story) -> bool:
    """Whether the frame writes to one of its arguments, in eager."""
    written = []

    def watched(frame: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            before = [0 if t.is_inference() else t._version for t in args]
            try:
                return frame(*args)
            finally:
                written.extend(not t.is_inference() and t._version != v for t, v in zip(args, before, strict=True))

        return call

    attempt(story.told, watched)
    return any(written)


def leads_elsewhere(source: str, got: Any, want: Any) -> bool:
    """One node of a compiled graph leads to what all of its inputs were computed from: a backward pass runs, with no gradient, what led to an input that was
    written, or that others of the results depend on, where eager does not: it frees that, and nodes of views give zeros for no gradient."""
    has_history = "requires_grad_() * 1" in source
    return has_history and (
        (got == "RuntimeError: backward through the graph a second time" and want == "None")
        or (want is None and isinstance(got, list) and VIEW_INPUT in source and is_zero(got[0]))
    )


def is_zero(values: Any) -> bool:
    return isinstance(values, list) and not any(values)


def keeps_for_none(source: str, got: Any, want: Any) -> bool:
    """A custom function that gives no gradient to the one input that is asked for, where it or what is computed of its results keeps a result that was
    written: eager runs both nevertheless."""
    refused = want == "RuntimeError: modified by an inplace operation"
    return ASKED.search(source) is not None and got == [None] and refused and ("Marked.apply" in source or "MaybeNone.apply" in source)


def retains_for_none(source: str, got: Any, want: Any) -> bool:
    """A custom function that gives no gradient to the one input that is asked for, and a result of which keeps its gradient: eager runs it nevertheless."""
    return ASKED.search(source) is not None and got is None and isinstance(want, list) and "Marked.apply" in source and ".retain_grad()" in source


def raises_another_error(source: str, got: Any, want: Any) -> bool:
    """Two statements of the frame are wrong. Of views with shared elements and of `set_`, capture tells at once what eager tells when it runs them."""
    pairs = {
        ("RuntimeError: modified by an inplace operation", "RuntimeError: is a view and"): "Split.apply(",
        ("RuntimeError: more than one element of the written-to tensor", "RuntimeError: view size is not compatible with input tensor's si"): ".expand(",
        ("RuntimeError: The size of tensor a (2) must match the size of te", "RuntimeError: leaf Variable that requires grad"): ".set_(",
    }
    return isinstance(got, str) and isinstance(want, str) and (got, want) in pairs and pairs[got, want] in source


def moves_what_retains(source: str, got: Any, want: Any) -> bool:
    """A result that keeps its gradient was written: torch moves what keeps it by the number that the result has in its new node."""
    return str(got).startswith("RuntimeError: out != nullptr INTERNAL") and isinstance(want, str) and ".retain_grad()" in source


KNOWN = (
    moves_what_retains,
    gives_hooks_none,
    reads_for_another,
    is_detached_in_place,
    has_another_history,
    cannot_run_again,
    leads_elsewhere,
    keeps_for_none,
    retains_for_none,
    raises_another_error,
)
"""The documented differences, see docs/reliability.md, by what the first difference has to be: (source, ours, eager's)."""


@dataclass(frozen=True)
class Difference:
    """known: the documented difference that it is, or nothing."""

    text: str
    known: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.known}, known)" if self.known else self.text


def difference(story: Story, backend: str, text: str, got: Any, want: Any) -> Difference:
    pair = first_pair(got, want)
    return Difference(f"{backend}: {text}", next((known.__name__ for known in KNOWN if known(story.source, *pair)), ""))


def differences(story: Story, backends: tuple[str, ...]) -> Iterator[Difference]:
    """Where the compiled story is not eager's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = attempt(story.told, lambda frame: frame)
        for backend in backends:
            dynacompile.reset()
            got = attempt(story.told, lambda frame, backend=backend: dynacompile.compile(frame, **BACKENDS[backend]))
            if isinstance(got, str) or isinstance(want, str):
                if got != want:
                    yield Difference(f"{backend}: {got}, eager: {want}")
                continue
            found = unlike(got, want) if UNTOLD not in str(want) else ""
            if found and not is_told_again(story, want):
                return
            if found:
                yield difference(story, backend, found, got, want)


def main(make: Callable[[int], Story]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backends", default="eager,aot_eager")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    seed, backends = given.first, tuple(given.backends.split(","))
    while seed < given.last:
        found, status = in_child(lambda seed=seed: run(make, range(seed, given.last), backends, given.show))
        counts["differ"] += found.count(DIFFERS)
        counts["known"] += found.count(AS_KNOWN)
        seed += len(found)
        if status:  # torch itself ends the process by some programs: two hooks of a view whose base was written between, for one
            _, alone = in_child(lambda seed=seed: run(make, range(seed, seed + 1), (), False))
            counts["end eager" if alone else "differ"] += 1
            print(f"seed {seed}: the process ended with status {status}, eager alone: {alone}", flush=True)
            seed += 1
    known = f"{counts['known']} as documented" if counts["known"] else "none as documented"
    print(f"{given.last - given.first} programs, {counts['differ']} differ, {known}, {counts['end eager']} end the process in eager, too")
    sys.exit(counts["differ"] != 0)


DIFFERS, AS_KNOWN, SAME = b"d", b"k", b"s"


def is_told_again(story: Story, want: list[Any]) -> bool:
    """Whether eager tells the same once more. It does not where a program reads memory that nothing was written to."""
    for value in (float("nan"), 7.0):
        dirty_memory(value)
        if unlike(attempt(story.told, lambda frame: frame), want):
            return False
    return True


def dirty_memory(value: float) -> None:
    """Leaves a value in memory that is taken next."""
    for size in range(1, 64):
        torch.full((size,), value)


def run(make: Callable[[int], Story], seeds: Iterable[int], backends: tuple[str, ...], show: bool) -> Iterator[bytes]:
    """Of each program, whether it differs."""
    for seed in seeds:
        story = make(seed)
        if show:
            print(story.source)
        found = list(differences(story, backends))
        for text in found:
            print(f"seed {seed}: {text}", flush=True)
        yield SAME if not found else AS_KNOWN if all(text.known for text in found) else DIFFERS


def in_child(work: Callable[[], Iterator[bytes]]) -> tuple[bytes, int]:
    """What a forked process yields until it ends, and its exit status."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        status = 1
        try:
            for told in work():
                os.write(writing, told)
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    return found, os.waitpid(child, 0)[1]


def block(lines: list[str], depth: int = 1) -> str:
    return textwrap.indent("\n".join(lines), "    " * depth)
