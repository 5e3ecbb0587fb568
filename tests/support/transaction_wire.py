"""What a transactional producer and its coordinator say, frame by frame: for tests of the broker."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnTopic as AddedTopic
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from support.one_broker import Client

Marker = WriteTxnMarkersRequest.WritableTxnMarker
MarkedTopic = Marker.WritableTxnMarkerTopic
CommittedTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
CommittedPartition = CommittedTopic.TxnOffsetCommitRequestPartition

T = TypeVar("T")

PRODUCER = 7


def transactional(*values: bytes, producer_id: int = PRODUCER, epoch: int = 0, sequence: int = 0) -> bytearray:
    """A batch of a transaction, of now: a marker that is much younger would begin a segment of its own."""
    records = [Record(key=None, value=value, timestamp_ms=time.time_ns() // 1_000_000) for value in values]
    return build_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )


async def produce(client: Client, records: Any, topic: str = "t", partition: int = 0, *, id: str | None = "tx") -> Any:
    """The answer for the partition. `id` is the transactional id."""
    body = ProduceRequest.of(id, -1, 10_000, [(topic, [(partition, records)])])
    return (await client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses[0]


def marker(
    *partitions: tuple[str, int],
    commits: bool = True,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
) -> Marker:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return Marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commits,
        topics=[MarkedTopic(name=name, partition_indexes=numbers) for name, numbers in topics.items()],
        coordinator_epoch=coordinator_epoch,
    )


async def write_markers(
    client: Client, *markers: Marker, version: int = 1
) -> Mapping[int, Mapping[tuple[str, int], int]]:
    """The code of each partition, by producer id."""
    answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=list(markers))
    return {
        result.producer_id: {
            (topic.name, partition.partition_index): partition.error_code
            for topic in result.topics
            for partition in topic.partitions
        }
        for result in answer.markers
    }


# -- the coordinator's requests

ONE_COORDINATOR = {
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
}
"""The properties of a broker that coordinates alone."""
RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


async def retried(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer with another error than those that every producer repeats its request for."""
    return await repeated(ask, lambda answer: answer.error_code not in RETRIED)


async def repeated(ask: Callable[[], Awaitable[T]], is_wanted: Callable[[T], bool]) -> T:
    """The first answer that is wanted, of a broker that tells nobody when it changes."""
    while True:
        answer = await ask()
        if is_wanted(answer):
            return answer
        await asyncio.sleep(0.002)


async def init(client: Client, id: str = "tx", timeout_ms: int = 60_000, version: int = 4, **current: int) -> Any:
    """The answer to InitProducerId when there is a coordinator. `current` is the producer's id and epoch."""
    await retried(lambda: client.ask(ApiKey.FIND_COORDINATOR, key=id, key_type=1))
    return await retried(
        lambda: client.ask(
            ApiKey.INIT_PRODUCER_ID, version, transactional_id=id, transaction_timeout_ms=timeout_ms, **current
        )
    )


class Producer:
    """A transactional producer of one client."""

    def __init__(self, client: Client, id: str, producer_id: int, epoch: int) -> None:
        self.client, self.id, self.producer_id, self.epoch = client, id, producer_id, epoch

    @classmethod
    async def begin(cls, client: Client, id: str = "tx", **options: Any) -> Self:
        answer = await init(client, id, **options)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return cls(client, id, answer.producer_id, answer.producer_epoch)

    async def add(self, *partitions: tuple[str, int], version: int = 3) -> dict[tuple[str, int], int]:
        """The code of each partition."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)

        async def ask() -> dict[tuple[str, int], int]:
            answer = await self.client.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddedTopic(name=name, partitions=numbers) for name, numbers in topics.items()],
            )
            return {
                (topic.name, one.partition_index): one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            }

        return await repeated(ask, lambda codes: not set(RETRIED) & set(codes.values()))

    async def produce(self, *values: bytes, topic: str = "t", partition: int = 0, sequence: int = 0) -> Any:
        records = transactional(*values, producer_id=self.producer_id, epoch=self.epoch, sequence=sequence)
        return await produce(self.client, records, topic, partition, id=self.id)

    async def add_offsets(self, group: str = "g", version: int = 3) -> int:
        """The code."""
        fields = {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        answer = await retried(lambda: self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, group_id=group, **fields))
        return int(answer.error_code)

    async def commit_offsets(
        self, offsets: Mapping[tuple[str, int], int], group: str = "g", version: int = 3, **member: Any
    ) -> dict[tuple[str, int], int]:
        """The code of each partition."""
        topics: dict[str, list[CommittedPartition]] = {}
        for (topic, number), offset in offsets.items():
            topics.setdefault(topic, []).append(
                CommittedPartition(partition_index=number, committed_offset=offset, committed_metadata="")
            )

        async def ask() -> dict[tuple[str, int], int]:
            answer = await self.client.ask(
                ApiKey.TXN_OFFSET_COMMIT,
                version,
                transactional_id=self.id,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[CommittedTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
                **member,
            )
            return {
                (topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions
            }

        return await repeated(ask, lambda codes: not set(RETRIED) & set(codes.values()))

    async def end(self, *, commits: bool, version: int = 3) -> int:
        """The code."""
        fields = {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        answer = await retried(lambda: self.client.ask(ApiKey.END_TXN, version, committed=commits, **fields))
        return int(answer.error_code)
