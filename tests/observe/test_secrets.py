"""What strings of the user say goes into no event, trace, report, warning or log; what changed is still told."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import stat
import warnings

import pytest
import torch

import dynacompile
from dynacompile.events import Guarded, Recompiled, to_json
from dynacompile.ir.wording import revealed, shown
from dynacompile.observe.trace import jsonl

CANARY = "canary"
FIRST, SECOND = f"{CANARY}1", f"{CANARY}2-with-dashes"


@pytest.fixture(autouse=True)
def no_entries():
    dynacompile.reset()


class Box:
    def __init__(self, value):
        self.value = value


class Module(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x * len(self.value) if self.value else x


def argument(x, value):
    return x + len(value)


def attribute(x, box):
    return x + len(box.value)


def tuples(x, pair):
    return x * pair[0] + len(pair[1])


def item(x, table):
    return x + len(table["token"])


def dict_keys(x, table):
    for key in table:
        x = x + len(key)
    return x


def environment(x, value):
    return x + len(os.environ["DYNACOMPILE_TEST_SECRET"]) + len(os.getenv("DYNACOMPILE_TEST_SECRET", ""))


def raising(x, value):
    x.add_(1)
    raise ValueError(f"a bad token: {value}")


def converting(x, value):
    try:
        return x + int(value)
    except ValueError:
        return x


def missing_key(x, value):
    table = {}
    y = x + 1
    return y + table[value]


def printing(x, value):
    y = x + 1
    print(value)
    return y * 2


def formatting(x, value):
    return x + len(f"{value}-{x.shape[0]}-{value!r}")


def unknown(x, value):
    y = x + 1
    open(f"/nonexistent/{value}")
    return y


@functools.lru_cache
def checked(value):
    raise RuntimeError(f"a bad token: {value}")


def cached(x, value):
    y = x + 1
    checked(value)
    return y


def attribute_of_constant(x, value):
    y = x * 2
    return y + value.nothing


PROGRAMS = {
    "argument": (argument, lambda s: s),
    "attribute": (attribute, Box),
    "tuple": (tuples, lambda s: (2, s)),
    "item": (item, lambda s: {"token": s}),
    "keys": (dict_keys, lambda s: {s + " as a key": 1}),
    "environment": (environment, lambda s: s),
    "message of an exception": (raising, lambda s: s),
    "conversion": (converting, lambda s: s),
    "missing key": (missing_key, lambda s: s),
    "printed": (printing, lambda s: s),
    "formatted": (formatting, lambda s: s),
    "passed to an unknown function": (unknown, lambda s: s),
    "cached": (cached, lambda s: s),
    "attribute of a constant": (attribute_of_constant, lambda s: s),
    "bytes": (argument, lambda s: s.encode()),
}


def run(function, make, told, monkeypatch, **options):
    """Runs with two secrets, under warnings and logs that are kept."""
    compiled = dynacompile.compile(function, backend="eager", **options)
    for secret in (FIRST, SECOND):
        monkeypatch.setenv("DYNACOMPILE_TEST_SECRET", secret)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                compiled(torch.randn(3), make(secret))
            except dynacompile.errors.DynacompileError as error:
                told.append(str(error))
            except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError):  # the program's own
                continue
            finally:
                told += [str(w.message) for w in given]
    return compiled


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"recompile_limit": 1}], ids=lambda o: next(iter(o), "plain"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_report_tells_a_secret(name, options, monkeypatch, tmp_path, caplog, capsys):
    monkeypatch.setenv("DYNACOMPILE_LOGS", "all")
    caplog.set_level(logging.INFO, "dynacompile")
    function, make = PROGRAMS[name]
    told, events = [], []
    ends = [dynacompile.subscribe(events.append), dynacompile.subscribe(jsonl(tmp_path / "trace.jsonl"))]
    try:
        compiled = run(function, make, told, monkeypatch, **options)
    finally:
        for end in ends:
            end()
    told += [json.dumps(to_json(event)) for event in events] + [repr(event) for event in events] + [r.getMessage() for r in caplog.records]
    told += [(tmp_path / "trace.jsonl").read_text() if events else "", capsys.readouterr().err]
    told += [str(view) for view in dynacompile.cache_entries(compiled)] if hasattr(dynacompile, "cache_entries") else []
    assert not [text for text in told if CANARY in text]


def test_what_changed_is_still_told():
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(tuples, backend="eager")
    for pair in ((2, "train"), (2, "evaluation")):
        compiled(torch.randn(3), pair)
    end()
    (again,) = [e for e in events if isinstance(e, Recompiled)]
    assert re.fullmatch(r"pair\[1\]: str of length 5, digest [0-9a-f]{6} -> str of length 10, digest [0-9a-f]{6}", again.failed[0])


def test_verbose_guards_show_values_on_the_screen_alone(monkeypatch, capsys, caplog):
    monkeypatch.setenv("DYNACOMPILE_LOGS", "verbose_guards")
    caplog.set_level(logging.INFO, "dynacompile")
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(argument, backend="eager")
    for secret in (FIRST, SECOND, CANARY * 100):
        compiled(torch.randn(3), secret)
    end()
    screen = capsys.readouterr().err
    assert f"value: '{FIRST}' -> '{SECOND}'" in screen and f"EQUALS value: '{FIRST}'" in screen
    assert max(map(len, re.findall(rf"(?:{CANARY})+", screen))) < 90
    assert any(isinstance(e, Guarded) and e.texts for e in events)
    assert CANARY not in repr(events) and CANARY not in caplog.text


@pytest.mark.parametrize(
    "value, text",
    [
        (4, "4"), (-0.0, "-0.0"), (True, "True"), (None, "None"), (torch.float32, "torch.float32"), (torch.device("cpu"), "device(type='cpu')"),
        (2**1000, "int of 1001 bits"), ((1, (2.5,), None), "(1, (2.5,), None)"), (slice(1, None), "slice(1, None, None)"), ([1, "a"], "list of 2"),
        (range(3), "range(0, 3)"), (int, "int"), (len, "function len"), (Box(1), "Box"),
    ],
)  # fmt: skip
def test_numbers_types_and_shapes_stay(value, text):
    assert shown(value) == text and revealed(shown(value)) == text


def test_strings_are_told_by_length_and_digest():
    assert re.fullmatch(r"str of length 6, digest [0-9a-f]{6}", shown(CANARY)) and revealed(shown(CANARY)) == f"'{CANARY}'"
    assert re.fullmatch(r"\(1, bytes of length 6, digest [0-9a-f]{6}\)", shown((1, CANARY.encode())))
    assert shown(CANARY) == shown(CANARY) != shown(CANARY[::-1])
    assert len(revealed(shown(CANARY * 1000))) <= 80 and "\n" not in revealed(shown("a\nb"))


def test_a_trace_is_the_users_alone_and_a_foreign_one_is_refused(tmp_path):
    before = os.umask(0)
    try:
        jsonl(tmp_path / "deep" / "trace.jsonl")(Guarded(frame="f", guards=1, lookup_ns=1.0, cold_ns=2.0))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "trace.jsonl").stat().st_mode) == 0o600
    if os.getuid() == 0:
        (tmp_path / "theirs").write_text("")
        os.chown(tmp_path / "theirs", 12345, 12345)
        with pytest.raises(PermissionError, match="belongs to another user"):
            jsonl(tmp_path / "theirs")(Guarded(frame="f", guards=1, lookup_ns=1.0, cold_ns=2.0))


@pytest.mark.parametrize("place", ["full", "fifo", "folder", "below a file", "unset user"])
def test_a_trace_that_cant_be_written_is_one_warning(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    paths = {"full": "/dev/full", "fifo": tmp_path / "fifo", "folder": tmp_path, "below a file": tmp_path / "file" / "t", "unset user": "/proc/nothing/t"}
    monkeypatch.setattr("dynacompile.complaints.COMPLAINTS.known", set())
    end = dynacompile.subscribe(jsonl(paths[place]))
    seen = []
    ends = [end, dynacompile.subscribe(seen.append)]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        compiled = dynacompile.compile(lambda x: x * 2, backend="eager")
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2] and compiled(torch.ones(2, 2)).sum() == 8
    for end in ends:
        end()
    assert len(given) == 1 and "failed and the run goes on without it" in str(given[0].message) and len(seen) > 4


def test_a_subscriber_that_raises_is_one_warning_and_an_interrupt_is_none(monkeypatch):
    monkeypatch.setattr("dynacompile.complaints.COMPLAINTS.known", set())

    def raising(event):
        raise LookupError("no report")

    def interrupted(event):
        raise KeyboardInterrupt

    end = dynacompile.subscribe(raising)
    with pytest.warns(RuntimeWarning, match="raising failed and the run goes on without it: LookupError: no report") as given:
        assert dynacompile.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
    end()
    assert len(given) == 1
    end = dynacompile.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        dynacompile.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    end()


def test_a_torn_line_is_the_only_one_lost(tmp_path, monkeypatch):
    lines = dynacompile.run_files.Lines(tmp_path / "t.jsonl")
    lines.append("1")

    def torn(descriptor, content):
        os.write(descriptor, content[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("dynacompile.run_files.write_all", torn)
        with pytest.raises(OSError):
            lines.append("22222")
    lines.append("3")
    assert (tmp_path / "t.jsonl").read_text().split("\n") == ["1", "22", "3", ""]
