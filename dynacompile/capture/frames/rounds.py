"""Rounds of a loop that are alike are followed once.

One round of a `for` loop is watched while it is interpreted: what it reads of its item and of what hangs on it, the operations that it records, and the
values that it appends to lists. A later item is read in the same way, through the same guards. Where all that is read looks the same to Python, following
the round would record the same operations: they are recorded again, on the other tensors, and no instruction is interpreted.

What a round may do is a short list (`watch.py`). A round that does anything else is followed, and so is the last one, whose variables outlive the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.frames.interpreter import Taking
from dynacompile.capture.frames.loops import Loop, looks
from dynacompile.capture.frames.repetition import Known, Repetition
from dynacompile.capture.frames.watch import NotRepeatableError, Watch
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.iterators import EnumerateIterator, ZipIterator
from dynacompile.capture.values.sequence import SequenceIterator

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame
    from dynacompile.cpython.instructions import Instr

KEPT = 16  # rounds of one loop that later ones are compared with
MOST_FAILURES = 3  # rounds of one loop that cannot be repeated, after which none is watched any more


class Rounds:
    """The loops of one capture."""

    def __init__(self, cx: FrameContext):
        self.cx = cx
        self.loops: dict[tuple[int, int], tuple[SymbolicFrame, Loop]] = {}
        self.taken: dict[SymbolicFrame, Taking] = {}  # the generators that something empties now, by their frames

    @contextmanager
    def taking(self, frame: SymbolicFrame, taking: Taking) -> Iterator[None]:
        """While something empties a generator: its yields can be repeated."""
        before = self.taken.get(frame)
        self.taken[frame] = taking
        try:
            yield
        finally:
            if before is None:
                del self.taken[frame]
            else:
                self.taken[frame] = before

    def next(self, frame: SymbolicFrame, instr: Instr, iterator: IteratorValue) -> Value | None:
        """The item of the next round to be followed, after those that are repeated; None at the end."""
        cx = self.cx
        if (watch := cx.watching) is not None:
            assert isinstance(watch, Watch)
            self.end(watch, frame, instr)
        item = iterator.next(cx)
        if item is None or not is_plain_iterator(iterator) or not iterator.remaining():
            return item
        loop = self.loop_of(frame, instr, iterator)
        loop.begun += 1
        if loop.followed and loop.kept:
            loop.forget()
        loop.followed = True
        if loop.begun < 2 or loop.failures >= MOST_FAILURES or not self.is_plain():
            return item
        known: dict[int, Known] = {}
        with cx.held():
            while iterator.remaining() and self.repeat(loop, frame, item, known):
                item = iterator.next(cx)
                assert item is not None
        if iterator.remaining() and loop.kept < KEPT and cx.watching is None:
            cx.watching = Watch(cx, loop, frame, instr, item)
        return item

    def repeat(self, loop: Loop, frame: SymbolicFrame, item: Value, known: dict[int, Known]) -> bool:
        """Whether a round for an item was recorded again. known: by id, the rounds that were asked since the last instruction."""
        counted = isinstance(loop.iterator, EnumerateIterator)
        for one in reversed(loop.rounds.get(looks(item), ())):
            then = known.get(id(one))
            if then is None:
                then = known[id(one)] = Known(self.cx, one, frame)
            if Repetition(self.cx, then).repeat(item, counted):
                return True
        return False

    def loop_of(self, frame: SymbolicFrame, instr: Instr, iterator: IteratorValue) -> Loop:
        key, taking = (id(frame), instr.index), self.taken.get(frame)
        found = self.loops.get(key)
        if found is None or found[1].iterator is not iterator or found[1].taking is not taking:
            found = self.loops[key] = (frame, Loop(iterator, taking))  # the frame is kept, as its id is
        return found[1]

    def end(self, watch: Watch, frame: SymbolicFrame, instr: Instr) -> None:
        """A loop begins a round while one is watched: it is this one's end, or it is more than can be repeated."""
        self.cx.watching = None
        loop = watch.loop
        try:
            if watch.frame is not frame or watch.instr is not instr or frame.stack[-1] is not loop.iterator:
                raise NotRepeatableError
            made = watch.finish()
        except NotRepeatableError:
            loop.failures += 1
            return
        if not loop.add(watch.item, made, watch.lists_read):
            loop.forget()
            loop.failures = MOST_FAILURES

    def is_plain(self) -> bool:
        """Whether sizes are constants, and no machinery watches operations that are not run again: bodies of operators, exceptions, views of `.data`,
        inference tensors."""
        cx, recorder = self.cx, self.cx.recorder
        if (
            cx.symbols is not None
            and not cx.symbols.has_static_sizes()
            or cx.bodies
            or cx.handling is not None
            or cx.modes.inference
            or cx.overrides.modes.watched
        ):
            return False
        return recorder.watch is None and not (recorder.bases or recorder.asked or recorder.inference_memory or recorder.folded) and not torch.is_grad_enabled()


def is_plain_iterator(iterator: Value) -> bool:
    """Whether asking it for an item runs no code of the program."""
    if type(iterator) is EnumerateIterator:
        return is_plain_iterator(iterator.inner)
    return all(map(is_plain_iterator, iterator.parts)) if type(iterator) is ZipIterator else type(iterator) is SequenceIterator
