"""What capture knows of torch beyond its operations; importing the parts fills the tables."""

from __future__ import annotations

from dynacompile.capture.values import (
    attention,
    checkpointing,
    collectives,
    control_flow,
    derivatives,
    dtensors,
    functional,
    gradients,
    transforms,
    written_collectives,
)

TORCH_KINDS = (attention, checkpointing, collectives, control_flow, derivatives, dtensors, functional, gradients, transforms, written_collectives)
