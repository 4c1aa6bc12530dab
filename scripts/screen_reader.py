"""Fetches the simulated screen reader with which the tests read pages: a bundle for browsers, which follows the ARIA specifications.

    python scripts/screen_reader.py

It is the package @guidepup/virtual-screen-reader, in one version and with a checked digest, which npm fetches; Node is needed for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME, VERSION = "virtual-screen-reader", "0.33.0"
SHA512 = "CXMkIx19oFZ7BS7TcvDibXn6A2RsEs8nVX9IijHW7HQ0qTGHgc2WErkaMi12YPQi1Zypxr36NfRYWgBxUNvMtQ=="
BUNDLE = "package/lib/esm/index.browser.js"
EXPORTED = re.compile(r"export\{\w+ as Virtual,([\w$]+) as virtual\};")
TARGET = Path(__file__).parents[1] / ".cache" / f"{NAME}-{VERSION}.js"
TIMEOUT = 60  # seconds


def fetched() -> bytes:
    """The package, by npm. Raises OSError where there is no npm, or no registry answers it, ValueError where it gives something else."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"@guidepup/{NAME}@{VERSION}", "--pack-destination", folder]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if ended.returncode:
            raise OSError(f"npm pack: {ended.stderr.strip()[-300:]}")
        (packed,) = Path(folder).iterdir()
        package = packed.read_bytes()
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != SHA512:
        raise ValueError(f"npm gives another {NAME} {VERSION} than was expected")
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
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
