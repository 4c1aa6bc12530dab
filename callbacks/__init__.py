"""Callbacks of training frameworks: they compile what a run trains and report what that cost and brought. DynamoCallback is Lightning's, and the module
`huggingface` has that of transformers' Trainer; neither needs the other's framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynacompile.callbacks.dynamo import DynamoCallback
    from dynacompile.callbacks.outcome import Outcome
    from dynacompile.callbacks.settings import CompileSettings

__all__ = ["CompileSettings", "DynamoCallback", "Outcome"]
HOMES = {"CompileSettings": "settings", "DynamoCallback": "dynamo", "Outcome": "outcome"}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
