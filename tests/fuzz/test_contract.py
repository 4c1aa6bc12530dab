"""A slice of the random programs about autograd's contract, and those that have shown a bug."""

import pytest

from tests.fuzz import contract, views
from tests.fuzz.stories import differences

CONTRACTS = (4, 38, 137, 144, 184, 188, 196, 220, 267, 347, 383, 556, 875, 882, 2445, 3215, 4146, 4820, 6750, 10493, 10679, 11190, 11905)
CONTRACTS += (18328, 19537, 22972, 300083)
FOUND = {contract: CONTRACTS, views: (8, 2190, 8473, 21173, 301401)}
KNOWN = {5961: "reads_for_another", 5593: "is_detached_in_place", 13068: "has_another_history"}
KNOWN |= {60111: "cannot_run_again", 18462: "leads_elsewhere", 19167: "leads_elsewhere"}
KNOWN |= {18963: "keeps_for_none", 17336: "raises_another_error"}
BACKENDS = ("eager", "aot_eager")


@pytest.mark.parametrize("first", range(0, 40, 10))
@pytest.mark.parametrize("topic", [contract, views], ids=["contract", "views"])
def test_slice(topic, first):
    for seed in range(first, first + 10):
        assert not list(differences(topic.make(seed), BACKENDS)), topic.make(seed).source


@pytest.mark.parametrize("topic", [contract, views], ids=["contract", "views"])
def test_found(topic):
    for seed in FOUND[topic]:
        assert not list(differences(topic.make(seed), BACKENDS)), topic.make(seed).source


@pytest.mark.parametrize("seed", KNOWN)
def test_documented_differences_are_told_by_name(seed):
    assert {told.known for told in differences(contract.make(seed), BACKENDS)} == {KNOWN[seed]}


def test_programs_are_what_they_were():
    for topic in (contract, views):
        assert topic.make(7).source == topic.make(7).source
        assert len({topic.make(seed).source for seed in range(20)}) == 20
