"""Interpolations of lines whose lengths are symbols: values and strides of eager's, whatever the layout of the argument."""

import pytest
import torch
import torch.nn.functional as F

import dynacompile

LAYOUTS = {
    "contiguous": lambda t: t,
    "channels outermost": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "channels innermost": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"options": {"reference": True}}], ids=["eager", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "mode, size",
    [("nearest", {"scale_factor": 2}), ("nearest", {"size": 5}), ("nearest-exact", {"size": 11}), ("linear", {"scale_factor": 2.0})],
    ids=["nearest, by a factor", "nearest", "nearest-exact", "linear"],
)
def test_strides_are_eagers(mode, size, layout, options):
    def f(x):
        made = F.interpolate(x, mode=mode, **size)
        return made, made.stride(), made.is_contiguous()

    compiled = dynacompile.compile(f, isolate_recompiles=True, **options)
    for length in (8, 6):
        x = LAYOUTS[layout](torch.randn(2, 3, length))
        dynacompile.mark_dynamic(x, 2)
        got, want = compiled(x), f(x)
        assert got[0].stride() == want[0].stride() and got[1:] == want[1:]
        assert torch.allclose(got[0], want[0], atol=1e-5)
