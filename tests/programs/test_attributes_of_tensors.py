"""Whether a tensor has an attribute, where torch raises another error than AttributeError."""

from __future__ import annotations

import pytest
import torch

from tests.checking import check


def asked(name):
    def has(t):
        try:
            return hasattr(t, name), hasattr(t + 1, name)
        except RuntimeError as error:
            return str(error)

    return has


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ["imag", "real", "mT", "mH", "H", "data", "grad", "grad_fn", "nbytes", "missing"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_has_attribute(name, dtype, sizes):
    check(asked(name), torch.ones(sizes, dtype=dtype), graphs=None, breaks=None, options={"backend": "eager"})
