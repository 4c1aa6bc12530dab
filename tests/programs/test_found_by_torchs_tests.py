"""What torch's own tests found, each of them compiled: errors that the frame takes, modes of generators, inference tensors, nodes of autograd."""

import contextlib

import pytest
import torch
from torch._vmap_internals import _vmap  # autograd's own, for gradients of several at once

import dynacompile
from dynacompile.events import GraphBroke
from tests.checking import assert_same

LEVELS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
BAD = torch.tensor([[1.0, 2.0], [2.0, 1.0]])  # has no Cholesky factor
GOOD = torch.tensor([[2.0, 1.0], [1.0, 2.0]])


def outcome(function, *args):
    """What it gives or raises."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error).__name__, str(error)


def same(program, *args, backend="eager"):
    """The events of the compiled program, which gives what the program gives."""
    dynacompile.reset()
    breaks = []
    end = dynacompile.subscribe(lambda event: breaks.append(event) if isinstance(event, GraphBroke) else None)
    try:
        got = outcome(dynacompile.compile(program, backend=backend), *args)
    finally:
        end()
    assert_same("outcome", got, outcome(program, *args), None, None)
    return breaks


# errors that depend on values


def adds_jitter(a):
    try:
        return torch.linalg.cholesky(a)
    except torch.linalg.LinAlgError:
        return torch.linalg.cholesky(a + 5 * torch.eye(2))


def tries_again(a):
    for i in range(3):
        try:
            factor = torch.linalg.cholesky(a + i * 2 * torch.eye(2))
            break
        except (ValueError, RuntimeError):
            continue
    return factor * 2


def inverse(a):
    return a.inverse()


def of_a_function(a):
    try:
        return inverse(a)
    except Exception as error:  # noqa: BLE001 - as programs write it
        return a + len(type(error).__name__)


def through_a_block(a):
    try:
        with torch.no_grad():
            return torch.linalg.inv(a) + 1
    except RuntimeError:
        return a


def in_any_clause(a):
    try:
        return torch.linalg.solve(a, a)
    except:  # noqa: E722 - as programs write it
        return a + 1


@LEVELS
@pytest.mark.parametrize("program", [adds_jitter, tries_again, of_a_function, through_a_block, in_any_clause])
def test_errors_of_matrices_are_taken_where_they_are_raised(program, backend):
    for given in (GOOD, BAD, torch.zeros(2, 2)):
        same(program, given, backend=backend)


def looks_up(t, places):
    try:
        return t[places] * 2
    except IndexError:
        return t * 0


def selects(t, places):
    try:
        return t.gather(0, places) + 1
    except Exception:  # noqa: BLE001 - as programs write it
        return t


def draws(p):
    try:
        return torch.multinomial(p, 1) * 0
    except RuntimeError:
        return p


@LEVELS
def test_errors_of_places_and_numbers_are_taken_where_they_are_raised(backend):
    for place in (1, 7):
        same(looks_up, GOOD, torch.tensor([place]), backend=backend)
        same(selects, GOOD, torch.tensor([[place, 0]]), backend=backend)
    for p in (1.0, -1.0):
        same(draws, torch.tensor([p, 1.0]), backend=backend)


def looks_up_in_a_list(t, places):
    try:
        return t[[int(places.shape[0]) * 7]] + 1
    except IndexError:
        return t


def divides(a, b):
    try:
        return a // b, a % b
    except RuntimeError:
        return a - 1


def fills(t):
    try:
        return torch.empty(3).uniform_(5, 1)
    except RuntimeError:
        return t


@LEVELS
def test_errors_of_lists_divisions_and_draws_are_taken_where_they_are_raised(backend):
    same(looks_up, GOOD, torch.tensor(7), backend=backend)
    same(looks_up_in_a_list, GOOD, torch.tensor([1]), backend=backend)
    for divisor in (0, 2):
        same(divides, torch.tensor([4, 5]), torch.tensor([2, divisor]), backend=backend)
    same(fills, GOOD, backend=backend)


def raises(operation):
    def program(t):
        try:
            return operation(t)
        except RuntimeError:
            return t.real * 2

    return program


HALF_COMPLEX = {
    "of complex32": lambda t: t.tanh(),
    "of a list of complex32": lambda t: torch.stack([t, t]).sum(),
    "of what becomes complex32": lambda t: t.chalf().exp(),
    "Fourier transform of halves": lambda t: torch.fft.fft(t.real.half()),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@LEVELS
@pytest.mark.parametrize("name", HALF_COMPLEX)
def test_what_cpus_have_no_kernel_for_is_taken_where_it_is_raised(name, backend):
    same(raises(HALF_COMPLEX[name]), torch.ones(4, dtype=torch.complex32 if "of complex32" in name else torch.complex64), backend=backend)


ASKED_TYPES = {
    "running sum as bools": lambda t: t.cumsum(0, dtype=torch.bool),
    "running product as Python's bools": lambda t: torch.cumprod(t, 0, dtype=bool),
    "softmax as ints": lambda t: t.softmax(0, dtype=torch.int64),
    "range of bools": lambda t: t + torch.arange(3, dtype=torch.bool),
    "sum as bools": lambda t: t.sum(dtype=torch.bool),
    "zeros as bools": lambda t: t + torch.zeros(3, dtype=torch.bool),
}
"""Types that arrive by an argument, beside operands of float32 or none; the last two have kernels."""


@LEVELS
@pytest.mark.parametrize("name", ASKED_TYPES)
def test_types_that_are_asked_for_may_have_no_kernel(name, backend):
    same(raises(ASKED_TYPES[name]), torch.tensor([0.5, 2.0, 0.0]), backend=backend)


Taken: type[Exception] = KeyError


def takes_what_a_global_names(t, places):
    try:
        return t[places] * 2
    except Taken:
        return t * 0


def test_which_error_a_clause_takes_is_guarded(monkeypatch):
    dynacompile.reset()
    compiled = dynacompile.compile(takes_what_a_global_names, backend="eager")
    assert torch.equal(compiled(GOOD, torch.tensor([1])), GOOD[[1]] * 2)
    monkeypatch.setitem(globals(), "Taken", IndexError)
    assert torch.equal(compiled(GOOD, torch.tensor([7])), GOOD * 0)


def takes_another_error(t, places):
    try:
        return t[places] * 2
    except (KeyError, AttributeError):
        return t


def has_a_way_for_devices_without_a_kernel(t, places):
    """As caches of keys and values write."""
    try:
        t.index_copy_(0, places, t[places] * 2)
    except NotImplementedError:
        t[places] = t[places] * 2
    return t


def tells_of_singular_matrices(t, places):
    try:
        return t[places] * 2
    except torch.linalg.LinAlgError:
        return t


def cleans_up(t, places):
    try:
        return t[places] * 2
    finally:
        t = t + 1


def looks_up_first(t, places):
    row = t[places]
    try:
        return row + 1
    except IndexError:
        return t


@pytest.mark.parametrize("program", [takes_another_error, has_a_way_for_devices_without_a_kernel, tells_of_singular_matrices, cleans_up, looks_up_first])
def test_clauses_that_take_no_such_error_end_no_graph(program):
    assert not same(program, GOOD, torch.tensor([1]))


def adds_what_has_no_kernel(t):
    try:
        return t + t
    except NotImplementedError:
        return t.float() * 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64], ids=str)
def test_a_clause_for_types_without_a_kernel_takes_the_error(dtype):
    same(adds_what_has_no_kernel, torch.arange(4.0).to(dtype))


# modes and generators


def decorates_a_generator(manager):
    seen = []

    @manager
    def numbers():
        for i in range(2):
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            yield i

    for _ in numbers():
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    return seen


def test_each_step_of_a_generator_is_in_its_mode():
    for make in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for outside in (contextlib.nullcontext, torch.no_grad):
            with outside():
                same(lambda: decorates_a_generator(make()))  # noqa: B023 - called at once


def views_of_inference_tensors():
    found = []
    with torch.inference_mode():
        for wanted in (True, False):
            made = torch.ones(1, 2, 3, requires_grad=wanted)
            for t in (made, made.view(-1), made[0], made * 2):
                found.append((t.is_inference(), t.requires_grad))
    return found


def changes_inference_tensors(change):
    with torch.inference_mode():
        made = torch.ones(1, 2, 3)
    return change(made)


def test_inference_tensors():
    same(views_of_inference_tensors)
    changes = [lambda t: t.transpose_(0, 1), lambda t: t.squeeze_(0), lambda t: t.unsqueeze_(0), lambda t: t.swapaxes_(0, 1), lambda t: t.add_(2)]
    for change in changes:
        same(changes_inference_tensors, change)


# autograd


def hooks_an_accumulator(t):
    seen = []
    node = t.view_as(t).grad_fn.next_functions[0][0]
    node.register_prehook(lambda g: (seen.append("before"), (g[0] / 5,))[1])
    node.register_hook(lambda given, got: seen.append("after"))
    t.sum().backward()
    return seen, t.grad


@LEVELS
def test_a_node_in_a_variable_keeps_its_hooks(backend):
    got, want = (f(torch.ones(3, requires_grad=True)) for f in (dynacompile.compile(hooks_an_accumulator, backend=backend), hooks_an_accumulator))
    assert_same("hooks", got, want, None, None)
    assert want[0] == ["before", "after"]


def rows_in_one(t):
    return _vmap(lambda row: row.sin() * 2)(t)


@LEVELS
def test_the_vmap_of_autograds_own(backend):
    same(rows_in_one, GOOD, backend=backend)
    t = GOOD.clone().requires_grad_()

    def jacobian(t):
        return torch.autograd.functional.jacobian(lambda a: a.sin() * a, t, vectorize=True)

    same(jacobian, t, backend=backend)


# torch.func.functional_call


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, t):
        return self.first(t) + self.second(t)


def test_functional_call_refuses_what_torch_refuses():
    linear, tied, zeros = torch.nn.Linear(2, 2, bias=False), Tied(), torch.zeros(2, 2)
    same(lambda: torch.func.functional_call(linear, ({"weight": zeros}, {"weight": zeros}), GOOD))
    same(lambda: torch.func.functional_call(tied, {"first.weight": zeros, "second.weight": zeros + 1}, GOOD))
    same(lambda: torch.func.functional_call(tied, {"first.weight": zeros, "second.weight": zeros}, GOOD))


# what fx has no text for


def has_no_text(t):
    return torch._VF.unique_dim(t, 0), torch.empty(3, dtype=torch.int64).random_(-5, -1) < 0, t.type(torch.DoubleTensor)


def has_complex_numbers(t):
    return t * complex("nan"), t + complex(1, float("inf"))


@LEVELS
def test_graphs_that_fx_can_not_write_are_interpreted(backend):
    same(has_no_text, GOOD, backend=backend)
    same(has_complex_numbers, GOOD, backend=backend)


# operators and their overloads


def keeps_an_overload(t):
    operator = torch.ops.aten.mm.default
    dynacompile.graph_break()
    return operator.name(), operator is torch.ops.aten.mm.default, operator(t, t), str(torch.ops.aten.add.Tensor), torch.ops.aten.mm.overloads()


@LEVELS
def test_an_overload_is_not_its_operator(backend):
    same(keeps_an_overload, GOOD, backend=backend)
