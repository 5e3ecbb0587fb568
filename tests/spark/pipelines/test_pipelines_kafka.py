"""Pipelines on Apache Kafka 2.8.2: to files and back by functions, the example through its command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.replay import replay
from support.oracles import RealKafka
from support.spark.archiving import archived, in_topic
from support.spark.kafka_broker import running_kafka
from support.spark.producing import numbered, produce, sale
from support.spark.reading import read


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker of Apache Kafka 2.8.2."""
    with running_kafka(kafka_jars, tmp_path_factory.mktemp("kafka-of-pipelines"), {}) as broker:
        yield broker


def create(kafka: RealKafka, *topics: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2, 1, config=configs) for topic in topics]).values():
        future.result()


def test_archive_and_replay(spark: Any, kafka: RealKafka, tmp_path: Path) -> None:
    """The replayed topic does not exist before; a group goes on in it where it was."""
    create(kafka, "orders", **{"retention.ms": "-1", "segment.bytes": "100000"})
    records: list[dict[str, Any]] = [
        {"value": None, "key": b"", "partition": 0, "timestamp": 1},
        {"value": b"", "key": None, "partition": 0, "timestamp": 1, "headers": [("h", None), ("h", b"\x00")]},
        *numbered(3000, partition=1),
    ]
    produce(kafka.bootstrap, "orders", records, **{"compression.type": "zstd"})
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "clerks"})
    consumer.commit(offsets=[TopicPartition("orders", 1, 1234)], asynchronous=False)
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    done = archive(spark, str(tmp_path / "archive"), {**options, "subscribe": "orders"}, offsets_per_file=1000)
    assert done.records == len(records)
    expected = in_topic(kafka, "orders")
    assert archived(str(tmp_path / "archive"), "orders") == expected
    replayed = replay(
        spark,
        str(tmp_path / "archive"),
        str(tmp_path / "output"),
        options,
        topics={"orders": "again"},
        commit_groups=True,
    )
    assert (replayed.groups, replayed.refused) == ({"clerks": {"again": {1: 1234}}}, {})
    assert in_topic(kafka, "again") == expected
    (committed,) = consumer.committed([TopicPartition("again", 1)], timeout=120)
    consumer.close()
    assert committed.offset == 1234


def test_transform_as_a_command(spark_connect: str, kafka: RealKafka, tmp_path: Path) -> None:
    create(kafka, "sales", "totals")
    sales = [sale("tea", 2.5, "10:00:07"), sale("tea", 1.5, "10:00:59"), sale("tea", 1, "10:30:00")]
    produce(kafka.bootstrap, "sales", [{**each, "partition": 0} for each in sales])
    command = ["pipeline", "transform", "--bootstrap-server", kafka.bootstrap, "--source", "sales"]
    command += ["--target", "totals", "--checkpoint", str(tmp_path), "--remote", spark_connect, "--json"]
    command += ["--option", "kafka.fetch.max.wait.ms=100"]
    done = subprocess.run(
        [sys.executable, "-m", "klamm.cli.main", *command], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"records": 3}
    totals = [m for messages in read(kafka, "totals").values() for m in messages]
    assert [(m.key(), json.loads(m.value())) for m in totals] == [
        (
            b"tea@2024-05-01T10:00:00Z",
            {"product": "tea", "begin": "2024-05-01T10:00:00.000Z", "total": 4.0, "sales": 2},
        )
    ]
