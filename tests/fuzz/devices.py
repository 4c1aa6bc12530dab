"""Processes that see no CUDA device, for fuzzers whose points are about the process itself.

Where torch sees a device, its autograd keeps a thread for it from the first backward on, and refuses every backward in a child that is forked later; and
the driver opens files and pipes when it is first asked for a device. Both are so in eager, too, and would hide what is looked for.
"""

from __future__ import annotations

import os
import sys

import torch

NONE = {"CUDA_VISIBLE_DEVICES": ""}


def hide_devices() -> None:
    """Begins this program anew without devices, where torch may see one."""
    if torch.version.cuda is not None and any(os.environ.get(name) != value for name, value in NONE.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | NONE)
