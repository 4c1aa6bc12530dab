"""Regions, and what happens when the hook meets a frame in one that no entry serves.

A region is a native callable around the user's function. Its `RegionInfo` holds the options and the bucket of entries.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from dynacompile.background import BACKGROUND
from dynacompile.compiles import new_entry, tell_failures
from dynacompile.config import CompileConfig
from dynacompile.errors import RecompileLimitError, Unsupported
from dynacompile.events import FrameSkipped, LimitHit
from dynacompile.guards.facts import FrameCopy
from dynacompile.guards.program import failures
from dynacompile.ir.wording import shown_name
from dynacompile.markers import DISABLED
from dynacompile.native import core as native_core
from dynacompile.quoting import printable
from dynacompile.recompiles import frame_name, nearest_failures, texts
from dynacompile.region_info import RegionInfo
from dynacompile.session import SESSION
from dynacompile.waiting import ends_soon


@dataclass(frozen=True)
class Dispatch:
    """A user's choice of a sub-bucket. choose: (*args, **kwargs) -> hashable key. settings: key, or "*" for the rest -> options of compile()."""

    choose: Callable[..., Any]
    settings: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)

    def config(self, key: Any, base: CompileConfig) -> CompileConfig:
        return dataclasses.replace(base, **self.settings.get(key, self.settings.get("*", {})))


def make_region(
    fn: Callable[..., Any],
    config: CompileConfig,
    owner: object,
    name: str,
    dispatch: Dispatch | None = None,
    target: CodeType | None = None,
    stands_for: bool = False,
    in_config: bool = False,
    caller: CodeType | None = None,
) -> Any:
    """A native callable that runs `fn` with compiled frames; `fn` itself where the native core does not work here.

    target: the code that the compile is about, which is compiled also where its folder is left to Python. stands_for: that code only calls what
    the compile was asked for. in_config: `name` is what a config calls it. caller: the code of a method that finds the region, bound, in an attribute of its
    object; it is called with that object, also where the attribute came along in a copied `__dict__`.
    """
    if not SESSION.start():
        return fn
    state = new_state(config, SESSION.bucket(config.isolate_recompiles, owner), name, (), target, stands_for, in_config)
    named = {name: code for name, code in (("target", target), ("caller", caller)) if code is not None}
    if dispatch is None:
        return native_core().Region(fn, on_miss, state, **named)

    def state_of_key(key: Any) -> Any:
        return new_state(dispatch.config(key, config), SESSION.bucket(True, owner), f"{name}[{shown_name(key)}]", (key,), target, stands_for)

    return native_core().Region(fn, on_miss, state, dispatch.choose, state_of_key, **named)


def new_state(
    config: CompileConfig,
    bucket: int,
    name: str,
    key: tuple[Any, ...] = (),
    target: CodeType | None = None,
    stands_for: bool = False,
    in_config: bool = False,
) -> Any:
    name = printable(name)
    info = RegionInfo(name=name, config=config, bucket=bucket, key=key, target=target, stands_for=stands_for, in_config=in_config)
    return native_core().RegionState(
        bucket, config.fallback == "default", config.recompile_limit, config.accumulated_recompile_limit, name, info, config.kind()
    )


def on_miss(frame: Any, state: Any) -> Any:
    """Called by the hook for a frame of a region that no entry serves. Gives an Entry, or says how the frame is to run."""
    core, info = native_core(), state.owner
    code = frame.code
    function = frame.function
    if function is not None and is_marked(function):
        if code is info.target:
            info.left_alone(Unsupported("disabled", f"{info.name} is marked to run as plain Python", "remove the mark, or the compile"))
        return core.RUN_PLAINLY  # its code may be that of functions without a mark
    if info.errors and (error := info.errors.pop(code, None)) is not None:
        raise error
    while (other := SESSION.claim(code, info.bucket, frame)) is not None:
        if info.config.background:
            BACKGROUND.start()
            return core.RUN_PLAINLY
        if not ends_soon(other, on_miss.__code__):
            text = "[being-compiled] another thread compiles it, and may wait for this one: this call runs as Python"
            SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=frame_name(code), reason=text))
            return core.RUN_PLAINLY
    existing = core.entries(code)
    own = own_entries(code, state)
    for entry in own:  # another thread may have made it while this one waited
        if entry.guards.check(tuple(frame.slots), frame.closure, frame.globals, frame.builtins):
            return entry
    same = [entry for entry in own if of_same_objects(entry, frame)]
    if len(same) >= info.config.recompile_limit:
        return over_limit(frame, info, same, "recompile_limit", alone=len(same) == len(own))
    if max(len(existing), info.made[code]) >= info.config.accumulated_recompile_limit:
        return over_limit(frame, info, own or [entry for _, entry in existing], "accumulated_recompile_limit", alone=True)
    if own and info.config.error_on_recompile:
        raise RecompileLimitError(f"{frame_name(code)} needs another entry, and error_on_recompile is set: {'; '.join(texts(nearest_failures(frame, own)))}")
    if info.config.background and code not in info.waited_for and BACKGROUND.takes_calls():
        return BACKGROUND.add(frame, state, compile_later)
    return new_entry(frame, info, own)


def is_marked(function: Any) -> bool:
    """Whether a function is marked to run as plain Python. A wrapper has the marks of what it wraps, as functools.wraps copies them: its own are others."""
    wrapped = getattr(getattr(function, "__wrapped__", None), "__dict__", {})
    return any(function.__dict__.get(mark) not in (None, False, wrapped.get(mark)) for mark in (DISABLED, "_torchdynamo_disable"))


def own_entries(code: CodeType, state: Any) -> list[Any]:
    """Those of the region's bucket that it may use."""
    return [entry for bucket, entry in native_core().entries(code) if bucket == state.bucket and entry.kind == state.kind]


def compile_later(frame: FrameCopy, state: Any) -> Any:
    """What a compile in the background does: as `on_miss` for the call, which has gone on."""
    return new_entry(frame, state.owner, own_entries(frame.code, state))


def of_same_objects(entry: Any, frame: Any) -> bool:
    """Whether the objects that the entry knows by identity are this call's: entries for other objects don't count against the limit."""
    return not failures([guard for guard in entry.info.captured.guards if guard.kind == "ID"], frame)


def over_limit(frame: Any, info: RegionInfo, entries: list[Any], option: str, *, alone: bool) -> Any:
    """The bucket is full: this region runs the frame eagerly, says so once, or raises. alone: it is full for every object."""
    config = info.config
    limit = getattr(config, option)
    differences = nearest_failures(frame, entries)
    failed = texts(differences)
    guard = failed[0] if failed else "unknown"
    more = info.override({option: limit * 2})
    text = (
        f"{frame_name(frame.code)} in region {info.name!r} reached {option}={limit} of bucket {info.bucket}; "
        f"the guard that keeps failing: {guard}. This region runs it eagerly from now on. To allow more: {more}"
    )
    if config.fullgraph or config.error_on_recompile or config.fail_on_recompile_limit_hit:
        raise RecompileLimitError(text)
    if frame.code not in info.warned:
        info.warned.add(frame.code)
        hit = LimitHit(
            region=info.name,
            bucket=info.bucket,
            frame=frame_name(frame.code),
            limit=limit,
            guard=guard,
            override=more,
            failed=failed,
            entries=len(entries),
        )
        SESSION.bus.emit(hit)
        tell_failures(differences, info, frame.code)
        warnings.warn_explicit(text, RuntimeWarning, frame.code.co_filename, frame.code.co_firstlineno)
    return native_core().RUN_ONCE if alone else native_core().RUN_PLAINLY
