"""Products with weights that the library has packed, and keeps packed from call to call as long as they do not change."""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("packed_product(Tensor x, Tensor weight, Tensor? bias, bool turned) -> Tensor")


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight.t() if turned else weight, bias)


def empty(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[1 if turned else 0]))


LIBRARY.impl("packed_product", product, "CPU")
LIBRARY.impl("packed_product", empty, "Meta")
PACKED_PRODUCT = torch.ops.dynacompile.packed_product.default
"""The product of x and a weight of shape (n, k), or (k, n) where it is turned, and a bias. Programs run it natively (`runtime/packed.cpp`)."""
