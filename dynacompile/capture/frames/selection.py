"""Branches whose arms store small tensors: both arms are followed, and `torch.where` selects what the frame goes on with.

A layer that keeps ranges of what it has seen stores other new tensors in its first call than in later ones, and eager asks a tensor which. Both arms are
computed where that costs less than the question: they consist of operations over few elements that raise, write and draw nothing, and every attribute, variable
and value on the stack in which they differ is a new tensor in both, that nothing differentiates. A branch of which this turns out not to be so is
asked in the next attempt (`Manner.asked_at`). `predication.py` does the same for numbers, which may also be written in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import NotConstant, Unsupported
from dynacompile.capture.bytecode import Decoded
from dynacompile.capture.frames.predication import IN_ARMS, Arm, refusal, same
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.assumptions import is_harmless
from dynacompile.capture.tensors.entry_conditions import is_random
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.cpython.instructions import Instr

if TYPE_CHECKING:
    from types import CodeType

    from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame

IN_SELECTED = IN_ARMS | {"STORE_FAST", "STORE_ATTR"}
MOST_ELEMENTS = 1 << 12  # of what an operation of an arm takes or gives
MOST_OPERATIONS = 32  # of both arms


class Refused(Exception):
    """A branch can't be selected: the frame is to be captured with a question there."""

    def __init__(self, place: tuple[CodeType, int]):
        self.place = place


class SelectedArm(Arm):
    """stores: attributes that the arm stores, by their owner and name. They are stored when both arms have been followed."""

    def __init__(self, cx: FrameContext, condition: TensorValue):
        super().__init__(cx, condition)
        self.stores: dict[tuple[Value, str], Value] = {}
        self.begin = len(cx.recorder.nodes)

    def check_call(self, code: CodeType) -> None:
        if self.has_stored():  # which it may read
            raise refusal(f"calls {code.co_qualname}")
        super().check_call(code)

    def check(self, frame: SymbolicFrame, step: Instr) -> None:
        """Of an instruction that is about to run: of what is called where attributes have been stored, tensors and torch read none."""
        callees = map(self.cx.force, frame.stack[-step.arg - 2 :][:2]) if step.op == "CALL" and self.has_stored() else (None,)
        if not any(c is None or isinstance(c, TorchFunction) or isinstance(c, Method) and isinstance(c.owner, TensorValue) for c in callees):
            raise refusal("calls what may read what it has stored")

    def has_stored(self) -> bool:
        return bool(self.stores) or isinstance(self.outer, SelectedArm) and self.outer.has_stored()

    def write(self, kind: str, target: object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        return None

    def store(self, owner: Value, name: str, value: Value) -> None:
        if not isinstance(owner, ObjectValue) or owner.source is None or not owner.stores_plainly(name):
            raise refusal(f"stores {owner.describe()}.{name}")
        self.stores[owner, name] = value

    def stored(self, owner: Value, name: str) -> Value | None:
        return self.stores.get((owner, name)) or (None if self.outer is None else self.outer.stored(owner, name))

    def finish(self) -> None:
        super().finish()
        nodes = self.cx.recorder.nodes[self.begin :]
        if len(nodes) > MOST_OPERATIONS or not all(is_harmless(n) and not is_random(n) and all(map(is_small, (n, *n.all_input_nodes))) for n in nodes):
            raise refusal("computes what only one of them may")


def is_small(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(type(n) is int for n in value.shape) and value.numel() <= MOST_ELEMENTS


def selected_branch(frame: SymbolicFrame, instr: Instr, condition: Value, jumps_if: bool) -> bool:
    """Follows both arms of a conditional jump, and goes on where they meet; False where the condition is to be asked."""
    cx, place = frame.cx, (frame.code, instr.index)
    if type(condition) is not TensorValue or condition.number() is not None or condition.fake.numel() != 1 or condition.fake.requires_grad:
        return False
    met = None if cx.bodies or cx.watching is not None or place in cx.manner.asked_at else meeting(frame.decoded, instr)
    if met is None or instr.target is None:
        return False
    stack, slots = list(frame.stack), list(frame.slots)
    try:
        flag: Value = condition if not condition.fake.dim() else cx.op("call_method", "reshape", [condition, TupleValue([])], {})
        flag = flag if condition.fake.dtype is torch.bool else cx.op("call_function", torch.ne, [flag, ConstantValue(0)], {})
        falls = follow(frame, instr.index + 1, *met, flag)
        frame.stack, frame.slots = list(stack), list(slots)
        jumps = follow(frame, instr.target.index, *met, flag)
        select(frame, met[0], *((jumps, falls) if jumps_if else (falls, jumps)))
    except (Unsupported, NotConstant) as reason:
        raise Refused(place) from reason
    return True


def meeting(decoded: Decoded, instr: Instr) -> tuple[Instr, frozenset[int]] | None:
    """The first instruction on all ways from a conditional jump, and the places of those before it; None where a way leads over what arms do not have. It may
    be the head of a loop, which ways lead back to."""
    assert instr.target is not None
    copy = decoded.last_copy
    waiting, back, inside = {copy(instr.index + 1), copy(instr.target.index)}, set[int](), set[int]()
    while waiting:
        first = min(waiting)
        if first <= max(inside, default=instr.index):
            return None
        step = decoded.instrs[first]
        if len(waiting) == 1 and not back:
            return step, frozenset(inside)
        waiting.remove(first)
        inside.add(first)
        if step.op.startswith("POP_JUMP") and step.target is not None:
            waiting |= {copy(first + 1), copy(step.target.index)}
        elif step.op not in IN_SELECTED:
            return None
        elif step.target is None:
            waiting.add(copy(first + 1))
        else:
            (back if step.target.index < first else waiting).add(copy(step.target.index))
    return (decoded.instrs[back.pop()], frozenset(inside)) if len(back) == 1 else None


class Followed:
    """An arm that was followed: what it left."""

    def __init__(self, arm: SelectedArm, stack: list[Value], slots: list[Value | None]):
        self.arm, self.stack, self.slots, self.fresh = arm, stack, slots, arm.fresh()


def follow(frame: SymbolicFrame, start: int, join: Instr, inside: frozenset[int], flag: Value) -> Followed:
    cx, copy = frame.cx, frame.decoded.last_copy
    assert isinstance(flag, TensorValue)
    arm = cx.arm = SelectedArm(cx, flag)
    try:
        if arm.outer is not None and not isinstance(arm.outer, SelectedArm):
            raise refusal("has a branch of its own")
        frame.index = start
        while copy(frame.index) != join.index:
            if copy(frame.index) not in inside:
                raise refusal("raises an exception")
            arm.check(frame, frame.decoded.instrs[frame.index])
            frame.step()
    finally:
        cx.arm = arm.outer
    arm.finish()
    return Followed(arm, list(frame.stack), list(frame.slots))


def select(frame: SymbolicFrame, join: Instr, true: Followed, false: Followed) -> None:
    """Leaves the frame as it is after the branch: true where the condition holds."""
    cx, taken = frame.cx, set[int]()

    def chosen(left: Value | None, right: Value | None) -> Value:
        if left is right and left is not None or isinstance(left, ConstantValue) and isinstance(right, ConstantValue) and same(left.value, right.value):
            return left
        for value, arm in ((left, true), (right, false)):
            if type(value) is not TensorValue or not is_new(value, arm.fresh) or storage_of(value.fake) in taken:
                raise refusal("gives what is no new tensor")
            taken.add(storage_of(value.fake))
        assert isinstance(left, TensorValue) and isinstance(right, TensorValue)
        if (left.fake.shape, left.fake.dtype, left.fake.device) != (right.fake.shape, right.fake.dtype, right.fake.device):
            raise refusal("gives another kind of tensor")
        made = cx.op("call_function", torch.where, [true.arm.condition, left, right], {})
        if not isinstance(made, TensorValue) or not made.fake.stride() == left.fake.stride() == right.fake.stride():
            raise refusal("gives another layout")
        return made

    if true.arm.stores.keys() != false.arm.stores.keys() or list(true.arm.stores) != list(false.arm.stores):
        raise refusal("stores other attributes")
    live = frame.decoded.live_slots(join)
    frame.stack = [chosen(*pair) for pair in zip(true.stack, false.stack, strict=True)]
    pairs = enumerate(zip(true.slots, false.slots, strict=True))
    frame.slots = [left if left is right else chosen(left, right) if slot in live else None for slot, (left, right) in pairs]
    for owner, name in true.arm.stores:
        new = chosen(true.arm.stores[owner, name], false.arm.stores[owner, name])
        if cx.arm is None:
            owner.set_attr(cx, name, new)
        else:
            cx.arm.store(owner, name, new)
    frame.index = join.index


def is_new(value: TensorValue, fresh: set[int]) -> bool:
    """Whether an arm made a tensor, in memory of its own, that autograd does not follow."""
    fake = value.fake
    is_own = value.source is None and storage_of(fake) in fresh and not fake._is_view() and fake.is_contiguous()
    return is_own and not fake.requires_grad and not value.is_number and value.pytype() is torch.Tensor
