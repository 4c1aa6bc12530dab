"""Building and loading: the cache, the errors, the self-test."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import dynacompile
from dynacompile import native, selftest
from dynacompile.errors import BuildError


def found():
    return native.library()[1]


def test_the_core_is_built_once_and_found_again():
    path = found()
    assert path.exists() and found() == path
    assert native.core() is native.core()
    assert native.usable() == (True, "")


def test_the_key_follows_the_flags_and_the_compiler(monkeypatch):
    before = native.shared_key()
    monkeypatch.setenv("CXXFLAGS", "-DSOMETHING")
    assert native.shared_key() != before
    monkeypatch.delenv("CXXFLAGS")
    assert native.shared_key() == before


def test_the_key_follows_the_sources_but_not_their_place(monkeypatch, tmp_path):
    before = native.shared_key()
    for path in (*native.sources(), *native.headers()):
        (tmp_path / path.relative_to(native.ROOT)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(native.ROOT)).write_text(path.read_text())
    monkeypatch.setattr(native, "ROOT", tmp_path)
    assert native.shared_key() == before
    with (tmp_path / "native_module.cpp").open("a") as source:
        source.write("// changed\n")
    assert native.shared_key() != before


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNACOMPILE_NATIVE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"CXX='no-such-compiler' is not on PATH: install it, or unset CXX"):
        native.library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found .*apt install g\+\+"):
        native.library()


def test_a_core_that_is_built_needs_no_compiler(monkeypatch):
    path = found()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert found().name.startswith(path.name.rsplit("-", 1)[0])


def test_a_broken_compiler_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\necho 'fatal error: out of ideas' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("DYNACOMPILE_NATIVE_DIR", str(tmp_path / "native"))
    with pytest.raises(BuildError, match=r"broken-g\+\+ could not compile .*\(exit status 3\):\n  fatal error: out of ideas\n.*set CXX"):
        native.library()
    assert not list((tmp_path / "native").glob("*.so")) and not list((tmp_path / "native").glob("*.o"))


def test_a_file_that_is_no_library_is_an_error(tmp_path):
    with pytest.raises(BuildError, match="Delete it"):
        native.load(b"not a library", tmp_path / "dynacompile_native-x.so")


def test_importing_builds_and_loads_nothing(tmp_path):
    program = f"import sys, dynacompile.native; assert {native.NAME!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "DYNACOMPILE_NATIVE_DIR": str(tmp_path), "PATH": ""})
    assert list(tmp_path.iterdir()) == []


def test_the_self_test_names_what_fails():
    core = native.core()
    assert selftest.failure(core) == ""
    first = sys.version_info[:3] == (3, 13, 0)  # where attributes that are set are not seen
    assert selftest.changes_are_visible(core.dict_tag) != first
    assert selftest.changes_are_visible(core.dict_epoch) == (sys.version_info >= (3, 12) and not first)

    class Blind(SimpleNamespace):
        def __getattr__(self, name):
            return getattr(core, name)

    never = Blind(Region=lambda function, on_miss, state: function)
    assert selftest.failure(never).startswith("the native core's self-test 'swap' failed: expected 30 twice, got [3, 3]")
    assert not selftest.changes_are_visible(lambda thing: 1)
    wrong = Blind(GuardProgram=lambda *lists: SimpleNamespace(check=lambda *roots: True) if lists[0] else core.GuardProgram(*lists))
    assert "tensor_reading" in selftest.failure(wrong)


def test_entries_of_caches_that_look_otherwise_are_refused():
    """What a bounded cache remembers is read only by a layout that one of its entries showed to be right."""
    core = native.core()

    @functools.lru_cache(maxsize=2)
    def remembered(name):
        return [name]

    result = remembered("a")
    (entry,) = (found["a"] for found in gc.get_referents(remembered) if type(found) is dict and "a" in found)
    assert core.links_are_known() and core.link_result(entry) is result

    try:
        assert not core.try_links(entry, "a", ["a"]) and not core.links_are_known()
        with pytest.raises(TypeError, match="takes an entry of functools.lru_cache"):
            core.link_result(entry)
        breaks = dynacompile.explain(lambda x: x + len(remembered("a")), backend="eager")(torch.ones(2)).breaks
        assert "entries of unknown form" in str(breaks)
        assert not core.try_links("no entry", "a", result)
    finally:
        assert core.try_links(entry, "a", result)
    assert core.link_result(entry) is result
