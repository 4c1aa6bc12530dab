"""Frames that are too long to trace, and operations whose results are None, several, or sized by values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dynacompile
from dynacompile.errors import ConfigError, Unsupported
from dynacompile.events import Compiled, FrameSkipped


def many_operations(x, n):
    for _ in range(n):
        x = x + 1
    return x


def many_instructions(x, n):
    total = 0
    for i in range(n):
        total += i % 3
    return x + total


@pytest.mark.parametrize(("fn", "code"), [(many_operations, "too-many-operations"), (many_instructions, "too-long")], ids=["operations", "instructions"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "symbolic"])
def test_a_frame_beyond_the_limit_is_left_to_python(fn, code, dynamic):
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(fn, backend="eager", dynamic=dynamic, isolate_recompiles=True, options={"trace_limit": 50})
    with pytest.warns(RuntimeWarning, match=code):
        torch.testing.assert_close(compiled(torch.ones(2), 2000), fn(torch.ones(2), 2000))
    end()
    assert [e.reason.partition("]")[0] for e in events if isinstance(e, FrameSkipped)] == [f"[{code}"]
    assert not any(isinstance(e, Compiled) for e in events)
    dynacompile.reset()
    with pytest.raises(Unsupported, match=code):
        dynacompile.compile(fn, backend="eager", fullgraph=True, options={"trace_limit": 50})(torch.ones(2), 2000)


def test_functions_that_a_long_frame_calls_are_compiled():
    def layer(x):
        return x.sin() + 1

    def deep(x):
        for _ in range(40):
            x = layer(x)
        return x

    compiled = dynacompile.compile(deep, backend="eager", isolate_recompiles=True, options={"trace_limit": 50})
    events = []
    end = dynacompile.subscribe(events.append)
    with pytest.warns(RuntimeWarning, match="too-many-operations"):
        torch.testing.assert_close(compiled(torch.ones(2)), deep(torch.ones(2)))
    end()
    assert [e.frame.partition(" ")[0].rpartition(".")[2] for e in events if isinstance(e, Compiled)] == ["layer"]


def test_no_limit_and_a_wrong_one():
    compiled = dynacompile.compile(many_operations, backend="eager", fullgraph=True, options={"trace_limit": 0})
    torch.testing.assert_close(compiled(torch.ones(2), 300), torch.full((2,), 301.0))
    with pytest.raises(ConfigError, match="trace_limit"):
        dynacompile.compile(many_operations, options={"trace_limit": -1})


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("weights", [False, True], ids=["without-weights", "with-weights"])
def test_an_operation_that_gives_none(backend, weights):
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)

    def whole(x):
        return attention(x, x, x, need_weights=weights)

    def inside(x):
        a = attention
        out, seen = torch._native_multi_head_attention(
            x, x, x, 8, 2, a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias, need_weights=weights
        )
        return out, seen, seen is None

    with torch.no_grad():
        for fn in (whole, inside):
            got, expected = dynacompile.compile(fn, backend=backend)(x), fn(x)
            torch.testing.assert_close(got[0], expected[0], atol=1e-5, rtol=1e-5)
            assert (got[1] is None) == (expected[1] is None) and got[2:] == expected[2:]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.round().unique(return_inverse=True)[1],
        lambda x: x.round().unique(return_inverse=True, return_counts=True),
        lambda x: [t + 1 for t in torch.unique_consecutive(x.round(), return_counts=True)],
        lambda x: (x.unique(return_inverse=True)[1] + 1, x[x > 0].sum()),
        lambda x: [t * 2 for t in torch.unique(x.round().reshape(-1, 1), return_inverse=True, return_counts=True, dim=0)],
        lambda x: torch.zeros(3) if x.unique(return_counts=True)[1].dtype is torch.int64 else torch.ones(3),
        lambda x: torch.stack(torch.where(x > 0)),
    ],
    ids=["inverse", "all", "consecutive", "inverse-and-mask", "rows", "type-of-counts", "where"],
)
def test_results_of_operations_whose_sizes_depend_on_values(fn, backend):
    compiled = dynacompile.compile(fn, backend=backend, options={"capture_values": True})
    for x in (torch.tensor([1.0, -2.0, 1.0, 3.0]), torch.tensor([-1.0, -1.0, 2.0]), torch.tensor([0.5])):
        torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float16], ids=str)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x + n,
        lambda x, n: x.new_full((2,), n),
        lambda x, n: x.masked_fill(x == 0, n),
        lambda x, n: x.clamp(max=n),
        lambda x, n: torch.add(x, x, alpha=n),
        lambda x, n: torch.where(x == 0, n, x),
    ],
    ids=["add", "full", "masked-fill", "clamp", "alpha", "where"],
)
def test_numbers_that_a_dtype_does_not_hold(fn, dtype, backend):
    def outcome(call, n):
        try:
            return call(torch.ones(2, dtype=dtype), n).tolist()
        except (RuntimeError, OverflowError) as error:
            return type(error)

    compiled = dynacompile.compile(fn, backend=backend, isolate_recompiles=True)
    for n in (3, 4, 300, 70000, 2**33, 2**62, -1):
        assert outcome(compiled, n) == outcome(fn, n), n


def test_calls_inside_of_a_mode_are_told_of_once():
    class Passes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(lambda x: x.sin() + 1, backend="eager", isolate_recompiles=True)
    with Passes():
        for _ in range(5):
            compiled(torch.ones(2))
    assert len([e for e in events if isinstance(e, FrameSkipped) and "[active-mode]" in e.reason]) == 1
    compiled(torch.ones(2))
    end()
    assert len([e for e in events if isinstance(e, Compiled)]) == 1  # outside of the mode it is compiled
