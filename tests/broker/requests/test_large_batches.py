"""Batches that take long to look into: they are looked into elsewhere, hold nobody up, and keep their order."""

import asyncio
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from klamm.base.environment import WorkerFailed
from klamm.base.slices import in_one_go
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType, compress
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.record_walk import Wanted
from klamm.protocol.record.records import Record, build_batch
from klamm.storage.log.batch_inspection import Demands, inspect
from klamm.storage.log.log_config import LogConfig
from support.one_broker import Client, OneBroker, batch, running, until, values

T = TypeVar("T")

LARGE = 1_000  # records: more than are looked at on the loop


class HeldWorker(SystemEnvironment):
    """A worker that does nothing until it may, and then what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_work = asyncio.Event()
        self.cancelled = 0
        self.dies = False

    async def run_in_worker(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        self.asked.set()
        try:
            await self.may_work.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.dies:
            raise WorkerFailed("it has died")
        return in_one_go(work(*arguments))


def large(**header: Any) -> bytearray:
    return build_batch([Record(b"k", b"v", 1000 + number) for number in range(LARGE)], **header)


def bomb(count: int) -> bytearray:
    """Very many records with keys in very few bytes."""
    record = b"\x0c\0\0\0\0\1\0"
    body = compress(CompressionType.ZSTD, bytearray(record * count))
    header = BatchHeader(0, 49 + len(body), -1, 2, 0, CompressionType.ZSTD, count - 1, 0, 0, -1, -1, -1, count)
    data = bytearray(61) + body
    rb.write_header(data, 0, header)
    return data


def frame(correlation_id: int, topic: str, data: bytearray, acks: int = -1) -> bytes:
    body = ProduceRequest.of(None, acks, 10_000, [(topic, [(0, data)])])
    return b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, correlation_id, "c", body)))


async def answer(client: Client) -> tuple[int, int, int]:
    """(correlation id, error, base offset) of the next answer."""
    received = await client.receive()
    result = messages.decode_response(ApiKey.PRODUCE, 9, received).responses[0].partition_responses[0]
    return struct.unpack_from(">i", received)[0], result.error_code, result.base_offset


async def test_a_few_bytes_with_very_many_records_hold_nobody_up(tmp_path: Path) -> None:
    data = bomb(300_000)
    assert len(data) < 400
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", cleanup_policy="compact")
        waiting = asyncio.create_task(client.produce("t", 0, data))
        other = await cluster.connect()
        longest_s = 0.0
        loop = asyncio.get_running_loop()
        for number in range(20):
            began_s = loop.time()
            assert (await other.produce("t", 0, build_batch([Record(b"k", b"v")]))).base_offset == number
            longest_s = max(longest_s, loop.time() - began_s)
        assert not waiting.done()
        # They all call themselves the first.
        assert (await waiting).error_code == ErrorCode.INVALID_RECORD
        assert longest_s < 1


async def test_records_that_would_be_too_many_bytes_are_refused(tmp_path: Path) -> None:
    data = build_batch([Record(b"k", bytes(20 * 1024 * 1024))], codec=CompressionType.ZSTD)
    assert len(data) < 10_000
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", cleanup_policy="compact")
        assert (await client.produce("t", 0, data)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        await client.create_topic("opaque")
        assert (await client.produce("opaque", 0, data)).error_code == 0


@pytest.mark.parametrize("codec", CompressionType)
async def test_a_large_batch_is_compressed_anew_elsewhere(tmp_path: Path, codec: CompressionType) -> None:
    sent = [b"%d" % number + bytes(1000) for number in range(600)]
    name = "uncompressed" if codec is CompressionType.NONE else codec.name.lower()
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", compression_type=name)
        source = CompressionType.LZ4 if codec is CompressionType.NONE else CompressionType.NONE
        data = batch(*sent, codec=source, producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await client.produce("t", 0, data)).error_code == 0
        fetched = (await client.fetch("t", 0, 0)).records or b""
        assert rb.parse_header(fetched).codec == codec
        assert values(fetched) == sent


def test_what_becomes_too_large_is_refused_before_it_comes_back() -> None:
    data = build_batch([Record(b"k", bytes(2_000_000))], codec=CompressionType.ZSTD)
    assert len(data) < 1_000
    demands = Demands(Wanted(), CompressionType.NONE)
    with pytest.raises(KafkaError) as refused:
        in_one_go(inspect(bytes(data), demands, LogConfig()))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_very_many_batches_in_one_request_hold_nobody_up(tmp_path: Path) -> None:
    count = 2_000
    one = bytes(build_batch([Record(b"k", b"v")]))
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        other = await cluster.connect()
        body = ProduceRequest.of(None, 1, 10_000, [("t", [(0, one)] * count)])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body))))
        log = cluster.broker.parts.replica_manager.partition("t", 0).log
        await until(lambda: log.log_end_offset > 0)
        between = (await other.produce("t", 0, bytearray(one))).base_offset
        assert 0 < between < count
        results = messages.decode_response(ApiKey.PRODUCE, 9, await client.receive()).responses[0].partition_responses
        assert [result.base_offset for result in results] == [*range(between), *range(between + 1, count + 1)]


async def test_what_follows_on_the_connection_does_not_overtake(tmp_path: Path) -> None:
    environment = HeldWorker()
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client, other = await cluster.connect(), await cluster.connect()
        await client.create_topic("t", cleanup_policy="compact")
        of_producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        client.send_raw(frame(1, "t", large(**of_producer, base_sequence=0)))
        small = [Record(b"k", b"v")]
        client.send_raw(frame(2, "t", build_batch(small, **of_producer, base_sequence=LARGE)))
        client.send_raw(frame(3, "t", build_batch(small, **of_producer, base_sequence=LARGE + 1)))
        await environment.asked.wait()
        assert (await other.produce("t", 0, build_batch(small))).base_offset == 0
        environment.may_work.set()
        assert [await answer(client) for _ in range(3)] == [(1, 0, 1), (2, 0, 1 + LARGE), (3, 0, 2 + LARGE)]
        assert not cluster.broker.failure.done()


async def test_who_leads_no_more_when_it_is_looked_into_does_not_append(tmp_path: Path) -> None:
    environment = HeldWorker()
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client, other = await cluster.connect(), await cluster.connect()
        await client.create_topic("t", cleanup_policy="compact")
        client.send_raw(frame(1, "t", large()))
        await environment.asked.wait()
        await cluster.begin_leader_epoch(other, "t", 10, leader=1, isr=(1,), replicas=(0, 1))
        environment.may_work.set()
        assert await answer(client) == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_worker_that_dies_is_an_error_that_clients_retry(tmp_path: Path) -> None:
    environment = HeldWorker()
    environment.dies = True
    environment.may_work.set()
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client = await cluster.connect()
        await client.create_topic("t", cleanup_policy="compact")
        assert (await client.produce("t", 0, large())).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        environment.dies = False
        assert (await client.produce("t", 0, large())).base_offset == 0
        assert not cluster.broker.failure.done()


@pytest.mark.parametrize("acks", [0, -1])
async def test_nothing_is_looked_into_for_who_has_hung_up(tmp_path: Path, acks: int) -> None:
    environment = HeldWorker()
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client, other = await cluster.connect(), await cluster.connect()
        await other.create_topic("t", cleanup_policy="compact")
        client.send_raw(frame(1, "t", large(), acks))
        await environment.asked.wait()
        await client.close()
        await until(lambda: environment.cancelled == 1)
        assert (await other.fetch("t", 0, 0)).high_watermark == 0


async def test_a_topic_that_is_configured_anew_meanwhile_has_its_way(tmp_path: Path) -> None:
    environment = HeldWorker()
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client = await cluster.connect()
        await client.create_topic("t", compression_type="zstd")
        keyless = build_batch([Record(None, b"v")] * LARGE)
        client.send_raw(frame(1, "t", keyless))
        await environment.asked.wait()
        partition = cluster.broker.parts.replica_manager.partition("t", 0)
        config = partition.log.config
        partition.log.config = type(config)(cleanup_policy=("compact",))
        environment.may_work.set()
        assert await answer(client) == (1, ErrorCode.INVALID_RECORD, -1)
