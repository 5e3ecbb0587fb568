"""No step of what no request asks for holds the loop for long: logs and replicas, however much there is in them.

As in `test_longest_steps.py`, a step is measured in opcodes, and slices are as small as they can be. Each work is done
at two sizes: how its longest step grows between them says whether it stays short at the largest size that is allowed.
With the usual slices, and sizes that fill them, the tests take minutes (`make interop`).
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.base.system_environment import SystemFile, SystemFileSystem
from klamm.broker.configs.topics import TopicConfigs
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.protocol.apis.fetch import EpochEndOffset, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.records import ControlRecordType, Record, build_batch
from klamm.protocol.vocabulary import READ_COMMITTED, PartitionKey
from klamm.replication.fetcher.fetcher import ReplicaFetcher
from klamm.replication.fetcher.leader_endpoint import LeaderEndpoint, LeaderOffset
from klamm.replication.quota import ReplicationQuota
from klamm.simulation.machine.small_slices import small_slices
from klamm.storage.compaction.grouping import MAX_SEGMENTS
from klamm.storage.directories.log_cleaner import CleanerSettings
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from support.failing_disk import FailingDisk
from support.fetch_messages import fetch_response
from support.growing_work import LARGE_SIZES, Growing, Work, too_long
from support.logs import marker
from support.one_broker import until
from support.present import present
from support.replicas import NOW_MS, Broker, state, want

WEEK_MS = 7 * 24 * 3600 * 1000
FAR = 10**9
EVERY_BATCH = LogConfig(roll_bytes=1, retention_ms=-1)

WORK: dict[str, Growing] = {}


def work(most: int) -> Callable[[Any], Any]:
    """The largest size at which each step of this work must take less than 20 ms."""

    def register(function: Any) -> Any:
        prepare = asynccontextmanager(function)
        WORK[function.__name__] = Growing(prepare, most)
        return prepare

    return register


class UnsyncedFile(SystemFile):
    def sync(self) -> None:
        """No machine dies here."""


class UnsyncedFiles(SystemFileSystem):
    file_type = UnsyncedFile

    def sync_directory(self, path: str) -> None: ...


class Machine(FailingDisk):
    """The wall clock stands still, and syncs take no time; nothing fails."""

    def __init__(self) -> None:
        super().__init__()
        self.file_system = UnsyncedFiles()

    def now_ms(self) -> int:
        return NOW_MS


@asynccontextmanager
async def broker_on(directory: Path, **options: Any) -> AsyncIterator[Broker]:
    """A broker with the partition t-0."""
    broker = Broker(directory, **options)
    broker.machine = Machine()
    await broker.start()
    await broker.tell(state(isr=(1,)))
    try:
        yield broker
    finally:
        await broker.stop()


def log_of(broker: Broker) -> Log:
    log = broker.log_manager.get("t", 0)
    assert log is not None
    return log


def batch(
    offset: int = 0, value: bytes = b"", *, key: bytes | None = None, timestamp_ms: int = NOW_MS, **header: Any
) -> bytes:
    return bytes(build_batch([Record(key, value, timestamp_ms)], base_offset=offset, **header))


def append(log: Log, value: bytes = b"", *, origin: AppendOrigin = AppendOrigin.CLIENT, **header: Any) -> None:
    log.append_as_leader(bytearray(batch(value=value, **header)), 0, now_ms=NOW_MS, origin=origin)


async def fill(log: Log, segments: int, **header: Any) -> None:
    """Appends segments of one batch each, and flushes them."""
    usual, log.config = log.config, EVERY_BATCH
    for number in range(segments):
        append(log, **header)
        if number % 100 == 99:
            await log.flush()
    await log.flush()
    log.config = usual
    log.update_high_watermark(log.log_end_offset)


# -- followers --------------------------------------------------------------------------------------------------------


class Endpoint(LeaderEndpoint):
    """A leader that answers one fetch, and then no more."""

    def __init__(self, *results: PartitionData) -> None:
        self.leader_id = 2
        self.truncates_on_fetch = True
        self._responses = [fetch_response(("t", list(results)), session_id=7)]

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        if not self._responses:
            await asyncio.get_running_loop().create_future()
        return self._responses.pop()

    async def list_offsets(
        self, timestamp: int, leader_epochs: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, LeaderOffset]:
        """Its log is far ahead."""
        return dict.fromkeys(leader_epochs, LeaderOffset(ErrorCode.NONE, FAR))

    def interrupt(self) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def fetching(broker: Broker, **result: Any) -> AsyncIterator[Callable[[], ReplicaFetcher]]:
    """Starts a fetcher of t-0, whose leader answers with this result."""
    await broker.tell(state(leader=2, epoch=1, isr=(2,)))
    endpoint = Endpoint(PartitionData(partition_index=0, last_stable_offset=0, log_start_offset=0, **result))
    started: list[ReplicaFetcher] = []

    def start() -> ReplicaFetcher:
        quota = ReplicationQuota(samples=11, window_ms=1000)
        fetcher = ReplicaFetcher(broker.config, 1, endpoint, quota, {}, broker.failures.append)
        started.append(fetcher)
        partition = broker.manager.hosted_partition(("t", 0))
        assert partition is not None
        fetcher.add(("t", 0), partition, 1)
        return fetcher

    yield start
    for fetcher in started:
        await fetcher.shutdown()


@work(most=100_000)  # what a response of 8 MB holds
async def a_follower_appends_small_batches(directory: Path, size: int) -> AsyncIterator[Work]:
    records = b"".join(batch(number, partition_leader_epoch=1) for number in range(size))
    async with broker_on(directory) as broker:
        log = log_of(broker)
        async with fetching(broker, high_watermark=size, records=records) as start:

            async def follow() -> None:
                start()
                await until(lambda: log.high_watermark == size)

            yield follow


@work(most=13_444)  # the batches of one record in 1 MB
async def a_follower_appends_a_segment_for_each_batch(directory: Path, size: int) -> AsyncIterator[Work]:
    records = b"".join(batch(number, partition_leader_epoch=1) for number in range(size))
    async with broker_on(directory) as broker:
        log = log_of(broker)
        async with fetching(broker, high_watermark=size, records=records) as start:
            log.config = EVERY_BATCH

            async def follow() -> None:
                start()
                await until(lambda: log.high_watermark)

            yield follow


@work(most=40_000)
async def a_follower_appends_transactions(directory: Path, size: int) -> AsyncIterator[Work]:
    """One batch and one marker for each; all become stable with one high watermark."""
    records = b""
    for number in range(size // 2):
        header: dict[str, Any] = {"producer_id": number, "producer_epoch": 0, "partition_leader_epoch": 1}
        records += batch(2 * number, base_sequence=0, is_transactional=True, **header)
        records += bytes(marker(ControlRecordType.ABORT, number, base_offset=2 * number + 1, partition_leader_epoch=1))
    async with broker_on(directory) as broker:
        log = log_of(broker)
        async with fetching(broker, high_watermark=size // 2 * 2, records=records) as start:

            async def follow() -> None:
                start()
                await until(lambda: log.last_stable_offset == size // 2 * 2)

            yield follow


@work(most=100_000)
async def a_follower_appends_a_large_batch(directory: Path, size: int) -> AsyncIterator[Work]:
    """Its size is in kilobytes."""
    records = batch(0, bytes(1000 * size), partition_leader_epoch=1)
    async with broker_on(directory) as broker:
        log = log_of(broker)
        async with fetching(broker, high_watermark=1, records=records) as start:

            async def follow() -> None:
                start()
                await until(lambda: log.high_watermark == 1)

            yield follow


async def truncating(directory: Path, size: int, keep: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await fill(log, size)
        diverging = EpochEndOffset(epoch=0, end_offset=keep)
        async with fetching(broker, high_watermark=0, diverging_epoch=diverging) as start:

            async def follow() -> None:
                start()
                await until(lambda: log.log_end_offset == keep)
                await log.flush()

            yield follow


@work(most=20_000)
async def a_follower_truncates_segments(directory: Path, size: int) -> AsyncIterator[Work]:
    async for one in truncating(directory, size, 5):
        yield one


@work(most=20_000)
async def a_follower_starts_anew(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await fill(log, size)
        async with fetching(broker, high_watermark=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE) as start:

            async def follow() -> None:
                start()
                await until(lambda: log.log_start_offset == FAR)
                await log.flush()

            yield follow


# -- segments ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def segments(directory: Path, size: int, **options: Any) -> AsyncIterator[tuple[Broker, Log]]:
    """A broker with a log of so many segments."""
    async with broker_on(directory, **options) as broker:
        log = log_of(broker)
        await fill(log, size, key=b"k")
        yield broker, log


@work(most=20_000)
async def retention_by_time(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (broker, log):
        log.config = replace(log.config, retention_ms=1000)
        broker.machine.now_ms = lambda: NOW_MS + WEEK_MS

        async def retain() -> None:
            await broker.log_manager._apply_retention()
            assert log.segment_count == 1

        yield retain


@work(most=20_000)
async def retention_by_size(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (broker, log):
        log.config = replace(log.config, retention_bytes=100)

        async def retain() -> None:
            await broker.log_manager._apply_retention()
            assert log.segment_count < 4

        yield retain


@work(most=20_000)
async def records_are_deleted(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (broker, log):

        async def delete() -> None:
            result = broker.manager.delete_records("t", 0, -1)
            await broker.manager.wait_deleted({("t", 0): result}, 0)  # its followers are away
            await broker.log_manager._apply_retention()
            assert log.segment_count == 1

        yield delete


@work(most=100_000)
async def retention_that_deletes_nothing(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (broker, log):

        async def retain() -> None:
            await broker.log_manager._apply_retention()
            assert log.segment_count == size

        yield retain


@work(most=10_000)  # Appends wait long before: only a start can find so many.
async def a_flush_of_segments(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        log.config = EVERY_BATCH
        for _ in range(size):
            append(log)
        yield log.flush


@work(most=20_000)
async def a_log_is_closed(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (_, log):
        log.config = EVERY_BATCH
        append(log)
        yield log.close


@work(most=20_000)
async def a_log_is_deleted(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (broker, _):

        async def delete() -> None:
            stopped, errors = await broker.manager.stop_replicas(
                StopReplicaRequest(
                    controller_id=9,
                    controller_epoch=1,
                    broker_epoch=-1,
                    topic_states=[StopReplicaTopicState("t", [StopReplicaPartitionState(0, 1, True)])],
                )
            )
            assert stopped == ErrorCode.NONE and not any(errors.values())

        yield delete


@work(most=20_000)
async def a_log_is_loaded(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (_, _log):
        pass
    for name in (".kafka_cleanshutdown",):
        (directory / "d0" / name).unlink()
    broker = Broker(directory)
    broker.machine = Machine()

    async def load() -> None:
        await broker.start()
        broker.log_manager.start()
        await until(lambda: not log_of(broker).durability.is_truncation_unsynced)

    yield load
    await broker.stop()


@work(most=100_000)
async def a_lookup_by_timestamp(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size) as (_, log):

        async def look_up() -> None:
            assert await log.offset_for_timestamp(NOW_MS + 1) is None

        yield look_up


@asynccontextmanager
async def unindexed(directory: Path, size: int) -> AsyncIterator[Log]:
    """A log of so many batches without an entry in its index: index.interval.bytes may be larger than a segment."""
    async with broker_on(directory) as broker:
        log = log_of(broker)
        append(log)
        log.config = replace(log.config, index_interval_bytes=2**31 - 1)
        log.roll()
        for number in range(1, size):
            append(log)
            if number % 100 == 99:
                await asyncio.sleep(0)
        yield log


@work(most=10_000_000)  # batches of one record in 1 GB
async def an_offset_is_found_without_index_entries(directory: Path, size: int) -> AsyncIterator[Work]:
    async with unindexed(directory, size) as log:

        async def read() -> None:
            last = await log.read(size - 1, 1, max_offset=size, minimum_one_batch=True)
            assert last.next_offset == size

        yield read


@work(most=200_000)
async def a_read_ends_without_index_entries(directory: Path, size: int) -> AsyncIterator[Work]:
    async with unindexed(directory, size) as log:

        async def read() -> None:
            found = await log.read(1, log.size_bytes - len(batch()) - 1, max_offset=size, minimum_one_batch=True)
            assert found.next_offset == size - 1

        yield read


@work(most=MAX_SEGMENTS)  # of one swap
async def cleaned_segments_are_swapped_in(directory: Path, size: int) -> AsyncIterator[Work]:
    async with segments(directory, size, cleanup_policy="compact") as (broker, log):
        append(log, key=b"k")
        await log.flush()
        settings = CleanerSettings(backoff_ms=1)
        log.config = replace(log.config, min_cleanable_dirty_ratio=0.0)

        async def clean() -> None:
            broker.log_manager.cleaner.reconfigure(settings)
            broker.log_manager.cleaner.start()
            await until(lambda: log.first_dirty_offset)
            await broker.log_manager.cleaner.stop()

        yield clean


@work(most=50_000)
async def a_log_directory_fails(directory: Path, size: int) -> AsyncIterator[Work]:
    """With so many partitions."""
    broker = Broker(directory, directories=2)
    broker.machine = Machine()
    await broker.start()
    await broker.tell(*[state(number, isr=(1,)) for number in range(2 * size)])
    failed = broker.log_manager.directories[0]

    async def fail() -> None:
        failed.fail(OSError(errno.EIO, "failed"), "reading")
        await until(lambda: not broker.log_manager.logs_in(failed.path))

    yield fail
    await broker.stop()


# -- producers and transactions ---------------------------------------------------------------------------------------


async def produce(log: Log, producers: int) -> None:
    for number in range(producers):
        append(log, producer_id=number, producer_epoch=0, base_sequence=0)
        if number % 100 == 99:
            await asyncio.sleep(0)
    log.update_high_watermark(log.log_end_offset)


@work(most=100_000)
async def a_roll_with_producers(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await produce(log, size)

        async def roll() -> None:
            log.config = EVERY_BATCH
            append(log)
            await log.flush()

        yield roll


@work(most=100_000)
async def producers_expire(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await produce(log, size)
        broker.machine.now_ms = lambda: NOW_MS + 4 * WEEK_MS

        async def expire() -> None:
            await broker.log_manager._expire_producers()
            assert not log.producer_state.entries

        yield expire


async def abort(log: Log, transactions: int) -> None:
    for number in range(transactions):
        header: dict[str, Any] = {"producer_id": number, "producer_epoch": 0}
        append(log, base_sequence=0, is_transactional=True, **header)
        log.append_as_leader(
            bytearray(marker(ControlRecordType.ABORT, number)), 0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
        if number % 100 == 99:
            await asyncio.sleep(0)


@work(most=40_000)
async def a_consumer_reads_behind_aborted_transactions(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await abort(log, size)
        log.update_high_watermark(log.log_end_offset)

        async def read() -> None:
            [result] = await broker.manager.fetch(
                [want(0)], isolation_level=READ_COMMITTED, max_wait_ms=0, min_bytes=1, max_bytes=10_000_000
            )
            assert 0 < len(present(result.aborted_transactions)) <= size  # There is room for some thousand.

        yield read


@work(most=40_000)
async def transactions_become_stable(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await abort(log, size)
        end = log.log_end_offset

        async def settle() -> None:
            log.update_high_watermark(end)
            assert log.last_stable_offset == end

        yield settle


@work(most=40_000)
async def a_segment_with_aborted_transactions_is_rolled_and_cut(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        await abort(log, size)
        await log.flush()

        async def roll() -> None:
            log.roll()
            await log.flush()
            prepared = await log.prepare_truncation(1)
            log.truncate_to(1, prepared)
            await log.flush()

        yield roll


# -- after a start ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def indexed(directory: Path, size: int, *, is_closed: bool = False) -> AsyncIterator[tuple[Broker, Log]]:
    """A broker that has started with a segment of so many index entries, which is not the active one if `is_closed`."""
    async with broker_on(directory, index_interval_bytes="0") as broker:
        log = log_of(broker)
        for number in range(size):
            append(log, timestamp_ms=NOW_MS + number)
        if is_closed:
            log.roll()
        log.update_high_watermark(log.log_end_offset)
    async with broker_on(directory, index_interval_bytes="0") as broker:
        yield broker, log_of(broker)


@work(most=1_300_000)  # entries of an offset index of segment.index.bytes
async def the_first_append_after_a_start(directory: Path, size: int) -> AsyncIterator[Work]:
    async with indexed(directory, size) as (broker, _):

        async def first() -> None:
            for log in broker.manager.unprepared_logs([("t", 0, None)]):
                await log.prepare_append()
            result = broker.manager.append_records("t", 0, memoryview(bytearray(batch())), 1)
            assert result.error_code == ErrorCode.NONE

        yield first


@work(most=1_300_000)
async def a_timestamp_is_looked_up_after_a_start(directory: Path, size: int) -> AsyncIterator[Work]:
    async with indexed(directory, size, is_closed=True) as (_, log):

        async def look_up() -> None:
            assert await log.offset_for_timestamp(NOW_MS + size - 1) == (NOW_MS + size - 1, size - 1, 0)

        yield look_up


@work(most=50_000)  # topics
async def configs_of_topics_are_read(directory: Path, size: int) -> AsyncIterator[Work]:
    names = [f"t{number}" for number in range(size)]

    async def topic_configs(_: Any) -> dict[str, dict[str, str]]:
        return {name: {"retention.ms": "1000"} for name in names}

    store: Any = SimpleNamespace(sync=lambda: asyncio.sleep(0), configs=SimpleNamespace(of_topics=topic_configs))
    config = CurrentConfig(BrokerConfig.from_properties({"zookeeper.connect": "localhost:2181"}))
    configs = TopicConfigs(config, lambda: store, lambda *_: None)
    yield lambda: configs.load(names)


# -- leaders ----------------------------------------------------------------------------------------------------------


@work(most=100_000)
async def a_leader_appends_a_large_batch(directory: Path, size: int) -> AsyncIterator[Work]:
    """Its size is in kilobytes; socket.request.max.bytes allows 100 MB."""
    records = memoryview(bytearray(batch(value=bytes(1000 * size))))
    async with broker_on(directory) as broker:
        log = log_of(broker)
        log.config = replace(log.config, max_message_bytes=2**31 - 1)

        async def lead() -> None:
            async with broker.manager.writing_ahead("t", 0, records, None):
                result = broker.manager.append_records("t", 0, records, 1)
            assert result.error_code == ErrorCode.NONE

        yield lead


@work(most=20_000)
async def a_log_has_many_leader_epochs(directory: Path, size: int) -> AsyncIterator[Work]:
    async with broker_on(directory) as broker:
        log = log_of(broker)
        for epoch in range(size):
            log.append_as_leader(bytearray(batch()), epoch, now_ms=NOW_MS)
            if epoch % 100 == 99:
                await asyncio.sleep(0)
        log.update_high_watermark(log.log_end_offset)

        async def next_epoch() -> None:
            log.append_as_leader(bytearray(batch()), size, now_ms=NOW_MS)
            log.update_log_start_offset(size // 2)

        yield next_epoch


@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_grows_with_the_work(tmp_path: Path, name: str) -> None:
    with small_slices():
        found = await too_long(WORK[name], tmp_path)
    assert found is None, found


@pytest.mark.long
@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_grows_with_the_usual_slices(tmp_path: Path, name: str) -> None:
    found = await too_long(WORK[name], tmp_path, LARGE_SIZES)
    assert found is None, found
