"""torch's settings about deterministic algorithms: of the process, not of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from dynacompile.private import of_torch

READERS: dict[str, Callable[[], bool]] = {
    "enabled": of_torch.get_deterministic_algorithms,
    "warn_only": of_torch.get_deterministic_algorithms_warn_only,
    "fill": of_torch.get_deterministic_fill_uninitialized_memory,
}


def now() -> dict[str, bool]:
    return {name: read() for name, read in READERS.items()}


def restore(settings: tuple[tuple[str, bool], ...]) -> None:
    """Sets some of them, as a program would."""
    wanted = {**now(), **dict(settings)}
    torch.use_deterministic_algorithms(wanted["enabled"], warn_only=wanted["warn_only"])
    of_torch.set_deterministic_fill_uninitialized_memory(wanted["fill"])


@contextmanager
def under(changes: Mapping[str, bool], apply: Callable[[bool, bool, bool], None]) -> Iterator[None]:
    """The settings with these changes, while a graph is compiled that will run under them: other threads see them, as they do while such a program runs.
    What another thread sets meanwhile stays. apply: sets all of them, in the order of READERS, and remembers them for a compile that an exception ends."""
    if not changes:
        yield
        return
    before = now()
    during = {**before, **changes}
    apply(*during.values())
    try:
        yield
    finally:
        if now() == during:
            apply(*before.values())
