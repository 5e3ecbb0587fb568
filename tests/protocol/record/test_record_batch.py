"""The record batch codec: against aiokafka's own, against hand-written bytes, and against garbage."""

import struct

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType, decompress, decompress_into
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    decode_end_transaction_marker,
    decode_keys_and_values,
    decode_records,
)

RECORDS = [
    Record(b"key", b"value", 1_600_000_000_000, (("h", b"1"), ("", None), ("h", b"2"))),
    Record(None, b"no key", 1_600_000_000_500),
    Record(b"tombstone", None, 1_599_999_999_000),
    Record(b"", b"", 1_600_000_000_000),
]


def decode(batch, position=0):
    header = rb.parse_header(batch, position)
    return list(decode_records(batch, position, header))


def placed(records, base_offset=0):
    return [record._replace(offset=base_offset + i) for i, record in enumerate(records)]


def error_of(function, *arguments):
    with pytest.raises(KafkaError) as caught:
        function(*arguments)
    return caught.value.code


def test_header_fields_stand_where_the_format_says():
    batch = bytearray(61)
    struct.pack_into(">qiibIhiqqqhii", batch, 0, 7, 49, 3, 2, 0xDEADBEEF, 0x3B, 4, 100, 200, 900, 5, 11, 5)
    header = rb.parse_header(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (7, 3, 0xDEADBEEF)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (61, 11, 12)
    assert (header.base_timestamp, header.max_timestamp) == (100, 200)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (900, 5, 11, 15)
    assert header.record_count == 5
    assert (header.codec, header.is_log_append_time, header.is_transactional, header.is_control) == (
        3,
        True,
        True,
        True,
    )


def test_sequences_wrap():
    assert rb.advance_sequence(2**31 - 1, 1) == 0
    assert rb.advance_sequence(2**31 - 2, 3) == 1
    assert rb.advance_sequence(0, -1) == 2**31 - 1


@pytest.mark.parametrize("codec", list(CompressionType))
def test_what_is_built_is_decoded(codec):
    batch = build_batch(RECORDS, base_offset=42, codec=codec, producer_id=9, producer_epoch=1, base_sequence=0)
    header = rb.parse_header(batch)
    assert rb.crc_matches(batch, 0, header)
    assert header.codec == codec
    assert (header.base_timestamp, header.max_timestamp) == (1_600_000_000_000, 1_600_000_000_500)
    assert decode(batch) == placed(RECORDS, 42)


@pytest.mark.parametrize("codec", list(CompressionType))
def test_aiokafka_reads_what_we_build(codec):
    batch = build_batch(RECORDS, base_offset=42, codec=codec)
    read = MemoryRecords(bytes(batch)).next_batch()
    assert read.validate_crc()
    got = [(r.key, r.value, r.timestamp, tuple(r.headers), r.offset) for r in read]
    assert got == [tuple(record) for record in placed(RECORDS, 42)]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_we_read_what_aiokafka_builds(codec):
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for i, record in enumerate(RECORDS):
        builder.append(i, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = builder.build()
    header = rb.parse_header(batch)
    assert rb.crc_matches(batch, 0, header)
    assert decode(batch) == placed(RECORDS)


def with_payload(payload, codec, records=RECORDS):
    """A batch whose record bytes are replaced, with a CRC that matches."""
    batch = build_batch(records, codec=CompressionType.NONE)[:61] + bytes(payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, int(codec))
    struct.pack_into(">I", batch, 17, rb._crc(batch, 0, len(batch)))
    return batch


def test_snappy_without_framing_is_read_too():
    body = bytes(build_batch(RECORDS)[61:])
    assert decode(with_payload(cramjam.snappy.compress_raw(body), CompressionType.SNAPPY)) == placed(RECORDS)


def test_large_batches_decompress_through_several_buffer_sizes():
    records = [Record(None, b"x" * 3_000_000, 1)]
    for codec in CompressionType:
        assert decode(build_batch(records, codec=codec)) == placed(records)


@pytest.mark.parametrize("codec", list(CompressionType)[1:])
def test_a_bomb_gets_an_error(codec):
    bomb = build_batch([Record(None, bytes(1_000_000), 1)], codec=codec)
    header = rb.parse_header(bomb)
    assert error_of(lambda: list(decode_records(bomb, 0, header, max_bytes=999_999))) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_snappy_block_may_not_claim_more_than_it_is_allowed():
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    assert error_of(decompress, CompressionType.SNAPPY, claim) in (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
    )


def test_setting_offset_and_epoch_keeps_the_checksum():
    batch = build_batch(RECORDS)
    buffer = bytearray(b"xx") + batch
    rb.set_offset_and_epoch(memoryview(buffer), 2, rb.parse_header(buffer, 2), 2**40, 17)
    header = rb.parse_header(buffer, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 17)
    assert rb.crc_matches(buffer, 2, header)
    assert decode(buffer, 2) == placed(RECORDS, 2**40)


def test_log_append_time_replaces_every_timestamp_and_renews_the_checksum():
    batch = build_batch(RECORDS, codec=CompressionType.ZSTD)
    rb.set_log_append_time(batch, 0, rb.parse_header(batch), 5_000)
    header = rb.parse_header(batch)
    assert rb.crc_matches(batch, 0, header)
    assert (header.max_timestamp, header.is_log_append_time, header.codec) == (5_000, True, CompressionType.ZSTD)
    assert {record.timestamp_ms for record in decode(batch)} == {5_000}
    assert [r.timestamp for r in MemoryRecords(bytes(batch)).next_batch()] == [5_000] * 4


def test_a_changed_byte_fails_the_checksum():
    batch = build_batch(RECORDS)
    for position in (*range(17, 23), 60, 61, len(batch) - 1):
        changed = bytearray(batch)
        changed[position] ^= 1
        assert error_of(rb.check_crc, changed, 0, rb.parse_header(changed)) == ErrorCode.CORRUPT_MESSAGE


def test_iterating_over_batches():
    first, second = build_batch(RECORDS), build_batch(RECORDS[:1], base_offset=4)
    both = first + second
    assert [(p, h.base_offset, h.record_count) for p, h in rb.iterate_batches(both)] == [
        (0, 0, 4),
        (len(first), 4, 1),
    ]
    for cut in range(len(first), len(both)):
        assert [p for p, _ in rb.iterate_batches(both[:cut], allow_partial_end=True)] == [0]
    for cut in range(len(first) + 1, len(both)):
        assert error_of(list, rb.iterate_batches(both[:cut])) == ErrorCode.CORRUPT_MESSAGE
    assert list(rb.iterate_batches(b"")) == []


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 48, 2**31 - 1])
def test_impossible_lengths(length):
    batch = build_batch(RECORDS)
    struct.pack_into(">i", batch, 8, length)
    assert error_of(rb.parse_header, batch) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size_bytes", [17, 30, 61, 4096])
def test_zeroed_bytes_are_no_message_of_an_old_format(size_bytes):
    assert error_of(rb.parse_header, bytes(size_bytes)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (255, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_other_message_formats(magic, code):
    batch = build_batch(RECORDS)
    batch[16] = magic
    assert error_of(rb.parse_header, batch) == code
    # An old message may be smaller than a v2 header.
    assert error_of(rb.parse_header, batch[:30]) == code


def test_unknown_codec():
    assert error_of(decode, with_payload(b"abc", 5)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("count", [-1, 5, 2**31 - 1])
def test_a_count_that_the_bytes_do_not_hold(count):
    batch = build_batch(RECORDS)
    struct.pack_into(">i", batch, 57, count)
    assert error_of(decode, batch) == ErrorCode.CORRUPT_MESSAGE


def test_bytes_after_the_last_record():
    batch = build_batch(RECORDS)
    struct.pack_into(">i", batch, 57, 3)
    assert error_of(decode, batch) == ErrorCode.CORRUPT_MESSAGE


def test_end_transaction_markers():
    for kind in ControlRecordType:
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, 12), producer_id=5, producer_epoch=2, timestamp_ms=99, base_offset=8
        )
        header = rb.parse_header(batch)
        assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
        assert (header.producer_id, header.producer_epoch, header.base_offset) == (5, 2, 8)
        assert decode_end_transaction_marker(batch, 0, header) == EndTransactionMarker(kind, 12)


def test_control_records_that_end_no_transaction():
    leader_change = build_batch([Record(struct.pack(">hh", 0, 2), b"", 1)], is_control=True)
    assert decode_end_transaction_marker(leader_change, 0, rb.parse_header(leader_change)) is None
    for key, value in ((b"\0", b"\0" * 6), (None, b"\0" * 6), (b"\0\0\0\1", b"\0")):
        batch = build_batch([Record(key, value, 1)], is_control=True)
        assert error_of(decode_end_transaction_marker, batch, 0, rb.parse_header(batch)) == ErrorCode.CORRUPT_MESSAGE


keys = st.none() | st.binary(max_size=20)
records = st.lists(
    st.builds(
        Record,
        keys,
        st.none() | st.binary(max_size=200),
        st.integers(-1, 2**42),
        st.lists(st.tuples(st.text(max_size=5), keys), max_size=3).map(tuple),
        st.just(-1),
    ),
    min_size=1,
    max_size=20,
)


@given(records, st.sampled_from(CompressionType), st.integers(0, 2**62))
def test_any_records_survive(some, codec, base_offset):
    batch = build_batch(some, base_offset=base_offset, codec=codec)
    assert decode(batch) == placed(some, base_offset)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_garbage_gets_an_error_or_batches(data):
    try:
        for position, header in rb.iterate_batches(data):
            assert 61 <= header.size_bytes <= len(data) - position
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


@settings(max_examples=300)
@given(st.sampled_from([0, 1, 2, 3, 4, 5, 7]), st.binary(max_size=120), st.integers(0, 12))
def test_garbage_in_place_of_records(codec, payload, count):
    batch = with_payload(payload, codec)
    struct.pack_into(">i", batch, 57, count)
    try:
        assert len(decode(batch)) == count
    except KafkaError as error:
        assert error.code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            ErrorCode.MESSAGE_TOO_LARGE,
        )


@settings(max_examples=300)
@given(st.sampled_from(CompressionType), st.data())
def test_a_valid_batch_with_one_changed_byte_never_breaks_the_decoder(codec, data):
    batch = build_batch(RECORDS, codec=codec)
    batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(batch)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def whole_records(batch):
    return decode_records(batch, 0, rb.parse_header(batch))


def keys_and_values(batch):
    header = rb.parse_header(batch)
    return [one for part in decode_keys_and_values(decompress(header.codec, batch[61:]), header) for one in part]


def outcome(read, batch):
    """What a reader makes of the first batch: (offset, key, value) of each record, or the error."""
    try:
        return [
            (record.offset, record.key, record.value) if isinstance(record, Record) else record
            for record in read(batch)
        ]
    except KafkaError as error:
        return error.code


@given(records, st.sampled_from(CompressionType), st.integers(0, 2**62), st.data())
def test_keys_and_values_are_read_as_whole_records_are(some, codec, base_offset, data):
    batch = build_batch(some, base_offset=base_offset, codec=codec)
    assert outcome(keys_and_values, batch) == outcome(whole_records, batch)
    batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(keys_and_values, batch) == outcome(whole_records, batch)


def test_keys_and_values_come_in_parts():
    sizes = [100] * 2_000 + [100_000] + [100] * 2_000
    batch = build_batch([Record(b"%d" % number, bytes(size)) for number, size in enumerate(sizes)])
    parts = list(decode_keys_and_values(memoryview(batch)[61:], rb.parse_header(batch)))
    assert max(map(len, parts)) < 500
    assert [(offset, key, len(value or b"")) for part in parts for offset, key, value in part] == [
        (number, b"%d" % number, size) for number, size in enumerate(sizes)
    ]


@settings(max_examples=300)
@given(st.binary(max_size=120), st.integers(0, 12))
def test_garbage_in_place_of_keys_and_values(payload, count):
    batch = with_payload(payload, 0)
    struct.pack_into(">i", batch, 57, count)
    assert outcome(keys_and_values, batch) == outcome(whole_records, batch)


@pytest.mark.parametrize("codec", CompressionType)
def test_room_for_what_is_decompressed(codec):
    compressed = build_batch([Record(b"key", bytes(range(256)) * 3)] * 5, codec=codec)[61:]
    body = bytes(decompress(codec, compressed))
    assert len(body) > 3500
    for size_bytes in (0, 1, 7, 100, len(body) - 1):
        assert decompress_into(codec, compressed, memoryview(bytearray(size_bytes))) is None
    for spare_bytes in (0, 1, 1000):
        out = bytearray(len(body) + spare_bytes)
        assert decompress_into(codec, compressed, memoryview(out)) == len(body)
        assert out == body + bytes(spare_bytes)
