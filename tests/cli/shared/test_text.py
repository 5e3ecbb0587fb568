"""Lines to records and records to lines."""

import io
import json
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from klamm.cli.shared import text
from klamm.cli.shared.text import BadRecord, RecordFormat, parse_record, parse_separator, record_json, split_records
from klamm.client.consumer.consumer import ConsumerRecord


def a_record(**changes: Any) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 7, 1000, False, b"k", b"v", (), -1)._replace(**changes)


@given(st.lists(st.binary(max_size=5)), st.sampled_from([b"\n", b"\0", b"ab", b"aab"]), st.integers(1, 4))
def test_records_are_split_whatever_the_chunks(parts: list[bytes], separator: bytes, chunk_size: int) -> None:
    stream = io.BytesIO(separator.join(parts))
    whole = stream.getvalue().split(separator)
    if whole[-1] == b"":
        del whole[-1]
    pieces = list(split_records(lambda _: stream.read(chunk_size), separator, 100))
    assert [record for records in pieces for record in records] == whole


def test_large_chunks_are_read() -> None:
    sizes = []
    list(split_records(lambda size: sizes.append(size) or b"", b"\n", 100))
    assert sizes == [text.READ_SIZE_BYTES]


def test_a_record_without_an_end_is_not_read_for_ever() -> None:
    chunks = iter([b"1\n", b"2\n3", *[b"x" * 40] * 10**6])
    assert list(split_records(lambda _: next(chunks), b"\n", 100)) == [[b"1"], [b"2"], [b"3" + b"x" * 120]]


@pytest.mark.parametrize(
    ("given_text", "separator"),
    [("\\n", b"\n"), ("\\t", b"\t"), ("\\0", b"\0"), ("\\x1f", b"\x1f"), ("=>", b"=>"), ("→", "→".encode())],
)
def test_separators(given_text: str, separator: bytes) -> None:
    assert parse_separator("--separator", given_text) == separator


@pytest.mark.parametrize("given_text", ["", "\\x", "\\u20ac"])
def test_bad_separators(given_text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_separator("--separator", given_text)


@pytest.mark.parametrize(
    ("line", "key_separator", "with_headers", "expected"),
    [
        (b"a:b", None, False, (None, b"a:b", [])),
        (b"a:b:c", b":", False, (b"a", b"b:c", [])),
        (b":", b":", False, (b"", b"", [])),
        (b"x:1,y:\tv", None, True, (None, b"v", [("x", b"1"), ("y", b"")])),
        (b"\tv", None, True, (None, b"v", [])),
        (b"x:1:2\tk\tv", b"\t", True, (b"k", b"v", [("x", b"1:2")])),
    ],
)
def test_parsing(line: bytes, key_separator: bytes | None, with_headers: bool, expected: object) -> None:
    assert parse_record(line, key_separator=key_separator, with_headers=with_headers) == expected


@pytest.mark.parametrize(
    ("line", "key_separator", "with_headers", "message"),
    [
        (b"ab", b"\t", False, r"no key separator '\\t'"),
        (b"ab", None, True, "no tab after the headers"),
        (b"x\tv", None, True, "header 'x' is not of the form name:value"),
        (b"\xff:1\tv", None, True, "the name of a header is not UTF-8"),
    ],
)
def test_bad_records(line: bytes, key_separator: bytes | None, with_headers: bool, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        parse_record(line, key_separator=key_separator, with_headers=with_headers)


def test_records_are_printed_as_kafkas_console_consumer_does() -> None:
    everything = RecordFormat(key=True, headers=True, offset=True, timestamp=True)
    assert RecordFormat().format(a_record()) == b"v\n"
    assert everything.format(a_record()) == b"CreateTime:1000\tPartition:3\tOffset:7\tNO_HEADERS\tk\tv\n"
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None)]
    record = a_record(key=None, value=None, headers=headers, is_log_append_time=True)
    assert everything.format(record) == b"LogAppendTime:1000\tPartition:3\tOffset:7\ta:1,b:null\tnull\tnull\n"
    assert RecordFormat(separator=b"\0").format(a_record(value=b"a\nb")) == b"a\nb\0"


def test_json_tells_text_from_bytes() -> None:
    record = a_record(key=b"\xff", value="é".encode(), headers=[("h", b"\x00\x80"), ("n", None)])
    assert json.loads(record_json(record)) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1000,
        "timestamp_type": "CreateTime",
        "key_base64": "/w==",
        "value": "é",
        "headers": [{"name": "h", "value_base64": "AIA="}, {"name": "n", "value": None}],
    }
    assert json.loads(record_json(a_record(key=None)))["key"] is None
