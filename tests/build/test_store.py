"""The store of binaries."""

from __future__ import annotations

import os
import threading

import pytest

from dynacompile.build.store import MAGIC, Store
from dynacompile.errors import ConfigError

KEY = "0123456789abcdef"


def test_what_was_put_is_got(tmp_path):
    store = Store(tmp_path / "binaries")
    assert store.get(KEY) is None and store.path(KEY) is None
    path = store.put(KEY, b"content")
    assert Store(tmp_path / "binaries").get(KEY) == b"content"
    assert store.path(KEY) == path and path.read_bytes().startswith(b"content" + MAGIC)
    store.put(KEY, b"")
    assert store.get(KEY) == b""


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"C" + raw[1:], lambda raw: b"", lambda raw: raw + b"x"])
def test_damage_counts_as_absent_and_is_replaced(tmp_path, damage):
    store = Store(tmp_path)
    path = store.put(KEY, b"content")
    path.write_bytes(damage(path.read_bytes()))
    assert store.get(KEY) is None
    store.put(KEY, b"content")
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


@pytest.mark.parametrize("key", ["", "short", "../../../etc", "a" * 200])
def test_keys_are_names(tmp_path, key):
    with pytest.raises(ValueError, match="a key is"):
        Store(tmp_path).put(key, b"")


def test_a_folder_that_everybody_can_write_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="DYNACOMPILE_CACHE_DIR"):
        Store(folder)
