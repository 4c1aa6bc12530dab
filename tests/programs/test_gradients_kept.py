"""Gradients that tensors keep which are no leaves, and hooks on them, inside of the frame and after it: as in eager."""

import pytest
import torch

import dynacompile
from dynacompile.events import GraphBroke
from tests.scenarios import check_same

LEVELS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])


def made():
    return torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_()


# kept inside of the frame


def keeps(x):
    y = x * 2
    y.retain_grad()
    z = y.sin()
    z.retain_grad()
    z.sum().backward()
    return y.grad, z.grad, x.grad


def keeps_behind_a_hook(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad, x.grad


def keeps_through_two_passes(x):
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward(retain_graph=True)
    first = y.grad.clone()
    y.grad = None
    y.cos().sum().backward()
    return first, y.grad, x.grad


def keeps_of_many(x):
    ys = [x * i for i in range(3)]
    for y in ys:
        y.retain_grad()
    sum(y.sin().sum() for y in ys).backward()
    return [y.grad for y in ys]


def keeps_of_a_view(x):
    y = x * 2
    y.retain_grad()
    v = y.view(-1)
    v.retain_grad()
    v.sin().sum().backward()
    return y.grad, v.grad


def keeps_in_an_argument(x):
    y = x * 1

    def inner(t):
        t.retain_grad()
        (t * 2).sum().backward()
        return t.grad, t.retains_grad

    return inner(y)


@LEVELS
@pytest.mark.parametrize(
    "frame", [keeps, keeps_behind_a_hook, keeps_through_two_passes, keeps_of_many, keeps_of_a_view, keeps_in_an_argument], ids=lambda f: f.__name__
)
def test_gradients_are_kept_inside(frame, backend):
    def story(wrap):
        yield wrap(frame)(made())

    check_same(story, backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("first", [True, False], ids=["keeps it first", "keeps it later"])
def test_an_argument_that_keeps_its_gradient_keeps_what_is_asked_for_inside(first, backend):
    def story(wrap):
        frame = wrap(lambda y: torch.autograd.grad((y * y).sum(), y, retain_graph=True)[0] + y.sin())
        for keeps in (first, not first):
            x = made()
            y = x * 1
            if keeps:
                y.retain_grad()
            result = frame(y)
            yield result, y.grad if keeps else None
            result.sum().backward()
            yield y.grad if keeps else None, x.grad

    check_same(story, backend=backend)


@LEVELS
def test_a_tensor_that_keeps_its_gradient_or_not(backend):
    """The same code, of arguments that are leaves, keep theirs, or neither."""

    def reads(t):
        return t * (2 if t.is_leaf or t.retains_grad else 3), t.grad if t.is_leaf or t.retains_grad else None

    def story(wrap):
        compiled = wrap(reads)
        for kept in (True, False, True, None):
            x = made()
            t = x if kept is None else x * 1
            if kept:
                t.retain_grad()
            (t * 5).sum().backward(retain_graph=True)
            yield compiled(t)

    check_same(story, backend=backend)


# hooks on what leaves the graph


def hooked(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y, y.sin()


def hooked_twice(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: g + 1)
    return y, y.sin()


def hooked_before_a_write(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.mul_(2)
    return y, y.sin()


def hooked_with_a_tensor(x):
    y, w = x * 2, x.detach() + 1
    y.register_hook(lambda g: g * w)
    return y.cos(), y


def hooked_and_asked(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    (g,) = torch.autograd.grad(y.sin().sum(), x, retain_graph=True)
    return y, g


def keeps_after(x, results):
    y = results[0]
    if not y.retains_grad:
        y.retain_grad()
    sum((t * (i + 2)).sum() for i, t in enumerate(results) if t.requires_grad).backward()
    return y.grad, x.grad


def hooks_after(x, results):
    seen = {}  # in what order hooks of several results run is autograd's
    for i, t in enumerate(results):
        if t.requires_grad:
            t.register_hook(lambda g, i=i: seen.update({i: g.contiguous().clone()}))
    sum((t * (i + 2)).sum() for i, t in enumerate(results) if t.requires_grad).backward()
    return sorted(seen.items()), x.grad


def asks_after(x, results):
    wanted = [t for t in results if t.requires_grad]
    return [g.contiguous() for g in torch.autograd.grad(sum((t * (i + 2)).sum() for i, t in enumerate(wanted)), [wanted[0], x])]


@LEVELS
@pytest.mark.parametrize("use", [keeps_after, hooks_after, asks_after], ids=lambda f: f.__name__)
@pytest.mark.parametrize("frame", [hooked, hooked_twice, hooked_before_a_write, hooked_with_a_tensor, hooked_and_asked], ids=lambda f: f.__name__)
def test_later_questions_see_what_a_hook_gave(frame, use, backend):
    def story(wrap):
        x = made()
        yield use(x, wrap(frame)(x))

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_hook_is_not_called_where_no_gradient_comes(backend):
    def story(wrap):
        x = made()
        wrap(hooked)(x)[1].sum().backward()
        x = made()
        _, other = wrap(lambda x: (hooked(x)[0], x.exp()))(x)
        other.sum().backward()
        yield x.grad

    check_same(story, backend=backend, least=None)


def test_a_hooked_result_is_one_graph():
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        dynacompile.compile(hooked, backend="eager", isolate_recompiles=True, fullgraph=True)(made())
    finally:
        end()
    assert not [e for e in events if isinstance(e, GraphBroke)]


# views of views


def a_row_and_all(y):
    t = y.t()
    return t[0], t


def two_rows_and_all(y):
    t = y.t()
    return t[0], t, t[1], y


def a_view_and_all_the_same(y):
    t = y.t().t()
    return t.expand(2, 3), t, t.sin()


def a_row_as_many(y):
    t = y.t()
    return t, t[0].expand(4, 2)


def parts_of_a_view(y):
    t = y.t()
    return t, *t.unbind()


@LEVELS
@pytest.mark.parametrize("use", [keeps_after, hooks_after, asks_after], ids=lambda f: f.__name__)
@pytest.mark.parametrize("computes", [False, True], ids=["of an input", "of a result"])
@pytest.mark.parametrize("frame", [a_row_and_all, two_rows_and_all, a_view_and_all_the_same, a_row_as_many, parts_of_a_view], ids=lambda f: f.__name__)
def test_gradients_come_by_the_views_between(frame, computes, use, backend):
    def story(wrap):
        x = made()
        y = x if computes else x * 1
        yield use(x, sorted(wrap(lambda y: frame(y * 1 if computes else y))(y), key=lambda t: -t.dim()))

    check_same(story, backend=backend)


# passes for some of the gradients alone


def of_two_inputs(x, y):
    return x.tanh(), y * 3


def with_one_in_common(x, y):
    h = x.detach() * y
    return h, h.exp() * x


def parts_of_one_function(x, y):
    parts = Apart.apply(x * 1, y * 1)
    return parts[0], parts[1]


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, g, h):
        return g * 2, h * 3


def asks_for_the_first(x, y, loss):
    yield torch.autograd.grad(loss, x)


def asks_for_the_second(x, y, loss):
    yield torch.autograd.grad(loss, y)


def asks_in_two_passes(x, y, loss):
    yield torch.autograd.grad(loss, x, retain_graph=True)
    yield torch.autograd.grad(loss, y)


@LEVELS
@pytest.mark.parametrize("ask", [asks_for_the_first, asks_for_the_second, asks_in_two_passes], ids=lambda f: f.__name__)
@pytest.mark.parametrize("frame", [of_two_inputs, with_one_in_common, parts_of_one_function], ids=lambda f: f.__name__)
def test_results_that_a_pass_does_not_come_through_keep_no_gradient(frame, ask, backend):
    def story(wrap):
        x, y = made(), made()
        results = wrap(frame)(x, y)
        for t in results:
            t.retain_grad()
        for _ in ask(x, y, sum((t * (i + 2)).sum() for i, t in enumerate(results))):
            yield [t.grad for t in results]

    check_same(story, backend=backend)


@LEVELS
def test_a_pass_that_gathers_for_a_result_and_an_input_of_another_one_fills_both(backend):
    def story(wrap):
        x, y = made(), made()
        first, second = wrap(of_two_inputs)(x, y)
        (first.exp() + second.sin()).sum().backward(inputs=[first, y])
        yield first.grad, x.grad, y.grad

    check_same(story, backend=backend)
