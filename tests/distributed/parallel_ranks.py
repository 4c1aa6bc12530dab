"""Run by test_parallel.py in two processes of gloo: tensor parallelism, compiled and in eager. Prints the name of each case that held.

Parameters and data are small ints, or float64 numbers, where roundings do not hide what is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import dynacompile
from dynacompile import events
from tests.distributed.models import batch
from tests.distributed.ranks import DEVICE, run_cases
from tests.distributed.sharded_ranks import Net, alike, blocks, eager, mesh, parallel, sharded, whole

WORDS, WIDTH, HEADS, ROWS = 8, 8, 2, 4
COUNTED = (events.Compiled, events.GraphBroke, events.Recompiled, events.LimitHit, events.FrameSkipped)
Made = list[torch.Tensor]


def counted(run: Callable[[], Made]) -> tuple[Made, tuple[int, ...]]:
    """What it gives, and how many entries, breaks, recompiles, limits and frames left to Python there were."""
    dynacompile.reset()
    seen: list[events.Event] = []
    end = dynacompile.subscribe(seen.append)
    found = run()
    end()
    return found, tuple(sum(isinstance(e, kind) for e in seen) for kind in COUNTED)


def same(mine: Made, theirs: Made, tolerance: float = 0.0) -> None:
    """Placements, meshes and local tensors, too."""
    assert len(mine) == len(theirs)
    for i, (a, b) in enumerate(zip(mine, theirs)):
        assert type(a) is type(b) and a.shape == b.shape and a.stride() == b.stride(), (i, type(a), type(b), a.shape, b.shape)
        if isinstance(a, DTensor):
            assert a._spec == b._spec, (i, a._spec, b._spec)
            a, b = a._local_tensor, b._local_tensor
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"tensor {i} differs by {(a - b).abs().max()}"


# column- and row-wise layers


def column_and_row() -> None:
    """Equal blocks share an entry, with one for the first block, whose input needs no gradient; each is one graph."""
    wanted = alike(parallel(Net()))
    for wrap, counts in ((blocks, (2, 0, 1, 0, 0)), (whole, (1, 0, 0, 0, 0))):
        found, seen = counted(lambda wrap=wrap: alike(wrap(parallel(Net()))))
        same(found, wanted)
        assert seen == counts, seen


def one_rank_in_eager() -> None:
    """The calls of a compiled rank are those of an eager one, in their order."""
    wrap = (whole, eager)[dist.get_rank()]
    wanted = alike(parallel(Net(), sequence=True))
    same(alike(wrap(parallel(Net(), sequence=True))), wanted)


# a model like Llama, with sequences cut and the loss over cut words


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.attention, self.gated = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Attention(), Gated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.gated(self.after(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers, self.norm = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(2)), nn.RMSNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def model(over_words: bool = True) -> Model:
    torch.manual_seed(0)
    net = Model().double().to(DEVICE)
    last = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1) if over_words else Replicate(), use_local_output=not over_words)
    plan: dict[str, Any] = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(), "out": last}
    for k in range(len(net.layers)):
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        rows = RowwiseParallel(output_layouts=Shard(1))
        own = {"before": SequenceParallel(), "after": SequenceParallel(), "attention": gathered, "gated": gathered, "attention.o": rows, "gated.down": rows}
        own |= {name: ColwiseParallel() for name in ("attention.q", "attention.k", "attention.v", "gated.gate", "gated.up")}
        plan |= {f"layers.{k}.{name}": style for name, style in own.items()}
    return parallelize_module(net, mesh(), plan)  # type: ignore[return-value]


def loss_of(net: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def trained(net: nn.Module, step: Callable[..., torch.Tensor], update: Callable[[torch.optim.Optimizer, nn.Module], Any]) -> Made:
    """Losses, gradients as they are, norms of all, and parameters and what the optimizer keeps after some steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    found: Made = []
    for k in range(3):
        words = torch.randint(WORDS, (2, ROWS + 1), generator=torch.Generator().manual_seed(k)).to(DEVICE)
        with loss_parallel():
            loss = step(net, words)
            loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in net.parameters())]  # type: ignore[union-attr]
        found.append(update(optimizer, net))
        optimizer.zero_grad()
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return [*found, *(p.detach() for p in net.parameters()), *kept]


def clipped_step(optimizer: torch.optim.Optimizer, net: nn.Module) -> torch.Tensor:
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    return norm


def sequences() -> None:
    """Blocks compiled one by one, the first of which gets the result of a collective that is under way; then forward, loss and optimizer, each one graph."""
    wanted = trained(model(), loss_of, clipped_step)

    def by_layer() -> Made:
        net = model()
        for layer in net.layers:
            dynacompile.compile(layer, inplace=True)
        return trained(net, loss_of, clipped_step)

    found, seen = counted(by_layer)
    same(found, wanted, 1e-9)
    assert seen == (2, 0, 1, 0, 0), seen
    found, seen = counted(lambda: trained(model(), dynacompile.compile(loss_of), dynacompile.compile(clipped_step)))
    same(found, wanted, 1e-9)
    assert seen == (2, 0, 0, 0, 0), seen


def small_collectives_joined() -> None:
    """What the norms' gradients and their clipping reduce, one call for several, as `collective_bytes` says."""
    wanted = trained(model(), loss_of, clipped_step)
    calls: list[tuple[str, int]] = []
    end = dynacompile.subscribe(lambda event: calls.extend(event.calls) if isinstance(event, events.Scheduled) else None)
    options = {"collective_bytes": 1 << 20}
    found, seen = counted(lambda: trained(model(), dynacompile.compile(loss_of, options=options), dynacompile.compile(clipped_step, options=options)))
    end()
    same(found, wanted, 1e-9)
    assert seen == (2, 0, 0, 0, 0), seen
    assert sum(count for name, count in calls if "coalesced" in name) > 0, calls


def sharded_twice() -> None:
    """FSDP2 over tensor parallelism would need four ranks: here the optimizer over parameters that FSDP2 shards."""

    def steps(update: Callable[..., Any]) -> Made:
        net = sharded(Net())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
        found: Made = []
        for k in range(3):
            net(batch(k)).sum().backward()
            found.append(update(optimizer, net))
            optimizer.zero_grad()
        return [*found, *(p.detach() for p in net.parameters())]

    wanted = steps(clipped_step)
    found, seen = counted(lambda: steps(dynacompile.compile(clipped_step)))
    same(found, wanted, 1e-5)
    assert seen == (1, 0, 0, 0, 0), seen


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW, lists": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "SGD, lists": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.1, foreach=True),
    "SGD, one by one": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, foreach=False),
}


def optimizer_of(name: str) -> Callable[[], None]:
    """Column- and row-wise parameters, with a rate that changes in every step and a state that goes through a state dict."""
    make = OPTIMIZERS[name]

    def steps(wrap: Callable[[Any], Any]) -> Made:
        net = parallel(Net())
        for block in net.blocks:  # lists of one operation are of DTensors alone, in eager, too
            block.down.bias.requires_grad_(False)
        found: Made = []
        optimizer = make([p for p in net.parameters() if p.requires_grad])
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = wrap(lambda: optimizer.step())
        for k in range(6):
            for i, p in enumerate(optimizer.param_groups[0]["params"]):  # gradients of a model that clamps would tell of each rounding
                grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * k + i)).to(DEVICE)
                p.grad = distribute_tensor(grad, p.device_mesh, p.placements)
            step()
            schedule.step()
            optimizer.zero_grad()
            found += [p.detach().clone() for p in net.parameters()]
            if k == 3:
                other = make(optimizer.param_groups[0]["params"])
                other.load_state_dict(optimizer.state_dict())
                optimizer = other
                schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return found + [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]

    def case() -> None:
        wanted = steps(lambda step: step)
        found, seen = counted(lambda: steps(dynacompile.compile))
        same(found, wanted, 1e-6)
        of_each_rate = name == "AdamW, lists" and torch.__version__ < "2.12"  # torch 2.11 reads the rate
        entries = 5 if of_each_rate else 3  # a rate that is known, one that changes, and the other optimizer
        assert seen == (entries, 0, entries - 1, 0, 0), seen

    case.__name__ = f"optimizer, {name}"
    return case


def growing() -> None:
    """Batches of several sizes: a DTensor has sizes that are numbers, so that each has an entry of its own."""
    net = parallel(Net())

    def run(net: nn.Module) -> Made:
        found: Made = []
        for rows in (4, 6, 8, 4, 6):
            out = net(batch(rows, rows))
            out.sum().backward()
            found += [out.detach(), *(full_grad(p) for p in net.parameters())]
            net.zero_grad()
        return found

    wanted = run(net)
    for wrap in (whole, blocks):
        found, seen = counted(lambda wrap=wrap: run(wrap(net)))
        print("growing", seen, file=sys.stderr)
        same(found, wanted)
        assert seen[1] == seen[3] == seen[4] == 0, seen


def full_grad(tensor: torch.Tensor) -> torch.Tensor:
    grad = tensor.grad
    return (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()  # type: ignore[union-attr]


# placements in the user's own code


def redistributed() -> None:
    def function(x: Any, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size, here = x.device_mesh.size(), x.placements[0]
        rows = x.redistribute(placements=[Replicate()]) * (2 if isinstance(here, Shard) and here.dim == 0 else size)
        back = DTensor.from_local(y * 2, x.device_mesh, [Replicate()]).redistribute(placements=[here])
        return rows.to_local() + y, (x + x).full_tensor() - y, back * x, rows + 1

    compiled = dynacompile.compile(function, fullgraph=True)

    def run(call: Callable[..., tuple[torch.Tensor, ...]]) -> Made:
        found: Made = []
        for k in range(4):
            x = distribute_tensor(batch(k), mesh(), [Shard(k % 2)]).requires_grad_(k > 1)
            y = batch(k + 7).requires_grad_(k > 1)
            made = call(x, y)
            found += [t.detach() for t in made]
            if k > 1:
                sum(full_sum(t) for t in made).backward()  # type: ignore[union-attr]
                found += [x.grad, y.grad]  # type: ignore[list-item]
        return found

    wanted = run(function)
    found, seen = counted(lambda: run(compiled))
    same(found, wanted)
    assert seen[:2] == (4, 0), seen


def full_sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().sum() if isinstance(tensor, DTensor) else tensor.sum()


# collectives that write


def writing() -> None:
    """Each waited for where it is called, or begun there and waited for later; and one that is left to whoever gets its work."""

    def function(x: torch.Tensor, out: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        total = x * (1 + dist.get_rank(group))
        dist.all_reduce(total)
        begun = dist.all_gather_into_tensor(out, x + 1, group=group, async_op=True)
        top = x.sum(0)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        begun.wait()
        dist.reduce_scatter_tensor(part, out * 2)
        dist.broadcast(top, src=dist.get_world_size() - 1)
        return total + top + out[: len(x)]

    def left(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        made = x * 2
        return made, dist.all_reduce(made, async_op=True)

    def run(call: Callable[..., Any], leaving: Callable[..., Any]) -> Made:
        found: Made = []
        for k in range(3):
            x, out, part = batch(10 * k + dist.get_rank()), torch.zeros(8, 16, device=DEVICE), torch.zeros(4, 16, device=DEVICE)
            found += [call(x, out, part), out, part]
            made, work = leaving(x)
            work.wait()
            found.append(made)
        return found

    wanted = run(function, left)
    found, (entries, breaks, *_) = counted(lambda: run(dynacompile.compile(function, fullgraph=True), left))
    same(found, wanted)
    assert (entries, breaks) == (1, 0)
    same(run(dynacompile.compile(function), dynacompile.compile(left)), wanted)


CASES = (column_and_row, one_rank_in_eager, sequences, small_collectives_joined, sharded_twice, *map(optimizer_of, OPTIMIZERS), growing, redistributed, writing)
FURTHER = frozenset({"optimizer, AdamW, one by one", "optimizer, AdamW, fused", "optimizer, SGD, one by one"})

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
