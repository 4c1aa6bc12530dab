"""Recurrent layers over each other with dropout between them, one by one: torch's rules for symbolic sizes leave the dropout out."""

from __future__ import annotations

from typing import Any

import torch


def over_sequences(layer: Any, x: Any, state: Any, weights: Any, biases: bool, count: int, p: float, train: bool, both: bool, batch_first: bool) -> Any:
    """torch.lstm, gru, rnn_tanh and rnn_relu of a tensor. batch_first: the batch is the first dimension, and not time."""
    y, *states = one_by_one(lambda y, *rest: layer(y, *rest, False), x.transpose(0, 1) if batch_first else x, state, weights, biases, count, p, train, both)
    return y.transpose(0, 1) if batch_first else y, *states


def over_packed(layer: Any, x: Any, sizes: Any, state: Any, weights: Any, biases: bool, count: int, p: float, train: bool, both: bool) -> Any:
    """The same of packed sequences. sizes: how many of them each step has."""
    return one_by_one(lambda y, *rest: layer(y, sizes, *rest), x, state, weights, biases, count, p, train, both)


def one_by_one(layer: Any, y: Any, state: Any, weights: Any, biases: bool, count: int, p: float, train: bool, both: bool) -> Any:
    rows, each, ends = 2 if both else 1, len(weights) // count, []
    for i in range(count):
        y = torch.dropout(y, p, train) if i else y
        first = tuple(s[i * rows : (i + 1) * rows] for s in state) if isinstance(state, (tuple, list)) else state[i * rows : (i + 1) * rows]
        y, *end = layer(y, first, weights[i * each : (i + 1) * each], biases, 1, 0.0, train, both)
        ends.append(end)
    return y, *[torch.cat(parts) for parts in zip(*ends)]
