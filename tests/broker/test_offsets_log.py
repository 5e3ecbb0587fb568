"""What coordinators append to __consumer_offsets and read from it, on a broker's real log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.broker.offsets_log import OffsetsLog
from klamm.coordinator.ports import Appended
from klamm.protocol.compression import CompressionType
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.record_batch import iterate_batches
from klamm.protocol.records import (
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
        log = OffsetsLog(cluster.broker.parts.services.config, cluster.environment, replica_manager, failures.append)
        await until(lambda: log.is_leader(0))
        yield cluster, log
        assert failures == []


def hosted(cluster: OneBroker) -> Any:
    return cluster.broker.parts.replica_manager.hosted_partition((GROUP_METADATA_TOPIC_NAME, 0))


async def all_records(log: OffsetsLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [record async for batch in log.read(0) for record in batch.records]


async def batches(cluster: OneBroker) -> list[tuple[int, int, int]]:
    """(base offset, number of records, codec) of each batch."""
    log = hosted(cluster).log
    fetched = await log.read(0, 1 << 20, max_offset=log.log_end_offset, minimum_one_batch=True)
    return [(header.base_offset, header.record_count, header.codec) for _, header in iterate_batches(fetched.data)]


async def test_appends_of_one_turn_are_one_batch(tmp_path):
    async with running_log(tmp_path) as (cluster, log):
        appends = [[(b"a", b"1")], [(b"b", b"2"), (b"c", None)], [(b"d", b"4")]]
        ended: list[Appended] = await asyncio.gather(*(log.append(0, records) for records in appends))
        assert ended == [Appended(NONE, 0), Appended(NONE, 1), Appended(NONE, 3)]
        assert await batches(cluster) == [(0, 4, 0)]
        await log.append(0, [(b"e", b"5")])
        assert await batches(cluster) == [(0, 4, 0), (4, 1, 0)]
        assert await all_records(log) == [
            (0, b"a", b"1"),
            (1, b"b", b"2"),
            (2, b"c", None),
            (3, b"d", b"4"),
            (4, b"e", b"5"),
        ]


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
        first, second = log.append(0, [(b"a", b"1")]), log.append(0, [(b"b", b"2")])
        first.cancel()
        assert await second == Appended(NONE, 1)
        assert len(await all_records(log)) == 2


async def test_a_fault_of_the_program_is_heard_by_those_who_wait(tmp_path, monkeypatch):
    async with running_log(tmp_path) as (cluster, log):

        def fail(*_: Any) -> None:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patched:
            patched.setattr(cluster.broker.parts.replica_manager, "append_records", fail)
            appends = [log.append(0, [(b"a", b"1")]), log.append(0, [(b"b", b"2")])]
            ended = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 10)
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


async def test_transactions_count_when_they_commit(tmp_path):
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
        assert await all_records(log) == [(2, b"plain", b"value"), (0, b"committed", b"value")]


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
