"""The first line of every error that a user's program shows is the sentence that matters, and no traceback follows."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType

from klamm.spark.source import KlammDataSource
from klamm.testing.cluster import Cluster
from support.paths import TESTS
from support.spark.producing import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = "127.0.0.1:1"
SECRET = "hunter2"
SOON = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500", "kafka.delivery.timeout.ms": "1000"}


def first_line(run: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        run()
    return checked(str(caught.value))


def checked(text: str) -> str:
    assert SECRET not in text
    assert "Traceback" not in text
    assert 'File "' not in text
    # Spark's own first line of a failed task.
    lines = filter(None, map(str.strip, text.splitlines()))
    return next(line for line in lines if not line.startswith("An exception was thrown"))


@pytest.fixture
def lost(cluster: Cluster, topic: Callable[..., str]) -> str:
    """A topic with 10 records, whose first 5 were deleted."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    # A client that is thrown away before the answer never gets it.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(name, 0, 5)]).values()
    deleted.result()
    return name


def cases(bootstrap: str, lost: str) -> dict[str, tuple[dict[str, str], str]]:
    """The options of a reader, and what the first line of the error has."""
    return {
        "option": (
            {"subscribe": "t", "startingOffset": "earliest"},
            "unknown option startingoffset; did you mean startingOffsets?",
        ),
        "topic": ({"subscribe": "ordres"}, "there is no topic ordres"),
        "brokers": ({"subscribe": "t", "kafka.bootstrap.servers": NOBODY, **SOON}, NOBODY),
        "file": (
            {"subscribe": "t", "kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere.pem"},
            "/nowhere.pem",
        ),
        "registry": (
            {
                "subscribe": "t",
                "value.format": "avro",
                "schema.registry.url": "http://127.0.0.1:1",
                "schema.registry.basic.auth.user.info": f"somebody:{SECRET}",
            },
            "127.0.0.1:1",
        ),
        "planned loss": (
            {"subscribe": lost, "startingOffsets": json.dumps({lost: {"0": 20}})},
            f"partition {lost}-0 ends at 10, but ",
        ),
        "loss": ({"subscribe": lost, "startingOffsets": json.dumps({lost: {"0": 2}})}, f"{lost}-0"),
    }


NAMES = list(cases("", ""))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_of_a_batch(name: str, spark: "SparkSession", cluster: Cluster, lost: str) -> None:
    options, sentence = cases(cluster.bootstrap, lost)[name]
    options = {"kafka.bootstrap.servers": cluster.bootstrap, **options}
    assert sentence in first_line(lambda: spark.read.format("klamm").options(**options).load().collect())


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_of_a_stream(name: str, spark: "SparkSession", cluster: Cluster, lost: str, tmp_path: Path) -> None:
    options, sentence = cases(cluster.bootstrap, lost)[name]
    options = {"kafka.bootstrap.servers": cluster.bootstrap, **options}

    def run() -> None:
        writer = spark.readStream.format("klamm").options(**options).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    assert sentence in first_line(run)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "kafka.bootstrap.servers"),
        (
            {
                "value.format": "avro",
                "schema.registry.url": "http://127.0.0.1:1",
                "schema.registry.max.retries": "0",
            },
            "127.0.0.1:1",
        ),
    ],
)
def test_a_stream_that_cannot_be_read_says_why_whatever_spark_asks_first(
    options: dict[str, str], sentence: str
) -> None:
    if options:
        options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", **options}
    reader: Any = KlammDataSource(options).streamReader(StructType([StructField("value", BinaryType())]))
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
        lambda: reader.commit({}),
        lambda: reader.read(None),
    ]
    for call in calls:
        with pytest.raises(Exception, match=sentence):
            call()
    reader.stop()


@pytest.mark.long
def test_of_a_writer(spark: "SparkSession", cluster: Cluster, topic: Callable[..., str]) -> None:
    def write(frame: Any, **options: object) -> Callable[[], object]:
        writer = frame.write.format("klamm").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
        return lambda: writer.options(**options).save()

    name = topic()
    rows = spark.range(1).selectExpr("'v' AS value", "7 AS partition")
    assert "option kafka.ack" in first_line(write(rows, topic=name, **{"kafka.ack": "all"}))
    assert "the column value is required" in first_line(write(rows.drop("value"), topic=name))
    assert f"topic {name} has 1 partitions" in first_line(write(rows, topic=name))
    nowhere = write(rows, topic=name, **{"kafka.bootstrap.servers": NOBODY}, **SOON)
    assert NOBODY in first_line(nowhere)


@pytest.mark.long
def test_with_spark_connect(spark_connect: str, cluster: Cluster, lost: str) -> None:
    wanted = cases(cluster.bootstrap, lost)
    given = [{"kafka.bootstrap.servers": cluster.bootstrap, **options} for options, _ in wanted.values()]
    program = TESTS / "support" / "spark" / "show_errors.py"
    done = subprocess.run(
        [sys.executable, program, spark_connect, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (_, sentence), text in zip(wanted.values(), json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert sentence in checked(text)


@pytest.mark.long
def test_an_error_that_is_a_fault_keeps_its_traceback(spark: "SparkSession") -> None:
    """And a later query is not changed by what an earlier one has hidden."""
    first_line(lambda: spark.read.format("klamm").option("subscribe", "t").load().collect())

    def fail(batches: Any) -> Any:
        raise ValueError("a fault")

    with pytest.raises(PySparkException, match="Traceback"):
        spark.range(1).mapInArrow(fail, "id long").collect()
