"""How the work of a pipeline becomes tasks."""

from threading import Event
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.spark.pipelines.distribution import balanced, distribute, distribute_in_rounds, slots
from support.spark.archiving import one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("weights", "count", "groups"),
    [
        ([5], 3, [[0]]),
        ([1, 9, 1], 3, [[1], [0], [2]]),
        ([4, 3, 3, 2], 2, [[0, 3], [1, 2]]),
        ([10, 1, 1, 1], 2, [[0], [1, 2, 3]]),
        ([0, 0, 0, 0], 2, [[0, 2], [1, 3]]),
        ([1, 2, 3], 1, [[0, 1, 2]]),
    ],
)
def test_groups_of_about_the_same_weight(weights: list[int], count: int, groups: list[list[int]]) -> None:
    assert balanced(weights, count) == groups


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 20))
def test_every_piece_is_in_one_group_and_no_group_is_far_heavier(weights: list[int], count: int) -> None:
    groups = balanced(weights, count)
    assert sorted(place for group in groups for place in group) == list(range(len(weights)))
    assert len(groups) == min(count, len(weights))
    assert all(groups)
    totals = [sum(max(1, weights[place]) for place in group) for group in groups]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] <= sum(totals) / len(groups) + max(weights) + 1


def test_results_are_in_the_order_of_the_work() -> None:
    work = list(range(50))
    assert distribute(one_process(1), work, str, weight=lambda piece: piece % 7) == list(map(str, work))
    assert distribute(one_process(1), [], str) == []


def test_more_pieces_than_slots_on_spark(spark: "SparkSession") -> None:
    work = list(range(40))
    assert slots(spark) == 2
    assert distribute(spark, work, str) == list(map(str, work))


@pytest.mark.parametrize(("size", "rounds"), [(3, [3, 3, 1]), (7, [7]), (None, [4, 3])])
def test_rounds(size: int | None, rounds: list[int]) -> None:
    found = list(distribute_in_rounds(one_process(1), range(7), str, round_size=size))
    assert list(map(len, found)) == rounds
    assert [each for results in found for each in results] == list(map(str, range(7)))


def test_a_round_is_under_way_before_the_one_before_has_ended() -> None:
    second_began = Event()

    def do(piece: int) -> str:
        if piece == 1:
            second_began.set()
        assert second_began.wait(120)
        return str(piece)

    assert list(distribute_in_rounds(one_process(1), range(2), do, round_size=1)) == [["0"], ["1"]]


def test_no_round_begins_behind_a_failed_one() -> None:
    done = []

    def do(piece: int) -> str:
        done.append(piece)
        raise ValueError(f"piece {piece}")

    with pytest.raises(ValueError, match="piece 0"):
        list(distribute_in_rounds(one_process(1), range(9), do, round_size=1))
    assert sorted(done) == [0, 1]
