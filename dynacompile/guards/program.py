"""Guards as native programs, and graph inputs as native gathers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynacompile.guards.evaluate import MISSING, InFrame, Missing
from dynacompile.guards.evaluate import evaluate as evaluate
from dynacompile.guards.kinds import KINDS
from dynacompile.guards.shapes import shape_program
from dynacompile.guards.tree import STEPS, Tree
from dynacompile.guards.wording import shown, suffixed, text
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.expressions import Formula
from dynacompile.ir.guard_facts import Identity, is_a
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.source import Constant, Source
from dynacompile.ir.wording import revealed, told
from dynacompile.native import core as native_core
from dynacompile.private import of_torch


@dataclass(frozen=True)
class Failure:
    """One fact that no longer holds. subject: what differs, as the user would write it; was, now: readable values."""

    guard: Guard
    subject: str
    was: str
    now: str

    @property
    def text(self) -> str:
        return f"{self.subject}: {self.was} -> {self.now}"

    @property
    def revealing(self) -> str:
        """With values, for the screen alone."""
        return f"{self.subject}: {revealed(self.was)} -> {revealed(self.now)}"


def described(guard: Guard) -> str:
    """A guard on one line: what it is about, and what it wants."""
    about = "" if guard.source is None else f" {text(guard)}"
    expected = guard.expected
    if isinstance(expected, TensorFacts):
        layout = f"sizes {list(expected.sizes)}, strides {expected.strides}" + (", requires_grad" if expected.requires_grad else "")
        return f"{guard.kind}{about}: {expected.type.__name__}, {expected.dtype}, {expected.device}, {layout}"
    if expected is None:
        return guard.kind + about
    wanted = told(expected.text, expected.text) if isinstance(expected, Identity) else shown(expected)
    return suffixed(wanted, before=f"{guard.kind}{about}: ")


def compile_guards(guards: Sequence[Guard]) -> Any:
    """The native GuardProgram of these guards. Raises KeyError for an unknown kind, ValueError for a payload that can't be compared natively."""
    tree = Tree()
    for index, guard in enumerate(guards):
        node = tree.node(guard.source, index) if guard.source is not None else -1
        KINDS[guard.kind].compile(tree, node, guard, index)
    return native_core().GuardProgram(tree.accessors, tree.checks, tree.relations)


def compile_gather(roots: Sequence[Source], sources: Sequence[Source], target: Callable[..., Any], without_modes: bool = False) -> Callable[..., Any]:
    """A native callable that takes the values of `roots` in order, loads or computes `sources` from them, and calls `target` with these.

    without_modes: no torch-function mode is on while `target` runs.
    Returns `target` itself where there is nothing to do but the call. Raises ValueError for a source that no root leads to.
    """
    if list(roots) == list(sources) and not without_modes:
        return target
    tree = Tree()
    arguments = {root: index for index, root in enumerate(roots)}
    known: dict[Source, int] = {}
    outputs = [gather_node(tree, source, arguments, known) for source in sources]
    steps = [(accessor, parent, argument) for accessor, parent, argument in tree.accessors]
    return native_core().Gather(len(roots), steps, outputs, target, f"gather of {len(sources)} graph inputs", without_modes)


def gather_node(tree: Tree, source: Source, arguments: Mapping[Source, int], known: dict[Source, int]) -> int:
    """The node of a source; `known` has those of the sources that were met."""
    found = known.get(source)
    if found is None:
        found = known[source] = new_gather_node(tree, source, arguments, known)
    return found


def new_gather_node(tree: Tree, source: Source, arguments: Mapping[Source, int], known: dict[Source, int]) -> int:
    if isinstance(source, Formula):
        places = tuple(gather_node(tree, q.source, arguments, known) for q in source.quantities)
        return tree.step(-1, "number", (places, tuple(shape_program(source.expression, source.quantities))))
    if source in arguments:
        return tree.step(-1, "slot", arguments[source])
    base = getattr(source, "base", None)
    if base is None:
        if isinstance(source, Constant):
            return tree.step(-1, "constant", source.value)
        raise ValueError(f"{source.text()}, where a graph input starts, is not among the roots")
    node = gather_node(tree, base, arguments, known)
    for accessor, argument in STEPS[type(source)](source):
        node = tree.step(node, accessor, argument)
    return node


def failures(guards: Sequence[Guard], frame: Any) -> list[Failure]:
    """Every guard that does not hold for `frame` (a FrameProxy, or a mapping from names to values), by the Python twin of the machine."""
    found = []
    for guard in guards:
        value = evaluate(guard.source, frame) if guard.source is not None else None
        if is_a(value, Missing):
            found.append(Failure(guard, text(guard), "present", "missing"))
            continue
        try:
            found += [Failure(guard, *difference) for difference in differences(guard, value, frame)]
        except Exception as error:  # noqa: BLE001  (objects refuse questions in ways of their own, and a recompile's text is to end no call)
            check_recurs(error, lambda guard=guard, value=value: differences(guard, value, frame))  # type: ignore[misc]
            found.append(Failure(guard, text(guard), "readable", f"{type(error).__name__}: {error}"))
    return found


def differences(guard: Guard, value: Any, frame: Any) -> list[tuple[str, str, str]]:
    """What differs from one guard. A torch-function mode of the user does not see how we look at tensors."""
    explained = KINDS[guard.kind].explain(guard, value, InFrame(frame))
    if guard.kind == "GLOBAL_STATE":
        return list(explained)
    with of_torch.DisableTorchFunction():
        return list(explained)


__all__ = ["Failure", "MISSING", "compile_gather", "compile_guards", "described", "evaluate", "failures"]
