"""The requests of consumer groups over real sockets: each API in each version, and what goes wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.offset_expiration import expired_offsets
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, ResourceType
from support import group_wire as wire
from support.authorizing import Allows
from support.group_wire import become_stable, commit, committed, fetch_offsets, find_coordinator, join, join_fully, sync
from support.one_broker import Client, OneBroker, batch, running, until

NONE = ErrorCode.NONE
SMALL: dict[str, Any] = {
    "offsets_topic_num_partitions": 2,
    "offsets_topic_replication_factor": 1,
    "group_initial_rebalance_delay_ms": 0,
}


@asynccontextmanager
async def running_with_topic(tmp_path: Any, **properties: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Plays the scenario with topic "t" of two partitions and a coordinator."""
    async with running(tmp_path, **SMALL | properties) as (cluster, client):
        await client.create_topic("t", 2)
        await find_coordinator(client)
        await until(lambda: coordinator(cluster).list_groups(())[0] is NONE)
        yield cluster, client


def coordinator(cluster: OneBroker) -> Any:
    return cluster.broker.parts.group_coordinator


# -- finding the coordinator


@pytest.mark.parametrize("version", range(4))
async def test_who_asks_first_has_the_topic_created(tmp_path, version):
    async with running(tmp_path, **SMALL) as (cluster, client):
        first = await client.ask(ApiKey.FIND_COORDINATOR, version, key="g", key_type=0)
        assert (first.error_code, first.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        found = await find_coordinator(client, version=version)
        assert (found.error_code, found.node_id) == (NONE, 0)
        assert (found.host, found.port) == cluster.broker.endpoints["PLAINTEXT"]
        (topic,) = (await describe_topics(client, GROUP_METADATA_TOPIC_NAME)).topics
        assert topic.is_internal and len(topic.partitions) == 2
        assert await configs(client, GROUP_METADATA_TOPIC_NAME) == {
            "cleanup.policy": "compact",
            "segment.bytes": "104857600",
            "compression.type": "producer",
        }


async def describe_topics(client: Client, *names: str) -> Any:
    topic = messages.request_class(ApiKey.METADATA).MetadataRequestTopic
    return await client.ask(
        ApiKey.METADATA, topics=[topic(name=name) for name in names], allow_auto_topic_creation=True
    )


async def configs(client: Client, topic: str) -> dict[str, str]:
    resource = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    wanted = resource(resource_type=2, resource_name=topic, configuration_keys=None)
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, resources=[wanted])
    return {entry.name: entry.value for entry in answer.results[0].configs if entry.config_source == 1}


async def test_metadata_creates_the_topic_with_its_configs(tmp_path):
    async with running(tmp_path, **SMALL) as (_, client):
        answer = await describe_topics(client, GROUP_METADATA_TOPIC_NAME)
        assert answer.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        await find_coordinator(client)
        assert (await configs(client, GROUP_METADATA_TOPIC_NAME))["cleanup.policy"] == "compact"


async def test_a_topic_that_cannot_be_created_says_why(tmp_path):
    async with running(tmp_path, offsets_topic_num_partitions=2) as (_, client):
        answer = await client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "replication factor is 3, there are only 1 live brokers" in answer.error_message


async def test_many_ask_at_once(tmp_path):
    async with running(tmp_path, **SMALL) as (cluster, _):
        clients = [await cluster.connect() for _ in range(20)]
        found = await asyncio.gather(*(find_coordinator(one, f"g{i}") for i, one in enumerate(clients)))
        assert [answer.error_code for answer in found] == [NONE] * 20


async def test_groups_are_spread_over_all_partitions_as_kafka_spreads_them(tmp_path):
    async with running_with_topic(tmp_path, offsets_topic_num_partitions=7) as (cluster, client):
        topic = cluster.broker.parts.offsets_topic
        # String.hashCode of "g" is 103, of "group" 98629247.
        assert [topic.partition_for(group) for group in ("g", "group", "")] == [103 % 7, 98629247 % 7, 0]
        # The number of partitions is fixed while the broker runs, and read again when it starts.
        assert (await create_partitions(client, GROUP_METADATA_TOPIC_NAME, 9)) == NONE
        await until(lambda: len(cluster.broker.parts.metadata_cache.snapshot.topics[GROUP_METADATA_TOPIC_NAME]) == 9)
        assert topic.partition_for("g") == 103 % 7
        await cluster.restart_broker()
        assert cluster.broker.parts.offsets_topic.partition_for("g") == 103 % 9


async def create_partitions(client: Client, name: str, count: int) -> int:
    topic = messages.request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    answer = await client.ask(
        ApiKey.CREATE_PARTITIONS,
        topics=[topic(name=name, count=count, assignments=None)],
        timeout_ms=10_000,
        validate_only=False,
    )
    return int(answer.results[0].error_code)


# -- the life of a group, in every version


async def test_the_life_of_a_member_in_every_version(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        for version in range(8):
            await live(client, version)
        await until(lambda: coordinator(cluster).waiting_count == 0)


async def live(client: Client, version: int) -> None:
    joined = await join(client, version=version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED and joined.generation_id == -1
        joined = await join(client, member_id=joined.member_id, version=version)
    member = joined.member_id
    assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, 1, member)
    assert member.startswith("test-")
    assert joined.protocol_name == "range"
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert [(one.member_id, one.metadata) for one in joined.members] == [(member, b"subscription")]

    synced = await sync(client, joined, {member: b"parts"}, version=min(version, 5))
    assert (synced.error_code, synced.assignment) == (NONE, b"parts")
    assert await wire.heartbeat(client, joined, version=min(version, 4)) == NONE

    described = await client.ask(ApiKey.DESCRIBE_GROUPS, min(version, 5), groups=["g", "other"])
    group, other = described.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (one,) = group.members
    assert (one.member_id, one.client_id, one.client_host) == (member, "test", "/127.0.0.1")
    assert (one.member_metadata, one.member_assignment) == (b"subscription", b"parts")
    assert (other.error_code, other.group_state, other.members) == (NONE, "Dead", [])

    listed = await client.ask(ApiKey.LIST_GROUPS, min(version, 4), states_filter=[])
    assert [(one.group_id, one.protocol_type) for one in listed.groups] == [("g", "consumer")]

    left = await wire.leave(client, member, version=min(version, 4))
    assert left.error_code == NONE
    again = await wire.leave(client, member, version=min(version, 4))
    if version >= 3:
        assert (again.error_code, again.members[0].error_code) == (NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    else:
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    deleted = await client.ask(ApiKey.DELETE_GROUPS, min(version, 2), groups_names=["g", "nobody"])
    assert [(one.group_id, one.error_code) for one in deleted.results] == [
        ("g", NONE),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


async def test_committing_in_every_version(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        await become_stable(client, "members")
        for version in range(2, 9):
            group = f"g{version}"
            offsets = {("t", 0): 5, ("t", 1): 2**40, ("t", 2): 1, ("nothing", 0): 1}
            assert await commit(client, offsets, group, version=version) == {
                ("t", 0): NONE,
                ("t", 1): NONE,
                ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
            assert await committed(client, group) == {("t", 0): 5, ("t", 1): 2**40}
            stranger = {"generation_id_or_member_epoch": 1, "member_id": "stranger"}
            codes = await commit(client, {("t", 0): 1}, "members", version=version, **stranger)
            assert codes == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}


async def test_commits_that_say_how_long_they_are_kept_and_those_without_a_note(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        assert await commit(client, {("t", 0): 5}, version=4, retention_time_ms=60_000, metadata=None) == {
            ("t", 0): NONE
        }
        group = coordinator(cluster)._manager.get("g")
        kept = group.offsets.get(("t", 0))
        assert kept.expire_timestamp_ms == kept.commit_timestamp_ms + 60_000
        assert kept.metadata == ""
        assert await commit(client, {("t", 0): 6}, version=4) == {("t", 0): NONE}
        assert group.offsets.get(("t", 0)).expire_timestamp_ms is None


@pytest.mark.parametrize("retention_time_ms", [2**63 - 1, -(2**63), -5])
async def test_commits_that_are_kept_for_a_strange_time(tmp_path, retention_time_ms):
    async with running_with_topic(tmp_path) as (cluster, client):
        codes = await commit(client, {("t", 0): 5}, version=4, retention_time_ms=retention_time_ms)
        assert codes == {("t", 0): NONE}
        assert await committed(client) == {("t", 0): 5}
        coordinator(cluster)._manager.cleanup(
            coordinator(cluster)._manager.groups(),
            lambda group: expired_offsets(group, group.offsets.partitions, cluster.environment.now_ms(), 2**40),
        )
        assert await committed(client) == ({("t", 0): 5} if retention_time_ms > 0 else {})


async def test_fetching_offsets_in_every_version(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        await commit(client, {("t", 0): 5})
        for version in range(1, 8):
            answer = await fetch_offsets(client, {"t": [0, 1], "nothing": [3]}, version=version)
            assert answer.error_code == NONE
            assert [
                (topic.name, one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata)
                for topic in answer.topics
                for one in topic.partitions
            ] == [("t", 0, 5, -1, "note"), ("t", 1, -1, -1, ""), ("nothing", 3, -1, -1, "")]
            assert all(one.error_code == NONE for topic in answer.topics for one in topic.partitions)
            if version >= 2:
                answer = await fetch_offsets(client, None, version=version)
                assert [[one.committed_offset for one in topic.partitions] for topic in answer.topics] == [[5]]


async def test_an_error_of_the_whole_group_is_told_where_the_version_has_room_for_it(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        # That partition no longer has a leader.
        coordinator(cluster).on_resignation(1, None)
        answer = await fetch_offsets(client, {"t": [0, 1]}, "g", version=1)
        assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.NOT_COORDINATOR] * 2
        for version in range(2, 8):
            answer = await fetch_offsets(client, {"t": [0, 1]}, "g", version=version)
            assert (answer.error_code, answer.topics) == (ErrorCode.NOT_COORDINATOR, [])


async def test_listing_by_state(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        await become_stable(client, "stable")
        await commit(client, {("t", 0): 1}, "empty")

        async def listed(*states: str) -> list[tuple[str, str]]:
            answer = await client.ask(ApiKey.LIST_GROUPS, 4, states_filter=list(states))
            return sorted((group.group_id, group.group_state) for group in answer.groups)

        assert await listed() == [("empty", "Empty"), ("stable", "Stable")]
        assert await listed("Stable") == [("stable", "Stable")]
        assert await listed("Empty", "Dead") == [("empty", "Empty")]
        assert await listed("no state") == []


async def test_deleting_offsets(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        await commit(client, {("t", 0): 1, ("t", 1): 2})
        answer = await wire.delete_offsets(client, {"t": [0, 5], "nothing": [0]})
        codes = {
            (topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions
        }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {("t", 0): NONE, ("t", 5): unknown, ("nothing", 0): unknown}
        assert await committed(client) == {("t", 1): 2}
        answer = await wire.delete_offsets(client, {"t": [0]}, "nobody")
        assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_offsets_of_a_deleted_topic_are_gone(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        await client.create_topic("short", 1)
        await commit(client, {("t", 0): 1, ("short", 0): 2})
        await client.ask(
            ApiKey.DELETE_TOPICS,
            topics=[messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name="short", topic_id=None)],
            timeout_ms=10_000,
        )
        while await committed(client) != {("t", 0): 1}:
            pass
        await cluster.restart_broker()
        assert await committed(await cluster.connect()) == {("t", 0): 1}


async def test_the_offsets_topic_is_deleted_and_comes_again(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        joined = await become_stable(client)
        assert await commit(client, {("t", 0): 5}, joined=joined) == {("t", 0): NONE}
        other = await cluster.connect()
        waiting = asyncio.create_task(join_fully(other))
        await wire.until_state(client, "PreparingRebalance")
        offsets_topic = messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(
            name=GROUP_METADATA_TOPIC_NAME, topic_id=None
        )
        await client.ask(ApiKey.DELETE_TOPICS, topics=[offsets_topic], timeout_ms=10_000)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        assert await wire.heartbeat(client, joined) == ErrorCode.NOT_COORDINATOR
        assert await commit(client, {("t", 0): 6}, joined=joined) == {("t", 0): ErrorCode.NOT_COORDINATOR}
        assert (await find_coordinator(client)).error_code == NONE
        assert await committed(client) == {}
        assert await wire.heartbeat(client, joined) == ErrorCode.UNKNOWN_MEMBER_ID
        joined = await become_stable(client)
        assert joined.generation_id == 1
        assert await commit(client, {("t", 0): 6}, joined=joined) == {("t", 0): NONE}
        await cluster.restart_broker()
        client = await cluster.connect()
        await find_coordinator(client)
        assert await committed(client) == {("t", 0): 6}


# -- members that wait


async def test_a_rebalance_of_two(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        other = await cluster.connect()
        first = await become_stable(client)
        waiting = asyncio.create_task(join_fully(other))
        await wire.until_state(client, "PreparingRebalance")
        assert await wire.heartbeat(client, first) == ErrorCode.REBALANCE_IN_PROGRESS
        leader = await join(client, member_id=first.member_id)
        second = await waiting
        assert leader.generation_id == second.generation_id == 2
        assert leader.leader == second.leader == first.member_id
        assert second.members == []
        assert [one.member_id for one in leader.members] == [first.member_id, second.member_id]
        syncing = asyncio.create_task(sync(other, second, {}))
        await sync(client, leader, {leader.member_id: b"one", second.member_id: b"two"})
        assert (await syncing).assignment == b"two"


async def test_later_requests_of_a_connection_wait_for_its_join(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        first = await become_stable(client)
        other = await cluster.connect()
        required = await join(other)
        answers: list[str] = []

        async def ask(name: str, request: Any) -> Any:
            answer = await request
            answers.append(name)
            return answer

        # The answers of one connection come in order, so the second is only read after the first.
        joining = asyncio.create_task(ask("join", join(other, member_id=required.member_id)))
        await wire.until_state(client, "PreparingRebalance")
        request = messages.request_class(ApiKey.LIST_GROUPS)(states_filter=[])
        for buffer in messages.encode_request(ApiKey.LIST_GROUPS, 4, 99, "test", request):
            other.send_raw(bytes(buffer))
        await ask("rejoin", join(client, member_id=first.member_id))
        assert (await joining).error_code == NONE
        listed = messages.decode_response(ApiKey.LIST_GROUPS, 4, await other.receive())
        assert [group.group_state for group in listed.groups] == ["CompletingRebalance"]


async def test_a_member_that_goes_while_it_waits_leaves_nothing_behind(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        first = await become_stable(client)
        other = await cluster.connect()
        required = await join(other)
        waiting = asyncio.create_task(join(other, member_id=required.member_id))
        await wire.until_state(client, "PreparingRebalance")
        waiting.cancel()
        await other.close()
        # It still counts as having joined, as in Kafka; it is the others who learn later that it is silent.
        leader = await join(client, member_id=first.member_id)
        assert [one.member_id for one in leader.members] == [first.member_id, required.member_id]
        assert (await sync(client, leader, {first.member_id: b"all"})).error_code == NONE
        for member in first.member_id, required.member_id:
            await wire.leave(client, member)
        await wire.until_state(client, "Empty")
        await until(lambda: coordinator(cluster).waiting_count == 0)
        assert not [server for server in cluster.broker.parts.listeners.values() if server.connection_count > 2]


async def test_what_a_leader_has_assigned_is_stored_although_it_is_gone(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        first = await become_stable(client)
        other = await cluster.connect()
        waiting = asyncio.create_task(join_fully(other))
        await wire.until_state(client, "PreparingRebalance")
        leader, second = await join(client, member_id=first.member_id), await waiting
        assignments = {leader.member_id: b"one", second.member_id: b"two"}
        fields = wire.SyncRequest(
            group_id="g",
            generation_id=2,
            member_id=leader.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                wire.SyncRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in assignments.items()
            ],
        )
        for buffer in messages.encode_request(ApiKey.SYNC_GROUP, 5, 1, "test", fields):
            client.send_raw(bytes(buffer))
        client.writer.close()
        assert (await sync(other, second, {})).assignment == b"two"
        assert await wire.state(other) == "Stable"


async def test_a_stop_answers_those_who_wait(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        await become_stable(client)
        other = await cluster.connect()
        waiting = asyncio.create_task(join_fully(other))
        await wire.until_state(client, "PreparingRebalance")
        await cluster.broker.stop()
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_static_member_comes_again(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        joined = await join(client, instance_id="one")
        assert (joined.error_code, joined.members[0].group_instance_id) == (NONE, "one")
        assert (await sync(client, joined, {joined.member_id: b"all"})).error_code == NONE
        again = await join(client, instance_id="one")
        assert (again.error_code, again.generation_id) == (NONE, 1)
        assert again.member_id != joined.member_id
        fenced = await commit(client, {("t", 0): 1}, joined=joined, group_instance_id="one")
        assert fenced == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
        assert await commit(client, {("t", 0): 1}, joined=again, group_instance_id="one") == {("t", 0): NONE}


# -- offsets that last


async def test_groups_and_offsets_outlive_the_broker(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        joined = await become_stable(client)
        assert await commit(client, {("t", 0): 7, ("t", 1): 8}, joined=joined) == {("t", 0): NONE, ("t", 1): NONE}
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await committed(client) == {("t", 0): 7, ("t", 1): 8}
        assert await wire.state(client) == "Stable"
        assert await wire.heartbeat(client, joined) == NONE
        assert (await sync(client, joined, {})).assignment == b"assignment"


async def test_a_commit_whose_client_is_gone_still_counts(tmp_path):
    async with running_with_topic(tmp_path) as (cluster, client):
        other = await cluster.connect()
        body = wire.commit_request({("t", 0): 7})
        for buffer in messages.encode_request(ApiKey.OFFSET_COMMIT, 8, 1, "test", body):
            other.send_raw(bytes(buffer))
        other.writer.close()
        while await committed(client) != {("t", 0): 7}:
            pass
        answer = await fetch_offsets(client, {"t": [0]}, stable=True)
        assert answer.topics[0].partitions[0].error_code == NONE


async def test_one_commit_that_is_too_large_fails_alone(tmp_path):
    async with running_with_topic(tmp_path, message_max_bytes=600) as (cluster, _):
        clients = [await cluster.connect() for _ in range(6)]
        await asyncio.gather(*(commit(one, {("t", 0): 0}, "g") for one in clients))
        small = [commit(one, {("t", 0): index}, "g", metadata="x" * 40) for index, one in enumerate(clients[1:])]
        large = commit(clients[0], {("t", number): 1 for number in range(2)}, "g", metadata="x" * 400)
        first, *others = await asyncio.gather(large, *small)
        assert first == {("t", 0): ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ("t", 1): ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert others == [{("t", 0): NONE}] * 5


async def test_notes_have_a_limit(tmp_path):
    async with running_with_topic(tmp_path, offset_metadata_max_bytes=10) as (_, client):
        assert await commit(client, {("t", 0): 1}, metadata="x" * 11) == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert await commit(client, {("t", 0): 1}, metadata="x" * 10) == {("t", 0): NONE}


# -- who may


def only(*allowed: tuple[Operation, ResourceType, str]) -> Allows:
    """Clients may do this, and brokers what they do among themselves."""
    brokers_own = (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    return Allows(lambda *asked: asked in (*allowed, brokers_own))


async def test_nobody_may_use_a_group_without_the_right(tmp_path):
    async with running(tmp_path, authorizer=only(), **SMALL) as (_, client):
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await join(client)).error_code == denied
        assert (await sync(client, await join(client), {})).error_code == denied
        assert await wire.heartbeat(client, await join(client)) == denied
        assert (await wire.leave(client, "member")).error_code == denied
        assert await commit(client, {("t", 0): 1}) == {("t", 0): denied}
        assert (await fetch_offsets(client, {"t": [0]})).error_code == denied
        assert (await fetch_offsets(client, {"t": [0]}, version=1)).topics[0].partitions[0].error_code == denied
        assert (await client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)).error_code == denied
        described = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
        assert (described.groups[0].error_code, described.groups[0].group_state) == (denied, "")
        assert (await client.ask(ApiKey.LIST_GROUPS, states_filter=[])).groups == []
        deleted = await client.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])
        assert deleted.results[0].error_code == denied
        assert (await wire.delete_offsets(client, {"t": [0]})).error_code == denied


async def test_topics_are_looked_at_one_by_one(tmp_path):
    rights = [
        *((operation, ResourceType.GROUP, "g") for operation in (Operation.READ, Operation.DESCRIBE, Operation.DELETE)),
        (Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster"),
        (Operation.READ, ResourceType.TOPIC, "mine"),
        (Operation.DESCRIBE, ResourceType.TOPIC, "mine"),
    ]
    async with running(tmp_path, authorizer=only(*rights), **SMALL) as (_, client):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for topic in "mine", "secret":
            await client.create_topic(topic)
        await find_coordinator(client)
        while (codes := await commit(client, {("mine", 0): 1, ("secret", 0): 1}))["mine", 0] != NONE:
            pass
        assert codes == {("mine", 0): NONE, ("secret", 0): denied}
        answer = await fetch_offsets(client, {"mine": [0], "secret": [0]})
        assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
            "mine": NONE,
            "secret": denied,
        }
        assert await committed(client) == {("mine", 0): 1}
        deleted = await wire.delete_offsets(client, {"mine": [0], "secret": [0]})
        assert {topic.name: topic.partitions[0].error_code for topic in deleted.topics} == {
            "mine": NONE,
            "secret": denied,
        }


async def test_what_a_client_may_do_with_a_group(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        described = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
        assert described.groups[0].authorized_operations == {Operation.READ, Operation.DESCRIBE, Operation.DELETE}


# -- the topic itself


async def test_only_the_admin_client_writes_to_internal_topics(tmp_path):
    async with running_with_topic(tmp_path) as (_, client):
        assert (
            await client.produce(GROUP_METADATA_TOPIC_NAME, 0, batch(b"x"))
        ).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        body = messages.request_class(ApiKey.PRODUCE).of(
            None, -1, 10_000, [(GROUP_METADATA_TOPIC_NAME, [(0, batch(b"x"))])]
        )
        answer = await client.request(ApiKey.PRODUCE, 9, body, client_id="__admin_client")
        # It is allowed to; but a compacted topic needs keys.
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
