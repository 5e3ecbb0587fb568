"""Counts of the reads and writes of topics by clients and followers, under Kafka's names (BrokerTopicMetrics).

A partition holds the counts of its topic, so that a request only adds to plain numbers. All other work is done when a
metric is read.

What must stay true:
- A topic has counts only while this broker hosts one of its partitions: clients cannot make the broker remember names.
- The numbers of the whole broker never decrease: when a topic's last partition leaves, its counts move to `others`.
  Batches for topics that are not hosted count only in `others`. Batches for topics that do not exist are not counted.

Source: kafka.server.BrokerTopicStats.
"""

from collections.abc import Iterator
from enum import Enum
from functools import partial
from operator import attrgetter

from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import CHEAP_SLICE, Slices
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.storage.log.log_validator import OffsetsRefused, RecordsRefused


class _Of(Enum):
    """Which topics have a number of their own, besides the broker as a whole."""

    USED_TOPICS = "topics that clients have written to or read from"
    TOPICS_WITH_ANY = "topics whose number is not 0"
    BROKER_ONLY = "nothing"


# The attribute of `TopicCounts`, Kafka's name, the topics to show, and what the metric counts.
_COUNTS = (
    ("messages_in", "MessagesInPerSec", _Of.USED_TOPICS, "Records that producers have appended."),
    ("bytes_in", "BytesInPerSec", _Of.USED_TOPICS, "Bytes of the batches that producers have appended."),
    ("bytes_out", "BytesOutPerSec", _Of.USED_TOPICS, "Bytes of the batches sent to consumers."),
    ("produce_requests", "TotalProduceRequestsPerSec", _Of.USED_TOPICS, "Batches that producers have sent."),
    ("fetch_requests", "TotalFetchRequestsPerSec", _Of.USED_TOPICS, "Fetches, counted for each partition."),
    ("bytes_rejected", "BytesRejectedPerSec", _Of.TOPICS_WITH_ANY, "Bytes of batches that are too large."),
    ("failed_produce_requests", "FailedProduceRequestsPerSec", _Of.TOPICS_WITH_ANY, "Batches that were refused."),
    ("failed_fetch_requests", "FailedFetchRequestsPerSec", _Of.TOPICS_WITH_ANY, "Partitions that could not be read."),
    (
        "produce_conversions",
        "ProduceMessageConversionsPerSec",
        _Of.TOPICS_WITH_ANY,
        "Records that were compressed anew because of compression.type.",
    ),
    ("replication_bytes_in", "ReplicationBytesInPerSec", _Of.BROKER_ONLY, "Bytes fetched from leaders."),
    ("replication_bytes_out", "ReplicationBytesOutPerSec", _Of.BROKER_ONLY, "Bytes sent to followers."),
    (
        "reassignment_bytes_in",
        "ReassignmentBytesInPerSec",
        _Of.BROKER_ONLY,
        "Bytes fetched from leaders by replicas that a reassignment adds.",
    ),
    (
        "reassignment_bytes_out",
        "ReassignmentBytesOutPerSec",
        _Of.BROKER_ONLY,
        "Bytes sent to followers that a reassignment adds.",
    ),
    (
        "invalid_magic_records",
        "InvalidMagicNumberRecordsPerSec",
        _Of.BROKER_ONLY,
        "Batches refused because of their magic number.",
    ),
    (
        "invalid_crc_records",
        "InvalidMessageCrcRecordsPerSec",
        _Of.BROKER_ONLY,
        "Batches refused because of their checksum or lengths.",
    ),
    (
        "invalid_offset_records",
        "InvalidOffsetOrSequenceRecordsPerSec",
        _Of.BROKER_ONLY,
        "Batches refused because of their offsets, number of records or sequence number.",
    ),
    (
        "keyless_records",
        "NoKeyCompactedTopicRecordsPerSec",
        _Of.BROKER_ONLY,
        "Records without a key that compacted topics refused.",
    ),
)
_ATTRIBUTES = tuple(attribute for attribute, *_ in _COUNTS)
# Kafka does not count these errors as failures: clients and operators cause them.
_EXPECTED_OF_PRODUCES = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_EXPECTED_OF_FETCHES = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE,
)


class TopicCounts:
    """The counts of one topic. `partitions` is how many of its partitions this broker hosts."""

    __slots__ = ("partitions", *_ATTRIBUTES)

    messages_in: int
    bytes_in: int
    bytes_out: int
    produce_requests: int
    fetch_requests: int
    bytes_rejected: int
    failed_produce_requests: int
    failed_fetch_requests: int
    produce_conversions: int
    replication_bytes_in: int
    replication_bytes_out: int
    reassignment_bytes_in: int
    reassignment_bytes_out: int
    invalid_magic_records: int
    invalid_crc_records: int
    invalid_offset_records: int
    keyless_records: int

    def __init__(self) -> None:
        self.partitions = 0
        for attribute in _ATTRIBUTES:
            setattr(self, attribute, 0)

    @property
    def is_used(self) -> bool:
        return self.produce_requests > 0 or self.fetch_requests > 0

    def add(self, other: "TopicCounts") -> None:
        for attribute in _ATTRIBUTES:
            setattr(self, attribute, getattr(self, attribute) + getattr(other, attribute))

    def refused(self, size_bytes: int, error: KafkaError) -> None:
        """A batch of this size was not appended."""
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return  # Kafka looks for the partition in its metadata before it counts.
        self.produce_requests += 1
        if error.code not in _EXPECTED_OF_PRODUCES:
            self.failed_produce_requests += 1
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            self.bytes_rejected += size_bytes
        elif error.code is ErrorCode.CORRUPT_MESSAGE:
            self.invalid_crc_records += 1
        elif error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            self.invalid_magic_records += 1
        elif isinstance(error, OffsetsRefused):
            self.invalid_offset_records += 1
        elif isinstance(error, RecordsRefused):
            self.keyless_records += error.keyless_count

    def read_failed(self, error: KafkaError) -> None:
        """Records of a partition could not be read."""
        if error.code not in _EXPECTED_OF_FETCHES:
            self.failed_fetch_requests += 1

    def fetched_from_leader(self, size_bytes: int, *, is_reassignment: bool) -> None:
        self.replication_bytes_in += size_bytes
        if is_reassignment:
            self.reassignment_bytes_in += size_bytes

    def sent_to_follower(self, size_bytes: int, *, is_reassignment: bool) -> None:
        self.replication_bytes_out += size_bytes
        if is_reassignment:
            self.reassignment_bytes_out += size_bytes


class TopicStatistics:
    """The counts of the topics of a broker."""

    def __init__(self) -> None:
        self._hosted: dict[str, TopicCounts] = {}
        # Counts of topics that are not hosted here.
        self.others = TopicCounts()

    def of(self, topic: str) -> TopicCounts:
        return self._hosted.get(topic, self.others)

    def hosts_one_more(self, topic: str) -> TopicCounts:
        """One more partition of the topic is hosted. Returns the counts that all its partitions share."""
        counts = self._hosted.get(topic)
        if counts is None:
            counts = self._hosted[topic] = TopicCounts()
        counts.partitions += 1
        return counts

    def hosts_one_less(self, topic: str) -> None:
        counts = self._hosted[topic]
        counts.partitions -= 1
        if counts.partitions == 0:
            del self._hosted[topic]
            self.others.add(counts)

    def _values(self, attribute: str, shown: _Of) -> Iterator[tuple[tuple[str], int] | None]:
        """The number of the broker, with topic "", and the numbers of topics."""
        read = attrgetter(attribute)
        # Two lists, because making thousands of pairs at once takes long.
        names, all_counts = list(self._hosted), list(self._hosted.values())
        slices = Slices(CHEAP_SLICE)
        # `others` comes first, so that a topic that leaves meanwhile is not counted twice.
        total = read(self.others)
        for counts in all_counts:
            total += read(counts)
            if slices.spend():
                yield None
        yield ("",), total
        if shown is not _Of.BROKER_ONLY:
            for topic, counts in zip(names, all_counts, strict=True):
                if slices.spend():
                    yield None
                if read(counts) or (shown is _Of.USED_TOPICS and counts.is_used):
                    yield (topic,), read(counts)

    def register(self, metrics: Metrics) -> None:
        for attribute, name, shown, documentation in _COUNTS:
            metrics.meters(
                MetricName("kafka.server", "BrokerTopicMetrics", name),
                documentation,
                ("topic",),
                partial(self._values, attribute, shown),
                tag_sets=((),) if shown is _Of.BROKER_ONLY else ((), ("topic",)),
            )
        metrics.meter(
            MetricName("kafka.server", "BrokerTopicMetrics", "FetchMessageConversionsPerSec"),
            "Records converted for old consumers: 0, because klamm serves none that need it.",
            lambda: 0,
        )
