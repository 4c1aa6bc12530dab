"""Rows for the instructions of `cpython.instructions`, by what they deal with."""

from dynacompile.capture.opcodes import attributes, building, calls, control, matching, names, operators, stack
from dynacompile.capture.opcodes.table import TABLE, Opcode

GROUPS = (attributes, building, calls, control, matching, names, operators, stack)  # importing them fills the table

__all__ = ["GROUPS", "TABLE", "Opcode"]
