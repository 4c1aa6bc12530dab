"""Pages in a browser, for tests: what a script gives in them, and what a screen reader says of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import screen_reader

ROOT = Path(__file__).parents[2]
READ = """(async () => {
  %s
  await reader.start({container: document.body});
  while (await reader.lastSpokenPhrase() !== 'end of document') await reader.next();
  return await reader.spokenPhraseLog();
})()"""


def opened(page: Path, script: str, *arguments: str) -> Any:
    """What a script gives in the page, of which nothing was said on the console."""
    command = [sys.executable, "scripts/browser.py", str(page), "--run", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    told = json.loads(done.stdout.splitlines()[-1]) if done.stdout.startswith("{") else None
    assert told is not None and told["loaded"] and not told["console"], (told, done.stderr[-2000:])
    return told["result"]


def read_aloud(page: Path, *arguments: str, first: str = "") -> list[str]:
    """Every phrase of a screen reader that goes through the page from its beginning to its end. first: a script that is run before."""
    if not screen_reader.TARGET.is_file():
        pytest.skip(f"there is no {screen_reader.TARGET.name}: `python scripts/screen_reader.py` fetches it")
    return opened(page, READ % first, "--script", str(screen_reader.TARGET), *arguments)


def skip_without_browser(folder: Path) -> None:
    """Skips where there is none: the extra `browser` brings one, which needs libraries of the system, such as libnss3."""
    if importlib.util.find_spec("PyQt6") is None or importlib.util.find_spec("PyQt6.QtWebEngineCore") is None:
        pytest.skip("the extra `browser` is not installed")
    page = folder / "page.html"
    page.write_text("<title>it starts</title>")
    command = [sys.executable, "scripts/browser.py", str(page), "--run", "document.title"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    if '"it starts"' not in done.stdout:
        pytest.skip(f"the browser of PyQt6-WebEngine does not start here: {done.stderr.strip().splitlines()[-1:]}")
