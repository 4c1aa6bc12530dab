"""Views of inputs that a frame returns: autograd knows them as it knows eager's, whatever mode they were made under, and whoever writes to them later."""

import pytest
import torch

from tests.scenarios import attempt, check_same


def base():
    return torch.arange(6.0)


def leaf_that_is_a_view():
    return base().view(2, 3).requires_grad_()


def view_made_under_no_grad():
    whole = base().requires_grad_()
    with torch.no_grad():
        return whole.view(2, 3)


INPUTS = {
    "plain": lambda: base().reshape(2, 3).clone(),
    "plain view": lambda: base().view(2, 3),
    "leaf": lambda: base().reshape(2, 3).clone().requires_grad_(),
    "leaf that is a view": leaf_that_is_a_view,
    "parameter": lambda: torch.nn.Parameter(base().view(2, 3)),
    "result": lambda: leaf_that_is_a_view() * 1,
    "view of a result": lambda: (base().requires_grad_() * 1).view(2, 3),
    "view of a leaf": lambda: base().requires_grad_().view(2, 3),
    "view made under no_grad": view_made_under_no_grad,
    "view of a detached one": lambda: base().requires_grad_().detach().view(2, 3),
}


def under_no_grad(x):
    with torch.no_grad():
        return x.view(-1)


def under_no_grad_beside_a_result(x):
    with torch.no_grad():
        y = x.view(-1)[2:]
    return y, x * 2


def two_under_no_grad(x):
    with torch.no_grad():
        y = x.t()
        return y, y[0]


def view_of_one_under_no_grad(x):
    with torch.no_grad():
        y = x.view(-1)
    return y.view(3, 2), y


def under_no_grad_of_a_view(x):
    y = x.view(-1)
    with torch.no_grad():
        return y.view(3, 2), y


def in_inference_mode(x):
    with torch.inference_mode():
        return x.view(-1)


def detached(x):
    return x.detach()


def view_of_detached(x):
    return x.detach().view(-1)


def detached_view(x):
    y = x.view(-1)
    return y.detach(), y


def view_of_detached_under_no_grad(x):
    with torch.no_grad():
        return x.detach()[0]


def data(x):
    return x.data, x.data.view(-1)


def parts(x):
    return x.split(1)


def part_of_a_part(x):
    return x.unbind()[1][1:]


def parts_under_no_grad(x):
    with torch.no_grad():
        return x.split(1)


def written_under_no_grad(x):
    with torch.no_grad():
        y = x.view(-1)
        y.add_(1)
    return y.detach()


FRAMES = [
    under_no_grad,
    under_no_grad_beside_a_result,
    two_under_no_grad,
    view_of_one_under_no_grad,
    under_no_grad_of_a_view,
    in_inference_mode,
    detached,
    view_of_detached,
    detached_view,
    view_of_detached_under_no_grad,
    data,
    parts,
    part_of_a_part,
    parts_under_no_grad,
    written_under_no_grad,
]


def nothing(y, x):
    pass


def write(y, x):
    y.add_(1)


def write_under_no_grad(y, x):
    with torch.no_grad():
        y.mul_(2)


def write_what_requires_grad(y, x):
    y.mul_(torch.ones((), requires_grad=True))


def backward(y, x):
    (y * y).sum().backward()


def written_between(y, x):
    loss = (x * x).sum()
    with torch.no_grad():
        y.add_(1)
    loss.backward()


def require(y, x):
    y.requires_grad_()
    (y * 3).sum().backward()


def describe(y, x):
    whole = x if x._base is None else x._base
    known = "its base" if y._base is whole else "none" if y._base is None else "another"
    return (y.requires_grad, y.is_leaf, y._is_view(), known, y._version, y.stride(), y.storage_offset(), y.detach().tolist())


def seen(outputs, x):
    """What a caller can ask of the outputs and of the input; where autograd refuses to tell, that it does."""
    told = [attempt(lambda y=y: describe(y, x)) for y in outputs]
    whole = x if x._base is None else x._base
    gradients = [None if t.grad is None else t.grad.tolist() for t in (x, whole, *outputs) if attempt(lambda t=t: t.is_leaf) is True]
    return [type(t) if isinstance(t, BaseException) else t for t in told], x.detach().tolist(), x._version, gradients


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_returned_view(frame, backend):
    def story(wrap):
        run = wrap(frame)
        for name, make in INPUTS.items():
            for later in (nothing, write, write_under_no_grad, write_what_requires_grad, backward, written_between, require):
                x = make()
                got = run(x)
                outputs = got if isinstance(got, tuple) else (got,)
                error = attempt(later, outputs[0], x)
                yield name, later.__name__, type(error).__name__, repr(seen(outputs, x))

    check_same(story, backend=backend, recompile_limit=30)


def test_views_of_one_result():
    """Memory that the graph made: the views of it that were detached, or are parts, are so."""

    def frame(x):
        y = x * 2
        return y, y.detach(), y.view(-1), *y.split(1)

    def story(wrap):
        run = wrap(frame)
        x = torch.ones(2, 3, requires_grad=True)
        y, detached, view, first, second = run(x)
        yield [(t.requires_grad, t._is_view(), t._base is y) for t in (y, detached, view, first, second)]
        yield type(attempt(first.add_, 1)).__name__
        detached.add_(1)
        view.add_(1)
        yield y, view, detached, y._version
        y.sum().backward()
        yield x.grad

    check_same(story)


def test_gradients_of_a_view_of_a_view_made_under_no_grad():
    """The gradients are the inner view's own: they do not reach the input."""

    def frame(x):
        with torch.no_grad():
            y = x.view(-1)
        return y.view(3, 2)

    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        z = wrap(frame)(x)
        z.sum().backward()
        yield z, x.grad is None

    check_same(story, least=None)


def test_views_of_what_was_written_since():
    """The call goes through, and autograd refuses later to tell of the parts."""

    def parts(x):
        y = x * 1
        first, second = y.chunk(2)
        y.zero_()
        return first, second

    def under_no_grad(x):
        y = x * 1
        with torch.no_grad():
            z = y.view(-1)
        y.mul_(2)
        return (z,)

    def story(wrap):
        for frame in (parts, under_no_grad):
            for t in wrap(frame)(torch.arange(4.0, requires_grad=True)):
                yield t.detach(), t._is_view(), type(attempt(lambda t=t: t.grad_fn)).__name__

    check_same(story, least=None)


# views of what nobody sees


def a_transposed_copy(x):
    return (x.clone().t(),)


def a_view_beside_another_result(x):
    return x.sin().t().contiguous().t(), x * 2


def no_view(x):
    return (x.t().clone(),)


def changed_in_place(x):
    return ((x * 2).unsqueeze_(0),)


def written(t):
    t.add_(1)


def written_silently(t):
    with torch.no_grad():
        t.add_(1)


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("write", [None, written, written_silently], ids=lambda f: f and f.__name__)
@pytest.mark.parametrize("frame", [a_transposed_copy, a_view_beside_another_result, no_view, changed_in_place], ids=lambda f: f.__name__)
def test_a_write_to_a_view_is_freed_by_a_backward_pass(frame, write, backend):
    def story(wrap):
        for late in (False, True):
            for retain in (False, True):
                x = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_()
                results = wrap(frame)(x)
                for result in results:
                    if write and not late:
                        write(result)
                    for _ in range(3):
                        error = attempt(lambda: result.sum().backward(retain_graph=retain))  # noqa: B023 - called at once
                        yield "a second time" in str(error), x.grad
                        if write and late:
                            write(result)

    check_same(story, backend=backend)
