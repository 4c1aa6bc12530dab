"""Jacobians of functions of flat tensors, as torch.func.jacrev and jacfwd compute them; their bases are made without looking at values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
Function = Callable[[Tensors], tuple[Tensors, Tensors]]  # inputs -> (results, what is not differentiated)


def standard_basis(likes: Tensors) -> list[torch.Tensor]:
    """For each tensor, the rows of the identity over the elements of all of them."""
    counts = [like.numel() for like in likes]
    total, before, made = sum(counts), 0, []
    for like, count in zip(likes, counts):
        rows = torch.cat([like.new_zeros(before, count), torch.eye(count, dtype=like.dtype, device=like.device), like.new_zeros(total - before - count, count)])
        made.append(rows.view(total, *like.shape))
        before += count
    return made


def reverse_jacobian(function: Function, tensors: Tensors, chunk_size: int | None) -> tuple[list[list[torch.Tensor]], Tensors]:
    """For each result, its derivative by each tensor, of shape (*result, *tensor); and what is not differentiated.

    chunk_size: how many rows are computed at once; 1: without vmap."""
    results, pull, extras = torch.func.vjp(lambda *inputs: function(inputs), *tensors, has_aux=True)  # type: ignore[misc]
    basis = standard_basis(results)
    chunks = [basis] if chunk_size is None else list(zip(*(torch.split(rows, chunk_size) for rows in basis)))
    if chunk_size == 1:
        made = [[grad.unsqueeze(0) for grad in pull(tuple(rows.squeeze(0) for rows in chunk))] for chunk in chunks]
    else:
        made = [torch.func.vmap(pull)(tuple(chunk)) for chunk in chunks]
    whole = [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*made)]
    columns = [torch.split(grad, [r.numel() for r in results]) for grad in whole]
    rows = [[part[i].view(result.shape + tensor.shape) for part, tensor in zip(columns, tensors)] for i, result in enumerate(results)]
    return rows, extras


def forward_jacobian(function: Function, tensors: Tensors, randomness: str) -> tuple[list[list[torch.Tensor]], Tensors]:
    """As `reverse_jacobian`, a column at a time."""

    def push(tangents: tuple) -> Any:
        _, made, extras = torch.func.jvp(lambda *inputs: function(inputs), tuple(tensors), tangents, has_aux=True)  # type: ignore[misc]
        return made, extras

    made, extras = torch.func.vmap(push, randomness=randomness)(tuple(standard_basis(tensors)))
    counts = [tensor.numel() for tensor in tensors]
    rows = [
        [
            part.unflatten(-1, tensor.shape) if tensor.dim() else part.squeeze(-1)
            for part, tensor in zip(torch.split(column.movedim(0, -1), counts, -1), tensors)
        ]
        for column in made
    ]
    return rows, tuple(extra[0] for extra in extras)
