"""The oracle: nests, programs and schedules interpreted with torch ops, vectorised over the iteration space."""

from __future__ import annotations

from dynacompile.codegen.reference.nest import run_kernel, run_nest
from dynacompile.codegen.reference.program import run_program, run_schedule

__all__ = ["run_kernel", "run_nest", "run_program", "run_schedule"]
