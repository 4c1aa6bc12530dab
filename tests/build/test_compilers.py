"""The C++ compiler: every kind of CXX, its limit of time, and the end of what it starts."""

from __future__ import annotations

import _thread
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dynacompile import compilers, native
from dynacompile.build.cpp import compile_unit, unit_key
from dynacompile.compilers import SECONDS, run_compiler, time_limit, toolchain
from dynacompile.errors import BuildError, ConfigError
from dynacompile.threads import Helper, begin, on_threads
from dynacompile.trusted import scratch_folder
from tests.forked import TORCH, run

TEXT = 'extern "C" int seven() { return 7; }\n'


def script(folder: Path, name: str, body: str, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


ODD = {
    "empty": ("", "CXX='' is empty"),
    "spaces": ("  ", "CXX='  ' is empty"),
    "empty word": ("''", "is empty"),
    "quotes": ('g++ "-O2', "can't be split into words"),
    "folder": ("{tmp}", "is a folder"),
    "not executable": ("{tmp}/plain", "is not executable"),
    "missing": ("{tmp}/gone", "does not exist"),
    "unknown name": ("no-such-compiler-anywhere", "is not on PATH"),
    "escape sequence": ("\x1b[31mg++", r"\\x1b\[31mg\+\+' is not on PATH"),
    "exits": ("{tmp}/exits", "could not|refused"),
    "silent exit": ("{tmp}/silent", "exit status 1"),
    "garbage": ("{tmp}/garbage", "made nothing"),
    "endless garbage": ("{tmp}/endless", "took more than 1 s"),
    "hangs": ("{tmp}/hangs", "took more than 1 s"),
    "hangs without streams": ("{tmp}/closes", "took more than 1 s"),
    "crashes": ("{tmp}/crashes", "exit status -11|refused"),
    "writes no library": ("{tmp}/writes", "no library"),
    "no interpreter": ("{tmp}/interpreter", "can't be run"),
    "bytes": ("{tmp}/bytes", "refused"),
}
SCRIPTS = {
    "exits": "echo 'error: out of ideas' >&2; exit 1",
    "silent": "exit 1",
    "garbage": "echo garbage; exit 0",
    "endless": "yes garbage",
    "hangs": "sleep 1000 & sleep 1000",
    "closes": "exec >/dev/null 2>&1; sleep 1000",
    "crashes": "kill -SEGV $$",
    "writes": 'while [ "$1" != -o ]; do shift; done; echo text > "$2"',
    "bytes": r"printf '\377\376 error \033[2J\n' >&2; exit 1",
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_compilers_are_named(kind, tmp_path, monkeypatch):
    for name, body in SCRIPTS.items():
        script(tmp_path, name, body)
    script(tmp_path, "plain", "exit 0", 0o644)
    script(tmp_path, "interpreter", "").write_text("#!/no/such/interpreter\n")
    given, wanted = ODD[kind]
    monkeypatch.setenv("CXX", given.format(tmp=tmp_path))
    monkeypatch.setenv("DYNACOMPILE_COMPILER_SECONDS", "1")
    start = time.monotonic()
    with pytest.raises(BuildError, match=wanted) as raised:
        compile_unit(TEXT, [])
    named = given.format(tmp=tmp_path).split("/")[-1]
    assert named in str(raised.value) or not named.isprintable()
    assert time.monotonic() - start < 20 and "\x1b" not in str(raised.value)
    assert not alive("sleep 1000") and not alive("yes garbage")


def alive(command: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if line.endswith(f" {command}") and line.split()[1][0] != "Z"]


@pytest.mark.parametrize("kind", ["relative", "arguments", "wrapper", "tilde"])
def test_compilers_that_work(kind, tmp_path, monkeypatch):
    script(tmp_path, "wrap", 'exec "$@"')
    script(tmp_path, "gxx", 'exec g++ "$@"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CXX", {"relative": "./gxx", "arguments": "g++ -DX=1 '-DY=a b'", "wrapper": f"{tmp_path}/wrap g++", "tilde": "~/gxx"}[kind])
    tools = toolchain()
    assert os.path.isabs(tools.command[0])
    monkeypatch.chdir("/")
    assert compile_unit(TEXT, []).startswith(b"\x7fELF")
    if kind == "wrapper":
        assert "g++" in tools.stamp and os.path.realpath(f"{tmp_path}/wrap") in tools.stamp


@pytest.mark.parametrize(
    "variable, value",
    [(name, "/opt/somewhere") for name in compilers.FOLDERS]
    + [("GCC_EXEC_PREFIX", "/opt/gcc/"), ("CCC_OVERRIDE_OPTIONS", "+-O0"), ("NIX_CFLAGS_COMPILE_x86_64_unknown_linux_gnu", "-O0")],
)
def test_the_stamp_covers_what_the_environment_says_to_the_compiler(variable, value, monkeypatch):
    monkeypatch.delenv(variable, raising=False)
    before, key = toolchain(), unit_key("text", ())
    monkeypatch.setenv(variable, value)
    assert toolchain().stamp != before.stamp and toolchain().command == before.command
    assert unit_key("text", ()) != key
    monkeypatch.setenv(variable, "")
    assert variable not in compilers.FOLDERS or toolchain() == before


@pytest.mark.parametrize("folders", ["include", ":/opt", "."])
def test_relative_folders_are_those_of_the_programs_own(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("CPATH", folders)
    stamps = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        stamps.add(toolchain().stamp)
    (tmp_path / "two").rmdir()
    stamps.add(toolchain().stamp)
    assert len(stamps) == 3


def test_a_script_that_is_changed_is_another_compiler(tmp_path, monkeypatch):
    """Of the same length and with the same time, as in an image that sets the times of files."""
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    stamps = set()
    for flag in ("-DA", "-DB"):
        os.utime(script(tmp_path, "cxx", f'exec g++ {flag} "$@"'), (1e9, 1e9))
        stamps.add(toolchain().stamp)
    assert len(stamps) == 2


def test_a_script_and_ccache_change_with_the_compiler_that_they_run(tmp_path, monkeypatch):
    """`ccache` runs the compiler whose name it is called by."""
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin", "ccache", 'case $0 in *clang++) echo "clang version 9";; *) cat "$(dirname "$0")"/version;; esac')
    (tmp_path / "bin" / "version").write_text("g++ 12\n")
    for name in ("g++", "clang++"):
        (tmp_path / "bin" / name).symlink_to("ccache")
    kinds = []
    for name in ("g++", "clang++"):
        monkeypatch.setenv("CXX", str(tmp_path / "bin" / name))
        kinds.append((toolchain().stamp, toolchain().is_clang))
    assert kinds[0][0] != kinds[1][0] and [is_clang for _, is_clang in kinds] == [False, True]
    monkeypatch.setenv("CXX", str(tmp_path / "bin" / "g++"))
    compilers.version_of.cache_clear()  # as in another process
    (tmp_path / "bin" / "version").write_text("\ng++ 13\nfurther lines\n")
    assert toolchain().version == "g++ 13" and toolchain().stamp != kinds[0][0]


def test_the_stamp_is_the_same_wherever_the_program_is_and_whatever_is_complained_of(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(script(tmp_path, "cxx", 'echo "$COMPLAINT" >&2; exec g++ "$@"')))
    (tmp_path / "gone").mkdir()
    stamps = set()
    for complaint, folder in (("one", "/"), ("two", tmp_path / "gone")):
        compilers.version_of.cache_clear()  # as in another process
        monkeypatch.setenv("COMPLAINT", complaint)
        monkeypatch.chdir(folder)
        if folder != "/":
            folder.rmdir()
        stamps.add(toolchain().stamp)
    assert len(stamps) == 1


def test_a_folder_called_clang_makes_no_clang(tmp_path, monkeypatch):
    (tmp_path / "clang").mkdir()
    monkeypatch.setenv("CXX", str(script(tmp_path / "clang", "cxx", 'exec g++ "$@"')))
    assert not toolchain().is_clang


def test_the_limit_is_stated_and_a_setting(monkeypatch):
    monkeypatch.delenv("DYNACOMPILE_COMPILER_SECONDS", raising=False)
    assert time_limit() == SECONDS == 300
    monkeypatch.setenv("DYNACOMPILE_COMPILER_SECONDS", "12.5")
    assert time_limit() == 12.5
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv("DYNACOMPILE_COMPILER_SECONDS", wrong)
        with pytest.raises(ConfigError, match="DYNACOMPILE_COMPILER_SECONDS must be"):
            time_limit()


def test_flags_with_unbalanced_quotes_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CXXFLAGS", "-DX='")
    with pytest.raises(ConfigError, match="CXXFLAGS=.*can't be split"):
        compilers.words(os.environ["CXXFLAGS"], "CXXFLAGS")


def test_output_is_bounded():
    assert len(run_compiler(["head", "-c", "50000000", "/dev/zero"], "test").output) == compilers.MOST_OUTPUT


def test_an_interrupt_ends_the_compiler_and_all_that_it_started():
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_compiler(["sh", "-c", "sleep 1001 & sleep 1001"], "test")
    assert gone("sleep 1001")


PROGRAM = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from dynacompile.compilers import run_compiler
pool = ThreadPoolExecutor(1)
pool.submit(run_compiler, ["sh", "-c", "sleep {n} & sleep {n}"], "test")
pool.shutdown(wait=False)
time.sleep(1)
{end}
"""


@pytest.mark.parametrize(
    "number, end", [(1011, ""), (1012, "os.kill(os.getpid(), 9)"), (1014, "sys.exit(3)"), (1015, "os.kill(os.getpid(), 15); time.sleep(60)")]
)
def test_the_end_of_the_program_ends_the_compiler(number, end):
    start = time.monotonic()
    run(TORCH, "-c", PROGRAM.format(n=number, end=end), timeout=30)
    assert time.monotonic() - start < 25 and gone(f"sleep {number}")


WAITS = """
import threading, time
from dynacompile.threads import begin, on_threads
from dynacompile.compilers import run_compiler
runs = []
def work(item=0):
    runs.append(item)
    done = run_compiler(["sleep", "1013" if len(runs) == 1 else "0"], "test")
    print(len(runs), done.status, flush=True)
threading.Thread(target={target}).start()
time.sleep(1)
"""


@pytest.mark.parametrize("target", ["begin(work, 'build')", "lambda: on_threads(2, work, [0])"], ids=["begun", "shared"])
def test_a_thread_of_the_program_whose_compiler_the_exit_ends_runs_it_again(target):
    """The compiler's own threads run none any more; who waits for their work does it."""
    done = run(TORCH, "-c", WAITS.format(target=target), timeout=60)
    assert done.stdout.split() == ["2", "0"] and gone("sleep 1013"), done.stderr[-2000:]


def gone(command: str) -> bool:
    end = time.monotonic() + 10
    while alive(command) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(command)


@pytest.mark.parametrize("most, on_this_thread", [(0, [1, 2, 3]), (1, [])], ids=["none", "one"])
def test_where_no_more_threads_start_those_that_there_are_do_the_work(most, on_this_thread, monkeypatch):
    """As where the main thread ends between the look whether it has ended and the next start; this thread does it, where there are none."""
    taken, done = [], []
    start = _thread.start_new_thread

    def start_some(*args):
        taken.append(args)
        if len(taken) > most:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        return start(*args)

    def work(item):
        done.append((item, threading.get_ident() == threading.main_thread().ident))
        return -item

    monkeypatch.setattr(_thread, "start_new_thread", start_some)
    assert on_threads(2, work, [1, 2, 3]) == [-1, -2, -3]
    assert sorted(done) == [(item, item in on_this_thread) for item in (1, 2, 3)]
    assert begin(lambda: 7, "late")() == 7


def test_threads_leave_nothing_behind():
    before = threading.enumerate()
    assert on_threads(2, str, range(5)) == ["0", "1", "2", "3", "4"]
    assert begin(threading.current_thread, "named")().name == "named"
    end = time.monotonic() + 10
    while Helper.running and time.monotonic() < end:
        time.sleep(0.001)
    assert threading.enumerate() == before and not Helper.running


def test_an_error_on_a_thread_ends_what_waits_for_one():
    def work(item):
        if item == 0:
            raise ValueError("zero")
        time.sleep(0.05)
        done.append(item)

    done: list[int] = []
    with pytest.raises(ValueError, match="zero"):
        on_threads(1, work, range(20))
    assert len(done) <= 2


def test_no_process_is_left_unwaited_for():
    """Of those that ran here: a compiler that another test began may still run in the background."""
    for _ in range(3):
        run_compiler(["true"], "test")
    children = [stat.split() for stat in map(stat_of, Path("/proc").glob("[0-9]*/stat")) if stat]
    assert [state for _, name, state, parent, *_ in children if (name, parent) == ("(true)", str(os.getpid()))] == []


def stat_of(file: Path) -> str:
    """What the system tells of a process, or nothing where it has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""


CORE_AT_EXIT = """
import atexit, os, pathlib, sys, threading, time
from dynacompile import native
folder = pathlib.Path(sys.argv[1])
native.sources = lambda: sorted(folder.glob("*.cpp"))
native.shared_key, native.LIBRARIES, native.FLAGS = lambda: "key", ("c10",), ("-O0", "-fPIC")
def build():
    content, path = native.library()
    print(len(content) > 0, flush=True)
{how}
"""


@pytest.mark.parametrize(
    "how", ["atexit.register(build)", "threading.Thread(target=build).start()", "threading.Thread(target=build).start(); time.sleep(0.05)"],
    ids=["atexit", "thread", "thread-that-has-begun"],
)  # fmt: skip
def test_the_core_is_built_while_the_program_ends(how, tmp_path):
    """No thread is started any more then, and compilers that run are ended: whoever builds runs them itself."""
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.cpp").write_text(TEXT.replace("seven", name))
    env = dict(os.environ, DYNACOMPILE_NATIVE_DIR=str(tmp_path / "native"))
    done = run(TORCH, "-c", CORE_AT_EXIT.format(how=how), str(tmp_path), env=env, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]) and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert not list((tmp_path / "native").glob(".new-*"))


@pytest.mark.parametrize("damage", ["half", "empty", "other bytes", "another core's", "unsealed", "fifo", "folder", "unreadable"])
def test_a_core_that_is_not_as_it_was_built_is_built_anew(damage, tmp_path, monkeypatch):
    """The folder has a core of two small sources instead of the real ones."""
    monkeypatch.setattr(native, "sources", lambda: sorted((tmp_path / "sources").glob("*.cpp")))
    monkeypatch.setattr(native, "shared_key", lambda: "key")
    monkeypatch.setattr(native, "LIBRARIES", ("c10",))
    monkeypatch.setattr(native, "FLAGS", ("-O0", "-fPIC"))
    monkeypatch.setenv("DYNACOMPILE_NATIVE_DIR", str(tmp_path / "native"))
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "one.cpp").write_text(TEXT)
    (tmp_path / "sources" / "two.cpp").write_text(TEXT.replace("seven", "eight"))
    runs = []
    monkeypatch.setattr(native, "run_compiler", lambda command, doing: runs.append(doing) or run_compiler(command, doing))

    raw, path = native.library()
    assert runs == ["compile one.cpp", "compile two.cpp", "link the native core"] or sorted(runs)[:2] == ["compile one.cpp", "compile two.cpp"]
    runs.clear()
    assert native.library() == (raw, path) and runs == []
    for place, again in ((path, ["link the native core"]), (next((tmp_path / "native").glob("one-*.o")), ["compile one.cpp", "link the native core"])):
        spoil(place, damage, next((tmp_path / "native").glob("two-*.o")))
        if place is not path:
            path.unlink(missing_ok=True)
        runs.clear()
        assert native.library()[0].startswith(b"\x7fELF") and runs == again
        if damage == "folder":
            place.rmdir()


def spoil(place: Path, damage: str, other: Path) -> None:
    raw = place.read_bytes()
    if damage in ("fifo", "folder"):
        place.unlink()
        os.mkfifo(place) if damage == "fifo" else place.mkdir()
    elif damage == "unreadable":
        place.chmod(0o622)
    else:
        kinds = {"half": raw[: len(raw) // 2], "empty": b"", "other bytes": raw[:100] + b"!" + raw[101:], "another core's": other.read_bytes()}
        place.write_bytes(kinds.get(damage, raw[:-53]))


@pytest.mark.parametrize("place", ["a file", "read-only"])
def test_a_core_without_a_folder_is_built_for_the_process(place, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "sources", lambda: [tmp_path / "one.cpp"])
    monkeypatch.setattr(native, "LIBRARIES", ("c10",))
    monkeypatch.setattr("dynacompile.complaints.COMPLAINTS.known", set())
    (tmp_path / "one.cpp").write_text(TEXT)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DYNACOMPILE_NATIVE_DIR", str(tmp_path / place / "native") if place == "a file" else "/proc/native")
    with pytest.warns(RuntimeWarning, match="native core.* can't be used") as given:
        content, _ = native.library()
    assert content.startswith(b"\x7fELF") and len(given) == 1


@pytest.mark.parametrize("odd", ["link", "folder", "fifo", "device"])
def test_the_lock_is_opened_without_following_or_emptying(odd, tmp_path, monkeypatch):
    target = tmp_path / "precious"
    target.write_text("content")
    folder = tmp_path / "native"
    folder.mkdir(mode=0o700)
    place = folder / "lock"
    {"link": lambda: place.symlink_to(target), "folder": place.mkdir, "fifo": lambda: os.mkfifo(place), "device": lambda: place.symlink_to("/dev/null")}[odd]()
    monkeypatch.setattr("dynacompile.complaints.COMPLAINTS.known", set())
    inside = os.open(folder, os.O_RDONLY)
    with pytest.warns(RuntimeWarning, match="the lock file 'lock' of the cache can't be used"), native.locked("lock", inside):
        pass
    os.close(inside)
    assert target.read_text() == "content"


def test_scratch_folders_of_dead_processes_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, age in (("dynacompile-old", 200_000), ("dynacompile-new", 60), ("other-old", 200_000)):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "kernels.cpp").write_text("")
        os.utime(tmp_path / name, (0, time.time() - age))
    with scratch_folder() as folder:
        assert folder.parent == tmp_path
    assert sorted(os.listdir(tmp_path)) == ["dynacompile-new", "other-old"]


def test_commands_are_told_as_a_shell_takes_them():
    with pytest.raises(BuildError) as raised:
        os.environ["DYNACOMPILE_COMPILER_SECONDS"] = "0.1"
        try:
            run_compiler(["sh", "-c", "sleep 5", "a b"], "test")
        finally:
            del os.environ["DYNACOMPILE_COMPILER_SECONDS"]
    assert shlex.join(["sh", "-c", "sleep 5", "a b"]) in str(raised.value)
