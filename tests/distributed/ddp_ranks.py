"""Run by test_ddp.py in two processes of gloo: training under DDP, compiled and in eager, to the bit. Prints the name of each case that held."""

from __future__ import annotations

import copy
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import dynacompile
from tests.distributed.models import Layers, batch
from tests.distributed.ranks import DEVICE, join

OPTIONS = {"gradient_bytes": 1}
SMALL = 0.002  # MiB of a bucket, two layers
STEPS = 4
State = list[torch.Tensor | None]


def inside(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(dynacompile.compile(model, options=OPTIONS), bucket_cap_mb=SMALL, **options)


def outside(model: nn.Module, **options: Any) -> Any:
    return dynacompile.compile(DistributedDataParallel(model, bucket_cap_mb=SMALL, **options), options=OPTIONS)


def eager(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=SMALL, **options)


def train(wrap: Callable[..., Any], step: Callable[[Any, int], None], make: Callable[[], nn.Module] = Layers, **options: Any) -> State:
    """The gradients of each step and the parameters after the last one."""
    model = make().to(DEVICE)
    wrapped = wrap(model, **options)
    found: State = []
    for k in range(STEPS):
        model.zero_grad()
        step(wrapped, k)
        found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad.sign())
    return found + [p.detach().clone() for p in model.parameters()]


def same(mine: State, theirs: State) -> None:
    assert len(mine) == len(theirs)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b)), f"tensor {i} differs"


def agrees(step: Callable[[Any, int], None], make: Callable[[], nn.Module] = Layers, **options: Any) -> None:
    wanted = train(eager, step, make, **options)
    for wrap in (inside, outside):
        dynacompile.reset()
        same(train(wrap, step, make, **options), wanted)


def data(k: int, rows: int = 4) -> torch.Tensor:
    return batch(10 * k + dist.get_rank(), rows)


def whole(model: Any, k: int) -> None:
    model(data(k)).sum().backward()


def plain() -> None:
    agrees(whole)


def static_graph() -> None:
    agrees(whole, static_graph=True)


def buckets_are_the_gradients() -> None:
    agrees(whole, gradient_as_bucket_view=True)


def accumulation() -> None:
    def step(model: Any, k: int) -> None:
        for i in range(3):
            with model.no_sync() if i < 2 else nullcontext():
                model(data(10 * k + i)).sum().backward()

    agrees(step)
    agrees(step, gradient_as_bucket_view=True)


def parts_unused() -> None:
    agrees(lambda model, k: model(data(k), 3 + k % 3).sum().backward(), find_unused_parameters=True)


def other_parts_on_each_rank() -> None:
    agrees(lambda model, k: model(data(k), 2 + dist.get_rank() + k % 3).sum().backward(), find_unused_parameters=True)


def a_short_last_batch() -> None:
    agrees(lambda model, k: model(data(k, 4 if k < STEPS - 1 else 1 + dist.get_rank())).sum().backward())


def other_sizes_on_each_rank() -> None:
    """One rank compiles where the other one has an entry, again and again; no rank waits for the other's compile but in the reduction, which comes."""
    agrees(lambda model, k: model(data(k, 2 + (k * (1 + dist.get_rank())) % 5)).sum().backward())


def compression() -> None:
    """torch refuses its own hook over gloo, by its name alone."""

    def halved(group, bucket):
        return bf16_compress_hook(group, bucket)

    def step(model: Any, k: int) -> None:
        if k == 0:
            (getattr(model, "_orig_mod", model)).register_comm_hook(None, halved)
        whole(model, k)

    agrees(step)
    agrees(step, static_graph=True, gradient_as_bucket_view=True)


def uneven_inputs() -> None:
    def trained(wrap: Callable[..., Any]) -> State:
        model = Layers().to(DEVICE)
        wrapped = wrap(model)
        with Join([getattr(wrapped, "_orig_mod", wrapped)]):
            for k in range(2 + 2 * dist.get_rank()):
                whole(wrapped, k)
        return [p.grad for p in model.parameters()]

    wanted = trained(eager)
    for wrap in (inside, outside):
        dynacompile.reset()
        same(trained(wrap), wanted)


def kept_graphs() -> None:
    def step(model: Any, k: int) -> None:
        y = model(data(k)).sum()
        with model.no_sync():
            y.backward(retain_graph=True)
        y.backward()

    wanted = train(eager, step)
    dynacompile.reset()
    same(train(inside, step), wanted)


def reductions_begin_before_the_backward_ends() -> None:
    """In the order of a backward pass: the buckets whose reduction began, and the end of the compiled backward."""
    for options, early in ((OPTIONS, True), ({"gradient_bytes": 0}, False)):
        dynacompile.reset()
        model = DistributedDataParallel(dynacompile.compile(Layers().to(DEVICE), options=options), bucket_cap_mb=SMALL)
        order: list[str] = []

        def reduce(group, bucket, order=order):
            order.append("bucket")
            return allreduce_hook(group, bucket)

        model.register_comm_hook(None, reduce)
        for k in range(3):
            order.clear()
            y = model(data(k))
            last = y.grad_fn
            while last.next_functions[-1][0].name() == "DynacompileBackwardGoingOn":
                last = last.next_functions[-1][0]
            last.register_prehook(lambda given, order=order: order.append("last part"))
            y.sum().backward()
            before = order[: order.index("last part")].count("bucket")
            if k:  # in the first step DDP has one bucket, as it knows no order yet
                assert order.count("bucket") >= 3 and ((before >= 2) if early else (before == 0)), (options, order)


def one_rank_in_eager() -> None:
    """As where a rank can't compile: reductions are of buckets, in an order that all ranks share, whatever the order in which gradients come."""
    wanted = train(eager, whole)
    same(train(inside if dist.get_rank() else eager, whole), wanted)


def one_rank_breaks_its_graphs() -> None:
    def wrap(model: nn.Module, **options: Any) -> nn.Module:
        if dist.get_rank():
            model.layers[2].register_forward_hook(lambda module, given, made: print(end=""))
        return inside(model, **options)

    wanted = train(eager, whole)
    same(train(wrap, whole), wanted)


def with_buffers() -> None:
    """Statistics of the batch: what DDP broadcasts before a step."""

    def make() -> nn.Module:
        return nn.Sequential(Layers(2), nn.BatchNorm1d(16), Layers(2))

    found = []
    for wrap in (eager, inside, outside):
        dynacompile.reset()
        model = make().to(DEVICE)
        wrapped = wrap(model)
        for k in range(3):
            model.zero_grad()
            whole(wrapped, k)
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
    for mine in found[1:]:
        torch.testing.assert_close(mine, found[0])


def synchronized_batch_norm() -> None:
    """torch has none on CPUs: its own errors, from the module and from DDP."""
    if DEVICE == "cuda":
        return statistics_of_all_ranks()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(Layers(2), nn.BatchNorm1d(16)))
    told = []
    for called in (model, dynacompile.compile(model)):
        try:
            called(data(0))
        except ValueError as error:
            told.append(str(error))
    assert len(told) == 2 and told[0] == told[1] and "SyncBatchNorm expected" in told[0], told
    for wrap in (eager, inside):
        try:
            wrap(model)
        except ValueError as error:
            told.append(str(error))
    assert len(told) == 4 and told[2] == told[3] and "SyncBatchNorm layers only work with GPU modules" in told[2], told


def statistics_of_all_ranks() -> None:
    def make() -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(Layers(2), nn.BatchNorm1d(16), Layers(2)))

    wanted = train(eager, whole, make)
    for wrap in (inside, outside):
        dynacompile.reset()
        torch.testing.assert_close(train(wrap, whole, make), wanted)


def a_module_in_place() -> None:
    def wrap(model: nn.Module, **options: Any) -> nn.Module:
        copied = copy.deepcopy(model)
        for layer in copied.layers:
            layer.forward = dynacompile.compile(layer.forward, options=OPTIONS)
        model.layers = copied.layers
        return eager(model, **options)

    wanted = train(eager, whole)
    same(train(wrap, whole), wanted)


CASES = (
    plain,
    static_graph,
    buckets_are_the_gradients,
    accumulation,
    parts_unused,
    other_parts_on_each_rank,
    a_short_last_batch,
    other_sizes_on_each_rank,
    compression,
    uneven_inputs,
    kept_graphs,
    reductions_begin_before_the_backward_ends,
    one_rank_in_eager,
    one_rank_breaks_its_graphs,
    with_buffers,
    a_module_in_place,
    synchronized_batch_norm,
)


def main() -> None:
    join(60)
    wanted = sys.argv[1:]
    failed = False
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        dynacompile.reset()
        try:
            case()
            print("held", case.__name__, flush=True)
        except Exception:  # noqa: BLE001  (told, and the process fails)
            traceback.print_exc()
            failed = True
        dist.barrier()
    dist.destroy_process_group()
    sys.exit(int(failed))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
