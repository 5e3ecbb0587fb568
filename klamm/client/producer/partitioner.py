"""Chooses a record's partition like Kafka's default partitioner.

What must stay true: a key goes to the same partition as with Java's clients, or else the records of one key would be in
two partitions.

Source: org.apache.kafka.clients.producer.internals.DefaultPartitioner, StickyPartitionCache (KIP-480);
org.apache.kafka.common.utils.Utils.murmur2.
"""

import struct
from collections.abc import Sequence

from klamm.base.environment import Random

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash as an unsigned 32-bit integer."""
    whole = len(data) & ~3
    value = _SEED ^ len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _FACTOR & _MASK
        value = value * _FACTOR & _MASK ^ (mixed ^ mixed >> 24) * _FACTOR & _MASK
    if whole != len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitions:
    """The partition for a topic's records without keys, until they have filled a batch."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """The topic's current partition."""
        current = self._current.get(topic)
        return self.next_partition(topic, available) if current is None else current

    def next_partition(self, topic: str, available: Sequence[int]) -> int:
        """Makes another of the `available` partitions, if there is one, the current partition, and returns it."""
        before = self._current.get(topic)
        others = [partition for partition in available if partition != before] or list(available)
        self._current[topic] = chosen = self._random.choice(others)
        return chosen
