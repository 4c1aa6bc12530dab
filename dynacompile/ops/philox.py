"""The numbers of cuRAND's Philox generator, which ATen's CUDA kernels draw: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011), in torch. Kernels of ours compute the same; see the scalar op `uniform`."""

from __future__ import annotations

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF

Words = tuple[torch.Tensor, ...]


def high_and_low(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two words of a product of two words; in halves, since int64 does not hold it."""
    first = (word & 0xFFFF) * factor
    second = (word >> 16) * factor + (first >> 16)
    return second >> 16, ((second & 0xFFFF) << 16) | (first & 0xFFFF)


def philox(counter: Words, key: Words) -> Words:
    """Four words of four words of a counter and two of a key; words are int64 tensors of numbers below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = high_and_low(MULTIPLIERS[0], c0), high_and_low(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def word(seed: torch.Tensor, sequence: torch.Tensor, block: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The words at a place, 0 to 3, of blocks of sequences (cuRAND's subsequences) of seeds; all are int64 tensors whose bits are unsigned numbers."""
    seed, sequence, block, place = torch.broadcast_tensors(seed, sequence, block, place)
    words = philox((block & LOW, (block >> 32) & LOW, sequence & LOW, (sequence >> 32) & LOW), (seed & LOW, (seed >> 32) & LOW))
    return torch.stack(words).gather(0, place[None])[0]


def uniform(seed: torch.Tensor, sequence: torch.Tensor, block: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The words as float32 in (0, 1], as `curand_uniform` has them."""
    return word(seed, sequence, block, place).float() * 2.0**-32 + 2.0**-33
