"""Compaction beside Kafka 2.8.2: its cleaner keeps what ours keeps, its tools and broker read what we have cleaned, and
we open what its cleaner has left when it was killed."""

import asyncio
import math
import re
import shutil
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.base.slices import in_one_go
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.record.records import decode_records
from klamm.storage.compaction.cleaner import clean
from klamm.storage.compaction.compiled_kernel import CompiledKernel
from klamm.storage.compaction.plain_kernel import PlainKernel
from klamm.storage.log.cleaning import cleaning_job, swap_cleaned
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import load_log
from klamm.storage.segments.log_directory import LogDirectory
from klamm.storage.verification.log_verification import verify_log
from support.cleaning import batches_of
from support.logs import RecordingHost
from support.oracles import RealKafka, java_tool
from support.partition_records import consume

CONFIG = LogConfig(segment_bytes=5_000, index_interval_bytes=500, cleanup_policy=("compact",))
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "5000",
    "index.interval.bytes": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


def produce(kafka: RealKafka, topic: str) -> None:
    """Every codec, tombstones, and transactions of several producers, of which some are aborted."""
    servers = {"bootstrap.servers": kafka.bootstrap}
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer({**servers, "compression.type": codec, "enable.idempotence": number % 2 == 0})
        for i in range(60):
            value = None if i % 11 == number else b"%s %d " % (codec.encode(), i) * 8
            producer.produce(topic, value, key=b"%d" % (i % 17 + 10 * number), headers={"a": b"b"})
            if i % 7 == 0:
                producer.flush()
        assert producer.flush(120) == 0
        transactional = Producer({**servers, "transactional.id": uuid.uuid4().hex})
        transactional.init_transactions(120)
        for i in range(6):
            transactional.begin_transaction()
            for j in range(5):
                transactional.produce(topic, b"transaction %d" % i * 5, key=b"%d" % (i * j))
            transactional.flush()
            if i % 2:
                transactional.abort_transaction(60)
            else:
                transactional.commit_transaction(60)


def with_log(directory: Path, scenario, *, is_clean: bool = True):
    """Runs `await scenario(log)` with the log in a partition's directory."""

    async def run():
        environment = SystemEnvironment()
        try:
            files = environment.file_system
            loaded = load_log(
                files, str(directory), CONFIG, log_start_offset=0, recovery_point=0, is_clean=is_clean, now_ms=0
            )
            data_directory = LogDirectory(files, str(directory.parent), lambda path, error: None)
            log = Log(environment, data_directory, "t", 0, CONFIG, loaded, RecordingHost(environment))
            log.update_high_watermark(log.log_end_offset)
            await log.flush()
            result = await scenario(log)
            await log.close()
            return result
        finally:
            environment.close()

    return asyncio.run(run())


async def contents(log: Log) -> list[tuple]:
    """Each batch's offsets, producer and flags, with its records."""
    return [
        (
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.attributes,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            list(decode_records(batch, 0, header)),
        )
        for header, batch in await batches_of(log)
    ]


def clean_copy(directory: Path, first_dirty_offset: int, kernel_type) -> list[tuple]:
    """Cleans the log there, and returns what remains."""

    async def scenario(log: Log) -> list[tuple]:
        job = cleaning_job(
            log._environment,
            log,
            first_dirty_offset,
            2**62,
            delete_retention_ms=0,
            map_bytes=1_000_000,
            map_load_factor=0.9,
        )
        assert job is not None
        result = in_one_go(clean(job, SystemEnvironment().file_system, kernel_type))
        for group in result.groups:
            assert swap_cleaned(log, job, group)
        return await contents(log)

    return with_log(directory, scenario)


@pytest.fixture
def kafka(kafka_jars: Path, real_zookeeper, tmp_path: Path, running) -> RealKafka:
    """A broker that does not clean yet."""
    chroot = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    properties: dict[str, str | int] = {
        "log.cleaner.enable": "false",
        "log.cleaner.backoff.ms": 200,
    }
    server = running(RealKafka(kafka_jars, tmp_path / "kafka", chroot, properties=properties))
    server.start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config=SETTINGS)])["t"].result(120)
    return server


def start_again(kafka: RealKafka, real_zookeeper) -> None:
    chroot = str(kafka.properties["zookeeper.connect"]).partition("/")[2]
    real_zookeeper.forget_broker(f"/{chroot}")
    kafka.start()


@pytest.mark.long
@pytest.mark.parametrize("is_partly_clean", [False, True])
def test_kafkas_cleaner_keeps_what_ours_keeps_and_kafka_opens_what_we_have_cleaned(
    kafka: RealKafka, kafka_jars: Path, real_zookeeper, tmp_path: Path, is_partly_clean: bool
) -> None:
    produce(kafka, "t")
    committed = set(consume(kafka.bootstrap, "t", "read_committed"))
    kafka.stop()
    directory = kafka.data_directory / "t-0"
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    assert len(bases) > 5
    # A part counts as cleaned before: its tombstones and markers go, because delete.retention.ms is 0.
    first_dirty = bases[len(bases) // 2] if is_partly_clean else 0
    ours = tmp_path / "ours" / "t-0"
    shutil.copytree(directory, ours)
    plain = tmp_path / "plain" / "t-0"
    shutil.copytree(directory, plain)
    kept = clean_copy(ours, first_dirty, CompiledKernel)
    assert clean_copy(plain, first_dirty, PlainKernel) == kept
    assert verify_log(SystemEnvironment().file_system, str(ours), compacted_to=math.inf).findings == []

    logs = ",".join(str(path) for path in sorted(ours.glob("*.log")))
    text = java_tool(kafka_jars, "kafka.tools.DumpLogSegments", "--files", logs, "--deep-iteration").decode()
    assert "Found" not in text
    assert set(re.findall(r"isvalid: (\w+)", text)) == {"true"}
    for kind in ("index", "timeindex"):
        indexes = ",".join(str(path) for path in sorted(ours.glob(f"*.{kind}")))
        text = java_tool(kafka_jars, "kafka.tools.DumpLogSegments", "--files", indexes).decode()
        assert not re.search(r"(?i)mismatch|out of order|not found|Found", text)

    # Kafka's cleaner on the same log.
    (kafka.data_directory / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {first_dirty}\n")
    kafka.properties |= {"log.cleaner.enable": "true"}
    start_again(kafka, real_zookeeper)
    assert kafka.process is not None
    kafka.process.wait_for(r"cleaned log t-0", 60)
    kafka.stop()
    assert with_log(directory, contents) == kept
    assert verify_log(SystemEnvironment().file_system, str(directory), compacted_to=math.inf).findings == []

    # Kafka's broker on what we have cleaned.
    shutil.rmtree(directory)
    shutil.copytree(ours, directory)
    kafka.properties |= {"log.cleaner.enable": "false"}
    start_again(kafka, real_zookeeper)
    records = [
        (record.offset, record.key, record.value) for _, _, _, attributes, *_, batch in kept
        if not attributes & 0x20 for record in batch
    ]  # fmt: skip
    assert consume(kafka.bootstrap, "t", "read_uncommitted") == records
    assert consume(kafka.bootstrap, "t", "read_committed") == [record for record in records if record in committed]
    assert not re.search(r"(?i)corrupt|recovering|rebuilding", kafka.output())
    produce(kafka, "t")


@pytest.mark.long
def test_klamm_opens_what_kafkas_cleaner_was_killed_in(kafka: RealKafka, real_zookeeper, tmp_path: Path) -> None:
    produce(kafka, "t")
    before = consume(kafka.bootstrap, "t", "read_committed")
    kafka.stop()
    last = {key: (offset, value) for offset, key, value in before}
    kafka.properties |= {"log.cleaner.enable": "true", "log.cleaner.io.max.bytes.per.second": "5000"}
    directory = kafka.data_directory / "t-0"
    original = tmp_path / "original"
    shutil.copytree(directory, original)
    for suffix in (".cleaned", ".deleted", ".swap"):
        shutil.rmtree(directory)
        shutil.copytree(original, directory)
        (kafka.data_directory / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        start_again(kafka, real_zookeeper)
        killed_at = ".deleted" if suffix == ".swap" else suffix
        deadline = time.monotonic() + 120
        while not list(directory.glob(f"*{killed_at}")):
            assert time.monotonic() < deadline, kafka.output()
        kafka.kill()
        if suffix == ".swap":
            undo_the_last_renames(directory)
        assert list(directory.glob(f"*{suffix}"))
        found = {
            record.key: (record.offset, record.value)
            for _, _, _, attributes, *_, records in with_log(directory, contents, is_clean=False)
            if not attributes & 0x20
            for record in records
            if (record.offset, record.key, record.value) in before
        }
        assert found == last
        assert verify_log(SystemEnvironment().file_system, str(directory), compacted_to=math.inf).findings == []


def undo_the_last_renames(directory: Path) -> None:
    """As if Kafka had been killed before it took the suffix `.swap` from the first cleaned segment."""
    first = min(directory.glob("*.log.deleted")).name.partition(".")[0]
    for path in list(directory.glob(f"{first}.*")):
        if path.suffix not in (".deleted", ".swap"):
            path.rename(f"{path}.swap")
