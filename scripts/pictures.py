"""Makes the pictures of docs/images anew: trains a recipe, runs a small sweep, and has a browser show their pages and what the run printed as it ended.

    python scripts/pictures.py                                     # with the browser that PyQt6-WebEngine brings
    python scripts/pictures.py --browser chromium                  # with another Chromium
    python scripts/pictures.py --run logs/DATE/TIME --sweep logs/DATE/TIME-sweep   # of runs that are there, training nothing

Run it where nothing else runs: the pages show times. Look at each picture before you keep it.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from dynacompile.callbacks.screen import panel
from dynacompile.callbacks.sweep import show_sweep

ROOT = Path(__file__).parents[1]
RUN = ("trainer.max_steps=200", "trainer.val_check_interval=100")
SWEEP = ("-m", "compile=none,default", "model=mlp,gpt", "trainer=fast")
DESKTOP, PHONE = "1000x980", "390x844"
TERMINAL = """<!doctype html><meta charset="utf-8"><title>dynacompile</title>
<style>body {{ margin: 0; background: {background}; color: {foreground}; padding: 1.25rem 1.5rem; width: max-content; }}
pre {{ margin: 0; font: 15px/1.2 "DejaVu Sans Mono", Menlo, Consolas, monospace; }}</style>
<pre>{code}</pre>"""


@dataclass(frozen=True)
class Picture:
    """One file of docs/images. of: "report", "sweep" or "screen". begins: the id of the place that it begins at."""

    name: str
    of: str
    size: str = DESKTOP
    dark: bool = False
    begins: str = ""


PICTURES = (
    Picture("report", "report"),
    Picture("report-dark", "report", dark=True),
    Picture("report-phone", "report", PHONE),
    Picture("report-time", "report", begins="time"),
    Picture("report-kernels", "report", begins="kernels"),
    Picture("sweep", "sweep", "1000x900"),
    Picture("sweep-dark", "sweep", "1000x900", dark=True),
    Picture("screen", "screen", "1000x440", dark=True),
)


def trained(folder: Path, arguments: Sequence[str]) -> Path:
    """The folder of a run, or of a sweep, of the recipes."""
    kind = "sweep" if "-m" in arguments else "run"
    place = f"hydra.{kind}.dir={folder / kind}"
    subprocess.run([sys.executable, "train.py", *arguments, "logger=csv", place], cwd=ROOT, check=True)
    return folder / kind


def newest(run: Path, pattern: str) -> Path:
    return max(run.rglob(pattern), key=lambda path: path.stat().st_mtime)


def closing_screen(run: Path, page: Path) -> Path:
    """Writes what a run printed as it ended into a page, as a dark terminal shows it."""
    summary = json.loads(newest(run, "summary*.json").read_text(encoding="utf-8"))
    rows = [(name, value) for name, value in summary["facts"] if name != "logs"]
    folder = "logs/2026-01-31/12-00-00/csv"
    rows = [row for row in rows if row[0] or not row[1].startswith("/")] + [("report", f"{folder}/compile_report.html"), ("logs", folder)]
    console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("$ python train.py", highlight=False)
    console.print(panel(rows, summary["compile"], bool((summary["times"] or {}).get("within_noise"))))
    page.write_text(console.export_html(theme=MONOKAI, code_format=TERMINAL, inline_styles=True), encoding="utf-8")
    return page


def take(page: Path, picture: Path, browser: str, wanted: Picture) -> None:
    """Writes the picture of a page. Raises CalledProcessError where the browser fails."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    address = page.absolute().as_uri() + (f"#{wanted.begins}" if wanted.begins else "")
    if browser:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={wanted.size.replace('x', ',')}"]
        look = ["--blink-settings=preferredColorScheme=0"] if wanted.dark else []
        command = [browser, *flags, *look, f"--screenshot={picture}", address]
    else:
        look = ["--dark"] if wanted.dark else []
        begins = ["--run", f"location.hash = {wanted.begins!r}"] if wanted.begins else []
        command = [sys.executable, "scripts/browser.py", str(page), "--size", wanted.size, "--to", str(picture), *look, *begins]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not picture.is_file():
        sys.exit(f"error: {command[0]} has made no {picture}")
    print(picture)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", default="", help="a Chromium (default: that of PyQt6-WebEngine)")
    parser.add_argument("--run", type=Path, help="folder of a run (default: one is trained)")
    parser.add_argument("--sweep", type=Path, help="folder of a sweep (default: one is run)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images", help="the folder of the pictures")
    parser.add_argument("--only", default="", help="of the pictures the one of this name")
    parser.add_argument("overrides", nargs="*", help="of the run that is trained, as in `python scripts/pictures.py model=gpt trainer.max_steps=500`")
    chosen = parser.parse_args(arguments)
    wanted = [picture for picture in PICTURES if chosen.only in ("", picture.name)]
    with tempfile.TemporaryDirectory() as temporary:
        pages: dict[str, Path] = {}
        if any(picture.of != "sweep" for picture in wanted):
            run = chosen.run or trained(Path(temporary), chosen.overrides or RUN)
            pages = {"report": newest(run, "compile_report*.html"), "screen": closing_screen(run, Path(temporary) / "screen.html")}
        if any(picture.of == "sweep" for picture in wanted):
            sweep = chosen.sweep or trained(Path(temporary), SWEEP)
            show_sweep(sweep.absolute())
            pages["sweep"] = sweep / "sweep.html"
        for picture in wanted:
            take(pages[picture.of], chosen.to.absolute() / f"{picture.name}.png", chosen.browser, picture)


if __name__ == "__main__":
    main()
