"""What a recompile says: which facts differ from the nearest entry, what was done about it, and which override would prevent it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from dynacompile.guards.program import Failure, failures
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.guard_facts import ShapeFacts
from dynacompile.ir.shapes import Quantity
from dynacompile.ir.source import Local
from dynacompile.ir.wording import shown_name
from dynacompile.quoting import printable, without_values


def nearest_failures(frame: Any, entries: list[Any]) -> list[Failure]:
    """All failing guards of the entry that fails the fewest."""
    return min((failures(entry.info.captured.guards, frame) for entry in entries), key=len, default=[])


def texts(failed: list[Failure]) -> tuple[str, ...]:
    """Each as `source: old -> new`."""
    return summarised(tuple(f.text for f in failed))


def summarised(failed: tuple[str, ...]) -> tuple[str, ...]:
    """`self.training: True -> False` stands for the same change in its submodules, which are counted."""
    kept: list[str] = []
    below: dict[str, int] = {}
    for text in sorted(failed, key=len):
        path, found, change = text.partition(".training: ")
        above = next((k for k in below if found and k.endswith(change) and path.startswith(k.partition(".training: ")[0] + ".")), None)
        if above is not None:
            below[above] += 1
            continue
        kept.append(text)
        if found:
            below[text] = 0
    return tuple(f"{text} (and in {below[text]} submodules)" if below.get(text) else text for text in failed if text in kept)


def frame_name(code: CodeType) -> str:
    return printable(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")


def done_about(guards: Iterable[Guard], before: Iterable[Iterable[Guard]]) -> str:
    """What the new entry is: for all values of a size or int that was a constant in the entries before, or one more for the values of its call."""
    known = {quantity for entry in before for quantity in symbolic(entry)}
    fresh = [without_values(quantity.text()) for quantity in symbolic(guards) if quantity not in known and quantity.kind != "stride"]
    return f"made {', '.join(fresh)} dynamic" if fresh else "new entry"


def symbolic(guards: Iterable[Guard]) -> tuple[Quantity, ...]:
    """Sizes, strides and ints that an entry takes as they come."""
    return tuple(dict.fromkeys(q for guard in guards if isinstance(guard.expected, ShapeFacts) for q in guard.expected.quantities))


def shape_option(failed: Sequence[Failure]) -> str:
    """The setting that makes the sizes that differ symbolic from the start; empty where anything else differs too, or the tensors have no names."""
    dims: dict[str, dict[int, None]] = {}
    for failure in failed:
        guard, part = failure.guard, failure.subject.rpartition(".")[2]
        if guard.kind != "TENSOR_MATCH" or not isinstance(guard.source, Local) or not part.startswith(("size(", "stride(")):
            return ""
        facts = guard.expected
        if part.startswith("size(") and isinstance(facts, TensorFacts):
            dims.setdefault(guard.source.name, {})[int(part[5:-1])] = None
    named = ", ".join(f"{name}: {{{', '.join(f'{dim}: {{}}' for dim in of)}}}" for name, of in dims.items())
    return f"dynamic: {{{named}}}" if named else ""


def override(region: str, key: tuple[Any, ...], option: str) -> str:
    """Valid config that sets `option` ("name: value") for the region, or for that key of its dispatch."""
    name, _, value = option.partition(": ")
    if key:
        return f"dispatch_options={{{shown_name(key[0])}: {{{name!r}: {as_python(value)}}}}}"
    glob = re.sub(r"[^\w.*-]+", "*", region)  # what Hydra would read as more than a name is matched, not named
    return f"compile.modules={{{glob}: {{{option}}}}}"


def as_python(value: str) -> str:
    """A value of an override as Python would write it: names of tensors are quoted."""
    return re.sub(r"([A-Za-z_]\w*):", r"'\1':", value)
