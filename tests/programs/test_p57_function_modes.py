"""Torch-function modes that the frame enters: each call of torch goes through them, as in eager; devices as context managers."""

import collections
import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, resolve_name

import dynacompile
from dynacompile.events import GraphBroke
from tests.checking import check
from tests.scenarios import attempt, check_same

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def check_both(fn, *args, **expected):
    """With the captured graph as it is, and compiled."""
    check(fn, *args, options=EAGER, **expected)
    check(fn, *args, rtol=1e-4, atol=1e-5, **expected)


def name_of(func):
    return getattr(func, "__name__", str(func))


class Log(TorchFunctionMode):
    """Notes what it is asked, in full."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        where = func.__self__.__name__ if name_of(func) == "__get__" else ""
        self.names.append((name_of(func) + where, tuple(t.__name__ for t in types), len(args), None if kwargs is None else sorted(kwargs)))
        return func(*args, **(kwargs or {}))


class Double(TorchFunctionMode):
    """Doubles what add gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.add or func is torch.add else result


class Replace(TorchFunctionMode):
    def __init__(self, table):
        self.table, self.count = table, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return self.table.get(func, func)(*args, **(kwargs or {}))


TABLE = {torch.sin: torch.cos, torch.Tensor.exp: torch.Tensor.tanh, F.softmax: F.softmin}


def doubled(x):
    with Double():
        y = x + 1
        z = torch.add(x, y).sin()
    return y, z, x + 1


def replaced(x):
    with Replace(TABLE) as mode:
        y = torch.sin(x) + F.softmax(x, dim=-1)
        z = y.exp()
    return y, z, torch.sin(x), mode.count


def logged(x, weight):
    names = []
    with Log(names):
        y = x + 1
        y = 1 - y
        y = -y @ weight
        y = torch.relu(y) + F.relu(y, inplace=False)
        y = F.linear(y, weight, bias=None)
        y = y[0] + y.T[:, 1:2].squeeze(1) + y.sum()
        shape = y.shape, y.dtype, y.requires_grad, y.ndim, len(y), y.size(0), y.dim(), x.is_leaf, y.device
        y = torch.cat([y, torch.zeros(2)], dim=0)
        first, *_ = y
        z = sum(list(y))
        same = torch.is_tensor(y), isinstance(y, torch.Tensor), y is y, torch.is_floating_point(y)
        part, rest = torch.split(y, [2, 4])
        w = y.detach().clone()
        w += 1
        w[0] = 3
        with torch.no_grad():
            v = torch.einsum("i,i->", w, w)
    return y, z, first, part, rest, w, v, shape, same, names


def logged_module(x):
    names = []
    with Log(names):
        y = LAYERS(x)
    return y, names


torch.manual_seed(0)
LAYERS = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.0), nn.Softmax(-1)).requires_grad_(False)


def nested(x):
    names = []
    with Log(names), Double():
        y = x + 1
        with Replace(TABLE):
            z = torch.sin(y) + y
        with Log(names):
            z = z + 1
    return y, z, names, x + 1


class Counting(BaseTorchFunctionMode):
    def __init__(self):
        self.seen = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[resolve_name(func)] += 1
        return super().__torch_function__(func, types, args, kwargs)


def delegated(x):
    mode = Counting()
    with mode:
        y = (x * 2).sin()
        with mode:
            y = y * 3
    return y, dict(mode.seen)


class OnlyAdd(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            return "no tensor"
        return func(*args, **(kwargs or {}))


def gives_other_things(x):
    with OnlyAdd():
        text = x * 2
    return text, x * 2


class Again(TorchFunctionMode):
    """Calls torch in a way that it is asked about again."""

    def __init__(self):
        self.depth = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.depth += 1
        if self.depth < 3:
            with self:
                return func(*args, **(kwargs or {})) + 1
        return func(*args, **(kwargs or {}))


def asked_again(x):
    with Again() as mode:
        y = x.sin()
    return y, mode.depth


@pytest.mark.parametrize("fn", [doubled, replaced, logged_module, nested, delegated, gives_other_things, asked_again])
def test_one_graph(fn):
    check_both(fn, arg())


def test_what_modes_are_asked():
    check_both(logged, arg(), torch.linspace(0, 1, 16).reshape(4, 4))


@contextlib.contextmanager
def doubling(names):
    with Log(names):
        with Double() as mode:
            yield mode


def by_generators(x):
    names = []
    with doubling(names) as mode, contextlib.ExitStack() as stack:
        y = x + 1
        stack.enter_context(Replace(TABLE))
        z = torch.sin(y)
    return y, z, names, type(mode).__name__, x + 1


def written_in_place(x, y):
    with Double():
        y.add_(1)
        y[0] += x[1].detach()
        y.mul_(2)
    return y.view(-1).sum() + x.sum()


class Kept(TorchFunctionMode):
    def __init__(self):
        self.results, self.by_name = [], {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.results.append(result)
            self.by_name.setdefault(str(func).split("'")[1] if "'" in str(func) else func.__name__, []).append(result.shape)
        return result


def keeps_results(x):
    mode = Kept()
    with mode:
        y = (x * 2).sin()
        y = y @ y.T
    return y, mode.results, list(mode.by_name.values())


def asked_by_name(x):
    with torch.overrides.TorchFunctionMode.__new__(Double):
        y = x.add(1)
    return y


def in_a_loop(x):
    total = 0
    for i in range(3):
        with Double():
            total = total + x * i
        total = total + 1
    return total


def decides(x):
    with Double():
        if x.dim() == 2 and x.size(0) > 1 and x.is_floating_point():
            x = x + 1
        if x.requires_grad:
            x = x * 2
    return x


@pytest.mark.parametrize("fn", [by_generators, keeps_results, asked_by_name, in_a_loop, decides])
def test_more_in_one_graph(fn):
    check_both(fn, arg())


def test_tensors_are_written_in_a_mode():
    check_both(written_in_place, arg(), torch.ones(3, 4))


SHARED = Replace(TABLE)


def shared(x):
    with SHARED:
        return x.exp()


def test_the_state_of_a_mode_lives_on():
    SHARED.count = 0

    def story(wrap):
        SHARED.count = 0
        run = wrap(shared)
        for _ in range(3):
            yield run(arg()), SHARED.count

    check_same(story, fullgraph=True, rtol=1e-4, atol=1e-5)


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            raise ValueError("no sine")
        return func(*args, **(kwargs or {}))


def depth():
    return torch._C._len_torch_function_stack()


def raising(x):
    with Refuses():
        y = x + 1
        return torch.sin(y)


def caught(x):
    try:
        with Refuses():
            y = x + 1
            y = torch.sin(y)
    except ValueError as error:
        return y, str(error), depth()


def raised_in_the_block(x):
    with Double():
        y = x + 1
        if y.shape[0] == 3:
            raise KeyError("three")
    return y


def test_exceptions_leave_the_block():
    check_both(caught, arg())
    for fn in (raising, raised_in_the_block):
        check(fn, arg(), graphs=None, breaks=None, options=EAGER)
        assert depth() == 0


def breaks_inside(x):
    with Double():
        y = x + 1
        print("inside", depth())
        z = y + 1
    return y, z, z + 1, depth()


def breaks_in_two(x):
    names = []
    with Log(names):
        with Double():
            y = x + 1
            dynacompile.graph_break()
            z = y + 1
        z = z + 1
    return y, z, z + 1, names


def breaks_in_the_mode(x):
    with Prints() as mode:
        y = x + 1
        z = y * 2
    return y, z, mode.seen


class Prints(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        print(name_of(func))
        return func(*args, **(kwargs or {}))


def raises_after_a_break(x):
    try:
        with Refuses():
            y = x + 1
            print("inside")
            torch.sin(y)
    except ValueError as error:
        return y * 2, str(error), depth()


def entered_by_hand(x):
    mode = Double()
    mode.__enter__()
    y = x + 1
    print(depth())
    z = y + 1
    mode.__exit__(None, None, None)
    return z + 1


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [breaks_inside, breaks_in_two, breaks_in_the_mode, raises_after_a_break, entered_by_hand])
def test_breaks_inside(fn, backend):
    def story(wrap):
        run = wrap(fn)
        for _ in range(3):
            yield run(arg()), depth()

    events = check_same(story, backend=backend, rtol=1e-4, atol=1e-5)
    assert [e for e in events if isinstance(e, GraphBroke)]


def enters(mode):
    mode.__enter__()
    return torch.ones(2) + 1


def leaves(mode):
    mode.__exit__(None, None, None)
    return torch.ones(2) + 1


def test_a_mode_that_is_left_on():
    def story(wrap):
        begin, end, mode = wrap(enters), wrap(leaves), Double()
        for _ in range(2):
            made = begin(mode)
            inside = depth(), torch.ones(2) + 1
            with torch._C.DisableTorchFunction():
                yield made, inside
            end(mode)
            yield depth()

    check_same(story)
    assert depth() == 0


def gradients(x):
    with Double():
        (grad,) = torch.autograd.grad((x + 1).sin().sum(), x)
    return grad


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]


def own_function(x):
    with Double():
        return Square.apply(x)


def mapped(x):
    with Double():
        return torch.func.vmap(lambda row: row + 1)(x)


def assigned(x):
    with Double():
        y = x.detach() + 1
        y.requires_grad = True
    return y


def hooked(x):
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda *_: None)

    def run(x):
        with Double():
            return layer(x)

    return run(x)


def test_transforms_follow_their_function_in_modes():
    check(mapped, arg(), options=EAGER)


@pytest.mark.parametrize("fn", [gradients, own_function, assigned])
def test_what_runs_as_one_operation_is_not_captured(fn):
    with pytest.raises(dynacompile.exc.Unsupported) as raised:
        dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)(arg())
    assert raised.value.code in ("active-mode", "autograd-call")
    check(fn, arg(), graphs=None, breaks=None, options=EAGER)


def made_on_the_cpu(x):
    with torch.device("cpu") as device:
        y = torch.zeros(3) + x.sum() + torch.arange(3)
    return y, device, torch.ones(2)


def made_nowhere(x):
    with torch.device("meta"):
        y = torch.zeros(3, 4)
        z = torch.full((2,), 1.0, device="cpu")
        with torch.device("cpu"):
            w = torch.rand(2)
        v = torch.tensor([1.0, 2.0])
        where = torch.get_default_device()
        same = torch.zeros_like(x)
    return y.device, y.shape, z, w.device, v.device, where, same, torch.ones(2), torch.get_default_device()


def made_in_a_mode(x):
    names = []
    with torch.device("meta"), Log(names):
        y = torch.zeros(3)
        with torch.device("cpu"):
            z = torch.ones(4)
    return y.device, z + x, names


def made_in_a_function(x):
    with torch.device("meta"):
        y = F.one_hot(torch.zeros(2, dtype=torch.long, device="cpu"), 3)
        left, right = torch.meshgrid(torch.arange(2, device="cpu"), torch.arange(3, device="cpu"), indexing="ij")
    return y, left + right, F.gelu(x)


@torch.utils._device.set_device("meta")
def everything_there():
    return torch.zeros(2)


def decorated(x):
    return everything_there().device, x + 1


@pytest.mark.parametrize("fn", [made_on_the_cpu, made_nowhere, made_in_a_mode, made_in_a_function])
def test_devices(fn):
    check_both(fn, arg())


def device_and_a_break(x):
    with torch.device("meta"):
        y = torch.zeros(3)
        print(y.device, depth())
        z = torch.ones(4)
    return y.device, z.device, torch.ones(2) + x.sum()


def default_changes(x):
    before = torch.get_default_device()
    torch.set_default_device("meta")
    y = torch.zeros(3)
    torch.set_default_device(None)
    return y.device, before, torch.ones(2) + x.sum()


@pytest.mark.parametrize("fn", [device_and_a_break, default_changes, decorated])
def test_devices_and_breaks(fn, capsys):
    check(fn, arg(), graphs=None, breaks=None, options=EAGER)
    check(fn, arg(), graphs=None, breaks=None, rtol=1e-4, atol=1e-5)
    assert depth() == 0


def test_a_mode_around_the_call_is_asked_by_python():
    """Frames that begin in a mode are left to Python."""

    def story(wrap):
        names = []
        run = wrap(lambda x: (x + 1).sin())
        yield run(arg())
        with Log(names):
            made = run(arg())
        yield made, names
        yield run(arg()), names

    events = check_same(story)
    assert not [e for e in events if isinstance(e, GraphBroke)]


def test_an_object_that_overrides_in_a_mode():
    class Scalar:
        def __init__(self, value):
            self.value = value

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func(*(a.value if isinstance(a, Scalar) else a for a in args), **(kwargs or {})) + 10

    def run(x):
        names = []
        with Log(names), Double():
            y = torch.add(x, Scalar(2.0))
            z = x + Scalar(3.0)
        return y, z, names

    check_both(run, arg())


def test_sizes_vary():
    def story(wrap):
        def run(x):
            with Log([]), Double():
                return (x + x.shape[0]).sum(0) * x.size(0)

        run = wrap(run)
        for count in (3, 5, 7):
            yield attempt(run, torch.ones(count, 4))

    check_same(story, fullgraph=True)
