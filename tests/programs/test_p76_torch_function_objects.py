"""Objects that are no tensors, but define `__torch_function__`: torch's functions, methods and operators ask them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import get_default_nowrap_functions, handle_torch_function, has_torch_function, is_tensor_like, resolve_name

import dynacompile
from dynacompile.events import GraphBroke
from tests.checking import check

EAGER = {"backend": "eager"}
HANDLED: dict = {}
LOG: list = []


def implements(*functions):
    def register(implementation):
        for function in functions:
            HANDLED[function] = implementation
        return implementation

    return register


class Diagonal:
    """A multiple of the identity matrix."""

    def __init__(self, n, value):
        self.n, self.value = n, value

    def tensor(self):
        return self.value * torch.eye(self.n)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


def dense(value):
    return value.tensor() if isinstance(value, Diagonal) else value


@implements(torch.mean)
def mean(value):
    return float(value.value) / value.n


@implements(torch.add, torch.Tensor.add)
def add(left, right, alpha=1):
    if isinstance(left, Diagonal) and isinstance(right, Diagonal):
        return Diagonal(left.n, left.value + alpha * right.value)
    return torch.add(dense(left), dense(right), alpha=alpha)


@implements(torch.stack)
def stack(values, dim=0):
    return torch.stack([dense(value) for value in values], dim=dim)


@implements(F.softmax)
def softmax(value, dim=None, **others):
    return torch.softmax(dense(value), dim=dim)


TWO = Diagonal(3, 2.0)


def arg():
    return torch.linspace(-2, 3, 9).reshape(3, 3).requires_grad_()


def functions(x):
    return torch.add(x, TWO), torch.mean(TWO), torch.add(x, TWO, alpha=2), torch.stack([x, TWO], dim=1), F.softmax(TWO, dim=0) * x


def made_inside(x):
    four = torch.add(TWO, Diagonal(3, 2.0))
    return torch.add(four, x), four.value, torch.mean(four)


def operators(x):
    y = x + TWO
    y += TWO
    return y, x.add(TWO), torch.Tensor.add(x, TWO)


def wrong_operand(x):
    try:
        return torch.mul(x, TWO)
    except TypeError:
        return x * 3


def left_to_python(x):
    try:
        return x * TWO
    except TypeError:
        return x * 4


@pytest.mark.parametrize("fn", [functions, made_inside, operators, wrong_operand, left_to_python])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)
    check(fn, arg())


def test_a_type_error_that_nobody_catches():
    check(lambda x: torch.mul(x, TWO), arg(), graphs=None, breaks=None, options=EAGER)
    check(lambda x: x * TWO, arg(), graphs=None, breaks=None, options=EAGER)


class Base:
    scale = 1.0

    __torch_function__ = classmethod(lambda cls, *rest: Base.asked(cls, *rest))

    @staticmethod
    def asked(cls, func, types, args=(), kwargs=None):
        LOG.append((cls.__name__, func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or ())))
        return cls.answer(func)

    @classmethod
    def answer(cls, func):
        return NotImplemented


class Below(Base):
    @classmethod
    def answer(cls, func):
        return NotImplemented if func in (torch.sub, torch.Tensor.sub) else ("below", func is torch.mul, func == torch.Tensor.mul)


class Other(Base):
    @classmethod
    def answer(cls, func):
        return cls.__name__


class Reflecting(Other):
    def __radd__(self, other):
        return "radd"

    def __rsub__(self, other):
        return "rsub"

    def __add__(self, other):
        return "add", other

    @classmethod
    def answer(cls, func):
        return NotImplemented if func is torch.Tensor.sub else super().answer(func)


def orders(x):
    LOG.clear()
    found = [
        torch.mul(Base(), Below()),
        torch.mul(Below(), Base()),
        torch.mul(Base(), Other()),
        torch.sub(Below(), Other()),
        torch.where(x > 0, Other(), Below()),
        torch.cat([x, Base(), Below(), Other()], dim=0),
        torch.mul(other=Below(), input=Base()),
        F.pad(Below(), (1, 1)),
        torch.Tensor.split(x, 1, dim=0)[0] + 1,
        F.embedding(x, Other()),
        F.scaled_dot_product_attention(x, x, Other()),
        torch.result_type(x, Other()),
    ]
    return found, list(LOG), x * 2


def operators_in_order(x):
    LOG.clear()
    found = [
        x + Other(), x * Below(), x - Other(), x / Other(), x @ Other(), x**Other(), 1 + Reflecting(), x + Reflecting(), x - Reflecting(),
        Reflecting() + 1, x == Other(), x < Other(), Other() == 3, x[Other()], x & Other(), x // Other(), x % Other(), x.add_(Other()),
    ]  # fmt: skip
    x[0] = Other()
    y = x
    y += Other()
    return found, y, list(LOG), x * 2


def reflected(x):
    LOG.clear()
    return Other() * x, Other() - x, Other() @ x, Other() < x, Other() // x, Other() & x, list(LOG), x * 2


@pytest.mark.parametrize("fn", [orders, operators_in_order, reflected])
def test_who_is_asked(fn):
    check(fn, arg(), options=EAGER)


class Mine:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__


def question(x, mine):
    if has_torch_function((x, mine)):
        return handle_torch_function(question, (x, mine), x, mine)
    return x * 2


def predicates(x):
    mine = Mine()
    with torch._C.DisableTorchFunctionSubclass():
        disabled = has_torch_function((x, mine)), torch._C._is_torch_function_enabled()
    names = resolve_name(torch.add), resolve_name(torch.Tensor.add), torch.add in get_default_nowrap_functions()
    return is_tensor_like(mine), is_tensor_like(x), is_tensor_like(3), torch.is_tensor(mine), question(x, mine), question(x, 3), disabled, names, x * 2


def test_predicates():
    check(predicates, arg(), options=EAGER)
    check(predicates, arg())


CHOSEN = {torch.mul, torch.Tensor.mul, F.relu}
FROZEN = frozenset(CHOSEN)
LISTED = [torch.mul, torch.Tensor.mul]


class Choosing:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func in CHOSEN, func in FROZEN, func in LISTED, func in {torch.add, torch.sub}, func is torch.mul


def choices(x):
    return x * Choosing(), torch.mul(Choosing(), x), x + Choosing(), torch.add(Choosing(), 1), F.relu(Choosing()), x * 2


def test_functions_in_containers():
    check(choices, arg(), options=EAGER)


def calls_of(compiled, x):
    events: list = []
    end = dynacompile.subscribe(events.append)
    compiled(x)
    end()
    return [e for e in events if type(e).__name__ in ("Compiled", "Recompiled")]


def test_a_changed_set_is_another_entry():
    dynacompile.reset()
    chosen = {torch.add}

    class Asking:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return args[0] * (2 if func in chosen else 3)

    def fn(x):
        return torch.add(x, Asking())

    compiled, x = dynacompile.compile(fn, backend="eager", isolate_recompiles=True), torch.ones(3)
    assert torch.equal(compiled(x), x * 2)
    chosen.clear()
    assert torch.equal(compiled(x), x * 3)
    chosen.add(torch.sub)
    assert torch.equal(compiled(x), x * 3)
    chosen.add(torch.add)
    assert torch.equal(compiled(x), x * 2)


def test_an_override_that_is_replaced_is_another_entry():
    dynacompile.reset()

    class Asked:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return args[0] * 2

    asked = Asked()

    def fn(x):
        return torch.add(x, asked)

    compiled, x = dynacompile.compile(fn, backend="eager", isolate_recompiles=True), torch.ones(3)
    assert torch.equal(compiled(x), x * 2)
    assert not calls_of(compiled, x)
    Asked.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: args[0] * 5)
    assert torch.equal(compiled(x), x * 5)
    assert not calls_of(compiled, x)


class Speaking:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        dynacompile.graph_break()
        return func(args[0], 3)


def speaks(x):
    return torch.add(x * 2, Speaking()) * 3


def test_a_break_inside_leaves_the_call_to_python():
    events = check(speaks, arg(), graphs=3, breaks=None, options=EAGER)
    assert "asked" in {e.code for e in events if isinstance(e, GraphBroke)}


class Counting:
    calls = 0
    seen: list = []

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        cls.seen.append(func.__name__)
        unwrapped = [a.tensor if isinstance(a, cls) else a for a in args]
        return Counting(func(*unwrapped, **(kwargs or {})))


def counts(x):
    Counting.calls, Counting.seen = 0, []
    wrapped = Counting(x)
    result = torch.sin(torch.add(torch.mul(wrapped, 2), x))
    return result.tensor, Counting.calls, list(Counting.seen)


def test_side_effects_come_in_order():
    check(counts, arg(), options=EAGER)
    check(counts, arg())


class AsMethod:
    def __init__(self, factor):
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*[self.factor if isinstance(a, AsMethod) else a for a in args])


def by_method(x):
    return torch.mul(x, AsMethod(3.0)) + x * AsMethod(2.0)


@pytest.mark.filterwarnings("ignore:Defining your")
def test_a_plain_method():
    check(by_method, arg(), options=EAGER)
