"""`torch.nn.TransformerEncoder` where eager packs the rows of a batch, whose padding is on the right, and gives zeros at padded places.

Torch's own code asks the mask's values whether it does so, and doesn't where it is compiled. In a graph both results are computed, and chosen between.
"""

from __future__ import annotations

from typing import Any

import torch


def packs(encoder: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> bool:
    """Whether eager packs the rows where their padding is on the right. It asks what torch's `forward` asks."""
    first = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(encoder, "use_nested_tensor", False) or not getattr(encoder, "mask_check", True):
        return False
    if first.training or src.dim() != 3 or src_key_padding_mask is None or src_key_padding_mask.dim() != 2 or mask is not None or torch.is_autocast_enabled():
        return False
    if src_key_padding_mask.dtype is not torch.bool and not torch.is_floating_point(src_key_padding_mask):
        return False
    attention, norms, linears = first.self_attn, (first.norm1, first.norm2), (first.linear1, first.linear2)
    read = [src, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias]
    read += [t for part in (*norms, *linears) for t in (part.weight, part.bias)]
    if torch.overrides.has_torch_function(tuple(read)) or src.device.type not in ("cpu", "cuda", "xpu"):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in read))


def with_zeros(encoder: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
    """Of a batch for which `packs` holds."""
    padding = src_key_padding_mask
    if padding.dtype is torch.bool:
        padding = torch.zeros_like(padding, dtype=src.dtype).masked_fill_(padding, float("-inf"))
    kept = padding.logical_not()
    packed = (kept[:, 1:] <= kept[:, :-1]).all()
    padding = torch.where(packed & ~kept, float("-inf"), padding)
    output = src
    for layer in encoder.layers:
        output = layer(output, src_mask=None, is_causal=is_causal is True, src_key_padding_mask=padding)
    output = torch.where((packed & ~kept)[:, :, None], 0.0, output)
    return output if encoder.norm is None else encoder.norm(output)
