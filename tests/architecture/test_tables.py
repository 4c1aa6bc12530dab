"""Tables are complete: what one of them has a row for, the others know. (A stage's own tests run each row on its samples.)"""

import ast
import re
import typing
from pathlib import Path

import pytest
import torch

from dynacompile import events
from dynacompile.capture.breaks import BREAKS
from dynacompile.guards.kinds import KINDS
from dynacompile.ir import guard_facts
from dynacompile.lower import KINDS as LOWERINGS
from dynacompile.observe.log import TOPICS, line
from dynacompile.ops.samples import SAMPLES
from dynacompile.ops.scalars import SCALARS
from dynacompile.ops.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
EVENTS = sorted(events.Event.__subclasses__(), key=lambda kind: kind.__name__)


def literals(folder: str, functions: tuple[str, ...], arguments: int) -> set[str]:
    """The strings that calls of these functions or methods have among their first `arguments`, anywhere below a folder."""
    found = set()
    for path in sorted((ROOT / "dynacompile" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in functions:
                found |= {a.value for a in node.args[:arguments] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def strings(folder: str, but: str) -> set[str]:
    """All string constants of the files below a folder, but those of one file."""
    paths = [p for p in sorted((ROOT / "dynacompile" / folder).rglob("*.py")) if p.name != but]
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_guard_kinds_and_the_table_of_their_payloads_agree():
    documented = set(re.findall(r"^\| ([A-Z_]+) +\|", guard_facts.__doc__ or "", re.M))
    assert documented == set(KINDS)


def test_capture_makes_guards_of_known_kinds_and_every_kind_is_made():
    assert {kind for kind in literals("capture", ("guard", "Guard"), 2) if kind.isupper()} <= set(KINDS)
    assert set(KINDS) <= strings("capture", "")


@pytest.mark.parametrize("code", BREAKS)
def test_breaks_say_why_and_what_to_do(code):
    row = BREAKS[code]
    assert row.reason.strip() and row.hint.strip()
    assert row.reason.count("{}") <= 1 and row.hint.count("{}") <= 1


def test_breaks_in_use_are_rows_and_every_row_is_in_use():
    assert literals("capture", ("unsupported",), 1) <= set(BREAKS)
    assert set(BREAKS) <= strings("capture", "breaks.py")


def test_every_row_of_the_op_table_has_a_lowering_and_every_set_of_samples_a_row():
    assert {row.kind for row in TABLE.values()} <= {*LOWERINGS, "extern"}
    assert {row.samples for row in TABLE.values()} == set(SAMPLES)


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_rows_run_in_the_reference(name):
    row = SCALARS[name]
    dtype = torch.int64 if name in ("and", "or", "xor", "not", "shl", "shr", "uniform") else torch.float32
    operands = [torch.tensor([1, 2, 3], dtype=dtype)] * row.operands
    result = row.run(operands[0] > 1, *operands[1:]) if name == "where" else row.run(*operands)
    assert result.shape == (3,)
    assert result.dtype == (torch.bool if row.result == "bool" else torch.float32 if name == "uniform" else dtype)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_has_a_topic_and_a_line_of_its_own(kind):
    assert any(kind in kinds for kinds in TOPICS.values())
    samples = {str: "text", int: 1, float: 1.0, bool: True}
    hints = typing.get_type_hints(kind)
    event = kind(**{name: samples.get(hint, ()) for name, hint in hints.items()})
    assert line(event) != f"{kind.__name__} text[1]"
