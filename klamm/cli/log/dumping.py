"""`klamm log dump`: the files of a log as text, with kafka-dump-log's options and in its words.

Each item (a batch, a record, an entry of an index) is a mapping of Kafka's names to values; its text is all pairs as
`name: value`, and `--json` prints the mapping. Checkpoints, partition.metadata and meta.properties, which
kafka-dump-log ignores, are printed in the same form.

What must stay true: files are only read, a part at a time. After damage, printing continues with the next batch, entry
or file that can be found; each damage is a line on stderr and makes the exit code 1.

Source: kafka.tools.DumpLogSegments.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.base.environment import File
from klamm.cli.shared.output import print_line, print_lines, stream_line
from klamm.cli.shared.read_only_files import READ_ONLY
from klamm.config.properties import PropertiesError, parse_properties
from klamm.coordinator.record_texts import Decode
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_OK, describe_os_error
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import NO_SEQUENCE, BatchHeader, advance_sequence, crc_matches
from klamm.protocol.record.records import Record, decode_end_transaction_marker, decode_records
from klamm.storage.log.producer_state import snapshot_entries
from klamm.storage.segments import batch_scan
from klamm.storage.segments.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
)
from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.log_directory import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    format_topic_id,
    parse_partition_metadata,
)
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from klamm.storage.segments.time_index import TimeIndex
from klamm.storage.segments.transaction_index import TransactionIndex
from klamm.storage.segments.unsynced_files import UnsyncedFiles

CHECKPOINT_SUFFIX: Final = "-checkpoint"
RECORD_INDENT: Final = "| "
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to print. `decode` is None unless keys and values are printed."""

    is_deep: bool
    decode: Decode | None
    has_record_metadata: bool
    verify_index_only: bool
    index_sanity_check: bool
    as_json: bool


class _Damaged(Exception):
    """A file, or the rest of it, cannot be read; the message says why."""


def dump(paths: Sequence[str], wanted: Wanted) -> int:
    """Prints the files. Returns the exit code."""
    printer = _Printer(wanted)
    for path in paths:
        printer.line(f"Dumping {path}")
        try:
            _dump_file(path, wanted, printer)
        except (_Damaged, KafkaError, CorruptIndexError) as error:
            message = error.message if isinstance(error, KafkaError) else str(error)
            printer.damage(path, None, message.removeprefix(path).lstrip(" :,"))
        except BrokenPipeError:
            raise
        except OSError as error:
            printer.damage(path, None, describe_os_error(error).removeprefix(f"{path}: "))
    printer.tell_groups()
    return EXIT_FAILED if printer.is_damaged else EXIT_OK


class _Printer:
    """Writes items to stdout and damage to stderr. Kafka's tool reports some kinds of damage at the end, in groups."""

    def __init__(self, wanted: Wanted) -> None:
        self.is_damaged = False
        self._as_json = wanted.as_json
        self._groups: dict[str, list[str]] = {}

    def line(self, text: str) -> None:
        """Prints a line that has no values, such as a heading."""
        if not self._as_json:
            stream_line(text, flush=False)

    def item(self, path: str, kind: str, item: Item, *, prefix: str = "") -> None:
        if self._as_json:
            stream_line(json.dumps({"file": path, "type": kind, **item}), flush=False)
        else:
            stream_line(f"{prefix}{_text(item)}", flush=False)

    def damage(self, path: str, position: int | None, what: str) -> None:
        self.is_damaged = True
        at = "" if position is None else f", position {position}"
        print_line(f"klamm: {path}{at}: {what}", file=sys.stderr)

    def note(self, heading: str, text: str, *, is_damage: bool = True) -> None:
        """Adds a line below a heading, to be printed at the end."""
        self.is_damaged |= is_damage
        self._groups.setdefault(heading, []).append(text)

    def tell_groups(self) -> None:
        for heading, lines in self._groups.items():
            print_lines([heading, *lines], file=sys.stderr)


def _text(item: Item) -> str:
    return " ".join(f"{name}: {_java(value)}" for name, value in item.items())


def _java(value: object) -> str:
    """A value as Java and Scala print it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def _dump_file(path: str, wanted: Wanted, printer: _Printer) -> None:
    name = os.path.basename(path)
    suffix = name[name.rfind(".") :] if "." in name else ""
    by_suffix: dict[str, Callable[[str, Wanted, _Printer], None]] = {
        LOG_SUFFIX: _dump_log,
        INDEX_SUFFIX: _dump_offset_index,
        TIME_INDEX_SUFFIX: _dump_time_index,
        TRANSACTION_INDEX_SUFFIX: _dump_transaction_index,
        SNAPSHOT_SUFFIX: _dump_snapshot,
    }
    if suffix in by_suffix:
        by_suffix[suffix](path, wanted, printer)
    elif name == PARTITION_METADATA_FILE:
        topic_id = parse_partition_metadata(READ_ONLY.read_file(path), path)
        printer.item(path, "metadata", {"version": 0, "topicId": topic_id and format_topic_id(topic_id)})
    elif name == META_PROPERTIES_FILE:
        try:
            printer.item(path, "properties", dict(sorted(parse_properties(READ_ONLY.read_file(path)).items())))
        except PropertiesError as error:
            raise _Damaged(str(error)) from None
    elif name == LEADER_EPOCH_CHECKPOINT:
        for epoch, start_offset in parse_leader_epoch_checkpoint(READ_ONLY.read_file(path), path):
            printer.item(path, "epoch", {"epoch": epoch, "startOffset": start_offset})
    elif name.endswith(CHECKPOINT_SUFFIX):
        for (topic, partition), offset in parse_offset_checkpoint(READ_ONLY.read_file(path), path).items():
            printer.item(path, "offset", {"topic": topic, "partition": partition, "offset": offset})
    else:
        print_line(f"Ignoring unknown file {path}", file=sys.stderr)


def _base_offset(path: str) -> int:
    digits = os.path.basename(path).partition(".")[0]
    if not digits.isdecimal():
        raise _Damaged("the file's name does not begin with an offset")
    return int(digits)


def _log_of(path: str) -> File:
    """The log file beside an index."""
    directory, name = os.path.split(path)
    return READ_ONLY.open_to_read(os.path.join(directory, name.partition(".")[0] + LOG_SUFFIX))


# -- segments ---------------------------------------------------------------------------------------------------------


def _dump_log(path: str, wanted: Wanted, printer: _Printer) -> None:
    printer.line(f"Starting offset: {_base_offset(path)}")
    file = READ_ONLY.open_to_read(path)
    position = 0
    try:
        end = file.size()
        last_offset = -1
        try:
            for at, header, batch in batch_scan.whole_batches(file, 0, end):
                position = at + header.size_bytes
                is_valid = crc_matches(batch, 0, header)
                printer.item(path, "batch", batch_item(header, at, is_valid))
                if not is_valid:
                    printer.damage(path, at, f"the checksum of the batch at offset {header.base_offset} does not match")
                if wanted.is_deep:
                    last_offset = _dump_records(path, at, header, batch, last_offset, wanted, printer)
        except KafkaError as error:
            printer.line(f"Found {end - position} invalid bytes at the end of {os.path.basename(path)}")
            printer.damage(path, position, f"{error.message}; the last {end - position} bytes are not printed")
    finally:
        file.close()


def batch_item(header: BatchHeader, position: int, is_valid: bool) -> dict[str, Any]:
    """A batch, in the order in which kafka-dump-log prints it."""
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "position": position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec(header),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _codec(header: BatchHeader) -> str:
    return CompressionType(header.codec).name if header.codec in set(CompressionType) else f"UNKNOWN({header.codec})"


def _dump_records(
    path: str,
    position: int,
    header: BatchHeader,
    batch: memoryview,
    last_offset: int,
    wanted: Wanted,
    printer: _Printer,
) -> int:
    """Prints the records of a batch. Returns the offset of the last one."""
    try:
        for record in decode_records(batch, 0, header):
            if last_offset not in (-1, record.offset - 1):
                printer.note(
                    f"Non-consecutive offsets in {os.path.abspath(path)}",
                    f"  {last_offset} is followed by {record.offset}",
                    # Compaction leaves gaps, and never goes back.
                    is_damage=record.offset <= last_offset,
                )
            last_offset = record.offset
            item = record_item(header, position, record, batch) if wanted.has_record_metadata else {}
            if wanted.decode is not None and not header.is_control:
                item |= _decoded(path, position, record, wanted.decode, printer)
            # Without a key, Kafka's tool prints no indent before a payload.
            prefix = "" if not item else " " if next(iter(item)) == "payload" else RECORD_INDENT
            printer.item(path, "record", item, prefix=prefix)
    except KafkaError as error:
        printer.damage(path, position, f"the batch at offset {header.base_offset} cannot be decoded: {error.message}")
        last_offset = max(last_offset, header.last_offset)
    return last_offset


def record_item(header: BatchHeader, position: int, record: Record, batch: memoryview) -> dict[str, Any]:
    """A record without its content, in the order in which kafka-dump-log prints it."""
    delta = record.offset - header.base_offset
    item: dict[str, Any] = {
        "offset": record.offset,
        # Since message format v2 only batches have a checksum.
        "isValid": True,
        "crc": None,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        _timestamp_type(header): record.timestamp_ms,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "batchSize": header.size_bytes,
        "magic": header.magic,
        "compressType": _codec(header),
        "position": position,
        "sequence": advance_sequence(header.base_sequence, delta) if header.base_sequence >= 0 else NO_SEQUENCE,
        "headerKeys": [key for key, _ in record.headers],
    }
    if header.is_control:
        marker = decode_end_transaction_marker(batch, 0, header)
        if marker is None:
            item["controlType"] = f"UNKNOWN({int.from_bytes((record.key or b'')[2:4], signed=True)})"
        else:
            item["endTxnMarker"] = marker.type.name
            item["coordinatorEpoch"] = marker.coordinator_epoch
    return item


def _decoded(path: str, position: int, record: Record, decode: Decode, printer: _Printer) -> dict[str, str]:
    try:
        key, value = decode(record.key, record.value)
    except ValueError as error:
        printer.damage(path, position, f"the record at offset {record.offset} cannot be decoded: {error}")
        return {}
    return {name: text for name, text in (("key", key), ("payload", value)) if text is not None}


# -- indexes ----------------------------------------------------------------------------------------------------------


def _dump_offset_index(path: str, wanted: Wanted, printer: _Printer) -> None:
    entries = OffsetIndex.entries_in_use(READ_ONLY.read_file(path), path, _base_offset(path))
    if not entries:
        printer.line(f"{path} is empty.")
        return
    if wanted.index_sanity_check:
        printer.line(f"{path} passed sanity check.")
        return
    log = _log_of(path)
    try:
        for offset, position in entries:
            if not wanted.verify_index_only:
                printer.item(path, "index", {"offset": offset, "position": position})
            try:
                header = next(batch_scan.headers(log.read, position, log.size()))[1]
            except (KafkaError, StopIteration):
                printer.damage(path, None, f"offset {offset}: no batch begins at position {position}")
                continue
            if header.last_offset != offset:
                # If an append had several batches, the index entry holds the last offset of all of them.
                is_wrong = header.base_offset > offset
                text = f"  Index offset: {offset}, log offset: {header.last_offset}"
                printer.note(f"Mismatches in :{os.path.abspath(path)}", text, is_damage=is_wrong)
    finally:
        log.close()


def _dump_time_index(path: str, wanted: Wanted, printer: _Printer) -> None:
    base_offset = _base_offset(path)
    entries = TimeIndex.entries_in_use(READ_ONLY.read_file(path), path, base_offset)
    if wanted.index_sanity_check:
        printer.line(f"{path} passed sanity check.")
        return
    log = _log_of(path)
    try:
        batches = batch_scan.headers(log.read, 0, log.size())
        header: BatchHeader | None = None
        for timestamp_ms, offset in entries:
            try:
                while header is None or header.last_offset < offset:
                    header = next(batches)[1]
            except (KafkaError, StopIteration):
                heading = "The following indexed offsets are not found in the log."
                printer.note(heading, f"Indexed offset: {offset}, found log offset: -1")
                batches, header = iter(()), None
            else:
                _compare_time(path, timestamp_ms, offset, header, printer)
            if not wanted.verify_index_only:
                printer.item(path, "timeindex", {"timestamp": timestamp_ms, "offset": offset})
    finally:
        log.close()


def _compare_time(path: str, timestamp_ms: int, offset: int, header: BatchHeader, printer: _Printer) -> None:
    if header.base_offset > offset:
        heading = "The following indexed offsets are not found in the log."
        printer.note(heading, f"Indexed offset: {offset}, found log offset: {header.last_offset}")
    elif header.max_timestamp != timestamp_ms:
        heading = f"Found timestamp mismatch in :{os.path.abspath(path)}"
        printer.note(heading, f"  Index timestamp: {timestamp_ms}, log timestamp: {header.max_timestamp}")


def _dump_transaction_index(path: str, wanted: Wanted, printer: _Printer) -> None:
    index = TransactionIndex(READ_ONLY, path, _base_offset(path), UnsyncedFiles())
    index.load()
    for entry in index.entries:
        printer.item(
            path,
            "txnindex",
            {
                "version": 0,
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            },
        )


def _dump_snapshot(path: str, wanted: Wanted, printer: _Printer) -> None:
    for item in snapshot_items(READ_ONLY.read_file(path), path):
        if wanted.as_json:
            printer.item(path, "producer", item)
        else:
            first = item["currentTxnFirstOffset"]
            shown = {**item, "currentTxnFirstOffset": "None" if first is None else f"Some({first})"}
            # Kafka's tool leaves a space if the producer has no batch.
            printer.line(_text(shown) + ("" if "lastOffset" in item else " "))


def snapshot_items(content: bytes, path: str) -> Iterator[dict[str, Any]]:
    """The entries of a snapshot, in its order."""
    for producer_id, epoch, batch, coordinator_epoch, first in snapshot_entries(content, path):
        item: dict[str, Any] = {
            "producerId": producer_id,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator_epoch,
            "currentTxnFirstOffset": None if first < 0 else first,
        }
        if batch.last_sequence >= 0:
            item |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.offset_delta,
                "timestamp": batch.timestamp_ms,
            }
        yield item
