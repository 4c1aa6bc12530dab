"""Calls of the recipes to look at: each function gives the loss of a net and its batch, random bytes in 8 windows of 64.

python -m dynacompile explain dynacompile.recipes.examples:gpt --show schedule
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dynacompile.recipes.language import NextByte
from dynacompile.recipes.nets import GPT, MLP, ConvNet

Example = tuple[Callable[..., Any], tuple[torch.Tensor, torch.Tensor]]  # a function, and its argument


def gpt() -> Example:
    return of(GPT(layers=2))


def mlp() -> Example:
    return of(MLP())


def conv() -> Example:
    return of(ConvNet())


def of(net: nn.Module) -> Example:
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (8, 65))
    return NextByte(net).loss, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
