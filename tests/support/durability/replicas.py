"""Replicas of a partition compared byte for byte: what stands in their segment files, whichever program wrote them.

Read with nothing but the format: a segment is NAME.log, its name the base offset, its content record batches one after
the other. Where segments begin may differ between replicas, the batches may not.
"""

import struct
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

HEADER = struct.Struct(">qiibIhiqqqhii")
OFFSET_LENGTH = struct.Struct(">qi")
DIFFERENCES_SHOWN = 5
TIMEOUT_S = 120.0
POLL_S = 0.5


class Header(NamedTuple):
    """A record batch's header, as message format v2 has it."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Batch(NamedTuple):
    base_offset: int
    content: bytes

    @property
    def header(self) -> Header:
        return Header(*HEADER.unpack_from(self.content))

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


@dataclass(frozen=True)
class Difference:
    """The brokers' batches with this base offset are not the same; None: that broker has none."""

    base_offset: int
    headers: dict[int, Header | None]


@dataclass
class Comparison:
    """One partition. `ends`: each broker's log end offset."""

    topic: str
    partition: int
    start_offset: int
    ends: dict[int, int]
    batches: int = 0
    size_bytes: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)

    def problems(self) -> list[str]:
        where = f"{self.topic}-{self.partition}"
        found = [] if len(set(self.ends.values())) == 1 else [f"{where}: the replicas end at {self.ends}"]
        if self.differing:
            found.append(f"{where}: {self.differing} of {self.batches} batches differ: {self.differences}")
        return found


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"), key=lambda path: int(path.stem))


def batches(directory: Path) -> Iterator[Batch]:
    """The whole batches of one replica; what stands after the last whole one in a segment is not looked at."""
    for segment in segments(directory):
        content = segment.read_bytes()
        at = 0
        while at + HEADER.size <= len(content):
            base_offset, length = OFFSET_LENGTH.unpack_from(content, at)
            size = OFFSET_LENGTH.size + length
            if length < HEADER.size - OFFSET_LENGTH.size or at + size > len(content):
                break
            yield Batch(base_offset, content[at : at + size])
            at += size


@dataclass(frozen=True)
class ProducerEpochs:
    """Which producer epoch wrote which offsets of a partition with one idempotent producer."""

    base_offsets: list[int]
    epochs: list[int]

    @classmethod
    def read(cls, topic: str, partition: int, log_directory: Path) -> Self:
        """From one replica's files, after its last record."""
        headers = [batch.header for batch in batches(log_directory / f"{topic}-{partition}")]
        idempotent = [header for header in headers if header.producer_id >= 0]
        return cls([header.base_offset for header in idempotent], [header.producer_epoch for header in idempotent])

    def at(self, offset: int) -> int:
        return self.epochs[bisect_right(self.base_offsets, offset) - 1]


def compare(topic: str, partition: int, log_directories: Mapping[int, Path]) -> Comparison:
    """From the highest log start to the ends. `log_directories`: each replica's broker and its log.dir."""
    directories = {broker_id: path / f"{topic}-{partition}" for broker_id, path in log_directories.items()}
    start = max(int(segments(directory)[0].stem) for directory in directories.values())
    result = Comparison(topic, partition, start, dict.fromkeys(directories, start))
    streams = {broker_id: batches(directory) for broker_id, directory in directories.items()}
    heads = {broker_id: _next(stream, start) for broker_id, stream in streams.items()}
    while any(head is not None for head in heads.values()):
        lowest = min(head.base_offset for head in heads.values() if head is not None)
        here = {
            broker_id: head if head is not None and head.base_offset == lowest else None
            for broker_id, head in heads.items()
        }
        contents = {batch.content if batch is not None else None for batch in here.values()}
        result.batches += 1
        result.size_bytes += max(len(content) for content in contents if content is not None)
        if len(contents) > 1:
            result.differing += 1
            if len(result.differences) < DIFFERENCES_SHOWN:
                headers = {broker_id: batch.header if batch else None for broker_id, batch in here.items()}
                result.differences.append(Difference(lowest, headers))
        for broker_id, batch in here.items():
            if batch is not None:
                result.ends[broker_id] = batch.next_offset
                heads[broker_id] = _next(streams[broker_id], start)
    return result


def _next(stream: Iterator[Batch], start: int) -> Batch | None:
    return next((batch for batch in stream if batch.base_offset >= start), None)


def compare_when_equally_long(
    topic: str, partitions: int, log_directories: Mapping[int, Path], timeout_s: float = TIMEOUT_S
) -> list[Comparison]:
    """All partitions, when no client writes and the followers have caught up (or should have)."""
    deadline = time.monotonic() + timeout_s
    while True:
        comparisons = [compare(topic, partition, log_directories) for partition in range(partitions)]
        # Looked at while the brokers run: a file may have grown between two looks, so what is equal is settled.
        if all(not each.problems() for each in comparisons) or time.monotonic() > deadline:
            return comparisons
        time.sleep(POLL_S)
