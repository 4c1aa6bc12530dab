"""Triton kernels of flex_attention: numbers through Triton's interpreter against float64, forward and gradients, and what their text promises.

To renew the golden after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/codegen/test_triton_attention.py
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

from dynacompile.codegen.triton.attention_tiles import SHARED, Shape, candidates_for, shared
from tests.asked import asked
from tests.codegen.interpreted import ENVIRONMENT
from tests.forked import TORCH, run

from .attention_cases import CASES

GOLDEN = Path(__file__).parent / "golden" / "attention.py.txt"
READ = (
    "lengths that tiles divide",
    "a window",
    "gradients of queries, keys and all",
    "gradients by relative place",
    "gradients of places from the end",
    "gradients of clamped places",
    "gradients of a bias",
)
"""Cases whose text is read."""
FORWARD, QUERIES, KEYS = "attention", "attention_query_gradient", "attention_key_gradient"


@pytest.fixture(scope="module")
def found(request, tmp_path_factory) -> dict[str, dict]:
    """What became of each case, in one process for all, since Triton reads its mode at import."""
    names = {"golden", *READ, *(case["name"] for case in asked(request, "test_numbers"))}
    path = tmp_path_factory.mktemp("attention") / "found.json"
    done = run(TORCH, "-W", "ignore", "-m", "tests.codegen.attention_cases", str(path), *sorted(names), env=os.environ | ENVIRONMENT, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def kernels(found: dict[str, dict], name: str) -> dict[str, str]:
    """The texts of a case, by kernel."""
    assert "error" not in found[name], found[name]["error"]
    return dict(zip(found[name]["kernels"], found[name]["texts"], strict=True))


@pytest.mark.parametrize("name", CASES)
def test_numbers(found, name):
    texts, program = kernels(found, name), CASES[name]
    assert found[name]["ours"] == [True]
    wants_scores = program.wanted[0] or (program.wanted_reads and any(step in ("bias", "table") for step in program.steps))
    wanted = {FORWARD, *([QUERIES] if wants_scores else []), *([KEYS] if any(program.wanted[1:]) else [])}
    assert set(texts) == wanted


def test_golden(found):
    """The text of all three kernels, looked at only after their numbers were right."""
    text = re.sub(r"(\.py):\d+", r"\1", "\n\n".join(kernels(found, "golden").values()))  # lines of the fuzzer's file, which move
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_what_tiles_divide_has_no_masks(found):
    for text in kernels(found, "lengths that tiles divide").values():
        assert "mask=" not in text and "_inside" not in text
    for text in kernels(found, "a window").values():
        assert "m_inside" in text and "n_inside" in text


def test_blocks_that_are_seen_as_a_whole_have_no_mask(found):
    text = kernels(found, "lengths that tiles divide")[FORWARD]
    body = text[text.index("def attention(") :]
    assert [call.split("count, ")[1].split(",")[0] for call in body.split("attention_walk(")[1:]] == ["True", "False"]


def test_places_are_numbers_of_32_bits(found):
    assert "tl.int64" not in kernels(found, "a window")[FORWARD]


def test_sums_wait_for_the_last_key(found):
    text = kernels(found, "gradients of queries, keys and all")[QUERIES]
    assert text.count("tl.atomic_add") == 4  # one for each tensor
    walk = text[text.index("def attention_query_gradient_walk") :]
    assert "sum0" in walk and "sum1" in walk and "sum2" in walk


def test_places_that_lie_inside_are_not_tested(found):
    for name in ("gradients by relative place", "gradients of places from the end", "gradients of clamped places", "gradients of a bias"):
        assert all("device_assert" not in text for text in kernels(found, name).values()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8, 64, 80, 128, 200, 256, 512])
@pytest.mark.parametrize("template", [FORWARD, QUERIES, KEYS])
def test_tiles_fit_the_shared_memory(template, width, dtype):
    shape = Shape(template, dtype, width, width, (4096, 4096), (128, 128), "ieee")
    found = candidates_for(shape)
    assert found and all(shared(shape, c.blocks["MBLOCK"], c.blocks["NBLOCK"], c.stages) <= SHARED for c in found)
    small = candidates_for(Shape(template, dtype, width, width, (5, 20), None, "ieee"))
    assert {c.blocks["MBLOCK"] for c in small} == {16} and max(c.blocks["NBLOCK"] for c in small) <= 32
