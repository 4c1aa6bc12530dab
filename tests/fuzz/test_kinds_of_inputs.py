"""A slice of the expressions that are called with tensors of many kinds, and those that have shown a bug."""

import pytest

import dynacompile
from tests.fuzz.kinds_of_inputs import KINDS, LAZY, difference, function_of, is_same, outcome

FOUND = {
    "F.dropout(x)": "complex",
    "F.dropout(x, 0.3)": "bool",
    "F.group_norm(x, 1)": "complex",
    "F.layer_norm(x, x.shape[-1:])": "complex",
    "F.batch_norm(x, None, None)": "a vector",
    "F.batch_norm(x, None, None, training=True)": "complex",
    "F.cross_entropy(x, torch.tensor([0, 1, 2, 3]))": "int32",
    "F.multilabel_soft_margin_loss(x, x)": "int64",
    "torch.tensordot(x, x)": "bool",
    "x.new_tensor([1.5, 2])": "meta",
}


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_slice(first):
    for seed in range(first, first + 20):
        assert (told := difference(seed)) is None, f"seed {seed}: {told}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(LAZY, LAZY + 80, 20))
def test_slice_of_complex_numbers_and_lazy_views(first):
    test_slice(first)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", FOUND)
def test_found(expression):
    function, kind = function_of(expression), FOUND[expression]
    assert kind in KINDS
    assert is_same(outcome(dynacompile.compile(function, backend="aot_eager", isolate_recompiles=True), kind, 0), outcome(function, kind, 0))
