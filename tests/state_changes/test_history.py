"""What entries say, the causal order, and a partition's story."""

import logging

import pytest

from klamm.base.log_lines import LogLines
from klamm.controller.state_change_log import StateChange
from klamm.controller.states import ReplicaState
from klamm.processes.kafka_logs import KafkaFormatter
from klamm.state_changes.causal import Fact, causal_order
from klamm.state_changes.entries import earlier, first_partition, parse
from klamm.state_changes.story import rows, table
from klamm.znodes.topics import LeaderAndIsr

TIME = "2021-06-01 10:00:00,000"


def said(text: str) -> dict[str, object]:
    """What differs from an entry that says nothing but its text."""
    found = parse(f"[{TIME}] INFO {text} (state.change.logger)".encode())._asdict()
    silent = parse(f"[{TIME}] INFO x (state.change.logger)".encode())._asdict()
    return {name: value for name, value in found.items() if value != silent[name] and name != "text"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # 0.8
            "Controller 1 epoch 2 changed partition [t,0] from OfflinePartition to OnlinePartition with leader 3",
            {
                "broker": 1,
                "is_controller": True,
                "controller_epoch": 2,
                "leader": 3,
                "from_state": "OfflinePartition",
                "to_state": "OnlinePartition",
            },
        ),
        (  # 0.8
            "Broker 2 cached leader info (LeaderAndIsrInfo:(Leader:1,ISR:1,2,LeaderEpoch:4,ControllerEpoch:5),"
            "ReplicationFactor:2),AllReplicas:1,2) for partition [t,0]",
            {"broker": 2, "controller_epoch": 5, "leader": 1, "leader_epoch": 4, "isr": [1, 2]},
        ),
        (
            "[Controller id=1 epoch=2] Changed partition t-0 from NewPartition to OnlinePartition with state"
            " LeaderAndIsr(leader=3, leaderEpoch=4, isr=List(3, 5), zkVersion=0)",
            {
                "broker": 1,
                "is_controller": True,
                "controller_epoch": 2,
                "leader": 3,
                "leader_epoch": 4,
                "isr": [3, 5],
                "from_state": "NewPartition",
                "to_state": "OnlinePartition",
            },
        ),
        (
            "[Controller id=1 epoch=2] Partition t-0 state changed to (Leader:-1,ISR:,LeaderEpoch:7,ZkVersion:3,"
            "ControllerEpoch:2) after removing replica 3 from the ISR as part of transition to OfflineReplica",
            {
                "broker": 1,
                "is_controller": True,
                "controller_epoch": 2,
                "leader": -1,
                "leader_epoch": 7,
                "isr": [],
                "replica": 3,
            },
        ),
        (
            "[Controller id=1 epoch=2] Changed state of replica 3 for partition t-0 from OnlineReplica to"
            " OfflineReplica",
            {
                "broker": 1,
                "is_controller": True,
                "controller_epoch": 2,
                "replica": 3,
                "from_state": "OnlineReplica",
                "to_state": "OfflineReplica",
            },
        ),
        (
            "[Broker id=3] Leader t-0 starts at leader epoch 4 from offset 0 with high watermark 0 ISR [3,5]"
            " addingReplicas [] removingReplicas []. Previous leader epoch was -1.",
            {"broker": 3, "leader": 3, "leader_epoch": 4, "isr": [3, 5]},
        ),
        (  # 3.x
            "[Broker id=3] Leader t-0 with topic id Some(ODNKTRnVRwSzb) starts at leader epoch 4 from offset 0 with"
            " partition epoch 0, high watermark 0, ISR [3], adding replicas [] and removing replicas []",
            {"broker": 3, "leader": 3, "leader_epoch": 4, "isr": [3]},
        ),
        (
            "[Broker id=3] Follower t-0 starts at leader epoch 4 from offset 9 with high watermark 9. Previous leader"
            " epoch was 3.",
            {"broker": 3, "leader_epoch": 4},
        ),
        (
            "[Broker id=3] Ignoring LeaderAndIsr request from controller 1 with correlation id 7 epoch 2 for partition"
            " t-0 since its associated leader epoch 4 matches the current leader epoch",
            {"broker": 3, "controller_epoch": 2},
        ),
        (
            "[Broker id=3] Completed LeaderAndIsr request correlationId 7 from controller 1 epoch 2 for the"
            " become-follower transition for partition t-0 with leader 5",
            {"broker": 3, "controller_epoch": 2, "leader": 5},
        ),
        # Numbers that no Kafka writes.
        (
            f"[Broker id={'9' * 5000}] LeaderAndIsr(leader=99999999999, leaderEpoch=4, isr=List(1, 99999999999))",
            {"leader_epoch": 4},
        ),
    ],
)
def test_what_an_entry_says(text: str, expected: dict[str, object]) -> None:
    assert said(text) == expected


def test_klamms_own_records_are_understood() -> None:
    """The line that the controller makes of a record, as its log file lays it out."""
    change = StateChange(
        1_622_541_600_123, 7, ("t", 4), 2, ReplicaState.ONLINE, ReplicaState.OFFLINE,
        LeaderAndIsr(leader=1, leader_epoch=9, isr=(1, 3), zk_version=4, controller_epoch=7),
        "", False, (), "BrokerChange",
    )  # fmt: skip
    record = logging.LogRecord("state.change.logger", logging.INFO, "", 0, LogLines(list(change.lines(5))), (), None)
    first, second = (parse(line.encode()) for line in KafkaFormatter().format(record).splitlines())
    assert (first.broker, first.controller_epoch, first.leader, first.leader_epoch, first.isr, first.replica) == (
        5, 7, 1, 9, [1, 3], 2,
    )  # fmt: skip
    assert (second.replica, second.from_state, second.to_state) == (2, "OnlineReplica", "OfflineReplica")
    assert first_partition(first.text.encode()) == first_partition(second.text.encode()) == ("t", 4)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        (b"for partition [a.b,3] x", ("a.b", 3)),
        (b"Leader a-b-3 starts", ("a-b", 3)),
        (b"Follower a-3 starts", ("a", 3)),
        (b"Partition a-3 state changed", ("a", 3)),
        (b"(topicName='a', partitionIndex=3, x)", ("a", 3)),
        (b"partition a-" + b"9" * 5000, None),
        (b"Sending LeaderAndIsr request to broker 2 with 0 become-leader partitions", None),
    ],
)
def test_the_first_partition_that_an_entry_names(text: bytes, partition: tuple[str, int] | None) -> None:
    assert first_partition(text) == partition


def test_times_are_moved_back_over_a_day() -> None:
    assert earlier(b"2021-06-01 00:00:00,500", 1000) == b"2021-05-31 23:59:59,500"
    assert earlier(b"~", 1000) == b"~"
    assert earlier(b"2021-99-01 00:00:00,500", 1000) == b"2021-99-01 00:00:00,500"


def controller(broker: int, epoch: int, leader_epoch: int | None = None) -> Fact:
    return Fact(broker, True, epoch, ("t", 0), leader_epoch)


def follower(broker: int, epoch: int | None, leader_epoch: int | None = None) -> Fact:
    return Fact(broker, False, epoch, ("t", 0), leader_epoch)


FIRST, SECOND = controller(1, 1, 0), controller(1, 1, 1)


@pytest.mark.parametrize(
    ("what", "facts", "order"),
    [
        ("nothing to mend", [FIRST, follower(2, 1, 0)], [0, 1]),
        ("a broker whose clock is slow", [follower(2, 1, 0), follower(2, 1, 1), FIRST, SECOND], [2, 0, 3, 1]),
        ("another broker is not held up", [follower(2, 1, 1), follower(3, None), FIRST, SECOND], [1, 2, 3, 0]),
        ("an entry that names only a controller", [follower(2, 4), controller(1, 3), controller(3, 4)], [1, 2, 0]),
        ("an older controller's entries come first", [controller(3, 4, 5), controller(1, 3, 4)], [1, 0]),
        ("a decision that no file has", [follower(2, 1, 0), follower(3, 2, 1)], [0, 1]),
        ("rules that contradict each other", [follower(1, 2, 1), FIRST, controller(2, 2, 1)], [0, 1, 2]),
    ],
)
def test_causal_order(what: str, facts: list[Fact], order: list[int]) -> None:
    assert causal_order(facts) == order, what


def test_a_partitions_story_is_a_table() -> None:
    lines = [
        "[2021-06-01 10:00:00,000] INFO [Controller id=1 epoch=2] Changed partition t-0 from OfflinePartition to"
        " OnlinePartition with state LeaderAndIsr(leader=3, leaderEpoch=4, isr=List(3), zkVersion=0)"
        " (state.change.logger)",
        "[2021-06-01 10:00:00,007] INFO [Broker id=3] Follower t-0 starts at leader epoch 4 from offset 9 with high"
        " watermark 9. Previous leader epoch was 3. (state.change.logger)",
    ]
    head = "TIME                     BROKER  WRITTEN-BY          LEADER  EPOCH  ISR  STATE"
    assert table([(*row[:7], "") for row in rows(parse(each.encode()) for each in lines)]) == [
        f"{head}                                MESSAGE",
        "2021-06-01 10:00:00,000  1       controller epoch 2  3       4      3    OfflinePartition -> OnlinePartition",
        "2021-06-01 10:00:00,007  3       broker              -       4      -    -",
    ]
