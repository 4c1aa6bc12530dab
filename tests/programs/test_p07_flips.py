"""Everything that a program depends on is changed between two calls: the compiled function must follow as eager does."""

import types

import pytest
import torch

from tests.scenarios import attempt, same

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

    same(story, recompile_limit=64)


def test_limit_is_reached():
    def story(wrap):
        run = wrap(lambda x: x * 2 + 1)
        for x in INPUTS * 2:
            yield run(x)

    with pytest.warns(RuntimeWarning, match="reached recompile_limit=3"):
        same(story, recompile_limit=3)


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
    same(lambda wrap: calls(wrap(fn), x3(), flips=flips))


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

    same(lambda wrap: calls(wrap(global_object), x3(), flips=[flip]))


def test_base_class_is_patched():
    class Base:
        def go(self, x):
            return x + 1

    class Derived(Base):
        pass

    made = Derived()

    def fn(x):
        return made.go(x)

    same(lambda wrap: calls(wrap(fn), x3(), flips=[put(Base, "go", lambda self, x: x * 7), put(Derived, "go", lambda self, x: x * 9)]))


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

    same(lambda wrap: calls(wrap(lambda x: made.go(x)), x3(), flips=[flip]))


def test_slots():
    box = Slots(2.0)
    same(lambda wrap: calls(wrap(lambda x: x * box.value), x3(), flips=[put(box, "value", 3.0), put(box, "value", x3())]))


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

    same(story)


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

    same(story)


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

    same(story)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.drop = torch.nn.Dropout(0.5)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU()])
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self.mode = "sum"
        self.extras = []
        self.options = {"power": 2}

    def forward(self, x):
        x = self.drop(self.first(x)) * self.scale + self.shift
        for layer in self.layers:
            x = layer(x)
        for extra in self.extras:
            x = x + extra
        x = x ** self.options["power"]
        return x.sum(-1) if self.mode == "sum" else x.mean(-1)


def set_data(net):
    net.first.weight.data = torch.ones(3, 3)


def set_data_other_dtype(net):
    net.double()


def new_parameter(net):
    net.first.weight = torch.nn.Parameter(torch.full((3, 3), 0.5))


def no_bias(net):
    net.first.bias = None


def freeze(net):
    net.first.weight.requires_grad_(False)


def swap_submodule(net):
    net.first = torch.nn.Linear(3, 3, bias=False)


def swap_kind(net):
    net.first = torch.nn.Identity()


def append_layer(net):
    net.layers.append(torch.nn.Tanh())


def insert_layer(net):
    net.layers.insert(0, torch.nn.Linear(3, 3))


def set_layer(net):
    net.layers[1] = torch.nn.Sigmoid()


def pop_layer(net):
    net.layers.pop(-1)


def evaluate(net):
    net.eval()


def evaluate_part(net):
    net.drop.eval()


def dropout_rate(net):
    net.drop.p = 0.9


def scale(net):
    net.scale = 3


def mode(net):
    net.mode = "mean"


def extra(net):
    net.extras.append(4.0)


def option(net):
    net.options["power"] = 3


def replace_buffer(net):
    net.shift = torch.full((3,), 2.0)


def delete_and_add_buffer(net):
    del net.shift
    net.register_buffer("shift", torch.full((1,), 5.0))


def buffer_in_place(net):
    net.shift.add_(1)


def own_forward(net):
    net.forward = types.MethodType(lambda self, x: x * 100, net)


def submodule_forward(net):
    net.first.forward = lambda x: x * 10


def class_forward(net):
    net.__class__ = type("Net2", (Net,), {"forward": lambda self, x: self.first(x)})


def forward_hook(net):
    net.first.register_forward_hook(lambda m, args, out: out * 3)


def forward_pre_hook(net):
    net.register_forward_pre_hook(lambda m, args: (args[0] + 1,))


def hook_on_top(net):
    net.register_forward_hook(lambda m, args, out: out - 10)


def load_state(net):
    net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()})


def load_state_assign(net):
    net.load_state_dict({k: v * 3 for k, v in net.state_dict().items()}, assign=True)


def tie(net):
    net.layers[0].weight = net.first.weight


NET_FLIPS = [
    set_data, set_data_other_dtype, new_parameter, no_bias, freeze, swap_submodule, swap_kind, append_layer, insert_layer, set_layer, pop_layer,
    evaluate, evaluate_part, dropout_rate, scale, mode, extra, option, replace_buffer, delete_and_add_buffer, buffer_in_place, own_forward,
    submodule_forward, class_forward, forward_hook, forward_pre_hook, hook_on_top, load_state, load_state_assign, tie,
]


@pytest.mark.parametrize("flip", NET_FLIPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("inplace", [False, True], ids=["twin", "inplace"])
def test_modules(flip, inplace):
    def story(wrap):
        torch.manual_seed(1)
        net = Net()
        run = wrap(net)

        def step():
            torch.manual_seed(2)
            net.zero_grad()
            x = torch.linspace(-1, 1, 6, dtype=net.shift.dtype).reshape(2, 3)
            out = run(x)
            if out.requires_grad:
                out.sum().backward()
            return out, {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}, sorted(net.state_dict())

        yield step()
        yield step()
        torch.manual_seed(3)
        flip(net)
        yield step()
        yield step()

    same(story, inplace=inplace, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", ["hook removed", "hook swapped", "hook's state"])
def test_hooks_change(changes):
    def story(wrap):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        state = {"factor": 2.0}
        handle = net[0].register_forward_hook(lambda m, a, out: out * state["factor"])
        run = wrap(net)
        yield run(x3())
        if changes == "hook removed":
            handle.remove()
        elif changes == "hook swapped":
            handle.remove()
            net[0].register_forward_hook(lambda m, a, out: out - 7)
        else:
            state["factor"] = -4.0
        yield run(x3())

    same(story, least=None)


def modes(run, x, *contexts):
    yield attempt(run, x)
    for context in contexts:
        with context():
            yield attempt(run, x)
        yield attempt(run, x)


def both_inferences():
    return torch.inference_mode()


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def autocast_half():
    return torch.autocast("cpu", torch.float16)


class default_double:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *reason):
        torch.set_default_dtype(torch.float32)


class deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *reason):
        torch.use_deterministic_algorithms(False)


class global_hook:
    def __enter__(self):
        self.handle = torch.nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)

    def __exit__(self, *reason):
        self.handle.remove()


def autocast_nested_off():
    outer, inner = torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False)

    class Both:
        def __enter__(self):
            outer.__enter__()
            inner.__enter__()

        def __exit__(self, *reason):
            inner.__exit__(*reason)
            outer.__exit__(*reason)

    return Both()


MODES = [torch.no_grad, both_inferences, autocast, autocast_half, default_double, deterministic, global_hook, autocast_nested_off, torch.enable_grad]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_modes(mode, grad):
    def fn(x):
        return (x @ x.t()).relu() + torch.ones(2, 2), torch.zeros(2) + x.sum(), torch.tensor([1.5, 2.5])

    same(lambda wrap: modes(wrap(fn), torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_(grad), mode, mode), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.__name__)
def test_modes_around_modules(mode):
    def story(wrap):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
        yield from modes(wrap(net), torch.linspace(-1, 1, 8).reshape(2, 4), mode, mode)

    same(story, atol=2e-2, rtol=2e-2)


def test_inference_tensor_comes_later():
    def story(wrap):
        run = wrap(lambda x: x * 2 + 1)
        yield run(x3())
        with torch.inference_mode():
            x = x3()
            yield run(x)
        yield run(x)
        y = run(x3())
        yield y.is_inference()

    same(story)


def test_weight_of_inference_mode():
    def story(wrap):
        run = wrap(lambda x, w: (x * w).sum())
        with torch.inference_mode():
            x = x3()
        w = x3(requires_grad=True)
        yield attempt(run, x, w)
        yield attempt(run, x3(), w)
        yield attempt(run, x, w)

    same(story)


def test_is_leaf_is_read():
    def story(wrap):
        run = wrap(lambda x: x * 2 if x.is_leaf else x * 3)
        leaf = x3(requires_grad=True)
        for x in (leaf, leaf * 1, leaf, x3()):
            yield run(x)

    same(story)


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

    same(story)


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

    same(story, least=None)


def test_contiguity_is_read():
    def story(wrap):
        run = wrap(lambda x: x * 2 if x.is_contiguous() else x * 3)
        t = torch.arange(9.0).view(3, 3)
        for x in (t, t.t(), t[:, ::2], t):
            yield run(x)

    same(story)


def test_storage_offset_differs():
    def story(wrap):
        run = wrap(lambda x: (x * 2, x[1:], x.as_strided((2,), (1,))))
        t = torch.arange(9.0)
        for x in (t[:3], t[3:6], t[6:]):
            yield run(x)

    same(story, least=None)


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

    same(story, recompile_limit=16)


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

    same(story)


def test_dict_order_matters():
    def story(wrap):
        run = wrap(lambda d: sum((i + 1) * v for i, v in enumerate(d.values())))
        a, b = x3(), x3() * 3
        yield run({"a": a, "b": b})
        yield run({"b": b, "a": a})
        yield run({"a": b, "b": a})

    same(story)


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

    same(story)
    same(story, isolate_recompiles=False)


def test_functions_made_in_a_loop():
    def make(k):
        return lambda x: x * k

    def story(wrap):
        made = [wrap(make(k)) for k in (1.0, 2.0, 3.0)]
        for _ in range(2):
            for fn in made:
                yield fn(x3())

    same(story)
    same(story, isolate_recompiles=False)
