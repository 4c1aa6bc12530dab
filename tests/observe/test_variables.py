"""Variables of the environment that ask for logs and traces: what is wrong in them is one warning, and ends nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dynacompile.env import VARIABLES
from tests import forked

PROGRAM = """
import dynacompile, torch
from dynacompile.observe.log import log_subscriber
log_subscriber()  # asked once more, it warns no more
run = dynacompile.compile(lambda x: x + 1, backend="eager", dynamic=False)
for n in (2, 3):
    run(torch.ones(n))
print("done")
"""


WITHOUT_A_FOLDER = """
import os, tempfile, torch
here = tempfile.mkdtemp()
os.chdir(here)
os.rmdir(here)
import dynacompile
print("done")
"""


def run(program: str = PROGRAM, **variables: str) -> CompletedProcess:
    return forked.run(forked.BARE, "-c", program, env={**os.environ, **variables})


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, told",
    [
        ("recompile", "no topic 'recompile', which is left out: did you mean 'recompiles'"),
        ("graph-breaks", "did you mean 'graph_breaks'"),
        ("qqqq", "valid names: all, attention, autotune"),
        ("recompiles,guard", "no topic 'guard', which is left out: did you mean 'guards'"),
    ],
)
def test_an_unknown_topic_is_one_warning_that_names_the_nearest(given, told):
    done = run(DYNACOMPILE_LOGS=given)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert done.stderr.count(told) == 1 and done.stderr.count("RuntimeWarning") == 1
    assert ("recompile <lambda>" in done.stderr) == ("recompiles" in given.split(","))


@pytest.mark.slow
def test_a_misspelt_variable_is_one_warning_that_names_the_nearest():
    done = run(DYNACOMPILE_LOG="recompiles", DYNACOMPILE_TEST_OF_MINE="1", DYNACOMPILE_WRITE_GOLDEN="")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert done.stderr.count("reading DYNACOMPILE_LOG failed") == 1 == done.stderr.count("RuntimeWarning")
    assert "nothing reads this variable: did you mean DYNACOMPILE_LOGS?" in done.stderr


@pytest.mark.slow
def test_all_variables_that_the_code_reads_are_known():
    folders = [Path(__file__).parents[2] / name for name in ("dynacompile", "callbacks")]
    sources = [file.read_text() for folder in folders for file in folder.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"[\"']DYNACOMPILE_([A-Z_]+)[\"']", text)}
    assert named == set(VARIABLES)


@pytest.mark.slow
def test_topics_that_exist_warn_of_nothing():
    done = run(DYNACOMPILE_LOGS=" recompiles , ,all")
    assert done.returncode == 0 and "Warning" not in done.stderr and "recompile <lambda>" in done.stderr


@pytest.mark.slow
def test_a_trace_in_a_folder_that_is_gone_is_one_warning():
    done = run(WITHOUT_A_FOLDER, DYNACOMPILE_TRACE="events.jsonl", PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert done.stderr.count("reading DYNACOMPILE_TRACE failed and the run goes on without it") == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "file/events.jsonl"], ids=["folder", "below-a-file"])
def test_a_trace_that_can_not_be_written_is_one_warning(place, tmp_path):
    (tmp_path / "file").touch()
    done = run(DYNACOMPILE_TRACE=str(tmp_path / place))
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert done.stderr.count("the run goes on without it") == 1
