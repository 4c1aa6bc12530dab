"""The region as an object: it stands in for its function."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import weakref

from dynacompile import native
from tests.frame.running import Compiler, region


def compiled(function):
    return region(function, Compiler())


@compiled
def module_level(x: int, *, y: int = 2) -> int:
    """Adds."""
    return x + y


class Owner:
    @compiled
    def method(self, x):
        return self, x

    @classmethod
    @compiled
    def of_class(cls, x):
        return cls, x

    @staticmethod
    @compiled
    def static(x):
        return x


def test_it_is_introspected_as_its_function():
    assert (module_level.__name__, module_level.__doc__, module_level.__module__) == ("module_level", "Adds.", __name__)
    assert str(inspect.signature(module_level)) == "(x: 'int', *, y: 'int' = 2) -> 'int'"
    assert module_level.__wrapped__.__code__ is module_level.__code__
    assert callable(module_level) and "module_level" in repr(module_level)
    assert functools.update_wrapper(lambda: 0, module_level).__name__ == "module_level"


def test_it_binds_as_a_method():
    owner = Owner()
    assert owner.method(1) == (owner, 1) and Owner.method(owner, 1) == (owner, 1)
    assert owner.of_class(1) == (Owner, 1) and owner.static(1) == 1
    bound = owner.method
    assert bound(2) == (owner, 2) and bound.__self__ is owner


def test_it_takes_attributes_and_weak_references():
    run = compiled(lambda x: x)
    run.note = 1
    run.__doc__ = "own"
    assert run.note == 1 and run.__doc__ == "own" and run.__dict__ == {"note": 1, "__doc__": "own"}
    assert weakref.ref(run)() is run
    assert not hasattr(run, "nothing")


def test_it_pickles_and_copies_by_name():
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy(module_level) is module_level


def test_any_callable_can_be_run():
    seen = Compiler()
    run = region(functools.partial(module_level.__wrapped__, 1), seen)
    assert run(y=5) == 6
    assert seen.asked == ["module_level"]
    assert native.core().Region(len)([1, 2]) == 2


def test_the_call_may_drop_its_own_region():
    holder = {}

    def original():
        holder.clear()
        return "done"

    holder["run"] = region(original, Compiler())
    assert holder["run"]() == "done"
