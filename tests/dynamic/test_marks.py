"""mark_dynamic, maybe_mark_dynamic, mark_static, and `dynamic={...}`."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.errors import ConfigError, MarkViolated
from dynacompile.events import Compiled


def entries(fn, calls, **options):
    """Entries made by the calls."""
    made = []
    end = dynacompile.subscribe(made.append)
    try:
        compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, **options)
        for args in calls:
            torch.testing.assert_close(compiled(*args), fn(*args))
    finally:
        end()
    return sum(isinstance(e, Compiled) for e in made)


def marked(n, mark=dynacompile.mark_dynamic, dim=0, **options):
    x = torch.randn(n, 3)
    mark(x, dim, **options)
    return x


def double(x):
    return x * 2


def four(x):
    y = x + 1
    return y * 2 if x.size(0) == 4 else y


def test_a_mark_makes_one_entry():
    assert entries(double, [(marked(n),) for n in (4, 5, 6)]) == 1
    assert entries(double, [(marked(n, dim=-2),) for n in (4, 5, 6)]) == 1
    assert entries(double, [(marked(4),), (torch.randn(5, 3),)]) == 1


def test_torchs_own_marks_count():
    x = torch.randn(4, 3)
    x._dynamo_dynamic_indices = {0}
    assert entries(double, [(x,), (torch.randn(5, 3),), (torch.randn(6, 3),)]) == 1


def test_sizes_0_and_1_may_be_constants():
    assert entries(double, [(marked(n, min=0),) for n in (4, 1, 0, 5)]) == 2
    assert entries(double, [(marked(n),) for n in (1, 4, 5)]) == 2


def test_a_weak_mark_allows_constants():
    mark = dynacompile.maybe_mark_dynamic
    assert entries(double, [(marked(n, mark),) for n in (4, 5, 6)]) == 1
    assert entries(four, [(marked(n, mark),) for n in (4, 5, 6)]) == 2


def test_static_dimensions_stay_so():
    assert entries(double, [(marked(n, dynacompile.mark_static),) for n in (4, 5, 6)]) == 3
    x = [torch.randn(n, n) for n in (4, 5, 6)]
    for t in x:
        dynacompile.mark_static(t)
    assert entries(double, [(t,) for t in x], dynamic=True) == 3


def test_a_mark_is_not_heeded_where_nothing_is_dynamic():
    assert entries(double, [(marked(n),) for n in (4, 5, 6)], dynamic=False) == 3


def test_a_violated_mark_names_the_line():
    line = four.__code__.co_firstlineno + 2
    with pytest.raises(MarkViolated, match=rf"x\.size\(0\) is marked as dynamic, but .* only where it is 4\n  at .*test_marks.py:{line} in four"):
        dynacompile.compile(four, backend="eager", isolate_recompiles=True)(marked(4))


def test_a_violated_range():
    with pytest.raises(MarkViolated, match=r"is >= 2, the mark says >= 1|!= 4|only where"):
        dynacompile.compile(lambda x: x * 2 if x.size(0) > 3 else x, backend="eager", isolate_recompiles=True)(marked(5, min=1, max=9))
    with pytest.raises(MarkViolated, match="is 12 here, which is above its max, 9"):
        dynacompile.compile(double, backend="eager", isolate_recompiles=True)(marked(12, min=1, max=9))


def of_batch(batch, mask=None):
    return batch[0] * 2 + batch[1].sum() if mask is None else batch[0] * mask


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ({"btch.0": {0: {}}}, r"of_batch: dynamic names 'btch\.0', and no tensor .* called so: did you mean 'batch\.0' or 'batch\.1'\?"),
        ({"batch.7": {0: {}}}, r"'batch\.7', and no tensor .* did you mean"),
        ({"batch.0": {2: {}}}, r"dimension 2 of 'batch\.0', which has 2 dimensions"),
        ({"batch[1]": {1: {}}}, r"dimension 1 of 'batch\[1\]', which has 1 dimension$"),
    ],
)
def test_a_name_that_no_tensor_has_is_a_warning_with_the_nearest(dynamic, said):
    with pytest.warns(RuntimeWarning, match=said):
        dynacompile.compile(of_batch, backend="eager", isolate_recompiles=True, dynamic=dynamic)((torch.randn(4, 3), torch.randn(5)))


@pytest.mark.parametrize("dynamic", [{"batch.0": {0: {}}, "batch[1]": {0: {}}}, {"mask": {0: {}}}, {"batch": {0: {}}}])
def test_names_that_tensors_or_arguments_have_are_no_warning(dynamic, recwarn):
    dynacompile.compile(of_batch, backend="eager", isolate_recompiles=True, dynamic=dynamic)((torch.randn(4, 3), torch.randn(5)))
    assert not [w for w in recwarn if "dynamic names" in str(w.message)]


def test_names_of_frames_after_a_break_are_no_warning(recwarn):
    def after(x):
        dynacompile.graph_break()
        inner = x * 2
        dynacompile.graph_break()
        return inner + 1

    dynacompile.compile(after, backend="eager", isolate_recompiles=True, dynamic={"inner": {0: {}}})(torch.randn(4))
    assert not [w for w in recwarn if "dynamic names" in str(w.message)]


def test_declared():
    shapes = {"x": {0: {"min": 1, "max": 64}}}
    assert entries(double, [(torch.randn(n, 3),) for n in (4, 5, 1, 6)], dynamic=shapes) == 1
    assert entries(double, [(torch.randn(n, 3),) for n in (4, 5, 6)], dynamic={"x": {"0": None}}) == 1
    assert entries(double, [(torch.randn(4, n),) for n in (4, 5, 6)], dynamic={"x": {"0": None}}) == 2
    with pytest.raises(MarkViolated, match="only where it is 4"):
        dynacompile.compile(four, backend="eager", dynamic=shapes, isolate_recompiles=True)(torch.randn(4, 3))


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ("yes", "dynamic must be"),
        ({}, "names no tensor"),
        ({"x": {}}, "names no dimension"),
        ({"x": 3}, "must map dimensions"),
        ({"x": {"first": None}}, "no dimension"),
        ({"x": {0: {"minimum": 3}}}, "did you mean 'min'"),
        ({"x": {0: {"min": 5, "max": 3}}}, "min <= max"),
        ({"x": {0: {"min": -1}}}, ">= 0"),
    ],
)
def test_wrong_declarations(dynamic, said):
    with pytest.raises(ConfigError, match=said):
        dynacompile.compile(double, dynamic=dynamic)


def test_wrong_marks():
    with pytest.raises(IndexError, match="dimension 2"):
        marked(3, dim=2)
    with pytest.raises(ConfigError, match="min <= max"):
        marked(3, min=4, max=2)
