"""Gradients leave a compiled backward as they are final, where processes reduce them: all that autograd promises holds beside it.

The process group is torch's fake one of two processes, so that one process shows it all; hooks on the accumulation of gradients stand for DDP's.
"""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile
from tests.distributed.models import Layers, batch

OPTIONS = {"gradient_bytes": 1}


@pytest.fixture(autouse=True)
def two_processes():
    dynacompile.reset()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


class Pair:
    """A model, compiled, and the same in eager. order: the parameters whose gradients have been accumulated, and marks."""

    def __init__(self, listens: bool = True, backend: str = "default", **options):
        torch.manual_seed(0)
        self.model = Layers()
        self.eager = copy.deepcopy(self.model)
        self.compiled = dynacompile.compile(self.model, backend=backend, options={**OPTIONS, **options})
        self.order: list[str] = []
        if listens:
            for name, p in self.model.named_parameters():
                p.register_post_accumulate_grad_hook(lambda p, name=name: self.order.append(name))

    def same(self) -> None:
        for (name, p), q in zip(self.model.named_parameters(), self.eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            assert p.grad is None or torch.equal(p.grad, q.grad), name


def nodes(output: torch.Tensor) -> list:
    """The nodes of a compiled region's backward, the first one first."""
    found = [output.grad_fn]
    while found[-1].next_functions and (behind := found[-1].next_functions[-1][0]) is not None and behind.name() == "DynacompileBackwardGoingOn":
        found.append(behind)
    return found


def test_gradients_of_last_layers_come_before_the_backward_ends():
    pair = Pair()
    x = batch(1).requires_grad_()
    y = pair.compiled(x)
    chain = nodes(y)
    assert len(chain) > 3
    chain[-1].register_hook(lambda given, taken: pair.order.append("end"))
    y.sum().backward()
    pair.eager(batch(1)).sum().backward()
    pair.same()
    assert pair.order.index("layers.5.weight") < pair.order.index("layers.3.weight") < pair.order.index("layers.1.weight") < pair.order.index("end")


def test_each_hook_runs_once_and_sees_the_final_gradient():
    pair = Pair(listens=False)
    seen = {}
    for name, p in pair.model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.setdefault(name, []).append(p.grad.clone()))
    pair.compiled(batch(1)).sum().backward()
    assert {name: len(found) for name, found in seen.items()} == dict.fromkeys(seen, 1)
    assert all(torch.equal(seen[name][0], p.grad) for name, p in pair.model.named_parameters())


@pytest.mark.parametrize(
    ("listens", "options"), [(False, {}), (True, {"gradient_bytes": 0}), (True, {"gradient_bytes": 1 << 20})], ids=["nobody listens", "off", "few bytes"]
)
def test_one_node_where_nothing_is_gained(listens, options):
    pair = Pair(listens, **options)
    y = pair.compiled(batch(1))
    assert len(nodes(y)) == 1
    y.sum().backward()
    pair.eager(batch(1)).sum().backward()
    pair.same()


def test_one_process_has_one_node():
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    assert len(nodes(Pair().compiled(batch(1)))) == 1


def test_a_graph_that_is_kept_gives_its_gradients_again():
    pair = Pair()
    y, z = pair.compiled(batch(1)), pair.eager(batch(1))
    for keep in (True, True, False):
        y.sum().backward(retain_graph=keep)
        z.sum().backward(retain_graph=keep)
        pair.same()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_gradients_of_some_parameters():
    pair = Pair()
    y, z = pair.compiled(batch(1)), pair.eager(batch(1))
    for which in ([5], [0], [2, 4], [0, 5]):
        mine = [pair.model.layers[i].weight for i in which]
        theirs = [pair.eager.layers[i].weight for i in which]
        made, wanted = torch.autograd.grad(y.sum(), mine, retain_graph=True), torch.autograd.grad(z.sum(), theirs, retain_graph=True)
        assert all(map(torch.equal, made, wanted))
    assert not pair.order  # nothing was accumulated
    y.sum().backward(inputs=[pair.model.layers[3].weight])
    z.sum().backward(inputs=[pair.eager.layers[3].weight])
    pair.same()


@pytest.mark.parametrize("backend", ["default", "aot_eager"])
def test_gradients_of_gradients(backend):
    pair = Pair(backend=backend)
    x, x2 = batch(1).requires_grad_(), batch(1).requires_grad_()
    for model, given in ((pair.compiled, x), (pair.eager, x2)):
        (first,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        first.square().sum().backward()
    assert torch.equal(x.grad, x2.grad)
    pair.same()


def test_batches_of_tangents():
    pair = Pair()
    tangents = torch.stack([batch(3), batch(4)])
    made = torch.autograd.grad(pair.compiled(batch(1)), list(pair.model.parameters()), tangents, is_grads_batched=True)
    wanted = torch.autograd.grad(pair.eager(batch(1)), list(pair.eager.parameters()), tangents, is_grads_batched=True)
    assert all(map(torch.equal, made, wanted))


def test_an_error_of_a_hook_ends_the_backward_and_gives_memory_back():
    pair = Pair(listens=False)

    def fails(p: torch.Tensor) -> None:
        raise ValueError("of the hook")

    watching = [p.register_post_accumulate_grad_hook(lambda p: None) for p in pair.model.parameters()]
    failing = pair.model.layers[3].weight.register_post_accumulate_grad_hook(fails)
    x = batch(1).requires_grad_()
    alive = weakref.ref(x.untyped_storage())
    y = pair.compiled(x)
    with pytest.raises(ValueError, match="of the hook"):
        y.sum().backward()
    assert pair.model.layers[5].weight.grad is not None and pair.model.layers[0].weight.grad is None and x.grad is None
    del x, y
    pair.model.zero_grad()
    for handle in (*watching, failing):
        handle.remove()
    pair.compiled(batch(1)).sum().backward()
    pair.eager(batch(1)).sum().backward()
    pair.same()
    gc.collect()
    assert alive() is None  # until the next backward torch's engine keeps nodes that were waiting, in eager, too


def test_what_is_saved_goes_with_the_last_reference():
    """A pass that needs the first stop alone keeps nothing of the rest."""
    pair = Pair()
    x = batch(1)
    alive = weakref.ref(x.untyped_storage())
    y = pair.compiled(x)
    torch.autograd.grad(y.sum(), pair.model.layers[5].weight)
    del x
    assert alive() is None  # the graph is freed, as in eager


def test_a_parameter_of_two_regions_is_accumulated_once():
    pair = Pair()
    (pair.compiled(batch(1)) + pair.compiled(batch(2))).sum().backward()
    (pair.eager(batch(1)) + pair.eager(batch(2))).sum().backward()
    pair.same()
    assert sorted(pair.order) == sorted(name for name, _ in pair.model.named_parameters())


def test_outputs_that_are_computed_from_outputs():
    def with_loss(model, x):
        y = model(x)
        return y, y.square().sum()

    pair = Pair()
    compiled = dynacompile.compile(with_loss, options=OPTIONS)
    for use in ((0, 1), (1,), (0,)):
        made, wanted = compiled(pair.model, batch(1)), with_loss(pair.eager, batch(1))
        assert len(nodes(made[0])) > 3
        sum(made[i].sum() for i in use).backward()
        sum(wanted[i].sum() for i in use).backward()
        pair.same()


def test_the_token_is_no_gradient():
    pair = Pair()
    chain = nodes(pair.compiled(batch(1)))
    with pytest.raises(RuntimeError, match="run by the node before it alone"):
        chain[1](torch.zeros(0))


def test_hooks_on_parameters_change_gradients():
    pair = Pair()
    for model in (pair.model, pair.eager):
        model.layers[4].weight.register_hook(lambda g: g * 2)
    pair.compiled(batch(1)).sum().backward()
    pair.eager(batch(1)).sum().backward()
    pair.same()


def triple(p: torch.Tensor) -> None:
    p.grad.mul_(3)


def test_a_hook_that_changes_a_gradient_in_place_changes_no_other():
    pair = Pair()
    for model in (pair.model, pair.eager):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(triple)
    for _ in range(2):
        pair.compiled(batch(1)).sum().backward()
        pair.eager(batch(1)).sum().backward()
        pair.same()
