"""A slice of the questions about objects that functions make."""

import pytest

from tests.fuzz.answers import difference


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_slice(first):
    for seed in range(first, first + 25):
        assert (told := difference(seed)) is None, f"seed {seed}: {told}"


def test_messages_name_the_class_as_c_does():
    assert difference(41010) is None
