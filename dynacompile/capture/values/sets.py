"""Sets. The content of one that exists before the frame is guarded as a whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, KeyOf, Lazy, Value, builtin_attribute, next_serial, no_attribute, stepped, wraps
from dynacompile.capture.values.constant import ConstantValue, is_identity_key
from dynacompile.capture.values.keys import check_numbers, is_found_by_identity, is_known_key, key_in, key_of, known_key
from dynacompile.capture.values.mapping import DictLike, DictValue, missing_key
from dynacompile.capture.values.sequence import SequenceIterator, SequenceValue, TupleValue, ended
from dynacompile.capture.values.set_tables import Recipe, Table, replayed
from dynacompile.cpython import RUNNING
from dynacompile.ir.namespaces import defines
from dynacompile.ir.source import Constant, Length, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


RELATIONS = {"issubset": "__le__", "issuperset": "__ge__", "isdisjoint": "isdisjoint"}
OPERATORS = frozenset("__or__ __and__ __sub__ __xor__ __le__ __lt__ __ge__ __gt__ __eq__ __ne__".split())
CHANGES = frozenset("add discard remove pop update clear difference_update intersection_update symmetric_difference_update".split())


REPLAYED = frozenset({"add", "discard", "remove", "clear", "update", "difference_update"})


def outdated() -> Iterator[Any]:
    """An iterator over a set that has grown or shrunk, which raises whenever it is asked."""
    made = {0}
    iterator = iter(made)
    made.add(1)
    return iterator


class SetIterator(SequenceIterator):
    """iter() of a set, which notices when the set grows or shrinks."""

    def pytype(self) -> type:
        return type(iter(set()))

    def __init__(self, owner: SetValue, elements: list[Value]):
        super().__init__(TupleValue(elements))
        self.owner, self.keys, self.changes = owner, list(owner.content), owner.changes

    def next(self, cx: Context) -> Value | None:
        if not self.done and len(self.owner.content) != len(self.keys):
            raise raises(RuntimeError, "Set changed size during iteration")
        if not self.done and self.owner.changes != self.changes and list(self.owner.content) != self.keys:
            raise unsupported("unknown-operation", "iteration over a set that changes meanwhile")
        return super().next(cx)

    def rebuild(self, out: Writer) -> None:
        if self.done:
            ended(out, set)
        elif len(self.owner.content) != len(self.keys):
            out.callee(outdated)
            out.call(0)
        elif list(self.owner.content) != self.keys:
            raise unsupported("rebuild", "an iterator over a set that changes meanwhile")
        else:
            out.callee(stepped)
            out.callee(iter)
            out.value(self.owner)
            out.call(1)
            out.const(self.index)
            out.call(2)

    def children(self) -> Sequence[Value]:
        return () if self.done else (self.owner,)


class SetValue(Value):
    """content: key -> element. table: a set of the keys that has the same history; None where that is not known: of one that exists before the frame, was
    made of such a one, or has keys that are no constants. changes: how often a method that changes sets was called. is_taken: residual code gives
    the set, as it was before the frame, to a method of another."""

    is_taken = False

    def __init__(self, elements: Sequence[Value], source: Source | None = None, ordered: bool = True):
        self.source, self.changes, self.serial = source, 0, next_serial()
        self.table = Table() if ordered and source is None else None
        self.log: list[tuple[Callable, list[Value]]] = []  # changes of a set that exists before the frame
        self.content: dict[Hashable, Value] = {}
        for element in elements:
            self.put(element)

    @classmethod
    def of(cls, content: dict[Hashable, Value], table: Table | None) -> SetValue:
        made = cls([])
        made.content, made.table = content, table
        return made

    def put(self, element: Value) -> None:
        hashed = key_of(element)
        check_numbers(hashed, self.content)
        self.content.setdefault(hashed, element)
        if self.table is not None and is_known_key(hashed):
            self.table.do("add", hashed)
        else:
            self.table = None

    def drop(self, hashed: Hashable) -> None:
        self.content.pop(hashed, None)
        if self.table is not None and is_known_key(hashed):
            self.table.do("discard", hashed)

    def pytype(self) -> type:
        return set

    def truth(self, cx: Context) -> bool:
        return bool(self.content)

    def length(self, cx: Context) -> int:
        return len(self.content)

    def contains(self, cx: Context, item: Value) -> Value:
        return ConstantValue(key_in(cx, item, self.source, self.content) in self.content)

    def elements(self, cx: Context) -> list[Value]:
        """Elements in the order that Python's set gives, known for constants only."""
        if len(self.content) <= 1:
            return list(self.content.values())
        if any(isinstance(key, (Value, KeyOf)) or not is_known_key(key) for key in self.content):  # whose order goes by where in memory they are
            raise unsupported("unknown-operation", "iteration over a set of objects")
        if self.table is None:
            raise unsupported("unknown-operation", f"iteration over {self.describe() if self.source else 'a set'}, whose order is not known")
        return [self.content[key] for key in self.table.keys]

    def iterate(self, cx: Context) -> IteratorValue:
        return SetIterator(self, self.elements(cx))

    def get_attr(self, cx: Context, name: str) -> Value:
        if not defines(set, name):
            raise no_attribute(set, name)
        return builtin_attribute(cx, self, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in OPERATORS and not issubclass(args[0].pytype(), (set, frozenset)):
            return ConstantValue(NotImplemented)
        if name in CHANGES:
            self.changes += 1
            cx.effects.move(self)
            if self.source is not None:
                self.note(cx, name, args)
        if name == "update":
            for other in args:
                self.take(cx, other)
        elif name == "add" and len(args) == 1:
            self.put(args[0])
        elif name == "discard" and len(args) == 1:
            self.drop(key_of(args[0]))
        elif name == "remove":
            if key_of(args[0]) not in self.content:
                raise missing_key(args[0])
            self.drop(key_of(args[0]))
        elif name == "difference_update":
            for other in args:
                for element in list(other.content.values()) if isinstance(other, SetValue) else other.each(cx):
                    if self.source is not None:
                        self.note_element(cx, "discard", element)
                    self.drop(key_of(element))
                if self.table is not None:  # which is made smaller at the end where much has gone
                    self.table.do("difference_update", ())
                elif self.source is not None:
                    self.log.append((set.difference_update, [TupleValue([])]))
        elif name in ("intersection_update", "symmetric_difference_update") and len(args) == 1:
            given = table_of(args[0])
            self.content = self.method(cx, name.removesuffix("_update"), args, {}).content  # type: ignore[attr-defined]
            if self.table is None or given is None:
                self.table = None
            else:
                self.table.do(name, given)
        elif name == "pop" and not args and self.source is None:
            return self.pop(cx)
        elif name == "clear":
            self.content.clear()
            if self.table is not None:
                self.table.do("clear")
        elif name in ("union", "__or__"):
            merged = self.copy()
            merged.method(cx, "update", args, {})
            return merged
        elif name == "copy":
            return self.copy()
        elif name == "intersection" and len(args) == 1 and not isinstance(args[0], (SetValue, ConstantValue)):  # an element is looked for when it is taken
            found = SetValue([])
            for element in args[0].each(cx):
                if self.contains(cx, element).truth(cx):
                    found.put(element)
                    if len(found.content) >= len(self.content):  # there are no more
                        break
            return found
        elif name == "difference" and len(args) == 1 and not isinstance(args[0], (SetValue, ConstantValue)):  # of the set as it is before one is taken
            rest = self.copy()
            rest.method(cx, "difference_update", args, {})
            return rest
        elif name in ("difference", "__sub__", "intersection", "__and__") and len(args) == 1:
            other = SetValue(args[0].elements(cx)) if not isinstance(args[0], SetValue) else args[0]
            keep = name in ("intersection", "__and__")
            content = {k: v for k, v in self.content.items() if (k in other.content) == keep}
            return SetValue.of(content, computed(self, "intersection" if keep else "difference", args[0]))
        elif name in ("symmetric_difference", "__xor__") and len(args) == 1:
            other = args[0] if isinstance(args[0], SetValue) else SetValue(args[0].elements(cx))
            either = {**self.content, **other.content}
            content = {k: v for k, v in either.items() if (k in self.content) != (k in other.content)}
            return SetValue.of(content, computed(self, "symmetric_difference", args[0]))
        elif name in ("isdisjoint", "issuperset") and len(args) == 1 and not isinstance(args[0], SetValue):  # which end at the first element that decides
            decides = name == "isdisjoint"
            return ConstantValue(not any(self.contains(cx, element).truth(cx) == decides for element in args[0].each(cx)))
        elif name == "issubset" and len(args) == 1 and not isinstance(args[0], (SetValue, ConstantValue)) and RUNNING.subsets_end_early:
            return ConstantValue(len(self.method(cx, "intersection", args, {}).content) == len(self.content))  # type: ignore[attr-defined]
        elif name in RELATIONS and len(args) == 1:
            other = args[0] if isinstance(args[0], SetValue) else SetValue(args[0].elements(cx))
            return ConstantValue(getattr(self.content.keys(), RELATIONS[name])(other.content.keys()))
        else:
            raise unsupported("unknown-operation", f"set.{name}()")
        return ConstantValue(None)

    def note(self, cx: Context, name: str, args: list[Value]) -> None:
        """Keeps a change for the replay. The elements that others give are kept where they are taken."""
        if name not in REPLAYED or self.is_taken:
            raise unsupported("mutation", f"{self.describe()}.{name}()")
        cx.effects.touch(self)
        if name == "clear":
            self.log.append((set.clear, []))
        elif name not in ("update", "difference_update"):
            self.note_element(cx, name, args[0])

    def note_element(self, cx: Context, name: str, element: Value) -> None:
        key_in(cx, element, self.source, self.content)
        if name != "remove" or key_of(element) in self.content:
            self.log.append((getattr(set, name), [element]))

    def copy(self) -> SetValue:
        return SetValue.of(dict(self.content), None if self.table is None else self.table.derived("copy"))

    def pop(self, cx: Context) -> Value:
        """The element that Python's set gives up first. Of one whose order is not known, the only one."""
        if not self.content:
            raise raises(KeyError, "pop from an empty set")
        if self.table is None:
            if len(self.content) > 1:
                raise unsupported("unknown-operation", "pop() of a set whose order is not known")
            return self.content.popitem()[1]
        return self.content.pop(self.table.do("pop"))

    def take(self, cx: Context, other: Value) -> None:
        """self.update(other), which has what came so far, where another element is asked for."""
        if self.table is not None and not isinstance(other, IteratorValue) and (given := table_of(other)) is not None:
            self.table.do("update", given)
        elif isinstance(other, SetValue) or isinstance(other, DictLike) and other.cls is dict:
            self.table = None
        if other is self:
            return
        whole = None if self.source is None else taken_whole(cx, other)
        if whole is not None:
            self.log.append((set.update, [whole]))
        for element in list(other.content.values()) if isinstance(other, SetValue) else other.each(cx):
            if self.source is not None and whole is None:
                self.log.append((set.add, [element]))
            self.put(element)

    def replay_values(self) -> Sequence[Value]:
        return [value for _, args in self.log for value in args]

    def replay(self, out: Writer) -> None:
        for change, args in self.log:
            out.callee(change)
            out.value(self)
            for arg in args:
                out.value(arg)
            out.call(1 + len(args))
            out.emit("POP_TOP")

    def children(self) -> Sequence[Value]:
        return list(self.content.values())

    def rebuild(self, out: Writer) -> None:
        if self.table is not None and any(name != "add" for name, _ in self.table.recipe):
            out.callee(replayed)
            out.const(Recipe(self.table.recipe))
            out.call(1)
            return
        if self.table is None and len(self.content) > 1 and all(map(is_known_key, self.content)):
            raise unsupported("rebuild", "a set whose order is not known")
        for element in self.content.values():
            out.value(element)
        out.emit("BUILD_SET", len(self.content))


def taken_whole(cx: Context, value: Value) -> Value | None:
    """What residual code is to give to `update` of a set, for a set or dict as it is by now: Python makes room for all its elements first, on which the order
    depends. None for what gives its elements one by one."""
    if isinstance(value, DictLike) and value.cls is dict:
        return DictValue.of([(key, ConstantValue(None)) for key in value.elements(cx)])
    if not isinstance(value, SetValue):
        return value if isinstance(value, ConstantValue) and isinstance(value.value, frozenset) else None
    if value.table is not None:
        return SetValue.of(dict(value.content), value.table.as_now())
    if value.source is not None and not value.log:
        value.is_taken = True
        return value
    if any(map(is_known_key, value.content)):
        raise unsupported("mutation", f"update() by {value.describe()}, whose order is not known,")
    return None


def table_of(value: Value) -> Any:
    """What a method of sets is given for a value, in its place, where the order of its elements is known."""
    if isinstance(value, SetValue):
        return value.table
    if isinstance(value, ConstantValue) and isinstance(value.value, (set, frozenset, tuple, str, bytes, range)):
        return value.value if all(map(is_known_key, value.value)) else None
    if isinstance(value, DictValue) and value.cls is dict and all(map(is_known_key, value.content)):
        return dict.fromkeys(value.content)
    if isinstance(value, SequenceValue) and value.source is None and all(isinstance(item, ConstantValue) and is_known_key(item.value) for item in value.items):
        return [item.constant() for item in value.items]
    return None


def computed(left: SetValue, name: str, right: Value) -> Table | None:
    """The table of the result of a method."""
    other = table_of(right)
    return None if left.table is None or other is None else left.table.derived(name, other)


class GivenSet(SetValue):
    """A set that exists before the frame. Its elements are read with the first question about one; who passes it on reads none."""

    source: Source

    def __init__(self, cx: Context, real: set, source: Source):
        self.cx, self.real, self.source, self.changes, self.table = cx, real, source, 0, None
        self.log = []
        self.read: dict[Hashable, Value] | None = None

    @property
    def content(self) -> dict[Hashable, Value]:  # type: ignore[override]
        if self.read is None:
            cx, real = self.cx, self.real
            cx.guard("SET", self.source, frozenset(real))
            self.read = {}
            for e in real:
                if not is_known_key(e):
                    self.read[e] = Lazy(cx, e, Constant(e, f"a {type(e).__name__}"))
                else:
                    element = cx.wrap(e, Constant(e, repr(e))) if is_identity_key(e) else known_key(cx, e)
                    self.read[key_of(element)] = element
        return self.read

    def elements(self, cx: Context) -> list[Value]:
        """In the order of the set itself, which is guarded, until the frame changes it."""
        if self.changes or len(self.content) <= 1:
            return super().elements(cx)
        cx.guard("SET_ORDER", self.source, tuple(self.real))
        return list(self.content.values())

    def counted(self, cx: Context) -> Value:
        """A number of each call, where it has varied and no element was asked for."""
        if self.read is None and cx.policy is not None and Length(self.source) in cx.policy.numbers:
            return cx.wrap(len(self.real), Length(self.source))
        return super().counted(cx)

    def truth(self, cx: Context) -> bool:
        return self.counted(cx).truth(cx) if self.read is None else super().truth(cx)

    def children(self) -> Sequence[Value]:
        return () if self.read is None else super().children()


@wraps(set)
def wrap_set(cx: Context, real: set, source: Source) -> Value:
    unknown = [e for e in real if not is_known_key(e)]  # whose own __hash__ and __eq__ are for the program alone to call
    if not all(map(is_found_by_identity, unknown)):
        raise unsupported("unknown-object", f"{source.text()}, a set of objects")
    cx.guard("TYPE", source, set)
    return GivenSet(cx, real, source)
