"""Names without a value: what Python raises where they are read, inside of the graph."""

# ruff: noqa: F821, F841 - names without a value are what it is about

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
SAID: list = []
SETTING = 3


def told(error):
    SAID.append((type(error), str(error), error.name, error.args, repr(error)))


@dynacompile.disable
def fails():
    return of_no_module


def local(x, flag=False):
    if flag:
        y = 1
    try:
        return x * y
    except UnboundLocalError as error:
        told(error)
        return x * 2


def local_leaves(x, flag=False):
    x = x * 2
    if flag:
        y = 1
    return x * y


def of_the_module(x):
    try:
        return x * not_there
    except NameError as error:
        told(error)
    return x * 3


def of_the_module_leaves(x):
    x = x * 2
    return x * not_there


def of_a_callee(x):
    def inner(a):
        if a is None:
            b = 1
        return b

    try:
        inner(x)
    except UnboundLocalError as error:
        told(error)
    return x * 2


def closure(x, flag=False):
    if flag:
        y = 1

    def reads():
        return y

    for call in (reads, lambda: y):
        try:
            call()
        except NameError as error:
            told(error)
    try:
        SAID.append(y)
    except NameError as error:
        told(error)
    return x * 2


def deleted(x):
    y = 2
    x = x * y
    del y
    try:
        SAID.append(y)
    except NameError as error:
        told(error)
    try:
        del y
    except NameError as error:
        told(error)
    return x


def deleted_in_a_closure(x):
    y = 2

    def reads():
        return y

    x = x * reads()
    del y
    try:
        reads()
    except NameError as error:
        told(error)
    try:
        del y
    except NameError as error:
        told(error)
    return x


def after_except(x):
    try:
        raise ValueError("a")
    except ValueError as error:
        x = x * len(error.args)
    try:
        SAID.append(error)
    except UnboundLocalError as other:
        told(other)
    return x


def deleted_in_the_module(x):
    global SETTING
    SETTING = 4
    x = x * SETTING
    del SETTING
    try:
        SAID.append(SETTING)
    except NameError as error:
        told(error)
    try:
        del SETTING
    except NameError as error:
        told(error)
    SETTING = 3
    return x


def deletes_what_is_not_there(x):
    global nothing_here
    try:
        del nothing_here
    except NameError as error:
        told(error)
    return x * 2


def made_by_the_user(x):
    error = NameError("made")
    told(error)
    error.name = "named"
    try:
        raise error
    except NameError as same:
        told(same)
    return x * 2


def while_another_is_handled(x):
    try:
        try:
            raise ValueError("v")
        except ValueError:
            SAID.append(not_there)
    except NameError as error:
        SAID.append(repr(error.__context__))
        told(error)
    return x * 2


def set_in_the_first_round(x):
    for _ in range(3):
        try:
            x = x * k
        except UnboundLocalError:
            x = x + 1
        k = 2
    return x


WHOLE = (
    local,
    local_leaves,
    of_the_module,
    of_the_module_leaves,
    of_a_callee,
    closure,
    deleted,
    deleted_in_a_closure,
    after_except,
    deleted_in_the_module,
    deletes_what_is_not_there,
    made_by_the_user,
    while_another_is_handled,
    set_in_the_first_round,
)


def after_a_break(x, flag=False):
    x = x * 2
    if flag:
        y = 1
    print(end="")
    x = x + 1
    try:
        SAID.append(y)
    except NameError as error:
        told(error)
    return x * 2


def raised_by_python(x):
    try:
        fails()
    except NameError as error:
        told(error)
    return x * 2


def closure_after_a_break(x, flag=False):
    x = x * 2
    if flag:
        y = 1

    def reads():
        return y

    print(end="")
    for call in (reads, lambda: y):
        try:
            call()
        except NameError as error:
            told(error)
    try:
        SAID.append(y)
    except NameError as error:
        told(error)
    return x * 2


def closure_set_after_a_break(x):
    x = x * 2
    print(end="")
    y = 3

    def reads():
        return y

    return x * reads() + y


BROKEN = ((after_a_break, 2), (raised_by_python, 1), (closure_set_after_a_break, 2))


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def check_all_calls(fn, **expected):
    SAID.clear()
    with suppress(NameError):
        fn(arg())
    said = list(SAID)
    SAID.clear()
    check(fn, arg(), options=EAGER, **expected)
    assert SAID == said * 4


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check_all_calls(fn)


@pytest.mark.parametrize("fn,graphs", BROKEN, ids=[row[0].__name__ for row in BROKEN])
def test_around_a_break(fn, graphs):
    check_all_calls(fn, graphs=graphs, breaks=1)


def test_a_closure_variable_without_a_value_is_read_after_a_break():
    """The resume function has it as a free variable, of which Python says something else: the frame is left to Python."""
    check_all_calls(closure_after_a_break, graphs=0, breaks=None, recompiles=1)  # `told` is a frame of its own then


@pytest.mark.parametrize("fn", [local_leaves, of_the_module_leaves], ids=lambda fn: fn.__name__)
def test_what_leaves_the_frame(fn):
    found = []
    for call in (fn, dynacompile.compile(fn, **EAGER)):
        with pytest.raises(NameError) as caught:
            call(arg())
        error, entry = caught.value, caught.traceback[-1]
        found.append((type(error), error.args, error.name, error.__context__, entry.name, entry.lineno))
    assert found[0] == found[1]


def test_names_that_are_there_later():
    def story(wrap):
        table = {"__builtins__": {"NameError": NameError}}
        exec("def fn(x):\n    try:\n        return x * k\n    except NameError:\n        return x + 1", table)
        call = wrap(table["fn"])
        yield call(torch.ones(3))
        table["k"] = 5
        yield call(torch.ones(3))
        del table["k"]
        yield call(torch.ones(3))
        table["__builtins__"]["k"] = 7
        yield call(torch.ones(3))

    check_same(story, least=2)


def deleted_by_a_callee(x, sets):
    y = x + 1

    def deletes():
        nonlocal y
        dynacompile.graph_break()
        del y

    deletes()
    z = x * 2
    if sets:
        y = 3
    return y * z


def deleted_by_a_callee_within_a_try(x, sets):
    y = x + 1

    def deletes():
        nonlocal y
        dynacompile.graph_break()
        del y

    deletes()
    if sets:
        y = 3
    dynacompile.graph_break()
    try:
        return y * 2
    except NameError as error:
        return type(error).__name__, str(error), x + 3


def deleted_twice(x, sets):
    y = x + 1

    def deletes():
        nonlocal y
        dynacompile.graph_break()
        if not sets:
            del y

    deletes()
    z = x * 2
    dynacompile.graph_break()
    del y
    return z


def ended_by_a_clause(x, fails):
    error = 5
    try:
        if fails:
            raise ValueError(3)
    except ValueError as error:
        dynacompile.graph_break()
        x = x + 1

        def reads():
            return error

    dynacompile.graph_break()
    x = x * 2
    return x, error


@pytest.mark.parametrize("fn", [deleted_by_a_callee, deleted_by_a_callee_within_a_try, deleted_twice, ended_by_a_clause], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("flags", [(True, False, True), (False, True, False)], ids=["set first", "set second"])
def test_a_closure_variable_of_the_frame_that_ends_behind_a_break(fn, flags):
    """In a resume function it is a free variable; the error is that of a variable of the frame itself."""

    def story(wrap):
        call = wrap(fn)
        for flag in flags:
            try:
                yield call(torch.ones(3), flag)
            except NameError as error:
                entry = error.__traceback__
                while entry.tb_next is not None:
                    entry = entry.tb_next
                yield type(error), error.args, error.__context__, entry.tb_frame.f_code.co_name, entry.tb_lineno

    check_same(story, least=None, **EAGER)
