"""The demands of a topic's configuration on the records inside a batch, and the inspection that checks them.

Most topics have no demands: their batches stay opaque. A compacted topic needs keys; each record's timestamp is
compared with `message.timestamp.difference.max.ms`; `compression.type` may require another compression. An inspection
also finds the largest timestamp and puts it into the header, whatever the producer has written there.

What must stay true:
- An inspection is pure, with a batch as its input and an `Inspection` as its result. So it can run in another process.
- An inspection costs no more than `max_decompressed_bytes` allows for the received bytes. A batch that it compresses
  anew is no larger than the topic accepts.
- `inspect_at_once` gives up after about a millisecond; a step of `inspect` takes some milliseconds.

Source: kafka.log.LogValidator.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType, decompress
from klamm.protocol.record.fast_walk import advance_fast
from klamm.protocol.record.record_batch import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    BatchHeader,
    compressed_batch,
    max_decompressed_bytes,
    parse_header,
)
from klamm.protocol.record.record_walk import RecordWalk, RefusedRecord, Wanted
from klamm.storage.log.log_config import LogConfig

# The most bytes inspected on the loop: about a millisecond's work.
AT_ONCE_STEPS = 200
AT_ONCE_BYTES = 128 * 1024
STEPS_PER_SLICE = 2_000


class Demands(NamedTuple):
    """The demands on a batch. `codec` is the compression to use; None keeps the producer's."""

    wanted: Wanted
    codec: CompressionType | None


class Inspection(NamedTuple):
    """The result of an inspection. `batch` is the batch compressed anew; None if it stays as it is."""

    max_timestamp_ms: int
    is_numbered: bool
    refused: tuple[RefusedRecord, ...]
    keyless_count: int
    out_of_range_count: int
    batch: bytearray | None


class Inspected(NamedTuple):
    """The result of an inspection, and the topic configuration that it was made for."""

    config: LogConfig
    demands: Demands
    found: Inspection


class LargeBatch(Exception):
    """This batch takes longer to inspect than the loop can spare: `inspect` must run in a worker."""

    def __init__(self, batch: Buffer, demands: Demands, config: LogConfig) -> None:
        super().__init__("a batch must be looked into outside of the loop")
        self.batch = batch
        self.demands = demands
        self.config = config

    def inspected(self, found: Inspection) -> Inspected:
        """`found`, for the next attempt to append the batch."""
        return Inspected(self.config, self.demands, found)


def inspect_at_once(batch: Buffer, header: BatchHeader, demands: Demands, config: LogConfig) -> Inspection | None:
    """Like `inspect`; None if that takes too long."""
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
    if not _advance(walk, AT_ONCE_STEPS):
        return None
    return _found(walk, None if demands.codec is None else in_one_go(_converted(walk, demands.codec, config)))


def inspect(batch: bytes, demands: Demands, config: LogConfig) -> Generator[int, None, Inspection]:
    """Inspects, in steps, a batch whose header has been checked.

    Raises KafkaError: INVALID_RECORD when the batch cannot be read, because another try would not help;
    MESSAGE_TOO_LARGE; and the errors of `LogConfig.check_batch_size` when the batch becomes too large.
    """
    header = parse_header(batch)
    max_bytes = max_decompressed_bytes(header)
    yield max_bytes
    walk = _begin(batch, header, demands, max_bytes)
    yield 0
    while not _advance(walk, STEPS_PER_SLICE, advance_fast):
        yield 0
    return _found(walk, None if demands.codec is None else (yield from _converted(walk, demands.codec, config)))


def _begin(batch: Buffer, header: BatchHeader, demands: Demands, max_bytes: int) -> RecordWalk:
    try:
        body = decompress(header.attributes & CODEC_MASK, memoryview(batch)[HEADER_SIZE_BYTES:], max_bytes)
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
    """INVALID_RECORD rather than CORRUPT_MESSAGE: the checksum is right, so the producer wrote these bytes."""
    code = ErrorCode.INVALID_RECORD if error.code is ErrorCode.CORRUPT_MESSAGE else error.code
    return KafkaError(code, error.message)


def _converted(walk: RecordWalk, codec: CompressionType, config: LogConfig) -> Generator[int, None, bytearray | None]:
    if walk.refused:
        return None
    batch = yield from compressed_batch(walk.header, walk.body, codec)
    config.check_batch_size(len(batch))
    return batch


def _found(walk: RecordWalk, batch: bytearray | None) -> Inspection:
    return Inspection(
        walk.max_timestamp_ms,
        walk.is_numbered,
        tuple(walk.refused),
        walk.keyless_count,
        walk.out_of_range_count,
        batch,
    )
