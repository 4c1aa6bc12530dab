"""Operators that write an operand and count no version of it: what the frame reads afterwards is the new value, and what it read before stays the old one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.ir.fakes import fake_mode


def by_scaler(x):
    found = torch.full((), 0.0)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, torch.ones(()))
    return x + 1 if not found.item() else x - 1


def by_many(ts):
    torch._foreach_neg_(ts)
    return ts[0] + 1 if (ts[0] > 0).all() else ts[0] - 1


def by_statistics(x, mean, variance):
    F.batch_norm(x, mean, variance, training=True)
    return x + 1 if (mean > 0.05).all() else x - 1


def by_data(x):
    y = x * 2
    y.data.neg_()
    return x + 1 if (y > 0).all() else x - 1


def by_data_after_a_like_write(x, y):
    """The second write is one that capture has seen, of a tensor that looks the same."""
    y.neg_()
    read = x.item()
    x.data.neg_()
    return read, y * 2


SCALED = torch.tensor([1.0, float("inf")])


@pytest.mark.parametrize("function, args", [
    (by_scaler, (SCALED,)),
    (by_many, ([torch.ones(2) for _ in range(9)],)),
    (by_statistics, (torch.ones(4, 3), torch.zeros(3), torch.ones(3))),
    (by_data, (torch.ones(3),)),
    (by_data_after_a_like_write, (torch.tensor(1.0), torch.tensor(2.0))),
], ids=["the check of a gradient scaler", "an operation over a list", "running statistics", ".data", ".data after a like write"])  # fmt: skip
@pytest.mark.parametrize("grad", [True, False], ids=["with gradients", "no_grad"])
def test_what_was_written_is_read_anew_and_what_was_read_stays(function, args, grad):
    compiled = dynacompile.compile(function, backend="eager", isolate_recompiles=True)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            ours, eagers = copy.deepcopy(args), copy.deepcopy(args)
            torch.testing.assert_close(compiled(*ours), function(*eagers), equal_nan=True)
            torch.testing.assert_close(ours, eagers, equal_nan=True)


def test_a_text_shows_the_statistics_of_before():
    norm = torch.nn.BatchNorm1d(3)

    def text(x):
        before = f"{norm.running_mean}"
        norm(x)
        return x + 1, before

    compiled = dynacompile.compile(text, backend="eager", isolate_recompiles=True)
    for _ in range(3):
        shown = str(norm.running_mean)
        assert compiled(torch.ones(4, 3))[1] == shown


def test_a_text_shows_an_input_that_another_one_writes_later():
    def text(x, y):
        before = f"{x}"
        y.add_(1)
        return before

    compiled = dynacompile.compile(text, backend="eager", isolate_recompiles=True)
    x = torch.ones(3)
    assert compiled(x, torch.ones(3)) == "tensor([1., 1., 1.])"
    assert compiled(x, x.data) == "tensor([1., 1., 1.])"


def test_a_guard_on_an_input_runs_no_code_of_the_user():
    class Own:
        asked = 0

        def __gt__(self, other: object) -> Any:
            Own.asked += 1
            return torch.tensor(True)

    def branch(x, y):
        return y + 1 if (x > 0).all() else y - 1

    compiled = dynacompile.compile(branch, backend="eager", isolate_recompiles=True)
    compiled(torch.ones(3), torch.ones(3))
    compiled(-torch.ones(3), torch.ones(3))
    compiled(Own(), torch.ones(3))
    assert Own.asked == 1


def test_a_number_that_is_read_alone_is_no_graph():
    def read(x, log):
        log.append(float(x))

    compiled = dynacompile.compile(read, backend="eager", isolate_recompiles=True)
    log: list[float] = []
    compiled(torch.tensor(2.0), log)
    assert log == [2.0]
    assert "graph(" not in dynacompile.decompile(compiled)


@pytest.mark.parametrize("write", [
    lambda a, b: torch._foreach_add_([a, b], 1),
    lambda a, b: torch._fused_sgd_([a], [b], [], weight_decay=0, momentum=0, lr=1, dampening=0, nesterov=False, maximize=False, is_first_step=True),
    lambda a, b: torch.add(b, 1, out=a),
    lambda a, b: F.batch_norm(torch.ones(4, 3), a, b, training=True),
    lambda a, b: a.add_(b),
], ids=["foreach", "fused", "out", "batch norm", "in place"])  # fmt: skip
def test_fakes_know_what_operators_write(write):
    mode = fake_mode()
    with mode, torch.no_grad():
        a, b = torch.ones(3), torch.ones(3)
        mode.touched.clear()
        write(a, b)
    assert a.untyped_storage()._cdata in mode.touched


@pytest.mark.parametrize("first", [0, 1], ids=["a normal tensor first", "an inference tensor first"])
def test_data_that_is_written_in_inference_mode(first):
    def write(x):
        x.data.add_(1)
        return x + 1

    compiled = dynacompile.compile(write, backend="eager", isolate_recompiles=True)
    normal = torch.ones(3)
    with torch.inference_mode():
        tensors = [normal, torch.ones(3)]
        for tensor in tensors[first:] + tensors[:first]:
            assert compiled(tensor).tolist() == [3.0] * 3
    assert normal._version == 0


def test_views_that_a_rule_for_fakes_composes_write_nothing():
    """A window over no elements, laid out as a row: torch's rule makes it by a primitive view, whose schema says that it writes."""

    def windows(x):
        empty = x.clone().unfold(0, 0, 1)
        copied = empty.clone()
        copied.zero_()
        return empty.reshape(-1), copied

    compiled = dynacompile.compile(windows, fullgraph=True)
    for got, expected in zip(compiled(torch.rand(4, 5)), windows(torch.rand(4, 5)), strict=True):
        assert got.shape == expected.shape
