"""The load of partitions, brokers and topics, from what was counted in their batches. Pure.

A broker's load is that of its replicas as they are placed now: every replica writes what its leader writes.

A rate is bytes divided by the seconds of the chosen time. The time is the same for all partitions, so that rates can be
compared. One kind of partition differs: if retention has removed records of the chosen time, the time begins with the
first batch that is left. Otherwise a partition with a short retention would seem to have little load.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.reassign.planning.goals import PartitionLoad
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.spark.pipelines.load import ClusterCount, HotKey, PartitionCount
    from klamm.spark.pipelines.load_options import LoadOptions
    from klamm.spark.pipelines.load_windows import Windows

# A partition is called hot when it has this many times the mean of its topic.
HOT_RATIO: Final = 1.5
HOT_PARTITIONS: Final = 5


@dataclass(frozen=True)
class PartitionFigures:
    """`replicas` has the leader first. `seconds` is the time over which the rate is computed."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    batches: int
    records: int
    size_bytes: int
    seconds: float
    windows: "Windows"
    is_cut: bool = False
    corrupt_batches: int = 0
    untimed_batches: int = 0
    failure: str | None = None

    @property
    def bytes_in_per_s(self) -> float:
        return self.size_bytes / self.seconds


@dataclass(frozen=True)
class BrokerFigures:
    """`leads` and `follows` are numbers of partitions; the bytes are those of the broker's replicas."""

    broker: int
    leads: int = 0
    follows: int = 0
    leader_bytes: int = 0
    follower_bytes: int = 0
    records: int = 0
    bytes_in_per_s: float = 0.0
    window_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return self.leader_bytes + self.follower_bytes


@dataclass(frozen=True)
class Skew:
    """How unequal numbers are: the largest number as a multiple of the mean, and the Gini coefficient, which is 0 for
    equal numbers and nearly 1 if one number has everything."""

    max_to_mean: float
    gini: float


@dataclass(frozen=True)
class TopicFigures:
    """`hot` are the partitions with at least `HOT_RATIO` times the mean, the largest first, as (partition, ratio)."""

    topic: str
    partitions: int
    records: int
    size_bytes: int
    skew: Skew
    hot: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Figures:
    """Times are in milliseconds since 1970. The start is None when no time was chosen and no batch has one."""

    start_ms: int | None
    end_ms: int
    window_ms: int
    partitions: tuple[PartitionFigures, ...]
    brokers: tuple[BrokerFigures, ...]
    topics: tuple[TopicFigures, ...]
    broker_skew: Skew
    hot_keys: "tuple[HotKey, ...]" = ()
    sampled_records: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def batches(self) -> int:
        return sum(each.batches for each in self.partitions)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The topics and partitions that were not read, with the reasons."""
        return [*self.skipped, *((str(each.partition), each.failure) for each in self.partitions if each.failure)]

    def load(self) -> dict[TopicPartition, PartitionLoad]:
        """The load for `klamm reassign generate --load`. What consumers read is not known from batches, and counts as
        0."""
        return {each.partition: PartitionLoad(each.bytes_in_per_s, 0.0) for each in self.partitions}


def figures(count: "ClusterCount", options: "LoadOptions", now_ms: int) -> Figures:
    """The figures of a count. Without a chosen end, the time ends now."""
    firsts = [each.counted.first_timestamp_ms for each in count.partitions.values()]
    start_ms = options.start_ms
    if start_ms is None:
        start_ms = min((first for first in firsts if first is not None), default=None)
    end_ms = now_ms if options.end_ms is None else min(options.end_ms, now_ms)
    partitions = [_partition(key, each, start_ms, end_ms) for key, each in sorted(count.partitions.items())]
    brokers = _brokers(partitions, count.brokers)
    return Figures(
        start_ms,
        end_ms,
        count.window_ms,
        tuple(partitions),
        tuple(brokers),
        tuple(_topics(partitions)),
        skew([each.size_bytes for each in brokers]),
        tuple(count.hot_keys),
        count.sampled_records,
        tuple(count.skipped),
    )


def _partition(
    partition: TopicPartition, found: "PartitionCount", start_ms: int | None, end_ms: int
) -> PartitionFigures:
    counted, total = found.counted, found.counted.total
    begin_ms = start_ms if start_ms is not None else end_ms
    if found.is_cut and counted.first_timestamp_ms is not None:
        begin_ms = max(begin_ms, counted.first_timestamp_ms)
    return PartitionFigures(
        partition,
        found.replicas,
        total.batches,
        total.records,
        total.size_bytes,
        # Clocks of clients may be ahead of this one.
        max(1.0, (end_ms - begin_ms) / 1000),
        counted.windows,
        found.is_cut,
        counted.corrupt_batches,
        counted.untimed.batches,
        counted.failure,
    )


def _brokers(partitions: Sequence[PartitionFigures], live: Iterable[int]) -> list[BrokerFigures]:
    """All brokers that are live or have a replica."""
    rows: dict[int, dict[str, Any]] = {broker: {"window_bytes": {}} for broker in live}
    for each in partitions:
        for place, broker in enumerate(each.replicas):
            row = rows.setdefault(broker, {"window_bytes": {}})
            names = ("leads", "leader_bytes") if place == 0 else ("follows", "follower_bytes")
            added = {names[0]: 1, names[1]: each.size_bytes, "records": each.records}
            for name, value in {**added, "bytes_in_per_s": each.bytes_in_per_s}.items():
                row[name] = row.get(name, 0) + value
            for number, traffic in each.windows.cells.items():
                row["window_bytes"][number] = row["window_bytes"].get(number, 0) + traffic.size_bytes
    return [BrokerFigures(broker, **rows[broker]) for broker in sorted(rows)]


def _topics(partitions: Sequence[PartitionFigures]) -> list[TopicFigures]:
    """The topics, the one with the most bytes first."""
    by_topic: dict[str, list[PartitionFigures]] = {}
    for each in partitions:
        by_topic.setdefault(each.partition.topic, []).append(each)
    found = []
    for topic, rows in by_topic.items():
        sizes = [row.size_bytes for row in rows]
        mean = sum(sizes) / len(sizes)
        ratios = [(row.partition.partition, row.size_bytes / mean) for row in rows if row.size_bytes]
        hot = sorted((each for each in ratios if each[1] >= HOT_RATIO), key=lambda each: (-each[1], each[0]))
        records = sum(row.records for row in rows)
        found.append(TopicFigures(topic, len(rows), records, sum(sizes), skew(sizes), tuple(hot[:HOT_PARTITIONS])))
    return sorted(found, key=lambda each: (-each.size_bytes, each.topic))


def skew(values: Sequence[int]) -> Skew:
    """The skew of these numbers. If all are 0, they are equal."""
    total, count = sum(values), len(values)
    if not total:
        return Skew(1.0, 0.0)
    weighted = sum(place * value for place, value in enumerate(sorted(values), 1))
    return Skew(max(values) * count / total, 2 * weighted / (count * total) - (count + 1) / count)


# -- JSON -------------------------------------------------------------------------------------------------------------


def figures_value(found: Figures) -> dict[str, Any]:
    """The figures as values for JSON. A window is [its begin, batches, records, bytes]."""
    return {
        "start_ms": found.start_ms,
        "end_ms": found.end_ms,
        "window_ms": found.window_ms,
        "batches": found.batches,
        "records": found.records,
        "bytes": found.size_bytes,
        "partitions": [_partition_value(each) for each in found.partitions],
        "brokers": [
            {
                "broker": each.broker,
                "leads": each.leads,
                "follows": each.follows,
                "leader_bytes": each.leader_bytes,
                "follower_bytes": each.follower_bytes,
                "records": each.records,
                "bytes_in_per_s": each.bytes_in_per_s,
                "windows": [
                    [number * found.window_ms, size_bytes] for number, size_bytes in sorted(each.window_bytes.items())
                ],
            }
            for each in found.brokers
        ],
        "broker_skew": _skew_value(found.broker_skew),
        "topics": [
            {
                "topic": each.topic,
                "partitions": each.partitions,
                "records": each.records,
                "bytes": each.size_bytes,
                **_skew_value(each.skew),
                "hot": [{"partition": number, "to_mean": ratio} for number, ratio in each.hot],
            }
            for each in found.topics
        ],
        "hot_keys": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "key": key_text(each.key),
                "records": each.records.records,
                "at_least": each.records.low,
                "at_most": each.records.high,
            }
            for each in found.hot_keys
        ],
        "sampled_records": found.sampled_records,
        "not_read": [{"what": what, "reason": reason} for what, reason in found.failures],
    }


def _partition_value(each: PartitionFigures) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "replicas": list(each.replicas),
        "batches": each.batches,
        "records": each.records,
        "bytes": each.size_bytes,
        "seconds": each.seconds,
        "bytes_in_per_s": each.bytes_in_per_s,
        "corrupt_batches": each.corrupt_batches,
        "untimed_batches": each.untimed_batches,
        "is_cut_by_retention": each.is_cut,
        "windows": [
            [number * each.windows.width_ms, *traffic] for number, traffic in sorted(each.windows.cells.items())
        ],
    }


def _skew_value(each: Skew) -> dict[str, float]:
    return {"max_to_mean": each.max_to_mean, "gini": each.gini}


def key_text(key: bytes) -> str:
    """A key for people: as text where it is printable text, else as 0x and hexadecimal digits."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
