"""What a transactional client asks, request by request, and what a broker of either program answers and logs.

A `Wire` sends requests as they are and notes every answer, so that the notes of two brokers can be compared.
"""

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from klamm.protocol import messages
from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnTopic
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.record_batch import BatchHeader, iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from support.one_broker import Client

TRANSACTION_STATE_TOPIC_NAME = "__transaction_state"
GROUP_METADATA_TOPIC_NAME = "__consumer_offsets"
PARTITIONS = 3
TIMEOUT_MS = 60_000
RETRY_S = 0.02
# Answers that say: not yet.
PASSING = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
LATER = {*PASSING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

CommitTopic = messages.request_class(ApiKey.TXN_OFFSET_COMMIT).TxnOffsetCommitRequestTopic
WritableMarker = messages.request_class(ApiKey.WRITE_TXN_MARKERS).WritableTxnMarker

# The broker's properties: one partition of each internal topic, and time-outs that come soon.
PROPERTIES: dict[str, str | int] = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.max.timeout.ms": 900_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
}


# Of a value of `__transaction_state`: version, producer id, epoch, timeout, status, and how many topics follow.
FIXED_BYTES = struct.calcsize(">hqhibi")
NO_PARTITIONS = b"\xff\xff\xff\xff"


class Producer(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int

    def in_epoch(self, epoch: int) -> "Producer":
        return self._replace(epoch=epoch)


class Logged(NamedTuple):
    """A record of `__transaction_state`."""

    key: bytes | None
    value: bytes | None


class Wire:
    """One connection to the only broker of a cluster, a topic that is made there, and what was answered so far."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self.topic = client, topic
        self.notes: list[tuple[str, Any]] = []

    @classmethod
    async def connect(cls, bootstrap: str, topic: str) -> "Wire":
        host, _, port = bootstrap.rpartition(":")
        wire = cls(Client(*await asyncio.open_connection(host, int(port))), topic)
        await wire._client.create_topic(topic, PARTITIONS)
        await wire.find_coordinator("any", 0)
        await wire.find_coordinator("any", 1)
        return wire

    def partitions(self, *numbers: int) -> list[tuple[str, int]]:
        """These partitions of the topic."""
        return [(self.topic, number) for number in numbers]

    async def close(self) -> None:
        await self._client.close()

    def note(self, what: str, answer: Any) -> Any:
        self.notes.append((what, answer))
        return answer

    # -- one request each; the answer is the name of an error, or errors by partition ----------------------------------

    async def find_coordinator(self, key: str, key_type: int, version: int = 3) -> str:
        """Key type 0 is a group, 1 a transactional id."""
        while True:
            answer = await self._client.ask(ApiKey.FIND_COORDINATOR, version, key=key, key_type=key_type)
            error = ErrorCode(answer.error_code)
            if error not in LATER:
                return str(self.note(f"find coordinator of {key!r}, type {key_type}", error.name))
            await asyncio.sleep(RETRY_S)

    async def init(
        self,
        transactional_id: str | None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        current: Producer | None = None,
        version: int = 4,
        waits: bool = True,
    ) -> Producer:
        """The producer that the coordinator gives; `waits`: for the end of the transaction before."""
        fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        if current is not None:
            fields |= {"producer_id": current.producer_id, "producer_epoch": current.epoch}
        while True:
            answer = await self._client.ask(ApiKey.INIT_PRODUCER_ID, version, **fields)
            error = ErrorCode(answer.error_code)
            if not (waits and error in LATER):
                break
            await asyncio.sleep(RETRY_S)
        given = Producer(answer.producer_id, answer.producer_epoch)
        self.note(f"init {transactional_id!r}, {timeout_ms} ms, current {current}, v{version}", (error.name, given))
        return given

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[tuple[str, int]],
        *,
        version: int = 3,
        waits: bool = True,
    ) -> Any:
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        while True:
            answer = await self._client.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in topics.items()
                ],
            )
            errors = {
                (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            if not (waits and LATER & set(errors.values())):
                break
            await asyncio.sleep(RETRY_S)
        named = {place: error.name for place, error in sorted(errors.items())}
        return self.note(f"add {list(partitions)} to {transactional_id!r} of {producer}, v{version}", named)

    async def add_offsets(
        self, transactional_id: str, producer: Producer, group: str, *, version: int = 3, waits: bool = True
    ) -> str:
        return await self._ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            version,
            f"add the offsets of {group!r} to {transactional_id!r} of {producer}, v{version}",
            waits,
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )

    async def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int = 3, waits: bool = True
    ) -> str:
        how = "commit" if commit else "abort"
        return await self._ask(
            ApiKey.END_TXN,
            version,
            f"{how} {transactional_id!r} of {producer}, v{version}",
            waits,
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    async def _ask(self, key: ApiKey, version: int, what: str, waits: bool, **fields: Any) -> str:
        while True:
            error = ErrorCode((await self._client.ask(key, version, **fields)).error_code)
            if not (waits and error in LATER):
                return str(self.note(what, error.name))
            await asyncio.sleep(RETRY_S)

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        offsets: dict[tuple[str, int], int],
        *,
        generation_id: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        version: int = 3,
    ) -> Any:
        """TxnOffsetCommit."""
        fields: dict[str, Any] = {}
        if version >= 3:
            fields = {"generation_id": generation_id, "member_id": member_id, "group_instance_id": instance_id}
        answer = await self._client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[
                CommitTopic(
                    name=topic,
                    partitions=[
                        CommitTopic.TxnOffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata="m"
                        )
                    ],
                )
                for (topic, number), offset in offsets.items()
            ],
            **fields,
        )
        errors = {
            (topic.name, result.partition_index): ErrorCode(result.error_code).name
            for topic in answer.topics
            for result in topic.partitions
        }
        what = f"offsets {offsets} of {group!r} ({generation_id}, {member_id!r}, {instance_id!r}) with {producer}"
        return self.note(f"{what}, v{version}", errors)

    async def produce(
        self,
        transactional_id: str | None,
        producer: Producer,
        partition: int,
        sequence: int,
        values: Sequence[bytes] = (b"v",),
        *,
        is_transactional: bool = True,
    ) -> Any:
        """One batch; the answer has the base offset, too."""
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch(
            [Record(None, value, now_ms) for value in values],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        body = ProduceRequest.of(transactional_id, -1, 10_000, [(self.topic, [(partition, batch)])])
        answer = (await self._client.request(ApiKey.PRODUCE, 9, body)).responses[0].partition_responses[0]
        return self.note(
            f"produce {list(values)} to {partition} with {producer}, sequence {sequence}",
            (ErrorCode(answer.error_code).name, answer.base_offset),
        )

    async def write_marker(
        self,
        producer: Producer,
        partitions: Sequence[tuple[str, int]],
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        version: int = 1,
    ) -> Any:
        """WriteTxnMarkers, as a coordinator sends it."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        marker = WritableMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=commit,
            topics=[
                WritableMarker.WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in topics.items()
            ],
            coordinator_epoch=coordinator_epoch,
        )
        answer = await self._client.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=[marker])
        errors = {
            (topic.name, result.partition_index): ErrorCode(result.error_code).name
            for result_of_marker in answer.markers
            for topic in result_of_marker.topics
            for result in topic.partitions
        }
        what = f"marker of {producer}, commit {commit}, coordinator epoch {coordinator_epoch}, {list(partitions)}"
        return self.note(what, dict(sorted(errors.items())))

    async def fetch_offsets(self, group: str, *, require_stable: bool, has_ended: bool = False) -> Any:
        """The group's committed offsets by partition, or an error's name.

        `has_ended`: the transaction is over, but Kafka's coordinator of groups learns of the marker a moment later.
        """
        request = messages.request_class(ApiKey.OFFSET_FETCH)
        topics = [request.OffsetFetchRequestTopic(name=self.topic, partition_indexes=list(range(PARTITIONS)))]
        while True:
            answer = await self._client.ask(
                ApiKey.OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=require_stable
            )
            codes = {result.error_code for result in answer.topics[0].partitions}
            if not has_ended or ErrorCode.UNSTABLE_OFFSET_COMMIT not in codes:
                break
            await asyncio.sleep(RETRY_S)
        offsets = {
            result.partition_index: result.committed_offset
            if result.error_code == 0
            else ErrorCode(result.error_code).name
            for result in answer.topics[0].partitions
        }
        return self.note(
            f"offsets of {group!r}, require_stable {require_stable}", (ErrorCode(answer.error_code).name, offsets)
        )

    async def fetch(self, partition: int, *, committed: bool) -> Any:
        """What a reader gets: the values, the ids of aborted producers with their first offsets, the last stable
        offset, the high watermark."""
        result = await self._client.fetch(self.topic, partition, 0, version=12, isolation_level=int(committed))
        values = [
            (header.base_offset, header.is_control, record.value)
            for header, record in _records(result)
            if not (header.is_control and record.value is None)
        ]
        aborted = [(one.producer_id, one.first_offset) for one in result.aborted_transactions or []]
        seen = (ErrorCode(result.error_code).name, values, aborted, result.last_stable_offset, result.high_watermark)
        return self.note(f"fetch {partition}, committed {committed}", seen)

    async def describe_producers(self, *partitions: int) -> Any:
        """Of each producer: id, epoch, last sequence, coordinator epoch, first offset of the transaction."""
        topic = messages.request_class(ApiKey.DESCRIBE_PRODUCERS).TopicRequest(
            name=self.topic, partition_indexes=list(partitions)
        )
        answer = await self._client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[topic])
        known = {
            result.partition_index: ErrorCode(result.error_code).name
            if result.error_code
            else sorted(
                (
                    one.producer_id,
                    one.producer_epoch,
                    one.last_sequence,
                    one.coordinator_epoch,
                    one.current_txn_start_offset,
                )
                for one in result.active_producers
            )
            for result in answer.topics[0].partitions
        }
        return self.note(f"producers of {partitions}", dict(sorted(known.items())))

    # -- what stands in the logs ------------------------------------------------------------------------------------

    async def transaction_log(self, *transactional_ids: str) -> list[Logged]:
        """The records of these transactional ids, without times and with partitions in order."""
        found = []
        for _, record in await self._log(TRANSACTION_STATE_TOPIC_NAME):
            if bytes(record.key or b"")[4:].decode() not in transactional_ids:
                continue
            logged = Logged(bytes(record.key or b""), None if record.value is None else bytes(record.value))
            found.append(without_times(in_order(*logged)))
        return found

    async def raw_transaction_log(self) -> list[Logged]:
        """As `transaction_log`, with the times."""
        return [
            Logged(bytes(record.key or b""), None if record.value is None else bytes(record.value))
            for _, record in await self._log(TRANSACTION_STATE_TOPIC_NAME)
        ]

    async def batches(self, topic: str, partition: int) -> list[tuple[Any, ...]]:
        """Each batch of a log by what its header and its records say, without times."""
        found: dict[int, tuple[BatchHeader, list[Record]]] = {}
        for header, record in await self._log(topic, partition):
            found.setdefault(header.base_offset, (header, []))[1].append(record)
        return [
            (
                header.base_offset,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                # The end of an offset's value is the time of its commit.
                [
                    (
                        bytes(record.key or b""),
                        bytes(record.value or b"")[: -8 if topic == GROUP_METADATA_TOPIC_NAME else None],
                    )
                    for record in records
                ],
            )
            for header, records in found.values()
        ]

    async def _log(self, topic: str, partition: int = 0) -> list[tuple[BatchHeader, Record]]:
        found: list[tuple[BatchHeader, Record]] = []
        offset = 0
        while True:
            result = await self._client.fetch(topic, partition, offset, version=12, isolation_level=0)
            assert result.error_code == 0, (topic, partition, result)
            part = _records(result)
            found += part
            if not part:
                return found
            offset = part[-1][0].next_offset


def in_order(key: bytes | None, value: bytes | None) -> Logged:
    """The record with the partitions of its transaction in order; Kafka writes them in the order of a hash table."""
    if value is None or value[FIXED_BYTES - 4 : FIXED_BYTES] == NO_PARTITIONS:
        return Logged(key, value)
    (topic_count,) = struct.unpack_from(">i", value, FIXED_BYTES - 4)
    position, topics = FIXED_BYTES, []
    for _ in range(topic_count):
        (length,) = struct.unpack_from(">h", value, position)
        name = value[position : position + 2 + length]
        position += len(name)
        (count,) = struct.unpack_from(">i", value, position)
        numbers = struct.unpack_from(f">{count}i", value, position + 4)
        position += 4 + 4 * count
        topics.append(name + struct.pack(f">i{count}i", count, *sorted(numbers)))
    assert position == len(value) - 16, (key, value)
    return Logged(key, value[:FIXED_BYTES] + b"".join(sorted(topics)) + value[position:])


def without_times(record: Logged) -> Logged:
    """The value ends with two times; what is kept of them is whether the transaction has one at which it began."""
    if record.value is None:
        return record
    (began,) = struct.unpack(">q", record.value[-8:])
    return Logged(record.key, record.value[:-16] + (b"began" if began >= 0 else b"never"))


def _records(result: Any) -> list[tuple[BatchHeader, Record]]:
    data = bytes(result.records or b"")
    return [
        (header, record)
        for position, header in iterate_batches(data, allow_partial_end=True)
        for record in decode_records(data, position, header)
    ]
