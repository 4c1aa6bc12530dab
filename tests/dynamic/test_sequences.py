"""Sequences whose batches and lengths are symbols: one entry, or one for each number of parts, serves all lengths."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from tests.dynamic.varying import check_varying

SIZES = ((3, 8), (4, 12), (2, 17), (6, 9))


def sequences(*sizes):
    return [(torch.randn(*size, 8, requires_grad=True),) for size in sizes or SIZES]


def check(function, entries=1, *sizes):
    check_varying(function, sequences(*sizes), entries, backend="default", dynamic=True, options={"reference": True})


@pytest.mark.parametrize("function", [lambda x: x.split(4, 1), lambda x: x.chunk(3, 1), lambda x: x.unsafe_chunk(3, 1)], ids=["split", "chunk", "unsafe_chunk"])
def test_parts_have_an_entry_for_each_number_of_parts(function):
    check(lambda x: torch.cat([t.sin() for t in function(x)][::-1], 1), 1, (3, 11), (4, 10), (2, 12), (5, 11))


def test_parts_that_a_length_does_not_fill():
    check(lambda x: [t * 2 for t in x.chunk(3, 1)], 2, (3, 8), (2, 4), (2, 13))


SCALARS = {
    "clamp": lambda x: x.clamp(max=x.shape[1] / 9),
    "threshold": lambda x: F.threshold(x, 1 / x.shape[1], -1.0),
    "alpha": lambda x: x.add(x.mean(), alpha=x.shape[1]),
    "leaky_relu": lambda x: F.leaky_relu(x, 1 / x.shape[1]),
    "softplus": lambda x: F.softplus(x, beta=1 / x.shape[1]),
    "elu": lambda x: F.elu(x, alpha=1 / x.shape[1]),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1 / x.shape[1]),
    "addcmul": lambda x: x.addcmul(x, x.flip(1), value=1 / x.shape[1]),
    "correction": lambda x: (y := x.detach()).std(2, correction=x.shape[0]) + y.var(2, correction=x.shape[0] + 7).nan_to_num(1.0, 2.0) * x.amax(2),
    "correction by a real number": lambda x: torch.var_mean(x, 1, correction=x.shape[1] / 4),
}


@pytest.mark.parametrize("name", SCALARS)
def test_numbers_of_operators_that_follow_from_a_length_are_symbols(name):
    check(SCALARS[name])


def test_a_convolution_of_one_element():
    check(lambda x: F.conv1d(x.mT, x.detach()[0, :1].unsqueeze(-1), padding=0).mT)


COMPOSITES = {
    "take_along_dim": lambda x: x.take_along_dim(x[..., 0].argsort(1)[..., None], 1),
    "kron": lambda x: torch.kron(x[0], x[1, :1, :2]),
    "linspace": lambda x: x * torch.linspace(-1, 2, x.shape[1])[:, None],
    "max_pool1d": lambda x: F.max_pool1d(x.mT, 3, 2, padding=1, ceil_mode=True).mT,
    "cross_entropy of probabilities": lambda x: F.cross_entropy(x.mT, x.detach().flip(1).softmax(-1).mT, label_smoothing=0.1),
    "power": lambda x: x.abs() ** (1 / x.shape[1]) + x.pow(x.shape[1]) + torch.pow(x.exp(), x.shape[1] / 7),
    "cov": lambda x: torch.cov(x[0].t(), correction=2) + x[1].t().cov(),
    "corrcoef": lambda x: torch.corrcoef(x[0].t()) * x[0, :, 0].cov() + x[1, :, 1].corrcoef(),
    "cross_entropy of rows": lambda x: F.cross_entropy(x.flatten(0, 1), x.detach().flatten(0, 1).softmax(-1)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_functions_that_torch_takes_apart_by_numbers_are_one_entry(name):
    check(COMPOSITES[name])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)], ids=str)
def test_cross_entropies_of_probabilities(shape, weighted, smoothing, reduction):
    weight = torch.rand(5) if weighted else None
    calls = [(torch.randn(n, *shape[1:], requires_grad=True), torch.rand(n, *shape[1:]).softmax(1)) for n in (4, 7, 2)]
    program = lambda x, t: F.cross_entropy(x, t, weight=weight, label_smoothing=smoothing, reduction=reduction)  # noqa: E731
    check_varying(program, calls, 1, backend="default", dynamic={"x": {0: {}}, "t": {0: {}}}, options={"reference": True})


@pytest.mark.parametrize("given", [((4, 5), (4, 6), None), ((4, 5), (4, 5), 4), ((4, 5), (4, 1), None)], ids=["classes", "weights", "one class"])
def test_probabilities_that_torch_refuses_are_refused(given):
    x, t = (torch.rand(size) for size in given[:2])
    weight = None if given[2] is None else torch.rand(given[2])
    function = lambda x, t: F.cross_entropy(x, t, weight=weight)  # noqa: E731
    with pytest.raises(RuntimeError) as told:
        function(x, t)
    with pytest.raises(RuntimeError) as got:
        dynacompile.compile(function, dynamic=True, isolate_recompiles=True)(x, t)
    assert str(got.value).splitlines()[0] == str(told.value).splitlines()[0]


def test_a_loss_that_asks_whether_variances_are_negative_is_part_of_the_graph():
    program = lambda x, t, v: F.gaussian_nll_loss(x, t, F.softplus(v) + (v > 100) * -200.0, full=True)  # noqa: E731
    calls = [(torch.randn(n, 5, requires_grad=True), torch.randn(n, 5), torch.randn(n, 5, requires_grad=True)) for n in (4, 7, 2)]
    check_varying(program, calls, 1, backend="default", dynamic=True, options={"reference": True})
    compiled = dynacompile.compile(program, isolate_recompiles=True, dynamic=True, fullgraph=True)
    x, t = torch.randn(3, 5), torch.randn(3, 5)
    torch.testing.assert_close(compiled(x, t, x), program(x, t, x))
    with pytest.raises(ValueError, match="var has negative"):
        compiled(x, t, torch.full((3, 5), 150.0))
    torch.testing.assert_close(compiled(x, t, x), program(x, t, x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "symbols"])
def test_pools_without_gradients_lie_in_order(dynamic):
    pool = torch.nn.MaxPool1d(3, 2, 1)
    calls = [(torch.randn(2, length, 8),) for length in ((9,) if not dynamic else (9, 12))]
    check_varying(lambda x: pool(x.mT), calls, 1, backend="default", dynamic=dynamic, options={"reference": True})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evenly_spaced_numbers_are_those_of_eager(dtype):
    compiled = dynacompile.compile(lambda n: torch.linspace(-0.3, 1.7, n, dtype=dtype), dynamic=True, isolate_recompiles=True, options={"reference": True})
    for steps in (7, 2, 1, 3, 100):
        made, want = compiled(steps), torch.linspace(-0.3, 1.7, steps, dtype=dtype)
        assert made.dtype == dtype
        torch.testing.assert_close(made, want, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-7 if dtype == torch.float32 else 1e-15)


def test_a_backward_whose_sizes_follow_from_no_input_knows_them():
    def program(x, w, i):
        t = (torch.where(x > 0, x, x.flip(1)).unfold(1, 2, 2) * w[:2]).sum(-1)
        t = torch.stack([(t[b] @ w[:64].view(8, 8)) * 0.3 for b in range(t.shape[0])])
        chosen = i[:, : t.shape[1]] % 8
        return F.cross_entropy(t[:, :-1].flatten(0, 1), chosen[:, 1:].flatten()), t

    calls = [(torch.randn(1, n, 8, requires_grad=True), torch.randn(4096, requires_grad=True), torch.randint(32, (1, n))) for n in (17, 16, 5, 17)]
    check_varying(program, calls, 2, backend="default", dynamic=True, options={"reference": True})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", [((2, 3),), (2, (1, 2)), (2, 2, (0, 0))], ids=["kernel", "stride", "padding"])
def test_windows_that_torch_refuses_are_refused(window, dynamic):
    compiled = dynacompile.compile(lambda x: F.max_pool1d(x, *window), isolate_recompiles=True, dynamic=dynamic)
    with pytest.raises(RuntimeError, match="must be"):
        compiled(torch.randn(3, 8))


def test_places_by_name_along_a_length():
    compiled = dynacompile.compile(lambda x: torch.take_along_dim(x, indices=x.argsort(1), dim=1), isolate_recompiles=True, dynamic=True)
    x = torch.randn(3, 8)
    assert torch.equal(compiled(x), x.sort(1).values)
