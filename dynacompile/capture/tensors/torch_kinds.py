"""All that capture knows of torch; importing the parts fills their tables."""

from __future__ import annotations

from dynacompile.capture.tensors import (  # noqa: F401
    attention,
    autograd_functions,
    checkpointing,
    checks,
    collectives,
    control_flow,
    deferred_texts,
    derivatives,
    distributions,
    drawn_numbers,
    dtensors,
    entry_conditions,
    flexible_attention,
    functional,
    grad_modes,
    gradients,
    made_modules,
    optimizers,
    polyfilled,
    profilers,
    replaced_data,
    resizing,
    scripted,
    storages,
    torch_contexts,
    torch_functions,
    transforms,
    written_collectives,
)
