"""Argument sets for the rows of the table, by name: what each row's generated tests call the op with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dynacompile.ops.sample_tensors import TENSORS
from dynacompile.ops.sample_values import VALUES
from dynacompile.ops.sampling import Maker, Sample

__all__ = ["SAMPLES", "Maker"]

SAMPLES: dict[str, Callable[[Maker], Iterator[Sample]]] = VALUES | TENSORS
