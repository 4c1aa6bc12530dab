"""torch.use_deterministic_algorithms and its relatives inside of the frame: operations see the settings that eager's see, and calls leave the same."""

import sys

import pytest
import torch

from dynacompile.events import GraphBroke, Recompiled
from tests.scenarios import attempt, check_same

BACKENDS = ["eager", "aot_eager", "default"]


def setting():
    inductor = sys.modules.get("torch._inductor.config")
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_deterministic_debug_mode(),
        None if inductor is None else inductor.deterministic,
    )


@pytest.fixture(autouse=True)
def restored():
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def told(fn, *arguments, calls=2):
    """What calls show under each setting that the process may have."""

    def story(wrap):
        torch.use_deterministic_algorithms(False)
        run = wrap(fn)
        for before in ((False, False), (True, False), (True, True)):
            for _ in range(calls):
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])
                yield attempt(run, *(a.detach().clone().requires_grad_(a.requires_grad) for a in arguments)), setting()
                torch.utils.deterministic.fill_uninitialized_memory = True

    return story


def reads():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_deterministic_debug_mode()


def uninitialized(x):
    return torch.empty(3), torch.empty_like(x), x.new_empty(2, dtype=torch.int32), torch.empty(2, dtype=torch.bool).sum() * 0, x * 2


def before_all(x):
    torch.use_deterministic_algorithms(True)
    return torch.empty(3) * x.sum(), reads(), x.sin()


def around_all(x):
    before = reads()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        y = x.sin() + torch.empty(3).isnan().sum()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    return y, before, reads()


def after_all(x):
    y = x.sin()
    torch.use_deterministic_algorithms(mode=True)
    return y, reads()


def without_operations(x):
    torch.set_deterministic_debug_mode("warn")
    found = reads()
    torch.set_deterministic_debug_mode(0)
    return found, reads()


def again_and_again(x):
    torch.use_deterministic_algorithms(True)
    y = x.sin()
    torch.use_deterministic_algorithms(True)
    z = y.cos()
    torch.use_deterministic_algorithms(False)
    torch.use_deterministic_algorithms(True)
    return y + z


def not_filled(x):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    y = torch.empty(3).fill_(2.0) + x.sum()
    return y, torch.utils.deterministic.fill_uninitialized_memory


def by_a_manager(x):
    with Deterministic():
        y = torch.empty(3) + x.sum()
    return y, reads()


ONE_GRAPH = [by_a_manager, before_all, around_all, after_all, without_operations, again_and_again, not_filled]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn, backend):
    events = check_same(told(fn, torch.linspace(0, 1, 3).requires_grad_()), backend=backend, fullgraph=True, least=None, rtol=1e-4, atol=1e-5)
    assert not [e for e in events if isinstance(e, GraphBroke)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_uninitialized_memory_is_filled(backend):
    """Of a program that is deterministic already."""

    def story(wrap):
        run = wrap(uninitialized)
        torch.use_deterministic_algorithms(True)
        for _ in range(2):
            yield run(torch.ones(4))
        torch.utils.deterministic.fill_uninitialized_memory = False
        yield run(torch.ones(4))[3:]
        torch.utils.deterministic.fill_uninitialized_memory = True
        yield run(torch.ones(4))
        torch.use_deterministic_algorithms(False)

    events = check_same(story, backend=backend, fullgraph=True)
    assert sum(isinstance(e, Recompiled) for e in events) == 1


def between_operations(x):
    y = x.sin()
    torch.use_deterministic_algorithms(True)
    z = torch.empty(3)
    torch.use_deterministic_algorithms(False)
    return y, z, x.cos(), reads()


def written_by_index(x, y):
    """Writes by an index are refused by deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    y.put_(torch.tensor([0, 1]), x[:2].detach())
    torch.use_deterministic_algorithms(False)
    return y * 2


def refused_in_a_block(x, y):
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            z = x.sin()
            y.put_(torch.tensor([0, 1]), z[:2])
    finally:
        torch.use_deterministic_algorithms(False)
    return y


class Deterministic:
    def __enter__(self):
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *reason):
        torch.use_deterministic_algorithms(self.before)


def refused_in_a_manager(x, y):
    with Deterministic():
        y.put_(torch.tensor([0, 1]), x[:2].detach())
    return y


def refused_under_no_grad(x, y):
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        y.put_(torch.tensor([0, 1]), x[:2])
    torch.use_deterministic_algorithms(False)
    return y


def raises_between(x):
    torch.use_deterministic_algorithms(True)
    y = x * 2
    if y.shape[0] == 3:
        raise KeyError("three")
    torch.use_deterministic_algorithms(False)
    return y


def helper(x):
    torch.use_deterministic_algorithms(True)
    return torch.empty(3) + x.sum()


def in_a_function(x):
    y = x * 2
    y = helper(y)
    torch.use_deterministic_algorithms(False)
    return y, x + 1


def with_a_break(x):
    torch.use_deterministic_algorithms(True)
    y = torch.empty(3) + x.sum()
    print(reads())
    z = torch.empty(3)
    torch.use_deterministic_algorithms(False)
    return y, z


def wrong_argument(x):
    y = x + 1
    torch.use_deterministic_algorithms(1)
    return y


BREAKING = [between_operations, raises_between, in_a_function, with_a_break, wrong_argument]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", BREAKING)
def test_where_graphs_break(fn, backend):
    check_same(told(fn, torch.linspace(0, 1, 3).requires_grad_()), backend=backend, least=None, rtol=1e-4, atol=1e-5)


def test_the_break_between_operations_has_a_name():
    events = check_same(told(between_operations, torch.linspace(0, 1, 3)), backend="eager")
    assert {e.code for e in events if isinstance(e, GraphBroke)} == {"setting"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [written_by_index, refused_in_a_block, refused_in_a_manager, refused_under_no_grad])
def test_what_is_refused_is_refused(fn, backend):
    check_same(told(fn, torch.linspace(0, 1, 3), torch.zeros(3)), backend=backend, least=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_whether_it_only_warns_is_guarded(backend):
    def story(wrap):
        run = wrap(lambda x: (x + 1, torch.is_deterministic_algorithms_warn_only_enabled()))
        for warn_only in (False, True, False):
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            yield run(torch.ones(2))

    check_same(story, backend=backend)
