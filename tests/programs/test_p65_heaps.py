"""heapq and bisect over lists of what Python knows: the order, the comparisons that users' classes see, and what the lists hold afterwards."""

from __future__ import annotations

import bisect
import functools
import heapq
import random

import pytest
import torch

from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
SEEN: list = []


class Job:
    def __init__(self, cost, name):
        self.cost, self.name = cost, name

    def __lt__(self, other):
        SEEN.append((self.cost, other.cost))
        return self.cost < other.cost


@functools.total_ordering
class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.rank < other.rank


class Refuses:
    def __init__(self, after, name):
        self.after, self.name = after, name

    def __lt__(self, other):
        self.after -= 1
        if self.after < 0:
            raise KeyError("not comparable")
        return True


class Grows:
    """Changes the list that it is in while it is compared."""

    def __init__(self, heap):
        self.heap = heap

    def __lt__(self, other):
        self.heap.append(other)
        return True


def pushed_and_popped(x):
    heap = []
    for k in (5, 2, 8, 1):
        heapq.heappush(heap, k)
    before = list(heap)
    first = heapq.heappop(heap)
    return x * first + heapq.heappop(heap), before, heap


def heapified(x):
    heap = [5, 2, 8, 1, 9, 3, 2.5, True]
    heapq.heapify(heap)
    return x * heap[0], heap


def jobs(x):
    heap, out = [], []
    for i, cost in enumerate((5, 2, 8, 1, 2)):
        heapq.heappush(heap, Job(cost, i))
    while heap:
        job = heapq.heappop(heap)
        out.append((job.cost, job.name))
    return x * out[0][0], out


def tensors_in_tuples(x):
    heap = []
    for i, k in enumerate((5.5, 2.0, 8.0, 1.0)):
        heapq.heappush(heap, (k, i, x * i))
    k, i, found = heapq.heappop(heap)
    return found + k, i


def largest_and_smallest(x):
    numbers, sizes = [3, 1, 4, 1, 5], {"a": 3, "b": 1, "c": 2}
    found = heapq.nlargest(2, numbers), heapq.nsmallest(2, numbers), heapq.nlargest(1, numbers), heapq.nsmallest(9, numbers)
    keyed = heapq.nlargest(2, sizes, key=sizes.get), heapq.nsmallest(2, sizes.items(), key=lambda pair: pair[1])
    return x * 2, found, keyed


def merged(x):
    plain = list(heapq.merge([1, 4, 7], [2, 3, 9], [0], []))
    return x * 2, plain, list(heapq.merge([7, 4], [9, 1], reverse=True)), list(heapq.merge(["a", "ccc"], ["bb"], key=len))


def of_empty_lists(x):
    told = []
    for call in (lambda: heapq.heappop([]), lambda: heapq.heapreplace([], 1)):
        try:
            call()
        except IndexError as error:
            told.append(str(error))
    return x * heapq.heappushpop([], 3), told


def ranked(x):
    heap = [Ranked(3), Ranked(1), Ranked(2)]
    heapq.heapify(heap)
    return x * heap[0].rank, heapq.nsmallest(2, heap)[1].rank, [item.rank for item in heap]


def not_comparable(x):
    heap = [1, 2, 3]
    try:
        heapq.heappush(heap, "a")
    except TypeError as error:
        return x * 2, str(error), heap


def refused(x):
    told = []
    for after in range(4):
        heap = [Refuses(9 if name else after, name) for name in range(6)]
        for call in (lambda heap=heap: heapq.heappop(heap), lambda heap=heap: heapq.heapify(heap)):
            try:
                call()
            except KeyError as error:
                told.append(str(error))
            told.append([item.name for item in heap])
    return x * 2, told


def changed_while_compared(x):
    heap = []
    heap += [Grows(heap), Grows(heap), Grows(heap)]
    try:
        heapq.heapify(heap)
    except RuntimeError as error:
        return x * 2, str(error), len(heap)


def beams(x):
    kept = [(0.0, [0])]
    for step in range(3):
        candidates = []
        for score, words in kept:
            for word in range(3):
                heapq.heappush(candidates, (-(score + 0.1 * word * (step + 1)), [*words, word]))
        kept = [(-score, words) for score, words in heapq.nsmallest(2, candidates)]
    return x * kept[0][0], kept


def searched(x):
    a = [1, 3, 3, 5]
    found = bisect.bisect_left(a, 3), bisect.bisect_right(a, 3), bisect.bisect(a, 4), bisect.bisect_left(a, 3, 2), bisect.bisect_left(a, 3, lo=1, hi=2)
    others = bisect.bisect((1, 2, 3), 2), bisect.bisect(range(10), 5), bisect.bisect("abc", "b"), bisect.bisect_left([], 1)
    return x * 2, found, others


def inserted(x):
    a, pairs = [1, 3, 5], [("a", 1), ("c", 3)]
    bisect.insort(a, 4)
    bisect.insort_left(a, 3)
    bisect.insort_right(a, 0)
    bisect.insort(pairs, ("b", 2), key=lambda pair: pair[1])
    return x * 2, a, pairs, bisect.bisect_left(pairs, 3, key=lambda pair: pair[1])


def inserted_jobs(x):
    a = [Job(1, "one"), Job(3, "three")]
    at = bisect.bisect(a, Job(2, "none"))
    bisect.insort(a, Job(2, "two"))
    return x * 2, at, [job.name for job in a]


def wrong_bounds(x):
    told = []
    for call in (lambda: bisect.bisect([1], 1, -1), lambda: bisect.bisect_left([1, 2], 9, 0, 5)):
        try:
            call()
        except (ValueError, IndexError) as error:
            told.append(str(error))
    return x * 2, told


WHOLE = (
    pushed_and_popped,
    heapified,
    jobs,
    tensors_in_tuples,
    largest_and_smallest,
    merged,
    of_empty_lists,
    ranked,
    not_comparable,
    refused,
    changed_while_compared,
    beams,
    searched,
    inserted,
    inserted_jobs,
    wrong_bounds,
)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    SEEN.clear()
    fn(arg())
    seen = list(SEEN)
    SEEN.clear()
    check(fn, arg(), options=EAGER)
    assert SEEN == seen * 4


def of_the_caller(x, heap, line):
    heapq.heappush(heap, 4)
    bisect.insort(line, 4)
    return x * heapq.heappop(heap), heapq.heappushpop(heap, 0), heapq.heapreplace(heap, 9)


def test_lists_of_the_caller_change():
    check(of_the_caller, arg(), [1, 3, 2], [1, 3, 7], calls=1, options=EAGER)


def test_a_list_that_others_see():
    """What a heap holds from call to call: each content is another entry, and none gives what another one would."""

    def keep(x, heap, k):
        if len(heap) < 3:
            heapq.heappush(heap, k)
        else:
            heapq.heappushpop(heap, k)
        return x * heap[0]

    def story(wrap):
        call, heap = wrap(keep), []
        for k in (3, 1, 2, 5, 1, 3, 2):
            yield call(torch.ones(3), heap, k), list(heap)

    check_same(story)


def of_tensors(x):
    heap = [x.sum(), x.mean()]
    heapq.heapify(heap)
    return heap[0]


def test_tensors_are_compared_by_python():
    events = check(of_tensors, arg(), graphs=None, breaks=1, options=EAGER)
    assert [e.code for e in events if type(e).__name__ == "GraphBroke"] == ["data-dependent-branch"]


def test_random_heaps():
    """Many lists and operations, in one graph each."""
    random.seed(0)
    programs = [[random.choice((0, 1, 2, 3)), [random.randint(0, 9) for _ in range(random.randint(1, 12))], random.randint(0, 9)] for _ in range(60)]

    def run(x):
        told = []
        for kind, items, k in programs:
            heap = list(items)
            heapq.heapify(heap)
            told.append(list(heap))
            if kind == 0:
                heapq.heappush(heap, k)
            elif kind == 1:
                told.append(heapq.heappop(heap))
            elif kind == 2:
                told.append(heapq.heapreplace(heap, k))
            else:
                told.append(heapq.heappushpop(heap, k))
            told.append(heap)
            line = sorted(items)
            bisect.insort_left(line, k)
            told += [bisect.bisect_left(line, k), bisect.bisect_right(line, k)]
        return x * 2, told

    check(run, arg(), options=EAGER)
