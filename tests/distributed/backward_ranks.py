"""Run by test_placed.py in two processes of gloo: what becomes of DTensors around a compiled call, as in eager. Prints the name of each case that held."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import dynacompile
from tests.distributed.models import batch
from tests.distributed.placed_ranks import shown, whole
from tests.distributed.ranks import DEVICE, run_cases
from tests.distributed.sharded_ranks import mesh

ROWS, WIDTH = 4, 6


def placed(seed: int, where: Any, requires_grad: bool = False) -> Any:
    return distribute_tensor(batch(seed, ROWS, WIDTH), mesh(), [where]).requires_grad_(requires_grad)


def both(function: Callable[..., Any], run: Callable[[Callable[..., Any]], Any]) -> None:
    """What `run` sees of a function, compiled and not, is the same."""
    wanted, found = run(function), run(dynacompile.compile(function))
    assert found == wanted, f"{found}\n{wanted}"


def raises(call: Callable[[], Any], text: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing says {text}")


def written_before_the_backward() -> None:
    """An operand or a result that the backward reads."""

    def operand(call: Callable[..., Any]) -> None:
        x, y = placed(1, Shard(0), True), placed(2, Shard(0))
        made = call(x, y)
        y.mul_(2)
        raises(made.sum().backward, "modified by an inplace operation")

    def result(call: Callable[..., Any]) -> None:
        made = call(placed(1, Shard(0), True))
        with torch.no_grad():
            made.mul_(2)
        raises(made.sum().backward, "modified by an inplace operation")

    both(lambda x, y: x * y, operand)
    both(torch.exp, result)
    both(lambda x: torch.exp(x), result)


def differentiated_twice() -> None:
    x = placed(1, Shard(0), True)
    (grad,) = torch.autograd.grad(dynacompile.compile(lambda x: (x * x * x).sum())(x), x, create_graph=True)
    raises(grad.sum().backward, "double backward")


def modes_of_autograd() -> None:
    def run(call: Callable[..., Any]) -> Any:
        x, y = placed(1, Shard(0), True), placed(2, Replicate(), True)
        found = [shown(call(x, y))]
        with torch.no_grad():
            found.append(shown(call(x, y)))
        with torch.inference_mode():
            found += [shown(call(x, y)), shown(call(placed(1, Shard(0)), placed(2, Replicate())))]
        return found

    def turned_on(x: Any, y: Any) -> Any:
        with torch.enable_grad():
            return x * y

    both(lambda x, y: x * y + 1, run)
    both(turned_on, run)


def gradients_of_any_placement() -> None:
    """They have eager's values; see docs/distributed.md for their placements."""
    for where in (Shard(0), Shard(1), Replicate(), Partial()):

        def run(call: Callable[..., Any], where: Any = where) -> Any:
            x = placed(1, Shard(0), True)
            grad = placed(7, where) if not where.is_partial() else DTensor.from_local(batch(dist.get_rank(), ROWS, WIDTH), mesh(), [where])
            call(x).backward(grad)
            return shown(whole(x.grad))

        both(lambda x: x * 3, run)


def gradients_placed_otherwise() -> None:
    """Between two graphs a gradient has the placements of the tensor that it is for, so that those of the first graph's inputs differ from eager's."""

    def run(call: Callable[..., Any]) -> tuple[Any, Any]:
        x, y = placed(1, Shard(1), True), placed(2, Replicate(), True)
        first, second = call(x, y)
        (first.full_tensor().sum() + second.full_tensor().sum()).backward()
        return y.grad.placements, shown(whole(y.grad))

    def in_one_graph(x: Any, y: Any) -> Any:
        made = y + 1
        return made, x + made

    def in_two(x: Any, y: Any) -> Any:
        made = y + 1
        dynacompile.graph_break()
        return made, x + made

    both(in_one_graph, run)
    (wanted, values), (found, same_values) = run(in_two), run(dynacompile.compile(in_two))
    assert (wanted, found) == ((Shard(1),), (Replicate(),)), f"{found}, eager's {wanted}"
    assert same_values == values, f"{same_values}\n{values}"


def one_memory() -> None:
    """A local tensor beside its DTensor, and two DTensors over one memory, of which one is written."""

    def run(call: Callable[..., Any]) -> Any:
        found = []
        for part in (lambda x: x._local_tensor, lambda x: x.to_local(), lambda x: x._local_tensor[0], lambda x: x.detach()):
            x = placed(1, Shard(0))
            other = part(x)
            found += [shown(call(x, other)), shown(x), shown(other)]
        return found

    def writes_first(x: Any, other: Any) -> Any:
        x.add_(1)
        return other * 2

    def writes_second(x: Any, other: Any) -> Any:
        other.add_(1)
        return x * 2

    both(writes_first, run)
    both(writes_second, run)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", placed(1, Replicate()))
        self.weight = nn.Parameter(placed(2, Shard(1)))
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.seen.mul_(0.5).add_(x * 0.5)  # type: ignore[operator,union-attr]
        self.last = x * 2
        return (x * self.weight).sum() + self.seen.sum()  # type: ignore[operator,union-attr]


def buffers_and_attributes() -> None:
    def run(wrap: Callable[[nn.Module], Callable[..., Any]]) -> Any:
        module, found = Remembers(), []
        call = wrap(module)
        for k in range(3):
            made = call(placed(5 + k, Replicate()))
            made.full_tensor().backward()
            found += [shown(t) for t in (made, module.seen, module.weight.grad, module.last)]
        return found

    assert run(dynacompile.compile) == run(lambda module: module)


def hooks_and_computed_inputs() -> None:
    def run(call: Callable[..., Any]) -> Any:
        x, z, found = placed(1, Shard(0), True), batch(3, ROWS, WIDTH).requires_grad_(), []
        x.register_hook(lambda grad: found.append(shown(whole(grad))))
        x.register_post_accumulate_grad_hook(lambda t: found.append(shown(whole(t.grad))))
        made = call(x * 3, DTensor.from_local(z, mesh(), [Replicate()]))
        made.register_hook(lambda grad: found.append(shown(grad)))
        for _ in range(2):
            made.full_tensor().sum().backward(retain_graph=True)
        return [*found, shown(made), shown(z.grad)]

    both(lambda x, y: (x * 2).relu() + y, run)


def other_meshes() -> None:
    def run(call: Callable[..., Any]) -> Any:
        line, square = init_device_mesh(DEVICE, (2,), mesh_dim_names=("a",)), init_device_mesh(DEVICE, (1, 2), mesh_dim_names=("b", "c"))
        found = []
        for over, where in ((line, [Shard(0)]), (square, [Replicate(), Shard(0)]), (line, [Shard(0)])):
            made = call(distribute_tensor(batch(1), over, where))
            found += [shown(made), made.device_mesh.mesh_dim_names]
        return found

    both(lambda x: x * 2, run)


CASES = (
    written_before_the_backward,
    differentiated_twice,
    modes_of_autograd,
    gradients_of_any_placement,
    gradients_placed_otherwise,
    one_memory,
    buffers_and_attributes,
    hooks_and_computed_inputs,
    other_meshes,
)

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
