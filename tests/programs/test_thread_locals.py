"""Subclasses of threading.local with an `__init__`, which Python calls in each thread for itself."""

import threading

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke


class Recorder(threading.local):
    limit = 4

    def __init__(self):
        self.marked = False
        self.made = [threading.current_thread().name]


def read(state, x):
    return x + 1 if state.marked else x + state.limit, hasattr(state, "other")


def written(state, x):
    state.marked = not state.marked
    state.other = 3
    return x * 2, state.other


@pytest.mark.parametrize("program", [read, written], ids=lambda f: f.__name__)
def test_each_thread_has_its_own(program):
    def runs(call):
        state, found, places = Recorder(), [], []

        def ask():
            for _ in range(2):
                y, other = call(state, torch.ones(2))
                found.append((y.tolist(), other, dict(state.__dict__)))

        def in_thread():
            worker = threading.Thread(target=ask, name="worker")
            worker.start()
            worker.join()

        for step in (ask, in_thread, ask, in_thread):
            step()
            places.append(len(events))
        return found, places

    events = []
    end = dynacompile.subscribe(events.append)
    want, _ = runs(program)
    got, places = runs(dynacompile.compile(program, backend="eager", isolate_recompiles=True))
    end()
    assert got == want
    assert not [e for e in events[: places[0]] if isinstance(e, (GraphBroke, FrameSkipped))]
    assert not [e for e in events[places[1] :] if isinstance(e, Compiled)]
