"""Triton kernels of products with their epilogues: numbers through Triton's interpreter against eager, and what their text promises.

To renew the golden after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/codegen/test_triton_products.py
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path

import pytest
import torch

from dynacompile.codegen.reference import run_schedule
from dynacompile.codegen.triton.products import BLOCKS
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import KernelSource, Launch, Schedule
from tests.asked import asked
from tests.codegen.interpreted import interpret

from .product_cases import CASES, Case, fused, on_cpu, with_copies

# MBLOCK, NBLOCK, KBLOCK, GROUP, PROGRAMS, PARTS, TMA
SHAPES = {
    "pointers": (32, 64, 32, 2, 0, 1, 0),
    "walked, in parts": (64, 32, 16, 3, 3, 2, 0),
    "copies": (32, 64, 32, 2, 3, 4, 1),
    "pairs": (32, 32, 32, 2, 3, 2, 2),
}
PAIRED = ("gate and values", "gate and values that stay")
OF_THE_GOLDEN = ("before and after", "copies")
GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = {torch.float8_e4m3fn: 1.6e-2, torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def storage(plan: Schedule, name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Memory of a launch's buffer: an input's, or not yet written."""
    if name in given:
        tensor = given[name]
        return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,)).clone()
    buffer = plan.buffers[name]
    return torch.full((buffer.storage_elements,), float("nan") if buffer.dtype.is_floating_point else 0, dtype=buffer.dtype)


def has_way(name: str, case: Case, way: str) -> bool:
    return name in PAIRED if way == "pairs" else case.copied or way != "copies"


def jobs(wanted: Collection[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], Schedule, Launch, KernelSource, dict[str, int]]]:
    for name in dict.fromkeys(name for name, _ in wanted):
        case = CASES[name]
        plan, launch, source = fused(case)
        source = with_copies(source.kernel)
        assert ("make_tensor_descriptor" in source.text) == case.copied
        for way, shape in SHAPES.items():
            if (name, way) in wanted:
                yield (name, way), plan, launch, source, dict(zip(BLOCKS, shape, strict=True))


@pytest.fixture(scope="module")
def interpreted(request, tmp_path_factory) -> dict[tuple[str, str], tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """For each case and way, (what the interpreter stored, what eager gives), one process for all, since Triton reads its mode at import."""
    folder: Path = tmp_path_factory.mktemp("products")
    cases, places = [], []
    wanted = {OF_THE_GOLDEN, *((case["name"], case["way"]) for case in asked(request, "test_numbers"))}
    for key, plan, launch, source, blocks in jobs(wanted):
        given = dict(zip(plan.inputs, CASES[key[0]].args(), strict=True))
        tensors = [storage(plan, b, given) for b, p in zip(launch.buffers, source.kernel.params, strict=True) if p.mode != "scratch"]
        batch, *matrix = extents(source)
        tiles = batch * prod(-(-n // blocks[b]) for n, b in zip(matrix, ("MBLOCK", "NBLOCK"), strict=True))
        cases.append((source.text, source.entry, blocks, (blocks["PROGRAMS"] or tiles, 1, 1), tensors))
        places.append((key, plan, launch))
    found = {}
    for (key, plan, launch), got in zip(places, interpret(cases, folder), strict=True):
        outputs = [got[launch.buffers.index(name)].as_strided(plan.buffers[name].size, plan.buffers[name].stride) for name in plan.outputs]
        found[key] = (outputs, eager(CASES[key[0]]))
    return found


def extents(source: KernelSource) -> tuple[int, int, int]:
    """Of the batch, rows and columns."""
    sizes = {"b": 1, "m": 1, "n": 1}
    for axis in source.kernel.nest.x_axes:
        sizes[axis.var.name[0]] *= axis.size
    return sizes["b"], sizes["m"], sizes["n"]


def eager(case: Case) -> list[torch.Tensor]:
    result = case.function(*case.args())
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, case in CASES.items() for way in SHAPES if has_way(name, case, way)])
def test_numbers(interpreted, name, way):
    got, wanted = interpreted[name, way]
    for one, other in zip(got, wanted, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=TOLERANCE[CASES[name].dtype], atol=TOLERANCE[CASES[name].dtype] * largest)


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_is_one_launch_and_computes_what_eager_does(name):
    case = CASES[name]
    plan, _, _ = fused(case)
    assert not any(isinstance(s, Extern) for s in plan.steps)
    for one, other in zip(run_schedule(on_cpu(plan), case.args()), eager(case), strict=True):
        assert one is not None and one.stride() == other.stride()
        largest = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=TOLERANCE[case.dtype], atol=TOLERANCE[case.dtype] * largest)


def test_golden(interpreted):
    """The text of a fused product, looked at only after its numbers were eager's."""
    test_numbers(interpreted, *OF_THE_GOLDEN)
    _, _, source = fused(CASES[OF_THE_GOLDEN[0]])
    source = with_copies(source.kernel)
    wanted = GOLDEN / "product.py.txt"
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        wanted.write_text(source.text)
    assert source.text == wanted.read_text()


def test_what_fits_no_descriptor_has_no_copies():
    _, _, source = fused(CASES["sizes that no descriptor takes"])
    source = with_copies(source.kernel)
    assert "make_tensor_descriptor" not in source.text and all(not c.blocks["TMA"] for c in source.candidates)


def test_masks_only_where_blocks_do_not_divide():
    large = Case(lambda x, w: torch.relu(x @ w), ((4096, 512), (512, 4096)))
    _, _, source = fused(large)
    assert "mask" not in source.text and source.candidates[0].blocks["TMA"] and source.candidates[0].blocks["PROGRAMS"]
    _, _, odd = fused(CASES["odd sizes"])
    assert "mmask" in odd.text and "nmask" in odd.text and "- k)" in odd.text


def test_few_tiles_are_no_walk():
    _, _, source = fused(CASES["plain operands"])
    assert all(c.blocks["PROGRAMS"] == 0 for c in source.candidates)
    assert [g[0] for g in source.grids] == [-(-128 // c.blocks["MBLOCK"]) * -(-128 // c.blocks["NBLOCK"]) for c in source.candidates]
