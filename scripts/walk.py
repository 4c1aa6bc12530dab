"""What the compiler prints of one function on its way through it: what docs/walk.md shows, made anew whenever the site is built.

python scripts/walk.py    # prints the page, with everything filled in
"""

from __future__ import annotations

import dis
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import dynacompile
from dynacompile.autograd.decompose import decomposition_table
from dynacompile.autograd.joint import trace_joint
from dynacompile.events import Event, Recompiled
from dynacompile.guards.program import described
from dynacompile.ir.loops import Nest
from dynacompile.observe.log import line

PAGE = Path(__file__).parents[1] / "docs" / "walk.md"
PLACE = re.compile(r"<!-- walk: (\w+) -->")
EXAMPLE = """\
import torch
from torch.nn.functional import gelu


def loss(x, weight, bias, target):
    hidden = gelu(x @ weight + bias, approximate="tanh")
    error = hidden - target
    return (error * error).mean()
"""
ROWS, WIDTH = 256, 128


def filled(page: str) -> str:
    """The page with every place filled in. Raises KeyError for a place that has no name of `shown`."""
    values = shown()
    return PLACE.sub(lambda found: values[found[1]], page)


def shown() -> dict[str, str]:
    """Each thing that the page shows, by name: blocks of Markdown, and numbers. It works in a folder of its own, whose name it leaves out."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return {name: text.replace(f"{folder}/", "") for name, text in walked(example(Path(folder))).items()}
        finally:
            os.chdir(before)


def example(folder: Path) -> Callable[..., torch.Tensor]:
    """The function of EXAMPLE, from a file, so that the compiler can name its lines."""
    file = folder / "example.py"
    file.write_text(EXAMPLE)
    module = ModuleType("example")
    exec(compile(EXAMPLE, str(file), "exec"), vars(module))
    return module.loss


def tensors(rows: int) -> tuple[torch.Tensor, ...]:
    numbers = torch.Generator().manual_seed(0)
    x, weight, bias, target = (torch.randn(*shape, generator=numbers) for shape in ((rows, WIDTH), (WIDTH, WIDTH), (WIDTH,), (rows, WIDTH)))
    return x, weight.requires_grad_(), bias.requires_grad_(), target


def walked(loss: Callable[..., torch.Tensor]) -> dict[str, str]:
    handed: dict[str, list[Any]] = {}  # of stages that run for the forward and for the backward graph, both
    told = dynacompile.explain(loss, backward=True, observer=lambda stage, result: handed.setdefault(stage, []).append(result))(*tensors(ROWS))
    torch.testing.assert_close(told.result, loss(*tensors(ROWS)))
    captured, pair, sources = handed["capture"][0], handed["differentiate"][0], handed["generate"][0]
    joint = trace_joint(captured.graph, [given.fake for given in captured.inputs], decomposition_table())
    forward, backward = handed["schedule"]
    compiled = dynacompile.compile(loss, isolate_recompiles=True, options={"fallback": "none"})
    compiled(*tensors(ROWS))
    return {
        "example": block(EXAMPLE, "python"),
        "bytecode": block(bytecode(loss)),
        "captured": block(captured.text().partition("\n  guard")[0]),
        "guards": block("\n".join(str(described(guard)) for guard in captured.guards)),
        "lookup_ns": f"{told.lookup_ns:.0f}",
        "joint": block(joint.graph.python_code("self").src, "python"),
        "forward": block(pair.forward.code, "python"),
        "backward": block(pair.backward.code, "python"),
        "loops": block(handed["lower"][0].text()),
        "schedule": block(forward.text()),
        "backward_schedule": block(backward.text()),
        "nests": str(sum(isinstance(step, Nest) for step in handed["lower"][0].steps)),
        "kernels": str(sum(kernel.call is None for kernel in forward.kernels.values())),
        "peak": f"{told.peak():,}",
        "unfused_peak": f"{told.peak('unfused_peak'):,}",
        "sources": block(sources.text(), "cpp"),
        "programs": block("\n".join(programs(handed["link"]))),
        "residual": block(dynacompile.decompile(compiled), "python"),
        "calls": block("\n".join(calls(compiled))),
        "seconds": block("\n".join(f"{stage.stage:<14} {stage.seconds:.3f}" for stage in told.stages)),
    }


def block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```"


def bytecode(function: Callable[..., Any]) -> str:
    text = io.StringIO()
    dis.dis(function, file=text)
    return text.getvalue()


def programs(linked: Iterable[Any]) -> list[str]:
    lines = []
    for name, program in zip(("forward", "backward"), linked):
        facts = program.facts
        lines.append(f"{name}: {facts['launches']} launches of kernels, {facts['externs']} calls of the library, {facts['bytes']:,} bytes read and written")
    return lines


def calls(compiled: Callable[..., torch.Tensor]) -> list[str]:
    """What the log says of calls with three numbers of rows."""
    lines = []
    for rows in (ROWS, ROWS // 2, 96):
        events: list[Event] = []
        end = dynacompile.subscribe(events.append)
        compiled(*tensors(rows))
        end()
        told = [line(event) for event in events if isinstance(event, Recompiled)]
        lines += [f"{rows} rows: {'a recompile' if told else 'an entry serves it'}", *told]
    return lines


if __name__ == "__main__":
    print(filled(PAGE.read_text()))
