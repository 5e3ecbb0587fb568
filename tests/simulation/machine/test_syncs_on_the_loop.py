"""Appends that sync their log (`flush.messages`) leave the loop to others after each, however they were asked for.

The step meter of the simulator ends a run in which one step syncs one log after another.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.client.cluster import ClusterClient
from klamm.net.client import Connection
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import ACKS_LEADER
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.workload import create_topic, delete_topic

TOPIC = "events"
PARTITIONS = 30
TIMEOUT_MS = 20_000


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[tuple[ClusterClient, Connection]]:
    """A connection to a cluster's only broker, whose logs are all synced with each append."""
    cluster = SimulatedCluster(
        world, brokers=1, properties={"log.flush.interval.messages": "1", "offsets.topic.replication.factor": "1"}
    )
    await cluster.start()
    client = cluster.client()
    await create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=1)
    yield client, await client.connection_to(0)
    await client.close()
    await cluster.close()


async def produce(connection: Connection, partitions: list[int]) -> None:
    batch = build_batch([Record(None, b"value", 0)])
    request = ProduceRequest.of(None, ACKS_LEADER, TIMEOUT_MS, [(TOPIC, [(number, batch) for number in partitions])])
    response = await connection.send(ApiKey.PRODUCE, lambda _version: request, timeout_ms=TIMEOUT_MS)
    codes = {partition.error_code for topic in response.responses for partition in topic.partition_responses}
    assert codes == {ErrorCode.NONE}


async def one_produce_to_many_logs(world: World) -> None:
    async with connected(world) as (_, connection):
        await produce(connection, list(range(PARTITIONS)))


async def many_produces_one_after_another_on_one_connection(world: World) -> None:
    async with connected(world) as (_, connection):
        await asyncio.gather(*(produce(connection, [number]) for number in range(PARTITIONS)))


async def many_produces_to_two_logs_each(world: World) -> None:
    async with connected(world) as (_, connection):
        await asyncio.gather(*(produce(connection, [number, 29 - number]) for number in range(PARTITIONS // 2)))


async def commit(client: ClusterClient, connection: Connection, group: str) -> None:
    """Asks until the group's coordinator has loaded its partition."""
    find = request_class(ApiKey.FIND_COORDINATOR)
    request = OffsetCommitRequest.of(group, {(TOPIC, 0): 1})
    while True:
        await client.send_to_any(ApiKey.FIND_COORDINATOR, lambda version: find(key=group, key_type=0))
        response = await connection.send(ApiKey.OFFSET_COMMIT, lambda _version: request, timeout_ms=TIMEOUT_MS)
        (error_code,) = response.error_codes().values()
        if error_code == ErrorCode.NONE:
            return
        await asyncio.sleep(0.1)


async def offsets_of_many_groups_go_with_their_topic(world: World) -> None:
    async with connected(world) as (client, connection):
        for number in range(40):
            await commit(client, connection, f"group-{number}")
        await delete_topic(client, TOPIC)
        await asyncio.sleep(10)


SCENARIOS: list[Callable[[World], Coroutine[Any, Any, None]]] = [
    one_produce_to_many_logs,
    many_produces_one_after_another_on_one_connection,
    many_produces_to_two_logs_each,
    offsets_of_many_groups_go_with_their_topic,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_logs_are_not_synced_one_after_another_in_one_step(scenario) -> None:
    world = World(seed=1)

    async def in_client() -> None:
        await world.node("client").run(scenario(world))

    world.run(in_client(), time_limit_s=600)
