"""Names of the user's files and functions never become code, whatever characters they have."""

from __future__ import annotations

import ast
import json
import linecache
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch

import dynacompile
from dynacompile.codegen.cpp import emit_kernel as emit_cpp
from dynacompile.codegen.triton import emit_kernel as emit_triton
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.events import to_json
from dynacompile.ir.captured import Site
from dynacompile.ir.index import var
from dynacompile.ir.loops import Access, Axis, Nest, Op, Origin
from dynacompile.ir.schedule import Kernel, Param
from dynacompile.quoting import comment, identifier, printable, without_values
from dynacompile.recompiles import override

NAMES = {
    "newline": "m\nint injected() { return 1; }\n//.py",
    "python newline": "m\nimport os; os.abort()\n#.py",
    "return": "m\rint injected();\r.py",
    "line separators": "m\u2028int injected();\u2029\x85\x0b\x0c\x1c\x1e.py",
    "backslash": "folder\\",
    "backslash and spaces": "folder\\  ",
    "trigraph": "folder??/",
    "end of comment": "a*/ int injected(); /*",
    "quotes": "\"'\"\"\"'''",
    "null": "m\0.py",
    "surrogate": "m\udc80.py",
    "escape sequence": "\x1b]0;title\x07\x1b[2J",
    "directions": "m\u202egnirts\u2066.py",
    "markup": "[bold red]m[/] {{ 7 * 7 }} <script>alert(1)</script> ${oc.env:HOME} %s {x}",
    "long": "m" * 5000 + "\n",
    "letters": "módulo_名前.py",
}
ENV = Env(CompileConfig(), lambda event: None, "test", -1, Path("unused"))


def kernel(file: str, function: str, op: str = "add") -> Kernel:
    i, f32 = var("x0", 64), torch.float32
    body = (Op("load", (), f32, Access("x", i)), Op("add", (0, 0), f32), Op("store", (1,), f32, Access("out", i)))
    nest = Nest("double", (Axis(i.terms[0][0][0], "x"),), body, (Origin(op, Site(file, 3, function)),))
    return Kernel("double", nest, (Param("x", f32, "in"), Param("out", f32, "out")), torch.device("cpu"))


def bare(text: str, mark: str) -> list[str]:
    """The lines as a compiler splits and joins them, without the comments."""
    assert not any(line.rstrip().endswith(("\\", "??/")) for line in text.split("\n"))
    return [line for line in text.splitlines() if not line.lstrip().startswith(mark)]


@pytest.mark.parametrize("name", NAMES)
def test_comments_in_cpp(name):
    plain = bare(emit_cpp(kernel("model.py", "forward"), ENV).text, "//")
    for made in (kernel(NAMES[name], "f"), kernel("model.py", NAMES[name]), kernel("model.py", "f", NAMES[name])):
        text = emit_cpp(made, ENV).text
        assert bare(text, "//") == plain and text.encode("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_comments_in_triton(name, monkeypatch):
    on_gpu = lambda made: replace(made, device=torch.device("cuda"))  # noqa: E731
    plain = ast.dump(ast.parse(emit_triton(on_gpu(kernel("model.py", "forward")), ENV).text))
    monkeypatch.setattr(linecache, "getline", lambda file, line: NAMES[name])
    for made in (kernel(NAMES[name], "f"), kernel("model.py", NAMES[name])):
        text = emit_triton(on_gpu(made), ENV).text
        assert ast.dump(ast.parse(text)) == plain and text.encode("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_escaping(name):
    text = NAMES[name]
    assert printable(text).isprintable() and len(printable(text)) <= 400
    assert "\\" not in comment(text) and "??" not in comment(text) and comment(text).isprintable()
    assert identifier(text).isidentifier() and identifier(text).isascii()
    assert not any(c in override(text, (), {"recompile_limit": 16}, True).removeprefix("compile.modules={") for c in "\n\x1b\\'\"$<%")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_programs_with_such_names(name, backend, tmp_path):
    """Names of the file, of the function, of a module's parts and of keys; the explanation, the events and the graphs are made of them."""
    code = compile("def f(x, d):\n    return x.sin() * d[key] + g", "model.py", "exec").co_consts[0]
    assert isinstance(code, CodeType)
    code = code.replace(co_filename=NAMES[name], co_name=NAMES[name], co_qualname=NAMES[name])
    function = FunctionType(code, {"key": NAMES[name], "g": 1.5}, NAMES[name])
    x, d = torch.randn(3), {NAMES[name]: torch.randn(3)}
    seen = []
    end = dynacompile.subscribe(seen.append)
    compiled = dynacompile.compile(function, backend=backend)
    try:
        assert torch.equal(compiled(x, d), function(x, d))
        y, e = torch.randn(3).double(), {NAMES[name]: torch.randn(3)}
        assert torch.equal(compiled(y, e), function(y, e))
    finally:
        end()
    for event in seen:
        for value in to_json(event).values():
            for text in value if isinstance(value, tuple) else (value,):
                assert not isinstance(text, str) or text.isprintable(), (type(event), text)
    assert all(line.isprintable() for line in str(dynacompile.explain(function)(x, d)).split("\n"))
    assert json.loads(json.dumps([to_json(event) for event in seen]))


def test_the_kernel_of_a_file_with_a_hostile_name_runs_and_nothing_else(tmp_path, capfd):
    name = 'm\n__attribute__((constructor)) static void z() { __builtin_printf("injected code runs\\n"); }\n//\\'
    space: dict = {}
    exec(compile("def f(x): return x.sin() * 2 + 1.0625", name, "exec"), space)
    assert torch.allclose(dynacompile.compile(space["f"])(torch.zeros(7)), torch.full((7,), 1.0625))
    assert "injected" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("'dict' object has no attribute 'foo'", "'dict' object has no attribute 'foo'"),
        ("'<' not supported between instances of 'str' and 'int'", "'<' not supported between instances of 'str' and 'int'"),
        ("x can't be what y doesn't like", "x can't be what y doesn't like"),
        ("the users' own", "the users' own"),
    ],
)
def test_names_in_messages_stay(text, wanted):
    assert without_values(text) == wanted


@pytest.mark.parametrize("quoted", ["'my secret token'", '"it\'s a secret"', r"'tab\tand \'secret\''", "b'bytes of secret'", "'a@secret.com'"])
def test_other_strings_in_messages_are_told_by_length_and_digest(quoted):
    told = without_values(f"invalid literal for int() with base 10: {quoted}")
    assert "secret" not in told and "of length" in told and "digest" in told
