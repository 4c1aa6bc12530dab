"""flex_attention for the tests of its Triton kernels. As a program, `python -m tests.codegen.attention_cases FILE`, it runs all cases through Triton's
interpreter, which reads its mode when Triton is imported, and writes the texts of the kernels whose results were right."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from dynacompile.codegen.triton.attention import emit_attention
from tests.fuzz.flexible import Program, check

BASE = Program(
    seed=1,
    batch=2,
    shared_batch=False,
    heads=2,
    groups=2,
    lengths=(33, 40),
    widths=(16, 16),
    layouts=("plain", "plain", "plain"),
    dtype=torch.float32,
    steps=(),
    mask="window",
    blocks=(16, 16),
    broad=(True, True),
    inside=False,
    scale=None,
    returns="result",
    tangents="result",
    wanted=(True, True, True),
    wanted_reads=True,
    symbolic=False,
)
CASES: dict[str, Program] = {
    "a window": BASE,
    "lengths that tiles divide": replace(BASE, lengths=(32, 64), blocks=(32, 32), steps=("relative",), dtype=torch.bfloat16),
    "no mask, scores changed": replace(BASE, mask="none", steps=("relative", "softcap")),
    "queries that see nothing": replace(BASE, mask="strict", returns="sums", tangents="all"),
    "nobody sees anything": replace(BASE, mask="nothing", steps=("times",)),
    "blocks of other sizes than tiles": replace(BASE, mask="documents", blocks=(20, 36), broad=(False, True)),
    "a mask for each head": replace(BASE, mask="by head", broad=(True, False)),
    "grouped heads": replace(BASE, heads=6, groups=2, mask="padded", broad=(False, True), steps=("slopes",)),
    "one batch of keys": replace(BASE, shared_batch=True, mask="causal", broad=(False, True)),
    "values of another width": replace(BASE, widths=(20, 8), mask="causal"),
    "heads inside": replace(BASE, layouts=("heads inside", "heads inside", "one tensor"), mask="prefix"),
    "gradients of a bias": replace(BASE, steps=("bias",)),
    "gradients by relative place": replace(BASE, steps=("table",), mask="none"),
    "gradients of places from the end": replace(BASE, steps=("wrapped table",)),
    "gradients of clamped places": replace(BASE, steps=("clamped table",)),
    "gradients of queries, keys and all": replace(BASE, steps=("of queries", "of keys", "number", "slopes")),
    "what is computed before": replace(BASE, steps=("expression", "chain")),
    "hidden by the function of scores": replace(BASE, steps=("hide",), returns="sums", tangents="all"),
    "the derivative ends": replace(BASE, steps=("detached",)),
    "documents": replace(BASE, mask="documents", steps=("by documents",), broad=(False, True)),
    "sums alone have a tangent": replace(BASE, returns="sums", tangents="sums", steps=("times",)),
    "only values have a gradient": replace(BASE, wanted=(False, False, True)),
    "only queries have a gradient": replace(BASE, wanted=(True, False, False), steps=("relative",)),
    "only what is read has a gradient": replace(BASE, wanted=(False, False, False), steps=("bias",)),
    "inference": replace(BASE, wanted=(False, False, False), wanted_reads=False, steps=("softcap",)),
    "bfloat16": replace(BASE, dtype=torch.bfloat16, steps=("softcap", "bias")),
    "float16": replace(BASE, dtype=torch.float16, steps=("square",)),
    "a negative scale": replace(BASE, scale=-0.5),
    "one query": replace(BASE, lengths=(1, 40), mask="none", steps=("relative",)),
    "one key": replace(BASE, lengths=(33, 1), mask="none", steps=("relative",)),
    "a mask that the frame makes": replace(BASE, inside=True, mask="causal"),
    "symbolic sizes": replace(BASE, symbolic=True, steps=("bias", "slopes"), mask="causal"),
    "symbolic sizes without a mask": replace(BASE, symbolic=True, steps=("relative",), mask="none"),
}
GOLDEN = replace(BASE, lengths=(64, 128), dtype=torch.bfloat16, mask="causal", steps=("table", "softcap"), blocks=(64, 64), heads=4)


def main(path: str, *names: str) -> None:
    found: dict[str, dict] = {}
    for name in names:
        program = GOLDEN if name == "golden" else CASES[name]
        try:
            events, kernels = check(program)
            texts = [emit_attention(kernel).text for kernel in kernels]
            found[name] = {"ours": [e.ours for e in events], "kernels": [k.call.template for k in kernels if k.call is not None], "texts": texts}
        except Exception:  # noqa: BLE001 - told by the test of that case
            found[name] = {"error": traceback.format_exc()}
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
