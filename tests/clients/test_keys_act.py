"""Configuration keys of topics and brokers, and what librdkafka or the disk of a broker process shows of each.

Each key of a topic is set on one topic and not on another one; both are written to alike, and differ in what is seen.
Throttles, unclean elections and compaction need more brokers or more time, and have tests of their own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.processes.helper import Helper
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header
from klamm.storage.segments.checkpoints import parse_offset_checkpoint
from klamm.testing import Cluster

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
SMALL_SEGMENTS = {"segment.bytes": "1000"}
SEGMENT_BYTES = 1 << 20

# Checks often, so that nothing here has to be waited for.
PROPERTIES = {
    "log.segment.bytes": SEGMENT_BYTES,
    "log.retention.check.interval.ms": 100,
    "log.flush.scheduler.interval.ms": 100,
    "log.flush.interval.ms": 24 * HOUR_MS,  # Otherwise it is that of the scheduler.
    "log.flush.offset.checkpoint.interval.ms": 100,
    "num.partitions": 3,
    "offset.metadata.max.bytes": 10,
    "group.max.size": 1,
    "group.min.session.timeout.ms": 10_000,
    "group.max.session.timeout.ms": 20_000,
    "group.initial.rebalance.delay.ms": 0,
    "message.max.bytes": 5_000,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 2_000,
    "offsets.topic.replication.factor": 1,
}


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(1, properties=PROPERTIES, helper=klamm_helper) as cluster:
        yield cluster


@dataclass
class Written:
    """A topic with one partition, after some records."""

    cluster: Cluster
    name: str
    errors: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.cluster.data_directory(0) / f"{self.name}-0"

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob(f"*{suffix}"))

    def write(self, records: Sequence[tuple[bytes, int]]) -> None:
        """(value, timestamp), each in a batch of its own; `errors` gets the names of the errors."""
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "acks": "all",
                "retries": 0,
                "linger.ms": 0,
                "message.timeout.ms": 5000,
            }
        )

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                self.errors.append(error.name())

        for value, timestamp_ms in records:
            producer.produce(self.name, value, timestamp=timestamp_ms, on_delivery=delivered)
            assert producer.flush(120) == 0

    # -- what is seen

    def error(self) -> str | None:
        return self.errors[0] if self.errors else None

    def codec(self) -> str:
        return CompressionType(parse_header(self.files(".log")[0].read_bytes()).codec).name

    def segments(self) -> int:
        return len(self.files(".log"))

    def has_index_entries(self) -> bool:
        return any(file.stat().st_size for file in self.files(".index"))

    def is_flushed(self) -> bool:
        content = (self.cluster.data_directory(0) / "recovery-point-offset-checkpoint").read_bytes()
        return parse_offset_checkpoint(content, "").get((self.name, 0), 0) > 0

    def file_bytes(self) -> int:
        return self.files(".log")[-1].stat().st_size

    def timestamp_type(self) -> int:
        consumer = self._consumer()
        consumer.assign([TopicPartition(self.name, 0, 0)])
        [message] = consumer.consume(1, 20)
        consumer.close()
        return message.timestamp()[0]

    def has_lost_its_start(self) -> bool:
        consumer = self._consumer()
        low, _ = consumer.get_watermark_offsets(TopicPartition(self.name, 0), 20)
        consumer.close()
        return low > 0

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "none"})


FEW = [(b"value" * 20, NOW_MS)] * 3
MANY = [(b"v" * 300, NOW_MS - HOUR_MS + number) for number in range(8)]


@dataclass(frozen=True)
class Case:
    """`given` are the configs of both topics; `expected` is seen with the key, `usual` without."""

    key: str
    value: str
    written: Sequence[tuple[bytes, int]]
    seen: Callable[[Written], object]
    expected: object
    usual: object
    given: dict[str, str] = field(default_factory=dict)


CASES = [
    Case("cleanup.policy", "compact", FEW, Written.error, "INVALID_RECORD", None),
    Case("compression.type", "zstd", FEW, Written.codec, "ZSTD", "NONE"),
    Case(
        "file.delete.delay.ms",
        "0",
        MANY,
        lambda topic: (topic.has_lost_its_start(), bool(topic.files(".deleted"))),
        (True, False),
        (True, True),
        SMALL_SEGMENTS | {"retention.bytes": "1"},
    ),
    Case("flush.messages", "1", FEW, Written.is_flushed, True, False),
    Case("flush.ms", "1", FEW, Written.is_flushed, True, False),
    Case("index.interval.bytes", "0", FEW, Written.has_index_entries, True, False),
    Case("max.message.bytes", "150", FEW, Written.error, "MSG_SIZE_TOO_LARGE", None),
    Case(
        "message.timestamp.difference.max.ms",
        "60000",
        [(b"value", NOW_MS - HOUR_MS)],
        Written.error,
        "INVALID_TIMESTAMP",
        None,
    ),
    Case("message.timestamp.type", "LogAppendTime", FEW, Written.timestamp_type, 2, 1),
    Case("min.insync.replicas", "2", FEW[:1], Written.error, "NOT_ENOUGH_REPLICAS", None),
    Case("preallocate", "true", FEW, lambda topic: topic.file_bytes() == SEGMENT_BYTES, True, False),
    Case("retention.bytes", "1", MANY, Written.has_lost_its_start, True, False, SMALL_SEGMENTS),
    Case("retention.ms", "60000", MANY, Written.has_lost_its_start, True, False, SMALL_SEGMENTS),
    Case("segment.bytes", "1000", MANY, lambda topic: topic.segments() > 1, True, False),
    Case(
        "segment.index.bytes",
        "12",
        MANY,
        lambda topic: topic.segments() > 1,
        True,
        False,
        {"index.interval.bytes": "0"},
    ),
    Case("segment.ms", "1", MANY, lambda topic: topic.segments() > 1, True, False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_a_topics_key_makes_a_difference(cluster: Cluster, case: Case) -> None:
    with_key, without = (Written(cluster, f"{name}-{case.key}") for name in ("with", "without"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    created = admin.create_topics(
        [
            NewTopic(with_key.name, 1, 1, config=case.given | {case.key: case.value}),
            NewTopic(without.name, 1, 1, config=case.given),
        ]
    )
    for future in created.values():
        future.result(120)
    for topic in (without, with_key):
        topic.write(case.written)
    cluster.until(lambda: case.seen(with_key) == case.expected)
    if case.seen(without) != case.usual:
        cluster.until(lambda: case.seen(without) == case.usual)


# -- brokers ----------------------------------------------------------------------------------------------------------


def consumer(cluster: Cluster, **config: object) -> Consumer:
    return Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"} | config)


def test_num_partitions_and_message_max_bytes(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("counted", -1, -1)])["counted"].result(120)
    cluster.until(lambda: len(admin.list_topics("counted", timeout=120).topics["counted"].partitions) == 3)
    topic = Written(cluster, "counted")
    topic.write([(b"v" * 4_000, NOW_MS)])
    assert topic.error() is None
    topic.write([(b"v" * 6_000, NOW_MS)])
    assert topic.error() == "MSG_SIZE_TOO_LARGE"


def committed(cluster: Cluster, metadata: str) -> str | None:
    """The name of the error of a commit."""
    member = consumer(cluster)
    try:
        member.commit(offsets=[TopicPartition("committed", 0, 1, metadata)], asynchronous=False)
    except KafkaException as error:
        return error.args[0].name()
    finally:
        member.close()
    return None


def test_the_keys_of_offsets(cluster: Cluster) -> None:
    cluster.create_topic("committed")
    assert committed(cluster, "m" * 5) is None
    assert committed(cluster, "m" * 15) == "OFFSET_METADATA_TOO_LARGE"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    offsets_topic = admin.list_topics("__consumer_offsets", timeout=120).topics["__consumer_offsets"]
    assert len(offsets_topic.partitions) == 2
    for _ in range(30):
        assert committed(cluster, "m" * 5) is None
    segments = [len(list(path.glob("*.log"))) for path in cluster.data_directory(0).glob("__consumer_offsets-*")]
    assert max(segments) > 1


def refusal(cluster: Cluster, **config: object) -> str | None:
    """The error that a member gets as it joins."""
    member = consumer(cluster, **config)
    member.subscribe(["committed"])
    try:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            message = member.poll(0.2)
            if message is not None and message.error() is not None:
                return message.error().name()
            if member.assignment():
                return None
        return "nothing"
    finally:
        member.close()


def test_the_keys_of_groups(cluster: Cluster) -> None:
    assert refusal(cluster, **{"session.timeout.ms": 9_000}) == "INVALID_SESSION_TIMEOUT"
    assert refusal(cluster, **{"session.timeout.ms": 21_000}) == "INVALID_SESSION_TIMEOUT"
    assert refusal(cluster, **{"session.timeout.ms": 10_000}) is None
    first = consumer(cluster, **{"session.timeout.ms": 10_000})
    first.subscribe(["committed"])
    cluster.until(lambda: first.poll(0.1) is None and first.assignment())
    assert refusal(cluster, **{"session.timeout.ms": 10_000}) == "GROUP_MAX_SIZE_REACHED"
    first.close()
