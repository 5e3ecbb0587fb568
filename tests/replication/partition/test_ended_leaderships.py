"""What UpdateMetadata says of hosted partitions: it may be all that a broker hears of the end of its leadership."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.base.slices import Steps
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode
from support.replicas import T0, TOPIC_ID, Broker, batch, hosting_broker, settle, state, values_in, want

pytestmark = pytest.mark.loop("virtual")

ANOTHER_ID = UUID(int=43)
HERE, ELSEWHERE = (1, 2, 3), (2, 3, 4)
OK, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


def nothing() -> Steps[None]:
    yield


async def update(
    broker: Broker, leader: int, epoch: int, replicas: tuple[int, ...], topic_id: UUID | None = TOPIC_ID
) -> None:
    said = UpdateMetadataPartitionState(0, 1, leader, epoch, replicas, 0, replicas)
    request = UpdateMetadataRequest(
        controller_id=9, controller_epoch=1, topic_states=[UpdateMetadataTopicState("t", topic_id, [said])]
    )
    await broker.manager.update_metadata(request, nothing)


# What is said of a partition that this broker, 1, leads or follows in epoch 5: leader, epoch, replicas, topic id; then
# whether it still leads or follows, and the epoch that it is in.
SAID: list[Any] = [
    # The same epoch, or an older one, ends nothing, whichever leader is named.
    ((2, 5, ELSEWHERE, TOPIC_ID), True, True, 5),
    ((2, 4, ELSEWHERE, TOPIC_ID), True, True, 5),
    ((2, 5, HERE, TOPIC_ID), True, True, 5),
    # A newer one of which LeaderAndIsr has not told yet.
    ((1, 6, HERE, TOPIC_ID), True, True, 5),
    ((2, 6, HERE, TOPIC_ID), False, True, 5),
    ((-1, 6, HERE, TOPIC_ID), False, True, 5),
    # A newer one of which no LeaderAndIsr will tell.
    ((2, 6, ELSEWHERE, TOPIC_ID), False, False, 6),
    ((2, 6, ELSEWHERE, None), False, False, 6),
    ((-1, 9, ELSEWHERE, TOPIC_ID), False, False, 9),
    # The topic is being deleted: who is a replica hears StopReplica.
    ((LEADER_DURING_DELETE, 0, HERE, TOPIC_ID), True, True, 5),
    ((LEADER_DURING_DELETE, 0, ELSEWHERE, TOPIC_ID), False, False, 5),
    ((LEADER_DURING_DELETE, 0, ELSEWHERE, None), False, False, 5),
    # There is another topic of that name.
    ((2, 0, HERE, ANOTHER_ID), True, True, 5),
    ((2, 0, ELSEWHERE, ANOTHER_ID), False, False, 5),
    ((LEADER_DURING_DELETE, 0, ELSEWHERE, ANOTHER_ID), False, False, 5),
]


@pytest.mark.parametrize(("said", "leads", "_follows", "epoch"), SAID)
async def test_a_leader(tmp_path: Path, said: Any, leads: bool, _follows: bool, epoch: int) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, epoch=5, isr=(1,)))
        assert broker.manager.append_records("t", 0, batch(b"a"), 1).error_code == OK
        await update(broker, *said)
        partition = broker.manager.partitions[T0]
        assert (partition.is_leader, partition.leader_epoch) == (leads, epoch)
        assert broker.manager.append_records("t", 0, batch(b"b"), 1).error_code == (OK if leads else NOT_LEADER)
        assert partition.log.log_end_offset == (2 if leads else 1)


@pytest.mark.parametrize(("said", "_leads", "follows", "epoch"), SAID)
async def test_a_follower(tmp_path: Path, said: Any, _leads: bool, follows: bool, epoch: int) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, leader=3, epoch=5))
        await update(broker, *said)
        assert (T0 in broker.fetchers.following) == follows
        assert broker.manager.partitions[T0].leader_epoch == epoch


async def test_what_waits_is_told_that_another_leads(tmp_path: Path) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, epoch=5))
        produced = broker.manager.append_records("t", 0, batch(b"a"), -1)
        replicating = asyncio.ensure_future(broker.manager.wait_replicated([("t", 0, produced)], 60_000))
        fetching = asyncio.ensure_future(
            broker.manager.fetch(
                [want(0)], replica_id=-1, isolation_level=0, max_wait_ms=60_000, min_bytes=1, max_bytes=1000
            )
        )
        await settle()
        assert not (replicating.done() or fetching.done())
        await update(broker, 2, 6, ELSEWHERE)
        await settle()
        assert replicating.done() and fetching.done()
        assert produced.error_code == NOT_LEADER
        assert [result.error_code for result in fetching.result()] == [NOT_LEADER]


async def test_one_that_is_a_replica_again_goes_on_with_its_log(tmp_path: Path) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, epoch=5, isr=(1,)))
        broker.manager.append_records("t", 0, batch(b"a"), 1)
        await update(broker, 2, 6, ELSEWHERE)
        # Requests from a connection that has ended come late, and change nothing.
        assert await broker.tell(state(0, epoch=6, isr=(1,))) == [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert await broker.tell(state(0, leader=2, epoch=7)) == [OK]
        assert T0 in broker.fetchers.following
        assert await broker.tell(state(0, epoch=8, isr=(1,))) == [OK]
        results = await broker.manager.fetch(
            [want(0)], replica_id=-1, isolation_level=0, max_wait_ms=0, min_bytes=1, max_bytes=1000
        )
        assert values_in(results[0].records) == [b"a"]


async def test_one_that_has_heard_that_it_is_no_replica_obeys_a_deletion_of_an_epoch_before_that(
    tmp_path: Path,
) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, leader=2, epoch=5))
        # The requests of a controller that has waited for this broker begin with the metadata of now.
        await update(broker, 3, 8, ELSEWHERE)
        topic = StopReplicaTopicState("t", [StopReplicaPartitionState(0, 6, delete_partition=True)])
        _, codes = await broker.manager.stop_replicas(
            StopReplicaRequest(controller_id=9, controller_epoch=1, topic_states=[topic])
        )
        assert codes == {T0: OK}
        assert broker.log_manager.get(*T0) is None


async def test_the_leader_and_isr_that_follows_still_counts(tmp_path: Path) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(state(0, epoch=5))
        await update(broker, 2, 6, HERE)
        assert await broker.tell(state(0, leader=2, epoch=6)) == [OK]
        assert T0 in broker.fetchers.following
