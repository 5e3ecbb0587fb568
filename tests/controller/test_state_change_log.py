"""Records: what is in one, the lines that Kafka has for it, when they are written, and who follows."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE, LogLines
from klamm.controller import state_change_log
from klamm.controller.state_change_log import (
    CONTROLLER_LOGGER,
    NO_REPLICA,
    SLICE,
    StateChange,
    StateChangeLog,
)
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.znodes.topics import LeaderAndIsr

T0 = ("t", 0)
LEADERSHIP = LeaderAndIsr(2, 7, (2, 1), 5, 3)


def lines_of(record: logging.LogRecord) -> Any:
    assert isinstance(record.msg, LogLines)
    return record.msg.lines


class Written(logging.Handler):
    """What was logged: one entry for each log record."""

    def __init__(self) -> None:
        super().__init__(0)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[tuple[str, int, str]]:
        found = []
        for record in self.records:
            assert isinstance(record.msg, LogLines)
            assert record.getMessage() == "\n".join(line.text for line in record.msg.lines)
            found += [(record.name, record.levelno, line.text) for line in record.msg.lines]
        return found


@pytest.fixture
def written() -> Iterator[Written]:
    handler = Written()
    loggers = (STATE_CHANGE_LOGGER, CONTROLLER_LOGGER)
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_the_newest_changes_are_kept_with_their_times() -> None:
    times = iter((10, 20, 30))
    log = StateChangeLog(lambda: next(times), capacity=2)
    log.event_begins("TopicChange")
    log.record(5, T0, NO_REPLICA, PartitionState.NON_EXISTENT, PartitionState.NEW, replicas=(2, 1))
    log.record(5, T0, NO_REPLICA, PartitionState.NEW, PartitionState.ONLINE, LEADERSHIP, "first")
    log.record(6, T0, 3, ReplicaState.NON_EXISTENT, ReplicaState.NEW, None, "it is the leader already", failed=True)
    online, refused = log.changes()
    assert online == StateChange(
        20,
        5,
        T0,
        NO_REPLICA,
        PartitionState.NEW,
        PartitionState.ONLINE,
        LEADERSHIP,
        "first",
        False,
        (),
        "TopicChange",
    )
    assert str(online) == "[epoch 5] t-0 NEW -> ONLINE, leader 2 epoch 7 isr 2,1: first"
    assert (refused.time_ms, refused.failed) == (30, True)
    assert str(refused) == "[epoch 6] replica 3 of t-0 NON_EXISTENT -> NEW: it is the leader already"
    assert [record.sequence for record in log.records()] == [1, 2]


def make_one_of_each(log: StateChangeLog) -> None:
    partition, replica = PartitionState, ReplicaState
    log.event_begins("BrokerChange")
    log.record(5, T0, NO_REPLICA, partition.NON_EXISTENT, partition.NEW, replicas=(2, 1))
    log.record(5, T0, NO_REPLICA, partition.NEW, partition.ONLINE, LEADERSHIP, "first")
    log.record(5, T0, NO_REPLICA, partition.ONLINE, partition.OFFLINE)
    log.record(5, T0, NO_REPLICA, partition.OFFLINE, partition.ONLINE, LEADERSHIP, "nobody", failed=True)
    log.record(5, T0, 1, replica.ONLINE, replica.OFFLINE, LEADERSHIP)
    log.record(5, T0, 1, replica.OFFLINE, replica.DELETION_STARTED)
    log.record(5, T0, 1, replica.ONLINE, replica.OFFLINE, LEADERSHIP, "no state", failed=True)
    log.request_sent(5, "LeaderAndIsr", (2,), 10, 4)
    log.request_sent(5, "UpdateMetadata", (1, 2), 10)
    log.request_sent(5, "StopReplica", (1,), 3)
    log.announce(5, "Broker failure callback for 3")


C = "[Controller id=9 epoch=5] "
STATE, CONTROLLER = "state.change.logger", "kafka.controller.KafkaController"
INFO, ERROR = logging.INFO, logging.ERROR
# What Kafka 2.8.2 writes, but for the reason at the end of the errors, where Kafka's has a stack trace.
LINES = [
    (
        STATE,
        INFO,
        C + "Changed partition t-0 state from NonExistentPartition to NewPartition with assigned replicas 2,1",
    ),
    (
        STATE,
        INFO,
        C + "Changed partition t-0 from NewPartition to OnlinePartition with state LeaderAndIsr(leader=2,"
        " leaderEpoch=7, isr=List(2, 1), zkVersion=3)",
    ),
    (STATE, TRACE, C + "Changed partition t-0 state from OnlinePartition to OfflinePartition"),
    (
        STATE,
        ERROR,
        C + "Controller 9 epoch 5 failed to change state for partition t-0 from OfflinePartition to OnlinePartition:"
        " nobody",
    ),
    (
        STATE,
        INFO,
        C + "Partition t-0 state changed to (Leader:2,ISR:2,1,LeaderEpoch:7,ZkVersion:3,ControllerEpoch:5) after"
        " removing replica 1 from the ISR as part of transition to OfflineReplica",
    ),
    (STATE, TRACE, C + "Changed state of replica 1 for partition t-0 from OnlineReplica to OfflineReplica"),
    (STATE, TRACE, C + "Changed state of replica 1 for partition t-0 from OfflineReplica to ReplicaDeletionStarted"),
    (
        STATE,
        ERROR,
        C + "Controller 9 epoch 5 initiated state change of replica 1 for partition t-0 from OnlineReplica to"
        " OfflineReplica failed: no state",
    ),
    (STATE, INFO, C + "Sending LeaderAndIsr request to broker 2 with 4 become-leader and 6 become-follower partitions"),
    (STATE, INFO, C + "Sending UpdateMetadata request to brokers HashSet(1, 2) for 10 partitions"),
    (STATE, INFO, C + "Sending StopReplica request for 3 replicas to broker 1"),
    (CONTROLLER, INFO, "[Controller id=9] Broker failure callback for 3"),
]


@pytest.mark.parametrize("level", [TRACE, INFO, ERROR])
def test_the_lines_are_kafkas(written: Written, level: int) -> None:
    STATE_CHANGE_LOGGER.setLevel(level)
    log = StateChangeLog(lambda: 1234, 9)
    make_one_of_each(log)
    assert written.records == []
    log.close()
    log.close()
    assert written.lines == [line for line in LINES if line[1] >= level or line[0] == CONTROLLER]
    assert {line.time_ms for record in written.records for line in lines_of(record)} == {1234}


STATES = [
    ("t", LeaderAndIsrPartitionState(1, 5, 2, 7, (2, 1), 3, (2, 1), is_new=True)),
    ("t", LeaderAndIsrPartitionState(2, 5, 1, 7, (1,), 3, (2, 1), (2,), (3, 4))),
]


@pytest.mark.parametrize("level", [TRACE, INFO])
def test_requests_name_their_partitions_with_trace(written: Written, level: int) -> None:
    STATE_CHANGE_LOGGER.setLevel(level)
    log = StateChangeLog(lambda: 1234, 9)
    log.request_sent(5, "LeaderAndIsr", (2,), 2, 1, states=iter(STATES))
    log.request_sent(5, "StopReplica", (1,), 1, delete=True, states=[("t", (0, -2, True))])
    log.request_sent(5, "StopReplica", (1,), 1, delete=False, states=[("t", (1, 4, False))])
    log.close()
    to_broker = "to broker 2 for partition t"
    expected = [
        (
            TRACE,
            "Sending become-leader LeaderAndIsr request LeaderAndIsrPartitionState(topicName='t', partitionIndex=1,"
            " controllerEpoch=5, leader=2, leaderEpoch=7, isr=[2, 1], zkVersion=3, replicas=[2, 1], addingReplicas=[],"
            f" removingReplicas=[], isNew=true) {to_broker}-1",
        ),
        (
            TRACE,
            "Sending become-follower LeaderAndIsr request LeaderAndIsrPartitionState(topicName='t', partitionIndex=2,"
            " controllerEpoch=5, leader=1, leaderEpoch=7, isr=[1], zkVersion=3, replicas=[2, 1], addingReplicas=[2],"
            f" removingReplicas=[3, 4], isNew=false) {to_broker}-2",
        ),
        (INFO, "Sending LeaderAndIsr request to broker 2 with 1 become-leader and 1 become-follower partitions"),
        (
            TRACE,
            "Sending StopReplica request StopReplicaPartitionState(partitionIndex=0, leaderEpoch=-2,"
            " deletePartition=true) to broker 1 for partition t-0",
        ),
        (INFO, "Sending StopReplica request (delete = true) for 1 replicas to broker 1"),
        (
            TRACE,
            "Sending StopReplica request StopReplicaPartitionState(partitionIndex=1, leaderEpoch=4,"
            " deletePartition=false) to broker 1 for partition t-1",
        ),
        (INFO, "Sending StopReplica request (delete = false) for 1 replicas to broker 1"),
    ]
    assert written.lines == [(STATE, found, C + text) for found, text in expected if found >= level]
    # What was sent is not kept.
    assert all(not record.record.states for record in log.records())  # type: ignore[union-attr]


async def test_the_lines_of_one_record_are_written_in_slices(written: Written) -> None:
    STATE_CHANGE_LOGGER.setLevel(TRACE)
    log = StateChangeLog(lambda: 1, 9)
    log.event_begins("BrokerChange")
    log.request_sent(5, "LeaderAndIsr", (2,), 2 * SLICE, 1, states=iter(STATES * SLICE))
    log.event_ends(5, "BrokerChange", 1, 2)
    sizes = []
    while len(written.lines) < 2 * SLICE + 1:
        sizes.append(len(written.lines))
        await asyncio.sleep(0)
    assert sizes == [0, SLICE, 2 * SLICE]


def test_nothing_is_put_aside_when_nobody_listens() -> None:
    STATE_CHANGE_LOGGER.setLevel(logging.CRITICAL + 1)
    CONTROLLER_LOGGER.setLevel(logging.CRITICAL + 1)
    try:
        log = StateChangeLog(lambda: 1)
        make_one_of_each(log)
        assert not log._undelivered
        assert len(log.records()) == 11
    finally:
        STATE_CHANGE_LOGGER.setLevel(logging.NOTSET)
        CONTROLLER_LOGGER.setLevel(logging.NOTSET)


async def test_lines_are_written_after_the_event_and_in_slices(written: Written) -> None:
    log = StateChangeLog(lambda: 1, 9)
    log.event_begins("TopicChange")
    for number in range(2 * SLICE + 1):
        log.record(5, ("t", number), NO_REPLICA, PartitionState.NON_EXISTENT, PartitionState.NEW)
    assert written.records == []
    log.event_ends(5, "TopicChange", 1, 2)
    log.event_begins("BrokerChange")
    log.event_ends(5, "BrokerChange", 1, 2)
    sizes = []
    while len(written.lines) < 2 * SLICE + 1:
        sizes.append(len(written.lines))
        await asyncio.sleep(0)
    assert sizes == [0, SLICE, 2 * SLICE]
    await asyncio.sleep(0)
    assert len(written.records) == 3


async def test_a_follower_gets_every_record_once_and_in_order() -> None:
    log = StateChangeLog(lambda: 1, 9, capacity=3)
    log.announce(1, "before the ring")
    make_one_of_each(log)
    newest, follower = log.follow()
    assert [record.sequence for record in newest] == [9, 10, 11]
    reading = asyncio.ensure_future(follower.read())
    await asyncio.sleep(0)
    make_one_of_each(log)
    log.event_ends(5, "BrokerChange", 1.23456, 2)
    records = await reading
    assert [record.sequence for record in records] == list(range(12, 24))
    assert records[-1].record.described() == {
        "kind": "event",
        "event": "BrokerChange",
        "state": "BrokerChange",
        "queue_time_ms": 1.235,
        "processing_time_ms": 2,
        "outcome": "processed",
    }
    log.announce(5, "last")
    log.close_followers()
    assert [record.record.described()["text"] for record in await follower.read()] == ["last"]
    assert await follower.read() == []
    assert follower.missed == 0
    log.announce(5, "later")
    log.close()
    assert await follower.read() == []


async def test_a_follower_that_does_not_read_misses_what_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_change_log, "MAX_UNREAD", 4)
    log = StateChangeLog(lambda: 1, 9)
    _, follower = log.follow()
    make_one_of_each(log)
    log.event_ends(5, "BrokerChange", 1, 2)
    await asyncio.sleep(0)
    assert [record.sequence for record in await follower.read()] == [0, 1, 2, 3]
    assert follower.missed == 8
    log.unfollow(follower)
    log.announce(5, "later")
    log.close()
    assert follower.missed == 8


async def test_a_follower_that_comes_while_records_wait_gets_only_what_is_new() -> None:
    log = StateChangeLog(lambda: 1, 9)
    for _ in range(3 * SLICE):
        log.announce(1, "old")
    newest, follower = log.follow()
    log.announce(1, "new")
    log.event_ends(5, "BrokerChange", 1, 2)
    assert len(newest) == 3 * SLICE
    assert [record.sequence for record in await follower.read()] == [3 * SLICE, 3 * SLICE + 1]
    assert follower.missed == 0


def test_records_as_plain_values() -> None:
    log = StateChangeLog(lambda: 1, 9)
    make_one_of_each(log)
    log.event_begins("Startup")
    log.event_turns_out("failed: no session")
    found = [record.record.described() for record in log.records()]
    assert found[1] == {
        "kind": "partition",
        "topic": "t",
        "partition": 0,
        "from": "NewPartition",
        "to": "OnlinePartition",
        "leader": 2,
        "leader_epoch": 7,
        "isr": (2, 1),
        "failed": False,
        "why": "first",
        "event": "BrokerChange",
    }
    assert {key: found[5][key] for key in ("kind", "replica", "from", "to", "leader", "isr")} == {
        "kind": "replica",
        "replica": 1,
        "from": "OfflineReplica",
        "to": "ReplicaDeletionStarted",
        "leader": None,
        "isr": None,
    }
    assert found[7] == {
        "kind": "request",
        "api": "LeaderAndIsr",
        "brokers": (2,),
        "size": 10,
        "led": 4,
        "event": "BrokerChange",
    }
    assert found[10] == {"kind": "controller", "text": "Broker failure callback for 3", "event": "BrokerChange"}
