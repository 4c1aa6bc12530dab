"""Emitted C++ kernels against the oracle: every kind of nest, dtypes, sizes around the lanes."""

from __future__ import annotations

import pytest
import torch

from dynacompile.ops.scalars import SCALARS

from .cpp_running import Library
from .test_cpp_groups import normed
from .triton_cases import BF16, CASES, F16, F32, F64, I32, assert_same, chain, columns_sum, layer_norm, many, oracle, softmax, storages, transpose

MORE = {
    **{f"chain_{n}": lambda n=n: chain(n) for n in (1, 15, 16, 17, 100003)},
    **{f"chain_bf16_{n}": lambda n=n: chain(n, BF16) for n in (1, 17, 50001)},
    "chain_f16": lambda: chain(33, F16),
    **{f"softmax_{n}": lambda n=n: softmax(7, n) for n in (1, 15, 16, 17, 1000, 9001, 50257)},
    "softmax_parallel": lambda: softmax(600, 129),
    "softmax_f64": lambda: softmax(3, 21, F64),
    "layer_norm_f32": lambda: layer_norm(130, 768, F32),
    "layer_norm_long": lambda: layer_norm(1, 300000, F32),
    "columns_tiles": lambda: columns_sum(40, 3000),
    "columns_chunks": lambda: columns_sum(3001, 40),
    "columns_split": lambda: columns_sum(20000, 17),
    "softmax_split": lambda: softmax(6, 70000),
    "normed_split": lambda: normed(6, 8, 1200, 8),
    "many_f64": lambda: many(2, 33, F64),
    "many_wide": lambda: many(3, 4000),
    "many_int_long": lambda: many(1, 40000, I32),
    "transpose_odd": lambda: transpose(67, 131, 1),
}
ALL = {name: make for name, make in CASES.items() if not make().nest.folded} | MORE  # sums over blocks of rows are a form for GPUs


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: make() for name, make in ALL.items()}, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", ALL)
def test_numbers(library, name):
    kernel = ALL[name]()
    tensors = storages(kernel, list(ALL).index(name))
    expected = {k: t.clone() for k, t in tensors.items()}
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    assert_same(tensors, expected)


def test_every_scalar_is_run_by_a_case():
    run = {op.name for make in ALL.values() for op in make().nest.body}
    assert set(SCALARS) <= run, sorted(set(SCALARS) - run)


def test_text_is_deterministic(library):
    again = Library({"softmax_17": ALL["softmax_17"]()}, next(iter(library.kernels.values())).library.path.parent.parent)
    assert again.texts["softmax_17"] == library.texts["softmax_17"]


@pytest.mark.parametrize("name", ["columns_split", "softmax_split", "normed_split"])
def test_results_do_not_depend_on_the_number_of_threads(library, name):
    """Points are shared out where threads have as many each, by 1, 2 and 3 of them, else the chunks of each."""
    kernel = ALL[name]()
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3, 4, 5):
        torch.set_num_threads(threads)
        tensors = storages(kernel, 3)
        library(name, list(tensors.values()))
        results.append(list(tensors.values()))
    torch.set_num_threads(before)
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


@pytest.mark.parametrize("name, passes", [("softmax_split", 3), ("normed_split", 3)])
def test_threads_share_out_points_or_their_chunks(library, name, passes):
    text = library.texts[name]
    assert text.count("are_enough(6)") == text.count("parallel<true>(") == 1 and text.count("parallel_when(together, ") == passes
    assert "together" not in library.texts["columns_split"]
