"""Types of results under autocast on GPUs, as capture finds them: eager's, also of operators that ATen composes of others, which autocast casts."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dynacompile.errors import Unsupported
from tests.faked_gpus import types_on_gpus

HALF, SINGLE = torch.bfloat16, torch.float32
IMAGE, MAPS = torch.ones(2, 3, 6, 8), torch.ones(2, 2, 3)
RESULTS = {
    "product": (lambda x, maps: maps @ maps.mT, HALF),
    "sum": (lambda x, maps: x.half().sum(1), SINGLE),
    "resized to sizes": (lambda x, maps: F.interpolate(x.half(), (3, 4)), SINGLE),
    "resized by factors": (lambda x, maps: F.interpolate(x.half(), scale_factor=0.5, mode="bilinear"), SINGLE),
    "grid": (lambda x, maps: F.affine_grid(maps, x.shape, align_corners=False), HALF),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_under_autocast(name, dynamic):
    function, wanted = RESULTS[name]
    assert types_on_gpus(function, (IMAGE, MAPS), dynamic=dynamic) == [wanted]


INSIDE = {
    "trace": lambda x: x.flatten(1).half().trace() * 2,
    "ldexp": lambda x: torch.ldexp(x.half(), torch.tensor(2)),
    "mvlgamma": lambda x: (x.half() + 3).mvlgamma(2),
    "pinverse": lambda x: x.flatten(1).pinverse(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_autocast_casts_inside_of_a_kernel_is_left_to_python(name):
    with pytest.raises(Unsupported, match="autocast casts"):
        types_on_gpus(INSIDE[name], (IMAGE,))


def test_resizing_of_static_sizes_beside_symbols():
    """As in a module that counts its calls: torch's rules for symbolic sizes take the operator apart before autocast comes to it."""

    def resized(x, steps):
        return F.interpolate(x.half(), scale_factor=0.5) * steps, x + steps

    assert types_on_gpus(lambda x: resized(x, 2), (IMAGE,)) == [SINGLE, SINGLE]
    assert types_on_gpus(resized, (IMAGE, 3), options={"varying": ("steps",)}) == [SINGLE, SINGLE]
