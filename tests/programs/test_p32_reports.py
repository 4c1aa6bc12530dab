"""Logging and warnings: one graph, the calls are made after it as from the user's line; or a break, where the settings say so."""

from __future__ import annotations

import functools
import logging
import warnings

import pytest
import torch

import dynacompile
from tests.checking import check

LOGGER = logging.getLogger("dynacompile.tests.reports")
LOGGER.propagate = False
ADAPTER = logging.LoggerAdapter(LOGGER, {"tag": 1})


@functools.cache
def once(logger, *args):
    logger.warning(*args)


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.getMessage(), record.levelname, record.lineno, record.funcName, record.filename, getattr(record, "tag", None)))


def told(call, *args):
    """What a call logs and warns of."""
    records = Records()
    once.cache_clear()
    LOGGER.handlers[:] = [records]
    LOGGER.setLevel(logging.INFO)
    LOGGER.disabled = False  # configurations of logging disable the loggers that they do not know
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*args)
    return result, records.seen, [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


def inner(x):
    LOGGER.info("inner")
    warnings.warn("of the caller", DeprecationWarning, stacklevel=2)
    warnings.warn("here", stacklevel=1)
    return x * 2


def logs(x):
    y = x + 1
    LOGGER.info("hello %s %d", "a", 3)
    LOGGER.debug("not shown")
    LOGGER.warning(f"shape {tuple(y.shape)}", extra={"tag": 5})
    LOGGER.log(logging.ERROR, "by level")
    return inner(y) * 2


def adapted(x):
    ADAPTER.info("adapted")
    return x * 2


def asked_first(x):
    if LOGGER.isEnabledFor(logging.DEBUG):
        LOGGER.debug("never")
    if LOGGER.level == logging.INFO:
        x = x + 3
    return x * 2


def snapshots(x):
    items = [1]
    LOGGER.info("items %s", items)
    items.append(2)
    LOGGER.info("items %s", items)
    return x * 2, items


def warns_of_an_object(x):
    warnings.warn(UserWarning("an object"), stacklevel=1)
    warnings.warn("beyond the frame", stacklevel=2)
    return x * 2


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4)


@pytest.mark.parametrize("fn", [logs, adapted, asked_first, snapshots, warns_of_an_object])
def test_reported_after_one_graph(fn):
    compiled = dynacompile.compile(fn, backend="eager", fullgraph=True)
    want = told(fn, arg())
    for _ in range(2):
        got = told(compiled, arg())
        assert got[1:] == want[1:] and (want[1] or want[2] or fn is asked_first)
        check(fn, arg(), options={"backend": "eager"})


def test_levels_are_guarded():
    compiled = dynacompile.compile(asked_first, backend="eager", fullgraph=True)
    LOGGER.setLevel(logging.INFO)
    LOGGER.disabled = False  # configurations of logging disable the loggers that they do not know
    assert torch.equal(compiled(arg()), asked_first(arg()))
    LOGGER.setLevel(logging.WARNING)
    assert torch.equal(compiled(arg()), asked_first(arg()))


def logs_a_tensor(x):
    LOGGER.info("sum %s", x.sum())
    return x * 2


def log_twice(x):
    y = x + 1
    LOGGER.info("once")
    return y * 2


def test_a_tensor_in_a_message_breaks_nothing():
    compiled = dynacompile.compile(logs_a_tensor, backend="eager", fullgraph=True)
    assert told(compiled, arg())[1] == told(logs_a_tensor, arg())[1]


@pytest.mark.parametrize("fn, options", [(log_twice, {"reports": "break"})])
def test_breaks_say_what_to_do(fn, options):
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(fn, backend="eager", options=options)
    assert told(compiled, arg())[1] == told(fn, arg())[1]
    end()
    assert any(getattr(e, "code", "") == "logging" and "log strings" in e.hint for e in events)


def names_its_function(x):
    y = x * 2
    print(end="")
    LOGGER.info("after a break")
    return y + 1


def test_frames_keep_their_names_after_a_break():
    assert told(dynacompile.compile(names_its_function, backend="eager"), arg())[1] == told(names_its_function, arg())[1]


def catches_its_warning(x):
    try:
        warnings.warn("an error by a filter", stacklevel=1)
    except UserWarning:
        x = x * 100
    return x + 1


def test_a_filter_that_turns_warnings_into_errors_later_is_guarded():
    compiled = dynacompile.compile(catches_its_warning, backend="eager")
    for action in ("ignore", "error", "ignore", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            assert torch.equal(compiled(arg()), catches_its_warning(arg()))
