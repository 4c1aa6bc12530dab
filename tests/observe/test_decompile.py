"""decompile(): the residual code of entries as Python text."""

from __future__ import annotations

import ast

import pytest
import torch

import dynacompile


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x, *rest, k=3):
        self.calls += 1
        y = self.linear(x)
        y = y + 1 if y.sum() > 0 else y - 1
        with torch.no_grad():
            print(end="")
            z = y * 2
        return {"y": y, "z": [z, y]}, k


def appends(x, items):
    items.append(x * 2)
    items[0] = x
    for i in range(3):
        x = x + i
        print(end="")
    return lambda v: v + x


def raises(x):
    raise ValueError(x.sum())


def text_after(call, target):
    dynacompile.reset()
    compiled = dynacompile.compile(target, backend="eager")
    call(compiled)
    return dynacompile.decompile(compiled)


def test_a_whole_frame():
    text = text_after(lambda f: f(torch.ones(2)), lambda x: x + 1)
    assert text.splitlines()[1:] == ["def lambda_(x):", "    # graph: 1 ops; inputs x", "    t1 = graph(x)", "    return t1[0]"]


def test_branches_blocks_and_resume_functions_are_python():
    text = text_after(lambda f: f(torch.ones(2, 4)), Model())
    ast.parse(text)
    assert "1 + self.calls" in text and ".calls = t" in text
    for part in ("if t", "try:", "except BaseException as error:", "breaks: [data-dependent-branch]", "return forward_from_line_", "whole"):
        assert part in text, part


def test_effects_and_raises():
    text = text_after(lambda f: f(torch.ones(2), []), appends)
    ast.parse(text)
    assert "[slice(None, None)] = [" in text and "(end='')" in text
    assert "raise ValueError(" in text_after(lambda f: pytest.raises(ValueError, f, torch.ones(2)), raises)


def test_what_has_no_entry_says_so():
    dynacompile.reset()
    assert "no entry" in dynacompile.decompile(raises)
    with pytest.raises(dynacompile.exc.ConfigError):
        dynacompile.decompile(3)
