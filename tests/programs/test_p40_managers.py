"""Context managers of torch, as blocks and as decorators, with breaks inside of them; checkpointing; facts of process groups."""

import contextlib
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import dynacompile
from tests.checking import check
from tests.scenarios import attempt, check_same

EAGER = {"backend": "eager"}
LAYERS = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
AUTOCAST = torch.autocast("cpu", torch.bfloat16)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def attended():
    return torch.linspace(-2, 3, 64).reshape(1, 2, 4, 8).requires_grad_()


def inference_block(x):
    y = x + 1
    with torch.inference_mode():
        z = y * 2
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return z.shape, inside, y * 3, torch.is_inference_mode_enabled()


@torch.inference_mode()
def inferred(x):
    return x.sin() + 1


def inference_decorator(x):
    return inferred(x.detach()) * 1


def inference_off(x):
    with torch.inference_mode(False):
        return x * 2


@torch.autocast("cpu", dtype=torch.bfloat16)
def mixed(x):
    return x @ x.T


def autocast_decorator(x):
    return mixed(x).float() + mixed(x * 2).float()


def autocast_object(x):
    with AUTOCAST:
        y = x @ x.T
    return y, x @ x.T


def autocast_decorates_inside(x):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner(a):
        return a @ a.T

    return inner(x), x @ x.T


@torch.profiler.record_function("outer")
def recorded(x):
    return x * 2


def record_decorator(x):
    with torch.profiler.record_function("inner"):
        return recorded(x) + 1


def record_kept(x):
    r = torch.profiler.record_function("kept")
    print(end="")
    return x * 2, type(r), r.name, r.args


def record_named(x):
    with torch.profiler.record_function("a", args="b") as r:
        y = x * 2
        print(end="")
        y = y + 1
    with r:
        y = y * 2
    return y, r.name, r.args, r is None


def record_stored(x):
    kept = {"r": torch.profiler.record_function("stored")}
    print(end="")
    with kept["r"] as r:
        y = x * 2
    return y, r is kept["r"], r.name


@pytest.mark.parametrize("fn", [record_kept, record_named, record_stored])
def test_objects_of_record_function(fn):
    check(fn, arg(), graphs=None, breaks=None, options=EAGER)


@pytest.mark.parametrize(
    "fn", [inference_block, inference_decorator, inference_off, autocast_decorator, autocast_object, autocast_decorates_inside, record_decorator]
)
def test_managers(fn):
    check(fn, arg(), options=EAGER)


def one_backend(q):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
    return y + F.scaled_dot_product_attention(q, q, q, is_causal=True)


def two_backends(q):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("fn", [one_backend, two_backends])
def test_attention_backends(fn):
    before = torch._C._get_flash_sdp_enabled()
    check(fn, attended(), options=EAGER)
    assert torch._C._get_flash_sdp_enabled() == before


def test_attention_backends_are_facts_of_the_graph():
    def story(wrap):
        attend = wrap(lambda q: F.scaled_dot_product_attention(q, q, q))
        yield attend(attended())
        with sdpa_kernel(SDPBackend.MATH):
            yield attend(attended())
        yield attend(attended())

    events = check_same(story, least=2)
    assert sum(type(e).__name__ == "Recompiled" for e in events) == 1


def broken_attention(q):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
        dynacompile.graph_break()
        flags = torch._C._get_flash_sdp_enabled()
        z = y * 2
    return z, flags, torch._C._get_flash_sdp_enabled()


def test_breaks_inside_attention_blocks():
    check(broken_attention, attended(), graphs=2, breaks=1, options=EAGER)


def plain(x):
    return checkpoint(lambda a: a.sin().cos(), x, use_reentrant=False, preserve_rng_state=False, determinism_check="none")


def reentrant(x):
    return checkpoint(LAYERS, x, use_reentrant=True)


def reentrant_without_gradients(x):
    return checkpoint(LAYERS, x.detach(), use_reentrant=True) * x


def reentrant_nested(x):
    return checkpoint(lambda pair: pair[0] * pair[1], (x, x), use_reentrant=True) + x


def in_segments(x):
    return checkpoint_sequential(LAYERS, 2, x, use_reentrant=False)


def selective(x):
    keep = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    return checkpoint(lambda a: a.sin().cos(), x, use_reentrant=False, context_fn=keep)


def dropped(x):
    return checkpoint(lambda a: F.dropout(a.sin(), 0.5), x, use_reentrant=True)


@pytest.mark.parametrize("fn", [plain, reentrant, reentrant_without_gradients, reentrant_nested, in_segments, selective, dropped])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointing(fn):
    check(fn, arg(), options=EAGER)


def test_checkpoints_without_use_reentrant_warn_and_are_followed():
    """They are reentrant. Python's filter is that of a user, who sees each of the warnings once."""

    def unsaid(x):
        return checkpoint(LAYERS, x) + checkpoint(torch.sin, x.detach())

    def seen(call):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            x = arg()
            call(x).sum().backward()
        return x.grad, [str(w.message) for w in told]

    expected, wanted = seen(unsaid)
    found, told = seen(dynacompile.compile(unsaid, **EAGER, fullgraph=True))
    assert torch.equal(found, expected)
    assert told == wanted and len(told) == 3


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def facts(x):
    return x * dist.get_world_size() + dist.get_rank() if dist.is_available() and dist.is_initialized() else x


def test_facts_of_the_process_group(world):
    check(facts, arg(), options=EAGER)


def without_saved_hooks(x):
    @torch.autograd.graph.disable_saved_tensors_hooks("in a function")
    def decorated(y):
        return y.exp() * y, message()

    with torch.autograd.graph.disable_saved_tensors_hooks("outer"):
        y = x.sin() * x
        told = [message(), torch._C._autograd._saved_tensors_hooks_is_enabled()]
        with torch.autograd.graph.disable_saved_tensors_hooks("inner"):
            y, told[2:] = y.tanh() * x, [message()]
        return y, *decorated(x), told, message(), checkpoint(torch.sin, x, use_reentrant=True)


message = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message


def with_a_break(x):
    with torch.autograd.graph.disable_saved_tensors_hooks("outer"):
        y = x.sin()
        print(end="")
        y = y * x, message()
    return y, message()


def hooks_where_there_are_to_be_none(x):
    with torch.autograd.graph.disable_saved_tensors_hooks("none"):
        return checkpoint(torch.sin, x, use_reentrant=False)


def test_hooks_of_saved_tensors_that_are_disabled():
    check(without_saved_hooks, arg(), options={**EAGER, "fullgraph": True})

    def story(wrap):
        for fn in (without_saved_hooks, with_a_break, hooks_where_there_are_to_be_none):
            call = wrap(fn)
            for hooks in (contextlib.nullcontext(), torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone), contextlib.nullcontext()):
                x = arg()
                with hooks:
                    out = attempt(call, x)
                yield str(out) if isinstance(out, BaseException) else out
                yield message()
                if not isinstance(out, BaseException):
                    out[0].sum().backward() if isinstance(out[0], torch.Tensor) else out[0][0].sum().backward()
                    yield x.grad

    check_same(story)


def test_facts_without_a_process_group():
    check(facts, arg(), graphs=0, options=EAGER)


def test_functional_collectives(world):
    def story(wrap):
        reduced = wrap(lambda x: functional.all_reduce(x * 2, "sum", [0]) + 1)
        gathered = wrap(lambda x: functional.all_gather_tensor(x * 2, 0, [0]) + functional.reduce_scatter_tensor(x, "sum", 0, [0]))
        for _ in range(2):
            yield reduced(arg().detach()) + 0, gathered(arg().detach()) + 0

    events = check_same(story, least=2)
    assert not any(type(e).__name__ == "GraphBroke" for e in events)


def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def test_a_collective_in_place_is_in_the_graph(world):
    check(in_place, arg().detach(), graphs=1, options=EAGER)


def into_a_list(x):
    y = x * 2
    dist.all_gather([y], y.clone())
    return y + 1


def test_collectives_into_lists_break_by_name(world):
    events = check(into_a_list, arg().detach(), graphs=2, breaks=1, options=EAGER)
    assert [e.code for e in events if type(e).__name__ == "GraphBroke"] == ["collective"]
