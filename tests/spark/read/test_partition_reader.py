"""Ranges read from real brokers: every record once, whatever happens to leaders and topics."""

import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.client.threads import call
from klamm.net.client import ClientError
from klamm.processes.helper import Helper
from klamm.protocol.record.compression import CompressionType
from klamm.spark.read import partition_reader
from klamm.spark.read.partition_reader import read_range
from klamm.spark.schema import columns
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange
from klamm.testing.cluster import Cluster
from support.spark.producing import numbered, produce, set_retention

ALL = columns(include_headers=True)


def options_for(cluster: Cluster, **client: Any) -> FetchOptions:
    return FetchOptions(ClientOptions(parse_addresses("bootstrap", cluster.bootstrap), **client))


@pytest.fixture
def options(cluster: Cluster) -> FetchOptions:
    return options_for(cluster)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "GRACE_MS", 300)


def values(made: Iterable[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in made for value in batch.column("value").to_pylist()]


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def topic_id(options: FetchOptions, topic: str) -> str:
    async def ask(client: Any) -> str:
        metadata = await client.refresh_metadata([topic])
        identity: str = metadata.topics[topic].topic_id.hex
        return identity

    return call(options.client, ask)


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in CompressionType])
def test_a_range_in_the_middle_of_many_fetches(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions, codec: str
) -> None:
    name = topic(partitions=2)
    produce(
        cluster.bootstrap,
        name,
        numbered(3000) + numbered(10, partition=1),
        **{"compression.type": codec, "batch.num.messages": 70},
    )
    small = replace(options, fetch_max_bytes=1000, max_batch_bytes=1500)
    made = list(read_range(small, PartitionRange(name, 0, 55, 2903, topic_id(options, name)), ALL))
    assert values(made) == numbers(55, 2903)
    assert max(batch.nbytes for batch in made if batch.num_rows > 1) < 10_000
    assert values(read_range(options, PartitionRange(name, 1, 0, 10), ("value",))) == numbers(0, 10)
    assert values(read_range(options, PartitionRange(name, 1, 4, 4), ("value",))) == []


def test_all_columns(cluster: Cluster, topic: Callable[..., str], options: FetchOptions) -> None:
    name = topic()
    headers = [("a", b"1"), ("a", None)]
    produce(
        cluster.bootstrap,
        name,
        [
            {"key": b"k", "value": None, "timestamp": 1_700_000_000_123, "headers": headers},
            {"value": b"v", "timestamp": 5},
        ],
    )
    (made,) = read_range(options, PartitionRange(name, 0, 0, 2), ALL)
    first, second = made.to_pylist()
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    del first["timestamp"], second["timestamp"]
    assert first == {
        "key": b"k",
        "value": None,
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    assert (second["key"], second["headers"], second["offset"]) == (None, None, 1)


def test_records_of_a_byte_and_of_many_megabytes(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions
) -> None:
    name = topic(**{"max.message.bytes": 30_000_000})
    sizes = [1, 20_000_000, 1, 5_000_000, 0, 1]
    produce(cluster.bootstrap, name, [{"value": bytes(size)} for size in sizes], **{"message.max.bytes": 30_000_000})
    made = list(read_range(options, PartitionRange(name, 0, 0, len(sizes)), ("value",)))
    assert [len(value or b"") for value in values(made)] == sizes


def test_memory_is_bounded_by_the_size_of_a_fetch(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, [{"value": bytes(10_000)}] * 3000, **{"batch.num.messages": 20})
    small = replace(options, fetch_max_bytes=1_000_000)
    # Loading the loops takes much more memory than using them.
    assert len(values(read_range(small, PartitionRange(name, 0, 0, 1), ALL))) == 1
    before = pa.total_allocated_bytes()
    most = rows = 0
    tracemalloc.start()
    for batch in read_range(small, PartitionRange(name, 0, 0, 3000), ALL):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    frames = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 3000
    # The records that are handed out and those of the batch before, and two fetches with a third in flight.
    assert most < 5_000_000
    assert frames < 10_000_000


def test_a_reader_that_is_left_early_stops_fetching(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(500), **{"batch.num.messages": 10})
    small = replace(options, fetch_max_bytes=100)
    with closing(read_range(small, PartitionRange(name, 0, 0, 500), ("value",))) as reader:
        next(reader)
    assert values(read_range(small, PartitionRange(name, 0, 0, 500), ("value",))) == numbers(0, 500)


def test_leaders_die_and_no_record_is_missing_or_twice(klamm_helper: Helper) -> None:
    with Cluster(3, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=1, replication_factor=3)
        produce(cluster.bootstrap, "t", numbered(2000), **{"batch.num.messages": 20, "acks": "all"})
        options = replace(options_for(cluster), fetch_max_bytes=500)
        found: list[bytes | None] = []
        for count, batch in enumerate(read_range(options, PartitionRange("t", 0, 0, 2000), ("value",))):
            found += batch.column("value").to_pylist()
            if count in (5, 15):
                leader = cluster.leader("t", 0)
                assert leader is not None
                cluster.kill(leader)
                cluster.until(lambda: cluster.leader("t", 0) not in (None, leader))  # noqa: B023  # called in this round
        assert found == numbers(0, 2000)


def test_a_broker_that_starts_again(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as cluster:
        cluster.create_topic("t")
        produce(cluster.bootstrap, "t", numbered(300), **{"batch.num.messages": 10})
        options = replace(options_for(cluster), fetch_max_bytes=300)
        reader = read_range(options, PartitionRange("t", 0, 0, 300), ("value",))
        found = next(reader).column("value").to_pylist()
        cluster.kill(0)
        restart = threading.Thread(target=cluster.start, args=(0,))
        restart.start()
        assert found + values(reader) == numbers(0, 300)
        restart.join()


def test_a_topic_that_is_deleted_and_created_again(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions, short_grace: None
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(100), **{"batch.num.messages": 10})
    records = PartitionRange(name, 0, 0, 100, topic_id(options, name))
    small = replace(options, fetch_max_bytes=300)
    under_way = read_range(small, records, ("value",))
    next(under_way)
    cluster.delete_topic(name)
    with pytest.raises(DataLoss, match=f"topic {name} no longer exists"):
        values(under_way)
    with pytest.raises(DataLoss, match=f"topic {name} no longer exists"):
        values(read_range(options, records, ("value",)))

    cluster.create_topic(name)
    produce(cluster.bootstrap, name, numbered(100, first=500))
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again: its id was {records.topic_id}"):
        values(read_range(options, records, ("value",)))
    tolerant = replace(options, fail_on_data_loss=False)
    assert values(read_range(tolerant, records, ("value",))) == []
    assert values(read_range(options, replace(records, topic_id=None), ("value",))) == numbers(500, 600)


def test_a_topic_that_is_replaced_while_it_is_read(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions, short_grace: None
) -> None:
    """The new topic has the same leader, epoch and offsets: only its id tells."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(100), **{"batch.num.messages": 10})
    small = replace(options, fetch_max_bytes=300)
    under_way = read_range(small, PartitionRange(name, 0, 0, 100, topic_id(options, name)), ("value",))
    next(under_way)
    cluster.delete_topic(name)
    cluster.create_topic(name)
    produce(cluster.bootstrap, name, numbered(100, first=500), **{"batch.num.messages": 10})
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again"):
        values(under_way)


def test_offsets_behind_the_end_of_the_log(
    cluster: Cluster, topic: Callable[..., str], options: FetchOptions, short_grace: None
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    records = PartitionRange(name, 0, 20, 30)
    with pytest.raises(DataLoss, match=rf"{name}-0: the log ends at offset 10, but 20 to 29 were there; with failOn"):
        values(read_range(options, records, ("value",)))
    assert values(read_range(replace(options, fail_on_data_loss=False), records, ("value",))) == []
    # A log that ends within the range may still grow; the time for that is bounded.
    impatient = replace(options, poll_timeout_ms=300, fetch_max_wait_ms=50)
    reader = read_range(impatient, PartitionRange(name, 0, 5, 12), ("value",))
    assert values([next(reader)]) == numbers(5, 10)
    with pytest.raises(DataLoss, match=f"{name}-0: the log ends at offset 10, but 10 to 11 were to be read"):
        next(reader)


def test_records_that_retention_has_removed(klamm_helper: Helper, caplog: pytest.LogCaptureFixture) -> None:
    properties = {"log.retention.check.interval.ms": 100}
    with Cluster(1, helper=klamm_helper, properties=properties) as cluster:
        cluster.create_topic("t", configs={"segment.bytes": 1000, "retention.ms": -1})
        produce(cluster.bootstrap, "t", numbered(200), **{"batch.num.messages": 10})
        options = options_for(cluster)
        assert values(read_range(options, PartitionRange("t", 0, 0, 200), ("value",))) == numbers(0, 200)
        set_retention(cluster, "t", 1)

        def begin() -> int:
            return len(values(read_range(replace(options, fail_on_data_loss=False), whole, ("value",))))

        whole = PartitionRange("t", 0, 0, 200)
        cluster.until(lambda: begin() < 200)
        with pytest.raises(DataLoss, match=r"t-0: the records from offset 0 to \d+ were removed, the log begins at"):
            values(read_range(options, whole, ("value",)))
        left = values(read_range(replace(options, fail_on_data_loss=False), whole, ("value",)))
        assert left == numbers(200 - len(left), 200)
        assert "t-0: the records from offset 0" in caplog.text
        with pytest.raises(DataLoss, match="from offset 0 to 4 were removed"):
            values(read_range(options, PartitionRange("t", 0, 0, 5), ("value",)))


def test_a_cluster_that_nobody_can_reach() -> None:
    client = ClientOptions((("127.0.0.1", 1),), retry_timeout_ms=100)
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        list(read_range(FetchOptions(client, poll_timeout_ms=100), PartitionRange("t", 0, 0, 1), ("value",)))


def test_a_process_that_was_forked_has_connections_of_its_own(cluster: Cluster, topic: Callable[..., str]) -> None:
    """As PySpark's workers are."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    program = f"""
import os
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.spark.read.partition_reader import read_range
from klamm.spark.settings import FetchOptions, PartitionRange
options = FetchOptions(ClientOptions(parse_addresses("bootstrap", {cluster.bootstrap!r})))
def count():
    return sum(batch.num_rows for batch in read_range(options, PartitionRange({name!r}, 0, 0, 10), ("value",)))
assert count() == 10
child = os.fork()
if child == 0:
    os._exit(count())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
assert count() == 10
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
