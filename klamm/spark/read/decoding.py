"""Decodes the record batches of a fetch into Arrow record batches, without a Python object for each record.

A `Decoder` has two steps for each fetch: `scan` quickly finds the batches and the offset of the next fetch, which can
then run while `decode` builds the columns.

What must stay true:
- For any bytes, the result is records or a `KafkaError` that names topic, partition and offset; never a crash of the
  process. No batch is returned or skipped before its checksum has been compared.
- The decoded records equal those of `klamm.protocol.record.records.decode_records` for the same batch.
- A column that is not requested is not built.
- numba is imported when the first bytes have arrived, never by importing this module.

Source: org.apache.kafka.clients.consumer.internals.Fetcher.CompletedFetch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from klamm.base.checksum import crc32c
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record import record_batch
from klamm.protocol.record.compression import MAX_DECOMPRESSED_BYTES, decompress_into
from klamm.protocol.record.records import ControlRecordType, decode_end_transaction_marker, decode_records
from klamm.spark.schema import HEADERS, LEADER_EPOCH, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

_CODEC_MASK, _LOG_APPEND_TIME_FLAG, _TRANSACTIONAL_FLAG, _CONTROL_FLAG = 0x07, 0x08, 0x10, 0x20
# The size of a row with all columns, without its key, value, headers and topic.
_FIXED_ROW_BYTES = 44
# Batches are decompressed together up to this size, which fits into a processor's cache. A single batch may be larger.
SCRATCH_BYTES = 2 * 1024 * 1024


class Batches(NamedTuple):
    """The whole batches of one fetch. `table` has the columns of `decoding_kernels.scan`."""

    records: memoryview
    table: "Table"

    @property
    def next_offset(self) -> int | None:
        """The offset after the last batch; None without a batch."""
        return int(self.table[-1, _kernels().LAST_OFFSET]) + 1 if len(self.table) else None


class Decoder:
    """Makes record batches with `columns` of the records fetched from one partition.

    `max_batch_bytes`: the largest size of a record batch with more than one record. Decompressed data takes little
    further memory, unless one of the brokers' batches is large.
    """

    def __init__(self, topic: str, partition: int, columns: Sequence[str], max_batch_bytes: int) -> None:
        self.schema = schema(columns)
        self._topic = topic
        self._partition = partition
        self._max_batch_bytes = max_batch_bytes
        # Scratch memory for decompression, reused because fresh memory costs as much as filling it.
        self._scratch = np.empty(0, np.uint8)
        # The compression ratio of the previous batch.
        self._compression_ratio = 1.0
        self._constants: dict[str, pa.Array] = {}

    def prepare(self) -> None:
        """Loads the compiled loops. This takes a second the first time in a process, and no time later."""
        _kernels()

    def scan(self, records: Buffer) -> Batches:
        """The batches in the records of a fetch, which may end within a batch.

        Raises KafkaError: CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT for message formats before v2.
        """
        kernels = _kernels()
        view = memoryview(records)
        table = np.empty((len(view) // kernels.HEADER_SIZE_BYTES + 1, kernels.BATCH_FIELDS), np.int64)
        status, count, position = kernels.scan(np.frombuffer(view, np.uint8), len(view), table)
        if status != kernels.FINE:
            try:
                record_batch.parse_header(view, position)
            except KafkaError as error:
                raise self._located(error, int.from_bytes(view[position : position + 8], "big", signed=True)) from None
            raise AssertionError("a header is wrong, but nothing is wrong with it")
        return Batches(view, table[:count])

    def decode(
        self, batches: Batches, start_offset: int, end_offset: int, aborted: Sequence[tuple[int, int]] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start_offset` to before `end_offset`, without control records and aborted transactions.

        `aborted` has (producer id, first offset) of the transactions that the leader said were aborted.
        Raises KafkaError: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE, MESSAGE_TOO_LARGE (as `decode_records`), and
        INVALID_TIMESTAMP when the column is requested and a timestamp does not fit into it.
        """
        kernels = _kernels()
        table = batches.table[batches.table[:, kernels.BASE_OFFSET] < end_offset]
        # Checksums come first, because they cover the fields that decide which batches are skipped.
        self._check(batches.records, table)
        wanted = table[
            (table[:, kernels.LAST_OFFSET] >= start_offset)
            # Compaction has left only the header of this batch.
            & ((table[:, kernels.RECORD_COUNT] != 0) | (table[:, kernels.SIZE] != kernels.HEADER_SIZE_BYTES))
        ]
        if aborted:
            wanted = self._committed(batches.records, wanted, table, aborted)
        wanted = wanted[wanted[:, kernels.ATTRIBUTES] & _CONTROL_FLAG == 0]
        for data, bodies in self._uncompressed(batches.records, wanted):
            yield from self._columns(data, bodies, start_offset, end_offset)

    # -- batches --------------------------------------------------------------------------------------------------

    def _check(self, records: memoryview, table: "Table") -> None:
        """Raises KafkaError(CORRUPT_MESSAGE) for a wrong checksum."""
        kernels = _kernels()
        for position, size, crc in table[:, [kernels.POSITION, kernels.SIZE, kernels.CRC]].tolist():
            if crc32c(records[position + record_batch.CRC_COVERS_FROM : position + size]) != crc:
                header = record_batch.parse_header(records, position)
                self._at(header.base_offset, record_batch.check_crc, records, position, header)

    def _committed(
        self, records: memoryview, wanted: "Table", table: "Table", aborted: Sequence[tuple[int, int]]
    ) -> "Table":
        """The wanted batches that belong to no aborted transaction.

        A producer's transactional batches are aborted from the offset that the leader names to the abort marker.
        """
        kernels = _kernels()
        upcoming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        ending: set[int] = set()
        dropped: list[int] = []
        transactional = table[table[:, kernels.ATTRIBUTES] & (_TRANSACTIONAL_FLAG | _CONTROL_FLAG) != 0]
        for batch in transactional.tolist():
            while upcoming and upcoming[-1][1] <= batch[kernels.LAST_OFFSET]:
                ending.add(upcoming.pop()[0])
            if batch[kernels.ATTRIBUTES] & _CONTROL_FLAG:
                if self._is_abort_marker(records, batch):
                    ending.discard(batch[kernels.PRODUCER_ID])
            elif batch[kernels.PRODUCER_ID] in ending:
                dropped.append(batch[kernels.POSITION])
        return wanted[~np.isin(wanted[:, kernels.POSITION], dropped)]

    def _is_abort_marker(self, records: memoryview, batch: list[int]) -> bool:
        position = batch[_kernels().POSITION]
        header = record_batch.parse_header(records, position)
        marker = self._at(header.base_offset, decode_end_transaction_marker, records, position, header)
        return marker is not None and marker.type is ControlRecordType.ABORT

    def _uncompressed(self, records: memoryview, table: "Table") -> "Iterator[tuple[NDArray[np.uint8], Table]]":
        """Yields (bytes, the table of where the records of each batch are in them), as much at a time as should be in
        memory."""
        kernels = _kernels()
        bodies = np.empty((len(table), kernels.BODY_FIELDS), np.int64)
        bodies[:, kernels.BODY_START] = table[:, kernels.POSITION] + kernels.HEADER_SIZE_BYTES
        bodies[:, kernels.BODY_END] = table[:, kernels.POSITION] + table[:, kernels.SIZE]
        bodies[:, kernels.FIRST_OFFSET] = table[:, kernels.BASE_OFFSET]
        bodies[:, kernels.FIRST_TIMESTAMP] = table[:, kernels.BASE_TIMESTAMP]
        bodies[:, kernels.COMMON_TIMESTAMP] = table[:, kernels.MAX_TIMESTAMP]
        bodies[:, kernels.TIMESTAMP_TYPE] = (table[:, kernels.ATTRIBUTES] & _LOG_APPEND_TIME_FLAG) != 0
        bodies[:, kernels.COUNT] = table[:, kernels.RECORD_COUNT]
        bodies[:, kernels.EPOCH] = table[:, kernels.LEADER_EPOCH]
        codecs = table[:, kernels.ATTRIBUTES] & _CODEC_MASK
        if not codecs.any():
            yield np.frombuffer(records, np.uint8), bodies
            return
        if not len(self._scratch):
            self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        filled_bytes, first = 0, 0
        for number, codec in enumerate(codecs.tolist()):
            body = bodies[number]
            offset = int(body[kernels.FIRST_OFFSET])
            compressed = records[body[kernels.BODY_START] : body[kernels.BODY_END]]
            # Estimated by the previous batch, because a failed attempt costs as much as a successful one.
            fits = filled_bytes + self._compression_ratio * len(compressed) <= SCRATCH_BYTES
            while True:
                if filled_bytes and not fits:
                    yield self._scratch[:filled_bytes], bodies[first:number]
                    filled_bytes, first = 0, number
                room = self._scratch[filled_bytes:].data
                size_bytes = self._at(offset, decompress_into, codec, compressed, room)
                if size_bytes is not None:
                    break
                fits = False
                if not filled_bytes:
                    self._at(offset, self._make_room)
            self._compression_ratio = size_bytes / max(len(compressed), 1)
            body[kernels.BODY_START] = filled_bytes
            filled_bytes += size_bytes
            body[kernels.BODY_END] = filled_bytes
        yield self._scratch[:filled_bytes], bodies[first:]

    def _make_room(self) -> None:
        """Enlarges the scratch memory. Raises KafkaError(MESSAGE_TOO_LARGE) when it already has the allowed size of a
        batch."""
        most_bytes = MAX_DECOMPRESSED_BYTES
        if len(self._scratch) == most_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the records decompress to more than {most_bytes} bytes")
        self._scratch = np.empty(min(most_bytes, 4 * len(self._scratch)), np.uint8)

    # -- columns --------------------------------------------------------------------------------------------------

    def _columns(
        self, data: "NDArray[np.uint8]", bodies: "Table", start_offset: int, end_offset: int
    ) -> Iterator[pa.RecordBatch]:
        kernels = _kernels()
        sizes = bodies[:, kernels.BODY_END] - bodies[:, kernels.BODY_START]
        counts = bodies[:, kernels.COUNT]
        impossible = np.flatnonzero((counts < 0) | (counts > sizes // kernels.MIN_RECORD_SIZE_BYTES))
        if len(impossible):
            raise self._explained(data, bodies[impossible[0]])
        rows, size_bytes = int(counts.sum()), int(sizes.sum())
        names = set(self.schema.names)
        keys = _BinaryColumn(rows, size_bytes, wanted="key" in names)
        values = _BinaryColumn(rows, size_bytes, wanted="value" in names)
        offsets = _numbers(rows, np.int64, wanted="offset" in names)
        timestamps = _numbers(rows, np.int64, wanted="timestamp" in names)
        timestamp_types = _numbers(rows, np.int32, wanted="timestampType" in names)
        leader_epochs = _numbers(rows, np.int32, wanted=LEADER_EPOCH in names)
        header_positions = _numbers(rows, np.int64, wanted=HEADERS in names)
        header_counts = _numbers(rows, np.int32, wanted=HEADERS in names)
        found = kernels.decode(
            data, bodies, start_offset, end_offset,
            keys.ends, keys.data, keys.validity, values.ends, values.data, values.validity,
            offsets, timestamps, timestamp_types, leader_epochs, header_positions, header_counts,
        )  # fmt: skip
        status, where, rows, key_bytes, value_bytes, null_keys, null_values, *header_sizes = found
        if status == kernels.BAD_TIMESTAMP:
            error = KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                "the timestamp is too far from 1970 for a column of microseconds; choose columns without timestamp",
            )
            raise self._located(error, where)
        if status != kernels.FINE:
            raise self._explained(data, bodies[where])
        if rows == 0:
            return
        # Only requested columns are made; topic and partition, which are the same in all rows, follow below.
        make: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: keys.array(rows, key_bytes, null_keys, pa.binary()),
            "value": lambda: values.array(rows, value_bytes, null_values, pa.binary()),
            "offset": lambda: _fixed(offsets, rows, pa.int64()),
            "timestamp": lambda: _fixed(timestamps, rows, self.schema.field("timestamp").type),
            "timestampType": lambda: _fixed(timestamp_types, rows, pa.int32()),
            LEADER_EPOCH: lambda: _fixed(leader_epochs, rows, pa.int32()),
            HEADERS: lambda: _headers(data, rows, header_positions, header_counts, *header_sizes),
        }
        made = {name: make[name]() for name in self.schema.names if name in make}
        for start, end in self._cuts(made, rows):
            count = end - start
            arrays = [
                made[name].slice(start, count) if name in made else self._constant(name, count)
                for name in self.schema.names
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cuts(self, columns: Mapping[str, pa.Array], rows: int) -> Iterator[tuple[int, int]]:
        """(first row, row after the last) of record batches that are not too large."""
        ends = np.arange(1, rows + 1) * (_FIXED_ROW_BYTES + len(self._topic)) + _variable_ends(columns, rows)
        start = 0
        while start < rows:
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + self._max_batch_bytes, side="right"))
            end = max(end, start + 1)
            yield start, end
            start = end

    def _constant(self, name: str, rows: int) -> pa.Array:
        """The column topic or partition, made once and shared by all record batches.

        Does not use `pyarrow.repeat`, which imports pandas for a value from Python.
        """
        array = self._constants.get(name)
        if array is None or len(array) < rows:
            if name == "topic":
                text = np.frombuffer(self._topic.encode(), np.uint8)
                ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
                buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.tile(text, rows))]
                array = pa.Array.from_buffers(pa.string(), rows, buffers, 0)
            else:
                array = _fixed(np.full(rows, self._partition, np.int32), rows, pa.int32())
            self._constants[name] = array
        return array.slice(0, rows)

    # -- errors ---------------------------------------------------------------------------------------------------

    def _at(self, offset: int, function: Any, *arguments: Any) -> Any:
        """Calls the function, and adds the partition and the offset to its KafkaErrors."""
        try:
            return function(*arguments)
        except KafkaError as error:
            raise self._located(error, offset) from None

    def _explained(self, data: "NDArray[np.uint8]", body: "Table") -> KafkaError:
        """The error in the records of a batch, with the text of `decode_records`."""
        kernels = _kernels()
        start, end, base_offset = (
            int(body[field]) for field in (kernels.BODY_START, kernels.BODY_END, kernels.FIRST_OFFSET)
        )
        header = record_batch.BatchHeader(
            base_offset,
            batch_length=end - start + record_batch.HEADER_SIZE_BYTES - record_batch.LOG_OVERHEAD_BYTES,
            partition_leader_epoch=-1,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=0,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=int(body[kernels.COUNT]),
        )
        try:
            for _ in decode_records(bytes(record_batch.HEADER_SIZE_BYTES) + bytes(data[start:end]), 0, header):
                pass
        except KafkaError as error:
            return self._located(error, base_offset)
        raise AssertionError("records are wrong, but nothing is wrong with them")

    def _located(self, error: KafkaError, offset: int) -> KafkaError:
        return KafkaError(error.code, f"{self._topic}-{self._partition} at offset {offset}: {error.message}")


class _BinaryColumn:
    """Memory for a binary column of at most `rows` rows and `size_bytes` bytes; empty if the column is not wanted."""

    def __init__(self, rows: int, size_bytes: int, *, wanted: bool = True) -> None:
        self.ends = np.empty(rows + 1 if wanted else 0, np.int32)
        self.ends[:1] = 0
        self._buffer = pa.allocate_buffer(size_bytes if wanted else 0, memory_pool=_memory_pool())
        self.data = np.frombuffer(self._buffer, np.uint8)
        self.validity = _bitmap(rows if wanted else 0)

    def array(self, rows: int, size_bytes: int, nulls: int, kind: pa.DataType) -> pa.Array:
        validity = pa.py_buffer(self.validity) if nulls else None
        buffers = [validity, pa.py_buffer(self.ends), self._buffer.slice(0, size_bytes)]
        return pa.Array.from_buffers(kind, rows, buffers, nulls)


@cache
def _memory_pool() -> pa.MemoryPool:
    """An allocator that keeps its pages from one fetch to the next, if Arrow has one.

    Other allocators return pages to the system within milliseconds, and fresh pages cost as much as filling them.
    """
    keeps_pages = "jemalloc" in pa.supported_memory_backends()
    return pa.jemalloc_memory_pool() if keeps_pages else pa.default_memory_pool()


def _bitmap(rows: int) -> "NDArray[np.uint8]":
    """A validity bitmap of ones: no row is null yet."""
    return np.full((rows + 7) // 8, 0xFF, np.uint8)


def _numbers(rows: int, kind: Any, *, wanted: bool) -> "NDArray[Any]":
    return np.empty(rows if wanted else 0, kind)


def _fixed(values: "NDArray[Any]", rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)


def _headers(
    data: "NDArray[np.uint8]",
    rows: int,
    positions: "NDArray[np.int64]",
    counts: "NDArray[np.int32]",
    headers: int,
    key_bytes: int,
    value_bytes: int,
) -> pa.Array:
    ends = np.zeros(rows + 1, np.int32)
    validity = _bitmap(rows)
    keys, values = _BinaryColumn(headers, key_bytes), _BinaryColumn(headers, value_bytes)
    null_rows, null_values = _kernels().decode_headers(
        data, rows, positions, counts, ends, validity, keys.ends, keys.data, values.ends, values.data, values.validity
    )
    key, value = schema([HEADERS]).field(HEADERS).type.value_type
    names = _utf8(keys.array(headers, key_bytes, 0, pa.binary()))
    pairs = pa.StructArray.from_arrays(
        [names, values.array(headers, value_bytes, null_values, pa.binary())], fields=[key, value]
    )
    buffers = [pa.py_buffer(validity) if null_rows else None, pa.py_buffer(ends)]
    return pa.Array.from_buffers(pa.list_(pairs.type), rows, buffers, null_rows, children=[pairs])


def _utf8(keys: pa.Array) -> pa.Array:
    """Header keys as text. As in Java, bytes that are not UTF-8 are replaced, so that such a key does not stop a
    query."""
    texts = keys.view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return texts


def _variable_ends(columns: Mapping[str, pa.Array], rows: int) -> "NDArray[np.int64]":
    """For each row, the number of bytes of keys, values and headers up to the end of the row."""
    total = np.zeros(rows, np.int64)
    for name in ("key", "value"):
        if name in columns:
            total += _ends(columns[name])[1:]
    if HEADERS in columns:
        last = _ends(columns[HEADERS])[1:]
        for each in columns[HEADERS].values.flatten():
            total += _ends(each)[last]
    return total


def _ends(array: pa.Array) -> "NDArray[np.int32]":
    """Arrow's offsets of a binary or list array that is not a slice."""
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]


def _kernels() -> Any:
    """The compiled loops; numba is imported here, at the first use."""
    from klamm.spark.read import decoding_kernels

    return decoding_kernels
