"""A slice of the fuzzer of reductions."""

from tests.fuzz.reductions import IN_PLACE, WIDER, differing


def test_kernels_store_what_the_oracle_does():
    assert list(differing(range(12))) == []


def test_reductions_of_all_rows_with_gaps():
    assert list(differing(range(WIDER + 24, WIDER + 36))) == []


def test_what_is_read_is_written_over():
    assert list(differing(range(IN_PLACE + 24, IN_PLACE + 48))) == []
