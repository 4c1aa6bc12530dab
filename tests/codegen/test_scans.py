"""Kernels with scans: numbers of the Triton text (by Triton's interpreter) and of the C++ text against an oracle, what the text promises, and cubins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynacompile.build.pool import shared_pool
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton
from dynacompile.codegen.cpp import emit_kernel as emit_cpp
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import VerifyError
from dynacompile.ir.loops import Nest, Op, Scan, verify_body
from tests.asked import asked
from tests.codegen.interpreted import interpret

from .cpp_running import Library
from .scan_cases import BOTH_WAYS, ONE_WAY, both_ways, every_kind, sampled
from .triton_cases import F32, Build, assert_same, oracle, storages

ENV = Env(CompileConfig(workers=2), lambda event: None, "test", -1, Path("unused"))
CASES = ONE_WAY | BOTH_WAYS


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[dict, dict]]:
    """For each case what it is given, and what the oracle stores."""
    found = {}
    for seed, (name, make) in enumerate(CASES.items()):
        kernel = make()
        given = storages(kernel, seed)
        stored = {k: t.clone() for k, t in given.items()}
        oracle(kernel, stored)
        found[name] = given, stored
    return found


@pytest.fixture(scope="module")
def interpreted(request, tmp_path_factory, expected) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("triton")
    names = {case["name"] for case in asked(request, "test_numbers_of_triton")}
    wanted = {name: (seed, make) for seed, (name, make) in enumerate(CASES.items()) if name in names}
    jobs = []
    for name, (seed, make) in wanted.items():
        source = emit_kernel(make(), ENV)
        choice = seed % len(source.candidates)
        jobs.append((source.text, source.entry, dict(source.candidates[choice].blocks), source.grids[choice], [t.clone() for t in expected[name][0].values()]))
    results = interpret(jobs, folder, timeout=600)
    return {name: dict(zip(expected[name][0], got, strict=True)) for name, got in zip(wanted, results, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_triton(interpreted, expected, name):
    assert_same(interpreted[name], expected[name][1])


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    return Library({name: make() for name, make in ONE_WAY.items()}, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", ONE_WAY)
def test_numbers_of_cpp(library, expected, name):
    given, stored = expected[name]
    got = {k: t.clone() for k, t in given.items()}
    library(name, list(got.values()))
    assert_same(got, stored)


def test_short_rows_are_one_block_and_long_ones_carry_what_a_block_leaves():
    short, long = emit_kernel(every_kind(4096, 1024), ENV).text, emit_kernel(every_kind(4096, 65536), ENV).text
    assert "for start" not in short and "_left" not in short
    assert long.count("for start in range") == 1 and long.count("tl.load(x_ptr") == 1, "one pass over memory"
    back = emit_kernel(every_kind(4096, 65536, True), ENV).text
    assert "for turn in range(0, 65536 - (0), RBLOCK):" in back and "start = 0 + (65536 - 1 - (0)) // RBLOCK * RBLOCK - turn" in back


def test_a_running_extremum_and_its_place_are_one_scan():
    text = emit_kernel(every_kind(64, 128), ENV).text
    assert text.count("tl.associative_scan(") == 3, "the greatest with its place, the place of the least, and the logarithms"


def test_a_scan_joins_the_reductions_of_its_row():
    assert emit_kernel(sampled(64, 1024), ENV).text.count("tl.load(x_ptr") == 1


def test_scans_both_ways_need_a_block_that_takes_in_the_row():
    text = emit_kernel(both_ways(64, 4096), ENV).text
    assert "for start" not in text and "for turn" not in text
    with pytest.raises(VerifyError, match="scans both ways in one pass"):
        emit_cpp(both_ways(64, 100), ENV)


def test_what_is_no_scan_is_refused():
    b = Build("flags", (4,), (8,))
    v = b.lt(b.const(0.0), b.load("x", F32, b.at(8, 1)))
    axes = every_kind(4, 8).nest.axes
    for op in (Op("scan", (v,), torch.bool, Scan("sum")), Op("scan", (v - 1,), F32, Scan("mean")), Op("scan", (v - 1,), F32, Scan("argmax"))):
        with pytest.raises(VerifyError):
            verify_body("test", Nest("flags", axes, (*b.body, op)))


@pytest.mark.further
def test_cubins(tmp_path):
    names = ("rows_1100", "long_rows_from_end", "columns_300", "rows_of_float64", "anew_long", "sampled_long", "both_ways")
    try:
        built = build_triton({name: emit_kernel(CASES[name](), ENV) for name in names}, ENV, Store(tmp_path))
    finally:
        shared_pool(2).close()
        shared_pool.cache_clear()
    assert all(built[name].cubin[:4] == b"\x7fELF" for name in names)
