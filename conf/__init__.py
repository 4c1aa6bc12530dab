"""The Hydra configs, as package data: `train.yaml` and its groups. `folder()` finds them on disk."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder that holds `train.yaml`."""
    return Path(__file__).parent
