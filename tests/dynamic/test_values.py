"""Sizes and ints that depend on the values of tensors, under capture_values, and where fullgraph asks for one graph."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.capture.small_sizes import is_repeatable
from dynacompile.errors import Unsupported
from dynacompile.ir.symbolic_graphs import picked
from tests.dynamic.varying import check_varying

VALUES = {"capture_values": True}
X = [torch.tensor(v) for v in ([0.5, -1.0, 2.0, 3.0], [1.0, -2.0, -3.0, -4.0], [4.0, 1.0, 2.0, 3.0], [-1.0, -1.0, 2.0, 2.0])]


def n(value: int) -> torch.Tensor:
    return torch.tensor(value)


def checked(x, count):
    k = count.item()
    torch._check(k > 0)
    torch._check(k <= 4)
    return x[:k] * 2


def refused(x, count):
    k = count.item()
    torch._check(k < 3, lambda: "too many")
    return x * k


def experts(x, weights, hits):
    """Tokens are picked by a mask for each expert that is hit, without gradients, as models with experts do."""
    out = torch.zeros_like(x)
    for hit in hits:
        hit = hit[0]
        with torch.no_grad():
            (places,) = torch.where(x[:, 0] > hit - 1)
        out.index_add_(0, places, x[places] @ weights[hit])
    return out


def positions_without_gradients(x):
    y = x * 2
    with torch.no_grad():
        y = y + x
        kept = (x > 0).nonzero().flatten()
        scale = x[kept].sum() * y.sum()
    return x[kept] * scale * y.sum(), scale.requires_grad, y.requires_grad


def views_of_a_stack(x, count):
    k = count.item()
    rows, columns = (torch.stack([torch.full((k,), 1.0), torch.full((k,), 2.0)], dim) for dim in (0, 1))
    return rows.t(), columns, columns.unbind(1), x + 1


def conditions_of_ints(x, counts):
    k, m = counts.tolist()
    return torch.ones(k) + x[0], k == m, [k < m, bool(k)], {"sum": k + m != 4}


def conditions_of_floats(x):
    numbers = (x * 2).tolist()
    return x + 1, bool(numbers[0] * 0.5), bool(numbers[0] == numbers[3]), not bool(x.shape)


PAIRS = [(X[0], n(p)) for p in ([2, 2], [1, 3], [3, 1], [0, 4])]
PROGRAMS = {
    "views of a stack": (views_of_a_stack, [(X[0], n(i)) for i in range(4)], 1),
    "conditions": (conditions_of_ints, PAIRS, 1),
    "conditions of floats": (conditions_of_floats, [(x,) for x in X], 1),
    "positions": (lambda x: (x > 0).nonzero() * 2, [(x.view(2, 2),) for x in X], 1),
    "mask": (lambda x: x[x > 0] * 2 + 1, [(x,) for x in X], 1),
    "mask that takes nothing": (lambda x: x[x > 0].sum() + x.sum(), [(x,) for x in (*X, torch.zeros(4))], 1),
    "an int in arithmetic": (lambda x, count: x * count.item() + (count.item() * 2 - 1), [(X[0], n(i)) for i in range(4)], 1),
    "an int as a result": (lambda x, count: (x * 2, count.item() + 1), [(X[0], n(i)) for i in range(4)], 1),
    "a size from an int": (lambda count: torch.zeros(count.item()) + 1, [(n(i),) for i in range(4)], 1),
    "a list of ints": (lambda x, parts: [p * 2 for p in x.split(parts.tolist())], [(X[0], n(p)) for p in ([1, 3], [2, 2], [3, 1])], 1),
    "unique": (lambda x: torch.unique(x) * 2, [(x,) for x in X], 1),
    "masked select": (lambda x: torch.masked_select(x, x > 0).exp(), [(x,) for x in X], 1),
    "repeats": (lambda x, r: torch.repeat_interleave(x, r) * 2, [(X[0], n(r)) for r in ([1, 2, 3, 0], [0, 1, 0, 1], [2, 2, 2, 2])], 1),
    "gradients": (lambda x: (x * 2)[x > 0] * 3, [(x.clone().requires_grad_(),) for x in X], 1),
    "conditions that are checked": (checked, [(X[0], n(i)) for i in (1, 2, 3, 4)], 1),
    "a condition that does not hold": (refused, [(X[0], n(i)) for i in (1, 2, 5, 0)], 1),
    "sizes as results": (lambda x: (x[x > 0].shape[0], x[x > 0].numel() * 2, x + 1), [(x,) for x in X], 1),
    "joined": (lambda x: torch.cat([x[x > 0], x[x < 0]]) * 2, [(x,) for x in X], 1),
    "a place": (lambda x, place: x[place] * 2 + x.sum(), [(X[0].view(2, 2), n(i)) for i in (0, 1, -1, -2)], 1),
    "a place outside": (lambda x, place: x.exp()[place] * 2, [(X[0].view(2, 2), n(i)) for i in (0, 2, -3, 1)], 1),
    "gradients of places": (lambda x, place: x[place] * x[place - 1].exp(), [(X[0].clone().view(2, 2).requires_grad_(), n(i)) for i in (0, 1)], 1),
    "a place that is returned": (lambda x, place: (x[place], x[place].T, x * 2), [(X[0].clone().view(2, 2), n(i)) for i in (0, 1)], 1),
    "experts": (experts, [(torch.randn(6, 4), torch.randn(3, 4, 4, requires_grad=True), torch.tensor(h)) for h in ([[0], [2]], [[1], [0]])], 1),
    "without gradients inside": (positions_without_gradients, [(x.clone().requires_grad_(),) for x in X], 1),
    "with symbolic sizes": (lambda x: x[x > 0] + x.shape[0], [(torch.arange(k) - 2.0,) for k in (4, 6, 9, 7)], 2),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, backend):
    fn, calls, entries = PROGRAMS[name]
    assert check_varying(fn, calls, entries, backend=backend, options=VALUES)


def test_where_it_is_off_sizes_that_depend_on_values_break():
    assert check_varying(PROGRAMS["mask"][0], [(x,) for x in X[:1]], 2, breaks=1, options={"capture_values": False})


@pytest.mark.parametrize("name", ["mask", "an int as a result"])
def test_by_default_a_frame_that_has_no_break_then_is_one_graph(name):
    fn, calls, entries = PROGRAMS[name]
    assert check_varying(fn, calls, entries)


def test_with_constant_sizes():
    assert check_varying(PROGRAMS["mask"][0], [(x,) for x in X], 1, dynamic=False, options=VALUES)


def test_a_branch_on_an_input_has_an_entry_for_each_answer():
    def branch(x, count):
        return x * 2 if count.item() > 2 else x + 1

    assert check_varying(branch, [(X[0], n(i)) for i in (3, 1, 4, 0, 2)], 2, options=VALUES)


def test_another_branch_breaks():
    def branch(x, count):
        return x * 2 if (count + x.sum().long()).item() > 2 else x

    assert check_varying(branch, [(X[0], n(3))], 2, breaks=1, options=VALUES)
    with pytest.raises(Unsupported, match="a branch depends on the values of a tensor"):
        dynacompile.compile(branch, fullgraph=True, backend="eager", options=VALUES)(X[0], n(3))


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize(
    "name",
    ["mask", "positions", "a list of ints", "an int as a result", "a condition that does not hold", "with symbolic sizes", "views of a stack", "conditions"],
)
def test_where_a_break_is_an_error_values_end_no_graph(name, dynamic):
    fn, calls, entries = PROGRAMS[name]
    assert check_varying(fn, calls if dynamic is None else calls[:1], min(entries, len(calls)) if dynamic is None else 1, fullgraph=True, dynamic=dynamic)


def test_where_a_break_is_an_error_frames_without_values_have_no_symbols():
    events = check_varying(lambda x: x * 2 + 1, [(X[0],)], 1, fullgraph=True)
    assert not any("SymbolsRefused" in type(e).__name__ for e in events)


@pytest.mark.parametrize("written", ["view", "whole"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_a_view_across_a_cut_is_written(backend, written):
    """What is after the cut is compiled apart, and takes both."""

    def written_after(x, y):
        row, flat, kept = x[0], y.data, (x > 0).nonzero()
        (row if written == "view" else x).add_(3)
        (flat if written == "view" else y).mul_(2)
        return x * 2, row * 3, y + 1, flat - 1, kept

    compiled = dynacompile.compile(written_after, backend=backend, isolate_recompiles=True, options=VALUES)
    mine, theirs = ([torch.arange(4.0).view(2, 2), torch.arange(3.0)] for _ in range(2))
    for _ in range(2):
        for have, want in zip(compiled(*mine), written_after(*theirs)):
            assert torch.equal(have, want)
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_a_place_that_is_written(backend):
    """It is a view, so a write through it is one of the whole."""

    def written(x, y, place):
        y = y * 1
        x[place].add_(3)
        y[place].mul_(2)
        row = x[place]
        x[0].mul_(2)
        return x * 2, y + row, row * 3

    compiled = dynacompile.compile(written, backend=backend, isolate_recompiles=True)
    for place in (0, 1, -1, 0):
        mine, theirs = torch.arange(4.0).view(2, 2), torch.arange(4.0).view(2, 2)
        for have, want in zip(compiled(mine, X[0].view(2, 2), n(place)), written(theirs, X[0].view(2, 2), n(place))):
            assert torch.equal(have, want)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("options", [{}, VALUES], ids=["default", "capture_values"])
def test_other_compilers_are_given_no_place_that_a_tensor_names(options):
    """What they trace with fakes would be place 0."""
    targets = []

    def traced(graph, inputs):
        targets.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    def program(x, place):
        return x.exp()[place] * 2

    compiled = dynacompile.compile(program, backend=traced, isolate_recompiles=True, options=options)
    for place in (0, 1, -1):
        assert torch.equal(compiled(X[0].view(2, 2), n(place)), program(X[0].view(2, 2), n(place)))
    assert targets and picked not in targets


ALIKE = {
    "a view": (lambda x, count: x.view(count.item(), 2), 2, 3),
    "a part of a dimension": (lambda x, count: x.unflatten(0, (count.item(), 2)).sum(1), 2, 1),
    "a sum": (lambda x, count: x + torch.arange(count.item()), 4, 3),
    "a size between": (lambda x, count: x + torch.arange(count.item() + 1), 3, 4),
    "a product": (lambda x, count: x @ torch.ones(count.item(), 2), 4, 3),
    "a concatenation": (lambda x, count: torch.cat([x.view(2, 2), torch.ones(2, count.item())]), 2, 3),
    "a copy": (lambda x, count: x.clone().copy_(torch.ones(count.item())), 4, 5),
    "two numbers": (lambda x, count: x.sum() + torch.arange(count.item()) + torch.arange((count + x.numel() - 4).item()), 3, 3),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_a_size_that_has_to_be_another_is_checked_in_each_call(backend, dynamic):
    for name, (fn, right, wrong) in ALIKE.items():
        compiled = dynacompile.compile(fn, backend=backend, dynamic=dynamic, isolate_recompiles=True, options={**VALUES, "fallback": "none"})
        for count in (right, wrong, right):
            if count == right:
                torch.testing.assert_close(compiled(X[0], n(count)), fn(X[0], n(count)), msg=lambda text, name=name: f"{name}: {text}")
                continue
            with pytest.raises(RuntimeError):
                fn(X[0], n(count))
            with pytest.raises(RuntimeError):
                compiled(X[0], n(count))


def numbered(fn):
    """A program over the number of the elements above 0."""
    return lambda x: fn(x, (x > 0).sum().item())


SMALL = {
    "squeeze": lambda x: (x > 0).nonzero().squeeze(),
    "squeeze of one dimension": lambda x: x[x > 0].squeeze(0) + 1,
    "squeeze of a product": lambda x: (x[x > 0][:, None] @ torch.ones(1, 3)).squeeze(),
    "broadcast": numbered(lambda x, count: torch.arange(count) + x),
    "broadcast of two masks": lambda x: x[x > 0] * x[x > 2.5],
    "broadcast of one mask": lambda x: torch.where(x[x > 0] > 1, x[x > 0], torch.zeros(3)),
    "broadcast of batches": numbered(lambda x, count: torch.ones(count, 2, 2) @ torch.ones(3, 2, 2)),
    "an assignment": numbered(lambda x, count: x.clone().index_put_((torch.arange(2),), torch.ones(count))),
    "an expanded dimension": numbered(lambda x, count: x[None].expand(count, 4)),
    "the greatest": lambda x: x[x > 0].max(),
    "the place of the greatest": lambda x: x[x > 0].argmax(),
    "a truth value": numbered(lambda x, count: x * (count == 1)),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_sizes_are_as_in_eager(name):
    """A size of 1 is broadcast and squeezed, and nothing has no greatest element. Where the graph may not break, a call says what it needs."""
    fn = SMALL[name]
    for fullgraph in (False, True):
        compiled = dynacompile.compile(fn, fullgraph=fullgraph, isolate_recompiles=True, options={"fallback": "none"})
        for x in (torch.tensor([1.0, -1.0, 3.0, 2.0]), X[1], -torch.ones(4), X[3], X[2]):
            try:
                expected = fn(x)
            except (RuntimeError, IndexError):
                with pytest.raises((RuntimeError, IndexError)):
                    compiled(x)
                continue
            try:
                found = compiled(x)
            except (Unsupported, RuntimeError) as error:
                assert fullgraph, error
                assert isinstance(error, Unsupported) or "of sizes that depend on values" in str(error)
                continue
            assert found.shape == expected.shape
            assert torch.equal(found, expected)


def test_only_what_is_of_torch_alone_is_run_again_for_small_sizes():
    """An operator of a user's may do more than compute, and a collective waits for other processes."""
    runs = []

    @torch.library.custom_op("tests_small_sizes::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(x.shape)
        return x + 1

    @counted.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = dynacompile.compile(lambda x: torch.ops.tests_small_sizes.counted(x[x > 0]) * 2, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X[0]), (X[0][X[0] > 0] + 1) * 2)
    assert runs == [torch.Size([3])]
    assert not is_repeatable("call_function", torch.ops._c10d_functional.all_reduce.default)
    assert not is_repeatable("call_function", torch.ops._c10d_functional.all_to_all_single)
    assert is_repeatable("call_function", torch.ops.aten.squeeze.default)


def test_a_size_that_an_example_divides_by_zero():
    def divided(x, y, count):
        parts = y.reshape(x.shape[0], -(-count.item() // 2), -1)
        return parts[parts > 0].sum() * y, parts

    args = torch.ones(3), torch.linspace(-1, 2, 12), n(4)
    compiled = dynacompile.compile(divided, dynamic=True, fullgraph=True, options={"fallback": "none"})
    torch.testing.assert_close(compiled(*args), divided(*args))


DRAWS = {
    "draw": lambda size, g: torch.randn(size),
    "overload of ATen": lambda size, g: torch.ops.aten.rand([size]),
    "places": lambda size, g: torch.randint(9, (size,), device="cpu"),
    "generator of its own": lambda size, g: torch.rand(size, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_run_again_for_small_sizes_draws_no_number_of_the_program(name):
    def fn(mask, g):
        return DRAWS[name](int(mask.sum()) + 2, g)

    def drawn(call):
        torch.manual_seed(0)
        g = torch.Generator().manual_seed(0)
        return [(call(torch.arange(4) > 2 - i, g), torch.randn(2), torch.randn(2, generator=g)) for i in range(3)]

    torch.testing.assert_close(drawn(dynacompile.compile(fn, backend="eager", isolate_recompiles=True)), drawn(fn), rtol=0, atol=0)
