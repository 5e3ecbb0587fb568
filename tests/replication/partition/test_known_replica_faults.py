"""Faults of Kafka 2.8.2 in brokers that lead and follow, which klamm must not have: by their KAFKA numbers.

Those of the controller are in tests/controller/test_known_faults.py; docs/kafka-faults.md lists all.
"""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.replication.partition.alter_isr import AlterIsrManager
from klamm.replication.ports import IsrChange, WrittenIsr
from klamm.replication.replica_manager import log_config
from support.replicas import T0, TOPIC_ID, Broker, batch, hosting_broker, leader_and_isr, settle, state, want

pytestmark = pytest.mark.loop("virtual")

FORMER_ID = UUID(int=7)
AlterIsrResponse = messages.response_class(ApiKey.ALTER_ISR)


async def test_kafka_9672_members_of_the_isr_that_are_no_replicas(tmp_path: Path) -> None:
    """While a reassignment ends, the ISR has replicas that the assignment has no more. They do not keep the leader from
    taking them out of the ISR, which in Kafka an exception does: then what waits for them is committed."""
    async with hosting_broker(tmp_path) as broker:
        assert await broker.tell(state(0, isr=(1, 2, 8, 9), replicas=(1, 2))) == [ErrorCode.NONE]
        manager = broker.manager
        appended = manager.append_records("t", 0, batch(b"a"), -1)
        await manager.fetch([want(1)], replica_id=2, isolation_level=-1, max_wait_ms=0, min_bytes=1, max_bytes=1_000)
        partition = manager.partitions[T0]
        partition.maybe_shrink_isr()
        [change] = broker.proposals.submitted
        assert change.isr == (1, 2)
        change.on_result(WrittenIsr(0, (1, 2), 1))
        assert manager.is_replicated([("t", 0, appended)])


async def test_kafka_12686_an_answer_to_a_proposal_of_before_a_leader_and_isr(tmp_path: Path) -> None:
    """It does not take away the proposal that the leader has made since: Kafka's leader waits for that for ever."""
    async with hosting_broker(tmp_path):
        asked: list[asyncio.Future[object]] = []

        async def ask(_request: object) -> Any:
            asked.append(asyncio.get_running_loop().create_future())
            return await asked[-1]

        def answer(epoch: int, isr: list[int], version: int) -> Any:
            data = AlterIsrResponse.TopicData
            item = data.PartitionData(
                partition_index=0, error_code=0, leader_id=1, leader_epoch=epoch, isr=isr, current_isr_version=version
            )
            return AlterIsrResponse(error_code=0, topics=[data(name="t", partitions=[item])])

        failures: list[BaseException] = []
        changes = AlterIsrManager(ask, 1, lambda: 0, failures.append)
        heard: list[object] = []
        changes.submit(IsrChange(T0, 0, (1, 2), 0, 1, lambda result: heard.append(("old", result))))
        await settle()
        # LeaderAndIsr, and the next proposal.
        changes.clear_pending(T0)
        changes.submit(IsrChange(T0, 1, (1, 2), 5, 1, lambda result: heard.append(("new", result))))
        asked[0].set_result(answer(0, [1, 2], 1))
        await settle()
        assert heard == [], "the answer was taken for that of the new proposal"
        assert len(asked) == 2, "the new proposal was not sent"
        asked[1].set_result(answer(1, [1, 2], 6))
        await settle()
        assert heard == [("new", WrittenIsr(1, (1, 2), 6))]
        await changes.stop()
        assert not failures


async def test_kafka_13972_a_replica_stops_in_the_epoch_that_it_is_in(tmp_path: Path) -> None:
    """A controller of Kafka 2.8.2 cancels a reassignment without a new leader epoch; its StopReplica is obeyed."""
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, leader=2, epoch=5))
        assert await broker.manager.stop_replicas(_deletion_of_t0(5)) == (ErrorCode.NONE, {T0: ErrorCode.NONE})
        assert T0 not in broker.manager.partitions
        assert broker.log_manager.get(*T0) is None


def _leave_log(broker: Broker) -> None:
    """As a broker has that was down when t was moved away from it, deleted, and created again."""
    log = broker.log_manager.get_or_create("t", 0, FORMER_ID, log_config(broker.configs.of("t")))
    log.append_as_leader(batch(b"old"), 9, now_ms=1)


async def test_kafka_10548_the_log_of_a_deleted_topic_does_not_stand_in_the_way_of_a_new_one(tmp_path: Path) -> None:
    """Kafka's broker refuses the new topic's replica until somebody removes the directory by hand."""
    async with hosting_broker(tmp_path) as broker:
        for number, told in enumerate(
            (
                state(0, epoch=0),  # A new topic.
                state(0, leader=2, epoch=3, isr=(2, 3)),  # One that was created while this broker was down.
                state(0, leader=2, epoch=4, isr=(2, 3), is_new=True),  # One that moves here.
            )
        ):
            _leave_log(broker)
            response = await broker.manager.become_leader_or_follower(
                leader_and_isr(told, topic_id=UUID(int=100 + number))
            )
            assert [one.error_code for one in response.topics[0].partition_errors] == [ErrorCode.NONE]
            log = broker.manager.partitions[T0].log
            assert (log.topic_id, log.log_end_offset) == (UUID(int=100 + number), 0)
            await broker.manager.stop_replicas(_deletion_of_t0())


async def test_kafka_10548_a_log_that_counts_as_in_sync_stays(tmp_path: Path) -> None:
    """Its id was changed in ZooKeeper: nobody else may have its records."""
    async with hosting_broker(tmp_path) as broker:
        _leave_log(broker)
        for told in (state(0, epoch=3), state(0, leader=2, epoch=3)):
            assert await broker.tell(told, topic_id=TOPIC_ID) == [ErrorCode.INCONSISTENT_TOPIC_ID]
        # Nor does one go that is none of the replicas.
        await broker.tell(state(0, leader=2, epoch=3, isr=(2, 3), replicas=(2, 3)), topic_id=TOPIC_ID)
        log = broker.log_manager.get(*T0)
        assert log is not None and (log.topic_id, log.log_end_offset) == (FORMER_ID, 1)


def _deletion_of_t0(leader_epoch: int = NO_EPOCH) -> StopReplicaRequest:
    state = StopReplicaPartitionState(0, leader_epoch, True)
    return StopReplicaRequest(controller_id=9, controller_epoch=1, topic_states=[StopReplicaTopicState("t", [state])])
