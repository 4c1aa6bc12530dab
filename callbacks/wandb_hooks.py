"""What `wandb.watch` has put on a model: hooks, which run as Python beside the compiled code."""

from __future__ import annotations

from collections import Counter

import lightning as L


def hooks_of_wandb(module: L.LightningModule) -> str:
    """One sentence on the hooks of wandb.watch below `module`; empty where there are none. Without wandb nothing is imported: the names lie in the modules."""
    kinds: Counter[str] = Counter()
    for part in module.modules():
        kinds.update(str(name).partition("/")[0] for name in part.__dict__.get("_wandb_hook_names", ()))
    if not kinds:
        return ""
    told = [f"hooks on {kinds[kind]} {what}" for kind, what in (("gradients", "gradients"), ("topology", "modules for its graph")) if kinds[kind]]
    if kinds["parameters"]:
        on_root = any(str(name).startswith("parameters/") for name in module.__dict__.get("_wandb_hook_names", ()))
        never = ", which never runs, since Lightning calls training_step and not the module: watch a submodule instead"
        told.append(f"a hook that logs parameters{never if on_root and kinds['parameters'] == 1 else ''}")
    where = "on gradients beside the compiled backward, on modules inside a compiled step, whose graph ends at calls that log"
    return f"{', '.join(told)}. They run as Python: {where}"
