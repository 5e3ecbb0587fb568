"""Directories that are interchangeable: Kafka's dump tool and broker read ours, we read Kafka's."""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.base.slices import in_one_go
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    decode_records,
)
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties, read_meta_properties
from support.logs import aborted_in
from support.one_broker import Client
from support.oracles import JavaTools, RealKafka
from support.partition_records import consume

CONFIG = LogConfig(segment_bytes=8_000, index_interval_bytes=500)
NOW_MS = int(time.time() * 1000)
DAY_MS = 86_400_000

T = TypeVar("T")


def run_with_logs(
    directory: Path,
    meta: MetaProperties,
    scenario: Callable[[LogManager], Awaitable[T]],
    config: LogConfig = CONFIG,
) -> T:
    """Runs `await scenario(manager)` between loading and stopping."""

    async def run() -> T:
        environment = SystemEnvironment()
        failures: list[BaseException] = []
        manager = LogManager(
            environment,
            [str(directory)],
            meta_properties=meta,
            default_config=config,
            on_directory_failure=lambda path, error: failures.append(error),
            on_failure=failures.append,
        )
        await manager.load({})
        try:
            return await scenario(manager)
        finally:
            await manager.stop()
            environment.close()
            assert failures == []

    return asyncio.run(run())


def fill(log: Log, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """All codecs, an idempotent producer, aborted and committed transactions; (offset, key, value) of the data."""
    written = []
    sequence = 0
    for i in range(count):
        records = [
            Record(
                b"key %d" % j if j % 2 else None, b"value %d.%d" % (i, j) * 8, NOW_MS + i, (("h", b"x"), ("n", None))
            )
            for j in range(i % 4 + 1)
        ]
        header: dict[str, Any] = {}
        if i % 3 == 1:
            header = {"producer_id": 4000, "producer_epoch": 2, "base_sequence": sequence}
            sequence += len(records)
        elif i % 3 == 2:
            header = {
                "producer_id": 5000 + i,
                "producer_epoch": 0,
                "base_sequence": 0,
                "is_transactional": True,
            }
        batch = build_batch(records, codec=CompressionType(i % 5), **header)
        info = log.append_as_leader(batch, i // 40, now_ms=NOW_MS)
        written += [(info.first_offset + j, record.key, record.value) for j, record in enumerate(records)]
        if i % 3 == 2:
            marker = build_end_transaction_marker(
                EndTransactionMarker(ControlRecordType(i % 2), 1),
                producer_id=5000 + i,
                producer_epoch=0,
                timestamp_ms=NOW_MS + i,
            )
            log.append_as_leader(marker, i // 40, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return written


def fence_and_leave_open(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """A transaction that a marker of the next producer epoch aborts, one that stays open, and a record behind it."""
    written: list[tuple[int, bytes | None, bytes | None]] = []

    def write(value: bytes, **header: Any) -> None:
        batch = build_batch([Record(None, value, NOW_MS)], **header)
        info = log.append_as_leader(batch, log.leader_epochs.latest_epoch, now_ms=NOW_MS)
        written.append((info.first_offset, None, value))

    write(b"fenced", producer_id=9000, producer_epoch=3, base_sequence=0, is_transactional=True)
    write(b"open", producer_id=9001, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlRecordType.ABORT, 1), producer_id=9000, producer_epoch=4, timestamp_ms=NOW_MS
    )
    log.append_as_leader(marker, log.leader_epochs.latest_epoch, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    write(b"behind")
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == written[1][0]
    return written


def write_as_producers(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Batches of producer 6000, of producer 6001, whose last one is so old that Kafka takes it for expired, and of
    producer 6002, which has expired in klamm, too."""
    written: list[tuple[int, bytes | None, bytes | None]] = []
    for producer, sequence, days_ago in (
        (6000, 0, 0),
        (6000, 1, 0),
        (6000, 2, 0),
        (6001, 0, 0),
        (6001, 1, 8),
        (6002, 0, 30),
    ):
        value, timestamp_ms = b"%d.%d" % (producer, sequence), NOW_MS - days_ago * DAY_MS
        info = log.append_as_leader(sequenced(value, producer, sequence, timestamp_ms), 0, now_ms=NOW_MS)
        written.append((info.first_offset, None, value))
    in_one_go(log.producer_state.remove_expired(NOW_MS, 20 * DAY_MS))
    assert set(log.producer_state.entries) >= {6000, 6001} and 6002 not in log.producer_state.entries
    return written


def sequenced(value: bytes, producer: int, sequence: int, timestamp_ms: int = NOW_MS) -> bytearray:
    record = Record(None, value, timestamp_ms)
    return build_batch([record], producer_id=producer, producer_epoch=0, base_sequence=sequence)


async def append_to_kafka(bootstrap: str, *batches: tuple[bytes, int, int]) -> list[tuple[int, int]]:
    """The error code and the offset for each (value, producer, sequence)."""
    host, _, port = bootstrap.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    answers = [await client.produce("t", 0, sequenced(*batch)) for batch in batches]
    await client.close()
    return [(answer.error_code, answer.base_offset) for answer in answers]


async def read_data(log: Log, *, committed: bool) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value), as a consumer of either isolation level sees them."""
    position, found = log.log_start_offset, []
    aborted = sorted(aborted_in(log, 0, log.log_end_offset), key=lambda entry: entry[1]) if committed else []
    open_aborted: set[int] = set()
    end = log.last_stable_offset if committed else log.log_end_offset
    while position < end:
        fetched = await log.read(position, 5000, max_offset=end, minimum_one_batch=True)
        for at, header in rb.iterate_batches(fetched.data):
            while aborted and aborted[0][1] <= header.last_offset:
                open_aborted.add(aborted.pop(0)[0])
            if header.is_control:
                if committed:
                    open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                found += [(r.offset, r.key, r.value) for r in decode_records(fetched.data, at, header)]
        position = fetched.next_offset
    return found


def dump(tools: JavaTools, *arguments: object) -> str:
    return tools.run("kafka.tools.DumpLogSegments", *map(str, arguments)).decode()


def files(directory: Path, suffix: str) -> str:
    return ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))


def test_kafkas_dump_tool_reads_our_directories(kafka_tools: JavaTools, tmp_path: Path) -> None:
    async def write(manager: LogManager):
        log = manager.get_or_create("t", 0, uuid.uuid4(), CONFIG)
        written = fill(log, 200)
        assert len(log.segments.base_offsets) > 3
        return written, log.log_end_offset, dict(log.producer_state.entries), aborted_in(log, 0, 10**6)

    written, end, producers, aborted = run_with_logs(tmp_path, MetaProperties("c", 1), write)
    directory = tmp_path / "t-0"

    kinds = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    every = ",".join(files(directory, kind) for kind in kinds)
    text = dump(kafka_tools, "--files", every, "--deep-iteration", "--print-data-log")
    assert not re.search("mismatch|out of order|not found|Found", text), "the tool found errors"
    records = re.findall(r"^\| offset: (\d+) .*?payload: (.*)$", text, re.M)
    assert [(int(offset), value.encode()) for offset, value in records] == [(o, value) for o, _, value in written]
    assert len(re.findall("endTxnMarker", text)) == 66
    assert set(re.findall(r"isvalid: (\w+)", text)) == {"true"}

    assert len(re.findall(r"offset: \d+ position: \d+", text)) > 50
    assert len(re.findall(r"timestamp: \d+ offset: \d+", text)) > 20

    newest = text.partition(f"/{end:020d}.snapshot")[2].partition("Dumping ")[0]
    found = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*?lastSequence: (-?\d+)", newest)
    assert {int(pid): (int(epoch), int(sequence)) for pid, epoch, sequence in found} == {
        pid: (entry.producer_epoch, entry.last_sequence) for pid, entry in producers.items()
    }
    found = re.findall(r"producerId: (\d+) firstOffset: (\d+)", text)
    assert [(int(pid), int(first)) for pid, first in found] == aborted

    for option in ("--index-sanity-check", "--verify-index-only"):
        text = dump(kafka_tools, "--files", files(directory, ".index"), option)
        assert ("passed sanity check" in text) == (option == "--index-sanity-check")
        assert "mismatch" not in text.lower()
        assert "non-consecutive" not in text.lower()


@pytest.fixture
def own_kafka(kafka_jars: Path, real_zookeeper, tmp_path: Path, running) -> RealKafka:
    """A broker whose directory a test may open when the broker is down; small segments."""
    properties: dict[str, str | int] = {
        "log.segment.bytes": 5_000,
        "log.index.interval.bytes": 500,
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    chroot = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    kafka = running(RealKafka(kafka_jars, tmp_path / "kafka", chroot, properties=properties))
    kafka.start()
    return kafka


def create_topic(kafka: RealKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)


def produce(kafka: RealKafka, topic: str, count: int) -> None:
    """Every codec; then transactions, every other one aborted."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "compression.type": codec,
                "linger.ms": 1,
                "enable.idempotence": True,
            }
        )
        for i in range(count):
            producer.produce(topic, b"%s %d" % (codec.encode(), i) * 5, key=b"%d" % i, headers={"a": b"b"})
            if i % 7 == 0:
                producer.flush()
        assert producer.flush(120) == 0
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(120)
    for i in range(10):
        producer.begin_transaction()
        producer.produce(topic, b"transaction %d" % i)
        producer.flush()
        if i % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def meta_of(kafka: RealKafka) -> MetaProperties:
    meta = read_meta_properties(SystemEnvironment().file_system, str(kafka.data_directory))
    assert meta is not None
    return meta


@pytest.mark.parametrize("ending", [pytest.param("stop", marks=pytest.mark.long), "kill"])
def test_kafka_and_klamm_open_each_others_directories(own_kafka: RealKafka, real_zookeeper, ending: str) -> None:
    create_topic(own_kafka, "t")
    produce(own_kafka, "t", 60)
    expected = {
        isolation: consume(own_kafka.bootstrap, "t", isolation) for isolation in ("read_uncommitted", "read_committed")
    }
    assert len(expected["read_uncommitted"]) == 310
    assert len(expected["read_committed"]) == 305
    getattr(own_kafka, ending)()
    directory = own_kafka.data_directory

    async def read_and_add(manager: LogManager):
        log = manager.get("t", 0)
        assert log is not None
        assert len(log.segments.base_offsets) > 2
        log.update_high_watermark(log.log_end_offset)
        assert await read_data(log, committed=False) == expected["read_uncommitted"]
        assert await read_data(log, committed=True) == expected["read_committed"]
        assert log.last_stable_offset == log.log_end_offset
        assert log.leader_epochs.latest_epoch == 0
        written = write_as_producers(log) + fill(log, 50) + fence_and_leave_open(log)
        return written, await read_data(log, committed=True)

    written, committed = run_with_logs(directory, meta_of(own_kafka), read_and_add)
    assert (directory / ".kafka_cleanshutdown").exists()

    chroot = str(own_kafka.properties["zookeeper.connect"]).partition("/")[2]
    real_zookeeper.forget_broker(f"/{chroot}")
    own_kafka.start()
    assert consume(own_kafka.bootstrap, "t", "read_uncommitted") == expected["read_uncommitted"] + written
    assert consume(own_kafka.bootstrap, "t", "read_committed") == committed
    assert not re.search(r"(?i)corrupt|recovering|rebuilding", own_kafka.output())
    # Of a producer's batches in klamm's snapshot the last one counts; none counts if that one has expired.
    batches = [(b"again", 6000, 2), (b"next", 6000, 3), (b"next", 6001, 2), (b"next", 6002, 1)]
    codes, offsets = zip(*asyncio.run(append_to_kafka(own_kafka.bootstrap, *batches)), strict=True)
    assert codes == (0, 0, 0, 0)
    assert offsets[0] == written[2][0]
    produce(own_kafka, "t", 3)
    assert (
        len(consume(own_kafka.bootstrap, "t", "read_uncommitted"))
        == len(expected["read_uncommitted"]) + len(written) + 3 + 25
    )
