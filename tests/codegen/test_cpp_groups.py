"""Kernels that reduce over groups of neighbours which are too few for lanes: the channels of a group norm, channels last."""

from __future__ import annotations

import pytest
import torch

from dynacompile.codegen.cpp.plan import Choice, plan
from dynacompile.codegen.cpp.prepare import prepare
from dynacompile.ir.schedule import Kernel

from .cpp_running import Library
from .triton_cases import BF16, F32, Build, assert_same, oracle, storages


def normed(images: int, groups: int, pixels: int, channels: int, dtype: torch.dtype = F32) -> Kernel:
    """A group norm with weights, whose means are stored as well: x0 image, x1 group; r0 pixel, r1 channel of a group."""
    b = Build("normed", (images, groups), (pixels, channels))
    row = groups * channels
    place = b.at(pixels * row, channels, row, 1)
    v = b.load("x", dtype, place)
    count = b.const(pixels * channels)
    mean = b.truediv(b.reduce("sum", v), count)
    d = b.sub(v, mean)
    scale = b.rsqrt(b.add_(b.truediv(b.reduce("sum", b.mul(d, d)), count), b.const(1e-5)))
    b.store("out", dtype, place, b.mul(b.mul(d, scale), b.load("weight", F32, b.at(0, channels, 0, 1))))
    b.store("mean", F32, b.at(groups, 1, 0, 0), mean)
    return b.kernel()


def scaled(images: int, groups: int, pixels: int, channels: int) -> Kernel:
    """Sums and extremes of elements times their group's factor: a value of the group is read in the lanes of each of its channels."""
    b = Build("scaled", (images, groups), (pixels, channels))
    row = groups * channels
    v = b.load("x", F32, b.at(pixels * row, channels, row, 1))
    v = b.mul(v, b.tanh(b.load("factor", F32, b.at(groups, 1, 0, 0))))
    for kind in ("sum", "max", "min"):
        b.store(kind, F32, b.at(groups, 1, 0, 0), b.reduce(kind, v))
    return b.kernel()


def apart(images: int, groups: int, pixels: int, channels: int) -> Kernel:
    """Sums of each channel's differences from its group's mean: x0 image, x1 group, x2 channel of a group; r0 pixel."""
    b = Build("apart", (images, groups, channels), (pixels,))
    row = groups * channels
    v = b.sub(b.load("x", F32, b.at(pixels * row, channels, 1, row)), b.load("mean", F32, b.at(groups, 1, 0, 0)))
    b.store("sum", F32, b.at(row, channels, 1, 0), b.reduce("sum", v))
    b.store("squares", F32, b.at(row, channels, 1, 0), b.reduce("sum", b.mul(v, v)))
    return b.kernel()


def shifted(images: int, groups: int, pixels: int, channels: int) -> Kernel:
    """Differences from a group's mean, times a channel's weight: x0 image, x1 pixel, x2 group, x3 channel of a group."""
    b = Build("shifted", (images, pixels, groups, channels))
    row = groups * channels
    place = b.at(pixels * row, row, channels, 1)
    v = b.sub(b.load("x", F32, place), b.load("mean", F32, b.at(groups, 0, 1, 0)))
    b.store("out", F32, place, b.mul(v, b.load("weight", F32, b.at(0, 0, channels, 1))))
    return b.kernel()


SHAPES = ((2, 8, 100, 8), (3, 5, 40, 8), (1, 12, 33, 3), (2, 150, 20, 7), (2, 4, 64, 16), (4, 64, 3000, 4))
SINGLY = {
    **{
        f"apart_{'_'.join(map(str, shape))}": lambda shape=shape: apart(*shape) for shape in ((2, 32, 100, 10), (3, 5, 40, 8), (1, 12, 33, 3), (1, 32, 5000, 2))
    },
    **{
        f"shifted_{'_'.join(map(str, shape))}": lambda shape=shape: shifted(*shape)
        for shape in ((2, 32, 100, 10), (3, 5, 40, 8), (1, 12, 33, 3), (1, 32, 5000, 2))
    },
}
CASES = {
    **{f"normed_{'_'.join(map(str, shape))}": lambda shape=shape: normed(*shape) for shape in SHAPES},
    **{f"scaled_{'_'.join(map(str, shape))}": lambda shape=shape: scaled(*shape) for shape in SHAPES},
    "normed_bf16": lambda: normed(2, 8, 100, 8, BF16),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: make() for name, make in {**CASES, **SINGLY}.items()}, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", [*CASES, *SINGLY])
def test_numbers(library, name):
    kernel = {**CASES, **SINGLY}[name]()
    tensors = storages(kernel, [*CASES, *SINGLY].index(name))
    expected = {k: t.clone() for k, t in tensors.items()}
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    assert_same(tensors, expected)


@pytest.mark.parametrize("name", CASES)
def test_whole_rows_of_channels_are_in_the_lanes(library, name):
    """Every pass over the elements reads neighbours; what belongs to a group is gathered once for a tile, outside of the steps."""
    loops = plan(prepare(CASES[name]().nest))
    assert loops.group > 1 and loops.shape == "column"
    loads = [op for op in loops.nest.body if op.name == "load" and op.attr.buffer in ("x", "weight")]
    assert loads and all(op.attr.index.stride(loops.lane.var) == 1 for op in loads)


@pytest.mark.parametrize("name", SINGLY)
def test_what_a_group_has_is_gathered_once_for_all_steps(name):
    """Elements that are reduced apart, or not at all, fill the lanes with those of other groups."""
    loops = plan(prepare(SINGLY[name]().nest))
    assert loops.group == 1 and loops.shape == "column"
    for op in loops.nest.body:
        if op.name == "load":
            gathered = op.attr.buffer == "mean"
            assert (op.attr.index.stride(loops.lane.var) is None) == gathered and (
                not gathered or not op.attr.index.variables() & {a.var for a in loops.middle}
            )


@pytest.mark.parametrize("tile", [64, 256, 1024])
def test_tiles_hold_whole_groups(tile):
    loops = plan(prepare(normed(2, 300, 40, 7).nest), Choice(tile=tile))
    assert loops.group == 7 and loops.tile % 7 == 0


@pytest.mark.parametrize("shape", [(2, 8, 8, 8), (2, 2, 100, 4), (2, 8, 100, 40)], ids=["few pixels", "short rows", "long groups"])
def test_others_are_rows_or_columns_of_their_own(shape):
    assert plan(prepare(normed(*shape).nest)).group == 1


def test_positions_are_not_combined():
    b = Build("places", (2, 8), (100, 8))
    b.store("place", torch.int64, b.at(8, 1, 0, 0), b.reduce("argmax", b.load("x", F32, b.at(6400, 8, 64, 1)), torch.int64))
    assert plan(prepare(b.kernel().nest)).group == 1
