"""Streams and batches with `kafka.transactional.id` in Spark itself; `write/test_transactions.py` has every step."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.testing.cluster import Cluster
from support.oracles import RealKafka
from support.paths import TESTS
from support.spark.dying_transactional_stream import BATCHES, DRIVERS, KEYS, TASKS
from support.spark.kafka_broker import WITH_TRANSACTIONS, running_with_transactions
from support.spark.standalone import standalone_cluster
from support.spark.transactional_writes import committed_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = TESTS / "support" / "spark" / "dying_transactional_stream.py"


@pytest.fixture(scope="module", params=WITH_TRANSACTIONS)
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka | Cluster]:
    with running_with_transactions(request, tmp_path_factory.mktemp("exactly-once")) as running:
        yield running


def create(brokers: RealKafka | Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result()


def test_a_stream_and_a_batch(spark: "SparkSession", brokers: RealKafka | Cluster, tmp_path: Path) -> None:
    create(brokers, "plain")
    for number in range(3):
        spark.range(number * 100, number * 100 + 100, 1, 2).write.mode("append").parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    options = {
        "kafka.bootstrap.servers": brokers.bootstrap,
        "topic": "plain",
        "kafka.transactional.id": "plain",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    writer = frame.selectExpr("cast(id as string) as value").writeStream.format("klamm").options(**options)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert len(query.recentProgress) == 3
    assert committed_values(brokers.bootstrap, "plain") == sorted(map(str, range(300)))

    options["checkpointLocation"] = str(tmp_path / "batch")
    for _ in range(2):
        rows = spark.range(300, 310, 1, 2).selectExpr("cast(id as string) as value")
        rows.write.format("klamm").mode("append").options(**options).save()
    assert committed_values(brokers.bootstrap, "plain") == sorted(map(str, range(310)))


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_a_stream_whose_workers_executors_and_drivers_are_killed_and_whose_tasks_run_twice(
    brokers: RealKafka | Cluster, tmp_path: Path
) -> None:
    """The query counts: each micro-batch writes for every key how often it came so far.

    The transactions have the default time-out. A short one may be over before a busy machine has started a driver
    again; then the rows are missing, and no further start continues.
    """
    create(brokers, "killed")
    (tmp_path / "in").mkdir()
    (tmp_path / "faults").mkdir()
    for number in range(BATCHES):
        pq.write_table(pa.table({"id": list(range(KEYS))}), tmp_path / "in" / f"{number}.parquet")
    with standalone_cluster(tmp_path) as url:
        codes = [run(tmp_path, url, brokers.bootstrap, "killed") for _ in DRIVERS]
        assert 0 not in codes
        assert run(tmp_path, url, brokers.bootstrap, "killed") == 0, (tmp_path / "program.log").read_text()[-6000:]
    happened = {path.name for path in (tmp_path / "faults").iterdir()}
    assert happened == {*TASKS.values(), *(f"driver-{step}" for step in DRIVERS.values())}
    end_what_is_open(brokers.bootstrap, "killed")
    wanted = [f"{key}={batch + 1}" for batch in range(BATCHES) for key in range(KEYS)]
    assert committed_values(brokers.bootstrap, "killed") == sorted(wanted)


def run(directory: Path, master: str, bootstrap: str, topic: str) -> int:
    """Runs the program. Returns its exit code, when nothing of its session is left."""
    with (directory / "program.log").open("a") as log:
        program = subprocess.Popen(
            [sys.executable, PROGRAM, master, bootstrap, topic, directory],
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=directory,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        )
    try:
        return program.wait(200)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def end_what_is_open(bootstrap: str, topic: str) -> None:
    """Spares the test the time-out of attempts that the last driver did not know of. No row becomes visible by it."""
    for task in range(2):
        for attempt in range(4):
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{task}-{attempt}"})
            producer.init_transactions(120)
