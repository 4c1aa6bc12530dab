"""Many processes compile the same training step at once over one store: what is built once and how long each takes, cold and warm.

python scripts/bench_store.py [--processes 64] [--folder STORE]: prints the kernels' libraries that were built in all, the seconds of the first and of the last
process, and the store's bytes. A process that builds nothing has read everything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

CHILD = """
import json, sys, time
import torch, dynacompile
from dynacompile import native
from dynacompile.build import cpp
native.core()
built, compiled = [], cpp.compile_unit
cpp.compile_unit = lambda *given: built.append(1) or compiled(*given)
while time.time() < float(sys.argv[1]): time.sleep(0.001)
begin = time.perf_counter()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8))
step = dynacompile.compile(model)
step(torch.ones(4, 64)).sum().backward()
print(json.dumps([len(built), time.perf_counter() - begin]))
"""


def run(processes: int, store: Path, delay: float) -> tuple[list[int], list[float]]:
    """Libraries built and seconds, of each process."""
    environment = {**os.environ, "DYNACOMPILE_CACHE_DIR": str(store), "OMP_NUM_THREADS": "1"}
    begin = str(time.time() + delay)
    started = [subprocess.Popen([sys.executable, "-c", CHILD, begin], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    found = [json.loads(process.communicate()[0]) for process in started]
    return [built for built, _ in found], [seconds for _, seconds in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds from the start until all of them begin to compile")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = args.folder or Path(temporary) / "store"
        for what in ("cold", "warm"):
            built, seconds = run(args.processes, store, args.delay)
            size = sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
            print(
                f"{what}: {args.processes} processes built {sum(built)} libraries, at most {max(built)} in one; first step in {min(seconds):.1f} to "
                f"{max(seconds):.1f} s each; the store has {size} bytes"
            )


if __name__ == "__main__":
    main()
