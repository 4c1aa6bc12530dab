"""Passes over a functional ATen graph whose output node is nested. Each takes a graph, changes it in place, and gives it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.fx

from dynacompile.autograd.passes.bias import split_biases
from dynacompile.autograd.passes.cancel import cancel_noops
from dynacompile.autograd.passes.convolutions import multiply_pixels
from dynacompile.autograd.passes.cpu_products import add_biases, apply_cheap_activations
from dynacompile.autograd.passes.dead import remove_dead
from dynacompile.autograd.passes.fold import fold_constants
from dynacompile.autograd.passes.logarithms import widen_exponents
from dynacompile.autograd.passes.merge import merge_equal, merge_views
from dynacompile.autograd.passes.parts import read_parts
from dynacompile.autograd.passes.products import apply_activations, widen_products
from dynacompile.autograd.passes.waits import wait_for_all


@dataclass(frozen=True)
class Pass:
    """numerics: "bitwise" keeps every bit; "zeros" keeps every value up to the sign of zero; "rounding" may round at another place; "fused" leaves out a
    rounding to 16 bits, which `precise` keeps."""

    run: Callable[[torch.fx.Graph], torch.fx.Graph]
    numerics: Literal["bitwise", "zeros", "rounding", "fused"]


PASSES = (
    Pass(remove_dead, "bitwise"),
    Pass(fold_constants, "zeros"),
    Pass(read_parts, "bitwise"),
    Pass(widen_exponents, "fused"),
    Pass(cancel_noops, "bitwise"),
    Pass(merge_views, "bitwise"),
    Pass(merge_equal, "bitwise"),
    Pass(remove_dead, "bitwise"),
    Pass(split_biases, "rounding"),
    Pass(add_biases, "rounding"),
    Pass(apply_cheap_activations, "fused"),
    Pass(apply_activations, "fused"),
    Pass(multiply_pixels, "fused"),
    Pass(widen_products, "fused"),
    Pass(wait_for_all, "bitwise"),
)


def simplify(graph: torch.fx.Graph, precise: bool = False) -> torch.fx.Graph:
    """All passes, in order. precise: without those that leave out roundings."""
    for step in PASSES:
        if not (precise and step.numerics == "fused"):
            graph = step.run(graph)
    return graph
