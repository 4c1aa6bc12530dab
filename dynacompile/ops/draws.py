"""What eager's kernels on GPUs draw for which element, and the operator that draws for kernels of ours.

The kernels of ATen (`ATen/native/cuda/DistributionTemplates.h`) give each thread of their grid a sequence of Philox numbers, from the generator's offset on,
and move the offset on by what a thread has drawn at most. `torch.rand` and coins of one probability are drawn by a grid whose threads stride over the
elements, four numbers at a time; coins of a tensor of probabilities by a thread for every four elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("draw(int count, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))

BLOCK = 256  # threads
AT_A_TIME = 4  # numbers
COINS = 12  # by how much coins of a tensor of probabilities move the offset on
MOST_BYTES = 2**31 - 1  # of a tensor that ATen draws in one launch
PROCESSORS, THREADS = 132, 2048  # of Hopper: where there is no GPU to ask


@dataclass(frozen=True)
class Drawing:
    """Element i has the number at `place(i)` of the block that is `block(i)` blocks behind the generator's offset, of sequence `sequence(i)`. threads: of a
    grid that strides over the elements; 0: each four elements have a sequence. count: by how much the offset moves on."""

    threads: int
    count: int

    def sequence(self, i):
        return i % self.threads if self.threads else i // AT_A_TIME

    def block(self, i):
        return i // (self.threads * AT_A_TIME) if self.threads else i * 0

    def place(self, i):
        return i // self.threads % AT_A_TIME if self.threads else i % AT_A_TIME


def by_grid(elements: int, device: torch.device) -> Drawing:
    """How eager draws that many uniform numbers on the device."""
    threads = BLOCK * min(most_blocks(device), -(-elements // BLOCK))
    return Drawing(threads, ((elements - 1) // (threads * AT_A_TIME) + 1) * AT_A_TIME)


def by_fours() -> Drawing:
    """How eager tosses coins of a tensor of probabilities."""
    return Drawing(0, COINS)


def most_blocks(device: torch.device) -> int:
    """Of a grid that strides over elements."""
    if not torch.cuda.is_available():
        return PROCESSORS * (THREADS // BLOCK)
    known = torch.cuda.get_device_properties(device)
    return known.multi_processor_count * (known.max_threads_per_multi_processor // BLOCK)


def draw(count: int, *, device: torch.device) -> torch.Tensor:
    """The state of the device's default generator before it moves on, for kernels that run outside of compiled programs: see DRAW."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + count)
    return torch.tensor([signed(seed), signed(offset)], device=device)


def signed(number: int) -> int:
    """The int64 of the same bits."""
    return number - 2**64 if number >= 2**63 else number


LIBRARY.impl("draw", draw, "CompositeExplicitAutograd")
DRAW = torch.ops.dynacompile.draw.default
"""The seed of a GPU's default generator and its offset, which it moves on by a multiple of four, as an int64 tensor on the GPU. Programs run it natively
(`runtime/draws.cpp`), also while a CUDA graph is captured: each replay then has the state that the generator has by then."""
