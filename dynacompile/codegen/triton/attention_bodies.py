"""The functions of an attention kernel's points as device functions over tiles of scores, which have queries along m and keys along n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import indent

import torch

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.codegen.triton.indexing import Dim, needs_int64
from dynacompile.codegen.triton.tiles import Tiling
from dynacompile.codegen.triton.values import Values
from dynacompile.ir.loops import GRADIENT, POINT_BUFFERS, RESULT, SCORE, Access, Nest, Op
from dynacompile.ir.normal import logistic, normal
from dynacompile.ir.schedule import Kernel, Param
from dynacompile.ir.sizes import symbols_in

OF_POINTS = {SCORE: "score", GRADIENT: "grad"}
OWN = frozenset((*OF_POINTS.values(), "visible", "b", "h", "m", "n", "mmask", "nmask"))


def device_function(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return f"@triton.jit\ndef {name}({', '.join(parameters)}):\n{indent(chr(10).join(lines), '    ')}"


class BodyFunction:
    """One function. dims: of a tile, its rows first ("m" or "n"). masked: those that tiles do not divide. pointers: by the names of the kernel's params.
    fast: results have 16 bits, for which fewer instructions do."""

    def __init__(self, entry: str, role: str, nest: Nest, kernel: Kernel, pointers: Mapping[str, str], dims: str, masked: frozenset[str], fast: bool):
        nest = logistic(normal(nest)) if fast else nest
        axes = {a.var.name: a for a in nest.axes}
        rows, columns = (Dim(d, (axes[d],)) for d in dims)
        outer = tuple(Dim(d, (axes[d],)) for d in "bh")
        self.name, self.nest, self.dims, self.masked = f"{entry}_{role}", nest, dims, masked
        tiling = Tiling((rows, columns), False, (), (), masked, False, outer=outer)
        params = (*kernel.params, *(Param(name, torch.float32, "in") for name in POINT_BUFFERS))
        self.values = Values(replace(kernel, nest=nest, params=params, call=None), tiling)
        self.values.indexer.lane = None
        self.values.taken |= OWN
        self.values.fast = fast
        used = [a.buffer for a in (*nest.loads(), *nest.stores()) if a.buffer not in POINT_BUFFERS]
        self.pointers = [pointers[p] for p in dict.fromkeys(used)]
        self.values.pointers = dict(pointers)
        tested = [v.size for a in (*nest.loads(), *nest.stores()) for v in a.index.variables()]
        self.symbols = sorted({s.name for s in (*nest.symbols(), *symbols_in(tested))})
        self.additions = [i for i, op in enumerate(nest.body) if op.name == "store" and op.attr.added]
        self.head = widened(nest)
        self.lines, self.result = self.rendered()

    def rendered(self) -> tuple[list[str], str]:
        """The lines that compute the result, and it, as a tile."""
        values, lines, result = self.values, [], ""  # type: Values, list[str], str
        for i, op in enumerate(self.nest.body):
            buffer = op.attr.buffer if isinstance(op.attr, Access) else ""
            if buffer in OF_POINTS:
                values.names[i], values.shapes[i] = OF_POINTS[buffer], frozenset(self.dims)
            elif buffer == RESULT:
                result = values.tile(op.args[0], values.argument(op.args[0]))
            elif i not in self.additions:
                lines += values.op(i, op)
        return lines, result

    def begin(self) -> list[str]:
        return [*self.head, *(f"{name} = tl.full((), {text}, {scalars.value(dtype)})" for (text, dtype), name in self.values.constants.items())]

    @property
    def masks(self) -> list[str]:
        return [f"{d}mask" for d in "mn" if d in self.masked]

    @property
    def has(self) -> tuple[bool, bool]:
        """Whether it takes a score, and a gradient."""
        loaded = {a.buffer for a in self.nest.loads()}
        return SCORE in loaded, GRADIENT in loaded

    def parameters(self) -> list[str]:
        own = [name for name, taken in zip(OF_POINTS.values(), self.has, strict=True) if taken]
        return [*own, "b", "h", "m", "n", *self.masks, *self.pointers, *self.symbols, *(f"{d.upper()}BLOCK" for d in "mn")]

    def text(self) -> str:
        parameters = [f"{p}: tl.constexpr" if p in ("MBLOCK", "NBLOCK") else p for p in self.parameters()]
        return device_function(self.name, parameters, [*self.begin(), *self.lines, f"return {self.result}"])

    def call(self, score: str = "score") -> str:
        """With all it takes under the names that it has in the kernel, but for the score."""
        return f"{self.name}({', '.join(score if p == 'score' else p for p in self.parameters())})"


def widened(nest: Nest) -> list[str]:
    """The places that addresses need with 64 bits."""
    accesses = [a for a in (*nest.loads(), *nest.stores()) if a.buffer not in POINT_BUFFERS]
    outer = {a.var: 0 for a in nest.axes if a.var.name in "bh"}
    wide = ["b", "h"] if any(needs_int64(a.index) for a in accesses) else []
    wide += ["m", "n"] if any(needs_int64(a.index.subs(outer)) for a in accesses) else []
    return [f"{name} = {name}.to(tl.int64)" for name in wide]


class Derivative(BodyFunction):
    """The derivative of the function of scores, and what it adds to the gradients of what that reads: at places that vary with the keys at once, by atomic
    additions; else to sums that the kernel keeps until it has been through all keys."""

    def sums(self) -> dict[int, str]:
        """By op: the names of the sums that the kernel keeps."""
        return {i: f"sum{k}" for k, i in enumerate(i for i in self.additions if "n" not in self.place(self.nest.body[i])[1])}

    def place(self, op: Op) -> tuple[str, frozenset[str]]:
        common, lane, dims = self.values.indexer.address(op.attr.index)  # type: ignore[union-attr]
        return self.values.address(op.attr.buffer, common, lane), dims & {"m", "n"}  # type: ignore[union-attr]

    def begin_sums(self) -> list[str]:
        return [f"{name} = tl.zeros({self.shape(i)}, tl.float32)" for i, name in self.sums().items()]

    def shape(self, i: int) -> str:
        """Of a sum that is kept."""
        return f"[{'MBLOCK' if 'm' in self.place(self.nest.body[i])[1] else '1'}, 1]"

    def value(self, op: Op) -> str:
        """What is added at all points of a tile."""
        text = self.values.tile(op.args[0], self.values.argument(op.args[0]))
        return f"tl.where(visible, {text}, 0.0)"

    def added(self, i: int) -> list[str]:
        op = self.nest.body[i]
        pointer, dims = self.place(op)
        value = self.value(op)
        if i in self.sums():
            summed = f"tl.sum({value}, 1)[:, None]"
            return [f"{self.sums()[i]} += {summed}" if "m" in dims else f"{self.sums()[i]} += tl.sum({summed}, 0)[:, None]"]
        checks = [f"require({inside} | (visible == 0))" for inside in self.values.inside(op.attr)]  # type: ignore[arg-type]
        if "m" in dims:
            pointer, value, mask = f"tl.broadcast_to({pointer}, [MBLOCK, NBLOCK])", value, "visible"
        else:
            value, mask = f"tl.sum({value}, 0)[None, :]", "nmask" if "n" in self.masked else ""
        return [*checks, f'tl.atomic_add({pointer}, {value}{f", mask={mask}" if mask else ""}, sem="relaxed")']

    def parameters(self) -> list[str]:
        return [*super().parameters(), *(["visible"] if self.additions else []), *self.sums().values()]

    def text(self) -> str:
        added = [line for i in self.additions for line in self.added(i)]
        parameters = [f"{p}: tl.constexpr" if p in ("MBLOCK", "NBLOCK") else p for p in self.parameters()]
        results = ", ".join([self.result, *self.sums().values()])
        return device_function(self.name, parameters, [*self.begin(), *self.lines, *added, f"return {results}"])

    def finish(self) -> str:
        """The function that adds the sums to memory; "" where there are none."""
        if not self.sums():
            return ""
        needed = self.needed()
        lines = [line for i, op in enumerate(self.nest.body) if i in needed for line in self.values.op(i, op)]
        for i, name in self.sums().items():
            op = self.nest.body[i]
            pointer, dims = self.place(op)
            cut = "m" in dims and "m" in self.masked
            mask, otherwise = (", mask=mmask", " | (mmask == 0)") if cut else ("", "")
            lines += [f"require({inside}{otherwise})" for inside in self.values.inside(op.attr)]  # type: ignore[arg-type]
            lines.append(f'tl.atomic_add({pointer} + tl.zeros({self.shape(i)}, tl.int32), {name}{mask}, sem="relaxed")')
        lines = [*self.begin(), *lines]
        return device_function(f"{self.name}_finish", [p if p not in ("MBLOCK", "NBLOCK") else f"{p}: tl.constexpr" for p in self.finish_parameters()], lines)

    def finish_parameters(self) -> list[str]:
        masks = ["mmask"] if "m" in self.masked else []
        return [*self.sums().values(), "b", "h", "m", *masks, *self.pointers, *self.symbols, "MBLOCK", "NBLOCK"]

    def needed(self) -> set[int]:
        """The ops that the places of the sums need, none of which varies with the keys."""
        found: set[int] = set()
        pending = [int(v.name[1:]) for i in self.sums() for v in self.nest.body[i].attr.index.variables() if v.name[0] == "%"]
        while pending:
            i = pending.pop()
            if i not in found:
                found.add(i)
                op = self.nest.body[i]
                pending += op.args
                index = op.attr.index if isinstance(op.attr, Access) else op.attr if op.name == "index" else None
                if isinstance(op.attr, Access) and op.attr.mask is not None:
                    pending.append(op.attr.mask)
                pending += [int(v.name[1:]) for v in index.variables() if v.name[0] == "%"] if index is not None else []
        return found
