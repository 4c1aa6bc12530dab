"""What a program reads of its arguments, and their form, change between two calls: the compiled function must follow as eager does."""

import types

import pytest
import torch

from tests.programs.test_p07_flips import x3
from tests.scenarios import attempt, check_same


def test_is_leaf_is_read():
    def story(wrap):
        run = wrap(lambda x: x * 2 if x.is_leaf else x * 3)
        leaf = x3(requires_grad=True)
        for x in (leaf, leaf * 1, leaf, x3()):
            yield run(x)

    check_same(story)


def test_grad_is_read():
    def story(wrap):
        run = wrap(lambda x: x * 2 if x.grad is None else x * x.grad)
        leaf = x3(requires_grad=True)
        yield run(leaf)
        leaf.sum().backward()
        yield run(leaf)
        leaf.grad = None
        yield run(leaf)
        yield run((leaf * 1).detach())

    check_same(story)


def test_attributes_of_tensors():
    def story(wrap):
        run = wrap(lambda x: x * x.scale if hasattr(x, "scale") else x * 2)
        x = x3()
        yield run(x)
        x.scale = 5.0
        yield run(x)
        x.scale = 7.0
        yield run(x)
        del x.scale
        yield run(x)

    check_same(story, least=None)


def test_contiguity_is_read():
    def story(wrap):
        run = wrap(lambda x: x * 2 if x.is_contiguous() else x * 3)
        t = torch.arange(9.0).view(3, 3)
        for x in (t, t.t(), t[:, ::2], t):
            yield run(x)

    check_same(story)


def test_storage_offset_differs():
    def story(wrap):
        run = wrap(lambda x: (x * 2, x[1:], x.as_strided((2,), (1,))))
        t = torch.arange(9.0)
        for x in (t[:3], t[3:6], t[6:]):
            yield run(x)

    check_same(story, least=None)


def test_arguments_of_every_form():
    def fn(a, /, b, *args, c=1, **kwargs):
        out = a * b + c
        for extra in args:
            out = out + extra
        for key in sorted(kwargs):
            out = out * kwargs[key]
        return out

    def story(wrap):
        run = wrap(fn)
        yield run(x3(), 2)
        yield run(x3(), b=3)
        yield run(x3(), 2, 5, 6)
        yield run(x3(), 2, x3(), c=4)
        yield run(x3(), 2, c=4, d=5)
        yield run(x3(), 2, c=4, d=5, e=x3())
        yield attempt(run, x3())
        yield attempt(run, x3(), 2, b=3)
        yield run(x3(), 2)

    check_same(story, recompile_limit=16)


VALUES = {
    "ints": (1, 2, 3),
    "floats": (1.0, 2.0, float("nan"), float("nan")),
    "strings": ("a", "b"),
    "ones": (True, 1, 1.0),
    "none": (None, 0),
    "sequences": ((1, 2), [1, 2], (1, 2)),
    "dtypes": (torch.float32, torch.float64),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_constant_arguments(values):
    def fn(x, v):
        if v is None:
            return x
        if isinstance(v, str):
            return x + len(v) + (v == "a")
        if isinstance(v, (tuple, list)):
            return x * v[0] + v[1], type(v).__name__
        if isinstance(v, torch.dtype):
            return x.to(v)
        return x * v, type(v).__name__

    def story(wrap):
        run = wrap(fn)
        for value in values * 2:
            yield run(x3(), value)

    check_same(story)


def test_dict_order_matters():
    def story(wrap):
        run = wrap(lambda d: sum((i + 1) * v for i, v in enumerate(d.values())))
        a, b = x3(), x3() * 3
        yield run({"a": a, "b": b})
        yield run({"b": b, "a": a})
        yield run({"a": b, "b": a})

    check_same(story)


def test_same_code_other_globals():
    source = "def fn(x):\n    return x * K + h(x)\n"
    first, second = {"K": 2.0, "h": torch.sin}, {"K": 5.0, "h": torch.cos}
    exec(source, first)
    exec(source, second)
    shared = types.FunctionType(first["fn"].__code__, second)

    def story(wrap):
        for fn in (first["fn"], second["fn"], shared):
            yield wrap(fn)(x3())
        call = lambda f, x: f(x)  # noqa: E731
        run = wrap(call)
        for fn in (first["fn"], second["fn"], shared, first["fn"]):
            yield run(fn, x3())

    check_same(story)
    check_same(story, isolate_recompiles=False)


def test_functions_made_in_a_loop():
    def make(k):
        return lambda x: x * k

    def story(wrap):
        made = [wrap(make(k)) for k in (1.0, 2.0, 3.0)]
        for _ in range(2):
            for fn in made:
                yield fn(x3())

    check_same(story)
    check_same(story, isolate_recompiles=False)
