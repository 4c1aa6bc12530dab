"""The chain of an exception that a compiled function lets out: contexts, causes, what is suppressed, and the lines of its traceback, with graph breaks
in handlers, blocks and managers, and in functions that are called while their caller handles another exception."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import weakref

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from tests.checking import check

SEEN: list = []


@dynacompile.disable
def say():
    SEEN.append(chain(sys.exc_info()[1]))


def chain(error, known=()):
    """type, arguments, whether the context is suppressed, cause, context; the depth of an exception that was met on the way."""
    if error is None or error in known:
        return None if error is None else known.index(error)
    known = (*known, error)
    return type(error).__name__, error.args, error.__suppress_context__, chain(error.__cause__, known), chain(error.__context__, known)


def lines(error):
    """(function, line) of each traceback of the chain, of the functions of this file."""
    found = []
    while error is not None:
        found.append([(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__ and f.name != "outcome"])
        error = error.__context__
    return found


def outcome(fn, *args):
    SEEN.clear()
    try:
        result = fn(*args)
    except Exception as error:  # noqa: BLE001  (it is what is compared)
        return chain(error), lines(error), list(SEEN)
    return float(result.sum()), [], list(SEEN)


def is_part(some, of):
    rest = iter(of)
    return all(item in rest for item in some)


class Replaces:
    """A manager that raises another exception in the place of a KeyError."""

    def __enter__(self):
        return self

    def __exit__(self, cls, value, trace):
        if cls is KeyError:
            raise RuntimeError("replaced")


@contextlib.contextmanager
def cleaned(x):
    try:
        yield x + 1
    finally:
        say()


@contextlib.contextmanager
def translated(x):
    try:
        yield x + 1
    except LookupError as error:
        say()
        raise RuntimeError("translated") from error


def raises_in_a_handler(x):
    say()
    try:
        {}["two"]
    except KeyError:
        raise ValueError  # noqa: B904


def raises_after_a_break_in_a_handler(x):
    try:
        {}["two"]
    except KeyError:
        say()
        raise ValueError("new")  # noqa: B904


def raises_from(x):
    try:
        raise KeyError("k", 2)
    except KeyError as error:
        say()
        x = x + 1
        raise ValueError("from") from error


def raises_from_none(x):
    try:
        raise KeyError("k")
    except KeyError:
        say()
        raise ValueError("alone") from None


def raises_again(x):
    try:
        raise KeyError("k")
    except KeyError:
        say()
        x = x + 1
        raise


def raises_by_name_again(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        say()
        x = x + len(error.args)
        raise error


def in_a_finally(x):
    try:
        raise KeyError("k")
    finally:
        x = x * 2
        say()
        [][int(x.shape[0])]


def in_nested_finallys(x):
    try:
        try:
            say()
            raise KeyError("k")
        finally:
            say()
            x = x + 1
    finally:
        say()
        x = x + 2


def in_managers(x):
    with Replaces(), cleaned(x) as y, contextlib.suppress(ZeroDivisionError):
        say()
        x = x + y
        raise KeyError("k")


def in_a_manager_that_translates(x):
    with translated(x) as y:
        say()
        [][y.shape[0]]


def numbers(x):
    yield x
    try:
        raise KeyError("in the generator")
    except KeyError:
        say()
        raise ValueError("out of it")  # noqa: B904


def in_a_generator(x):
    for y in numbers(x):
        x = x + y
    return x


def in_the_callee_of_a_callee(x):
    try:
        raise IndexError("one")
    except IndexError:
        return raises_after_a_break_in_a_handler(x) + raises_from(x)


def kept_and_raised_in_another_handler(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        kept = error
    try:
        raise ValueError("v")
    except ValueError:
        x = x + 1
        raise kept  # noqa: B904


def kept_over_a_break(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        kept = error
    say()
    try:
        raise ValueError("v")
    except ValueError:
        try:
            raise kept
        except KeyError:
            say()
    raise RuntimeError("r") from kept


def kept_with_a_context(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise ValueError("v")  # noqa: B904
    except ValueError as error:
        kept = error
    raise kept


def caught_again(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            say()
            raise
    except LookupError:
        say()
        raise TypeError("t")  # noqa: B904


def thrown_into_a_generator(x):
    steps = numbers(next(numbers(x)))
    y = next(steps)
    steps.throw(OSError("thrown"))
    return y


def closed_in_a_handler(x):
    def steps():
        try:
            yield x
        except GeneratorExit:
            raise ValueError("while closing")  # noqa: B904

    try:
        raise KeyError("k")
    except KeyError:
        made = steps()
        x = next(made) + 1
        made.close()
    return x


def a_cause_that_is_none(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        try:
            error.__cause__ = ValueError
        finally:
            x = x + 1
    return x


PROGRAMS = [  # function, breaks of the program itself, breaks while its caller handles an exception
    (raises_in_a_handler, 1, 2),
    (raises_after_a_break_in_a_handler, 1, 2),
    (raises_from, 1, 2),
    (raises_from_none, 1, 2),
    (raises_again, 1, 2),
    (raises_by_name_again, 1, 2),
    (in_a_finally, 1, 2),
    (in_nested_finallys, 2, 3),
    (in_managers, 2, 3),
    (in_a_manager_that_translates, 1, 2),
    (in_a_generator, 1, 2),
    (in_the_callee_of_a_callee, 2, 3),
    (kept_and_raised_in_another_handler, 1, 2),
    (kept_over_a_break, 1, 2),
    (kept_with_a_context, 1, 2),
    (caught_again, 1, 2),
    (thrown_into_a_generator, 1, 2),
    (closed_in_a_handler, 0, 0),
    (a_cause_that_is_none, 1, 2),
]
NAMES = [program[0].__name__ for program in PROGRAMS]


def handling(fn):
    """`fn`, called while an exception is handled that nothing of it knows."""

    def caller(x):
        try:
            [][3]
        except IndexError:
            return fn(x)

    return caller


def compare(fn, caller):
    want = outcome(caller, torch.ones(2))
    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True})
    for _ in range(3):
        got = outcome(compiled if fn is caller else handling(compiled), torch.ones(2))
        assert got[0] == want[0]
        assert got[2] == want[2]
    return want, got


@pytest.mark.parametrize("fn,breaks,_", PROGRAMS, ids=NAMES)
def test_the_chain_is_eagers(fn, breaks, _):
    want, got = compare(fn, fn)
    is_equal = [is_part(some, of) for some, of in zip(want[1], got[1], strict=True)]
    assert all(is_equal) or fn is raises_by_name_again  # `raise error` while `error` is being handled adds no line of its own
    check(fn, torch.ones(2), graphs=None, breaks=breaks, options={"backend": "eager"})


@pytest.mark.parametrize("fn,_,breaks", PROGRAMS, ids=NAMES)
def test_the_chain_goes_on_to_what_the_caller_handles(fn, _, breaks):
    """Once where the caller is compiled as well, and once where the function alone is."""
    caller = handling(fn)
    compare(caller, caller)
    compare(fn, caller)
    check(caller, torch.ones(2), graphs=None, breaks=breaks, options={"backend": "eager"})


def test_an_exception_that_was_there_before():
    """As an argument: raised with a cause, while another is handled, or caught again."""

    def with_a_cause(x, error):
        x = x + 1
        raise error from ValueError("cause")

    def in_a_handler(x, error):
        try:
            {}["k"]
        except KeyError:
            x = x * 2
            raise error  # noqa: B904

    def caught(x, error):
        with contextlib.suppress(OSError):
            raise error
        return x * 2

    def is_raised(call):
        made = OSError("given")
        with contextlib.suppress(OSError):
            try:
                raise TypeError("a caller's")
            except TypeError:
                call(torch.ones(2), made)
        return chain(made), made.__traceback__ is not None

    for fn in (with_a_cause, in_a_handler, caught):
        want = is_raised(fn)
        compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True})
        assert is_raised(compiled) == want == is_raised(compiled)


class Held:
    """What a caller's frame holds."""


def caught_from_a_callee(x):
    try:
        {}["key"]
    except KeyError:
        x = x + 1
    return x


def catches_what_a_callee_raises(x):
    def callee(x):
        raise KeyError("callee")

    with contextlib.suppress(KeyError):
        callee(x)
    return x * 2


def raises_in_a_handler(x):
    try:
        raise ValueError("first")
    except ValueError:
        x = x + 1
    return {}["key"]


def raises_after_a_break(x):
    x = x + 1
    dynacompile.graph_break()
    raise KeyError("later")


@pytest.mark.parametrize("fn", [caught_from_a_callee, catches_what_a_callee_raises, raises_in_a_handler, raises_after_a_break], ids=lambda f: f.__name__)
def test_compiling_keeps_no_frames_of_callers(fn):
    """What the caller handles, and its variables, go when they go in eager, with no collection of garbage between: generators end then."""

    def call(run):
        held = Held()
        known = weakref.ref(held)
        with contextlib.suppress(KeyError):
            try:
                raise OSError("the caller's")
            except OSError:
                run(torch.ones(2))
        return known

    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none"})
    gc.collect()
    gc.disable()
    try:
        assert call(compiled)() is None
    finally:
        gc.enable()


def test_an_error_of_the_compiler_tells_what_the_caller_handles():
    def breaks(x):
        dynacompile.graph_break()
        return x

    with pytest.raises(Unsupported) as raised:
        try:
            raise OSError("the caller's")
        except OSError:
            dynacompile.compile(breaks, fullgraph=True, isolate_recompiles=True)(torch.ones(2))
    assert type(raised.value.__context__) is OSError


def test_what_is_no_exception_has_no_cause():
    def story(x):
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise "again" from error  # noqa: B016 - what it is about
        except TypeError as error:
            return x + 1, str(error), error.__cause__, type(error.__context__)

    check(story, torch.ones(2), graphs=1, options={"backend": "eager"})


def shows_that_it_is_one(x):
    try:
        raise ValueError("raised")
    except ValueError as error:
        return x + 1, error.__traceback__ is not None, bool(error.__traceback__), ValueError().__traceback__ is None


def takes_it_away(x):
    try:
        raise ValueError("raised")
    except ValueError as error:
        error.__traceback__ = None
        return x + 1, error.__traceback__ is None


def takes_it_away_by_a_method(x):
    try:
        raise ValueError("raised")
    except ValueError as error:
        kept = error.__traceback__
        return x + 1, error.with_traceback(None).__traceback__ is None, kept is not None


def keeps_the_first(x):
    try:
        raise ValueError("raised")
    except ValueError as error:
        kept = error.__traceback__
        try:
            raise error
        except ValueError as again:
            return x + 1, again.__traceback__ is kept, again.__traceback__ == kept, {kept: 1}[kept]


@pytest.mark.parametrize("function", [shows_that_it_is_one, takes_it_away, takes_it_away_by_a_method, keeps_the_first])
def test_what_is_asked_of_a_traceback(function):
    compiled = dynacompile.compile(function, backend="eager", isolate_recompiles=True)
    want = function(torch.ones(2))
    for _ in range(2):
        got = compiled(torch.ones(2))
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
