"""Products of matrices as C++ text: the template of product.h, with the extents and strides of one kernel."""

from __future__ import annotations

from dynacompile.codegen.cpp.render import memory_type
from dynacompile.ir.calls import Call
from dynacompile.ir.loops import Buffer
from dynacompile.ir.schedule import Kernel

HEADER = '#include "product.h"'


def statements(kernel: Kernel, call: Call) -> list[str]:
    """The body of the kernel's function, after its symbols."""
    places = {p.name: i for i, p in enumerate(kernel.params)}
    adds = len(call.step.args) == 3
    added: Buffer | None = call.argument("self") if adds else None
    a, b = (call.argument(name) for name in (("mat1", "mat2") if adds else ("self", "mat2")))
    (out,) = call.outputs()
    element, turned, columns = memory_type(a.dtype), b.stride[1] != 1, a.stride[1] != 1
    apart = 0 if added is None or len(added.size) == 1 or added.size[0] == 1 else added.stride[0]

    def pointer(view: Buffer | None, element: str) -> str:
        return "nullptr" if view is None else f"({element}*)params[{places[str(view.base)]}] + ({view.offset})"

    fields = [*(pointer(view, f"const {element}") for view in (a, b, added)), pointer(out, element)]
    fields += map(str, (*a.size, a.stride[1], b.stride[1 if turned else 0], apart, out.stride[0]))
    layout = f"{str(columns).lower()}, {0 if columns else a.stride[0]}, {str(turned).lower()}"
    sizes = f"Sizes<{element}, {b.size[1]}, {layout}>"
    return [f"const BlockedProduct<{sizes}> product = {{", *(f"  {field}," for field in fields), "};", "product.run();"]
