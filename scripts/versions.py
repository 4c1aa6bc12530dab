"""Runs the suite on pairs of CPython and torch, each in an environment of its own, and prints a row of docs/versions.md for each.

    python scripts/versions.py --folder ~/envs                        # all pairs of PAIRS whose CPython is installed
    python scripts/versions.py --folder ~/envs --pair 3.13:2.15.0 -- -q tests/frame tests/guards

An environment takes torch as pip finds it, with its CUDA packages where there is no CPU build (about 5 GB), and is used again by the next run; `--drop` removes
it after its run. Environments whose torch wants the same CUDA packages share them by hard links. What follows `--` goes to pytest.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ("3.11:2.13.0", "3.11:2.14.1", "3.12:2.11.0", "3.12:2.15.0", "3.13:2.15.0")
PACKAGES = """setuptools>=77
    wheel pytest pytest-xdist pytest-timeout hypothesis expecttest einops greenlet tensorboardX sympy numpy jinja2 lightning>=2.6,!=2.6.2,!=2.6.3
    hydra-core>=1.3,<1.4 omegaconf wandb rich scikit-learn vl-convert-python>=1.7 ruff mypy import-linter""".split()
CLOSING = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.M)


@dataclass(frozen=True)
class Pair:
    python: str
    torch: str

    @property
    def name(self) -> str:
        return f"python{self.python}-torch{self.torch}"


def parse_pair(text: str) -> Pair:
    python, _, torch = text.partition(":")
    if not re.fullmatch(r"3\.\d+", python) or not re.fullmatch(r"\d+\.\d+\.\d+", torch):
        raise argparse.ArgumentTypeError(f"{text!r} is no pair like 3.13:2.15.0")
    return Pair(python, torch)


def interpreter(version: str) -> Path | None:
    """The newest installed CPython of a minor version: on the path, or of pyenv."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode == 0:
        return Path(found)
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(folder.glob(f"{version}.*/bin/python"), key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.parent.name)])
    return installed[-1] if installed else None


def link_cuda_packages(site: Path, folder: Path) -> None:
    """Takes NVIDIA's packages from another environment, by hard links: pip then keeps those that fit, and fetches others."""
    for other in sorted(folder.glob("*/lib/python*/site-packages")):
        if other != site and (other / "nvidia").is_dir():
            for part in (other / "nvidia", *other.glob("nvidia_*")):
                shutil.copytree(part, site / part.name, copy_function=os.link, dirs_exist_ok=True)
            return


def environment(pair: Pair, folder: Path) -> Path:
    """The Python of the pair's environment, which is made where it is not there."""
    place = folder / pair.name
    python = place / "bin" / "python"
    if not (place / ".made").exists():
        base = interpreter(pair.python)
        if base is None:
            raise SystemExit(f"CPython {pair.python} is not installed")
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([base, "-m", "venv", place], check=True)
        link_cuda_packages(next(place.glob("lib/python*/site-packages")), folder)
        # a constraint of the machine's, which keeps everyday environments small, is not for these
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"torch=={pair.torch}", *PACKAGES], check=True, env=os.environ | {"PIP_CONSTRAINT": os.devnull})
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
        (place / ".made").touch()
    return python


def run_suite(python: Path, pair: Pair, folder: Path, arguments: list[str]) -> tuple[str, int]:
    """pytest's closing counts, and its exit status; the whole output is kept beside the environment."""
    log = folder / f"{pair.name}.log"
    own = os.environ | {"OMP_NUM_THREADS": "1", "DYNACOMPILE_NATIVE_DIR": str(private(folder / f"{pair.name}-native"))}
    with log.open("w") as out:
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        status = subprocess.run(command, cwd=ROOT, env=own, stdout=out, stderr=subprocess.STDOUT).returncode
    counts = CLOSING.findall(log.read_text())
    return counts[-1] if counts else f"no result, see {log}", status


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def versions(python: Path) -> tuple[str, str]:
    text = subprocess.run(
        [python, "-c", "import platform, torch; print(platform.python_version(), torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.split()
    return text[0], text[1]


def row(pair: Pair, folder: Path, arguments: list[str]) -> tuple[str, int]:
    python = environment(pair, folder)
    counts, status = run_suite(python, pair, folder, arguments)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    cpython, torch = versions(python)
    return f"| {cpython} | {torch} | {datetime.date.today()} | {commit} | {' '.join(arguments) or 'whole suite'} | {counts} |", status


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where environments are made: outside of the repository")
    parser.add_argument("--pair", type=parse_pair, action="append", help="CPython:torch, for example 3.13:2.15.0; all pairs of docs/versions.md by default")
    parser.add_argument("--drop", action="store_true", help="remove each environment after its run")
    own, _, rest = (argv, "", []) if "--" not in argv else (argv[: argv.index("--")], "--", argv[argv.index("--") + 1 :])
    options = parser.parse_args(own)
    folder = options.folder.resolve()
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is in the repository")
    folder.mkdir(parents=True, exist_ok=True)
    worst = 0
    for pair in options.pair or [parse_pair(text) for text in PAIRS]:
        if interpreter(pair.python) is None:
            print(f"# CPython {pair.python} is not installed: {pair.name} is left out", flush=True)
            continue
        line, status = row(pair, folder, rest)
        print(line, flush=True)
        worst = worst or status
        if options.drop:
            shutil.rmtree(folder / pair.name)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
