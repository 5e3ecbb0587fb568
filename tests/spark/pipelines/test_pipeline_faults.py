"""Pipelines on Spark whose driver, workers, executors and brokers are killed, and which are run again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.processes.helper import Helper
from klamm.spark.files import files_at
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.commit_log import CommitLog
from klamm.spark.pipelines.offset_runs import offset_map
from klamm.testing.cluster import Cluster
from support.paths import TESTS
from support.present import present
from support.spark.archiving import archived, in_topic, one_process
from support.spark.faults import TIMEOUT_S, Gate, StoppingSession, revive, stop_before, take_leaders_away, three_brokers
from support.spark.producing import numbered, produce
from support.spark.reading import read
from support.spark.run_pipelines import Place, run_archive, run_replay, run_transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = TESTS / "support" / "spark" / "run_pipelines.py"
MakeTopic = Callable[..., str]

READING = "klamm.spark.read.decoding.Decoder.scan"
BETWEEN_FILE_AND_COMMIT = "klamm.spark.pipelines.commit_log.CommitLog.commit"
# After the first two megabytes of a file were handed to the producer.
WRITING = "klamm.spark.write.writing.RecordWriter._append"
GROUPS = "klamm.spark.pipelines.snapshots._group_offsets"
BEFORE_OFFSETS_FILE = "klamm.spark.pipelines.replay._write_offsets"

PRODUCTS = ("tea", "milk", "salt")


def sale(number: int) -> dict[str, Any]:
    """Fifteen in each minute. Amounts are halves, whose sum is the same in any order."""
    minute, second = divmod(number, 15)
    value = {"product": PRODUCTS[number % 3], "amount": number / 2, "time": f"2024-05-01T10:{minute:02}:{second:02}Z"}
    return {"value": json.dumps(value).encode(), "partition": number % 2}


def expected_totals() -> dict[str, dict[str, Any]]:
    found = {}
    for minute in range(4):
        for product, name in enumerate(PRODUCTS):
            amounts = [number / 2 for number in range(15 * minute, 15 * minute + 15) if number % 3 == product]
            begin = f"2024-05-01T10:{minute:02}:00"
            total = {"product": name, "begin": f"{begin}.000Z", "total": sum(amounts), "sales": len(amounts)}
            found[f"{name}@{begin}Z"] = total
    return found


def prepare(cluster: Cluster, directory: Path, create: Callable[..., str], sales_per_trigger: int = 20) -> Place:
    source, recorded, replayed, sales, totals = (create(partitions=2) for _ in range(5))
    both = [record for number in (0, 1) for record in numbered(300, number)]
    produce(cluster.bootstrap, source, both, **{"batch.num.messages": 20})
    large = [{**record, "value": record["value"] * 900} for number in (0, 1) for record in numbered(2000, number)]
    produce(cluster.bootstrap, recorded, large)
    produce(cluster.bootstrap, sales, map(sale, range(60)))
    finished = str(directory / "finished")
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": recorded}
    archive(one_process(), finished, options, offsets_per_file=1000)
    return Place(
        cluster.bootstrap, str(directory), finished, source, recorded, replayed, sales, totals, sales_per_trigger
    )


def totals(cluster: Cluster, place: Place) -> dict[str, list[dict[str, Any]]]:
    """What was written for each key."""
    found: dict[str, list[dict[str, Any]]] = {}
    for messages in read(cluster, place.totals).values():
        for message in messages:
            found.setdefault(message.key().decode(), []).append(json.loads(message.value()))
    return found


def check(cluster: Cluster, place: Place) -> None:
    """Everything is where it belongs: in the archive and the replayed topic once, each total at least once."""
    assert archived(place.archive, place.source) == in_topic(cluster, place.source)
    assert in_topic(cluster, place.replayed) == in_topic(cluster, place.recorded)
    assert sum(offset_map(place.output)["count"].to_pylist()) == 4000
    found = totals(cluster, place)
    assert {key: values[0] for key, values in found.items()} == expected_totals()
    assert all(value == values[0] for values in found.values() for value in values)


def close_all_minutes(cluster: Cluster, place: Place) -> None:
    """By sales that are younger."""
    produce(cluster.bootstrap, place.sales, map(sale, (600, 601)))


class Gates:
    """A gate for each pipeline."""

    def __init__(self) -> None:
        self.archive, self.replay, self.transform = Gate(), Gate(), Gate()

    def __iter__(self) -> Iterator[Gate]:
        return iter((self.archive, self.replay, self.transform))

    def __enter__(self) -> "Gates":
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self:
            gate.open()


def launch(place: Place, stops: dict[str, Any], log: Path, **how: Any) -> "subprocess.Popen[bytes]":
    """Runs all pipelines in a process of its own, which leads a group of processes."""
    given = json.dumps({"place": place.to_json(), "stops": stops, **how})
    with log.open("wb") as output:
        command = [sys.executable, str(PROGRAM), given]
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def committed(place: Place) -> list[str]:
    """The micro-batches of which the checkpoint knows that they are finished."""
    return sorted(path.name for path in Path(place.checkpoint, "commits").glob("[0-9]*"))


# It starts Spark three times, on a machine that may have other work.
@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_a_driver_killed_twice_in_every_pipeline(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """With its JVM. What it has begun is finished by the next."""
    place = prepare(cluster, tmp_path, topic)
    with Gates() as gates:
        stops = {
            "archive": {"target": READING, "address": gates.archive.address, "call": 2},
            "replay": {"target": WRITING, "address": gates.replay.address, "call": 2},
            "transform": {"written": gates.transform.address},
        }
        kill_at(gates, place, stops, tmp_path / "first.log")
        assert archived(place.archive, place.source) == []
        assert 0 < len(in_topic(cluster, place.replayed)) < 4000
        assert len(offset_map(place.output)) == 0
        assert 0 < len(totals(cluster, place)) <= len(PRODUCTS)
        assert committed(place) == ["0", "1"]
    with Gates() as gates:
        stops = {
            "archive": {
                "target": BETWEEN_FILE_AND_COMMIT,
                "address": gates.archive.address,
                "call": 2,
                "driver": True,
            },
            "replay": {"target": BEFORE_OFFSETS_FILE, "address": gates.replay.address, "call": 2},
            "transform": {"writing": (gates.transform.address, 0), "batch": 3},
        }
        kill_at(gates, place, stops, tmp_path / "second.log")
        rows = archived(place.archive, place.source)
        assert 0 < len(rows) < 600
        assert len(rows) == len({row[:2] for row in rows})
        assert 0 < sum(offset_map(place.output)["count"].to_pylist()) < 4000
        # The micro-batch that was killed before it was committed was repeated.
        assert any(len(values) > 1 for values in totals(cluster, place).values())
        assert committed(place) == ["0", "1", "2"]
    close_all_minutes(cluster, place)
    run_archive(spark, place)
    run_replay(spark, place)
    run_transform(spark, place)
    check(cluster, place)


def is_running(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Shows why, if it has failed."""
    assert not process.poll(), log.read_text()[-6000:]
    return process.returncode is None


def kill_at(gates: Gates, place: Place, stops: dict[str, Any], log: Path) -> None:
    """kill -9 of the driver and its JVM when every pipeline has come to its gate; their workers end by themselves."""
    process = launch(place, stops, log, master="local[8]", together=True)
    stopped = [gate.arrival(lambda: is_running(process, log)) for gate in gates]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for each in stopped:
        each.wait_gone()


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_workers_and_executors_killed_in_every_pipeline(
    java: None, cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """Spark repeats their tasks."""
    place = prepare(cluster, tmp_path, topic, sales_per_trigger=100)
    close_all_minutes(cluster, place)
    with Gates() as gates:
        stops = {
            "archive": {"target": READING, "address": gates.archive.address, "call": 2},
            "replay": {"target": WRITING, "address": gates.replay.address, "call": 2},
            "transform": {"written": gates.transform.address},
        }
        log = tmp_path / "log"
        process = launch(place, stops, log, master="local-cluster[2,1,1024]", together=False)
        for gate in gates:
            gate.arrival(lambda: is_running(process, log)).kill()
            gate.arrival(lambda: is_running(process, log)).kill_executor()
            gate.open()
        process.wait(TIMEOUT_S)
        assert not is_running(process, log)
    # The task whose worker was killed had written what its successor wrote again.
    assert any(len(values) > 1 for values in totals(cluster, place).values())
    check(cluster, place)


@pytest.mark.long
def test_brokers_killed_in_archive_and_replay(spark: "SparkSession", klamm_helper: Helper, tmp_path: Path) -> None:
    """One while the archive takes its snapshot, leaders while files are made and while they are replayed."""
    with three_brokers(klamm_helper) as brokers, ThreadPoolExecutor(1) as background:
        numbers = iter(range(5))

        def create(partitions: int) -> str:
            name = f"topic-{next(numbers)}"
            brokers.create_topic(name, partitions=partitions)
            return name

        place = prepare(brokers, tmp_path, create)
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "group"})
        consumer.commit(offsets=[TopicPartition(place.source, 0, 23)], asynchronous=False)
        consumer.close()

        with Gate() as snapshot, Gate() as reading:
            session = StoppingSession(spark, READING, reading.address, 2)
            with stop_before(GROUPS, snapshot.address):
                done = background.submit(run_archive, session, place)
                snapshot.arrival(lambda: not done.done())
                killed = take_leaders_away(brokers, place.source)
                snapshot.open()
                reading.arrival(lambda: not done.done())
            revive(brokers, killed)
            killed = take_leaders_away(brokers, place.source)
            reading.open()
            done.result()
        assert archived(place.archive, place.source) == in_topic(brokers, place.source)
        assert present(CommitLog(files_at(place.archive)).snapshot).groups == {"group": {place.source: {0: 23}}}
        revive(brokers, killed)

        with Gate() as writing:
            done = background.submit(run_replay, StoppingSession(spark, WRITING, writing.address, 2), place)
            writing.arrival(lambda: not done.done())
            killed = take_leaders_away(brokers, place.replayed)
            writing.open()
            done.result()
        assert in_topic(brokers, place.replayed) == in_topic(brokers, place.recorded)
