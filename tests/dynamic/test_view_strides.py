"""Strides of views, also of dimensions of one element, are ATen's in graphs, whether sizes are numbers or symbols."""

import random

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.ir.view_fakes import inferred, strides_of_view


def factored(pick, elements):
    """Sizes of as many elements, 1 among them."""
    found = [1] * pick.randint(0, 2)
    while elements > 1:
        n = pick.choice([d for d in range(2, elements + 1) if elements % d == 0])
        found.insert(pick.randrange(len(found) + 1), n)
        elements //= n
    return tuple(found) or (1,)


def test_strides_of_views_are_atens():
    compared = 0
    for seed in range(4000):
        pick = random.Random(seed)
        elements = pick.choice((0, 1, 2, 4, 6, 12, 24, 36))
        shape = factored(pick, elements) if elements else (0, pick.randint(1, 3))
        x = torch.empty(shape).permute(*pick.sample(range(len(shape)), len(shape)))
        if pick.random() < 0.3:
            x = x.as_strided(x.shape, tuple(pick.choice((1, 5, s)) if n == 1 else s for n, s in zip(x.shape, x.stride())))
        size = factored(pick, elements) if elements else (pick.randint(1, 3), 0)
        asked = tuple(-1 if i == 0 and elements and pick.random() < 0.3 else n for i, n in enumerate(size))
        found = strides_of_view(tuple(x.shape), x.stride(), size)
        try:
            want = x.view(asked)
        except RuntimeError:
            assert found is None, (x.shape, x.stride(), size)
            continue
        assert (inferred(x.shape, asked), found) == (tuple(want.shape), want.stride()), (x.shape, x.stride(), asked)
        compared += 1
    assert compared > 1500


SIZES = {"a dimension of one": (1, 16, 1), "as it is": (1, 16), "two of one": (1, 4, 1, 4), "one dimension less": (16,)}


@pytest.mark.parametrize("dynamic", [False, {"x": {2: {}, 3: {}}}], ids=["numbers", "symbols"])
@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_read_of_a_views_strides(sizes, dynamic):
    def read(x):
        seen = x.sin().view(*SIZES[sizes], *x.shape[2:])
        return seen.stride(), seen.transpose(1, 2).stride(), seen.stride(0)

    x = torch.randn(1, 16, 6, 8).to(memory_format=torch.channels_last)
    assert dynacompile.compile(read, dynamic=dynamic, backend="eager", isolate_recompiles=True)(x) == read(x)


NORMS = {"group": lambda x: F.group_norm(x, 4), "batch": lambda x: F.batch_norm(x, None, None, training=True)}
LAYOUTS = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "another stride of the batch": lambda x: x.to(memory_format=torch.channels_last).as_strided(x.shape, (16, 1, 16 * x.shape[3], 16)),
    "every other column": lambda x: torch.cat([x, x], 3).to(memory_format=torch.channels_last)[..., ::2],
    "permuted": lambda x: x.transpose(2, 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
def test_formats_that_norms_choose_for_one_image(norm, layout, dynamic):
    def read(x):
        made = NORMS[norm](x)
        return made.stride(), made.is_contiguous(), made.transpose(1, 3).contiguous().stride()

    x = LAYOUTS[layout](torch.randn(1, 16, 6, 8))
    assert dynacompile.compile(read, dynamic=dynamic, backend="eager", isolate_recompiles=True)(x) == read(x)


def test_views_of_sizes_that_may_be_one():
    """Half of a size that is at least 2 may be 1: a padding chooses its memory format by the stride that the batch of one image has behind a view."""

    def padded(x):
        t = F.max_pool2d(x, 2)
        return F.pad(t.view(t.shape[0], 4, -1).sub(0.1).view(t.shape), (2, 0, 1, 1), mode="replicate")

    compiled = dynacompile.compile(padded, dynamic={"x": {2: {}, 3: {}}}, options={"reference": True}, isolate_recompiles=True)
    for sizes in ((7, 7), (12, 14), (5, 4)):
        x = torch.randn(1, 4, *sizes).to(memory_format=torch.channels_last)
        have, want = compiled(x), padded(x)
        assert have.stride() == want.stride(), sizes
        torch.testing.assert_close(have, want)
