"""Links built modules into native programs, gives them autograd, and records them as CUDA graphs."""

from __future__ import annotations

from dynacompile.runtime.beyond import with_beyond
from dynacompile.runtime.chain import chain
from dynacompile.runtime.cudagraphs import record
from dynacompile.runtime.differentiable import differentiable
from dynacompile.runtime.link import Told, laid_out, link
from dynacompile.runtime.plain import with_plain
from dynacompile.runtime.replay import keeping_primals
from dynacompile.runtime.restarting import is_of_values, restarting
from dynacompile.runtime.stages import in_stages
from dynacompile.runtime.wrapped import with_wrappers

__all__ = [
    "Told",
    "chain",
    "differentiable",
    "in_stages",
    "is_of_values",
    "keeping_primals",
    "laid_out",
    "link",
    "record",
    "restarting",
    "with_beyond",
    "with_plain",
    "with_wrappers",
]
