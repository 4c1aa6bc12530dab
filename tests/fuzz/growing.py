"""Programs over lists, deques, dicts and sets that live from call to call, grow and shrink: histories, windows, buffers. Results, which items these are,
the containers after each call, and errors. From seed 100000 on also texts and rounded numbers of ints that vary, from 200000 on names, and from 300000 on
dicts and sets that get other keys, in more calls and with fewer entries, so that they are left to Python in the end.

    python -m tests.fuzz.growing FIRST LAST [--show]

A program is its seed. To add a statement, write a line into STATEMENTS: `{c}` is a container of tensors, floats or lists, `{v}` something to put in, `{i}` a
place.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from dynacompile.events import FrameSkipped
from tests.fuzz.seeds import run_seeds

STATEMENTS = (
    "{c}.append({v})", "{c}.append({v})", "{c}.append({v})", "{c}.append({v})", "{c}.extend([{v}, {v}])", "{c}.insert(0, {v})", "{c}.clear()",
    "s.out = len({c})", "s.total = s.total + len({c})", "x = x * len({c})", "x = x + 1 if {c} else x - 1", "x = x + 1 if len({c}) > 3 else x - 1",
    "x = x * 2 if len({c}) % 2 == 0 else x", "x = x + use({c}[-1])", "x = x + use({c}[0])", "x = x - use({c}[{i}])", "s.kept = {c}[-1]", "s.kept = {c}[0]",
    "x = x + sum(use(t) for t in {c}[-2:])", "x = x + sum(use(t) for t in list({c})[:2])", "x = x + sum(map(use, {c}))", "s.out = [len({c}), {c}[-1]]",
    "s.out = {c}[-1] is {c}[{i}]", "s.out = {c}[-1] is s.kept", "s.out = s.kept in [{c}[-1], {c}[0]]", "if len({c}) > 4: {c}.pop()",
    "if len({c}) > 4: {c}.pop(0) if type({c}) is list else {c}.popleft()", "if {c}: {c}[-1] = {v}", "if {c}: {c}[0] = {v}", "if len({c}) > 2: del {c}[0]",
    "{c}.append({c}[-1])", "{c}.append(len({c}))", "{d}.append({c}[-1])", "n = len({c}); {c}.append({v}); x = x * (len({c}) - n)",
    "for t in {c}: x = x + use(t)", "x = x + use(max((len({c}), 2)))", "s.out = f'{{len({c})}}'", "s.out = {c}[:1] if type({c}) is list else None",
    "s.{c_name} = {c}[-3:] if type({c}) is list else {c}", "s.out = not {c}", "s.out = bool({c}), len({c}) == len({d})",
    "x = x[: len({c})] if len({c}) > 1 else x", "s.out = {c} == {d}", "s.out = {c} is {d}", "s.out = [*{c}]", "s.out = {c}.copy()",
    "s.out = {c}.index({c}[-1]) if {c} and isinstance({c}[-1], float) else 0", "{c}.reverse()", "s.out = {c}.count(1.5)",
    "s.out = list(reversed({c}))[:1]", "s.out = next(iter({c}), None)", "s.out = {c}[len({c}) - 1] if {c} else 0",
    "if isinstance({c}[-1], list): {c}[-1].append(1.5)", "n = {c}[-1]; {c}.append({v}); s.out = n", "pause()", "s.out = helper({c}, x)",
    "s.out = {c}.__len__()", "if len({c}) >= 3: x = x + use({c}[2])", "if len({c}) >= 2: x = x + use({c}[-2])",
    "s.out = [len(c) for c in (s.a, s.b, s.c)]", "s.a, s.b = s.b, s.a", "{c} += [{v}, {v}]", "{c}.extend(({v}, {v}, {v}))", "{c}.extend({d})",
    "{c}.extend({c}[-2:] if type({c}) is list else ())", "{c} += {c}", "{c}.extend(len({c}) for _ in range(2))", "{c}.extend(s.kept)", "{c}.extend([])",
)  # fmt: skip
TEXTS = (
    "s.out = f'{k}'", "s.out = f'{len({c})}: {k * 0.5:.2f}'", "s.out = '%d of %s' % (k, len({c}))", "s.out = '{:>4}|{}'.format(k, k / 3)",
    "s.out = str(k) + '.' + repr(k * 0.1)", "s.out = repr((k, 1.5, [k]))", "s.out = ','.join([str(k), str(len({c}))])", "s.out = round(k * 0.37, 1)",
    "if f'{k}' == '3': x = x * 2", "s.out = {f'key {k % 2}': k}", "s.out = f'{k}'.startswith('1')", "s.out = len(f'{k}')", "{c}.append(f'{k}')",
    "s.out = f'{x.sum().item():.3f} {k}'", "s.out = f'{k:c}'", "s.out = f'{k:03d} {k!r:>5}'", "s.out = 'step %.3f' % (k * 0.25)",
    "s.out = f'{{len({c}):x}}'", "n = f'{k}'; pause(); s.out = n + n", "s.out = f'{k * 1e200 * 1e200}'", "s.out = '%d' % (k / 7)", "s.kept = f'a{k}'",
    "s.out = s.kept == f'a{k}'", "print(f'step {k}')", "s.out = sorted([f'{k}', '2'])", "s.out = f'{f\"{k}\":>4}'", "s.out = [f'{k}'] * 2",
    "s.out = f'{k}'.zfill(3)", "x = x + round(k / 3, 2)",
)  # fmt: skip
PUT = ("x.sum()", "1.5", "float(k)", "[1.5]", "x.mean().item()", "x * 2", "k", "[]", "(k, 2.0)")


NAMED = (
    "{c}.append(s.name)", "{c}.extend(s.names)", "s.out = f'{s.name}!'", "s.out = s.name + s.names[-1]", "s.out = [*s.names, s.name]", "s.kept = s.names[0]",
    "s.out = s.name == s.names[0]", "s.out = s.kept == s.name", "s.out = s.name is s.kept", "x = x * 2 if s.name.startswith('run') else x", "s.name = 'r'",
    "s.out = {s.name: k, s.names[0]: 1}", "s.out = len(s.name)", "s.out = '{0} {1:>6}'.format(*s.names)", "s.out = '%s/%5s' % (s.name, s.names[0])",
    "s.out = '{0[0]}'.format(s.name)", "s.out = f'{s.name:c}'", "s.out = ','.join(s.names)", "s.out = s.names + [s.name]", "s.out = sorted(s.names)",
    "s.out = s.names[::-1]", "n = s.name; pause(); s.out = n * 2", "s.out = s.name in s.names", "s.out = repr(s.names)",
    "s.name, s.names[0] = s.names[0], s.name",
    "s.out = s.name % ()", "s.out = bool(s.name) or None", "s.out = s.name and k", "s.out = isinstance(s.name, str), type(s.name)", "s.out = s.name[:2]",
    "s.out = [n for n in s.names if n != s.name]", "s.out = dict(zip(s.names, range(2)))", "s.out = hash(s.name) == hash(s.kept)", "print(s.name, k)",
    "s.out = {n for n in s.names}", "s.out = getattr(s, 'a' if s.name else 'b') is s.a", "s.out = s.name.upper()",
    "s.out = max(s.names)", "s.out = s.name < s.names[0]",
    "x = x + float('1.5' if s.name else '2')", "s.out = (s.name,) == (s.names[0],)", "s.out = s.names.index(s.names[-1])",
    "n = s.name; n += s.names[0]; s.out = n",
)  # fmt: skip
KEYED = (
    "s.table[k] = {v}", "s.table[f'step {k}'] = {v}", "s.table[k % 3] = {v}", "s.table[s.name] = k", "s.table[k, 'a'] = x.sum()", "x = x + len(s.table)",
    "x = x + sum(use(t) for t in s.table.values())", "s.out = list(s.table)", "s.out = k in s.table, k - 1 in s.table", "s.out = s.table.get(k - 1)",
    "s.table.pop(k - 2, None)", "s.out = list(s.table)[-1] if s.table else 0", "s.out = sorted(map(str, s.table))", "s.table.setdefault(k // 2, []).append(k)",
    "s.table.update({k: 1.5, 'a': k})", "if len(s.table) > 3: del s.table[next(iter(s.table))]", "s.out = {**s.table}", "s.table = {}",
    "s.out = s.table.copy()",
    "s.kept = s.table", "s.out = s.table is s.kept", "for key, t in s.table.items(): x = x + use(t)", "s.out = s.table[k]", "s.out = max(s.table, key=str)",
    "s.marks.add(k)", "s.marks.add(k % 4)", "s.marks.add(s.name)", "s.marks.discard(k - 2)", "x = x * 2 if k in s.marks else x", "x = x + len(s.marks)",
    "s.out = sorted(map(str, s.marks))", "s.marks |= {k, 0}", "s.out = s.marks == {0, 1}", "s.out = s.marks.copy() if s.marks else None", "s.kept = s.marks",
    "s.out = s.marks is s.kept", "s.marks = set()", "s.out = bool(s.marks)", "s.out = len(s.marks | {k})", "s.out = s.marks.isdisjoint({k - 1})",
    "s.marks.update(s.names)", "s.marks.remove(k)", "if len(s.marks) > 3: s.marks.clear()", "s.out = sum(t for t in s.marks if isinstance(t, int))",
    "s.counts['a'] += 1", "s.counts[k] += 2", "s.counts[s.name] += k", "x = x + sum(s.counts.values())", "s.out = len(s.counts)", "s.out = s.counts[k - 1]",
    "s.out = helper_of(s.table, s.marks, k)", "s.out = sum({c} and [1.5])", "x = x + sum(map(use, {c})) / (len({c}) + 1)", "s.out = [use(t) for t in {c}]",
)  # fmt: skip
TEXTING, NAMING, KEYING = 100_000, 200_000, 300_000


class Store:
    """a: a list; b: a deque or list, with or without a length limit; c: one of them again, or another list."""

    def __init__(self, seed: int):
        pick = random.Random(seed)
        self.a: Any = [1.5] * pick.choice((0, 0, 1, 2))
        self.b: Any = pick.choice((list, collections.deque, lambda: collections.deque([2.5, 1.5], 3), lambda: collections.deque(maxlen=2)))()
        self.c: Any = pick.choice((lambda: [0.5], lambda: self.a, lambda: self.b))()
        self.out: Any = None
        self.kept: Any = None
        self.total = 0
        self.name, self.names = "", [""]
        self.table: Any = {}
        self.marks: Any = set()
        self.counts: Any = pick.choice((collections.Counter, lambda: collections.defaultdict(int)))()


def use(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.sum()
    return float(sum(item)) if isinstance(item, (list, tuple)) else item


def source_of(seed: int) -> str:
    pick = random.Random(seed)
    lines = []
    for _ in range(pick.randint(1, 6)):
        c, d = (pick.choice("aaabbbc") for _ in range(2))
        more = (3 * TEXTS * (seed >= TEXTING), 4 * NAMED * (seed >= NAMING), 8 * KEYED * (seed >= KEYING))
        form = pick.choice((*STATEMENTS, *itertools.chain(*more)))
        lines.append(filled(form, c=f"s.{c}", d=f"s.{d}", c_name=c, v=pick.choice(PUT), i=pick.choice((-1, -2, 0, 1))))
    return "def program(s, x, k):\n    x = x + 0\n" + "".join(f"    {line}\n" for line in lines) + "    return x\n"


def filled(form: str, **parts: Any) -> str:
    """The form with its parts. Other braces are the program's, double ones of f-strings around a part."""
    for name, text in parts.items():
        form = form.replace(f"{{{name}}}", str(text))
    return form.replace("{{", "{").replace("}}", "}")


def helper(container: Any, x: torch.Tensor) -> Any:
    container.append(x.sum())
    return len(container)


def helper_of(table: Any, marks: Any, k: int) -> Any:
    table[f"helped {k % 5}"] = k
    marks.add(k // 2)
    return len(table), sorted(map(str, marks))


def program_of(source: str) -> Callable[..., Any]:
    world: dict[str, Any] = {"torch": torch, "use": use, "helper": helper, "helper_of": helper_of, "pause": dynacompile.graph_break, "collections": collections}
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    return world["program"]  # type: ignore[no-any-return]


def shown(value: Any, seen: dict[int, int]) -> Any:
    """The value, with which of its parts are one object."""
    if isinstance(value, (list, tuple, collections.deque, dict, set, torch.Tensor)):
        if id(value) in seen:
            return f"<{seen[id(value)]}>"
        seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        return "tensor", [round(n, 4) for n in value.detach().flatten().tolist()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, getattr(value, "maxlen", None), [shown(item, seen) for item in value]
    if isinstance(value, dict):
        return type(value).__name__, [(key, shown(item, seen)) for key, item in value.items()]
    if isinstance(value, set):
        return "set", sorted(map(repr, value))
    return type(value).__name__, round(value, 4) if isinstance(value, float) else value


def outcome(call: Callable[..., Any], store: Store, number: int) -> list[Any]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            store.name = ("run {}", "run 1", "{}", "run {}")[number % 4].format(number)
            store.names = [f"{number // 2}", *(("a", f"b{number}") if number % 5 else ("c",))]
            result: Any = call(store, torch.arange(6.0) + number, number)
        except Exception as error:  # noqa: BLE001 - it is what is compared
            result = f"{type(error).__name__}: {error}"
    seen: dict[int, int] = {}
    left = (store.a, store.b, store.c, store.kept, store.out, store.total, store.name, store.names, store.table, store.marks, store.counts)
    return [shown(part, seen) for part in (result, printed.getvalue(), *left)]


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    program = program_of(source_of(seed))
    dynacompile.reset()
    limit, calls = (8, 14) if seed >= KEYING else (1000, 9)
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True, recompile_limit=limit, options={"fallback": "none"})
    ours, eagers, skipped = Store(seed), Store(seed), []
    end = dynacompile.subscribe(lambda event: skipped.append(event) if isinstance(event, FrameSkipped) and "internal" in event.reason else None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(calls):
                want, got = outcome(program, eagers, number), outcome(compiled, ours, number)
                if want != got:
                    return f"call {number}\n    eager {want}\n    ours  {got}"
    finally:
        end()
    return f"left to Python: {skipped[0].reason}" if skipped else None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, source_of))
