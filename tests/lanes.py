"""Which tests the fast lane runs, `make fast`: as many files as fit into some CPU seconds, by what each cost when it was last recorded. With several workers,
in every lane, the files that cost most begin first.

Which cases of a test that has many run in `make test`: as many as cost SHARE seconds, spread evenly; the others are marked `further`, and run in `make further`
and wherever their file is named. So a sweep may have as many cases as are of use. Tests that are marked `whole` are taken out: those of which each case is
about another thing.

`pytest --record-costs` writes the CPU seconds of the tests that it ran to costs.json, and leaves those of other files as they were. The seconds are of the
process and of all that it started. A file has its own entry, and so has each of its tests whose call takes
more than COSTLY seconds; what fixtures take is the file's, since a module's fixture would else be told of its first test alone. All cases of a test that
cost more than SHARE seconds together, with what their fixtures take, have an entry, too, with a star for the case; all cases run while costs are recorded.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
COSTS = TESTS / "costs.json"
BUDGET = 130.0
"""CPU seconds of all tests of the fast lane. Collection and imports, on each of two workers, come on top."""
COSTLY = 1.0
SHARE = 0.4
"""CPU seconds of all cases of one test that `make test` runs."""
Costs = Mapping[str, Mapping[str, float]]
"""For each file, by its path below this folder: the seconds of costly tests by name, and under "" of all else."""


def recorded() -> dict[str, dict[str, float]]:
    return json.loads(COSTS.read_text())


def fast_files(costs: Costs, budget: float = BUDGET) -> set[str]:
    """The cheapest file of each folder, then the cheapest files of all, as long as the budget lasts. Costly tests are not in the lane, so they do not count."""
    order = sorted(costs, key=lambda file: (costs[file][""], file))
    first: dict[str, str] = {}
    for file in order:
        first.setdefault(file.rpartition("/")[0], file)
    left = budget - sum(costs[file][""] for file in first.values())
    chosen = set(first.values())
    for file in order:
        if file not in chosen and costs[file][""] <= left:
            chosen.add(file)
            left -= costs[file][""]
    return chosen


def is_fast(item: pytest.Item, costs: Costs, files: set[str]) -> bool:
    """Where no cost is recorded, the mark `slow` decides."""
    if item.get_closest_marker("further") is not None:
        return False
    file = item.path.relative_to(TESTS).as_posix()
    if file not in costs:
        return item.get_closest_marker("slow") is None
    return file in files and item.name not in costs[file]


def cases_left_out(items: Iterable[pytest.Item], costs: Costs) -> Iterator[pytest.Item]:
    """The cases that are `further`: of each test that costs more than SHARE, at least one remains."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        file, name = item.path.relative_to(TESTS).as_posix(), all_cases(item.name)
        if name in costs.get(file, ()) and item.get_closest_marker("further") is None and item.get_closest_marker("whole") is None:
            cases.setdefault((file, name), []).append(item)
    for (file, name), own in cases.items():
        count = max(1, int(len(own) * SHARE / costs[file][name]))
        kept = {i * len(own) // count for i in range(count)}
        yield from (item for i, item in enumerate(own) if i not in kept)


def all_cases(name: str) -> str:
    """The entry of all cases of a test together."""
    return f"{name.partition('[')[0]}[*]"


def dearest_first(items: list[pytest.Item], costs: Costs) -> None:
    """Sorts the tests by what their whole file cost, for workers that take file by file: a long one that began last would leave the others idle. Those of a
    file stay together, in their order. Files that are not recorded come first."""

    def cost(item: pytest.Item) -> float:
        entries = costs.get(item.path.relative_to(TESTS).as_posix())
        return math.inf if entries is None else sum(seconds for name, seconds in entries.items() if not name.endswith("[*]"))

    items.sort(key=cost, reverse=True)


def spent() -> float:
    """CPU seconds of this process and of all that it started, ended or not."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + of_living_children(os.getpid())


def of_living_children(process: int) -> float:
    """As Linux tells them: elsewhere none."""
    total = 0.0
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in text(children).split():
            times = text(Path(f"/proc/{child}/stat")).rpartition(")")[2].split()[11:15]  # its own, and those of its children that have ended
            total += sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + of_living_children(int(child))
    return total


def text(file: Path) -> str:
    """What a file of a process says, or nothing where the process has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


class Recorder:
    """Notes on each report what its phase took, and writes the sums at the end. With workers, these note and the process that started them writes."""

    def __init__(self) -> None:
        self.last = spent()
        self.found: dict[str, dict[str, float]] = {}
        self.cases: Counter[tuple[str, str]] = Counter()
        self.ran: set[str] = set()
        """Files of which a test was not skipped: of others nothing is known."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        now = spent()
        report.cpu, self.last = now - self.last, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, name = report.nodeid.removeprefix("tests/").partition("::")
        entries = self.found.setdefault(file, {"": 0.0})
        key = name if report.when == "call" and report.cpu > COSTLY else ""
        entries[key] = entries.get(key, 0.0) + report.cpu
        if report.when != "teardown" and "[" in name:  # what a fixture of the module computes is for its cases
            self.cases[file, all_cases(name)] += report.cpu
        if report.when == "call" and not report.skipped:
            self.ran.add(file)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            for (file, name), seconds in self.cases.items():
                if seconds > SHARE:
                    self.found[file][name] = seconds
            new = {file: {name: round(seconds, 1) for name, seconds in sorted(self.found[file].items())} for file in self.ran}
            kept = {file: entries for file, entries in sorted((recorded() | new).items()) if (TESTS / file).exists()}
            COSTS.write_text(json.dumps(kept, indent=1) + "\n")
