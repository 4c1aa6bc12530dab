"""Sums and variances of columns whose number of rows is a symbol."""

import pytest
import torch

import dynacompile

COLUMNS = {"sums": lambda x: x.sum(0), "variances": lambda x: x.var(0), "of products": lambda x: (x.relu() * x).sum(0)}


@pytest.mark.parametrize("columns", [48, 1024])
@pytest.mark.parametrize("name", COLUMNS)
def test_any_number_of_rows_has_one_entry(name, columns):
    """Of one block, of several, and of more than the most chunks hold in one each."""
    fn = COLUMNS[name]
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=True)
    for rows in (2048, 2, 31, 32, 33, 64, 65, 127, 128, 200, 16384, 20000):
        x = torch.randn(rows, columns) + 1
        torch.testing.assert_close(compiled(x), fn(x.double()).float(), rtol=2e-6 if name != "variances" else 1e-5, atol=1e-5)
    assert len(dynacompile.cache_entries(compiled)) == 1


def test_rows_of_a_single_block_are_added_into_the_result_itself():
    """As with numbers: what additions lose is kept where a call has several blocks alone."""
    texts = []
    explained = dynacompile.explain(COLUMNS["sums"], dynamic=True, observer=lambda stage, made: texts.append(made.text()) if stage == "generate" else None)
    explained(torch.randn(2048, 1024))
    (text,) = texts
    assert "Part0& block = single0 ? parts0[c] : own;" in text
    assert all("single0" in line for line in text.splitlines() if ".take(block)" in line or ".settle();" in line or "part0.clear();" in line)
