"""All rows of the opcode table, by what the instructions deal with. Importing a group fills the table."""

from dynacompile.capture.frames.table import TABLE
from dynacompile.capture.opcodes import attributes, building, calls, control, matching, names, operators, stack

GROUPS = (attributes, building, calls, control, matching, names, operators, stack)

__all__ = ["GROUPS", "TABLE"]
