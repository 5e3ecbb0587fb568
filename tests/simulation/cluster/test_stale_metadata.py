"""Brokers that were not there when something ended, in a simulated cluster: what they do not hear, they must find out.

A controller reports the end of a leadership or of a topic once, and only to brokers that are there. A broker that comes
back later gets the present state, and must conclude from it what has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from klamm.broker.metadata_updates import ComparedState
from klamm.broker.start.broker import Broker
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets, list_consumer_group_offsets
from klamm.client.fan_out import checked
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.net.client import connect
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, UNKNOWN_OFFSET, TopicPartition
from klamm.replication.partition.partition import Partition
from klamm.simulation.cluster.cluster import BROKER_PORT, CLIENT_OPTIONS, ZOOKEEPER_PORT, SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import converge, replica_bytes
from klamm.simulation.workloads.workload import delete_topic
from klamm.znodes.cluster import CONTROLLER_PATH
from klamm.znodes.topics import topic_path
from klamm.zookeeper.client import ZooKeeperClient
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.seeds import seeds

TOPIC = "t"
OFFSETS_PARTITIONS = 3
BACK_OFF_S = 0.1
# Enough for a session to be opened, and for everything that a controller says then.
SETTLED_S = 30


@asynccontextmanager
async def quiet_cluster(
    world: World, brokers: int = 4, protocol: str = "2.8", **properties: str
) -> AsyncIterator[tuple[SimulatedCluster, ClusterClient]]:
    """A cluster without any work to do; at the end it is healed and must become whole."""
    names = {key.replace("_", "."): value for key, value in properties.items()}
    cluster = SimulatedCluster(world, brokers=brokers, protocols=(protocol,), properties=names)
    await cluster.start()
    client = cluster.client()
    yield cluster, client
    await cluster.heal()
    await converge(cluster)
    await client.close()
    await cluster.close()


async def create(client: ClusterClient, name: str, *replicas: list[int], **configs: str) -> None:
    """Creates a topic with these replicas of its partitions."""
    assignment = dict(enumerate(replicas))
    topic = NewTopic(name, replica_assignment=assignment, configs={k.replace("_", "."): v for k, v in configs.items()})
    checked((await create_topics(client, [topic], timeout_ms=10_000))[name])


async def reassign(client: ClusterClient, name: str, replicas: list[int]) -> None:
    """Starts to move partition 0."""
    results = await alter_partition_reassignments(client, {TopicPartition(name, 0): replicas}, timeout_ms=10_000)
    assert list(results.values()) == [None]


async def commit(client: ClusterClient, group: str, offset: int) -> None:
    results = await alter_consumer_group_offsets(client, group, {TopicPartition(TOPIC, 0): OffsetAndMetadata(offset)})
    assert list(results.values()) == [None]


async def committed(client: ClusterClient, group: str) -> int:
    """The committed offset; -1 when there is none."""
    offsets = checked((await list_consumer_group_offsets(client, [group]))[group])
    found = offsets.get(TopicPartition(TOPIC, 0))
    return UNKNOWN_OFFSET if found is None else found.offset


def coordinator(cluster: SimulatedCluster, group: str) -> int:
    return cluster.leader(GROUP_METADATA_TOPIC_NAME, partition_for(group, OFFSETS_PARTITIONS))


def broker_of(cluster: SimulatedCluster, broker_id: int) -> Broker:
    broker = cluster.brokers[broker_id].broker
    assert broker is not None
    return broker


def hosted(cluster: SimulatedCluster, broker_id: int) -> Partition | None:
    """Partition 0 of the topic, as the broker has it."""
    return broker_of(cluster, broker_id).parts.replica_manager.hosted_partition((TOPIC, 0))


def known_partitions(cluster: SimulatedCluster, broker_id: int) -> list[int]:
    """The topic's partitions of which the broker tells clients."""
    return list(broker_of(cluster, broker_id).parts.metadata_cache.snapshot.topics.get(TOPIC, {}))


async def in_time(is_true: Callable[[], bool]) -> None:
    """Waits for what is not seen in znodes."""
    while True:
        if is_true():
            return
        await asyncio.sleep(BACK_OFF_S)


async def without_session(cluster: SimulatedCluster, broker_id: int) -> None:
    """Cuts a broker off from ZooKeeper, and from nobody else, until its session has expired."""
    cluster.isolate(broker_id, from_zookeeper=True)
    await cluster.until(lambda: broker_id not in cluster.state.live_brokers())


async def back_again(cluster: SimulatedCluster) -> None:
    cluster.world.network.heal_all()
    await cluster.until(lambda: cluster.state.live_brokers() == list(cluster.brokers))
    await asyncio.sleep(SETTLED_S)


async def ask_broker(cluster: SimulatedCluster, broker_id: int, api_key: ApiKey, request: Any) -> int:
    """The error that this broker answers for partition 0, whichever broker leads."""
    connection = await connect(cluster.brokers[broker_id].node.name, BROKER_PORT, CLIENT_OPTIONS)
    answer = await connection.send(api_key, lambda _version: request)
    connection.close()
    if api_key is ApiKey.PRODUCE:
        return int(answer.responses[0].partition_responses[0].error_code)
    return int(result_of(answer).error_code)


async def produce_to(cluster: SimulatedCluster, broker_id: int) -> int:
    """The answer to a produce with acks=1."""
    batch = build_batch([Record(key=None, value=b"of nobody else", timestamp_ms=1000)])
    request = ProduceRequest.of(None, 1, 1000, [(TOPIC, [(0, bytes(batch))])])
    return await ask_broker(cluster, broker_id, ApiKey.PRODUCE, request)


async def fetch_from(cluster: SimulatedCluster, broker_id: int) -> int:
    want = to_fetch(0, 0, 1 << 20)
    request = fetch_request((TOPIC, [want]), max_wait_ms=100, min_bytes=1)
    return await ask_broker(cluster, broker_id, ApiKey.FETCH, request)


async def moved_away(world: World, cluster: SimulatedCluster, client: ClusterClient) -> int:
    """The leader of partition 0 loses its session, and the partition is moved to the other brokers meanwhile.

    Returns the former leader, which still takes itself for the leader.
    """
    leader = next(id_ for id_ in cluster.brokers if id_ != cluster.controller_id())
    others = [id_ for id_ in cluster.brokers if id_ != leader]
    await create(client, TOPIC, [leader, *others[:2]])
    await in_time(lambda: known_partitions(cluster, leader) == [0])
    assert await produce_to(cluster, leader) == ErrorCode.NONE
    await without_session(cluster, leader)
    await cluster.until(lambda: cluster.leader(TOPIC, 0) not in (leader, -1))
    await reassign(client, TOPIC, others)
    await cluster.until(lambda: set(cluster.state.replicas(TOPIC)[0]) == set(others))
    await cluster.until(lambda: set(cluster.isr(TOPIC, 0)) == set(others))
    assert await produce_to(cluster, leader) == ErrorCode.NONE, "it cannot know yet"
    return leader


# -- scenarios ------------------------------------------------------------------------------------------------------


async def a_leader_hears_that_it_leads_no_more(world: World) -> None:
    async with quiet_cluster(world) as (cluster, client):
        former = await moved_away(world, cluster, client)
        await back_again(cluster)
        assert await produce_to(cluster, former) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await fetch_from(cluster, former) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert replica_bytes(cluster.brokers[former], (TOPIC, 0)), "the records stay"
        # It may become a replica again.
        await reassign(client, TOPIC, [former, cluster.leader(TOPIC, 0)])
        await cluster.until(lambda: set(cluster.isr(TOPIC, 0)) == set(cluster.state.replicas(TOPIC)[0]))
        await cluster.until(lambda: former in cluster.isr(TOPIC, 0))


async def a_leader_hears_that_its_topic_is_gone(world: World) -> None:
    async with quiet_cluster(world) as (cluster, client):
        former = await moved_away(world, cluster, client)
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await back_again(cluster)
        assert known_partitions(cluster, former) == []
        assert await produce_to(cluster, former) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert replica_bytes(cluster.brokers[former], (TOPIC, 0)), "the records stay"


async def a_new_topic_has_its_own_configuration(world: World) -> None:
    """Also where a replica of the former topic of that name is left."""
    async with quiet_cluster(world) as (cluster, client):
        former = await moved_away(world, cluster, client)
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await back_again(cluster)
        assert hosted(cluster, former) is not None, "there is nothing left"
        await create(client, TOPIC, [former], max_message_bytes="12345")
        await cluster.until(lambda: cluster.leader(TOPIC, 0) == former)
        await asyncio.sleep(SETTLED_S)
        partition = hosted(cluster, former)
        assert partition is not None and partition.is_leader
        assert partition.topic_config.max_message_bytes == partition.log.config.max_message_bytes == 12345


async def deleted_topics_are_forgotten(world: World) -> None:
    """A broker without a session does not hear of a deletion; it has no replica of the topic."""
    async with quiet_cluster(world) as (cluster, client):
        away = next(id_ for id_ in cluster.brokers if id_ != cluster.controller_id())
        others = [id_ for id_ in cluster.brokers if id_ != away]
        await create(client, TOPIC, others, others, others)
        await in_time(lambda: known_partitions(cluster, away) == [0, 1, 2])
        await without_session(cluster, away)
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await back_again(cluster)
        assert known_partitions(cluster, away) == []


async def topics_that_were_created_anew_are_known_as_they_are(world: World, protocol: str = "2.8") -> None:
    """As before, but there is another topic of that name meanwhile, with fewer partitions."""
    async with quiet_cluster(world, protocol=protocol) as (cluster, client):
        away = next(id_ for id_ in cluster.brokers if id_ != cluster.controller_id())
        others = [id_ for id_ in cluster.brokers if id_ != away]
        await create(client, TOPIC, others, others, others)
        await in_time(lambda: known_partitions(cluster, away) == [0, 1, 2])
        await without_session(cluster, away)
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await create(client, TOPIC, others)
        await back_again(cluster)
        assert known_partitions(cluster, away) == [0]


async def topics_that_were_created_anew_under_an_older_protocol(world: World) -> None:
    """Topics have no ids."""
    await topics_that_were_created_anew_are_known_as_they_are(world, "2.7")


async def a_deletion_that_a_controller_takes_along(world: World) -> None:
    """A broker that has its session, but that the controller does not reach, when a topic is deleted. The controller
    dies with what it had to tell."""
    async with quiet_cluster(world) as (cluster, client):
        controller = cluster.controller_id()
        away = next(id_ for id_ in cluster.brokers if id_ != controller)
        others = [id_ for id_ in cluster.brokers if id_ != away]
        await create(client, TOPIC, others)
        await in_time(lambda: known_partitions(cluster, away) == [0])
        cluster.world.network.cut(cluster.brokers[controller].node.name, cluster.brokers[away].node.name)
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        cluster.brokers[controller].kill()
        await cluster.until(lambda: cluster.controller_id() not in (controller, -1))
        cluster.brokers[controller].start()
        await back_again(cluster)
        assert known_partitions(cluster, away) == []


async def a_leader_that_looks_while_a_deletion_waits_for_a_reassignment(world: World) -> None:
    """It knows from the controller that the topic is being deleted, and leads all the same: the reassignment cannot end
    without it."""
    async with quiet_cluster(world, min_insync_replicas="1") as (cluster, client):
        leader, added = [id_ for id_ in cluster.brokers if id_ != cluster.controller_id()][:2]
        await create(client, TOPIC, [leader])
        cluster.world.network.cut(cluster.brokers[leader].node.name, cluster.brokers[added].node.name)
        await reassign(client, TOPIC, [added, leader])
        await delete_topic(client, TOPIC)
        cluster.brokers[leader].kill()
        cluster.brokers[leader].start()
        await cluster.brokers[leader].until_up()
        await asyncio.sleep(SETTLED_S)
        assert known_partitions(cluster, leader) == []
        broker_of(cluster, leader).parts.metadata_updates.look_for_deleted_topics(ComparedState.NAMES)
        await asyncio.sleep(SETTLED_S)
        cluster.world.network.heal_all()
        await cluster.until(lambda: TOPIC not in cluster.state.topics())


async def offsets_of_a_topic_whose_deletion_waits_for_a_broker(world: World) -> None:
    """The coordinator dies just before the deletion. Its successor loads the offsets when all have been told of the
    deletion; it is told again when the deletion goes on, but knows the topic no more."""
    async with quiet_cluster(world, brokers=3) as (cluster, client):
        await create(client, TOPIC, [0, 1, 2])
        await commit(client, "any", 7)
        groups = [f"group-{number}" for number in range(20)]
        group = next(one for one in groups if coordinator(cluster, one) != cluster.controller_id())
        await commit(client, group, 7)
        dead = coordinator(cluster, group)
        cluster.brokers[dead].kill()
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: coordinator(cluster, group) not in (dead, -1))
        await asyncio.sleep(SETTLED_S)
        assert TOPIC in cluster.state.topics()
        cluster.brokers[dead].start()
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await create(client, TOPIC, [0, 1, 2])
        assert await committed(client, group) == -1


async def offsets_of_a_topic_that_is_deleted_without_a_coordinator(world: World) -> None:
    """The only replica of the groups is down during all of the deletion."""
    async with quiet_cluster(world, offsets_topic_replication_factor="1", min_insync_replicas="1") as (cluster, client):
        await committed(client, "any")  # This creates the topic of the offsets.
        group, dead = next(
            (one, coordinator(cluster, one))
            for one in (f"group-{number}" for number in range(20))
            if coordinator(cluster, one) != cluster.controller_id()
        )
        others = [id_ for id_ in cluster.brokers if id_ != dead]
        await create(client, TOPIC, others)
        await commit(client, group, 7)
        cluster.brokers[dead].kill()
        await cluster.until(lambda: dead not in cluster.state.live_brokers())
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        cluster.brokers[dead].start()
        await cluster.brokers[dead].until_up()
        await asyncio.sleep(SETTLED_S)
        await create(client, TOPIC, others)
        assert await committed(client, group) == -1


async def offsets_of_a_topic_that_gets_a_coordinator_during_its_deletion(world: World) -> None:
    """The next coordinator has been told of the deletion when it loads the offsets, and the topic is still there."""
    async with quiet_cluster(world) as (cluster, client):
        controller = cluster.controller_id()
        await committed(client, "any")  # This creates the topic of the offsets.
        group, slow = next(
            (one, id_)
            for one in (f"group-{number}" for number in range(50))
            for id_ in cluster.brokers
            if coordinator(cluster, one) != controller != id_
            and id_ not in cluster.state.replicas(GROUP_METADATA_TOPIC_NAME)[partition_for(one, OFFSETS_PARTITIONS)]
        )
        await create(client, TOPIC, [slow, controller])
        await commit(client, group, 7)
        cluster.world.network.cut(cluster.brokers[controller].node.name, cluster.brokers[slow].node.name)
        await delete_topic(client, TOPIC)
        await in_time(lambda: known_partitions(cluster, controller) == [])
        dead = coordinator(cluster, group)
        cluster.brokers[dead].kill()
        await cluster.until(lambda: coordinator(cluster, group) not in (dead, -1))
        await asyncio.sleep(SETTLED_S)
        assert TOPIC in cluster.state.topics()
        cluster.world.network.heal_all()
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        await create(client, TOPIC, [slow, controller])
        assert await committed(client, group) == -1
        cluster.brokers[dead].start()


async def a_topic_that_was_created_anew(world: World, place: int) -> None:
    """Broker 0 was dead, has the former topic's log, and is at this place among the new topic's replicas; it does not
    hear that they are new, because the controller dies."""
    async with quiet_cluster(world) as (cluster, client):
        broker, zookeeper = cluster.brokers[0], operator(cluster)
        await zookeeper.start()
        await create(client, TOPIC, [0, 1], retention_ms="-1")
        await in_time(lambda: hosted(cluster, 0) is not None)
        assert await produce_to(cluster, 0) == ErrorCode.NONE
        broker.kill()
        await cluster.until(lambda: 0 not in cluster.state.live_brokers())
        await reassign(client, TOPIC, [1, 2])
        await cluster.until(lambda: sorted(cluster.state.replicas(TOPIC)[0]) == [1, 2])
        await delete_topic(client, TOPIC)
        await cluster.until(lambda: TOPIC not in cluster.state.topics())
        broker.start()
        await cluster.until(lambda: cluster.state.live_brokers() == list(cluster.brokers))
        await asyncio.sleep(SETTLED_S)
        assert replica_bytes(broker, (TOPIC, 0))
        if cluster.controller_id() == 0:
            await zookeeper.delete(CONTROLLER_PATH)
            await cluster.until(lambda: cluster.controller_id() not in (0, -1))
        controller = cluster.controller_id()
        others = [id_ for id_ in cluster.brokers if id_ not in (0, controller)]
        world.network.cut_one_way(cluster.brokers[controller].node.name, broker.node.name)
        await create(client, TOPIC, [*others[:place], 0, *others[place:]])
        cluster.brokers[controller].kill()
        await cluster.until(lambda: cluster.controller_id() not in (controller, -1))
        # Before any leader would take it out for its lag.
        await cluster.until(lambda: cluster.leader(TOPIC, 0) in others and 0 not in cluster.isr(TOPIC, 0))
        world.network.heal_all()
        await cluster.until(lambda: 0 in cluster.isr(TOPIC, 0))
        assert replica_bytes(broker, (TOPIC, 0)) == b""
        cluster.brokers[controller].start()
        await zookeeper.close()


async def a_leader_whose_log_is_of_a_topic_that_was_deleted(world: World) -> None:
    await a_topic_that_was_created_anew(world, 0)


async def a_follower_whose_log_is_of_a_topic_that_was_deleted(world: World) -> None:
    await a_topic_that_was_created_anew(world, 1)


async def a_topic_whose_id_has_changed(world: World) -> None:
    """As when a tool or a controller from before 2.8 has written its znode without the id. The records are still its
    own: no log is deleted, and its leader serves until the former id is back."""
    async with quiet_cluster(world) as (cluster, client):
        zookeeper = operator(cluster)
        await zookeeper.start()
        await create(client, TOPIC, [0, 1, 2], retention_ms="-1")
        await in_time(lambda: hosted(cluster, 0) is not None)
        assert await produce_to(cluster, 0) == ErrorCode.NONE
        await asyncio.sleep(SETTLED_S)
        former = cluster.state.assignment(TOPIC)
        logs = [replica_bytes(cluster.brokers[id_], (TOPIC, 0)) for id_ in (0, 1, 2)]
        assert logs[0]
        for topic_id in (UUID(int=7), former.topic_id):
            await zookeeper.delete(CONTROLLER_PATH)
            await zookeeper.set(topic_path(TOPIC), replace(former, topic_id=topic_id).encode())
            await cluster.until(lambda: cluster.controller_id() != -1)
            await asyncio.sleep(SETTLED_S)
            assert [replica_bytes(cluster.brokers[id_], (TOPIC, 0)) for id_ in (0, 1, 2)] == logs
            assert (cluster.leader(TOPIC, 0), cluster.isr(TOPIC, 0)) == (0, (0, 1, 2))
            assert await fetch_from(cluster, 0) == ErrorCode.NONE
        await zookeeper.close()


def operator(cluster: SimulatedCluster) -> ZooKeeperClient:
    environment = cluster.world.node("client").environment
    return ZooKeeperClient(environment, f"{cluster.zookeeper.node.name}:{ZOOKEEPER_PORT}")


# -- tests ----------------------------------------------------------------------------------------------------------

SCENARIOS = [
    a_leader_hears_that_it_leads_no_more,
    a_leader_hears_that_its_topic_is_gone,
    a_new_topic_has_its_own_configuration,
    deleted_topics_are_forgotten,
    topics_that_were_created_anew_are_known_as_they_are,
    topics_that_were_created_anew_under_an_older_protocol,
    a_deletion_that_a_controller_takes_along,
    a_leader_that_looks_while_a_deletion_waits_for_a_reassignment,
    offsets_of_a_topic_whose_deletion_waits_for_a_broker,
    offsets_of_a_topic_that_is_deleted_without_a_coordinator,
    offsets_of_a_topic_that_gets_a_coordinator_during_its_deletion,
    a_leader_whose_log_is_of_a_topic_that_was_deleted,
    a_follower_whose_log_is_of_a_topic_that_was_deleted,
    a_topic_whose_id_has_changed,
]


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_missed_is_found_out(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=300)
