"""Triton: one readable, standalone module per kernel."""

from dynacompile.codegen.triton.emit import emit_kernel

__all__ = ["emit_kernel"]
