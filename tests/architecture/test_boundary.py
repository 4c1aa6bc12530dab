"""No C++ exception leaves the core: whatever CPython calls goes through `boundary`, is CPython's own, or is declared not to throw."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dynacompile

ROOT = Path(dynacompile.__file__).parent
SOURCES = [p for folder in ("frame", "guards", "runtime") for p in sorted((ROOT / folder).glob("*.cpp"))]
TABLE = re.compile(r"Py(MethodDef|GetSetDef|Type_Slot) \w+(?:\[\])? = \{(.*?)\};", re.DOTALL)
WRAPPED = re.compile(
    r"(?:dynacompile::)?boundary<\w+>|as_method<\w+>\(\)|as_slot<\w+>\(\)|nullptr|PyObject_Generic\w+|reinterpret_cast<void\*>\(PyVectorcall_Call\)"
)
DATA = re.compile(r"Py_tp_(doc|methods|members|getset)")
NEVER_THROWS = re.compile(r"Py_tp_(dealloc|traverse|clear)")


def rows(body: str) -> list[list[str]]:
    """The first three cells of a table's rows; strings are left out."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "text", body)
    return [[cell.strip() for cell in row.split(",")[:3]] for row in re.findall(r"\{([^{}]*)\}", text) + ([text] if "{" not in text else [])]


def unguarded(source: str) -> list[str]:
    """What a source's tables name that may throw into CPython."""
    found = []
    for kind, body in TABLE.findall(source):
        for row in rows(body):
            cells = row[1:2] if kind == "MethodDef" else row[1:3] if kind == "GetSetDef" else [] if DATA.fullmatch(row[0]) or row[0] == "0" else row[1:2]
            if kind == "Type_Slot" and NEVER_THROWS.fullmatch(row[0]):
                name = re.fullmatch(r"reinterpret_cast<void\*>\((\w+)\)", row[1])
                found += [] if name and re.search(rf"^\w+ {name[1]}\([^)]*\) noexcept \{{", source, re.MULTILINE) else [" ".join(row[:2])]
            else:
                found += [cell for cell in cells if not WRAPPED.fullmatch(cell)]
    calls = re.findall(r"->(?:call|vectorcall) = (\w[\w<>]*);", source)
    return found + [
        call for call in calls if not WRAPPED.fullmatch(call) and not re.search(rf"PyObject\* {call}\([^)]*\) \{{.*?\n    try \{{", source, re.DOTALL)
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_cpython_calls(path):
    assert not unguarded(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        'PyMethodDef functions[] = {{"f", f, METH_O, "f(x), or {y}"}, {nullptr}};',
        'PyMethodDef one = {"f", f, METH_VARARGS, nullptr};',
        'PyGetSetDef fields[] = {{"a", boundary<get_a>, set_a, "text"}, {nullptr}};',
        "PyType_Slot slots[] = {{Py_tp_repr, reinterpret_cast<void*>(repr)}, {0, nullptr}};",
        "void dealloc(PyObject* self) {\n}\nPyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)}, {0, nullptr}};",
        "    self->call = call_it;",
    ],
    ids=["method", "lone-method", "field", "slot", "dealloc", "vectorcall"],
)
def test_what_may_throw_is_found(source):
    assert len(unguarded(source)) == 1
