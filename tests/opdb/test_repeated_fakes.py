"""Results of operations on fakes of symbolic sizes, which are kept for operations on fakes that look the same."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dynacompile
from dynacompile.ir import shape_envs
from dynacompile.ir.expressions import Quantity
from dynacompile.ir.shapes import new_symbol, symbolic_mode, symbolic_rules
from dynacompile.ir.source import Local


class Forgets(dict):
    """A dict that keeps nothing."""

    def __setitem__(self, key, value) -> None:
        pass


def chunk(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """x, y: (rows, 4)."""
    shifted = x - x.amax(1, keepdim=True)
    share = shifted.exp() / shifted.exp().sum(1, keepdim=True)
    return [
        share,
        torch.where(share > 0.5, x, y),
        share.t().mm(y),
        torch.addmm(y, x, y.new_zeros(4, 4)),
        share.unsqueeze(0),
        share.half().contiguous(),
        *torch.var_mean(x, 1),
    ]


def looks(results: list[torch.Tensor]) -> list[str]:
    return [f"{t.dtype} {tuple(t.shape)} {t.stride()} {t.storage_offset()} {t.device}" for t in results]


def run(least: int, is_kept: bool) -> tuple[list[list[str]], list[str], int]:
    """How the results of three chunks look, the guards, and how many operations of the last two torch was asked about."""
    mode = symbolic_mode(lambda: None)
    rows = new_symbol(mode.shape_env, Quantity(Local("x", 0), "size"), 6, least)
    mode.shape_env.repeats = {} if is_kept else Forgets()
    asked, rules = [], mode._dispatch_impl
    mode._dispatch_impl = lambda func, *rest: (asked.append(func), rules(func, *rest))[1]
    with symbolic_rules(mode), mode:
        given = [torch.empty(rows * 3, 4), torch.empty(rows * 3, 4)]
        found, counts = [], []
        for parts in zip(*(t.view(3, -1, 4).unbind() for t in given), strict=True):
            found.append(chunk(*parts))
            counts.append(len(asked))
        memory = {t.untyped_storage()._cdata for results in found for t in results}
    assert len(memory) == 3 * 7, "each result but a view has memory of its own"
    return [looks(results) for results in found], [str(g.expr) for g in mode.shape_env.guards], counts[2] - counts[0]


@pytest.mark.parametrize("least", (1, 2))
def test_results_and_guards_are_those_of_operations_that_run(least):
    kept, run_each_time = run(least, True), run(least, False)
    assert kept[:2] == run_each_time[:2]
    assert 4 * kept[2] < run_each_time[2], "only views run again"


def test_what_is_kept_does_not_outlive_a_compile(monkeypatch):
    made, construct = [], shape_envs.constructed
    monkeypatch.setattr(shape_envs, "constructed", lambda settings: made.append(construct(settings)) or made[-1])
    dynacompile.compile(lambda x: (x * 2 + 1).softmax(-1) * (x * 2 + 1), dynamic=True)(torch.ones(3, 5)).sum()
    assert made and not any(env.repeats for env in made)
    references = [*map(weakref.ref, made)]
    made.clear()
    dynacompile.reset()
    gc.collect()
    assert not any(reference() for reference in references)


@torch.library.custom_op("repeated_fakes::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_sizes_that_operations_make_are_new_each_time(backend):
    def program(x, y):
        a, b = positive(x), positive(y)
        return a.sum() + b.sum(), a.shape[0] == b.shape[0], a.shape[0], b.shape[0]

    x, y = torch.tensor([1.0, -1, 2, 3]), torch.tensor([-1.0, -1, 5, -2])
    assert dynacompile.compile(program, backend=backend, isolate_recompiles=True)(x, y) == program(x, y)
