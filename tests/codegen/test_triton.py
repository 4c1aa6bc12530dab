"""Emitted Triton kernels: their numbers through Triton's interpreter against the oracle, and what their text promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.index import constant
from dynacompile.lower import lower
from dynacompile.ops.scalars import SCALARS
from dynacompile.schedule import schedule
from tests.asked import asked
from tests.codegen.interpreted import interpret
from tests.lower.tracing import trace

from .triton_cases import (
    BF16,
    CASES,
    F32,
    WALKED,
    Build,
    assert_same,
    chain,
    columns_sum,
    edges,
    layer_norm,
    named_as_called,
    oracle,
    signed_zero,
    softmax,
    storages,
    transpose,
)

ENV = Env(CompileConfig(), lambda event: None, "test", -1, Path("unused"))


@pytest.fixture(scope="module")
def interpreted(request, tmp_path_factory) -> dict[str, tuple[dict, dict]]:
    """For each case, (what the interpreter stored, what the oracle stored); one process for all, since Triton reads its mode at import."""
    folder = tmp_path_factory.mktemp("triton")
    jobs, expected = [], {}
    sources = {name: emit_kernel(make(), ENV) for name, make in CASES.items()} | {name: make() for name, make in WALKED.items()}
    names = {case["name"] for case in asked(request, "test_numbers")}
    wanted = {name: (seed, source) for seed, (name, source) in enumerate(sources.items()) if name in names}
    for name, (seed, source) in wanted.items():
        kernel = source.kernel
        tensors = storages(kernel, seed)
        expected[name] = {k: t.clone() for k, t in tensors.items()}
        oracle(kernel, expected[name])
        choice = seed % len(source.candidates)  # over the cases, every place in the list is run
        jobs.append((source.text, source.entry, dict(source.candidates[choice].blocks), source.grids[choice], list(tensors.values())))
    results = interpret(jobs, folder)
    return {name: (dict(zip(expected[name], got, strict=True)), expected[name]) for name, got in zip(wanted, results, strict=True)}


@pytest.mark.parametrize("name", [*CASES, *WALKED])
def test_numbers(interpreted, name):
    got, expected = interpreted[name]
    assert_same(got, expected)


VARIANCES = [((4096, 1024), 1, 1), ((4096, 2048), 1, 2), ((4096, 768), 1, 1), ((4096, 1024), 0, 2), ((64, 1024), 1, 4)]


@pytest.mark.parametrize(("size", "dim", "warps"), VARIANCES, ids=str)
def test_few_warps_exchange_the_two_sums_of_a_variance(size, dim, warps):
    """One warp holds a row of 1024 values and exchanges nothing through shared memory; of few rows, more warps take one."""
    program = lower(trace(lambda x: x.var(dim), [torch.empty(size)]), ENV)
    on_device = {name: replace(buffer, device=torch.device("cuda", 0)) for name, buffer in program.buffers.items()}
    kernel = next(iter(schedule(replace(program, buffers=on_device), ENV).kernels.values()))
    source = emit_kernel(kernel, ENV)
    assert source.candidates[0].warps == warps
    assert source.text.count("tl.sum(") + source.text.count("tl.reduce(") == 2


def test_every_scalar_is_run_by_a_case():
    run = {op.name for make in CASES.values() for op in make().nest.body}
    assert set(SCALARS) <= run, sorted(set(SCALARS) - run)


def test_minus_zero_is_no_literal():
    """Triton 3.6 stores 0.0 for the literal -0.0."""
    assert "-0.0" not in emit_kernel(signed_zero(), ENV).text


def test_no_kernel_hides_a_function_that_it_calls():
    source = emit_kernel(named_as_called(), ENV)
    assert source.entry == "remainder_kernel" and "= remainder(" in source.text
    assert source.text.count("def remainder(") == source.text.count("def remainder_kernel(") == 1
    assert emit_kernel(chain(), ENV).entry == "mul_add_sigmoid_gelu"


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_quotients_are_exact_where_their_last_bit_decides(dtype):
    text = emit_kernel(edges(dtype=dtype), ENV).text
    assert "tl.div_rn(" in text and "split_reciprocal" not in text
    assert "tl.div_rn(" not in emit_kernel(softmax(300, 64, dtype), ENV).text.split("@triton.jit")[-1]


def test_text_is_deterministic_and_says_where_it_comes_from():
    one, other = emit_kernel(chain(), ENV), emit_kernel(chain(), ENV)
    assert one.text == other.text
    assert "# model.py:7\n@triton.jit\ndef mul_add_sigmoid_gelu(x_ptr, out_ptr, XBLOCK: tl.constexpr):" in one.text


def test_masks_only_where_a_block_does_not_divide():
    assert "mask" not in emit_kernel(chain(1 << 20), ENV).text
    assert "mask" not in emit_kernel(softmax(64, 512), ENV).text
    ragged = emit_kernel(softmax(64, 500), ENV).text
    assert "rmask" in ragged and "xmask" not in ragged
    assert "xmask = x < 1000" in emit_kernel(chain(1000), ENV).text


def test_loops_of_exponentials_have_whole_blocks_without_conditions():
    text = emit_kernel(CASES["softmax_padded"](), ENV).text
    whole, end = text.split("for start in ")[1:3]
    assert whole.startswith("range(0, 39961 // RBLOCK * RBLOCK, RBLOCK)") and "< 39961" not in whole and "< 40008" not in whole
    assert end.startswith("range(39961 // RBLOCK * RBLOCK, 40008, RBLOCK)") and "< 39961" in end and "< 40008" in end
    assert "< 35008" in emit_kernel(CASES["softmax_padded_widely"](), ENV).text.split("for start in ")[1], "padding of many blocks is no end of a row"


def test_short_rows_stay_in_registers_and_long_ones_are_walked_once_per_pass():
    assert "for start" not in emit_kernel(softmax(4096, 8192), ENV).text
    assert emit_kernel(softmax(4096, 65536), ENV).text.count("for start") == 2, "maximum and sum in one pass"
    assert emit_kernel(layer_norm(4096, 65536), ENV).text.count("tl.load(x_ptr") == 3
    assert emit_kernel(columns_sum(65536, 1024), ENV).text.count("for start") == 2


def test_transposes_take_two_dimensional_tiles():
    source = emit_kernel(transpose(1024, 1024, 4), ENV)
    assert all(set(c.blocks) == {"YBLOCK", "XBLOCK"} for c in source.candidates)
    assert source.grids[0][0] * source.candidates[0].blocks["XBLOCK"] * source.candidates[0].blocks["YBLOCK"] == 4 * 1024 * 1024


def test_merged_axes_are_walked_by_one_variable():
    b = Build("add", (64, 32, 16))
    b.store("out", F32, b.at(512, 16, 1), b.add_(b.load("x", F32, b.at(512, 16, 1)), b.load("w", F32, b.at(0, 16, 1))))
    text = emit_kernel(b.kernel(), ENV).text
    assert "tl.load(x_ptr + x)" in text and "x1_x2 = x % 512" in text and "tl.load(w_ptr + x1_x2)" in text


def test_indices_beyond_int32_are_64_bit():
    assert "tl.int64" not in emit_kernel(chain(1 << 30), ENV).text
    assert "tl.program_id(0).to(tl.int64)" in emit_kernel(chain(1 << 31), ENV).text
    assert "tl.program_id(0).to(tl.int64)" in emit_kernel(softmax(1 << 20, 4096), ENV).text


def test_the_last_block_is_found_in_64_bits():
    """In 32 bits the place of a block's end beyond them would be negative, and the last block taken for one that lies within the kernel's points."""
    for size in (2**31 - 1, 2**31 + 3, 2**32 + 5):
        source = emit_kernel(chain(size, BF16), ENV)
        assert source.wide
        (line,) = [line for line in source.text.splitlines() if line.strip().startswith("if ")]
        assert line.strip() == f"if (tl.program_id(0).to(tl.int64)) * XBLOCK + XBLOCK <= {size}:"


def test_grids_cover_every_point():
    for make in CASES.values():
        source = emit_kernel(make(), ENV)
        for candidate, grid in zip(source.candidates, source.grids, strict=True):
            points = grid[0] * candidate.blocks.get("XBLOCK", 1) * candidate.blocks.get("YBLOCK", 1)
            assert points >= source.kernel.nest.axes[0].size if source.kernel.nest.x_axes else points >= 1


def test_in_place_stores_wait_until_nothing_reads_again():
    """The residual is updated in place and read in every pass, so its store belongs in the last one."""
    text = emit_kernel(layer_norm(8, 65536), ENV).text
    assert text.rindex("tl.load(res_ptr") < text.index("tl.store(res_ptr")


def test_unsupported_is_named():
    b = Build("complex", (4,))
    b.store("out", torch.complex64, b.at(1), b.load("x", torch.complex64, b.at(1)))
    with pytest.raises(Unsupported, match="triton-dtype"):
        emit_kernel(b.kernel(), ENV)
    b = Build("empty", (0,))
    b.store("out", BF16, constant(0), b.const(1.0))
    with pytest.raises(Unsupported, match="triton-empty"):
        emit_kernel(b.kernel(), ENV)


def test_few_warps_sum_columns_where_many_programs_do():
    """What a warp sums by itself is not exchanged; where there are few programs, all of their warps are wanted."""
    for columns, warps in ((1 << 19, 4), (1 << 12, 8)):
        source = emit_kernel(columns_sum(128, columns), ENV)
        first = source.candidates[0]
        assert first.blocks["RBLOCK"] == 128 and first.warps == warps, first


def test_lines_that_start_anywhere_have_more_values_a_thread():
    even, odd = (emit_kernel(softmax(4096, n), ENV).candidates[0] for n in (4096, 4093))
    assert even.blocks == odd.blocks and even.warps == 2 * odd.warps


def test_lines_of_an_odd_length_are_one_unless_several_values_are_theirs():
    def blocks(length: int, per_line: int) -> set[str]:
        b = Build("scale", (4096, length))
        value = b.load("x", F32, b.at(length, 1))
        for i in range(per_line):
            value = b.mul(value, b.load(f"w{i}", F32, b.at(1, 0)))
        b.store("out", F32, b.at(length, 1), value)
        return set(emit_kernel(b.kernel(), ENV).candidates[0].blocks)

    assert blocks(4096, 1) == blocks(4093, 3) == {"YBLOCK", "XBLOCK"}
    assert blocks(4093, 1) == blocks(1000, 3) == {"XBLOCK"}
