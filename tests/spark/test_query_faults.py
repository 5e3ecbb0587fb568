"""Queries under which brokers die, leaders move and topics change: at a moment when their tasks have begun to read."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from klamm.processes.helper import Helper
from klamm.protocol.record.records import Record, build_batch
from klamm.spark.read.decoding import Decoder
from klamm.testing.cluster import Cluster
from support.placed_topics import write_batches
from support.present import present
from support.spark.faults import Gate, revive, stopping_source, take_leaders_away, three_brokers
from support.spark.producing import numbered, produce
from support.spark.reading import values_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MakeTopic = Callable[..., str]
Row = tuple[int, int, bytes]

SCHEMA = "partition INT, offset BIGINT, value BINARY"
# So that a task has many fetches before it and behind it, and believes soon in what it is told.
SMALL = {"kafka.fetch.max.bytes": "1000", "kafkaConsumer.pollTimeoutMs": "1500"}


def reader(spark: "SparkSession", bootstrap: str, topic: str, **options: Any) -> Any:
    found = spark.read.format("klamm").schema(SCHEMA).option("kafka.bootstrap.servers", bootstrap)
    return found.option("subscribe", topic).options(**options)


def rows_of(frame: "DataFrame") -> list[Row]:
    return sorted(map(tuple, frame.collect()))


def rows(count: int, partition: int = 0, first: int = 0) -> list[Row]:
    return [(partition, offset, b"%d" % (first + offset)) for offset in range(count)]


def stopping(spark: "SparkSession", **where: Any) -> "SparkSession":
    """A session with the same context whose source stops."""
    session = spark.newSession()
    session.dataSource.register(stopping_source(**where))
    return session


class Stream:
    """A streaming query that keeps its rows."""

    def __init__(self, session: "SparkSession", bootstrap: str, topic: str, directory: Path, **options: Any) -> None:
        self.rows: list[Row] = []
        found = session.readStream.format("klamm").schema(SCHEMA).option("kafka.bootstrap.servers", bootstrap)
        found = found.option("startingOffsets", "earliest").option("subscribe", topic).options(**options)
        writer = found.load().writeStream.foreachBatch(self._keep).option("checkpointLocation", str(directory))
        self.query: StreamingQuery = writer.trigger(processingTime="0 seconds").start()

    def _keep(self, frame: "DataFrame", number: int) -> None:
        self.rows = sorted([*self.rows, *rows_of(frame)])


@pytest.fixture(scope="module")
def brokers(klamm_helper: Helper) -> Iterator[Cluster]:
    with three_brokers(klamm_helper) as running:
        yield running


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_a_batch_query_and_a_stream_without_their_leaders(
    spark: "SparkSession", brokers: Cluster, background: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Both have begun partition 0 and have not begun partition 1: every record is read, and once."""
    brokers.create_topic("read", partitions=2)
    both = [record for number in (0, 1) for record in numbered(600, number)]
    produce(brokers.bootstrap, "read", both, **{"batch.num.messages": 20, "acks": "all"})
    with Gate() as gate:
        session = stopping(spark, reading=(gate.address, 3))
        options = {"kafka.fetch.max.bytes": "1000"}
        batch = background.submit(rows_of, reader(session, brokers.bootstrap, "read", **options).load().coalesce(1))
        gate.arrival()
        stream = Stream(session, brokers.bootstrap, "read", tmp_path, **options, maxOffsetsPerTrigger=700)
        gate.arrival()
        killed = take_leaders_away(brokers, "read")
        gate.open()
        expected = [*rows(600), *rows(600, 1)]
        assert batch.result() == expected
        brokers.until(lambda: len(stream.rows) >= len(expected), timeout=60)
        stream.query.stop()
        assert stream.rows == expected
    revive(brokers, killed)


def save(session: "SparkSession", writer: Any) -> None:
    """In a thread of its own, where Spark looks for the format in the thread's active session."""
    present(session._jvm).SparkSession.setActiveSession(session._jsparkSession)
    writer.save()


def test_what_is_written_while_leaders_die_is_complete_and_in_order(
    spark: "SparkSession", brokers: Cluster, background: ThreadPoolExecutor
) -> None:
    """One takes requests and does nothing with them; another has appended batches that it cannot acknowledge."""
    brokers.create_topic("written", partitions=3)
    # The writer asks the first broker for metadata, so that one stays.
    left, blocked, silent = brokers.broker_ids
    led = {present(brokers.leader("written", number)): number for number in range(3)}
    assert sorted(led) == [left, blocked, silent]
    count = 20_000
    with Gate() as gate:
        session = stopping(spark, writing=(gate.address, 2))
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")
        frame = session.range(0, count, 1, 1).selectExpr(
            "CAST(id % 3 AS INT) AS partition", "concat(id, repeat('x', 900)) AS value"
        )
        writer = frame.write.format("klamm").mode("append").option("kafka.bootstrap.servers", brokers.bootstrap)
        writer = writer.option("topic", "written").option("kafka.batch.size", 10_000)
        done = background.submit(save, session, writer)
        gate.arrival(lambda: not done.done())
        brokers.pause(silent)
        gate.open()
        replicated = brokers.data_directory(left) / f"written-{led[blocked]}" / f"{0:020}.log"
        brokers.until(lambda: replicated.stat().st_size > 0)
        brokers.kill(silent)
        brokers.kill(blocked)
        brokers.start(blocked)
        done.result()
    revive(brokers, silent)
    every = [b"%d" % number + b"x" * 900 for number in range(count)]
    assert values_read(brokers, "written") == {number: every[number::3] for number in range(3)}


def test_what_an_attempt_that_died_has_written_stays(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, background: ThreadPoolExecutor
) -> None:
    """In order and without a gap, and before what the next attempt writes."""
    name = topic()
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")

    def writer() -> Any:
        frame = session.range(0, 20_000, 1, 1).selectExpr("concat(id, repeat('x', 900)) AS value")
        found = frame.write.format("klamm").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
        return found.option("topic", name)

    with Gate() as gate:
        session.dataSource.register(stopping_source(writing=(gate.address, 6)))
        attempt = background.submit(save, session, writer())
        worker = gate.arrival(lambda: not attempt.done())
        cluster.until(lambda: values_read(cluster, name)[0])
        worker.kill()
        with pytest.raises(Py4JJavaError, match=r"Python worker exited unexpectedly|Connection reset"):
            attempt.result()
    background.submit(save, session, writer()).result()
    every = [b"%d" % number + b"x" * 900 for number in range(20_000)]
    found = values_read(cluster, name)[0]
    first = found[: -len(every)]
    assert 0 < len(first) < len(every)
    assert first == every[: len(first)]
    assert found[-len(every) :] == every


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_goes_away_under_a_batch_query(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, background: ThreadPoolExecutor, again: bool
) -> None:
    """Its second run, under the same name, has as many records at the same offsets."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(600), **{"batch.num.messages": 20})
    with Gate() as gate:
        session = stopping(spark, reading=(gate.address, 1))
        strict, tolerant = (
            background.submit(rows_of, reader(session, cluster.bootstrap, name, **SMALL, failOnDataLoss=fail).load())
            for fail in ("true", "false")
        )
        gate.arrival(), gate.arrival()
        cluster.delete_topic(name)
        if again:
            cluster.create_topic(name)
            produce(cluster.bootstrap, name, numbered(600, first=1000), **{"batch.num.messages": 20})
        gate.open()
        told = "was deleted and created again: its id was" if again else "no longer exists"
        with pytest.raises(PySparkException, match=f"DataLoss: topic {name} {told}.*failOnDataLoss=false"):
            strict.result()
        left = tolerant.result()
    assert 0 < len(left) < 600
    assert left == rows(600)[: len(left)]


def test_a_topic_that_grows_under_a_batch_query(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, background: ThreadPoolExecutor
) -> None:
    """It reads what there was when it was planned."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(600), **{"batch.num.messages": 20})
    with Gate() as gate:
        session = stopping(spark, reading=(gate.address, 1))
        found = background.submit(rows_of, reader(session, cluster.bootstrap, name, **SMALL).load())
        gate.arrival()
        grow(cluster, name, 2)
        produce(cluster.bootstrap, name, [*numbered(5, first=600), *numbered(5, partition=1)])
        gate.open()
        assert found.result() == rows(600)
    assert rows_of(reader(spark, cluster.bootstrap, name).load()) == [*rows(605), *rows(5, 1)]


def grow(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(120)
    cluster.until(lambda: cluster.leader(topic, partitions - 1) is not None)


@pytest.mark.long
def test_a_topic_that_goes_away_and_grows_under_streams(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """It goes away first within a micro-batch, then between two."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(600), **{"batch.num.messages": 20})
    with Gate() as gate:
        session = stopping(spark, reading=(gate.address, 1))
        strict, tolerant = (
            Stream(session, cluster.bootstrap, name, tmp_path / fail, **SMALL, failOnDataLoss=fail)
            for fail in ("true", "false")
        )
        gate.arrival(), gate.arrival()
        cluster.delete_topic(name)
        gate.open()
        with pytest.raises(StreamingQueryException, match=f"DataLoss: topic {name} no longer exists"):
            strict.query.awaitTermination(120)
    cluster.until(lambda: tolerant.rows)
    begin = len(tolerant.rows)
    assert 0 < begin < 600
    assert tolerant.rows == rows(600)[:begin]
    expected = tolerant.rows
    for first in (1000, 2000):
        cluster.create_topic(name)
        produce(cluster.bootstrap, name, numbered(10, first=first))
        expected = sorted([*expected, *rows(10, first=first)])
        cluster.until(lambda: len(tolerant.rows) >= len(expected), timeout=60)  # noqa: B023  # called in this round
        assert tolerant.rows == expected
        if first == 1000:
            cluster.delete_topic(name)
    grow(cluster, name, 3)
    produce(cluster.bootstrap, name, [record for number in range(3) for record in numbered(5, number, 3000)])
    expected = sorted(
        [*expected, *((0, 10 + n, b"%d" % (3000 + n)) for n in range(5)), *rows(5, 1, 3000), *rows(5, 2, 3000)]
    )
    cluster.until(lambda: len(tolerant.rows) >= len(expected), timeout=60)
    tolerant.query.stop()
    assert tolerant.rows == expected


def test_a_corrupt_batch_on_disk(spark: "SparkSession", klamm_helper: Helper, tmp_path: Path) -> None:
    """Behind a clean stop a broker does not look into its segments. What is wrong is told with its place."""
    with Cluster(1, helper=klamm_helper, properties={"log.retention.ms": -1}) as cluster:
        cluster.create_topic("t")
        values = [Record(None, b"%d" % number, 1000 + number) for number in range(60)]
        write_batches(cluster, "t", [values[:20], values[20:40], values[40:]])
        cluster.stop(0)
        segment = cluster.data_directory(0) / "t-0" / f"{0:020}.log"
        content = bytearray(segment.read_bytes())
        content[content.rindex(b"45") + 1] ^= 1
        segment.write_bytes(content)
        cluster.start(0)
        told = r"CORRUPT_MESSAGE \(2\): t-0 at offset 40: .*checksum"
        with pytest.raises(PySparkException, match=told):
            rows_of(reader(spark, cluster.bootstrap, "t").load())
        stream = Stream(spark, cluster.bootstrap, "t", tmp_path)
        with pytest.raises(StreamingQueryException, match=told):
            stream.query.awaitTermination(120)
        assert rows_of(reader(spark, cluster.bootstrap, "t", endingOffsets='{"t": {"0": 40}}').load()) == rows(40)


def test_records_of_all_sizes(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    """Nothing, a byte and 20 MB, written and read; and as many batches as records."""
    name, copy = topic(**{"max.message.bytes": 30_000_000}), topic(**{"max.message.bytes": 30_000_000})
    kinds = [(None, None), (b"", b""), (b"k", b"v"), (None, b"x" * 20_000_000), (b"k" * 1000, None)]
    records = [{"key": key, "value": value} for key, value in kinds]
    produce(cluster.bootstrap, name, records, **{"message.max.bytes": 30_000_000})
    source = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap)
    frame = source.option("subscribe", name).load().select("key", "value", "partition")
    target = frame.write.format("klamm").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
    target.option("topic", copy).option("kafka.max.request.size", 30_000_000).save()
    assert values_read(cluster, copy) == {0: [value for _, value in kinds]}
    found = source.option("subscribe", copy).load().orderBy("offset").select("key", "value").collect()
    assert list(map(tuple, found)) == kinds


def test_as_many_batches_as_records(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(20_000), **{"batch.num.messages": 1})
    assert rows_of(reader(spark, cluster.bootstrap, name).load()) == rows(20_000)


def test_a_million_batches_of_a_record() -> None:
    """As one fetch may bring them."""
    count = 1_000_000
    one = np.frombuffer(build_batch([Record(b"k", b"v")]), np.uint8)
    fetched = np.tile(one, (count, 1))
    # The offset, which the checksum does not cover.
    fetched[:, :8] = np.arange(count, dtype=">i8").view(np.uint8).reshape(count, 8)
    decoder = Decoder("t", 0, ("offset", "key", "value"), 8_000_000)
    made = list(decoder.decode(decoder.scan(fetched.data.cast("B")), 0, count, ()))
    table = pa.Table.from_batches(made)
    assert (table["offset"].to_numpy() == np.arange(count)).all()
    assert (set(table["key"].to_pylist()), set(table["value"].to_pylist())) == ({b"k"}, {b"v"})
