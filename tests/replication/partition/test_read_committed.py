"""What consumers with isolation level read_committed get from leaders and followers, and the metrics about it."""

import asyncio

import pytest

from klamm.base.metrics import Metrics
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.records import ControlRecordType, EndTransactionMarker, build_end_transaction_marker
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from klamm.replication.metrics import open_transaction_metrics
from klamm.storage.log.producer_state import AppendOrigin
from support.replicas import NOW_MS, T0, batch, scenario, settle, state, want

pytestmark = pytest.mark.loop("virtual")

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
MINUTE_MS = 60_000


def transactional(*values, producer_id=7, sequence=0):
    header = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True}
    return batch(*values, **header)


def marker(kind, producer_id=7):
    content = EndTransactionMarker(kind, coordinator_epoch=0)
    return memoryview(
        build_end_transaction_marker(content, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS)
    )


def write(broker, records, origin=AppendOrigin.CLIENT):
    result = broker.manager.append_records("t", 0, records, -1, origin)
    assert result.error_code is ErrorCode.NONE
    return result.base_offset


def end(broker, kind, producer_id=7):
    return write(broker, marker(kind, producer_id), AppendOrigin.COORDINATOR)


async def consume(broker, offset, *, isolation_level=READ_COMMITTED, max_wait_ms=0):
    [result] = await broker.manager.fetch(
        [want(offset)],
        replica_id=-1,
        isolation_level=isolation_level,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10**6,
        only_leader=False,
    )
    return result


async def acknowledge(broker, offset):
    """Both followers have everything before `offset`."""
    for replica_id in (2, 3):
        await broker.manager.fetch(
            [want(offset)], replica_id=replica_id, isolation_level=0, max_wait_ms=0, min_bytes=0, max_bytes=10**6
        )


@scenario
async def test_a_waiting_fetch_is_answered_when_the_followers_have_the_marker(broker):
    await broker.tell(state(0))
    for sequence, kind in enumerate((COMMIT, ABORT)):
        first = write(broker, transactional(b"a", sequence=sequence))
        await acknowledge(broker, first + 1)
        waiting = asyncio.ensure_future(consume(broker, first, max_wait_ms=60_000))
        ended = end(broker, kind)
        await settle()
        assert not waiting.done()
        await acknowledge(broker, ended + 1)
        result = await waiting
        assert result.high_watermark == result.last_stable_offset == ended + 1
        aborted = [(one.producer_id, one.first_offset) for one in result.aborted_transactions]
        assert aborted == ([(7, first)] if kind is ABORT else [])
        assert len(result.records)


@scenario
async def test_records_behind_an_open_transaction_wait_for_it(broker):
    await broker.tell(state(0))
    write(broker, batch(b"before"))
    write(broker, transactional(b"open"))
    write(broker, batch(b"behind"))
    await acknowledge(broker, 3)
    result = await consume(broker, 1, max_wait_ms=100)
    assert (len(result.records or b""), result.last_stable_offset, result.high_watermark) == (0, 1, 3)
    result = await consume(broker, 1, isolation_level=READ_UNCOMMITTED)
    assert len(result.records)
    assert result.aborted_transactions is None


@scenario
async def test_the_latest_offset_is_the_last_stable_one(broker):
    await broker.tell(state(0))
    partition = broker.manager.partitions[T0]
    write(broker, batch(b"before"))
    write(broker, transactional(b"open"))
    await acknowledge(broker, 2)

    async def ends():
        return [
            (await partition.list_offset(LATEST_TIMESTAMP, level))[1] for level in (READ_COMMITTED, READ_UNCOMMITTED)
        ]

    assert await ends() == [1, 2]
    assert await partition.list_offset(NOW_MS, READ_COMMITTED) == (NOW_MS, 0, 0)
    end(broker, ABORT)
    assert await ends() == [1, 2]
    await acknowledge(broker, 3)
    assert await ends() == [3, 3]


@scenario
async def test_a_follower_answers_up_to_its_own_last_stable_offset(broker):
    await broker.tell(state(0, leader=2))
    partition = broker.manager.partitions[T0]
    for offset, records in enumerate((transactional(b"a"), marker(ABORT), transactional(b"b", sequence=1))):
        copied = bytearray(records)
        copied[:8] = offset.to_bytes(8, "big")
        partition.append_records_as_follower(copied)
    waiting = asyncio.ensure_future(consume(broker, 0, max_wait_ms=60_000))
    await settle()
    partition.update_follower_high_watermark(1)
    await settle()
    assert not waiting.done()
    partition.update_follower_high_watermark(3)
    result = await waiting
    assert (result.high_watermark, result.last_stable_offset) == (3, 2)
    assert [(one.producer_id, one.first_offset) for one in result.aborted_transactions] == [(7, 0)]


@scenario
async def test_a_marker_of_a_replaced_coordinator_is_refused(broker):
    await broker.tell(state(0))
    write(broker, transactional(b"a"))
    newer = EndTransactionMarker(COMMIT, coordinator_epoch=5)
    written = build_end_transaction_marker(newer, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
    write(broker, memoryview(written), AppendOrigin.COORDINATOR)
    write(broker, transactional(b"b", sequence=1))
    result = broker.manager.append_records("t", 0, marker(ABORT), -1, AppendOrigin.COORDINATOR)
    assert result.error_code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert broker.manager.partitions[T0].log.producer_state.first_unstable_offset == 0


@scenario
async def test_a_new_leader_tells_no_offset_before_its_high_watermark_has_reached_its_epoch(broker):
    await broker.tell(state(0, leader=2))
    partition = broker.manager.partitions[T0]
    copied = bytearray(transactional(b"a"))
    partition.append_records_as_follower(copied)
    await broker.tell(state(0, epoch=1))
    with pytest.raises(KafkaError) as caught:
        await partition.list_offset(LATEST_TIMESTAMP, READ_COMMITTED)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


@scenario
async def test_open_transactions_are_counted_under_kafkas_names(broker):
    await broker.tell(state(0), state(1))
    metrics, clock_ms = Metrics(), [NOW_MS]
    open_transaction_metrics.register(metrics, broker.manager.partitions, lambda: clock_ms[0], 15 * MINUTE_MS)
    write(broker, transactional(b"a"))
    await acknowledge(broker, 1)

    def read():
        assert not list(metrics.walks())
        return {":".join(metric.name): dict(metric.values()) for metric in metrics}

    lag = "kafka.cluster:Partition:LastStableOffsetLag"
    late = "kafka.server:ReplicaManager:PartitionsWithLateTransactionsCount"
    assert read() == {lag: {("t", "0"): 1}, late: {"": 0}}
    clock_ms[0] += 20 * MINUTE_MS
    assert read()[late] == {"": 0}
    clock_ms[0] += 1
    assert read()[late] == {"": 1}
    await acknowledge(broker, end(broker, ABORT) + 1)
    assert read() == {lag: {("t", "0"): 0}, late: {"": 0}}
