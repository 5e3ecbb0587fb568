"""Spark's own Kafka connector: klamm's source reads the same rows, and klamm's brokers are good enough for it.

Transactions are read from Apache Kafka, because librdkafka writes them only where there is a coordinator for them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException

from klamm.spark.lag import lags
from klamm.testing.cluster import Cluster
from support import oracles
from support.long_rows import long
from support.spark.producing import numbered, produce
from support.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]

ZEROS = {"min": "0", "max": "0", "avg": "0.0"}
ALL_COLUMNS = ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]


@pytest.fixture(scope="module")
def java_connector(spark: "SparkSession") -> None:
    """Spark's own connector in the session of the tests."""
    for jar in oracles.spark_kafka_jars():
        spark.sql(f"ADD JAR '{jar}'")


def write_all_kinds(bootstrap: str, name: str) -> None:
    """All codecs, nulls, headers (of one key twice, too) and large records."""
    for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        records = [
            {
                "key": None if number % 3 == 0 else b"k" * (number % 50),
                "value": None if number % 7 == 0 else bytes([number % 256]) * (number * 13 % 900),
                "partition": partition,
                "timestamp": 1_600_000_000_000 + number * 77,
                "headers": [("h", b"1"), ("h", None), ("ü", b"\xff" * number)] if number % 5 == 0 else [],
            }
            for number in range(300)
        ]
        produce(bootstrap, name, records, **{"compression.type": codec, "batch.num.messages": 40})
    produce(bootstrap, name, [{"value": b"x" * 900_000, "partition": 0}, {"value": b"", "key": b"", "partition": 0}])


def write_transactions(bootstrap: str, name: str) -> None:
    """Transactions that end either way."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions()
    for ends_well in (True, False, True):
        producer.begin_transaction()
        for record in numbered(5, partition=1):
            producer.produce(name, **record)
        # An abort would throw away what has not been sent.
        producer.flush()
        (producer.commit_transaction if ends_well else producer.abort_transaction)()


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of an Apache Kafka 2.8.2 broker with the topic `everything`."""
    zookeeper = oracles.RealZooKeeper(kafka_jars, tmp_path_factory.mktemp("zookeeper"))
    zookeeper.start()
    broker = oracles.RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka"), zookeeper.connect)
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = NewTopic("everything", 5, 1, config={"retention.ms": "-1"})
        admin.create_topics([topic])["everything"].result(120)
        write_all_kinds(broker.bootstrap, "everything")
        write_transactions(broker.bootstrap, "everything")
        yield broker.bootstrap
    finally:
        broker.kill()
        zookeeper.kill()


@pytest.fixture(scope="module")
def everything(cluster: Cluster) -> tuple[str, str]:
    """The bootstrap address of a klamm broker, and a topic of it that holds all kinds of records."""
    cluster.create_topic("everything", partitions=5)
    write_all_kinds(cluster.bootstrap, "everything")
    return cluster.bootstrap, "everything"


@pytest.mark.usefixtures("java_connector")
@pytest.mark.parametrize(
    ("isolation", "splitting"), [("read_uncommitted", {"minPartitions": "13"}), ("read_committed", {})]
)
def test_a_batch_has_the_same_rows(
    spark: "SparkSession", kafka: str, isolation: str, splitting: dict[str, str]
) -> None:
    def rows(source: str) -> "DataFrame":
        options: dict[str, Any] = {
            "includeHeaders": "true",
            "kafka.isolation.level": isolation,
            "startingTimestamp": "0",
            **splitting,
        }
        reader = spark.read.format(source).option("kafka.bootstrap.servers", kafka)
        return reader.option("subscribe", "everything").options(**options).load().select(ALL_COLUMNS)

    ours, theirs = rows("klamm").collect(), rows("kafka").collect()
    assert len(ours) == len(theirs) == 5 * 300 + 2 + (15 if isolation == "read_uncommitted" else 10)
    assert sorted(ours, key=_place) == sorted(theirs, key=_place)


@pytest.mark.usefixtures("java_connector")
def test_a_stream_has_the_same_rows_and_takes_over_a_checkpoint(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """What the Java connector's query has read, klamm's does not read again; what it has not, it does."""
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(50), *numbered(30, partition=1)])

    def run(source: str, to: str) -> None:
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", cluster.bootstrap)
        frame = reader.option("subscribe", name).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/{to}.checkpoint")
        assert writer.trigger(availableNow=True).start(f"{tmp_path}/{to}").awaitTermination(120)

    run("klamm", "ours")
    run("kafka", "theirs")
    ours, theirs = spark.read.parquet(f"{tmp_path}/ours"), spark.read.parquet(f"{tmp_path}/theirs")
    assert sorted(ours.collect(), key=_place) == sorted(theirs.collect(), key=_place)
    produce(cluster.bootstrap, name, numbered(5, partition=1, first=30))
    run("klamm", "theirs")
    offsets = sorted((row.partition, row.offset) for row in spark.read.parquet(f"{tmp_path}/theirs").collect())
    assert offsets == [*((0, offset) for offset in range(50)), *((1, offset) for offset in range(35))]


@pytest.mark.usefixtures("java_connector")
def test_a_stream_is_as_far_behind_as_the_java_connectors(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=3)
    produce(cluster.bootstrap, name, [*numbered(60), *numbered(25, partition=1)])

    def progress(source: str) -> list[Any]:
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", cluster.bootstrap)
        frame = reader.options(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=17).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/{source}")
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [each for each in query.recentProgress if each.numInputRows]

    ours = [lag.metrics for each in progress("klamm") for lag in lags(each)]
    theirs = [each.sources[0].metrics for each in progress("kafka")]
    assert len(theirs) > 3
    # So far both divide a micro-batch among the partitions alike.
    assert ours[:3] == theirs[:3]
    assert ours[-1] == theirs[-1] == {f"{which}OffsetsBehindLatest": zero for which, zero in ZEROS.items()}


@pytest.mark.usefixtures("java_connector")
def test_a_checkpoint_with_an_uncommitted_first_batch_is_refused_until_the_java_connector_has_committed_it(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """It began at latest, which was 4, and its first batch, up to 10, failed; the topic goes on to 15."""
    name = topic()
    offsets: list[int] = []

    def run(source: str, fail: bool = False) -> None:
        def keep(frame: "DataFrame", _: int) -> None:
            if fail:
                raise RuntimeError("this batch is to fail")
            offsets.extend(sorted(row.offset for row in frame.select("offset").collect()))

        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", cluster.bootstrap)
        reader = reader.option("subscribe", name).option("startingOffsets", "latest")
        writer = reader.load().writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    produce(cluster.bootstrap, name, numbered(4))
    with pytest.raises(StreamingQueryException, match="this batch is to fail"):
        run("kafka", fail=True)
    # Its empty first batch ends where it begins; a busier topic's would not.
    written = tmp_path / "checkpoint" / "offsets" / "0"
    assert f'{{"{name}":{{"0":4}}}}' in written.read_text()
    written.write_text(written.read_text().replace('"0":4', '"0":10'))
    (written.parent / ".0.crc").unlink(missing_ok=True)
    produce(cluster.bootstrap, name, numbered(11, first=4))
    with pytest.raises(StreamingQueryException, match="its first batch has not been committed"):
        run("klamm")
    assert offsets == []
    run("kafka")
    produce(cluster.bootstrap, name, numbered(2, first=15))
    run("klamm")
    assert offsets == list(range(4, 17))


@pytest.mark.usefixtures("java_connector")
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"minPartitions": "13"}, marks=pytest.mark.long),
        pytest.param(
            {"startingTimestamp": "1600000010000", "endingTimestamp": "1600000020000"}, marks=pytest.mark.long
        ),
    ],
)
def test_it_reads_a_batch_from_klamm(
    spark: "SparkSession", everything: tuple[str, str], options: dict[str, str]
) -> None:
    bootstrap, name = everything

    def rows(source: str) -> "DataFrame":
        reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", name)
        return reader.options(includeHeaders="true", **options).load().select(ALL_COLUMNS)

    ours, theirs = rows("klamm").collect(), rows("kafka").collect()
    # 130 records of each partition are of the span of time: timestamps are 77 ms apart.
    assert len(theirs) == (5 * 130 if "endingTimestamp" in options else 5 * 300 + 2)
    assert sorted(ours, key=_place) == sorted(theirs, key=_place)


@pytest.mark.usefixtures("java_connector")
@pytest.mark.parametrize("codec", ["none", *long("gzip", "snappy", "lz4"), "zstd"])
def test_it_writes_a_batch_to_klamm(spark: "SparkSession", cluster: Cluster, topic: MakeTopic, codec: str) -> None:
    name, other = topic(partitions=2), topic()
    headers = "IF(id % 3 = 0, array(struct('h' AS key, CAST('1' AS BINARY) AS value)), NULL) AS headers"
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        f"IF(id % 10 = 9, '{other}', '{name}') AS topic",
        "IF(id % 10 = 9, 0, CAST(id % 2 AS INT)) AS partition",
        "CAST(id AS STRING) AS key",
        "IF(id % 7 = 0, NULL, repeat(CAST(id AS STRING), 20)) AS value",
        headers,
    )
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "kafka.compression.type": codec,
        "includeHeaders": "true",
    }
    frame.write.format("kafka").options(**options).save()
    found = Counter(
        (m.topic(), number, m.key(), m.value(), str(m.headers()))
        for read_back in (read(cluster, name), read(cluster, other))
        for number, messages in read_back.items()
        for m in messages
    )
    assert found == Counter(
        (
            other if number % 10 == 9 else name,
            0 if number % 10 == 9 else number % 2,
            b"%d" % number,
            None if number % 7 == 0 else b"%d" % number * 20,
            str([("h", b"1")] if number % 3 == 0 else None),
        )
        for number in range(5000)
    )


@pytest.mark.usefixtures("java_connector")
def test_it_streams_from_klamm_to_klamm(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """A pattern of topics, a limit for each micro-batch, a restart from the checkpoint, a topic that grows."""
    name, to = topic(partitions=2), topic(partitions=3)

    def run() -> int:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
        options: dict[str, Any] = {
            "subscribePattern": f"{name}|{name}-more",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 40,
        }
        frame = reader.options(**options).load().select("key", "value")
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
        writer = writer.option("topic", to).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return len([progress for progress in query.recentProgress if progress.numInputRows])

    def written() -> list[bytes]:
        return sorted(m.value() for messages in read(cluster, to).values() for m in messages)

    produce(cluster.bootstrap, name, [*numbered(100), *numbered(50, partition=1, first=100)])
    assert run() >= 4
    assert written() == sorted(b"%d" % number for number in range(150))
    produce(cluster.bootstrap, name, numbered(10, partition=1, first=150))
    cluster.create_topic(f"{name}-more", partitions=1)
    produce(cluster.bootstrap, f"{name}-more", numbered(10, first=160))
    run()
    assert written() == sorted(b"%d" % number for number in range(170))


def _place(row: object) -> tuple[int, int]:
    return row.partition, row.offset  # type: ignore[attr-defined]
