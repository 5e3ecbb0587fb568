"""What a broker writes to state-change.log: Kafka's lines, their levels, and none that nobody wants.

The lines below were compared with those that Apache Kafka 2.8.2 writes about the same requests.
"""

import errno
import logging
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.base.log_lines import BATCH, STATE_CHANGE_LOGGER, TRACE, LineBatch, LogLines
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import KafkaError
from support.replicas import NOW_MS, T0, TOPIC_ID, Broker, batch, hosting_broker, leader_and_isr, settle, state

pytestmark = pytest.mark.loop("virtual")

INFO, WARN, ERROR = logging.INFO, logging.WARNING, logging.ERROR


def lines_of(record: logging.LogRecord) -> Any:
    assert isinstance(record.msg, LogLines)
    return record.msg.lines


class Written(logging.Handler):
    """The log records of state-change.log."""

    def __init__(self) -> None:
        super().__init__(0)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def take(self, *levels: int) -> list[str]:
        """The texts (of these levels), without the prefix; they are forgotten."""
        records, self.records = self.records, []
        lines = []
        for record in records:
            assert isinstance(record.msg, LogLines)
            for line in record.msg.lines:
                assert (line.time_ms, line.level) == (NOW_MS, record.levelno)
                assert line.text.startswith("[Broker id=1] ")
                if not levels or record.levelno in levels:
                    lines.append(line.text.removeprefix("[Broker id=1] "))
        return lines


@pytest.fixture
def written() -> Iterator[Written]:
    handler = Written()
    STATE_CHANGE_LOGGER.addHandler(handler)
    STATE_CHANGE_LOGGER.setLevel(TRACE)
    yield handler
    STATE_CHANGE_LOGGER.removeHandler(handler)
    STATE_CHANGE_LOGGER.setLevel(logging.NOTSET)


async def tell(broker: Broker, *states: Any, correlation_id: int = 5, **request: Any) -> None:
    await broker.manager.become_leader_or_follower(leader_and_isr(*states, **request), correlation_id)


def stop_request(leader_epoch: int, delete: bool, *, controller_epoch: int = 1) -> StopReplicaRequest:
    state = StopReplicaPartitionState(0, leader_epoch, delete)
    return StopReplicaRequest(
        controller_id=9, controller_epoch=controller_epoch, topic_states=[StopReplicaTopicState("t", [state])]
    )


async def test_a_leader(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, epoch=4, isr=(1, 2), adding_replicas=(3,)))
        assert written.take() == [
            "Handling LeaderAndIsr request correlationId 5 from controller 9 for 1 partitions",
            "Received LeaderAndIsr request LeaderAndIsrPartitionState(topicName='t', partitionIndex=0,"
            " controllerEpoch=1, leader=1, leaderEpoch=4, isr=[1, 2], zkVersion=4, replicas=[1, 2, 3],"
            " addingReplicas=[3], removingReplicas=[], isNew=false) correlation id 5 from controller 9 epoch 1",
            "Stopped fetchers as part of LeaderAndIsr request correlationId 5 from controller 9 epoch 1 as part of the"
            " become-leader transition for 1 partitions",
            "Handling LeaderAndIsr request correlationId 5 from controller 9 epoch 1 starting the become-leader"
            " transition for partition t-0",
            "Leader t-0 starts at leader epoch 4 from offset 0 with high watermark 0 ISR [1,2] addingReplicas [3]"
            " removingReplicas []. Previous leader epoch was -1.",
            "Completed LeaderAndIsr request correlationId 5 from controller 9 epoch 1 for the become-leader transition"
            " for partition t-0",
            "Finished LeaderAndIsr request in 0ms correlationId 5 from controller 9 for 1 partitions",
        ]
        await tell(broker, state(0, epoch=5, isr=(1,)), correlation_id=6)
        assert written.take(INFO)[2:4] == [
            "Leader t-0 starts at leader epoch 5 from offset 0 with high watermark 0 ISR [1] addingReplicas []"
            " removingReplicas []. Previous leader epoch was 4.",
            "Skipped the become-leader state change after marking its partition as leader with correlation id 6 from"
            " controller 9 epoch 1 for partition t-0 (last update controller epoch 1) since it is already the leader"
            " for the partition.",
        ]


async def test_the_offsets_are_those_at_the_start(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, leader=2))
        written.take()
        partition = broker.manager.partitions[T0]
        partition.log.append_as_follower(batch(b"a", b"b"))
        await tell(broker, state(0, epoch=1, isr=(1,)))
        # The lone leader commits what it has at once; the line tells of the moment before.
        assert partition.log.high_watermark == 2
        assert (
            "Leader t-0 starts at leader epoch 1 from offset 2 with high watermark 0 ISR [1]" in written.take(INFO)[2]
        )


async def test_a_follower(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, leader=2), state(1, leader=7))
        received, *lines = written.take()
        assert received == "Handling LeaderAndIsr request correlationId 5 from controller 9 for 2 partitions"
        assert [line for line in lines if not line.startswith("Received LeaderAndIsr request ")] == [
            "Handling LeaderAndIsr request correlationId 5 from controller 9 epoch 1 starting the become-follower"
            " transition for partition t-0 with leader 2",
            "Follower t-0 starts at leader epoch 0 from offset 0 with high watermark 0. Previous leader epoch was -1.",
            "Completed LeaderAndIsr request correlationId 5 from controller 9 epoch 1 for the become-follower"
            " transition for partition t-0 with leader 2",
            "Handling LeaderAndIsr request correlationId 5 from controller 9 epoch 1 starting the become-follower"
            " transition for partition t-1 with leader 7",
            "Received LeaderAndIsrRequest with correlation id 5 from controller 9 epoch 1 for partition t-1 (last"
            " update controller epoch 1) but cannot become follower since the new leader 7 is unavailable.",
            "Stopped fetchers as part of become-follower request from controller 9 epoch 1 with correlation id 5 for 1"
            " partitions",
            "Finished LeaderAndIsr request in 0ms correlationId 5 from controller 9 for 2 partitions",
        ]


async def test_what_is_ignored(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, epoch=5), controller_epoch=3)
        written.take()
        ignored = "Ignoring LeaderAndIsr request from controller 9 with correlation id 5 epoch 3 for partition"
        await tell(broker, state(0, epoch=4), controller_epoch=3)
        assert written.take(WARN) == [
            f"{ignored} t-0 since its associated leader epoch 4 is smaller than the current leader epoch 5"
        ]
        await tell(broker, state(0, epoch=5), controller_epoch=3)
        assert f"{ignored} t-0 since its associated leader epoch 5 matches the current leader epoch" in written.take(
            INFO
        )
        await tell(broker, state(1, replicas=(2, 3)), controller_epoch=3)
        assert written.take(WARN) == [f"{ignored} t-1 as itself is not in assigned replica list 2,3"]
        await tell(broker, state(0, epoch=6), controller_epoch=2)
        old = "with correlation id {} since its controller epoch 2 is old. Latest known controller epoch is 3"
        assert written.take(WARN) == [f"Ignoring LeaderAndIsr request from controller 9 {old.format(5)}"]
        await broker.manager.stop_replicas(stop_request(6, True, controller_epoch=2), 7)
        assert written.take(WARN) == [f"Ignoring StopReplica request from controller 9 {old.format(7)}"]
        with pytest.raises(KafkaError):
            await broker.manager.update_metadata(
                UpdateMetadataRequest(controller_id=9, controller_epoch=2), lambda: pytest.fail("applied"), 8
            )
        assert written.take() == [
            "Received update metadata request with correlation id 8 from an old controller 9 with epoch 2. Latest"
            " known controller epoch is 3"
        ]


async def test_replicas_that_stop(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, epoch=5))
        written.take()
        await broker.manager.stop_replicas(stop_request(-2, True), 7)
        assert written.take() == [
            "Handling StopReplica request correlationId 7 from controller 9 for 1 partitions",
            "Received StopReplica request StopReplicaPartitionState(partitionIndex=0, leaderEpoch=-2,"
            " deletePartition=true) correlation id 7 from controller 9 epoch 1 for partition t-0",
        ]
        await tell(broker, state(0, epoch=6))
        written.take()
        await broker.manager.stop_replicas(stop_request(5, False), 7)
        assert written.take(WARN) == [
            "Ignoring StopReplica request (delete=false) from controller 9 with correlation id 7 epoch 1 for partition"
            " t-0 since its associated leader epoch 5 is smaller than the current leader epoch 6"
        ]


async def test_disks_that_fail(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path, directories=2) as broker:
        await tell(broker, *(state(number) for number in range(2)))
        places = {key: partition.log.log_directory for key, partition in broker.manager.partitions.items()}
        broker.manager.partitions[T0].log.log_directory.fail(OSError(errno.EIO, "gone"), "test")
        await settle()
        assert T0 not in broker.manager.partitions and places[T0] is not places["t", 1]
        written.take()
        await tell(broker, state(0, epoch=6))
        await broker.manager.stop_replicas(stop_request(6, True), 7)
        offline = "epoch 1 for partition t-0 as the local replica for the partition is in an offline log directory"
        assert written.take(WARN) == [
            f"Ignoring LeaderAndIsr request from controller 9 with correlation id 5 {offline}",
            f"Ignoring StopReplica request (delete=true) from controller 9 with correlation id 7 {offline}",
        ]
        broker.machine.fill()
        await tell(broker, state(2), state(3, leader=2))
        leader, follower = written.take(ERROR)
        failed = "state change with correlation id 5 from controller 9 epoch 1 for partition"
        assert f"Skipped the become-leader {failed} t-2 (last update controller epoch 1) since the replica" in leader
        assert f"Skipped the become-follower {failed} t-3 (last update controller epoch 1) with leader 2" in follower
        assert "since the replica for the partition is offline due to disk error KAFKA_STORAGE_ERROR" in follower


async def test_the_metadata_cache(tmp_path: Path, written: Written) -> None:
    async with hosting_broker(tmp_path) as broker:
        states = [
            UpdateMetadataPartitionState(0, 1, 2, 4, (1, 2), 3, (1, 2), (1,)),
            UpdateMetadataPartitionState(1, 1, -2, 4, (1, 2), 3, (1, 2)),
        ]
        request = UpdateMetadataRequest(
            controller_id=9,
            controller_epoch=1,
            broker_epoch=-1,
            topic_states=[UpdateMetadataTopicState("t", TOPIC_ID, states)],
        )

        def steps() -> Generator[None]:
            assert written.take() == []
            yield

        await broker.manager.update_metadata(request, steps, 8)
        source = "in response to UpdateMetadata request sent by controller 9 epoch 1 with correlation id 8"
        assert written.take() == [
            "Cached leader info UpdateMetadataPartitionState(topicName='t', partitionIndex=0, controllerEpoch=1,"
            " leader=2, leaderEpoch=4, isr=[1, 2], zkVersion=3, replicas=[1, 2], offlineReplicas=[1]) for partition"
            f" t-0 {source}",
            f"Deleted partition t-1 from metadata cache {source}",
            f"Add 1 partitions and deleted 1 partitions from metadata cache {source}",
        ]
        # Kafka's says nothing of brokers that come and go.
        await broker.manager.update_metadata(UpdateMetadataRequest(controller_id=9, controller_epoch=1), steps)
        assert written.take() == []


@pytest.mark.parametrize("level", [TRACE, INFO, WARN, ERROR])
async def test_levels(tmp_path: Path, written: Written, level: int) -> None:
    STATE_CHANGE_LOGGER.setLevel(level)
    async with hosting_broker(tmp_path) as broker:
        await tell(broker, state(0, epoch=5), state(1, leader=2))
        await tell(broker, state(0, epoch=4), state(1, epoch=1, leader=7))
        await broker.manager.stop_replicas(stop_request(4, False), 7)
        found = [(record.levelno, len(lines_of(record))) for record in written.records]
        by_level = {wanted: sum(count for found_, count in found if found_ == wanted) for wanted, _ in found}
        expected = {TRACE: 10, INFO: 9, WARN: 2, ERROR: 1}
        assert by_level == {key: count for key, count in expected.items() if key >= level}


def test_lines_are_written_in_batches(written: Written) -> None:
    times = iter(range(NOW_MS, NOW_MS + 2 * BATCH))
    batch = LineBatch(STATE_CHANGE_LOGGER, lambda: next(times), "[x] ")
    for number in range(BATCH + 1):
        batch.add(INFO, f"line {number}")
    assert [len(lines_of(record)) for record in written.records] == [BATCH]
    batch.add(ERROR, "an error")
    batch.flush()
    batch.flush()
    assert [(record.levelno, record.getMessage()) for record in written.records[1:]] == [
        (INFO, f"[x] line {BATCH}"),
        (ERROR, "[x] an error"),
    ]
    assert lines_of(written.records[2])[0].time_ms == NOW_MS + BATCH + 1
