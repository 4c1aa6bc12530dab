"""Two checkouts of dynacompile side by side: `scripts/bench.py trees --against FOLDER` says whether a change made anything slower.

Each round measures every workload in both trees, one process after the other and the first of the two in turn, with empty caches. The
workloads are this tree's; the package is each tree's own. A row's ratio is the median over rounds of this tree's step time over the other's,
beside the smallest and the largest, which tell what noise is.
"""

from __future__ import annotations

import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
WORKER = """
import json, sys
root, tree, name, device, mode, seconds = sys.argv[1:]
sys.path.insert(0, tree)
import dynacompile
sys.path[0] = root
from scripts.bench import worker
figures = worker("dynacompile", name, device, mode, float(seconds))
print(json.dumps({**figures, "package": dynacompile.__file__}))
"""


def measure(tree: Path, name: str, device: str, mode: str, seconds: float) -> dict[str, Any]:
    """One process of one tree. Raises RuntimeError with the last line of its error, or where it imported another tree's package."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")} | extra_path()
    with tempfile.TemporaryDirectory() as caches:
        environment |= {"DYNACOMPILE_CACHE_DIR": f"{caches}/ours", "TRITON_CACHE_DIR": f"{caches}/triton"}
        command = [sys.executable, "-c", WORKER, str(ROOT), str(tree), name, device, mode, str(seconds)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{tree}: {name}: {(run.stderr.strip().splitlines() or ['no output'])[-1][:200]}")
    figures = json.loads(run.stdout.strip().splitlines()[-1])
    if not Path(figures["package"]).is_relative_to(tree):
        raise RuntimeError(f"{figures['package']} was imported for {tree}")
    return figures


def extra_path() -> dict[str, str]:
    """PYTHONPATH without this tree and the other: where packages lie that are not installed."""
    kept = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and not (Path(p) / "dynacompile").is_dir()]
    return {"PYTHONPATH": os.pathsep.join(kept)} if kept else {}


def table(against: Path, only: str, device: str, mode: str, seconds: float, rounds: int) -> str:
    """Markdown: step time of both trees, the ratio, the peak memory on a GPU, and the seconds of the first call."""
    names = [w.name for w in WORKLOADS.values() if device in w.devices and fnmatch.fnmatch(w.name, only)]
    columns = ["workload", "before", "now", "ratio (lowest to highest)", "first call, s: before", "now", "peak MiB: before", "now"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    ratios: list[float] = []
    for name in names:
        pairs = [pair(against, name, device, mode, seconds, turn) for turn in range(rounds)]
        each = sorted(now["step"] / before["step"] for before, now in pairs)
        ratios.append(statistics.median(each))
        middle = [{key: statistics.median(p[side][key] for p in pairs) for key in ("step", "first", "peak")} for side in (0, 1)]
        steps = [f"{m['step'] * 1e6:.1f} us" if m["step"] < 1e-3 else f"{m['step'] * 1e3:.2f} ms" for m in middle]
        cells = [name, *steps, f"{ratios[-1]:.3f} ({each[0]:.3f} to {each[-1]:.3f})", *(f"{m['first']:.2f}" for m in middle)]
        cells += [f"{m['peak']:.0f}" if m["peak"] else "" for m in middle]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    lines.append(f"\nGeometric mean of the ratios: {statistics.geometric_mean(ratios):.3f} over {len(ratios)} workloads, {rounds} rounds.")
    return "\n".join(lines)


def pair(against: Path, name: str, device: str, mode: str, seconds: float, turn: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the other tree's figures, this tree's), of which every second turn measures this tree first."""
    order = [against, ROOT] if turn % 2 == 0 else [ROOT, against]
    found = {tree: measure(tree, name, device, mode, seconds) for tree in order}
    return found[against], found[ROOT]
