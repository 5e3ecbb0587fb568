"""Rows get the partitions that Kafka's default partitioner gives them."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.spark.write.columns import Columns
from klamm.spark.write.encoding import record_sizes
from klamm.spark.write.partitioning import Topic, assign


def assigned(topics, keys, *, topic_of=None, partitions=None, values=None):
    """(topic, partition) of each row."""
    columns = Columns.from_arrow(
        pa.array(keys, pa.binary()), pa.array(values or [b""] * len(keys), pa.binary()), None, np.zeros(len(keys), int)
    )
    which = np.zeros(len(keys), np.int64) if topic_of is None else np.array(topic_of)
    wanted = None if partitions is None else pa.array(partitions, pa.int32())
    assignment = assign(topics, which, wanted, columns.keys, record_sizes(columns))
    return [assignment.partitions[target] for target in assignment.targets.tolist()]


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 2**31 - 1).filter(lambda n: n < 10_000)
)
@settings(deadline=None)
def test_keys_are_hashed_as_every_client_does(keys, count):
    expected = [("t", (murmur2(key) & 0x7FFFFFFF) % count) for key in keys]
    assert assigned([Topic("t", count, [0], 1_000)], keys) == expected


def test_known_hashes():
    """From Kafka's own UtilsTest.testMurmur2, modulo the number of partitions."""
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    expected = [("t", (hashed & 0x7FFFFFFF) % 997) for hashed in hashes.values()]
    assert assigned([Topic("t", 997, [0], 1_000)], list(hashes)) == expected


def test_a_row_that_names_its_partition_goes_there():
    topics = [Topic("t", 3, [2], 1_000)]
    assert assigned(topics, [b"a", None, None], partitions=[1, 0, None]) == [("t", 1), ("t", 0), ("t", 2)]


@pytest.mark.parametrize("partition", [-1, 3, -(2**31), 2**31 - 1])
def test_a_partition_that_its_topic_does_not_have(partition):
    topics = [Topic("s", 9, [0], 1_000), Topic("t", 3, [0], 1_000)]
    with pytest.raises(
        KafkaError, match=f"topic t has 3 partitions, numbered from 0; a row names {partition}$"
    ) as error:
        assigned(topics, [None, None], topic_of=[0, 1], partitions=[5, partition])
    assert error.value.code is ErrorCode.INVALID_PARTITIONS


def test_keyless_records_stay_together_until_a_batch_is_full():
    topic = Topic("t", 5, [1, 3], 1_000, current=1)
    found = [partition for _, partition in assigned([topic], [None] * 40, values=[b"x" * 85] * 40)]
    runs = [found[0]] + [after for before, after in itertools.pairwise(found) if after != before]
    assert runs == [3, 1, 3, 1][: len(runs)]
    assert 9 <= found.index(1) <= 11
    # The next rows go on where these have ended.
    assert assigned([topic], [None], values=[b"x"]) == [("t", found[-1])]


def test_topics_do_not_mix():
    topics = [Topic("a", 2, [1], 1_000), Topic("b", 3, [2], 1_000)]
    assert assigned(topics, [None, None, b""], topic_of=[1, 0, 1]) == [("b", 2), ("a", 1), ("b", 0x106E08D9 % 3)]
