"""A kernel as C++ text: one function `entry(void* const* params)` over our vector header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import dynacompile.codegen.cpp.attention as attention
import dynacompile.codegen.cpp.product as product
from dynacompile.codegen.cpp.column import Column
from dynacompile.codegen.cpp.frame import Frame, decode
from dynacompile.codegen.cpp.plan import GRAIN, Choice, Plan, choices, plan
from dynacompile.codegen.cpp.prepare import prepare
from dynacompile.codegen.cpp.render import memory_type
from dynacompile.codegen.cpp.row import Row
from dynacompile.codegen.cpp.scan import HEADER as SCANS
from dynacompile.codegen.cpp.values import Text, Values
from dynacompile.env import Env
from dynacompile.errors import VerifyError
from dynacompile.ir.calls import Call
from dynacompile.ir.index import Symbol
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource
from dynacompile.quoting import comment, identifier

LIST_COST = 64  # what a task of a list costs by itself, in elements


def emit_kernel(kernel: Kernel, env: Env) -> KernelSource:
    """The kernel's C++ text. Raises Unsupported where it has tensors that C++ has no type for (complex, 8-bit floats)."""
    if kernel.nest.folded:
        raise VerifyError("schedule", f"{kernel.name} sums over blocks of rows, which is a form for GPUs")
    entry = f"kernel_{identifier(kernel.name)}"
    if kernel.call is not None:
        return KernelSource(kernel, "cpp", emit_call(kernel, kernel.call, entry), entry)
    nest = prepare(kernel.nest)
    if kernel.is_list:
        return KernelSource(kernel, "cpp", emit_list(kernel, entry, plan(nest, listed=True)), entry)
    first = plan(nest)
    text = emit(kernel, entry, first)
    if not env.config.autotune or not first.wide:
        return KernelSource(kernel, "cpp", text, entry)
    texts = {text: Choice()}
    for choice in choices(first):
        texts.setdefault(emit(kernel, entry, plan(nest, choice)), choice)
    candidates = tuple(Candidate({k: v for k, v in asdict(c).items() if v != getattr(Choice(), k)} or {"planned": 1}) for c in texts.values())
    return KernelSource(kernel, "cpp", text, entry, candidates, variants=tuple(texts))


def emit(kernel: Kernel, entry: str, loops: Plan) -> str:
    """The function for a plan of its loops. Behind the pointers come the symbols' values."""
    values = Values(kernel, loops)
    out = Text()
    if loops.nest.scans():
        out.line(SCANS)
    for line in comments(kernel):
        out.line(f"// {comment(line)}")
    out.open(f'extern "C" void {entry}(void* const* params)')
    pointers(kernel, values, out)
    symbols(kernel, out, len(kernel.params))
    statements(loops, values, out)
    out.close()
    return "\n".join(out.lines) + "\n"


def emit_call(kernel: Kernel, call: Call, entry: str) -> str:
    """The function of a template."""
    template = product if call.template == "blocked_product" else attention
    out = Text()
    out.line(template.HEADER)
    for line in comments(kernel):
        out.line(f"// {comment(line)}")
    out.open(f'extern "C" void {entry}(void* const* params)')
    symbols(kernel, out, len(kernel.params))
    for line in template.statements(kernel, call):
        out.line(line)
    out.close()
    return "\n".join(out.lines) + "\n"


def emit_list(kernel: Kernel, entry: str, loops: Plan) -> str:
    """The function of a kernel over a list. params: the number of members, their numbers one after the other, the symbols' values, and the members'
    pointers one after the other. Threads share the members' tasks by the number of elements that these take in."""
    values = Values(kernel, loops)
    out = Text()
    if loops.nest.scans():
        out.line(SCANS)
    for line in comments(kernel):
        out.line(f"// {comment(line)}")
    out.open(f'extern "C" void {entry}(void* const* params)')
    own = kernel.own or ()
    out.line("const i64 members = (i64)params[0];")
    out.line("const i64* const numbers = (const i64*)params[1];")
    symbols(kernel, out, 2)
    out.line(f"void* const* const pointers = params + {2 + len(kernel.symbols)};")
    out.open("const auto member = [=](void* const* params, const i64* own, i64 task0, i64 task1)")
    numbers(own, out)
    pointers(kernel, values, out)
    statements(loops, values, out)
    out.close(";")
    for name, text in (("tasks_of", loops.tasks), ("size_of", f"{loops.task_size} + {LIST_COST}")):
        out.open(f"const auto {name} = [=](const i64* own) -> i64")
        numbers(own, out)
        for line in loops.definitions():
            out.line(line)
        out.line(f"return {text};")
        out.close(";")
    out.line("i64 total = 0;")
    out.line(f"for (i64 m = 0; m < members; ++m) total += tasks_of(numbers + m * {len(own)}) * size_of(numbers + m * {len(own)});")
    out.open(f"parallel_when(total >= {int(GRAIN / loops.weight)}, total, [=](i64 first, i64 last)")
    out.line("i64 start = 0;")
    out.open("for (i64 m = 0; m < members && start < last; ++m)")
    out.line(f"const i64* own = numbers + m * {len(own)};")
    out.line("const i64 tasks = tasks_of(own), size = size_of(own), end = start + tasks * size;")
    out.line("const i64 task0 = start < first ? (first - start + size - 1) / size : 0, task1 = end > last ? (last - start + size - 1) / size : tasks;")
    out.line(f"if (task0 < task1) member(pointers + m * {len(kernel.params)}, own, task0, task1);")
    out.line("start = end;")
    out.close()
    out.close(");")
    out.close()
    return "\n".join(out.lines) + "\n"


def numbers(own: Sequence[Symbol], out: Text) -> None:
    """A member's own symbols, behind `own`."""
    for i, s in enumerate(own):
        out.line(f"const i64 {s.name} = own[{i}];")


def pointers(kernel: Kernel, values: Values, out: Text) -> None:
    stored = {op.attr.buffer for op in kernel.nest.body if op.name == "store"}  # type: ignore[union-attr]
    for i, p in enumerate(kernel.params):
        kind = memory_type(p.dtype)
        const = "" if p.name in stored else "const "
        out.line(f"{const}{kind}* {values.params[p.name][0]} = ({const}{kind}*)params[{i}];")


def symbols(kernel: Kernel, out: Text, start: int) -> None:
    """The values that a call brings, from place `start` among the params."""
    for i, s in enumerate(kernel.symbols):
        place = f"params[{start + i}]"
        out.line(f"f64 {s.name}; __builtin_memcpy(&{s.name}, &{place}, 8);" if s.real else f"const i64 {s.name} = (i64){place};")


def statements(loops: Plan, values: Values, out: Text) -> None:
    """The loops."""
    lanes = f"lanes_of({loops.lane_bytes})"
    if loops.most_lanes:
        lanes = f"{lanes} < {loops.most_lanes} ? {lanes} : {loops.most_lanes}"
    out.line(f"constexpr int W = {lanes};")
    for line in loops.definitions():
        out.line(line)
    frame = Frame(loops, values, out)
    if loops.points * loops.lane_size * loops.steps != 0:
        match loops.shape:
            case "pointwise":
                pointwise(frame)
            case "row":
                Row(frame).emit()
            case _:
                Column(frame).emit()


def comments(kernel: Kernel) -> list[str]:
    """What the kernel does, and the user's lines that it does it for."""
    lines: dict[str, list[str]] = {}
    for o in kernel.nest.origins:
        ops = lines.setdefault("" if o.site is None else str(o.site), [])
        if o.op not in ops:
            ops.append(o.op)
    axes = " ".join(f"{a.var.name}:{a.role}<{a.size}" for a in kernel.nest.axes)
    return [f"{kernel.name} [{axes}]", *(f"{', '.join(ops)}{'  ' if site else ''}{site}" for site, ops in lines.items())]


def pointwise(frame: Frame) -> None:
    loops, out = frame.plan, frame.out
    starts = [i for i, op in enumerate(loops.nest.body) if op.name == "store"]
    with frame.tasks():
        _, lane = frame.parts(starts, set())
        scalars = frame.scalars(starts, set())
        if loops.lane is None:
            frame.statements(scalars)
            return
        if not loops.middle:
            frame.statements(scalars)
            with frame.lane_loop():
                frame.lane_statements(lane)
            return
        across = {a.var for a in loops.middle}
        inner = frame.depending(scalars, across)
        frame.statements([i for i in scalars if i not in inner])
        with frame.blocks(lane, "0", str(loops.steps)) as (begin, end):
            out.open(f"for (i64 s = {begin}; s < {end}; ++s)")
            decode(out, loops.middle, "s")
            frame.statements([i for i in scalars if i in inner])
            with frame.lane_loop():
                frame.lane_statements(lane)
            out.close()
