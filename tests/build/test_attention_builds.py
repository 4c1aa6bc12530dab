"""The kernels of flex_attention at the sizes of models become cubins for Hopper, without a GPU, whose first tile fits the memory of a processor.

As a program, `python -m tests.build.test_attention_builds`, it builds all tiles of all rows, and tells what each takes.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dynacompile
from dynacompile.build.autotune import named
from dynacompile.build.store import Store
from dynacompile.build.triton import build_candidates
from dynacompile.codegen.triton.attention import emit_attention
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.events import AttentionFound, KernelRefused
from dynacompile.ir.schedule import KernelSource
from tests.attention_kernels import only_noted


@dataclass(frozen=True)
class Row:
    """score: which function changes the scores. masked: a window of keys, by blocks. groups: heads of keys."""

    width: int
    dtype: torch.dtype
    score: str = ""
    masked: bool = True
    tokens: int = 1024
    heads: int = 8
    groups: int = 8

    def __str__(self) -> str:
        mask = "window" if self.masked else "all"
        return f"{str(self.dtype).removeprefix('torch.')}, {self.heads}/{self.groups}x{self.tokens}x{self.width}, {mask}, {self.score or 'scores as they are'}"


def rows() -> list[Row]:
    made = [Row(width, dtype, score) for width in (64, 128) for dtype in (torch.bfloat16, torch.float32) for score in ("falling", "table")]
    made += [Row(64, torch.float16, "bias", groups=2), Row(64, torch.bfloat16, masked=True), Row(64, torch.bfloat16, "falling", False, 1000)]
    made += [Row(80, torch.bfloat16, "falling", tokens=1001), Row(256, torch.bfloat16, "falling"), Row(256, torch.float32, "falling")]
    return [*made, Row(512, torch.bfloat16, "falling"), Row(512, torch.float32, "falling")]


def window(b, h, q, k):
    return (q >= k) & (q - k < 256)


@functools.cache
def sources(row: Row) -> dict[str, KernelSource]:
    """The kernels of a step of training, by template."""
    operands = [torch.zeros(1, n, row.tokens, row.width, dtype=row.dtype, requires_grad=True) for n in (row.heads, row.groups, row.groups)]
    table = torch.zeros(row.heads, 2 * row.tokens, requires_grad=True)
    bias = torch.zeros(row.heads, 1, row.tokens, requires_grad=True)

    def falling(score, b, h, q, k):
        return score - 0.05 * (h + 1) * (q - k)

    def by_table(score, b, h, q, k):
        return score + table[h, q - k + row.tokens]

    def by_bias(score, b, h, q, k):
        return 20.0 * torch.tanh((score + bias[h, 0, k]) / 20.0)

    score = {"": None, "falling": falling, "table": by_table, "bias": by_bias}[row.score]
    mask = create_block_mask(window, None, None, row.tokens, row.tokens, device="cpu") if row.masked else None
    events: list = []
    dynacompile.reset()
    with warnings.catch_warnings(), only_noted() as kernels:
        warnings.simplefilter("ignore")
        call = dynacompile.compile(
            lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=row.groups != row.heads),
            isolate_recompiles=True,
            options={"attention_scores": 0, "fallback": "none", "reference": True},
        )
        end = dynacompile.subscribe(events.append)
        made = call(*operands)
        torch.autograd.grad(made, [*operands, *({"table": [table], "bias": [bias]}.get(row.score, []))], torch.ones_like(made))
        end()
    assert [e.ours for e in events if isinstance(e, AttentionFound)] == [True]
    return {k.call.template: emit_attention(k) for k in kernels if k.call is not None}


def has_tiles_of_another(row: Row) -> bool:
    """Scores do not choose tiles: rows of the same width and type with a table, which their kernels read and add to, have the same."""
    return row.score == "falling" and any(other == replace(row, score="table") for other in rows())


def test_rows_that_only_make_further_builds_have_the_tiles_of_others():
    left_out = [row for row in rows() if has_tiles_of_another(row)]
    assert len(left_out) == 4
    for row in left_out:
        ours, others = ({name: source.candidates for name, source in sources(each).items()} for each in (row, replace(row, score="table")))
        assert ours == others


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.further if has_tiles_of_another(row) else ()) for row in rows()], ids=str)
def test_first_tiles_are_built(row, tmp_path):
    events: list = []
    env = Env(CompileConfig(workers=2), events.append, "test", -1, tmp_path)
    found = sources(row)
    assert set(found) == {"attention", "attention_query_gradient", "attention_key_gradient"}
    built = build_candidates(found, [(name, 0) for name in found], env, Store(tmp_path / "binaries"))
    assert [(e.candidate, e.error) for e in events if isinstance(e, KernelRefused)] == []
    assert len(built) == len(found)


def main() -> int:
    refused = 0
    for row in rows():
        print(row)
        with tempfile.TemporaryDirectory() as folder:
            events: list = []
            env = Env(CompileConfig(workers=2), events.append, "test", -1, Path(folder))
            found = sources(row)
            wanted = [(name, i) for name, source in found.items() for i in range(len(source.candidates))]
            built = build_candidates(found, wanted, env, Store(Path(folder) / "binaries"))
        for name, i in wanted:
            candidate, kernel = found[name].candidates[i], built.get((name, i))
            told = "REFUSED" if kernel is None else f"{kernel.shared >> 10} KiB"
            print(f"    {name:26s} {named(candidate)} stages={candidate.stages}: {told}", flush=True)
        told = [e for e in events if isinstance(e, KernelRefused)]
        refused += len(told)
        print("".join(f"    {e.kernel} {e.candidate}: {e.error}\n" for e in told), end="", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
