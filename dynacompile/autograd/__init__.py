"""Stage 4: a captured graph becomes a forward and a backward graph, and the contract that the runtime keeps."""

from __future__ import annotations

from dynacompile.autograd.alike import find_parts
from dynacompile.autograd.beyond import BeyondInputs, detached
from dynacompile.autograd.differentiate import differentiate
from dynacompile.autograd.like_parts import differentiate_parts
from dynacompile.autograd.localized import localized

__all__ = ["BeyondInputs", "detached", "differentiate", "differentiate_parts", "find_parts", "localized"]
