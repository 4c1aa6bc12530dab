"""Texts of numbers that vary, as steps print, log and return them: made after the graph, they have no entry for each number."""

from __future__ import annotations

import contextlib
import io
import logging
import math

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled
from tests.dynamic.varying import check_varying

LOG = logging.getLogger("tests.dynamic.test_texts")


class Run:
    def __init__(self):
        self.name, self.messages = "", []


class Compared(Run):
    def __eq__(self, other):
        return vars(self) == vars(other)


def printed(x, i):
    y = x * 2
    print(f"step {i}, loss {y.sum().item():.3f}")
    return y


def printed_by_percent(x, i):
    y = x * 2
    print("step %d of %s" % (i, 100))  # noqa: UP031
    return y


def logged(x, i):
    y = x * 2
    LOG.warning("step %d: %.2f", i, y.sum().item())
    LOG.warning(f"step {i}")
    return y


def kept(x, i, run):
    run.name = f"step {i}"
    run.messages.append(str(i))
    return x + 1


def printed_rate(x, i):
    rate = 0.1 * 0.9**i
    y = x * rate
    print(f"{rate=:.4f}")
    return y


RESULTS = {
    "f-string": lambda x, i: (x * 2, f"step {i}"),
    "format": lambda x, i: (x * 2, f"{i:03d}", "{:>4}|{n}".format(i, n=i * 0.5), format(i * 0.5, ".2f")),  # noqa: UP032
    "percent": lambda x, i: (x * 2, "%d: %s" % (i, i + 1), "%.1f" % (i * 0.3)),  # noqa: UP031
    "str and repr": lambda x, i: (x * 2, str(i), repr(i * 0.1), str((i, [i * 2]))),
    "joined": lambda x, i: (x * 2, ",".join([str(i), str(i + 1)]), "ckpt_" + str(i) + ".pt"),
    "nested": lambda x, i: (x * 2, f"{f'<{i}>':>6}", f"{i!r:>4}"),
    "sizes": lambda x, i: (x[: i + 1] * 2, f"{x[: i + 1].shape[0]} rows"),
    "rounded": lambda x, i: (x * round(i * 0.37, 1), round(i / 7, 3), round(i, 2)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name):
    check_varying(RESULTS[name], [(torch.arange(9.0) + i, i) for i in range(2, 8)], 2)


@pytest.mark.parametrize("fn,entries", [(printed, 3), (printed_by_percent, 3), (printed_rate, 3)], ids=lambda p: getattr(p, "__name__", None))
def test_what_is_printed(fn, entries):
    """An entry of the frame for the first number and one for others, and one of what follows the break."""
    compiled, events = dynacompile.compile(fn, isolate_recompiles=True, backend="eager"), []
    end = dynacompile.subscribe(events.append)
    told = []
    try:
        for call in (compiled, fn):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                for i in range(1, 8):
                    call(torch.ones(2), i)
            told.append(out.getvalue())
    finally:
        end()
    assert told[0] == told[1] and told[0].count("\n") == 7
    assert sum(isinstance(e, Compiled) for e in events) == entries


def test_what_is_logged(caplog):
    LOG.disabled = False  # configurations of logging disable the loggers that they do not know
    compiled = dynacompile.compile(logged, isolate_recompiles=True, backend="eager", fullgraph=True)
    told = []
    for call in (compiled, logged):
        caplog.clear()
        for i in range(1, 7):
            call(torch.ones(2), i)
        told.append([record.getMessage() for record in caplog.records if record.name == LOG.name])
    assert told[0] == told[1] and len(told[0]) == 12
    assert len(dynacompile.cache_entries(compiled)) == 2


def test_what_is_kept():
    compiled, ours, eagers = dynacompile.compile(kept, isolate_recompiles=True, backend="eager", fullgraph=True), Run(), Run()
    for i in range(1, 7):
        compiled(torch.ones(2), i, ours)
        kept(torch.ones(2), i, eagers)
        assert vars(ours) == vars(eagers)
    assert len(dynacompile.cache_entries(compiled)) == 2


def test_texts_that_python_needs():
    """A key, a comparison, a method: the entry is for that number."""
    table = {"k0": 1.0, "k1": 2.0, "k2": 3.0}
    check_varying(lambda x, i: (x * table[f"k{i % 3}"], f"{i}" == "4", f"{i}".startswith("1"), len(str(i))), [(torch.ones(2), i) for i in (1, 2, 4)], 3)


def test_what_raises_for_some_numbers():
    compiled = dynacompile.compile(lambda x, f: (x, "%d" % f), isolate_recompiles=True, backend="eager")  # noqa: UP031
    for f in (1.5, 2.5, 3.5):
        assert compiled(torch.ones(2), f)[1] == "%d" % f  # noqa: UP031
    with pytest.raises(ValueError, match="NaN"):
        compiled(torch.ones(2), math.nan)
    letters = dynacompile.compile(lambda x, i: (x, f"{i:c}"), isolate_recompiles=True, backend="eager")
    assert [letters(torch.ones(2), i)[1] for i in (65, 66, 67)] == ["A", "B", "C"]
    with pytest.raises(OverflowError):
        letters(torch.ones(2), -1)


def test_widths_that_some_numbers_are_not():
    compiled = dynacompile.compile(lambda x, n: (x, "{:>{}}".format("a", n), "%*d" % (n, 1)), isolate_recompiles=True, backend="eager")  # noqa: UP031
    for n in (1, 2, 3, 5):
        assert compiled(torch.ones(2), n)[1:] == ("a".rjust(n), "1".rjust(n))
    with pytest.raises(ValueError, match="width|format|Sign"):
        compiled(torch.ones(2), -3)


def test_rounding_is_pythons():
    compiled = dynacompile.compile(lambda x, f: (x + 1, round(f, 2), round(f, 0)), isolate_recompiles=True, backend="eager")
    for f in (1.5, 2.675, 0.125, -0.5, 0.05, 1e300, 1e-300, 2.5, 1.005, -2.675, 123456.785, math.inf, math.pi):
        assert list(map(repr, compiled(torch.ones(2), f)[1:])) == [repr(round(f, 2)), repr(round(f, 0))]
    assert len(dynacompile.cache_entries(compiled)) == 2


NAMES = {
    "kept": lambda x, names, run: (x * 2, run.messages.append(names[0])),
    "kept, all": lambda x, names, run: (x * 2, run.messages.extend(names)),
    "kept in a record": lambda x, names, run: (x * 2, run.messages.append({"name": names[0], "sum": x.sum().item()})),
    "kept in a tuple": lambda x, names, run: (x * 2, [run.messages.append((name, i)) for i, name in enumerate(names)]),
    "returned": lambda x, names, run: (x * 2, names, names[1]),
    "an attribute": lambda x, names, run: (x * 2, setattr(run, "name", names[1])),
    "f-string": lambda x, names, run: (x * 2, f"{names[0]}/{names[1]:>12}", f"{names[0]!r}"),
    "percent": lambda x, names, run: (x * 2, "%s: %5s" % (names[0], names[1]), "%r" % names[1]),  # noqa: UP031
    "format": lambda x, names, run: (x * 2, "{} {n!r}".format(names[0], n=names[1])),  # noqa: UP032
    "concatenated": lambda x, names, run: (x * 2, "runs/" + "_".join(names) + ".png", [str(n) for n in names]),
}


def named(i):
    return [f"image {i}.png", f"{'b' * i}"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_a_batch(name):
    """Texts that are given, and another in each call: an entry relies on none that it only keeps, returns or shows."""
    check_varying(NAMES[name], [(torch.arange(4.0) + i, named(i), Compared()) for i in range(6)], 2)


READS = {
    "compared": lambda names: names[0] == "image 3.png",
    "a method": lambda names: names[0].endswith("3.png"),
    "a key": lambda names: {names[0]: 1},
    "a slice": lambda names: names[1][:1],
    "an item by format": lambda names: f"{names[0][0]}",
    "a template": lambda names: names[0] % (),
}


@pytest.mark.parametrize("name", READS)
def test_names_that_python_needs(name):
    """The entry is for that text."""
    check_varying(lambda x, names: (x * 2, READS[name](names)), [(torch.ones(2), named(i)) for i in (1, 2, 3, 2)], 3)


def test_a_name_that_is_read_in_one_branch():
    def program(x, name, flag):
        return (x * 2 if name == "a" else x), name if flag else ""

    check_varying(program, [(torch.ones(2), name, True) for name in ("a", "b", "c", "a")], 3)
    calls = [(torch.ones(2), name, flag) for flag in (False, True) for name in ("a", "bb", "ccc", "a")]
    check_varying(lambda x, name, flag: (x * 2, len(name) if flag else name), calls, 5)


def test_names_of_batches_of_other_lengths():
    check_varying(lambda x, names: (x * 2, list(names)), [(torch.ones(2), [f"{i} {j}" for j in range(n)]) for i, n in enumerate((3, 3, 2, 3, 3, 2))], 3)
