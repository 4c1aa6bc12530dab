"""The memory that CPU programs keep from call to call: reused when free, never while somebody holds it."""

from __future__ import annotations

import threading

import torch

import dynacompile

LARGE = 1 << 16  # elements: well above the size from which memory is kept


def double():
    return dynacompile.compile(lambda x: x * 2, isolate_recompiles=True, options={"reference": True})


def test_results_that_are_held_are_not_overwritten():
    fn, x = double(), torch.arange(LARGE, dtype=torch.float32)
    held = [fn(x + i) for i in range(4)]
    for i, y in enumerate(held):
        assert torch.equal(y, (x + i) * 2)
    assert len({y.data_ptr() for y in held}) == 4


def test_a_result_that_is_gone_leaves_its_memory():
    fn, x = double(), torch.ones(LARGE)
    y = fn(x)
    place = y.data_ptr()
    view = y[5:]
    del y
    assert fn(x).data_ptr() != place, "a view holds it"
    del view
    assert place in {fn(x).data_ptr() for _ in range(2)}


def test_results_can_grow_and_move():
    y = double()(torch.ones(LARGE))
    y.resize_(2 * LARGE)
    assert torch.equal(y[:LARGE], torch.full((LARGE,), 2.0))
    shared = double()(torch.ones(LARGE)).share_memory_()
    assert shared.is_shared() and shared[7] == 2


def test_reset_keeps_what_is_in_use():
    y = double()(torch.ones(LARGE))
    dynacompile.reset()
    assert torch.equal(y, torch.full((LARGE,), 2.0))


def test_threads_share_it():
    fn, wrong = double(), []
    fn(torch.ones(LARGE))

    def work(number: int) -> None:
        x = torch.full((LARGE,), float(number))
        for _ in range(50):
            if not torch.equal(fn(x), x * 2):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
