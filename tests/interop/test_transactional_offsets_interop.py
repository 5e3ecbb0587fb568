"""Offsets that are committed in transactions, in a data directory that Kafka 2.8.2 and klamm open in turn.

Each program loads what the other has written to `__consumer_offsets`, whether its transaction was committed, aborted or
still open, gives the same answers, and ends the open transactions.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets, offset_fetch_request
from klamm.client.fan_out import coordinators, error_of, fan_out
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.prepared_transactions import end_prepared
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.properties import parse_addresses
from klamm.coordinator.groups.group_records import OffsetKey, read_key, read_offset_value
from klamm.net.client import Connection
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import decode_end_transaction_marker, decode_records
from klamm.protocol.vocabulary import TopicPartition
from support.clusters import Broker, KlammBroker
from support.oracles import RealKafka, RealZooKeeper

PROPERTIES: Mapping[str, str | int] = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "controlled.shutdown.enable": "false",
}
SOURCE = "source"
P0, P1, P2 = (TopicPartition(SOURCE, number) for number in range(3))
UNSTABLE = "UNSTABLE_OFFSET_COMMIT"

# By group and partition: what is read, and what is read by a client that waits for open transactions.
Answers = dict[str, list[tuple[int | None, int | str | None]]]

# The plain commits, then those in transactions: the producers "commits" and "aborts" end before their broker does, the
# others at the next broker.
BEGUN: Answers = {
    "committed": [(10, 10), (11, 11), (None, None)],
    "aborted": [(5, 5), (None, None), (None, None)],
    "pending": [(5, UNSTABLE), (None, UNSTABLE), (None, UNSTABLE)],
    "only-pending": [(None, UNSTABLE), (None, None), (None, None)],
    "overtaken": [(20, UNSTABLE), (None, None), (None, None)],
    "given-up": [(5, UNSTABLE), (None, None), (None, None)],
}
ENDED: Answers = {
    "committed": [(10, 10), (11, 11), (None, None)],
    "aborted": [(5, 5), (None, None), (None, None)],
    "pending": [(10, 10), (11, 11), (None, None)],
    "only-pending": [(1, 1), (None, None), (None, None)],
    "overtaken": [(20, 20), (None, None), (None, None)],
    "given-up": [(5, 5), (None, None), (None, None)],
}
# Batches of transactions in the log: (group, partition, offset) of each record.
WRITTEN = [
    [("committed", 0, 10), ("committed", 1, 11)],
    [("aborted", 0, 10), ("aborted", 1, 11)],
    [("pending", 0, 10), ("pending", 1, 11)],
    [("only-pending", 0, 1)],
    [("overtaken", 0, 10)],
    [("pending", 2, 12)],
    [("given-up", 0, 10)],
]


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[ClusterClient]:
    client = make_client(options(broker), SystemEnvironment().random)
    try:
        yield client
    finally:
        await client.close()


def options(broker: Broker) -> ClientOptions:
    return ClientOptions(parse_addresses("bootstrap.servers", broker.bootstrap))


async def begin(client: ClusterClient, broker: Broker, number: int) -> dict[bool, PreparedTransaction]:
    """Commits offsets in groups named after `number`. Returns the open transactions, and whether they will commit."""

    async def plain(group: str, offset: int) -> None:
        results = await alter_consumer_group_offsets(client, f"{group}-{number}", {P0: OffsetAndMetadata(offset)})
        assert results == {P0: None}

    async def producer(name: str, *commits: tuple[str, Mapping[TopicPartition, int]]) -> TransactionalProducer:
        limits: dict[str, Any] = {"transactional_id": f"{name}-{number}", "transaction_timeout_ms": 600_000}
        made = TransactionalProducer(
            client, ProducerOptions(options(broker), CompressionType.NONE, 1_000, **limits), SystemEnvironment()
        )
        await made.init()
        made.begin()
        for group, offsets in commits:
            await made.send_offsets(offsets, f"{group}-{number}")
        return made

    for group in ("committed", "aborted", "pending", "given-up"):
        await plain(group, 5)
    await (await producer("commits", ("committed", {P0: 10, P1: 11}))).commit()
    await (await producer("aborts", ("aborted", {P0: 10, P1: 11}))).abort()
    later = {
        True: await producer(
            "commits-later",
            ("pending", {P0: 10, P1: 11}),
            ("only-pending", {P0: 1}),
            ("overtaken", {P0: 10}),
        ),
        False: await producer("aborts-later", ("pending", {P2: 12}), ("given-up", {P0: 10})),
    }
    await plain("overtaken", 20)
    prepared = {}
    for is_committed, made in later.items():
        one = await made.prepare()
        assert one is not None
        prepared[is_committed] = one
        await made.close()
    return prepared


async def answers(client: ClusterClient, number: int) -> Answers:
    found: Answers = {}
    for group in BEGUN:
        # A transaction may end between the two; what is stable is visible afterwards.
        stable, visible = [await fetch(client, f"{group}-{number}", require_stable=one) for one in (True, False)]
        found[group] = list(zip(visible, stable, strict=True))  # type: ignore[arg-type]
    return found


async def fetch(client: ClusterClient, group: str, *, require_stable: bool) -> list[int | str | None]:
    async def ask(connection: Connection, groups: Sequence[str]) -> dict[str, list[int | str | None] | KafkaError]:
        request = offset_fetch_request(group, [P0, P1, P2], require_stable=require_stable)
        response = await connection.send(ApiKey.OFFSET_FETCH, lambda version: request)
        if (error := error_of(response.error_code, group)) is not None:
            return {group: error}
        partitions = {one.partition_index: one for topic in response.topics for one in topic.partitions}
        return {group: [said(partitions[number]) for number in range(3)]}

    found = (await fan_out(client, [group], coordinators(client), ask))[group]
    assert not isinstance(found, KafkaError), found
    return found


def said(partition: Any) -> int | str | None:
    if partition.error_code != ErrorCode.NONE:
        return ErrorCode(partition.error_code).name
    return None if partition.committed_offset < 0 else int(partition.committed_offset)


async def until_ended(client: ClusterClient, number: int, groups: Iterable[str] = tuple(ENDED)) -> Answers:
    """The answers once no transaction of these groups is open: markers come after the answer to EndTxn."""
    while True:
        found = await answers(client, number)
        if not any(stable == UNSTABLE for group in groups for _, stable in found[group]):
            return found


def written(broker: Broker, number: int) -> list[list[tuple[str, int, int]]]:
    """The transactional batches of the groups named after `number`. Checks what is the same in all of them."""
    found, markers = [], []
    for segment in sorted((broker.data_directory / "__consumer_offsets-0").glob("*.log")):
        data = segment.read_bytes()
        for position, header in iterate_batches(data):
            if not header.is_transactional:
                continue
            assert (header.producer_id >= 0, header.producer_epoch >= 0) == (True, True)
            if header.is_control:
                assert header.base_sequence == -1
                markers.append(decode_end_transaction_marker(data, position, header))
                continue
            assert (header.base_sequence, header.codec) == (0, CompressionType.NONE)
            batch = []
            for record in decode_records(data, position, header):
                key = read_key(record.key or b"")
                assert isinstance(key, OffsetKey)
                group, _, suffix = key.group_id.rpartition("-")
                if int(suffix) == number:
                    batch.append((group, key.partition[1], read_offset_value(record.value or b"").offset))
            if batch:
                found.append(sorted(batch))
    assert None not in markers
    return found


async def take_turns(turns: Sequence[Broker], end: Callable[[Broker], None]) -> None:
    prepared: dict[bool, PreparedTransaction] = {}
    for number, broker in enumerate(turns):
        broker.start()
        async with connected(broker) as client:
            if number == 0:
                admin = AdminClient({"bootstrap.servers": broker.bootstrap})
                admin.create_topics([NewTopic(SOURCE, 3, 1)])[SOURCE].result(120)
            for former in range(number):
                assert await answers(client, former) == (BEGUN if former == number - 1 else ENDED)
            for is_committed, transaction in prepared.items():
                await end_prepared(client, transaction, commit=is_committed)
            if number > 0:
                assert await until_ended(client, number - 1) == ENDED
            prepared = await begin(client, broker, number)
            assert await until_ended(client, number, ("committed", "aborted")) == BEGUN
        end(broker)
        assert written(broker, number) == WRITTEN


@pytest.mark.long
@pytest.mark.parametrize("first", ["kafka", "klamm"])
async def test_each_program_loads_what_transactions_have_committed_at_the_other(
    first: str, kafka_jars: Path, tmp_path: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any]
) -> None:
    chroot = f"{real_zookeeper.connect}/transactional-offsets-{first}"
    kafka = running(RealKafka(kafka_jars, tmp_path / "broker", chroot, properties=PROPERTIES))
    klamm = running(KlammBroker(tmp_path / "broker", chroot, properties=PROPERTIES))
    one, other = (kafka, klamm) if first == "kafka" else (klamm, kafka)
    await take_turns([one, other, one], lambda broker: broker.stop())
