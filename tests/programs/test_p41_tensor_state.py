"""What a frame does to tensors besides arithmetic: `.data`, `.grad`, in-place changes of shape, constructors of types, flags of autograd."""

import pytest
import torch

from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def data_read(x):
    return x.data * 2 + x


def data_of_result_written(x):
    y = x * 2
    y.data.add_(1)
    return y


def data_written(x):
    x.data.mul_(2)
    return x * 2


def detached_in_place(x):
    return (x * 2).detach_() * x


def reshaped_in_place(x):
    y = x * 2
    y.unsqueeze_(0)
    y.squeeze_(0)
    y.transpose_(0, 1)
    z = y.view(2, 6) if y.is_contiguous() else y.t()
    y.t_()
    return y.unsqueeze_(1), z, y.shape


def typed(x):
    made = torch.Tensor([1, 2, 3, 4]) + torch.FloatTensor([1, 2, 3, 4])
    return x + made + x.new(3, 4).zero_(), x[torch.LongTensor([0, 1])], torch.Tensor(2, 3).shape


def flags(x):
    x.requires_grad_()
    x.requires_grad = True
    y = x * 2
    return x.grad_fn is None, y.detach().grad_fn is None, y


@pytest.mark.parametrize("fn", [data_read, data_of_result_written, detached_in_place, reshaped_in_place, typed, flags])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)
    check(fn, arg())


def test_data_of_an_input_is_written():
    check(data_written, arg())


def data_written_late(x):
    y = x.sin()
    x.data.mul_(2)
    return y * x


def test_backward_sees_what_data_became():
    check(data_written_late, arg(), graphs=None, breaks=1, options=EAGER)


def grad_replaced(x):
    x.grad = torch.ones_like(x)
    first = x.grad
    x.grad = x.grad * 2
    return first, x * x.grad


def grad_dropped(x):
    x.grad = None
    return x * 2, x.grad is None


@pytest.mark.parametrize("fn", [grad_replaced, grad_dropped])
def test_gradients_are_assigned(fn):
    check(fn, arg(), options=EAGER)


def test_wrong_gradients_raise():
    def wrong(x):
        x.grad = torch.ones(2)
        return x

    check(wrong, arg(), graphs=None, breaks=None, options=EAGER)


def test_a_hand_written_step():
    def story(wrap):
        torch.manual_seed(0)
        model, average = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        @torch.no_grad()
        def step():
            for p, a in zip(model.parameters(), average.parameters(), strict=True):
                p -= 0.1 * p.grad
                p.grad = None
                a.mul_(0.9).add_(p, alpha=0.1)
                a.data.lerp_(p.data, 0.5)

        compiled = wrap(step)
        for _ in range(3):
            model(arg().detach()).sum().backward()
            compiled()
            yield [*model.parameters()], [*average.parameters()], [p.grad is None for p in model.parameters()]

    events = check_same(story)
    assert sum(type(e).__name__ == "Compiled" for e in events) == 1


def test_tensors_of_tensors_break_by_name():
    def numbers(x):
        return torch.tensor([x.sum(), x.mean()])

    events = check(numbers, arg().detach(), graphs=1, breaks=1, options=EAGER)
    assert [e.code for e in events if type(e).__name__ == "GraphBroke"] == ["to-python"]


def test_identity_of_tensors_that_are_not_read():
    def story(wrap):
        same = wrap(lambda x, y: x * 2 if x is y else x * 3)
        counted = wrap(lambda x, y: x * len({x, y}))
        a, b = torch.ones(3), torch.ones(3)
        for x, y in ((a, b), (a, a), (b, a)):
            yield same(x, y), counted(x, y)

    check_same(story, backend="eager")
