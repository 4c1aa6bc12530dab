"""Programs differentiated ahead of time behave as in eager: outputs, gradients, mutated inputs, aliasing, random numbers."""

from __future__ import annotations

import pytest
import torch

from tests.autograd.programs import PROGRAMS
from tests.autograd.running import compare


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    program = PROGRAMS[name]
    compare(program.fn, program.leaves(), program.prepare, program.tolerance)


@pytest.mark.parametrize("name", ["gpt_block", "conv_batch_norm_train", "dropout_half", "language_loss", "buffer_saved_before_its_update", "activations"])
@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_program_with_less_memory(name, budget):
    program = PROGRAMS[name]
    compare(program.fn, program.leaves(), program.prepare, program.tolerance, memory_budget=budget)


@pytest.mark.parametrize("name", ["gpt_block", "views_returned", "buffer_updated", "conv_batch_norm_train"])
def test_program_without_grad_mode(name):
    program = PROGRAMS[name]
    with torch.no_grad():
        pair = compare(program.fn, program.leaves(), program.prepare, program.tolerance)
    assert pair.backward is None
