"""Real text that is always at hand: the source of Python's standard library, as two files of bytes split by source file."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynacompile.env import user_cache

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "ensurepip"})
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """Two 1-d arrays of uint8, memory-mapped read-only."""

    train: np.ndarray
    validation: np.ndarray

    def unigram_loss(self) -> float:
        """Mean nats per byte of the validation text under the training text's byte frequencies (add-one smoothed)."""
        counts = np.bincount(self.train, minlength=256) + 1.0
        nats = -np.log(counts / counts.sum())
        share = np.bincount(self.validation, minlength=256) / max(len(self.validation), 1)
        return float((share * nats).sum())

    def uniform_loss(self) -> float:
        """Mean nats per byte under the uniform distribution over 256 bytes."""
        return math.log(256)


def library_files(root: Path) -> list[Path]:
    """The library's own .py files below `root`, in the order of their relative paths; tests and installed packages left out."""
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n not in SKIPPED_FOLDERS and not n.startswith("config-")]
        found += [Path(folder) / f for f in files if f.endswith(".py") and not f.startswith("_sysconfigdata")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def is_validation(name: str) -> bool:
    """Whether the file of that relative path belongs to the validation text; depends on the name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") < VALIDATION_SHARE * 2**32


def load(root: Path | None = None, cache: Path | None = None) -> Corpus:
    """The corpus of the library at `root` (default: this Python's), built once into `cache`. Raises FileNotFoundError where there is no source."""
    root = root or Path(sysconfig.get_path("stdlib"))
    files = library_files(root)
    if not files:
        raise FileNotFoundError(f"no .py files of the standard library in {root}: this Python comes without its source")
    stamp = hashlib.sha256("\n".join(f"{f.relative_to(root).as_posix()} {f.stat().st_size}" for f in files).encode()).hexdigest()[:12]
    folder = (cache or user_cache() / "corpus") / f"python-{sys.version_info.major}.{sys.version_info.minor}-{stamp}"
    split = {"train": False, "validation": True}
    for name, wanted in split.items():
        if not (folder / f"{name}.bin").exists():
            write(folder / f"{name}.bin", [f for f in files if is_validation(f.relative_to(root).as_posix()) is wanted])
    return Corpus(*(np.memmap(folder / f"{name}.bin", dtype=np.uint8, mode="r") for name in split))


def write(target: Path, files: list[Path]) -> None:
    """Concatenates `files` into `target`; a reader never sees a half-written file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as out:
        for path in files:
            out.write(path.read_bytes() + b"\n")
    os.replace(out.name, target)
