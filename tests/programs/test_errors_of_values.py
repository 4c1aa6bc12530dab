"""Errors that depend on values, outside of clauses: they come from the statement that they come from in eager, behind all that the program does before."""

import contextlib
import gc
import signal
import traceback
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled, GraphBroke


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear, self.steps = nn.Embedding(10, 4), nn.Linear(4, 2), 0

    def rows(self, places):
        return self.embedding(places)

    def forward(self, places, log):
        self.steps += 1
        log.append("begin")
        rows = F.dropout(self.rows(places), 0.5)
        log.append("end")
        return self.linear(rows).sum()


def of_module():
    return Model()


def in_a_callee():
    table = torch.arange(12.0).view(4, 3)

    def read(places):
        return table[places]

    def function(places, log):
        log += ["begin"]
        log.extend([1, 2])
        y = read(places) * 2
        log.pop()
        return y.sum()

    return function


def divides():
    def function(places, log):
        log.append("begin")
        return 7 // (places - 20)

    return function


def factors():
    def function(places, log, *more, scale=2.0, **others):
        log.append((len(more), scale, sorted(others)))
        a = torch.eye(3) * (5 - places.float().max()) * scale
        return torch.linalg.cholesky(a)

    return lambda places, log: function(places, log, 1, 2, scale=3.0, other=None)


def behind_a_break():
    def function(places, log):
        log.append("begin")
        x = torch.ones(8) * 3
        dynacompile.graph_break()
        log.append("middle")
        y = x.gather(0, places) + 1
        log.append("end")
        return y

    return function


def into_its_own_tensor():
    def function(places, log):
        log.append("begin")
        y = torch.zeros(6)
        y.index_add_(0, places, torch.ones(2))
        return y

    return function


def targets():
    def function(places, log):
        log.append("begin")
        return F.cross_entropy(torch.zeros(2, 5), places)

    return function


def inside_of_blocks():
    class Seen:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            self.log.append("in")

        def __exit__(self, kind, error, where):
            self.log.append(str(kind))

    def function(places, log):
        with Seen(log):
            try:
                y = torch.ones(4)[places]
            finally:
                log.append("out")
        log.append("after")
        return y

    return function


def suppressed():
    def function(places, log):
        y = torch.zeros(2)
        with contextlib.suppress(IndexError):
            y = torch.ones(4)[places]
            log.append("read")
        return y + 1

    return function


@torch.library.custom_op("errors_of_values::within", mutates_args=())
def within(places: torch.Tensor) -> torch.Tensor:
    if (places > 9).any():
        raise ValueError("a place beyond 9")
    return places * 2


@within.register_fake
def _(places):
    return torch.empty_like(places)


def of_an_operator_of_the_program():
    def function(places, log):
        log.append("begin")
        return within(places) + 1

    return function


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.steps = nn.Linear(3, 4), nn.BatchNorm1d(4), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, places, log):
        self.steps += 1
        self.seen += 1
        scores = self.norm(F.dropout(self.linear(torch.ones(2, 3)), 0.3))
        log.append("scores")
        loss = F.cross_entropy(scores, places)
        self.seen += loss.detach()
        return loss


def of_statistics():
    return Classifier()


def of_what_it_is_given():
    counts = torch.zeros(3)

    def function(places, log):
        counts.add_(1)
        log.append("begin")
        y = torch.ones(4)[places].sum()
        counts.mul_(2)
        return y + counts

    return function


MADE = [
    of_statistics,
    of_what_it_is_given,
    inside_of_blocks,
    suppressed,
    of_an_operator_of_the_program,
    of_module,
    in_a_callee,
    divides,
    factors,
    behind_a_break,
    into_its_own_tensor,
    targets,
]


def run(function, places):
    """What a call gives or raises, what it has logged, the lines of this file in the error's traceback, and what a generator gives next."""
    log: list[object] = []
    torch.manual_seed(3)
    try:
        result = function(places, log)
    except Exception as error:  # noqa: BLE001 - it is compared
        lines = [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
        result = (type(error), str(error), lines[1:])
    return result, log, torch.rand(1), getattr(function, "steps", None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_they_come_from_where_they_come_from_in_eager(make, backend):
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    compiled = dynacompile.compile(make(), backend=backend, isolate_recompiles=True)
    right, wrong = torch.tensor([1, 2]), torch.tensor([1, 20])
    for places in (right, wrong, right, wrong, wrong, wrong, right):
        (want, *beside), (got, *also) = run(plain, places), run(compiled, places)
        assert beside == also
        if isinstance(want, tuple):
            assert want[:2] == got[:2] and want[2] == [line for line in got[2] if line in want[2]], (want, got)
        else:
            torch.testing.assert_close(got, want)
    if isinstance(plain, nn.Module):
        assert plain.steps == compiled.steps == 7
        for (name, want), got in zip(plain.state_dict().items(), compiled.state_dict().values(), strict=True):
            torch.testing.assert_close(got, want, msg=name)


def test_no_entry_is_made_for_such_calls():
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(in_a_callee(), backend="eager", isolate_recompiles=True)
    for _ in range(5):
        compiled(torch.tensor([1, 2]), [])
        with pytest.raises(IndexError):
            compiled(torch.tensor([1, 20]), [])
    end()
    assert sum(isinstance(event, Compiled) for event in events) == 1 and not any(isinstance(event, GraphBroke) for event in events)


def test_arguments_are_let_go_behind_an_error():
    compiled = dynacompile.compile(in_a_callee(), backend="eager", isolate_recompiles=True)
    compiled(torch.tensor([1, 2]), [])
    places = torch.tensor([1, 20])
    at = weakref.ref(places)
    with pytest.raises(IndexError):
        compiled(places, [])
    del places
    gc.collect()
    assert at() is None


def test_what_a_handler_raises_in_the_graph_is_no_error_of_its():
    class Interrupt(ValueError):
        pass

    def handler(number, frame):
        raise Interrupt

    calls: list[int] = []

    def pack(tensor):
        calls.append(1)
        if len(calls) > 3:
            signal.raise_signal(signal.SIGUSR1)
        return tensor

    def function(x, places, log):
        log.append(1)
        return (x.sin() * x.exp())[places]

    compiled = dynacompile.compile(function, backend="aot_eager", isolate_recompiles=True)
    x, log, before = torch.ones(4, requires_grad=True), [], signal.signal(signal.SIGUSR1, handler)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), pytest.raises(Interrupt):
            for _ in range(10):
                compiled(x, torch.tensor([1]), log)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 4


def within_clauses(x, log):
    log.append("begin")
    try:
        y = within(x)
    except ValueError as error:
        log.append(str(error))
        y = x
    try:
        z = torch.renorm(y, 2, 0, float(y.max()) - 100)
    except RuntimeError as error:
        log.append(str(error))
        z = y
    return z + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_clauses_take_errors_of_operations_that_are_not_known_to_raise(backend):
    compiled = dynacompile.compile(within_clauses, backend=backend, isolate_recompiles=True)
    for scale in (1, 20, 200, 3, 200):
        x, logs = torch.ones(3, 3) * scale, ([], [])
        assert torch.equal(*(call(x, log) for call, log in zip((within_clauses, compiled), logs)))
        assert logs[0] == logs[1]
