"""Kafka Streams counts words on klamm while brokers are killed: at least once, and without doubles where it counts what
is new.

`WordCount.java` has a repartition topic and two stores, each with a changelog. With `processing.guarantee` at least
once a line may be processed twice when a broker dies, so the plain count is never less than the truth. The count of
distinct words recognizes a repeated line by its place, so it is exact as long as no record is lost or reordered.
A second application without local state must find the same in the changelogs.
"""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from klamm.testing import Cluster
from support import oracles
from support.processes import ManagedProcess

APPLICATION = Path(__file__).with_name("WordCount.java")
INPUT, OUTPUT = "lines", "counts"
NAME = "words"
REPARTITION, CHANGELOGS = f"{NAME}-words-repartition", (f"{NAME}-counts-changelog", f"{NAME}-distinct-changelog")
PARTITIONS = 3
WORDS = tuple(f"w{number}" for number in range(40))
TIMEOUT_S = 60
OPTIONS = {
    "processing.guarantee": "at_least_once",
    "commit.interval.ms": 200,
    # Every update goes to the changelog at once.
    "statestore.cache.max.bytes": 0,
    "cache.max.bytes.buffering": 0,
    "repartition.purge.interval.ms": 200,
    "producer.enable.idempotence": "true",
    "producer.acks": "all",
    "consumer.auto.offset.reset": "earliest",
    "consumer.session.timeout.ms": 10_000,
    "consumer.heartbeat.interval.ms": 500,
    "topic.segment.ms": 2_000,
    "topic.min.cleanable.dirty.ratio": "0.05",
}


@dataclass(frozen=True)
class Count:
    """How often a word has arrived, and how often in a place that was new."""

    arrived: int
    distinct: int


class Application(ManagedProcess):
    """One instance of the application."""

    def __init__(self, version: str, cluster: Cluster, directory: Path, state: str) -> None:
        settings = {
            "application.id": NAME,
            "bootstrap.servers": cluster.bootstrap,
            "state.dir": directory / state,
            "replication.factor": len(cluster.brokers),
        }
        command = oracles.java_command(
            oracles.kafka_streams_jars(version),
            str(APPLICATION),
            INPUT,
            OUTPUT,
            *(f"{key}={value}" for key, value in (settings | OPTIONS).items()),
        )
        self._changed_counts = threading.Condition()
        self._counting: dict[str, Count] = {}
        self._counts: dict[str, Count] | None = None
        super().__init__("streams", command, directory / f"{state}.log", stdin=subprocess.PIPE)

    def _take(self, line: str) -> None:
        super()._take(line)
        match line.split():
            case ["@", "word", word, arrived, distinct]:
                self._counting[word] = Count(int(arrived), int(distinct))
            case ["@", "dumped"]:
                with self._changed_counts:
                    self._counts, self._counting = self._counting, {}
                    self._changed_counts.notify_all()

    def counts(self) -> dict[str, Count]:
        """What the stores hold now; nothing while the application rebalances."""
        assert self.popen.stdin is not None
        with self._changed_counts:
            self._counts = None
            self.popen.stdin.write("dump\n")
            self.popen.stdin.flush()
            assert self._changed_counts.wait_for(lambda: self._counts is not None, TIMEOUT_S), self.tail()
        assert self._counts is not None
        return self._counts

    def close(self) -> None:
        """Closes the application in order."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.wait(TIMEOUT_S) == 0, self.tail()


class Lines:
    """Writes numbered lines, and knows how often each word is in them."""

    def __init__(self, cluster: Cluster) -> None:
        self.truth: Counter[str] = Counter()
        self._written = [0] * PARTITIONS
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})

    def write(self, lines: int) -> None:
        errors: list[object] = []
        for _ in range(lines):
            number = sum(self._written)
            partition = number % PARTITIONS
            words = [WORDS[number * factor % len(WORDS)] for factor in (1, 3, 7)]
            line = f"{partition}:{self._written[partition]} {' '.join(words)}"
            self._producer.produce(
                INPUT, line, partition=partition, on_delivery=lambda error, _: error is None or errors.append(error)
            )
            self._written[partition] += 1
            self.truth.update(words)
        assert self._producer.flush(TIMEOUT_S) == 0
        assert errors == []


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
        lines = Lines(cluster)
        lines.write(300)
        application = Application(version, cluster, tmp_path, "first")
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
    lines = Lines(cluster)
    application = Application(version, cluster, tmp_path, "first")
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
    restored = Application(version, cluster, tmp_path, "second")
    restored.wait_for("@ state RUNNING", TIMEOUT_S)
    cluster.until(lambda: restored.counts() == counts, TIMEOUT_S)
    restored.close()
