"""Which topics a page of the list has, and the sums above it."""

import pytest

from klamm.cockpit.pages import topics
from klamm.cockpit.pages.topics import selected
from klamm.cockpit.partition_map import PartitionMap
from klamm.diagnosis.cluster_view import PartitionView


def looked(states: dict[str, dict[int, PartitionView]]) -> PartitionMap:
    made = PartitionMap()
    for _ in made.look(states, (1, 2, 3)):
        pass
    return made


STATES = {
    "orders": {
        0: PartitionView(1, -1, (1, 2), (1,)),
        # The replica that is added is not one of the topic's yet.
        1: PartitionView(2, -1, (2, 1, 3), (2, 1), adding=(3,)),
        # A broker that lacks the partition 2, which it will hear of.
        3: PartitionView(-1, -1, (3, 1), (3,)),
    },
    "__consumer_offsets": {0: PartitionView(1, -1, (1,), (1,))},
    "payments": {0: PartitionView(1, -1, (1, 2), (1, 2))},
    "gone": {},
}


def test_the_sums_are_of_all_topics_with_the_part_in_their_names() -> None:
    found = selected(looked(STATES), "", 0)
    assert found.totals == {
        "topics": 3,
        "internal": 1,
        "partitions": 5,
        "replicas": 9,
        "offline": 1,
        "under_replicated": 1,
    }
    assert list(found.shown) == ["__consumer_offsets", "orders", "payments"]
    assert list(found.shown["orders"]) == [0, 1, 3]
    assert found.shown["orders"][1].origin == (2, 1)
    assert selected(looked(STATES), "a", 0).totals["topics"] == 1


def test_a_page_has_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MOST_SHOWN", 2)
    many = looked({f"t{number}": STATES["payments"] for number in range(5)})
    pages = [selected(many, "t", first) for first in (0, 2, 4, 6)]
    assert [list(page.shown) for page in pages] == [["t0", "t1"], ["t2", "t3"], ["t4"], []]
    assert {page.totals["topics"] for page in pages} == {5}
