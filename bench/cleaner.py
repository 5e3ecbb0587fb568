"""The rate of klamm's log cleaner beside that of Apache Kafka 2.8.2, on the same log.

    bench/cleaner.py --size-mb 2000 --record-bytes 100 --codec none
    bench/cleaner.py --size-mb 2000 --record-bytes 1000 --codec zstd

A log of `--size-mb` is written, in which each of `--keys` keys has many values. A broker of Kafka gets two copies of
it, as partitions of a compacted topic, and cleans one after the other with one cleaner thread: the first with a cold
JVM, the second with a warm one. The times are those of Kafka's own statistics in its log. klamm cleans a third copy
with the compiled kernel of its worker process, from the job to the last swap, syncs included. Both have a map of 128
MB. What remains must be the same number of records.
"""

import argparse
import asyncio
import re
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic
from sides import KAFKA_OPTIONS, ROOT, RealZooKeeper, kafka_jars

from support.oracles import RealKafka

sys.path.insert(0, str(ROOT))

from klamm.base.slices import in_one_go
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, compressed_batch, parse_header
from klamm.protocol.record.records import Record, build_batch
from klamm.storage.compaction.cleaner import clean, fastest_kernel
from klamm.storage.compaction.kept_records import placed_records
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.cleaning import cleaning_job, swap_cleaned
from klamm.storage.log.job import CleaningStatistics
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties

TOPIC = "cleaned"
KEY_BYTES = 16
BATCH_BYTES = 16 * 1024
MAP_BYTES = 128 * 1024 * 1024
MB = 1024 * 1024

T = TypeVar("T")


def with_log(directory: Path, segment_bytes: int, scenario: Callable[[Log], Awaitable[T]]) -> T:
    """Runs `await scenario(log)` with the log of partition 0 in a data directory, which is then closed."""

    async def run() -> T:
        environment = SystemEnvironment()
        config = LogConfig(segment_bytes=segment_bytes, cleanup_policy=("compact",))
        manager = LogManager(
            environment,
            [str(directory)],
            meta_properties=MetaProperties("bench", 0),
            default_config=config,
            on_directory_failure=lambda path, error: sys.exit(f"{path}: {error}"),
            on_failure=lambda error: sys.exit(str(error)),
        )
        await manager.load({})
        try:
            return await scenario(manager.get_or_create(TOPIC, 0, uuid.UUID(int=1), config))
        finally:
            await manager.stop()
            environment.close()

    return asyncio.run(run())


class Batches:
    """Batches of records with random keys; values are text that halves when it is compressed."""

    def __init__(self, record_bytes: int, keys: int, codec: CompressionType) -> None:
        self._random = np.random.default_rng(1)
        self._codec = codec
        self._keys = np.array([b"%0*d" % (KEY_BYTES, key) for key in range(keys)], f"S{KEY_BYTES}")
        self._keys = self._keys.view(np.uint8).reshape(keys, KEY_BYTES)
        value = bytes(self._random.integers(97, 113, record_bytes - KEY_BYTES, dtype=np.uint8))
        count = max(1, BATCH_BYTES // record_bytes)
        now_ms = int(time.time() * 1000)
        self._template = build_batch([Record(b"k" * KEY_BYTES, value, now_ms) for _ in range(count)])
        self._header = parse_header(self._template)
        body = bytes(self._template[HEADER_SIZE_BYTES:])
        ends = [record.end for record in placed_records(body, self._header)]
        # Each record ends with its value, and the number of its headers.
        self._values = np.array(ends)[:, None] - 1 - len(value) + np.arange(len(value))
        self._places = self._values[:, :1] - 2 - KEY_BYTES + np.arange(KEY_BYTES)
        while bytes(np.frombuffer(body, np.uint8)[self._places[0]]) != b"k" * KEY_BYTES:
            self._places += 1

    def next(self) -> bytearray:
        body = np.frombuffer(bytes(self._template[HEADER_SIZE_BYTES:]), np.uint8).copy()
        body[self._places] = self._keys[self._random.integers(0, len(self._keys), len(self._places))]
        body[self._values] = self._random.integers(97, 113, self._values.shape, dtype=np.uint8)
        return in_one_go(compressed_batch(self._header, body.tobytes(), self._codec))


def write_log(directory: Path, options: argparse.Namespace) -> None:
    batches = Batches(options.record_bytes, options.keys, CompressionType[options.codec.upper()])

    async def write(log: Log) -> None:
        while log.size_bytes < options.size_mb * MB:
            log.append_as_leader(batches.next(), 0, now_ms=int(time.time() * 1000))
        log.update_high_watermark(log.log_end_offset)
        log.roll()
        await log.flush()

    with_log(directory, options.segment_mb * MB, write)


def clean_with_klamm(directory: Path, options: argparse.Namespace) -> tuple[float, CleaningStatistics]:
    """(seconds, statistics)."""
    kernel_type = fastest_kernel()

    async def run(log: Log) -> tuple[float, CleaningStatistics]:
        log.update_high_watermark(log.log_end_offset)
        began = time.perf_counter()
        job = cleaning_job(
            log._environment, log, 0, 2**62, delete_retention_ms=86_400_000, map_bytes=MAP_BYTES, map_load_factor=0.9
        )
        assert job is not None
        result = in_one_go(clean(job, SystemEnvironment().file_system, kernel_type))
        for group in result.groups:
            assert swap_cleaned(log, job, group)
        return time.perf_counter() - began, result.statistics

    return with_log(directory, options.segment_mb * MB, run)


def clean_with_kafka(directory: Path, source: Path, options: argparse.Namespace) -> list[tuple[float, int]]:
    """(seconds, records that stay) of each of two copies of the log."""
    jars = kafka_jars()
    zookeeper = RealZooKeeper(jars, directory / "zookeeper")
    kafka = RealKafka(
        jars,
        directory / "kafka",
        zookeeper.connect,
        properties={"log.cleaner.enable": "false", "auto.create.topics.enable": "false"},
        options=KAFKA_OPTIONS,
    )
    try:
        zookeeper.start()
        kafka.start()
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": str(options.segment_mb * MB),
        }
        topic = NewTopic(TOPIC, 2, 1, config=config)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([topic])[TOPIC].result(60)
        kafka.stop()
        for partition in range(2):
            target = kafka.data_directory / f"{TOPIC}-{partition}"
            for path in (source / f"{TOPIC}-0").iterdir():
                if path.name != "partition.metadata":
                    shutil.copy2(path, target / path.name)
        kafka.properties |= {"log.cleaner.enable": "true", "log.cleaner.threads": 1}
        zookeeper.forget_broker("")
        kafka.start(600)
        deadline = time.monotonic() + 1800
        while len(found := statistics_of(kafka.output())) < 2:
            if time.monotonic() > deadline:
                sys.exit(f"Kafka's cleaner has not cleaned the log:\n{kafka.output()[-3000:]}")
            time.sleep(1)
        return found
    finally:
        kafka.kill()
        zookeeper.kill()


def statistics_of(output: str) -> list[tuple[float, int]]:
    """(seconds, records that stay) of each cleaning in a broker's log."""
    pattern = (
        rf"cleaned log {TOPIC}-\d .*?\n\s+[\d,.]+ MB of log processed in ([\d,.]+) seconds"
        r".*?End size: [\d,.]+ MB \(([\d,]+) messages\)"
    )
    found = re.findall(pattern, output, re.S)
    return [(float(seconds.replace(",", "")), int(count.replace(",", ""))) for seconds, count in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=200, help="size of the log; 200 by default")
    parser.add_argument("--record-bytes", type=int, default=100, help="key and value together; 100 by default")
    parser.add_argument("--codec", choices=["none", "zstd"], default="none")
    parser.add_argument("--keys", type=int, default=500_000, help="how many keys there are; 500,000 by default")
    parser.add_argument("--segment-mb", type=int, default=100, help="segment.bytes; 100 MB by default")
    parser.add_argument("--rounds", type=int, default=1, help="how often klamm cleans a copy; 1 by default")
    parser.add_argument("--klamm-only", action="store_true", help="measure only klamm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="klamm-bench-cleaner-") as name:
        directory = Path(name)
        write_log(directory / "source", options)
        print(f"{options.size_mb} MB, records of {options.record_bytes} bytes, {options.codec}, {options.keys} keys")
        times = []
        for round_ in range(options.rounds):
            copy = directory / f"klamm-{round_}"
            shutil.copytree(directory / "source", copy)
            seconds, stats = clean_with_klamm(copy, options)
            shutil.rmtree(copy)
            times.append(seconds)
        ours = statistics.median(times)
        read_mb = stats.bytes_read / MB
        print(
            f"klamm   {ours:7.1f} s  {read_mb / ours:7.1f} MB/s  {stats.records_written} of {stats.records_read} stay"
        )
        if options.klamm_only:
            return
        for heat, (seconds, count) in zip(
            ("cold", "warm"), clean_with_kafka(directory, directory / "source", options), strict=True
        ):
            print(f"Kafka   {seconds:7.1f} s  {read_mb / seconds:7.1f} MB/s  {count} stay, {heat} JVM")
            print(f"klamm is {seconds / ours:.2f} times as fast")
            if count != stats.records_written:
                sys.exit(f"Kafka keeps {count} records, klamm {stats.records_written}")


if __name__ == "__main__":
    main()
