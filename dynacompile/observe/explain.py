"""explain(): one call's compiles as data, and as a page of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dynacompile.events import AttentionFound, Compiled, Event, FrameSkipped, GraphBroke, MaskRead, ProductDecided, Recompiled, Scheduled, StageFinished
from dynacompile.quoting import printable_lines

SHOWN_KERNELS = 12


@dataclass(frozen=True)
class Explanation:
    """What one call made the compiler do. Prints as text; `result` is what the call returned."""

    graphs: tuple[Compiled, ...]
    breaks: tuple[GraphBroke, ...]
    skips: tuple[FrameSkipped, ...]
    recompiles: tuple[Recompiled, ...]
    stages: tuple[StageFinished, ...]
    result: object
    products: tuple[ProductDecided, ...] = ()
    attention: tuple[AttentionFound, ...] = ()
    masks: tuple[MaskRead, ...] = ()
    programs: tuple[Scheduled, ...] = ()

    @property
    def graph_count(self) -> int:
        return sum(g.ops > 0 for g in self.graphs)

    @property
    def ops(self) -> int:
        return sum(g.ops for g in self.graphs)

    @property
    def guards(self) -> int:
        return sum(g.guards for g in self.graphs)

    @property
    def lookup_ns(self) -> float:
        """Nanoseconds that the lookups of one call take, with hot caches."""
        return sum(g.lookup_ns for g in self.graphs)

    @property
    def kernels(self) -> int:
        return self.fact("schedule", "launches")

    @property
    def seconds(self) -> float:
        return sum(g.seconds for g in self.graphs)

    def fact(self, stage: str, name: str) -> int:
        """The sum of a stage's count, for example fact("schedule", "externs")."""
        return sum(value for s in self.stages if s.stage == stage for key, value in s.facts if key == name)

    def peak(self, name: str = "peak") -> int:
        """Bytes that the program that takes most has at its peak, with what is saved for it and without parameters and other inputs: of the programs that
        were compiled in the call. peak("unfused_peak"): where each operation would run by itself."""
        return max((value for s in self.stages if s.stage == "schedule" for key, value in s.facts if key == name), default=0)

    def __str__(self) -> str:
        found = [(self.graph_count, "graph"), (self.ops, "op"), (len(self.breaks), "break"), (self.guards, "guard"), (self.kernels, "kernel launch")]
        counts = ", ".join(counted(*each) for each in found)
        lines = [f"{counts}, {self.seconds:.2f} s to compile"]
        for g in self.graphs:
            guards = f"{g.guards} guards ({g.lookup_ns:.0f} ns, {g.cold_ns:.0f} ns with cold caches)"
            lines.append(f"  graph {g.graph}: {g.frame}, {g.ops} ops, {guards}, {g.seconds:.2f} s")
        for b in self.breaks:
            lines += [f"  break [{b.code}] {b.reason}", f"    at {b.site}"] + ([f"    hint: {b.hint}"] if b.hint else [])
        for r in self.recompiles:
            lines.append(f"  recompile {r.frame}: {'; '.join(r.failed)}")
        lines += [f"  skipped {s.site}: {s.reason}" for s in self.skips]
        reasons = Counter((p.fused, p.reason) for p in self.products)
        lines += [f"  products of matrices that are {'kernels of ours' if fused else 'calls'}, {n}: {why}" for (fused, why), n in reasons.items()]
        ways = {(False, False): "stay as they are", (True, False): "run the operator of torch", (True, True): "run kernels of ours"}
        written = Counter((ways[a.kernel, a.ours], a.reason) for a in self.attention)
        lines += [f"  written attentions that {way}, {n}: {why}" for (way, why), n in written.items()]
        lines += [f"  masks of attention, {n}: {found}" for found, n in Counter(m.found for m in self.masks).items()]
        lines += kernel_lines(self.programs)
        if self.peak():
            lines.append(f"  {self.peak():,} bytes at the peak of memory, {self.peak('unfused_peak'):,} with each operation by itself")
        totals: dict[str, float] = {}
        for s in self.stages:
            totals[s.stage] = totals.get(s.stage, 0.0) + s.seconds
        if totals:
            lines.append("  seconds by stage: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in totals.items()))
        return printable_lines("\n".join(lines))


def counted(count: int, name: str) -> str:
    return f"{count} {name if count == 1 else f'{name}es' if name.endswith('ch') else f'{name}s'}"


def kernel_lines(programs: Sequence[Scheduled]) -> list[str]:
    """The kernels that move most, with their operations and the user's first line, and the operations that are calls of a library."""
    kernels = sorted((kernel for program in programs for kernel in program.kernels), key=lambda kernel: -kernel[2])
    lines = []
    for name, launches, moved, ops, sites in kernels[:SHOWN_KERNELS]:
        often = f"{launches} launches, " if launches > 1 else ""
        lines.append(f"  kernel {name}: {often}{moved:,} bytes, of {', '.join(ops)}" + (f", at {sites[0]}" if sites else ""))
    if len(kernels) > SHOWN_KERNELS:
        lines.append(f"  and {len(kernels) - SHOWN_KERNELS} kernels that move less")
    calls = Counter[str]()
    for program in programs:
        calls.update(dict(program.calls))
    return lines + ([f"  calls of a library: {', '.join(f'{op} ({n})' for op, n in calls.most_common())}"] if calls else [])


def explanation(events: Sequence[Event], result: object) -> Explanation:
    def only(kind: type) -> tuple:
        return tuple(e for e in events if isinstance(e, kind))

    found = only(Compiled), only(GraphBroke), only(FrameSkipped), only(Recompiled), only(StageFinished)
    return Explanation(*found, result, only(ProductDecided), only(AttentionFound), only(MaskRead), only(Scheduled))
