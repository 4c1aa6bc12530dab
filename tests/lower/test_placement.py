"""Numbers on the CPU in a program for a GPU: baked, computed there, or left to ATen. The fakes need no GPU."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from dynacompile.codegen.reference import run_program
from dynacompile.ir.loops import Extern, LoopProgram, Nest
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.lower.tracing import ENV

aten = torch.ops.aten
CPU = torch.device("cpu")


class Graph:
    """Builds an ATen graph whose fakes are computed from the ops."""

    def __init__(self):
        self.mode, self.graph, self.constants = FakeTensorMode(), torch.fx.Graph(), {}

    def input(self, *size, device="cuda:0", dtype=torch.float32):
        node = self.graph.placeholder(f"arg_{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(size, device=device, dtype=dtype)
        return node

    def number(self, value):
        name = f"number{len(self.constants)}"
        self.constants[name] = torch.tensor(value)
        node = self.graph.get_attr(name)
        node.meta["val"] = self.mode.from_tensor(self.constants[name])
        return node

    def call(self, op, *args):
        node = self.graph.call_function(op, args)
        with self.mode:
            node.meta["val"] = op(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    def lower(self, *outputs) -> LoopProgram:
        self.graph.output(outputs)
        return lower(torch.fx.GraphModule(self.constants, self.graph), ENV)


def run(program: LoopProgram, *inputs: torch.Tensor) -> list:
    """The program with everything on the CPU."""
    steps = tuple(replace(s, kwargs={**s.kwargs, "device": CPU}) if isinstance(s, Extern) and "device" in s.kwargs else s for s in program.steps)
    return run_program(replace(program, steps=steps, buffers={n: replace(b, device=CPU) for n, b in program.buffers.items()}), list(inputs))


def externs(program: LoopProgram) -> list[str]:
    return [str(s.op) for s in program.steps if isinstance(s, Extern)]


def nests_elsewhere(program: LoopProgram) -> list[str]:
    return [s.name for s in program.steps if isinstance(s, Nest) for a in s.stores() if program.buffers[a.buffer].device.type == "cpu"]


def test_known_numbers_are_baked():
    g = Graph()
    x = g.input(4, 5)
    seven = g.call(aten.lift_fresh_copy.default, g.number(7.0))
    double = g.call(aten.mul.Tensor, seven, 2)
    program = g.lower(g.call(aten.add.Tensor, x, double))
    assert [type(s) for s in program.steps] == [Nest] and not program.constants
    values = torch.randn(4, 5)
    assert torch.equal(run(program, values)[0], values + 14)


def test_unknown_numbers_are_read_where_they_are():
    g = Graph()
    x, s = g.input(4, 5), g.input(device="cpu", dtype=torch.float64)
    y = g.call(aten.mul.Tensor, x, s)
    program = g.lower(g.call(aten.sub.Tensor, s, y))
    assert not externs(program) and not nests_elsewhere(program)
    values, number = torch.randn(4, 5), torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(run(program, values, number)[0], number - values * number)


def test_numbers_are_computed_by_loops_on_the_cpu_and_larger_tensors_by_aten():
    g = Graph()
    x, s, v = g.input(4, 5), g.input(device="cpu"), g.input(3, 2, device="cpu")
    turned = g.call(aten.exp.default, g.call(aten.permute.default, v, [1, 0]))
    more = g.call(aten.add.Tensor, s, 1)
    program = g.lower(g.call(aten.relu.default, x), more, turned)
    assert nests_elsewhere(program) == [more.name] and externs(program) == ["aten.exp.default"]
    values, number, other = torch.randn(4, 5), torch.tensor(0.5), torch.randn(3, 2)
    for got, wanted in zip(run(program, values, number, other), (values.relu(), number + 1, other.T.exp()), strict=True):
        assert torch.equal(got, wanted)


def test_an_element_of_a_larger_tensor_of_the_cpu_is_made_a_number_first():
    g = Graph()
    x, v = g.input(4, 5), g.input(3, device="cpu")
    second = g.call(aten.select.int, v, 0, 1)
    program = g.lower(g.call(aten.mul.Tensor, x, second))
    assert not externs(program) and len(nests_elsewhere(program)) == 1
    values, other = torch.randn(4, 5), torch.randn(3)
    assert torch.equal(run(program, values, other)[0], values * other[1])


def test_a_number_is_copied_to_the_gpu_by_a_launch_and_back_by_aten():
    g = Graph()
    x, s = g.input(), g.input(device="cpu")
    there = g.graph.call_function(aten._to_copy.default, (s,), {"device": torch.device("cuda", 0)})
    back = g.graph.call_function(aten._to_copy.default, (x,), {"device": CPU})
    with g.mode:
        there.meta["val"], back.meta["val"] = torch.empty((), device="cuda:0"), torch.empty(())
    assert externs(g.lower(there, back)) == ["aten._to_copy.default"]


def test_what_the_cpu_computes_for_a_kernel_is_computed_there_once():
    """Not by each of the kernel's threads: the number is no part of the kernel's loop."""
    g = Graph()
    x, s = g.input(64, 64), g.input(device="cpu")
    program = g.lower(g.call(aten.mul.Tensor, x, g.call(aten.add.Tensor, s, 1)))
    plan = schedule(program, ENV)
    assert sorted(k.device.type for k in plan.kernels.values()) == ["cpu", "cuda"] and plan.host_arena
    assert [p.name for p in plan.steps if isinstance(p, Extern)] == []


def test_an_output_is_no_constant():
    g = Graph()
    x = g.input(4)
    program = g.lower(g.call(aten.relu.default, x), g.call(aten.lift_fresh_copy.default, g.number(7.0)))
    assert program.buffers[program.outputs[1]].kind == "temp"


def test_a_cpu_program_is_as_before():
    g = Graph()
    x, s = g.input(4, device="cpu"), g.input(device="cpu")
    program = g.lower(g.call(aten.mul.Tensor, x, s))
    assert [type(s) for s in program.steps] == [Nest]
