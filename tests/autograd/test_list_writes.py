"""Operations that write lists of tensors in place: gradients through views, refused backwards, and inputs of any layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped
from tests.checking import check

OPTIONS = {"reference": True}
AS_ATEN = {"backend": "aot_eager"}


def through_a_view(a):
    a = a * 1
    v = a[:, ::2]
    torch._foreach_sub_([v], [v.flip(0) * 0.5])
    torch._foreach_addcmul_([v], [torch.ones_like(v)], [torch.full_like(v, 0.2)], 0.5)
    return a * 2, v


def through_what_it_is_a_view_of(a):
    a = a * 1
    v, w = a[:, 1:], a[1]
    torch._foreach_mul_([a], [0.5])
    torch._foreach_sigmoid_([a])
    return v.clone(), w + 1


def through_both(a):
    a = a * 1
    v = a.unsqueeze(0)
    torch._foreach_lerp_([v], [torch.ones_like(v)], 0.3)
    torch._foreach_sub_([a], [v[0].flip(0) * 0.5])
    return a, v.clone()


def of_parts_without_history(a):
    with torch.no_grad():
        torch._foreach_mul_(list(a.unbind()), 0.5)
        torch._foreach_add_([a[0], a[1]], [a[1], a[0] * 2])


@pytest.mark.parametrize("form", [of_parts_without_history, through_a_view, through_what_it_is_a_view_of, through_both], ids=lambda f: f.__name__)
def test_gradients_see_writes_to_members(form):
    check(form, torch.randn(4, 6, requires_grad=True), options=AS_ATEN)


@pytest.mark.parametrize("name", ["add_", "mul_", "copy_", "maximum_", "lerp_", "addcmul_"])
def test_a_member_reads_what_an_earlier_one_has_written(name):
    write = getattr(torch, f"_foreach_{name}")
    more = {"lerp_": (0.3,)}.get(name, ())

    def form(a, b, c):
        lists = [[b, c, a]] * (2 if name == "addcmul_" else 1)
        write([a, b, c], *lists, *more)
        return a * 2, b * 2, c * 2

    check(form, *(torch.randn(4, 6) for _ in "abc"), options=AS_ATEN)


@pytest.mark.parametrize("write", [
    lambda a, b: torch._foreach_add_([a, b], [b, a]),
    lambda a, b: torch._foreach_add_([a, b], [b, a[:, 1:2]], alpha=2),
    lambda a, b: torch._foreach_lerp_([a, b], [torch.ones(4, 6), a], 0.3),
    lambda a, b: torch._foreach_sub_([a[:2], b[:2]], a.view(-1)[0]),
    lambda a, b: torch._foreach_sub_([a[:2], a[2:], b], [b[:2], b[2:], a]),
], ids=["sums", "a part", "an average", "a number", "views"])  # fmt: skip
def test_gradients_of_a_member_that_reads_what_an_earlier_one_has_written_are_those_of_eager(write):
    """Eager computes with what was written, and gives the gradients of what was there before."""

    def form(a, b):
        a, b = a * 1, b * 1
        write(a, b)
        return a * 2, b * 3

    check(form, *(torch.randn(4, 6, requires_grad=True) for _ in "ab"), options=AS_ATEN, graphs=None, breaks=None)


@pytest.mark.parametrize("part", [lambda a: a[1], lambda a: a.diagonal(), lambda a: a.t()[1:], lambda a: a.view(-1)], ids=["row", "diagonal", "block", "all"])
@pytest.mark.parametrize("write", [lambda v: v.add_(0.1), lambda v: torch._foreach_mul_([v], 0.5), lambda v: v.sin_()], ids=["sum", "list", "sine"])
def test_a_view_that_one_operation_has_written_twice_is_written_again(part, write):
    """Autograd gives such a view the history of the first write alone, until its next write."""

    def form(a):
        a = a * 1
        v = part(a)
        torch._foreach_mul_([v, v], 0.5)
        write(v)
        return v * 2, a * 3

    check(form, torch.randn(4, 4, requires_grad=True), options=AS_ATEN, graphs=None, breaks=None)


def test_a_graph_writes_a_view_that_one_operation_has_written_twice_in_a_later_call():
    def form(v):
        v.mul_(3)
        return v * 2

    compiled = dynacompile.compile(form, isolate_recompiles=True, **AS_ATEN)
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        for is_written_twice in (False, True):
            grads = []
            for call in (form, compiled):
                x = torch.ones(4, 4, requires_grad=True)
                a = x * 1
                v = a[1]
                if is_written_twice:
                    torch._foreach_mul_([v, v], 0.5)
                grads += torch.autograd.grad(call(v).sum() + (a * 3).sum(), x)
            torch.testing.assert_close(*grads)
    finally:
        end()
    assert sum(isinstance(e, Compiled) for e in events) == 1


def test_a_view_that_one_operation_has_written_twice_is_read():
    def form(a):
        a = a * 1
        v = a[1]
        torch._foreach_mul_([v, v], 0.5)
        return v * 2

    check(form, torch.randn(4, 4, requires_grad=True), options=AS_ATEN, graphs=None, breaks=None)


@pytest.mark.parametrize("count", [1, 9], ids=["few", "many"])
@pytest.mark.parametrize("name", ["maximum_", "add_", "copy_", "addcmul_"])
def test_a_member_has_no_place_for_what_would_be_written_to_it(name, count):
    def form(a, b):
        getattr(torch, f"_foreach_{name}")([a.clone()[:, :1] for _ in range(count)], *[[b] * count] * (2 if name == "addcmul_" else 1))
        return a

    for call in (form, dynacompile.compile(form, isolate_recompiles=True, **AS_ATEN)):
        with pytest.raises(RuntimeError, match=r"shape|size"):
            call(torch.randn(1, 6), torch.randn(1, 6))


def test_products_of_members_that_earlier_ones_have_written_are_not_differentiated():
    def form(a, b):
        a, b = a * 1, b * 1
        torch._foreach_mul_([a, b], [b, a])
        return a.sum() + b.sum()

    for call in (form, dynacompile.compile(form, isolate_recompiles=True, **AS_ATEN)):
        result = call(*(torch.ones(3, requires_grad=True) for _ in "ab"))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


@pytest.mark.parametrize("write", [
    lambda b: torch._foreach_mul_([b], 2.0),
    lambda b: torch._foreach_add_([b[0], b[1]], [torch.ones(3)] * 2),
    lambda b: torch._foreach_zero_([b]),
], ids=["number", "views", "zero"])  # fmt: skip
@pytest.mark.parametrize("records", [True, False], ids=["enable_grad", "no_grad"])
def test_a_backward_that_reads_what_was_written_over_is_refused(write, records):
    def form(a):
        b = a * 1
        c = b.sin()
        with torch.set_grad_enabled(records):
            write(b)
        return c.sum()

    for call in (form, dynacompile.compile(form, isolate_recompiles=True, options=OPTIONS)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(torch.randn(2, 3, requires_grad=True)).backward()


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "columns": lambda: torch.randn(4, 11)[:, 2:8],
    "steps": lambda: torch.randn(4, 12)[:, ::2],
    "rows of a transposed one": lambda: torch.randn(9, 4)[:6].t(),
    "one row with a gap": lambda: torch.randn(1, 11)[:, 2:8],
    "one column": lambda: torch.randn(8, 3).t()[:, :1],
}
WRITES: dict[str, Callable] = {
    "mul": lambda x: x.mul_(0.5),
    "add in an expression": lambda x: x.add_(x.sin()),
    "foreach mul": lambda x: torch._foreach_mul_([x], 0.5),
    "foreach copy": lambda x: torch._foreach_copy_([x], [torch.ones(x.shape)]),
    "foreach addcdiv": lambda x: torch._foreach_addcdiv_([x], [x.cos()], [x.abs() + 1], 0.1),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_with_gaps_are_written_in_a_graph(layout, write):
    given = LAYOUTS[layout]()
    whole = torch.zeros(given.untyped_storage().nbytes() // 4)
    wanted = whole.as_strided(given.shape, given.stride(), given.storage_offset()).copy_(given)
    gaps = given.as_strided(whole.shape, (1,), 0).clone()
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        dynacompile.compile(WRITES[write], isolate_recompiles=True, options=OPTIONS)(given)
    finally:
        end()
    WRITES[write](wanted)
    torch.testing.assert_close(given, wanted)
    assert not any(isinstance(e, FrameSkipped) for e in events)
    changed = given.as_strided(whole.shape, (1,), 0) != gaps
    assert changed.sum() <= given.numel(), "what lies between stays"
