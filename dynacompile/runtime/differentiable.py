"""Gives a pair of graphs autograd: the native callable from flat graph inputs to user outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynacompile.errors import VerifyError
from dynacompile.ir.graphs import REAL, Constant, Fresh, InputItself, Lineage, Marks, Output, RuntimeContract, View, ViewOfInput, ViewOfOutput
from dynacompile.native import core as native_core
from dynacompile.runtime.link import Numbers

# As enum From of region.h.
FRESH, INPUT, INPUT_VIEW, OUTPUT_VIEW, CONSTANT = range(5)
INT, FLOAT = -1, -2  # as real_number of region.h
HERE = (0, False, True, False, -1)  # of what is no view


def differentiable(forward: Callable, make_backward: Callable[[], Callable] | None, contract: RuntimeContract, numbers: Numbers | None = None) -> Any:
    """A native callable: the flat graph inputs, positionally, to the tuple of user outputs.

    forward: a native Program, or any callable `forward(*inputs) -> tuple or list of tensors`. make_backward: called once, at the first
    backward, on whichever thread that runs; what it returns takes saved inputs, saved outputs and tangents, and gives the grads of the
    contract (None allowed). None for inference. Neither may own the compiled module: they live as long as the compiled entry.
    numbers: what each call computes of its sizes, where there is more to compute than views of outputs need.
    Tangents arrive with the sizes and strides of the forward outputs, zeros where no gradient flowed; where none did that a gradient
    comes from, that gradient is None. In-place changes of saved tensors
    raise torch's usual error; so does a second backward without retain_graph. Double backward raises a RuntimeError.
    Raises VerifyError for a contract that contradicts itself.
    """
    verify(contract)
    positions = 1 + max(
        [
            -1,
            *contract.saved_positions,
            *contract.tangents,
            *(m.position for m in contract.mutations),
            *(o.position for o in contract.outputs if isinstance(o, (Fresh, ViewOfOutput))),
        ]
    )
    expected = getattr(getattr(forward, "schedule", None), "outputs", None)
    if expected is not None and len(expected) < positions:
        raise VerifyError("autograd", f"the contract uses forward output {positions - 1}, the program has {len(expected)}")
    numbers = numbers or Numbers(contract.sizes)
    outputs = tuple(output_row(o, numbers) for o in contract.outputs)
    return native_core().make_differentiable(
        forward,
        make_backward,
        contract.inputs,
        positions,
        outputs,
        tuple((m.input, m.position) for m in contract.mutations),
        contract.mutated_in_graph,
        contract.saved_inputs,
        contract.saved_positions,
        contract.tangents if make_backward is not None else (),
        contract.grads,
        contract.sources,
        symbol_rows(contract.symbols),
        numbers.shared(),
        marks_row(contract.marks, len(contract.tangents), len(contract.grads), len(contract.saved_inputs) + len(contract.saved_positions)),
    )


def symbol_rows(symbols: tuple[tuple[int, int | None], ...]) -> tuple:
    return tuple((i, {None: INT, REAL: FLOAT}.get(dim, dim)) for i, dim in symbols)


def view_row(view: View, numbers: Numbers) -> tuple:
    return tuple(map(numbers.extent, view.size)), tuple(map(numbers.extent, view.stride)), numbers.extent(view.offset)


def lineage_row(lineage: Lineage) -> tuple[int, bool, bool, bool, int]:
    return int(lineage.made), lineage.detached, lineage.counted, lineage.leaf, -1 if lineage.through is None else lineage.through


def marks_row(marks: Marks, tangents: int, grads: int, saved: int) -> tuple:
    """(inference, watches, flags, writes of inputs, of outputs, parts, needs, keeps, aliased, makers, views), as read_marks takes them. tangents, grads,
    saved: how many there are."""
    everything = ((tuple(range(tangents)), tuple(range(grads))),)
    parts = marks.parts if marks.parts is not None else everything if saved else ()
    watches = tuple((w.is_input, w.index, w.parts, w.refusing) for w in marks.watches)
    needs, keeps = marks.needs or (everything,) * saved, marks.keeps or (everything,) * saved
    return marks.inference, watches, marks.flags, marks.input_writes, marks.output_writes, parts, needs, keeps, marks.aliased, marks.makers, marks.views


def output_row(output: Output, numbers: Numbers) -> tuple:
    """(from, index, (made, detached, counted, leaf, through), size, stride, offset, value)."""
    match output:
        case Fresh():
            return (FRESH, output.position, HERE, (), (), 0, None)
        case InputItself():
            return (INPUT, output.input, HERE, (), (), 0, None)
        case ViewOfInput():
            return (INPUT_VIEW, output.input, lineage_row(output.lineage), *view_row(output.view, numbers), None)
        case ViewOfOutput():
            return (OUTPUT_VIEW, output.position, lineage_row(output.lineage), *view_row(output.view, numbers), None)
        case Constant():
            return (CONSTANT, -1, HERE, (), (), 0, output.value)


def verify(contract: RuntimeContract) -> None:
    indices = [*contract.saved_inputs, *contract.mutated_in_graph, *contract.grads, *(m.input for m in contract.mutations)]
    indices += [o.input for o in contract.outputs if isinstance(o, (InputItself, ViewOfInput))]
    if any(not 0 <= i < contract.inputs for i in indices):
        raise VerifyError("autograd", f"an input of {sorted(set(indices))} is not one of the {contract.inputs} inputs")
    changed = {*contract.mutated_in_graph, *(m.input for m in contract.mutations)} & set(contract.saved_inputs)
    if changed:
        raise VerifyError("autograd", f"inputs {sorted(changed)} are saved for backward and mutated; save a forward output instead")
    if len(set(contract.tangents)) != len(contract.tangents):
        raise VerifyError("autograd", "a forward output has two tangents")
    if contract.sources and (len(contract.sources) != len(contract.grads) or any(not 0 <= i < len(contract.tangents) for s in contract.sources for i in s)):
        raise VerifyError("autograd", f"the sources {contract.sources} do not fit {len(contract.grads)} gradients and {len(contract.tangents)} tangents")
    if contract.grads:
        lacking = [o.position for o in contract.outputs if isinstance(o, Fresh) and o.differentiable and o.position not in contract.tangents]
        if lacking:
            raise VerifyError("autograd", f"differentiable outputs {lacking} have no tangent")
