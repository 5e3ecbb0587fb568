"""Columns become the batches that `klamm.protocol.record.record_batch` decodes to the same rows."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import check_crc, parse_header
from klamm.protocol.record.records import Record, decode_records
from klamm.spark.write.columns import Columns
from klamm.spark.write.encoding import encode, record_sizes

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

nullable_bytes = st.none() | st.binary(max_size=300)
rows = st.lists(
    st.tuples(
        nullable_bytes,
        nullable_bytes,
        st.none() | st.lists(st.tuples(st.text(max_size=200), nullable_bytes), max_size=3),
        st.integers(0, 2**62),
        st.integers(0, 3),
    ),
    max_size=40,
)


def columns_of(rows, *, skipped=0):
    """Columns of (key, value, headers, timestamp, target); the first `skipped` rows are sliced off by Arrow."""
    headers = [None if row[2] is None else [{"key": name, "value": value} for name, value in row[2]] for row in rows]
    return Columns.from_arrow(
        pa.array([row[0] for row in rows], pa.binary())[skipped:],
        pa.array([row[1] for row in rows], pa.binary())[skipped:],
        pa.array(headers, HEADERS)[skipped:],
        np.array([row[3] for row in rows], np.int64)[skipped:].copy(),
    )


def batches_of(columns, targets, limits, codec=CompressionType.NONE):
    """(target, header, records, uncompressed size) of each batch that is encoded."""
    found = []
    for batch in encode(columns, np.array(targets, np.int64), record_sizes(columns), limits):
        data = batch.seal(codec, 7, 3, 11)
        header = parse_header(data)
        check_crc(data, 0, header)
        assert header.size_bytes == len(data)
        found.append((batch.target, header, list(decode_records(data, 0, header)), len(batch.data)))
    return found


@given(rows, st.sampled_from(CompressionType), st.integers(61, 2_000), st.integers(0, 5))
@settings(deadline=None)  # the first example may compile
def test_what_is_encoded_is_decoded(rows, codec, limit, skipped):
    columns = columns_of(rows, skipped=skipped)
    rows = rows[skipped:]
    targets = [row[4] for row in rows]
    found = batches_of(columns, targets, [limit] * 4, codec)

    for target in range(4):
        expected = [
            Record(key, value, timestamp, tuple(headers or ()))
            for key, value, headers, timestamp, its_target in rows
            if its_target == target
        ]
        records = [record for its_target, _, records, _ in found if its_target == target for record in records]
        assert [record._replace(offset=-1) for record in records] == expected
    assert [target for target, *_ in found] == sorted(target for target, *_ in found)
    for _, header, records, size in found:
        assert size <= limit or header.record_count == 1
        assert [record.offset for record in records] == list(range(header.record_count))
        assert header.last_offset_delta == header.record_count - 1
        assert header.base_timestamp == records[0].timestamp_ms
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        assert (header.codec, header.magic, header.attributes) == (codec, 2, codec)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)


@given(rows)
@settings(deadline=None)
def test_the_size_that_is_expected_is_enough_and_not_much_more(rows):
    columns = columns_of(rows)
    for row, expected in enumerate(record_sizes(columns).tolist()):
        one = columns_of(rows[row : row + 1])
        ((_, _, _, size),) = batches_of(one, [0], [0])
        assert size - 61 <= expected <= size - 61 + 20


def test_batches_are_filled():
    """Nobody may take the shortcut of a batch a row."""
    columns = columns_of([(None, b"x" * 100, None, NOW_MS, 0)] * 1_000)
    found = batches_of(columns, [0] * 1_000, [10_000])
    sizes = [size for *_, size in found]
    assert all(9_500 < size <= 10_000 for size in sizes[:-1])
    assert sum(header.record_count for _, header, *_ in found) == 1_000


@pytest.mark.parametrize("codec", CompressionType)
def test_a_record_of_20_mb_is_a_batch_of_its_own(codec):
    large = bytes(range(256)) * (20 * 4096)
    columns = columns_of([(b"a", b"1", None, NOW_MS, 0), (None, large, None, NOW_MS, 0), (b"b", b"2", None, NOW_MS, 0)])
    found = batches_of(columns, [0, 0, 0], [1_000_000], codec)
    assert [[record.value for record in records] for _, _, records, _ in found] == [[b"1"], [large], [b"2"]]


@pytest.mark.parametrize("codec", CompressionType)
def test_a_batch_that_waits_keeps_no_others_in_memory(codec):
    columns = columns_of([(None, b"x" * 100, None, NOW_MS, 0)] * 1_000)
    batches = encode(columns, np.zeros(1_000, np.int64), record_sizes(columns), [1_000])
    sealed = [batch.seal(codec, 7, 3, 0) for batch in batches]
    assert len(sealed) > 100
    assert all(isinstance(data, bytes | bytearray) for data in sealed)


def test_more_than_a_slab():
    values = [b"%08d" % number * 64 for number in range(20_000)]
    columns = columns_of([(None, value, None, NOW_MS, 0) for value in values])
    found = batches_of(columns, [0] * len(values), [100_000])
    assert sum(size for *_, size in found) > 10_000_000
    assert [record.value for _, _, records, _ in found for record in records] == values


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_strings_and_binaries_of_both_widths(kind):
    texts = ["", "é" * 50, "x"]
    array = pa.array(texts, pa.string()).cast(kind)
    columns = Columns.from_arrow(array, array, None, np.full(3, NOW_MS))
    ((_, _, records, _),) = batches_of(columns, [0] * 3, [10_000])
    assert [(record.key, record.value) for record in records] == [(text.encode(), text.encode()) for text in texts]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.binary(2), pa.null(), pa.int32()])
@pytest.mark.parametrize("place", ["key", "value", "header"])
def test_what_is_no_string_is_refused(kind, place):
    """Its buffers are others: what compiled code would take for offsets points anywhere."""
    wrong, right = pa.nulls(3, kind), pa.array([b"x"] * 3, pa.binary())
    headers = pa.nulls(
        3, pa.list_(pa.struct([("key", pa.string()), ("value", kind if place == "header" else right.type)]))
    )
    key, value = wrong if place == "key" else right, wrong if place == "value" else right
    with pytest.raises(KafkaError, match=f"of the type {re.escape(str(kind))}; allowed: .*binary") as refused:
        Columns.from_arrow(key, value, headers, np.full(3, NOW_MS))
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_without_keys_and_headers():
    columns = Columns.from_arrow(None, pa.array([b"a", None], pa.binary()), None, np.full(2, NOW_MS))
    ((_, _, records, _),) = batches_of(columns, [0, 0], [10_000])
    assert records == [Record(None, b"a", NOW_MS, (), 0), Record(None, None, NOW_MS, (), 1)]


def test_nothing():
    columns = Columns.from_arrow(None, pa.array([], pa.binary()), pa.array([], HEADERS), np.array([], np.int64))
    assert batches_of(columns, [], [10_000]) == []


def test_a_header_without_key_is_refused():
    headers = pa.array([[{"key": "a", "value": b""}], [{"key": None, "value": b""}]], HEADERS)
    values = pa.array([b"", b""], pa.binary())
    with pytest.raises(KafkaError, match="the key of a header is null") as refused:
        Columns.from_arrow(None, values, headers, np.full(2, NOW_MS))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    Columns.from_arrow(None, values[:1], headers[:1], np.full(1, NOW_MS))


def test_headers_that_a_null_hides_are_not_written():
    """Arrow lets a null list have elements."""
    full = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS)
    headers = pa.ListArray.from_arrays(full.offsets, full.values, type=HEADERS, mask=pa.array([True, False]))
    columns = Columns.from_arrow(None, pa.array([b"x", b"y"], pa.binary()), headers, np.full(2, NOW_MS))
    ((_, _, records, _),) = batches_of(columns, [0, 0], [10_000])
    assert [record.headers for record in records] == [(), (("b", b"2"),)]
