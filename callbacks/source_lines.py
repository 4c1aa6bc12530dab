"""The user's own source lines around a place, without what strings and comments say: those may be secrets, and pages are sent to others."""

from __future__ import annotations

import io
import linecache
import re
import tokenize

from dynacompile.quoting import printable

SITE = re.compile(r"(?P<file>[^()]+?):(?P<line>\d+)(?: in (?P<function>[^()]+))?$")
AROUND = 2  # lines before and after the one that is meant
TEXTS = frozenset(getattr(tokenize, name) for name in ("STRING", "COMMENT", "FSTRING_MIDDLE") if hasattr(tokenize, name))
WORDS = re.compile(r"[^\s'\"]+")


def source(place: str, known: dict[str, list[str]] | None = None) -> str:
    """The lines around a place ("file:line in function"), where the file is there to be read and is Python; else nothing. known: files that were read for
    other places, to which this one's is added."""
    line, lines = found_at(place, {} if known is None else known)
    shown = range(max(1, line - AROUND), min(len(lines), line + AROUND) + 1)
    return "\n".join(printable(f"{'>' if n == line else ' '} {n:5d}  {lines[n - 1].rstrip()}") for n in shown) if 0 < line <= len(lines) else ""


def line_of(place: str, known: dict[str, list[str]]) -> str:
    """The line at a place, by itself."""
    line, lines = found_at(place, known)
    return printable(lines[line - 1].strip()) if 0 < line <= len(lines) else ""


def found_at(place: str, known: dict[str, list[str]]) -> tuple[int, list[str]]:
    """The number of the line that a place names, and the lines of its file; 0 where it names none."""
    found = SITE.search(place)
    if found is None:
        return 0, []
    file = found["file"].strip()
    if file not in known:
        known[file] = without_texts(linecache.getlines(file))
    return int(found["line"]), known[file]


def hidden(word: re.Match[str]) -> str:
    """What is shown for a word; the prefix of a string stays."""
    return word[0] if word.start() == 0 and word.string[word.end() : word.end() + 1] in ("'", '"') else "..."


def without_texts(lines: list[str]) -> list[str]:
    """The lines of a file with "..." for each word in a string or comment; none where they are no Python."""
    new = list(lines)
    try:
        for token in reversed(list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline))):
            if token.type in TEXTS:
                (first, start), (last, end) = token.start, token.end
                for row in range(first, last + 1):
                    text = new[row - 1]
                    left, right = start if row == first else 0, end if row == last else len(text.rstrip("\n"))
                    new[row - 1] = text[:left] + WORDS.sub(hidden, text[left:right]) + text[right:]
    except (tokenize.TokenError, SyntaxError):
        return []
    return new
