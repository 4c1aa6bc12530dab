"""Attention block by block, with functions of the caller's, as Triton modules: forward, and the two kernels of the backward.

A program of the forward has MBLOCK queries of one head and goes through the keys, NBLOCK at a time. It keeps the largest score of each query so far, and sums
of exponentials relative to that, alone and times values (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention,
2022). Exponentials are powers of two. The backward computes scores again: one kernel has programs of queries, which go through the keys, as the forward does,
for the gradients of queries and of what the functions read; the other has programs of keys, which go through the queries of each head that shares them.

Where there is a BlockMask, its tensors say which blocks a program goes through: first those of which a query sees a part, to which the mask is applied, then
those that are seen as a whole. Blocks need not be multiples of tiles, nor lengths of either: what lies beyond is masked.
"""

from __future__ import annotations

from dynacompile.codegen.triton.attention_backward import KeyGradient, QueryGradient
from dynacompile.codegen.triton.attention_bodies import device_function
from dynacompile.codegen.triton.attention_text import LN2, AttentionText, minus_infinity, number
from dynacompile.codegen.triton.attention_tiles import padded
from dynacompile.ir.schedule import Kernel, KernelSource


def emit_attention(kernel: Kernel) -> KernelSource:
    """Triton source of a kernel that is a call of one of the operators of `ops/attention_kernels.py`."""
    assert kernel.call is not None
    found = EMITTERS[kernel.call.template](kernel, kernel.call)
    return KernelSource(kernel, "triton", found.module(), found.entry, candidates=found.candidates, grids=found.grids(), wide=found.far)


class Forward(AttentionText):
    outputs = ("made", "sums", "largest")
    KEPT = ("acc", "total", "top")

    def walk(self) -> str:
        lines, factor = self.score_lines(self.product("query", "key", f"tl.zeros({self.tile}, tl.float32)"))
        times = "" if factor == 1 else f" * {number(factor)}"
        body = [
            *self.step_lines(),
            f"key = {self.loaded('key', 'key_at', turned=True)}",
            *lines,
            *self.counted(f"score = tl.where(visible, score, {minus_infinity()})"),
            f"largest = tl.maximum(top, tl.max(score, 1){times})",
            f"base = tl.where(largest == {minus_infinity()}, 0.0, largest)",
            f"weights = tl.exp2(score{times} - base[:, None])",
            "fade = tl.exp2(top - base)",
            "total = total * fade + tl.sum(weights, 1)",
            f"value = {self.loaded('value', 'value_at')}",
            f"acc = {self.product(self.rounded('weights'), 'value', 'acc * fade[:, None]')}",
            "top = largest",
        ]
        lines = [*self.column_lines(), *self.tile_lines(self.kept), self.loop(), *(f"    {line}" for line in body), f"return {', '.join(self.KEPT)}"]
        return device_function(f"{self.entry}_walk", [*self.KEPT, *self.given, *self.walk_end], lines)

    @property
    def given(self) -> list[str]:
        return ["query", "b", "h", *self.kept_places, "key_at", "value_at", *self.passed]

    def kernel_text(self) -> str:
        group = int(self.heads) // int(self.key_heads)  # type: ignore[call-overload]
        shared = "h" if group == 1 else f"(h // {group})"
        value = int(self.call.argument("value").size[3])
        lines = [
            *self.head_lines(),
            *self.column_lines(),
            f"query = {self.loaded('query', self.matrices['query'].start('h'))}",
            f"key_at = {self.matrices['key'].start(shared)}",
            f"value_at = {self.matrices['value'].start(shared)}",
            f"acc = tl.zeros([MBLOCK, {padded(value)}], tl.float32)",
            "total = tl.zeros([MBLOCK], tl.float32)",
            f"top = tl.full([MBLOCK], {minus_infinity()}, tl.float32)",
            *self.walks(self.KEPT, self.given, "h"),
        ]
        whole = "acc / tl.where(total == 0.0, 1.0, total)[:, None]"
        lines += self.stored("made", whole)
        lines += self.stored("sums", f"(top + tl.log2(total)) * {LN2}")
        lines += self.stored("largest", f"top * {LN2}")
        return self.kernel_function(lines)


EMITTERS: dict[str, type[AttentionText]] = {
    "attention": Forward,
    "attention_query_gradient": QueryGradient,
    "attention_key_gradient": KeyGradient,
}
