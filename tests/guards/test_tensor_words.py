"""A tensor's metadata read as words is what torch's getters tell, for tensors of all sorts, and any change of it in place is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dynacompile.guards.evaluate import FrameValues
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import module_facts, tensor_facts
from dynacompile.ir.source import Local, Registered

X = Local("x", 0)


def leaf(*sizes: int, grad: bool = False) -> torch.Tensor:
    return torch.zeros(sizes, requires_grad=grad)


def sorts() -> list[torch.Tensor]:
    base, plain = leaf(4, 3, grad=True), leaf(4, 3)
    with torch.no_grad():
        unrecorded = base[1:]
    frozen, once = torch.nn.Parameter(leaf(4, 3), requires_grad=False), leaf(4, 3, grad=True).requires_grad_(False)
    written = leaf(4, 3)
    view_of_written = written[1:]
    written.mul_(leaf(4, 3, grad=True))  # now its view requires gradients, though nothing was done to the view
    with torch.inference_mode():
        inference = leaf(4, 3)
    return [
        *(leaf(*sizes) for sizes in ((), (4,), (0,), (4, 3), (1, 3), (2, 3, 4), (2, 5, 4), (2, 3, 4, 5), (2, 3, 5, 5), (1,) * 5, (2,) * 6, (2, 2, 2, 1, 2, 2))),
        *(leaf(2, 3, 4, 5).permute(order) for order in ((0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3), (3, 0, 1, 2))),
        leaf(2, 3, 4, 5).to(memory_format=torch.channels_last),
        *(base, base * 2, base[1:], base.detach(), base[1:].detach(), unrecorded, plain[1:], view_of_written, written, frozen, once, inference),
        torch.nn.Parameter(leaf(4, 3)),
        torch.zeros(4, 3, dtype=torch.float64),
        torch.zeros(4, 3, dtype=torch.int64),
        torch.zeros(4, 3, dtype=torch.complex64),
        torch.zeros(4, 3, dtype=torch.complex64).conj(),
        torch.zeros(4, 3, device="meta"),
        torch.zeros(4, 3).to_sparse(),
        plain.t(),
        plain.expand(2, 4, 3),
    ]


def test_every_sort_against_every_other():
    """Twice each: what the check has learned from a tensor that passed must not let another pass."""
    all_of_them = sorts()
    for made_for in all_of_them:
        guard = Guard("TENSOR_MATCH", X, tensor_facts(made_for))
        program = compile_guards([guard])
        for _ in range(2):
            for tensor in all_of_them:
                assert program.check((tensor,), None, {}, {}) is (not failures([guard], FrameValues((tensor,)))), (guard.expected, tensor_facts(tensor))


def holder(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer("held", tensor)
    return module


def program_of(module: torch.nn.Module) -> tuple[list[Guard], Callable[[], bool]]:
    tensor = tensor_facts(module.held)
    guards = [Guard("MODULE", X, module_facts(module)), Guard("TENSOR_MATCH", Registered(X, "_buffers", "held"), tensor)]
    program = compile_guards(guards)
    return guards, lambda: program.check((module,), None, {}, {})


def write_to_base(tensor: torch.Tensor) -> None:
    tensor._base.mul_(leaf(*tensor._base.shape, grad=True))


def swap(tensor: torch.Tensor) -> None:
    torch.utils.swap_tensors(tensor, torch.zeros(2, 2))


def point_elsewhere(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(3, 4, dtype=tensor.dtype)


def permute_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.transpose(1, 2)


CHANGES: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object]]] = {
    "requires_grad_": (lambda: leaf(4, 3), lambda t: t.requires_grad_()),
    "requires_grad_ off": (lambda: leaf(4, 3, grad=True), lambda t: t.requires_grad_(False)),
    "frozen, then not": (lambda: leaf(4, 3, grad=True).requires_grad_(False), lambda t: t.requires_grad_()),
    "written with gradients": (lambda: leaf(4, 3), lambda t: t.mul_(leaf(4, 3, grad=True))),
    "base written with gradients": (lambda: leaf(4, 3)[1:], write_to_base),
    "detach_": (lambda: leaf(4, 3, grad=True) * 2, lambda t: t.detach_()),
    "data": (lambda: leaf(4, 3), point_elsewhere),
    "data of another dtype": (lambda: leaf(4, 3), lambda t: setattr(t, "data", torch.zeros(4, 3, dtype=torch.float64))),
    "set_": (lambda: leaf(4, 3), lambda t: t.set_(torch.zeros(2, 6))),
    "resize_": (lambda: leaf(4, 3), lambda t: t.resize_(3, 4)),
    "t_": (lambda: leaf(4, 3), lambda t: t.t_()),
    "unsqueeze_": (lambda: leaf(4, 3), lambda t: t.unsqueeze_(0)),
    "a first dimension": (lambda: leaf(), lambda t: t.unsqueeze_(0)),
    "as_strided_": (lambda: leaf(4, 3), lambda t: t.as_strided_((4, 3), (2, 1))),
    "inner dimensions": (lambda: leaf(2, 3, 4, 5), permute_data),
    "inner strides": (lambda: leaf(2, 3, 3, 5), permute_data),
    "of six dimensions": (lambda: leaf(2, 1, 3, 1, 2, 1), permute_data),
    "swap_tensors": (lambda: leaf(4, 3), swap),
    "class": (lambda: torch.nn.Parameter(leaf(4, 3)), lambda t: setattr(t, "__class__", type("Mine", (torch.nn.Parameter,), {}))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_in_place_are_seen(change):
    make, apply = CHANGES[change]
    tensor = make()
    module = holder(tensor)
    guards, holds = program_of(module)
    for _ in range(3):
        assert holds() and not failures(guards, FrameValues((module,)))
    apply(tensor)
    assert failures(guards, FrameValues((module,))), "the change changes no fact"
    for _ in range(3):
        assert not holds()


def test_many_tensors_one_of_them_changes():
    """Tensors of one to five dimensions, one after the other: the sizes of one are not taken for those of the next."""
    module = torch.nn.Module()
    for i in range(40):
        module.register_buffer(f"b{i}", torch.zeros(*range(2, 3 + i % 5)))
    guards = [Guard("MODULE", X, module_facts(module))]
    guards += [Guard("TENSOR_MATCH", Registered(X, "_buffers", n), tensor_facts(t)) for n, t in module._buffers.items()]
    program = compile_guards(guards)
    for name, tensor in module._buffers.items():
        for dim in range(tensor.dim()):
            assert program.check((module,), None, {}, {})
            before = tensor.data
            tensor.data = before.narrow(dim, 0, 1)
            assert not program.check((module,), None, {}, {}), (name, dim)
            assert f"b{program.last_failed - 1}" == name
            tensor.data = before
    assert program.check((module,), None, {}, {})
