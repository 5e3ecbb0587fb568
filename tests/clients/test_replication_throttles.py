"""Replication throttles on brokers as processes: a reassignment copies as many bytes as its throttle says."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.configs import ConfigResource, incremental_alter_configs
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.processes.helper import Helper
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType, TopicPartition
from klamm.testing import Cluster
from support.spark.producing import produce

TOPIC, PARTITIONS = "moved", 4
RATE = 4_000_000
SIZE_BYTES = 60_000_000
RECORD_BYTES = 10_000
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
MOVED = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
SIDES = {
    "leader": {"leader.replication.throttled.replicas": ",".join(f"{number}:0" for number in range(PARTITIONS))},
    "follower": {"follower.replication.throttled.replicas": "*"},
}


def ask(cluster: Cluster, request: Callable[[ClusterClient], Awaitable[Mapping[Any, object]]]) -> None:
    """One request of an administrator, which must not fail."""

    async def run() -> None:
        options = ClientOptions(parse_addresses("bootstrap", cluster.bootstrap))
        client = make_client(options, SystemEnvironment().random)
        try:
            results = await request(client)
        finally:
            await client.close()
        assert not [error for error in results.values() if isinstance(error, Exception)], results

    asyncio.run(run())


def configure(cluster: Cluster, configs: Mapping[ConfigResource, Mapping[str, str | None]]) -> None:
    changes = {
        resource: [
            AlterConfigOp(key, value, OpType.DELETE if value is None else OpType.SET) for key, value in of.items()
        ]
        for resource, of in configs.items()
    }
    ask(cluster, lambda client: incremental_alter_configs(client, changes))


def copied_bytes(data: Path) -> int:
    logs = [file for number in range(PARTITIONS) for file in (data / f"{TOPIC}-{number}").glob("*.log")]
    return sum(log.stat().st_size for log in logs)


@pytest.fixture
def filled(klamm_helper: Helper) -> Iterator[Cluster]:
    """Two brokers; broker 0 has all replicas."""
    with Cluster(2, helper=klamm_helper) as cluster:
        assignment = {number: [0] for number in range(PARTITIONS)}
        ask(cluster, lambda client: create_topics(client, [NewTopic(TOPIC, replica_assignment=assignment)]))
        cluster.until(lambda: all(cluster.leader(TOPIC, number) == 0 for number in range(PARTITIONS)))
        values = [os.urandom(RECORD_BYTES) for _ in range(100)]
        records = [
            {"value": values[number % 100], "partition": number % PARTITIONS}
            for number in range(SIZE_BYTES // RECORD_BYTES)
        ]
        produce(cluster.bootstrap, TOPIC, records)
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("sides", [("leader",), ("follower",), ("leader", "follower")], ids="-".join)
def test_ten_seconds_of_a_reassignment_copy_what_the_throttle_says(filled: Cluster, sides: tuple[str, ...]) -> None:
    data = filled.data_directory(1)
    replicas = {key: value for side in sides for key, value in SIDES[side].items()}
    rates = {key: str(RATE) for key in RATES if key.split(".")[0] in sides}
    configure(filled, {BROKERS: rates, MOVED: replicas})
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    ask(filled, lambda client: alter_partition_reassignments(client, {each: [0, 1] for each in partitions}))
    filled.until(lambda: copied_bytes(data) > 0)
    began = time.monotonic()
    time.sleep(10)
    copied, took = copied_bytes(data), time.monotonic() - began
    assert 0.9 <= copied / (RATE * took) <= 1.1
    # Without the throttle the rest follows at once.
    configure(filled, {BROKERS: dict.fromkeys(rates), MOVED: dict.fromkeys(replicas)})
    filled.until(lambda: all(sorted(filled.isr(TOPIC, number)) == [0, 1] for number in range(PARTITIONS)), 10)
    assert copied_bytes(data) >= SIZE_BYTES
