from __future__ import annotations

import pytest

from tests.fuzz.exits import trouble


@pytest.mark.parametrize("seed", range(8))
def test_programs_end_while_something_is_compiled(seed):
    assert not trouble(seed)
