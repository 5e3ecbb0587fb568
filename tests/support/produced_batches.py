"""Batches that a producer may send, and how Apache Kafka 2.8.2 and klamm answer them: for tests of both.

Each case is sent alone, to a topic of its name; where several batches are sent, the last one's answer counts.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from support.one_broker import Client

Make = Callable[[int], Sequence[bytearray]]

NONE = ErrorCode.NONE
INVALID_RECORD = ErrorCode.INVALID_RECORD
INVALID_TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
NOT_AUTHORIZED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, MAX_TIMESTAMP_AT, COUNT_AT, RECORDS_AT = 21, 23, 35, 57, 61
LOG_APPEND_TIME = 0x08


@dataclass(frozen=True)
class Case:
    """`make(now_ms)` makes the batches. `klamm` is None where it answers as Kafka does."""

    make: Make
    kafka: ErrorCode
    klamm: ErrorCode | None = None
    transactional_id: str | None = None
    version: int = 9
    configs: Mapping[str, str] = field(default_factory=dict)
    # The places in the batch of the records that are refused for themselves.
    refused: Sequence[int] = ()

    @property
    def answer_of_klamm(self) -> ErrorCode:
        return self.kafka if self.klamm is None else self.klamm


def changed(data: bytearray, position: int, form: str, value: int) -> bytearray:
    """The batch with some of its bytes changed and the checksum made to match."""
    struct.pack_into(form, data, position, value)
    struct.pack_into(">I", data, 17, rb._crc(data, 0, len(data)))
    return data


def flagged(data: bytearray, flags: int) -> bytearray:
    """The batch with these attributes besides those that it has."""
    return changed(data, ATTRIBUTES_AT, ">H", struct.unpack_from(">H", data, ATTRIBUTES_AT)[0] | flags)


def one(**header: Any) -> Make:
    """One record."""
    return lambda now_ms: [build_batch([Record(b"k", b"v", now_ms)], **header)]


def several(*headers: dict[str, Any]) -> Make:
    """One batch of one record for each of these headers."""
    return lambda now_ms: [build_batch([Record(b"k", b"v", now_ms)], **header) for header in headers]


def of_producer(producer_id: int, epoch: int, sequence: int, **header: Any) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence, **header}


def counted(count: int, last_offset_delta: int) -> Make:
    """Two records, with a header that says something else."""

    def make(now_ms: int) -> list[bytearray]:
        data = build_batch([Record(b"k", b"v", now_ms)] * 2)
        changed(data, LAST_OFFSET_DELTA_AT, ">i", last_offset_delta)
        return [changed(data, COUNT_AT, ">i", count)]

    return make


# Flags, producer ids, epochs, sequences and counts: what the header says.
HEADERS = {
    "transactional, without a transactional id": Case(
        one(**of_producer(1, 0, 0, is_transactional=True)), NOT_AUTHORIZED
    ),
    "transactional, without a producer id": Case(one(is_transactional=True), NOT_AUTHORIZED),
    # Both append it, although AddPartitionsToTxn has not come.
    "transactional, with a transactional id": Case(
        one(**of_producer(2, 0, 0, is_transactional=True)), NONE, transactional_id="tx"
    ),
    "a transactional id, but no transactional batch": Case(one(), NONE, transactional_id="tx"),
    "a control batch": Case(one(is_control=True), INVALID_RECORD),
    "a control batch of a producer": Case(one(**of_producer(3, 0, 0, is_control=True)), INVALID_RECORD),
    "producer id -2, which is none": Case(several(of_producer(-2, 0, 0), of_producer(-2, 0, 7)), NONE),
    "an epoch and a sequence without a producer id": Case(one(**of_producer(-1, 3, 9)), NONE),
    "a producer without a sequence": Case(one(**of_producer(4, 0, -1)), INVALID_RECORD),
    # Kafka takes any sequence in this epoch, so that nothing that is sent twice is found out.
    "a producer without an epoch": Case(one(**of_producer(5, -1, 0)), NONE, INVALID_RECORD),
    "a producer in epoch -2": Case(one(**of_producer(6, -2, 0)), ErrorCode.INVALID_PRODUCER_EPOCH, INVALID_RECORD),
    "a producer that is not known, in the middle": Case(
        one(**of_producer(7, 3, 9)), NONE, ErrorCode.UNKNOWN_PRODUCER_ID
    ),
    "a gap in the sequence": Case(
        several(of_producer(8, 3, 0), of_producer(8, 3, 2)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ),
    "a new epoch that does not begin at 0": Case(
        several(of_producer(9, 3, 0), of_producer(9, 4, 1)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ),
    "an epoch that is over": Case(
        several(of_producer(10, 3, 0), of_producer(10, 2, 0)), ErrorCode.INVALID_PRODUCER_EPOCH
    ),
    "a batch that is sent twice": Case(several(of_producer(11, 3, 0), of_producer(11, 3, 0)), NONE),
    "a base offset": Case(one(base_offset=5), INVALID_RECORD),
    "compression type 5": Case(
        lambda now_ms: [flagged(build_batch([Record(b"k", b"v", now_ms)]), 5)],
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "zstd in a version that has none": Case(
        one(codec=CompressionType.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, version=6
    ),
    "attributes of which nothing is known": Case(
        lambda now_ms: [flagged(build_batch([Record(b"k", b"v", now_ms)]), 0x8040)], NONE
    ),
    "a count that is too large": Case(counted(3, 1), INVALID_RECORD),
    "no records": Case(counted(0, -1), INVALID_RECORD),
}


FAR_MS = 50_000
COMPACTED = {"cleanup.policy": "compact"}
NEAR = {"message.timestamp.difference.max.ms": "10000"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def keyed(*has_key: bool, late: Sequence[int] = (), codec: CompressionType = CompressionType.NONE) -> Make:
    """A record for each, with a key or without; those in `late` have a timestamp that is far from now."""

    def make(now_ms: int) -> list[bytearray]:
        return [
            build_batch(
                [
                    Record(b"k" if key else None, b"v", now_ms + FAR_MS if index in late else now_ms)
                    for index, key in enumerate(has_key)
                ],
                codec=codec,
            )
        ]

    return make


def times(*timestamps_ms: int | None, **header: Any) -> Make:
    """A record for each; None is now."""

    def make(now_ms: int) -> list[bytearray]:
        return [build_batch([Record(b"k", b"v", now_ms if at is None else at) for at in timestamps_ms], **header)]

    return make


def misnumbered(codec: CompressionType) -> Make:
    """Two records in a batch of two that call themselves 1 and 0."""

    def make(now_ms: int) -> list[bytearray]:
        data = build_batch([Record(b"k", b"v", now_ms, offset=1), Record(b"k", b"v", now_ms, offset=0)], codec=codec)
        return [changed(data, LAST_OFFSET_DELTA_AT, ">i", 1)]

    return make


K, N = True, False

# What topics ask of single records.
RECORDS = {
    "three of ten without a key": Case(
        keyed(K, K, K, N, K, K, N, K, K, N), INVALID_RECORD, configs=COMPACTED, refused=(3, 6, 9)
    ),
    "keys missing in zstd": Case(
        keyed(K, N, K, N, codec=CompressionType.ZSTD), INVALID_RECORD, configs=COMPACTED, refused=(1, 3)
    ),
    "keys": Case(keyed(K, K), NONE, configs=COMPACTED),
    "no keys where none are needed": Case(keyed(N, N), NONE),
    "a timestamp in the middle that is out of range": Case(
        keyed(K, K, K, K, late=(2,)), INVALID_TIMESTAMP, configs=NEAR, refused=(2,)
    ),
    "a record without a timestamp": Case(times(None, -1, None), NONE, configs=NEAR),
    "one without a key, one out of range": Case(
        keyed(K, K, N, K, late=(1,)), INVALID_TIMESTAMP, configs={**COMPACTED, **NEAR}, refused=(1, 2)
    ),
    "one that has both": Case(keyed(K, N, late=(1,)), INVALID_RECORD, configs={**COMPACTED, **NEAR}, refused=(1,)),
    "out of range where the time of the append counts": Case(times(5, 6), NONE, configs={**APPEND_TIME, **NEAR}),
    "as far from now as possible, without a limit": Case(times(-(2**63) + 1, 2**63 - 1), NONE),
    "the time of the append, said by the producer": Case(
        lambda now_ms: [flagged(build_batch([Record(b"k", b"v", now_ms)] * 3), LOG_APPEND_TIME)],
        INVALID_TIMESTAMP,
        refused=(0, 1, 2),
    ),
    "the same where it counts": Case(
        lambda now_ms: [flagged(build_batch([Record(b"k", b"v", now_ms)] * 2), LOG_APPEND_TIME)],
        INVALID_TIMESTAMP,
        configs=APPEND_TIME,
        refused=(0, 1),
    ),
    "a false largest timestamp": Case(
        lambda now_ms: [changed(build_batch([Record(b"k", b"v", now_ms)] * 2), MAX_TIMESTAMP_AT, ">q", 2**62)],
        NONE,
        configs=NEAR,
    ),
    "bytes that are no records": Case(
        lambda now_ms: [changed(build_batch([Record(b"k", b"v", now_ms)] * 2), RECORDS_AT, ">q", -1)],
        ErrorCode.UNKNOWN_SERVER_ERROR,
        INVALID_RECORD,
        configs=COMPACTED,
    ),
    "bytes that are no zstd": Case(
        lambda now_ms: [flagged(build_batch([Record(b"k", b"v", now_ms)]), CompressionType.ZSTD)],
        ErrorCode.UNKNOWN_SERVER_ERROR,
        INVALID_RECORD,
        configs=COMPACTED,
    ),
    # Kafka keeps them, and compaction then takes the one for the other.
    "offsets out of order": Case(misnumbered(CompressionType.NONE), NONE, INVALID_RECORD, configs=COMPACTED),
    "offsets out of order in zstd": Case(
        misnumbered(CompressionType.ZSTD), ErrorCode.UNKNOWN_SERVER_ERROR, INVALID_RECORD, configs=COMPACTED
    ),
}


async def send_all(
    address: str, cases: Mapping[str, Case], now_ms: int
) -> dict[str, ProduceResponse.TopicProduceResponse.PartitionProduceResponse]:
    """What each case's last batch is answered with. Its topic must exist: `topic_of`."""
    host, _, port = address.rpartition(":")
    answers = {}
    for name, case in cases.items():
        client = Client(*await asyncio.open_connection(host, int(port)))
        for data in case.make(now_ms):
            body = ProduceRequest.of(case.transactional_id, 1, 10_000, [(topic_of(name), [(0, data)])])
            answers[name] = (
                (await client.request(ApiKey.PRODUCE, case.version, body)).responses[0].partition_responses[0]
            )
        await client.close()
    return answers


def topic_of(name: str) -> str:
    """The topic of a case."""
    return name.replace(" ", "-").replace(",", "")
