"""What autograd finds after a compiled call is what it finds after eager's: what is kept, freed, dirty, an inference tensor, a leaf."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynacompile
from dynacompile.events import Compiled
from tests.custom_functions import Dirty, MaybeNone, Same
from tests.scenarios import attempt, check_same

LEVELS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])


def computed(requires_grad=True):
    """A leaf, and a tensor that was computed of it."""
    leaf = torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_(requires_grad)
    return leaf, leaf * 1


def kind(error):
    """Whether an error is about a write before the backward pass, or about a second one."""
    text = str(error)
    return next((k for k in ("modified by an inplace operation", "a second time", "leaf Variable", "nference tensor") if k in text), type(error).__name__)


class Partial(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


@LEVELS
def test_a_dirty_input(backend):
    def story(wrap):
        leaf, h = computed()
        z = wrap(lambda h: Dirty.apply(h))(h)
        yield z is h, h
        h.sum().backward()
        yield leaf.grad

    check_same(story, backend=backend)


@LEVELS
def test_a_function_that_is_given_none(backend):
    def story(wrap):
        x, y = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
        a, b = wrap(lambda x, y: MaybeNone.apply(x, y))(x, y)
        a.sum().backward()
        yield x.grad, y.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_function_that_returns_its_input(backend):
    def story(wrap):
        leaf, h = computed()
        wrap(lambda h: Same.apply(h))(h).sum().backward()
        yield leaf.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_gradient_that_a_function_never_gives(backend):
    def story(wrap):
        (first, x), (second, y) = computed(), computed()
        wrap(lambda x, y: Partial.apply(x, y))(x, y).sum().backward()
        yield first.grad, second.grad

    check_same(story, backend=backend)


@LEVELS
def test_leaves_made_of_inputs(backend):
    def detached(x):
        return x.detach().requires_grad_()

    def viewed(x):
        return x.view(3, 2).requires_grad_()

    def used(x):
        y = x.detach().requires_grad_()
        return y, (y * 3).sum()

    def story(wrap):
        for frame in (detached, viewed, used):
            x = torch.ones(2, 3)
            out = wrap(frame)(x)
            y = out[0] if isinstance(out, tuple) else out
            yield y.requires_grad, y.is_leaf, x.requires_grad
            (out[1] if isinstance(out, tuple) else (y * 2).sum()).backward()
            yield y.grad

    check_same(story, backend=backend, least=None)


def in_inference(x):
    with torch.inference_mode():
        y = x * 4
        a, b = (x + 1).split(1)
    return y, y.view(-1), a, x.view(-1), x * 2


def enabled_inside(x):
    with torch.inference_mode(), torch.enable_grad():
        y = x * 4
    return (y,)


def used_outside(x):
    with torch.inference_mode():
        y = x * 4
    return (y * x,)


def written_outside(x):
    with torch.inference_mode():
        y = x * 4
    return (y.add_(1),)


@LEVELS
@pytest.mark.parametrize("frame", [in_inference, enabled_inside, used_outside, written_outside], ids=lambda f: f.__name__)
@pytest.mark.parametrize("outer", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
def test_inference_mode_inside(frame, outer, backend):
    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        with outer():
            out = attempt(wrap(frame), x)
        if isinstance(out, BaseException):
            yield kind(out)
        else:
            yield [(t.is_inference(), t.requires_grad, t.is_leaf) for t in out], [t.detach().clone() for t in out]
        yield torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    check_same(story, backend=backend, least=None)


DETACHED = {
    "alone": lambda t, u: (t.detach(),),
    "data": lambda t, u: (t.data,),
    "a part": lambda t, u: (t[0].detach(),),
    "beside itself": lambda t, u: (t.detach(), t),
    "beside its view": lambda t, u: (t.detach(), t.detach().view(-1)),
    "beside one of inside": lambda t, u: (t.detach(), u),
    "written": lambda t, u: (t.detach().add_(1), t),
}


@LEVELS
@pytest.mark.parametrize("results", DETACHED)
def test_an_inference_tensor_may_be_written_where_it_was_detached_behind_the_mode(results, backend):
    def frame(x):
        with torch.inference_mode():
            t = torch.minimum(x, x)
            u = t.detach()
        return DETACHED[results](t, u)

    def story(wrap):
        out = wrap(frame)(torch.ones(2, 3, requires_grad=True))
        for t in out:
            yield t.is_inference(), kind(attempt(lambda t=t: t._version)), kind(attempt(t.add_, 1)), kind(attempt(lambda t=t: t._version))
        with torch.inference_mode():
            yield [t * 1 for t in out]

    check_same(story, backend=backend, least=None)


@LEVELS
def test_gradients_enabled_inside_of_inference_mode(backend):
    def frame(x):
        with torch.enable_grad():
            return x * 4

    def story(wrap):
        x = torch.ones(2, requires_grad=True)
        with torch.inference_mode():
            y = wrap(frame)(x)
        yield y.requires_grad, y.is_inference()

    check_same(story, backend=backend, least=None)


KEPT = {
    "result that eager keeps": lambda x: x.exp(),
    "result that eager does not keep": lambda x: (x + 1) * 2,
    "result and one computed of another": lambda x: ((x + 1).exp(), x * 2),
    "softmax of other strides": lambda x: x.t().contiguous().t().softmax(-1),
}


def write(t):
    with torch.no_grad():
        t.mul_(2)


@LEVELS
@pytest.mark.parametrize("change", [lambda t: t.unsqueeze_(0), lambda t: t.t_()], ids=["unsqueeze_", "t_"])
def test_what_eager_keeps_another_tensor_of_may_change_its_metadata(change, backend):
    def story(wrap):
        for frame in (lambda x, y: (x.detach() * x, y * 2), lambda x, y: (x.view(-1) * y.view(-1), y.exp()), lambda x, y: (x.view_as(x) * x, y)):
            leaf, y = torch.arange(6.0).requires_grad_(), torch.arange(6.0).view(2, 3).requires_grad_()
            x = (leaf * 1).view(2, 3) * 1
            out = wrap(frame)(x, y)
            change(x)
            found = attempt(torch.autograd.grad, sum(t.sum() for t in out), (leaf, y), allow_unused=True)
            yield found if isinstance(found, tuple) else kind(found)

    check_same(story, backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("what", ["result", "input"])
@pytest.mark.parametrize("change", [write, lambda t: t.unsqueeze_(0), lambda t: t.t_()], ids=["values", "unsqueeze_", "t_"])
def test_changes_before_the_backward_pass(name, what, change, backend):
    def story(wrap):
        leaf, h = computed()
        out = wrap(KEPT[name])(h)
        first = out if isinstance(out, torch.Tensor) else out[0]
        change(first if what == "result" else h)
        yield kind(attempt(first.sum().backward)), leaf.grad

    check_same(story, backend=backend)


@LEVELS
def test_changes_of_an_input_without_gradients_whose_value_alone_was_used(backend):
    def story(wrap):
        run = wrap(lambda x, c: x * (c + 1))
        for change in (lambda c: c.unsqueeze_(0), lambda c: c.t_(), lambda c: c.zero_()):
            x, c = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
            y = run(x, c)
            change(c)
            yield kind(attempt(y.sum().backward)), x.grad

    check_same(story, backend=backend)


@LEVELS
def test_a_backward_pass_through_one_of_two_results(backend):
    def apart(x, y):
        return (x * x).sum(), (y.exp() * y).sum()

    def joined(x, y):
        z = x * y
        return z.sum(), (z * z).sum()

    def story(wrap):
        for frame in (apart, joined, lambda x, y: ((x + 1).sum(), (y * y).sum())):
            for order in ((0, 1), (1, 0), (0, 0), (1, 1)):
                x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
                out = wrap(frame)(x, y)
                yield [kind(attempt(out[i].backward)) for i in order], x.grad, y.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_results_that_nobody_differentiates_add_no_nan(backend):
    """Their derivatives are infinite, and zero times infinity is NaN."""

    def frame(x):
        return x.abs().sqrt(), x * 2, x.log().sum()

    def story(wrap):
        run = wrap(frame)
        for used in ([1], [0, 1], [1, 2], [0, 1, 2]):
            x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
            out = run(x)
            sum(out[i].sum() for i in used).backward()
            yield x.grad

    check_same(story, backend=backend)


@LEVELS
def test_a_gradient_of_zeros_is_none_where_nothing_came(backend):
    def story(wrap):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        a, b = wrap(lambda x, y: (x**0, y * 2))(x, y)
        b.sum().backward()
        yield x.grad, y.grad
        a.sum().backward()
        yield x.grad

    check_same(story, backend=backend)


@LEVELS
def test_versions_of_written_inputs(backend):
    def frame(x, y):
        x.add_(1)
        x[0].mul_(2)
        y.mul_(x)
        return x * 1

    def story(wrap):
        x, (_, y) = torch.ones(2, 3), computed()
        wrap(frame)(x, y)
        yield x, y, x._version, y._version

    check_same(story, backend=backend)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.norm = 0, nn.BatchNorm1d(3)

    def forward(self, x):
        self.calls += 1
        return self.norm(x)


def transposed(x):
    return x.detach().t_()


def transposed_and_written(x):
    return x.detach().t_().add_(1)


def twice_detached(x):
    view = x.detach().detach()
    return view.unsqueeze_(0).mul_(2)


def of_a_result(x):
    y = x * 2
    return y, y.detach().t_()


@LEVELS
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad], ids=lambda m: m.__name__)
@pytest.mark.parametrize("frame", [transposed, transposed_and_written, twice_detached, of_a_result], ids=lambda f: f.__name__)
def test_metadata_that_changes_in_place_counts_as_a_write(frame, mode, backend):
    def story(wrap):
        for requires_grad in (False, True):
            x = torch.ones(2, 3, requires_grad=requires_grad)
            with mode():
                made = wrap(frame)(x)
            yield x._version, [t._version for t in (made if isinstance(made, tuple) else (made,))], made

    check_same(story, backend=backend)


@LEVELS
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpointed_function_changes_is_changed_again(reentrant, backend):
    def story(wrap):
        torch.manual_seed(0)
        module = Counting()
        run = wrap(lambda x: checkpoint(module, x, use_reentrant=reentrant).sum())
        x = torch.randn(4, 3, requires_grad=True)
        for _ in range(2):
            run(x).backward()
        yield module.calls, module.norm.num_batches_tracked.clone(), module.norm.running_var.clone(), x.grad

    check_same(story, backend=backend, least=None)


CHECKED = {
    "one_hot, too large": (lambda i: F.one_hot(i, 3), lambda: (torch.tensor([0, 3]),)),
    "one_hot, negative": (lambda i: F.one_hot(i, 3) * 2.0, lambda: (torch.tensor([0, -1]),)),
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, torch.ones(2)), lambda: (torch.tensor([2.0, 0.5]),)),
    "binary_cross_entropy of NaN": (lambda p: F.binary_cross_entropy(p, torch.ones(2)), lambda: (torch.tensor([float("nan"), 0.5]),)),
    "binary_cross_entropy, targets": (lambda t: F.binary_cross_entropy(torch.full((2,), 0.5), t), lambda: (torch.tensor([2.0, 0.5]),)),
    "quantile": (lambda x, q: torch.quantile(x, q), lambda: (torch.arange(4.0), torch.tensor(1.1))),
    "quantile, a method": (lambda x, q: x.nanquantile(q), lambda: (torch.arange(4.0), torch.tensor(-0.1))),
    "an index whose result is not used": (lambda x, i: (x[i], x * 2)[1], lambda: (torch.arange(4.0), torch.tensor([9]))),
    "a write whose result is not used": (lambda x, i: (x.clone().index_fill_(0, i, 1.0), x * 2)[1], lambda: (torch.arange(4.0), torch.tensor([9]))),
    "targets of nll_loss": (lambda x, t: F.nll_loss(x, t), lambda: (torch.zeros(2, 3), torch.tensor([0, 3]))),
}


@LEVELS
@pytest.mark.parametrize("name", CHECKED)
def test_values_that_eager_refuses(name, backend):
    frame, make = CHECKED[name]

    def story(wrap):
        run = wrap(frame)
        yield attempt(run, *make())
        yield attempt(run, *make())

    events = check_same(story, least=None, backend=backend)
    assert any(isinstance(e, Compiled) and e.ops > 0 for e in events)


OVERLAPPING = {
    "expand": lambda c: c.expand(2, 3),
    "broadcast_to": lambda c: torch.broadcast_to(c, (2, 3)),
    "unfold": lambda c: c.unfold(0, 2, 1),
    "as_strided": lambda c: c.as_strided((2, 2), (1, 1)),
    "row of an expanded": lambda c: c.expand(2, 3)[0],
    "diagonal": lambda c: c.expand(3, 3).diagonal(),
}
WRITES = {
    "zero_": lambda v: v.zero_(),
    "fill_": lambda v: v.fill_(5),
    "fill_ of a tensor": lambda v: v.fill_(torch.tensor(2.0)),
    "add_": lambda v: v.add_(1e-3),
    "copy_": lambda v: v.copy_(v * 2),
    "out=": lambda v: torch.neg(v, out=v),
}


@LEVELS
@pytest.mark.parametrize("view", OVERLAPPING)
def test_writes_through_views_of_which_elements_are_one(view, backend):
    def story(wrap):
        for write in WRITES.values():

            def frame(c, write=write):
                v = OVERLAPPING[view](c)
                write(v)
                return v * 1

            for start in (1.0, 1e8, float("inf")):
                c = torch.full((3,), start)
                out = attempt(wrap(frame), c)
                yield str(out)[:60] if isinstance(out, BaseException) else out, c, c._version

    check_same(story, backend=backend, least=None, recompile_limit=20)


def test_as_strided_beyond_its_operand_is_left_to_torch():
    """How much memory there is behind a tensor is not guarded."""
    whole = torch.arange(12.0)
    compiled = dynacompile.compile(lambda x: x.as_strided((2, 2), (4, 1)) * 2, isolate_recompiles=True)
    assert compiled(whole[:3]).tolist() == [[0, 2], [8, 10]]
    with pytest.raises(RuntimeError, match="setStorage"):
        compiled(torch.arange(3.0))


def test_an_exception_inside_of_inference_mode_leaves_it():
    def frame(x, i):
        with torch.inference_mode():
            return x[i] * 2

    compiled = dynacompile.compile(frame, backend="eager", isolate_recompiles=True)
    try:
        compiled(torch.arange(3.0), torch.tensor([7]))
    except IndexError:
        assert not torch.is_inference_mode_enabled()
    else:
        pytest.fail("the index is out of bounds")
    assert compiled(torch.arange(3.0), torch.tensor([1])).is_inference()


def writes_through_a_view(x):
    view = (x * 1)[0]
    view.exp_()
    return (view,)


def writes_a_number_through_a_view(x):
    y = x * 1
    y[0] = 1
    return (y,)


def writes_a_view_of_a_copy(x):
    y = (x * 1).t().contiguous().t()
    y.relu_()
    return (y,)


def writes_a_view_of_an_input(x):
    view = x[..., 1:]
    view.sigmoid_()
    return (view,)


WRITERS = (writes_through_a_view, writes_a_number_through_a_view, writes_a_view_of_a_copy, writes_a_view_of_an_input)


@pytest.mark.parametrize("frame", WRITERS)
@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_what_a_write_to_a_view_keeps(frame, backend):
    """Autograd's node of the write holds the operation's own node: it is freed by a backward pass, and what that keeps may not be written."""

    def story(wrap):
        for is_written in (True, False):
            leaf, h = computed()
            (result,) = wrap(frame)(h)
            if is_written:
                with torch.no_grad():
                    h.mul_(2)
                    result.mul_(2)
            yield kind(attempt(lambda result=result: result.sum().backward()))
            yield None if is_written else kind(attempt(lambda result=result: result.sum().backward()))
            yield leaf.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_the_gradient_of_an_input_that_is_a_view_and_was_written_before_its_use(backend):
    """A view that was written has a new node, by which the call's results and the caller find its gradient."""

    def frame(x):
        with torch.no_grad():
            x.exp_()
        return x * x

    def story(wrap):
        x = (torch.linspace(-1, 2, 6).requires_grad_() * 1).view(2, 3)
        result = wrap(frame)(x)
        yield torch.autograd.grad(result.sum(), [x], allow_unused=True)[0]
        yield x._version

    check_same(story, backend=backend)


LAID = {
    "a result that is kept": lambda t: t.softmax(-1).relu_(),
    "one that is not": lambda t: (t + 1).mul_(2),
    "one that is kept, written detached": lambda t: (y := t.exp(), y.detach().add_(2))[0],
    "one that another keeps": lambda t: (y := t.sigmoid(), y * y, y.add_(2))[1],
}


@LEVELS
@pytest.mark.parametrize("name", LAID)
def test_results_with_strides_of_their_own_are_written(name, backend):
    """A graph lays them out as eager's, by a copy: in eager it is one tensor that is kept and written."""

    def story(wrap):
        x = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_()
        y = wrap(lambda x: LAID[name](x.t().contiguous().t()))(x)
        yield kind(attempt((y * y).sum().backward)), x.grad

    check_same(story, backend=backend, least=None)


def each_of_its_own(x, y):
    return x * 2, y.sin()


def written_of_its_own(x, y):
    x.mul_(2)
    return y.sin(), x


def three_of_two(x, y):
    return x * 2, y.sin(), y + x.detach()


@LEVELS
@pytest.mark.parametrize("frame", [each_of_its_own, written_of_its_own, three_of_two], ids=lambda f: f.__name__)
def test_what_led_to_the_input_of_another_result_is_not_run(frame, backend):
    """It may raise, as where the program has written what it keeps, and it is freed."""

    def story(wrap):
        for chosen in range(3 if frame is three_of_two else 2):
            for is_broken in (False, True):
                leaves = [torch.linspace(-1, 2, 6).requires_grad_() for _ in range(2)]
                x, y = (leaf * 1 for leaf in leaves)
                x, before = x.exp(), x
                if is_broken:
                    x = before.sin()
                    before.add_(1)
                results = wrap(frame)(x, y)
                yield attempt(lambda: results[chosen].sum().backward()) is None, [leaf.grad for leaf in leaves]  # noqa: B023 - called at once
                for result in results:
                    yield kind(attempt(lambda: result.sum().backward())), [leaf.grad for leaf in leaves]  # noqa: B023

    check_same(story, backend=backend)


@LEVELS
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_written_without_a_version(backend, momentum):
    """As eager's norms write them: a backward pass of one call is none the worse for another call."""
    layers = [nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU()) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    x, found = torch.randn(6, 4), []
    for layer, call in zip(layers, (layers[0], dynacompile.compile(layers[1], isolate_recompiles=True, backend=backend)), strict=True):
        for _ in range(2):
            before = layer[1].running_mean._version, layer[1].running_var._version
            first, second = call(x), call(x * 2)
            assert (layer[1].running_mean._version, layer[1].running_var._version) == before
            (first.square().sum() + second.sum()).backward()
        found.append([*(p.grad for p in layer.parameters()), *layer.buffers()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
