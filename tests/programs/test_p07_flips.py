"""Everything that a program depends on is changed between two calls: the compiled function must follow as eager does."""

import types

import pytest
import torch

from tests.scenarios import attempt, check_same

SCALE = 2
TABLE = {"a": 1.0}
NAMES = ["x"]
WEIGHT = torch.tensor([1.0, 2.0, 3.0])


def x3(**kw):
    return torch.tensor([0.5, -1.0, 2.0], **kw)


def helper(x):
    return x + 1


def other_helper(x):
    return x - 5


class Config:
    factor = 3
    names = ("a", "b")

    def __init__(self):
        self.bias = 1.5

    @property
    def double(self):
        return self.bias * 2

    def apply(self, x):
        return x * self.factor + self.bias

    @staticmethod
    def plain(x):
        return x * 2

    @classmethod
    def of_class(cls, x):
        return x * cls.factor


CONFIG = Config()


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def calls(run, *args, flips=()):
    """A call, then a flip and a call for each flip, then all undone again where a flip gives its undoing."""
    yield attempt(run, *args)
    undo = []
    for flip in flips:
        back = flip()
        if callable(back):
            undo.append(back)
        yield attempt(run, *args)
    for back in reversed(undo):
        back()
        yield attempt(run, *args)


def put(owner, name, value):
    """A flip that sets an attribute, and undoes it."""

    def flip():
        missing = object()
        before = owner.__dict__.get(name, missing) if not isinstance(owner, Slots) else getattr(owner, name)
        setattr(owner, name, value)
        return lambda: delattr(owner, name) if before is missing else setattr(owner, name, before)

    return flip


def put_item(table, key, value):
    def flip():
        missing = object()
        before = table[key] if not isinstance(table, dict) or key in table else missing
        table[key] = value

        def back():
            if before is missing:
                del table[key]
            else:
                table[key] = before

        return back

    return flip


def put_global(name, value):
    return put_item(globals(), name, value)


INPUTS = [
    x3(),
    x3(dtype=torch.float64),
    x3(dtype=torch.float16),
    torch.tensor([1, 2, 3]),
    torch.tensor([True, False, True]),
    x3(requires_grad=True),
    x3()[:2],
    x3()[None],
    x3()[None].expand(2, 3),
    torch.arange(6.0)[::2],
    torch.tensor(2.0),
    torch.zeros(0),
    torch.nn.Parameter(x3()),
    torch.nn.Parameter(x3(), requires_grad=False),
    torch.arange(6.0).view(2, 3),
    torch.arange(6.0).view(3, 2).t(),
    x3(dtype=torch.complex64),
    3,
    3.0,
    True,
    2 + 1j,
]


def test_inputs_of_every_kind():
    def story(wrap):
        run = wrap(lambda x: (x * 2 + 1, isinstance(x, torch.Tensor) and x.dtype.is_floating_point))
        for x in INPUTS * 2:
            yield run(x)

    check_same(story, recompile_limit=64)


def test_limit_is_reached():
    def story(wrap):
        run = wrap(lambda x: x * 2 + 1)
        for x in INPUTS * 2:
            yield run(x)

    with pytest.warns(RuntimeWarning, match="reached recompile_limit=3"):
        check_same(story, recompile_limit=3)


def global_int(x):
    return x * SCALE


def global_dict(x):
    return x * TABLE["a"] + len(TABLE)


def global_list(x):
    return x * len(NAMES) + (1 if NAMES[-1] == "x" else 2)


def global_tensor(x):
    return x * WEIGHT


def calls_helper(x):
    return helper(x) * 2


def global_object(x):
    return CONFIG.apply(x) + CONFIG.double


def class_attribute(x):
    return x * Config.factor + len(Config.names)


def static_method(x):
    return Config.plain(x) + CONFIG.plain(x) + CONFIG.of_class(x)


def default_argument(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


def calls_default(x):
    return default_argument(x)


def uses_torch_function(x):
    return torch.relu(x) + torch.nn.functional.gelu(x)


def uses_builtin(x):
    return x * len([1, 2]) + max(1, 2)


def swap_code():
    before = helper.__code__
    helper.__code__ = other_helper.__code__

    def back():
        helper.__code__ = before

    return back


def swap_defaults():
    before = default_argument.__defaults__
    default_argument.__defaults__ = (5.0,)

    def back():
        default_argument.__defaults__ = before

    return back


def swap_keyword_defaults():
    default_argument.__kwdefaults__["shift"] = -3.0

    def back():
        default_argument.__kwdefaults__["shift"] = 1.0

    return back


def in_place_tensor():
    WEIGHT.mul_(2)
    return lambda: WEIGHT.div_(2)


def shadow_len():
    globals()["len"] = lambda _: 10

    def back():
        del globals()["len"]

    return back


FLIPS = {
    "global int": (global_int, [put_global("SCALE", 5), put_global("SCALE", 2.5), put_global("SCALE", torch.tensor(3.0))]),
    "global int to bool": (global_int, [put_global("SCALE", 1), put_global("SCALE", True), put_global("SCALE", 1.0)]),
    "global zero's sign": (lambda x: torch.full_like(x, SCALE), [put_global("SCALE", 0.0), put_global("SCALE", -0.0)]),
    "dict value": (global_dict, [put_item(TABLE, "a", 7.0)]),
    "dict grown": (global_dict, [put_item(TABLE, "b", 7.0)]),
    "dict replaced": (global_dict, [put_global("TABLE", {"a": 3.0, "c": 1})]),
    "list grown": (global_list, [lambda: NAMES.append("y") or (lambda: NAMES.pop())]),
    "list item": (global_list, [put_item(NAMES, 0, "z")]),
    "global tensor": (global_tensor, [put_global("WEIGHT", torch.tensor([4.0, 5.0, 6.0])), put_global("WEIGHT", torch.tensor([[1.0], [2.0]]))]),
    "global tensor in place": (global_tensor, [in_place_tensor]),
    "helper replaced": (calls_helper, [put_global("helper", other_helper), put_global("helper", torch.sin), put_global("helper", Config.plain)]),
    "helper's code": (calls_helper, [swap_code]),
    "attribute": (global_object, [put(CONFIG, "bias", 4.0)]),
    "class attribute hidden": (global_object, [put(CONFIG, "factor", 10)]),
    "class attribute": (global_object, [put(Config, "factor", 11)]),
    "method patched": (global_object, [put(Config, "apply", lambda self, x: x * 100)]),
    "method on instance": (global_object, [put(CONFIG, "apply", lambda x: x * 100)]),
    "property patched": (global_object, [put(Config, "double", property(lambda self: 50.0))]),
    "object replaced": (global_object, [put_global("CONFIG", types.SimpleNamespace(apply=lambda x: x, double=1.0))]),
    "class attribute read": (class_attribute, [put(Config, "factor", 1), put(Config, "names", ())]),
    "class replaced": (class_attribute, [put_global("Config", types.SimpleNamespace(factor=9, names=[1]))]),
    "static method": (
        static_method,
        [put(Config, "plain", staticmethod(lambda x: x * 9)), put(Config, "factor", 0), put(Config, "of_class", classmethod(lambda c, x: x))],
    ),
    "defaults": (calls_default, [swap_defaults]),
    "keyword defaults": (calls_default, [swap_keyword_defaults]),
    "own defaults": (default_argument, [swap_defaults]),
    "torch function": (uses_torch_function, [put(torch, "relu", torch.sigmoid)]),
    "torch.nn.functional": (uses_torch_function, [put(torch.nn.functional, "gelu", torch.tanh)]),
    "builtin hidden": (uses_builtin, [shadow_len]),
}


@pytest.mark.parametrize("name", FLIPS)
def test_globals(name):
    fn, flips = FLIPS[name]
    check_same(lambda wrap: calls(wrap(fn), x3(), flips=flips))


def test_class_changes():
    class Other(Config):
        factor = 50

        def apply(self, x):
            return x * 1000

    def flip():
        CONFIG.__class__ = Other

        def back():
            CONFIG.__class__ = Config

        return back

    check_same(lambda wrap: calls(wrap(global_object), x3(), flips=[flip]))


def test_base_class_is_patched():
    class Base:
        def go(self, x):
            return x + 1

    class Derived(Base):
        pass

    made = Derived()

    def fn(x):
        return made.go(x)

    check_same(lambda wrap: calls(wrap(fn), x3(), flips=[put(Base, "go", lambda self, x: x * 7), put(Derived, "go", lambda self, x: x * 9)]))


def test_bases_change():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 10

    class C(A):
        pass

    made = C()

    def flip():
        C.__bases__ = (B,)

        def back():
            C.__bases__ = (A,)

        return back

    check_same(lambda wrap: calls(wrap(lambda x: made.go(x)), x3(), flips=[flip]))


def test_slots():
    box = Slots(2.0)
    check_same(lambda wrap: calls(wrap(lambda x: x * box.value), x3(), flips=[put(box, "value", 3.0), put(box, "value", x3())]))


def test_closure():
    def story(wrap):
        scale, more = 2.0, [1.0]

        def fn(x):
            return x * scale + more[0]

        run = wrap(fn)
        yield run(x3())
        scale = 3.0
        yield run(x3())
        more[0] = 9.0
        yield run(x3())
        more = (4.0,)
        yield run(x3())
        scale = x3()
        yield run(x3())

    check_same(story)


def test_closure_of_helper():
    def story(wrap):
        scale = 2.0

        def inner(x):
            return x * scale

        def outer(x):
            return inner(x) + 1

        run = wrap(outer)
        yield run(x3())
        scale = 7.0
        yield run(x3())
        inner = torch.sin  # noqa: F811
        yield run(x3())

    check_same(story)


def test_attribute_appears():
    def fn(x, box):
        if hasattr(box, "bias"):
            return x + box.bias
        return x * getattr(box, "scale", 2.0)

    def story(wrap):
        class Box:
            pass

        run, box = wrap(fn), Box()
        yield run(x3(), box)
        box.scale = 5.0
        yield run(x3(), box)
        box.bias = 1.0
        yield run(x3(), box)
        del box.bias
        yield run(x3(), box)
        Box.bias = 3.0
        yield run(x3(), box)

    check_same(story)
