"""Arrow batches written to a real cluster, and read back by librdkafka."""

from collections import defaultdict
from itertools import chain

import pyarrow as pa
import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.net.client import ConnectFailed
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.spark.options import write_options
from klamm.spark.write.writing import RecordWriter, record_writer
from klamm.testing.cluster import Cluster
from support.present import present
from support.spark.reading import read, values_read

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def options(cluster, topic=None, **more):
    given = {"kafka.bootstrap.servers": cluster.bootstrap, **more}
    return write_options(given if topic is None else {**given, "topic": topic})


def values_batch(values):
    return pa.record_batch({"value": pa.array(values, pa.binary())})


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_column_and_compression(cluster, topic, codec):
    name = topic(partitions=3)
    rows = [
        (name, 0, b"k", b"v", [("h", b"1"), ("h", None)]),
        (name, 0, None, None, []),
        (name, 2, b"", b"", None),
        (name, None, b"foobar", "é".encode() * 10_000, None),
    ]
    batch = pa.record_batch(
        {
            "topic": pa.array([row[0] for row in rows]),
            "partition": pa.array([row[1] for row in rows], pa.int32()),
            "key": pa.array([row[2] for row in rows], pa.binary()),
            "value": pa.array([row[3] for row in rows], pa.binary()),
            "headers": pa.array(
                [row[4] if row[4] is None else [{"key": k, "value": v} for k, v in row[4]] for row in rows], HEADERS
            ),
        }
    )
    before_ms = SystemEnvironment().now_ms()
    with record_writer(options(cluster, **{"kafka.compression.type": codec})) as writer:
        writer.write(batch)
        writer.flush()
    after_ms = SystemEnvironment().now_ms()

    messages = read(cluster, name)
    # Kafka's murmur2 of foobar is -790332482.
    assert (-790332482 & 0x7FFFFFFF) % 3 == 0
    assert [[(each.key(), each.value(), each.headers()) for each in messages[number]] for number in range(3)] == [
        [(b"k", b"v", [("h", b"1"), ("h", None)]), (None, None, None), (b"foobar", rows[3][3], None)],
        [],
        [(b"", b"", None)],
    ]
    for message in messages[0] + messages[2]:
        assert before_ms <= message.timestamp()[1] <= after_ms


@pytest.mark.parametrize(
    "weaker", [{"kafka.enable.idempotence": "false"}, {"kafka.acks": "1"}, {"kafka.acks": "0"}], ids=str
)
def test_a_writer_that_is_not_idempotent_asks_for_no_producer_id(cluster, topic, weaker, monkeypatch):
    async def refused(client):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no IdempotentWrite")

    monkeypatch.setattr("klamm.client.producer.sender.init_producer_id", refused)
    name = topic(partitions=2)
    values = [b"%d" % number * 100 for number in range(5_000)]
    with record_writer(options(cluster, name, **{"kafka.batch.size": "10000"}, **weaker)) as writer:
        for start in range(0, len(values), 1_000):
            part = values[start : start + 1_000]
            partitions = pa.array([number % 2 for number in range(len(part))], pa.int32())
            writer.write(pa.record_batch({"value": pa.array(part), "partition": partitions}))
        writer.flush()
    # With acks=0 the broker may still be at it.
    cluster.until(lambda: values_read(cluster, name) == {0: values[::2], 1: values[1::2]})


def test_many_rows_keep_their_order_in_their_partitions(cluster, topic):
    name = topic(partitions=4)
    expected = defaultdict(list)
    with record_writer(options(cluster, name, **{"kafka.batch.size": "20000"})) as writer:
        for number in range(0, 60_000, 1_000):
            rows = range(number, number + 1_000)
            partitions = [row * 7 % 4 for row in rows]
            values = [b"%d" % row * 30 for row in rows]
            for partition, value in zip(partitions, values, strict=True):
                expected[partition].append(value)
            writer.write(pa.record_batch({"value": pa.array(values), "partition": pa.array(partitions, pa.int32())}))
        writer.flush()
    assert values_read(cluster, name) == expected


def test_a_million_tiny_batches(cluster, topic):
    """Each is a thousand bytes of Arrow's memory, whatever its row has."""
    name, most = topic(), 0
    with record_writer(options(cluster, name)) as writer:
        batch = values_batch([None])
        for _ in range(20_000):
            writer.write(batch)
            most = max(most, len(writer._gathered))
        writer.flush()
    assert 1_000 < most < 10_000
    assert values_read(cluster, name) == {0: [None] * 20_000}


def test_keyless_rows_are_spread_over_all_partitions(cluster, topic):
    name = topic(partitions=3)
    with record_writer(options(cluster, name)) as writer:
        for _ in range(30):
            writer.write(values_batch([b"x" * 100] * 10_000))
        writer.flush()
    counts = [len(messages) for messages in read(cluster, name).values()]
    assert sum(counts) == 300_000
    assert max(counts) < 1.5 * min(counts)


def test_a_row_of_20_mb(cluster, topic):
    name = topic(**{"max.message.bytes": 30_000_000})
    large = bytes(range(256)) * (20 * 4_096)
    with record_writer(options(cluster, name, **{"kafka.max.request.size": "30000000"})) as writer:
        writer.write(values_batch([b"before", large, b"after"]))
        writer.flush()
    assert values_read(cluster, name) == {0: [b"before", large, b"after"]}


def test_a_row_larger_than_a_request_may_be(cluster, topic):
    name = topic()
    expected = r"MESSAGE_TOO_LARGE \(10\): a record needs 2000\d\d\d bytes, kafka.max.request.size allows 1048576"
    with pytest.raises(KafkaError, match=expected), record_writer(options(cluster, name)) as writer:
        writer.write(values_batch([b"x" * 2_000_000]))
        writer.flush()
    assert values_read(cluster, name) == {0: []}


def test_a_topic_that_takes_smaller_batches_only(cluster, topic):
    name = topic(**{"max.message.bytes": 20_000})
    values = [b"%d" % number * 20 for number in range(20_000)]
    with record_writer(options(cluster, name)) as writer:
        for start in range(0, len(values), 10_000):
            writer.write(values_batch(values[start : start + 10_000]))
        writer.flush()
    assert values_read(cluster, name) == {0: values}


def test_topics_are_created_where_brokers_may(cluster):
    with record_writer(options(cluster)) as writer:
        writer.write(pa.record_batch({"topic": ["made-by-writing"] * 2, "value": [b"a", b"b"]}))
        writer.flush()
    assert sorted(map(present, chain.from_iterable(values_read(cluster, "made-by-writing").values()))) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [b"x"]}, "rows have no column topic, and no option topic is set"),
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, "the column topic is null in a row"),
        ({"value": [b"x"], "topic": ["no/such"]}, r"INVALID_TOPIC_EXCEPTION \(17\): topic no/such"),
    ],
)
def test_rows_without_a_topic(cluster, columns, message):
    with pytest.raises(KafkaError, match=message) as error, record_writer(options(cluster)) as writer:
        writer.write(pa.record_batch(columns))
        writer.flush()
    assert error.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_partition_that_does_not_exist(cluster, topic):
    name = topic(partitions=2)
    batch = pa.record_batch({"value": [b"x"], "partition": pa.array([2], pa.int32())})
    expected = f"topic {name} has 2 partitions, numbered from 0; a row names 2"
    with pytest.raises(KafkaError, match=expected), record_writer(options(cluster, name)) as writer:
        writer.write(batch)
        writer.flush()


def test_a_writer_serves_the_next_task_of_its_process(cluster, topic):
    name = topic()
    wanted = options(cluster, name)
    with record_writer(wanted) as first:
        first.write(values_batch([b"1"]))
        first.flush()
    with record_writer(wanted) as second:
        second.write(values_batch([b"2"]))
        second.flush()
        with record_writer(wanted) as beside:
            assert beside is not second
    assert second is first
    assert values_read(cluster, name) == {0: [b"1", b"2"]}


def test_a_writer_whose_task_failed_serves_no_other(cluster, topic):
    name = topic()
    wanted = options(cluster, name)
    with pytest.raises(ZeroDivisionError), record_writer(wanted) as first:
        first.write(values_batch([b"1"] * 10))
        raise ZeroDivisionError
    with record_writer(wanted) as second:
        second.write(values_batch([b"2"]))
        second.flush()
    assert second is not first
    assert values_read(cluster, name)[0][-1] == b"2"


def test_a_topic_that_was_deleted_and_made_again(cluster, topic):
    name = topic(partitions=1)
    wanted = options(cluster, name)
    for partitions in (1, 2):
        with record_writer(wanted) as writer:
            writer.write(pa.record_batch({"value": [b"x"], "partition": pa.array([partitions - 1], pa.int32())}))
            writer.flush()
        if partitions == 1:
            cluster.delete_topic(name)
            cluster.create_topic(name, partitions=2)
    assert values_read(cluster, name) == {0: [], 1: [b"x"]}


def test_brokers_killed_and_stopped_under_a_writer(klamm_helper):
    """Three replicas; leaders are stopped and killed while rows are written."""
    expected = defaultdict(list)
    with Cluster(3, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=3, configs={"min.insync.replicas": 2})
        number = 0
        with record_writer(options(cluster, "t", **{"kafka.batch.size": "4000"})) as writer:

            def write_some():
                nonlocal number
                for _ in range(20):
                    rows = range(number, number + 3_000)
                    number += 3_000
                    for row in rows:
                        expected[row % 3].append(b"%d" % row)
                    writer.write(
                        pa.record_batch(
                            {
                                "value": pa.array([b"%d" % row for row in rows]),
                                "partition": pa.array([row % 3 for row in rows], pa.int32()),
                            }
                        )
                    )
                    writer._send_gathered()

            for fault, partition in ((cluster.stop, 1), (cluster.kill, 2)):
                write_some()
                leader = present(cluster.leader("t", partition))
                fault(leader)
                write_some()
                writer.flush()
                cluster.start(leader)
                cluster.until(lambda: not cluster.under_replicated())
        assert values_read(cluster, "t") == expected


def test_a_cluster_that_does_not_answer():
    wanted = write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "100"})
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        RecordWriter(wanted, SystemEnvironment())


def test_timestamps(cluster, topic):
    """A record has its own, else that of writing."""
    name = topic()
    stamps = pa.array([1_234_567, None, 0], pa.timestamp("us", tz="UTC"))
    with record_writer(options(cluster, name), FixedTime()) as writer:
        writer.write(pa.record_batch({"value": ["a", "b", "c"], "timestamp": stamps}))
        writer.flush()
        assert writer.end_offset(name, 0) == 3
    assert [message.timestamp()[1] for message in read(cluster, name)[0]] == [1234, 7_000_000, 0]


class FixedTime(SystemEnvironment):
    def now_ms(self):
        return 7_000_000
