"""`tensor.data = other`, of parameters and other tensors of before the frame."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

BACKENDS = ["eager", "aot_eager", "default"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.two(self.one(x).relu())


def in_place(model, x):
    for p in model.parameters():
        p.data -= 0.1 * p.grad
    return x + 1


def by_a_new_tensor(model, x):
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad
    return x + 1


@torch.no_grad()
def used_without_gradients(model, x):
    for p in model.parameters():
        p.data = p.data * 0.5 - p.grad
    return model(x)


def used_with_gradients(model, x):
    for p in model.parameters():
        p.data = p.data * 0.5
    return model(x)


def used_before_and_after(model, x):
    before = F.linear(x, model.one.weight)
    model.one.weight.data = model.one.weight.data * 2
    return before, F.linear(x, model.one.weight)


def twice(model, x):
    weight = model.one.weight
    weight.data = weight.data + 1
    weight.data = weight.data * 2
    return weight.sum(), weight.requires_grad, weight.is_leaf


def between_uses(model, x):
    weight = model.one.weight
    weight.data = weight.data * 0.5
    y = (weight + 1) * weight
    weight.data = weight.data + 1
    return y.sum() + weight.exp().sum()


def after_a_use(model, x):
    y = (model.one.weight + 1).exp() * (model.one.weight + 1)
    model.one.weight.data = model.one.weight.data * 2
    return y


def around_a_break(model, x):
    model.one.weight.data = model.one.weight.data * 2
    dynacompile.graph_break()
    return model(x)


def averaged(model, x):
    for p, q in zip(model.one.parameters(), (torch.ones(4, 3), torch.ones(4))):
        p.data = torch.lerp(p.data, q, 0.25)
    return model(x).sum()


ALONE = [in_place, by_a_new_tensor, used_without_gradients]  # used with gradients by no operation of the same graph
PROGRAMS = [*ALONE, used_with_gradients, used_before_and_after, twice, between_uses, after_a_use, around_a_break, averaged]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_of_parameters(fn, backend):
    def story(wrap):
        model, run = Model(), wrap(fn)
        for step in range(3):
            for p in model.parameters():
                p.grad = torch.full_like(p, step + 1.0)
            x = torch.linspace(-1, 1, 12).reshape(4, 3)
            before = [p.data_ptr() for p in model.parameters()]
            result = run(model, x)
            yield result
            yield [p.detach().clone() for p in model.parameters()], [p.requires_grad and p.is_leaf for p in model.parameters()]
            yield [p._version for p in model.parameters()]
            if fn is in_place:
                yield [p.data_ptr() == place for p, place in zip(model.parameters(), before, strict=True)]
            losses = [t.sum() for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor) and t.requires_grad]
            if losses:
                sum(losses).backward()
                yield [p.grad.clone() for p in model.parameters()]

    check_same(story, backend=backend, least=None)


def other_memory(x):
    y = x * 2
    x.data = y
    y.add_(1)
    return x + y


def old_view(x):
    view = x.view(-1)
    x.data = x.data * 2
    view.add_(1)
    return view, x + 1


def written_before(x):
    x.add_(1)
    x.data = x * 3
    return x.mul(2)


def written_after(x):
    x.data = x * 3
    x.add_(1)
    return x.mul(2)


def of_another_input(x, y):
    x.data = y
    return x + 1


def one_of_two(x, y):
    x.data = y + x
    y.mul_(2)
    return x, y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [other_memory, old_view, written_before, written_after])
def test_of_plain_tensors(fn, backend):
    check(fn, torch.linspace(-1, 1, 6).reshape(2, 3), options={"backend": backend})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [of_another_input, one_of_two])
@pytest.mark.parametrize("shared", [False, True])
def test_of_two_tensors(fn, shared, backend):
    def story(wrap):
        run = wrap(fn)
        for _ in range(2):
            x = torch.linspace(-1, 1, 6).reshape(2, 3)
            y = x.view(2, 3) if shared else torch.ones(2, 3)
            yield run(x, y), x, y
            yield x.data_ptr() == y.data_ptr()

    check_same(story, backend=backend, least=None)


def test_breaks_and_graphs():
    def run(x):
        x.data -= 0.5
        x.data = x.data * 2
        return x + 1

    check(run, torch.ones(3), graphs=1, breaks=0)


@pytest.mark.parametrize(
    "fn", [fn for fn in PROGRAMS if fn not in (used_with_gradients, used_before_and_after, between_uses, after_a_use, around_a_break, averaged, twice)]
)
def test_parameters_in_one_graph(fn):
    torch.manual_seed(0)
    ours = Model()
    theirs = copy.deepcopy(ours)
    for p in (*ours.parameters(), *theirs.parameters()):
        p.grad = torch.ones_like(p)
    got = dynacompile.compile(fn, fullgraph=True, backend="eager", isolate_recompiles=True)(ours, torch.ones(4, 3))
    torch.testing.assert_close(got, fn(theirs, torch.ones(4, 3)))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


SHOWN = """
b.data = b - 1; log.append(f"{b}"); got = b.sum().item(), str(b.tolist()), repr(b.max())
n, text = b[0].item(), f"{b} {b[0].item()}"; b.data = b - 1; got = n, text, b.tolist()
s = b.tolist(); b.data = b - 1; b.add_(3); log.append(str(s)); got = f"{b}", b.tolist(), b[1].item()
b.data = b - 1; s = f"{b}"; b.data = b * 3; got = s, f"{b}", b + 0
b.data = b - 1; log.append(b); got = f"{log[0]}", "%s" % b, "".join([str(b)])
b.data = b * 2; n = b.numpy(); b.add_(1); n[0] = 9; got = n
n = b.numpy(); b.data = b * 2; log.append(n.sum()); got = n, b
b.data = b * 2; n = b.numpy(); b.data = b * 3; got = n, b.numpy()
old = b.data; b.data = b * 2; b.data = old; got = str(b), old
v = b[1:]; v.data = b[:2] * 3; got = str(b), str(v)
""".strip().split("\n")


@pytest.mark.parametrize("line", SHOWN)
@pytest.mark.parametrize("leaf", [False, True])
def test_texts_numbers_and_arrays_show_the_memory_of_then(line, leaf):
    names = {"torch": torch}
    exec(f"def fn(b, log):\n    {line}\n    return got", names)

    def story(wrap):
        run = wrap(names["fn"])
        for _ in range(2):
            b, log = torch.linspace(-1, 1, 3).requires_grad_(leaf), []
            with torch.no_grad():
                try:
                    got = run(b, log)
                except RuntimeError as error:
                    got = str(error)
            yield repr((got, log, b))

    check_same(story, backend="eager", least=None)


@torch.no_grad()
def parts_of_a_vector(model, vector):
    """As natural gradients and evolution strategies have it: all parameters are parts of one tensor from then on."""
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    found = []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(before + sign * vector, model.parameters())
        found.append(model(torch.ones(2, 3)).sum())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return torch.stack(found)


def parts_of_an_input(model, vector):
    nn.utils.vector_to_parameters(vector, model.parameters())
    return vector.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [parts_of_a_vector, parts_of_an_input])
def test_parameters_that_become_parts_of_one_tensor(program, backend):
    compiled, ours, eagers = dynacompile.compile(program, isolate_recompiles=True, backend=backend, fullgraph=True), Model(), Model()
    for n in range(3):
        vector = torch.linspace(-1, 1, 26) * (n + 1)
        torch.testing.assert_close(compiled(ours, vector), program(eagers, vector))
        for model in (ours, eagers):
            owners = {p.untyped_storage().data_ptr() for p in model.parameters()}
            assert len(owners) == 1 and (vector.untyped_storage().data_ptr() in owners) == (program is parts_of_an_input)
            model(torch.ones(2, 3)).sum().backward()
        for p, q in zip(ours.parameters(), eagers.parameters(), strict=True):
            assert p.requires_grad and p.is_leaf and p.storage_offset() == q.storage_offset()
            torch.testing.assert_close((p, p.grad), (q, q.grad))
