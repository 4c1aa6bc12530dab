"""A slice of the points of the file system's fuzzer: some of each scenario, some of each odd file, some with two faults."""

from __future__ import annotations

from tests.fuzz.files import run


def test_faults_and_odd_files():
    assert run(3, 12000, step=211) == []
