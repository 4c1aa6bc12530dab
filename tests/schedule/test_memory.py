"""The memory plan: what lives at the same time does not overlap."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynacompile.ir.index import Index, Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, Nest, Op
from dynacompile.ir.schedule import Launch, Place, Schedule
from dynacompile.schedule.memory import Arena, is_alike, is_read_first, memory_bytes
from tests.lower.tracing import UNFUSED, stages, trace


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 7)), max_size=40), st.sampled_from([64, 512]))
def test_arena_ranges_are_apart(requests: list[tuple[int, int]], alignment: int) -> None:
    """A random sequence of taking and giving back."""
    arena, live = Arena(alignment), []
    for count, which in requests:
        offset = arena.take(count)
        assert offset % alignment == 0 and offset + count <= max(arena.size, 0)
        assert all(offset + count <= o or o + n <= offset for o, n in live if n and count)
        live.append((offset, count))
        if which < len(live) and which % 2:
            arena.give(*live.pop(which))
    for place in live:
        arena.give(*place)
    assert sum(n for _, n in arena.free) == arena.size and len(arena.free) <= 1


def lives(plan: Schedule) -> dict[str, tuple[int, int]]:
    """First and last step that touches each placed buffer."""
    found: dict[str, tuple[int, int]] = {}
    placed = {s.buffer for s in plan.steps if isinstance(s, Place)}
    for i, step in enumerate(plan.steps):
        names = step.buffers if isinstance(step, Launch) else (*step.reads(), *(o for o in step.outputs if o)) if isinstance(step, Extern) else ()
        for name in names:
            while plan.buffers[name].base is not None:
                name = plan.buffers[name].base
            if name in placed:
                found[name] = (found.get(name, (i, i))[0], i)
    return found


def check_plan(plan: Schedule) -> None:
    offsets = {s.buffer: s.offset for s in plan.steps if isinstance(s, Place)}
    alive = lives(plan)
    names = sorted(alive)
    for i, a in enumerate(names):
        assert offsets[a] % 64 == 0 and offsets[a] + memory_bytes(plan.buffers[a]) <= plan.arena
        for b in names[i + 1 :]:
            first, last = max(alive[a][0], alive[b][0]), min(alive[a][1], alive[b][1])
            apart = offsets[a] + memory_bytes(plan.buffers[a]) <= offsets[b] or offsets[b] + memory_bytes(plan.buffers[b]) <= offsets[a]
            handed_over = first == last and offsets[a] == offsets[b]  # in place, within one launch
            assert first > last or apart or handed_over, (a, b)


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = []
    for i in range(6):
        x = torch.tanh(x @ w) + i
        kept.append(x.sum(0))
        x = x.softmax(-1) * 2
    return x, sum(kept)


def test_live_buffers_do_not_overlap() -> None:
    for env in ({}, {"env": UNFUSED}):
        plan = stages(trace(program, [torch.randn(8, 12), torch.randn(12, 12)]), **env)[1]
        check_plan(plan)


def test_arena_is_smaller_than_all_temps() -> None:
    plan = stages(trace(program, [torch.randn(64, 64), torch.randn(64, 64)]), UNFUSED)[1]
    total = sum(memory_bytes(plan.buffers[s.buffer]) for s in plan.steps if isinstance(s, Place))
    assert plan.arena * 4 < total


def test_pointwise_chain_works_in_place() -> None:
    plan = stages(trace(lambda x, w: ((x @ w).exp() @ w).exp() @ w, [torch.randn(16, 16)] * 2), UNFUSED)[1]
    assert plan.arena == 2 * 16 * 16 * 4


def test_types_that_a_cpp_compiler_tells_apart_share_no_memory_within_a_kernel() -> None:
    for place, shared in (("cpu", False), ("cuda", True)):
        numbers, counts = (Buffer("a", dtype, torch.device(place), (8,), (1,), "temp") for dtype in (torch.float32, torch.int32))
        assert is_alike(numbers, numbers) and is_alike(numbers, counts) == shared


def normalized_with_pick(place: Index, stored: Index, waits: bool = True) -> Nest:
    """x less its maximum over r, plus the element at `place`; waits: what is stored depends on the maximum."""
    x, r = Axis(Var("x0", 4), "x"), Axis(Var("r0", 8), "r")
    body = (
        Op("load", (), torch.int64, Access("at", atom(x.var))),
        Op("load", (), torch.float32, Access("x", place)),
        Op("load", (), torch.float32, Access("x", stored)),
        Op("reduce", (2,), torch.float32, "max"),
        Op("sub", (2, 3 if waits else 1), torch.float32),
        Op("add", (4, 1), torch.float32),
        Op("store", (5,), torch.float32, Access("out", stored)),
        Op("store", (3,), torch.float32, Access("most", atom(x.var))),
    )
    return Nest("picked", (x, r), body)


def test_a_row_may_read_its_own_elements_before_they_are_written_over() -> None:
    x, r, own, wide = atom(Var("x0", 4)), atom(Var("r0", 8)), atom(Var("%0", 8)), atom(Var("%0", 9))

    def is_first(place: Index, stored: Index, waits: bool = True) -> bool:
        return is_read_first(normalized_with_pick(place, stored, waits), {place}, stored)

    assert is_first(x * 8 + own, x * 8 + r)
    assert is_first(x * 10 + own + 3, x * 10 + r + 3), "rows with gaps, which begin later"
    assert not is_first(x * 8 + own, x * 8 + r, waits=False), "another thread may have stored already"
    assert not is_first(x * 8 + wide, x * 8 + r), "the next row's"
    assert not is_first(own, x * 8 + r), "the first row's"
    assert not is_first(x + own * 4, x + r * 4), "rows that lie in each other"
    assert not is_first(x * 8 + r * 0 + (own + r) * 1, x * 8 + r), "read once for each element, at any time"
