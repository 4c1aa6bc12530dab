"""The kernels of a report: what each takes and moves, how near that is to what the machine can do, your lines in it, what was decided about it, its code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.source_lines import line_of
from dynacompile.callbacks.texts import counted
from dynacompile.quoting import printable

SHOWN_LINES, SHOWN_DECISIONS = 8, 5  # of one kernel
LONGEST = 300  # of a decision's text
CODE = 300_000  # characters of all kernels' code in a page


@dataclass(frozen=True)
class KernelRow:
    """A kernel of one program, or the calls of one operation of a library, all launches of a run of the program together.

    part: of the graph. microseconds: 0 where they are not known; is_measured: in the steps of the run, rather than by max-autotune. share: of the program's
    measured step. roof_us: what the machine needs for the bytes and operations. sites: the user's lines, each with its text where that is known.
    """

    region: str
    name: str
    launches: int
    megabytes: float
    ops: str
    part: str = ""
    is_call: bool = False
    sites: tuple[tuple[str, str], ...] = ()
    decisions: tuple[str, ...] = ()
    microseconds: float = 0.0
    is_measured: bool = False
    share: float = 0.0
    roof_us: float = 0.0
    code: str = ""

    @property
    def place(self) -> str:
        """Which program it is of, in words."""
        return " ".join((self.region, self.part)).strip()

    @property
    def rate(self) -> float:
        """Gigabytes a second; 0 where the time is not known."""
        return self.megabytes * 1e3 / self.microseconds if self.microseconds else 0.0

    @property
    def roof(self) -> float:
        """The share of the roof: 1 is as fast as the machine can be. More than 1 where what a kernel reads was in a cache."""
        return self.roof_us / self.microseconds if self.is_measured and self.microseconds else 0.0

    @property
    def details(self) -> str:
        """What there is to read of it beyond its row."""
        told = ((len(self.sites), "line"), (len(self.decisions), "decision"), (bool(self.code), "code"))
        return ", ".join(name if name == "code" else counted(count, name) for count, name in told if count)


def timed_programs(ledger: Ledger) -> list[events.ProgramTimed]:
    """What was measured last of each program."""
    return list({event.number: event for event in ledger.of(events.ProgramTimed)}.values())


def kernel_rows(ledger: Ledger) -> list[KernelRow]:
    """Kernels and calls of all programs: those that were measured to take longest first, then those that move most."""
    times = {event.number: event for event in timed_programs(ledger)}
    whole = sum(sum(us for _, _, us, _, _ in event.steps) + event.rest_us for event in times.values())
    decided, tuned = decisions(ledger)
    texts = {(event.number, name): text for event in ledger.of(events.Generated) for name, _, text in event.kernels}
    files: dict[str, list[str]] = {}
    rows = []
    for event in ledger.of(events.Scheduled):
        timed = times.get(event.number) if event.number else None
        measured = {} if timed is None else {name: (us, bytes, flops) for name, _, us, bytes, flops in timed.steps}
        lines = dict(event.call_sites)
        kernels = [(name, launches, moved, ", ".join(ops), sites, False) for name, launches, moved, ops, sites in event.kernels]
        calls = [(op, count, 0, op, lines.get(op, ()), True) for op, count in event.calls]
        for name, launches, moved, ops, sites, is_call in [*kernels, *calls]:
            us, bytes, flops = measured.get(name, (0.0, moved, 0))
            told = decided.get((event.region, name), ()) or decided.get(("", name), ())
            by_tuning = tuned.get((event.region, name), tuned.get(("", name), 0.0)) * launches
            rows.append(
                KernelRow(
                    region=event.region,
                    name=name,
                    launches=launches,
                    megabytes=bytes / 1e6,
                    ops=ops if ops != name else "",
                    part=event.part,
                    is_call=is_call,
                    sites=tuple((place, line_of(place, files)) for place in few(sites, SHOWN_LINES)),
                    decisions=few(told, SHOWN_DECISIONS),
                    microseconds=us or by_tuning,
                    is_measured=name in measured,
                    share=us / whole if whole else 0.0,
                    roof_us=0.0 if timed is None else max(bytes / timed.bandwidth, flops / timed.flops) * 1e6,
                    code=texts.get((event.number, name), ""),
                )
            )
    return sorted(rows, key=lambda row: (-row.is_measured * row.microseconds, -row.megabytes))


def decisions(ledger: Ledger) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], float]]:
    """What was decided about each kernel, and the microseconds of a launch, where max-autotune has measured them."""
    decided: dict[tuple[str, str], list[str]] = {}
    times: dict[tuple[str, str], float] = {}
    for event in ledger.of(events.FusionDecided):
        verb = "fuses" if event.fused else "stays apart from"
        saved = f", which saves {event.bytes_saved / 1e6:.2f} MB" if event.fused and event.bytes_saved else ""
        decided.setdefault((event.region, event.kernel), []).append(f"{verb} {', '.join(event.members)}{saved}{': ' if event.reason else ''}{event.reason}")
    for tuned in ledger.of(events.KernelTuned):
        best = ", ".join(f"{name} {us:.1f} µs" for name, us in sorted(tuned.candidates, key=lambda c: c[1])[:4])
        decided.setdefault((tuned.region, tuned.kernel), []).append(f"tuned: {tuned.winner} of {len(tuned.candidates)} ({best})")
        times[tuned.region, tuned.kernel] = dict(tuned.candidates).get(tuned.winner, 0.0)
    return decided, times


def few(texts: Sequence[str], shown: int) -> tuple[str, ...]:
    """The first of them, and how many more there are."""
    more = (f"and {len(texts) - shown} more",) if len(texts) > shown else ()
    return (*(printable(text, longest=LONGEST) for text in texts[:shown]), *more)


def with_code(rows: Sequence[KernelRow]) -> Iterator[tuple[KernelRow, str, str]]:
    """Each row, the code of its kernel, and the name of the row before that has the same code. What a page has no room for is left out."""
    room = CODE
    before: dict[str, str] = {}
    for row in rows:
        same = before.get(row.code, "") if row.code else ""
        code = row.code if row.code and not same and len(row.code) <= room else ""
        if code:
            room -= len(code)
            before[code] = f"{row.name} of {row.place}"
        yield row, code, same


def why_apart(ledger: Ledger) -> list[tuple[str, int]]:
    """Why kernels were not fused, and how often each reason was given."""
    return Counter(event.reason for event in ledger.of(events.FusionDecided) if not event.fused and event.reason).most_common()
