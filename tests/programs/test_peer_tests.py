"""scripts/peer_tests.py: tests that others wrote, each compiled. A small module of CPython's stands here for the rest (docs/reliability.md)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "peer_tests.py"
DIFFERENT = """
import sys
import unittest


class Cases(unittest.TestCase):
    def test_same(self):
        self.assertEqual([1, 2].pop(), 2)

    def test_other(self):
        self.assertEqual(sys._getframe().f_code.co_name, "test_other" if self.is_first() else "another")

    def test_fails(self):
        self.fail("as Python, too")

    count = 0

    def is_first(self):
        Cases.count += 1
        return Cases.count != 2
"""


def told(*arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.skipif(importlib.util.find_spec("test.test_iterlen") is None, reason="this Python comes without its tests")
@pytest.mark.further
def test_a_module_of_cpython():
    code, out = told("test_iterlen")
    assert code == 0, out
    assert "test_iterlen: " in out and " 0 differ" in out


def test_what_differs_is_told_and_counted(tmp_path):
    file = tmp_path / "cases.py"
    file.write_text(DIFFERENT)
    code, out = told(file)
    assert code == 1
    assert "differs: cases.Cases.test_other: failed" in out and ": 2 ran, 1 differ, 1 do not pass as Python" in out


def test_a_module_that_ends_its_process_is_told(tmp_path):
    file = tmp_path / "ends.py"
    file.write_text("import os\nos._exit(3)\n")
    code, out = told(file)
    assert code == 1 and "the process ended with 3" in out
