"""The compiler on one page: a frame becomes an entry, a graph becomes an artifact.

frame -> capture -> Captured -> guards + graph
graph -> differentiate -> ForwardBackward -> (forward and backward, the latter waited for on its first use:)
         lower -> LoopProgram -> schedule -> Schedule -> generate -> Sources -> build -> Module -> link -> Program
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch.fx

from dynacompile.autograd import BeyondInputs, detached, differentiate, differentiate_parts, find_parts, localized
from dynacompile.build import begin_build, expect_builds
from dynacompile.capture import CodeCache, capture_frame
from dynacompile.capture.breaks import unsupported
from dynacompile.codegen import generate
from dynacompile.codegen.reference import run_kernel
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.events import Generated, Scheduled, StageFinished
from dynacompile.guards.facts import FrameCopy, FrameFacts
from dynacompile.guards.program import compile_gather, compile_guards
from dynacompile.ir.alike import DifferentiatedParts, ProgramParts, lowered
from dynacompile.ir.captured import Captured, Guard, no_guards
from dynacompile.ir.determinism import under
from dynacompile.ir.fakes import dynamo_unloaded
from dynacompile.ir.graphs import ForwardBackward, RuntimeContract, Stage
from dynacompile.ir.guard_facts import Flag
from dynacompile.ir.looks import made
from dynacompile.ir.rounds import is_again, unroll
from dynacompile.ir.schedule import Schedule
from dynacompile.ir.segments import depends_on_values
from dynacompile.ir.shape_envs import forget_shape_envs
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.ir.symbolic_graphs import executable, write_code
from dynacompile.lower import lower
from dynacompile.markers import disable
from dynacompile.measuring import choice
from dynacompile.native import core as native_core
from dynacompile.ops.wrappers import has_wrappers
from dynacompile.private import of_torch
from dynacompile.runtime import (
    Told,
    chain,
    differentiable,
    in_stages,
    is_of_values,
    keeping_primals,
    laid_out,
    link,
    record,
    restarting,
    with_beyond,
    with_plain,
    with_wrappers,
)
from dynacompile.schedule import schedule, schedule_parts
from dynacompile.watchdog import together, watched

T = TypeVar("T")
GraphCall = Callable[..., tuple]  # flat graph inputs -> flat graph outputs


def compile_frame(
    frame: Any, make_call: Callable[[Captured, Env], GraphCall], env: Env, codes: CodeCache, policy: ShapePolicy | None = None
) -> tuple[Captured, Any, Any]:
    """The captured frame, its residual code bound to the compiled graph, and its guard program.

    frame: the hook's view of the call (code, function, slots, closure, globals, builtins), or a copy of it, where the call has gone on: then the facts
    that capture has read must hold together at its end. make_call: what the backend does with the graph.
    codes: decoded and resume code objects, kept from frame to frame. policy: which sizes and ints become symbols.
    Raises Unsupported where nothing of the frame can be captured, or, under fullgraph, where it breaks; for a copy, what `end_capture` raises.
    """
    expect_builds(env)
    native_core().keep_fake_devices()
    with rare_collections(BESIDE if isinstance(frame, FrameCopy) else RARE), forgetting_shape_envs(policy), dynamo_unloaded(), unseen_by_hooks():
        captured = stage("capture", env, capture_frame, frame, env, codes, policy, FrameFacts(frame))
        if isinstance(frame, FrameCopy):
            frame.end_capture(captured)
        with under(captured.settings, native_core().set_deterministic_algorithms):
            flags: list[Flag] = []
            guarding = Guarding(captured, flags, env)
            rely = lambda name, read, value: flags.append(Flag(name, read, value))  # noqa: E731
            config = replace(env.config, regather=True) if captured.regather else env.config
            told = replace(env, config=config, breaks=captured.break_ is not None, rely=rely, meanwhile=guarding.begin)
            try:
                with torch.set_grad_enabled(captured.with_gradients or torch.is_grad_enabled()):
                    call = make_call(captured, told) if captured.compact is not None else None
            except Unsupported:
                if policy is None or policy.values is not None or captured.compact is None or not depends_on_values(captured.compact):
                    raise
                return compile_frame(frame, make_call, env, codes, replace(policy, values=False))  # a stage can't have symbols for values
        asked = tuple(n for n, item in enumerate(captured.inputs) if item.is_asked)
        call = with_plain(call, asked) if call is not None and asked else call
        call = with_wrappers(call, captured.wrappers) if call is not None and captured.wrappers is not None else call
        call = torch.enable_grad()(call) if call is not None and captured.with_gradients else call
        if call is not None and captured.restarts is not None:
            call = restarting(call, captured.restarts)
        if call is not None and captured.repeats is not None:
            call = native_core().RestartingCall(call, is_of_values, captured.repeats.draws, captured.repeats.written)
        settings = tuple(Guard("FLAG", None, flag, captured.site) for flag in dict.fromkeys(flags))
        captured = replace(captured, guards=captured.guards + captured.shape_guards() + settings, shape_guards=no_guards)
        code = captured.code
        if call is not None:
            code = captured.bind(compile_gather(captured.roots, [i.root for i in captured.inputs], call, captured.in_modes))
        return captured, code, guarding.finish(captured.guards)


class Guarding:
    """The guard program of a frame. It is compiled while the compilers of kernels run, where all is known by then that it is to check.

    flags: gets the settings that what is compiled relies on."""

    def __init__(self, captured: Captured, flags: Sequence[Flag], env: Env):
        self.captured, self.flags, self.env = captured, flags, env
        self.early: Any = None

    def begin(self) -> None:
        if self.early is None and not self.flags and self.captured.shape_guards is no_guards:
            self.early = stage("guards", self.env, compile_guards, self.captured.guards)

    def finish(self, guards: Sequence[Guard]) -> Any:
        """guards: those of the frame, behind which others may have come."""
        if self.early is not None and len(guards) == len(self.captured.guards):
            return self.early
        return stage("guards", self.env, compile_guards, guards)


@contextmanager
def forgetting_shape_envs(policy: ShapePolicy | None) -> Iterator[None]:
    """However the compile ends, where it may have used symbols."""
    try:
        yield
    finally:
        if policy is not None:
            forget_shape_envs()


RARE = 200_000  # objects that are made before Python looks for garbage among them
BESIDE = 5_000  # beside the program, which waits for each look; a look at all objects, which takes a tenth of a second, comes after the compile


class Collections:
    """Python's thresholds for collections while something compiles: what a compile makes lives until its end, and going through it for garbage time and
    again takes a quarter of the compile. Thresholds that somebody else has set meanwhile stay."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.compiles: list[tuple[int, int]] = []  # of those that run: the threshold for young objects, and the thread
        self.before = self.ours = gc.get_threshold()

    def begin(self, young: int) -> None:
        with self.lock:
            now = gc.get_threshold()
            if not self.compiles or now != self.ours:
                self.before = self.ours = now
            self.compiles.append((young, threading.get_ident()))
            self.set(now)

    def end(self, young: int) -> None:
        with self.lock:
            self.compiles.remove((young, threading.get_ident()))
            self.set(gc.get_threshold())

    def set(self, now: tuple[int, int, int]) -> None:
        if now != self.ours:
            return
        first, second, third = self.before
        wanted = min((young for young, _ in self.compiles), default=0)
        if 0 < first < wanted:
            self.ours = (wanted, second, third) if wanted == RARE else (wanted, 4, 1000)
        else:
            self.ours = self.before
        gc.set_threshold(*self.ours)

    def begin_child(self) -> None:
        """In a forked process, in which other threads' compiles are over."""
        self.lock = threading.RLock()
        self.compiles = [(young, thread) for young, thread in self.compiles if thread == threading.get_ident()]
        self.set(gc.get_threshold())


COLLECTIONS = Collections()
os.register_at_fork(after_in_child=COLLECTIONS.begin_child)


@contextmanager
def rare_collections(young: int) -> Iterator[None]:
    COLLECTIONS.begin(young)
    try:
        yield
    finally:
        COLLECTIONS.end(young)


@contextmanager
def unseen_by_hooks() -> Iterator[None]:
    """The caller's hooks on saved tensors, such as checkpointing has, get none of what autograd saves while graphs are traced."""
    before = of_torch.saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        of_torch.saved_tensors_hooks_set_tracing(before)


def compile_graph(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> GraphCall:
    """A torch-level graph as a native callable that autograd can differentiate; a chain of such where values decide sizes in it.

    Rounds of loops may be single nodes in it, and fakes be made later (`ir.rounds`)."""
    if depends_on_values(graph):
        unroll(graph)
        refuse_wrappers(graph)
        later = replace(env, rely=None, meanwhile=None)  # parts are compiled when a call comes to them
        return chain(graph, lambda part, given: compile_part(part, given, later))
    return compile_part(graph, fakes, env)


def refuse_wrappers(graph: torch.fx.GraphModule) -> None:
    if has_wrappers(graph):
        raise Unsupported("symbolic-wrapper", "sizes depend on values beside tensors that wrap others")


def compile_part(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> GraphCall:
    if has_wrappers(graph):
        graph, fakes = whole(graph, fakes, env)
        graph, fakes = localized(graph, fakes)
    parts = find_parts(graph, fakes)
    found = None if parts is None else stage("differentiate", env, differentiate_parts, parts, env)
    if found is not None:
        return compile_parts(found, env)
    graph, fakes = whole(graph, fakes, env)
    try:
        pair: ForwardBackward = stage("differentiate", env, differentiate, graph, fakes, env)
    except BeyondInputs as reason:
        return past_inputs(reason, compile_part, graph, fakes, env)
    forward = begin_kernels(planned(pair.forward, env), env)
    later = replace(env, rely=None, meanwhile=None)  # guards hold when the forward runs
    plans = [planned(g, later, saved, early) for (g, saved), early in zip(backward_graphs(pair), given_early(pair, env), strict=True)]
    backwards = [disable(begin_kernels(plan, later, "backward")) for plan in plans]  # they build beside the forward's
    forward_call = forward()
    if env.config.background:  # the call that would wait for the backward is to wait for nothing
        backwards = [disable(functools.partial(given, finish())) for finish in backwards]
    return joined(forward_call, backwards, pair, graph, fakes, [plan.gives() for plan in plans])


def past_inputs(reason: BeyondInputs, compile_one: Callable[..., GraphCall], graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> GraphCall:
    """The callable of a graph that was refused for outputs whose gradients come to no input: it is compiled without the history of these."""
    if not reason.outputs:
        raise reason
    return with_beyond(compile_one(detached(graph, reason.outputs), fakes, env), reason.outputs)


def whole(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> tuple[torch.fx.GraphModule, list[object]]:
    """The graph with all of its operations, and the fakes of its inputs. Raises Unsupported where it has more than may be traced."""
    count, limit = sum(len(n.target.nodes) for n in graph.graph.nodes if is_again(n)), env.config.trace_limit  # type: ignore[union-attr]
    if limit and count and count + len(graph.graph.nodes) > limit:
        raise unsupported("too-many-operations", limit)
    unroll(graph)
    return graph, [made(fake) for fake in fakes]


def compile_parts(found: DifferentiatedParts, env: Env) -> GraphCall:
    """A graph that falls apart into like parts, each of which is lowered and fused once. Autograd has no part in it."""
    program = stage("lower", env, lower_parts, found, env)
    plan = stage("schedule", env, schedule_parts, program, env)
    return differentiable(begin_kernels(plan, env)(), None, found.contract)


def lower_parts(found: DifferentiatedParts, env: Env) -> ProgramParts:
    return lowered(found, [lower(pair.forward, env) for pair in found.pairs])


def backward_graphs(pair: ForwardBackward) -> list[tuple[torch.fx.GraphModule, range]]:
    """With which of their inputs are saved results of the forward."""
    graphs: tuple[torch.fx.GraphModule, ...] = pair.stages if pair.backward is None else (pair.backward,)
    whole: Sequence[Stage | RuntimeContract] = pair.contract.stages if pair.backward is None else (pair.contract,)
    found = []
    for graph, part in zip(graphs, whole, strict=True):
        first = len(part.symbols) + len(part.saved_inputs)
        found.append((graph, range(first, first + len(part.saved_positions))))
    return found


def given_early(pair: ForwardBackward, env: Env) -> list[tuple[int, ...]]:
    """Of each backward graph, the results that leave it as they are final: gradients of inputs, where they may be reduced between processes meanwhile."""
    whole: Sequence[Stage | RuntimeContract] = pair.contract.stages if pair.backward is None else (pair.contract,)
    if not env.config.gradient_bytes or env.config.cudagraphs or not together():
        return [()] * len(whole)
    return [
        tuple(range(len(part.grads))) if isinstance(part, RuntimeContract) else tuple(i for i, t in enumerate(part.edges) if t.kind == "input")
        for part in whole
    ]


def joined(
    forward: GraphCall,
    backwards: Sequence[Callable[[], GraphCall]],
    pair: ForwardBackward,
    graph: torch.fx.GraphModule,
    fakes: Sequence[object],
    gives: Sequence[tuple[tuple[int, ...], ...]] = (),
) -> Any:
    """The callable of a differentiated graph, whose backward can be differentiated in its turn. gives: of each backward, see `Schedule.gives`."""
    if not pair.stages:
        made = differentiable(forward, backwards[0] if backwards else None, pair.contract)
        keeping_primals(made, forward, graph, fakes, pair.contract)
        stages: tuple[Any, ...] = (made,)
    else:
        made, stages = in_stages(forward, backwards, pair.contract)
        for k, stage in enumerate(stages):
            keeping_primals(stage, forward, graph, fakes, pair.contract, k)
    for one, stops in zip(stages, gives, strict=False):  # without a backward there are none
        if stops:
            native_core().set_gives(one, stops)
    return made


def planned(graph: torch.fx.GraphModule, env: Env, saved: range | None = None, early: Sequence[int] = ()) -> Schedule:
    """The schedule of a functional ATen graph. saved, early: of a backward, see `schedule`."""
    program = stage("lower", env, lower, graph, env)
    return stage("schedule", env, schedule, program, env, saved, choice(env), early)


PROGRAMS = itertools.count(1)


def begin_kernels(plan: Schedule, env: Env, part: str = "forward") -> Callable[[], GraphCall]:
    """Begins to build the kernels of a schedule. The result waits for them, and gives a native program of kernel launches and extern calls: for a backward,
    on its first use, which may be inside of a region. part: what events call it."""
    told = Told(next(PROGRAMS), part, env.region, env.bucket)
    kernels, calls = tuple(plan.kernels_told()), tuple(plan.calls_told())
    own: dict[str, Any] = {"number": told.number, "region": told.region, "bucket": told.bucket}
    env.emit(Scheduled(device=str(plan.device), kernels=kernels, calls=calls, part=part, call_sites=tuple(plan.call_sites()), **own))
    sources = stage("generate", env, generate, plan, env)
    env.emit(Generated(kernels=tuple((name, source.language, source.text) for name, source in sources.kernels.items()), **own))
    building = begin_build(sources, env)

    def finish() -> GraphCall:
        laid = laid_out(plan)
        if env.meanwhile is not None:
            env.meanwhile()
        with watched("waiting for kernels of", env.region):
            module = stage("build", env, building)
        linked = stage("link", env, link, module, env, run_kernel, told, laid)
        return record(linked, plan, env) if env.config.cudagraphs else linked

    return finish


def trace_graph(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> GraphCall:
    """The `aot_eager` backend: differentiated ahead of time, run op by op."""
    if depends_on_values(graph):
        refuse_wrappers(graph)
        return chain(graph, lambda part, given: trace_part(part, given, env))
    return trace_part(graph, fakes, env)


def trace_part(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> GraphCall:
    graph, fakes = localized(graph, fakes)
    try:
        pair: ForwardBackward = stage("differentiate", env, differentiate, graph, fakes, env)
    except BeyondInputs as reason:
        return past_inputs(reason, trace_part, graph, fakes, env)
    backwards = [functools.partial(given, code_of(g)) for g, _ in backward_graphs(pair)]
    return joined(code_of(pair.forward), backwards, pair, graph, fakes)


def given(call: GraphCall) -> GraphCall:
    return call


def code_of(graph: torch.fx.GraphModule) -> GraphCall:
    """A graph as a function, written now: a graph module that has to write its code first would be called as a module, with the hooks of all modules."""
    module = executable(graph)
    write_code(module)
    return disable(module.forward)


def stage(name: str, env: Env, run: Callable[..., T], *args: Any) -> T:
    """Runs one stage: times it, verifies what it hands on, shows and reports it."""
    start = time.perf_counter()
    result = run(*args)
    if env.config.verify and hasattr(result, "verify"):
        result.verify()
    seconds = time.perf_counter() - start
    env.hand_off(name, result)
    facts: Any = getattr(result, "facts", {})
    counts = facts() if callable(facts) else facts
    env.emit(StageFinished(region=env.region, bucket=env.bucket, stage=name, seconds=seconds, facts=tuple(dict(counts).items())))
    return result
