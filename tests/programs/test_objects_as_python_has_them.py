"""Classes, functions, cells and weak references: what eager says of them, compiled functions say, too."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
import weakref

import pytest

import dynacompile


class Plain:
    def method(self):
        return 1

    def anything(*args):
        return args

    async def later(self):
        return 1


class Fits(typing.Generic[typing.TypeVar("T")]):
    pass


def types_of_methods():
    found = (int.__add__, int.bit_length, object.__init__, int.__new__, [].append, int.real, dict.__dict__["fromkeys"], list.__len__, list.__getitem__)
    return [type(one).__name__ for one in found], isinstance(object.__init__, types.WrapperDescriptorType), isinstance(int.__new__, types.BuiltinMethodType)


def class_methods_of_c_classes():
    raw = dict.__dict__["fromkeys"]
    own = Plain.__init_subclass__
    return raw(dict, "ab"), dict.fromkeys == dict.fromkeys, dict.fromkeys == [].append, own == Plain.__init_subclass__, own == Fits.__init_subclass__


def object_takes_no_arguments():
    return object.__init__(Plain(), 1)


def aliases_that_make_nothing():
    return typing.List[int]()  # noqa: UP006


def aliases_that_make():
    return type(Fits[int]()).__name__, list[int]((1, 2)), typing.Annotated[Fits[int], "said"]().__orig_class__ == Fits[int]


def type_parameters():
    parameter = typing.ParamSpec("parameter")
    several = typing.TypeVarTuple("several")
    return parameter.__name__, several.__name__, parameter.__module__, typing.TypeVar("T").__module__


def hints_of_an_own_function():
    def of(x: int | list[typing.Annotated[str, "meta"]], y: typing.Annotated[int, "meta"] = None, z: None = None): ...

    return typing.get_type_hints(of)


def hints_with_texts():
    def of(x: list[Plain], y: typing.Literal["Plain"]): ...

    return typing.get_type_hints(of)


def compared_cells():
    def cell(*given):
        if given:
            (x,) = given
        return (lambda: x).__closure__[0]

    return cell() == cell(), cell() == cell(1), cell(2) == cell(2), cell(2) == cell(3)


def a_cell_as_self():
    class Own:
        def method(self):
            return super()

    return Own.method(types.CellType(Own()))


def a_dict_given_to_a_function():
    def function():
        return 0

    given = {"known": 7}
    function.__dict__ = given
    given["later"] = 8
    return given is function.__dict__, function.known, function.later


def a_shared_dict_of_a_function(given, function):
    function.known = 7
    return given.get("known"), given is function.__dict__


def signatures():
    def function(*args, **kwargs):
        return args, kwargs

    function.__text_signature__ = "($self, a, b=1, *args, c, d=2, **kwargs)"
    first = str(inspect.signature(function))
    function.__text_signature__ = "($self, a, b=1, /, *args, c, d=2, **kwargs)"
    return first, str(inspect.signature(function)), str(inspect.signature(Plain().anything)), str(inspect.signature(Plain().method))


def kinds_of_functions():
    later = functools.partial(functools.partial(Plain().later))
    return inspect.iscoroutinefunction(later), inspect.iscoroutinefunction(Plain.later), inspect.iscoroutinefunction(Plain().method)


def an_iterator_of_its_own():
    class Counts:
        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            if self.n > 3:
                raise StopIteration
            return self.n

    return iterated(Counts())


def iterated(counts):
    made = iter(counts)
    return made is counts, next(made), list(made)


def members_while_they_are_made():
    class Numbers(enum.Enum):
        def __new__(cls):
            made = object.__new__(cls)
            made._value_ = len(cls.__members__) + 1
            return made

        first = second = ()
        third = ()  # noqa: PIE796

    return [(member.name, member.value) for member in Numbers]


def a_module_with_its_own_reads():
    said = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            said.append(name)
            return super().__getattribute__(name)

    written(Module("made"))
    return said


def written(module):
    module.number = 12
    return module.number


def globals_of_another_class():
    class Found(dict):
        def __missing__(self, name):
            return len(name)

    return eval("lambda: one + three", Found())()


def copies_by_old_protocols():
    class WithArguments:
        def __getnewargs__(self):
            return (1,)

    return reduced(WithArguments())


def reduced(value):
    return [value.__reduce_ex__(protocol)[0].__name__ for protocol in range(5)]


def wrong_details_of_an_error():
    return SyntaxError("bad", ("file",))


def interned():
    text = "never interned before " + str(len(sys.argv) + 1234567)
    sys.intern(text)
    return sys.intern(text.swapcase().swapcase()) is sys.intern(text)


def proxies():
    held = Plain()
    proxy = weakref.proxy(held)
    proxy.x = 3
    other = weakref.proxy(held)
    return proxy == other, held.x, weakref.getweakrefcount(held), other.method()


def references_after_a_break():
    held = Plain()
    dynacompile.graph_break()
    reference = weakref.ref(held)
    dynacompile.graph_break()
    return reference() is None


def references_of_variables_deleted_after_a_break():
    def function():
        return 0

    reference = weakref.ref(function)
    dynacompile.graph_break()
    before = reference() is None
    del function
    return before, reference() is None


def references_with_callbacks():
    said, held = [], Plain()
    reference = weakref.ref(held, said.append)
    dynacompile.graph_break()
    return reference() is None, len(said)


def callbacks_of_references_that_are_gone():
    said, held = [], Plain()
    reference = weakref.ref(held, said.append)
    reference_is_used(reference)
    del reference
    del held
    return len(said)


def reference_is_used(reference):
    return reference() is None


def finalizers():
    said, held = [], Plain()
    weakref.finalize(held, said.append, 1)
    return len(said)


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001 - eager's is compared with
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "fn",
    [
        types_of_methods,
        class_methods_of_c_classes,
        object_takes_no_arguments,
        aliases_that_make_nothing,
        aliases_that_make,
        type_parameters,
        hints_of_an_own_function,
        hints_with_texts,
        compared_cells,
        a_cell_as_self,
        a_dict_given_to_a_function,
        signatures,
        kinds_of_functions,
        an_iterator_of_its_own,
        members_while_they_are_made,
        a_module_with_its_own_reads,
        globals_of_another_class,
        copies_by_old_protocols,
        interned,
        proxies,
        references_after_a_break,
        references_of_variables_deleted_after_a_break,
        references_with_callbacks,
        callbacks_of_references_that_are_gone,
        finalizers,
    ],
)
def test_of_objects(fn):
    call = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    expected = outcome(fn)
    assert outcome(call) == expected and outcome(call) == expected


def test_a_function_whose_dict_is_given_beside_it():
    def one():
        return 0

    def other():
        return 0

    call = dynacompile.compile(a_shared_dict_of_a_function, backend="eager")
    assert call(one.__dict__, one) == a_shared_dict_of_a_function(other.__dict__, other) == (7, True)


def test_an_error_with_wrong_details_is_refused():
    with pytest.raises(TypeError):
        wrong_details_of_an_error()
    with pytest.raises(TypeError):
        dynacompile.compile(wrong_details_of_an_error, backend="eager")()


def test_what_another_thread_changes_while_capture_runs():
    """Capture runs over a frame that breaks twice, and the program is another one the second time: it begins anew."""

    class Counts(list):
        pass

    state = types.SimpleNamespace(begun=0)

    def backend(graph, inputs):
        return graph.forward

    def program():
        if state.begun < 1:
            state.seen = "before"
            dynacompile.graph_break()
        dynacompile.graph_break()
        return state.begun

    class Meanwhile:
        def __init__(self):
            self.left = 2

        def __call__(self, frame, event, argument):
            if event == "call" and frame.f_code.co_name == "run" and frame.f_code.co_filename.endswith("entry.py"):
                self.left -= 1
                if self.left == 0:
                    state.begun = 5

    meanwhile = Meanwhile()
    sys.setprofile(meanwhile)
    try:
        assert dynacompile.compile(program, backend=backend)() in (0, 5)
    finally:
        sys.setprofile(None)
    assert meanwhile.left <= 0
