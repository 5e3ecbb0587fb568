"""The cockpit's documents of Apache Kafka: 2.8.2 with ZooKeeper, 4.3 in KRaft mode."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from klamm.access.clients import command_options
from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import make_client
from klamm.cockpit.live.cluster import open_cluster
from klamm.cockpit.live.document import KAFKA_NUMBERS, KAFKA_SHOWS_LESS, KRAFT_SHOWS_LESS
from klamm.cockpit.partition_map import PartitionMap
from support.oracles import RealKafka, RealKraft


def look(bootstrap: str) -> tuple[Mapping[str, Any], PartitionMap]:
    """The document Now and the map of partitions."""

    async def run() -> tuple[Mapping[str, Any], PartitionMap]:
        faults: list[BaseException] = []
        cluster = await open_cluster(
            make_client(command_options(bootstrap, None), SystemEnvironment().random), None, faults.append
        )
        try:
            return await cluster.now(), await cluster.map()
        finally:
            await cluster.close()
            assert faults == []

    return asyncio.run(run())


@pytest.mark.long
def test_a_broker_of_kafka_2_8_2_shows_what_the_protocol_and_the_znodes_hold(real_kafka: RealKafka) -> None:
    now, partitions = look(real_kafka.bootstrap)
    assert now["cluster"]["kind"] == "kafka-zookeeper"
    assert now["cluster"]["version"] == "2.8-IV1"
    controller = now["controller"]
    assert (controller["id"], controller["status"], controller["why_not"]) == (0, None, KAFKA_SHOWS_LESS)
    assert controller["epoch"] >= 1
    assert now["events"] is None
    assert now["states"]["why_not"] == KAFKA_SHOWS_LESS
    [broker] = [each for each in now["brokers"] if each["alive"]]
    assert (broker["id"], broker["is_controller"], broker["why_not"]) == (0, True, KAFKA_NUMBERS)
    assert broker["epoch"] > 0
    assert 0 in partitions.brokers
    assert len(partitions.cells) == partitions.row_count * len(partitions.brokers)


@pytest.mark.long
def test_brokers_of_kafka_4_in_kraft_mode_show_what_the_protocol_holds(real_kraft: RealKraft) -> None:
    now, partitions = look(real_kraft.bootstrap)
    assert now["cluster"]["kind"] == "kafka-kraft"
    assert now["controller"]["id"] is None
    assert now["why_not"] == now["controller"]["why_not"] == KRAFT_SHOWS_LESS
    assert [(each["id"], each["alive"]) for each in now["brokers"]] == [(1, True), (2, True), (3, True)]
    assert now["live"]["state"] == "live"
    assert {1, 2, 3} <= set(partitions.brokers)
