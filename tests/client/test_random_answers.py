"""Brokers that answer with well-formed nonsense: other partitions than were asked for, none, unknown codes and types.

Whatever they answer, each call ends, each thing that it was asked about has a result or an error of the cluster, and
each record that a producer took is told once what became of it.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.configs import ConfigResource, describe_configs, incremental_alter_configs
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.groups import delete_groups, describe_groups, list_groups
from klamm.client.admin.log_dirs import TopicPartitionReplica, alter_replica_log_dirs, describe_log_dirs
from klamm.client.admin.reassignments import alter_partition_reassignments, list_partition_reassignments
from klamm.client.admin.topics import (
    NewPartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topics,
)
from klamm.client.admin.transaction_admin import (
    abort_transaction,
    describe_producers,
    describe_transactions,
    list_transactions,
)
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import (
    OffsetAndMetadata,
    alter_consumer_group_offsets,
    delete_consumer_group_offsets,
    list_consumer_group_offsets,
    list_offsets,
)
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.prepared_transactions import end_prepared
from klamm.client.producer.producer import OnCompletion, Producer, ProducerRecord
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import State
from klamm.client.retries import RetryPolicy
from klamm.client.verification.verifier import Replicated, VerifyOptions, verify_replicas
from klamm.net.client import ClientError, ConnectionOptions
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis import response_class
from klamm.protocol.apis.find_coordinator import FindCoordinatorResponse
from klamm.protocol.apis.metadata import MetadataResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.schema import fields_of
from klamm.protocol.vocabulary import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    LATEST_TIMESTAMP,
    ConfigResourceType,
    ElectionType,
    TopicPartition,
)
from support.random_messages import VALUES
from support.scripted_broker import Asked, ScriptedBroker

ROUNDS = 12
TEXTS = ["t", "u", "g", "h", "0", "1", "", "/d"]
NUMBERS = [0, 1, 2, -1, 0, 1, 3, 16, 127]
CODES = [*map(int, ErrorCode), *[0] * 60, 99, 119, -2, 2**15 - 1]
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
TOPIC, BROKER = ConfigResource(ConfigResourceType.TOPIC, "t"), ConfigResource(ConfigResourceType.BROKER, "1")
REPLICAS = [TopicPartitionReplica("t", 0, 0), TopicPartitionReplica("t", 1, 1)]


class Nonsense:
    """Two brokers. What they say of the cluster is mostly of use, so that most calls reach a broker."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.ports: list[int] = []

    def answer(self, asked: Asked) -> Any:
        api_key = asked.header.api_key
        if self._random.random() < 0.05:
            asked.hang_up()
            return None
        if api_key is ApiKey.PRODUCE and asked.body.acks == ACKS_NONE:
            return None
        if self._random.random() < 0.85:
            if api_key is ApiKey.METADATA:
                return self._metadata(asked.body)
            if api_key is ApiKey.FIND_COORDINATOR:
                code, node_id = self._random.choice([0, 0, 0, 14, 15, 30, -1]), self._random.choice([0, 1, 1, 7])
                return FindCoordinatorResponse(error_code=code, node_id=node_id, host="127.0.0.1", port=1)
        return self._struct(response_class(api_key), asked.header.api_version)

    def _metadata(self, request: Any) -> MetadataResponse:
        topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
        choose = self._random.choice
        names = ["t", "u"] if request.topics is None else [each.name for each in request.topics]
        return MetadataResponse(
            brokers=[broker(node_id=node, host="127.0.0.1", port=port) for node, port in enumerate(self.ports)],
            controller_id=choose([0, 1, 1, -1]),
            topics=[
                topic(
                    error_code=choose([0, 0, 0, 0, 3, 5, 29]),
                    name=name,
                    partitions=[
                        topic.MetadataResponsePartition(
                            error_code=0,
                            partition_index=number,
                            leader_id=choose([0, 1, 1, -1, 7]),
                            replica_nodes=[0, 1],
                            isr_nodes=[0],
                        )
                        for number in range(choose([0, 2, 2, 2]))
                    ],
                )
                for name in names
            ],
        )

    def _struct(self, struct: Any, version: int) -> Any:
        fields = [field for field in fields_of(struct) if version in field.versions]
        return struct(**{field.name: self._field(field, version) for field in fields})

    def _field(self, field: Any, version: int) -> Any:
        if version in field.nullable and self._random.random() < 0.1:
            return None
        if field.is_array:
            return [self._value(field, version) for _ in range(self._random.choice([0, 1, 2, 4]))]
        return self._value(field, version)

    def _value(self, field: Any, version: int) -> Any:
        if not isinstance(field.kind, str):
            return self._struct(field.kind, version)
        if "error_code" in field.name:
            return self._random.choice(CODES)
        if field.name == "port":
            return self._random.choice(self.ports)
        if field.kind == "String":
            return "127.0.0.1" if field.name == "host" else self._random.choice(TEXTS)
        return self._random.choice(NUMBERS) if field.kind.startswith("Int") else VALUES[field.kind](self._random)


def noted(told: list[int], number: int) -> OnCompletion:
    return lambda metadata, error: told.append(number)


async def produce(client: ClusterClient, acks: int) -> list[int]:
    """The numbers of the records that were told what became of them, or were not taken."""
    options = ProducerOptions(
        ClientOptions(()), CompressionType.NONE, batch_size_bytes=200, delivery_timeout_ms=200, acks=acks
    )
    producer = Producer(client, options, SystemEnvironment())
    told: list[int] = []
    for number in range(20):
        record = ProducerRecord("tu"[number % 2], b"x" * 30, (None, b"k")[number // 2 % 2])
        try:
            await producer.send(record, noted(told, number))
        except (KafkaError, ClientError):
            told.append(number)
    try:
        await producer.flush()
    except (KafkaError, ClientError):
        pass
    finally:
        await producer.close()
    return sorted(told)


async def produce_in_transactions(client: ClusterClient) -> list[int]:
    """As `produce`, in transactions that are committed or aborted; a producer that has ended is replaced."""
    options = ProducerOptions(
        ClientOptions(()), CompressionType.NONE, batch_size_bytes=200, delivery_timeout_ms=100, transactional_id="x"
    )
    told: list[int] = []
    producer = TransactionalProducer(client, options, SystemEnvironment())
    for number in range(20):
        try:
            if producer.state is State.FATAL_ERROR:
                await producer.close()
                producer = TransactionalProducer(client, options, SystemEnvironment())
            if producer.state is State.UNINITIALIZED:
                await producer.init()
            if producer.state is State.READY:
                producer.begin()
            record = ProducerRecord("tu"[number % 2], b"x" * 30)
            await producer.send(record, noted(told, number))
        except (KafkaError, ClientError, RuntimeError):
            told.append(number)
        try:
            if number % 4 == 1:
                await producer.send_offsets(dict.fromkeys(PARTITIONS, 5), "g")
            if number % 4 == 3:
                await producer.commit()
        except (KafkaError, ClientError, RuntimeError):
            with contextlib.suppress(KafkaError, ClientError, RuntimeError):
                await producer.abort()
    await producer.close()
    return sorted(told)


async def end(client: ClusterClient) -> Collection[Any]:
    """A prepared transaction is ended, or an error says why not."""
    await end_prepared(client, PreparedTransaction("x", 1, 1), commit=True)
    return ()


async def mark(client: ClusterClient) -> Collection[Any] | KafkaError:
    return await abort_transaction(client, PARTITIONS[0], 1, 1, 1) or ()


async def verify(client: ClusterClient) -> list[TopicPartition]:
    """The partitions whose verification has ended, one way or the other."""
    await client.refresh_metadata()
    wanted = [Replicated(partition, (0, 1), (0, 1), False) for partition in PARTITIONS]
    checks = await verify_replicas(client, wanted, VerifyOptions(patience_s=0.05))
    assert all(check.is_done for check in checks)
    return [check.partition for check in checks]


Call = Callable[[ClusterClient], Awaitable[Collection[Any] | KafkaError]]
CALLS: dict[str, tuple[Call, Collection[Any] | None]] = {
    "create_topics": (
        lambda client: create_topics(client, [NewTopic("t"), NewTopic("u", 1, 1)], timeout_ms=100, repeatable=True),
        "tu",
    ),
    "delete_topics": (lambda client: delete_topics(client, "tu", timeout_ms=100), "tu"),
    "create_partitions": (
        lambda client: create_partitions(client, {"t": NewPartitions(3), "u": NewPartitions(2, [[0]])}, timeout_ms=100),
        "tu",
    ),
    "describe_topics": (lambda client: describe_topics(client, "tu"), "tu"),
    "describe_all_topics": (describe_topics, None),
    "describe_configs": (lambda client: describe_configs(client, [TOPIC, BROKER]), [TOPIC, BROKER]),
    "incremental_alter_configs": (
        lambda client: incremental_alter_configs(client, {TOPIC: [], BROKER: []}),
        [TOPIC, BROKER],
    ),
    "list_groups": (list_groups, None),
    "describe_groups": (lambda client: describe_groups(client, "gh"), "gh"),
    "delete_groups": (lambda client: delete_groups(client, "gh"), "gh"),
    "list_offsets": (lambda client: list_offsets(client, dict.fromkeys(PARTITIONS, LATEST_TIMESTAMP)), PARTITIONS),
    "group_offsets": (lambda client: list_consumer_group_offsets(client, "gh"), "gh"),
    "alter_group_offsets": (
        lambda client: alter_consumer_group_offsets(client, "g", dict.fromkeys(PARTITIONS, OffsetAndMetadata(3))),
        PARTITIONS,
    ),
    "delete_group_offsets": (lambda client: delete_consumer_group_offsets(client, "g", PARTITIONS), PARTITIONS),
    "elect_leaders": (
        lambda client: elect_leaders(client, ElectionType.PREFERRED, PARTITIONS, timeout_ms=100),
        PARTITIONS,
    ),
    "elect_all_leaders": (lambda client: elect_leaders(client, ElectionType.PREFERRED, timeout_ms=100), None),
    "describe_log_dirs": (lambda client: describe_log_dirs(client, [0, 1]), [0, 1]),
    "alter_log_dirs": (lambda client: alter_replica_log_dirs(client, dict.fromkeys(REPLICAS, "/d")), REPLICAS),
    "reassign": (
        lambda client: alter_partition_reassignments(client, {PARTITIONS[0]: [0], PARTITIONS[1]: None}, timeout_ms=100),
        PARTITIONS[:2],
    ),
    "list_reassignments": (lambda client: list_partition_reassignments(client, PARTITIONS, timeout_ms=100), None),
    "verify_replicas": (verify, PARTITIONS),
    "produce": (lambda client: produce(client, ACKS_ALL), range(20)),
    "produce_acks_leader": (lambda client: produce(client, ACKS_LEADER), range(20)),
    "produce_acks_none": (lambda client: produce(client, ACKS_NONE), range(20)),
    "produce_in_transactions": (produce_in_transactions, range(20)),
    "end_prepared": (end, ()),
    "list_transactions": (list_transactions, None),
    "describe_transactions": (lambda client: describe_transactions(client, "xy"), "xy"),
    "describe_producers": (lambda client: describe_producers(client, PARTITIONS), PARTITIONS),
    "abort_transaction": (mark, ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_nonsense_is_an_error_and_no_result_is_missing(name: str) -> None:
    call, expected = CALLS[name]

    async def main() -> None:
        nonsense = Nonsense(sum(name.encode()))
        options = ConnectionOptions(request_timeout_ms=200, connect_timeout_ms=200)
        async with ScriptedBroker(nonsense.answer) as one, ScriptedBroker(nonsense.answer) as other:
            nonsense.ports = [one.port, other.port]
            for _ in range(ROUNDS):
                client = ClusterClient([one.address], options, RetryPolicy(20, 1, 4))
                try:
                    async with asyncio.timeout(120):
                        results = await call(client)
                except (KafkaError, ClientError):
                    continue
                finally:
                    await client.close()
                assert expected is None or isinstance(results, KafkaError) or sorted(results) == sorted(expected)

    asyncio.run(main())
