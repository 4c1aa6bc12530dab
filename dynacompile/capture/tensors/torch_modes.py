"""Torch's modes in a frame: gradients, inference, autocast. They are really entered, since they decide what operations on fakes give, and are written to
the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.recording import Recording


class TurnsOnGradients(Exception):
    """The frame turns gradients on that it begins without: its graph is to begin with them, and to turn them off at once."""


Entry = tuple[torch.fx.Node, Any, Callable]  # the node that enters a mode, what entering gave, and what leaves it


class TorchModes:
    """inference: the frame is in inference mode; block: in the graph, where the frame has entered it. told: whether gradients are on there, which nothing but
    who asks can tell. without_hooks: messages of the blocks that disable hooks of saved tensors, outermost first. autocasts: what the frame has entered,
    outermost first. autocast_cache: as the program has set it; capture goes without."""

    def __init__(self, recorder: Recording, inference: bool):
        self.recorder, self.inference = recorder, inference
        self.block: Entry | None = None
        self.told = False
        self.without_hooks: list[str] = []
        self.begins_with_gradients = torch.is_grad_enabled()
        self.autocasts: list[Entry] = []
        self.autocast_cache = True

    def is_grad_enabled(self) -> bool:
        return self.told if self.inference else torch.is_grad_enabled()

    def set_grad_mode(self, mode: bool) -> None:
        if self.inference:
            self.told = mode
            return
        if mode and not self.begins_with_gradients and not torch.is_grad_enabled():
            raise TurnsOnGradients
        if torch.is_grad_enabled() != mode:
            self.recorder.state_change(of_torch.set_grad_enabled, mode)
            of_torch.set_grad_enabled(mode)

    def enter_autocast(self, enter: Callable, leave: Callable, arguments: tuple) -> Entry:
        node = self.recorder.state_change(enter, *arguments)
        entry = (node, enter(*arguments), leave)
        self.autocasts.append(entry)
        return entry

    def exit_autocast(self, entry: Entry) -> None:
        if not self.autocasts or self.autocasts[-1] is not entry:
            raise unsupported("context-manager", "autocast regions that are not nested")
        node, handle, leave = self.autocasts.pop()
        self.recorder.state_change(leave, node)
        if leave is not of_torch.exit_inference_mode:
            leave(handle)

    def set_inference(self, mode: bool) -> None:
        """Written to the graph alone: fakes that are inference tensors would not count their versions."""
        if mode and not self.inference:
            self.set_grad_mode(False)
            self.block = (self.recorder.state_change(of_torch.enter_inference_mode, True), None, of_torch.exit_inference_mode)
            self.autocasts.append(self.block)
        elif self.inference and not mode:
            if self.block is None:
                raise unsupported("context-manager", "torch.inference_mode(False) inside of inference mode of before the frame")
            self.exit_autocast(self.block)
        self.inference = self.recorder.in_inference = mode

    def leave(self) -> None:
        """Leaves the autocast regions that the frame is still in."""
        for _, handle, leave in reversed(self.autocasts):
            if leave is not of_torch.exit_inference_mode:
                leave(handle)
