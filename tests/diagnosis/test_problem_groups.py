"""What is wrong with all partitions, in groups, and the table of findings that its words are from."""

import re

import pytest

from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.findings import CLUSTER, GROUPS, PARTITION, finding, partition_row
from klamm.diagnosis.problem_groups import MOST_NAMED, problem_groups

LED = PartitionView(1, 0, (1, 2, 3), (1, 2, 3))
LIVE = {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (LED, None),
        (LED._replace(leader=-1), "Without a leader: no leader is elected"),
        (LED._replace(leader=-1, replicas=(), isr=()), "Without a leader: no replica is known"),
        (PartitionView(5, 0, (5, 6), (5,)), "Without a leader: brokers 5, 6 are not live"),
        (LED._replace(isr=(1,)), "Under-replicated: replicas on 2, 3 lag behind"),
        (PartitionView(1, 0, (5, 1), (1,)), "Under-replicated: broker 5 is not live"),
        (
            LED._replace(isr=(1, 2), offline=(3,)),
            "Under-replicated: the replica on 3 is offline although its broker is live: its log directory has failed,"
            " or the controller has not used it since the broker came back",
        ),
        (
            LED._replace(replicas=(1, 2, 3, 4), adding=(4,), removing=(3,)),
            "Being reassigned: 4 being added; 3 being removed",
        ),
        # A replica that is added stands in for one that is removed, as in Kafka.
        (
            PartitionView(1, 0, (1, 2, 5, 4), (1, 2, 4), (4,), (5,)),
            "Being reassigned: broker 5 is not live; 4 being added",
        ),
        # The ISR decides, as in Kafka: the controller has not heard of the death yet.
        (PartitionView(1, 0, (1, 5), (1, 5)), None),
    ],
)
def test_a_partition_is_in_the_group_of_what_is_wrong_with_it(each: PartitionView, text: str | None) -> None:
    found = [group.value()["text"] for group in problem_groups([("t", {0: each})], LIVE)]
    assert found == ([] if text is None else [text])


def test_the_worst_and_largest_groups_come_first_and_name_some_partitions() -> None:
    short, gone = LED._replace(isr=(1, 2)), PartitionView(9, 0, (9,), (9,))
    moving = LED._replace(replicas=(1, 2, 3, 4), adding=(4,))
    topics = [
        ("a", {0: moving, 1: short._replace(isr=(1, 3))}),
        ("b", dict.fromkeys(range(50), short)),
        ("c", {7: gone}),
    ]
    groups = problem_groups(topics, LIVE)
    assert [(each.row.kind, each.count) for each in groups] == [
        ("offline", 1),
        ("behind", 50),
        ("behind", 1),
        ("moving", 1),
    ]
    assert groups[0].first == [("c", 7)]
    assert groups[1].first == [("b", number) for number in range(MOST_NAMED)]
    assert [each.value()["is_problem"] for each in groups] == [True, False, False, False]


def test_each_row_of_the_table_can_be_told() -> None:
    for row in CLUSTER:
        words = dict.fromkeys(re.findall(r"{(\w+)}", row.sentence + row.advice + row.command), "x")
        assert finding(row.kind, **words).text == re.sub(r"{\w+}", "x", row.sentence)
    assert [partition_row(row.kind, row.case) for row in PARTITION] == [*PARTITION]
    assert all(row.predicate for row in GROUPS)
