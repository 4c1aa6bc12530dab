"""Subclasses of torch.Tensor: as inputs, made in the frame, with an override of torch's functions and without one."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import dynacompile
from dynacompile.events import Compiled, GraphBroke, Recompiled
from tests.checking import check

EAGER = {"backend": "eager"}


class Copied:
    """torch's own copy needs an override of new_empty."""

    def __deepcopy__(self, memo):
        with torch._C.DisableTorchFunctionSubclass():
            new = self.detach().clone().as_subclass(type(self)).requires_grad_(self.requires_grad)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


class Plain(Copied, torch.Tensor):
    pass


class Below(Plain):
    pass


class Unrelated(Copied, torch.Tensor):
    pass


class Disabled(Copied, torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Logged(Copied, torch.Tensor):
    log: list = []
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        cls.log.append((func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or ())))
        return super().__torch_function__(func, types, args, kwargs)


class Unwrapping(Copied, torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*[a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args], **(kwargs or {}))


class Meta(Copied, torch.Tensor):
    """Carries a word from operand to result."""

    @staticmethod
    def __new__(cls, data, word=None):
        return torch.as_tensor(data).as_subclass(cls)

    def __init__(self, data, word=None):
        self.word = word

    @property
    def twice(self):
        return self * 2

    def scaled(self, factor):
        return self * factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        words = [a.word for a in args if isinstance(a, cls) and hasattr(a, "word")]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            result = result.as_subclass(cls)
            result.word = words[0] if words else None
        return result


KEPT = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_}


class Image(Copied, torch.Tensor):
    """As libraries of images have it: results are plain but for some functions, and fields have getters of the class."""

    @classmethod
    def wrap(cls, tensor, *, like):
        made = tensor.as_subclass(cls)
        made.label = like.label
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **(kwargs or {}))
        if func in KEPT and isinstance(args[0], cls):
            return cls.wrap(output, like=args[0])
        if isinstance(output, cls):
            return output.as_subclass(torch.Tensor)
        return output

    @property
    def shape(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape

    @property
    def dtype(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().dtype

    def __repr__(self):
        return f"Image({self.label})"


class Operators(Copied, torch.Tensor):
    factor = 5
    __hash__ = torch.Tensor.__hash__

    def __add__(self, other):
        return "mine", super().__add__(other)

    def __rsub__(self, other):
        return "rsub", other

    def add(self, other):
        return "add", super().add(other)

    def __neg__(self):
        return "neg"

    def __len__(self):
        return 17

    def __bool__(self):
        return True

    def __getitem__(self, index):
        return super().__getitem__(index) * 10

    def __eq__(self, other):
        return "eq"

    def __contains__(self, item):
        return item == 3

    @classmethod
    def of(cls, x):
        return x.as_subclass(cls)

    @staticmethod
    def double(x):
        return x * 2


class Choosing(Copied, torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        if func is torch.Tensor.add:
            return super().__torch_function__(torch.sub, types, args, kwargs)
        if func == torch.Tensor.itemsize.__get__:
            return "itemsize"
        if func.__name__ == "mul":
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Setting(Copied, torch.Tensor):
    @property
    def word(self):
        return self._word

    @word.setter
    def word(self, value):
        self._word = value * 2


class Assigning(Copied, torch.Tensor):
    def __setattr__(self, name, value):
        super().__setattr__(name, (value, "set"))


class Asking(Copied, torch.Tensor):
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return "asked for " + name


class BySuper(Copied, torch.Tensor):
    @staticmethod
    def __new__(cls, x, *args, **kwargs):
        return super().__new__(cls, x)

    def __init__(self, x, a=1, *, b=2):
        super().__init__()
        self.a, self.b = a, b


class Made(Copied, torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_subclass(cls, x)


class OwnParameter(Copied, torch.nn.Parameter):
    pass


def dense():
    return torch.linspace(-2, 3, 9).reshape(3, 3)


def arg(cls=Plain, grad=True):
    x = dense().as_subclass(cls)
    return x.requires_grad_() if grad else x


def both(fn, *args, **facts):
    check(fn, *args, options=EAGER, **facts)
    check(fn, *args, **facts)


def operations(x):
    parts = x.split(1)
    return torch.sin(x) * 2, x.sum(0), x @ x, x.T, x[0], parts, x.max(0), torch.stack([x, x]), 2 - x, -x, x**2, 2**x, x.shape, x.size(0), len(x)


def functions(x):
    return (
        F.pad(x, (1, 1)), torch.einsum("ij,jk->ik", x, x), torch.norm(x), F.softmax(x, -1), F.layer_norm(x, (3,)), F.gelu(x), torch.cat([x, x]),
        torch.where(x > 0, x, -x), F.linear(x, x), torch.meshgrid(x[0], x[1], indexing="ij"), F.mse_loss(x, x * 2), F.normalize(x), torch.topk(x, 2),
    )  # fmt: skip


def fields(x):
    return x.requires_grad, x.dtype, x.ndim, x.data, x.detach(), x.T, x.mT, x.real, x.numel(), x.dim(), x.stride(), x.is_contiguous(), x.element_size()


def classes(x):
    return isinstance(x, Plain), type(x) is Plain, type(x * 2).__name__, isinstance(x, torch.nn.Parameter), isinstance(x * 2, torch.Tensor), x * 2


def made_inside(x):
    y = (x * 2).as_subclass(Plain) + 1
    return y, y.as_subclass(torch.Tensor), y.as_subclass(Below), y.detach(), y.view(-1), x.as_subclass(Plain)


def aliases_of_an_input(x):
    return x.view(-1), x[0], x.as_subclass(Below), x.as_subclass(torch.Tensor), x.detach()


def in_place(x):
    y = x * 1
    y += 1
    y -= x
    y *= 2
    y[0] = 5.0
    y.add_(1)
    return y


def twice_the_same(x):
    y = x * 2
    return y, [y], {"y": y}


def attributes(x):
    y = x * 2
    y.tag, y.other = 3, y.sum()
    return y, y.tag, y.other, hasattr(y, "tag"), hasattr(y, "none"), getattr(y, "none", 7), hasattr(y * 2, "tag")


@functools.lru_cache
def name_of_result(factor):
    return type(torch.ones(2).as_subclass(Plain) * factor).__name__


def asked_while_captured(x):
    return x * 2, name_of_result(3)


def test_functions_that_are_asked_while_the_frame_is_captured():
    compiled = compiled_of(asked_while_captured)
    assert compiled(dense())[1] == "Plain" == name_of_result(3)


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Logged.log.append(("mode", func.__name__, [t.__name__ for t in types]))
        return func(*args, **(kwargs or {}))


def watched(x):
    Logged.log, Logged.calls = [], 0
    with Watching():
        y = x * 2
        z = y.as_subclass(Logged)
        found = y.shape, torch.cat([y, x]), y[0], len(y), -y, y.add_(1), F.softmax(z, 0), [row.T for row in z], isinstance(z + 1, Logged), z.requires_grad
        with torch._C.DisableTorchFunctionSubclass():
            disabled = z * 3
        with torch._C.DisableTorchFunction():
            all_disabled = z * 4
    return found, y, z, disabled, all_disabled, list(Logged.log)


def test_modes_are_asked_before():
    both(watched, arg(Logged))
    both(watched, dense())


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@dynacompile.allow_in_graph
def allowed(x):
    return torch.sin(x) + 1


def in_containers(x):
    y = x * 2
    table = {y: 1, x: 2}
    tree = torch.utils._pytree.tree_map(lambda leaf: leaf * 2, {"a": x, "b": [y, 1]})
    return table[y], table[x], y in table, tree, sum([x, y]), [a * b for a, b in zip(x, y, strict=True)], allowed(x)


def disabled_inside(x):
    with torch._C.DisableTorchFunctionSubclass():
        return x * 2, x.T, torch._C._is_torch_function_enabled()


def unpacked(x):
    a, b, c = x
    return [row * 2 for row in x], a + b * c


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    torch.set_grad_enabled(False)
    z = x * 3
    torch.set_grad_enabled(True)
    return y, z, x * 4


@pytest.mark.parametrize(
    "fn",
    [
        operations,
        functions,
        fields,
        classes,
        made_inside,
        aliases_of_an_input,
        in_place,
        twice_the_same,
        attributes,
        unpacked,
        without_gradients,
        in_containers,
        disabled_inside,
    ],
)
def test_the_class_is_kept(fn):
    both(fn, arg())
    both(fn, arg(Disabled))


def log(x):
    Logged.log, Logged.calls = [], 0
    y = torch.cat([x, x * 2], dim=0) - 1
    y.add_(1)
    return y.sum(), y.shape, y[0], 1 - y, F.softmax(y, 0), list(Logged.log), Logged.calls


def test_an_override_is_asked_for_each_operation():
    both(log, arg(Logged))


def unwrapped(x):
    return x + 1, torch.sin(x), x.T, x.shape, 2 * x, x[0], x.split(1)[0], x.sum()


def test_an_override_that_gives_plain_tensors():
    both(unwrapped, arg(Unwrapping))


def image(x):
    y = x.clone()
    z = (y * 2 + x).clamp(0, 1)
    return y, y.label, z, x.shape, y.dtype, x.to(torch.float64), F.interpolate(x[None, None], scale_factor=2.0), y.add_(1), torch.stack([x, x]), x.detach()


@pytest.mark.parametrize("dynamic", [None, True])
def test_fields_with_getters_of_the_class(dynamic):
    x = arg(Image, False)
    x.label = "cat"
    for backend in ("eager", "default"):
        check(image, x, options={"backend": backend, "dynamic": dynamic})
    compiled = compiled_of(lambda x: x.clone() * x.shape[0])
    for rows in (3, 4, 5, 6):
        x = torch.ones(rows, 2).as_subclass(Image)
        x.label = "cat"
        assert torch.equal(compiled(x), torch.ones(rows, 2) * rows)


def words(x):
    m = Meta(x * 2, "word")
    y = m + 1
    return y, y.word, y.twice, y.scaled(3), m.twice.word, torch.zeros(2) + y.sum(), type(y)(y, "new").word


def test_attributes_that_an_override_hands_on():
    both(words, dense().requires_grad_())


def operators(x):
    return (
        x + 1, 3 - x, x.add(1), -x, len(x), 1 if x else 2, x[0], x == 2, 3 in x, x.of(x * 2), x.double(x), x.factor, type(x).factor,
        torch.Tensor.add(x, 1), torch.add(x, 1), x * 2, Operators.of(x * 3) + 1,
    )  # fmt: skip


def test_methods_of_the_class():
    both(operators, arg(Operators))


def choices(x):
    Choosing.calls = 0
    found = [x + 1, x.itemsize, x.sum()]
    try:
        found.append(x * 2)
    except TypeError:
        found.append("TypeError")
    return found, Choosing.calls


def test_an_override_that_tells_functions_apart():
    both(choices, arg(Choosing), backward=False)


def mixed(x, y):
    return x + y, y + x, torch.add(y, x), torch.mul(x, y)


def unrelated(x, y):
    try:
        return x + y
    except TypeError:
        return x * 2


def test_two_classes():
    both(mixed, arg(), dense().requires_grad_())
    both(mixed, arg(), arg(Below))
    both(unrelated, arg(), arg(Unrelated))


def constructed(x):
    y = BySuper(x * 2, 3, b=4)
    return y, y.a, y.b, y + 1, hasattr(y + 1, "a"), Made(x), Unrelated(x), Unrelated([1.0, 2.0]) + 1, Plain(2, 2).shape


def test_made_by_their_classes():
    both(constructed, dense())
    both(lambda x: (Unrelated(x), Unrelated(x) + 1), dense().requires_grad_())


def by_property(x):
    y = (x * 2).as_subclass(Setting)
    y.word = 4
    z = (x * 3).as_subclass(Assigning)
    z.word = 5
    return y, y.word, y._word, z, z.word


def by_getattr(x):
    return x.abc, hasattr(x, "_none"), getattr(x, "_none", 7), x * 2


def test_hooks_of_attributes():
    both(by_property, dense())
    both(by_getattr, arg(Asking, False))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = OwnParameter(dense())
        self.register_buffer("shift", arg(grad=False))
        self.held = [arg(grad=False)]

    def forward(self, x):
        return x * self.weight + self.shift + self.held[0]


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(network() for _ in range(3))

    def forward(self, x, y):
        for block in self.blocks:
            x, y = x + block(x), y + block(y)
        return x, y


def test_modules():
    both(Layer(), dense())
    both(network(), arg())
    both(Blocks(), arg(), dense().requires_grad_())
    both(torch.nn.MultiheadAttention(3, 1, batch_first=True), arg()[None], arg()[None], arg()[None], backward=False)


def written(x):
    x[0] = 5.0
    x[1] += 1
    x *= 2
    x.seen = x.sum()
    return x, x.seen


def test_inputs_are_written():
    both(written, arg(grad=False))
    both(lambda x: (x[0].add_(1), x * 2), arg(grad=False))
    both(lambda x, y: (x.copy_(y), x.masked_fill_(y > 0, 1.0), x * 2), dense(), arg(grad=False))
    both(lambda x, y: (torch.add(x, 1, out=y), y * 2), arg(grad=False), arg(grad=False))


def written_without_gradients(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def test_an_input_that_requires_gradients_is_written_by_python():
    check(written_without_gradients, arg(), graphs=1, breaks=1, options=EAGER)
    check(lambda x: x.add_(1), arg(), graphs=0, breaks=None, options=EAGER)


def test_an_index_of_a_subclass():
    both(lambda x, i: (x[i], x * 2), dense().requires_grad_(), torch.tensor([0, 2]).as_subclass(Unwrapping))


def broken(x):
    y = x * 2
    y.tag = 5
    dynacompile.graph_break()
    return y + 1, y.tag


def test_a_break():
    both(broken, arg(), graphs=2, breaks=1)


def broken_while_disabled(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
        dynacompile.graph_break()
        z = y + x
    return y, z, x * 3, torch._C._is_torch_function_enabled()


def test_a_break_while_nobody_is_asked():
    both(broken_while_disabled, arg(), graphs=3, breaks=2)


class Breaking(Copied, torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        if func is torch.sin:
            dynacompile.graph_break()
        return super().__torch_function__(func, types, args, kwargs)


def breaks_inside(x):
    Breaking.calls = 0
    return torch.sin(x * 2) + x.shape[0], Breaking.calls


def test_a_break_inside_of_an_override():
    both(breaks_inside, arg(Breaking), graphs=3, breaks=2)


def detached(x):
    y = x * 2
    dynacompile.graph_break()
    return y.detach_()


def test_results_are_aliases_as_in_eager():
    """Of which `detach_` is refused."""
    both(detached, arg(), graphs=1, breaks=None)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_the_mode_of_the_caller(context, backend):
    def fn(x):
        return x * 2, x.view(-1), x.as_subclass(Below), x.sum()

    compiled, x = compiled_of(fn, backend=backend), arg()
    for _ in range(2):
        with context():
            got, want = compiled(x), fn(x)
        for a, b in zip(got, want, strict=True):
            assert type(a) is type(b) and torch.equal(a, b) and a.requires_grad == b.requires_grad and a.is_inference() == b.is_inference()


def data_written(x):
    Logged.log, Logged.calls = [], 0
    x.data.add_(1)
    return x * 2, list(Logged.log)


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.linear.register_full_backward_hook(ignored)

    def forward(self, x):
        return self.linear(x)


def ignored(module, grad_input, grad_output):
    return None


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[a.x if isinstance(a, cls) else a for a in args], **(kwargs or {})))


WRAPPER = Wrapper(dense())


def leaf(x):
    return x.is_leaf, x * 2


def gradient(x):
    return x.grad, x * 2


@pytest.mark.parametrize(
    "fn, args, code",
    [
        (lambda x: (WRAPPER + 1).x * x, (dense(),), "tensor-subclass"),
        (lambda x: (Wrapper(x) + 1).x * x, (dense(),), "unknown-function"),
        (lambda x: torch.func.vmap(lambda a: a * 2)(x), (arg(grad=False),), "sub-graph"),
        (lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)), (arg(grad=False),), "sub-graph"),
        (lambda x: Double.apply(x), (arg(),), "autograd-function"),
        (Hooked(), (arg(),), "hooks"),
        (data_written, (arg(Logged, False),), "mutation"),
        (leaf, (arg(),), "tensor-attribute"),
        (gradient, (arg(grad=False),), "tensor-attribute"),
        (lambda x: torch.Tensor._make_subclass(Plain, x, True) * 2, (dense(),), "autograd-call"),
        (lambda x: (x.sum().item(), x * 2), (arg(grad=False),), "to-python"),
        (lambda x, y: torch.add(x, y), (arg(), arg(Unrelated)), "would-raise"),
    ],
)
@pytest.mark.parametrize("options", [EAGER, {}])
def test_what_is_left_to_python(fn, args, code, options):
    events = check(fn, *args, graphs=None, breaks=None, options=options)
    assert code in {e.code for e in events if isinstance(e, GraphBroke)}


def told(compiled, x):
    """The result, and whether the call made an entry."""
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        return compiled(x), any(isinstance(e, (Compiled, Recompiled)) for e in events)
    finally:
        end()


def compiled_of(fn, **options):
    dynacompile.reset()
    return dynacompile.compile(fn, isolate_recompiles=True, **{"backend": "eager", **options})


def test_each_class_is_an_entry():
    compiled, seen = compiled_of(lambda x: x * 2), set()
    for cls in (torch.Tensor, torch.Tensor, Plain, Plain, Below, Below, Plain, torch.Tensor):
        result, again = told(compiled, dense().as_subclass(cls))
        assert type(result) is cls and again == (cls not in seen)
        seen.add(cls)


def test_a_replaced_override_is_another_entry():
    class Changing(torch.Tensor):
        pass

    def doubling(cls, func, types, args=(), kwargs=None):
        return super(Changing, cls).__torch_function__(func, types, args, kwargs) * 1 if func is torch.sin else torch.zeros(1)

    compiled, x = compiled_of(lambda x: (x * 2).as_subclass(torch.Tensor)), dense().as_subclass(Changing)
    assert torch.equal(told(compiled, x)[0], dense() * 2)
    assert not told(compiled, x)[1]
    Changing.__torch_function__ = classmethod(doubling)
    result, again = told(compiled, x)
    assert again and torch.equal(result, torch.zeros(1))
    assert not told(compiled, x)[1]
    Changing.__torch_function__ = torch._C._disabled_torch_function_impl
    result, again = told(compiled, x)
    assert again and torch.equal(result, dense() * 2)
    del Changing.__torch_function__
    assert torch.equal(told(compiled, x)[0], dense() * 2)


def test_a_method_that_the_class_gets_later_is_another_entry():
    class Growing(torch.Tensor):
        pass

    compiled, x = compiled_of(lambda x: (x.sum(), x + 1)), dense().as_subclass(Growing)
    assert told(compiled, x)[0][0] == dense().sum()
    Growing.sum = lambda self: "sum"
    assert told(compiled, x)[0][0] == "sum"
    Growing.__add__ = lambda self, other: "add"
    assert told(compiled, x)[0] == ("sum", "add")
    assert not told(compiled, x)[1]


def test_attributes_of_inputs_are_guarded():
    compiled, x = compiled_of(lambda x: x * getattr(x, "factor", 1)), dense().as_subclass(Plain)
    assert torch.equal(told(compiled, x)[0], dense())
    x.factor = 3
    assert torch.equal(told(compiled, x)[0], dense() * 3)
    assert not told(compiled, x)[1]
    x.factor = 4
    assert torch.equal(told(compiled, x)[0], dense() * 4)
    del x.factor
    assert torch.equal(told(compiled, x)[0], dense())


def test_an_attribute_that_hides_one_of_the_class():
    class Tagged(torch.Tensor):
        tag = 2

    compiled, x = compiled_of(lambda x: x * x.tag), dense().as_subclass(Tagged)
    assert torch.equal(told(compiled, x)[0], dense() * 2)
    x.tag = 3
    assert torch.equal(told(compiled, x)[0], dense() * 3)
    Tagged.tag = 5
    assert torch.equal(told(compiled, dense().as_subclass(Tagged))[0], dense() * 5)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_sizes_may_vary(backend):
    compiled = compiled_of(lambda x: (x * x.shape[0]).sum(0), backend=backend)
    for rows in (3, 4, 5, 6, 7):
        x = torch.arange(rows * 2.0).reshape(rows, 2).as_subclass(Plain)
        result, again = told(compiled, x)
        assert type(result) is Plain and torch.equal(result, (x * rows).sum(0))
        assert again == (rows < 5)


def test_capture_runs_none_of_the_users_code():
    class Counting(torch.Tensor):
        calls: list = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    compiled = compiled_of(lambda x: x * 2 + 1)
    for rows in (3, 3, 4, 5):
        x = torch.ones(rows, 2).as_subclass(Counting)
        Counting.calls.clear()
        compiled(x)
        assert Counting.calls == [torch.Tensor.mul, torch.Tensor.add]
