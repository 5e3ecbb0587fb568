"""Reads a few records of a partition for a person, from or before an offset, with the headers of their batches.

Unlike a consumer, it also shows control batches and records of aborted and open transactions, each marked as such.

What must stay true:
- A request takes at most `MAX_RECORDS` records and about `MAX_BYTES` bytes of batches. A batch is decompressed to at
  most `MAX_BATCH_BYTES`; a larger batch is skipped.
- No offset is committed, and no topic is created.
- Reading continues behind a corrupt batch, which is reported.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.base.visible import visible
from klamm.client.admin.topics import describe_topics
from klamm.client.consumer.fetching import Answer, FetchFrom, fetch, readable_batches
from klamm.cockpit.value_texts import SHOWN_BYTES, decoded_record, value_text
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType, decompress
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, NO_PRODUCER_ID, BatchHeader, parse_header
from klamm.protocol.record.records import ControlRecordType, Record, decode_end_transaction_marker, decode_in_parts
from klamm.protocol.vocabulary import NO_LEADER, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.metadata import PartitionMetadata

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
# The fetch size of one request. The broker sends a larger first batch as a whole.
FETCH_BYTES: Final = 1024 * 1024
MAX_HEADERS: Final = 100
# The window grows where compaction and transaction markers have left few records.
MAX_LOOKS_BACK: Final = 8


@dataclass(slots=True)
class Page:
    """Records in the order of their offsets. This page begins at `start`, the next page at `next_offset`.

    `stop` says why the page has fewer records than requested although more may follow.
    """

    start: int
    next_offset: int
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    records: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    bytes_read: int = 0
    stop: str = ""


class Reader:
    """Reads one partition. At most `limit_bytes` of each key and value are shown."""

    def __init__(self, client: "ClusterClient", key: TopicPartition, limit_bytes: int = SHOWN_BYTES) -> None:
        self._client = client
        self._key = key
        self._limit_bytes = limit_bytes

    async def forward(self, offset: int, count: int) -> Page:
        """Up to `count` records from this offset on. Raises ClientError, and KafkaError, also for an offset outside the
        log."""
        return await self._read(offset, count, None)

    async def backward(self, before: int, count: int, log_start: int) -> Page:
        """The last records before this offset, up to `count`."""
        window = count
        page = Page(before, before)
        for _ in range(MAX_LOOKS_BACK):
            start = max(log_start, before - window)
            page = await self._read(start, MAX_RECORDS, before)
            is_whole = page.next_offset >= before
            if not is_whole and window > 1:
                # Large records filled the page too early: a smaller window gets those directly before the offset.
                window = max(1, window // 4)
                continue
            if len(page.records) >= count or start == log_start or not is_whole:
                break
            window *= 4
        page.records = page.records[-count:]
        if page.records:
            page.start = page.records[0]["offset"]
            used = {each["batch"] for each in page.records}
            page.batches = [each for each in page.batches if each["base_offset"] in used]
        return page

    async def _read(self, offset: int, count: int, before: int | None) -> Page:
        page = Page(offset, offset)
        metadata = await self._metadata()
        while len(page.records) < count and (before is None or page.next_offset < before):
            answer, isolation = await self._fetch(metadata, page)
            taken = await self._take(page, answer, isolation, count, before)
            if not taken or page.stop:
                break
            if page.bytes_read >= MAX_BYTES:
                page.stop = f"after {page.bytes_read} bytes"
                break
        return page

    async def _metadata(self) -> "PartitionMetadata":
        topic = (await describe_topics(self._client, [self._key.topic]))[self._key.topic]
        if isinstance(topic, KafkaError):
            raise topic
        found = topic.partitions.get(self._key.partition)
        if found is None:
            numbers = f"its partitions are 0 to {len(topic.partitions) - 1}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self._key} does not exist: {numbers}")
        if found.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self._key} has no leader, so no client can read it")
        return found

    async def _fetch(self, metadata: "PartitionMetadata", page: Page) -> tuple[Answer, int]:
        """The leader's records from the page's next offset on.

        With READ_COMMITTED the leader lists aborted transactions, but sends no records from the last stable offset on.
        """
        topic = self._client.metadata.topics[self._key.topic]
        topic_ids = {self._key.topic: None if topic.topic_id is None else topic.topic_id.hex}
        connection = await self._client.connection_to(metadata.leader)

        async def ask(isolation: int) -> Answer:
            wanted = {self._key: FetchFrom(page.next_offset, metadata.leader_epoch, FETCH_BYTES)}
            limits = {"max_bytes": FETCH_BYTES, "max_wait_ms": 0, "min_bytes": 0, "isolation_level": isolation}
            answer = (await fetch(connection, wanted, topic_ids, **limits)).partitions.get(self._key)
            if answer is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {metadata.leader} returned nothing")
            if answer.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode(answer.error_code), f"{self._key} from offset {page.next_offset} on")
            page.log_start_offset, page.high_watermark = answer.log_start_offset, answer.high_watermark
            page.last_stable_offset = answer.last_stable_offset
            return answer

        answer = await ask(READ_COMMITTED)
        if answer.records or page.next_offset >= answer.high_watermark:
            return answer, READ_COMMITTED
        return await ask(READ_UNCOMMITTED), READ_UNCOMMITTED

    async def _take(self, page: Page, answer: Answer, isolation: int, count: int, before: int | None) -> bool:
        """Adds the fetched records to the page; False at the end of the log."""
        records = memoryview(answer.records or b"")
        begin = page.next_offset
        page.bytes_read += len(records)
        for position, header, is_readable in _batches(page, records, answer):
            if header.next_offset <= page.next_offset:
                continue
            if before is not None and header.base_offset >= before:
                page.next_offset = before
                break
            mark = _mark(header, is_readable, isolation == READ_UNCOMMITTED, answer.last_stable_offset)
            whole = records[position : position + header.size_bytes]
            page.batches.append(_batch(header, mark))
            try:
                for record in _records(whole, header):
                    if record.offset < begin or (before is not None and record.offset >= before):
                        continue
                    if len(page.records) >= count:
                        return False
                    page.records.append(self._record(record, header, mark, whole))
                    page.next_offset = record.offset + 1
                    if len(page.records) % 100 == 0:
                        await asyncio.sleep(0)
            except KafkaError as error:
                page.batches[-1]["error"] = visible(error.message)
            page.next_offset = max(page.next_offset, header.next_offset)
        if page.next_offset == begin and records:
            page.stop = "the leader returned no whole batch"
        return page.next_offset > begin

    def _record(self, record: Record, header: BatchHeader, mark: str, batch: memoryview) -> dict[str, Any]:
        if header.is_control:
            marker = decode_end_transaction_marker(batch, 0, header)
            mark = f"control: {ControlRecordType(marker.type).name}" if marker is not None else "control"
        key, value = decoded_record(self._key.topic, record.key, record.value) or (
            value_text(record.key, self._limit_bytes),
            value_text(record.value, self._limit_bytes),
        )
        if not mark and record.value is None:
            mark = "tombstone" if record.key is not None else "null"
        return {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
            "key": key,
            "value": value,
            "headers": [
                {"name": visible(name), "value": value_text(data, self._limit_bytes)}
                for name, data in record.headers[:MAX_HEADERS]
            ],
            "more_headers": max(0, len(record.headers) - MAX_HEADERS),
            "mark": mark,
            "batch": header.base_offset,
        }


def _batches(page: Page, records: memoryview, answer: Answer) -> Iterator[tuple[int, BatchHeader, bool]]:
    """(position, header, whether consumers see it) of the intact batches. Corrupt batches are added to the page."""
    at = 0
    while at < len(records):
        end = at
        try:
            for position, header, is_readable in readable_batches(records[at:], answer.aborted_transactions):
                end = at + position + header.size_bytes
                yield at + position, header, is_readable
            return
        except KafkaError as error:
            broken = _header_of_corrupt(records[end:], page.next_offset, answer.high_watermark)
            if broken is None:
                # The begin of the next batch is unknown, so the next page tries the next offset.
                page.stop = f"at offset {page.next_offset}: {visible(error.message)}"
                page.next_offset += 1
                return
            page.batches.append({**_batch(broken, ""), "error": visible(error.message)})
            page.next_offset = broken.next_offset
            at = end + broken.size_bytes


def _header_of_corrupt(rest: memoryview, expected: int, high_watermark: int) -> BatchHeader | None:
    """The header of a corrupt batch, if its offsets and size are plausible."""
    try:
        header = parse_header(rest, 0, available_bytes=len(rest))
    except KafkaError:
        return None
    is_possible = header.base_offset <= expected < header.next_offset <= high_watermark
    return header if is_possible and header.size_bytes <= len(rest) else None


def _records(batch: memoryview, header: BatchHeader) -> Iterator[Record]:
    """Raises KafkaError."""
    body = decompress(header.codec, batch[HEADER_SIZE_BYTES:], MAX_BATCH_BYTES)
    for part in decode_in_parts(body, header):
        yield from part


def _mark(header: BatchHeader, is_readable: bool, is_uncommitted: bool, last_stable_offset: int) -> str:
    if header.is_control:
        return "control"
    if not is_readable:
        return "aborted"
    # From the last stable offset on, the outcome of a transaction is not known yet.
    is_open = is_uncommitted and header.is_transactional and header.base_offset >= last_stable_offset
    return "open transaction" if is_open else ""


def _batch(header: BatchHeader, mark: str) -> dict[str, Any]:
    is_known = header.codec in set(CompressionType)
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size_bytes": header.size_bytes,
        "compression": CompressionType(header.codec).name.lower() if is_known else f"unknown ({header.codec})",
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": None if header.producer_id == NO_PRODUCER_ID else header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "mark": mark,
        "error": None,
    }
