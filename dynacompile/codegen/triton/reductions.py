"""Reductions in Triton: the neutral value, one more tile, and the end of each kind; and maximum with sum of exponentials in one pass."""

from __future__ import annotations

import torch

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.ir.loops import Nest, levels

TOGETHER = 4  # sums in one reduction


def online_pairs(nest: Nest) -> dict[int, int]:
    """Sums of exp(v - max(v)) by the reduce that is the maximum: both come out of one pass over r, the running sum being rescaled
    whenever the maximum grows (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018)."""
    pairs: dict[int, int] = {}
    level = levels(nest)
    for i, op in enumerate(nest.body):
        if op.name != "reduce" or op.attr != "sum" or op.dtype not in (torch.float32, torch.float64):
            continue
        power = nest.body[op.args[0]]
        shifted = nest.body[power.args[0]] if power.name == "exp" else power
        if power.name != "exp" or shifted.name != "sub" or power.dtype != op.dtype:
            continue
        value, top = shifted.args
        if nest.body[top].name == "reduce" and nest.body[top].attr == "max" and nest.body[top].args == (value,) and level[value] == "r" and top not in pairs:
            pairs[top] = i
    return pairs


def online(top: str, total: str, text: str, tile: str, dtype: torch.dtype, exp: str) -> tuple[list[str], list[str], list[str]]:
    """Lines before the loop, in it, and after it, that leave max(v) in `top` and sum(exp(v - max)) in `total`.

    The maximum starts at the lowest finite number, so that no difference of infinities arises; the ends put right what that hides:
    a row of -inf alone has maximum -inf, and a row with an infinite maximum sums to NaN, as exp(inf - inf) does.
    """
    kind, lowest = scalars.value(dtype), repr(torch.finfo(dtype).min)
    before = [f"{top}_partial = tl.full({tile}, {lowest}, {kind})", f"{total}_partial = tl.full({tile}, 0.0, {kind})"]
    inside = [
        f"{top}_step = {text} - {top}_partial",
        f"{total}_step = {exp.format(f'(tl.abs({top}_step) * -1.0)')}",
        f"{total}_partial = tl.where({top}_step > 0, {total}_partial * {total}_step + 1.0, {total}_partial + {total}_step)",
        f"{top}_partial = nan_max({top}_partial, {text})",
    ]
    after = [
        f"{top} = tl.reduce({top}_partial, 1, nan_max)[:, None]",
        f"{total} = tl.sum({total}_partial * {exp.format(f'({top}_partial - {top})')}, 1)[:, None]",
        f'{top} = tl.where({total} == 0, float("-inf"), {top})',
        f'{total} = tl.where(tl.abs({top}) == float("inf"), float("nan"), {total})',
    ]
    return before, inside, after


def identity(kind: str, dtype: torch.dtype) -> str:
    """The literal that changes nothing under reduction `kind`."""
    if kind in ("sum", "any"):
        return scalars.literal(0, dtype)
    if kind in ("prod", "all"):
        return scalars.literal(1, dtype)
    low = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return scalars.literal(float("-inf") if low else float("inf"), dtype)
    if dtype == torch.bool:
        return str(not low)
    limits = torch.iinfo(dtype)
    return str(limits.min if low else limits.max)


def step(kind: str, partial: str, text: str, dtype: torch.dtype) -> str:
    """An accumulator with one more tile."""
    signs = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
    if dtype == torch.bool:
        signs |= {"max": "|", "min": "&"}
    if kind in signs:
        return f"{partial} {signs[kind]} {text}"
    return f"nan_{kind}({partial}, {text})" if dtype.is_floating_point else f"tl.{kind}imum({partial}, {text})"


def finish_sums(names: list[str], texts: list[str], dtype: torch.dtype) -> list[str]:
    """Sums of several tiles along r in one reduction."""
    if len(names) == 1:
        return [f"{names[0]} = {finish('sum', texts[0], dtype)}"]
    return [f"{', '.join(names)} = tl.reduce(({', '.join(texts)}), 1, sums_of_{len(names)})", *(f"{name} = {name}[:, None]" for name in names)]


def finish(kind: str, text: str, dtype: torch.dtype) -> str:
    """The reduction of a tile along r, in shape [XBLOCK, 1]."""
    if kind in ("any", "all") or dtype == torch.bool:
        return f"tl.{'max' if kind in ('any', 'max') else 'min'}({text}.to(tl.int32), 1)[:, None] != 0"
    if kind == "sum":
        return f"tl.sum({text}, 1)[:, None]"
    if kind == "prod":
        return f"tl.reduce({text}, 1, product)[:, None]"
    if dtype.is_floating_point:
        return f"tl.reduce({text}, 1, nan_{kind})[:, None]"
    return f"tl.{kind}({text}, 1)[:, None]" + (f".to({scalars.value(dtype)})" if scalars.BITS[dtype] < 32 else "")
