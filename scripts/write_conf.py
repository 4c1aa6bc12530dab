"""Writes conf/compile/default.yaml from the settings' dataclasses."""

from __future__ import annotations

from dynacompile import conf
from dynacompile.callbacks.config_text import config_text


def main() -> None:
    target = conf.folder() / "compile" / "default.yaml"
    target.write_text(config_text(), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
