"""The kernels of a GPU that random programs become; no GPU is needed.

    python -m tests.fuzz.gpu_kernels FIRST LAST [--of TOPIC] [--interpret] [--build] [--show]

A program is one of `graphs.py`, `images.py`, `convolutions.py` or `extremes.py`, forward and backward, with static sizes or symbols, in float32 or half
precision. It is compiled for CPUs up to its loop programs, each of which is scheduled as for a GPU; the reference interpreter runs the schedules, and the
results are judged as by the program's own fuzzer. With --interpret, Triton's interpreter runs the text of each launch too, which must leave in memory what
the reference does. With --build, each kernel is compiled for Hopper, every candidate in every form: what Triton or ptxas refuses is a failure, and what
takes them long is told.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from dynacompile import pipeline
from dynacompile.build import forms
from dynacompile.build.triton import against, job, kernel_key, may_be_refused
from dynacompile.codegen.reference import run_kernel
from dynacompile.codegen.triton import emit_kernel
from dynacompile.env import Env
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.schedule import Kernel, KernelSource, Launch, Member, Schedule
from dynacompile.markers import disable
from dynacompile.ops import interpolation
from dynacompile.runtime.link import list_tables
from tests.codegen.interpreted import interpret
from tests.dynamic.tracing import value_of
from tests.fuzz import compare, convolutions, extremes, graphs, images
from tests.lower.tracing import ENV, products_are_calls
from tests.schedule.test_columns import CPU, CUDA, on
from tests.workers import triton_worker

LONG = 20.0  # seconds of a processor that a kernel may take to compile before we tell of it
LARGEST = 256  # programs of a launch, more of which take Triton's interpreter minutes
OPTIONS = {"reference": True}
HALVES = (torch.bfloat16, torch.float16)
UNITS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 1e-10}  # by how much of the largest value results of one kernel may differ
EDGES = r": off by|NaN in 0 places"  # half precision, rounded less often than eager's, crosses edges, and does not leave its range
FEW = 0.002  # of a result's values: rounding may move as many across an edge, as of floor


@dataclass(frozen=True)
class Started:
    """A launch: what its kernel was given, and what the reference left there. own: of a kernel over a list, whose members are launches here, the member's
    numbers."""

    kernel: Kernel
    before: list[torch.Tensor]
    sizes: list[int]
    after: list[torch.Tensor]
    own: tuple[int, ...] = ()


@dataclass
class Recorder:
    """Runs kernels by the reference, and keeps them. launches: of them all but members of lists; kept: whether with their memory."""

    kept: bool
    kernels: list[Kernel] = field(default_factory=list)
    launches: list[Started] = field(default_factory=list)

    def run(self, kernel: Kernel | Member, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        before = [t.clone() for t in tensors] if self.kept else []
        run_kernel(kernel, tensors, sizes)
        if self.kept:
            plain, own = (kernel.kernel, kernel.sizes) if isinstance(kernel, Member) else (kernel, ())
            self.launches.append(Started(plain, before, list(sizes), [t.clone() for t in tensors], own))

    def schedule(self, program: LoopProgram, env: Env, *more: Any) -> Schedule:
        """In place of the stage: as for a GPU."""
        plan = pipeline_schedule(on(CUDA, program), env, *more)
        plan.verify()
        self.kernels += plan.kernels.values()
        return on(CPU, plan)


pipeline_schedule = pipeline.schedule


@contextmanager
def as_on_gpus(kept: bool) -> Iterator[Recorder]:
    """What compiles within is scheduled for a GPU, and run by the reference interpreter."""
    recorder = Recorder(kept)
    of_input, of_gradient = interpolation.of_input, interpolation.of_gradient
    with ExitStack() as stack:
        stack.enter_context(products_are_calls())
        stack.enter_context(patch.object(pipeline, "schedule", recorder.schedule))
        stack.enter_context(patch.object(pipeline, "run_kernel", disable(recorder.run)))
        stack.enter_context(patch.object(interpolation, "of_input", lambda *a, on_gpu_alone=False: of_input(*a)))
        stack.enter_context(patch.object(interpolation, "of_gradient", lambda *a, on_gpu_alone=False: of_gradient(*a)))
        yield recorder


# The programs of other fuzzers


@dataclass(frozen=True)
class Found:
    """text: the program. check: raises AssertionError where the program, compiled, differs from eager. sound: whether Triton's interpreter gives its
    numbers, as rounding moves them little."""

    text: str
    check: Callable[[], None]
    sound: bool = True


def of_graphs(seed: int) -> Found:
    pick = random.Random(seed)
    dtype, grad, dynamic = pick.choice((torch.float32, torch.float32, *HALVES)), pick.random() < 0.7, pick.choice((None, True))
    program = graphs.generate(seed)

    def check() -> None:
        told = compare.difference(program, dtype, grad, dynamic=dynamic, options=OPTIONS)
        assert told is None or (dtype in HALVES and re.search(EDGES, told)), told

    return Found(f"{program.source}{dtype}, gradients {grad}, dynamic {dynamic}, {[tuple(t.shape) for t in program.inputs]}", check)


def of_images(seed: int) -> Found:
    program = images.generate(seed)
    return Found(f"{program.source}{program}", lambda: images.check_program(program, Counter(), **OPTIONS))


def of_convolutions(seed: int) -> Found:
    program = convolutions.generate(seed)
    return Found(f"{program.source}{program}", lambda: convolutions.check_program(program, Counter(), **OPTIONS))


def of_extremes(seed: int) -> Found:
    program = extremes.generate(seed)

    def check() -> None:
        told = list(extremes.differences(program, **OPTIONS))
        assert not told, "\n".join(told[:4])

    # Triton's interpreter reads numbers of bfloat16 below the normal ones as smaller ones
    return Found(f"{program.source()}{program}", check, program.kind not in ("reductions", "norms") and program.dtype != torch.bfloat16)


TOPICS: dict[str, Callable[[int], Found]] = {"graphs": of_graphs, "images": of_images, "convolutions": of_convolutions, "extremes": of_extremes}


def generate(seed: int, topic: str = "") -> Found:
    """topic: of which fuzzer; by default one after the other."""
    names = list(TOPICS)
    return TOPICS[topic](seed) if topic else TOPICS[names[seed % len(names)]](seed // len(names))


# The text of their kernels


@dataclass(frozen=True)
class Job:
    """A launch for Triton's interpreter: a candidate of its kernel."""

    source: KernelSource
    choice: int
    launch: Started

    def grid(self) -> tuple[int, ...]:
        if self.source.kernel.is_list:
            return (len(self.tables()[0]), 1, 1)
        return tuple(value_of(n, self.values()) for n in self.source.grids[self.choice])

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of a list of one member."""
        return list_tables(self.source.kernel, self.source.grids[0][0], Launch("", (), (self.launch.own,)))

    def values(self) -> dict:
        return dict(zip(self.launch.kernel.symbols, self.launch.sizes, strict=True))

    def case(self) -> tuple:
        candidate = self.source.candidates[self.choice]
        if self.source.kernel.is_list:
            blocks, numbers = self.tables()
            return (self.source.text, self.source.entry, dict(candidate.blocks), self.grid(), [blocks, numbers, self.launch.before, *self.launch.sizes])
        constants = forms.constants(self.source, candidate, value_of(forms.chooses(self.source, candidate), self.values()))
        return (self.source.text, self.source.entry, constants, self.grid(), [*self.launch.before, *self.launch.sizes])

    def difference(self, got: Sequence[torch.Tensor]) -> str | None:
        largest = max(map(reach, self.launch.before), default=0.0)
        left = got[2] if self.source.kernel.is_list else got
        for param, a, b in zip(self.launch.kernel.params, left, self.launch.after, strict=False):
            told = apart(a, b, largest) if param.mode not in ("in", "scratch") else None
            if told:
                return f"{param.name}: {told}"
        return None


def reach(tensor: torch.Tensor) -> float:
    """The largest finite value."""
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() and tensor.is_floating_point() else 0.0


def apart(got: torch.Tensor, want: torch.Tensor, largest: float) -> str | None:
    """How what Triton's text left in memory differs from what the reference did. largest: of what the kernel was given, which may cancel in sums."""
    a, b = got.double(), want.double()
    unit = UNITS.get(got.dtype, 1e-4) if got.is_floating_point() else 0.0
    right = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= unit * (b.abs() + 0.2 * max(largest, reach(b))))
    wrong = int((~right).sum())
    if wrong <= FEW * a.numel() and not (a.isnan() != b.isnan()).any():
        return None
    at = int((~right).flatten().int().argmax())
    return f"{a.flatten()[at].item()} at {at}, {b.flatten()[at].item()} by the reference; {wrong} of {a.numel()}" if wrong else None


def jobs_of(recorder: Recorder, seed: int) -> list[Job]:
    """Each launch with one of its kernel's candidates; those of products and attention have fuzzers of their own."""
    found = []
    for n, launch in enumerate(recorder.launches):
        if launch.kernel.call is not None or launch.kernel.nest.is_product:
            continue
        source = emitted(launch.kernel)
        one = Job(source, (seed + n) % len(source.candidates), launch)
        if torch.Size(one.grid()).numel() <= LARGEST:
            found.append(one)
    return found


def emitted(kernel: Kernel) -> KernelSource:
    return emit_kernel(replace(kernel, device=CUDA), ENV)


def by_triton(jobs: Sequence[Job]) -> list[str]:
    """What is wrong."""
    if not jobs:
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = interpret([one.case() for one in jobs], Path(folder), timeout=600)
        except AssertionError as error:
            if len(jobs) > 1:
                return [*by_triton(jobs[: len(jobs) // 2]), *by_triton(jobs[len(jobs) // 2 :])]
            return [f"{jobs[0].source.entry}, candidate {jobs[0].choice}: {str(error).strip().splitlines()[-1][:300]}\n{jobs[0].source.text}"]
    told = [(one, one.difference(got)) for one, got in zip(jobs, found, strict=True)]
    return [f"{one.source.entry}, candidate {one.choice}, {one.launch.sizes}: {text}\n{one.source.text}" for one, text in told if text]


def worked() -> float:
    """Seconds of a processor that this process and those that it has waited for, such as ptxas, have taken."""
    return sum(os.times()[:4])


def built(kernels: Sequence[Kernel], known: dict[str, float]) -> list[str]:
    """What Triton or ptxas refuses of all candidates and forms. known: the kernels that were compiled before, and the seconds that each took."""
    refused = []
    for kernel in kernels:
        source = emitted(kernel)
        for candidate in source.candidates:
            for form in range(forms.count(source, candidate)):
                key = kernel_key(source, candidate, form)
                if key in known:
                    continue
                start = worked()
                facts, _ = triton_worker().answer(job(source, candidate, form))
                known[key] = worked() - start
                if known[key] > LONG:
                    print(f"{source.entry} took {known[key]:.0f} s to compile: {candidate}, form {form}\n{source.text}", flush=True)
                error = against(facts, source, candidate)
                if error and not (may_be_refused(source) and facts["ok"]):
                    refused.append(f"{source.entry}, {candidate}, form {form}: {error}\n{source.text}")
    return refused


def check_seed(seed: int, topic: str, interprets: bool, builds: bool, counts: Counter, known: dict[str, float]) -> Iterator[str]:
    """What is wrong with a program: its schedules, or the text of their kernels."""
    program = generate(seed, topic)
    with as_on_gpus(interprets) as recorder:
        try:
            program.check()
        except Exception as error:  # noqa: BLE001 - a fuzzer tells of every failure
            where = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{type(error).__name__}: {str(error)[:900]} ({Path(where.filename).name}:{where.lineno})"
    counts["kernels"] += len(recorder.kernels)
    counts["launches"] += len(recorder.launches)
    try:
        if interprets and program.sound:
            yield from by_triton(jobs_of(recorder, seed))
        if builds:
            yield from built([k for k in recorder.kernels if k.call is None], known)
    except Exception:  # noqa: BLE001 - such as of emitting
        yield traceback.format_exc()[-900:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.gpu_kernels", description="Compare random programs scheduled for a GPU with eager's.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--of", choices=tuple(TOPICS), default="", help="programs of this fuzzer alone")
    parser.add_argument("--interpret", action="store_true", help="run the kernels' text by Triton's interpreter")
    parser.add_argument("--build", action="store_true", help="compile the kernels for Hopper")
    parser.add_argument("--show", action="store_true", help="print each program")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed, counts, known = 0, Counter[str](), dict[str, float]()
    for seed in range(given.first, given.last):
        if given.show:
            print(f"seed {seed}: {generate(seed, given.of).text}", flush=True)
        told = list(check_seed(seed, given.of, given.interpret, given.build, counts, known))
        failed += bool(told)
        if told:
            print(f"seed {seed}: " + "\n".join(told) + f"\n{generate(seed, given.of).text}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} failed; {dict(counts)}, {len(known)} compiled, the slowest in {max(known.values(), default=0):.1f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
