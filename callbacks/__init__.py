"""Lightning callbacks: DynamoCallback compiles modules of a running fit and reports what that cost and brought."""

from __future__ import annotations

from dynacompile.callbacks.dynamo import DynamoCallback
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.settings import CompileSettings

__all__ = ["CompileSettings", "DynamoCallback", "Outcome"]
