"""A topic that is compacted while Spark, the archive and the pipelines on replicas read it: gaps are no losses."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify
from klamm.processes.helper import Helper
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.load import count_load
from klamm.spark.pipelines.load_options import LoadOptions
from klamm.spark.pipelines.replicas import verify
from klamm.testing.cluster import Cluster
from support.spark.archiving import archived, one_process
from support.spark.producing import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 10
SEGMENT_BYTES = 10_000
TABLE = {"cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "min.cleanable.dirty.ratio": 0.01}
CLEANER = {"log.cleaner.backoff.ms": 50, "log.cleaner.dedupe.buffer.size": 2 << 20}
FIRST = 1500

_numbers = count()

Row = tuple[int, bytes, bytes]


@pytest.fixture(scope="module")
def cleaning(klamm_helper: Helper) -> Iterator[Cluster]:
    """Two brokers whose cleaners are always at work."""
    with Cluster(2, helper=klamm_helper, properties=CLEANER) as cluster:
        yield cluster


class Table:
    """A compacted topic: record number N, which has offset N, is the value N of the key N modulo KEYS."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.written = cluster, name, 0
        cluster.create_topic(name, replication_factor=2, configs=TABLE)

    def write(self, records: int) -> None:
        numbers = range(self.written, self.written + records)
        values = [{"key": b"key-%d" % (n % KEYS), "value": b"%d" % n + b"." * 100, "partition": 0} for n in numbers]
        produce(self.cluster.bootstrap, self.name, values, **{"batch.num.messages": 10})
        self.written += records

    def is_clean(self, broker: int) -> bool:
        """Whether the replica's cleaner has cleaned everything below the active segment."""
        directory = self.cluster.broker(broker).data_directory
        active = max(path.stem for path in (directory / f"{self.name}-0").glob("*.log"))
        checkpoint = directory / "cleaner-offset-checkpoint"
        # There is none before the directory's first cleaning.
        return checkpoint.exists() and f"{self.name} 0 {int(active)}\n" in checkpoint.read_text()

    def until_clean(self) -> None:
        self.cluster.until(lambda: all(map(self.is_clean, range(2))))

    @contextmanager
    def growing(self) -> Iterator[None]:
        """It is written to, and compacted, until the end of the block."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.1):
                self.write(50)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def rows(self) -> list[Row]:
        """What an independent consumer reads now."""
        options = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "none", "enable.partition.eof": True}
        consumer = Consumer(options)
        consumer.assign([TopicPartition(self.name, 0, 0)])
        found = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append((message.offset(), message.key(), message.value()))
        assert message is not None and message.error().code() == KafkaError._PARTITION_EOF
        consumer.close()
        return found

    def check(self, found: Iterable[Row]) -> None:
        """Each record once, and unchanged."""
        rows = sorted(found)
        assert len({offset for offset, _, _ in rows}) == len(rows)
        for offset, key, value in rows:
            assert (key, value.rstrip(b".")) == (b"key-%d" % (offset % KEYS), b"%d" % offset)


@pytest.fixture
def table(cleaning: Cluster) -> Table:
    table = Table(cleaning, f"table-{next(_numbers)}")
    table.write(FIRST)
    return table


@pytest.mark.long
def test_batch_queries(spark: "SparkSession", table: Table) -> None:
    def query() -> Any:
        reader = spark.read.format("klamm").option("kafka.bootstrap.servers", table.cluster.bootstrap)
        return reader.option("subscribe", table.name).option("kafka.fetch.max.bytes", "3000").load()

    with table.growing():
        # A key may be missing: its newest record may be behind the end of the query.
        table.check(map(tuple, query().select("offset", "key", "value").collect()))
    table.until_clean()
    rows = table.rows()
    assert rows[0][0] > 0
    assert query().count() == len(rows) < table.written / 5
    assert sorted(map(tuple, query().select("offset", "key", "value").collect())) == rows


@pytest.mark.long
def test_a_streaming_query_goes_on_in_gaps(spark: "SparkSession", table: Table, tmp_path: Path) -> None:
    found: list[Row] = []

    def start(**trigger: Any) -> Any:
        options = {"kafka.bootstrap.servers": table.cluster.bootstrap, "subscribe": table.name}
        options |= {"startingOffsets": "earliest", "failOnDataLoss": "true", "maxOffsetsPerTrigger": "5000"}
        reader = spark.readStream.format("klamm").schema("offset BIGINT, key BINARY, value BINARY").options(**options)
        writer = reader.load().writeStream.foreachBatch(lambda frame, _: found.extend(map(tuple, frame.collect())))
        return writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start()

    with table.growing():
        query = start(processingTime="0 seconds")
        table.cluster.until(lambda: query.exception() is not None or len(found) > 5 * KEYS)
        query.stop()
        assert query.exception() is None
    table.until_clean()
    # The query goes on at an offset that is gone.
    query = start(availableNow=True)
    assert query.awaitTermination(120)
    table.check(found)
    assert set(table.rows()) - set(found) == set()


@pytest.mark.long
def test_the_archive(table: Table, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": table.cluster.bootstrap, "subscribe": table.name}
    lost = records = 0
    with table.growing():
        for _ in range(4):
            result = archive(one_process(), str(tmp_path), options, offsets_per_file=100, ranges_per_commit=2)
            lost, records = lost + result.lost_offsets, records + result.records
    table.until_clean()
    result = archive(one_process(), str(tmp_path), options, offsets_per_file=100, ranges_per_commit=2)
    rows = [(offset, key, value) for _, offset, key, value, *_ in archived(str(tmp_path), table.name)]
    assert (lost + result.lost_offsets, records + result.records) == (0, len(rows))
    table.check(rows)
    assert set(table.rows()) - set(rows) == set()


@pytest.mark.long
def test_the_pipelines_on_replicas(spark: "SparkSession", table: Table) -> None:
    host, port = table.cluster.bootstrap.split(",")[0].split(":")
    client = ClientOptions(((host, int(port)),))

    def matches(name: str) -> bool:
        return name == table.name

    def verified() -> None:
        planned = call(client, lambda cluster: partitions_to_verify(cluster, matches))
        (check,) = verify(spark, client, planned.partitions, VerifyOptions(), offsets_per_task=300)
        assert (check.differences.found, check.set_aside, check.is_compared) == ([], {}, True)
        assert check.position >= FIRST

    def counted() -> int:
        count = count_load(spark, client, matches, LoadOptions(offsets_per_task=300))
        (each,) = count.partitions.values()
        assert (each.counted.failure, each.counted.corrupt_batches) == (None, 0)
        return each.counted.total.records

    with table.growing():
        verified()
        counted()
    table.until_clean()
    verified()
    assert counted() == len(table.rows()) < table.written / 5
