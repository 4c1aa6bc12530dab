"""What emitted C++ looks like. The golden is compared only after the same kernel matched the oracle.

To renew it after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/codegen/test_cpp_text.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dynacompile.codegen.cpp import emit_kernel
from dynacompile.codegen.cpp.plan import plan
from dynacompile.codegen.cpp.prepare import prepare
from dynacompile.errors import Unsupported
from dynacompile.ir.schedule import Kernel

from .cpp_running import ENV, Library
from .triton_cases import F32, I64, Build, assert_same, chain, columns_sum, divided, oracle, softmax, storages, transpose

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name,make", [("softmax", lambda: softmax(600, 1000)), ("batch_stats", lambda: columns_sum(70, 48))])
def test_golden(name, make, tmp_path):
    kernel = make()
    library = Library({name: kernel}, tmp_path)
    tensors = storages(kernel)
    expected = {k: t.clone() for k, t in tensors.items()}
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    assert_same(tensors, expected)
    file = GOLDEN / f"{name}.cpp"
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        file.write_text(library.texts[name])
    assert library.texts[name] == file.read_text()


def planned(kernel: Kernel):
    return plan(prepare(kernel.nest))


def test_shapes_of_loops():
    assert planned(chain()).shape == "pointwise"
    assert planned(softmax(600, 1000)).shape == "row"
    assert planned(columns_sum()).shape == "column"
    assert planned(transpose()).middle


def test_costly_values_are_kept_between_passes():
    loops = planned(softmax(600, 1000))
    assert loops.passes == 3 and [loops.nest.body[i].name for i in loops.kept] == ["exp"]
    assert not planned(softmax(2, 200_000)).kept  # a row that would not fit


def test_threads_are_for_large_work():
    assert not planned(chain(1000)).wide and planned(chain(200_000)).wide
    assert planned(columns_sum(20000, 17)).split and not planned(columns_sum(70, 48)).split
    assert "parallel" not in emit_kernel(chain(1000), ENV).text


def test_axes_are_split_where_divisions_vanish():
    b = Build("heads", (12, 768))
    heads = b.ix[1] // 64 * 3000 + b.ix[1] % 64 + b.ix[0] * 64
    b.store("out", F32, b.at(768, 1), b.load("x", F32, heads))
    loops = planned(b.kernel())
    assert [a.size for a in loops.nest.axes] == [12, 12, 64] and loops.lane.size == 64
    assert "load<W>" in emit_kernel(b.kernel(), ENV).text
    assert len(prepare(divided().nest).axes) == 3  # too short to be worth it


def test_indices_are_computed_in_32_bits():
    b = Build("causal", (64, 64))
    keep = b.le(b.index(b.ix[1]), b.add_(b.index(b.ix[0]), b.const(3, I64)))
    b.store("out", F32, b.at(64, 1), b.where(keep, b.load("x", F32, b.at(64, 1)), b.const(float("-inf"))))
    loops = planned(b.kernel())
    assert loops.lane_bytes == 4 and all(op.dtype != I64 for op in loops.nest.body)


def test_complex_is_refused():
    b = Build("complex", (4,))
    b.store("out", torch.complex64, b.at(1), b.load("x", torch.complex64, b.at(1)))
    with pytest.raises(Unsupported, match="complex64"):
        emit_kernel(b.kernel(), ENV)


def gelu(n: int = 1003) -> Kernel:
    b = Build("gelu", (n,))
    x = b.load("x", F32, b.at(1))
    phi = b.add_(b.const(1.0), b.erf(b.mul(x, b.const(0.7071067811865476))))
    b.store("out", F32, b.at(1), b.mul(b.mul(x, b.const(0.5)), phi))
    b.store("phi", F32, b.at(1), b.mul(b.const(0.5), phi))
    return b.kernel()


def test_gelu_goes_by_the_normal_distribution(tmp_path):
    library = Library({"gelu": gelu()}, tmp_path)
    assert library.texts["gelu"].count("ndtr(") == 1 and "erf(" not in library.texts["gelu"]
    x = torch.cat([torch.linspace(-7, 7, 1000), torch.tensor([float("inf"), float("nan"), -100.0])])
    out, phi = torch.empty(1003), torch.empty(1003)
    library("gelu", [x, out, phi])
    assert torch.equal(phi.isnan(), x.isnan()) and phi[-1] == 0 and phi[-3] == 1
    exact = torch.special.ndtr(x.double())
    assert float((phi.double() - exact).abs().nan_to_num().max()) < 2e-7
    assert float((out.double() - x.double() * exact).abs().nan_to_num().max()) < 1e-6
