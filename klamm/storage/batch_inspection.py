"""What a topic's configuration asks of the records inside a batch, and the look into it that answers.

Most topics ask nothing: their batches stay opaque. A compacted topic needs keys; `message.timestamp.difference.max.ms`
is compared with each record's timestamp; `compression.type` may want other bytes. A look into a batch also finds its
largest timestamp, which then stands in the header, whatever its producer has written there.

What must stay true:
- This is pure: a batch in, out what was found. So it can run in another process.
- A look costs no more than `max_decompressed_bytes` allows for the bytes that were received. Of what it makes no more
  comes back than the topic takes.
- `inspect_at_once` gives up after about a millisecond; a step of `inspect` takes some milliseconds.

Source: kafka.log.LogValidator.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.record_batch import (
    HEADER_SIZE_BYTES,
    BatchHeader,
    Buffer,
    CompressionType,
    at_once,
    compressed_batch,
    decompress,
    max_decompressed_bytes,
    parse_header,
)
from klamm.protocol.record_walk import RecordWalk, RefusedRecord, Wanted, advance_fast
from klamm.storage.log_config import LogConfig

# What is looked into on the loop: about a millisecond's work.
AT_ONCE_STEPS = 200
AT_ONCE_BYTES = 128 * 1024
STEPS_PER_SLICE = 2_000


class Demands(NamedTuple):
    """What is asked of a batch. `codec`: how it is to be compressed, None where that does not matter."""

    wanted: Wanted
    codec: CompressionType | None


class Inspection(NamedTuple):
    """What was found. `batch` is the batch compressed anew, None where it stays as it is."""

    max_timestamp_ms: int
    is_numbered: bool
    refused: tuple[RefusedRecord, ...]
    keyless_count: int
    out_of_range_count: int
    batch: bytearray | None


class Inspected(NamedTuple):
    """What was found where the topic was configured so."""

    config: LogConfig
    demands: Demands
    found: Inspection


class LargeBatch(Exception):
    """A look into this batch takes longer than the loop can spare: `inspect` must run elsewhere."""

    def __init__(self, batch: Buffer, demands: Demands, config: LogConfig) -> None:
        super().__init__("a batch must be looked into outside of the loop")
        self.batch = batch
        self.demands = demands
        self.config = config

    def inspected(self, found: Inspection) -> Inspected:
        """What the next attempt to append the batch needs."""
        return Inspected(self.config, self.demands, found)


def check_size(size_bytes: int, config: LogConfig) -> None:
    """Raises KafkaError, MESSAGE_TOO_LARGE or RECORD_LIST_TOO_LARGE, when the topic takes no batch of so many bytes."""
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size_bytes} bytes, segment.bytes is {config.segment_bytes}",
        )


def inspect_at_once(batch: Buffer, header: BatchHeader, demands: Demands, config: LogConfig) -> Inspection | None:
    """As `inspect`; None where that takes too long."""
    if header.record_count > AT_ONCE_STEPS:
        return None
    try:
        walk = _begin(batch, header, demands, AT_ONCE_BYTES)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise
    if demands.codec is not None and len(walk.body) > AT_ONCE_BYTES:
        return None
    return at_once(_found(walk, demands, config)) if _advance(walk, AT_ONCE_STEPS) else None


def inspect(batch: bytes, demands: Demands, config: LogConfig) -> Generator[int, None, Inspection]:
    """Looks into a batch of whose header all has been checked, in steps.

    Raises KafkaError when it cannot be read: INVALID_RECORD, because no other try would help; MESSAGE_TOO_LARGE;
    as `check_size` when it becomes too large.
    """
    header = parse_header(batch)
    max_bytes = max_decompressed_bytes(header)
    yield max_bytes
    walk = _begin(batch, header, demands, max_bytes)
    yield 0
    while not _advance(walk, STEPS_PER_SLICE, advance_fast):
        yield 0
    return (yield from _found(walk, demands, config))


def _begin(batch: Buffer, header: BatchHeader, demands: Demands, max_bytes: int) -> RecordWalk:
    try:
        body = decompress(header.codec, memoryview(batch)[HEADER_SIZE_BYTES : header.size_bytes], max_bytes)
    except KafkaError as error:
        raise _unreadable(error) from None
    return RecordWalk(memoryview(body), header, demands.wanted)


def _advance(
    walk: RecordWalk, most_steps: int, advance: Callable[[RecordWalk, int], bool] = RecordWalk.advance
) -> bool:
    try:
        return advance(walk, most_steps)
    except KafkaError as error:
        raise _unreadable(error) from None


def _unreadable(error: KafkaError) -> KafkaError:
    """The checksum is right, so these are the bytes that the producer meant."""
    code = ErrorCode.INVALID_RECORD if error.code is ErrorCode.CORRUPT_MESSAGE else error.code
    return KafkaError(code, error.message)


def _found(walk: RecordWalk, demands: Demands, config: LogConfig) -> Generator[int, None, Inspection]:
    new_batch = None
    if demands.codec is not None and not walk.refused:
        new_batch = yield from compressed_batch(walk.header, walk.body, demands.codec)
        check_size(len(new_batch), config)
    return Inspection(
        walk.max_timestamp_ms,
        walk.is_numbered,
        tuple(walk.refused),
        walk.keyless_count,
        walk.out_of_range_count,
        new_batch,
    )
