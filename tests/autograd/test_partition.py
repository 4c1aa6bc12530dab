"""What is saved for backward, by count and bytes; the cut against brute force; the passes."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from dynacompile.autograd import differentiate
from dynacompile.autograd.facts import has_effect
from dynacompile.autograd.mincut import FlowNetwork
from dynacompile.autograd.passes import simplify
from tests.autograd.programs import PROGRAMS, rand
from tests.autograd.recording import record
from tests.autograd.running import compare, env_of

aten = torch.ops.aten


def pair_of(fn, *args, **options):
    return differentiate(*record(fn, args)[:2], env_of(**options))


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def saved(pair):
    """(sizes of the saved values, inputs saved)."""
    outputs = list(pair.forward.graph.nodes)[-1].args[0]
    return sorted(tuple(outputs[p].meta["val"].shape) for p in pair.contract.saved_positions), pair.contract.saved_inputs


def test_pointwise_chain_saves_its_input_only():
    pair = pair_of(lambda x: (F.gelu(x) * x.sigmoid()).tanh().exp(), rand(64, 64, grad=True))
    assert saved(pair) == ([], (0,))
    assert pair.facts["saved_bytes"] == 0 and pair.facts["uncut_bytes"] >= 2 * 64 * 64 * 4


def test_layer_norm_saves_statistics_and_not_the_normalised_input():
    pair = pair_of(lambda x, w, b: F.layer_norm(x, (64,), w, b), rand(32, 64, grad=True), rand(64, grad=True), rand(64, grad=True))
    sizes, inputs = saved(pair)
    assert sizes == [(32, 1), (32, 1)] and inputs == (0, 1)
    assert pair.facts["saved_bytes"] == 2 * 32 * 4


def test_gelu_between_linears_saves_what_matmuls_read():
    args = [rand(32, 16, grad=True), rand(64, 16, grad=True), rand(64, grad=True), rand(16, 64, grad=True)]
    pair = pair_of(lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b)), v), *args)
    assert saved(pair) == ([(32, 64), (32, 64), (64,)], (0, 1, 3)), "the sum with the bias is made again"
    less = pair_of(lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b)), v), *args, memory_budget=0.5)
    assert saved(less)[0] == [(32, 64), (64,)]


def test_cross_entropy_saves_logits_and_row_statistics():
    pair = pair_of(lambda x, w, t: F.cross_entropy(x @ w, t), rand(32, 8, grad=True), rand(8, 100, grad=True), torch.zeros(32, dtype=torch.int64))
    sizes, _ = saved(pair)
    assert sizes.count((32, 100)) == 1
    assert all(s == (32, 100) or torch.Size(s).numel() <= 32 for s in sizes)
    assert not {aten.scatter.value, aten.scatter.src} & set(targets(pair.backward))


def test_random_numbers_are_drawn_once():
    pair = pair_of(lambda x: F.dropout(x.exp(), 0.5), rand(64, 8, grad=True), memory_budget=0.0)
    drawn = [t for t in targets(pair.forward) if torch.Tag.nondeterministic_seeded in getattr(t, "tags", ())]
    assert len(drawn) == 1
    assert not [t for t in targets(pair.backward) if torch.Tag.nondeterministic_seeded in getattr(t, "tags", ())]


def test_residual_stream_is_saved_rather_than_summed_again():
    def net(x, *weights):
        for w in weights:
            x = x + F.linear(F.layer_norm(x, (8,)), w)
        return x

    pair = pair_of(net, rand(16, 8, grad=True), *[rand(8, 8, grad=True) for _ in range(6)])
    additions = [t for t in targets(pair.backward) if t is aten.addmm.default]
    assert not additions
    adds = sum(n.target is aten.add.Tensor and n.meta["val"].shape == (16, 8) for n in pair.backward.graph.nodes)
    assert adds <= 6  # one per layer: where a gradient meets the residual's


@pytest.mark.parametrize("name", ["gpt_block", "conv_batch_norm_train", "language_loss", "attention_by_hand"])
def test_budget_moves_the_cut(name):
    program = PROGRAMS[name]
    args = list(program.leaves())
    kept = [pair_of(program.fn, *args, memory_budget=b).facts["saved_bytes"] for b in (1.0, 0.6, 0.3, 0.0)]
    assert kept == sorted(kept, reverse=True)
    assert kept[3] < kept[0]
    full = pair_of(program.fn, *args).facts
    assert full["saved_bytes"] <= full["uncut_bytes"] * 1.01


def test_no_expand_or_clone_around_linear():
    pair = pair_of(lambda x, w, b: F.linear(x, w, b), rand(4, 6, 8, grad=True), rand(5, 8, grad=True), rand(5, grad=True))
    assert targets(pair.forward) == [aten.view.default, aten.t.default, aten.addmm.default, aten.view.default]
    assert not {aten.clone.default, aten.expand.default, aten._unsafe_view.default} & set(targets(pair.backward))


def test_sites_reach_forward_and_backward():
    def fn(x, w):
        h = x @ w
        return h.tanh()

    line = fn.__code__.co_firstlineno
    pair = pair_of(fn, rand(3, 4, grad=True), rand(4, 4, grad=True))
    where = {m: {n.target: n.meta["site"].line for n in getattr(pair, m).graph.nodes if n.op == "call_function"} for m in ("forward", "backward")}
    assert where["forward"][aten.mm.default] == line + 1 and where["forward"][aten.tanh.default] == line + 2
    assert where["backward"][aten.mm.default] == line + 1 and where["backward"][aten.tanh_backward.default] == line + 2


def test_inference_has_no_backward_and_saves_nothing():
    pair = compare(lambda x, w: F.linear(x, w).relu(), [rand(3, 4), rand(5, 4)])
    assert pair.backward is None and pair.contract.tangents == () and pair.contract.saved_positions == ()


def cut_by_force(nodes, edges):
    best = None
    for side in itertools.product((0, 1), repeat=nodes):
        chosen = (1, 0, *side)  # the source is in, the sink is out
        best_here = sum(c for a, b, c in edges if chosen[a] and not chosen[b])
        best = best_here if best is None else min(best, best_here)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_equals_brute_force(seed):
    chance = random.Random(seed)
    inner = 7
    edges = [(a, b, chance.randint(1, 9)) for a in range(inner + 2) for b in range(inner + 2) if a != b and a != 1 and b != 0 and chance.random() < 0.4]
    network = FlowNetwork()
    for _ in range(inner):
        network.node()
    for a, b, c in edges:
        network.edge(a, b, c)
    sink = network.sink_side()
    assert 1 in sink and 0 not in sink
    assert sum(c for a, b, c in edges if a not in sink and b in sink) == cut_by_force(inner, edges)


def test_minimum_cut_refuses_an_uncuttable_path():
    network = FlowNetwork()
    middle = network.node()
    network.edge(0, middle)
    network.edge(middle, 1)
    with pytest.raises(ValueError, match="infinite"):
        network.sink_side()


def test_minimum_cut_of_a_long_chain():
    network = FlowNetwork()
    last = 0
    for i in range(5000):
        here = network.node()
        network.edge(last, here, 1000 - (i == 4000))
        last = here
    network.edge(last, 1, 1000)
    sink = network.sink_side()
    assert len(sink) == 1001


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_leave_nothing_to_do(name):
    program = PROGRAMS[name]
    args = program.prepare(*program.leaves()) if program.prepare else program.leaves()
    pair = pair_of(program.fn, *args)
    before = targets(pair.forward)
    random_before = sum(torch.Tag.nondeterministic_seeded in getattr(t, "tags", ()) for t in before)
    mutations = [t for t in before if t is aten.copy_.default]
    assert len(mutations) == len(pair.contract.mutated_in_graph)
    unused = [n for n in pair.forward.graph.nodes if n.op == "call_function" and not n.users and n.target is not aten.copy_.default]
    assert random_before or all(has_effect(n) for n in unused)
    if not mutations:
        simplify(pair.forward.graph)
        assert targets(pair.forward) == before


def test_what_maxima_are_found_in_is_kept():
    """Another kernel may compute it otherwise in its last bit, and no element of the row would be its maximum: 0 / 0."""

    def fn(x):
        t = F.layer_norm(x, (48,)).sin()
        return t.amax(1).sum() + (t * t).exp().mean()

    for budget in (1.0, 0.1):
        pair = pair_of(fn, rand(64, 48, grad=True), memory_budget=budget)
        assert (64, 48) in saved(pair)[0] and aten.sin.default not in targets(pair.backward)


def test_of_what_a_mask_alone_is_made_of_the_mask_is_kept():
    pair = pair_of(lambda x: (x * 0.1 - x * x * 0.7).amax(1), rand(64, 48, grad=True))
    outputs = list(pair.forward.graph.nodes)[-1].args[0]
    assert [outputs[p].meta["val"].dtype for p in pair.contract.saved_positions] == [torch.bool]
