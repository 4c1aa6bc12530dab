"""Names that the text of a kernel has for itself, which no buffer, value or kernel may have."""

from __future__ import annotations

import keyword

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.ir.schedule import Kernel
from dynacompile.quoting import identifier

TILE = {"x", "y", "r", "row", "r_base", "x_start", "x_base", "xmask", "ymask", "rmask", "pid", "start", "turn", "b"}
LIST = {"member", "list_blocks", "list_numbers", "list_pointers"}
RESERVED = {"tl", "triton", "libdevice", "range", "float", *TILE, *LIST, *scalars.DEVICE_FUNCTIONS, *keyword.kwlist}


def entry_of(kernel: Kernel) -> str:
    """The name of a kernel's function: the kernel's, unless that is a device function's that its body may call, as `remainder` is."""
    name = identifier(kernel.name)
    return f"{name}_kernel" if name in RESERVED else name
