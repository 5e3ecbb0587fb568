"""The replica manager: what the controller says, acknowledgements, fetches, failing disks."""

import asyncio
import errno
from uuid import UUID

import pytest

from klamm.config.broker import BrokerConfig
from klamm.config.topic import TopicConfig
from klamm.protocol.apis.fetch import EpochEndOffset
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.replication import replica_manager, state_changes
from klamm.replication.fetcher.fetch_state import InitialFetchState
from klamm.replication.partition.partition import Partition
from klamm.replication.ports import WrittenIsr
from klamm.replication.replica_manager import log_config
from klamm.zookeeper.keeper_exceptions import SessionExpired
from support.fetch_messages import to_fetch
from support.replicas import (
    T0,
    TOPIC_ID,
    Broker,
    batch,
    hosting_broker,
    leader_and_isr,
    scenario,
    settle,
    state,
    values_in,
    want,
)

pytestmark = pytest.mark.loop("virtual")

OK, STALE = ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH


def append(broker, *values, partition=0, acks=-1):
    return broker.manager.append_records("t", partition, batch(*values), acks)


async def fetch(broker, *wanted, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=10**6, isolation_level=0, **more):
    return await broker.manager.fetch(
        wanted,
        replica_id=replica_id,
        isolation_level=isolation_level,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        **more,
    )


def stop_replica(*partitions, controller_epoch=1):
    """`partitions` of t: (number, leader epoch, delete)."""
    states = [StopReplicaPartitionState(*partition) for partition in partitions]
    return StopReplicaRequest(
        controller_id=9, controller_epoch=controller_epoch, topic_states=[StopReplicaTopicState("t", states)]
    )


# -- LeaderAndIsr -----------------------------------------------------------------------------------------------------


@scenario
async def test_partitions_lead_or_follow_as_the_controller_says(broker):
    assert await broker.tell(state(0), state(1, leader=2, epoch=5)) == [OK, OK]
    partitions = broker.manager.partitions
    assert (partitions["t", 0].is_leader, partitions["t", 1].is_leader) == (True, False)
    assert broker.fetchers.following == {("t", 1): InitialFetchState(2, "host2", 9092, 5)}
    assert broker.configs.loaded == [["t"]]
    await broker.tell(state(0, epoch=1))
    assert broker.configs.loaded == [["t"]]  # nothing is new


@scenario
async def test_an_old_controller_changes_nothing(broker):
    await broker.tell(state(0), controller_epoch=3)
    response = await broker.manager.become_leader_or_follower(leader_and_isr(state(0, epoch=9), controller_epoch=2))
    assert (response.error_code, [one.error_code for one in response.topics[0].partition_errors]) == (STALE, [STALE])
    assert broker.manager.partitions[T0].leader_epoch == 0
    code, results = await broker.manager.stop_replicas(stop_replica((0, -2, True), controller_epoch=2))
    assert (code, results) == (STALE, {})
    with pytest.raises(KafkaError, match="STALE_CONTROLLER_EPOCH"):
        await broker.manager.update_metadata(
            UpdateMetadataRequest(controller_id=9, controller_epoch=2), lambda: pytest.fail("applied")
        )

    def steps():
        yield
        return "applied"

    assert (
        await broker.manager.update_metadata(UpdateMetadataRequest(controller_id=9, controller_epoch=4), steps)
        == "applied"
    )
    assert broker.manager.controller_epoch == 4


@scenario
async def test_only_a_newer_leader_epoch_counts(broker):
    await broker.tell(state(0, epoch=5, isr=(1, 2)))
    assert await broker.tell(state(0, epoch=5, leader=2)) == [STALE]
    assert await broker.tell(state(0, epoch=4, leader=2)) == [STALE]
    assert broker.manager.partitions[T0].is_leader
    assert await broker.tell(state(0, epoch=6, leader=2)) == [OK]
    assert not broker.manager.partitions[T0].is_leader


@scenario
async def test_coordinators_hear_of_each_new_epoch_also_of_one_that_changes_no_leader(broker):
    """Another broker may have been elected and replaced in between: its markers have the epoch in between."""
    for epoch, leader in ((5, 1), (7, 1), (8, 2), (9, 1)):
        await broker.tell(state(0, epoch=epoch, leader=leader))
    assert list(dict.fromkeys(broker.leaderships)) == [(T0, True, 5), (T0, True, 7), (T0, False, 8), (T0, True, 9)]


async def test_after_a_restart_any_epoch_is_accepted_once(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    await broker.tell(state(0, epoch=5, isr=(1,)))
    append(broker, b"a")
    await broker.stop()
    broker = Broker(tmp_path)
    await broker.start()
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.manager.partition("t", 0)
    assert await broker.tell(state(0, epoch=5, isr=(1, 2))) == [OK]
    assert broker.manager.partition("t", 0).log.high_watermark == 1  # from the checkpoint
    await broker.stop()


@scenario
async def test_one_that_is_no_replica_hosts_nothing(broker):
    assert await broker.tell(state(0, replicas=(2, 3))) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not broker.manager.partitions
    assert not broker.files.exists(f"{broker.paths[0]}/t-0")
    assert await broker.tell(state(0)) == [OK]


@scenario
async def test_topic_ids_are_adopted_and_then_must_match(broker):
    await broker.tell(state(0), topic_id=None)
    log = broker.manager.partitions[T0].log
    assert log.topic_id is None
    assert await broker.tell(state(0, epoch=1)) == [OK]
    assert log.topic_id == TOPIC_ID
    assert await broker.tell(state(0, epoch=2), topic_id=UUID(int=7)) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert await broker.tell(state(0, epoch=2), topic_id=None) == [OK]


@scenario
async def test_a_log_of_another_topic_is_not_opened(broker):
    await broker.tell(state(0))
    await broker.manager.stop_replicas(stop_replica((0, -2, True)))
    broker.log_manager.get_or_create("t", 0, UUID(int=7), log_config(broker.configs.of("t")))
    assert await broker.tell(state(0, epoch=1)) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert not broker.manager.partitions


@scenario
async def test_without_a_live_leader_only_the_log_is_made(broker):
    for leader in (5, -1):
        assert await broker.tell(state(0, leader=leader, epoch=3)) == [OK]
    partition = broker.manager.partitions[T0]
    assert (partition.leader_id, partition.leader_epoch) == (-1, -1)
    assert not broker.fetchers.following


@scenario
async def test_the_request_itself_knows_where_leaders_are(broker):
    await broker.tell(state(0, leader=5, epoch=3), state(1, leader=2), live_leaders=((5, "host5", 1), (2, "moved", 7)))
    assert broker.fetchers.following == {
        ("t", 0): InitialFetchState(5, "host5", 1, 3),
        ("t", 1): InitialFetchState(2, "moved", 7, 0),
    }


@scenario
async def test_fetchers_go_before_a_partition_leads_and_come_after_it_follows(broker):
    await broker.tell(state(0, leader=2))
    broker.fetchers.told.clear()
    await broker.tell(state(0, epoch=1))
    assert broker.fetchers.told == [("remove", [T0])]
    broker.fetchers.told.clear()
    await broker.tell(state(0, leader=3, epoch=2))
    assert broker.fetchers.told == [("remove", [T0]), ("add", [T0])]


@scenario
async def test_when_the_configuration_cannot_be_read_nothing_has_changed(broker):
    broker.configs.failure = SessionExpired("gone")
    with pytest.raises(SessionExpired):
        await broker.tell(state(0))
    assert not broker.manager.partitions
    broker.configs.failure = None
    assert await broker.tell(state(0)) == [OK]


@scenario
async def test_many_partitions_at_once(broker):
    assert await broker.tell(*(state(number, leader=number % 3 + 1) for number in range(300))) == [OK] * 300
    assert len(broker.manager.partitions) == 300
    assert sum(partition.is_leader for partition in broker.manager.partitions.values()) == 100
    assert len(broker.fetchers.following) == 200


async def test_a_directory_may_fail_while_many_partitions_change(tmp_path, monkeypatch):
    monkeypatch.setattr(state_changes, "SLICE", 1)  # others have the loop after every partition
    async with hosting_broker(tmp_path, directories=2) as broker:
        await broker.tell(*(state(number, leader=2 - number % 2) for number in range(20)))
        telling = asyncio.ensure_future(
            broker.tell(*(state(number, leader=1 + number % 2, epoch=1) for number in range(20)))
        )
        for _ in range(5):
            await asyncio.sleep(0)
        assert not telling.done()
        broker.log_manager.directories[0].fail(OSError(errno.EIO, "gone"), "test")
        codes = await telling
        await settle()
        hosted = broker.manager.partitions
        assert len(hosted) == 10
        assert all(partition.log.log_directory.is_online for partition in hosted.values())
        assert all(partition.leader_epoch == 1 for partition in hosted.values())
        assert sorted(broker.fetchers.following) == sorted(key for key in hosted if not hosted[key].is_leader)
        assert all(codes[number] == OK for _, number in hosted)
        assert ErrorCode.KAFKA_STORAGE_ERROR in codes


@scenario
async def test_a_stopping_broker_follows_nobody_new(broker):
    await broker.manager.stop()
    await broker.tell(state(0, leader=2))
    assert not broker.fetchers.following


# -- StopReplica ------------------------------------------------------------------------------------------------------


@scenario
async def test_stop_replica_checks_the_epoch(broker):
    await broker.tell(*(state(number, leader=2, epoch=5) for number in range(4)))
    code, results = await broker.manager.stop_replicas(
        stop_replica((0, 4, True), (1, 5, False), (2, 6, False), (3, -1, False), (7, 5, True))
    )
    assert code is OK
    assert list(results.values()) == [ErrorCode.FENCED_LEADER_EPOCH, OK, OK, OK, OK]
    assert list(broker.fetchers.following) == [("t", 0)]
    assert len(broker.manager.partitions) == 4


@scenario
async def test_deleted_partitions_are_gone(broker):
    await broker.tell(state(0), state(1, leader=2))
    _, results = await broker.manager.stop_replicas(stop_replica((0, -2, True), (1, -2, True)))
    assert list(results.values()) == [OK, OK]
    assert not broker.manager.partitions
    assert not broker.files.exists(f"{broker.paths[0]}/t-0")
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.manager.partition("t", 0)
    broker.known.add(T0)
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        broker.manager.partition("t", 0)


@scenario
async def test_a_log_that_nobody_hosts_is_deleted_too(broker):
    broker.log_manager.get_or_create("t", 0, None, log_config(broker.configs.of("t")))
    _, results = await broker.manager.stop_replicas(stop_replica((0, -2, True)))
    assert (results, broker.log_manager.get("t", 0)) == ({T0: OK}, None)


# -- produce ----------------------------------------------------------------------------------------------------------


async def waiting_produce(broker, *values, timeout_ms=60_000):
    """A produce with acks=all that waits: (its result, the task that waits)."""
    result = append(broker, *values)
    appended = [("t", 0, result)]
    assert not broker.manager.is_replicated(appended)
    task = asyncio.ensure_future(broker.manager.wait_replicated(appended, timeout_ms))
    await settle()
    assert not task.done()
    return result, task


@scenario
async def test_acks_all_is_answered_when_the_followers_have_fetched_past_the_records(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a", b"b")
    await fetch(broker, want(2), replica_id=2)
    await fetch(broker, want(1), replica_id=3)
    await settle()
    assert not task.done()
    await fetch(broker, want(2), replica_id=3)
    await task
    assert (result.error_code, result.base_offset) == (OK, 0)


@scenario
async def test_acks_all_times_out(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a", timeout_ms=1000)
    await task
    assert result.error_code is ErrorCode.REQUEST_TIMED_OUT


@scenario
async def test_what_waits_fails_when_another_leads_although_this_broker_leads_again_soon(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a")
    await broker.tell(state(0, epoch=1, leader=2))
    await broker.tell(state(0, epoch=2, isr=(1,)))
    await task
    assert broker.manager.partitions[T0].log.high_watermark == 1
    assert result.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@scenario
async def test_what_waits_goes_on_when_this_broker_leads_on_in_a_new_epoch(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a")
    await broker.tell(state(0, epoch=1, isr=(1,)))
    await task
    assert result.error_code is OK


@scenario
async def test_what_waits_fails_when_the_partition_is_deleted(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a")
    await broker.manager.stop_replicas(stop_replica((0, -2, True)))
    await task
    assert result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@scenario
async def test_followers_that_do_not_fetch_leave_the_isr_and_the_rest_is_acknowledged(broker):
    """The whole way: the timer proposes the smaller ISR, the controller writes it, the produce is answered."""
    await broker.tell(state(0, isr=(1, 2)))
    result, task = await waiting_produce(broker, b"a", timeout_ms=120_000)
    await asyncio.sleep(44)
    assert not broker.proposals.submitted
    await asyncio.sleep(2)  # replica.lag.time.max.ms is 30 s, looked at every 15
    [change] = broker.proposals.submitted
    assert change.isr == (1,)
    assert not task.done()
    change.on_result(WrittenIsr(0, (1,), 1))
    await task
    assert result.error_code is OK


@scenario(min_insync_replicas="2")
async def test_min_insync_replicas(broker):
    await broker.tell(state(0, isr=(1,)))
    assert append(broker, b"a").error_code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert append(broker, b"a", acks=1).error_code is OK


# -- throttling -------------------------------------------------------------------------------------------------------


async def throttled(broker, *values, bytes_per_second):
    """t-0 and t-1 with these batches; replica 2 of t-0 is throttled and out of sync, replica 3 in sync."""
    await broker.tell(state(0, isr=(1, 3)), state(1, isr=(1,)))
    for partition in (0, 1):
        for value in values:
            append(broker, value, partition=partition)
    broker.leader_quota.bytes_per_second = bytes_per_second
    broker.leader_quota.throttle("t", frozenset({0}))


@scenario
async def test_a_throttled_follower_gets_what_the_quota_has_room_for(broker):
    size = len(batch(bytes(1000)))
    await throttled(broker, *[bytes(1000)] * 20, bytes_per_second=5 * size)
    sizes, offset, began = [], 0, asyncio.get_running_loop().time()
    for _ in range(6):
        [result] = await fetch(broker, want(offset), replica_id=2, max_wait_ms=400)
        sizes.append(len(values_in(result.records or b"")))
        offset += sizes[-1]
        assert result.error_code == OK
    # At first a second's worth; then a batch as soon as that second is over, which is paid for before the next.
    assert sizes == [5, 0, 0, 0, 1, 0]
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.2, abs=0.01)


@scenario
async def test_nobody_else_is_held_back_or_counted(broker):
    await throttled(broker, bytes(5000), bytes(5000), bytes_per_second=1)
    [first] = await fetch(broker, want(0), replica_id=2)
    assert len(values_in(first.records)) == 1  # At least one batch, however small the quota.
    exceeded_by = broker.leader_quota.rate(asyncio.get_running_loop().time() * 1000)
    for wanted, replica_id in (
        (want(0), 3),  # in sync
        (want(0, partition=1), 2),  # not throttled
    ):
        [result] = await fetch(broker, wanted, replica_id=replica_id)
        assert len(values_in(result.records)) == 2
    held, free = await fetch(broker, want(1), want(0, partition=1), replica_id=2)
    assert (held.records, held.error_code, len(values_in(free.records))) == (b"", OK, 2)
    await fetch(broker, want(2), replica_id=3)
    [result] = await fetch(broker, want(0), only_leader=False)
    assert result.error_code == OK
    assert broker.leader_quota.rate(asyncio.get_running_loop().time() * 1000) == exceeded_by


@scenario
async def test_a_throttled_fetch_is_heard_and_leaves_with_its_time(broker):
    await throttled(broker, b"a", b"b", bytes_per_second=0)
    waiting = asyncio.ensure_future(fetch(broker, want(1), replica_id=2, max_wait_ms=1000))
    await settle()
    assert broker.manager.partitions[T0].remote_replicas[2].log_end_offset == 1
    append(broker, b"c")
    await settle()
    assert not waiting.done()
    assert (await waiting)[0].records == b""
    broker.leader_quota.throttle("t", frozenset())
    [result] = await fetch(broker, want(1), replica_id=2)
    assert values_in(result.records) == [b"b", b"c"]


# -- deletion of records ----------------------------------------------------------------------------------------------


async def waiting_deletion(broker, offset, timeout_ms=60_000):
    """A deletion on t-0 and the task that waits for it."""
    result = broker.manager.delete_records("t", 0, offset)
    task = asyncio.ensure_future(broker.manager.wait_deleted({T0: result}, timeout_ms))
    await settle()
    return result, task


async def report(broker, replica_id, offset, log_start_offset):
    """A fetch of a follower whose log starts there."""
    await fetch(broker, ("t", to_fetch(0, offset, log_start_offset=log_start_offset)), replica_id=replica_id)


async def leads_four_records(broker):
    await broker.tell(state(0))
    append(broker, b"a", b"b", b"c", b"d")
    for replica_id in (2, 3):
        await report(broker, replica_id, 4, 0)
    return broker.manager.partitions[T0]


@scenario
async def test_a_deletion_is_answered_when_all_live_replicas_have_done_it(broker):
    partition = await leads_four_records(broker)
    result, task = await waiting_deletion(broker, 3)
    assert partition.log.log_start_offset == 3
    await report(broker, 2, 4, 3)
    await report(broker, 3, 4, 2)
    await settle()
    assert not task.done()
    await report(broker, 3, 4, 3)
    await task
    assert (result.error_code, result.low_watermark) == (OK, 3)
    assert len(broker.manager.delete_records_purgatory) == 0


@scenario
async def test_a_deletion_up_to_the_high_watermark_deletes_no_record_above_it(broker):
    partition = await leads_four_records(broker)
    append(broker, b"e")
    result = broker.manager.delete_records("t", 0, -1)
    assert (result.error_code, result.required_offset, partition.log.log_start_offset) == (OK, 4, 4)
    result = broker.manager.delete_records("t", 0, 5)
    assert (result.error_code, partition.log.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 4)


@scenario
async def test_a_deletion_times_out_and_stays_done(broker):
    partition = await leads_four_records(broker)
    await report(broker, 2, 4, 2)
    result, task = await waiting_deletion(broker, 2, timeout_ms=1000)
    await task
    assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert partition.log.log_start_offset == 2
    result, task = await waiting_deletion(broker, 1, timeout_ms=0)
    await task
    assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)


@scenario
async def test_a_deletion_waits_for_no_broker_that_is_dead_or_dies(broker):
    partition = await leads_four_records(broker)
    del broker.live[3]
    await broker.tell(state(0, epoch=1, isr=(1, 2)))
    result, task = await waiting_deletion(broker, 2)
    del broker.live[2]
    list(broker.manager.brokers_died([2]))
    await settle()
    assert not task.done()  # Broker 2 could still be elected, and would bring the records back.
    await broker.tell(state(0, epoch=2, isr=(1,)))
    await task
    assert (result.error_code, result.low_watermark) == (OK, 2)
    assert partition.low_watermark(lambda broker_id: True) == 0


@scenario
async def test_a_deletion_waits_for_no_broker_outside_the_isr_once_it_is_dead(broker):
    await leads_four_records(broker)
    await broker.tell(state(0, epoch=1, isr=(1, 2)))
    await report(broker, 2, 4, 4)
    result, task = await waiting_deletion(broker, 2)
    assert not task.done()
    del broker.live[3]
    list(broker.manager.brokers_died([3]))
    await task
    assert (result.error_code, result.low_watermark) == (OK, 2)


@scenario
async def test_a_deletion_fails_when_another_leads_or_the_partition_goes(broker):
    await leads_four_records(broker)
    result, task = await waiting_deletion(broker, 2)
    await broker.tell(state(0, epoch=1, leader=2))
    await task
    assert (result.error_code, result.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert broker.manager.delete_records("t", 0, 2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@scenario
async def test_a_follower_that_waits_hears_of_a_deletion_at_once(broker):
    await leads_four_records(broker)
    waiting = asyncio.ensure_future(fetch(broker, want(4), replica_id=2, max_wait_ms=60_000))
    consumer = asyncio.ensure_future(fetch(broker, want(4), max_wait_ms=1_000))
    await settle()
    broker.manager.delete_records("t", 0, 3)
    assert (await waiting)[0].log_start_offset == 3
    await settle()
    assert not consumer.done()
    await consumer


@scenario
async def test_a_deletion_is_answered_only_when_the_leader_has_it_on_disk(broker):
    partition = await leads_four_records(broker)
    for replica_id in (2, 3):
        await report(broker, replica_id, 4, 4)
    broker.machine.fail(errno.ENOSPC, "write", matching="log-start-offset-checkpoint")
    result, task = await waiting_deletion(broker, 2, timeout_ms=1000)
    await task
    assert (result.error_code, partition.log.log_start_offset) == (ErrorCode.REQUEST_TIMED_OUT, 2)
    assert partition.log.durable_log_start_offset == 0
    broker.machine.heal()
    await broker.log_manager.checkpoint_log_start_offsets()
    result, task = await waiting_deletion(broker, 2)
    await task
    assert (result.error_code, result.low_watermark) == (OK, 2)


# -- fetch ------------------------------------------------------------------------------------------------------------


@scenario
async def test_followers_read_to_the_logs_end_and_consumers_to_the_high_watermark(broker):
    await broker.tell(state(0))
    append(broker, b"a")
    append(broker, b"b")
    [result] = await fetch(broker, want(0), replica_id=2)
    assert (values_in(result.records), result.high_watermark) == ([b"a", b"b"], 0)
    assert values_in((await fetch(broker, want(0)))[0].records) == []
    await fetch(broker, want(1), replica_id=2)
    [result] = await fetch(broker, want(1), replica_id=3)
    assert (values_in(result.records), result.high_watermark) == ([b"b"], 1)
    assert values_in((await fetch(broker, want(0)))[0].records) == [b"a"]


@scenario
async def test_a_follower_waits_for_the_logs_end_and_a_consumer_for_the_high_watermark(broker):
    await broker.tell(state(0, isr=(1, 2), replicas=(1, 2)))
    follower = asyncio.ensure_future(fetch(broker, want(0), replica_id=2, max_wait_ms=60_000))
    consumer = asyncio.ensure_future(fetch(broker, want(0), max_wait_ms=60_000))
    await settle()
    append(broker, b"a")
    assert values_in((await follower)[0].records) == [b"a"]
    assert not consumer.done()
    acknowledging = asyncio.ensure_future(fetch(broker, want(1), replica_id=2, max_wait_ms=60_000))
    assert values_in((await consumer)[0].records) == [b"a"]
    await settle()
    assert not acknowledging.done()
    acknowledging.cancel()
    await settle()
    assert len(broker.manager.follower_fetch_purgatory) == len(broker.manager.fetch_purgatory) == 0


@scenario
async def test_waiting_for_more_than_one_byte_counts_all_partitions(broker):
    await broker.tell(state(0, isr=(1,)), state(1, isr=(1,)))
    size = len(batch(b"a"))
    waiting = asyncio.ensure_future(
        fetch(broker, want(0), want(0, partition=1), max_wait_ms=60_000, min_bytes=3 * size)
    )
    await settle()
    append(broker, b"a")
    append(broker, b"a")
    await settle()
    assert not waiting.done()
    append(broker, b"a", partition=1)
    assert [values_in(result.records) for result in await waiting] == [[b"a", b"a"], [b"a"]]


@scenario
async def test_a_partition_with_nothing_new_does_not_wake_those_who_wait_for_others(broker):
    await broker.tell(state(0), state(1))
    waiting = asyncio.ensure_future(fetch(broker, want(0), replica_id=2, max_wait_ms=1000))
    await settle()
    append(broker, b"a", partition=1)
    await settle()
    assert not waiting.done()
    assert values_in((await waiting)[0].records) == []


@scenario
async def test_a_fetch_that_is_out_of_range_or_differs_acknowledges_nothing(broker):
    await broker.tell(state(0, isr=(1, 2), replicas=(1, 2)))
    append(broker, b"a")
    partition = broker.manager.partitions[T0]
    for wanted, expected in (
        (want(2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(1, epoch=-1, last_fetched_epoch=7), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(1, epoch=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        [result] = await fetch(broker, wanted, replica_id=2, max_wait_ms=60_000)
        assert result.error_code == expected
    await broker.tell(state(0, epoch=2, isr=(1, 2), replicas=(1, 2)))
    [result] = await fetch(broker, want(1, epoch=0), replica_id=2)
    assert result.error_code == ErrorCode.FENCED_LEADER_EPOCH
    [result] = await fetch(broker, want(1, epoch=2, last_fetched_epoch=1), replica_id=2, max_wait_ms=60_000)
    assert (result.error_code, result.diverging_epoch, result.records) == (
        OK,
        EpochEndOffset(epoch=0, end_offset=1),
        b"",
    )
    assert (partition.log.high_watermark, partition.remote_replicas[2].log_end_offset) == (0, -1)
    [result] = await fetch(broker, want(1, epoch=2, last_fetched_epoch=0), replica_id=2)
    assert (result.error_code, result.diverging_epoch) == (OK, None)
    assert (partition.log.high_watermark, partition.remote_replicas[2].log_end_offset) == (1, 1)


@scenario
async def test_one_that_is_no_replica_is_refused(broker):
    await broker.tell(state(0, isr=(1,), replicas=(1, 2)))
    append(broker, b"a")
    [result] = await fetch(broker, want(0), replica_id=3, max_wait_ms=60_000)
    assert (result.error_code, result.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")


@scenario
async def test_fetches_end_when_another_leads(broker):
    await broker.tell(state(0))
    waiting = [
        asyncio.ensure_future(fetch(broker, want(0, epoch=0), replica_id=replica_id, max_wait_ms=60_000))
        for replica_id in (2, -1)
    ]
    await settle()
    await broker.tell(state(0, epoch=1, leader=2))
    for task in waiting:
        assert (await task)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@scenario
async def test_a_fetch_of_the_epoch_before_ends_when_the_leader_begins_a_new_one(broker):
    await broker.tell(state(0))
    waiting = asyncio.ensure_future(fetch(broker, want(0, epoch=0), replica_id=2, max_wait_ms=60_000))
    await settle()
    await broker.tell(state(0, epoch=1))
    assert (await waiting)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@scenario
async def test_what_was_read_while_another_became_the_leader_is_not_given_out(broker):
    await broker.tell(state(0, isr=(1,)))
    append(broker, b"a")
    partition = broker.manager.partitions[T0]
    read = partition.log.read

    async def read_and_lose_leadership(*arguments, **options):
        fetched = await read(*arguments, **options)
        await broker.tell(state(0, epoch=1, leader=2))
        return fetched

    partition.log.read = read_and_lose_leadership
    [result] = await fetch(broker, want(0))
    assert (result.error_code, result.records) == (ErrorCode.FENCED_LEADER_EPOCH, b"")


@scenario
async def test_what_was_read_while_the_partition_was_deleted_is_not_given_out(broker):
    await broker.tell(state(0, isr=(1,)))
    append(broker, b"a")
    partition = broker.manager.partitions[T0]
    read = partition.log.read

    async def read_and_delete(*arguments, **options):
        fetched = await read(*arguments, **options)
        await broker.manager.stop_replicas(stop_replica((0, -2, True)))
        return fetched

    partition.log.read = read_and_delete
    [result] = await fetch(broker, want(0))
    assert (result.error_code, result.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")


async def follows(broker, *values, high_watermark):
    """t-0 follows broker 2 in epoch 3 and holds a batch for each value."""
    await broker.tell(state(0, epoch=3, leader=2))
    partition = broker.manager.partitions[T0]
    for offset, value in enumerate(values):
        partition.append_records_as_follower(batch(value, base_offset=offset, partition_leader_epoch=3))
    partition.update_follower_high_watermark(high_watermark)
    return partition


@pytest.mark.parametrize("replica_id", [-1, -2])
async def test_a_follower_answers_consumers_below_its_high_watermark(tmp_path, replica_id):
    async with hosting_broker(tmp_path) as broker:
        partition = await follows(broker, b"a", b"b", b"c", high_watermark=2)
        partition.maybe_increment_log_start_offset(1)
        for offset, epoch, code, values in (
            (1, 3, OK, [b"b"]),
            (1, -1, OK, [b"b"]),
            (2, 3, OK, []),
            (3, 3, OK, []),
            (0, 3, ErrorCode.OFFSET_OUT_OF_RANGE, []),
            (4, 3, ErrorCode.OFFSET_OUT_OF_RANGE, []),
            # Such a consumer may take this broker for the leader and would reset its offset; a tool asks this replica.
            (4, -1, ErrorCode.OFFSET_OUT_OF_RANGE if replica_id == -2 else ErrorCode.NOT_LEADER_OR_FOLLOWER, []),
            (1, 2, ErrorCode.FENCED_LEADER_EPOCH, []),
            (1, 4, ErrorCode.UNKNOWN_LEADER_EPOCH, []),
        ):
            wanted = want(offset, epoch=epoch)
            [result] = await fetch(broker, wanted, replica_id=replica_id, only_leader=False)
            assert (result.error_code, values_in(result.records or b"")) == (code, values), (offset, epoch)
            if code == OK:
                assert (result.high_watermark, result.log_start_offset) == (2, 1)
            [result] = await fetch(broker, wanted, replica_id=replica_id)
            expected = code if epoch in (2, 4) else ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (result.error_code, result.records) == (expected, b"")


@scenario
async def test_a_consumer_that_waits_at_a_follower_wakes_with_its_high_watermark(broker):
    partition = await follows(broker, b"a", b"b", high_watermark=1)
    waiting = asyncio.ensure_future(fetch(broker, want(1, epoch=3), max_wait_ms=60_000, only_leader=False))
    await settle()
    assert not waiting.done()
    partition.update_follower_high_watermark(2)
    assert values_in((await waiting)[0].records) == [b"b"]


@scenario
async def test_a_consumer_that_waits_at_a_follower_hears_of_a_new_leader_epoch(broker):
    await follows(broker, b"a", high_watermark=1)
    waiting = asyncio.ensure_future(fetch(broker, want(1, epoch=3), max_wait_ms=60_000, only_leader=False))
    await settle()
    await broker.tell(state(0, epoch=4, leader=3))
    assert (await waiting)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@scenario
async def test_a_replica_that_neither_leads_nor_follows_answers_tools_but_no_consumer(broker):
    partition = await follows(broker, b"a", high_watermark=1)
    partition.step_down(3, -1)
    [result] = await fetch(broker, want(0), only_leader=False)
    assert (result.error_code, result.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
    [result] = await fetch(broker, want(0), only_leader=False, replica_id=-2)
    assert (result.error_code, values_in(result.records)) == (OK, [b"a"])


@scenario
async def test_what_a_follower_has_truncated_while_it_was_read_is_not_given_out(broker):
    partition = await follows(broker, b"a", b"b", high_watermark=2)
    read = partition.log.read

    async def read_and_truncate(*arguments, **options):
        fetched = await read(*arguments, **options)
        partition.truncate_to(1)
        return fetched

    partition.log.read = read_and_truncate
    [result] = await fetch(broker, want(0, epoch=3), only_leader=False)
    assert (result.error_code, result.records) == (OK, b"")


@scenario
async def test_a_leader_that_follows_after_a_read_gives_nothing_out_to_those_who_may_read_from_followers(broker):
    await broker.tell(state(0, isr=(1,)))
    append(broker, b"a")
    partition = broker.manager.partitions[T0]
    read = partition.log.read

    async def read_and_lose_leadership(*arguments, **options):
        fetched = await read(*arguments, **options)
        await broker.tell(state(0, epoch=1, leader=2))
        return fetched

    partition.log.read = read_and_lose_leadership
    [result] = await fetch(broker, want(0), only_leader=False)
    assert (result.error_code, result.records) == (ErrorCode.FENCED_LEADER_EPOCH, b"")


@scenario
async def test_a_fetch_of_many_partitions_looks_at_few_of_them_in_a_turn_of_the_loop(broker):
    await broker.tell(*(state(number) for number in range(10)))
    looks, in_turn = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_manager, "PARTITIONS_PER_SLICE", 3)
        patch.setattr(replica_manager, "LOOK_SLICE", 1)
        patch.setattr(Partition, "require_leader", lambda partition, epoch: looks.append(partition.partition))
        wanted = [want(0, partition=number) for number in range(10)]
        fetching = asyncio.create_task(fetch(broker, *wanted, replica_id=2))
        while not fetching.done():
            await asyncio.sleep(0)
            in_turn.append(len(looks))
            looks.clear()
    assert (sum(in_turn), max(in_turn)) == (10, 3)


@scenario
async def test_an_append_while_many_partitions_are_looked_at_is_not_missed(broker):
    await broker.tell(*(state(number) for number in range(10)))
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_manager, "PARTITIONS_PER_SLICE", 3)
        patch.setattr(replica_manager, "LOOK_SLICE", 1)
        for turn in range(7):
            wanted = [want(turn if number == 1 else 0, partition=number) for number in range(10)]
            began = loop.time()
            fetching = asyncio.create_task(fetch(broker, *wanted, replica_id=2, max_wait_ms=5000))
            for _ in range(turn):
                await asyncio.sleep(0)
            append(broker, b"x", partition=1, acks=1)
            results = await fetching
            assert loop.time() == began
            assert values_in(results[1].records) == [b"x"]


@scenario
async def test_limits_of_a_fetch_over_several_partitions(broker):
    await broker.tell(*(state(number, isr=(1,)) for number in range(3)))
    for number in range(3):
        append(broker, b"a", partition=number)
    size = len(batch(b"a"))
    wanted = [want(0, partition=number, max_bytes=10) for number in range(3)]
    results = await fetch(broker, *wanted)
    assert [values_in(result.records) for result in results] == [[b"a"], [], []]  # one batch whatever the limits
    wanted = [want(0, partition=number) for number in range(3)]
    results = await fetch(broker, *wanted, max_bytes=2 * size)
    assert [values_in(result.records) for result in results] == [[b"a"], [b"a"], []]


# -- disks ------------------------------------------------------------------------------------------------------------


@scenario(directories=2)
async def test_a_failed_directory_takes_its_partitions_and_no_others(broker):
    await broker.tell(state(0), state(1, leader=2), state(2), state(3, leader=2))
    places = {key: partition.log.log_directory.path for key, partition in broker.manager.partitions.items()}
    failed, other = broker.paths
    lost = [key for key, path in places.items() if path == failed]
    kept = [key for key, path in places.items() if path == other]
    assert len(lost) == len(kept) == 2
    broker.manager.partitions[lost[0]].log.log_directory.fail(OSError(errno.EIO, "gone"), "test")
    await settle()
    assert broker.notified == 1
    assert sorted(broker.manager.partitions) == sorted(kept)
    assert all(key in kept for key in broker.fetchers.following)
    for topic, number in lost:
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            broker.manager.partition(topic, number)
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    codes = await broker.tell(*(state(number, epoch=1, is_new=True) for _, number in lost))
    assert codes == [storage_error, storage_error]  # even if the controller takes them for new
    assert await broker.tell(state(7, epoch=1)) == [storage_error]  # its log may have been in the failed directory
    assert await broker.tell(state(8, epoch=1, is_new=True)) == [OK]
    _, results = await broker.manager.stop_replicas(stop_replica(*((number, -2, True) for _, number in lost)))
    assert list(results.values()) == [storage_error, storage_error]


@scenario
async def test_a_full_disk_refuses_new_partitions_until_there_is_room(broker):
    await broker.tell(state(0))
    broker.machine.fill()
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert await broker.tell(state(1), state(0, epoch=1), state(2, leader=2)) == [storage_error] * 3
    assert not broker.manager.partitions
    assert not broker.fetchers.following
    broker.machine.heal()
    assert await broker.tell(state(1, epoch=1), state(0, epoch=2), state(2, leader=2, epoch=1)) == [OK] * 3
    assert broker.notified == 0


@scenario
async def test_a_failing_disk_ends_what_waits(broker):
    await broker.tell(state(0))
    result, task = await waiting_produce(broker, b"a")
    waiting = asyncio.ensure_future(fetch(broker, want(1), replica_id=2, max_wait_ms=60_000))
    await settle()
    broker.manager.partitions[T0].log.log_directory.fail(OSError(errno.EIO, "gone"), "test")
    await task
    assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (await waiting)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- life -------------------------------------------------------------------------------------------------------------


@scenario
async def test_high_watermarks_are_checkpointed_from_the_first_leader_and_isr_on(broker):
    checkpoint = f"{broker.paths[0]}/replication-offset-checkpoint"
    await asyncio.sleep(20)
    assert not broker.files.exists(checkpoint)
    await broker.tell(state(0, isr=(1,)))
    append(broker, b"a", b"b")
    await asyncio.sleep(6)
    assert broker.files.read_file(checkpoint) == b"0\n1\nt 0 2\n"
    append(broker, b"c")
    await broker.manager.stop()
    assert broker.files.read_file(checkpoint) == b"0\n1\nt 0 3\n"
    assert broker.fetchers.told[-1] == ("shutdown", [])


def test_segments_of_the_offsets_topic_are_closed_early_whichever_topic_has_asked_first():
    config = TopicConfig.from_overrides(BrokerConfig.from_properties({"zookeeper.connect": "zk"}), {})
    for _ in range(2):
        assert log_config(config, "table").max_segment_bytes == 1 << 30
        assert log_config(config, "__consumer_offsets").max_segment_bytes == 256 * 1024
        assert log_config(config, "__consumer_offsets").segment_bytes == 1 << 30
