"""Strides of results on fakes are eager's, whatever the layout of the operands: views of a result, and what the caller gets, go by them."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import dynacompile
from dynacompile.ir.fakes import fake_mode, fake_of

OPS = (
    *("add", "atan2", "clamp", "copysign", "div", "floor_divide", "fmod", "heaviside", "hypot", "lerp", "logaddexp", "logaddexp2", "logical_and"),
    *("logical_or", "logical_xor", "mul", "nextafter", "pow", "remainder", "rsub", "special.xlog1py", "special.zeta", "where", "xlogy", "addcmul"),
    *("nn.functional.batch_norm", "nn.functional.binary_cross_entropy", "nn.functional.mse_loss", "nn.functional.huber_loss", "normal"),
    *("native_dropout_backward", "nn.functional.channel_shuffle", "maximum", "fmax", "ge", "isclose", "float_power", "native_batch_norm"),
)
MOST_SAMPLES = 8


def permuted(tensor: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def layouts(tensors: list[torch.Tensor]):
    """The operands with each of them laid out anew, and with all of them."""
    which = [i for i, t in enumerate(tensors) if t.dim() >= 2 and t.numel() > 1]
    for chosen in [*([i] for i in which), which]:
        for lay in (permuted, channels_last):
            if chosen and (lay is permuted or all(tensors[i].dim() == 4 for i in chosen)):
                yield [lay(t) if i in chosen else t for i, t in enumerate(tensors)]


def strides(result: object) -> list[tuple[int, ...]]:
    """Of dimensions with several elements, in each tensor of a result."""
    tensors = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
    return [tuple(s for s, size in zip(t.stride(), t.shape) if size > 1) if math.prod(t.shape) > 1 else () for t in tensors]


def strides_of_call(op, leaves: list[object], spec: object, operands: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """Of what the op gives for the leaves of its arguments, with `operands` for those that are tensors."""
    remaining = iter(operands)
    args, kwargs = tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
    return strides(op.op(*args, **kwargs))


@pytest.mark.parametrize("op", [op for op in op_db if op.name in OPS], ids=lambda op: f"{op.name}-{op.variant_test_name}".strip("-"))
def test_fakes_have_eagers_strides(op):
    compared = 0
    for sample in list(op.sample_inputs("cpu", torch.float32))[:MOST_SAMPLES]:
        leaves, spec = tree_flatten(([sample.input, *sample.args], sample.kwargs))
        call = functools.partial(strides_of_call, op, leaves, spec)
        for tensors in layouts([leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]):
            expected = call([t.clone() for t in tensors])
            mode = fake_mode()
            fakes = [fake_of(mode, t) for t in tensors]
            with mode:
                assert call(fakes) == expected, [(tuple(t.shape), t.stride()) for t in tensors]
            compared += 1
    assert compared


X, Y = torch.rand(3, 4), torch.rand(4, 3).t()
PROGRAMS = {
    "floor-division": (lambda x, y: (x // (y + 1)).view(-1), X, Y),
    "floor-division-of-a-permuted-tensor": (lambda x, y: (y // (x + 1)).t().view(-1), X, Y),
    "copysign": (lambda x, y: torch.copysign(x, y).view(-1), X, Y),
    "xlogy": (lambda x, y: torch.xlogy(x, y).view(-1), X, Y),
    "binary-cross-entropy": (lambda x, y: torch.nn.functional.binary_cross_entropy(x, y, reduction="none").view(-1), X, Y),
    "batch-norm-of-a-permuted-batch": (lambda x: torch.nn.functional.batch_norm(x.transpose(1, 2), None, None, training=True).view(-1), torch.rand(2, 7, 5)),
    "batch-norm-in-evaluation": (
        lambda x: torch.nn.functional.batch_norm(x.transpose(1, 2), torch.zeros(5), torch.ones(5)).view(-1),
        torch.rand(2, 7, 5),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "reference"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_of_results(name, backend, dynamic):
    function, *args = PROGRAMS[name]
    options = {"options": {"reference": True}} if backend == "reference" else {"backend": backend}
    got, expected = dynacompile.compile(function, dynamic=dynamic, fullgraph=True, **options)(*args), function(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
