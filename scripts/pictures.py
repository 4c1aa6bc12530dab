"""Makes the pictures of docs/images anew: trains a recipe, runs a small sweep, and has a browser show their pages.

    python scripts/pictures.py                                     # with the browser that PyQt6-WebEngine brings
    python scripts/pictures.py --browser chromium --size 1000x980  # with another Chromium
    python scripts/pictures.py --run logs/DATE/TIME --sweep logs/DATE/TIME-sweep   # of runs that are there, training nothing

Run it where nothing else runs: the pages show times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dynacompile.callbacks.sweep import show_sweep

ROOT = Path(__file__).parents[1]
SWEEP = ("-m", "compile=none,default", "model=mlp,gpt", "trainer=fast")


def trained(folder: Path, arguments: Sequence[str]) -> Path:
    """The folder of a run, or of a sweep, of the recipes."""
    kind = "sweep" if "-m" in arguments else "run"
    place = f"hydra.{kind}.dir={folder / kind}"
    subprocess.run([sys.executable, "train.py", *arguments, "logger=csv", place], cwd=ROOT, check=True)
    return folder / kind


def report_of(run: Path) -> Path:
    return max(run.rglob("compile_report*.html"), key=lambda path: path.stat().st_mtime)


def take(page: Path, picture: Path, browser: str, size: str, dark: bool = False) -> None:
    """Writes the picture of a page as it begins. Raises CalledProcessError where the browser fails."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    if browser:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size.replace('x', ',')}"]
        look = ["--blink-settings=preferredColorScheme=0"] if dark else []
        command = [browser, *flags, *look, f"--screenshot={picture}", page.absolute().as_uri()]
    else:
        command = [sys.executable, "scripts/browser.py", str(page), "--size", size, "--to", str(picture), *(["--dark"] if dark else [])]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not picture.is_file():
        sys.exit(f"error: {command[0]} has made no {picture}")
    print(picture)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", default="", help="a Chromium (default: that of PyQt6-WebEngine)")
    parser.add_argument("--size", default="1000x980", help="WIDTHxHEIGHT")
    parser.add_argument("--run", type=Path, help="folder of a run (default: one is trained)")
    parser.add_argument("--sweep", type=Path, help="folder of a sweep (default: one is run)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images", help="the folder of the pictures")
    parser.add_argument("overrides", nargs="*", help="of the run that is trained, as in `python train.py model=gpt trainer.max_steps=500`")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        run = chosen.run or trained(Path(temporary), chosen.overrides)
        sweep = chosen.sweep or trained(Path(temporary), SWEEP)
        show_sweep(sweep.absolute())
        to = chosen.to.absolute()
        take(report_of(run), to / "report.png", chosen.browser, chosen.size)
        take(report_of(run), to / "report-dark.png", chosen.browser, chosen.size, dark=True)
        take(sweep / "sweep.html", to / "sweep.png", chosen.browser, chosen.size)


if __name__ == "__main__":
    main()
