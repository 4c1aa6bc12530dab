"""Strides of results on fakes are eager's, whatever the layout of the operands: views of a result, and what the caller gets, go by them."""

from __future__ import annotations

import functools
import itertools
import math
import random
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


ODD = (
    ((1, 1, 8, 1), (8, 1, 1, 1)),
    ((2, 1, 4, 1), (4, 1, 1, 1)),
    ((1, 4), (1, 1)),
    ((3, 1, 1, 2), (2, 1, 1, 1)),
    ((1, 3, 1, 1), (1, 1, 1, 1)),
    ((4, 1), (1, 7)),
)
"""Sizes, and strides of which those of dimensions of one element are none that a new tensor has."""


def odd_operands(op: Any, size: tuple[int, ...], stride: tuple[int, ...]) -> list[Any]:
    """For the operands of an operation, up to its options; a NotImplementedError where it takes others."""
    found: list[Any] = []
    for i, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.kwarg_only or (i and argument.has_default_value() and "Tensor" not in kind):
            break
        if "List" in kind or "str" in kind:
            raise NotImplementedError
        found.append((torch.rand(64) / 2 + 0.25).as_strided(size, stride) if "Tensor" in kind else 1 if kind in ("int", "bool") else 0.5)
    return found


def test_pointwise_operations_over_dimensions_of_one_element_with_any_strides():
    """`ldexp` computes powers of two first, and copies keep more."""
    compared = 0
    for packet in (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)):
        for op in (getattr(packet, name) for name in packet.overloads()) if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            if op._schema.is_mutable or torch.Tag.pointwise not in op.tags or packet in (torch.ops.aten.ldexp, torch.ops.aten._conj_physical):
                continue
            for size, stride in ODD:
                operands = what_it_gives(odd_operands, op, size, stride)
                made = what_it_gives(op, *operands) if operands is not None else None
                if not isinstance(made, torch.Tensor):
                    continue
                mode = fake_mode()
                fakes = [fake_of(mode, x) if isinstance(x, torch.Tensor) else x for x in operands]
                with mode:
                    assert op(*fakes).stride() == made.stride(), (str(op), size, stride)
                compared += 1
    assert compared > 900


SEVERAL = (
    lambda a, b: a + b, lambda a, b: a * 2, lambda a, b: torch.where(a > 0.5, a, b), lambda a, b: a.sin(), lambda a, b: torch.clamp(a, 0.1, 0.9),
    lambda a, b: torch.addcmul(a, b, a), lambda a, b: a.relu() - b, lambda a, b: a.exp().pow(2),
)  # fmt: skip


def test_operands_of_random_strides_and_dimensions_of_one_element():
    """Permuted, expanded, broadcast, and with any stride where a dimension has one element; odd seeds have operands of several types."""
    compared = 0
    for seed in range(1500):
        pick = random.Random(seed)
        whole = [pick.choice([1, 1, 2, 3]) for _ in range(pick.choice([2, 3, 4, 4, 4, 5]))]

        kinds = [torch.float32, torch.float64, torch.float16, torch.int64] if seed % 2 else [torch.float32]

        def operand(pick: random.Random = pick, whole: list[int] = whole, kinds: list[torch.dtype] = kinds) -> torch.Tensor:
            size = [1 if pick.random() < 0.15 else extent for extent in whole][pick.random() < 0.2 :]
            stride, step = [0] * len(size), 1
            for d in pick.sample(range(len(size)), len(size)):
                stride[d] = step if size[d] != 1 or pick.random() < 0.5 else pick.choice([1, step, 7, whole[0]])
                step *= size[d]
            if pick.random() < 0.15:
                stride[pick.randrange(len(size))] = 0
            return torch.rand(4000).mul(3).to(pick.choice(kinds)).as_strided(size, stride)

        call, given = pick.choice(SEVERAL), [operand(), operand()]
        made = what_it_gives(call, *given)
        if made is None:
            continue
        mode = fake_mode()
        fakes = [fake_of(mode, x) for x in given]
        with mode:
            assert call(*fakes).stride() == made.stride(), (seed, SEVERAL.index(call), [(tuple(x.shape), x.stride()) for x in given])
        compared += 1
    assert compared > 1000


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
    "what-two-memory-formats-hold-joined-to-what-is-new": (
        lambda x: (torch.cat([x, x.sin(), x * 2], 1).clone().flatten(), torch.cat([x, x.sin()], 1)[..., ::2].fill_(0.25))[0],
        torch.rand(8).as_strided((1, 1, 8, 1), (8, 1, 1, 1)),
    ),
    "norms-over-dimensions-of-one-element": (lambda x: x / (x[..., None].norm(dim=-1) + x[:1, :1].half().norm().float()), torch.rand(3, 4)),
    "weights-of-one-pixel-under-a-norm": (
        lambda v: torch._weight_norm(v, torch.ones(8, 1, 1, 1), 0) + torch.zeros(1, 8, 1, 1),
        torch.rand(64).as_strided((8, 8, 1, 1), (8, 1, 8, 8)),
    ),
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


OF_OTHERS = {
    "prelu": lambda x, g: torch.ops.aten._prelu_kernel(x, x[:, :, :1, :1]),
    "gradient of hardswish": lambda x, g: torch.ops.aten.hardswish_backward(g, x),
    "gradient of log_sigmoid": lambda x, g: torch.ops.aten.log_sigmoid_backward(g, x, x),
    "gradient of mse_loss": lambda x, g: torch.ops.aten.mse_loss_backward(g, x, x, 0),
    "gradient of huber_loss": lambda x, g: torch.ops.aten.huber_loss_backward(g, x, x, 0, 0.5),
    "gradient of log_softmax": lambda x, g: torch.ops.aten._log_softmax_backward_data(g, x, 1, torch.float32),
    "binary_cross_entropy": lambda x, g: torch.nn.functional.binary_cross_entropy(x, x, reduction="none"),
    "gradient of binary_cross_entropy": lambda x, g: torch.ops.aten.binary_cross_entropy_backward(g, x, x, None, 0),
    "samples of gamma": lambda x, g: torch._standard_gamma(x),
}
"""Not called pointwise by torch, whose rules for fakes lay results out otherwise."""


@pytest.mark.parametrize("name", OF_OTHERS)
def test_operations_with_layouts_of_their_own(name):
    x, g = of_one_image(torch.rand(2, 8, 4, 6)), torch.rand(1, 8, 4, 6)
    for given in ((x, x), (x, g), (g, x), (x, of_one_image(g).to(memory_format=torch.channels_last))):
        mode = fake_mode()
        with mode:
            got = OF_OTHERS[name](*(fake_of(mode, t) for t in given))
        assert got.stride() == OF_OTHERS[name](*given).stride(), [t.stride() for t in given]
