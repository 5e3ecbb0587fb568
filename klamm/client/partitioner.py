"""Which partition a record without a given partition goes to, as Kafka's default partitioner decides it.

What must stay true: a key goes to the partition that Java's clients choose for it, or else the records of one key
would be in two partitions.

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
    """The 32 bits of Kafka's hash, without a sign."""
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
    """The partition that a topic's records without keys go to until they have filled a batch."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """The topic's current partition."""
        current = self._current.get(topic)
        return self.next_partition(topic, available) if current is None else current

    def next_partition(self, topic: str, available: Sequence[int]) -> int:
        """Another of the `available` partitions, if there is another, which is the current one from now on."""
        before = self._current.get(topic)
        others = [partition for partition in available if partition != before] or list(available)
        self._current[topic] = chosen = self._random.choice(others)
        return chosen
