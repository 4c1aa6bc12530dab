"""LightningModules and DataModules that train on real data: next-byte models of the standard library's source."""

from __future__ import annotations

from dynacompile.recipes.language import NextByte
from dynacompile.recipes.nets import GPT, MLP, ConvNet
from dynacompile.recipes.text import ByteText

__all__ = ["GPT", "MLP", "ByteText", "ConvNet", "NextByte"]
