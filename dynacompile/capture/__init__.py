"""Capture: one frame of Python bytecode becomes a graph, the facts it relied on, and the code around the graph."""

from dynacompile.capture.bytecode import CodeCache
from dynacompile.capture.entry import capture_frame

__all__ = ["CodeCache", "capture_frame"]
