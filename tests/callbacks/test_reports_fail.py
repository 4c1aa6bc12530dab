"""Reports that fail end no fit, and say so once; whose files may be read; flags of the compiler that a config brings."""

from __future__ import annotations

import json
import stat
import threading
import warnings
from types import SimpleNamespace

import pytest

from dynacompile import run_files
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.ledger import read_trace
from dynacompile.callbacks.numbers import log
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.sweep_runs import Run
from dynacompile.callbacks.sweep_table import comparison
from dynacompile.complaints import COMPLAINTS
from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError
from dynacompile.run_files import Lines

QUICK = {"measure_after": 2, "measure_steps": 1}


@pytest.fixture(autouse=True)
def nothing_warned_of(monkeypatch):
    monkeypatch.setattr(COMPLAINTS, "known", set())


def full(*args, **kwargs):
    raise OSError(28, "No space left on device")


PLACES = {
    "lines": ("dynacompile.run_files.write_all", 2),  # the events' file, and the summary and the page that go the same way
    "opening": ("dynacompile.run_files.open_for_lines", 1),
    "summary": ("dynacompile.callbacks.record.write_whole", 1),
    "page": ("dynacompile.callbacks.report.write_whole", 1),
    "screen": ("dynacompile.callbacks.reports.show", 1),
    "template": ("dynacompile.callbacks.pages.PackageLoader", 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_fit_ends_well_without_its_reports(place, fit, compiler, monkeypatch, tmp_path):
    name, least = PLACES[place]
    monkeypatch.setattr(name, full)
    callback = DynamoCallback(QUICK)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        fit(callback)
    told = [str(w.message) for w in given if "the run goes on without it" in str(w.message)]
    assert len(told) == len(set(told)) and least <= len(told) <= least + 1 and callback.outcome is not None
    assert not compiler.bus._subscribers and not callback.run.names


def test_a_logger_that_raises_is_one_warning():
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for step in (3, 4):
            log(SimpleNamespace(loggers=[Raising(), Raising()]), {"compile/graphs": 1.0}, step)
    assert len([w for w in given if "the run goes on without it" in str(w.message)]) == 1


class Raising:
    def log_metrics(self, metrics, step):
        raise ConnectionError("no network")


@pytest.mark.parametrize("mode, wanted", [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o770, 0o660)])
def test_reports_are_read_by_whom_the_runs_folder_is(mode, wanted, fit, compiler, tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv").chmod(mode)
    fit(DynamoCallback(QUICK))
    files = [tmp_path / "csv" / name for name in ("compile_events.jsonl", "summary.json", "compile_report.html")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [wanted] * 3


def test_threads_that_write_at_once_leave_no_line_that_is_no_event(tmp_path, monkeypatch):
    """As the compiler's own do, which build kernels of one graph while the next is lowered."""
    lines, whole, going = Lines(tmp_path / "t.jsonl"), run_files.write_all, threading.Barrier(2, timeout=60)
    event = json.dumps({"event": "CacheLooked", "tier": "binaries", "key": "k", "hit": True})

    def write_all(descriptor, data):
        going.wait()  # both are within `append`
        whole(descriptor, data)

    lines.append(event)
    monkeypatch.setattr(run_files, "write_all", write_all)
    others = [threading.Thread(target=lines.append, args=(event,)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert lines.path.read_text() == f"{event}\n" * 3


def test_empty_lines_of_a_trace_are_no_loss(tmp_path):
    trace = tmp_path / "t.jsonl"
    event = json.dumps({"event": "CacheLooked", "tier": "binaries", "key": "k", "hit": True})
    trace.write_text(f"{event}\n\n{event}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_trace(trace).seen) == 2


def test_lines_of_a_trace_that_are_no_events_are_left_out(tmp_path):
    trace = tmp_path / "t.jsonl"
    good = json.dumps({"event": "CacheLooked", "tier": "binaries", "key": "k", "hit": True, "batch": 3})
    trace.write_text("\n".join([good, '{"event": "CacheLo', "7", '{"event": "Bus"}', '{"event": "threading"}', good]))
    with pytest.warns(RuntimeWarning, match="lines that are no events"):
        ledger = read_trace(trace)
    assert [batch for batch, _ in ledger.seen] == [3, 3]


def test_flags_of_the_compiler_from_a_config_need_a_word_of_the_environment(monkeypatch):
    monkeypatch.delenv("DYNACOMPILE_ALLOW_CPP_FLAGS", raising=False)
    for given in ({"cpp_flags": "-fplugin=x.so"}, {"modules": {"net": {"cpp_flags": "-O1"}}}):
        with pytest.raises(ConfigError, match="compile.cpp_flags=.* comes from a config.*DYNACOMPILE_ALLOW_CPP_FLAGS=1"):
            DynamoCallback(given)
    assert CompileSettings.of({"cpp_flags": "", "modules": {"net": {"cpp_flags": None}}}).base.cpp_flags == ""
    assert CompileSettings(base=CompileConfig(cpp_flags="-O1")).base.cpp_flags == "-O1"  # a program's own
    monkeypatch.setenv("DYNACOMPILE_ALLOW_CPP_FLAGS", "1")
    assert CompileSettings.of({"cpp_flags": "-O1"}).base.cpp_flags == "-O1"


def test_the_table_of_a_sweep_takes_overrides_as_they_are(capsys):
    from_user = "model.name=[bold]x[/] \x1b[2J"
    table = comparison([Run((from_user, "a=1"), {}), Run((from_user, "a=2"), {})])
    assert "[bold]x[/]" in str(table.title) and "\x1b" not in str(table.title)
