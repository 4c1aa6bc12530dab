"""Images whose sizes are symbols: norms over groups are as few kernels as with numbers, and interpolation is ATen's operator."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from tests.dynamic.varying import check_varying


def image(*size, last=False):
    return torch.randn(size).to(memory_format=torch.channels_last if last else torch.contiguous_format).requires_grad_()


def grouped(x):
    return F.group_norm(x.to(memory_format=torch.channels_last), 8).relu()


@pytest.mark.parametrize("dynamic", [True, {"x": {0: {}, 2: {}, 3: {}}}], ids=["channels, too", "but channels"])
def test_a_norm_over_groups_of_channels_is_one_kernel_each_way(dynamic):
    explained = dynacompile.explain(grouped, dynamic=dynamic, backward=True, options={"reference": True})
    assert explained(image(4, 32, 12, 12)).kernels == 2


@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_of_symbolic_images_are_in_the_graph(size):
    layer = nn.Conv2d(4, 6, size, padding=1)
    check_varying(lambda x: layer(x).relu(), [(image(n, 4, side, side),) for n, side in ((2, 14), (3, 10))], 1, dynamic={"x": {0: {}, 2: {}, 3: {}}})


@pytest.mark.parametrize("groups, channels", [(32, 512), (4, 32), (1, 8)])
def test_variances_whose_chunks_have_symbolic_lengths(groups, channels):
    def norm(x):
        return F.group_norm(x, groups)

    calls = [(image(n, channels, size, size, last=True),) for n, size in ((2, 14), (3, 10))]
    check_varying(norm, calls, 1, backend="default", dynamic={"x": {0: {}, 2: {}, 3: {}}}, options={"reference": True})


def halved(x):
    return F.group_norm(F.avg_pool2d(x.view(x.shape[0], 8, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape), 3, 2, 1), 8)


def padded(x):
    return F.group_norm(F.pad(x, (1, 1, 2, 1)).transpose(2, 3), 4).transpose(2, 3).flatten(1).view(x.shape[0], 4, -1).softmax(-1)


@pytest.mark.parametrize("function", [lambda x: F.group_norm(F.normalize(halved(x), dim=3).transpose(2, 3), 1), padded], ids=["of quotients", "of sums"])
def test_groups_over_sizes_that_are_computed(function):
    calls = [(image(1, 32, *size),) for size in ((28, 6), (12, 10), (8, 28))]
    check_varying(function, calls, 1, backend="default", dynamic={"x": {2: {}, 3: {}}}, options={"reference": True})


INTERPOLATED = {
    "nearest": {"scale_factor": 2},
    "nearest, half": {"scale_factor": (0.5, 1.7)},
    "nearest-exact": {"scale_factor": 1.5},
    "bilinear": {"scale_factor": 1.3, "recompute_scale_factor": True},
    "bilinear, corners": {"scale_factor": 2.0, "align_corners": True},
    "bicubic": {"size": (9, 20)},
    "area": {"scale_factor": 0.6},
}


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolation_is_atens_for_all_sizes(name, last):
    def resize(x):
        return F.interpolate(x, mode=name.partition(",")[0], **INTERPOLATED[name])

    calls = [(image(2, 3, *size, last=last),) for size in ((8, 10), (7, 13), (20, 6))]
    check_varying(resize, calls, 1, backend="aot_eager", dynamic={"x": {2: {}, 3: {}}})
    explained = dynacompile.explain(resize, dynamic=True, options={"reference": True})(calls[0][0])
    assert explained.kernels == 0


def test_interpolation_to_a_symbolic_size():
    calls = [(image(1, 2, 6, 6), image(1, 2, size, 9)) for size in (4, 7, 12)]
    check_varying(lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear") + y, calls, 1, backend="aot_eager", dynamic={"y": {2: {}}})


WRONG = {
    "corners of nearest": {"scale_factor": 2, "align_corners": True},
    "a factor for one of two dimensions": {"scale_factor": (2,), "mode": "bilinear"},
    "sizes and factors": {"size": 4, "scale_factor": 2},
    "neither": {},
    "lines of images": {"size": 4, "mode": "linear"},
    "recomputed sizes": {"size": 4, "recompute_scale_factor": True},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told_as_in_eager(name):
    compiled = dynacompile.compile(lambda x: F.interpolate(x, **WRONG[name]), dynamic=True, isolate_recompiles=True, backend="eager")
    with pytest.raises(Exception) as want:
        F.interpolate(image(1, 2, 6, 6), **WRONG[name])
    with pytest.raises(type(want.value)) as got:
        compiled(image(1, 2, 6, 6))
    assert str(got.value) == str(want.value)


REVERSED = {
    "pooled": lambda x: F.avg_pool2d(x.flip(3), 2),
    "pooled by maxima": lambda x: F.max_pool2d(x.flip(2, 3), 3, 2, 1),
    "to quotients": lambda x: F.adaptive_avg_pool2d(x.flip(2), 2) * x.flip(1).mean((2, 3), keepdim=True),
    "rolled": lambda x: x.flip(3).roll((3, 1), (2, 3)).prod(-1),
    "in parts": lambda x: x.flip(3).unflatten(3, (-1, 2)).sum(-1).repeat_interleave(2, -1) * x,
    "twice as many": lambda x: x.flip(2).repeat_interleave(2, 2).flip(2),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "symbols"])
@pytest.mark.parametrize("name", REVERSED)
def test_what_is_reversed_is_read_at_floors(name, dynamic):
    calls = [(image(2, 3, *size),) for size in ((8, 12), (6, 20))]
    check_varying(REVERSED[name], calls, 1 if dynamic else 2, backend="default", dynamic=dynamic)


class Noted(torch.overrides.TorchFunctionMode):
    def __init__(self):
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def test_modes_and_patches_see_interpolation_of_symbolic_sizes(monkeypatch):
    def resize(x):
        return F.interpolate(x, scale_factor=1.5, mode="bilinear") + 1

    compiled = dynacompile.compile(resize, dynamic=True, isolate_recompiles=True, backend="eager")
    x = image(1, 2, 6, 8)
    with Noted() as eager:
        want = resize(x)
    with Noted() as ours:
        got = compiled(x)
    assert torch.equal(got, want) and ours.seen == eager.seen
    assert torch.equal(compiled(x), want)
    monkeypatch.setattr(F, "interpolate", lambda x, **_: x * 2)
    assert torch.equal(compiled(x), x * 2 + 1)
