"""Operations that may raise what a clause takes are part of the graph: a call in which one does puts back what has changed, and runs as Python."""

import gc
import random
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.checking import assert_same

EYE = torch.eye(2)


def adds_jitter(a):
    b = a * 1
    try:
        return torch.linalg.cholesky(b)
    except torch.linalg.LinAlgError:
        return torch.linalg.cholesky(b + 5 * EYE)


def tells_of_places(x, places, seen):
    seen.add_(1)
    y = F.dropout(x, 0.5)
    try:
        return torch.zeros(4).scatter_add_(0, places, y)
    except RuntimeError as error:
        raise ValueError(f"bad places after {seen.tolist()}") from error
    finally:
        seen.mul_(2)


def tells_of_places_in_a_callee(x, places, seen):
    def inner():
        return torch.zeros(4).index_add(0, places, x * 2)

    seen += 1
    try:
        y = inner()
    except IndexError:
        y = x.sum()
    except (RuntimeError, KeyError):
        y = x.prod()
    return y + 1, seen.clone()


def divides(x, places, seen):
    try:
        return places // places[:1] + seen.int()
    except RuntimeError as error:
        return str(error)


def counts(x, places, seen):
    try:
        return torch.bincount(places, minlength=4).sum() + x
    except RuntimeError:
        return x


def keeps(x, places, *seen, **more):
    """With the parts of an argument list that a call of its own has to hand on."""
    inner = lambda: places  # noqa: E731
    try:
        return torch.zeros(4)[inner()] + x + more["scale"]
    except IndexError:
        places = places * 0
        return torch.zeros(4)[inner()] - x, seen, sorted(more)


PLACES = [torch.tensor(pair) for pair in ([0, 1], [3, 9], [2, 2], [1, -9], [3, 3], [0, 7], [0, 0])]


def outcome(function, *args, **kwargs):
    torch.manual_seed(3)
    try:
        result = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - compared
        result = repr(error), repr(error.__cause__), repr(error.__context__), error.__suppress_context__
    return result, args, torch.rand(1)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("program", [tells_of_places, tells_of_places_in_a_callee, divides, counts, keeps])
def test_errors_are_taken_as_by_eager(program, backend):
    compiled = dynacompile.compile(program, backend=backend, isolate_recompiles=True)
    more = {"scale": 2} if program is keeps else {}
    for places in PLACES:
        got, want = (outcome(f, torch.ones(2), places, torch.zeros(2), **more) for f in (compiled, program))
        assert_same(f"{places}", got, want, None, None)


def test_a_graph_holds_what_may_raise_until_it_has_done_so_twice():
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(adds_jitter, isolate_recompiles=True)

    def new(a):
        began = len(events)
        assert_same("factor", compiled(a), adds_jitter(a), None, None)
        return [(type(e).__name__, getattr(e, "code", "")) for e in events[began:] if isinstance(e, (Compiled, GraphBroke, FrameSkipped))]

    assert new(EYE) == [("Compiled", "")]
    assert [new(a) for a in (-EYE, EYE, -EYE)] == [[], [], []]
    assert ("GraphBroke", "caught-error") in new(EYE)
    new(-EYE)
    assert [new(a) for a in (-EYE, EYE, -EYE)] == [[], [], []]
    end()


def test_gradients_and_history_are_those_of_the_call_that_counts():
    def program(x, places):
        y = x * 2
        try:
            return (torch.zeros(4).index_add(0, places, y) ** 2).sum()
        except (IndexError, RuntimeError):
            return y.sum()

    compiled = dynacompile.compile(program, isolate_recompiles=True)
    for places in PLACES:
        grads = []
        for f in (compiled, program):
            x = torch.ones(2, requires_grad=True)
            f(x, places).backward()
            grads.append(x.grad)
        assert_same("gradient", *grads, None, None)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.calls = []

    def forward(self, x, places):
        self.calls.append(len(self.calls))
        try:
            return self.norm(x).index_select(0, places)
        except IndexError:
            return self.norm(x * 2)


def test_state_of_modules_is_changed_once():
    torch.manual_seed(0)
    modules = Counts(), Counts()
    compiled = dynacompile.compile(modules[0], isolate_recompiles=True)
    for places in PLACES:
        x = torch.randn(4, 2)
        assert_same("result", compiled(x, places), modules[1](x, places), None, None)
        assert_same("state", dict(modules[0].state_dict()), dict(modules[1].state_dict()), None, None)
        assert modules[0].calls == modules[1].calls


def test_what_cannot_be_put_back_ends_the_graph():
    """An input that is written, and too large to be copied for it."""

    def writes(x, places):
        x.add_(1)
        try:
            return x.view(-1)[places] * 2
        except IndexError:
            return x.sum()

    events = []
    end = dynacompile.subscribe(events.append)
    compiled, large = dynacompile.compile(writes, isolate_recompiles=True, backend="eager"), torch.zeros(300, 300)
    for places in (PLACES[0], torch.tensor([99999]), PLACES[0]):
        got, want = (outcome(f, large.clone(), places) for f in (compiled, writes))
        assert_same("outcome", got, want, None, None)
    end()
    assert "caught-error" in [e.code for e in events if isinstance(e, GraphBroke)]


def turns_gradients_off(x, places):
    try:
        with torch.no_grad():
            y = torch.zeros(4).index_add(0, places, x * 2)
        y = y + x.sum()
    except (IndexError, RuntimeError):
        y = x * 3
    return y, y.requires_grad, torch.is_grad_enabled()


def casts(x, places):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.zeros(4).index_add(0, places, x * 2), x.outer(x) @ x.outer(x)
    except (IndexError, RuntimeError):
        y = x.outer(x) @ x.outer(x)
    return y, torch.is_autocast_enabled("cpu")


def draws(x, places):
    first, array = random.random(), float(np.random.rand())
    try:
        y = torch.zeros(4).index_add(0, places, x * first)
    except (IndexError, RuntimeError):
        y = x * 3
    return y, first, array, random.random(), x.grad


def makes_gradients(x, places):
    x.grad = None
    (x * x).sum().backward()
    try:
        y = torch.zeros(4).index_add(0, places, x)
    except (IndexError, RuntimeError):
        y = x * 3
    return y, x.grad.clone()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("program", [turns_gradients_off, casts, draws, makes_gradients])
def test_modes_generators_and_gradients_are_those_of_the_call_that_counts(program, backend):
    compiled, told = dynacompile.compile(program, backend=backend, isolate_recompiles=True), []
    for run in (compiled, program):
        random.seed(1)
        np.random.seed(1)
        told.append([run(torch.ones(2, requires_grad=True), places) for places in PLACES])
        told[-1] += [random.random(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
    assert_same("outcomes", *told, None, None)


def test_errors_that_are_no_values_leave_the_graph():
    """What the compiler itself refuses is no error of the program's."""

    class Refuses(dynacompile.errors.DynacompileError, RuntimeError):
        pass

    def backend(graph, inputs):
        def run(*args):
            raise Refuses("not here")

        return run

    def program(x, places):
        try:
            return x[places]
        except RuntimeError:
            return x

    with pytest.raises(Refuses):
        dynacompile.compile(program, backend=backend)(torch.ones(4), PLACES[0])


@pytest.mark.parametrize("places", PLACES[:2], ids=["inside", "outside"])
def test_arguments_are_let_go_when_the_call_ends(places):
    def program(x, places):
        try:
            return torch.zeros(4).index_add(0, places, x)
        except (IndexError, RuntimeError):
            return x * 2

    compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
    compiled(torch.ones(2), PLACES[0])
    x = torch.ones(2)
    ref = weakref.ref(x)
    compiled(x, places)
    del x
    gc.collect()
    assert ref() is None


def test_a_frame_behind_a_break_starts_again_itself():
    def program(x, places):
        x = x + 1
        dynacompile.graph_break()
        try:
            return torch.zeros(4).index_add(0, places, x)
        except (IndexError, RuntimeError):
            return x * 3

    compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
    for places in PLACES:
        assert_same("result", compiled(torch.ones(2), places), program(torch.ones(2), places), None, None)


FULL = torch.OutOfMemoryError


@torch.library.custom_op("restarts_test::on_a_full_device", mutates_args=())
def on_a_full_device(x: torch.Tensor, room: int) -> torch.Tensor:
    if x.numel() > room:
        raise torch.OutOfMemoryError("out of memory")
    return x * 2


@on_a_full_device.register_fake
def _(x, room):
    return torch.empty_like(x)


def takes_less(x, size, counts):
    counts += 1
    try:
        y = torch.zeros(size) + x.sum()
    except FULL:
        return "full"
    except (RuntimeError, ValueError):
        return counts * 2
    return y, counts * 3


def in_halves(x, size, counts):
    try:
        y = on_a_full_device(x, min(size, 4))
    except (torch.cuda.OutOfMemoryError, MemoryError):
        return [on_a_full_device(part, 3) for part in x.chunk(2)]
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("program", [takes_less, in_halves])
def test_memory_that_runs_out_is_taken_by_clauses_that_name_it(program, backend):
    compiled, told = dynacompile.compile(program, backend=backend, isolate_recompiles=True), []
    for run in (compiled, program):
        counts = torch.zeros(1)
        told.append([run(torch.ones(length), size, counts) for length, size in ((4, 4), (4, 2**46), (6, 4), (4, 2**46), (4, 2**45), (4, 5))])
        told[-1].append(counts)
    assert_same("outcomes", *told, None, None)


def test_clauses_for_other_builtin_errors_cost_no_guard():
    def program(x):
        try:
            y = x.sin()
        except (ValueError, KeyError):
            y = x
        return y

    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    compiled(torch.ones(2))
    (entry,) = dynacompile.cache_entries(compiled)
    assert "ValueError" not in str(entry) and "KeyError" not in str(entry)


# branches of which one arm raises or warns


class Tracer:
    """Takes part in a block of the user, with state that a restart must not show."""

    def __init__(self):
        self.entered, self.seen = 0, []

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, kind, error, trace):
        self.seen.append(kind)
        return False


def validates_in_a_clause(x, tracer, seen):
    seen.add_(1)
    y = F.dropout(x * 2, 0.25)
    with tracer:
        tracer.seen.append("inside")
        try:
            if not (x > 0).all():
                raise ValueError(f"of shape {tuple(x.shape)}: {x.tolist()}")
            y = y.log() + 1
        except ValueError as error:
            y = y - len(str(error))
    return y, seen * 2, tracer.entered


def validates_for_an_outer_clause(x, tracer, seen):
    def inner(t):
        tracer.seen.append("inner")
        if (ok := (t > 0)).all():
            return t.sqrt()
        elif ok.any():
            raise Mixed("some are not positive")
        else:
            raise ValueError("none is positive")

    try:
        return inner(x + 0 * seen), tracer.seen
    except Mixed as error:
        return str(error), tracer.seen


class Mixed(Exception):
    pass


def warns_rarely(x, tracer, seen):
    tracer.seen.append("before")
    y = x.log()
    if torch.isnan(y).any():
        assert isinstance(tracer, Tracer)
        warnings.warn(f"{int(y.isnan().sum())} are NaN", stacklevel=1)
        y = y.nan_to_num()
    tracer.seen.append("after")
    return y * 2


def checks_after_drawing(x, tracer, seen):
    noise = torch.rand_like(x)
    try:
        assert ((x + noise) > 0).all(), "negative"
    except AssertionError:
        noise = torch.rand(3)
    return noise, torch.rand(2)


POSITIVE, MIXED, NEGATIVE = torch.tensor([0.5, 2.0, 3.0]), torch.tensor([-4.0, 2.0, 3.0]), torch.tensor([-4.0, -2.0, -3.0])
CHECKED = [validates_in_a_clause, validates_for_an_outer_clause, warns_rarely, checks_after_drawing]


def story(function, given):
    """What calls in turn tell, with their warnings."""
    tracer, told = Tracer(), []
    for x in given:
        x, seen = x.clone().requires_grad_(), torch.zeros(3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, _, after = outcome(lambda *args: function(*args), x, tracer, seen)
        outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        gradient = torch.autograd.grad(sum(t.sum() for t in outputs), x)[0] if outputs else None
        told.append((result, gradient, seen, after, [str(w.message) for w in caught if w.category is UserWarning], list(tracer.seen), tracer.entered))
    return told


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("program", CHECKED)
def test_a_call_that_takes_a_rare_arm_starts_again(program, backend):
    given = [POSITIVE, MIXED, POSITIVE, NEGATIVE, POSITIVE, MIXED, NEGATIVE, POSITIVE]
    compiled = dynacompile.compile(program, backend=backend, isolate_recompiles=True)
    assert_same("outcomes", story(compiled, given), story(program, given), 1e-6, 1e-6)


@pytest.mark.parametrize("program", CHECKED)
def test_a_graph_goes_on_at_the_side_that_is_not_rare(program):
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(program, fullgraph=True, isolate_recompiles=True)
    assert_same("outcomes", story(compiled, [POSITIVE, NEGATIVE, POSITIVE]), story(program, [POSITIVE, NEGATIVE, POSITIVE]), 1e-6, 1e-6)
    end()
    assert [type(e) for e in events if isinstance(e, (Compiled, GraphBroke, FrameSkipped))] == [Compiled]


def test_what_follows_a_rare_arm_has_to_run_where_it_is_taken():
    """The print comes before the error in eager, and an operation of the user's must not see what the check refuses."""

    @dynacompile.allow_in_graph
    def own(t):
        assert (t > 0).all()
        return t * 2

    def program(x):
        try:
            if (x.exp() < 0.2).any():
                raise ValueError("small")
            return own(x)
        except ValueError:
            return x - 1

    compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
    for x in (POSITIVE, NEGATIVE, POSITIVE):
        x = x.clone().requires_grad_()
        assert_same("result", compiled(x), program(x), None, None)


def test_inputs_whose_history_the_frame_writes_are_not_put_back():
    def program(x, places):
        x.mul_(2)
        try:
            return torch.zeros(4).index_add(0, places, x * 1)
        except (IndexError, RuntimeError):
            return x.sum() * 3

    def asks(x, places):
        y = x.mul_(2).sum()
        try:
            if places.sum() + y.detach() > 9:
                raise ValueError("large")
            return y
        except ValueError:
            return x.sum() * 3

    for fn in (program, asks):
        for backend in ("eager", "aot_eager", "default"):
            compiled = dynacompile.compile(fn, isolate_recompiles=True, backend=backend)
            for places in PLACES:
                gradients = []
                for f in (compiled, fn):
                    leaf = torch.ones(2, requires_grad=True)
                    x = leaf * 1
                    (f(x, places).sum() + x.sum()).backward()
                    gradients.append((leaf.grad, x))
                assert_same("gradients", *gradients, None, None)
