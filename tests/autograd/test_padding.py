"""Which saved results get padded rows, and what that does to views of them. The fakes need no GPU."""

from __future__ import annotations

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from dynacompile.autograd.padding import pad_saved

aten = torch.ops.aten


class Graph:
    def __init__(self):
        self.mode, self.graph = FakeTensorMode(), torch.fx.Graph()

    def input(self, *size, dtype=torch.bfloat16, device="cuda:0"):
        node = self.graph.placeholder(f"arg_{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(size, dtype=dtype, device=device)
        return node

    def call(self, op, *args):
        node = self.graph.call_function(op, args)
        with self.mode:
            node.meta["val"] = op(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    def product(self, columns=1001, **kwargs):
        return self.call(aten.mm.default, self.input(2048, 64, **kwargs), self.input(64, columns, **kwargs))


def strides(*nodes):
    return [n.meta["val"].stride() for n in nodes]


def test_rows_and_views_of_them():
    g = Graph()
    y = g.product()
    v = g.call(aten.view.default, y, [2, 1024, 1001])
    t, f = g.call(aten.t.default, y), g.call(aten._to_copy.default, v)
    pad_saved([y], [])
    assert strides(y, v, t) == [(1024, 1), (1024 * 1024, 1024, 1), (1, 1024)]
    assert strides(f) == [(1024 * 1001, 1001, 1)], "what is computed keeps its own geometry"


def test_others_stay():
    for kwargs in ({"columns": 1000}, {"dtype": torch.float32}, {"device": "cpu"}, {"columns": 17}):
        g = Graph()
        y = g.product(**kwargs)
        pad_saved([y], [])
        assert strides(y) == [(kwargs.get("columns", 1001), 1)]


def test_what_the_user_sees_stays():
    g = Graph()
    y = g.product()
    v = g.call(aten.view.default, y, [2, 1024, 1001])
    pad_saved([y], [v])
    assert strides(y, v) == [(1001, 1), (1024 * 1001, 1001, 1)]


def test_views_across_rows_and_named_strides_keep_it():
    for op, args in ((aten.view.default, [-1]), (aten.as_strided.default, ([2, 3], [3, 1]))):
        g = Graph()
        y = g.product()
        g.call(op, y, *(args if op is aten.as_strided.default else [args]))
        pad_saved([y], [])
        assert strides(y) == [(1001, 1)]
