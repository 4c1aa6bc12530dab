"""python -m tests.fuzz.exits FIRST LAST: programs that end while something is compiled in the background, each in a process of its own.

A program's seed says what it compiles, for how long it goes on after the call, how it ends, and what it has registered to be done at exit. It has to end as
its eager twin would, with that one's exit status, soon, and without a word of the interpreter's or of C++'s.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests import forked

WORK = (
    "f = lambda x: (x.sin() * 3).softmax(-1)",
    "f = lambda x: (x @ x.t()).relu().sum()",
    "net = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(6)))\ndef f(x):\n    net(x).sum().backward()\n    return net[0].weight.grad",
    "def f(x):\n    for i in range(40):\n        x = x.cos() + i\n    return x",
    "def f(x):\n    print(end='')\n    return x.exp().cumsum(0)",
)
BACKENDS = ("default", "default", "aot_eager", "eager")
ENDINGS = (
    ("", (0,)),
    ("sys.exit(3)", (3,)),
    ("raise ValueError('as it should')", (1,)),
    ("os.kill(os.getpid(), signal.SIGINT); time.sleep(1)", (-2, 1)),  # 1 where something is compiled at exit: CPython forgets the interrupt when text is run
)
"""With the exit statuses."""
AT_EXIT = (
    "",
    "atexit.register(lambda: c(x))",
    "atexit.register(lambda: torch.ones(2).sum())",
    "threading.Thread(target=lambda: (time.sleep(0.05), c(x))).start()",
)
WORDS = ("terminate", "Fatal", "Aborted", "unraisable", "Exception ignored", "Ending")
SOON = 30.0  # seconds of a loaded machine


def program(seed: int) -> tuple[str, tuple[int, ...]]:
    """The text, and the exit statuses that it may have."""
    rng = random.Random(seed)
    ending, statuses = rng.choice(ENDINGS)
    lines = [
        "import atexit, os, signal, sys, threading, time, torch, dynacompile",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        rng.choice(WORK),
        f"c = dynacompile.compile(f, backend={rng.choice(BACKENDS)!r}, options={{'background': True}})",
        "x = torch.ones(3, 5)",
        "c(x)",
        rng.choice(AT_EXIT),
        f"time.sleep({rng.choice((0, rng.random() * 0.1, rng.random()))})",
        *(["c(torch.ones(4, 5))"] if rng.random() < 0.3 else []),
        ending,
    ]
    return "\n".join(lines), statuses


def trouble(seed: int) -> str:
    """What is wrong with how a program ended, or nothing."""
    text, statuses = program(seed)
    start = time.monotonic()
    ended = forked.run(forked.TORCH, "-c", text)
    took = time.monotonic() - start
    words = [line for line in ended.stderr.splitlines() if any(w in line for w in WORDS)]
    if ended.returncode not in statuses or words or took > SOON:
        return f"seed {seed}: ended with {ended.returncode} and not {statuses}, after {took:.1f} s, and said {ended.stderr[-800:]!r}\n{text}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    given = parser.parse_args()
    found = [told for seed in range(given.first, given.last) if (told := trouble(seed))]
    print(*found, f"{given.last - given.first} programs, {len(found)} end in another way", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
