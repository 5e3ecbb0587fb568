"""Brokers on a member of the ZooKeeper ensemble that lags behind: what they hear from others is true at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.broker.metadata.metadata_cache import MetadataSnapshot
from klamm.broker.start.broker import Broker
from klamm.client.cluster import ClusterClient
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import request_class
from klamm.protocol.vocabulary import ConfigResourceType
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.workload import create_topic, delete_topic

CONFIGS = {"cleanup.policy": "compact", "min.insync.replicas": "3"}


@asynccontextmanager
async def lagging_cluster(world: World) -> AsyncIterator[tuple[SimulatedCluster, ClusterClient]]:
    """Broker 0 is the controller; 1 and 2 are served by a member that hears of nothing new by itself."""
    cluster = SimulatedCluster(world, lagging=(1, 2))
    await cluster.zookeeper.start()
    for broker in cluster.brokers.values():
        broker.start()
        await broker.until_up()
    assert cluster.controller_id() == 0
    await everywhere(cluster, lambda snapshot: len(snapshot.brokers) == 3)
    client = cluster.client()
    await world.node("client").run(client.refresh_metadata())
    cluster.zookeeper.lag.is_held = True
    yield cluster, client
    await world.node("client").run(client.close())
    await cluster.close()


def brokers(cluster: SimulatedCluster) -> list[Broker]:
    return [each.broker for each in cluster.brokers.values() if each.broker is not None]


async def known(cluster: SimulatedCluster, topic: str) -> None:
    """Returns when all brokers have heard of the topic."""
    await everywhere(cluster, lambda snapshot: topic in snapshot.topics)


async def everywhere(cluster: SimulatedCluster, is_told: Callable[[MetadataSnapshot], bool]) -> None:
    """Returns when all brokers have been told so."""
    await on_all_brokers(cluster, lambda broker: is_told(broker.parts.metadata_cache.snapshot))


async def on_all_brokers(cluster: SimulatedCluster, holds: Callable[[Broker], bool]) -> None:
    for _ in range(1000):
        if all(map(holds, brokers(cluster))):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not all brokers have come to it")


async def a_topic_has_its_configuration_from_the_beginning(world: World) -> None:
    async with lagging_cluster(world) as (cluster, client):
        await world.node("client").run(create_topic(client, "t", partitions=3, replication_factor=3, configs=CONFIGS))
        await known(cluster, "t")
        assert [broker.parts.topic_configs.of("t").overrides for broker in brokers(cluster)] == [CONFIGS] * 3


async def a_topic_that_is_created_again_has_nothing_of_the_former_one(world: World) -> None:
    async with lagging_cluster(world) as (cluster, client):
        node = world.node("client")
        await node.run(create_topic(client, "t", partitions=1, replication_factor=3, configs={"retention.ms": "1"}))
        await known(cluster, "t")
        await node.run(delete_topic(client, "t"))
        await cluster.until(lambda: cluster.state.topics() == [])
        await node.run(create_topic(client, "t", partitions=1, replication_factor=3, configs=CONFIGS))
        await known(cluster, "t")
        assert [broker.parts.topic_configs.of("t").overrides for broker in brokers(cluster)] == [CONFIGS] * 3


async def everybody_knows_where_groups_are_kept(world: World) -> None:
    async with lagging_cluster(world) as (cluster, client):
        find = request_class(ApiKey.FIND_COORDINATOR)
        await world.node("client").run(ask(client, 0, ApiKey.FIND_COORDINATOR, find(key="g", key_type=0)))
        await known(cluster, "__consumer_offsets")
        # A broker reads the number of partitions after it has heard of the topic.
        await on_all_brokers(cluster, lambda broker: broker.parts.offsets_topic.partition_for("g") != -1)
        assert len({broker.parts.offsets_topic.partition_for("g") for broker in brokers(cluster)}) == 1
        assert [broker.parts.topic_configs.of("__consumer_offsets").cleanup_policy for broker in brokers(cluster)] == [
            ("compact",)
        ] * 3


async def a_configuration_is_altered_and_described_by_whoever_is_asked(world: World) -> None:
    async with lagging_cluster(world) as (cluster, client):
        node = world.node("client")
        await node.run(create_topic(client, "t", partitions=1, replication_factor=3))
        await known(cluster, "t")
        for broker_id, value in enumerate(("1000", "2000", "3000")):
            assert await node.run(alter(client, broker_id, "t", {"retention.ms": value})) is ErrorCode.NONE
            for asked in (0, 1, 2):
                assert (await node.run(describe(client, asked, "t")))["retention.ms"] == value


async def a_fresh_topic_is_not_taken_for_a_deleted_one(world: World) -> None:
    """The brokers have heard of it from the controller alone, and look for topics that are gone."""
    async with lagging_cluster(world) as (cluster, client):
        for name in ("t", "u", "v"):
            await world.node("client").run(create_topic(client, name, partitions=1, replication_factor=1))
            await known(cluster, name)
            for broker in brokers(cluster):
                assert broker.parts.metadata_updates is not None
                broker.parts.metadata_updates.new_session()
            await asyncio.sleep(1)
            assert all(name in broker.parts.metadata_cache.snapshot.topics for broker in brokers(cluster))


async def ask(client: ClusterClient, broker_id: int, api_key: ApiKey, request: Any) -> Any:
    """The answer of this broker."""
    await client.refresh_metadata(())
    return await (await client.connection_to(broker_id)).send(api_key, lambda version: request)


async def alter(client: ClusterClient, broker_id: int, topic: str, configs: Mapping[str, str]) -> ErrorCode:
    request = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    resource = request.AlterConfigsResource
    entries = [resource.AlterableConfig(name=k, config_operation=0, value=v) for k, v in configs.items()]
    resources = [resource(resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=entries)]
    body = request(resources=resources, validate_only=False)
    response = await ask(client, broker_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
    return ErrorCode(response.responses[0].error_code)


async def describe(client: ClusterClient, broker_id: int, topic: str) -> dict[str, Any]:
    request = request_class(ApiKey.DESCRIBE_CONFIGS)
    resource = request.DescribeConfigsResource
    resources = [resource(resource_type=ConfigResourceType.TOPIC, resource_name=topic, configuration_keys=None)]
    response = await ask(client, broker_id, ApiKey.DESCRIBE_CONFIGS, request(resources=resources))
    return {config.name: config.value for config in response.results[0].configs}


@pytest.mark.parametrize(
    "scenario",
    [
        a_topic_has_its_configuration_from_the_beginning,
        a_topic_that_is_created_again_has_nothing_of_the_former_one,
        everybody_knows_where_groups_are_kept,
        a_configuration_is_altered_and_described_by_whoever_is_asked,
        a_fresh_topic_is_not_taken_for_a_deleted_one,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    world = World(1)
    world.run(scenario(world), time_limit_s=60)
