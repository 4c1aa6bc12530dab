"""torch's flex_attention and the masks that go with it: the functions of scores and places that they are given become graphs of their own.

What torch would compile there is one operation of the frame's graph (`ops/flexible_attention.py`). Arguments that eager refuses are left to it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import flex_attention as flex

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.bodies import Body, around
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Constant
from dynacompile.ops.attention_kernels import DEVICES
from dynacompile.ops.flexible_attention import Blocks, Flexible, MaskOverPoints

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class Points(Body):
    """A function of one score's places, and of the score, where `score` is its dtype."""

    is_mapped = True

    def __init__(self, cx: Context, function: Value, score: torch.dtype | None, device: torch.device):
        super().__init__(cx, "flex_attention")
        with cx.recorder.mode:
            places = [torch.empty((), dtype=torch.int64, device=device) for _ in range(4)]
            examples = places if score is None else [torch.empty((), dtype=score, device=device), *places]
        inner: list[Value] = [self.input(fake) for fake in examples]
        with self.traced():
            result = function.call(cx, inner, {})
        if not isinstance(result, TensorValue):
            raise unsupported("would-raise", "flex_attention with a function that gives no tensor")
        self.rest = self.reads([result])
        self.module = self.finish([result], self.rest)


def refused(why: str) -> Any:
    """For capture to follow: eager raises here."""
    raise AssertionError(why)


@handles(refused)
def leave_to_eager(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("would-raise", f"flex_attention with {args[0].constant()}")


def mapped_attention(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any, enable_gqa: bool, auxiliary: bool, blocks: Any) -> Any:
    """For capture to follow: the attention, and with `auxiliary` what goes with it. blocks: sizes and tensors, as `blocks_of` gives them."""
    raise AssertionError


def may_skip_blocks(device: Any) -> Any:
    """For capture to follow: whether a kernel skips the blocks that a mask hides on such a device."""
    raise AssertionError


def blocks_of(block_mask: Any, query: Any, key: Any) -> Any:
    """Of a mask: sizes of its blocks, then the tensors that say which blocks of keys each block of queries sees, and those that say it the other way round, for
    a backward. Empty where they are not of the form that a kernel takes: it then looks at all keys."""
    rows, columns = block_mask.kv_num_blocks, block_mask.q_num_blocks
    if not may_skip_blocks(query.device) or rows.dim() != 3 or block_mask.kv_indices.dim() != 4:
        return ()
    height, width = block_mask.BLOCK_SIZE
    leading = (query.size(0), query.size(1))
    if any(rows.size(i) != 1 and rows.size(i) != leading[i] for i in (0, 1)) or rows.size(2) * height < query.size(2):
        return ()
    full = block_mask.full_kv_num_blocks is not None
    forward = [rows, block_mask.kv_indices]
    if full:
        forward += [block_mask.full_kv_num_blocks, block_mask.full_kv_indices]
    if columns is None or block_mask.q_indices is None or full != (block_mask.full_q_num_blocks is not None):
        return height, width, forward, []
    if columns.dim() != 3 or any(columns.size(i) != rows.size(i) for i in (0, 1)) or columns.size(2) * width < key.size(2):
        return ()
    backward = [columns, block_mask.q_indices]
    if full:
        backward += [block_mask.full_q_num_blocks, block_mask.full_q_indices]
    return height, width, forward, backward


def mapped_mask(function: Any, has_score: bool, batch: int, heads: int, queries: int, keys: int, device: Any) -> Any:
    """For capture to follow: a mask made from a function of places."""
    raise AssertionError


def attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """What flex_attention does, for capture to follow."""
    mask_mod, blocks = None, ()
    if block_mask is not None:
        mask_mod = block_mask.mask_mod
        if mask_mod is flex._sliced_mask_mod_error:
            return refused("a mask that was cut")
        large = flex._LARGE_SPARSE_BLOCK_SIZE
        has_blocks = block_mask.BLOCK_SIZE[0] != large or block_mask.BLOCK_SIZE[1] != large
        if has_blocks:
            if block_mask.shape[-2] != query.size(-2) or block_mask.shape[-1] != key.size(-2):
                return refused("a mask of other lengths")
        if block_mask.kv_num_blocks.device != query.device:
            return refused("a mask on another device")
        if query.size(0) != key.size(0) and block_mask.kv_num_blocks.size(0) != query.size(0):
            return refused("keys of another batch")
        if mask_mod is flex.noop_mask:
            mask_mod = None
        elif has_blocks:
            blocks = blocks_of(block_mask, query, key)
        if block_mask.q_indices is None and torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            return refused("a mask without what its backward needs")
    elif query.size(0) != key.size(0):
        return refused("keys of another batch")
    if return_lse and return_aux is not None:
        return refused("return_lse and return_aux")
    flex._apply_kernel_options(query, key, value, return_lse, kernel_options, return_aux)  # which refuses some
    made = mapped_attention(query, key, value, score_mod, mask_mod, scale, enable_gqa, return_lse or return_aux is not None, blocks)
    if return_aux is not None:
        return made[0], flex.AuxOutput(lse=made[1] if return_aux.lse else None, max_scores=made[2] if return_aux.max_scores else None)
    return (made[0], made[1]) if return_lse else made[0]


def mask(mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None) -> Any:
    """What create_mask does, for capture to follow."""
    has_score = flex._get_mod_type(mod_fn) == flex._ModificationType.SCORE_MOD
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    return mapped_mask(mod_fn, has_score, 1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN, torch.device(device))


@handles(flex.flex_attention)
def follow_attention(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.call_real(attention, Constant(attention, "flex_attention"), args, kwargs)


@handles(may_skip_blocks)
def answer_about_blocks(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].constant().type in DEVICES)


@handles(flex.create_mask)
def follow_mask(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.call_real(mask, Constant(mask, "create_mask"), args, kwargs)


@handles(mapped_attention)
def operation(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["query", "key", "value", "score_mod", "mask_mod", "scale", "enable_gqa", "auxiliary", "blocks"]
    query, key, value, score_mod, mask_mod, scale, grouped, auxiliary, blocks = bind_arguments("flex_attention", names, args, kwargs, {})
    if not all(type(t) is TensorValue for t in (query, key, value)):
        raise unsupported("sub-graph", "flex_attention of tensors of other classes")
    check_operands(query.fake, key.fake, value.fake, bool(grouped.truth(cx)))
    fake = query.fake
    if fake.device.type in DEVICES:
        for t in (query.fake, key.fake, value.fake):
            int(t.shape[1]), int(t.shape[3])  # kernels are made for a number of heads, and their size
    factor = None if is_none(scale) else scale.constant()
    dtype = torch.float64 if fake.dtype == torch.float64 else torch.float32
    score = None if is_none(score_mod) else Points(cx, score_mod, dtype, fake.device)
    seen = None if is_none(mask_mod) else Points(cx, mask_mod, None, fake.device)
    parts = [part for part in (score, seen) if part is not None]
    target = Flexible(
        None if score is None else score.module,
        None if seen is None else seen.module,
        (0 if score is None else len(score.rest), 0 if seen is None else len(seen.rest)),
        1.0 / math.sqrt(fake.shape[-1]) if factor is None else factor,
        bool(auxiliary.truth(cx)),
    )
    of_blocks: list[Value] = []
    if found := blocks.elements(cx):
        height, width, *ways = found
        tensors = [way.elements(cx) for way in ways]
        of_blocks = [tensor for way in tensors for tensor in way]
        target.blocks = Blocks((height.constant(), width.constant()), *map(len, tensors))
    return cx.op("call_function", target, [query, key, value, *(read for part in parts for read in around(part.rest)), *of_blocks], {})


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


def check_operands(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool) -> None:
    """Raises Unsupported for operands that eager refuses."""
    try:
        flex._validate_sdpa_input(query, key, value, allow_lowp_kv=True)  # type: ignore[attr-defined]
        flex._validate_embed_dim(query, key, value)
        flex._validate_device(query, key, value)
    except (ValueError, NotImplementedError) as error:
        raise unsupported("would-raise", f"flex_attention ({error})") from error
    heads = query.shape[1], key.shape[1] if key.dim() == 4 else 0
    if any(t.dim() != 4 for t in (query, key, value)) or not all(t.is_floating_point() for t in (query, key, value)):
        raise unsupported("would-raise", "flex_attention of tensors that do not have four dimensions of floating point")
    if heads[0] % heads[1] if grouped else heads[0] != heads[1]:
        raise unsupported("would-raise", "flex_attention with other numbers of heads")
    if key.shape[:3] != value.shape[:3]:
        raise unsupported("would-raise", "flex_attention with other keys than values")
    if query.shape[0] != key.shape[0] and key.shape[0] != 1:
        raise unsupported("would-raise", "flex_attention with another batch of keys")


@handles(mapped_mask)
def mask_operation(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, has_score, *sizes, device = args
    score = torch.get_default_dtype() if has_score.truth(cx) else None
    body = Points(cx, function, score, device.constant())
    return cx.op("call_function", MaskOverPoints(body.module, score is not None), [*sizes, device, *around(body.rest)], {})
