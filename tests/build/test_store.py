"""The store of binaries: what is kept is found again, and nothing else is ever taken for it."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import stat
import subprocess
import threading
import time
import warnings

import pytest

from dynacompile import env, libraries, native
from dynacompile.build import store as stores
from dynacompile.build.store import Store, evict
from dynacompile.compilers import missing_compiler
from dynacompile.complaints import COMPLAINTS
from dynacompile.errors import BuildError, ConfigError
from dynacompile.trusted import MAGIC, secret
from tests.forked import TORCH, Program, run

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def nothing_warned_of(monkeypatch):
    monkeypatch.setattr(COMPLAINTS, "known", set())


def test_what_was_put_is_got(tmp_path):
    store = Store(tmp_path / "binaries")
    assert store.get(KEY) is None and store.library(KEY) is None
    store.put(KEY, b"content")
    assert Store(tmp_path / "binaries").get(KEY) == b"content"
    assert store.file(KEY).read_bytes().startswith(b"content" + MAGIC)
    assert stat.S_IMODE(store.file(KEY).stat().st_mode) == 0o600 and stat.S_IMODE(store.file(KEY).parent.stat().st_mode) == 0o700
    store.put(KEY, b"")
    assert store.get(KEY) == b""


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"C" + raw[1:], lambda raw: b"", lambda raw: raw + b"x", lambda raw: raw[-20:]])
def test_damage_counts_as_absent_and_is_replaced(tmp_path, damage):
    store = Store(tmp_path)
    store.put(KEY, b"content")
    path = store.file(KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert store.get(KEY) is None
    store.put(KEY, b"content")
    assert store.get(KEY) == b"content"


def test_an_entry_in_the_place_of_another_counts_as_absent(tmp_path):
    store, other = Store(tmp_path), "fedcba9876543210"
    store.put(KEY, b"content")
    store.put(other, b"other content")
    store.file(KEY).write_bytes(store.file(other).read_bytes())
    assert store.get(KEY) is None and store.get(other) == b"other content"


def test_an_entry_under_another_key_counts_as_absent(tmp_path, monkeypatch):
    Store(tmp_path / "store").put(KEY, b"content")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
    assert Store(tmp_path / "store").get(KEY) is None


def test_the_key_is_made_once_and_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = "from dynacompile.env import secret_key; print(secret_key().hex())"
    made = [Program(TORCH, ["-c", program], tmp_path, os.environ) for _ in range(3)]
    keys = {process.communicate()[0].strip() for process in made}
    assert keys == {env.secret_key().hex()} and len(env.secret_key()) == 32
    file = tmp_path / "dynacompile" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and os.listdir(file.parent) == ["key"]


def short_key(file):
    file.write_bytes(b"short")
    file.chmod(0o600)


HOSTILE_KEYS = (lambda file: file.mkdir(), os.mkfifo, lambda file: file.symlink_to(file), lambda file: file.write_bytes(b"k" * 32), short_key)


@pytest.mark.parametrize("hostile", HOSTILE_KEYS)
def test_a_key_that_is_none_is_warned_of_and_not_used(tmp_path, monkeypatch, hostile):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dynacompile").mkdir(mode=0o700)
    hostile(tmp_path / "dynacompile" / "key")
    with pytest.warns(RuntimeWarning, match="key.* can't be used") as given:
        assert len(env.secret_key()) == 32
        Store(tmp_path / "store").put(KEY, b"content")
    assert len(given) == 1 and Store(tmp_path / "store").get(KEY) == b"content"


ODD = {
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "loop": lambda path: path.symlink_to(path.name),
    "link to a file": lambda path: path.symlink_to(__file__),
    "unreadable": lambda path: (path.write_bytes(b"x"), path.chmod(0)),
    "writable by all": lambda path: (path.write_bytes(b"x"), path.chmod(0o666)),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_files_in_an_entrys_place_are_a_miss_and_at_most_one_warning(tmp_path, odd):
    store = Store(tmp_path)
    store.file(KEY).parent.mkdir(mode=0o700)
    ODD[odd](store.file(KEY))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        assert [store.get(KEY) for _ in range(3)] == [None] * 3
        assert store.library(KEY) is None
    assert [w.category for w in given] == [RuntimeWarning] * len(given) and len(given) <= 1
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        store.put(KEY, b"content")
        assert store.get(KEY) == b"content" and len(given) == (odd == "folder")


@pytest.mark.parametrize("odd", [*ODD, "sticky", "group"])
def test_odd_files_in_the_place_of_a_level_are_a_miss_and_one_warning(tmp_path, odd):
    store = Store(tmp_path)
    level = store.file(KEY).parent
    if odd in ("sticky", "group"):
        store.put(KEY, b"content")
        level.chmod(0o1777 if odd == "sticky" else 0o770)
    elif odd == "folder":
        level.symlink_to(tmp_path.parent, target_is_directory=True)
    else:
        ODD[odd](level)
    with pytest.warns(RuntimeWarning) as given:
        assert [store.get(KEY) for _ in range(3)] == [None] * 3
    assert len(given) == 1
    with pytest.warns(RuntimeWarning) as given:
        store.put(KEY, b"content")
        store.put(KEY, b"content")
        assert store.get(KEY) == b"content"  # kept by the process
    assert len(given) == 1


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=r"chmod go-w .*/open.*DYNACOMPILE_CACHE_DIR"):
        Store(folder)


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o770, True), (0o1777, False), (0o755, False)])
def test_a_folder_above_that_others_can_write_is_refused_but_for_sticky_ones(tmp_path, mode, refused):
    above = tmp_path / "above"
    (above / "between").mkdir(parents=True)
    above.chmod(mode)
    if refused:
        with pytest.raises(ConfigError, match=r"/above, on the way to .*chmod go-w .*/above`"):
            Store(above / "between" / "store")
    else:
        Store(above / "between" / "store")


@pytest.mark.skipif(os.getuid() != 0, reason="only the administrator gives files away")
def test_folders_and_links_of_other_users_are_refused(tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    for folder in (tmp_path / "theirs", tmp_path / "theirs" / "below"):
        with pytest.raises(ConfigError, match="belongs to another user"):
            Store(folder)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("mine")
    Store(tmp_path / "link")
    os.lchown(tmp_path / "link", 12345, 12345)
    with pytest.raises(ConfigError, match="link, on the way to"):
        Store(tmp_path / "link")


@pytest.mark.parametrize("place", ["a file", "/proc/nothing", "a loop"])
def test_a_folder_that_cant_be_made_is_one_warning_and_the_process_keeps_what_it_builds(tmp_path, place):
    (tmp_path / "a file").write_text("")
    (tmp_path / "a loop").symlink_to("a loop")
    with pytest.warns(RuntimeWarning, match="can't be made") as given:
        store = Store(tmp_path / place / "store")
        Store(tmp_path / place / "store")
    assert len(given) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.put(KEY, b"content")
        assert Store(tmp_path / place / "store").get(KEY) == b"content"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_folders_are_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "a" / "b" / "c")
        store.put(KEY, b"content")
    finally:
        os.umask(before)
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c", store.file(KEY).parent))
    assert store.get(KEY) == b"content"


def test_no_temporary_files_stay(tmp_path):
    store = Store(tmp_path)
    writers = [threading.Thread(target=store.put, args=(KEY, bytes([i]) * 1000)) for i in range(8)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert [f for _, _, files in os.walk(tmp_path) for f in files] == [KEY[2:]]
    content = store.get(KEY)
    assert content is not None and len(set(content)) == 1 and len(content) == 1000


@pytest.mark.parametrize("key", ["", "short", "../../../etc", "a" * 200, "..aaaaaaaa"])
def test_keys_are_names(tmp_path, key):
    with pytest.raises(ValueError, match="a key is"):
        Store(tmp_path).put(key, b"")


def entries(folder):
    return {str(p.relative_to(folder)) for p in folder.glob("*/*")}


def test_the_entries_used_least_recently_are_evicted(tmp_path):
    store = Store(tmp_path)
    keys = [f"{i:02d}aaaaaaaa" for i in range(10)]
    for age, key in enumerate(keys):
        store.put(key, b"x" * 4000)
        os.utime(store.file(key), (0, time.time() - 7200 * (10 - age)))
    assert store.get(keys[0]) is not None  # used now
    evict(tmp_path, 1 << 30)
    assert len(entries(tmp_path)) == 10
    evict(tmp_path, 30_000)
    left = entries(tmp_path)
    assert "00/aaaaaaaa" in left and "09/aaaaaaaa" in left and "01/aaaaaaaa" not in left and len(left) in (2, 3, 4, 5)
    assert store.get(keys[1]) is None and store.get(keys[0]) == b"x" * 4000


def test_a_hit_is_noted_once_an_hour(tmp_path):
    store = Store(tmp_path)
    store.put(KEY, b"content")
    for age, noted in ((600, False), (4000, True)):
        os.utime(store.file(KEY), (0, time.time() - age))
        store.get(KEY)
        assert (time.time() - store.file(KEY).stat().st_mtime < 60) == noted


def test_the_bound_is_kept_while_writing(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNACOMPILE_CACHE_BYTES", "1M")
    store = Store(tmp_path)
    for i in range(100):
        store.put(f"{i:02d}bbbbbbbb", b"x" * 60_000)
    assert sum(p.stat().st_blocks * 512 for p in tmp_path.glob("*/*")) < 1.2 * 2**20
    assert store.get("99bbbbbbbb") is not None


def test_what_dead_processes_left_is_swept_and_nothing_else(tmp_path):
    store = Store(tmp_path)
    store.put(KEY, b"content")
    level = store.file(KEY).parent
    for name, age in ((".new-1-a", 7200), (".new-2-b", 60)):
        (level / name).write_bytes(b"part")
        os.utime(level / name, (0, time.time() - age))
    (tmp_path / "README").write_text("the user's")
    (tmp_path / "zz").symlink_to(tmp_path.parent)
    evict(tmp_path, 1 << 30)
    assert entries(tmp_path) >= {f"{level.name}/.new-2-b", f"{level.name}/{KEY[2:]}"} and not (level / ".new-1-a").exists()
    assert (tmp_path / "README").exists() and (tmp_path / "zz").is_symlink()


@pytest.mark.parametrize("given, expected", [(None, 4 << 30), ("", 4 << 30), ("0", 0), ("500M", 500 << 20), (" 2g ", 2 << 30), ("123", 123)])
def test_the_bound_is_a_setting(monkeypatch, given, expected):
    monkeypatch.delenv("DYNACOMPILE_CACHE_BYTES", raising=False)
    if given is not None:
        monkeypatch.setenv("DYNACOMPILE_CACHE_BYTES", given)
    assert env.cache_bytes() == expected


@pytest.mark.parametrize("given", ["-1", "4 GB", "many", "1e9"])
def test_a_wrong_bound_is_named(monkeypatch, given):
    monkeypatch.setenv("DYNACOMPILE_CACHE_BYTES", given)
    with pytest.raises(ConfigError, match="DYNACOMPILE_CACHE_BYTES must be"):
        env.cache_bytes()


def test_folders_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DYNACOMPILE_CACHE_DIR", raising=False)
    assert env.cache_dir() == tmp_path / ".cache/dynacompile/compiled"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert env.cache_dir() == tmp_path / ".cache/dynacompile/compiled"
    monkeypatch.setenv("DYNACOMPILE_CACHE_DIR", "~/mine")
    assert env.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("DYNACOMPILE_CACHE_DIR", "~no-such-user/mine")
    with pytest.raises(ConfigError, match="DYNACOMPILE_CACHE_DIR='~no-such-user/mine': there is no home"):
        env.cache_dir()
    monkeypatch.setenv("DYNACOMPILE_CACHE_DIR", "here/and-there")
    first = env.cache_dir()
    monkeypatch.chdir(tmp_path)
    assert env.cache_dir() == first and first.is_absolute()


def test_a_relative_folder_where_the_programs_is_gone_is_named(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for variable in ("DYNACOMPILE_CACHE_DIR", "DYNACOMPILE_NATIVE_DIR"):
        monkeypatch.setenv(variable, f"not-asked-for-before/{tmp_path.name}")
        with pytest.raises(ConfigError, match=f"{variable}=.* is relative to the program's folder, which is gone"):
            env.chosen_folder(variable)
    monkeypatch.setenv("CXX", f"./not-asked-for-before-{tmp_path.name}")
    assert "which is gone: name the compiler by its whole path" in missing_compiler()


def test_a_limit_of_the_size_of_files_is_named(tmp_path, seven):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = Store(tmp_path / "store")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(RuntimeWarning, match="File too large"), pytest.raises(BuildError, match="does not load: .*File too large.*ulimit -f"):
            store.put_library(KEY, seven)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.put_library(KEY, seven).address("seven")


def test_without_a_home_nothing_is_kept_and_no_folder_is_called_by_a_tilde(monkeypatch, tmp_path):
    for name in ("HOME", "XDG_CACHE_HOME", "DYNACOMPILE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that the system does not know
    monkeypatch.chdir(tmp_path)
    secret.cache_clear()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        store = Store(env.cache_dir())
        store.put(KEY, b"content")
        assert store.get(KEY) == b"content"
    assert [next(word for word in ("the key", "made", "written", "read") if word in str(warning.message)) for warning in given] == [
        "the key",
        "made",
        "written",
        "read",
    ]
    assert not store.folder.exists() and list(tmp_path.iterdir()) == [] and "~" not in str(env.cache_dir())


def test_a_library_runs_from_a_folder_without_room(monkeypatch, tmp_path):
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "seven.so"), str(source)], check=True)
    content = (tmp_path / "seven.so").read_bytes()
    store = Store(tmp_path / "store")
    assert store.put_library(KEY, content).address("seven")
    assert store.library(KEY) == store.put_library(KEY, content) or store.library(KEY).address("seven")

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    other = "fedcba9876543210"
    monkeypatch.setattr("dynacompile.trusted.write_all", full)
    with pytest.warns(RuntimeWarning, match="No space left on device") as given:
        assert store.put_library(other, content).address("seven")
        assert store.library(other).address("seven")
    assert len(given) == 1 and not store.file(other).exists()
    assert stores.account_of(store.folder).libraries[other]


@pytest.fixture
def seven(tmp_path):
    """The content of a library."""
    (tmp_path / "seven.c").write_text("int seven(void) { return 7; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "seven.so"), str(tmp_path / "seven.c")], check=True)
    return (tmp_path / "seven.so").read_bytes()


@pytest.mark.parametrize("refusals", [0, 1, 2])
def test_a_library_is_loaded_from_a_copy_that_is_gone_after(tmp_path, monkeypatch, seven, refusals):
    """In memory; in the folder for temporary files, where that is refused; beside the entry, where nothing in that folder may run."""
    temporary, store, tried = tmp_path / "temporary", Store(tmp_path / "store"), []
    temporary.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    store.put(KEY, seven)

    def load(place):
        tried.append(place)
        if len(tried) <= refusals:
            raise OSError("failed to map segment from shared object")
        return ctypes.CDLL(place).seven()

    assert libraries.load_copy(seven, store.file(KEY), load) == 7
    assert [place.startswith(start) for place, start in zip(tried, ("/proc", str(temporary), str(store.file(KEY).parent)))] == [True] * (refusals + 1)
    assert not any(os.path.exists(place) for place in tried)
    assert entries(tmp_path / "store") == {f"{KEY[:2]}/{KEY[2:]}"} and not list(temporary.iterdir())


@pytest.mark.parametrize("missing", ["memory", "proc"])
def test_a_library_is_loaded_without_files_in_memory_and_without_proc(tmp_path, monkeypatch, seven, missing):
    def refuse_memory(*args):
        raise OSError(38, "Function not implemented")

    if missing == "memory":
        monkeypatch.setattr(os, "memfd_create", refuse_memory)
    else:
        monkeypatch.setattr(libraries, "name_of", "/nowhere/{}".format)
    store = Store(tmp_path / "store")
    store.put(KEY, seven)
    assert store.library(KEY).address("seven")
    with pytest.raises(BuildError, match="does not load"):
        libraries.load_library(b"no library", store.file(KEY))


CHANGED = """
import os, pathlib, shutil, sys
used, damage = pathlib.Path(sys.argv[1]), sys.argv[2]
os.environ["DYNACOMPILE_CACHE_DIR"], os.environ["DYNACOMPILE_NATIVE_DIR"] = str(used / "cache"), str(used / "native")
import torch, dynacompile
compiled, x = dynacompile.compile(lambda x: (x * 2).sin() + 1), torch.ones(9)
first = compiled(x)
files = [p for p in used.rglob("*") if p.is_file() and p.read_bytes().startswith(b"\\x7fELF")]
assert len(files) >= 2 and any(p.suffix == ".so" for p in files), files
for path in files:
    with path.open("r+b") as file:
        if damage == "cut":
            file.truncate(0)
        else:
            file.write(b"\\xcc" * path.stat().st_size)
assert torch.equal(compiled(x), first)
assert torch.equal(compiled(torch.ones(3, 9)), first.expand(3, 9))
print("right")
"""


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_what_is_loaded_stays_as_it_is_where_its_file_is_changed(tmp_path, damage):
    """The file of a kernel and that of the native core, until the end of the process."""
    native.core()
    shutil.copytree(env.native_dir(), tmp_path / "native", ignore=lambda folder, names: set(names) - {native.library()[1].name})
    (tmp_path / "native").chmod(0o700)
    done = run(TORCH, "-c", CHANGED, str(tmp_path), damage)
    assert (done.returncode, done.stdout.split()) == (0, ["right"]), done.stderr[-2000:]
