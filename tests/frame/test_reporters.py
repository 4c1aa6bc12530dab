"""Libraries that report run as Python where they are called, also by print(): a progress bar's code is not worth an entry."""

from __future__ import annotations

import io

import torch
from tqdm import tqdm

import dynacompile
from dynacompile.events import Compiled, GraphBroke


def told_of(fn, *args):
    events: list = []
    end = dynacompile.subscribe(lambda event: events.append(event) if isinstance(event, (Compiled, GraphBroke)) else None)
    try:
        result = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)(*args)
    finally:
        end()
    return result, events


def test_a_progress_bar_runs_as_python():
    bar = tqdm(total=2, file=io.StringIO(), mininterval=0)

    def story(x):
        y = x + 1
        dynacompile.graph_break()
        bar.set_description(f"round {len(x)}")
        tqdm.write("said", file=bar.fp)
        return y * 2

    result, events = told_of(story, torch.ones(2))
    assert torch.equal(result, torch.full((2,), 4.0)) and bar.desc == "round 2: " and "said" in bar.fp.getvalue()
    compiled = [event.frame for event in events if isinstance(event, Compiled)]
    assert compiled and all("story" in frame for frame in compiled), compiled


def test_a_loop_behind_a_progress_bar():
    def story(x):
        for i in tqdm(range(3), disable=True):
            x = x + i
        return x

    result, events = told_of(story, torch.ones(2))
    assert torch.equal(result, torch.full((2,), 4.0))
    assert sum(isinstance(event, GraphBroke) for event in events) == 1
