"""The partition of each record, chosen as Kafka's default partitioner does, in bulk.

A record goes to the partition that its row names, or else to the partition of its key's hash. Records with a null key
go to one partition of their topic until they have filled a batch, and then to the next partition with a leader.

Source: org.apache.kafka.clients.producer.internals.DefaultPartitioner, StickyPartitionCache (KIP-480).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.spark.write import partitioning_kernels as kernels
from klamm.spark.write.columns import Integers, Strings
from klamm.spark.write.partitioning_kernels import Layout, Sticky


@dataclass(slots=True)
class Topic:
    """A topic to write to. `available`: the partitions with a leader; never empty."""

    name: str
    partition_count: int
    available: list[int]
    limit_bytes: int
    """The largest size of a batch."""

    current: int = 0
    """The partition for records without a key is `available[current % len(available)]`. Callers may set the first
    one."""
    filled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The target of each row; (topic, partition) and batch limit of each target."""

    targets: Integers
    partitions: list[PartitionKey]
    limits: list[int]


def assign(
    topics: Sequence[Topic], topic_of: Integers, partitions: pa.Array | None, keys: Strings, sizes: Integers
) -> Assignment:
    """The partition of each row, whose topic is `topics[topic_of[row]]`; `partitions` are int32.

    Raises KafkaError(INVALID_PARTITIONS) for a partition that its topic does not have.
    """
    counts = [topic.partition_count for topic in topics]
    available_counts = [len(topic.available) for topic in topics]
    layout = Layout(
        _integers(counts),
        _starts(counts),
        _integers([topic.limit_bytes for topic in topics]),
        _integers([partition for topic in topics for partition in topic.available]),
        _starts(available_counts),
        _integers(available_counts),
    )
    sticky = Sticky(
        _integers([topic.current % len(topic.available) for topic in topics]),
        _integers([topic.filled_bytes for topic in topics]),
    )
    targets = np.empty(len(topic_of), np.int64)
    wanted = np.full(len(topic_of), kernels.NO_PARTITION) if partitions is None else _wanted(partitions)
    wrong = kernels.assign(targets, topic_of, wanted, keys, sizes, layout, sticky)
    if wrong >= 0:
        topic = topics[topic_of[wrong]]
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partition_count} partitions, numbered from 0; a row names {wanted[wrong]}",
        )
    for topic, current, filled in zip(topics, sticky.current.tolist(), sticky.filled.tolist(), strict=True):
        topic.current, topic.filled_bytes = current, filled
    return Assignment(
        targets,
        [(topic.name, partition) for topic in topics for partition in range(topic.partition_count)],
        [topic.limit_bytes for topic in topics for _ in range(topic.partition_count)],
    )


def _wanted(partitions: pa.Array) -> Integers:
    filled = pc.fill_null(partitions.cast(pa.int64()), kernels.NO_PARTITION)
    return np.array(filled.to_numpy(zero_copy_only=False), np.int64)


def _starts(counts: Sequence[int]) -> Integers:
    return _integers([0, *counts])[:-1].cumsum()


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, np.int64)
