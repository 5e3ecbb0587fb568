"""What streams ask of brokers, and streams whose processes die."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from klamm.net.client import Connection
from klamm.protocol.messages import ApiKey
from klamm.spark.options import read_options
from klamm.spark.read.stream import KlammStreamReader
from klamm.spark.source import KlammDataSource
from klamm.testing.cluster import Cluster
from support.oracles import java_tool
from support.paths import TESTS
from support.spark.producing import numbered, produce
from support.spark.schemas import struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ApiKey, Connection]]:
    """The requests that this process sends, in order, with their connections."""
    sent: list[tuple[ApiKey, Connection]] = []
    send = Connection.send

    async def noted(self: Connection, api_key: ApiKey, *arguments: Any, **options: Any) -> Any:
        sent.append((api_key, self))
        return await send(self, api_key, *arguments, **options)

    monkeypatch.setattr(Connection, "send", noted)
    return sent


def test_a_micro_batch_asks_for_the_latest_offsets_once_and_opens_no_connection(
    cluster: Cluster, topic: MakeTopic, requests: list[tuple[ApiKey, Connection]]
) -> None:
    """PySpark plans all micro-batches in one process, and reads them in processes that it uses again."""
    name = topic(partitions=2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name, "kafka.client.id": name}
    schema = struct(KlammDataSource({}).schema())
    reader = KlammStreamReader(read_options(options, streaming=True), schema)
    start = reader.initialOffset()
    connections = set()
    for batch in range(3):
        produce(cluster.bootstrap, name, numbered(5, partition=batch % 2))
        requests.clear()
        end = reader.latestOffset(start, ReadAllAvailable())
        # The first micro-batch and no other looks for new partitions' first offsets.
        assert [api_key for api_key, _ in requests] == [ApiKey.METADATA, ApiKey.LIST_OFFSETS]
        asked = len(requests)
        (partition,) = reader.partitions(start, end)
        assert len(requests) == asked
        assert sum(found.num_rows for found in reader.read(InputPartition(partition.value))) == 5
        read = [api_key for api_key, _ in requests[asked:]]
        assert read.count(ApiKey.FETCH) == 1
        # The topic is compared with the planned one; a client that has no metadata yet asks for it.
        assert len(read) <= 3
        assert set(read) <= {ApiKey.FETCH, ApiKey.METADATA}
        connections.add(frozenset(connection for _, connection in requests))
        start = end
    assert len(connections) == 1


def test_a_query_goes_on_after_its_worker_was_killed(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """In a local session a failed task is not repeated: the query ends, and is started again."""
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(60), *numbered(60, partition=1)])
    marker = str(tmp_path / "killed")
    found: dict[int, list[int]] = {}

    def die_once(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import os
        import signal

        for batch in batches:
            if 30 in batch["offset"].to_pylist() and not os.path.exists(marker):
                open(marker, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def keep(frame: "DataFrame", batch: int) -> None:
        found[batch] = [row.partition * 1000 + row.offset for row in frame.collect()]

    reader = spark.readStream.format("klamm").schema("partition INT, offset BIGINT")
    reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap)
    frame = reader.options(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=40).load()
    writer = frame.mapInArrow(die_once, "partition INT, offset BIGINT").writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException):
        writer.start().awaitTermination(120)
    assert os.path.exists(marker)
    assert writer.start().awaitTermination(120)
    everything = sorted(place for batch in found.values() for place in batch)
    assert everything == [*range(60), *range(1000, 1060)]


@pytest.mark.long
def test_a_stream_whose_workers_and_executors_are_killed_and_whose_tasks_run_twice(
    java: None, spark_environment: dict[str, str], cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=4)
    produce(cluster.bootstrap, name, [record for number in range(4) for record in numbered(300, number)])
    done = subprocess.run(
        [sys.executable, TESTS / "support" / "spark" / "dying_stream.py", cluster.bootstrap, name, tmp_path],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == [[number, offset] for number in range(4) for offset in range(300)]
    assert found["faults"] == ["executor", "slow", "worker"]
    assert found["speculative"] > 0


@pytest.mark.long
def test_kafkas_tools_show_the_lag_of_a_query(
    spark: "SparkSession", kafka_jars: Path, cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name, group = topic(partitions=2), f"group-{topic()}"
    produce(cluster.bootstrap, name, [*numbered(30), *numbered(10, partition=1)])
    options = {"kafka.group.id": group, "commitOffsets": "true", "startingOffsets": "earliest", "subscribe": name}
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap).options(**options)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    produce(cluster.bootstrap, name, numbered(7, partition=1, first=10))

    arguments = ["--bootstrap-server", cluster.bootstrap, "--describe", "--group", group]
    theirs = java_tool(kafka_jars, "kafka.admin.ConsumerGroupCommand", *arguments).decode()
    command = [sys.executable, "-m", "klamm.cli.main", "groups", "describe", "--group", group]
    done = subprocess.run([*command, *arguments[:2]], capture_output=True, text=True, check=True)

    def lags(text: str) -> list[list[str]]:
        """Partition, committed offset, log end offset, lag."""
        return sorted(line.split()[2:6] for line in text.splitlines() if line.startswith(f"{group} "))

    assert lags(theirs) == lags(done.stdout) == [["0", "30", "30", "0"], ["1", "10", "17", "7"]]
