"""raise, try, except, else, finally and with: followed in the graph where the program handles what it raises, Python's own where it does not.

PYTEST_DONT_REWRITE: a program here asserts.
"""

import contextlib

import pytest
import torch

import dynacompile
from tests.checking import check


class Refused(ValueError):
    def __init__(self, what, code=3):
        super().__init__(f"refused {what}")
        self.code = code


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def raises_at_the_end(x):
    y = x * 2
    raise ValueError(f"of shape {tuple(y.shape)}")


def raises_user_class(x):
    x = x + 1
    raise Refused("x")


def helper(x, fail):
    if fail:
        raise Refused("helper", code=5)
    return x * 3


def raises_in_callee(x):
    return helper(x + 1, True)


def assert_fails(x):
    y = x * 2
    assert y.shape[0] == 4, "bad shape"
    return y


def reraises(x):
    try:
        return helper(x * 2, True)
    except Refused as error:
        if error.code == 5:
            raise RuntimeError("wrapped") from error
        return x


def bare_reraise(x):
    try:
        return helper(x * 2, True)
    except Refused:
        x = x + 1
        raise


def finally_then_raise(x, log):
    try:
        raise KeyError("k")
    finally:
        log.append(1)


@pytest.mark.parametrize("fn", [raises_at_the_end, raises_user_class, raises_in_callee, assert_fails, reraises, bare_reraise])
def test_the_exception_reaches_the_caller(fn):
    check(fn, arg(), graphs=None, breaks=None)


def test_finally_runs_once():
    check(finally_then_raise, arg(), [], graphs=None, breaks=0)  # the list has grown, and nobody asked for its length


def catches_by_type(x):
    try:
        y = helper(x, True)
    except KeyError:
        y = x - 1
    except (TypeError, Refused) as error:
        y = x * error.code
    else:
        y = y + 100
    finally:
        x = x + 1
    return x + y


def else_branch(x):
    try:
        y = helper(x, False)
    except ValueError:
        y = x - 1
    else:
        y = y + 100
    finally:
        x = x + 1
    return x + y


def key_error(x):
    table = {"a": 1.0}
    try:
        return x * table["b"]
    except KeyError as error:
        return x + len(str(error))


def index_and_value(x):
    try:
        [1, 2][5]
    except IndexError as error:
        x = x + len(str(error))
    try:
        int("seven")
    except ValueError as error:
        x = x * len(error.args)
    try:
        a, b = (1, 2, 3)  # noqa: F841
    except ValueError as error:
        x = x - len(str(error))
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        x = x.cos()
    try:
        x.shape.nothing  # noqa: B018
    except AttributeError:
        x = x.sin()
    return x


def nested(x):
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            x = x * 2
            raise Refused("outer") from None
        finally:
            x = x + 1
    except ValueError as error:
        x = x * error.code
    return x


def returns_in_finally(x):
    for i in range(4):
        try:
            if i == 2:
                return x * i
            x = x + i
        finally:
            x = x.sin()
    return x


def continues(x):
    total = x
    for name in ("a", "b", "c"):
        try:
            total = total * {"a": 2, "c": 3}[name]
        except KeyError:
            continue
        finally:
            total = total + 1
    return total


class Suppress:
    def __init__(self):
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.seen.append(None if kind is None else kind.__name__)
        return kind is not None and issubclass(kind, ValueError)


def suppressing(x):
    manager = Suppress()
    with manager:
        x = x + 1
        raise Refused("it")
    with manager:
        x = x * 2
    with contextlib.suppress(KeyError):
        x = x * {}["a"]
    return x, manager.seen


@contextlib.contextmanager
def scaled(box):
    box.append("in")
    try:
        yield 3.0
    finally:
        box.append("out")


def generator_manager(x):
    box = []
    with scaled(box) as factor:
        x = x * factor
    try:
        with scaled(box) as factor:
            x = x * factor
            raise Refused("inside")
    except Refused:
        x = x + 1
    return x, box


def loops_until_stop(x):
    it = iter([1, 2])
    while True:
        try:
            x = x * next(it)
        except StopIteration:
            break
    return x


def generator_with_finally(x):
    log = []

    def produce():
        try:
            yield 1
            yield 2
        finally:
            log.append("done")

    for i in produce():
        x = x + i
    return x, log


def grad_mode_unwinds(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise Refused("grad")
    except Refused:
        return x * 3 + y


HANDLED = [
    catches_by_type,
    else_branch,
    key_error,
    index_and_value,
    nested,
    returns_in_finally,
    continues,
    suppressing,
    generator_manager,
    loops_until_stop,
    generator_with_finally,
    grad_mode_unwinds,
]


@pytest.mark.parametrize("fn", HANDLED)
def test_handled_in_one_graph(fn):
    check(fn, arg())


def break_in_no_grad(x):
    y = x + 1
    with torch.no_grad():
        z = y * 2
        print("inside")
        z = z.sin() * 2
    return y * z.cos()


def break_in_autocast(x):
    y = x + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = y @ y.t()
        print("inside")
        z = z @ y
    return z.float() + y


def break_in_try(x):
    y = x + 1
    try:
        y = y * 2
        print("inside")
        y = y.sin() * 3
    except ValueError:
        y = y * 100
    finally:
        y = y + 1
    return y.cos()


@dynacompile.disable
def fails():
    raise Refused("in Python")


def raise_in_break(x):
    y = x + 1
    try:
        y = y * 2
        fails()
        y = y.sin() * 3
    except Refused as error:
        y = y * error.code
    return y.cos()


def raise_in_break_with(x):
    y = x + 1
    try:
        with torch.no_grad():
            y = y * 2
            fails()
    except Refused:
        return y * x
    return y


def break_in_handler(x):
    y = x * 2
    try:
        y = y + 1
        helper(y, True)
    except Refused as error:
        print("handling", error.code)
        y = y * error.code
    return y.cos()


def break_in_finally(x):
    y = x * 2
    try:
        y = y + 1
    finally:
        print("finally")
        y = y * 2
    return y.cos()


def break_in_user_manager(x):
    manager = Suppress()
    y = x * 2
    with manager:
        y = y.sin()
        print("in")
        y = y * 2
    return y.cos(), manager.seen


def break_in_generator_manager(x):
    box = []
    y = x * 2
    with scaled(box) as factor:
        y = y * factor
        print("in")
    return y.cos(), box


BREAKS = [
    (break_in_no_grad, 2),
    (break_in_autocast, None),
    (break_in_try, 2),
    (raise_in_break, 2),
    (raise_in_break_with, None),
    (break_in_handler, None),
    (break_in_finally, 2),
    (break_in_user_manager, 2),
    (break_in_generator_manager, None),
]


@pytest.mark.parametrize(("fn", "graphs"), BREAKS)
def test_breaks_in_blocks(fn, graphs, capsys):
    check(fn, arg(), graphs=graphs, breaks=None)
    capsys.readouterr()
