from __future__ import annotations

import pytest
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


@pytest.fixture(autouse=True)
def no_search_for_a_test_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each op, torch searches the stack for a test of unittest that asks for samples. There is none, and a search takes longer than a compile."""
    for module in (common_utils, core):
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)
