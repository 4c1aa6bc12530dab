"""Which of a node's results are read."""

from __future__ import annotations

import operator

import torch.fx


def used_items(node: torch.fx.Node, count: int) -> set[int]:
    """Which of a node's results some getitem takes; all when it is used as a whole."""
    used: set[int] = set()
    for user in node.users:
        if user.target is not operator.getitem:
            return set(range(count))
        used.add(user.args[1] % count)  # type: ignore[operator,arg-type]
    return used
