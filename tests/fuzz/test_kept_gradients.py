"""A slice of the random programs about gradients of tensors that are no leaves, and those that have shown a bug."""

import pytest

from tests.fuzz import kept_gradients
from tests.fuzz.stories import differences

BACKENDS = ("eager", "aot_eager")
FOUND = (91, 162, 840, 50011, 50081, 50179, 50334, 201003)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_slice(first):
    for seed in range(first, first + 10):
        assert not list(differences(kept_gradients.make(seed), BACKENDS)), kept_gradients.make(seed).source


def test_found():
    for seed in FOUND:
        assert not list(differences(kept_gradients.make(seed), BACKENDS)), kept_gradients.make(seed).source
