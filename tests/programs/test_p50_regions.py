"""torch.cond, while_loop, scan and map decided by tensors: one graph, with the functions as graphs inside; what can't be one breaks by name."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
TABLE = torch.arange(4.0)
LAYER = nn.Linear(4, 4)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def by_value(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,)) + 1


def closures(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda: y.sin() * TABLE, lambda: LAYER(y)) + 1


def structures(x):
    made = torch.cond(x.sum() < 0, lambda a: {"u": (a["p"].sin(), a["p"].sum())}, lambda a: {"u": (a["p"] * 2, a["p"].mean())}, ({"p": x},))
    return made["u"][0] * made["u"][1]


def nested(x):
    return torch.cond(x.sum() > 0, lambda a: torch.cond(a.max() > 10, lambda b: b * 3, lambda b: b * 4, (a,)), lambda a: a + 1, (x,))


def partly_without_gradients(x):
    def first(a):
        with torch.no_grad():
            b = a * 2
        return a * b, a.detach() + 1

    return torch.cond(x.sum() > 0, first, lambda a: (a * 3, a.sin()), (x,))


def unused(x):
    constant = torch.cond(x.sum() > 0, lambda a: torch.ones(3), lambda a: torch.zeros(3), (x,))
    return torch.cond(x.sum() > 0, lambda a, b: a.sin(), lambda a, b: a.cos(), (x, x * 3)), constant


def whole_numbers(x):
    return torch.cond((x.sum() > 0).reshape(1), lambda a: a.long(), lambda a: a.long() + 1, (x,)), x * 2


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda a: a @ a.t(), lambda a: a.mm(a.t()) * 2, (x,))


def loop(x):
    y = x.cos()
    return torch.while_loop(lambda i, a: (i < 3) & (a.sum() < 1e4), lambda i, a: (i + 1, a * y.cos()), (torch.tensor(0), x + 1))


def loop_of_dicts(x):
    return torch.while_loop(lambda d: d["i"] < 3, lambda d: ({"i": d["i"] + 1, "a": d["a"].sin()},), ({"i": torch.tensor(0), "a": x},))


def no_steps(x):
    return torch.while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x.detach()))  # torch's gradient is that of one step


def along_columns(x):
    x = x.detach()
    weight = x.sin()
    return scan(lambda c, a: ({"c": c["c"] * 0.5 + a}, (c["c"] * a * weight[:, 0], a.cos())), {"c": x.sum(1)}, x, dim=1, reverse=True)


def many_rows(x):
    return map_rows(lambda a, k: (a.sin() * k, a.sum()), x.reshape(-1, 1).repeat(10, 2), x[0, :2])


def mixed(pair, other):
    (a, b), (c, d) = pair, other
    return a * c, b * c + d


def associative(x):
    return associative_scan(mixed, (x, x * 2), dim=1, combine_mode="generic"), associative_scan(torch.add, x, dim=0, reverse=True, combine_mode="generic")


def associative_of_vmap(x):
    return associative_scan(lambda a, b: torch.vmap(lambda p, q: p * 0.5 + q)(a, b), x, dim=0, combine_mode="generic")


WHOLE = [
    by_value,
    closures,
    structures,
    nested,
    partly_without_gradients,
    unused,
    whole_numbers,
    loop,
    loop_of_dicts,
    no_steps,
    along_columns,
    many_rows,
    associative,
    associative_of_vmap,
]


@pytest.mark.parametrize("fn", [*WHOLE, autocast])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)


@pytest.mark.parametrize("fn", [by_value, nested, loop, along_columns])
def test_differentiated_ahead(fn):
    check(fn, arg(), options={"backend": "aot_eager"})


@pytest.mark.parametrize("fn", WHOLE)
def test_with_kernels(fn):
    check(fn, arg(), rtol=1e-4, atol=1e-5)


def test_autocast_reaches_the_backward_pass():
    check(autocast, arg(), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_both_branches_from_one_entry(backend):
    x = arg()
    compiled = dynacompile.compile(by_value, backend=backend, fullgraph=True, isolate_recompiles=True)
    for sign in (1, -1, 1):
        y = (x * sign).detach().requires_grad_()
        z = (x * sign).detach().requires_grad_()
        wanted = ((z * 2).sin() if sign > 0 else (z * 2).cos()) + 1
        compiled(y).sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(y.grad, z.grad)


def steps(x):
    carry, rows = scan(lambda c, a: (c * 0.5 + a.sin(), c * a), x.sum().reshape(1), x.repeat(20)[None], dim=1)
    return carry.sum() + rows.sum()


def unrolled(x):
    carry, total = x.sum(), 0
    for a in x.repeat(20):
        carry, total = carry * 0.5 + a.sin(), total + carry * a
    return carry + total


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_long_scan_has_the_gradients_of_the_loop(backend):
    """Against a loop: torch 2.11's own scan gives other gradients."""
    x, y = torch.linspace(-2, 3, 12).requires_grad_(), torch.linspace(-2, 3, 12).requires_grad_()
    result, wanted = dynacompile.compile(steps, backend=backend, fullgraph=True)(x), unrolled(y)
    result.backward()
    wanted.backward()
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(x.grad, y.grad)


def test_backends_get_torch_own_operators():
    seen = []

    def backend(graph, inputs):
        seen.append([n.target for n in graph.graph.nodes if n.op != "placeholder"])
        return graph.forward

    x = arg()
    torch.testing.assert_close(dynacompile.compile(by_value, backend=backend, fullgraph=True)(x), (x * 2).sin() + 1)
    assert torch.ops.higher_order.cond in seen[0] and "cond_true_0" in seen[0] and "cond_false_1" in seen[0]


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_sizes_may_vary(backend):
    def story(wrap):
        run = wrap(lambda x: by_value(x) + loop(x)[1] * x.shape[0])
        for rows in (3, 5, 7):
            x = torch.linspace(-2, 3, rows * 4).reshape(rows, 4).requires_grad_()
            y = run(x)
            y.sum().backward()
            yield y, x.grad

    check_same(story, backend=backend, dynamic=True, rtol=1e-4, atol=1e-5)


def dropped_out(x):
    return torch.cond(x.sum() > 0, lambda a: nn.functional.dropout(a, 0.5), lambda a: a + 1, (x.detach(),)) + torch.rand(4)


@pytest.mark.parametrize("options", [EAGER, None])
def test_random_numbers_keep_their_order(options):
    check(dropped_out, arg(), options=options)


def returns_its_input(x):
    return torch.cond(x.sum() > 0, lambda a: a, lambda a: a + 1, (x,))


def writes(x):
    return torch.cond(x.sum() > 0, lambda a: a.add_(1) * 2, lambda a: a + 1, (x.detach() * 1,))


def appends(x):
    seen = []
    return torch.cond(x.sum() > 0, lambda a: (seen.append(1), a * 2)[1], lambda a: a + 1, (x,)), seen


def asks(x):
    return torch.cond(x.sum() > 0, lambda a: a * a.sum().item(), lambda a: a + 1, (x.detach(),))


def asks_a_counter(x):
    return torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * (int(i) + 2)), (torch.tensor(0), x.detach()))


def differs_in_size(x):
    return torch.cond(x.sum() > 0, lambda a: a[:1] * 2, lambda a: a + 1, (x.detach(),))


def draws_for_gradients(x):
    return torch.cond(x.sum() > 0, lambda a: nn.functional.dropout(a, 0.5), lambda a: a + 1, (x,))


def within_vmap(x):
    return torch.vmap(lambda a: torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)))(x)


BREAKING = [
    (returns_its_input, "sub-graph"),
    (writes, "sub-graph"),
    (appends, "sub-graph"),
    (asks, "to-python"),
    (asks_a_counter, "to-python"),
    (differs_in_size, "sub-graph"),
    (draws_for_gradients, "random-state"),
    (within_vmap, "sub-graph"),
]


@pytest.mark.parametrize(("fn", "code"), BREAKING)
def test_what_is_no_graph_breaks_by_name(fn, code):
    with pytest.raises(dynacompile.exc.Unsupported) as raised:
        dynacompile.compile(fn, backend="eager", fullgraph=True)(arg())
    assert raised.value.code == code
    check(fn, arg(), graphs=None, breaks=None, calls=1, options=EAGER)
