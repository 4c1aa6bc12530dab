"""What guards and recompiles say, as the user of a run writes it: `self.global_step` and not the counter behind it, settings as the program takes them."""

from __future__ import annotations

import dataclasses
import re

import yaml

from dynacompile.callbacks.origins import GROUP, has_group
from dynacompile.events import Compiled, Event, Evicted, GuardFailed, LimitHit, Recompiled

OF_MODULE = re.compile(rf"{GROUP}\.modules=\{{([^:]*): (.*)\}}", re.DOTALL)
"""A line of config with options of one module: its glob, which YAML may read as something else than a text, and the options."""
LOOP = r"\b_trainer\.fit_loop\."
READ_AS = (
    (re.compile(LOOP + r"epoch_loop\.automatic_optimization\.optim_progress\.optimizer\.step\.total\.completed\b"), "global_step"),
    (re.compile(LOOP + r"epoch_loop\.manual_optimization\.optim_step_progress\.total\.completed\b"), "global_step"),
    (re.compile(LOOP + r"epoch_progress\.current\.completed\b"), "current_epoch"),
    (re.compile(LOOP + r"epoch_loop\.batch_progress\.is_last_batch\b"), "trainer.is_last_batch"),
    (re.compile(r"\b_trainer\._accelerator_connector\.strategy\._optimizers\b"), "trainer.optimizers"),
    (re.compile(r"\b_trainer\._accelerator_connector\.strategy\b"), "trainer.strategy"),
    (re.compile(r"\b_trainer\."), "trainer."),
)
"""Paths that begin at a LightningModule, and what stands for them; the first that fits."""
OF_OPTIMIZER = re.compile(r"update \(.*\bcallbacks[/\\]optimizer_step\.py:\d+\)")
"""The frame of the function that clips and steps, which is no code of the user's."""


def as_read(text: str) -> str:
    """A text with these names in the place of paths."""
    if "_trainer." in text:
        for path, name in READ_AS:
            text = path.sub(name, text)
    return text


def as_setting(override: str) -> str:
    """A line of config as the program takes it: in a Hydra app with the group `compile` an override of its command line, else the keyword of the callback."""
    found = OF_MODULE.fullmatch(override)
    if found is None or has_group():
        return override
    glob, options = found.groups()
    return f"modules={{{glob!r}: {yaml.safe_load(options)!r}}}"


def with_setting(event: Event) -> Event:
    """The event with what it advises as this process takes it."""
    return dataclasses.replace(event, override=as_setting(event.override)) if isinstance(event, (Recompiled, LimitHit)) else event


def with_names(event: Event) -> Event:
    """The event as a user reads it. What it advises goes by paths."""
    match event:
        case Recompiled():
            event = dataclasses.replace(event, failed=tuple(map(as_read, event.failed)), expected=as_read(event.expected), done=as_read(event.done))
        case LimitHit():
            event = dataclasses.replace(event, failed=tuple(map(as_read, event.failed)), guard=as_read(event.guard))
        case GuardFailed():
            event = dataclasses.replace(event, source=as_read(event.source))
    return of_optimizer(event)


def of_optimizer(event: Event) -> Event:
    """An event of the function that clips and steps, told by the name of the optimizer's step; any other as it is."""
    if not isinstance(event, (Compiled, Evicted, LimitHit, Recompiled)) or OF_OPTIMIZER.fullmatch(event.frame) is None:
        return event
    event = dataclasses.replace(event, frame=event.region)
    match event:
        case Recompiled():
            failed = tuple(map(as_optimizer, event.failed))
            return dataclasses.replace(event, failed=failed, site="", expected=as_optimizer(event.expected), done=as_optimizer(event.done))
        case LimitHit():
            return dataclasses.replace(event, failed=tuple(map(as_optimizer, event.failed)), guard=as_optimizer(event.guard))
    return event


def as_optimizer(text: str) -> str:
    """A text with the optimizer in the place of what its `step` is a method of."""
    return text.replace("step.__self__", "optimizer")
