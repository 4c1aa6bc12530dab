"""python -m tests.fuzz.attention FIRST LAST: attention written by hand in many ways, which torch's operator computes or not, against eager.

A program is its seed: the rank of its operands, grouped heads, how heads are taken apart and put together, how the products are written, a scale (of the
scores or the queries, as a product, a quotient, a tensor, in place), masks (biases, finite or with minus infinity, truth values that fill scores with
minus infinity or numbers, triangles; some queries may see no key), softmax (in float32 at times), dropout, autocast or a dtype, symbolic sizes, which of
the operands have gradients, and now and then what keeps it as written: another use, a write between, gradients that end. A result may be as far
from float64 as eager's, a few times over, and is NaN where eager's is. Then come a second backward, and gradients of gradients.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import AttentionFound, GraphBroke
from tests.fuzz import masks
from tests.scenarios import strides

FORMS = ("4d", "4d", "4d of rows", "4d of rows", "3d", "3d between", "baddbmm", "grouped by repeats", "grouped by expand", "grouped 5d", "2d", "shared keys")
SCALES = ("none", "times", "over", "over in place", "of the queries", "as a tensor", "after", "times in place")
MASKS = (
    "none", "bias", "bias", "bias with infinity", "lowest bias", "fill", "fill", "fill in place", "where", "where not", "method where", "triangle",
    "triangle bias", "two", "bias and fill", "fill and bias", "minus", "bias in place",
)  # fmt: skip
FILLS = (-math.inf, -math.inf, "lowest", -1e9, -1e4)
SOFTMAXES = ("function", "method", "torch", "module", "float32", "cast before", "positive dim")
MADE = 100000
WIDER_SCALES = ("times", "negative", "negative quotient", "rounded number", "over a rounded number", "other digits", "whole numbers")
APPLIED = (
    "scores.masked_fill(~mask, number)", "scores.masked_fill(mask == 0, number)", "torch.where(mask, scores, number)", "torch.where(~mask, number, scores)",
    "scores + torch.where(mask, 0.0, number)", "scores + (1 - mask.int()) * -10000", "scores + (1.0 - mask.to(scores.dtype)) * -1e4",
    "scores + mask.logical_not() * number", "scores - (~mask).to(scores.dtype) * 2.0", "scores.masked_fill(~mask, -number) * -0.5", "scores + mask",
    "torch.where(mask, scores, torch.tensor(number, dtype=scores.dtype))",
)  # fmt: skip
"""How a mask of truth values hides scores; others are added."""
SPOILERS = ("weights", "scores", "write a key", "write a mask", "detached", "no grad", "softcap", "hooked", "both uses", "other axis", "dropout", "clone")


@dataclass(frozen=True)
class Program:
    seed: int
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    form: str
    scale: str
    masks: str
    fill: float | str
    shape: tuple[bool, bool, bool, bool]
    dead: bool
    softmax: str
    dtype: torch.dtype
    autocast: torch.dtype | None
    wanted: tuple[bool, ...]
    spoiler: str
    symbolic: bool
    made: str = ""
    applied: str = ""

    def text(self) -> str:
        return "\n".join(f"  {name}: {value}" for name, value in vars(self).items())

    @cached_property
    def hide(self) -> Callable[[torch.Tensor, float], torch.Tensor]:
        """Hides scores by the mask that is made."""
        scope: dict[str, Any] = {}
        exec(f"{self.made}\ndef apply(scores, mask, number):\n    return {self.applied}", scope)
        make, apply = scope["make"], scope["apply"]

        def hide(scores: torch.Tensor, number: float) -> torch.Tensor:
            mask = make(scores.shape[-2], scores.shape[-1])
            return apply(scores, mask, number) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)

        return hide

    def leaves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        heads = 1 if self.form == "shared keys" else self.groups if self.form.startswith("grouped") else self.heads
        sizes: list[tuple[int, ...]] = [(self.batch, h, n, self.width) for h, n in ((self.heads, self.queries), (heads, self.keys), (heads, self.keys))]
        match self.form:
            case "4d of rows":
                sizes = [(b, n, h * d) for b, h, n, d in sizes]
            case "3d" | "baddbmm":
                sizes = [(b * h, n, d) for b, h, n, d in sizes]
            case "2d":
                sizes = [(n, d) for _, _, n, d in sizes]
        made = [torch.randn(s, generator=generator, dtype=torch.float64).to(self.dtype).to(dtype) for s in sizes]
        return [t.requires_grad_(w) for t, w in zip(made, self.wanted, strict=True)]

    def mask_sizes(self) -> tuple[int, ...]:
        whole = (self.batch, self.heads, self.queries, self.keys)
        sizes = tuple(n if kept else 1 for n, kept in zip(whole, self.shape, strict=True))
        if self.form == "grouped 5d":
            each = self.heads // self.groups
            return (sizes[0], self.groups if self.shape[1] else 1, each if self.shape[1] else 1, *sizes[2:])
        if self.form == "3d":
            return (self.batch * self.heads if self.shape[0] else 1, *sizes[2:])
        if self.form == "baddbmm":
            return (self.batch * self.heads, *whole[2:])
        if self.form == "2d":
            return sizes[2:]
        return sizes

    def given_masks(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """A mask of truth values, which is true where scores are hidden, and a bias."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        sizes = self.mask_sizes()
        hidden = torch.rand(sizes, generator=generator) < 0.4
        if not self.dead:
            hidden[..., torch.randint(0, sizes[-1], (), generator=generator)] = False
        elif self.shape[2]:
            hidden[..., 0, :] = True
        bias = torch.randn(sizes, generator=generator, dtype=torch.float64).to(self.dtype)
        if self.masks == "bias with infinity":
            bias = bias.masked_fill(hidden, -math.inf)
        if self.masks == "lowest bias":
            bias = bias.masked_fill(hidden, torch.finfo(bias.dtype).min)
        return [hidden, bias.to(dtype)]

    def number(self, dtype: torch.dtype) -> float:
        lowest = torch.finfo(torch.float32 if self.autocast else self.dtype).min
        return lowest if self.fill == "lowest" else max(float(self.fill), lowest) if self.fill != -math.inf else -math.inf

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, bias: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            return self.attend(query, key, value, hidden, bias)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, bias: torch.Tensor) -> Any:
        q, k, v = self.heads_of(query, key, value)
        factor = 1 / math.sqrt(self.width)
        if self.scale == "of the queries":
            q = q * factor
        scores = self.product(q, k, bias)
        kept = scores
        if self.form == "3d between":
            scores = scores.view(self.batch, self.heads, scores.shape[-2], scores.shape[-1])
        scores = self.masked(self.scaled(scores, factor), hidden, bias)
        if self.scale == "after":
            scores = scores * 0.5
        if self.spoiler == "softcap":
            scores = torch.tanh(scores)
        if self.spoiler == "hooked" and scores.requires_grad:
            scores.register_hook(lambda g: g * 2)
        if self.spoiler == "clone":
            scores = scores.clone()
        weights = self.weights(scores, v.dtype)
        weights = F.dropout(weights, 0.5, training=self.spoiler == "dropout")
        if self.spoiler == "write a key":
            with torch.no_grad():
                key.mul_(2.0)
        if self.spoiler == "write a mask":
            bias.add_(1.0)
        if self.spoiler == "detached":
            weights = weights.detach()
        seen = weights
        if self.form == "3d between":
            weights = weights.view(self.batch * self.heads, weights.shape[-2], weights.shape[-1])
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.spoiler != "no grad"):
            result = torch.bmm(weights, v) if weights.dim() == 3 else weights @ v
        result = self.together(result)
        if self.spoiler not in ("weights", "scores", "both uses"):
            return result
        return result, kept if self.spoiler == "scores" else seen if self.spoiler == "weights" else seen.sum()

    def heads_of(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = query, key, value
        match self.form:
            case "4d of rows":
                return tuple(t.view(t.shape[0], t.shape[1], self.heads, self.width).transpose(1, 2) for t in parts)
            case "3d between":
                return tuple(t.reshape(self.batch * self.heads, -1, self.width) for t in parts)
            case "grouped by repeats":
                return query, *(t.repeat_interleave(self.heads // self.groups, 1) for t in parts[1:])
            case "grouped by expand":
                each = self.heads // self.groups
                return query, *(t[:, :, None].expand(-1, -1, each, -1, -1).reshape(t.shape[0], self.heads, t.shape[2], t.shape[3]) for t in parts[1:])
            case "grouped 5d":
                return query.view(self.batch, self.groups, -1, query.shape[2], self.width), key[:, :, None], value[:, :, None]
            case _:
                return parts

    def product(self, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if self.form == "baddbmm":
            return torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0 if self.masks != "none" else 0.0, alpha=1 / math.sqrt(self.width))
        if self.form == "3d between":
            return torch.bmm(q, k.transpose(1, 2))
        return torch.matmul(q, k.transpose(-1, -2))

    def scaled(self, scores: torch.Tensor, factor: float) -> torch.Tensor:
        match self.scale:
            case "times":
                return scores * factor
            case "over":
                return scores / math.sqrt(self.width)
            case "over in place":
                scores /= math.sqrt(self.width)
                return scores
            case "times in place":
                return scores.mul_(factor)
            case "negative":
                return scores * -factor
            case "negative quotient":
                return scores / torch.tensor(-2.0)
            case "rounded number":
                return scores * torch.tensor(0.3, dtype=torch.bfloat16)
            case "over a rounded number":
                return scores / torch.full((), 3.3, dtype=torch.float16)
            case "other digits":
                return scores.to(torch.bfloat16 if scores.dtype != torch.bfloat16 else torch.float16).to(scores.dtype)
            case "whole numbers":
                return scores.to(torch.int64).to(scores.dtype)
            case "as a tensor":
                return scores / torch.full([], self.width**0.5, dtype=scores.dtype)
            case _:
                return scores

    def masked(self, scores: torch.Tensor, hidden: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        number = self.number(scores.dtype)
        if self.made:
            return self.hide(scores, number)
        match self.masks:
            case "bias" | "bias with infinity" | "lowest bias":
                return scores + bias
            case "bias in place" if scores.dtype == bias.dtype:
                scores += bias
                return scores
            case "minus":
                return scores - bias * 2
            case "fill" | "fill in place" if scores.dtype != torch.float16:
                return scores.masked_fill(hidden, number) if self.masks == "fill" else scores.masked_fill_(hidden, number)
            case "where":
                return torch.where(~hidden, scores, number)
            case "where not":
                return torch.where(hidden, torch.full([], number, dtype=scores.dtype), scores)
            case "method where":
                return scores.where(~hidden, number)
            case "triangle":
                below = torch.ones(scores.shape[-2], scores.shape[-1], dtype=torch.bool).tril()
                return scores.masked_fill(below == 0, -math.inf)
            case "triangle bias":
                return scores + torch.full((scores.shape[-2], scores.shape[-1]), -math.inf, dtype=scores.dtype).triu(1)
            case "two":
                below = torch.ones(scores.shape[-2], scores.shape[-1], dtype=torch.bool).tril()
                return scores.masked_fill(hidden, -math.inf).masked_fill(~below, -math.inf)
            case "bias and fill":
                return (bias + scores).masked_fill(hidden, -math.inf)
            case "fill and bias":
                return scores.masked_fill(hidden, -math.inf) + bias
            case _:
                return scores

    def weights(self, scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.spoiler == "other axis":
            return scores.softmax(-2)
        match self.softmax:
            case "method":
                return scores.softmax(-1)
            case "torch":
                return torch.softmax(scores, dim=-1)
            case "module":
                return torch.nn.Softmax(dim=-1)(scores)
            case "float32" if scores.dtype != torch.float64:
                return F.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
            case "cast before" if scores.dtype != torch.float64:
                return F.softmax(scores.float(), dim=-1).type_as(scores)
            case "positive dim":
                return F.softmax(scores, scores.dim() - 1)
            case _:
                return F.softmax(scores, dim=-1)

    def together(self, result: torch.Tensor) -> torch.Tensor:
        match self.form:
            case "4d of rows":
                return result.transpose(1, 2).reshape(result.shape[0], -1, self.heads * self.width)
            case "3d between":
                return result.view(self.batch, self.heads, -1, self.width).transpose(1, 2).contiguous()
            case "grouped 5d":
                return result.flatten(1, 2)
            case _:
                return result


def generate(seed: int) -> Program:
    """From seed 100000 on with masks that the frame makes."""
    return generate_made(seed - MADE) if seed >= MADE else generate_given(seed)


def generate_given(seed: int) -> Program:
    draw = random.Random(seed)
    groups = draw.choice((1, 2))
    dtype = draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16))
    autocast = torch.bfloat16 if dtype == torch.float32 and draw.random() < 0.2 else None
    spoiler = draw.choice(SPOILERS) if draw.random() < 0.25 else ""
    autocast = None if spoiler == "write a key" else autocast  # autograd keeps what was cast
    queries = draw.choice((1, 2, 5, 9, 17))
    form = draw.choice(FORMS)
    return Program(
        seed,
        draw.choice((1, 2, 3)),
        groups * draw.choice((1, 2)),
        groups,
        queries,
        queries if draw.random() < 0.6 else draw.choice((1, 3, 8, 33)),
        draw.choice((1, 4, 8, 16)),
        form,
        draw.choice(SCALES),
        draw.choice(MASKS),
        draw.choice(FILLS),
        (draw.random() < 0.5, draw.random() < 0.3, draw.random() < 0.7, True),
        draw.random() < 0.3,
        draw.choice(SOFTMAXES),
        dtype,
        autocast,
        (True, False, True) if spoiler == "write a key" else tuple(draw.random() < 0.8 for _ in range(3)),
        spoiler,
        draw.random() < 0.15 and spoiler != "dropout",
    )


def generate_made(seed: int) -> Program:
    """With a mask that the frame makes, and other scales."""
    draw, made, rest = random.Random(seed), masks.generate(seed), generate_given(seed)
    return replace(
        rest,
        batch=2,
        queries=made.n,
        keys=made.m,
        form=draw.choice(("4d", "4d", "4d of rows", "grouped by repeats", "grouped by expand", "shared keys")),
        scale=draw.choice(WIDER_SCALES),
        masks="none",
        spoiler="",
        symbolic=made.symbolic,
        made=made.text(),
        applied=draw.choice(APPLIED),
    )


def run(call: Callable, program: Program, dtype: torch.dtype, twice: bool) -> list[torch.Tensor | None]:
    """The results, and gradients for a tangent that is not ones; their gradients, too."""
    torch.manual_seed(program.seed)
    leaves, masks = program.leaves(dtype), program.given_masks(dtype)
    found = call(*leaves, *masks)
    results = list(found) if isinstance(found, tuple) else [found]
    asked, first = [t for t in leaves if t.requires_grad], results[0]
    results = [*results, torch.rand(2, dtype=torch.float64)]
    if not first.requires_grad or not asked:
        return results
    tangent = torch.linspace(0.5, 2, first.numel(), dtype=torch.float64).to(program.dtype).to(first.dtype).view(first.shape)
    grads = torch.autograd.grad(first, asked, tangent, retain_graph=True, allow_unused=True)
    if program.spoiler == "write a key":
        return [*results, *grads]
    again = torch.autograd.grad(first, asked, tangent, create_graph=twice, allow_unused=True)
    results += [*grads, *again]
    if twice and any(g is not None and g.requires_grad for g in again):
        results += torch.autograd.grad(sum((g * g).sum() for g in again if g is not None and g.requires_grad), asked, allow_unused=True)
    return results


def check(program: Program, backend: str) -> list[AttentionFound]:
    """Raises AssertionError where the compiled program differs. Gives what was decided of its attention."""
    twice = program.dtype == torch.float64 and program.seed % 3 == 0 and program.spoiler in ("", "softcap", "clone", "other axis")
    try:
        wanted: list | Exception = run(program, program, program.dtype, twice)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        wanted = error
    dynacompile.reset()
    options: dict[str, object] = {"attention_scores": 1} | ({"reference": True} if backend == "reference" else {})
    chosen = "default" if backend == "reference" else backend
    compiled = dynacompile.compile(
        lambda *a: program(*a), backend=chosen, isolate_recompiles=True, dynamic=program.symbolic, options={"fallback": "none", **options}
    )
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        given = run(compiled, program, program.dtype, twice)
    except Exception as error:
        if type(error) is not type(wanted):
            raise
        return []
    finally:
        end()
    if isinstance(wanted, Exception):
        raise AssertionError(f"eager raises {wanted}")
    exact = wanted if program.spoiler == "dropout" else run(replace(program, autocast=None), program, torch.float64, twice)
    assert len(given) == len(wanted), f"{len(given)} results, not {len(wanted)}"
    eps = max(torch.finfo(program.autocast or program.dtype).eps, 1e-8 if program.made else 0.0)  # beside numbers that hide a score, it has few digits
    for i, (have, want, best) in enumerate(zip(given, wanted, exact, strict=True)):
        assert (have is None) == (want is None), f"result {i}: {have} is not {want}"
        if have is not None and want is not None and best is not None:
            check_close(i, have, want, best, i == 0, eps)
    return [e for e in events if isinstance(e, (AttentionFound, GraphBroke))]


def check_close(i: int, have: torch.Tensor, want: torch.Tensor, best: torch.Tensor, is_output: bool, eps: float) -> None:
    assert (have.dtype, have.shape) == (want.dtype, want.shape), f"result {i}: another type"
    assert not is_output or strides(have) == strides(want), f"result {i}: strides {have.stride()}, eager's {want.stride()}"
    rounded = have.dtype in (torch.bfloat16, torch.float16)  # whose products on CPUs let NaN of one row into the next
    same = torch.equal(have.isnan(), want.isnan()) or (rounded and torch.equal(have.isnan(), best.isnan()))
    assert same, f"result {i}: other places are NaN"
    finite = want.isfinite() & best.isfinite()
    errors = [(t.double() - best.double())[finite].abs().max().item() if finite.any() else 0.0 for t in (have, want)]
    scale = best[finite].abs().max().item() if finite.any() else 0.0
    allowed = 3 * errors[1] + eps * 8 * max(scale, 8.0) + 1e-12
    assert errors[0] <= allowed, f"result {i}: wrong by {errors[0]:g}, eager by {errors[1]:g} of {scale:g}"


def decided(events: Sequence[Any]) -> list[tuple[bool, str]]:
    return [(e.kernel, "" if e.kernel else e.reason) for e in events if isinstance(e, AttentionFound)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.attention", description="Compare hand-written attention with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "default", "reference"))
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            counts.update(decided(check(program, given.backend)))
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; decided: {dict(counts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
