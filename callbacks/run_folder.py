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

from dynacompile.errors import ConfigError

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
        return "" if found is None else from_here(found)

    def unfinished(self) -> str:
        """The name of the trace of the run before in this folder, where that left no summary; empty where it did, and where there is none."""
        if self.folder is None:
            return ""
        begun = [path for path in self.folder.glob("compile_events*.jsonl") if path not in self.written]
        last = max(begun, key=lambda path: path.stat().st_mtime, default=None)
        return "" if last is None or last.with_name(f"summary{last.stem.removeprefix('compile_events')}.json").exists() else last.name

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


def from_here(path: Path) -> str:
    """From the working folder where it lies below that, which is shorter."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)


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
    if (file := file_in_the_way(folder)) is not None:
        return RunFiles(None, stage, f"{file} is a file, not a folder")
    return RunFiles(folder, stage)


def file_in_the_way(path: str | os.PathLike[str]) -> Path | None:
    """The file that lies where a folder of that path, or one around it, would be; None where none does."""
    whole = Path(path).absolute()
    return next((part for part in (whole, *whole.parents) if os.path.lexists(part) and not os.path.isdir(part)), None)


def check_checkpoints(trainer: L.Trainer) -> None:
    """Raises ConfigError where a file lies in the way of checkpoints, which else the first of them would find, an epoch later."""
    for callback in trainer.checkpoint_callbacks:
        place = getattr(callback, "dirpath", None)
        if place and urlparse(str(place)).scheme == "" and (file := file_in_the_way(place)) is not None:
            raise ConfigError(needs_a_folder(file))


def needs_a_folder(file: Path) -> str:
    return f"{file} is a file, where the run needs a folder: name one as default_root_dir, or as what the logger or checkpoint saves in"


def note_file_in_the_way(error: BaseException) -> None:
    """Has the traceback of a folder that could not be made end with the reason."""
    if isinstance(error, NotADirectoryError) and error.filename and (file := file_in_the_way(os.fsdecode(error.filename))) is not None:
        error.add_note(needs_a_folder(file))


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
