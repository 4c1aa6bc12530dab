"""Minimum cut of a directed graph by Dinic's maximum flow (E. A. Dinic, 1970): blocking flows on level graphs."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class FlowNetwork:
    """Nodes are numbers, 0 the source and 1 the sink. Edge 2k and its reverse 2k+1 are neighbours in the arrays."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.capacity: list[int] = []
        self.edges: list[list[int]] = [[], []]

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: int = INFINITE) -> None:
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.capacity += (capacity, 0)

    def sink_side(self) -> set[int]:
        """The sink's side of the minimum cut that lies nearest to the sink. An uncuttable path from source to sink is an error."""
        while (levels := self._levels())[1] >= 0:
            self._block(levels)
        side, queue = {1}, deque([1])
        while queue:
            for edge in self.edges[queue.popleft()]:
                tail = self.heads[edge]
                if tail not in side and self.capacity[edge ^ 1] > 0:
                    side.add(tail)
                    queue.append(tail)
        if 0 in side:
            raise ValueError("source and sink are connected by a path of infinite capacity")
        return side

    def _levels(self) -> list[int]:
        """Distance from the source in the residual graph; -1 where it does not reach, or at the sink's distance and beyond."""
        levels = [-1] * len(self.edges)
        levels[0] = 0
        queue = deque([0])
        heads, capacity = self.heads, self.capacity
        while queue:
            node = queue.popleft()
            if levels[1] >= 0 and levels[node] >= levels[1]:
                break
            for edge in self.edges[node]:
                if capacity[edge] > 0 and levels[heads[edge]] < 0:
                    levels[heads[edge]] = levels[node] + 1
                    queue.append(heads[edge])
        return levels

    def _block(self, levels: list[int]) -> None:
        """Saturates every shortest path of the level graph."""
        heads, capacity, edges = self.heads, self.capacity, self.edges
        position = [0] * len(edges)
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                flow = min(capacity[edge] for edge in path)
                if flow >= INFINITE // 2:
                    raise ValueError("source and sink are connected by a path of infinite capacity")
                first = len(path)
                for i in range(len(path) - 1, -1, -1):
                    capacity[path[i]] -= flow
                    capacity[path[i] ^ 1] += flow
                    if capacity[path[i]] == 0:
                        first = i
                node = heads[path[first] ^ 1]
                del path[first:]
                continue
            outgoing, i = edges[node], position[node]
            while i < len(outgoing) and not (capacity[outgoing[i]] > 0 and levels[heads[outgoing[i]]] == levels[node] + 1):
                i += 1
            position[node] = i
            if i < len(outgoing):
                path.append(outgoing[i])
                node = heads[outgoing[i]]
            elif path:
                node = heads[path.pop() ^ 1]
                position[node] += 1
            else:
                return
