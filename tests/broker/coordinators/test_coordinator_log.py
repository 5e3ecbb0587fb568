"""What coordinators append to __consumer_offsets and read from it, on a broker's real log."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise, product
from typing import Any

import pytest

from klamm.broker.coordinators.coordinator_log import CoordinatorLog, offsets_log_settings
from klamm.coordinator.ports import Appended, LogBatch, TransactionalProducer
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import BatchHeader, iterate_batches
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
)
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support.group_wire import find_coordinator
from support.one_broker import OneBroker, running, until

NONE = ErrorCode.NONE


@asynccontextmanager
async def running_log(tmp_path: Any, **properties: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Plays the scenario with the log of a broker that leads the topic's only partition."""
    async with running(tmp_path, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1, **properties) as (
        cluster,
        client,
    ):
        await find_coordinator(client)
        replica_manager = cluster.broker.parts.replica_manager
        failures: list[BaseException] = []
        config = cluster.broker.parts.services.config
        log = CoordinatorLog(
            GROUP_METADATA_TOPIC_NAME,
            lambda: offsets_log_settings(config.current),
            cluster.environment,
            replica_manager,
            failures.append,
        )
        await until(lambda: log.is_leader(0))
        yield cluster, log
        assert failures == []


def hosted(cluster: OneBroker) -> Any:
    return cluster.broker.parts.replica_manager.hosted_partition((GROUP_METADATA_TOPIC_NAME, 0))


async def all_records(log: CoordinatorLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [record async for batch in log.read(0) for record in batch.records]


async def headers(cluster: OneBroker) -> list[BatchHeader]:
    log = hosted(cluster).log
    fetched = await log.read(0, 1 << 20, max_offset=log.log_end_offset, minimum_one_batch=True)
    return [header for _, header in iterate_batches(fetched.data)]


async def batches(cluster: OneBroker) -> list[tuple[int, int, int]]:
    """(base offset, number of records, codec) of each batch."""
    return [(header.base_offset, header.record_count, header.codec) for header in await headers(cluster)]


async def test_the_first_append_of_a_turn_happens_at_once_and_the_others_are_one_batch(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        first = log.append(0, [(b"z", b"0")])
        assert first.done()
        appends = [[(b"a", b"1")], [(b"b", b"2"), (b"c", None)], [(b"d", b"4")]]
        ended: list[Appended] = await asyncio.gather(*(log.append(0, records) for records in appends))
        assert [first.result(), *ended] == [Appended(NONE, offset) for offset in (0, 1, 2, 4)]
        assert await batches(cluster) == [(0, 1, 0), (1, 4, 0)]
        assert (await log.append(0, [(b"e", b"5")])).base_offset == 5
        assert await batches(cluster) == [(0, 1, 0), (1, 4, 0), (5, 1, 0)]
        assert await all_records(log) == [
            (0, b"z", b"0"),
            (1, b"a", b"1"),
            (2, b"b", b"2"),
            (3, b"c", None),
            (4, b"d", b"4"),
            (5, b"e", b"5"),
        ]


async def test_what_takes_long_is_not_appended_at_once(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        large = log.append(0, [(b"large", bytes(5000))])
        assert not large.done()
        await large
        hosted(cluster).log.config = dataclasses.replace(hosted(cluster).log.config, flush_messages=1)
        await asyncio.sleep(0)  # in the next turn
        syncing = log.append(0, [(b"a", b"1")])
        assert not syncing.done()
        assert await syncing == Appended(NONE, 1)


async def test_what_is_too_large_for_one_batch_fails_nobody_else(tmp_path):
    async with running_log(tmp_path, message_max_bytes=500) as (cluster, log):
        appends = [[(b"small", b"1")], [(b"large", bytes(600))], [(b"small", b"2")], [(b"medium", bytes(250))]]
        ended = await asyncio.gather(*(log.append(0, records) for records in appends))
        assert [one.error_code for one in ended] == [NONE, ErrorCode.MESSAGE_TOO_LARGE, NONE, NONE]
        assert [one.base_offset for one in ended] == [0, -1, 1, 2]
        assert [count for _, count, _ in await batches(cluster)] == [1, 1, 1]


async def test_tombstones_come_after_what_was_appended_before_and_are_split(tmp_path):
    async with running_log(tmp_path, message_max_bytes=500) as (cluster, log):
        before = log.append(0, [(b"before", b"1")])
        log.append_unacknowledged(0, [(b"%d" % number * 10, None) for number in range(20)])
        after = log.append(0, [(b"after", b"2")])
        assert [await before, await after] == [Appended(NONE, 0), Appended(NONE, 21)]
        records = await all_records(log)
        assert [offset for offset, _, _ in records] == list(range(22))
        assert (records[0][1], records[-1][1]) == (b"before", b"after")
        assert all(value is None for _, _, value in records[1:-1])
        assert len(await batches(cluster)) > 4


async def test_tombstones_of_one_turn_are_one_batch_and_share_none_with_commits(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        for number in range(10):
            log.append_unacknowledged(0, [(b"%d" % number, None)])
        assert await log.append(0, [(b"after", b"1")]) == Appended(NONE, 10)
        assert [count for _, count, _ in await batches(cluster)] == [10, 1]


async def test_what_was_to_be_appended_before_another_led_is_refused(tmp_path):
    """It may contradict what the other has written: a tombstone would end an offset that was committed there."""
    async with running_log(tmp_path) as (cluster, log):
        log.append_unacknowledged(0, [(b"tombstone", None)])
        before = log.append(0, [(b"before", b"1")])
        partition = hosted(cluster)
        partition.leader_epoch = partition.leading_since_epoch = 2
        assert await log.append(0, [(b"after", b"2")]) == Appended(NONE, 0)
        assert await before == Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert [key for _, key, _ in await all_records(log)] == [b"after"]


async def test_compression(tmp_path):
    async with running_log(tmp_path, offsets_topic_compression_codec=4) as (cluster, log):
        await log.append(0, [(b"key", bytes(100))])
        assert await batches(cluster) == [(0, 1, CompressionType.ZSTD)]
        assert await all_records(log) == [(0, b"key", bytes(100))]


async def test_a_partition_that_is_led_elsewhere(tmp_path):
    async with running_log(tmp_path) as (_, log):
        assert not log.is_leader(1)
        assert await log.append(1, [(b"a", b"1")]) == Appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        log.append_unacknowledged(1, [(b"a", None)])
        try:
            await anext(log.read(1))
        except KafkaError as error:
            assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            raise AssertionError("there is nothing to read")


async def test_a_caller_that_goes_takes_nobody_with_it(tmp_path):
    async with running_log(tmp_path) as (_, log):
        log.append_unacknowledged(0, [(b"tombstone", None)])
        first, second = log.append(0, [(b"a", b"1")]), log.append(0, [(b"b", b"2")])
        first.cancel()
        assert await second == Appended(NONE, 2)
        assert len(await all_records(log)) == 3


async def test_a_fault_of_the_program_is_heard_by_those_who_wait(tmp_path, monkeypatch):
    async with running_log(tmp_path) as (cluster, log):

        def fail(*_: Any) -> None:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patched:
            patched.setattr(cluster.broker.parts.replica_manager, "append_records", fail)
            appends = [log.append(0, [(b"a", b"1")]), log.append(0, [(b"b", b"2")])]
            ended = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 120)
            assert [str(one) for one in ended] == ["a fault", "a fault"]
        assert await log.append(0, [(b"a", b"1")]) == Appended(NONE, 0)


def transactional(producer_id: int, key: bytes, offset: int) -> bytearray:
    return build_batch(
        [Record(key, b"value", 1000)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        partition_leader_epoch=0,
    )


def marker(producer_id: int, kind: ControlRecordType, offset: int) -> bytearray:
    return build_end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1000,
        base_offset=offset,
        partition_leader_epoch=0,
    )


async def test_transactions_and_their_markers_are_read_in_the_order_of_the_log(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        written = (
            transactional(1, b"committed", 0),
            transactional(2, b"aborted", 1),
            build_batch([Record(b"plain", b"value", 1000)], base_offset=2, partition_leader_epoch=0),
            marker(2, ControlRecordType.ABORT, 3),
            marker(1, ControlRecordType.COMMIT, 4),
            transactional(3, b"open", 5),
        )
        for batch in written:
            hosted(cluster).log.append_as_follower(batch)
        assert [batch async for batch in log.read(0)] == [
            LogBatch(0, [(0, b"committed", b"value")], 1),
            LogBatch(1, [(1, b"aborted", b"value")], 2),
            LogBatch(2, [(2, b"plain", b"value")]),
            LogBatch(3, (), 2, is_committed=False),
            LogBatch(4, (), 1, is_committed=True),
            LogBatch(5, [(5, b"open", b"value")], 3),
        ]


async def test_what_is_appended_in_a_transaction_is_a_batch_of_its_own(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        producer, other = TransactionalProducer(7, 2), TransactionalProducer(8, 0)
        appends = [
            log.append(0, [(b"plain", b"1")]),
            log.append(0, [(b"a", b"2"), (b"b", b"3")], producer),
            log.append(0, [(b"c", b"4")], producer),
            log.append(0, [(b"d", b"5")], other),
            log.append(0, [(b"plain", b"6")]),
        ]
        # With each the beginning of its transaction.
        assert await asyncio.gather(*appends) == [
            Appended(NONE, 0),
            Appended(NONE, 1, 1),
            Appended(NONE, 3, 1),
            Appended(NONE, 4, 4),
            Appended(NONE, 5),
        ]
        assert [batch async for batch in log.read(0)] == [
            LogBatch(0, [(0, b"plain", b"1")]),
            LogBatch(1, [(1, b"a", b"2"), (2, b"b", b"3")], 7),
            LogBatch(3, [(3, b"c", b"4")], 7),
            LogBatch(4, [(4, b"d", b"5")], 8),
            LogBatch(5, [(5, b"plain", b"6")]),
        ]
        # As Kafka writes it.
        header = (await headers(cluster))[1]
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
        assert header.is_transactional


async def test_a_fenced_producer_is_refused_and_hurts_nobody_else(tmp_path):
    async with running_log(tmp_path) as (_, log):
        await log.append(0, [(b"a", b"1")], TransactionalProducer(7, 2))
        fenced = log.append(0, [(b"a", b"2")], TransactionalProducer(7, 1))
        others = log.append(0, [(b"b", b"3")]), log.append(0, [(b"a", b"4")], TransactionalProducer(7, 2))
        assert await fenced == Appended(ErrorCode.INVALID_PRODUCER_EPOCH)
        assert await asyncio.gather(*others) == [Appended(NONE, 1), Appended(NONE, 2, 0)]


async def test_an_append_that_times_out_says_where_its_records_are(tmp_path, monkeypatch):
    """The next leader may load them."""
    async with running_log(tmp_path, offsets_commit_timeout_ms=1) as (cluster, log):
        monkeypatch.setattr(hosted(cluster), "_advance_high_watermark", lambda: False)
        first, second = log.append(0, [(b"a", b"1"), (b"b", b"2")]), log.append(0, [(b"c", b"3")])
        assert await first == Appended(ErrorCode.REQUEST_TIMED_OUT, 0)
        assert await second == Appended(ErrorCode.REQUEST_TIMED_OUT, 2)


async def test_the_end_of_the_log_is_waited_for_until_it_is_on_all_replicas(tmp_path, monkeypatch):
    async with running_log(tmp_path) as (cluster, log):
        partition = hosted(cluster)
        await log.wait_committed(0)
        monkeypatch.setattr(partition, "_advance_high_watermark", lambda *_: False)
        appended = log.append(0, [(b"a", b"1")])
        await until(lambda: partition.log.log_end_offset == 1)
        waiting = asyncio.ensure_future(log.wait_committed(0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        monkeypatch.undo()
        partition.log.update_high_watermark(1)
        cluster.broker.parts.replica_manager.produce_purgatory.check((GROUP_METADATA_TOPIC_NAME, 0))
        await waiting
        assert await appended == Appended(NONE, 0)


async def test_the_wait_for_the_end_of_the_log_ends_in_time_and_with_the_leadership(tmp_path, monkeypatch):
    async with running_log(tmp_path, offsets_commit_timeout_ms=50) as (cluster, log):
        partition = hosted(cluster)
        monkeypatch.setattr(partition, "_advance_high_watermark", lambda *_: False)
        log.append_unacknowledged(0, [(b"a", b"1")])
        await until(lambda: partition.log.log_end_offset == 1)
        with pytest.raises(
            KafkaError, match=r"REQUEST_TIMED_OUT.*the end of __consumer_offsets-0 is not on all in-sync"
        ):
            await log.wait_committed(0)
        partition.leader_id = -1
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            await log.wait_committed(0)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await log.wait_committed(1)


async def test_the_end_of_the_log_is_committed_even_if_the_isr_is_too_small_for_the_next_append(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        log.append_unacknowledged(0, [(b"a", b"1")])
        await until(lambda: hosted(cluster).log.high_watermark == 1)
        partition = hosted(cluster)
        partition.topic_config = dataclasses.replace(partition.topic_config, min_insync_replicas=2)
        assert (await log.append(0, [(b"b", b"2")])).error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        await log.wait_committed(0)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize("is_transactional", [False, True])
async def test_one_batch_of_very_many_records_is_read_in_parts(tmp_path, codec, is_transactional):
    count = 60_000
    batch = build_batch(
        [Record(b"%d" % number, b"value", 1000) for number in range(count)],
        codec=codec,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
        partition_leader_epoch=0,
    )
    async with running_log(tmp_path) as (cluster, log):
        hosted(cluster).log.append_as_follower(batch)
        hosted(cluster).log.append_as_follower(marker(1, ControlRecordType.COMMIT, count))
        reading = asyncio.create_task(all_records(log))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert [offset for offset, _, _ in await reading] == list(range(count))
        # In one step it would take as many as a batch of a single record.
        assert turns > 5


async def test_a_long_log_is_read_in_pieces(tmp_path):
    async with running_log(tmp_path, offsets_load_buffer_size=300) as (_, log):
        for number in range(50):
            await log.append(0, [(b"%d" % number, bytes(100))])
        assert [key for _, key, _ in await all_records(log)] == [b"%d" % number for number in range(50)]


def damage(directory: str, position: int, bit: int) -> None:
    """Flips one bit of the log's first segment."""
    with open(f"{directory}/{0:020}.log", "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


# In each part of a batch that a bit can make wrong: a high and the lowest byte of the base offset, the length, the
# format, the checksum, the attributes, the producer id, the records. No reader of this log needs the leader epoch.
DAMAGED_AT = (2, 7, 8, 11, 16, 17, 22, 45, 61, -1)


@pytest.mark.parametrize("load_buffer_size", [1, 400, 100_000])
async def test_no_damaged_batch_and_no_part_of_a_damaged_log_is_read(tmp_path, load_buffer_size):
    async with running_log(tmp_path, offsets_load_buffer_size=load_buffer_size) as (cluster, log):
        for number in range(3):
            await log.append(0, [(b"%d" % number, b"value")])
        directory = hosted(cluster).log.directory
        starts = list(accumulate([header.size_bytes for header in await headers(cluster)], initial=0))
        for (start, end), at in product(pairwise(starts), DAMAGED_AT):
            position = (start if at >= 0 else end) + at
            damage(directory, position, 4)
            with pytest.raises(KafkaError, match=f"{directory} is damaged.*start the broker") as raised:
                await all_records(log)
            assert raised.value.code is ErrorCode.CORRUPT_MESSAGE, position
            damage(directory, position, 4)
            assert [key for _, key, _ in await all_records(log)] == [b"0", b"1", b"2"]
