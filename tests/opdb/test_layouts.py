"""Strides of results on fakes are eager's, whatever the layout of the operands: views of a result, and what the caller gets, go by them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import dynacompile
from dynacompile.ir.fakes import fake_mode, fake_of
from dynacompile.ir.looks import new_fake
from dynacompile.ir.shapes import symbolic_mode, symbolic_rules

MADE_OF_NOTHING = ("empty", "new_empty")  # whose memory is laid out as asked for
MOST_SAMPLES = 2
SHAPES = ((2, 3, 4, 5), (3, 1, 4))
"""Of further operands, where a sample's have one shape: many have one dimension alone."""


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


def operands_of(leaves: list[object]) -> Iterator[list[torch.Tensor]]:
    """Those of a sample, and others of its types in further shapes."""
    own = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(t.layout is not torch.strided for t in own):
        return
    yield own
    for shape in SHAPES if own and all(t.shape == own[0].shape for t in own) else ():
        yield [torch.rand(shape, dtype=t.dtype) if t.is_floating_point() else torch.randint(0, 2, shape).to(t.dtype) for t in own]


def what_it_gives(call: Callable[..., Any], *args: object) -> Any:
    """None where it is refused, or where what it gives depends on values."""
    try:
        return call(*args)
    except Exception:  # noqa: BLE001 - samples in other shapes are refused by whatever error
        return None


CHUNKS = 16
FAKES_KNOW_TRANSFORMS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)  # before, those of transposed tensors had the strides of plain ones


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fakes_have_eagers_strides(chunk):
    compared = 0
    for op in op_db[chunk::CHUNKS]:
        if op.name.startswith(MADE_OF_NOTHING) or op.name.startswith("fft.") and not FAKES_KNOW_TRANSFORMS:
            continue
        for sample in itertools.islice(what_it_gives(op.sample_inputs, "cpu", torch.float32) or (), MOST_SAMPLES):
            leaves, spec = tree_flatten(([sample.input, *sample.args], sample.kwargs))
            call = functools.partial(strides_of_call, op, leaves, spec)
            for tensors in itertools.chain.from_iterable(map(layouts, operands_of(leaves))):
                expected = what_it_gives(call, [t.clone() for t in tensors])
                mode = fake_mode()
                fakes = [fake_of(mode, t) for t in tensors]
                with mode:
                    got = what_it_gives(call, fakes) if expected is not None else None
                assert got is None or got == expected, (op.name, [(tuple(t.shape), t.stride()) for t in tensors])
                compared += got is not None
    assert compared > 100


def of_one_image(tensor: torch.Tensor) -> torch.Tensor:
    """(1, C, H, W), with channels last, whose first dimension has the stride of one that was put there."""
    return tensor[0].movedim(0, -1).contiguous().movedim(-1, 0).unsqueeze(0) if tensor.dim() == 4 and tensor.numel() else tensor


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_strides_of_dimensions_of_one_element(chunk):
    """Memory formats are chosen by these, too. `rot90` has others, by a rule of torch's that turns dimensions."""
    compared = 0
    for op in op_db[chunk::CHUNKS]:
        if op.name.startswith(MADE_OF_NOTHING) or op.name == "rot90" or op.name.startswith("fft.") and not FAKES_KNOW_TRANSFORMS:
            continue
        for sample in itertools.islice(what_it_gives(op.sample_inputs, "cpu", torch.float32) or (), MOST_SAMPLES):
            leaves, spec = tree_flatten(([sample.input, *sample.args], sample.kwargs))
            for tensors in operands_of(leaves):
                given = [of_one_image(t) for t in tensors]
                call = functools.partial(all_strides_of_call, op, leaves, spec)
                expected = what_it_gives(call, given) if any(t.dim() == 4 for t in given) else None
                if expected is None:
                    continue
                mode = fake_mode()
                fakes = [fake_of(mode, t) for t in given]
                with mode:
                    got = what_it_gives(call, fakes)
                assert got is None or got == expected, (op.name, [(tuple(t.shape), t.stride()) for t in given])
                compared += got is not None
    assert compared > 10


def all_strides_of_call(op, leaves: list[object], spec: object, operands: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """As `strides_of_call`, with those of dimensions of one element, for results of more than one."""
    remaining = iter(operands)
    args, kwargs = tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
    return [t.stride() for t in tree_flatten(op.op(*args, **kwargs))[0] if isinstance(t, torch.Tensor) and t.numel() > 1]


TRANSPOSED = torch.rand(2, 3, 4, 5).permute(3, 2, 1, 0)
CALLS = {
    "a number to the power of a tensor": lambda x: 2.0**x,
    "a number to the power of a tensor, in double precision": lambda x: torch.float_power(2.0, x),
    "a number as the mean": lambda x: torch.normal(2.0, x),
    "poisson": lambda x: torch.poisson(x),
    "is in a number": lambda x: torch.isin(x, 0.5),
    "is in a tensor of one element": lambda x: torch.isin(x, torch.tensor(0.5)),
    "windows as columns": lambda x: torch.nn.functional.unfold(x, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_with_numbers(name):
    torch.manual_seed(0)
    expected = CALLS[name](TRANSPOSED)
    torch.manual_seed(0)
    got = dynacompile.compile(CALLS[name], fullgraph=True)(TRANSPOSED)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


X, Y = torch.rand(3, 4), torch.rand(4, 3).t()
PROGRAMS = {
    "floor-division": (lambda x, y: (x // (y + 1)).view(-1), X, Y),
    "floor-division-of-a-permuted-tensor": (lambda x, y: (y // (x + 1)).t().view(-1), X, Y),
    "copysign": (lambda x, y: torch.copysign(x, y).view(-1), X, Y),
    "xlogy": (lambda x, y: torch.xlogy(x, y).view(-1), X, Y),
    "binary-cross-entropy": (lambda x, y: torch.nn.functional.binary_cross_entropy(x, y, reduction="none").view(-1), X, Y),
    "batch-norm-of-a-permuted-batch": (lambda x: torch.nn.functional.batch_norm(x.transpose(1, 2), None, None, training=True).view(-1), torch.rand(2, 7, 5)),
    "log-sigmoid": (lambda y: torch.nn.functional.logsigmoid(y).view(-1), Y),
    "rolled-in-memory-format": (lambda x: x.roll((1, -1), (1, 3)).permute(0, 2, 3, 1).view(-1), channels_last(torch.rand(2, 3, 4, 5))),
    "padded-in-memory-format": (
        lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect").permute(0, 2, 3, 1).view(-1),
        channels_last(torch.rand(2, 3, 4, 5)),
    ),
    "any-over-no-dimension": (lambda y: y.any(()).view(-1), Y),
    "nansum-over-no-dimension": (lambda y: y.nansum(()).view(-1), Y),
    "nanmean-over-no-dimension": (lambda y: y.nanmean((), True).view(-1), Y),
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


BESIDE = {
    "add": lambda mask, x, y: x + y,
    "where": lambda mask, x, y: torch.where(mask, x, y),
    "a comparison": lambda mask, x, y: x < y,
}


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float16), (torch.int64, torch.bfloat16), (torch.float32, torch.float64)], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_an_expanded_operand_of_another_type_leaves_the_layout_to_the_other_on_gpus(name, dtypes):
    """As measured on a GPU, of which these are fakes."""
    mode, device = fake_mode(), torch.device("cuda")
    mask, x = (new_fake(mode, (2, 3, 4), (0, 1, 0), dtype, device) for dtype in (torch.bool, dtypes[0]))
    y = new_fake(mode, (2, 3, 4), (3, 1, 6), dtypes[1], device)
    with mode:
        assert BESIDE[name](mask, x, y).stride() == (3, 1, 6)


@pytest.mark.parametrize("make", [fake_mode, lambda: symbolic_mode(lambda: None)], ids=["static", "symbolic"])
def test_what_cudnn_samples_by_a_grid(make):
    """Torch has no rule for the operators that `grid_sample` chooses on GPUs."""
    mode, device = make(), torch.device("cuda", 0)
    image, grid = new_fake(mode, (2, 3, 5, 6), (90, 1, 18, 3), torch.float32, device), new_fake(mode, (2, 7, 8, 2), (1, 16, 2, 112), torch.float32, device)
    with symbolic_rules(mode), mode:
        sampled = torch.ops.aten.cudnn_grid_sampler(image, grid)
        gradients = torch.ops.aten.cudnn_grid_sampler_backward(image, grid, sampled)
    assert [t.shape for t in (sampled, *gradients)] == [(2, 3, 7, 8), image.shape, grid.shape]
    assert all(t.is_contiguous() and t.device == device for t in (sampled, *gradients))
