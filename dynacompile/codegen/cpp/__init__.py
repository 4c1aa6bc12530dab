"""C++: one function per kernel over a small vector header, for OpenMP."""

from dynacompile.codegen.cpp.emit import emit_kernel

__all__ = ["emit_kernel"]
