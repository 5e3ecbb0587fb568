"""Groups when their partition of __consumer_offsets gets another leader: two brokers in one loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker
from klamm.protocol import messages
from klamm.protocol.apis.update_metadata import UpdateMetadataPartitionState
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support import group_wire as wire
from support.group_wire import become_stable, commit, committed, find_coordinator, join_fully, sync
from support.one_broker import Client, OneBroker, running, until
from support.present import present

NONE = ErrorCode.NONE
OFFSETS = {("t", 0): 7}


class Two:
    """Broker 0, which is the cluster's and the controller, and broker 1; a client for each."""

    def __init__(self, cluster: OneBroker, brokers: list[Broker], clients: list[Client]) -> None:
        self.cluster, self.brokers, self.clients = cluster, brokers, clients

    async def coordinator(self) -> int:
        """The broker that coordinates group "g", once it can."""
        found = await find_coordinator(self.clients[0])
        while (await wire.fetch_offsets(self.clients[found.node_id], None)).error_code != NONE:
            pass
        return int(found.node_id)


@asynccontextmanager
async def running_two(tmp_path: Any, **properties: Any) -> AsyncIterator[Any]:
    async with running(
        tmp_path,
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=2,
        group_initial_rebalance_delay_ms=0,
        **properties,
    ) as (cluster, client):
        second = Broker(cluster.config(broker_id=1, log_dirs=tmp_path / "second"), SystemEnvironment())
        cluster._stack.push_async_callback(second.stop)
        await second.start()
        await until(lambda: len(cluster.broker.parts.metadata_cache.snapshot.brokers) == 2)
        host, port = second.endpoints["PLAINTEXT"]
        other = Client(*await asyncio.open_connection(host, port))
        await client.create_topic("t")
        yield Two(cluster, [cluster.broker, second], [client, other])
        assert not second.failure.done()
        await other.close()


async def hand_over(two: Two, former: int) -> None:
    """Has the other broker lead the offsets topic."""
    controller = two.brokers[0].parts.controller
    assert controller is not None and controller.is_active
    partition = present(two.brokers[former].parts.replica_manager.hosted_partition((GROUP_METADATA_TOPIC_NAME, 0)))
    await until(lambda: len(partition.isr) == 2)
    assignment = {(GROUP_METADATA_TOPIC_NAME, 0): [1 - former, former]}
    request = messages.request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    topic = request.ReassignableTopic
    body = [
        topic(name=name, partitions=[topic.ReassignablePartition(partition_index=number, replicas=replicas)])
        for (name, number), replicas in assignment.items()
    ]
    answer = await two.clients[0].ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=body, timeout_ms=10_000)
    assert answer.error_code == NONE, answer
    elect = messages.request_class(ApiKey.ELECT_LEADERS).TopicPartitions
    cache = two.brokers[0].parts.metadata_cache

    def known() -> UpdateMetadataPartitionState:
        return present(cache.snapshot.partition(GROUP_METADATA_TOPIC_NAME, 0))

    await until(lambda: tuple(known().replicas) == (1 - former, former))
    wanted = [elect(topic=GROUP_METADATA_TOPIC_NAME, partitions=[0])]
    await two.clients[0].ask(ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=wanted, timeout_ms=10_000)
    await until(lambda: known().leader == 1 - former)


async def test_groups_move_with_the_leader(tmp_path):
    async with running_two(tmp_path) as two:
        former = await two.coordinator()
        old, new = two.clients[former], two.clients[1 - former]
        joined = await become_stable(old)
        assert await commit(old, OFFSETS, joined=joined) == {("t", 0): NONE}
        assert await commit(new, OFFSETS, joined=joined) == {("t", 0): ErrorCode.NOT_COORDINATOR}
        await hand_over(two, former)
        assert await two.coordinator() == 1 - former
        assert await committed(new) == OFFSETS
        assert await wire.state(new) == "Stable"
        assert await wire.heartbeat(new, joined) == NONE
        assert (await sync(new, joined, {})).assignment == b"assignment"
        assert await wire.heartbeat(old, joined) == ErrorCode.NOT_COORDINATOR
        assert await commit(new, {("t", 0): 8}, joined=joined) == {("t", 0): NONE}
        # And back again.
        await hand_over(two, 1 - former)
        assert await two.coordinator() == former
        assert await committed(old) == {("t", 0): 8}


async def test_whoever_waits_when_the_leader_changes_is_sent_away(tmp_path):
    async with running_two(tmp_path) as two:
        former = await two.coordinator()
        await become_stable(two.clients[former])
        host, port = two.brokers[former].endpoints["PLAINTEXT"]
        waiting_client = Client(*await asyncio.open_connection(host, port))
        waiting = asyncio.create_task(join_fully(waiting_client))
        await wire.until_state(two.clients[former], "PreparingRebalance")
        await hand_over(two, former)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        await waiting_client.close()


async def test_the_coordinator_stops(tmp_path):
    async with running_two(tmp_path) as two:
        # The controller shall live on.
        if await two.coordinator() == 0:
            await hand_over(two, 0)
            await two.coordinator()
        joined = await become_stable(two.clients[1])
        assert await commit(two.clients[1], OFFSETS, joined=joined) == {("t", 0): NONE}
        await two.brokers[1].stop()
        assert await two.coordinator() == 0
        assert await committed(two.clients[0]) == OFFSETS
        assert await wire.heartbeat(two.clients[0], joined) == NONE


async def test_a_commit_that_the_followers_do_not_get_is_not_acknowledged(tmp_path):
    async with running_two(tmp_path, offsets_commit_timeout_ms=300) as two:
        former = await two.coordinator()
        assert await commit(two.clients[former], OFFSETS) == {("t", 0): NONE}
        follower = two.brokers[1 - former].parts.replica_manager
        follower._followers.remove_fetchers([(GROUP_METADATA_TOPIC_NAME, 0)])
        codes = await commit(two.clients[former], {("t", 0): 8})
        assert codes == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
        assert await committed(two.clients[former]) == OFFSETS


async def test_with_too_few_replicas_in_sync_nothing_is_committed(tmp_path):
    async with running_two(tmp_path) as two:
        former = await two.coordinator()
        client = two.clients[former]
        assert await commit(client, OFFSETS) == {("t", 0): NONE}
        partition = two.brokers[former].parts.replica_manager.hosted_partition((GROUP_METADATA_TOPIC_NAME, 0))
        partition.topic_config = replace(partition.topic_config, min_insync_replicas=3)
        assert await commit(client, {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        joined = await join_fully(client)
        assert joined.error_code == NONE
        synced = await sync(client, joined, {joined.member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
        assert await wire.heartbeat(client, joined) == ErrorCode.REBALANCE_IN_PROGRESS
        assert await committed(client) == OFFSETS
