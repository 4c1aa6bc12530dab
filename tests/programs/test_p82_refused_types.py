"""Operands of types that eager refuses, though its fakes take them, raise as in eager: a kernel would give numbers. Losses of operands of several types."""

import operator

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.capture.refused_types import REFUSED, check_types
from dynacompile.errors import Unsupported
from dynacompile.events import GraphBroke
from tests.checking import check
from tests.scenarios import attempt, check_same

BOOL, INT, HALF, FLOAT, DOUBLE, COMPLEX = torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex64


def of(dtype, scale=1.0):
    return (torch.tensor([[0.25, 1.5, 2.0], [3.0, 1.25, 0.5]]) * scale).to(dtype)


ONE = {
    "ceil": torch.ceil,
    "round": torch.Tensor.round,
    "relu": F.relu,
    "relu in place": lambda x: x.clone().relu_(),
    "abs": abs,
    "clamp": lambda x: x.clamp(max=True),
    "threshold": lambda x: F.threshold(x, 0.5, 0.1),
    "argmax": torch.argmax,
    "pow": lambda x: x**True,
    "softmax": lambda x: F.softmax(x, -1),
    "softmax of a type": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(0),
    "softmin": lambda x: F.softmin(x, 0),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "glu": lambda x: F.glu(x.t()),
    "frac": torch.frac,
    "std": torch.std,
    "var": lambda x: x.var(0),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "half of it": lambda x: operator.imul(x.clone(), 0.5),
    "a float added": lambda x: x.clone().add_(1.5),
    "a float subtracted": lambda x: operator.isub(x.clone(), 1.5),
    "halved": lambda x: x.clone().div_(2),
    "halved by an operator": lambda x: operator.itruediv(x.clone(), 2),
    "halved by its long name": lambda x: x.clone().true_divide_(2.0),
    "halved as a view": lambda x: x.clone()[0].divide_(2),
    "halved downwards": lambda x: x.clone().div_(2, rounding_mode="floor"),
    "logit in place": lambda x: x.clone().logit_(0.1),
    "clamped from below in place": lambda x: x.clone().clamp_min_(True),
    "clamped from above in place": lambda x: x.clone().clamp_max_(True),
    "half of it added": lambda x: torch.add(x, x, alpha=0.5),
    "half of it added in place": lambda x: x.clone().add_(x, alpha=0.5),
    "a bool times it added": lambda x: x.add(x, alpha=True),
    "a bool times it subtracted": lambda x: x.sub(x, alpha=True),
    "negated to floats": lambda x: torch.neg(x, out=torch.ones(2, 3)),
    "angle to ints": lambda x: torch.angle(x, out=torch.ones(2, 3, dtype=INT)),
    "added to float64": lambda x: torch.add(x, x, out=torch.ones(2, 3, dtype=DOUBLE)),
    "addcmul to floats": lambda x: torch.addcmul(x, x, x, out=torch.ones(2, 3)),
    "an int less": lambda x: x - 1,
    "a float less": lambda x: x - 1.5,
}
TWO = {
    "mse_loss": F.mse_loss,
    "mse_loss of each": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "smooth_l1_loss": F.smooth_l1_loss,
    "smooth_l1_loss without a corner": lambda a, b: F.smooth_l1_loss(a, b, beta=0.0, reduction="sum"),
    "l1_loss": F.l1_loss,
    "huber_loss": F.huber_loss,
    "binary_cross_entropy": F.binary_cross_entropy,
    "with_logits": lambda a, b: F.binary_cross_entropy_with_logits(a.float() if a.dtype == HALF else a, b),
    "added in place": lambda a, b: operator.iadd(a.clone(), b),
    "multiplied in place": lambda a, b: a.clone().mul_(b),
    "divided in place": lambda a, b: a.clone().div_(b),
    "divided in place towards zero": lambda a, b: a.clone().div_(b + 1, rounding_mode="trunc"),
    "addcdiv in place": lambda a, b: a.clone().addcdiv_(b + 1, b + 1),
    "addcmul in place": lambda a, b: a.clone().addcmul_(b, b, value=2),
    "filled with several values": lambda a, b: a.clone().fill_(b),
    "filled with one value": lambda a, b: a.clone().fill_(b[0, 1]),
    "ldexp in place": lambda a, b: a.clone().ldexp_(b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
}


LISTS = {
    "subtraction of a number": lambda xs: torch._foreach_sub(xs, 1),
    "subtraction of a bool": lambda xs: torch._foreach_sub(xs, True),
    "subtraction of numbers": lambda xs: torch._foreach_sub(xs, [1] * len(xs)),
    "subtraction of each other": lambda xs: torch._foreach_sub(xs, xs[::-1]),
    "a complex number added in place": lambda xs: written(xs, torch._foreach_add_, 1j),
    "a float added in place": lambda xs: written(xs, torch._foreach_add_, 1.5),
    "a product in place": lambda xs: written(xs, torch._foreach_mul_, torch.tensor(0.5)),
    "a quotient in place": lambda xs: written(xs, torch._foreach_div_, 2),
    "a quotient by its own": lambda xs: torch._foreach_addcdiv(xs, xs, xs),
    "a power": lambda xs: torch._foreach_pow(xs, True),
    "the whole parts": torch._foreach_ceil,
    "parts behind the point": torch._foreach_frac,
    "a negative power": lambda xs: torch._foreach_pow(xs, -1),
    "a number of many digits": lambda xs: torch._foreach_clamp_max(xs, 1e300),
    "an alpha of another kind": lambda xs: torch._foreach_add(xs, xs, alpha=1.5),
}


def written(xs, operation, operand):
    xs = [x.clone() for x in xs]
    operation(xs, operand)
    return xs


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("count", [2, 9], ids=["few", "many"])
def test_lists_are_refused_as_their_members_are(count, name):
    """From eight members on, capture records a list by one member of each kind."""

    def caught(xs):
        try:
            return LISTS[name](xs)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return type(error).__name__, str(error)[:30], xs[0] * 1

    def story(wrap):
        for dtype in (BOOL, torch.uint8, INT, HALF, FLOAT):
            yield str(dtype), wrap(caught)([of(dtype)] * count if "each other" in name else [of(dtype) for _ in range(count)])
        yield wrap(caught)([of(FLOAT) for _ in range(count - 1)] + [of(BOOL)])

    check_same(story, least=None, atol=2e-2, rtol=2e-2)


KERNELS = {
    "a power of bools": (torch.pow, BOOL, 2),
    "a product of bools": (torch.matmul, BOOL, 2),
    "a scan of bools in place": (lambda x: x.cumsum_(0), BOOL, 1),
    "a soft sign of bools": (F.softsign, BOOL, 1),
    "a norm over a batch of ints": (lambda x: F.batch_norm(x, None, None, training=True), INT, 1),
    "a softmax of ints by its operator": (lambda x: torch.ops.aten._softmax(x, 0, False), INT, 1),
    "a factorization of bfloat16": (torch.linalg.qr, HALF, 1),
    "a factorization of float16": (torch.linalg.qr, torch.float16, 1),
    "reflections of float16": (torch.linalg.householder_product, torch.float16, 2),
    "a special function of bfloat16": (torch.special.ndtri, HALF, 1),
    "a special function of complex numbers": (torch.special.i1e, COMPLEX, 1),
    "the greatest of complex numbers": (torch.amax, COMPLEX, 1),
    "a sign of complex numbers": (torch.sign, COMPLEX, 1),
    "bits of floats from the right": (torch.Tensor.__rand__, FLOAT, 2),
    "logarithms of sums of ints": (torch.logaddexp, INT, 2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_clause_takes_the_error_of_a_kernel_that_cpus_lack(name):
    """No row names these operations: capture runs each once, on zeros."""
    operation, dtype, count = KERNELS[name]

    def falls_back(*xs):
        try:
            return operation(*xs)
        except RuntimeError as error:
            return str(error), xs[0] + 1

    def story(wrap):
        for size in (2, 3):
            operands = (
                [torch.ones(size, size).tril().to(dtype)] if "reflections" not in name else [torch.ones(size, size).to(dtype), torch.ones(size).to(dtype)]
            )
            yield wrap(falls_back)(*(operands * count)[:count])
            yield attempt(wrap(lambda *xs: operation(*xs)), *(operands * count)[:count])

    check_same(story, least=None)


def test_operations_that_have_a_kernel_are_captured_in_clauses():
    def safe(x, mask):
        try:
            return (x @ x.T).relu() * mask.cumsum(0), mask & (x > 0), mask.sum(1), x.to(torch.complex64).abs()
        except RuntimeError:
            return x

    check(safe, of(HALF), torch.tensor([[True], [False]]), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name):
    def story(wrap):
        for dtype in (BOOL, torch.uint8, INT, HALF, FLOAT, COMPLEX):
            yield str(dtype), attempt(wrap(lambda x: ONE[name](x)), of(dtype))

    check_same(story, least=None, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", TWO)
def test_two_operands(name):
    def story(wrap):
        for a in (BOOL, INT, HALF, FLOAT, DOUBLE, COMPLEX):
            for b in (BOOL, INT, HALF, FLOAT, DOUBLE, COMPLEX):
                yield str((a, b)), attempt(wrap(lambda x, y: TWO[name](x, y)), of(a, 0.2), of(b, 0.3))

    check_same(story, least=None, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("target", ["div_", "divide_", "true_divide_", operator.itruediv, torch.Tensor.div_])
def test_quotients_are_refused_also_where_the_meta_kernel_takes_them(target):
    """torch 2.11 has a meta kernel of div_ that takes any types, which no program shows with a later one."""
    for dtype in (BOOL, INT, torch.uint8):
        with pytest.raises(Unsupported, match="a quotient that its first operand can't hold"):
            check_types(target, [of(dtype), 2], [of(dtype)])
    check_types(target, [of(INT), 2, "floor"], [of(INT)])
    for dtype in (HALF, FLOAT, DOUBLE):
        check_types(target, [of(dtype), 2.5], [of(dtype)])
        check_types(target, [of(dtype), of(INT)], [of(dtype), of(INT)])


CLASSES = [
    F.cross_entropy,
    F.nll_loss,
    lambda x, t: F.cross_entropy(x, t, reduction="none"),
    lambda x, t: F.nll_loss(x, target=t, ignore_index=1),
]


@pytest.mark.parametrize("loss", CLASSES)
def test_targets_of_classes(loss):
    def story(wrap):
        for x, target in ((of(FLOAT), torch.tensor([0, 1])), (of(FLOAT)[None], torch.tensor([[0, 1, 1]]))):
            for dtype in (BOOL, torch.uint8, torch.int8, torch.int16, torch.int32, INT, FLOAT):
                yield str(dtype), attempt(wrap(lambda x, t: loss(x, t)), x, target.to(dtype))

    check_same(story, least=None)


def differentiates(loss, dtype):
    """Whether this version of torch has gradients of the loss of float32 with targets of a type."""
    return not isinstance(attempt(loss(of(FLOAT).requires_grad_(), of(dtype)).backward), RuntimeError)


def test_gradients_of_losses_of_several_types():
    def story(wrap):
        for loss in (F.mse_loss, F.smooth_l1_loss, F.l1_loss):
            for dtype in (INT, DOUBLE, FLOAT):
                if differentiates(loss, dtype):
                    x = of(FLOAT).requires_grad_()
                    wrap(lambda x, y, loss=loss: loss(x, y))(x, of(dtype, 0.5)).backward()
                    yield x.grad

    check_same(story, least=7)


def test_a_bernoulli_written_to_an_operand():
    def story(wrap):
        p = torch.linspace(0, 1, 12).view(3, 4)
        for like in (p, p.t()):
            torch.manual_seed(1)
            yield wrap(lambda x, y: torch.bernoulli(x, out=y))(like, torch.empty_like(like).zero_())
            yield torch.rand(2)

    check_same(story)


WIDER = {
    "clamp_": lambda x, y: x.clamp_(y),
    "clamp_max_ of a function": lambda x, y: torch.clamp_max_(x, y) if hasattr(torch, "clamp_max_") else x.clamp_max_(y),
    "eq_": lambda x, y: x.eq_(y),
    "pow_": lambda x, y: x.pow_(y),
    "copysign_": lambda x, y: x.copysign_(y),
    "a power by an operator": operator.ipow,
    "a remainder by an operator": operator.imod,
    "added": operator.iadd,
    "index_add_": lambda x, y: x.index_add_(0, torch.zeros(2, dtype=INT), y.t()[0]),
    "scatter_": lambda x, y: x.scatter_(0, torch.zeros(1, dtype=INT), y.view(-1)),
}


@pytest.mark.parametrize("name", WIDER)
def test_results_that_are_larger_than_what_they_are_written_to(name):
    def story(wrap):
        for make in (lambda x: x * 2, lambda x: (x * 2)[:], lambda x: torch.stack([x, x])[0]):
            yield attempt(wrap(lambda x, y, make=make: WIDER[name](make(x), y)), torch.ones(3), of(FLOAT))
            yield attempt(wrap(lambda x, y, make=make: WIDER[name](make(x), y[:1].view(-1).expand(3))), torch.ones(3), of(FLOAT))

    check_same(story, least=None)


def test_names_of_the_users_own():
    """A function that is kept whole and has the name of a refused operation takes what it takes."""

    @torch.compiler.allow_in_graph
    def softmax(x):
        return x * 2

    told = []
    end = dynacompile.subscribe(lambda e: told.append(e) if isinstance(e, GraphBroke) else None)
    try:
        run = dynacompile.compile(lambda x: softmax(x), fullgraph=True, isolate_recompiles=True)
        assert torch.equal(run(of(INT)), of(INT) * 2) and not told
    finally:
        end()
    assert "softmax" in REFUSED


def test_pseudoinverses_under_autocast():
    """Autocast casts a product that ATen's kernel calls. Fakes know nothing of it."""

    def story(wrap):
        run = wrap(lambda x: (torch.linalg.pinv(x), x.pinverse(), x * 2))
        yield run(of(FLOAT))
        with torch.autocast("cpu", torch.bfloat16):
            yield run(of(FLOAT))
            yield run(of(DOUBLE))

    check_same(story)
