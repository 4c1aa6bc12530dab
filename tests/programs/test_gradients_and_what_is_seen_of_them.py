"""Gradients that no tangent is part of, hooks on views, views of custom functions, modes that Python changes, inference tensors: as in eager, or by name."""

import random

import pytest
import torch

import dynacompile
from dynacompile.capture.overlap import have_common_element
from dynacompile.events import GraphBroke
from tests.custom_functions import Dirty, DirtyOther, Marked, MaybeNone, Same, Zeros
from tests.scenarios import attempt, check_same

LEVELS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])


def computed():
    """A leaf, and a tensor that was computed of it."""
    leaf = torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_()
    return leaf, leaf * 1


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.linspace(-1, 2, 6).reshape(2, 3).clone()


def kind(error):
    known = ("modified by an inplace operation", "a second time", "is a view and", "nference tensor", "detached in-place", "leaf Variable", "some elements of")
    return next((k for k in known if k in str(error)), str(error))


def zeros_apart(x, y):
    return x / (y.abs() + 1), x**0


def zeros_of_an_output(x, y):
    t = x * y
    return t, t**0


def zeros_of_a_view(x, y):
    return x.view(-1), x.view(-1) ** 0


def a_constant_for_an_output(x, y):
    t = y - x
    a, _ = MaybeNone.apply(x, t)
    return t, a


def a_constant_past_an_output(x, y):
    t = x.exp()
    m = torch.minimum(t, t)
    a, _ = MaybeNone.apply(m, t + m)
    return a, m, t**2


CONSTANTS = (zeros_apart, zeros_of_an_output, zeros_of_a_view, a_constant_for_an_output, a_constant_past_an_output)


@LEVELS
@pytest.mark.parametrize("frame", CONSTANTS, ids=lambda f: f.__name__)
def test_gradients_that_are_computed_of_no_tangent(frame, backend):
    """They come where the autograd node runs that gives them, and only there."""

    def story(wrap):
        run = wrap(frame)
        for used in ([0], [1], [0, 1], [1, 0]):
            (first, x), (second, y) = computed(), computed()
            out = run(x, y)
            yield [t.requires_grad for t in out]
            sum((out[i] * (i + 2)).sum() for i in used).backward()
            yield first.grad, second.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_write_to_what_a_node_keeps_that_gives_zeros(backend):
    def frame(x):
        t = x + x
        return t**0, t

    def story(wrap):
        leaf, x = computed()
        a, b = wrap(frame)(x)
        b.detach().zero_()
        yield kind(attempt((a.sum() + b.sum()).backward)), leaf.grad

    check_same(story, backend=backend)


def double(grad):
    return grad * 2


def hooked_view(x):
    v = x.t()
    v.register_hook(double)
    return (v,)


def view_of_a_hooked_one(x):
    v = x.t()
    v.register_hook(double)
    return (v.t(),)


def hooked_view_of_an_output(x):
    y = x * 2
    v = y.t()
    v.register_hook(double)
    return v, y


@LEVELS
@pytest.mark.parametrize("frame", [hooked_view, view_of_a_hooked_one, hooked_view_of_an_output], ids=lambda f: f.__name__)
def test_hooks_of_views_that_are_returned(frame, backend):
    def story(wrap):
        leaf, x = computed()
        sum((t * (i + 2)).sum() for i, t in enumerate(wrap(frame)(x))).backward()
        yield leaf.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_hook_where_no_gradient_comes(backend):
    def frame(x):
        a, b = MaybeNone.apply(x, x)
        b.register_hook(double)
        return a.view(-1)

    def story(wrap):
        leaf, x = computed()
        yield str(attempt(lambda: wrap(frame)(x).sum().backward())), leaf.grad

    check_same(story, backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("frame", [lambda x: Same.apply(x * 2), lambda x: (x * 2).unbind()[0]], ids=["custom function", "one of several results"])
def test_results_that_autograd_lets_nobody_write(frame, backend):
    def story(wrap):
        leaf, x = computed()
        out = wrap(frame)(x)
        yield kind(attempt(out.add_, 1))
        out.sum().backward()
        yield leaf.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_write_after_a_break_to_what_a_custom_function_returned(backend):
    def frame(x):
        s = Same.apply(x * 2)
        s[0].mul_(2)
        return s

    def story(wrap):
        _, x = computed()
        yield kind(attempt(wrap(frame), x))

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_saved_input_that_is_detached_in_place(backend):
    def frame(x):
        y = x.abs().sqrt()
        x.detach_()
        return y

    def story(wrap):
        _, x = computed()
        yield kind(attempt(wrap(frame)(x).sum().backward))

    check_same(story, backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("is_changed", [False, True], ids=["as it is", "transposed"])
def test_a_custom_function_takes_an_input_that_was_detached_in_place(is_changed, backend):
    def frame(x, y):
        z, _ = Zeros.apply(x, y)
        x.detach_()
        return z

    def story(wrap):
        _, x = computed()
        _, y = computed()
        z = wrap(frame)(x, y)
        if is_changed:
            x.t_()
        yield kind(attempt(z.sum().backward))

    check_same(story, backend=backend, least=None)


def false_in_true(x):
    with torch.inference_mode(), torch.inference_mode(False):
        y = x.sin()
    return y


def gradients_in_inference(x):
    with torch.inference_mode(), torch.set_grad_enabled(True):
        y = Dirty.apply(x)
    return y


def parts_in_inference(x):
    y = x + x
    with torch.inference_mode():
        torch.stack(y.unbind())
    return y


@LEVELS
@pytest.mark.parametrize("frame", [false_in_true, gradients_in_inference, parts_in_inference], ids=lambda f: f.__name__)
def test_modes_that_blocks_change_within_others(frame, backend):
    def story(wrap):
        leaf = torch.ones(2, 3, requires_grad=True)
        out = attempt(wrap(frame), leaf)
        yield kind(out) if isinstance(out, BaseException) else (out.is_inference(), out.requires_grad, out)
        yield torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    check_same(story, backend=backend, least=None)


@LEVELS
def test_an_inference_tensor_of_which_something_is_computed(backend):
    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        wrap(lambda x, c: x / (c.abs() + 1))(x, made_in_inference_mode()).sum().backward()
        yield x.grad

    check_same(story, backend=backend)


@LEVELS
def test_an_inference_tensor_that_a_block_writes(backend):
    def frame(c):
        with torch.inference_mode():
            c.mul_(3)
        return c

    def story(wrap):
        yield wrap(frame)(made_in_inference_mode())

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_view_made_without_gradients_that_is_told_to_require_them(backend):
    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        with torch.no_grad():
            y = wrap(lambda x: x.view(3, 2).requires_grad_())(x)
        (y * 2).sum().backward()
        yield y.grad, x.grad

    check_same(story, backend=backend, least=None)


def view_of_a_leaf(x):
    leaf = x.detach().requires_grad_()
    return leaf[:], leaf


def written_detached(x):
    t = x.detach()
    return DirtyOther.apply(t, x)[0], t


@LEVELS
@pytest.mark.parametrize("frame", [view_of_a_leaf, written_detached], ids=lambda f: f.__name__)
def test_outputs_of_shared_memory_with_gradients_of_their_own(frame, backend):
    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        out = wrap(frame)(x)
        yield [t.requires_grad for t in out]
        (out[0] * 2).sum().backward()
        yield x.grad

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_leaf_inside_that_is_all_an_output_leads_to(backend):
    def frame(x):
        leaf = x.detach().requires_grad_()
        y = leaf * leaf
        leaf.detach().add_(1)
        return y

    def story(wrap):
        _, x = computed()
        yield kind(attempt(wrap(frame)(x).sum().backward))

    check_same(story, backend=backend, least=None)


@LEVELS
def test_strides_of_an_input_that_is_written_by_an_operation_with_others(backend):
    def frame(x):
        x.index_add_(0, torch.tensor([0]), x[:1] * 2)
        return x * 1, x.t().view(-1)

    def story(wrap):
        x = torch.linspace(-1, 2, 6).view(3, 2).t()
        yield wrap(frame)(x), x

    check_same(story, backend=backend, least=None)


REFUSED = {
    "itself as the source": lambda x: x[:1].index_add_(0, torch.tensor([0]), x[:1]),
    "other sizes": lambda x: torch.neg(x, out=x[0]),
    "sums of bools": lambda x: (x > 0).cumsum_(0),
}


@LEVELS
@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_kernels_refuse(name, backend):
    def story(wrap):
        x = torch.ones(2, 3)
        yield kind(attempt(wrap(REFUSED[name]), x)), x

    check_same(story, backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("write", [lambda x: x.t()[1:].add_(x.t()[:-1]), lambda x: x[:, 1:].mul_(x[:, :-1])], ids=["columns", "rows"])
def test_writes_whose_result_depends_on_the_order_of_elements(write, backend):
    def story(wrap):
        x = torch.arange(1.0, 13.0).view(4, 3)
        wrap(write)(x)
        yield x

    check_same(story, backend=backend, least=None)


def test_interleaved_parts_are_compiled():
    def frame(x):
        x[:, ::2].add_(x[:, 1::2])
        return x * 1

    def story(wrap):
        x = torch.arange(12.0).view(3, 4)
        yield wrap(frame)(x), x

    events = check_same(story, backend="aot_eager")
    assert not [e for e in events if isinstance(e, GraphBroke)]


def places(tensor):
    """The places in memory of a tensor's elements."""
    return set(torch.arange(60).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist())


def test_common_elements_are_found():
    rng = random.Random(0)
    whole = torch.empty(60)
    for _ in range(300):
        parts = []
        while len(parts) < 2:
            size = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            stride = [rng.choice([0, 1, 2, 3, 5, 6, 12]) for _ in size]
            last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
            if last < 60:
                parts.append(whole.as_strided(size, stride, rng.randint(0, 59 - last)))
        assert have_common_element(*parts) == bool(places(parts[0]) & places(parts[1]))


@LEVELS
def test_data_that_is_transposed_in_place_is_no_view(backend):
    def frame(x):
        v = x.data
        v.t_()
        return v

    def story(wrap):
        x = torch.ones(2, 3)
        v = wrap(frame)(x)
        yield v, v._is_view(), v.data_ptr() == x.data_ptr()

    check_same(story, backend=backend, least=None)


@LEVELS
def test_a_part_whose_whole_is_written_without_gradients(backend):
    def frame(x):
        part = x.unbind()[0]
        with torch.no_grad():
            x[0].zero_()
        return part * 1

    def story(wrap):
        _, x = computed()
        yield kind(attempt(wrap(frame), x)), x.detach()

    check_same(story, backend=backend, least=None)


def test_a_result_that_is_not_differentiable_beside_one_that_is():
    def story(wrap):
        x = torch.ones(2, 3, requires_grad=True)
        t = x.detach().clone()
        a, sign = wrap(lambda x, t: Marked.apply(x, t))(x, t)
        yield a.requires_grad, sign.requires_grad
        a.sum().backward()
        yield x.grad

    check_same(story, backend="aot_eager")


def test_hooked_views_break_by_name():
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(view_of_a_hooked_one, backend="aot_eager", isolate_recompiles=True)
        with pytest.warns(RuntimeWarning, match="hooks"):
            compiled(computed()[1])
    finally:
        end()
    assert {e.code for e in events if isinstance(e, GraphBroke)} <= {"hooks"}


def detached_after(x, view, mode):
    with mode:
        v = view(x * 2)
    v.detach_()
    return v * 3


def written_by_a_function(x, view, mode):
    with mode:
        v = view(x * 2)
    return DirtyOther.apply(v, x)[0] * 3


def looked_at(x, view, mode):
    with mode:
        v = view(x * 2)
    print(end="")
    return v._is_view(), v._base is not None, v.requires_grad, v.is_leaf, v + 1


VIEWS_OF_WHOLES = {
    "transposed": torch.Tensor.t,
    "part": lambda y: y[:1],
    "one of several": lambda y: y.unbind()[0],
    "view of a view": lambda y: y.view(-1)[1:],
    "detached": torch.Tensor.detach,
    "no view": torch.Tensor.clone,
}


@LEVELS
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("view", VIEWS_OF_WHOLES.values(), ids=VIEWS_OF_WHOLES.keys())
@pytest.mark.parametrize("frame", [detached_after, written_by_a_function, looked_at], ids=lambda f: f.__name__)
def test_views_that_outlive_their_whole_at_a_break(frame, view, mode, backend):
    """What Python goes on with is a view to autograd where it is one in eager, also where the whole is not needed any more."""

    def story(wrap):
        leaf, x = computed()
        out = attempt(lambda: wrap(lambda t: frame(t, view, mode()))(x))
        yield str(out) if isinstance(out, Exception) else out
        if isinstance(out, torch.Tensor) and out.requires_grad:
            out.sum().backward()
        yield leaf.grad

    check_same(story, backend=backend, least=None)


def kept_result(x):
    y = x.exp()
    y.t_()
    return y


def result_of_a_write(x):
    y = x.clone()
    y.relu_()
    y.unsqueeze_(0)
    return y


def kept_operand(x):
    y = x.detach() + 1
    z = y * x
    y.unsqueeze_(0).squeeze_(0)
    return z


def not_kept(x):
    y = x + 1
    y.t_()
    return y


def detached_since(x):
    y = x.detach() + 1
    y.t_()
    print(end="")
    y.detach_()
    return y.t() * x


@LEVELS
@pytest.mark.parametrize("frame", [kept_result, result_of_a_write, kept_operand, not_kept, detached_since], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*compiled in name only")
def test_metadata_that_changes_in_place_counts_as_a_write(frame, backend):
    """What a node keeps for its gradient must not change, nor its sizes and strides."""

    def story(wrap):
        leaf, x = computed()
        out = wrap(frame)(x)
        yield out._version, kind(attempt(out.sum().backward)), leaf.grad

    check_same(story, backend=backend, least=None)


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_a_tensor_that_was_no_view_is_none_where_its_metadata_changed_before_a_break(backend):
    def frame(x):
        y = x + 1
        y.t_()
        print(end="")
        y.detach_()
        return y

    check_same(lambda wrap: iter([wrap(frame)(computed()[1])]), backend=backend, least=None)


@LEVELS
@pytest.mark.parametrize("computed_of_it", [lambda v: v * 1, torch.clone, torch.sin, lambda v: v.view(-1) * 2], ids=["product", "clone", "sine", "view"])
def test_views_of_what_was_computed_from_a_view_that_is_returned(computed_of_it, backend):
    """On the way to what was computed autograd comes by no view of it, though by the view that it was computed from."""

    def frame(x):
        v = x.view(6)
        y = computed_of_it(v)
        whole, part = y.view(6), y[:1]
        part.zero_()
        whole.mul_(2)
        return part, whole, v

    def story(wrap):
        x = torch.linspace(-1, 2, 6).requires_grad_()
        out = wrap(frame)(x)
        yield out
        (out[0].sum() + (out[1] * 3).sum() + out[2].sum()).backward()
        yield x.grad

    check_same(story, backend=backend, least=None)
