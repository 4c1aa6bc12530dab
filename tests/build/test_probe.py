"""The probe of the installed C++ compilers: right on those that are installed, caught where one makes wrong code, asked once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dynacompile.build import build, cpp, expect_builds, probe
from dynacompile.build.cpp import compile_program
from dynacompile.build.store import Store
from dynacompile.codegen import generate
from dynacompile.errors import BuildError

from .test_cpp_build import N, call, env, program

COMPILERS = [c for c in ("g++", *(f"g++-{v}" for v in range(11, 17)), "clang++", *(f"clang++-{v}" for v in range(14, 23))) if shutil.which(c)]
FEATURES = {"native": (), "x86-64": ("sse2",), "x86-64-v3": ("avx2", "fma", "f16c"), "x86-64-v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl")}


def runs_here(march: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return words.issuperset(FEATURES[march])


def wrong_under(flags: tuple[str, ...], tmp_path: Path) -> str | None:
    source = tmp_path / "probe.cpp"
    source.write_text(probe.PROGRAM)
    return probe.wrong_pattern(source, tmp_path / "probe", (), lambda s, p, more: compile_program(flags, s, p, more))


@pytest.mark.parametrize("march", [m for m in FEATURES if runs_here(m)])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_installed_compilers_are_right(compiler, march, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    assert wrong_under((f"-march={march}",), tmp_path) is None


def gcc_12_2() -> str:
    """The version whose defects are known; later ones of 12 may have none."""
    for command in ("g++-12", "g++"):
        if command in COMPILERS and subprocess.run([command, "-dumpfullversion"], capture_output=True).stdout.startswith(b"12.2"):
            return command
    pytest.skip("needs GCC 12.2")


@pytest.mark.skipif(not runs_here("x86-64-v4"), reason="needs AVX-512")
@pytest.mark.parametrize("optimize", ["-O2", "-O3"])
def test_vectors_copied_as_bytes_are_caught(optimize, tmp_path, monkeypatch):
    """GCC 12.2 makes a broadcast of a wide constant whose leading words are equal and the rest zero."""
    gcc = gcc_12_2()
    folder = tmp_path / "headers"
    shutil.copytree(cpp.HEADERS, folder)
    header = folder / "vec.h"
    access = "{ *(typename VectorOf<elem<V>, lanes<V>>::anywhere*)p = v; }"
    text = header.read_text()
    assert access in text
    header.write_text(text.replace(access, "{ __builtin_memcpy(p, &v, sizeof v); }"))
    monkeypatch.setenv("CXX", gcc)
    assert wrong_under(("-march=x86-64-v4", optimize), tmp_path) is None
    monkeypatch.setattr(cpp, "HEADERS", folder)
    assert "pattern" in (wrong_under(("-march=x86-64-v4", optimize), tmp_path) or "")


@pytest.mark.skipif(not runs_here("x86-64-v3"), reason="needs AVX2")
def test_the_vectorizer_of_loops_is_caught(tmp_path, monkeypatch):
    """GCC 12.2 leaves a row of two joined tensors out, where lanes of a short row are loaded one by one, as they are without masks."""
    monkeypatch.setenv("CXX", gcc_12_2())
    folder = tmp_path / "headers"
    shutil.copytree(cpp.HEADERS, folder)
    header = folder / "vec.h"
    text = header.read_text()
    assert "#define DC_AVX2 1" in text
    header.write_text(text.replace("#define DC_AVX2 1", ""))
    monkeypatch.setattr(cpp, "HEADERS", folder)
    assert wrong_under(("-march=x86-64-v3",), tmp_path) is None
    assert wrong_under(("-march=x86-64-v3", "-ftree-loop-vectorize"), tmp_path) == "pattern 12 of codegen/cpp/probe.h"


def fake_compiler(tmp_path: Path, wrong: str) -> Path:
    """A compiler whose programs fail unless its arguments match `wrong`'s complement: it logs the output that each call makes."""
    script = tmp_path / "fake++"
    script.write_text(
        f"""#!/bin/sh
for last; do :; done
[ "$last" = --version ] && exec g++ --version
echo "$(basename "$last") $*" >> {tmp_path}/calls
case "$last" in *probe*) case " $* " in {wrong}) printf '#!/bin/sh\\nexit 3\\n' > "$last"; chmod +x "$last"; exit 0;; esac;; esac
exec g++ "$@"
"""
    )
    script.chmod(0o755)
    return script


@pytest.mark.skipif("g++" not in COMPILERS, reason="needs g++")
def test_kernels_of_a_compiler_that_is_wrong_have_safer_flags(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, '*" -O2 "*) ;; *')))
    first, _ = env(tmp_path / "cache")
    module = build(generate(program(), first), first)
    x, out = torch.randn(N), torch.empty(N)
    call(module.kernels["double_0"], x, out)
    assert torch.equal(out, x + x)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sorted(c.split()[0] for c in calls) == ["kernels.so", "kernels.so", "probe0", "probe1"]  # at once with the probe, and again
    assert " -O2 " in calls[-1] and calls[-1].startswith("kernels.so")
    again, _ = env(tmp_path / "cache")
    assert build(generate(program(), again), again).kernels == module.kernels
    more, _ = env(tmp_path / "cache")
    build(generate(program("other"), more), more)
    later = (tmp_path / "calls").read_text().splitlines()[len(calls) :]
    assert [c.split()[0] for c in later] == ["kernels.so"] and " -O2 " in later[0]  # the verdict was remembered


@pytest.mark.skipif("g++" not in COMPILERS, reason="needs g++")
def test_a_compiler_that_is_wrong_under_all_flags_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "*")))
    first, _ = env(tmp_path / "cache")
    with pytest.raises(BuildError, match=r"fake\+\+ makes wrong code: pattern 3 of codegen/cpp/probe.h"):
        build(generate(program(), first), first)


def test_the_verdict_on_a_right_compiler_is_kept(tmp_path, monkeypatch):
    first, _ = env(tmp_path)
    build(generate(program(), first), first)
    monkeypatch.setattr(probe, "find_safe_flags", lambda *args: pytest.fail("probed again"))
    again, _ = env(tmp_path)
    build(generate(program("another"), again), again)
    assert len(list(Store(tmp_path / "binaries").folder.glob("pr/obe-*"))) == 1


def test_the_trial_begins_before_a_build_asks_for_it(tmp_path, monkeypatch):
    """It takes longer than most kernels: it runs beside capture, once, and the build waits for that one."""
    begun = []

    def find(key: str, store: Store, *rest: object) -> tuple[str, ...]:
        begun.append(key)
        store.put(key, b"[]")
        return ()

    monkeypatch.setattr(probe, "find_safe_flags", find)
    first, _ = env(tmp_path)
    expect_builds(first)
    assert len(cpp.TRIALS) == 1
    expect_builds(first)
    build(generate(program(), first), first)
    assert len(begun) == 1 and not cpp.TRIALS
    expect_builds(first)
    assert not cpp.TRIALS  # the verdict is known
