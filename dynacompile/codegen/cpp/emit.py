"""A kernel as C++ text: one function `entry(void* const* params)` over our vector header."""

from __future__ import annotations

from dataclasses import asdict

from dynacompile.codegen.cpp.column import Column
from dynacompile.codegen.cpp.frame import Frame, decode
from dynacompile.codegen.cpp.plan import Choice, Plan, choices, plan
from dynacompile.codegen.cpp.prepare import prepare
from dynacompile.codegen.cpp.render import memory_type
from dynacompile.codegen.cpp.row import Row
from dynacompile.codegen.cpp.values import Text, Values
from dynacompile.env import Env
from dynacompile.errors import VerifyError
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource
from dynacompile.quoting import comment, identifier


def emit_kernel(kernel: Kernel, env: Env) -> KernelSource:
    """The kernel's C++ text. Raises Unsupported where it has tensors that C++ has no type for (complex, 8-bit floats)."""
    if kernel.nest.folded:
        raise VerifyError("schedule", f"{kernel.name} sums over blocks of rows, which is a form for GPUs")
    nest, entry = prepare(kernel.nest), f"kernel_{identifier(kernel.name)}"
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
    for line in comments(kernel):
        out.line(f"// {comment(line)}")
    out.open(f'extern "C" void {entry}(void* const* params)')
    stored = {op.attr.buffer for op in loops.nest.body if op.name == "store"}  # type: ignore[union-attr]
    for i, p in enumerate(kernel.params):
        kind = memory_type(p.dtype)
        const = "" if p.name in stored else "const "
        out.line(f"{const}{kind}* {values.params[p.name][0]} = ({const}{kind}*)params[{i}];")
    for i, s in enumerate(kernel.symbols):
        place = f"params[{len(kernel.params) + i}]"
        out.line(f"f64 {s.name}; __builtin_memcpy(&{s.name}, &{place}, 8);" if s.real else f"const i64 {s.name} = (i64){place};")
    out.line(f"constexpr int W = lanes_of({loops.lane_bytes});")
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
    out.close()
    return "\n".join(out.lines) + "\n"


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
        out.open(f"for (i64 s = 0; s < {loops.steps}; ++s)")
        decode(out, loops.middle, "s")
        frame.statements([i for i in scalars if i in inner])
        with frame.lane_loop():
            frame.lane_statements(lane)
        out.close()
