"""The loop over rows that chooses the partition of each, compiled by numba.

Importing this module imports numba and compiles the loop, or loads it from disk. So it is imported only when records
are about to be written. `partitioning.py` is its only user.

What must stay true: compiled code does not check indexes. The partition that a row names is checked before it is used
as an index.

Source: org.apache.kafka.common.utils.Utils.murmur2.
"""

from typing import Any, NamedTuple

from numba import types

from klamm.base.compiling import compiled, inlined
from klamm.spark.write.columns import Integers, Strings

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_ROTATION = 24
_32_BITS = 0xFFFFFFFF

# Not an int32, so that no number in a column of partitions has this meaning.
NO_PARTITION = -(2**31) - 1


class Layout(NamedTuple):
    """Topics in the form for compiled code. All arrays except `available` have one element for each topic.

    The targets of a topic are consecutive numbers from `first_targets` on, one for each partition.
    """

    counts: Integers
    first_targets: Integers
    limits: Integers
    available: Integers
    first_available: Integers
    available_counts: Integers


class Sticky(NamedTuple):
    """The current partition for records without a key of each topic, and the bytes that it has received."""

    current: Integers
    filled: Integers


@inlined
def murmur2(data: Any, start: int, size: int) -> int:
    """The hash of Kafka's default partitioner, as an unsigned number of 32 bits."""
    value = (_SEED ^ size) & _32_BITS
    for at in range(start, start + size - size % 4, 4):
        word = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
        word = (word * _MULTIPLIER) & _32_BITS
        word = ((word ^ (word >> _ROTATION)) * _MULTIPLIER) & _32_BITS
        value = ((value * _MULTIPLIER) & _32_BITS) ^ word
    tail = start + size - size % 4
    if size % 4 == 3:
        value ^= data[tail + 2] << 16
    if size % 4 >= 2:
        value ^= data[tail + 1] << 8
    if size % 4 >= 1:
        value = ((value ^ data[tail]) * _MULTIPLIER) & _32_BITS
    value = ((value ^ (value >> 13)) * _MULTIPLIER) & _32_BITS
    return value ^ (value >> 15)


_integers = types.int64[::1]
_strings = types.NamedTuple((types.Array(types.uint8, 1, "C", readonly=True), _integers, _integers), Strings)


@compiled(
    types.int64(
        _integers, _integers, _integers, _strings, _integers,
        types.NamedUniTuple(_integers, 6, Layout), types.NamedUniTuple(_integers, 2, Sticky),
    )
)  # fmt: skip
def assign(targets: Any, topics: Any, partitions: Any, keys: Any, sizes: Any, layout: Layout, sticky: Sticky) -> int:
    """Puts the target of each row into `targets`: its topic's first target plus its partition.

    The partition is the one that the row names, else that of its key, else (null keys) the topic's current one until a
    batch is full. Returns the first row that names a partition that its topic does not have, or -1.
    """
    counts, first_targets, limits, available, first_available, available_counts = layout
    key_data, key_starts, key_sizes = keys
    current, filled = sticky
    for row in range(len(targets)):
        topic = topics[row]
        partition = partitions[row]
        if partition != NO_PARTITION:
            if not 0 <= partition < counts[topic]:
                return row
        elif key_sizes[row] >= 0:
            partition = (murmur2(key_data, key_starts[row], key_sizes[row]) & 0x7FFFFFFF) % counts[topic]
        else:
            if filled[topic] + sizes[row] > limits[topic] and filled[topic] > 0:
                filled[topic] = 0
                current[topic] = (current[topic] + 1) % available_counts[topic]
            filled[topic] += sizes[row]
            partition = available[first_available[topic] + current[topic]]
        targets[row] = first_targets[topic] + partition
    return -1
