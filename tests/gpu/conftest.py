from __future__ import annotations

import warnings

import pytest
import torch

if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def refusals_fail():
    """A program that is not compiled fails its test: it runs as Python, so it would pass whatever the kernels compute."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*compiled in name only")
        yield
