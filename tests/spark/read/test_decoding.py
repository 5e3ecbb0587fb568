"""Record batches into Arrow columns: always what `decode_records` finds, or a KafkaError."""

import struct
import subprocess
import sys
from random import Random

import crc32c
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record import record_batch
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    decode_records,
)
from klamm.spark.read import decoding
from klamm.spark.read.decoding import Decoder
from klamm.spark.schema import ALL_COLUMNS, COLUMNS, HEADERS, LEADER_EPOCH, columns, schema

ALL = ALL_COLUMNS
EVERYTHING = (-(2**62), 2**62)
MB = 1024 * 1024

small_bytes = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=400)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
plain_records = st.builds(Record, small_bytes, small_bytes, st.integers(-1, 2**50), headers, st.just(-1))


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    """Some batches one after another, with gaps between and within them as compaction leaves."""
    fetched, offset = bytearray(), draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 5))):
        records = []
        for record in draw(st.lists(plain_records, min_size=1, max_size=12)):
            offset += draw(st.integers(0, 3))
            records.append(record._replace(offset=offset))
            offset += 1
        batch = build_batch(records, base_offset=records[0].offset, codec=draw(st.sampled_from(CompressionType)))
        if draw(st.booleans()):
            header = record_batch.parse_header(batch)
            record_batch.set_log_append_time(batch, 0, header, draw(st.integers(0, 2**50)))
        # Brokers write it into what they append; the checksum does not cover it.
        struct.pack_into(">i", batch, 12, draw(st.integers(-1, 2**31 - 1)))
        fetched += batch
    return fetched


def expected_rows(fetched: bytes | bytearray, start: int, end: int, partition: int = 3) -> list[dict]:
    rows = []
    for position, header in record_batch.iterate_batches(fetched, allow_partial_end=True):
        for record in decode_records(fetched, position, header):
            if start <= record.offset < end:
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "orders",
                        "partition": partition,
                        "offset": record.offset,
                        "timestamp": record.timestamp_ms * 1000,
                        "timestampType": int(header.is_log_append_time),
                        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                        "leaderEpoch": header.partition_leader_epoch,
                    }
                )
    return rows


def decode(
    fetched: bytes | bytearray,
    names: tuple[str, ...] = ALL,
    span: tuple[int, int] = EVERYTHING,
    max_batch_bytes: int = MB,
    aborted: tuple[tuple[int, int], ...] = (),
) -> list[pa.RecordBatch]:
    decoder = Decoder("orders", 3, names, max_batch_bytes)
    made = list(decoder.decode(decoder.scan(fetched), *span, aborted))
    for batch in made:
        assert batch.schema == schema(names)
        batch.validate(full=True)
    return made


def rows_of(made: list[pa.RecordBatch]) -> list[dict]:
    rows = []
    for batch in made:
        if "timestamp" in batch.schema.names:
            index = batch.schema.names.index("timestamp")
            rows += batch.set_column(index, "timestamp", batch.column(index).view(pa.int64())).to_pylist()
        else:
            rows += batch.to_pylist()
    return rows


@settings(deadline=None)  # the first example may wait for the compiler
@given(batches(), st.data())
def test_the_columns_are_what_decode_records_finds(fetched: bytearray, data: st.DataObject) -> None:
    offsets = [row["offset"] for row in expected_rows(fetched, *EVERYTHING)] or [0]
    span = (data.draw(st.sampled_from(offsets)), data.draw(st.sampled_from(offsets)) + data.draw(st.integers(0, 2)))
    if data.draw(st.booleans()):
        span = EVERYTHING
    names = tuple(data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True)))
    max_batch_bytes = data.draw(st.sampled_from([1, 200, 1000, MB]))
    cut = data.draw(st.integers(0, 60))
    made = decode(fetched + fetched[:cut], names, span, max_batch_bytes)
    assert rows_of(made) == [{name: row[name] for name in names} for row in expected_rows(fetched, *span)]
    assert all(batch.num_rows for batch in made)


@settings(deadline=None)  # the first example may wait for the compiler
@given(st.lists(plain_records, min_size=1, max_size=5), st.data())
def test_a_batch_with_a_right_checksum_and_wrong_records(records: list[Record], data: st.DataObject) -> None:
    batch = build_batch(records, base_offset=7)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(57, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    renew_checksum(batch)
    assert_same_answer(bytes(batch))


@settings(deadline=None)  # the first example may wait for the compiler
@given(st.binary(max_size=60), st.sampled_from(range(8)), st.sampled_from([-1, 1, 2, 3, 9]))
@example(b"\x80\x80\x80\x80\x80\x80", 0, 1)
@example(b"\xfe\xff\xff\xff\x0f" + bytes(20), 0, 1)
@example(b"\x01" + bytes(20), 0, 1)
@example(b"", 0, 1)
@example(bytes(7), 0, 0)
def test_any_bytes_as_records(body: bytes, attributes: int, record_count: int) -> None:
    batch = bytearray(build_batch([Record(None, None)])[:61]) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">i", batch, 57, record_count)
    renew_checksum(batch)
    assert_same_answer(bytes(batch))


@settings(deadline=None)  # the first example may wait for the compiler
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_as_batches(garbage: bytes, looks_right: bool) -> None:
    if looks_right:
        garbage = build_batch([Record(b"k", b"v")])[:17] + garbage
    try:
        decode(garbage)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        assert error.message.startswith("orders-3 at offset ")


def assert_same_answer(fetched: bytes) -> None:
    """As `decode_records`, whichever columns are wanted; but a row that this cannot hold is an error of its own."""
    try:
        expected = expected_rows(fetched, *EVERYTHING)
    except KafkaError as error:
        if "UTF-8" in error.message:
            return
        for names in (ALL, ("offset",)):
            with pytest.raises(KafkaError, match=r"orders-3 at offset") as raised:
                decode(fetched, names)
            assert raised.value.code == error.code
        return
    if any(abs(row["timestamp"]) >= 2**63 or abs(row["offset"]) >= 2**62 for row in expected):
        return
    assert rows_of(decode(fetched)) == expected


def renew_checksum(batch: bytearray) -> None:
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))


@pytest.mark.parametrize("codec", CompressionType)
def test_a_changed_byte_is_found_by_the_checksum(codec: CompressionType) -> None:
    good = build_batch([Record(b"k", b"v" * 50, 5)], base_offset=10)
    bad = build_batch([Record(b"k", b"v" * 50, 5)], base_offset=11, codec=codec)
    bad[-1] ^= 1
    with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE \(2\): orders-3 at offset 11: .*checksum") as raised:
        decode(good + bad)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    # Who reads other offsets only, is not stopped by it.
    assert len(rows_of(decode(good + bad, span=(10, 11)))) == 1


@pytest.mark.parametrize("field", ["last offset", "attributes"])
def test_a_corrupt_header_makes_no_batch_look_like_one_that_is_passed_over(field: str) -> None:
    """As one that ends before the range, or as a control batch; nothing but the checksum tells."""
    bad = build_batch([Record(None, b"lost")], base_offset=11)
    if field == "last offset":
        struct.pack_into(">i", bad, 23, -5)
    else:
        struct.pack_into(">h", bad, 21, 0x20)
    fetched = (
        build_batch([Record(None, b"v")], base_offset=10) + bad + build_batch([Record(None, b"v")], base_offset=12)
    )
    with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE \(2\): orders-3 at offset 11: .*checksum"):
        decode(fetched, span=(10, 13))
    aborted = transactional(5, [0]) + transactional(6, [1]) + marker(ControlRecordType.ABORT, 5, 2)
    struct.pack_into(">q", aborted, len(transactional(5, [0])) + 43, 5)
    with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE \(2\): orders-3 at offset 1: .*checksum"):
        decode(aborted, span=(0, 3), aborted=((5, 0),))


def test_old_message_formats_are_refused_by_name() -> None:
    batch = build_batch([Record(b"k", b"v")], base_offset=4)
    batch[16] = 1
    with pytest.raises(KafkaError, match="orders-3 at offset 4: message format v1 is not supported"):
        decode(batch)


def test_a_decompressed_batch_that_would_fill_the_memory() -> None:
    batch = build_batch([Record(None, bytes(130 * MB))], codec=CompressionType.ZSTD)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        decode(batch)


def test_record_batches_stay_below_the_limit_but_a_large_record_is_handed_out() -> None:
    values = [bytes(300), bytes(5000), b"", bytes(300), bytes(400)]
    fetched = build_batch([Record(None, value) for value in values], codec=CompressionType.LZ4)
    made = decode(fetched, max_batch_bytes=750)
    assert [batch.num_rows for batch in made] == [1, 1, 2, 1]
    assert [row["value"] for row in rows_of(made)] == values
    large = build_batch([Record(b"k", bytes(20 * MB))])
    assert [batch.num_rows for batch in decode(large)] == [1]


def test_compressed_batches_are_decompressed_within_the_limit() -> None:
    fetched = bytearray()
    for offset in range(20):
        fetched += build_batch([Record(None, bytes(600))], base_offset=offset, codec=CompressionType.ZSTD)
    made = decode(fetched, max_batch_bytes=2000)
    assert max(batch.num_rows for batch in made) == 3
    assert [row["offset"] for row in rows_of(made)] == list(range(20))


def test_a_batch_of_which_compaction_left_nothing() -> None:
    empty = build_batch([Record(None, None)], base_offset=1)[:61]
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    renew_checksum(empty)
    decoder = Decoder("orders", 3, ALL, MB)
    found = decoder.scan(build_batch([Record(None, b"0")]) + empty)
    assert found.next_offset == 2
    assert offsets_of(list(decoder.decode(found, 0, 2))) == [0]


def test_control_records_are_no_rows() -> None:
    fetched = transactional(5, [0, 1]) + marker(ControlRecordType.COMMIT, 5, 2) + transactional(5, [3])
    assert offsets_of(decode(fetched)) == [0, 1, 3]


def test_batches_of_aborted_transactions_are_skipped_until_their_marker() -> None:
    fetched = (
        transactional(5, [0])
        + transactional(6, [1])
        + build_batch([Record(b"", b"plain")], base_offset=2, producer_id=5, producer_epoch=0, base_sequence=0)
        + transactional(5, [3])
        + marker(ControlRecordType.ABORT, 5, 4)
        + transactional(5, [5])
        + marker(ControlRecordType.COMMIT, 6, 6)
        + transactional(6, [7])
        + marker(ControlRecordType.COMMIT, 5, 8)
        + marker(ControlRecordType.ABORT, 6, 9)
    )
    assert offsets_of(decode(fetched, aborted=((6, 7), (5, 0)))) == [1, 2, 5]
    # A range that begins in the middle knows what was aborted before it.
    assert offsets_of(decode(fetched, aborted=((6, 7), (5, 0)), span=(3, 9))) == [5]
    assert offsets_of(decode(fetched)) == [0, 1, 2, 3, 5, 7]


def test_an_abort_marker_that_is_corrupt() -> None:
    bad = marker(ControlRecordType.ABORT, 5, 1)
    bad[-1] ^= 1
    with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE \(2\): orders-3 at offset 1"):
        decode(transactional(5, [0]) + bad, aborted=((5, 0),))


def transactional(producer_id: int, offsets: list[int]) -> bytearray:
    records = [Record(b"", b"%d" % offset) for offset in offsets]
    return build_batch(
        records,
        base_offset=offsets[0],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(kind: ControlRecordType, producer_id: int, offset: int) -> bytearray:
    return build_end_transaction_marker(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1, base_offset=offset
    )


def offsets_of(made: list[pa.RecordBatch]) -> list[int]:
    return [row["offset"] for row in rows_of(made)]


def test_a_header_key_that_is_no_text_is_replaced_as_java_does_it() -> None:
    batch = build_batch([Record(b"", b"", 1, (("abc", b"1"), ("d", None)))])
    place = batch.index(b"abc")
    batch[place + 1] = 0xFF
    renew_checksum(batch)
    (row,) = rows_of(decode(batch))
    assert row["headers"] == [{"key": "a\ufffdc", "value": b"1"}, {"key": "d", "value": None}]


def test_a_timestamp_that_no_column_of_microseconds_holds() -> None:
    fetched = build_batch([Record(b"", b"", 1), Record(b"", b"", 1_700_000_000_000_000_000)], base_offset=8)
    with pytest.raises(KafkaError, match=r"INVALID_TIMESTAMP \(32\): orders-3 at offset 9: .*without timestamp"):
        decode(fetched)
    assert len(rows_of(decode(fetched, ("key", "offset")))) == 2


def test_columns_that_do_not_exist_or_are_there_twice() -> None:
    with pytest.raises(ValueError, match=r"no column 'keys'; allowed: key, value, topic, .*, headers, leaderEpoch"):
        schema(["keys"])
    with pytest.raises(ValueError, match="'key' is asked for twice"):
        schema(["key", "value", "key"])
    assert schema(COLUMNS).names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert columns(include_headers=True) == (*COLUMNS, HEADERS)
    assert (*columns(include_headers=True), LEADER_EPOCH) == ALL_COLUMNS


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3000))
def test_a_great_many_small_batches(count: int) -> None:
    one = build_batch([Record(None, b"v")])
    fetched = bytearray(one * count)
    for number in range(count):
        struct.pack_into(">q", fetched, number * len(one), number)
    assert offsets_of(decode(fetched, ("offset",))) == list(range(count))


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_planning_does_not_import_numba() -> None:
    assert run("import sys, klamm.spark.read.planning, klamm.spark.arrow; print('numba' in sys.modules)") == "False\n"


def test_decoding_does_not_import_pandas() -> None:
    """A third of a second, which pyarrow spends for some innocent calls."""
    program = """
import sys
from random import Random
from klamm.spark.read import decoding
from klamm.spark.read.decoding import Decoder
from klamm.spark.schema import columns
from klamm.protocol.record.records import Record, build_batch
decoder = Decoder("t", 0, columns(include_headers=True), 1000)
batch = build_batch([Record(b"key", b"value", 1, (("a", b"b"),))])
assert [each.num_rows for each in decoder.decode(decoder.scan(batch), 0, 1)] == [1]
print('pandas' in sys.modules)
"""
    assert run(program) == "False\n"


def test_where_nothing_can_be_kept_on_disk_the_loops_are_compiled_nevertheless() -> None:
    program = """
from numba.core import caching
caching.CompileResultCacheImpl._locator_classes = []
from klamm.spark.read import decoding
from klamm.spark.read.decoding import Decoder
from klamm.protocol.record.records import Record, build_batch
decoder = Decoder("t", 0, ("value",), 1000)
(batch,) = decoder.decode(decoder.scan(build_batch([Record(None, b"found")])), 0, 1)
print(batch.to_pylist())
"""
    assert run(program) == "[{'value': b'found'}]\n"


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec is not CompressionType.NONE])
def test_batches_that_are_unlike_the_one_before(codec, monkeypatch):
    """Hardly compressed, then a thousandfold, then hardly: what was expected of the room is wrong each time."""
    monkeypatch.setattr(decoding, "SCRATCH_BYTES", 3000)
    random = Random(7)
    values = [
        random.randbytes(1000),
        bytes(90_000),
        random.randbytes(2900),
        b"",
        bytes(2900),
        *[random.randbytes(700)] * 9,
    ]
    batches = [
        build_batch([Record(None, value)], base_offset=offset, codec=codec) for offset, value in enumerate(values)
    ]
    decoder = Decoder("t", 0, ("offset", "value"), 1 << 20)
    made = list(decoder.decode(decoder.scan(b"".join(batches)), 0, len(values)))
    assert [value for batch in made for value in batch["value"].to_pylist()] == values
    assert [offset for batch in made for offset in batch["offset"].to_pylist()] == list(range(len(values)))
    assert len(made) > 5
