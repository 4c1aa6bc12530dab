"""What a compiled call keeps for its backward pass is freed where eager frees it, while the loss is still held."""

import weakref

import pytest
import torch

import dynacompile


def one_node(x, w, v):
    return ((x @ w).sin().exp() * v).sum()


def two_outputs(x, w, v):
    hidden = (x @ w).sin()
    return (hidden.exp() * v).sum(), hidden.cos().detach()


def stages(x, w, v):
    hidden = (x @ w).sin()
    return ((hidden.exp() + x) * v).sum(), hidden


def one_without_parts(x, w, v):
    return (x @ w).sin().exp().sum(), x + v


class Saved:
    """The tensors that forward keeps."""

    def __init__(self):
        self.alive = []

    def pack(self, tensor):
        class Box:
            pass

        box = Box()
        box.tensor = tensor.detach()
        self.alive.append(weakref.ref(box))
        return box

    def count(self):
        return sum(ref() is not None for ref in self.alive)


@pytest.mark.parametrize("grads", [(True, True, True), (True, False, False), (False, True, False), (False, True, True)])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("fn", [one_node, two_outputs, stages, one_without_parts])
def test_a_backward_frees_what_was_saved(fn, asked, grads):
    saved = Saved()
    args = [torch.randn(4, 4, requires_grad=flag) for flag in grads]
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda box: box.tensor):
        out = dynacompile.compile(fn, backend="aot_eager", isolate_recompiles=True)(*args)
    loss = out[0] if isinstance(out, tuple) else out
    assert saved.count()
    loss.backward(inputs=[a for a in args if a.requires_grad] if asked else None)
    assert saved.count() == 0
    assert loss.grad_fn is not None
