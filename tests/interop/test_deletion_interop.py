"""A cluster of one Apache Kafka 2.8.2 and one klamm broker: deletions of records and reads from followers.

Each program leads one partition and follows in the other. Both must answer alike, whichever leads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.delete_records import TO_HIGH_WATERMARK, delete_records
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.offsets import list_replica_offsets
from klamm.client.fan_out import checked
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.protocol.apis.fetch import FetchRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from support.durability.brokers import ProcessBrokers
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.spark.producing import numbered, produce

pytestmark = pytest.mark.long

KAFKA, KLAMM = 0, 1
# Partition -> its leader.
LEADERS = {0: KAFKA, 1: KLAMM}
RECORDS = 10


@pytest.fixture(scope="module")
def brokers(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBrokers]:
    with ProcessBrokers.running(tmp_path_factory.mktemp("brokers"), ["kafka", "klamm"]) as running:
        yield running


def with_client(brokers: ProcessBrokers, test: Callable[[ClusterClient], Awaitable[None]]) -> None:
    async def run() -> None:
        options = ClientOptions(parse_addresses("bootstrap", brokers.bootstrap))
        client = make_client(options, SystemEnvironment().random)
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 120))


async def make(brokers: ProcessBrokers, client: ClusterClient, name: str, **configs: str) -> None:
    """A topic with records in both partitions, which both brokers have."""
    assignment = {number: [leader, 1 - leader] for number, leader in LEADERS.items()}
    created = await create_topics(client, [NewTopic(name, replica_assignment=assignment, configs=configs)])
    checked(created[name])
    await asyncio.to_thread(brokers.wait_for_full_isr, name, len(LEADERS))
    records = [{"key": b"k", **record} for number in LEADERS for record in numbered(RECORDS, number)]
    await asyncio.to_thread(produce, brokers.bootstrap, name, records)


def shown(result: int | KafkaError) -> int | str:
    return result.code.name if isinstance(result, KafkaError) else result


def test_both_programs_delete_alike(brokers: ProcessBrokers) -> None:
    async def test(client: ClusterClient) -> None:
        await make(brokers, client, "trimmed")
        await make(brokers, client, "kept", **{"cleanup.policy": "compact"})
        for offset, expected in (
            (4, 4),
            (2, 4),  # What is deleted stays so.
            (RECORDS + 1, "OFFSET_OUT_OF_RANGE"),
            (-2, "OFFSET_OUT_OF_RANGE"),
            (TO_HIGH_WATERMARK, RECORDS),
        ):
            partitions = [TopicPartition("trimmed", number) for number in LEADERS]
            deleted = await delete_records(client, dict.fromkeys(partitions, offset), timeout_ms=30_000)
            assert {partition.partition: shown(each) for partition, each in deleted.items()} == {
                0: expected,
                1: expected,
            }, offset
        kept = await delete_records(client, {TopicPartition("kept", number): 1 for number in LEADERS})
        assert {shown(each) for each in kept.values()} == {"POLICY_VIOLATION"}
        replicas = [TopicPartitionReplica("trimmed", number, broker) for number in LEADERS for broker in (KAFKA, KLAMM)]
        starts = await list_replica_offsets(client, replicas, EARLIEST_TIMESTAMP)
        assert {checked(each).offset for each in starts.values()} == {RECORDS}

    with_client(brokers, test)


def test_both_programs_answer_consumers_as_followers(brokers: ProcessBrokers) -> None:
    async def fetch(client: ClusterClient, broker: int, number: int, replica_id: int, offset: int, epoch: int) -> Any:
        connection = await client.connection_to(broker)
        want = to_fetch(number, offset, 1_000_000, epoch=epoch)
        request: FetchRequest = fetch_request(("read", [want]), replica_id=replica_id, max_wait_ms=0)
        result = result_of(await connection.send(ApiKey.FETCH, lambda version: request, version=11))
        return ErrorCode(result.error_code).name, len(result.records or b"") > 0

    async def test(client: ClusterClient) -> None:
        await make(brokers, client, "read")
        for number, leader in LEADERS.items():
            # The high watermark reaches followers with a later fetch.
            async with asyncio.timeout(120):
                while await fetch(client, 1 - leader, number, -1, 0, 0) == ("NONE", False):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            for replica_id in (-1, -2):
                for offset, epoch, expected in (
                    (0, 0, ("NONE", True)),
                    (0, -1, ("NONE", True)),
                    (RECORDS, 0, ("NONE", False)),
                    (RECORDS + 1, 0, ("OFFSET_OUT_OF_RANGE", False)),
                    (0, 1, ("UNKNOWN_LEADER_EPOCH", False)),
                ):
                    found = await fetch(client, 1 - leader, number, replica_id, offset, epoch)
                    assert found == expected, (number, replica_id, offset, epoch)
        replicas = [TopicPartitionReplica("read", number, broker) for number in LEADERS for broker in (KAFKA, KLAMM)]
        ends = await list_replica_offsets(client, replicas, LATEST_TIMESTAMP)
        assert {checked(each).offset for each in ends.values()} == {RECORDS}

    with_client(brokers, test)
