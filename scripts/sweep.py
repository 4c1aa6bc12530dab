"""Makes a sweep's table, plot and page again from its folder: `python scripts/sweep.py multirun/2026-01-31/12-00-00`, as `python -m dynacompile sweep` does."""

from __future__ import annotations

import sys

from dynacompile.__main__ import main

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]])
