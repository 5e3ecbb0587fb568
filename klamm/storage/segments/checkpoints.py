"""Kafka's checkpoint files: a version line, a line with the number of entries, one line for each entry.

Offset checkpoints (recovery-point-offset-, log-start-offset-, replication-offset-, cleaner-offset-checkpoint) hold
`topic partition offset`; a partition's leader-epoch-checkpoint holds `epoch startOffset`.

What must stay true: a file of any other form causes an error that names the file and the line. A missing or empty file
has no entries.

Source: kafka.server.checkpoints.CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile.
"""

import re
from collections.abc import Iterable, Mapping

from klamm.base.environment import FileSystem
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

_VERSION = 0
_NUMBER = re.compile(r"[0-9]{1,19}")


def read_offset_checkpoint(file_system: FileSystem, path: str) -> dict[PartitionKey, int]:
    """(topic, partition) -> offset. Raises KafkaError(KAFKA_STORAGE_ERROR) when malformed, OSError."""
    if not file_system.exists(path):
        return {}
    return parse_offset_checkpoint(file_system.read_file(path), path)


def write_offset_checkpoint(file_system: FileSystem, path: str, offsets: Mapping[PartitionKey, int]) -> None:
    """Replaces the file, durably. Raises OSError."""
    file_system.replace_file(path, format_offset_checkpoint(offsets))


def parse_offset_checkpoint(content: bytes, path: str) -> dict[PartitionKey, int]:
    """(topic, partition) -> offset. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
    offsets: dict[PartitionKey, int] = {}
    for line_number, fields in _parse(content, path, "topic partition offset"):
        key = (fields[0], _number(path, line_number, fields[1]))
        if key in offsets:
            raise _malformed(path, line_number, f"{fields[0]}-{fields[1]} has a second entry")
        offsets[key] = _number(path, line_number, fields[2])
    return offsets


def format_offset_checkpoint(offsets: Mapping[PartitionKey, int]) -> bytes:
    return _format(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def parse_leader_epoch_checkpoint(content: bytes, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset), both ascending. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
    entries: list[tuple[int, int]] = []
    for line_number, fields in _parse(content, path, "epoch startOffset"):
        entry = (_number(path, line_number, fields[0]), _number(path, line_number, fields[1]))
        if entries and (entry[0] <= entries[-1][0] or entry[1] < entries[-1][1]):
            raise _malformed(path, line_number, f"epoch {entry[0]} at {entry[1]} does not follow {entries[-1]}")
        entries.append(entry)
    return entries


def format_leader_epoch_checkpoint(entries: Iterable[tuple[int, int]]) -> bytes:
    return _format(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def _format(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "\n".join([str(_VERSION), str(len(entries)), *entries, ""]).encode()


def _parse(content: bytes, path: str, form: str) -> list[tuple[int, list[str]]]:
    """(line number, fields) of each entry."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise _malformed(path, content[: error.start].count(b"\n") + 1, "not UTF-8") from None
    if not content:
        return []
    if lines.pop() != "":
        raise _malformed(path, len(lines) + 1, "the file ends within a line")
    if _number(path, 1, lines[0]) != _VERSION:
        raise _malformed(path, 1, f"version {lines[0]}, only {_VERSION} is known")
    if len(lines) == 1:
        raise _malformed(path, 2, "the number of entries is missing")
    count = _number(path, 2, lines[1])
    if count != len(lines) - 2:
        raise _malformed(path, 2, f"{count} entries are announced, {len(lines) - 2} are there")
    entries = []
    for line_number, line in enumerate(lines[2:], start=3):
        fields = line.split()
        if len(fields) != len(form.split()):
            raise _malformed(path, line_number, f"{line!r} is not of the form '{form}'")
        entries.append((line_number, fields))
    return entries


def _number(path: str, line_number: int, text: str) -> int:
    if not _NUMBER.fullmatch(text) or (number := int(text)) >= 2**63:
        raise _malformed(path, line_number, f"{text!r} is not a number from 0 to 2^63-1")
    return number


def _malformed(path: str, line_number: int, what: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}, line {line_number}: {what}")
