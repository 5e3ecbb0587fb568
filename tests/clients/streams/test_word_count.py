"""Kafka Streams counts words on klamm while brokers are killed: at least once, and without doubles where it counts what
is new.

`WordCount.java` has a repartition topic and two stores, each with a changelog. With `processing.guarantee` at least
once a line may be processed twice when a broker dies, so the plain count is never less than the truth. The count of
distinct words recognizes a repeated line by its place, so it is exact as long as no record is lost or reordered.
A second application without local state must find the same in the changelogs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from klamm.testing import Cluster
from support.streams.word_count import (
    CHANGELOGS,
    INPUT,
    OUTPUT,
    PARTITIONS,
    REPARTITION,
    TIMEOUT_S,
    Application,
    Count,
    Lines,
)


@contextmanager
def running(brokers: int) -> Iterator[Cluster]:
    properties = {
        "min.insync.replicas": min(2, brokers),
        "log.cleaner.backoff.ms": 1_000,
        "offsets.topic.num.partitions": 3,
    }
    with Cluster(brokers, properties=properties) as cluster:
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, PARTITIONS, brokers)
        yield cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(3) as cluster:
        yield cluster


def distinct(counts: dict[str, Count]) -> dict[str, int]:
    return {word: count.distinct for word, count in counts.items()}


def offsets(cluster: Cluster, topic: str, spec: OffsetSpec) -> int:
    """The sum over the topic's partitions."""
    wanted = {TopicPartition(topic, partition): spec for partition in range(PARTITIONS)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return sum(future.result(TIMEOUT_S).offset for future in admin.list_offsets(wanted).values())


def config(cluster: Cluster, topic: str, key: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(TIMEOUT_S)[key].value)


def records(cluster: Cluster, topic: str) -> int:
    """How many records a consumer finds in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found, ends = 0, 0
    while ends < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            found += message.error() is None
            ends += message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return found


@pytest.mark.java
@pytest.mark.parametrize("version", ["2.8", pytest.param("3.9", marks=pytest.mark.long)])
def test_every_word_is_counted_once_while_nothing_fails(version: str, tmp_path: Path, java: None) -> None:
    with running(1) as cluster:
        lines = Lines(cluster.bootstrap)
        lines.write(300)
        application = Application(version, cluster.bootstrap, len(cluster.brokers), tmp_path, "first")
        application.wait_for("@ state RUNNING", TIMEOUT_S)
        once = {word: Count(times, times) for word, times in lines.truth.items()}
        cluster.until(lambda: application.counts() == once, TIMEOUT_S)
        application.close()


@pytest.mark.java
@pytest.mark.long
@pytest.mark.parametrize("version", ["2.8", "3.9"])
def test_words_are_counted_through_the_kill_of_a_broker(
    version: str, cluster: Cluster, tmp_path: Path, java: None
) -> None:
    lines = Lines(cluster.bootstrap)
    application = Application(version, cluster.bootstrap, len(cluster.brokers), tmp_path, "first")
    application.wait_for("@ state RUNNING", TIMEOUT_S)
    lines.write(1_000)
    cluster.until(lambda: distinct(application.counts()), TIMEOUT_S)

    victim = cluster.leader(REPARTITION, 0)
    assert victim is not None
    cluster.kill(victim)
    lines.write(1_000)
    cluster.start(victim)
    lines.write(1_000)
    cluster.until(lambda: distinct(application.counts()) == lines.truth, TIMEOUT_S)
    counts = application.counts()
    assert distinct(counts) == lines.truth
    assert all(counts[word].arrived >= times for word, times in lines.truth.items())

    # What has been processed is deleted: DeleteRecords of the application itself.
    words = sum(lines.truth.values())
    assert offsets(cluster, REPARTITION, OffsetSpec.latest()) >= words
    cluster.until(lambda: offsets(cluster, REPARTITION, OffsetSpec.earliest()) >= words, TIMEOUT_S)
    # The updates of a word that are older than its last ones are gone from the changelogs.
    assert {config(cluster, topic, "cleanup.policy") for topic in CHANGELOGS} == {"compact"}
    assert all(offsets(cluster, topic, OffsetSpec.latest()) >= words for topic in CHANGELOGS)
    cluster.until(lambda: all(records(cluster, topic) < words for topic in CHANGELOGS), TIMEOUT_S)

    application.close()
    restored = Application(version, cluster.bootstrap, len(cluster.brokers), tmp_path, "second")
    restored.wait_for("@ state RUNNING", TIMEOUT_S)
    cluster.until(lambda: restored.counts() == counts, TIMEOUT_S)
    restored.close()
