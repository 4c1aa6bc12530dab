"""Runs torch's own op samples (`op_db`) through the compiler, compares with eager, and tells what differs, by cause.

Usage: python scripts/op_samples.py [--backend eager|aot_eager|reference|default] [--ops GLOB,...] [--dtypes float32,...] [--most N] [--grad]
                                    [--variants function,method,inplace] [--rival] [--workers N] [--out FILE.jsonl [--resume]]
       python scripts/op_samples.py --table FILE.jsonl [--against FILE.jsonl]

--most: at most N samples of an op, spread over all of them. --grad: samples that require gradients, whose gradients are compared too.
--rival: torch.compile(backend="eager") instead of ours. --table: shows what a run wrote; --against: next to a rival's run.
--resume: keeps what FILE.jsonl has of ops that were finished, and runs the others.
Samples run in worker processes: one that hangs or dies costs its sample, and is told as such.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from typing import IO

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.op_trials import OPTIONS, Told, names
from scripts.op_workers import Worker, work

FINISHED = "finished"  # key of the line that follows the last sample of an op


def write(out: IO[str] | None, line: dict) -> None:
    if out is not None:
        out.write(json.dumps(line) + "\n")
        out.flush()


def sweep(args: argparse.Namespace, argv: list[str]) -> list[Told]:
    told: list[Told] = []
    finished: set[tuple[str, str]] = set()
    if args.resume and Path(args.out).exists():
        told, finished = kept(args.out)
    tasks: Queue[tuple[str, str]] = Queue()
    for name, op in names().items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in args.ops):
            for dtype in args.dtypes:
                if getattr(torch, dtype) in op.supported_dtypes("cpu") and (name, dtype) not in finished:
                    tasks.put((name, dtype))
    out = open(args.out, "w") if args.out else None
    for one in told:
        write(out, asdict(one))
    for pair in sorted(finished):
        write(out, {FINISHED: pair})

    def serve() -> None:
        worker = Worker(__file__, argv)
        while True:
            try:
                name, dtype = tasks.get_nowait()
            except Empty:
                worker.stop()
                return
            for one in worker.op(name, dtype, args.timeout):
                told.append(one)
                write(out, asdict(one))
            write(out, {FINISHED: (name, dtype)})

    threads = [threading.Thread(target=serve) for _ in range(args.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def cause(detail: str) -> str:
    """What failures of one cause have in common."""
    return "".join("#" if c.isdigit() else c for c in detail)[:110]


def show(told: list[Told], against: dict[tuple, str] | None) -> None:
    counts = Counter(t.status for t in told)
    print(f"{len(told)} samples of {len({t.op for t in told})} ops: " + ", ".join(f"{v} {k}" for k, v in counts.most_common()))
    if against is not None:
        whole = [t for t in told if against.get((t.op, t.dtype, t.variant, t.sample)) == "ok"]
        good = sum(t.status == "ok" for t in whole)
        print(f"of {len(whole)} that the rival has whole, {good} are ({100 * good / max(len(whole), 1):.2f} %)")
        told = [t for t in whole if t.status != "ok"]
    groups: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for t in told:
        if t.status not in ("ok", "eager-raises"):
            groups[t.status, cause(t.detail)].append(t)
    for (status, _), group in sorted(groups.items(), key=lambda g: -len(g[1])):
        ops = Counter(t.op for t in group)
        one = group[0]
        print(f"{len(group):5d} {status:8s} {one.detail[:180]}")
        print(f"{'':15s}{', '.join(f'{k} {v}' for k, v in ops.most_common(12))} (sample {one.sample}, {one.dtype}, {one.variant})")


def read(path: str) -> list[Told]:
    return told_in(Path(path).read_text())


def told_in(text: str) -> list[Told]:
    return [Told(**line) for line in map(json.loads, text.splitlines()) if FINISHED not in line]


def kept(path: str) -> tuple[list[Told], set[tuple[str, str]]]:
    """What an earlier run told of the (op, dtype) that it finished, and these."""
    text = Path(path).read_text()
    complete = text[: text.rfind("\n") + 1]  # the last line may be a part of one
    finished = {tuple(line[FINISHED]) for line in map(json.loads, complete.splitlines()) if FINISHED in line}
    return [t for t in told_in(complete) if (t.op, t.dtype) in finished], finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(OPTIONS), default="eager")
    parser.add_argument("--ops", type=lambda s: s.split(","), default=["*"])
    parser.add_argument("--dtypes", type=lambda s: s.split(","), default=["float32"])
    parser.add_argument("--variants", type=lambda s: s.split(","), default=["function"])
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("--against")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.resume and not args.out:
        parser.error("--resume continues the file of --out")
    if args.work:
        return work(args)
    start = time.perf_counter()
    argv = [a for a in sys.argv[1:] if a != "--resume"]
    told = read(args.table) if args.table else sweep(args, argv)
    show(told, {(t.op, t.dtype, t.variant, t.sample): t.status for t in read(args.against)} if args.against else None)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
