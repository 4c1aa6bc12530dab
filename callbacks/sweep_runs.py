"""The jobs of a sweep as they are kept in its folder: one `run.json` in the folder of each, from the moment when the job starts."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynacompile.errors import ConfigError, nearest
from dynacompile.quoting import printable
from dynacompile.run_files import write_whole

FILE = "run.json"
ERROR_FILE = "error.txt"
EXITED = "interrupted, or it exited"
NO_WORD = "ended without a word: killed, or the machine went down"


class Result(dict[str, float]):
    """What a job returns: its numbers by name. As a float it is the one that a sweeper optimises, which `objective` names; NaN where there is none.

    Raises ConfigError for an objective that is none of the numbers.
    """

    def __init__(self, numbers: Mapping[str, float], objective: str = ""):
        if objective and objective not in numbers:
            raise ConfigError(f"objective={objective} is no number of this job: {nearest(objective, tuple(numbers))}")
        super().__init__(numbers)
        self.objective = objective

    def __float__(self) -> float:
        return float(self.get(self.objective, float("nan")))


@dataclass(frozen=True)
class Run:
    """One job of a sweep. numbers: its metrics by name, those that are known. failed: why it came to no numbers; empty where it finished or goes on.

    number: the job's. owner: host and process of a job that has told of no end. prefix: what the compiler's numbers begin with. folder: of its files, as
    the sweep's folder sees it. name: the number, and the folder where others have that number, too: runs of their own all have 0.
    """

    overrides: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    number: int = 0
    owner: tuple[str, int] | None = None
    prefix: str = "compile/"
    folder: str = ""
    shares_number: bool = False

    @property
    def name(self) -> str:
        return self.folder if self.shares_number else str(self.number)

    @property
    def goes_on(self) -> bool:
        """Whether the job has started, told of no end, and may have one yet."""
        return self.owner is not None and (self.owner[0] != socket.gethostname() or is_alive(self.owner[1]))

    @property
    def reason(self) -> str:
        """Why there are no numbers; empty where there are, or may be yet."""
        return self.failed or (NO_WORD if self.owner is not None and not self.goes_on else "")

    @property
    def is_baseline(self) -> bool:
        return "compile=none" in self.overrides

    def value(self, name: str) -> float | None:
        """A number of the compiler by its name without prefix."""
        return self.numbers.get(f"{self.prefix}{name}")

    def write(self, folder: Path) -> Path:
        """Raises OSError."""
        saved = {"overrides": self.overrides, "numbers": dict(self.numbers), "failed": self.failed, "number": self.number, "owner": self.owner}
        return write_whole(folder / FILE, json.dumps({**saved, "prefix": self.prefix}, indent=2) + "\n")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's, and so not ours
        return False
    return True


def read_run(place: Path, sweep: Path) -> Run:
    """Raises OSError, and ValueError for a file that is no run."""
    saved = json.loads(place.read_text(encoding="utf-8"))
    if not isinstance(saved, Mapping) or not isinstance(saved.get("numbers"), Mapping) or not isinstance(saved.get("overrides"), list):
        raise ValueError(f"{place} does not hold a run of a sweep")
    owner: Sequence[Any] | None = saved.get("owner")
    return Run(
        tuple(saved["overrides"]),
        saved["numbers"],
        saved.get("failed", ""),
        saved.get("number", 0),
        (str(owner[0]), int(owner[1])) if owner else None,
        saved.get("prefix", "compile/"),
        str(place.parent.relative_to(sweep)),
    )


def saved_runs(folder: Path) -> Iterator[Run]:
    """The runs below a sweep's folder, in the order of their numbers. Raises OSError and ValueError."""
    runs = sorted((read_run(place, folder) for place in folder.rglob(FILE)), key=lambda run: (run.number, run.folder))
    times = Counter(run.number for run in runs)
    yield from (dataclasses.replace(run, shares_number=times[run.number] > 1) for run in runs)


def first_line(error: BaseException) -> str:
    """An error as a cell of a table: its first line, with those that a colon announces, as Hydra's errors of a call have, and the key that Hydra names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    until = next((number for number, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    keys = [line for line in lines[until:] if line.startswith("full_key: ")]
    return printable(": ".join((type(error).__name__, " ".join(lines[:until] + keys)) if lines else (type(error).__name__,)), longest=300)
