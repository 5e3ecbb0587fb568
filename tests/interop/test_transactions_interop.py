"""klamm's transactional producer with brokers of Apache Kafka 2.8.2 and 4.3, and with klamm's; librdkafka reads what
is committed."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.base.system_environment import SystemEnvironment
from klamm.cli.main import run
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.consumer import Consumer
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.consumer.group_member import Membership
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.producer.prepared_transactions import TransactionGone, end_prepared
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.sender import produce_request
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import ProducerFenced, TransactionAborted, TransactionManager
from klamm.client.properties import parse_addresses
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import ACKS_ALL, READ_COMMITTED, TopicPartition
from support.present import present

PARTITIONS = 2
COMMITTED = ConsumerOptions(isolation_level=READ_COMMITTED, auto_offset_reset=OffsetReset.EARLIEST)


@pytest.fixture(params=["real_kafka", "klamm_cluster", pytest.param("real_kraft", marks=pytest.mark.long)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    return str(server.bootstrap)


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    create_topic(bootstrap, name, PARTITIONS)
    return name


def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config={"max.message.bytes": "10000"})])[name].result(120)


@asynccontextmanager
async def cluster(bootstrap: str) -> AsyncIterator[tuple[ClusterClient, Callable[..., TransactionalProducer]]]:
    """A client, and what makes transactional producers."""
    options = ClientOptions(parse_addresses("bootstrap.servers", bootstrap))
    client = make_client(options, SystemEnvironment().random)

    def producer(transactional_id: str, timeout_ms: int = 60_000) -> TransactionalProducer:
        limits: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        return TransactionalProducer(
            client, ProducerOptions(options, CompressionType.LZ4, 1_000, **limits), SystemEnvironment()
        )

    try:
        async with asyncio.timeout(120):
            yield client, producer
    finally:
        await client.close()


async def write(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    for value in values:
        await producer.send(ProducerRecord(topic, value, value))


def read_committed(bootstrap: str, topic: str) -> list[bytes]:
    """The values that librdkafka finds up to the ends of the partitions, sorted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values, ends = [], 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            ends += 1
    consumer.close()
    return sorted(values)


async def test_what_is_committed_is_read_and_nothing_else(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (client, new_producer):
        producer = new_producer(topic)
        await producer.init()
        expected = []
        for number in range(9):
            values = [b"%d/%d" % (number, other) for other in range(30)]
            producer.begin()
            await write(producer, topic, *values)
            if number % 3:
                await producer.commit()
                expected += values
            else:
                await producer.abort()
        producer.begin()
        await write(producer, topic, random.Random(1).randbytes(20_000))
        with pytest.raises(TransactionAborted) as too_large:
            await producer.commit()
        assert too_large.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await producer.abort()
        producer.begin()
        await write(producer, topic, b"last")
        await producer.commit()
        consumer = Consumer(client, COMMITTED)
        consumer.assign({TopicPartition(topic, number): 0 for number in range(PARTITIONS)})
        ours: list[bytes | None] = []
        while len(ours) < len(expected) + 1:
            ours += [record.value for record in await consumer.poll(1_000)]
        await consumer.close()
        assert sorted(map(present, ours)) == sorted([*expected, b"last"])
    assert read_committed(bootstrap, topic) == sorted([*expected, b"last"])


async def test_offsets_are_committed_with_the_records_and_only_by_members(bootstrap: str, topic: str) -> None:
    source = f"{topic}-source"
    create_topic(bootstrap, source, 1)
    async with cluster(bootstrap) as (client, new_producer):
        producer = new_producer(topic)
        await producer.init()
        producer.begin()
        await write(producer, source, *(b"%d" % number for number in range(10)))
        await producer.commit()

        async def copy(commit: bool) -> None:
            """Copies three records to the topic."""
            consumer = GroupConsumer(client, GroupOptions(topic), [source], COMMITTED)
            records = []
            while not records:
                records = await consumer.poll(1_000, 3)
            producer.begin()
            await write(producer, topic, *(record.value or b"" for record in records))
            await producer.send_offsets(consumer.positions(), consumer.membership)
            await (producer.commit() if commit else producer.abort())
            memberships.append(consumer.membership)
            await consumer.close()

        memberships: list[Membership] = []
        for commit in (True, False, True):
            await copy(commit)
        producer.begin()
        with pytest.raises(TransactionAborted) as late:
            await producer.send_offsets({TopicPartition(source, 0): 9}, memberships[0])
        assert late.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        await producer.abort()
    assert read_committed(bootstrap, topic) == [b"%d" % number for number in range(6)]
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    (committed,) = reader.committed([confluent_kafka.TopicPartition(source, 0)], 30)
    reader.close()
    assert committed.offset == 6


async def test_a_prepared_transaction_is_ended_once_by_another_client(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (client, new_producer):
        prepared = {}
        for name in ("committed", "aborted", "fenced"):
            producer = new_producer(f"{topic}-{name}")
            await producer.init()
            producer.begin()
            await write(producer, topic, name.encode())
            prepared[name] = present(await producer.prepare())
            await producer.close()
    async with cluster(bootstrap) as (client, new_producer):
        for _ in range(2):
            await end_prepared(client, prepared["committed"], commit=True)
            await end_prepared(client, prepared["aborted"], commit=False)
        for name, commit in (("committed", False), ("aborted", True)):
            with pytest.raises(TransactionGone):
                await end_prepared(client, prepared[name], commit=commit)
        await new_producer(f"{topic}-fenced").init()
        for commit in (True, False):
            with pytest.raises(TransactionGone):
                await end_prepared(client, prepared["fenced"], commit=commit)
        with pytest.raises(TransactionGone):
            await end_prepared(client, PreparedTransaction(f"{topic}-never", 5, 0), commit=True)
    assert read_committed(bootstrap, topic) == [b"committed"]


async def test_a_producer_continues_after_it_has_ended_its_prepared_transaction(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (client, new_producer):
        producer = new_producer(topic)
        await producer.init()
        old = []
        for number in range(4):
            producer.begin()
            await write(producer, topic, b"%d" % number)
            old.append(present(await producer.prepare()))
            await (producer.abort() if number % 2 else producer.commit())
        producer.begin()
        await write(producer, topic, b"open")
        for prepared in old:
            with pytest.raises(TransactionGone):
                await end_prepared(client, prepared, commit=True)
        await producer.commit()
    assert read_committed(bootstrap, topic) == [b"0", b"2", b"open"]


async def test_a_second_producer_with_the_id_fences_the_first(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (_, new_producer):
        first, second = new_producer(topic), new_producer(topic)
        await first.init()
        first.begin()
        await write(first, topic, b"first")
        await second.init()
        with pytest.raises((ProducerFenced, TransactionAborted)):
            await first.commit()
        with pytest.raises(ProducerFenced):
            await first.abort()
        second.begin()
        await write(second, topic, b"second")
        await second.commit()
    assert read_committed(bootstrap, topic) == [b"second"]


async def test_a_batch_that_comes_after_the_abort_is_refused(bootstrap: str, topic: str) -> None:
    """It was sent, and the connection has lost it for so long that the producer has given it up."""
    async with cluster(bootstrap) as (client, _):
        transactions = TransactionManager(client, topic, 60_000)
        for number in range(2):
            late = await transactions.init() if number == 0 else transactions.identity
            transactions.begin()
            await transactions.add_partition((topic, 0))
            transactions.batch_failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "lost"), may_come_late=True)
            await transactions.abort()
            batch = build_batch(
                [Record(None, b"late", 0)], producer_id=late.producer_id, producer_epoch=late.producer_epoch,
                base_sequence=0, is_transactional=True,
            )  # fmt: skip
            request = produce_request((topic, 0), batch, acks=ACKS_ALL, timeout_ms=10_000, transactional_id=topic)
            response = await client.send_to_leader(topic, 0, ApiKey.PRODUCE, lambda version: request)  # noqa: B023
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        transactions.begin()
        await transactions.add_partition((topic, 0))
        await transactions.commit()
    assert read_committed(bootstrap, topic) == []


async def test_offsets_that_come_after_the_abort_are_refused(bootstrap: str, topic: str) -> None:
    """The coordinator of the group has not answered, and the producer has given them up."""
    async with cluster(bootstrap) as (client, _):
        transactions = TransactionManager(client, topic, 60_000)
        late = await transactions.init()
        transactions.begin()
        await transactions.send_offsets({TopicPartition(topic, 0): 1}, topic)
        transactions.batch_failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "lost"), may_come_late=True)
        await transactions.abort()
        topics = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        offsets = topics.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=topic,
            group_id=topic,
            producer_id=late.producer_id,
            producer_epoch=late.producer_epoch,
            topics=[topics(name=topic, partitions=[offsets])],
        )
        connection = await client.connection_to(client.coordinators[topic])
        response = await connection.send(ApiKey.TXN_OFFSET_COMMIT, lambda version: request)
        assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_timeout_above_the_brokers_maximum_is_refused(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (_, new_producer):
        with pytest.raises(KafkaError, match=r"transaction\.max\.timeout\.ms"):
            await new_producer(topic, 2**31 - 1).init()


@pytest.mark.long
async def test_a_prepared_transaction_that_has_timed_out_is_gone(bootstrap: str, topic: str) -> None:
    async with cluster(bootstrap) as (client, new_producer):
        producer = new_producer(topic, 1_000)
        await producer.init()
        producer.begin()
        await write(producer, topic, b"late")
        prepared = await producer.prepare()
        assert prepared is not None

        # Brokers look for such transactions every 10 s.
        await asyncio.sleep(15)
        with pytest.raises(TransactionGone, match="has timed out"):
            await end_prepared(client, prepared, commit=True)
    assert read_committed(bootstrap, topic) == []


# -- commands ---------------------------------------------------------------------------------------------------------


def klamm(*arguments: str) -> int:
    return run(list(arguments))


def test_the_command_writes_a_file_in_one_transaction(
    bootstrap: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, too_large = tmp_path / "lines", tmp_path / "too-large"
    lines.write_bytes(b"".join(b"%03d\n" % number for number in range(200)))
    too_large.write_bytes(b"before\n" + random.Random(1).randbytes(20_000).replace(b"\n", b"") + b"\nafter\n")
    write = ("produce", "--bootstrap-server", bootstrap, "--topic", topic, "--transactional-id", topic, "--file")
    assert klamm(*write, str(too_large)) == 1
    error = capsys.readouterr().err
    assert error.startswith("klamm: the transaction was aborted, and no record of it will be read: MESSAGE_TOO_LARGE")
    assert klamm(*write, str(lines), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": topic, "delivered": 200, "failed": 0}
    assert read_committed(bootstrap, topic) == lines.read_bytes().split()

    read = ("consume", "--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--timeout-ms", "1000")
    target = tmp_path / "read"
    assert klamm(*read, "--isolation-level", "read_committed", "--output", str(target)) == 0
    assert sorted(target.read_bytes().split()) == lines.read_bytes().split()
    assert klamm(*read, "--isolation-level", "read_uncommitted", "--output", str(target)) == 0
    assert b"before\n" in target.read_bytes()
