"""Classes with protocols of their own, in the cases where capture once followed them otherwise than Python: found by `tests/fuzz/language/objects.py`."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import operator

import pytest
import torch

import dynacompile
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


Pair = collections.namedtuple("Pair", "first second")


class Num:
    def __init__(self, n):
        self.n = n

    def __mul__(self, other):
        return type(self)(self.n * other)

    def __imul__(self, other):
        return NotImplemented

    def __rsub__(self, other):
        return NotImplemented


class Slots:
    __slots__ = ("a",)
    kind = 1


class Adding(dict):
    """Stores one more than it is given."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)


class Saying(list):
    """Subscripts of which are no items."""

    def __getitem__(self, index):
        return "item", super().__getitem__(index)


def in_place_operator_that_declines(x):
    number = Num(3)
    number *= 3
    return number.n, x + 1


def operator_of_a_tensor_that_declines(x):
    try:
        return x - Num(3)
    except TypeError:
        return "declined", x + 1


def attributes_of_a_class_with_slots(x):
    held, told = Slots(), []
    for name in ("a", "kind", "other"):
        for change in (lambda name=name: setattr(held, name, 3), lambda name=name: delattr(held, name), lambda name=name: delattr(held, name)):
            try:
                change()
            except AttributeError as error:
                told.append(str(error))
    return told, x + 1


def dict_that_stores_otherwise(x, k):
    made = Adding(a=k)
    dynacompile.graph_break()
    made["b"] = k
    made.update(c=k)
    made.setdefault("d", k)
    return list(made.items()), dict(made), x + 1


def list_that_reads_otherwise(x, k):
    made = Saying([k, 2])
    dynacompile.graph_break()
    return [*made], sum(made), max(made), [item + 1 for item in made], made[0], x + k


def slices_of_iterators(x):
    told = []
    for bounds in ((-1,), (0, 3, 0), (2, "a"), (1,)):
        try:
            told.append(list(itertools.islice([4, 5], *bounds)))
        except ValueError as error:
            told.append(str(error))
    return told, x + 1


class Triple(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def __getitem__(self, index):
        return "item", super().__getitem__(index)

    def __bool__(self):
        return False


class Shown(collections.namedtuple("Shown", "a b")):
    def __getitem__(self, index):
        return "item", super().__getitem__(index)

    def __eq__(self, other):
        return "equal"


def tuples_that_read_otherwise(x):
    made, shown = Triple(1, 2), Shown(1, 2)
    told = [made[0], bool(made), [*made], shown[1], shown == 3, shown.a, [*shown]]
    dynacompile.graph_break()
    return told, made[1], shown[0], shown == made, 1 if made else 2, x + 1


class Answers:
    """Gives what it was given, whatever it is asked."""

    def __init__(self, answer):
        self.answer = answer

    def __bool__(self):
        return self.answer

    def __len__(self):
        return self.answer

    def __iter__(self):
        return self.answer

    def __hash__(self):
        return self.answer

    def __index__(self):
        return self.answer


class Passing:
    def __init__(self, **rest):
        super().__init__(**rest)


class Unmade:
    pass


def answers_that_python_refuses(x):
    told = []
    for answer in (3, -1, None, "text", 2.5, True, 2**70):
        owner = Answers(answer)
        for ask in (bool, len, list, hash, range, lambda owner: not owner, lambda owner: 1 if owner else 2):
            try:
                told.append(repr(ask(owner)))
            except (TypeError, ValueError, OverflowError) as error:
                told.append(f"{type(error).__name__} {error}")
    return told, x + 1


def operands_that_counters_decline(x):
    told = []
    for operation in (operator.or_, operator.add, operator.sub, operator.and_, operator.iadd, operator.ior):
        try:
            told.append(operation(collections.Counter("ab"), 3))
        except (TypeError, AttributeError) as error:
            told.append(f"{type(error).__name__} {error}")
    return told, x + 1


def places_that_no_tuple_has(x):
    told = []
    for owner in (Pair(1, 2), (1,), [1], x.shape):
        try:
            told.append(owner[5])
        except IndexError as error:
            told.append(str(error))
    return told, x + 1


def arguments_of_init(x):
    told = []
    for make in (Passing, lambda: Passing(a=1), Unmade, lambda: Unmade(2), lambda: Unmade(a=2)):
        try:
            told.append(type(make()).__name__)
        except TypeError as error:
            told.append(str(error))
    return told, x + 1


class Plain:
    def __init__(self, n):
        self.n = n


class Alike:
    """All objects have one state."""

    state: dict = {}

    def __init__(self):
        self.__dict__ = self.state


def one_dict_of_two_objects(x):
    first, second = Plain(1), Plain(2)
    first.__dict__ = second.__dict__
    first.late = 4
    dynacompile.graph_break()
    first.n = 5
    seen = [second.n, second.late, first.__dict__ is second.__dict__]
    del second.late
    return seen, hasattr(first, "late"), x + 1


def objects_of_one_state(x):
    first = Alike()
    first.n = 3
    second = Alike()
    dynacompile.graph_break()
    second.n += 1
    first.m = second.n
    third = Alike()
    return first.n, second.m, third.n, Alike.state["n"], x + 1


@pytest.mark.parametrize(
    "fn",
    [
        answers_that_python_refuses,
        arguments_of_init,
        tuples_that_read_otherwise,
        operands_that_counters_decline,
        places_that_no_tuple_has,
        one_dict_of_two_objects,
        objects_of_one_state,
        in_place_operator_that_declines,
        operator_of_a_tensor_that_declines,
        attributes_of_a_class_with_slots,
        slices_of_iterators,
    ],
    ids=lambda fn: fn.__name__,
)
def test_as_in_eager(fn):
    def story(wrap):
        call = wrap(fn)
        for k in range(2):
            yield call(torch.ones(2) + k)

    check_same(story, least=None, **EAGER)


@pytest.mark.parametrize("fn", [dict_that_stores_otherwise, list_that_reads_otherwise], ids=lambda fn: fn.__name__)
def test_containers_behind_a_break(fn):
    def story(wrap):
        call = wrap(fn)
        for k in (1, 5, 7):
            yield call(torch.ones(2), k)

    check_same(story, least=None, **EAGER)


def test_what_failed_in_a_list_with_a_length_of_its_own():
    """Its items are looked at past the class, also where a recompile is explained."""

    class Long(Saying):
        def __len__(self):
            return super().__len__() + 10

    def total(x, items):
        return sum(items), len(items), x + 1

    def story(wrap):
        call = wrap(total)
        for count in (1, 4, 0, 2):
            yield call(torch.ones(2), Long(range(count)))

    check_same(story, **EAGER)


def test_a_dict_that_lives_on_is_stored_to_once():
    kept = Adding(a=1)

    def store(x):
        kept["b"] = 4
        return x + 1

    dynacompile.compile(store, options={"fallback": "none"}, **EAGER)(torch.ones(2))
    assert dict(kept) == {"a": 1, "b": 5}


def test_a_dict_beside_the_object_whose_it_is():
    def read_and_store(x, held, names):
        held.n += 1
        names["m"] = names["n"] + 1
        return held.m, names is held.__dict__, x + 1

    def story(wrap):
        call = wrap(read_and_store)
        held = Plain(1)
        for order in range(2):
            yield call(torch.ones(2) + order, held, vars(held))
        yield vars(held)

    check_same(story, least=None, **EAGER)


def test_one_dict_across_two_breaks():
    def share(x):
        first = Plain(1)
        dynacompile.graph_break()
        second = Plain(2)
        first.__dict__ = second.__dict__
        dynacompile.graph_break()
        return [first.n, first.__dict__ is second.__dict__], x + 1

    def story(wrap):
        yield wrap(share)(torch.ones(2))

    check_same(story, least=None, **EAGER)


def test_lengths_that_become_symbols():
    class Sized:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

    def ask(x, n):
        told = []
        for question in (bool, len, list):
            try:
                told.append(question(Sized(n)))
            except (TypeError, ValueError) as error:
                told.append(str(error))
        return told, x * n

    def story(wrap):
        call = wrap(ask)
        for n in (5, 7, -1, 0, 3):
            yield call(torch.ones(2), n)

    check_same(story, least=None, **EAGER)


def test_what_is_known_already_to_a_copy():
    """A class that copies itself gets the memo of the whole copy, which has the ids of what is copied already."""

    class Copied:
        def __init__(self, n, inner):
            self.n, self.inner = n, inner

        def __deepcopy__(self, memo):
            dynacompile.graph_break()
            return Copied(self.n + 10, copy.deepcopy(self.inner, memo))

    def copies(x):
        shared = [1]
        made = copy.deepcopy([shared, Copied(1, shared), Copied(2, [shared])])
        return made[0] is made[1].inner, made[2].inner[0] is made[0], [made[1].n, made[2].n], x + 1

    def story(wrap):
        yield wrap(copies)(torch.ones(2))

    check_same(story, least=None, **EAGER)


class Hashed:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number - 5


def test_a_hash_that_follows_from_a_number_of_the_call():
    """Of -1 it is -2, whatever stands for the number by then."""

    def function(x, number):
        return x + 1, hash(Hashed(number))

    compiled = dynacompile.compile(function, backend="eager")
    for number in (6, 7, 8, 4, 9):
        assert compiled(torch.ones(2), number)[1] == function(torch.ones(2), number)[1]


def test_a_class_is_read_as_guards_read_it_whatever_its_metaclass_answers_later():
    """A method of a class that an object gives: a `__getattribute__` that the metaclass gets is not asked for it."""

    class Meta(type):
        pass

    class Kind(metaclass=Meta):
        number = classmethod(lambda cls: 7)
        plain = staticmethod(lambda: 8)
        held = [9]

    def function(x, made):
        return made.number, made.plain, made.held, made.number(), x + 1

    def story(wrap):
        called = wrap(function)
        made = Kind()
        yield called(torch.ones(2), made)[2:]
        Meta.__getattribute__ = lambda cls, name: "read" if name in ("number", "plain", "held") else type.__getattribute__(cls, name)
        try:
            number, plain, held, *_ = called(torch.ones(2), made)
            yield number.__self__ is Kind, number(), plain(), held
        finally:
            del Meta.__getattribute__

    check_same(story, least=None, **EAGER)


@pytest.mark.parametrize("answer", [None, lambda cls, other: 1 // 0, lambda cls, other: asked.append(other.__name__) or True], ids=["none", "raises", "tells"])
def test_python_asks_the_metaclass_about_what_is_raised(answer):
    class Meta(type):
        pass

    class Kind(ValueError, metaclass=Meta):
        pass

    def by_statement(x):
        try:
            raise Kind(3)
        except ValueError as error:
            return x + 1, str(error)
        except (TypeError, ZeroDivisionError) as error:
            return x + 2, str(error)

    def by_throw(x):
        def generator():
            try:
                yield 1
            except ValueError as error:
                yield str(error)

        items = generator()
        next(items)
        return x + 1, items.throw(Kind(4))

    def story(wrap):
        for function in (by_statement, by_throw):
            called = wrap(function)
            yield called(torch.ones(2))
            Meta.__subclasscheck__ = answer
            asked.clear()
            try:
                yield called(torch.ones(2))
            except Exception as error:  # noqa: BLE001  (the point is to compare it)
                yield type(error), str(error)
            yield list(asked)
            del Meta.__subclasscheck__

    check_same(story, least=None, **EAGER)


asked = []


class Color(enum.Enum):
    RED = 1


class Meta(type):
    pass


class Failed(ValueError, metaclass=Meta):
    def __init__(self, *args):
        asked.append("init")


def hash_of_a_tuple(x):
    return hash((Color.RED, 1)) == 3, x + 1


def text_of_a_tuple(x):
    return str((Color.RED, 1)), repr([(Color.RED,)]), x + 1


def equality_of_tuples(x):
    return (Color.RED, 1) == (Color.RED, 1), (Color.RED, 1) in [(Color.RED, 2)], x + 1


def raised_class(x):
    try:
        raise Failed
    except ValueError:
        return x + 1


@pytest.mark.parametrize(
    "function, owner, name, value",
    [
        (hash_of_a_tuple, Color, "__hash__", None),
        (hash_of_a_tuple, Color, "__hash__", lambda self: 5),
        (text_of_a_tuple, Color, "__repr__", lambda self: "shown"),
        (equality_of_tuples, Color, "__eq__", lambda self, other: False),
        (raised_class, Meta, "__call__", None),
        (raised_class, Meta, "__call__", lambda cls: asked.append("called") or ValueError("other")),
    ],
    ids=["no hash", "a hash", "a text", "equality", "no call", "a call"],
)
def test_methods_that_python_asks_for_indirectly_come_and_go(function, owner, name, value):
    def story(wrap):
        called = wrap(function)
        for step in range(3):
            before = owner.__dict__.get(name)
            if step == 1:
                setattr(owner, name, value)
            asked.clear()
            try:
                yield called(torch.ones(2))
            except TypeError as error:
                yield str(error)
            finally:
                yield list(asked)
                if step == 1:
                    delattr(owner, name) if before is None else setattr(owner, name, before)

    check_same(story, least=None, **EAGER)


def test_what_python_says_of_arguments_to_a_class_that_once_had_a_new():
    def story(wrap):
        class Once:
            pass

        def function(x):
            try:
                Once(3)
            except TypeError as error:
                return str(error), x + 1
            return "made", x + 1

        called = wrap(function)
        yield called(torch.ones(2))
        Once.__new__ = lambda cls, *args: object.__new__(cls)
        yield called(torch.ones(2))
        del Once.__new__
        yield called(torch.ones(2))

    check_same(story, least=None, **EAGER)
