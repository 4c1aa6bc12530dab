"""Graph breaks: N breaks make N+1 graphs, and nothing runs twice."""

import types

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled
from tests.checking import check


def prints(x):
    y = x + 1
    print("between")
    return y * 2


def item_branch(x):
    y = x * 2
    if y.sum().item() > 0:
        return y + 1
    return y - 1


def tensor_branch(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def explicit(x):
    x = x.sin()
    dynacompile.graph_break()
    x = x.cos()
    dynacompile.graph_break()
    return x.tanh()


@dynacompile.disable
def left_alone(x):
    return x * 3


def calls_disabled(x):
    y = x + 1
    z = left_alone(y)
    return z * 2 + y


def in_loop(x):
    for i in range(3):
        x = x + i
        print(i)
    return x * 2


def inner_break(x):
    y = x * 3
    print("inner")
    return y + 1


def in_callee(x):
    return inner_break(x + 1) * 2


def with_stack(x):
    return x * 2 + float((x + 1).sum().item()) * x


def to_numpy(x):
    y = x * 2
    n = y.detach().numpy().sum()
    return y + float(n)


def effects_around_break(items, x):
    items.append(1)
    y = x + 1
    print(len(items))
    items.append(2)
    return y * len(items)


def closure_over_break(x):
    scale = 2

    def inner(t):
        return t * scale

    y = inner(x)
    print("scale", scale)
    scale = 3
    return inner(y)


def arg():
    return torch.linspace(-2, 3, 48).reshape(6, 8).requires_grad_()


@pytest.mark.parametrize(
    ("fn", "breaks"),
    [(prints, 1), (item_branch, 1), (tensor_branch, 1), (explicit, 2), (calls_disabled, 1), (with_stack, 0), (closure_over_break, 1)],
)
def test_break(fn, breaks, capsys):
    check(fn, arg(), graphs=breaks + 1, breaks=breaks)
    capsys.readouterr()


def test_numpy():
    check(to_numpy, arg())


def test_both_sides_of_a_tensor_branch():
    compiled = dynacompile.compile(tensor_branch)
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.ones(4) * sign
        assert torch.equal(compiled(x), tensor_branch(x))


def test_rounds_of_a_loop_share_their_graph(capsys):
    check(in_loop, arg(), graphs=3, breaks=2)
    capsys.readouterr()


def test_break_in_callee(capsys):
    check(in_callee, arg(), graphs=None, breaks=2)
    capsys.readouterr()


def test_effects_happen_once(capsys):
    check(effects_around_break, [], arg(), graphs=2, breaks=1, calls=1)
    assert capsys.readouterr().out == "1\n1\n"


def test_fullgraph_names_the_break():
    with pytest.raises(dynacompile.exc.Unsupported, match="print") as error:
        dynacompile.compile(prints, fullgraph=True)(arg())
    assert __file__ in str(error.value)


def test_closures_that_python_calls_may_be_made_anew():
    """As context parallelism puts another function in the place of attention in each step."""
    home = types.ModuleType("torch.distributed.made_anew")
    exec("def make(k):\n    def added(x):\n        return x + k\n    return added\n", home.__dict__)
    made = [home.make(k) for k in range(4)]
    held = types.SimpleNamespace(now=made[0])

    def through(x):
        return held.now(x * 2) * 3, held.now is made[0]

    compiled = dynacompile.compile(through)
    compiles: list[object] = []
    end = dynacompile.subscribe(lambda event: compiles.append(event) if isinstance(event, Compiled) else None)
    x = torch.rand(3)
    for added in made:
        held.now = added
        got, expected = compiled(x), through(x)
        assert torch.equal(got[0], expected[0]) and got[1] is expected[1]
    end()
    assert len(compiles) <= 4, "one entry for each graph, and one more for whether it is that function"


class Attention(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return torch.nn.functional.scaled_dot_product_attention(y, y, y) + 1


def test_a_function_of_torch_may_be_replaced_anew(monkeypatch):
    home = types.ModuleType("torch.distributed.replaces")
    exec("def around(f):\n    def inner(*args):\n        return f(*args)\n    return inner\n", home.__dict__)
    real, x = torch.nn.functional.scaled_dot_product_attention, torch.rand(1, 2, 3, 4)
    model = torch.nn.Sequential(Attention(), Attention())
    compiled, expected, counts = dynacompile.compile(model), model(x), []
    compiles: list[object] = []
    end = dynacompile.subscribe(lambda event: compiles.append(event) if isinstance(event, Compiled) else None)
    for _ in range(3):
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", home.around(real))
        torch.testing.assert_close(compiled(x), expected)
        counts.append(len(compiles))
    end()
    assert counts[0] == counts[-1], counts


def test_attributes_of_closures_that_python_calls_are_asked_of_each():
    home = types.ModuleType("torch.distributed.has_attributes")
    exec("def make(k):\n    def added(x):\n        return x + k\n    return added\n", home.__dict__)
    tagged, plain = home.make(1), home.make(2)
    tagged.tag = 5
    held = types.SimpleNamespace(now=tagged)

    def asks(x):
        return x * 2 if hasattr(held.now, "tag") else x * 3

    compiled, x = dynacompile.compile(asks), torch.ones(2)
    for held.now in (tagged, plain, tagged):
        assert torch.equal(compiled(x), asks(x))
