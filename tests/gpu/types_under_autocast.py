"""Types of results under autocast on a GPU, eager's and those of fakes: `python -m tests.gpu.types_under_autocast PART` tells of those that differ.

A process of its own, since torch's samples forbid later tests to set flags, and a kernel that reads foreign memory ends the process's use of the GPU.
"""

from __future__ import annotations

import sys

import torch
from torch.utils._pytree import tree_map

from tests.opdb.test_types_under_autocast import CHUNKS, calls, types, types_of_fakes

PARTS = 4
REFUSED = ("pinverse", "trace", "ldexp", "mvlgamma")
"""Of the operations that capture leaves to Python, those whose rules for fakes know nothing of it."""


def on_gpu(value):
    return value.detach().cuda() if isinstance(value, torch.Tensor) else value


def main(part: int) -> int:
    different, compared = {}, 0
    for chunk in range(part, CHUNKS, PARTS):
        for op, args, kwargs in calls(chunk):
            if op.name.startswith("jiterator") or op.name in REFUSED:  # of the former, torch's own kernels read memory that is none of theirs
                continue
            given = tree_map(on_gpu, (args, kwargs))
            wanted = types(op.op, *given, "cuda")
            for name, found in types_of_fakes(op, args, kwargs, "cuda:0").items() if wanted is not None else ():
                compared += 1
                if found != wanted:
                    different[op.name, name] = found, wanted
    print(f"{compared} compared, {different}")
    return int(compared < 200 or bool(different))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
