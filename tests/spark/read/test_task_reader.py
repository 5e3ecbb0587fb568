"""Tasks of many small ranges: every record once, whatever leaders answer; one Fetch for many partitions."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from klamm.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.client.read_replicas import ReadReplicas
from klamm.net.client import ConnectFailed, Connection, Disconnected
from klamm.processes.helper import Helper
from klamm.protocol.apis.fetch import FetchRequest, FetchResponse, PartitionData
from klamm.protocol.apis.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.spark.read import partition_reader, task_reader
from klamm.spark.read.task_reader import read_ranges
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange
from klamm.testing.cluster import Cluster
from support.fetch_messages import fetch_response
from support.spark.producing import numbered, produce, set_retention

ID, OTHER_ID = UUID(int=1), UUID(int=2)
OPTIONS = FetchOptions(ClientOptions((("nowhere", 1),)), fetch_max_bytes=4000)
TOLERANT = replace(OPTIONS, fail_on_data_loss=False)
PASSING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE)

Rows = dict[int, list[int]]


# -- a cluster that is made up ----------------------------------------------------------------------------------------


class WideCluster:
    """A topic whose partitions have batches with gaps, on three leaders that keep to the limits of a request as
    Kafka's do, and fail at random: so many of ten times."""

    def __init__(self, seed: int, partitions: int, failures: int = 0) -> None:
        self._random = random.Random(seed)
        self._failures = failures
        self.metadata = ClusterMetadata()
        self.read_replicas = ReadReplicas("")
        self.topic_id: UUID | None = ID
        self.fetches: list[int] = []
        self.refreshes = 0
        # The share of brokers that know topics by their ids.
        self.newer = 0.0
        # Whether leaders end even their first batch where the limit is.
        self.truncates = False
        self.logs = [self._log() for _ in range(partitions)]
        self.ends = [log[-1][1] + 1 for log in self.logs]

    def offsets(self, partition: int, start: int, end: int) -> list[int]:
        return [offset for _, _, kept, _ in self.logs[partition] for offset in kept if start <= offset < end]

    async def refresh_metadata(self, topics: object, *, elsewhere: bool = False) -> ClusterMetadata:
        self.refreshes += 1
        if self.topic_id is None:
            self.metadata.topics.clear()
            return self.metadata
        states = {number: PartitionMetadata(0, number % 3, 1, [], []) for number in range(len(self.logs))}
        self.metadata.topics["t"] = TopicMetadata(0, states, self.topic_id)
        return self.metadata

    async def refresh_metadata_once(self, topics: object, *, elsewhere: bool = False) -> None:
        if self._fails():
            raise Disconnected("gone")
        await self.refresh_metadata(topics)

    async def connection_to(self, broker_id: int) -> "WideCluster":
        if self._fails():
            raise ConnectFailed("gone") if self._random.random() < 0.5 else KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return self

    async def send(
        self, api_key: ApiKey, build: Callable[[int], Any], *, version: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        if api_key is ApiKey.LIST_OFFSETS:
            return self._ends(build(5))
        if self._fails():
            raise Disconnected("gone")
        return self._fetched(build(12), by_id=version == 13)

    def version_of(self, api_key: ApiKey) -> int:
        return 12

    @property
    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Of a leader, which may be a newer broker than the others."""
        newest = 17 if self._random.random() < self.newer else 12
        return {ApiKey.FETCH: (4, newest)}

    def _fails(self) -> bool:
        return self._random.randrange(10) < self._failures

    def _log(self) -> list[tuple[int, int, list[int], bytes]]:
        """(first, last, the offsets that are left, the batch); whole batches may be missing."""
        batches, offset = [], 0
        for _ in range(self._random.randint(1, 6)):
            count = self._random.randint(1, 30)
            kept = sorted(self._random.sample(range(offset, offset + count), self._random.randint(1, count)))
            records = [Record(None, b"v" * self._random.randint(0, 40), 1, (), each) for each in kept]
            batches.append((kept[0], kept[-1], kept, bytes(build_batch(records, base_offset=kept[0]))))
            offset = kept[-1] + 1 + self._random.choice((0, 0, 5))
        return batches

    def _fetched(self, request: FetchRequest, *, by_id: bool) -> FetchResponse:
        (topic,) = request.topics
        self.fetches.append(len(topic.partitions))
        if by_id and topic.topic_id != self.topic_id:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            answers = [PartitionData(partition_index=each.partition, error_code=code) for each in topic.partitions]
            refused = fetch_response(("", answers))
            refused.responses[0].topic_id = topic.topic_id
            return refused
        left, answers = request.max_bytes, list[PartitionData]()
        for wanted in topic.partitions:
            answer = PartitionData(partition_index=wanted.partition)
            if self._fails():
                answer.error_code = self._random.choice(PASSING)
            elif self._fails() and self._failures:
                continue
            else:
                data = b"".join(
                    batch for _, last, _, batch in self.logs[wanted.partition] if last >= wanted.fetch_offset
                )
                limit = max(0, min(left, wanted.partition_max_bytes))
                first_bytes = int.from_bytes(data[8:12], "big") + 12
                if limit < first_bytes and not self.truncates:
                    limit = 0 if any(each.records for each in answers) else first_bytes
                answer.records = data[:limit]
                left -= len(answer.records)
                answer.high_watermark = answer.last_stable_offset = self.ends[wanted.partition] + 5
            answers.append(answer)
        response = fetch_response((topic.topic, answers))
        response.responses[0].topic_id = topic.topic_id
        return response

    def _ends(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        struct = ListOffsetsResponse.ListOffsetsTopicResponse
        (wanted,) = request.topics[0].partitions
        offset = 0 if wanted.timestamp == -2 else self.ends[wanted.partition_index] + 5
        found = struct.ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=0, offset=offset)
        return ListOffsetsResponse(topics=[struct(name="t", partitions=[found])])


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def on_the_spot(monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> Callable[[WideCluster], None]:
    """Readers use this cluster, and wait for nothing."""

    def use(cluster: WideCluster) -> None:
        def start(_: ClientOptions, work: Callable[[Any], Any]) -> "Future[Any]":
            future: Future[Any] = Future()
            try:
                future.set_result(loop.run_until_complete(work(cluster)))
            except Exception as error:  # as a future has it
                future.set_exception(error)
            return future

        for module in (task_reader, partition_reader):
            monkeypatch.setattr(module, "start", start)
        monkeypatch.setattr(task_reader, "call", lambda options, work: start(options, work).result())
        for name in ("MIN_BACKOFF_S", "MAX_BACKOFF_S"):
            monkeypatch.setattr(partition_reader, name, 0.001)
        monkeypatch.setattr(partition_reader, "GRACE_MS", 30)

    return use


def rows_of(options: FetchOptions, ranges: Sequence[PartitionRange]) -> Rows:
    found: Rows = {}
    for batch in read_ranges(options, ranges, ("partition", "offset")):
        for partition, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.setdefault(partition, []).append(offset)
    return found


def whole(cluster: WideCluster) -> list[PartitionRange]:
    return [PartitionRange("t", number, 0, end, ID.hex) for number, end in enumerate(cluster.ends)]


def everything(cluster: WideCluster) -> Rows:
    return {number: cluster.offsets(number, 0, end) for number, end in enumerate(cluster.ends)}


@pytest.mark.parametrize("options", [OPTIONS, TOLERANT], ids=["fails", "tolerant"])
@pytest.mark.parametrize("seed", range(12))
def test_every_record_once_and_in_order_whatever_leaders_answer(
    on_the_spot: Callable[[WideCluster], None], options: FetchOptions, seed: int
) -> None:
    cluster = WideCluster(seed, partitions=40, failures=seed % 4)
    cluster.newer = (seed % 3) / 2
    on_the_spot(cluster)
    chosen = random.Random(seed)
    ranges, expected = [], {}
    for records in whole(cluster):
        start = chosen.randint(0, records.end_offset - 1)
        # Also an end behind the last record, where compaction has left nothing, and ranges that were cut.
        end = chosen.randint(start + 1, records.end_offset + 4)
        middle = chosen.randint(start, end)
        ranges += [
            replace(records, start_offset=low, end_offset=high)
            for low, high in ((start, middle), (middle, end))
            if low < high
        ]
        if left := cluster.offsets(records.partition, start, end):
            expected[records.partition] = left
    assert rows_of(options, ranges) == expected


def test_a_round_is_one_request_to_each_leader_and_a_task_reads_the_metadata_twice(
    on_the_spot: Callable[[WideCluster], None],
) -> None:
    cluster = WideCluster(1, partitions=60)
    on_the_spot(cluster)
    large = replace(OPTIONS, fetch_max_bytes=10**6)
    assert rows_of(large, whole(cluster)) == everything(cluster)
    assert (cluster.fetches, cluster.refreshes) == ([20, 20, 20], 2)
    # The next task of the process knows the leaders already.
    assert rows_of(large, whole(cluster)) == everything(cluster)
    assert (len(cluster.fetches), cluster.refreshes) == (6, 3)
    tolerant = replace(large, fail_on_data_loss=False)
    assert rows_of(tolerant, whole(cluster)) == everything(cluster)
    assert (len(cluster.fetches), cluster.refreshes) == (9, 4)
    # Brokers that know topics by their ids need no check.
    cluster.newer = 1.0
    for options in (large, tolerant):
        assert rows_of(options, whole(cluster)) == everything(cluster)
    assert (len(cluster.fetches), cluster.refreshes) == (15, 4)


def test_a_task_with_a_rack_asks_for_the_metadata_after_its_last_range(
    on_the_spot: Callable[[WideCluster], None],
) -> None:
    cluster = WideCluster(1, partitions=60)
    on_the_spot(cluster)
    in_a_rack = replace(OPTIONS, client=replace(OPTIONS.client, client_rack="a"), fetch_max_bytes=10**6)
    assert rows_of(in_a_rack, whole(cluster)) == everything(cluster)
    assert cluster.refreshes == 2
    cluster.topic_id = OTHER_ID
    with pytest.raises(DataLoss, match="topic t was deleted and created again"):
        rows_of(in_a_rack, whole(cluster))


def test_few_records_of_large_batches_are_read_with_few_fetches(on_the_spot: Callable[[WideCluster], None]) -> None:
    cluster = WideCluster(1, partitions=60)
    on_the_spot(cluster)
    batch = bytes(build_batch([Record(None, b"v" * 2000, 1, (), offset) for offset in range(100)]))
    cluster.logs, cluster.ends = [[(0, 99, list(range(100)), batch)]] * 60, [100] * 60
    ranges = [replace(records, start_offset=50, end_offset=51) for records in whole(cluster)]
    options = replace(OPTIONS, fetch_max_bytes=4_000_000)
    assert rows_of(options, ranges) == {number: [50] for number in range(60)}
    assert len(cluster.fetches) <= 15


def test_leaders_that_return_parts_of_batches_for_ever_are_an_error(on_the_spot: Callable[[WideCluster], None]) -> None:
    cluster = WideCluster(1, partitions=40)
    cluster.truncates = True
    on_the_spot(cluster)
    batch = bytes(build_batch([Record(None, b"v" * 5000)]))
    cluster.logs, cluster.ends = [[(0, 0, [0], batch)]] * 40, [1] * 40
    with pytest.raises(KafkaError, match="t-0 at offset 0: the leader returned no batch that reaches this offset"):
        rows_of(OPTIONS, whole(cluster))


@pytest.mark.parametrize("newer", [0.0, 1.0])
def test_a_topic_that_was_replaced_after_the_metadata_was_read_is_a_loss(
    on_the_spot: Callable[[WideCluster], None], caplog: pytest.LogCaptureFixture, newer: float
) -> None:
    """Partitions, leaders, epochs and offsets are the same; the metadata that the process has is of the former one."""
    cluster = WideCluster(2, partitions=20)
    cluster.newer = newer
    on_the_spot(cluster)
    assert rows_of(OPTIONS, whole(cluster)) == everything(cluster)
    cluster.topic_id = OTHER_ID
    with pytest.raises(DataLoss, match="topic t was deleted and created again"):
        rows_of(OPTIONS, whole(cluster))
    cluster.topic_id = ID
    assert rows_of(TOLERANT, whole(cluster)) == everything(cluster)
    cluster.topic_id = OTHER_ID
    assert rows_of(TOLERANT, whole(cluster)) == {}
    assert caplog.text.count("topic t was deleted and created again") == 20


def test_many_ranges_of_a_topic_that_is_gone_wait_for_it_once(
    on_the_spot: Callable[[WideCluster], None],
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = WideCluster(3, partitions=30)
    on_the_spot(cluster)
    monkeypatch.setattr(partition_reader, "GRACE_MS", 300)
    monkeypatch.setattr(partition_reader, "MAX_BACKOFF_S", 0.01)
    cluster.topic_id = None
    began = loop.time()
    assert rows_of(TOLERANT, whole(cluster)) == {}
    assert loop.time() - began < 5 * 0.3
    assert caplog.text.count("topic t no longer exists") == 30
    # What was read before it was deleted, was read.
    cluster.topic_id = ID
    loop.run_until_complete(cluster.refresh_metadata(["t"]))
    cluster.topic_id = None
    assert rows_of(OPTIONS, whole(cluster)) == everything(cluster)


# -- real clusters ----------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """The requests of this process, in turn."""
    sent: list[ApiKey] = []
    send = Connection.send

    async def counting(connection: Connection, api_key: ApiKey, build: Any, **named: Any) -> Any:
        sent.append(api_key)
        return await send(connection, api_key, build, **named)

    monkeypatch.setattr(Connection, "send", counting)
    return sent


def options_for(cluster: Cluster) -> FetchOptions:
    return FetchOptions(ClientOptions(parse_addresses("bootstrap", cluster.bootstrap)))


def values(options: FetchOptions, ranges: Sequence[PartitionRange]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for batch in read_ranges(options, ranges, ("partition", "value")):
        for partition, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.setdefault(partition, []).append(value)
    return found


def test_three_hundred_partitions_with_one_fetch(
    cluster: Cluster, topic: Callable[..., str], counted: list[ApiKey]
) -> None:
    name = topic(partitions=300)
    produce(cluster.bootstrap, name, [each for number in range(300) for each in numbered(3, number, first=number)])
    ranges = [PartitionRange(name, number, 0, 3) for number in range(300)]
    counted.clear()
    found = values(options_for(cluster), ranges)
    assert found == {number: [b"%d" % each for each in range(number, number + 3)] for number in range(300)}
    assert counted.count(ApiKey.FETCH) == 1
    assert counted.count(ApiKey.METADATA) == 2


def test_records_that_were_removed_from_some_partitions_are_a_loss_there(
    klamm_helper: Helper, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {"log.retention.check.interval.ms": 100}
    with Cluster(1, helper=klamm_helper, properties=properties) as cluster:
        cluster.create_topic("t", partitions=4, configs={"segment.bytes": 1000, "retention.ms": -1})
        for number in (0, 1):
            produce(cluster.bootstrap, "t", numbered(200, number), **{"batch.num.messages": 10})
        set_retention(cluster, "t", 1)
        options = options_for(cluster)
        ranges = [PartitionRange("t", number, 0, 200) for number in (0, 1)]
        tolerant = replace(options, fail_on_data_loss=False)
        cluster.until(lambda: all(len(found) < 200 for found in values(tolerant, ranges).values()))
        produce(cluster.bootstrap, "t", [each for number in (2, 3) for each in numbered(5, number)])
        ranges += [PartitionRange("t", number, 0, 5) for number in (2, 3)]
        left = values(tolerant, ranges)
        for number in (0, 1):
            kept = left.get(number, [])
            assert kept == [b"%d" % each for each in range(200 - len(kept), 200)]
        assert "t-1: the records from offset 0" in caplog.text
        with pytest.raises(DataLoss, match=r"t-0: the records from offset 0 to \d+ were removed"):
            values(options, ranges)


def test_a_broker_dies_between_two_rounds(klamm_helper: Helper) -> None:
    with Cluster(3, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=60, replication_factor=3)
        produce(cluster.bootstrap, "t", [each for number in range(60) for each in numbered(40, number)], acks="all")
        options = replace(options_for(cluster), fetch_max_bytes=2000)
        ranges = [PartitionRange("t", number, 0, 40) for number in range(60)]
        found: dict[int, list[bytes]] = {}
        for count, batch in enumerate(read_ranges(options, ranges, ("partition", "value"))):
            for partition, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.setdefault(partition, []).append(value)
            if count == 2:
                leader = cluster.leader("t", 59)
                assert leader is not None
                cluster.kill(leader)
        assert found == {number: [b"%d" % each for each in range(40)] for number in range(60)}
