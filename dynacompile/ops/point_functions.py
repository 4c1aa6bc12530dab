"""Functions of one score and its place, as text: straight lines of ATen's operations on numbers without dimensions.

An operator takes such a function as an argument, so that graphs, programs and the keys of caches hold all of it, and every run reads it alike:

    v0 = aten.sub.Tensor(q, k)
    v1 = aten.index.Tensor(r0, [h, v0])
    v2 = aten.add.Tensor(score, v1)
    return v2

Names that no line defines are the function's inputs: `score` (and `grad`, in a derivative), the place `b`, `h`, `q`, `k`, tensors `r0`, `r1`, ... and numbers
`n0`, `n1`, ... that vary from call to call. `here` is the device. A line `add(r0, [h, v0], v3)` says that v3 belongs to the gradient of r0 at these indices.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from dynacompile.private import of_torch

PLACE = ("b", "h", "q", "k")
NUMBERS = {"inf": float("inf"), "nan": float("nan")}
KINDS = (torch.dtype, torch.layout, torch.memory_format)


class Name(str):
    """A value of the function."""


@dataclass(frozen=True)
class Line:
    name: Name
    op: of_torch.OpOverload
    args: tuple
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Addition:
    """`value` is added to the gradient of the tensor `of` at `indices`, one for each of its dimensions."""

    of: Name
    indices: tuple[Name, ...]
    value: Name


@dataclass(frozen=True)
class PointFunction:
    lines: tuple[Line, ...]
    additions: tuple[Addition, ...]
    result: Name

    def run(self, given: Mapping[str, Any], device: torch.device) -> tuple[Any, list[tuple[str, list[Any], Any]]]:
        """The result, and the additions: name, indices, value. given: by name; all tensors that are no numbers' homes broadcast against each other."""
        values: dict[str, Any] = {**given, "here": device}
        for line in self.lines:
            made = line.op(*filled(line.args, values), **{key: filled(value, values) for key, value in line.kwargs.items()})
            values[line.name] = spread(made)
        return values[self.result], [(a.of, [values[i] for i in a.indices], values[a.value]) for a in self.additions]


def spread(made: torch.Tensor) -> torch.Tensor:
    """A number that is the same for all points as a tensor with their dimensions: it takes part in promotion as theirs do."""
    return made.reshape(1, 1, 1, 1) if made.dim() == 0 else made


def filled(arg: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(arg, Name):
        return values[arg]
    return [filled(a, values) for a in arg] if isinstance(arg, list) else tuple(filled(a, values) for a in arg) if isinstance(arg, tuple) else arg


# To text


@dataclass
class Writer:
    """names: of the graph's inputs. numbers: those that vary from call to call, which the caller has to pass on in this order."""

    names: dict[torch.fx.Node, str]
    numbers: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def line(self, node: torch.fx.Node) -> None:
        given = [self.argument(a) for a in node.args] + [f"{key}={self.argument(a)}" for key, a in node.kwargs.items()]
        name = self.names[node] = f"v{sum(not line.startswith('add(') for line in self.lines)}"
        self.lines.append(f"{name} = {node.target}({', '.join(given)})")

    def add(self, of: torch.fx.Node, indices: Sequence[torch.fx.Node], value: torch.fx.Node) -> None:
        self.lines.append(f"add({self.names[of]}, [{', '.join(self.names[i] for i in indices)}], {self.names[value]})")

    def text(self, result: torch.fx.Node) -> str:
        return "\n".join([*self.lines, f"return {self.names[result]}"])

    def argument(self, arg: Any) -> str:
        if isinstance(arg, torch.fx.Node):
            return self.names[arg]
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(self.argument, arg))}]"
        if isinstance(arg, (torch.SymInt, torch.SymFloat)):
            return self.number(arg)
        if isinstance(arg, torch.device):
            return "here"
        return str(arg) if isinstance(arg, KINDS) else repr(arg)

    def number(self, value: torch.SymInt | torch.SymFloat) -> str:
        known = [n.node.expr for n in self.numbers]
        if value.node.expr not in known:
            self.numbers.append(value)
            known.append(value.node.expr)
        return f"n{known.index(value.node.expr)}"


# From text


def parsed(text: str) -> PointFunction:
    lines: list[Line] = []
    additions: list[Addition] = []
    result = None
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                kwargs = {str(k.arg): value_of(k.value) for k in call.keywords}
                lines.append(Line(Name(name), operator_of(call.func), tuple(map(value_of, call.args)), kwargs))
            case ast.Expr(value=ast.Call(args=[of, ast.List(elts=indices), value])):
                additions.append(Addition(value_of(of), tuple(map(value_of, indices)), value_of(value)))
            case ast.Return(value=ast.Name(id=name)):
                result = Name(name)
            case _:
                raise ValueError(f"no line of a function of points: {ast.unparse(statement)}")
    assert result is not None
    return PointFunction(tuple(lines), tuple(additions), result)


def value_of(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return NUMBERS.get(name, Name(name))
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand)
        case ast.List(elts=elements):
            return [value_of(e) for e in elements]
        case ast.Attribute(attr=name):
            found = getattr(torch, name)
            if isinstance(found, KINDS):
                return found
    raise ValueError(f"no argument of a function of points: {ast.unparse(node)}")


def operator_of(node: ast.expr) -> of_torch.OpOverload:
    namespace, name, overload = ast.unparse(node).split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    assert isinstance(found, of_torch.OpOverload)
    return found
