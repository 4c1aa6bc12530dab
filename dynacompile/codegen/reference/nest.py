"""One nest: every value of its body is a tensor over (a broadcastable part of) the iteration space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynacompile.codegen.reference.scans import scan
from dynacompile.ir.index import Index, Symbol, Var, evaluated
from dynacompile.ir.loops import Access, Nest, Op
from dynacompile.ir.schedule import Kernel, Member
from dynacompile.ir.sizes import real_of
from dynacompile.ops.scalars import SCALARS


def run_kernel(kernel: Kernel | Member, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
    """Runs a kernel; `tensors`: one flat tensor per param, from its memory's element 0 on; `sizes`: its symbols' values.
    Stores are made in place."""
    if isinstance(kernel, Member):
        sizes = (*kernel.sizes, *sizes)
        kernel = kernel.kernel
    symbols = (*(kernel.own or ()), *kernel.symbols)
    memory, values = {p.name: t for p, t in zip(kernel.params, tensors, strict=True)}, dict(zip(symbols, sizes, strict=True))
    if kernel.call is not None:
        kernel.call.run(memory, values)
    else:
        run_nest(kernel.nest, memory, values)


def run_nest(nest: Nest, buffers: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int] | None = None) -> None:
    """Runs a nest; `buffers`: flat tensors by the names that its accesses use; `sizes`: its symbols' values. Stores are made in place."""
    stored = nest.stores()
    device = buffers[stored[0].buffer].device if stored else torch.device("cpu")
    rank = len(nest.axes)
    values: list[torch.Tensor] = []
    grid = Grid(values)
    known = {s: real_of(n) if s.real else n for s, n in (sizes or {}).items()}
    grid.update(known)
    space = [evaluated(a.size, known) for a in nest.axes]
    for position, axis in enumerate(nest.axes):
        shape = [1] * rank
        shape[position] = space[position]
        grid[axis.var] = torch.arange(space[position], device=device).reshape(shape)
    reduced = [i for i, a in enumerate(nest.axes) if a.role == "r"]
    for op in nest.body:
        values.append(run_op(op, values, grid, buffers, space, reduced, device))


class Grid(dict):
    """Loop variables as ranges over their axes; variables named %7 are values of the body."""

    def __init__(self, values: list[torch.Tensor]):
        self.values_of_body = values

    def __missing__(self, variable: Var) -> torch.Tensor:
        return self.values_of_body[int(variable.name[1:])]


def run_op(
    op: Op,
    values: list[torch.Tensor],
    grid: Mapping[Any, object],
    buffers: Mapping[str, torch.Tensor],
    space: list[int],
    reduced: list[int],
    device: torch.device,
) -> torch.Tensor:
    args = [values[a] for a in op.args]
    match op.name:
        case "load":
            return load(op, op.attr, values, grid, buffers[op.attr.buffer], len(space), device)
        case "store":
            store(op.attr, args[0], values, grid, buffers[op.attr.buffer], space, reduced, device)
            return args[0]
        case "constant":
            return filled([1] * len(space), op.attr, op.dtype, device)
        case "given":
            return filled([1] * len(space), float(grid[op.attr]), op.dtype, device)  # type: ignore[arg-type]
        case "index":
            return as_index(op.attr, grid, len(space), device).to(op.dtype)
        case "reduce":
            shape = [n if i in reduced else args[0].shape[i] for i, n in enumerate(space)]
            return reduce(str(op.attr), args[0].expand(shape), reduced)
        case "scan":
            shape = [n if i in reduced else max(a.shape[i] for a in args) for i, n in enumerate(space)]
            return scan(op.attr, [a.expand(shape) for a in args], reduced)
        case "product":
            return product(args[0], args[1], space, reduced)
        case "cast":
            return args[0].to(op.dtype)
        case "require":
            if not args[1].all():
                raise RuntimeError("a value is not what its operation takes")
            return args[0]
        case _:
            return SCALARS[op.name].run(*args)


def as_index(index: Index, grid: Mapping[Any, object], rank: int, device: torch.device) -> torch.Tensor:
    value = index.evaluate(grid)
    return value.to(torch.int64) if isinstance(value, torch.Tensor) else torch.full([1] * rank, value, device=device)


def load(op: Op, access: Access, values: list[torch.Tensor], grid: Mapping[Any, object], memory: torch.Tensor, rank: int, device: torch.device) -> torch.Tensor:
    index = as_index(access.index, grid, rank, device)
    memory = memory.to(device)  # a number of the CPU
    memory = memory.float() if memory.dtype.itemsize == 1 and memory.is_floating_point() else memory  # torch picks no elements of 8-bit floats
    if access.mask is None:
        return memory.take(index).to(op.dtype)  # not memory[index], which shares memory where the index is one number
    mask = values[access.mask]
    if memory.numel() == 0:
        return filled(mask.shape, access.other, op.dtype, device)
    found = memory.take(torch.where(mask, index, 0)).to(op.dtype)
    return torch.where(mask, found, filled((), access.other, op.dtype, device))


def filled(shape: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one number. A float beyond the dtype's range is infinite, as in kernels; torch.full refuses it."""
    if isinstance(value, float) and dtype.is_floating_point:
        return torch.full(shape, value, dtype=torch.float64, device=device).to(dtype)
    return torch.full(shape, value, dtype=dtype, device=device)


def store(
    access: Access,
    value: torch.Tensor,
    values: list[torch.Tensor],
    grid: Mapping[Any, object],
    memory: torch.Tensor,
    space: list[int],
    reduced: list[int],
    device: torch.device,
) -> None:
    index = as_index(access.index, grid, len(space), device)
    level = access.added or any(index.shape[i] != 1 or value.shape[i] != 1 for i in reduced)
    shape = [1 if i in reduced and not level else n for i, n in enumerate(space)]
    index, value = index.expand(shape).reshape(-1), value.expand(shape).reshape(-1).to(memory.dtype)
    if access.mask is not None:
        chosen = values[access.mask].expand(shape).reshape(-1)
        index, value = index[chosen], value[chosen]
    if access.added:
        memory.index_add_(0, index, value)
        return
    if access.summed:
        value = torch.zeros_like(memory).index_add_(0, index, value)[index]
    memory[index] = value


def product(a: torch.Tensor, b: torch.Tensor, space: list[int], reduced: list[int]) -> torch.Tensor:
    """Of operands that share no x axis but those of a batch, without a tensor over the whole space."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(space)]

    def named(t: torch.Tensor) -> tuple[torch.Tensor, str]:
        kept = [i for i in range(len(space)) if t.shape[i] > 1 or i in reduced]
        return t.expand([n if i in reduced else t.shape[i] for i, n in enumerate(space)]).squeeze([i for i in range(len(space)) if i not in kept]), "".join(
            letters[i] for i in kept
        )

    (left, first), (right, second) = named(a), named(b)
    rest = "".join(c for i, c in enumerate(letters) if i not in reduced and (c in first or c in second))
    found = torch.einsum(f"{first},{second}->{rest}", left, right)
    return found.reshape([1 if i in reduced or letters[i] not in rest else n for i, n in enumerate(space)])


def reduce(kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    match kind:
        case "sum":
            return value.sum(dims, keepdim=True).to(value.dtype)
        case "prod":
            for d in dims:
                value = value.prod(d, keepdim=True).to(value.dtype)
            return value
        case "max":
            return value.amax(dims, keepdim=True)
        case "min":
            return value.amin(dims, keepdim=True)
        case "any":
            return value.any(dim=tuple(dims), keepdim=True) if dims else value
        case "all":
            return value.all(dim=tuple(dims), keepdim=True) if dims else value
        case _:
            return first_position(kind, value, dims)


def first_position(kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """The first winning position in the flattened reduced axes; NaN wins."""
    kept = [i for i in range(value.dim()) if i not in dims]
    shape = [1 if i in dims else n for i, n in enumerate(value.shape)]
    flat = value.permute([*kept, *dims]).reshape([value.shape[i] for i in kept] + [-1])
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    best = flat.amax(-1, keepdim=True) if kind == "argmax" else flat.amin(-1, keepdim=True)
    wins = flat == best
    if flat.dtype.is_floating_point:
        wins = torch.where(best.isnan(), flat.isnan(), wins)
    count = flat.shape[-1]
    position = torch.where(wins, torch.arange(count, device=flat.device), count).amin(-1)
    return position.reshape(shape)
