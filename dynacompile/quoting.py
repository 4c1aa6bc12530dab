"""How text and values of the user appear in what we write: emitted code, comments, events, reports, the terminal.

Names of files, functions and modules are any text, also text that ends a comment or starts a terminal's escape sequence. Values of strings may be secrets.
"""

from __future__ import annotations

import hashlib
import os
import re

DIGEST_KEY = os.urandom(16)  # of this process alone, so that nobody finds a short secret by digesting guesses
LONGEST_NAME = 400
NAME = re.compile(r"[A-Za-z_][\w.:]{0,59}|[^\w\s]{1,3}|<\w+>")
LITERAL = re.compile(r"""(?<!\w)b?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")(?!\w)""")


def printable(text: str, longest: int = LONGEST_NAME) -> str:
    """`text` on one line: what is not printable (line ends, control characters, marks of direction, halves of surrogate pairs) is written as Python
    escapes it."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def printable_lines(text: str) -> str:
    """`text` with its line ends, and every line printable."""
    return "\n".join(printable(line, longest=max(len(line), LONGEST_NAME)) for line in text.split("\n"))


def comment(text: str) -> str:
    """`text` as the content of a comment up to the end of a line, in C++ and in Python: it can neither end the comment nor continue the line, by a
    backslash or by the trigraph of one."""
    return printable(text).replace("\\", "<backslash>").replace("??", "?<?>")


def identifier(text: str) -> str:
    """`text` as a name of ASCII letters, digits and underscores, in C++ and in Python."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def digest(content: bytes) -> str:
    """Six hexadecimal digits that tell contents apart within this process."""
    return hashlib.blake2b(content, key=DIGEST_KEY, digest_size=3).hexdigest()


def shown_text(value: str | bytes) -> str:
    """A string in an explanation: its type, length and digest. What it says may be a secret."""
    content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return f"{'str' if isinstance(value, str) else 'bytes'} of length {len(value)}, digest {digest(content)}"


def is_name(text: str) -> bool:
    """Whether a string looks like the name of something in a program, an operator included."""
    return NAME.fullmatch(text) is not None


def without_values(text: str) -> str:
    """A message without the strings that it quotes, but for names; what is not printable is escaped."""
    return LITERAL.sub(literal, printable_lines(text)) if "'" in text or '"' in text else printable_lines(text)


def literal(found: re.Match[str]) -> str:
    inner = found[0].lstrip("b")[1:-1]
    return found[0] if is_name(inner) else shown_text(inner)
