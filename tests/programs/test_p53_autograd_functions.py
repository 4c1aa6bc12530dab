"""autograd.Function: containers among the arguments, all that ctx offers, vmap rules."""

import pytest
import torch

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


class Configured(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, config, parts):
        ctx.save_for_backward(parts[0])
        ctx.config = config
        return x * config["scale"] * parts[0] + config["shift"]

    @staticmethod
    def backward(ctx, grad):
        (part,) = ctx.saved_tensors
        return grad * ctx.config["scale"] * part * 2, None, None


def configured(x):
    return Configured.apply(x * 2, {"scale": 3.0, "sizes": [1, 2], "shift": x.detach() + 1}, [x.detach().cos()])


class Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *rest):
        ctx.set_materialize_grads(False)
        ctx.count = len(rest)
        return sum([r * x for r in rest]), x * 3

    @staticmethod
    def backward(ctx, first, second):
        if second is None:
            return first * 7, *[first * i for i in range(ctx.count)]
        return second * 5, *[None for _ in range(ctx.count)]


def first_part(x):
    return Parts.apply(x, x * 2, x * 3)[0]


def second_part(x):
    return Parts.apply(x, x * 2, x * 3)[1]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def written(x):
    y = x * 1
    z = Doubled.apply(y)
    return y + z, z is y


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        positive, other = x > 0, x * 3
        ctx.mark_non_differentiable(positive, other)
        return x * 2, positive, other, None

    @staticmethod
    def backward(ctx, grad, *rest):
        return grad * 2


def marked(x):
    a, b, c, nothing = Marked.apply(x)
    return a * b, c, nothing


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y * 2 if ctx.needs_input_grad[0] else None, grad * x if ctx.needs_input_grad[1] else None


def asking(x):
    return Asking.apply(x, x.detach() * 2) + Asking.apply(x.detach(), x)


class Mapped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class Ruled(Mapped):
    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return Ruled.apply(x) * 1, in_dims[0]


def mapped(x):
    one = torch.vmap(lambda a: Mapped.apply(a) * a)(x)
    two = torch.vmap(torch.func.grad(lambda a: Mapped.apply(a).sum()))(x)
    return one, two, torch.vmap(lambda a: Ruled.apply(a) * a)(x)


@pytest.mark.parametrize("fn", [configured, first_part, second_part, written, marked, asking, mapped])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)
    check(fn, arg(), rtol=1e-4, atol=1e-5)


class Opaque:
    scale = 2.0


class TakesObjects(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, thing):
        return x * thing.scale

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


THING = Opaque()


def with_an_object(x):
    return TakesObjects.apply(x + 1, THING)


def test_an_object_as_an_argument():
    check(with_an_object, arg(), options=EAGER)


ALIAS = Configured.apply


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.function = Configured.apply

    def forward(self, x):
        return self.function(x * 2, {"scale": 3.0, "shift": 1.0}, [x.detach().cos()])


def by_a_global(x):
    return ALIAS(x * 2, {"scale": 3.0, "shift": 1.0}, [x.detach().cos()])


def by_a_closure(function):
    def called(x):
        return function(x * 2, {"scale": 3.0, "shift": 1.0}, [x.detach().cos()])

    return called


def by_a_variable(x):
    apply = Configured.apply
    return apply(x * 2, {"scale": 3.0, "shift": 1.0}, [x.detach().cos()])


@pytest.mark.parametrize("fn", [by_a_global, by_a_closure(Configured.apply), by_a_variable, Holder()], ids=["global", "closure", "variable", "attribute"])
def test_apply_that_was_read_before(fn):
    check(fn, arg(), options=EAGER)


class OfTheClass(torch.autograd.Function):
    power = 3

    @classmethod
    def forward(cls, ctx, x, factor=2):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return cls.powered(x) * factor

    @classmethod
    def backward(cls, ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * cls.power * x ** (cls.power - 1) * ctx.factor, None

    @classmethod
    def powered(cls, x):
        return x**cls.power


@pytest.mark.parametrize("fn", [lambda x: OfTheClass.apply(x) + 1, lambda x: OfTheClass.apply(OfTheClass.apply(x, 3)), lambda x: OfTheClass.apply(x.detach())])
def test_parts_that_are_given_the_class(fn):
    check(fn, arg(), options=EAGER)


def test_what_parts_read_of_the_class_is_guarded():
    compiled = dynacompile.compile(lambda x: OfTheClass.apply(x), backend="eager", isolate_recompiles=True)
    x = arg()
    for power in (3, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OfTheClass, "power", power)
            assert torch.equal(compiled(x), x**power * 2)


LOG = []


class Helped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x - Helped.greatest(x)
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]

    @staticmethod
    def greatest(x):
        return x.amax(-1, keepdim=True)


class Logged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Logged.log()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

    @staticmethod
    def log():
        LOG.append(len(LOG))


def test_helpers_of_the_class():
    check(lambda x: Helped.apply(x * 2), arg(), options=EAGER)


def test_helpers_of_the_class_have_their_effects():
    compiled = dynacompile.compile(lambda x: Logged.apply(x) + 1, backend="eager", isolate_recompiles=True)
    LOG.clear()
    for n in range(3):
        assert torch.equal(compiled(arg()), arg() * 2 + 1)
        assert LOG == list(range(n + 1))
