from __future__ import annotations

import warnings

import pytest
import torch

if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def refusals_fail():
    """A program that can't be compiled fails its test, though it gives eager's results: they are eager's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*compiled in name only")
        yield
