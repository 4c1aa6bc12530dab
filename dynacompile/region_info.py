"""What a region is to the compiler: its options, its bucket and what it has told, and what is known of each entry."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType
from typing import Any

from dynacompile.complaints import warn
from dynacompile.config import CompileConfig
from dynacompile.entries import BucketView, bucket_view
from dynacompile.errors import Unsupported
from dynacompile.events import FrameSkipped
from dynacompile.ir.captured import Captured
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.native import core as native_core
from dynacompile.recompiles import frame_name, override
from dynacompile.session import SESSION
from dynacompile.unmet import unmet


@dataclass(eq=False)
class RegionInfo:
    """One compile: its options, its bucket, what it has warned about, how often capture refused a frame for what was special about the call, and
    which sizes of a frame have changed from call to call."""

    name: str
    config: CompileConfig
    bucket: int
    warned: set[CodeType | None] = field(default_factory=set)
    refused: Counter[CodeType] = field(default_factory=Counter)
    shapes: dict[CodeType, ShapePolicy] = field(default_factory=dict)
    made: Counter[CodeType] = field(default_factory=Counter)
    first_steps: Counter[CodeType] = field(default_factory=Counter)  # calls that were left to Python, as optimizers made their state
    changes: set[CodeType] = field(default_factory=set)  # code of which a capture, without an entry, has told what changes
    outdated: Counter[CodeType] = field(default_factory=Counter)  # captures in the background that the program has overtaken
    met_modes: set[CodeType] = field(default_factory=set)  # code that was called in a mode in which nothing is captured, which was told
    waited_for: set[CodeType] = field(default_factory=set)  # code whose compile needs settings of the process: calls wait for it
    races: Counter[CodeType] = field(default_factory=Counter)  # its compiles in the background that failed beside the program, and may not do so again
    errors: dict[CodeType, BaseException] = field(default_factory=dict)  # of compiles in the background, for the next call
    target: CodeType | None = None  # the code that the compile was asked for, which is compiled wherever it lies
    stands_for: bool = False  # that code only calls what the compile was asked for, whose own call is no frame that is compiled
    key: tuple[Any, ...] = ()  # of the user's dispatch, for whose bucket this is
    own_names: frozenset[tuple[str, str]] | None = None  # of `dynamic` and `varying`; others are also those of other compiles, and one of those has them
    absent: dict[tuple[str, str], str] | None = None  # such others that this one does not have, and what is told of each; None: it was not captured whole
    in_config: bool = False  # whoever compiled it gave it the name by which a config knows it
    again: tuple[Any, ...] = ()  # what compiles the region's function again where a pickle is loaded, and its arguments behind the function

    def reduced(self, region: Any) -> str | tuple[Any, tuple]:
        """How `region` is pickled: by its name where that leads to it, as functions are; else as its function, which the pickler takes or refuses as it
        does without us, and what compiles it."""
        if not self.again or named_object(region.__module__, region.__qualname__) is region:
            return str(region.__qualname__)
        function = region._region_function.__wrapped__ if self.stands_for else region._region_function
        compile_again, *options = self.again
        return compile_again, (function, *options)

    def views(self, region: Any) -> tuple[BucketView, ...]:
        """The buckets of `region`: one, or one for each key of its dispatch."""
        return buckets_of(region)

    def nothing_met(self) -> None:
        """Called by the region after a call in which no frame was one that is compiled: tells of it once. Raises Unsupported under fullgraph."""
        self.left_alone(Unsupported("not-compiled", f"{self.name}: {why_not_met(self.target)}", "compile the function that it calls"))

    def nothing_called(self) -> None:
        """For a module of which whoever compiled it knows that no call came through the region. Raises Unsupported under fullgraph."""
        reason = f"no call of {self.name} came through its region: its forward is called instead of the module, or nothing is"
        self.left_alone(Unsupported("not-compiled", reason, "call the module, not its forward; or compile the function that calls it"))

    def left_alone(self, reason: Unsupported) -> None:
        """The target runs as Python, which an event tells, and one warning."""
        if self.config.fullgraph:
            raise reason
        site = reason.site or (frame_name(self.target) if self.target is not None else self.name)
        SESSION.bus.emit(FrameSkipped(region=self.name, bucket=self.bucket, site=site, reason=f"[{reason.code}] {reason.reason}"))
        self.warn_of_python(reason)

    def warn_of_python(self, reason: Unsupported) -> None:
        if self.target not in self.warned:
            self.warned.add(self.target)
            text = f"{self.name} is compiled in name only, and runs as Python: [{reason.code}] {reason.reason}"
            if self.target is None:
                warn(text)
            else:
                warnings.warn_explicit(text, RuntimeWarning, self.target.co_filename, self.target.co_firstlineno)

    def tell_unmet(self, captured: Captured) -> None:
        """Warns of what `dynamic` and `varying` name and the target, which was captured whole, does not have."""
        if self.target is None:
            return
        found = {(option, name): told for option, name, told in unmet(self.config, captured, self.target)}
        for (option, _), told in found.items() if self.own_names is None else [item for item in found.items() if item[0] in self.own_names]:
            warn(f"{self.name}: {option} names {told}")
        if self.own_names is not None:
            shared = {key: told for key, told in found.items() if key not in self.own_names}
            self.absent = {key: told for key, told in (shared if self.absent is None else self.absent).items() if key in shared}

    def override(self, options: Mapping[str, Any]) -> str:
        """What sets `options` for this region, as the user can paste it; empty where there are none."""
        if "varying" in options and not self.in_config:  # a config adds to a list of ours
            options = {**options, "varying": (*self.config.varying, *options["varying"])}
        return override(self.name, self.key, options, self.in_config)


@dataclass(frozen=True)
class EntryInfo:
    """What the compiler knows of an entry: for explanations, never for running it. config keeps a callable backend alive, whose id tells kinds apart."""

    captured: Captured
    config: CompileConfig
    region: str
    bucket: int
    seconds: float
    graph: int
    lookup_ns: tuple[float, float]
    bytes: int


def named_object(module: str | None, path: str) -> Any:
    """What a pickle finds by these names; None where there is nothing."""
    found: Any = sys.modules.get(module or "")
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def buckets_of(region: Any) -> tuple[BucketView, ...]:
    """Views of a native Region's buckets."""
    states = [region._region_state] if region._region_states is None else list(region._region_states.values())
    codes = SESSION.known_codes()
    return tuple(bucket_view(codes, state) for state in states)


def why_not_met(target: CodeType | None) -> str:
    """Why a call of a region showed the compiler no frame. target: the code that the region is about."""
    if target is None:
        return "its code is not Python's, or torch's own"
    if runs_later(target):
        return "it is a generator or coroutine, whose frame runs after the call"
    match native_core().left_to_python(target):
        case "recursive":
            return "it is marked to run as Python with all that it calls, or lies in a folder that does"
        case "alone":
            return "capture has refused it before"
    return "it was not called"


def runs_later(code: CodeType) -> bool:
    """Whether a call makes a generator or coroutine, and runs none of the code."""
    return bool(code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))
