"""Replicas on Spark: the verification in ranges, and every replica's batches as rows."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import DifferenceKind
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify
from klamm.processes.helper import Helper
from klamm.protocol.record.records import Record
from klamm.spark.options import OptionError
from klamm.spark.pipelines.replicas import replica_batches, verify
from klamm.testing.cluster import Cluster
from support.placed_topics import wait_until_committed, write_batches
from support.planted import change_records, drop_batch, first_segment, flip_bit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 60


@pytest.fixture(scope="module")
def replicated(klamm_helper: Helper) -> Iterator[Cluster]:
    """Three brokers and the topic `planted`: in its first partition, broker 2 has three batches that differ."""
    with Cluster(3, helper=klamm_helper) as cluster:
        cluster.create_topic("planted", partitions=2, replication_factor=3)
        now_ms = time.time_ns() // 1_000_000
        for partition in (0, 1):
            values = [b"value-%d" % number for number in range(partition, 2 * RECORDS, 2)]
            write_batches(cluster, "planted", [[Record(None, value, now_ms)] for value in values], partition)
        cluster.stop(2)
        segment = first_segment(cluster.broker(2).data_directory, "planted")
        change_records(segment, 9)
        flip_bit(segment, 30)
        drop_batch(segment, 50)
        cluster.start(2)
        for partition in (0, 1):
            cluster.until(lambda: 2 in cluster.isr("planted", partition))  # noqa: B023  # called in this round
            wait_until_committed(cluster, "planted", 2, RECORDS, partition)
        yield cluster


def address(cluster: Cluster) -> tuple[str, int]:
    host, port = cluster.bootstrap.split(",")[0].split(":")
    return host, int(port)


def test_ranges_on_executors_find_what_is_planted(spark: "SparkSession", replicated: Cluster) -> None:
    client = ClientOptions((address(replicated),))
    planned = call(client, lambda cluster: partitions_to_verify(cluster, lambda name: name == "planted"))
    shown: list[tuple[int, int]] = []
    checks = verify(
        spark,
        client,
        planned.partitions,
        VerifyOptions(),
        offsets_per_task=25,
        on_progress=lambda done, total: shown.append((done, total)),
    )
    assert [(check.position, check.is_compared) for check in checks] == [(RECORDS, True), (RECORDS, True)]
    first, second = checks
    assert {(each.kind, each.first_offset) for each in first.differences.found} >= {(DifferenceKind.CORRUPT, 30)}
    assert {each.first_offset for each in first.differences.found} == {9, 30, 50}
    assert not second.differences
    assert shown == [(0, 2 * RECORDS), (2 * RECORDS, 2 * RECORDS)]


def test_every_replicas_batches_are_rows(spark: "SparkSession", replicated: Cluster) -> None:
    options = {"kafka.bootstrap.servers": replicated.bootstrap, "subscribe": "planted"}
    batches = replica_batches(spark, options).cache()
    assert batches.count() == 6 * RECORDS - 1
    unlike = (
        batches.groupBy("topic", "partition", "baseOffset", "lastOffset")
        .agg({"checksum": "approx_count_distinct", "replica": "count", "isCorrupt": "max"})
        .where("`approx_count_distinct(checksum)` > 1 or `count(replica)` < 3 or `max(isCorrupt)`")
    )
    assert sorted((row["partition"], row["baseOffset"]) for row in unlike.collect()) == [(0, 9), (0, 30), (0, 50)]
    row = batches.where("partition = 1 and replica = 1 and baseOffset = 7").collect()[0]
    assert (row["lastOffset"], row["recordCount"], row["isCorrupt"]) == (7, 1, False)
    assert row["sizeBytes"] > 61 and row["maxTimestamp"] is not None
    batches.unpersist()


def test_options_that_name_no_topic_are_an_error(spark: "SparkSession", replicated: Cluster) -> None:
    with pytest.raises(OptionError):
        replica_batches(spark, {"kafka.bootstrap.servers": replicated.bootstrap})


@pytest.mark.long
def test_the_command_on_spark(replicated: Cluster, spark_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "klamm", "verify", "replicas", "--spark", "--master", "local[2]", "--json"]
    where = ["--bootstrap-server", replicated.bootstrap, "--topic", "planted"]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [each["verdict"] for each in found["partitions"]] == ["different", "equal"]
