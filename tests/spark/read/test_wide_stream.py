"""A stream over thousands of partitions, whose brokers die one after another: every record once."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.spark.options import write_options
from klamm.spark.write.writing import record_writer
from klamm.testing.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3000
# Records of each partition between two deaths.
RECORDS = 3


def write(bootstrap: str, first: int) -> None:
    """The next records of each partition, whose values are their offsets."""
    options = write_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"})
    numbers = np.repeat(np.arange(PARTITIONS, dtype=np.int32), RECORDS)
    values = [b"%d" % offset for _ in range(PARTITIONS) for offset in range(first, first + RECORDS)]
    with record_writer(options) as writer:
        writer.write(pa.record_batch({"partition": numbers, "value": pa.array(values, pa.binary())}))
        writer.flush()


def knows_topic(address: str) -> bool:
    """Whether the broker at the address knows every partition."""
    topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=120).topics
    return "t" in topics and len(topics["t"].partitions) == PARTITIONS


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_stream_over_three_thousand_partitions_outlives_its_brokers(
    spark: "SparkSession",
    klamm_cluster_factory: Callable[..., Cluster],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    cluster = klamm_cluster_factory(3, zookeeper_session_timeout_ms=6000, properties={"log.retention.ms": -1})
    try:
        cluster.create_topic("t", partitions=PARTITIONS, replication_factor=3)
    except KafkaError as error:
        # A slow machine takes longer than the request.
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
    # A query begins with the error of a topic that the broker asked does not know.
    cluster.until(lambda: all(map(knows_topic, cluster.bootstrap.split(","))), timeout=200)
    batches: dict[int, pa.Table] = {}

    def keep(frame: Any, batch: int) -> None:
        batches[batch] = frame.toArrow()

    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
    frame = spark.readStream.format("klamm").schema("partition INT, offset BIGINT, value BINARY").options(**options)
    writer = frame.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    deadline_s = time.monotonic() + 60 * pytestconfig.getoption("--stream-minutes")
    rounds = 0
    while rounds < 3 or time.monotonic() < deadline_s:
        cluster.kill(rounds % 3)
        write(cluster.bootstrap, rounds * RECORDS)
        rounds += 1
        wanted = rounds * RECORDS * PARTITIONS
        cluster.until(lambda: read(batches) >= wanted or query.exception(), timeout=300)  # noqa: B023  # in this round
        assert not query.exception(), str(query.exception())
        cluster.start((rounds - 1) % 3)
        cluster.until(lambda: not cluster.under_replicated(), timeout=120)
    query.stop()
    found = pa.concat_tables(batches.values()).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert found["partition"].to_numpy().tolist() == np.repeat(np.arange(PARTITIONS), rounds * RECORDS).tolist()
    assert found["offset"].to_numpy().tolist() == np.tile(np.arange(rounds * RECORDS), PARTITIONS).tolist()
    assert [int(value) for value in found["value"].to_pylist()] == found["offset"].to_pylist()


def read(batches: dict[int, pa.Table]) -> int:
    return sum(batch.num_rows for batch in list(batches.values()))
