"""Nests that add to memory at places that are values: C++ kernels against sums one after the other, bit by bit.

To renew the golden after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/codegen/test_adding.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dynacompile.codegen.cpp import emit_kernel
from dynacompile.codegen.reference import run_kernel
from dynacompile.codegen.triton import emit_kernel as emit_triton
from dynacompile.errors import VerifyError
from dynacompile.ir.index import Index, Symbol, Var, atom
from dynacompile.ir.schedule import Kernel
from tests.codegen.interpreted import interpret
from tests.lower.tracing import ENV

from .cpp_running import ENV as CPP
from .cpp_running import Library
from .product_cases import plan_on_gpu
from .triton_cases import F32, F64, I32, I64, Build

GOLDEN = Path(__file__).parent / "golden" / "add_rows.cpp"
INTEGERS = (torch.uint8, torch.int8, torch.int16, I32, I64)


Sizes = tuple[int, ...]


def adding(x: Sizes, r: Sizes, at: Sizes, into: Sizes, count: int, step: int, dtype: torch.dtype = F32, turned: bool = False) -> Kernel:
    """out[place * step + into] += value * value, where 0 <= place < count. at: strides of the places over the axes; into: those of the other places.
    turned: values lie in memory with the x axes innermost."""
    b = Build("add", x, r)
    strides, total = [], 1
    for n in reversed((*x, *r)):
        strides.append(total)
        total *= n
    if turned:
        strides = [x[0], 1]
    place = b.load("places", I64, b.at(*at))
    v = b.load("values", dtype, b.at(*reversed(strides)))
    inside = b.and_(b.le(b.const(0, I64), place), b.lt(place, b.const(count, I64)))
    b.store("out", dtype, atom(Var(f"%{place}", count)) * step + b.at(*into), b.mul(v, v), inside, added=True)
    return b.kernel()


CASES = {
    "rows": lambda dtype=F32: adding((70,), (3000,), (0, 1), (1, 0), 9, 70, dtype, turned=True),
    "columns": lambda dtype=F32: adding((70,), (3000,), (0, 1), (1, 0), 9, 70, dtype),
    "rows_of_parts": lambda dtype=F32: adding((8, 33), (300,), (0, 0, 1), (9 * 33, 1, 0), 9, 33, dtype),
    "within_rows": lambda dtype=F32: adding((40,), (999,), (999, 1), (30, 0), 30, 1, dtype),
    "elements_of_columns": lambda dtype=F32: adding((50,), (700,), (1, 50), (1, 0), 20, 50, dtype),
    "flat": lambda dtype=F32: adding((), (5000,), (1,), (0,), 100, 1, dtype),
    "one_place": lambda dtype=F32: adding((), (5000,), (0,), (0,), 1, 1, dtype),
    "no_duplicates": lambda dtype=F32: adding((3000,), (), (0,), (1,), 3, 3000, dtype),
}
ALL = {
    **CASES,
    **{f"{name}_{str(d).removeprefix('torch.')}": lambda name=name, d=d: CASES[name](d) for name in ("rows", "flat") for d in (F64, *INTEGERS)},
}


def tensors_of(kernel: Kernel) -> list[torch.Tensor]:
    """Values, places of which some lie outside, and memory that holds something."""
    generator = torch.Generator().manual_seed(3)
    made = {}
    points = 1
    for a in kernel.nest.axes:
        points *= a.size
    for p in kernel.params:
        if p.name == "places":
            made[p.name] = torch.randint(-3, 40, (points,), generator=generator)
            made[p.name][::50] = 2**40
        elif p.dtype.is_floating_point:
            made[p.name] = torch.randn(max(points, 9000), generator=generator).to(p.dtype)
        else:
            made[p.name] = torch.randint(-100, 100, (max(points, 9000),), generator=generator).to(p.dtype)
    return [made[p.name] for p in kernel.params]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: make() for name, make in ALL.items()}, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", ALL)
def test_sums_are_made_in_order(library, name):
    kernel = ALL[name]()
    before = torch.get_num_threads()
    want = tensors_of(kernel)
    run_kernel(kernel, want)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        got = tensors_of(kernel)
        library(name, got)
        assert all(map(torch.equal, got, want)), threads
    torch.set_num_threads(before)


def test_golden(library):
    text = library.texts["rows"]
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("name", ["within_rows", "flat"])
def test_places_that_differ_between_lanes_are_scalars(library, name):
    """A place, its condition and a cheap value are loaded for each lane; none is taken out of a vector."""
    inner = library.texts[name].partition("each_lane<W>(")[2].partition("}, on);")[0]
    assert "value(places[" in inner and "value(values[" in inner and "[l]" not in library.texts[name] and "load<W>(" not in library.texts[name]


def test_costly_values_are_computed_in_vectors(library):
    b = Build("add", (), (5000,))
    place, v = b.load("places", I64, b.at(1)), b.sin(b.load("values", F32, b.at(1)))
    b.store("out", F32, Index() + atom(Var(f"%{place}", 100)), v, added=True)
    text = emit_kernel(b.kernel(), CPP).text
    inner = text.partition("each_lane<W>(")[2].partition("}, on);")[0]
    assert "load<W>(values" in text and "value(places[" in inner and f"sin_{v}[l]" in inner


def test_steps_that_add_nothing_are_left_out(library):
    """One decision for all lanes, before anything is computed."""
    before, found, _ = library.texts["rows"].partition("if (!and_6) continue;")
    assert found and "each<W>(" not in before


def test_text_and_digest_tell_adding_from_storing():
    kernel = CASES["rows"]()
    assert "store add out" in kernel.nest.text()
    b = Build("add", (70,))
    b.store("out", F32, b.at(1), b.load("x", F32, b.at(1)))
    c = Build("add", (70,))
    c.store("out", F32, c.at(1), c.load("x", F32, c.at(1)), added=True)
    assert b.kernel().digest() != c.kernel().digest()


def test_every_x_axis_names_elements_of_its_own():
    with pytest.raises(VerifyError, match="adds to the same element for all of"):
        adding((70,), (30,), (0, 1), (0, 0), 9, 70)


def test_memory_that_is_added_to_is_not_read_elsewhere():
    b = Build("add", (70,))
    b.store("out", F32, b.at(1), b.load("out", F32, b.at(1)), added=True)
    with pytest.raises(VerifyError, match="which the nest accesses elsewhere"):
        b.kernel()


ON_GPUS = {name: make for name, make in ALL.items() if make().params[-1].dtype in (F32, F64, I32, I64)}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """What Triton's interpreter makes of each case, whose kernel adds by atomic operations."""
    folder = tmp_path_factory.mktemp("triton")
    sources = {name: emit_triton(make(), ENV) for name, make in ON_GPUS.items()}
    jobs = [(s.text, s.entry, dict(s.candidates[0].blocks), s.grids[0], tensors_of(s.kernel)) for s in sources.values()]
    return dict(zip(sources, interpret(jobs, folder), strict=True))


@pytest.mark.parametrize("name", ON_GPUS)
def test_gpus_add_by_atomic_operations(interpreted, name):
    kernel = ON_GPUS[name]()
    want = tensors_of(kernel)
    run_kernel(kernel, want)
    for got, expected in zip(interpreted[name], want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("name", "along"), [("rows", "x0"), ("columns", "r0")])
def test_programs_of_gpus_walk_along_what_they_read(name, along):
    """`rows` has values of one r after the other in memory, `columns` those of one x."""
    text = emit_triton(CASES[name](), ENV).text
    assert f"{along} = x % " in text and text.count("tl.atomic_add(") == 1 and "for start" not in text


def test_places_that_are_one_number_count_at_every_point():
    b = Build("add", (), (64,))
    b.store("out", F32, Index() + 2, b.const(1.0), added=True)
    kernel = b.kernel()
    out = torch.zeros(4)
    run_kernel(kernel, [out])
    assert out.tolist() == [0.0, 0.0, 64.0, 0.0]


def test_extents_that_places_are_checked_against_are_arguments():
    rows = Symbol("rows", 9, 2)
    b = Build("add", (70,), (30,))
    place = b.load("places", I64, b.at(0, 1))
    b.store("out", F32, atom(Var(f"%{place}", atom(rows))) * 70 + b.at(1, 0), b.load("values", F32, b.at(1, 70)), added=True)
    kernel = b.kernel()
    assert kernel.nest.symbols() == (rows,)
    assert "(places_ptr, values_ptr, out_ptr, rows, " in emit_triton(kernel, ENV).text


BESIDE = {
    "sums of rows": lambda g, x: (g * x).sum(-1),
    "sums of columns": lambda g, x: (g * x).sum((0, 1)),
    "both": lambda g, x: (g * x).sum(-1, keepdim=True) + (g * x).sum((0, 1)),
    "a scan": lambda g, x: (g * x).cumsum(-1),
    "a softmax": lambda g, x: (g * x).softmax(-1),
    "a norm": lambda g, x: torch.nn.functional.layer_norm(g * x, (64,)),
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("rows", [(2, 64), (64, 2), (1, 300)])
def test_what_adds_on_a_gpu_is_no_part_of_what_sums_or_scans(beside, rows):
    """As the gradient of an embedding beside that of a norm's weight."""

    def backward(g, x, places):
        return torch.ops.aten.embedding_dense_backward(g * x, places, 32, -1, False), BESIDE[beside](g, x)

    args = torch.randn(*rows, 64), torch.randn(*rows, 64), torch.randint(0, 32, rows)
    kernels = plan_on_gpu(backward, args, choose=None).kernels.values()
    assert any(kernel.nest.adds for kernel in kernels)
    for kernel in kernels:
        assert emit_triton(kernel, ENV).text
