"""Run by test_placed.py in two processes of gloo: small programs over DTensors, compiled and in eager. Prints the name of each program that held.

A program is a function of two DTensors, of a plain tensor and of a list. Compared are results with their placements, which memory they share, gradients, what
was written, and which errors are raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

import dynacompile
from dynacompile import events
from tests.distributed.models import batch
from tests.distributed.ranks import DEVICE, run_cases
from tests.distributed.sharded_ranks import mesh

Program = Callable[[Any, Any, torch.Tensor, list], Any]
GRAD, WRITES, WHOLE = "grad", "writes", "whole"
PROGRAMS: dict[str, tuple[Program, frozenset[str], tuple[Any, ...]]] = {}
ROWS, WIDTH = 4, 6


def program(*how: str, at: tuple[Any, ...] = (Shard(0), Replicate())) -> Callable[[Program], Program]:
    """how: GRAD: inputs require gradients; WRITES: inputs are written; WHOLE: one graph. at: placements of the two DTensors."""

    def note(function: Program) -> Program:
        PROGRAMS[function.__name__] = function, frozenset(how), at
        return function

    return note


@program(GRAD, WHOLE)
def mixed_placements(x, y, z, kept):
    return x @ y.t(), (x * 2 + y).sum(0), x.to_local() * 2 + z[: len(x.to_local())]


@program(GRAD, WHOLE, at=(Shard(1), Shard(0)))
def yet_to_be_reduced(x, y, z, kept):
    made = x.sum(1)
    return made, made * 2, y.mean(), (x @ x.t())


@program(GRAD)
def of_a_partial(x, y, z, kept):
    part = DTensor.from_local(z, x.device_mesh, [Partial()])
    return part, part.redistribute(placements=[Shard(0)]) * x, part.full_tensor()


@program(WRITES, WHOLE)
def writes_all(x, y, z, kept):
    x.mul_(2)
    y += 1
    x.add_(y)
    return x * 2, x.to_local().sum()


@program(WRITES)
def writes_and_gives(x, y, z, kept):
    x.mul_(2)
    y[0] = 3
    return x, y, x + y


@program(WRITES)
def writes_by_local(x, y, z, kept):
    inside = x.to_local()
    inside.add_(1)
    return x * 2, inside


@program(WRITES)
def writes_by_from_local(x, y, z, kept):
    made = DTensor.from_local(z, x.device_mesh, [Replicate()])
    made.add_(1)
    return made * 2, z + 1


@program(WRITES)
def shares_memory(x, y, z, kept):
    return x.view(-1), y.t(), y.detach(), DTensor.from_local(z, y.device_mesh, [Replicate()]), y.to_local()


@program(GRAD)
def shares_memory_with_gradients(x, y, z, kept):
    return x.view(-1), y.t(), y.detach(), y.to_local()


@program()
def same_twice(x, y, z, kept):
    made = x + y
    kept.append(made)
    return made, made, x, made.view(-1)


@program(GRAD, WHOLE)
def no_gradient_inside(x, y, z, kept):
    with torch.no_grad():
        made = x * y
    return made + x, y.detach() * 2


@program(GRAD, WHOLE)
def all_detached(x, y, z, kept):
    """No result has a history, though the inputs require gradients."""
    inside = DTensor.from_local(z, x.device_mesh, [Partial()])
    return x.detach() + 1, (y * 2).detach() * 3, inside.detach() * 2, (x * inside).to_local().detach()


@program(GRAD, WHOLE)
def inside_without_history(x, y, z, kept):
    return (DTensor.from_local(z, y.device_mesh, [Replicate()]) + y).detach().to_local() + 1, z.detach() * 2


@program(GRAD, WHOLE)
def in_lower_precision(x, y, z, kept):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return F.linear(x, y), (x @ y.t()).float().sum()


@program(GRAD, WHOLE)
def normalized(x, y, z, kept):
    return F.layer_norm(x, (WIDTH,)), F.softmax(y, -1), F.gelu(x).sum(-1, keepdim=True), F.rms_norm(y, (WIDTH,))


@program(GRAD)
def asked(x, y, z, kept):
    where = x.placements[0]
    size = x.shape[0] + y.size(1) + x.device_mesh.size() + x.ndim + x.numel()
    return x * size if where.is_shard(0) else x, y.redistribute(x.device_mesh, [where]) if where == Shard(0) else y


@program()
def as_a_number(x, y, z, kept):
    total = x.sum().full_tensor().item()
    return y * total if total > 0 else y - total


@program(GRAD)
def printed(x, y, z, kept):
    made = x + y
    kept.append(str(made.placements))
    print(made.shape, file=sys.stderr)
    return made * 2


@program(GRAD)
def distributed_inside(x, y, z, kept):
    return distribute_tensor(z.detach(), x.device_mesh, [Shard(0)]) + x


@program()
def plain_beside(x, y, z, kept):
    return x + z[: len(x)]


@program(GRAD, WHOLE)
def joined(x, y, z, kept):
    a, b = y.chunk(2, dim=1)
    return torch.cat([a, b], 1) * x, torch.stack([y, y + 1]), y.unflatten(1, (2, 3)).transpose(0, 1).flatten(0, 1)


@program(GRAD)
def kept_by_a_hook(x, y, z, kept):
    made = x * 2
    made.register_hook(lambda grad: grad * 3)
    return made * y


@program(WRITES)
def made_inside(x, y, z, kept):
    made = torch.zeros_like(x)
    made.add_(x)
    made[:, 0].mul_(2)
    return made, torch.ones_like(y) + y, torch.full_like(x, 2)


@program(GRAD)
def dropped_out(x, y, z, kept):
    torch.manual_seed(3)
    return F.dropout(x, 0.5), F.dropout(y, 0.5)


@program(GRAD, WHOLE, at=(Shard(0), Shard(0)))
def lists(x, y, z, kept):
    made = torch._foreach_add([x, y], 1)
    return torch._foreach_mul(made, [y, x])


UNEVEN: dict[str, Program] = {name: PROGRAMS[name][0] for name in ("mixed_placements", "writes_all", "shares_memory", "normalized", "joined", "lists")}


def run(name: str, call: Program, how: frozenset[str], at: tuple[Any, ...], sizes: tuple[int, int]) -> list[Any]:
    """All that can be seen of two calls."""
    seen: list[Any] = []
    for k in range(2):
        x, y = (distribute_tensor(batch(10 * k + i, rows, WIDTH), mesh(), [where]) for i, (where, rows) in enumerate(zip(at, (sizes[0], sizes[0]))))
        z, kept = batch(10 * k + 5 + dist.get_rank(), *sizes), []
        if GRAD in how:
            x, y, z = (t.requires_grad_() for t in (x, y, z))
        try:
            made = call(x, y, z, kept)
        except Exception as error:  # noqa: BLE001  (errors are compared)
            seen.append(type(error))
            continue
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        seen += [shown(t) for t in (*made, *kept)]
        seen.append(shared([x, y, z, *made, *kept]))
        differentiable = [t for t in made if isinstance(t, torch.Tensor) and t.requires_grad]
        if differentiable:
            sum(whole(t).float().sum() for t in differentiable).backward()
            seen += [shown(t.grad) for t in (x, y, z)]
        elif WRITES in how:
            seen += [shown(t) for t in (x, y, z)]
            for number, t in enumerate(t for t in made if isinstance(t, torch.Tensor)):
                t.add_(number + 1) if not isinstance(t, DTensor) else t._local_tensor.add_(number + 1)
                seen += [shown(t) for t in (x, y, z, *made)]
    return seen


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shown(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    inside = value._local_tensor if isinstance(value, DTensor) else value
    where = (value.placements, value.shape, value.stride(), value.device_mesh) if isinstance(value, DTensor) else ()
    return type(value), where, value.dtype, inside.shape, inside.stride(), value.requires_grad, value.is_leaf, inside.detach().clone().double().tolist()


def shared(values: list[Any]) -> list[tuple[int, int]]:
    """Pairs of tensors that are one, or share memory."""
    found = [t for t in values if isinstance(t, torch.Tensor)]
    memories = [(t._local_tensor if isinstance(t, DTensor) else t).untyped_storage().data_ptr() for t in found]
    return [(i, j, found[i] is found[j]) for i in range(len(found)) for j in range(i) if memories[i] == memories[j]]


def alike(mine: Any, theirs: Any) -> bool:
    """Equal, but for roundings."""
    if isinstance(mine, float) and isinstance(theirs, float):
        return mine == theirs or abs(mine - theirs) < 1e-5 * max(1, abs(theirs))
    if isinstance(mine, (list, tuple)) and type(mine) is type(theirs):
        return len(mine) == len(theirs) and all(map(alike, mine, theirs))
    return bool(mine == theirs)


def compared(name: str, function: Program, how: frozenset[str], at: tuple[Any, ...], sizes: tuple[int, int]) -> None:
    wanted = run(name, function, how, at, sizes)
    dynacompile.reset()
    breaks: list[Any] = []
    end = dynacompile.subscribe(lambda e: breaks.append(e) if isinstance(e, (events.GraphBroke, events.FrameSkipped)) else None)
    found = run(name, dynacompile.compile(function), how, at, sizes)
    end()
    for i, (mine, theirs) in enumerate(zip(found, wanted)):
        assert alike(mine, theirs), f"number {i}:\n{mine}\n{theirs}"
    assert len(found) == len(wanted)
    for e in breaks:
        print(name, sizes, e, file=sys.stderr)
    assert WHOLE not in how or not breaks or any(isinstance(item, type) for item in wanted), breaks


def case(name: str) -> Callable[[], None]:
    function, how, at = PROGRAMS[name]

    def held() -> None:
        compared(name, function, how, at, (ROWS, WIDTH))

    held.__name__ = name
    return held


def uneven(name: str, rows: int) -> Callable[[], None]:
    """One rank has more rows than the other, which may have none."""
    function, how, at = PROGRAMS[name]

    def held() -> None:
        compared(name, function, how - {WHOLE}, at, (rows, WIDTH))

    held.__name__ = f"{name}_of_{rows}"
    return held


def refuses_plain(call: Callable[[], Any]) -> None:
    try:
        call()
    except RuntimeError as error:
        assert "mixed" in str(error), error
    else:
        raise AssertionError("a DTensor beside a plain tensor")


def modes() -> None:
    """What decides how operations on DTensors are carried out is guarded."""

    def added(x: Any, z: torch.Tensor) -> Any:
        return x + z

    def loss(x: Any, words: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, words)

    compiled = dynacompile.compile(added)
    x, z = distribute_tensor(batch(1, ROWS, WIDTH), mesh(), [Replicate()]), batch(2, ROWS, WIDTH)
    with implicit_replication():
        assert shown(compiled(x, z)) == shown(added(x, z))
    for call in (compiled, added):
        refuses_plain(lambda call=call: call(x, z))
    words = torch.arange(ROWS, device=DEVICE) % WIDTH
    x = distribute_tensor(batch(1, ROWS, WIDTH), mesh(), [Shard(1)])
    compiled = dynacompile.compile(loss)
    for _ in range(2):
        with loss_parallel():
            assert alike(shown(compiled(x, words)), shown(loss(x, words)))
        for call in (compiled, loss):
            refuses_plain(lambda call=call: call(x, words))


CASES = (*map(case, PROGRAMS), *(uneven(name, rows) for name in UNEVEN for rows in (3, 1)), modes)

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
