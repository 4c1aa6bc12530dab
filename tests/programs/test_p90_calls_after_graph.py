"""Calls that are made after the graph: functions marked by `dynacompile.after_graph`, as a framework's logging is."""

import contextlib
import types

import pytest
import torch

import dynacompile
from dynacompile.errors import ConfigError

SEEN = []


@contextlib.contextmanager
def events_of(kind):
    """The events of one kind that come meanwhile."""
    found = []
    end = dynacompile.subscribe(lambda event: found.append(event) if type(event).__name__ == kind else None)
    yield found
    end()


def entries(compiled):
    return len(dynacompile.cache_entries(compiled))


def note(name, value=None, *, keeps=False, more=()):
    """Notes what it is given: for tensors the values and whether they have a history."""
    if value is torch.float16:
        raise ValueError(name)
    tensor = isinstance(value, torch.Tensor)
    SEEN.append((name, value.tolist() if tensor else repr(value), tensor and value.requires_grad, list(more)))
    STATE.last = name


STATE = types.SimpleNamespace(last="", other=0)
dynacompile.after_graph(note, changes=("last",), history="keeps")


class Reporter:
    def __init__(self):
        self.noted = []

    def tell(self, key, value):
        self.noted.append((key, float(value)))


dynacompile.after_graph(Reporter.tell)


def several(x):
    note("first", x)
    y = (x * 2).sum()
    note("sum", y)
    note("kept", y, keeps=True)
    note("number", x.shape[0], more=[1, 2])
    note(name="by name", value=None)
    return y + 1


def lists(x):
    items = [1]
    note("items", items)
    items.append(2)
    note("items", items, more=items)
    return x * 2


def in_branches(x):
    for i in range(3):
        if i != 1:
            note(f"round {i}", x[i])
    return x.sum()


@pytest.mark.parametrize("program", [several, lists, in_branches])
def test_one_graph_with_the_calls_in_their_order(program):
    x = torch.arange(4.0, requires_grad=True)
    SEEN.clear()
    want = program(x)
    told = list(SEEN)
    compiled = dynacompile.compile(program, isolate_recompiles=True, fullgraph=True)
    for _ in range(2):
        SEEN.clear()
        torch.testing.assert_close(compiled(x), want)
        assert SEEN == [row if row[0] == "kept" else (*row[:2], False, row[3]) for row in told], "tensors come without history unless it is asked for"
    assert entries(compiled) == 1


def written_after(x):
    y = x + 1
    note("before", y)
    y.mul_(2)
    note("after", y)
    return y


def read_after(x):
    note("read", x.sum())
    return x * len(STATE.last)


def read_before(x):
    scale = len(STATE.last) + STATE.other
    note("read", x.sum())
    return x * scale * (STATE.other + 1)


@pytest.mark.parametrize(("program", "breaks"), [(written_after, 1), (read_after, 1), (read_before, 0)])
def test_what_such_calls_see_and_change_is_eager(program, breaks):
    x = torch.arange(3.0)
    STATE.last = "read"
    SEEN.clear()
    want = program(x), list(SEEN)
    SEEN.clear()
    STATE.last = "read"
    compiled = dynacompile.compile(program, isolate_recompiles=True)
    with events_of("GraphBroke") as broke:
        assert (compiled(x).tolist(), SEEN) == (want[0].tolist(), want[1])
    assert [e.code for e in broke] == ["after-graph"] * breaks
    SEEN.clear()
    assert (compiled(x).tolist(), SEEN) == (want[0].tolist(), want[1])


def test_methods():
    one = Reporter()

    def step(x):
        one.tell("loss", x.sum())
        return x * 2

    compiled = dynacompile.compile(step, isolate_recompiles=True, fullgraph=True)
    compiled(torch.ones(2))
    compiled(torch.ones(2) * 2)
    assert one.noted == [("loss", 2.0), ("loss", 4.0)] and entries(compiled) == 1


class Counter:
    def __init__(self):
        self.total = torch.zeros(())
        self.count = 0


def test_an_object_that_changes_after_the_call():
    counter = Counter()

    def step(x):
        note("object", counter)
        counter.count += 1
        return x * counter.count

    compiled = dynacompile.compile(step, isolate_recompiles=True)
    with events_of("GraphBroke") as broke:
        assert [compiled(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]
    assert {e.code for e in broke} == {"after-graph"}


def test_an_exception_is_the_users():
    def step(x):
        note("bad", torch.float16)
        return x + 1

    compiled = dynacompile.compile(step, isolate_recompiles=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad") as caught:
            compiled(torch.ones(1))
        assert any(frame.name == "step" for frame in caught.traceback)


def test_nothing_of_such_a_function_is_compiled():
    def helper(x):
        return x + 1

    def report(value):
        SEEN.append(helper(value).item())

    dynacompile.after_graph(report)

    def step(x):
        report(x.sum())
        return x * 2

    compiled = dynacompile.compile(step, isolate_recompiles=True)
    with events_of("Compiled") as made:
        compiled(torch.ones(2))
        compiled(torch.ones(2))
    assert [e.frame.split()[0].rpartition(".")[2] for e in made] == ["step"]


def test_packages_without_files_are_refused():
    with pytest.raises(ConfigError, match="leave_to_python"):
        dynacompile.leave_to_python(types.ModuleType("nothing"))
