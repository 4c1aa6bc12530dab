"""A page as a browser shows it: as a picture, with what its console said, and what a script run in it gives.

    python scripts/browser.py page.html --size 1000x980 --to page.png
    python scripts/browser.py page.html --size 390x800 --dark --run "document.title"
    python scripts/browser.py page.html --script library.js --run "library.read(document.body)"

The browser is Qt's build of Chromium, which `pip install PyQt6-WebEngine` brings. It prints one line of JSON: loaded, console, result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

FLAGS = "--no-sandbox --disable-gpu"
DARK = " --blink-settings=preferredColorScheme=0"
SETTLE_MS = 400  # for what a page draws after it has loaded
POLL_MS = 20
TOLD = """window.toldToPython = null;
(async () => (%s))().then(
  value => window.toldToPython = JSON.stringify({value: value ?? null}),
  error => window.toldToPython = JSON.stringify({error: String(error)}));
"""
ASKED = """window.toldToPython === undefined ? '{"error": "--run is no expression"}' : window.toldToPython"""
LONGEST_MS = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--size", default="1000x980", help="of the window, WIDTHxHEIGHT")
    parser.add_argument("--dark", action="store_true", help="as a reader has it who prefers dark pages")
    parser.add_argument("--to", type=Path, help="file of the picture")
    parser.add_argument("--run", default="null", help="an expression of JavaScript, whose value, or what its promise gives, is told")
    parser.add_argument("--script", type=Path, help="file of JavaScript that is run in the page before")
    chosen = parser.parse_args()
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": FLAGS + (DARK if chosen.dark else "")}
    from PyQt6.QtCore import QTimer, QUrl  # noqa: PLC0415  reads the environment
    from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings  # noqa: PLC0415
    from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: PLC0415
    from PyQt6.QtWidgets import QApplication  # noqa: PLC0415

    told: dict[str, object] = {"loaded": False, "console": [], "result": None}

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: object, message: str, line: int, file: str) -> None:
            told["console"].append(f"{message} ({file}:{line})")  # type: ignore[attr-defined]

    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    page = Page(view)
    view.setPage(page)
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)
    view.resize(*(int(side) for side in chosen.size.split("x")))

    def run() -> None:
        before = chosen.script.read_text(encoding="utf-8") if chosen.script else ""
        page.runJavaScript(before, lambda _: page.runJavaScript(TOLD % chosen.run, lambda _: poll()))

    def poll() -> None:
        page.runJavaScript(ASKED, finish)

    def finish(result: str | None) -> None:
        if result is None:
            QTimer.singleShot(POLL_MS, poll)
            return
        outcome = json.loads(result)
        told["result"] = outcome.get("value")
        told["console"] += [outcome["error"]] if "error" in outcome else []  # type: ignore[operator]
        QTimer.singleShot(SETTLE_MS, leave)

    def leave() -> None:
        if chosen.to is not None:
            view.grab().save(str(chosen.to))
        application.quit()

    def loaded(well: bool) -> None:
        told["loaded"] = well
        QTimer.singleShot(SETTLE_MS, run)

    page.loadFinished.connect(loaded)
    QTimer.singleShot(LONGEST_MS, application.quit)
    view.show()
    page.load(QUrl.fromLocalFile(str(chosen.page.absolute())))
    application.exec()
    print(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # Qt may end with a crash where pages outlive the application


if __name__ == "__main__":
    main()
