"""Under max-autotune, every variant of a kernel computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynacompile.build.cpp import build_units, variant
from dynacompile.build.store import Store
from dynacompile.codegen.cpp import emit_kernel

from .cpp_running import ENV, Library
from .triton_cases import F32, assert_same, chain, columns_sum, layer_norm, oracle, softmax, storages, transpose

TUNED = ENV.with_config(mode="max-autotune")
WIDE = {
    "chain": lambda: chain(40_001),
    "softmax": lambda: softmax(300, 517),
    "layer_norm": lambda: layer_norm(200, 300, F32),
    "columns": lambda: columns_sum(70, 3000),
    "transpose": lambda: transpose(267, 231, 1),
}


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    sources = {name: emit_kernel(replace(make(), name=name), TUNED) for name, make in WIDE.items()}
    wanted = {f"{name}_{i}": variant(s, i) for name, s in sources.items() for i in range(len(s.variants))}
    library = Library({}, tmp_path_factory.mktemp("none"))
    library.kernels = build_units(wanted, ENV, Store(tmp_path_factory.mktemp("store")))
    return sources, library


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_variants_agree(variants, name):
    sources, library = variants
    assert len(sources[name].variants) == len(sources[name].candidates) > 1
    assert sources[name].variants[0] == sources[name].text == emit_kernel(replace(WIDE[name](), name=name), ENV).text
    for i in range(len(sources[name].variants)):
        kernel = WIDE[name]()
        tensors = storages(kernel)
        expected = {k: t.clone() for k, t in tensors.items()}
        oracle(kernel, expected)
        library(f"{name}_{i}", list(tensors.values()))
        assert_same(tensors, expected)


def test_small_kernels_have_no_variants():
    assert not emit_kernel(chain(1000), TUNED).variants
    assert not emit_kernel(chain(40_001), ENV).variants
