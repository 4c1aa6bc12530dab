"""Guards on names in classes and modules: they hold while the lookups give what they gave, however often other names change."""

from __future__ import annotations

import abc
import gc
import types

import pytest

from dynacompile import native
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.namespaces import MISSING, Names, class_lookup


def guard_of(names: Names) -> Guard:
    return Guard("NAMESPACES", None, names.facts())


def looked_up(cls: type, *wanted: str, by_source: bool = False) -> Guard:
    names = Names()
    for name in wanted:
        names.of_class(cls, name, None, class_lookup(cls, name), by_source)
    return guard_of(names)


def told(guard: Guard) -> list[str]:
    return [failure.text for failure in failures([guard], {})]


def test_a_replaced_method():
    cls = type("Thing", (), {"forward": lambda self: 1})
    first, guard = cls.forward, looked_up(cls, "forward")
    program = compile_guards([guard])
    assert program.check((), None, {}, {}) and not told(guard)
    cls.forward = lambda self: 2
    assert not program.check((), None, {}, {}) and told(guard)[0].startswith("Thing.forward: ")
    cls.forward = first
    assert program.check((), None, {}, {}) and not told(guard)


def test_a_name_that_comes_and_a_base_that_changes():
    base = type("Base", (), {})
    cls = type("Thing", (base,), {})
    guard = looked_up(cls, "__bool__", "other")
    program = compile_guards([guard])
    assert program.check((), None, {}, {})
    base.unread = 1
    assert program.check((), None, {}, {})
    base.__bool__ = lambda self: False
    assert not program.check((), None, {}, {}) and told(guard) == [f"Thing.__bool__: missing -> {told(guard)[0].rpartition(' -> ')[2]}"]
    del base.__bool__
    assert program.check((), None, {}, {})


def test_data_of_classes_has_guards_of_its_own():
    cls = type("Thing", (), {"scale": 1.5})
    guard = looked_up(cls, "scale", by_source=True)
    program = compile_guards([guard])
    cls.scale = 2.5
    assert program.check((), None, {}, {}) and not told(guard)
    cls.scale = property(lambda self: 1.5)
    assert not program.check((), None, {}, {}) and told(guard)


def test_a_module_and_the_code_of_a_function():
    def one() -> int:
        return 1

    module = types.ModuleType("some")
    module.one = one
    names = Names()
    names.of_dict(module.__dict__, "some", "one")
    names.of_dict(module.__dict__, "some", "two")
    names.of_code(one)
    guard = guard_of(names)
    program = compile_guards([guard])
    assert program.check((), None, {}, {})
    code, one.__code__ = one.__code__, (lambda: 2).__code__
    assert not program.check((), None, {}, {}) and len(told(guard)) == 1
    one.__code__ = code
    module.two = 2
    assert not program.check((), None, {}, {}) and told(guard) == ["some.two: missing -> 2"]


def test_registrations_with_abstract_classes():
    abstract, cls = abc.ABCMeta("Abstract", (), {}), type("Thing", (), {})
    names = Names()
    names.of_subclass(cls, abstract, False)
    guard = guard_of(names)
    program = compile_guards([guard])
    assert program.check((), None, {}, {})
    abstract.register(int)
    assert program.check((), None, {}, {})
    abstract.register(cls)
    assert not program.check((), None, {}, {}) and told(guard) == ["issubclass(Thing, Abstract): False -> True"]


def test_a_class_that_is_gone():
    cls = type("Thing", (), {"forward": lambda self: 1})
    guard = looked_up(cls, "forward")
    program = compile_guards([guard])
    assert program.check((), None, {}, {})
    del cls
    gc.collect()
    assert not program.check((), None, {}, {}) and told(guard)
    with pytest.raises(ValueError, match="is gone"):
        compile_guards([guard])


def test_lookups_after_a_class():
    class Base:
        def method(self) -> int:
            return 1

    class Thing(Base):
        def method(self) -> int:
            return 2

    names = Names()
    names.of_class(Thing, "method", Thing, class_lookup(Thing, "method", Thing), False)
    program = compile_guards([guard_of(names)])
    assert class_lookup(Thing, "method", Thing) is Base.method and class_lookup(Base, "nothing") is MISSING
    Thing.method = lambda self: 3
    assert program.check((), None, {}, {})
    Base.method = lambda self: 4
    assert not program.check((), None, {}, {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_a_signal_handler_raises_while_lookups_are_repeated_reaches_the_caller(error):
    raised = []

    def repeat():
        if not raised:
            raised.append(error)
            raise error("by a handler")
        return True

    program = native.core().GuardProgram([], [("names", -1, (({"a": 1},), (), repeat, None), 0)], [])
    with pytest.raises(error, match="by a handler"):
        program.check((), None, {}, {})
    assert program.check((), None, {}, {})


def test_lookups_that_raise_each_time_do_not_hold():
    def repeat():
        raise RuntimeError("always")

    program = native.core().GuardProgram([], [("names", -1, (({"a": 1},), (), repeat, None), 0)], [])
    assert not program.check((), None, {}, {})
