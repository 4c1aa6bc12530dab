"""Which of its operands an operator writes. Most operators say so in their schemas; those that keep the running statistics of batch norms do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

STATISTICS = {  # the positions of running means and variances
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
    "aten::batch_norm_gather_stats": (3, 4),
    "aten::batch_norm_gather_stats_with_counts": (3, 4),
    "aten::batch_norm_update_stats": (1, 2),
}


@dataclass(frozen=True)
class Written:
    """places: positions and names of arguments. training: the argument without which a batch norm writes nothing."""

    places: tuple[tuple[int, str], ...]
    training: int | None = None

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
        """What one call writes."""
        if self.training is not None and not argument(self.training, "training", args, kwargs):
            return
        for index, name in self.places:
            given = argument(index, name, args, kwargs)
            for part in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(part, torch.Tensor):
                    yield part


def argument(index: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[index] if index < len(args) else kwargs.get(name)


def written_by(func: Any) -> Written | None:
    """Of an operator; None where it writes no operand."""
    schema = getattr(func, "_schema", None)
    if schema is None or is_view_of_prims(func):
        return None
    statistics = STATISTICS.get(schema.name, ())
    places = tuple((i, a.name) for i, a in enumerate(schema.arguments) if i in statistics or a.alias_info is not None and a.alias_info.is_write)
    training = next((i for i, a in enumerate(schema.arguments) if a.name == "training"), None) if "batch_norm" in schema.name else None
    return Written(places, training) if places else None


def is_view_of_prims(func: Any) -> bool:
    """Schemas of torch's primitive views say that they write what they are views of."""
    return func.namespace == "prims" and getattr(getattr(func, "return_type", None), "name", None) == "VIEW"
