"""What is written between forward and backward: an error where eager's autograd keeps it for the gradients that are asked for, eager's gradients elsewhere."""

import pytest
import torch
import torch.nn.functional as F

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


FRAMES = [loss_and_logits, shared_sum, two_losses, two_losses_of_one, logits_and_more, hidden_states, with_dropout, shifted]


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
