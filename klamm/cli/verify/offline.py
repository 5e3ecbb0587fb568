"""Compares replicas in the data directories of brokers, running or not. It writes nothing and locks nothing.

In each directory, meta.properties names the broker and the cluster, replication-offset-checkpoint has the high
watermark of each log, and cleaner-offset-checkpoint names the logs that were compacted.

What must stay true:
- Records of a log above its own high watermark are not compared: the broker may still truncate them.
- Retention may delete segments meanwhile; deleted segments are skipped.

Source: kafka.log.LogManager (the files of a log directory), kafka.server.BrokerMetadataCheckpoint.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from klamm.cli.shared.read_only_files import READ_ONLY
from klamm.client.verification.compare import Window
from klamm.client.verification.newest_values import CONFIRMATIONS, NewestValues
from klamm.client.verification.partition import Answer, Failed, OutOfRange, PartitionCheck
from klamm.config.properties import PropertiesError, parse_properties
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import LOG_OVERHEAD_BYTES, is_partial, iterate_batches, parse_header
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey, TopicPartition
from klamm.storage.segments.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    parse_offset_checkpoint,
)
from klamm.storage.segments.log_directory import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    parse_directory_name,
    parse_partition_metadata,
)

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
# How often a log's segments are listed again because one of them is gone.
_TRIES = 10
_SEGMENT = re.compile(r"[0-9]{20}\.log")


@dataclass(frozen=True, slots=True)
class OfflineReplica:
    """A replica's directory, and its offsets from the checkpoint files beside it."""

    directory: Path
    high_watermark: int
    log_start_offset: int
    is_high_watermark_known: bool = True


@dataclass(slots=True)
class OfflinePartition:
    """The replicas of a partition by broker, and the size of the largest of them."""

    partition: TopicPartition
    is_compacted: bool = False
    replicas: dict[int, OfflineReplica] = field(default_factory=dict)
    # Brokers without a directory of the partition whose checkpoint says that they had committed records of it.
    lacking: list[int] = field(default_factory=list)
    size_bytes: int = 0


def open_directories(directories: Sequence[Path], matches: Callable[[str], bool]) -> list[OfflinePartition]:
    """The partitions in these directories. Raises ToolError unless they belong to brokers of one cluster."""
    found: dict[TopicPartition, OfflinePartition] = {}
    owners = {directory: _owner(directory) for directory in directories}
    clusters = {cluster: directory for directory, (cluster, _) in owners.items()}
    if len(clusters) > 1:
        names = " and ".join(f"{directory} ({cluster})" for cluster, directory in clusters.items())
        raise ToolError(f"the directories belong to different clusters: {names}")
    if len({broker for _, broker in owners.values()}) < 2:
        raise ToolError("--log-dirs needs the directories of at least two brokers: there is nothing to compare")
    for directory, (_, broker_id) in owners.items():
        high_watermarks = _checkpoint(directory, HIGH_WATERMARK_CHECKPOINT)
        starts = _checkpoint(directory, LOG_START_OFFSET_CHECKPOINT)
        cleaned = _checkpoint(directory, CLEANER_CHECKPOINT)
        for name in sorted(os.listdir(directory)):
            parsed = parse_directory_name(name)
            # Directories of logs that are being moved or deleted are not replicas.
            if parsed is None or parsed[2] or not matches(parsed[0]) or not (directory / name).is_dir():
                continue
            key = parsed[:2]
            each = found.setdefault(TopicPartition(*key), OfflinePartition(TopicPartition(*key)))
            if broker_id in each.replicas:
                other = each.replicas[broker_id].directory
                raise ToolError(f"broker {broker_id} has two replicas of {each.partition}: {other}, {directory / name}")
            each.is_compacted |= key in cleaned or key[0] in INTERNAL_TOPICS
            size_bytes = _size(directory / name)
            each.replicas[broker_id] = OfflineReplica(
                directory / name,
                high_watermarks.get(key, 0),
                starts.get(key, 0),
                is_high_watermark_known=key in high_watermarks or size_bytes == 0,
            )
            each.size_bytes = max(each.size_bytes, size_bytes)
        for key, high_watermark in high_watermarks.items():
            if high_watermark > 0 and matches(key[0]):
                each = found.setdefault(TopicPartition(*key), OfflinePartition(TopicPartition(*key)))
                each.lacking.append(broker_id)
    for each in found.values():
        each.lacking = [broker for broker in each.lacking if broker not in each.replicas]
    if not found:
        raise ToolError("No topics found. --topic-white-list is either filtering out all topics or there is no topic.")
    return [found[partition] for partition in sorted(found)]


def verify_partition(
    partition: OfflinePartition, window_bytes: int, advance: Callable[[int], object] = lambda size_bytes: None
) -> PartitionCheck:
    """Compares the committed records of a partition's replicas."""
    check = PartitionCheck(
        partition.partition,
        sorted({*partition.replicas, *partition.lacking}),
        0,
        is_compacted=partition.is_compacted,
        in_sync=(),
        patience_s=0,
        newest=NewestValues() if partition.is_compacted else None,
    )
    _forget_others(check, partition)
    for broker in partition.lacking:
        check.put_aside(broker, f"{HIGH_WATERMARK_CHECKPOINT} of its broker names it, and its directory is missing")
    for broker, replica in partition.replicas.items():
        if not replica.is_high_watermark_known:
            check.put_aside(broker, f"{HIGH_WATERMARK_CHECKPOINT} of its broker has no high watermark for it")
    _read_logs(check, partition, window_bytes, advance)
    if partition.replicas and not any(replica.directory.is_dir() for replica in partition.replicas.values()):
        check.forget("the topic was deleted")
    if check.has_unreplaced_values:
        for _ in range(CONFIRMATIONS):
            if check.has_unreplaced_values:
                again = check.again()
                _read_logs(again, partition, window_bytes)
                check.confirm(again)
        check.conclude()
    for broker in check.begins_later:
        check.unexplained[broker] = "files do not tell whether retention has removed them"
    if len(check.replicas) < 2 and check.gone is None:
        check.put_aside(check.replicas[0], "no other directory has the partition")
    return check


def _read_logs(
    check: PartitionCheck,
    partition: OfflinePartition,
    window_bytes: int,
    advance: Callable[[int], object] = lambda size_bytes: None,
) -> None:
    logs = {broker: _LogReader(replica, window_bytes) for broker, replica in sorted(partition.replicas.items())}
    try:
        while not check.is_done:
            before = check.size_bytes
            consumed_bytes = check.consumed_bytes
            answers = {
                broker: logs[broker].read(check.position, consumed_bytes.get(broker, 0)) for broker in check.to_ask(0)
            }
            check.feed(answers, 0)
            advance((check.size_bytes - before) // len(logs))
    finally:
        if check.newest:
            # A killed broker's cleaner may have seen records above the last checkpointed high watermark.
            for broker in check.active:
                _read_rest(check.newest, logs[broker], check.position)
        for log in logs.values():
            log.close()


def _read_rest(newest: NewestValues, log: "_LogReader", position: int) -> None:
    """Reads the records above the high watermark: to the cleaner, they too replace earlier values."""
    answer = log.read(position, 0)
    while isinstance(answer, Window) and answer.records:
        next_offset, consumed_bytes = position, 0
        with suppress(KafkaError):
            for at, header in iterate_batches(answer.records, allow_partial_end=True):
                newest.replaced(decode_records(answer.records, at, header))
                next_offset, consumed_bytes = header.next_offset, at + header.size_bytes
        if next_offset <= position:
            return
        position = next_offset
        answer = log.read(position, consumed_bytes)


def _forget_others(check: PartitionCheck, partition: OfflinePartition) -> None:
    """Sets replicas with other topic ids aside: a broker that was away may have a deleted topic of this name."""
    ids = {broker: _topic_id(replica.directory) for broker, replica in partition.replicas.items()}
    known = [topic_id for topic_id in ids.values() if topic_id is not None]
    most = max(known, key=known.count, default=None)
    for broker, topic_id in ids.items():
        if topic_id not in (None, most):
            check.put_aside(broker, f"its directory belongs to another topic of this name, with the id {topic_id}")


# -- files of a log directory -----------------------------------------------------------------------------------------


def _owner(directory: Path) -> tuple[str | None, int]:
    """The id of the cluster, and the id of the broker."""
    path = directory / META_PROPERTIES_FILE
    try:
        properties = parse_properties(READ_ONLY.read_file(str(path)))
    except FileNotFoundError:
        raise ToolError(f"{directory} has no {META_PROPERTIES_FILE}: it is no log directory of a broker") from None
    except PropertiesError as error:
        raise ToolError(f"{path}: {error}") from error
    broker_id = properties.get("node.id", properties.get("broker.id", ""))
    if not broker_id.isdecimal():
        raise ToolError(f"{path}: neither broker.id nor node.id is a number")
    return properties.get("cluster.id"), int(broker_id)


def _checkpoint(directory: Path, name: str) -> dict[PartitionKey, int]:
    path = directory / name
    try:
        return parse_offset_checkpoint(READ_ONLY.read_file(str(path)), str(path))
    except FileNotFoundError:
        return {}
    except KafkaError as error:
        raise ToolError(error.message) from error


def _topic_id(directory: Path) -> str | None:
    path = directory / PARTITION_METADATA_FILE
    try:
        topic_id = parse_partition_metadata(READ_ONLY.read_file(str(path)), str(path))
    except (FileNotFoundError, KafkaError):
        return None
    return None if topic_id is None else str(topic_id)


def _size(directory: Path) -> int:
    size_bytes = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes


class _LogReader:
    """Reads windows of a log, one after another. A window is valid until the next one is read."""

    def __init__(self, replica: OfflineReplica, window_bytes: int) -> None:
        self._replica = replica
        self._buffer = bytearray(window_bytes)
        self._segments: list[int] = []
        self._segment: int | None = None
        self._descriptor = -1
        # The position of the last window in its segment.
        self._at = 0
        self._list()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, offset: int, consumed_bytes: int) -> Answer:
        """The log from `offset` on. The caller has consumed `consumed_bytes` of the last window."""
        self._at += consumed_bytes
        try:
            for _ in range(_TRIES):
                with suppress(FileNotFoundError):
                    return self._read(offset)
                # Retention or compaction has removed a segment.
                self._list()
            return Failed(f"the segments of {self._replica.directory} change again and again", is_final=True)
        except OSError as error:
            return Failed(f"{self._replica.directory}: {error.strerror}", is_final=True)

    @property
    def _start(self) -> int:
        return max(self._replica.log_start_offset, self._segments[0])

    def _list(self) -> None:
        names = os.listdir(self._replica.directory) if self._replica.directory.is_dir() else []
        self._segments = sorted(int(name[:20]) for name in names if _SEGMENT.fullmatch(name))
        # A compacted segment has the same name and other content.
        self._segment = None

    def _read(self, offset: int) -> Answer:
        if not self._segments:
            what = "has no segment" if self._replica.directory.is_dir() else "was removed meanwhile"
            return Failed(f"{self._replica.directory} {what}", is_final=True)
        if offset < self._start:
            return OutOfRange(self._start, self._replica.high_watermark)
        for base_offset in self._segments[max(0, bisect_right(self._segments, offset) - 1) :]:
            if base_offset != self._segment:
                self._open(base_offset)
            is_last = base_offset == self._segments[-1]
            while (window := self._fill()) is not None:
                records, is_end = window
                skipped_bytes = _bytes_before(records, offset)
                if skipped_bytes < len(records) and not is_partial(records, skipped_bytes):
                    rest = records[skipped_bytes:]
                    self._at += skipped_bytes
                    return Window(rest, self._replica.high_watermark, is_complete=is_last and is_end)
                self._at += skipped_bytes
        return Window(b"", self._replica.high_watermark, is_complete=True)

    def _open(self, base_offset: int) -> None:
        path = self._replica.directory / f"{base_offset:020}.log"
        # Without O_NONBLOCK, a pipe in place of a segment would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.close()
        self._descriptor, self._segment, self._at = descriptor, base_offset, 0

    def _fill(self) -> tuple[memoryview, bool] | None:
        """The bytes at the current position of the segment, with at least one whole batch, and whether the segment ends
        there. None at the segment's end, or if the segment ends within this batch."""
        size_bytes = os.preadv(self._descriptor, [self._buffer], self._at)
        window = memoryview(self._buffer)[:size_bytes]
        is_end = size_bytes < len(self._buffer)
        if not is_partial(window, 0):
            return window, is_end
        if is_end:
            return None
        batch_bytes = int.from_bytes(window[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
        if batch_bytes > os.fstat(self._descriptor).st_size - self._at:
            return None
        self._buffer = bytearray(batch_bytes)
        return self._fill()


def _bytes_before(records: memoryview, offset: int) -> int:
    """The size of the batches that end before `offset`. Bytes that are not a batch are left to the comparison."""
    at = 0
    with suppress(KafkaError):
        while at < len(records) and not is_partial(records, at):
            header = parse_header(records, at)
            if header.last_offset >= offset:
                break
            at += header.size_bytes
    return at
