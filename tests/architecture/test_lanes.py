"""The fast lane is what is cheapest by the recorded costs, with something of each folder."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import lanes


def test_the_cheapest_files_are_in_the_lane_and_one_of_each_folder():
    costs = {"a/one.py": {"": 150.0}, "a/two.py": {"": 80.0}, "b/one.py": {"": 100.0}, "b/two.py": {"": 60.0, "test_long": 500.0}, "c/one.py": {"": 90.0}}
    assert lanes.fast_files(costs, 240) == {"a/two.py", "b/two.py", "c/one.py"}
    assert lanes.fast_files(costs | {"a/three.py": {"": 9.0}}, 240) == {"a/three.py", "a/two.py", "b/two.py", "c/one.py"}


@pytest.mark.parametrize(
    ("file", "name", "marked", "fast"),
    [
        ("a.py", "test", True, True),
        ("a.py", "test_long", False, False),
        ("b.py", "test", False, False),
        ("not_recorded.py", "test", False, True),
        ("not_recorded.py", "test", True, False),
    ],
    ids=["a cheap file, marked slow", "a costly test of it", "a costly file", "no cost", "no cost, marked slow"],
)
def test_the_mark_decides_where_no_cost_is_recorded(file, name, marked, fast):
    item = SimpleNamespace(path=lanes.TESTS / file, name=name, get_closest_marker=lambda mark: (marked and mark == "slow") or None)
    assert lanes.is_fast(item, {"a.py": {"": 1.0, "test_long": 2.0}, "b.py": {"": 300.0}}, {"a.py"}) == fast


def test_a_folder_whose_costs_are_recorded_has_a_file_in_the_lane():
    costs = lanes.recorded()
    folders = {file.rpartition("/")[0] for file in costs}
    assert folders == {file.rpartition("/")[0] for file in lanes.fast_files(costs)}
    assert sum(costs[file][""] for file in lanes.fast_files(costs)) < lanes.BUDGET + 0.01


def test_files_that_cost_most_begin_first():
    costs = {"cheap.py": {"": 1.0}, "dear.py": {"": 1.0, "test_long": 9.0}, "as cheap.py": {"": 1.0}}
    collected = [(file, name) for file in ("cheap.py", "as cheap.py", "dear.py", "not_recorded.py") for name in ("test_b", "test_a")]
    items = [SimpleNamespace(path=lanes.TESTS / file, name=name) for file, name in collected]
    lanes.dearest_first(items, costs)
    files = ("not_recorded.py", "dear.py", "cheap.py", "as cheap.py")
    assert [(item.path.name, item.name) for item in items] == [(file, name) for file in files for name in ("test_b", "test_a")]


def test_of_a_costly_test_as_many_cases_run_as_cost_its_share():
    def case(name, further=False):
        return SimpleNamespace(path=lanes.TESTS / "a.py", name=name, get_closest_marker=lambda mark: further or None)

    items = [case(f"test_dear[{i}]") for i in range(10)] + [case("test_dear[marked]", True)] + [case(f"test_dearest[{i}]") for i in range(3)]
    items += [case("test_cheap[0]"), case("test_cheap[1]"), case("test_alone")]
    costs = {"a.py": {"": 9.0, "test_dear[*]": 2 * lanes.SHARE, "test_dearest[*]": 100 * lanes.SHARE}}
    left_out = [item.name for item in lanes.cases_left_out(items, costs)]
    assert left_out == [f"test_dear[{i}]" for i in (1, 3, 5, 7, 9)] + ["test_dearest[1]", "test_dearest[2]"]
