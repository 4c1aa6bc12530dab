"""What is written between forward and backward: an error where eager's autograd keeps it for the gradients that are asked for, eager's gradients elsewhere."""

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from tests.scenarios import attempt, check_same

LEVELS = pytest.mark.parametrize("backend", ["aot_eager", "default"])


def kind(error):
    text = str(error)
    return next((k for k in ("modified by an inplace operation", "a second time") if k in text), type(error).__name__)


def write(t):
    with torch.no_grad():
        t.mul_(3).add_(1)


def loss_and_logits(x, w, b):
    logits = x @ w + b
    return F.cross_entropy(logits, torch.tensor([0, 2, 1])), logits


def shared_sum(x, w, b):
    return ((x + b).sin() * (x @ w).tanh()).sum()


def two_losses(x, w, b):
    h = (x @ w).exp()
    return h.sum(), (x * b).sum()


def two_losses_of_one(x, w, b):
    h = (x + b).cos()
    return (h * h).sum(), (x.exp() + b).sum(), (w * 2).sum()


def logits_and_more(x, w, b):
    logits = x @ w
    p = logits.softmax(-1)
    return (p * b).sum(), logits, logits + b


def hidden_states(x, w, b):
    first = x @ w
    second = torch.relu(first) + b
    return first, second, (second @ w).square().sum()


def with_dropout(x, w, b):
    logits = F.dropout(x + b, 0.5)
    return F.gelu(logits).sum(), logits


def shifted(x, w, b):
    y = x + b
    return (y * w.sum()).tanh(), y


def kept_for_another(x, w, b):
    return (x - b).square(), (x * x).sum(), (w * w).sum()


FRAMES = [kept_for_another, loss_and_logits, shared_sum, two_losses, two_losses_of_one, logits_and_more, hidden_states, with_dropout, shifted]


def leaves():
    torch.manual_seed(1)
    return tuple(torch.randn(s, requires_grad=True) for s in ((3, 3), (3, 3), (3,)))


@LEVELS
@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("computed", [False, True], ids=["leaves", "computed inputs"])
def test_each_input_and_result_is_written_before_each_backward(frame, computed, backend):
    def story(wrap):
        run = wrap(frame)
        count = len(results(run(*leaves())))
        for written in range(3 + count):
            for differentiated in range(count):
                given = leaves()
                x, w, b = (t * 1 for t in given) if computed else given
                out = results(run(x, w, b))
                write([x, w, b, *out][written])
                if out[differentiated].requires_grad:
                    told = attempt(lambda t=out[differentiated]: t.sum().backward())
                    yield (written, differentiated), kind(told), told is None and [t.grad for t in given]  # what an error leaves differs

    check_same(story, backend=backend)


def results(value):
    return value if isinstance(value, tuple) else (value,)


@LEVELS
@pytest.mark.parametrize("frame", [f for f in FRAMES if f is not shared_sum], ids=lambda f: f.__name__)
def test_single_gradients_after_a_write(frame, backend):
    """Only what the gradient that is asked for depends on counts. (Here, shared_sum reads x for the gradient of b, as eager keeps x for that of w.)"""

    def story(wrap):
        run = wrap(frame)
        count = len(results(run(*leaves())))
        for written in range(3 + count):
            for wanted in range(3):
                given = leaves()
                out = results(run(*given))
                write([*given, *out][written])
                told = attempt(torch.autograd.grad, sum(t.sum() for t in out), given[wanted], allow_unused=True)
                yield (written, wanted), kind(told), told if isinstance(told, tuple) else None

    check_same(story, backend=backend)


def passing_two_stages(x, w, b):
    v = torch.where(x > 0, x, x * 0.5).flip(0)
    o = F.layer_norm(v, (3,))
    return v.t(), o, (o + x).square().sum()


def drawing(x, w, b):
    v = x * torch.rand_like(x)
    o = v.relu().sin()
    return v.t(), o, (o - x * 0.5).sum()


def writing_an_input(x, w, b):
    x.mul_(2)
    h = x + b
    return h, h.sin().sum() + x.cos().sum()


def drawn_in_backward(x, w, b):
    v = x + b
    o = Noisy.apply(v.relu())
    return v, (o * w.sum()).sum()


class Noisy(torch.autograd.Function):
    """Its backward draws random numbers, so that it can't be differentiated twice by a replay."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


@LEVELS
@pytest.mark.parametrize("several", [False, True], ids=["one result", "all results"])
@pytest.mark.parametrize("frame", [passing_two_stages, drawing, writing_an_input, drawn_in_backward], ids=lambda f: f.__name__)
def test_results_that_eager_does_not_keep_are_computed_again(frame, several, backend):
    def story(wrap):
        run = wrap(frame)
        for written in range(len(run(*(t * 1 for t in leaves())))):
            given = leaves()
            torch.manual_seed(3)
            out = run(*(t * 1 for t in given))
            loss = sum(t.sum() for t in out)
            for t in out if several else [out[written]]:
                write(t)
            torch.manual_seed(4)
            for _ in range(2):
                told = attempt(torch.autograd.grad, loss, given, retain_graph=True, allow_unused=True)
                yield written, kind(told), told if isinstance(told, tuple) else None
            yield torch.rand(1)

    check_same(story, backend=backend)


def two_ways(x, w, b):
    v = x.sigmoid()
    h = (v.square() @ w).softmax(-1)
    o = h.cos()
    return v, h.sum(), o, (o / (1.0 + v.square())).sum()


def a_row_of_results(x, w, b):
    v = x * b
    h = v.tanh()
    return v, h, (h / (1.0 + v.square())).sum(), (x @ w).exp()


@LEVELS
@pytest.mark.parametrize("accumulated", [False, True], ids=["grad", "backward"])
@pytest.mark.parametrize("frame", [passing_two_stages, two_ways, a_row_of_results], ids=lambda f: f.__name__)
def test_only_what_is_asked_for_through_several_results_counts(frame, accumulated, backend):
    """A result's gradient may be computed on the way to others; what eager keeps for it is checked where it leads to a gradient that is asked for."""

    def story(wrap):
        run = wrap(frame)
        count = len(run(*leaves()))
        for written in range(3, 3 + count):
            for wanted in range(3 if accumulated else 3 + count):  # where a result accumulates, eager runs what made it, too
                given = leaves()
                inputs = tuple(t * 1 for t in given)
                out = run(*inputs)
                loss = sum(t.sum() for t in out)
                write((*inputs, *out)[written])
                asked = (*given, *out)[wanted]
                if wanted == written:
                    continue
                told = attempt(asking, loss, asked, accumulated)
                yield (written, wanted), kind(told), told if isinstance(told, tuple) else None

    check_same(story, backend=backend)


def asking(loss, tensor, accumulated):
    if not accumulated:
        return torch.autograd.grad(loss, tensor, allow_unused=True)
    loss.backward(inputs=[tensor])
    return (tensor.grad,)


@pytest.mark.parametrize("write", [lambda t: t.mul_(2), lambda t: t.t_()], ids=["values", "metadata"])
@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {"options": {"reference": True}}], ids=["unfused", "interpreted"])
def test_results_of_a_graph_that_writes_the_input_they_are_computed_of(options, write):
    """Eager does not keep the sum. The forward can't run again to make it, so that the backward reads something else."""

    def frame(x):
        y = x + x
        return y, x.copy_(1 / y)

    def gradient(call):
        w = torch.linspace(-1, 2, 6).view(2, 3).clone().requires_grad_()
        results = call(w * 1)
        with torch.no_grad():
            write(results[0])
        results[1].sum().backward()
        return w.grad

    torch.testing.assert_close(gradient(dynacompile.compile(frame, isolate_recompiles=True, **options)), gradient(frame))


@LEVELS
def test_an_input_that_is_transposed_after_the_call_is_not_read_for_a_result_that_eager_keeps_nothing_of(backend):
    def frame(x, y):
        return x * 2 + y, x * x

    def story(wrap):
        run = wrap(frame)
        for kind_of_input in (lambda: torch.randn(2, 3, requires_grad=True) * 1, lambda: torch.randn(2, 3)):
            torch.manual_seed(0)
            x, y = kind_of_input(), torch.randn(2, 3, requires_grad=True)
            first, _ = run(x, y)
            x.t_()
            first.sum().backward()
            yield y.grad

    check_same(story, backend=backend)
