"""The checks of `bench/soak.py` find what they look for: growth, lost records, doubled records."""

from collections import deque

import pytest

from support.soak.figures import Bound, Growth, Look, growths
from support.soak.load import Problems, Sequences, SoakTopic, check_log
from support.soak.sizes import sizes

KEPT = SoakTopic("kept", 1, 1, {})
DELETED = SoakTopic("deleted", 1, 1, {"retention.ms": "1"})
COMPACTED = SoakTopic("compacted", 1, 1, {"cleanup.policy": "compact"}, keys=2)


def looks(values: list[float]) -> list[Look]:
    return [Look(float(number), True, {"broker 0 RSS MB": value}) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "is_too_much"),
    [
        ([100] * 10, False),
        ([100, 100, 300, 100, 100, 100, 300, 100, 100, 100], False),
        ([100, 100, 110, 110, 110, 110, 110, 110, 119, 119], False),
        ([100, 100, 110, 120, 130, 140, 150, 160, 170, 180], True),
    ],
    ids=["constant", "peaks", "within the bound", "growing"],
)
def test_a_figure_that_ends_above_its_bound_has_grown_too_much(values: list[float], is_too_much: bool) -> None:
    [growth] = growths(looks(values), [Bound("RSS MB", factor=1.1, slack=10)], warm_up_s=0)
    assert growth.is_too_much is is_too_much


def test_what_grows_while_the_cluster_warms_up_is_not_counted() -> None:
    [growth] = growths(looks([10, 50, 100, 100, 100, 100, 100]), [Bound("RSS MB")], warm_up_s=2)
    assert growth == Growth("broker 0 RSS MB", 100, 100, 100)


def test_latencies_count_only_without_faults() -> None:
    calm = [Look(float(number), True, latencies_ms={"produce": [1.0, 2.0]}) for number in range(5)]
    fault = Look(5.0, False, latencies_ms={"produce": [5000.0]})
    found = growths([*calm, fault], [Bound("produce p99 ms")], warm_up_s=0)
    assert found == [Growth("produce p50 ms", 2.0, 2.0, None), Growth("produce p99 ms", 2.0, 2.0, 2.0)]


def read(topic: SoakTopic, records: list[tuple[int, int]]) -> tuple[Sequences, Problems]:
    problems = Problems()
    sequences = Sequences(topic, 0, problems, "test")
    for offset, sequence in records:
        sequences.found(offset, sequence)
    return sequences, problems


@pytest.mark.parametrize(
    ("topic", "records", "problems"),
    [
        (KEPT, [(0, 0), (1, 1), (1, 1), (0, 0), (1, 1), (2, 2)], {}),
        (KEPT, [(0, 0), (1, 1), (2, 1)], {"doubled or out of order": 1}),
        (KEPT, [(0, 0), (1, 2)], {"lost": 1}),
        (DELETED, [(7, 7), (8, 8)], {}),
        (DELETED, [(7, 7), (8, 9)], {"lost": 1}),
        (COMPACTED, [(0, 0), (5, 5), (6, 6)], {}),
        (COMPACTED, [(0, 1), (5, 0)], {"doubled or out of order": 1}),
    ],
)
def test_a_reader_finds_each_number_once_and_in_order(
    topic: SoakTopic, records: list[tuple[int, int]], problems: dict[str, int]
) -> None:
    assert read(topic, records)[1].counts == problems


@pytest.mark.parametrize(
    ("topic", "records", "acknowledged", "problems"),
    [
        (KEPT, [(0, 0), (1, 1)], 1, {}),
        (KEPT, [(1, 1)], 1, {"lost": 1}),
        (KEPT, [(0, 0)], 1, {"lost": 1}),
        (DELETED, [(1, 1)], 1, {}),
        (DELETED, [], 1, {}),
        (DELETED, [(0, 0)], 1, {"lost": 1}),
        (COMPACTED, [(6, 6), (7, 7)], 7, {}),
        (COMPACTED, [(5, 5), (6, 6)], 7, {"lost": 1}),
        (COMPACTED, [(7, 7)], 7, {"lost": 1}),
    ],
)
def test_what_was_acknowledged_is_in_the_log_unless_it_may_be_gone(
    topic: SoakTopic, records: list[tuple[int, int]], acknowledged: int, problems: dict[str, int]
) -> None:
    sequences, found = read(topic, records)
    check_log(topic, [acknowledged], [sequences], found)
    assert found.counts == problems


class Keeper:
    """Stands for a part of a broker."""

    __slots__ = ("heard", "inner", "wait")

    def __init__(self) -> None:
        self.heard: deque[str] = deque()
        self.inner: dict[str, list[int]] = {}
        self.wait = self.method

    def method(self) -> None: ...


def test_the_container_that_grows_is_named_by_its_class_and_attribute() -> None:
    keeper = Keeper()
    before = sizes(keeper, own=__name__)
    keeper.heard.extend("abc")
    keeper.inner["a"] = [1, 2, 3, 4]
    assert dict(sizes(keeper, own=__name__) - before) == {"Keeper.heard": 3, "Keeper.inner": 1, "Keeper.inner[]": 4}
