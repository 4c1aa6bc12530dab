"""What loggers have written, read from their files without their services: W&B's offline records, TensorBoard's events."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
FULL, LAST = 1, 4


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: seven bytes of header, then LevelDB's log format (blocks of 32 KiB; chunks of checksum, length and kind) of protobufs."""
    pb = __import__("wandb.proto.wandb_internal_pb2", fromlist=["Record"])
    content, at, whole = file.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(content):
            return  # it is being written
        if kind in (FULL, LAST):
            record = pb.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def finished(file: Path) -> list[Any]:
    """The records of an offline run that has been told to finish: W&B's service writes the last of them a little later."""
    end = time.monotonic() + 60
    while not (records := list(wandb_records(file))) or records[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < end, f"{file} has {len(records)} records, and no end"
        time.sleep(0.05)
    return records


class OfflineRun:
    """An offline run below a folder: its config, summary and history by name, its artifacts and tables."""

    def __init__(self, folder: Path):
        (self.file,) = folder.rglob("*.wandb")
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.artifacts: dict[str, list[str]] = {}
        for record in finished(self.file):
            match record.WhichOneof("record_type"):
                case "config":
                    self.config |= {key(item): json.loads(item.value_json) for item in record.config.update}
                case "summary":
                    self.summary |= {key(item): json.loads(item.value_json) for item in record.summary.update}
                case "history":
                    self.history.append({key(item): json.loads(item.value_json) for item in record.history.item})
                case "artifact":
                    self.artifacts[f"{record.artifact.type}/{record.artifact.name}"] = [c.path for c in record.artifact.manifest.contents]

    def table(self, name: str) -> tuple[list[str], list[list[Any]]]:
        """Columns and rows of the table that was logged last under a name."""
        path = [row[f"{name}/path"] for row in self.history if f"{name}/path" in row][-1]
        found = json.loads((self.file.parent / "files" / path).read_text())
        return found["columns"], found["data"]


def key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def tensorboard_events(folder: Path) -> list[Any]:
    """The events of a TensorBoard run: records of length, checksum, protobuf, checksum."""
    pb = __import__("tensorboardX.proto.event_pb2", fromlist=["Event"])
    events = []
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = pb.Event()
            event.ParseFromString(content[at + 12 : at + 12 + length])
            events.append(event)
            at += 12 + length + 4
    return events
