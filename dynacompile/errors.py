"""Every error that the compiler raises, each with what went wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dynacompile.quoting import without_values


class DynacompileError(Exception):
    """Base of all errors raised by dynacompile."""


class ConfigError(DynacompileError, ValueError):
    """An option, config key or module glob is wrong; the message names it and the nearest valid one."""


class Unsupported(DynacompileError):
    """A construct that can't be captured or compiled.

    code: the row's name in the table of breaks, for example "data-dependent-branch".
    reason: one sentence. hint: what the user can do. site: `file:line in function` of the innermost frame. callers: the places that it was
    inlined at, innermost first.
    """

    def __init__(self, code: str, reason: str, hint: str = "", site: str = "", callers: tuple[str, ...] = ()):
        reason = without_values(reason)  # they reach events, traces and reports
        self.code, self.reason, self.hint, self.site, self.callers = code, reason, hint, site, callers
        lines = [f"[{code}] {reason}"]
        if site:
            lines.append(f"  at {site}")
        lines += [f"  called at {caller}" for caller in callers]
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))


class MarkViolated(DynacompileError):
    """A dimension that is marked as dynamic can't be: the message names it, and the user's line that needs a constant."""

    def __init__(self, what: str, hint: str = ""):
        super().__init__(f"{what}\n  hint: {hint}" if hint else what)


class RecompileLimitError(DynacompileError):
    """A region with fullgraph=True or error_on_recompile needed one entry more than its limit."""


class BuildError(DynacompileError):
    """A compiler (g++, Triton, ptxas) is missing or refused our source; the message names it and the fix."""


class VerifyError(DynacompileError):
    """A hand-off between stages breaks its own invariant: a bug in dynacompile, named by stage."""

    def __init__(self, stage: str, what: str):
        self.stage = stage
        super().__init__(f"{stage}: {what} (a bug in dynacompile: please report it with DYNACOMPILE_LOGS=all)")


class RunsDiffer(VerifyError):
    """Capture ran over a frame twice, and met another program: its state changed meanwhile, as other threads change it, or this is a bug."""


class BackendError(DynacompileError):
    """A user's backend raised or returned something that is not callable."""


def nearest(name: str, valid: Iterable[str], n: int = 3) -> str:
    """'did you mean a, b?' for an unknown `name`, or the list of valid names where nothing is near."""
    options = sorted(valid)
    close = difflib.get_close_matches(name, options, n=n, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "valid names: " + ", ".join(options) if options else "there are no valid names"
