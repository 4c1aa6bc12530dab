"""What capture knows of torch beyond its operations; importing the parts fills the tables."""

from __future__ import annotations

import dynacompile.capture.values.attention
import dynacompile.capture.values.checkpointing
import dynacompile.capture.values.collectives
import dynacompile.capture.values.control_flow
import dynacompile.capture.values.derivatives
import dynacompile.capture.values.dtensors
import dynacompile.capture.values.functional
import dynacompile.capture.values.grad_modes
import dynacompile.capture.values.gradients
import dynacompile.capture.values.transforms
import dynacompile.capture.values.written_collectives  # noqa: F401
