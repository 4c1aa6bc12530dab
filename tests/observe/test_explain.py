"""explain(): what one call made the compiler do, as data, as text, and as the stages' hand-offs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import dynacompile
from dynacompile import __main__ as command
from dynacompile.ir.captured import Captured
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.schedule import Module, Schedule, Sources
from dynacompile.recipes import examples

PROGRAM = """
import torch

def broken(x):
    y = x.sin() + 1
    print("between")
    return y * 2

class Scale(torch.nn.Module):
    def forward(self, x, by):
        return x * by

scale = Scale()
half = 0.5

def example():
    return scale, torch.ones(2, 3, requires_grad=True), 2.0
"""


def half(x):
    return torch.softmax(x * 0.5, -1)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A user's module of that text, importable from the current folder."""
    (tmp_path / "explained_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "explained_program"
    sys.modules.pop("explained_program", None)


def test_counts_of_a_forward_call():
    told = dynacompile.explain(half)(torch.randn(4, 8))
    assert (told.graph_count, told.ops, told.kernels, len(told.breaks)) == (1, 2, 1, 0)
    assert told.guards > 0 and told.seconds > 0
    assert torch.is_tensor(told.result)


def test_backward_is_linked_on_demand():
    x = torch.randn(4, 8, requires_grad=True)
    told = dynacompile.explain(half)(x)
    assert (told.kernels, told.fact("link", "launches")) == (2, 1) and x.grad is None
    told = dynacompile.explain(half, backward=True)(x)
    assert (told.kernels, told.fact("link", "launches")) == (2, 2)
    torch.testing.assert_close(x.grad, torch.zeros(4, 8))  # the sum of a softmax is constant


def test_the_observer_gets_every_hand_off_and_nothing_afterwards():
    seen = []
    x = torch.randn(4, 8, requires_grad=True)
    dynacompile.explain(half, backward=True, observer=lambda stage, result: seen.append((stage, type(result))))(x)
    types = {"capture": Captured, "differentiate": ForwardBackward, "lower": LoopProgram, "schedule": Schedule, "generate": Sources, "build": Module}
    assert {stage: kind for stage, kind in seen if stage in types} == types
    assert [stage for stage, _ in seen if stage in ("capture", "differentiate", "lower")] == ["capture", "differentiate", "lower", "lower"]
    before = len(seen)
    dynacompile.compile(half, isolate_recompiles=True, options={"fallback": "none"})(x)
    assert len(seen) == before


def explain(*arguments: str) -> None:
    command.main(["explain", *arguments])


def test_the_command_tells_of_a_break_guards_kernels_and_memory(program, capsys):
    explain(f"{program}:broken", "torch.randn(3)")
    told = capsys.readouterr().out
    assert "2 graphs" in told and "1 break, " in told and "explained_program.py:6 in broken" in told
    assert 'explained_program.py:6: print("between")' in told and "kernel sin_add: 24 bytes, of sin, add, at" in told
    assert "TENSOR_MATCH x: Tensor, torch.float32, cpu, sizes [3]" in told and "bytes at the peak of memory" in told
    assert "seconds by stage: capture" in told


@pytest.mark.parametrize("target", ["explained_program.py", "./explained_program.py", "explained_program"], ids=["file", "path", "module"])
@pytest.mark.parametrize(
    "arguments", [["torch.ones(2, 3)", "2.0"], ["torch.ones(2, 3), 2.0"], ["torch.ones(2, 3)", "by=half"]], ids=["apart", "together", "by-name"]
)
def test_the_command_takes_files_modules_and_arguments(program, capsys, target, arguments):
    explain(f"{target}:Scale()", *arguments)
    assert "1 graph, 1 op, 0 breaks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "shown, expected",
    [
        ("captured", "captured "),
        ("guards", "TENSOR_MATCH x: Tensor"),
        ("forward", "def forward(self"),
        ("backward", "def forward(self"),
        ("loops", "program "),
        ("schedule", "schedule on cpu"),
        ("sources", 'extern "C"'),
    ],
)
def test_the_command_shows_what_a_stage_handed_on(program, capsys, shown, expected):
    explain(f"{program}:example", "--show", shown)
    told = capsys.readouterr().out
    assert told.count(f"--- {shown}\n") == (2 if shown in ("loops", "schedule", "sources") else 1)
    assert expected in told.partition(f"--- {shown}\n")[2]


def test_the_command_without_backward(program, capsys):
    explain(f"{program}:example", "--show", "loops", "--forward-only")
    told = capsys.readouterr().out
    assert told.count("--- loops") == 2, "the backward graph is scheduled with the forward's"
    assert "2 kernel launches" in told


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["explained_program"], "write module:function or file.py:function"),
        (["explaind_program:broken"], "no module 'explaind_program' .*did you mean 'explained_program'"),
        (["nowhere.py:broken"], "no file nowhere.py"),
        (["torn.py:f"], "importing torn.py raises SyntaxError"),
        (["explained_program:brokn", "1"], "no 'brokn': did you mean 'broken'"),
        (["explained_program:Scale", "1"], r"is a class.* write explained_program:Scale\(...\)"),
        (["explained_program:half", "1"], "is a float, no function"),
        (["explained_program:broken"], r"broken\(x\) does not fit its 0 arguments: missing a required argument: 'x'"),
        (["explained_program:broken", "1", "2"], "does not fit its 2 arguments: too many positional"),
        (["explained_program:broken", "torch.ones(3"], r"the argument 'torch.ones\(3' is no Python"),
        (["explained_program:broken", "torch.onse(3)"], r"the argument 'torch.onse\(3\)' raises AttributeError"),
        (["explained_program:broken", "x"], "the argument 'x': there is no 'x'"),
        (["explained_program:broken", "3"], "the call of explained_program:broken raises AttributeError: 'int' object has no attribute 'sin'"),
    ],
)
def test_the_command_names_what_is_wrong(program, tmp_path, arguments, said):
    (tmp_path / "torn.py").write_text("def f(:\n")
    with pytest.raises(SystemExit, match=f"^error: .*{said}"):
        explain(*arguments)


@pytest.mark.parametrize("recipe", [examples.gpt, examples.mlp, examples.conv], ids=["gpt", "mlp", "conv"])
def test_every_recipe_is_one_graph(recipe):
    function, *inputs = recipe()
    told = dynacompile.explain(function, backend="eager")(*inputs)
    assert (told.graph_count, len(told.breaks)) == (1, 0), str(told)


def test_who_reads_only_the_beginning_sees_no_error(program):
    command = [sys.executable, "-m", "dynacompile", "explain", f"{program}:scale", "torch.randn(3)", "2.0"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    os.close(writer)
    assert "Broken pipe" not in done.stderr and done.returncode == 0
