"""python -m tests.fuzz.flexible FIRST LAST: flex_attention by kernels, with random functions, masks, blocks and sizes, against its definition in float64.

A program is its seed: sizes (lengths that no tile divides, heads of odd width, grouped heads, one batch of keys for several of queries), layouts of the
operands, steps of which the function of scores is made (what they read may have gradients, at places that vary with queries, keys, both or neither), a mask,
the size of its blocks, whether it is made in the frame, a scale, what is returned, which results have tangents, tiles, and symbolic sizes. Kernels are run by
Triton's interpreter; with --defined the operators as they are defined.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention, noop_mask

import dynacompile
from dynacompile.events import AttentionFound, FrameSkipped, GraphBroke
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource
from tests.attention_kernels import by_triton, on_cpu

STEPS = (
    "relative", "bias", "bias of batch", "slopes", "table", "wrapped table", "clamped table", "chain", "of queries", "of keys", "number", "softcap", "hide",
    "times", "square", "detached", "by documents", "expression", "whole numbers", "half",
)  # fmt: skip
MASKS = ("none", "none", "noop", "causal", "strict", "window", "documents", "padded", "by head", "any", "nothing", "prefix", "chunks")
LAYOUTS = ("plain", "plain", "heads inside", "one tensor", "turned")
BLOCKS = ((16, 16), (16, 16), (32, 32), (32, 16), (16, 48), (24, 24), (20, 36), (8, 8), (128, 128))


@dataclass(frozen=True)
class Program:
    seed: int
    batch: int
    shared_batch: bool
    heads: int
    groups: int
    lengths: tuple[int, int]
    widths: tuple[int, int]
    layouts: tuple[str, str, str]
    dtype: torch.dtype
    steps: tuple[str, ...]
    mask: str
    blocks: tuple[int, int]
    broad: tuple[bool, bool]
    inside: bool
    scale: float | None
    returns: str
    tangents: str
    wanted: tuple[bool, ...]
    wanted_reads: bool
    symbolic: bool
    device: str = "cpu"

    def text(self) -> str:
        return "\n".join(f"  {name}: {value}" for name, value in vars(self).items())

    def operands(self, dtype: torch.dtype, grad: bool = True) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        keys = 1 if self.shared_batch else self.batch
        sizes = [
            (self.batch, self.heads, self.lengths[0], self.widths[0]),
            (keys, self.groups, self.lengths[1], self.widths[0]),
            (keys, self.groups, self.lengths[1], self.widths[1]),
        ]
        made = [torch.randn(s, generator=generator).to(self.dtype).to(self.device, dtype) for s in sizes]
        laid = [self.laid(t, layout) for t, layout in zip(made, self.layouts, strict=True)]
        return [t.requires_grad_(grad and w) for t, w in zip(laid, self.wanted, strict=True)]

    def laid(self, tensor: torch.Tensor, layout: str) -> torch.Tensor:
        match layout:
            case "heads inside":
                return tensor.transpose(1, 2).contiguous().transpose(1, 2)
            case "one tensor":
                wide = torch.cat([tensor, tensor, tensor], -1)
                return wide.narrow(-1, tensor.shape[-1], tensor.shape[-1])
            case "turned":
                return tensor.transpose(2, 3).contiguous().transpose(2, 3)
        return tensor

    def reads(self, dtype: torch.dtype, grad: bool = True) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        (queries, keys), own = self.lengths, self.dtype if self.seed % 2 else torch.float32
        sizes = {
            "bias": (self.heads, queries, keys), "batch": (self.batch, 1, queries, keys), "slopes": (self.heads,), "table": (self.heads, queries + keys),
            "queries": (self.batch, queries), "keys": (keys,), "number": (),
        }  # fmt: skip
        made = {name: torch.randn(size, generator=generator).to(own).to(self.device, dtype) for name, size in sizes.items()}
        count = max(queries, keys)
        made["documents"] = torch.randint(0, 3, (self.batch, count), generator=generator)
        made["ends"] = torch.randint(0, keys + 1, (self.batch,), generator=generator)
        made["any"] = torch.rand((self.batch, self.heads, queries, keys), generator=generator) < 0.4
        made = {name: t.to(self.device) for name, t in made.items()}
        return {name: t.requires_grad_(grad and self.wanted_reads and t.is_floating_point()) for name, t in made.items()}

    def score(self, reads: dict[str, torch.Tensor], score: Any, b: Any, h: Any, q: Any, k: Any, whole: bool = False) -> Any:
        """whole: all scores at once."""
        keys, found = self.lengths[1], score
        for step in self.steps:
            match step:
                case "relative":
                    found = found + (q - k) * 0.05
                case "bias":
                    found = found + reads["bias"][h, q, k]
                case "bias of batch":
                    found = found + reads["batch"][b, 0, q, k]
                case "slopes":
                    found = found - reads["slopes"][h] * (q - k).abs() * 0.1
                case "table":
                    found = found + reads["table"][h, q - k + keys - 1]
                case "wrapped table":
                    found = found + reads["table"][h, q - k]
                case "clamped table":
                    found = found * (1 + 0.1 * reads["table"][h, (q - k).clamp(-3, 3) + 3])
                case "chain":
                    found = found + (reads["table"][h, k] if whole else reads["table"][h][k]) * reads["bias"][0, q, k]
                case "of queries":
                    found = found + 0.3 * reads["queries"][b, q]
                case "of keys":
                    found = found + reads["keys"][k].sin()
                case "number":
                    found = found * (1 + reads["number"] * 0.1)
                case "softcap":
                    found = 3.0 * torch.tanh(found / 3.0)
                case "hide":
                    found = torch.where((q + k) % 3 == 0, -math.inf, found)
                case "times":
                    found = found * 0.7 + 0.1
                case "square":
                    found = found - 0.05 * found * found
                case "detached":
                    found = found + found.detach() * 0.5
                case "by documents":
                    found = torch.where(reads["documents"][b, q] == reads["documents"][b, k], found, found - 1.0)
                case "expression":
                    found = found + (reads["keys"] * 0.5).exp()[k] * reads["slopes"][h]
                case "whole numbers":
                    found = found + torch.where(h % 2 == 0, q // 4, (k * 3) % 5).to(torch.float32) * 0.1
                case "half":
                    found = found + torch.minimum(q, k).to(found.dtype).sqrt().reciprocal().nan_to_num(posinf=0.0)
        return found

    def visible(self, reads: dict[str, torch.Tensor], b: Any, h: Any, q: Any, k: Any) -> Any:
        match self.mask:
            case "causal":
                return q >= k
            case "strict":
                return q > k
            case "window":
                return (q >= k) & (q - k < 9)
            case "documents":
                return reads["documents"][b, q] == reads["documents"][b, k]
            case "padded":
                return k < reads["ends"][b]
            case "by head":
                return torch.where(h % 2 == 0, q >= k, q <= k)
            case "any":
                return reads["any"][b, h, q, k]
            case "nothing":
                return q < 0
            case "prefix":
                return (k < 5) | (q >= k)
            case "chunks":
                return q // 8 == k // 8

    def functions(self, reads: dict[str, torch.Tensor]) -> tuple[Callable | None, Callable | None]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.score(reads, score, b, h, q, k)

        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.visible(reads, b, h, q, k)

        return score_mod if self.steps else None, None if self.mask == "none" else noop_mask if self.mask == "noop" else mask_mod

    def block_mask(self, mask_mod: Callable) -> Any:
        batch = None if self.broad[0] and self.mask not in ("documents", "padded", "any") and not self.shared_batch else self.batch
        heads = None if self.broad[1] and self.mask not in ("by head", "any") else self.heads
        return create_block_mask(mask_mod, batch, heads, *self.lengths, device=self.device, BLOCK_SIZE=self.blocks)

    def compiled(self, reads: dict[str, torch.Tensor]) -> Callable:
        score_mod, mask_mod = self.functions(reads)
        made = None if mask_mod is None or self.inside else self.block_mask(mask_mod)
        more: dict[str, Any] = {"scale": self.scale, "enable_gqa": self.groups != self.heads}
        match self.returns:
            case "sums":
                more["return_aux"] = AuxRequest(lse=True)
            case "legacy sums":
                more["return_lse"] = True

        def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
            block = made if mask_mod is None or not self.inside else self.block_mask(mask_mod)
            found = flex_attention(query, key, value, score_mod, block, **more)
            if self.returns == "sums":
                return found[0], found[1].lse
            return found if self.returns == "legacy sums" else (found,)

        return call

    def whole(self, reads: dict[str, torch.Tensor], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """By definition, all scores at once."""
        wide = torch.promote_types(query.dtype, torch.float32)
        each = self.heads // self.groups
        key, value = (t.repeat_interleave(each, 1).expand(self.batch, -1, -1, -1) for t in (key, value))
        scores = query.to(wide) @ key.to(wide).mT * (1 / math.sqrt(self.widths[0]) if self.scale is None else self.scale)
        b, h, q, k = (torch.arange(n, device=self.device).reshape([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(scores.shape))
        scores = self.score(reads, scores, b, h, q, k, True).expand(scores.shape)
        if self.mask not in ("none", "noop"):
            scores = torch.where(self.visible(reads, b, h, q, k).expand(scores.shape), scores, -math.inf)
        unseen = (scores == -math.inf).all(-1, keepdim=True)
        scores = scores.masked_fill(unseen, 0.0)
        weights = scores.softmax(-1).masked_fill(unseen, 0.0)
        made = weights.to(query.dtype) @ value
        if self.returns == "result":
            return (made,)
        return made, scores.logsumexp(-1).masked_fill(unseen.squeeze(-1), -math.inf)


def generate(seed: int) -> Program:
    draw = random.Random(seed)
    groups = draw.choice((1, 2, 2, 3))
    batch, mask = draw.choice((1, 2, 2, 3)), draw.choice(MASKS)
    lengths = (draw.choice((1, 5, 16, 17, 33, 48)), draw.choice((1, 7, 16, 31, 32, 50)))
    widths = draw.choice((4, 8, 16, 20, 32)), draw.choice((4, 8, 16, 20, 32))
    dtype = draw.choice((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
    steps = tuple(draw.sample(STEPS, draw.choice((0, 1, 1, 2, 3, 4))))
    layouts = tuple(draw.choice(LAYOUTS) for _ in range(3))
    returns = draw.choice(("result", "result", "sums", "legacy sums"))
    return Program(
        seed,
        batch,
        mask not in ("none", "noop") and batch > 1 and draw.random() < 0.15,
        groups * draw.choice((1, 1, 2, 3)),
        groups,
        lengths,
        widths if draw.random() < 0.5 else (widths[0], widths[0]),
        layouts,  # type: ignore[arg-type]
        dtype,
        steps,
        mask,
        draw.choice(BLOCKS),
        (draw.random() < 0.6, draw.random() < 0.6),
        draw.random() < 0.2,
        draw.choice((None, None, 0.3, -0.5, 1.0)),
        returns,
        draw.choice(("all", "result", "sums")) if returns != "result" else "result",
        tuple(draw.random() < 0.75 for _ in range(3)),
        draw.random() < 0.7,
        draw.random() < 0.25,
    )


def tiles(program: Program) -> Callable[[KernelSource], Candidate]:
    """Any tile whose sides divide those of a candidate, so that what reaches beyond is masked all the same."""

    def choose(source: KernelSource) -> Candidate:
        draw = random.Random(program.seed)
        return draw.choice(source.candidates)

    return choose


def results(call: Callable, operands: Sequence[torch.Tensor], reads: dict[str, torch.Tensor], program: Program) -> list[torch.Tensor | None]:
    made = call(*operands)
    leaves = [t for t in (*operands, *reads.values()) if t.requires_grad]
    used = made[:1] if program.tangents == "result" else made[1:] if program.tangents == "sums" else made
    used = [t for t in used if t.requires_grad]
    if not used or not leaves:
        return list(made)
    # Sums of queries that see nothing are no numbers, and have no gradient.
    tangents = [torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64, device=t.device).view(t.shape).to(program.dtype).to(t.dtype) for t in used]
    return [*made, *torch.autograd.grad(used, leaves, tangents, allow_unused=True)]


def check(program: Program, interpret: bool = True, choose: Callable[[KernelSource], Candidate] | None = None) -> tuple[list[AttentionFound], list[Kernel]]:
    """Raises AssertionError where the compiled program differs. Gives what was decided, and the kernels that the interpreter ran. interpret: on a CPU, run
    kernels, not operators as they are defined; programs of a GPU run their kernels there."""
    reads = program.reads(program.dtype)
    events: list[Any] = []
    built = program.device != "cpu"
    options: dict[str, Any] = {"fallback": "none"} if not built and not interpret else {"attention_scores": 0, "fallback": "none", "reference": not built}
    manager: AbstractContextManager = nullcontext([]) if built else by_triton(choose or tiles(program)) if interpret else on_cpu()
    with warnings.catch_warnings(), manager as kernels:
        warnings.simplefilter("ignore")
        dynacompile.reset()
        backend = "default" if built or interpret else "aot_eager"
        call = dynacompile.compile(program.compiled(reads), backend=backend, isolate_recompiles=True, dynamic=program.symbolic or None, options=options)
        end = dynacompile.subscribe(events.append)
        try:
            have = results(call, program.operands(program.dtype), reads, program)
        finally:
            end()
    broke = [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    assert not broke, f"breaks: {broke}"
    reads = program.reads(program.dtype)
    want = results(partial(program.whole, reads), program.operands(program.dtype), reads, program)
    exact = replace(program, layouts=("plain", "plain", "plain"))
    reads = program.reads(torch.float64)
    best = results(partial(exact.whole, reads), exact.operands(torch.float64), reads, program)
    assert len(have) == len(want)
    for i, (one, other, right) in enumerate(zip(have, want, best, strict=True)):
        if other is None and one is not None:  # what autograd never came to, and the backward of one operator gives
            assert not one.any(), f"result {i} is not zero"
        assert one is not None or other is None, f"result {i} is missing"
        if one is not None and other is not None and right is not None:
            check_close(i, one, other, right, torch.finfo(program.dtype).eps)
    return [e for e in events if isinstance(e, AttentionFound)], kernels or []


def check_close(i: int, have: torch.Tensor, want: torch.Tensor, best: torch.Tensor, eps: float) -> None:
    assert (have.dtype, have.shape) == (want.dtype, want.shape), f"result {i}: another type"
    infinite = best.isinf()
    assert torch.equal(have.isinf(), infinite), f"result {i}: other places are infinite"
    # Where the definition multiplies infinity by the gradient zero of a score that a mask hides, kernels do not look.
    assert not (have.isnan() & ~best.isnan()).any(), f"result {i}: other places are NaN"
    finite = best.isfinite() & want.isfinite()
    if not finite.any():
        return
    errors = [(t.double() - best)[finite].abs().max().item() for t in (have, want)]
    scale = best[finite].abs().max().item()
    allowed = 4 * errors[1] + 16 * max(eps, 2e-7) * max(scale, 4.0)
    assert errors[0] <= allowed, f"result {i}: wrong by {errors[0]:g}, all at once by {errors[1]:g} of {scale:g}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.flexible", description="Compare flex_attention by kernels with its definition.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--defined", action="store_true", help="run operators as they are defined, not kernels")
    given = parser.parse_args()
    if not given.defined and os.environ.get("TRITON_INTERPRET") != "1":  # which Triton reads when it is imported
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.flexible", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}).returncode
    logging.disable(logging.ERROR)
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            counts.update((e.kernel, e.ours, "" if e.ours else e.reason) for e in check(program, not given.defined)[0])
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:900]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; decided: {dict(counts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
