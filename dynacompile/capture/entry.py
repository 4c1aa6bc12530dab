"""Captures one frame: interprets it, decides where its graph ends, and assembles the residual code."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
import torch.fx

from dynacompile.capture.assemble import assemble
from dynacompile.capture.bound_numbers import bind_numbers
from dynacompile.capture.breaking import can_execute, finish_break
from dynacompile.capture.breaks import BREAKS, OF_VALUES, WHOLE, NotConstant, NotThereYet, Raised, unsupported
from dynacompile.capture.bytecode import CodeCache, is_resume
from dynacompile.capture.ending import finish_raise, finish_return
from dynacompile.capture.frames.interpreter import SymbolicFrame, is_plain_frame
from dynacompile.capture.frames.own_variables import looks_at_frame
from dynacompile.capture.frames.repeats import Facts
from dynacompile.capture.frames.selection import Refused
from dynacompile.capture.handling import can_be_handed_on
from dynacompile.capture.manner import Manner
from dynacompile.capture.residual import Builder, parameter_count
from dynacompile.capture.shared_memory import SharesMemory
from dynacompile.capture.symbols import NeedsNumbers, NeedsSymbols, counts_loop
from dynacompile.capture.tensors.assumptions import assumable
from dynacompile.capture.tensors.bodies import BodyWrites
from dynacompile.capture.tensors.checkpointing import OutsideWrites, Regathered, WritesBehind
from dynacompile.capture.tensors.deferred_texts import TextOutdated
from dynacompile.capture.tensors.dtensors import prepare as prepare_dtensors
from dynacompile.capture.tensors.entry_conditions import AsksNumbers, Conditions
from dynacompile.capture.tensors.function_modes import DeviceMode
from dynacompile.capture.tensors.gradients import HookLeaves, Hooks
from dynacompile.capture.tensors.marked_functions import RunsWhole
from dynacompile.capture.tensors.restarting import CannotRestart, repeats_of, restarts_of
from dynacompile.capture.tensors.torch_functions import refusal
from dynacompile.capture.tensors.torch_modes import TurnsOnGradients
from dynacompile.capture.tensors.wrappers import WrapperTensor, leave_of
from dynacompile.capture.tensors.written_collectives import LeftPending, refuse_pending
from dynacompile.capture.trace import Trace
from dynacompile.capture.values.base import Lazy, Value
from dynacompile.capture.values.cells import Cells, CellValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import EnteredByHand
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.positions import GivenIterators
from dynacompile.capture.values.references import GivenVariables
from dynacompile.capture.values.rows import OF_FRAMES
from dynacompile.capture.written import alias_guards, check_memory, write_guards
from dynacompile.env import Env
from dynacompile.errors import MarkViolated, RunsDiffer, Unsupported, VerifyError
from dynacompile.ir.captured import PENDING, Break, Captured, GraphInput, Guard, Site, Wrappers, no_guards
from dynacompile.ir.guard_facts import Flag, GlobalState, Presence, global_state
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import ShapePolicy, is_undecided
from dynacompile.ir.source import DictAttr, Free, Global, Local, Source
from dynacompile.native import core as native_core
from dynacompile.ops.wrappers import Enter, Leave
from dynacompile.private import of_torch

SHARDING = "torch.distributed.fsdp.fully_sharded_data_parallel"  # its forward runs hooks around that of the module which it wraps


@dataclass(frozen=True)
class Stop:
    """Where the graph is to end: the frame's own instruction number `step` (counted as executed).

    execute: the residual code runs that instruction; otherwise it belongs to the resume function.
    """

    step: int
    execute: bool
    why: Break


@dataclass
class Attempt:
    """One run of the interpreter over the frame. steps: instruction index by step. first_steps: the step that first ran an instruction."""

    cx: Trace
    frame: SymbolicFrame
    steps: list[int]
    first_steps: dict[int, int]
    returned: Value | None = None
    broke: Break | None = None
    escaped: int | None = None  # the step that raised the exception which leaves the frame
    raised: Raised | None = None  # that exception, where a raise statement raised it and the residual code can raise it
    absent: tuple[Source, str] | None = None  # the dict, and the name, of what comes to be there where it broke


def capture_frame(frame: Any, env: Env, codes: CodeCache | None = None, policy: ShapePolicy | None = None, facts: Facts | None = None) -> Captured:
    """Captures the call that `frame` (code, function, globals, builtins, slots, closure) is about to run.

    codes: what earlier captures found out about code objects; a shared one lets recompiles share resume functions. policy: which sizes
    and ints become symbols, besides those of tensors that are marked; None: not even these. facts: what lies at the sources of the frame, for
    modules that are alike to be followed once; None: each is followed.
    Raises Unsupported where nothing of the frame can be captured and, under fullgraph, at the first break. A bug of capture itself leaves the
    frame to Python as well, with a reason that says so; under `verify` it is raised.
    """
    codes = codes or CodeCache()
    prepare_dtensors()

    def again() -> Captured:
        try:
            return capture(frame, env, codes, policy, facts)
        except VerifyError as bug:
            raise origin(bug) from None

    try:
        try:
            return capture(frame, env, codes, policy, facts)
        except RunsDiffer:  # what another thread has changed between the runs may stay as it is now
            return capture(frame, env, codes, policy, facts)
    except (VerifyError, LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as bug:
        if env.config.verify:
            raise
        if not isinstance(bug, RunsDiffer):
            check_recurs(origin(bug), again)
        raise unsupported("internal", f"{frame.code.co_qualname}: {type(bug).__name__}: {bug}") from bug


def origin(bug: Exception) -> Exception:
    """What was raised where the interpreter made a VerifyError of it."""
    return bug.__cause__ if isinstance(bug, VerifyError) and isinstance(bug.__cause__, Exception) else bug


def capture(frame: Any, env: Env, codes: CodeCache, policy: ShapePolicy | None, facts: Facts | None) -> Captured:
    code = frame.code
    if not is_plain_frame(code):
        raise unsupported("frame-kind", f"{code.co_qualname} is a generator, coroutine or module body")
    if type(frame.globals) is not dict or type(frame.builtins) is not dict:
        raise unsupported("frame-kind", f"{code.co_qualname} has globals whose class says what a global is")
    if str(frame.globals.get("__name__")).startswith("namedtuple_"):
        raise unsupported("frame-kind", f"{code.co_qualname} makes a named tuple")
    if frame.globals.get("__name__") == SHARDING:
        raise unsupported("wrapper", f"{code.co_qualname}, which talks to other processes,")
    if refusal(str(frame.globals.get("__name__"))) is not None:
        raise unsupported("frame-kind", f"{code.co_qualname} belongs to {frame.globals['__name__']}")
    state = global_state(native_core().function_modes())
    if state.has_modes or state.functorch or state.dispatch_modes:
        raise unsupported("active-mode")
    if of_torch.dispatch_tls_local_exclude_set().has(of_torch.functionalize_key):
        raise unsupported("active-mode", f": {code.co_qualname} runs inside of a __torch_dispatch__")
    if state.inference_mode and state.grad_mode:
        raise unsupported("active-mode", ", as gradients are turned on inside of inference mode,")
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise Unsupported(
            "active-mode", "autograd's anomaly detection is on, which is to see every operation", "turn it off where functions are to be compiled"
        )
    differentiates = isinstance(env.config.backend, str) and env.config.backend != "eager"
    manner = Manner(asks_inputs=env.asks_inputs, leaves_leave=not differentiates, restarts=env.restarts)
    before = policy, manner
    otherwise: Unsupported | None = None
    while True:
        try:
            return interpreted(frame, env, codes, state, policy, facts, manner)
        except NeedsSymbols as reason:
            known = ShapePolicy() if policy is None else policy
            if reason.if_whole:
                before = policy, manner
                manner = replace(manner, if_whole=True)
            numbers, flags = known.numbers | reason.numbers, known.flags | reason.flags
            marks, values = known.marks or reason.is_of_symbols, reason.values or known.values
            policy = replace(known, marks=marks, numbers=numbers, flags=flags, values=values)
            manner = replace(manner, loops=manner.loops or reason.loops)
        except NeedsNumbers as reason:
            raise unsupported("symbolic-wrapper", str(reason)) from reason
        except EnteredByHand:
            if not manner.by_hand:
                raise
            manner = replace(manner, by_hand=False)
        except Unsupported:
            if otherwise is not None:
                raise otherwise from None
            if not manner.if_whole:
                raise
            policy, manner = before[0], replace(before[1], values=False)
        except Refused as reason:
            manner = replace(manner, asked_at=manner.asked_at | {reason.place})
        except HookLeaves as reason:
            name = "hooks_after" if reason.after else "no_hooks_at"
            manner = replace(manner, **{name: getattr(manner, name) | {reason.place}})
        except WritesBehind as reason:
            manner = replace(manner, writes_at=manner.writes_at | {reason.place})
        except TextOutdated:
            manner = replace(manner, texts=False)
        except SharesMemory as reason:
            manner = replace(manner, shares=(*manner.shares, reason.sources))
        except TurnsOnGradients:
            manner = replace(manner, with_gradients=True)
        except BodyWrites:
            manner = replace(manner, bodies_write=True)
        except RunsWhole as reason:
            manner = replace(manner, whole={**manner.whole, reason.function: reason.whole})
        except AsksNumbers as reason:
            otherwise = reason.otherwise
            policy = replace(policy, values=False) if policy is not None else None
            manner = replace(manner, numbers=True)
        except CannotRestart:
            manner = replace(manner, restarts=False)
        except BreaksInRow:
            manner = replace(manner, by_rows=False)
        except LeftPending:
            if not manner.works:
                raise
            manner = replace(manner, works=False)


def interpreted(frame: Any, env: Env, codes: CodeCache, state: GlobalState, policy: ShapePolicy | None, facts: Facts | None, manner: Manner) -> Captured:
    """Interprets the frame, and again up to its break where it has one."""
    code = frame.code
    policy, asked = (policy, False) if policy is None else (replace(policy, loops=manner.loops), policy.loops)

    def trace() -> Trace:
        made = Trace(codes, frame.globals, frame.builtins, state.inference_mode, env.config.reports == "replay", policy, facts, manner)
        made.overrides.state, made.fullgraph = state.torch_function, env.config.fullgraph
        made.overrides.modes.begin([DeviceMode(device) for device in state.function_modes])  # type: ignore[arg-type]
        made.leaves_first_steps = env.leaves_first_steps
        made.grads = getattr(frame, "grads", made.grads)
        made.limit(env.config.trace_limit)
        return made

    with SavedModes(manner.with_gradients) as modes:
        attempt = run(modes.trace(trace()), frame, None)
        if attempt.broke is not None and manner.by_rows and code in OF_FRAMES:
            raise BreaksInRow
        if attempt.broke is not None and attempt.broke.code in WHOLE:
            raise located(attempt.broke)
        if policy is not None and (numbers := counted(attempt.cx, policy)):
            raise NeedsSymbols(numbers=numbers)
        if attempt.broke is not None and attempt.raised is None and manner.if_whole:
            raise located(attempt.broke)
        fewer = assumable(attempt.cx)
        if fewer is None and attempt.broke is not None and asked and not manner.loops and goes_round(attempt.cx):
            raise NeedsSymbols(loops=True)
        if fewer is None and (attempt.broke is None or attempt.raised is not None):
            return build(attempt, frame, state, None)
        stop = None if fewer is not None or attempt.broke is None else plan(attempt, attempt.broke)
        lacks, knows_more = list(lacking(attempt.cx)), attempt.cx.state(Conditions).knows_more
    if stop is None or attempt.broke is None:
        return interpreted(frame, env, codes, state, policy, facts, replace(manner, assumes=fewer))
    if env.config.fullgraph:
        if attempt.broke.code in OF_VALUES and (policy is None or not policy.values) and not manner.numbers:
            raise NeedsSymbols(values=True)
        if not manner.numbers and (knows_more or policy is not None and policy.values):
            raise AsksNumbers(located(attempt.broke))
        raise located(attempt.broke)
    if attempt.broke.code in OF_VALUES and policy is not None and policy.values is None and manner.values:
        raise NeedsSymbols(values=True, if_whole=True)
    if knows_more:
        raise AsksNumbers(None)
    if looks_at_frame(frame, attempt.frame.decoded.instrs, attempt.broke):  # the rest of the frame would show other variables
        raise located(wrapped(attempt.broke, "frame-variables"))
    absent = attempt.absent
    with SavedModes(manner.with_gradients) as modes:
        attempt = run(modes.trace(trace()), frame, stop)
        for guard in lacks:
            attempt.cx.guard_as(guard)
        if absent is not None:
            attempt.cx.guard("DICT_CONTAINS", absent[0], Presence(absent[1], False))
        if attempt.broke is not None:
            raise RunsDiffer("capture", f"the second run over {code.co_qualname} broke earlier than the first: {attempt.broke.reason}")
        return build(attempt, frame, state, stop)


def lacking(cx: Trace) -> Iterator[Guard]:
    """Names that objects were found to lack. What breaks behind such a question may be done once, as hooks are installed: with the name it may not break."""
    for guard in cx.guards.values():
        if guard.kind in ("HASATTR", "DICT_CONTAINS"):
            asked: Presence = guard.expected  # type: ignore[assignment]
            if isinstance(asked.name, str) and not asked.present:
                yield guard


def counted(cx: Trace, policy: ShapePolicy) -> frozenset[Source]:
    """Numbers that the frame read as constants and gave other values: no later call would find them as they were."""
    allowed = [kind for kind, wanted in ((int, policy.ints), (float, policy.floats)) if wanted]
    read = {g.source: g.expected for g in cx.guards.values() if g.kind == "EQUALS" and type(g.expected) in allowed and g.source not in policy.numbers}
    if not read:
        return frozenset()
    stored: dict[Source | None, Any] = {Global(name): new for (_, name), (_, is_root, new) in cx.effects.globals.items() if is_root}
    for value in cx.effects.pending():
        if isinstance(value, ObjectValue) and value.source is not None:
            stored |= {DictAttr(value.source, name): new for name, new in value.stored.items()}
    new_values = {source: new.value for source, new in stored.items() if isinstance(new, ConstantValue)}
    return frozenset(s for s, was in read.items() if s is not None and s in new_values and type(new_values[s]) is type(was) and new_values[s] != was)


def run(cx: Trace, frame: Any, stop: Stop | None) -> Attempt:
    """Interprets the frame until it returns, breaks, or reaches `stop`."""
    symbolic = root_frame(cx, frame)
    attempt = Attempt(cx, symbolic, [], {})
    cx.frames.append(symbolic)
    if cx.manner.with_gradients:
        cx.modes.set_grad_mode(False)
        symbolic.entry_grad_mode = False
    row = OF_FRAMES.get(frame.code) if cx.manner.by_rows else None
    while symbolic.returned is None:
        if stop is not None and len(attempt.steps) == stop.step:
            symbolic.current = symbolic.decoded.instrs[symbolic.index]
            return attempt
        attempt.first_steps.setdefault(symbolic.index, len(attempt.steps))
        attempt.steps.append(symbolic.index)
        try:
            if row is None:
                symbolic.step()
            else:
                symbolic.current = symbolic.decoded.instrs[symbolic.index]
                symbolic.returned = row(cx, [given for given in symbolic.slots[: parameter_count(frame.code)] if given is not None], {})
        except (Unsupported, NotConstant, RecursionError) as reason:
            attempt.broke = break_of(reason, cx)
            attempt.absent = (reason.table, reason.name) if isinstance(reason, NotThereYet) else None
            if isinstance(reason, Raised) and isinstance(reason.value, ExceptionValue):
                attempt.escaped = reason.value.step
                attempt.raised = reason if reason.value.trail and reason.value.can_be_made() else None
                reason.__traceback__ = None  # it would hold this frame, which holds it, and so the caller's, until garbage is collected
            return attempt
        except (VerifyError, NeedsSymbols, NeedsNumbers, MarkViolated, Refused, TurnsOnGradients, BodyWrites, RunsWhole, HookLeaves):
            raise
        except Exception as bug:
            if is_undecided(bug):
                attempt.broke = break_of(unsupported("data-dependent-branch", "a number that depends on the values of a tensor"), cx)
                return attempt
            raise VerifyError("capture", f"{type(bug).__name__}: {bug}, at {cx.site()}") from bug
    attempt.returned = symbolic.returned
    return attempt


class BreaksInRow(Exception):
    """The row of the frame's function breaks, or raises: the frame itself is interpreted, which can end there."""


def goes_round(cx: Trace) -> bool:
    """Whether a break ends one round of a loop that an earlier break began, and what the round counts was read."""
    loops = cx.state(GivenIterators).all
    one_round = any(loop.taken for loop in loops) and all(loop.rest is None for loop in loops)
    return one_round and any(g.kind == "EQUALS" and type(g.expected) is int and counts_loop(g.source) for g in cx.guards.values())


def break_of(reason: Exception, cx: Trace) -> Break:
    if isinstance(reason, NotConstant):
        reason = unsupported("unknown-operation", f"the value of a {reason} is needed")
    if isinstance(reason, RecursionError):
        reason = unsupported("too-deep", cx.frames[-1].code.co_qualname)
    if not isinstance(reason, Unsupported) or reason.code not in BREAKS:
        raise reason
    return Break(reason.code, reason.reason, reason.hint, cx.stack_sites())


def root_frame(cx: Trace, frame: Any) -> SymbolicFrame:
    code = frame.code
    decoded = cx.codes.decode(code)
    closure = []
    for index, (name, cell) in enumerate(zip(code.co_freevars, frame.closure or ())):
        try:
            content: Value | None = Lazy(cx, cell.cell_contents, Free(name, index))
        except ValueError:
            content = None
        value = CellValue(content, name, free=index)
        cx.state(Cells).values[id(cell)] = value
        closure.append(value)
    symbolic = SymbolicFrame(cx, decoded, cx.root_scope, closure)
    if is_resume(code):
        cx.state(GivenVariables).ids = {id(frame.slots[slot]) for slot in range(parameter_count(code))}
    for slot in range(parameter_count(code)):
        symbolic.slots[slot] = Lazy(cx, frame.slots[slot], Local(decoded.slots[slot], slot))
    return symbolic


def plan(attempt: Attempt, why: Break) -> Stop:
    """Where to end the graph for a break: at its instruction, or before the block around it."""
    decoded = attempt.frame.decoded
    last = len(attempt.steps) - 1
    frame = attempt.frame
    since = None if can_be_handed_on(frame.stack, attempt.cx.handling) else frame.handled_since()
    step = min(s for s in (last, since, attempt.escaped) if s is not None)
    instr = decoded.instrs[attempt.steps[step]]
    if not can_execute(instr):
        return Stop(step, False, wrapped(why, "in-block") if decoded.handler_of(instr) is not None else why)
    return Stop(step, True, why)


def wrapped(why: Break, code: str) -> Break:
    row = BREAKS[code]
    return Break(code, row.reason.format(f"[{why.code}] {why.reason}"), why.hint or row.hint, why.stack)


def located(why: Break) -> Unsupported:
    *outer, inner = map(str, why.stack) if why.stack else ("",)
    return Unsupported(why.code, why.reason, why.hint, inner, tuple(reversed(outer)))


def build(attempt: Attempt, frame: Any, state: GlobalState, stop: Stop | None) -> Captured:
    """The hand-off: graph, guards and residual code of a finished attempt."""
    cx, symbolic = attempt.cx, attempt.frame
    code = frame.code
    site = Site(code.co_filename, code.co_firstlineno, code.co_qualname)
    if stop is not None and not stop.execute and not cx.recorder.ops and not cx.effects:
        raise located(stop.why)
    refuse_pending(cx)
    if stop is None and attempt.raised is not None:
        ending = finish_raise(cx, symbolic, attempt.raised)
    elif stop is None:
        ending = finish_return(cx, symbolic, attempt.returned)  # type: ignore[arg-type]
    else:
        ending = finish_break(symbolic, stop.execute, stop.why.code)
    if not all(hook.is_as_read() for hook in cx.state(Hooks).all):
        raise unsupported("hooks", f"{code.co_qualname}, where a variable changes after the hook of a tensor has read it,")
    cx.state(Hooks).check_outputs(cx, ending.outputs)
    cx.state(OutsideWrites).check()
    graph, leaves = graph_module(cx, ending.outputs)
    written = cx.recorder.written_inputs()
    inputs, roots = used_inputs(graph, cx.recorder.fresh_inputs(written) if graph is not None else ())
    check_memory(cx, inputs, written)
    restarts = restarts_of(cx, graph, inputs, written, ending.outputs)
    builder = Builder(symbolic.decoded, ending.keeps_cells)
    try:
        ending.emit(builder, roots if graph is not None else None)
    except RecursionError as reason:
        raise unsupported("rebuild", "a deeply nested object") from reason
    instrs, fields = builder.finish()
    guards = [Guard("GLOBAL_STATE", None, state, site), *cx.guards.values(), *alias_guards(cx, inputs, written, site), *write_guards(cx, written, site)]
    names = cx.names.facts()
    guards += [] if names is None else [Guard("NAMESPACES", None, names, site)]
    if restarts is not None:
        guards.append(Guard("FLAG", None, Flag(f"{', '.join(restarts.operations)} had no call start again", restarts.serves, True), site))
    residual = assemble(code, instrs, builder.handlers, **fields)
    return Captured(
        name=code.co_qualname,
        compact=graph,
        inputs=inputs,
        roots=roots,
        guards=tuple(guards),
        code=residual,
        site=site,
        break_=stop.why if stop and not continues_break(cx, code) else None,
        resumes=tuple(ending.resumes),
        whole=stop is None,
        settings=cx.effects.settings.used or {},
        with_gradients=cx.manner.with_gradients,
        regather=cx.state(Regathered).asked,
        in_modes=bool(state.function_modes),
        restarts=restarts,
        repeats=repeats_of(cx, graph, inputs, written) if restarts is None else None,
        facts={"ops": cx.recorder.ops, "guards": len(guards), "steps": cx.steps},
        shape_guards=cx.symbols.guards if cx.symbols is not None else no_guards,
        wrappers=wrappers_of(graph, inputs, leaves),
    )


def continues_break(cx: Trace, code: CodeType) -> bool:
    """Whether a resume function does nothing before its break: then Python just goes on after the break before, and it counts as that one."""
    return is_resume(code) and not cx.recorder.ops and not cx.effects


def graph_module(cx: Trace, outputs: Sequence[Any]) -> tuple[torch.fx.GraphModule | None, list[Leave | None]]:
    """The graph with its outputs and modes restored to those at its start, None when it does nothing; and what takes apart each output that is a wrapper."""
    cx.recorder.drop_unused([value.node for value in outputs])
    if not cx.recorder.ops:
        return None, []
    graph = cx.recorder.graph
    for node, _, leave in reversed(cx.modes.autocasts):
        graph.call_function(leave, (node,))
    if torch.is_grad_enabled() != cx.recorder.begins_with_gradients:
        graph.call_function(of_torch.set_grad_enabled, (cx.recorder.begins_with_gradients,))
    leaves, results = take_apart(graph, cx, outputs)
    graph.output(tuple(results))
    if cx.symbols is not None:
        bind_numbers(cx.recorder, cx.symbols)
    for node in [n for n in graph.nodes if n.op == "placeholder" and not n.users]:
        graph.erase_node(node)
    with of_torch.use_lazy_graph_module(True):  # Python code is made for who prints or runs the graph
        return of_torch.make_graph_module(cx.recorder.owner(graph), graph), leaves


def take_apart(graph: torch.fx.Graph, cx: Trace, outputs: Sequence[Any]) -> tuple[list[Leave | None], list[torch.fx.Node]]:
    """What takes each output apart, where it is a wrapper, and the results of the graph."""
    leaves: list[Leave | None] = []
    results: list[torch.fx.Node] = []
    for value in outputs:
        if not isinstance(value, WrapperTensor):
            leaves.append(None)
            results.append(value.node)
            continue
        leave = leave_of(value, cx, outputs)
        leaves.append(leave)
        node = graph.call_function(leave, (value.node,))
        with torch.enable_grad():  # a result may have been recorded though gradients are off where the frame ends
            node.meta["val"] = node.meta["example_value"] = parts = leave(value.fake)
        for i, part in enumerate(parts):
            results.append(graph.call_function(operator.getitem, (node, i)))
            results[-1].meta["val"] = results[-1].meta["example_value"] = part
    return leaves, results


def wrappers_of(graph: torch.fx.GraphModule | None, inputs: Sequence[GraphInput], leaves: Sequence[Leave | None]) -> Wrappers | None:
    if graph is None or not any(i.wrapper or i.is_pending for i in inputs) and not any(leaves):
        return None
    nodes = {n.name: n for n in graph.graph.nodes if n.op == "placeholder"}
    found: dict[Source, int] = {}
    enters: list[Enter] = []
    rows: list[tuple[int, str] | None] = []
    for item in inputs:
        if item.wrapper is None:
            rows.append((PENDING, "") if item.is_pending else None)
            continue
        if item.wrapper not in found:
            found[item.wrapper] = len(enters)
            enters.append(next(u.target for u in nodes[item.name].users if isinstance(u.target, Enter)))
        rows.append((found[item.wrapper], item.source.name))  # type: ignore[attr-defined]
    return Wrappers(tuple(rows), tuple(enters), tuple(leaves))


def used_inputs(graph: torch.fx.GraphModule | None, inputs: tuple[GraphInput, ...]) -> tuple[tuple[GraphInput, ...], tuple[Source, ...]]:
    """Inputs that are left in the graph, and the roots they are loaded from."""
    if graph is None:
        return (), ()
    names = {n.name for n in graph.graph.find_nodes(op="placeholder", sort=False)}
    kept = tuple([i for i in inputs if i.name in names])
    paths: dict[Source, None] = {}  # to the inputs: each without its last step, as many of them differ in no other
    for item in kept:
        base = getattr(item.source, "base", None)
        paths[item.source if base is None else base] = None
    roots = dict.fromkeys(root for path in paths for root in path.roots() if type(root).__name__ != "Constant")
    return kept, tuple(roots)


logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not native_core().is_compiling_frame())
"""torch logs operations that fail on fakes, on threads that compile without need: eager will raise."""


class SavedModes:
    """Grad mode and autocast as they are now, restored at the end.

    with_gradients: the graph begins with gradients. Inference mode is left meanwhile, as its tensors do not count their versions. Autocast's weight
    cache is off, as it must not meet fakes. Where an exception of a signal handler ends this early, the native core sets what is left, once the compile
    has ended.
    """

    def __init__(self, with_gradients: bool = False):
        self.with_gradients = with_gradients

    def __enter__(self) -> SavedModes:
        self.traces: list[Trace] = []
        self.unasked = of_torch.DisableTorchFunctionSubclass()  # reading a tensor of the user's class runs none of its code
        self.unasked.__enter__()
        self.inference = torch.is_inference_mode_enabled()
        self.grad = torch.is_grad_enabled()
        self.cache = torch.is_autocast_cache_enabled()
        if self.with_gradients:
            of_torch.set_grad_enabled(True)
        torch.set_autocast_cache_enabled(False)
        if self.inference:
            self.normal = of_torch.InferenceMode(False)  # type: ignore[attr-defined]  # sets both modes as soon as it is made
            self.normal.__enter__()
            of_torch.set_grad_enabled(False)
        return self

    def trace(self, cx: Trace) -> Trace:
        self.traces.append(cx)
        cx.modes.autocast_cache = self.cache
        return cx

    def __exit__(self, *reason: object) -> None:
        self.unasked.__exit__(None, None, None)
        if self.inference:
            self.normal.__exit__(None, None, None)
        for cx in self.traces:
            cx.modes.leave()
            cx.let_go()
        of_torch.set_grad_enabled(self.grad)
        torch.set_autocast_cache_enabled(self.cache)
