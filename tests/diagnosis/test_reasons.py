"""Why a partition is not healthy, for each state of its brokers."""

import pytest

from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.reasons import Circumstances, explained, reasons, replicas_to_ask
from klamm.diagnosis.topic_descriptions import TopicDescription
from klamm.protocol.error_codes import ErrorCode, KafkaError

NO_REPLICA = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
NO_ANSWER = KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection refused")
STORAGE = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
OTHER = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def partition(leader: int, replicas: str, isr: str, **more: tuple[int, ...]) -> PartitionView:
    return PartitionView(leader, 5, tuple(map(int, replicas)), tuple(map(int, isr)), **more)


@pytest.mark.parametrize(
    ("log_end", "why"),
    [
        (100, "broker 2 has all records of the leader, but is not in the ISR yet"),
        (70, "broker 2 is 30 records behind the leader"),
        (120, "broker 2 has 20 records that the leader lacks, and has not truncated them yet"),
        (NO_REPLICA, "broker 2 has no replica yet"),
        (NO_ANSWER, "broker 2 does not answer: connection refused"),
        (STORAGE, "broker 2 has the replica in a log directory that is offline"),
        (OTHER, "broker 2 answers TOPIC_AUTHORIZATION_FAILED (29)"),
        (None, "broker 2 is live, but not in the ISR"),
    ],
)
def test_why_a_live_replica_is_not_in_the_isr(log_end: int | KafkaError | None, why: str) -> None:
    ends = {1: 100} if log_end is None else {1: 100, 2: log_end}
    assert reasons(partition(1, "123", "13"), Circumstances({1, 2, 3}, ends)) == [why]


def test_a_replica_is_in_a_log_directory_that_is_offline_only_where_its_broker_says_so() -> None:
    each = partition(1, "12", "1", offline=(2,))
    failed = ["broker 2 has the replica in a log directory that is offline"]
    unused = "broker 2 is live, but its replica is offline: the controller has not used it since the broker came back"
    assert reasons(each, Circumstances({1, 2}, broken={2})) == failed
    assert reasons(each, Circumstances({1, 2}, broken=frozenset())) == [unused]
    # The broker has the log.
    ends = {1: 100, 2: 70}
    assert reasons(each, Circumstances({1, 2}, ends)) == ["broker 2 is 30 records behind the leader"]


@pytest.mark.parametrize(
    ("each", "live", "unclean", "why"),
    [
        (partition(1, "123", "123"), {1, 2, 3}, False, []),
        (partition(1, "123", "1"), {1}, False, ["broker 2 is not live", "broker 3 is not live"]),
        (
            partition(1, "12", "1", offline=(2,)),
            {1, 2},
            False,
            [
                "broker 2 is live, but its replica is offline: its log directory has failed, or the controller has not"
                " used the replica since the broker came back"
            ],
        ),
        (partition(1, "123", "12", adding=(3,)), {1, 2, 3}, False, []),
        (
            partition(1, "12", "12"),
            {2},
            False,
            ["the leader, broker 1, is not live, and no other is elected yet"],
        ),
        (PartitionView(-1, -1, (1, 2), ()), {1, 2}, False, ["no leader was elected yet"]),
        (
            partition(-1, "12", ""),
            {2},
            False,
            [
                "the ISR is empty",
                "broker 1 is not live",
                "broker 2 may not lead, as records may be lost and unclean.leader.election.enable is false:"
                " start the brokers that are down, or see `klamm elect unclean`",
            ],
        ),
        (
            partition(-1, "12", "12"),
            {2},
            False,
            ["broker 2 of the ISR can lead, and the controller has not elected a leader yet"],
        ),
        (
            partition(-1, "123", "12"),
            {4},
            False,
            [
                "no replica of the ISR (brokers 1, 2) can lead",
                "broker 1 is not live",
                "broker 2 is not live",
                "broker 3 is not live",
            ],
        ),
        (
            partition(-1, "123", "1"),
            {2, 3},
            False,
            [
                "no replica of the ISR (broker 1) can lead",
                "broker 1 is not live",
                "brokers 2, 3 may not lead, as records may be lost and unclean.leader.election.enable is false:"
                " start the brokers that are down, or see `klamm elect unclean`",
            ],
        ),
        (
            partition(-1, "12", "1", offline=(1,)),
            {1, 2},
            True,
            [
                "no replica of the ISR (broker 1) can lead",
                "broker 1 is live, but its replica is offline: its log directory has failed, or the controller has not"
                " used the replica since the broker came back",
                "broker 2 can be elected, as unclean.leader.election.enable is true",
            ],
        ),
    ],
)
def test_why_a_partition_is_not_healthy(each: PartitionView, live: set[int], unclean: bool, why: list[str]) -> None:
    assert reasons(each, Circumstances(live, unclean=unclean)) == why


def test_an_isr_below_the_minimum_refuses_producers() -> None:
    low = "the ISR has 1 of the 2 replicas that min.insync.replicas requires: producers with acks=all are refused"
    assert reasons(partition(1, "12", "1"), Circumstances({1}, min_insync_replicas=2)) == ["broker 2 is not live", low]
    assert reasons(partition(1, "12", "12"), Circumstances({1, 2}, min_insync_replicas=2)) == []


def test_why_another_replica_than_the_preferred_leads() -> None:
    elect = "the preferred leader, broker 1, is in the ISR: `klamm elect preferred` elects it"
    led_by_2 = partition(2, "12", "12")
    assert reasons(led_by_2, Circumstances({1, 2})) == []
    assert reasons(led_by_2, Circumstances({1, 2}), about_preferred=True) == [elect]
    dead = ["broker 1 is not live"]
    assert reasons(partition(2, "12", "2"), Circumstances({2}), about_preferred=True) == dead
    assert reasons(partition(1, "12", "12"), Circumstances({1, 2}), about_preferred=True) == []


def test_a_topic_that_is_being_deleted_has_no_other_reason() -> None:
    assert reasons(partition(-1, "12", ""), Circumstances(set(), marked_for_deletion=True)) == [
        "the topic is being deleted"
    ]


def test_what_a_deletion_waits_for() -> None:
    moving = partition(1, "3412", "12", adding=(3, 4), removing=(1, 2))
    topic = TopicDescription("t", None, {0: partition(1, "125", "12"), 1: moving}, marked_for_deletion=True)
    found = explained(topic, [0, 1], {1, 2, 3}, {}).reasons
    waits = [
        "the topic is being deleted",
        "the deletion waits for the reassignment of partition 1: see `klamm reassign list`, or cancel it",
        "broker 5 is not live",
    ]
    assert found == {0: waits, 1: [*waits, "broker 3 is live, but not in the ISR", "broker 4 is not live"]}
    wide = TopicDescription("t", None, dict.fromkeys(range(12), moving), marked_for_deletion=True)
    assert "of partitions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ...:" in explained(wide, [0], {1, 2, 3, 4}, {}).reasons[0][1]


def test_the_leader_and_live_replicas_out_of_sync_are_asked() -> None:
    assert replicas_to_ask(partition(1, "1234", "12"), {1, 2, 3}) == [1, 3]
    assert replicas_to_ask(partition(-1, "123", "1"), {2, 3}) == []
