"""LightningModules and DataModules that train on real data at hand: the standard library's source, scikit-learn's digits, a cart with a pole.

`digits` is imported by its own name (`dynacompile.recipes.digits.Digits`), since it takes scikit-learn.
"""

from __future__ import annotations

from dynacompile.recipes.classify import Classify, Distill
from dynacompile.recipes.images import Additive, ResNet, ViT
from dynacompile.recipes.language import NextByte
from dynacompile.recipes.nets import GPT, MLP, ConvNet
from dynacompile.recipes.rl import PPO, Perceptron, Rollouts
from dynacompile.recipes.text import ByteText
from dynacompile.recipes.varlen import HotLengths, ParagraphText

__all__ = [
    "GPT",
    "MLP",
    "PPO",
    "Additive",
    "ByteText",
    "Classify",
    "ConvNet",
    "Distill",
    "HotLengths",
    "NextByte",
    "ParagraphText",
    "Perceptron",
    "ResNet",
    "Rollouts",
    "ViT",
]
