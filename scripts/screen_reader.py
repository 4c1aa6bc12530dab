"""Fetches the simulated screen reader with which the tests read pages: a bundle for browsers, which follows the ARIA specifications and needs no Node.

    python scripts/screen_reader.py

It is the package @guidepup/virtual-screen-reader of npm, in one version and with a checked digest; `npm_config_registry` names another registry.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import sys
import tarfile
import urllib.request
from pathlib import Path

NAME, VERSION = "virtual-screen-reader", "0.33.0"
SHA512 = "CXMkIx19oFZ7BS7TcvDibXn6A2RsEs8nVX9IijHW7HQ0qTGHgc2WErkaMi12YPQi1Zypxr36NfRYWgBxUNvMtQ=="
BUNDLE = "package/lib/esm/index.browser.js"
EXPORTED = re.compile(r"export\{\w+ as Virtual,([\w$]+) as virtual\};")
TARGET = Path(__file__).parents[1] / ".cache" / f"{NAME}-{VERSION}.js"
TIMEOUT = 20  # seconds


def fetched() -> bytes:
    """The package. Raises OSError where the registry does not answer, ValueError where it gives something else."""
    registry = os.environ.get("npm_config_registry", "https://registry.npmjs.org").rstrip("/")
    with urllib.request.urlopen(f"{registry}/@guidepup/{NAME}/-/{NAME}-{VERSION}.tgz", timeout=TIMEOUT) as answer:
        package = answer.read()
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != SHA512:
        raise ValueError(f"{registry} gives another {NAME} {VERSION} than was expected")
    return package


def as_script(package: bytes) -> str:
    """The module of the package as a script that leaves the reader in `window.reader`."""
    with tarfile.open(fileobj=io.BytesIO(package)) as files:
        bundle = files.extractfile(BUNDLE)
        assert bundle is not None
        text, count = EXPORTED.subn(r"window.reader = \1;", bundle.read().decode())
    assert count == 1
    return f"(() => {{\n{text}\n}})()\n"


def main() -> None:
    try:
        text = as_script(fetched())
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
