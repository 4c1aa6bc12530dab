"""The slice of the programs of questions.py that runs with the tests; `python -m tests.fuzz.questions FIRST LAST` runs any others."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from tests.fuzz.questions import CHANGES, QUESTIONS, SHARED, UNDO, difference, shared_state, source_of

PART = 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 200, PART))
def test_as_in_eager(first):
    for seed in range(first, first + PART):
        told = difference(seed)
        assert told is None, f"seed {seed}: {told}"


def test_settings_are_put_back_where_flags_are_frozen(monkeypatch):
    """Torch's own test utilities forbid to set the flags of backends; and an undo that raises keeps none of the others from running."""
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", False)
    before = torch.get_default_dtype()

    def fail():
        raise ValueError("an undo")

    with pytest.raises(ValueError, match="an undo"), shared_state():
        for name in sorted(SHARED):
            SHARED[name](random.Random(1))
        torch.set_default_dtype(torch.float64)
        UNDO.append(fail)
    assert torch.get_default_dtype() is before and not UNDO and "fuzz_module" not in sys.modules


def test_programs_are_what_they_were():
    assert source_of(random.Random(3)) == source_of(random.Random(3))
    assert len({source_of(random.Random(seed)) for seed in range(50)}) > 45
    assert len(set(QUESTIONS)) == len(QUESTIONS) and not CHANGES.keys() & SHARED.keys()
