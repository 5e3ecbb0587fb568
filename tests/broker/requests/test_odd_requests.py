"""Well-formed requests with odd values in every field: each is answered or closes its connection, and no other client
notices. What each field means is tested elsewhere; here it only matters that no value stops or holds up the broker.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol import messages
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.group_wire import commit, committed, find_coordinator
from support.odd_requests import LONGEST, Odd, every_version, refused_surplus, send_and_receive
from support.one_broker import Client, OneBroker, batch, running, values

NONE = ErrorCode.NONE

ROUNDS = 15
OF_GROUPS = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)
GROUP_ROUNDS = 40
FROM_THE_CONTROLLER = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_ISR,
)
CONTROLLER_ROUNDS = 30


SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])


@SEEDS
async def test_odd_values_in_every_field(tmp_path: Path, seed: int) -> None:
    odd = Odd(seed)
    requests = [(key, version) for key, version in every_version() if key not in FROM_THE_CONTROLLER]
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("safe")
        await client.create_topic("a", partitions=2)
        other = await cluster.connect()
        answered = 0
        for number in range(ROUNDS):
            odd.chance.shuffle(requests)
            for key, version in requests:
                body = odd.request(key, version)
                if await send_and_receive(other, key, version, body):
                    answered += 1
                else:
                    await other.close()
                    other = await cluster.connect()
                assert not cluster.broker.failure.done(), (key, version, body)
            assert (await client.produce("safe", 0, batch(b"%d" % number))).error_code == NONE
        assert values((await client.fetch("safe", 0, 0)).records) == [b"%d" % number for number in range(ROUNDS)]
        assert answered > 0.8 * ROUNDS * len(requests)


async def test_bytes_after_the_end_of_any_request_are_ignored(tmp_path: Path) -> None:
    """As in Kafka (tests/interop/test_surplus_bytes_interop.py). kafka-go sends one byte after DescribeAcls v2."""
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("a", partitions=2)
        assert await refused_surplus(cluster.connect, every_version()) == []


@SEEDS
async def test_odd_values_from_members_of_groups(tmp_path: Path, seed: int) -> None:
    """Whatever they say: other groups work, and what they have left in the log can be read again."""
    async with running(
        tmp_path,
        offsets_topic_num_partitions=2,
        offsets_topic_replication_factor=1,
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=-1,
    ) as (cluster, client):
        odd = Odd(seed)
        requests = [(key, version) for key, version in every_version() if key in OF_GROUPS]
        requests += [(key, version) for key, version in requests if key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)] * 2
        await client.create_topic("a", partitions=2)
        await find_coordinator(client)
        await committed(client)
        other = await cluster.connect()
        codes: Counter[tuple[ApiKey, int]] = Counter()
        for number in range(GROUP_ROUNDS):
            odd.chance.shuffle(requests)
            for key, version in requests:
                body = odd.request(key, version)
                answer = await send_and_receive(other, key, version, body)
                assert not cluster.broker.failure.done(), (key, version, body)
                if answer is None:
                    await other.close()
                    other = await cluster.connect()
                    continue
                codes[key, getattr(answer, "error_code", NONE)] += 1
                if key is ApiKey.JOIN_GROUP and answer.error_code in (NONE, ErrorCode.MEMBER_ID_REQUIRED):
                    odd.members.append((body.group_id, answer.member_id, answer.generation_id))
            assert await commit(client, {("a", 0): number}, "safe") == {("a", 0): NONE}
        assert codes[ApiKey.JOIN_GROUP, NONE] > GROUP_ROUNDS and codes[ApiKey.SYNC_GROUP, NONE] > 0, codes
        assert not cluster.broker.failure.done()
        await cluster.restart_broker()
        assert await committed(await cluster.connect(), "safe") == {("a", 0): GROUP_ROUNDS - 1}


@pytest.mark.parametrize("seed", range(3))
async def test_odd_values_from_a_controller(tmp_path: Path, seed: int) -> None:
    """Whatever it says: other topics are served, and it can set right what it has said."""
    async with running(tmp_path) as (cluster, client):
        odd = Odd(seed, cluster.controller_epoch)
        requests = [(key, version) for key, version in every_version() if key in FROM_THE_CONTROLLER]
        await client.create_topic("safe")
        await client.create_topic("a", partitions=2)
        other = await cluster.connect()
        answered = 0
        for number in range(CONTROLLER_ROUNDS):
            odd.chance.shuffle(requests)
            for key, version in requests:
                body = odd.request(key, version)
                if await send_and_receive(other, key, version, body):
                    answered += 1
                else:
                    await other.close()
                    other = await cluster.connect()
                assert not cluster.broker.failure.done(), (key, version, body)
            assert (await client.produce("safe", 0, batch(b"%d" % number))).error_code == NONE
            await client.ask(ApiKey.METADATA, topics=None)
        assert answered > 0.8 * CONTROLLER_ROUNDS * len(requests)
        assert len(values((await client.fetch("safe", 0, 0)).records)) == CONTROLLER_ROUNDS
        await set_right(cluster, client, "later")
        await cluster.restart_broker()
        client = await cluster.connect()
        assert len(values((await client.fetch("safe", 0, 0)).records)) == CONTROLLER_ROUNDS


async def set_right(cluster: OneBroker, client: Client, topic: str) -> None:
    """A controller's first words to a broker, and a topic of its own."""
    epoch, (host, port) = cluster.controller_epoch, cluster.broker.endpoints["PLAINTEXT"]
    endpoint = UpdateMetadataEndpoint(port, host, "PLAINTEXT", 0)
    state = UpdateMetadataPartitionState(0, epoch, 0, 0, (0,), 0, (0,))
    body = UpdateMetadataRequest(
        controller_id=0,
        controller_epoch=epoch,
        broker_epoch=-1,
        topic_states=[UpdateMetadataTopicState(topic, None, [state])],
        live_brokers=[
            UpdateMetadataBroker(
                id=0,
                endpoints=[
                    endpoint,
                ],
            )
        ],
    )
    assert (await client.request(ApiKey.UPDATE_METADATA, 7, body)).error_code == NONE
    await cluster.begin_leader_epoch(client, topic, 0)
    assert (await client.produce(topic, 0, batch(b"v"))).error_code == NONE
    wanted = [messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name=topic)]
    found = await client.ask(ApiKey.METADATA, topics=wanted, allow_auto_topic_creation=False)
    assert [(broker.node_id, broker.host, broker.port) for broker in found.brokers] == [(0, host, port)]
    assert [(one.leader_id, one.leader_epoch) for one in found.topics[0].partitions] == [(0, 0)]


CREATE_TOPICS = messages.request_class(ApiKey.CREATE_TOPICS)
CREATE_PARTITIONS = messages.request_class(ApiKey.CREATE_PARTITIONS)
DESCRIBE_CONFIGS = messages.request_class(ApiKey.DESCRIBE_CONFIGS)


def new_topic(name: str, partitions: int = -1, replicas: list[list[int]] | None = None) -> Any:
    return CREATE_TOPICS.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        assignments=[
            CREATE_TOPICS.CreatableTopic.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(replicas or [])
        ],
        configs=[],
    )


def more_partitions(name: str, count: int, replicas: list[list[int]] | None = None) -> Any:
    assignment = CREATE_PARTITIONS.CreatePartitionsTopic.CreatePartitionsAssignment
    assignments = None if replicas is None else [assignment(broker_ids=ids) for ids in replicas]
    return CREATE_PARTITIONS.CreatePartitionsTopic(name=name, count=count, assignments=assignments)


async def test_the_longest_wait_ends_when_records_come(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        waiting = await cluster.connect()
        fetch = asyncio.ensure_future(waiting.fetch("t", 0, 0, max_wait_ms=2**31 - 1, min_bytes=1))
        await client.ask(ApiKey.API_VERSIONS, 0)
        assert not fetch.done()
        assert (await client.produce("t", 0, batch(b"v"))).error_code == NONE
        assert values((await fetch).records) == [b"v"]


async def test_an_error_that_quotes_a_long_request_fits_into_the_response(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        topics = [more_partitions("t", 2, [list(range(10, 9_000))])]
        response = await client.ask(ApiKey.CREATE_PARTITIONS, 1, topics=topics, timeout_ms=0, validate_only=False)
        assert response.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert response.results[0].error_message.startswith("brokers [10, 11, 12")


async def test_text_that_not_every_version_can_hold(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        for length, is_answered in ((LONGEST, True), (LONGEST + 1, False)):
            topics = [new_topic("x" * length)]
            request = CREATE_TOPICS(topics=topics, timeout_ms=0, validate_only=True)
            answer = await send_and_receive(client, ApiKey.CREATE_TOPICS, 7, request)
            assert (answer is not None) == is_answered


async def test_far_too_many_partitions(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        for count in (100_001, 2**31 - 2):
            topics = [new_topic("new", count)]
            created = await client.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=0, validate_only=True)
            assert created.topics[0].error_code == ErrorCode.INVALID_PARTITIONS
            topics = [more_partitions("t", count + 1)]
            grown = await client.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout_ms=0, validate_only=True)
            assert grown.results[0].error_code == ErrorCode.INVALID_PARTITIONS
        topics = [new_topic(f"new{number}", 40_000) for number in range(4)]
        created = await client.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=0, validate_only=True)
        refused = ErrorCode.INVALID_PARTITIONS
        assert [topic.error_code for topic in created.topics] == [NONE, NONE, refused, refused]


async def test_a_topic_that_is_more_than_zookeeper_takes(tmp_path: Path) -> None:
    """It is refused: the server would close the connection at each try, and nobody else could create a topic."""
    async with running(tmp_path) as (_, client):
        brokers = list(range(2_000_000_000, 2_000_099_000))
        topics = [new_topic("large", replicas=[brokers])]
        created = await client.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=0, validate_only=False)
        assert created.topics[0].error_code == ErrorCode.INVALID_REQUEST
        await client.create_topic("t")
        topics = [more_partitions("t", 99_000)]
        grown = await client.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout_ms=0, validate_only=False)
        assert grown.results[0].error_code == ErrorCode.INVALID_REQUEST
        assert (await client.produce("t", 0, batch(b"v"))).error_code == NONE


async def test_many_topics_named_twice(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        names = [f"topic-number-{number}" for number in range(40_000)] * 2
        created = await client.ask(
            ApiKey.CREATE_TOPICS, topics=[new_topic(name) for name in names], timeout_ms=0, validate_only=True
        )
        grown = await client.ask(
            ApiKey.CREATE_PARTITIONS,
            topics=[more_partitions(name, 2) for name in names],
            timeout_ms=0,
            validate_only=False,
        )
        for answers in (created.topics, grown.results):
            assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_REQUEST}
            assert [answer.name for answer in answers] == names[:40_000]


@pytest.mark.parametrize("name", ["", "..", "t/partitions", "t/partitions/0/state", "/", "\0"])
async def test_a_name_that_is_no_topic_is_no_znode(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        topics = [more_partitions(name, 2), more_partitions("t", 2)]
        grown = await client.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout_ms=10_000, validate_only=False)
        assert [result.error_code for result in grown.results] == [ErrorCode.INVALID_TOPIC_EXCEPTION, NONE]


async def test_other_clients_are_served_while_a_topic_is_made(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        creating = asyncio.ensure_future(client.create_topic("t", partitions=200))
        hosted = set()
        while not creating.done():
            hosted.add(len(cluster.broker.parts.replica_manager.partitions))
            await asyncio.sleep(0)
        # Others had their turn with some of the partitions made and some not; how often depends on the machine.
        assert len(hosted) > 2


async def test_a_resource_named_often_is_described_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        resources = [
            DESCRIBE_CONFIGS.DescribeConfigsResource(resource_type=4, resource_name=name, configuration_keys=None)
            for name in ("0", "7") * 20_000
        ]
        response = await client.ask(
            ApiKey.DESCRIBE_CONFIGS, resources=resources, include_synonyms=True, include_documentation=True
        )
        assert [(one.resource_name, one.error_code) for one in response.results] == [
            ("0", NONE),
            ("7", ErrorCode.INVALID_REQUEST),
        ]


async def test_a_config_that_no_response_can_hold(tmp_path: Path) -> None:
    """No client can set one, but a properties file can hold it."""
    async with running(
        tmp_path, listener_security_protocol_map="PLAINTEXT:PLAINTEXT," + "r" * LONGEST + ":PLAINTEXT"
    ) as (_, client):
        for version in range(1, 5):
            for key, code in (("listener.security.protocol.map", ErrorCode.UNKNOWN_SERVER_ERROR), ("broker.id", NONE)):
                resource = DESCRIBE_CONFIGS.DescribeConfigsResource(
                    resource_type=4, resource_name="0", configuration_keys=[key]
                )
                response = await client.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource])
                assert response.results[0].error_code == code


async def test_a_synonym_that_no_response_can_hold(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleanup_policy="delete" + ",delete" * (LONGEST // 7)) as (_, client):
        await client.create_topic("t", cleanup_policy="compact")
        resource = DESCRIBE_CONFIGS.DescribeConfigsResource(
            resource_type=2, resource_name="t", configuration_keys=["cleanup.policy"]
        )
        for version in range(1, 5):
            for include_synonyms, code in ((True, ErrorCode.UNKNOWN_SERVER_ERROR), (False, NONE)):
                response = await client.ask(
                    ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=include_synonyms
                )
                assert response.results[0].error_code == code


@pytest.mark.parametrize("max_bytes", [-(2**31), -1, 0, 1])
async def test_a_fetch_of_hardly_any_bytes_gets_one_batch(tmp_path: Path, max_bytes: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=4)
        for partition in (1, 2, 3):
            await client.produce("t", partition, batch(b"%d" % partition))
        wants = [to_fetch(partition, 0, 1 << 20) for partition in range(4)]
        response = await client.request(ApiKey.FETCH, 12, fetch_request(("t", wants), max_bytes=max_bytes))
        assert [values(result.records) for result in response.responses[0].partitions] == [[], [b"1"], [], []]


async def test_a_fetch_does_not_wait_for_more_than_it_may_get(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(bytes(1000)))
        want = to_fetch(0, 0, 1 << 20)
        body = fetch_request(("t", [want]), max_wait_ms=2**31 - 1, min_bytes=1 << 30, max_bytes=500)
        assert result_of(await client.request(ApiKey.FETCH, 12, body)).records
