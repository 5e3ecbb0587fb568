"""Well-formed requests with odd values in every field: each is answered or closes its connection, and no other client
notices. What each field means is tested elsewhere; here it only matters that no value stops or holds up the broker.
"""

import asyncio
import math
import random
import struct
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.handlers import APIS
from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.group_wire import commit, committed, find_coordinator
from support.message_oracle import body_of, library_class
from support.one_broker import Client, OneBroker, batch, running, values

NONE = ErrorCode.NONE

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LONGEST = 2**15 - 1
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
# (group, member, generation)
STRANGER = ("g", "", -1)
FROM_THE_CONTROLLER = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_ISR,
)
CONTROLLER_ROUNDS = 30
BROKER_IDS = ("leader", "leader_id", "broker_id", "isr", "new_isr", "replicas", "id")
TOPICS = ["a", "a", "b", "c.d", "c_d", "", ".", "..", "a/b", "a/partitions", "/", "é", "\0", "x" * 249, "x" * LONGEST]
TEXTS = [*TOPICS, "0", "1", "retention.ms", "cleanup.policy", "-1", "compact", "\n" * LONGEST, "🙂" * (LONGEST // 4)]
COUNTS = [-(2**31), -1, -1, 0, 1, 1, 2, 5, 100_000, 2**31 - 1]
# Short, because the test waits for each answer; that a long one is no trouble is tested below.
TIMEOUTS = [-(2**31), -1, 0, 1, 10]


class Odd:
    """Makes requests of any API from the schemas of kafka-python's message classes."""

    def __init__(self, seed: int, controller_epoch: int = 0) -> None:
        self.chance = random.Random(seed)
        self.controller_epoch = controller_epoch
        # What a member was told when it joined: its group, id and generation. Most requests speak of one.
        self.members: list[tuple[str, str, int]] = []
        self.member = STRANGER

    def request(self, key: ApiKey, version: int) -> Any:
        self.member = self.chance.choice([STRANGER, *self.members[-2:]])
        if key is ApiKey.PRODUCE:
            return self.produce(version)
        if key is ApiKey.FETCH:
            return self.fetch()
        message_class = library_class(key, "Request")
        body = self.struct(message_class._struct, message_class, version)
        return messages.decode_request(key, version, body_of(body, version), 0)

    def struct(self, schema: Any, data_class: Any, version: int) -> Any:
        fields = [field for field in schema._fields if field.for_version_q(version)]
        return data_class(version=version, **{field.name: self.field(field, version) for field in fields})

    def field(self, field: Any, version: int) -> Any:
        if field.nullable_for_version_q(version) and self.chance.random() < 0.2:
            return None
        if field.name == "protocols" and self.chance.random() < 0.8:
            return [field.data_class(version=version, name="range", metadata=self.chance.randbytes(8))]
        if field.is_struct_array():
            elements = [self.struct(field.array_of, field.data_class, version) for _ in range(self.count())]
            return elements + elements[: self.chance.choice([0, 0, 1])]
        if field.is_array():
            return [self.value(field.name, field.array_of.type_str) for _ in range(self.count())]
        return self.value(field.name, field.type_str)

    def count(self) -> int:
        return self.chance.choice([0, 1, 1, 2, 3])

    def value(self, name: str, kind: str) -> Any:
        if name in ("timeout_ms", "num_partitions", "count"):
            return self.chance.choice(TIMEOUTS if name == "timeout_ms" else COUNTS)
        if name == "controller_epoch":
            # A higher one is a new controller, and the requests of all others are refused.
            return self.chance.choice([self.controller_epoch] * 4 + [self.controller_epoch - 1, -1, -(2**31)])
        if name == "security_protocol":
            return self.chance.randrange(4)
        if name == "broker_epoch":
            return self.chance.choice([-1, -1, -1, 2**63 - 1, 0, -(2**63)])
        if name in ("group_id", "member_id", "generation_id") and self.chance.random() < 0.8:
            return self.member[("group_id", "member_id", "generation_id").index(name)]
        if name == "partition_index" and self.chance.random() < 0.5:
            return 0
        if name == "group_instance_id" and self.chance.random() < 0.8:
            return None
        if name == "rebalance_timeout_ms":
            return self.chance.choice(TIMEOUTS)
        if name == "session_timeout_ms":
            return self.chance.choice([*TIMEOUTS, 1000, 1000, 1000, 1000])
        if name in ("protocol_type", "protocol_name") and self.chance.random() < 0.9:
            return "consumer" if name == "protocol_type" else "range"
        if name in BROKER_IDS and self.chance.random() < 0.7:
            return self.chance.choice([0, 0, 1])
        if kind in BITS:
            return self.integer(BITS[kind])
        if kind == "string":
            return self.chance.choice(TOPICS if name in ("topic", "name", "topic_name", "topic_names") else TEXTS)
        if kind == "uuid":
            return self.chance.choice([None, uuid.UUID(int=self.chance.getrandbits(128) | 1)])
        if kind == "bytes":
            return self.chance.randbytes(self.chance.choice([0, 1, 100]))
        if kind == "float64":
            return self.chance.choice([0.0, -1.0, 1.5, 1e300, math.inf, math.nan])
        assert kind == "bool", kind
        return self.chance.random() < 0.5

    def integer(self, bits: int) -> int:
        limit = 2 ** (bits - 1)
        return self.chance.choice([-limit, -limit + 1, -3, -2, -1, 0, 0, 0, 1, 1, 2, 4, limit - 1])

    def produce(self, version: int) -> ProduceRequest:
        chance = self.chance
        topics = [
            (chance.choice(TOPICS), [(self.integer(32), self.records()) for _ in range(self.count())])
            for _ in range(self.count())
        ]
        transactional_id = chance.choice([None, None, None, "", "x" * LONGEST]) if version >= 3 else None
        return ProduceRequest.of(
            transactional_id,
            chance.choice([-1, -1, 0, 1, self.integer(16)]),
            chance.choice(TIMEOUTS),
            topics + topics[: chance.choice([0, 1])],
        )

    def records(self) -> bytearray | None:
        chance = self.chance
        records = batch(b"v" * chance.choice([0, 1, 100]), producer_id=chance.choice([-1, 0, 5]))
        match chance.randrange(6):
            case 0:
                return None
            case 1:
                return bytearray(chance.randbytes(chance.choice([0, 1, 60, 61, 100])))
            case 2:
                records[chance.randrange(len(records))] ^= 1 << chance.randrange(8)
        return records

    def fetch(self) -> FetchRequest:
        chance = self.chance
        topics = [
            (
                chance.choice(TOPICS),
                [
                    FetchPartition(
                        partition=self.integer(32), fetch_offset=self.integer(64), partition_max_bytes=self.integer(32),
                        current_leader_epoch=chance.choice([-1, self.integer(32)]),
                        last_fetched_epoch=chance.choice([-1, self.integer(32)]), log_start_offset=self.integer(64),
                    )
                    for _ in range(self.count())
                ],
            )
            for _ in range(self.count())
        ]  # fmt: skip
        return fetch_request(
            *topics,
            *topics[: chance.choice([0, 1])],
            replica_id=chance.choice([-1, -1, -1, self.integer(32)]),
            max_wait_ms=chance.choice(TIMEOUTS),
            min_bytes=self.integer(32),
            max_bytes=self.integer(32),
            isolation_level=self.integer(8),
            session_id=self.integer(32),
            session_epoch=self.integer(32),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=chance.choice(TOPICS), partitions=[self.integer(32)] * self.count())
                for _ in range(self.count())
            ],
            rack_id=chance.choice(TEXTS),
            cluster_id=chance.choice([None, *TEXTS]),
        )


async def send_and_receive(client: Client, key: ApiKey, version: int, body: Any) -> Any:
    """Sends the request and an ApiVersions after it: both are answered, in order (what the request was answered, or
    True), or the connection closes (None)."""
    request = messages.encode_request(key, version, 1, None, body)
    after = messages.encode_request(ApiKey.API_VERSIONS, 0, 2, None, messages.request_class(ApiKey.API_VERSIONS)())
    client.send_raw(b"".join(map(bytes, [*request, *after])))
    answer: Any = True if key is ApiKey.PRODUCE and body.acks == 0 else None
    try:
        if answer is None:
            frame = await client.receive()
            assert frame[:4] == struct.pack(">i", 1)
            answer = messages.decode_response(key, version, frame)
        assert (await client.receive())[:4] == struct.pack(">i", 2)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return answer


def every_version() -> list[tuple[ApiKey, int]]:
    return [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("seed", range(3))
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
        0, epoch, -1, [UpdateMetadataTopic(topic, None, [state])], [UpdateMetadataBroker(0, (endpoint,))]
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
            hosted.add(len(cluster.broker.parts.replica_manager.partitions))  # type: ignore[union-attr]
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
