"""Where the files of a run go: into the run's own folder, under names that no file has."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlparse

if TYPE_CHECKING:
    import lightning as L
    from lightning.pytorch.loggers import Logger

NAMES = ("compile_events.jsonl", "compile_report.html", "summary.json", "compile/chosen.yaml")

Made = TypeVar("Made")


@dataclass
class RunFiles:
    """The files of one run. folder: None where nothing is to be written, and `reason` says why. written: in the order of writing.

    All are told apart from those of earlier runs in the same folder by one suffix: compile_report.html, compile_report-2.html, compile_report-test.html.
    """

    folder: Path | None
    stage: str = "fit"
    reason: str = ""
    suffix: str | None = None
    written: list[Path] = field(default_factory=list)

    def told(self, stem: str) -> str:
        """Where the file is that was written and whose name begins so, from the working folder where it lies below that; empty where none was."""
        found = next((path for path in self.written if path.name.startswith(stem)), None)
        if found is None:
            return ""
        return str(found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found)

    def make(self, name: str, write: Callable[[Path], Made]) -> Made:
        """What `write` gives for the path of the file `name`. It makes that file, and raises FileExistsError where another one has come to be there. Raises
        OSError."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            if self.suffix is None:
                self.suffix = free_suffix(self.folder, "" if self.stage == "fit" else f"-{self.stage}")
            stem, dot, ending = name.partition(".")
            path = self.folder / f"{stem}{self.suffix}{dot}{ending}"
            path.parent.mkdir(exist_ok=True)
            try:
                made = write(path)
            except FileExistsError:
                self.suffix = None
                continue
            self.written.append(path)
            return made


def free_suffix(folder: Path, stage: str) -> str:
    """The first suffix under which the folder has none of the files."""
    for number in itertools.count(1):
        suffix = stage if number == 1 else f"{stage}-{number}"
        if not any(os.path.lexists(folder / name.replace(".", f"{suffix}.", 1)) for name in NAMES):
            break
    return suffix


def files_of_run(trainer: L.Trainer, stage: str) -> RunFiles:
    """Where the files of this run of `stage` ("fit", "validate", "test", "predict") go. Call it where loggers have their experiments."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return RunFiles(None, stage, "fast_dev_run writes no files")
    place = place_of_run(trainer)
    if urlparse(place).scheme not in ("", "file"):
        return RunFiles(None, stage, f"{place} is no folder of this machine")
    folder = Path(urlparse(place).path if urlparse(place).scheme else place).expanduser().absolute()
    if not trainer.loggers and folder.resolve() == Path.cwd().resolve():
        folder = new_version(folder / "lightning_logs")
    return RunFiles(folder, stage)


def place_of_run(trainer: L.Trainer) -> str:
    """The folder of the first logger that has one; where none has, that in which Lightning keeps the checkpoints of a logger; else default_root_dir."""
    for logger in trainer.loggers:
        if logger.log_dir:
            return str(logger.log_dir)
    chosen = next((logger for logger in trainer.loggers if logger.save_dir), trainer.loggers[0] if trainer.loggers else None)
    return str(trainer.default_root_dir) if chosen is None else below(chosen, chosen.save_dir or trainer.default_root_dir)


def below(logger: Logger, root: str) -> str:
    """`root/name/version`, as ModelCheckpoint has it."""
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    parts = (re.sub(r"[^\w.-]", "_", str(part)) for part in (logger.name, version) if part is not None)
    return "/".join((str(root), *(part for part in parts if part.strip("."))))


def new_version(folder: Path) -> Path:
    """The next `version_N`, as CSVLogger counts; it is made when the first file is."""
    known = [int(found[1]) for path in folder.glob("version_*") if (found := re.fullmatch(r"version_(\d+)", path.name))]
    return folder / f"version_{max(known, default=-1) + 1}"
