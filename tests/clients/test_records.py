"""What each client writes, every client reads back, byte for byte: each compression, keys, headers, nulls and sizes."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from vega_datasets import local_data

from support.clients import CLIENTS, COMPRESSIONS, Record

PACKAGES = Path("/var/lib/dpkg/status")
RANDOM = random.Random(28)

KINDS = [
    Record(b"value"),
    Record(b"value", b"key"),
    Record(b"", b""),
    Record(None, b"a tombstone"),
    Record(None, None),
    Record(b"", None),
    Record(b"x", "schlüssel".encode(), (("header", b"value"),)),
    Record(b"x", None, (("same", b"1"), ("same", b"2"), ("empty", b""), ("null", None), ("ü", bytes(range(256))))),
    Record(bytes(range(256)) * 4, bytes(range(256))),
]

same_for_each_client = pytest.mark.parametrize("writer", CLIENTS)
with_each_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


def assert_read_back(bootstrap: str, topic: str, records: Sequence[Record], readers: Sequence[str]) -> None:
    for reader in readers:
        got = CLIENTS[reader].read(bootstrap, topic, len(records))
        for offset, (expected, found) in enumerate(zip(records, got, strict=True)):
            assert found[:3] == expected[:3], f"{reader}, offset {offset}"
            if expected.timestamp_ms is not None:
                assert found.timestamp_ms == expected.timestamp_ms


@same_for_each_client
@with_each_compression
def test_keys_headers_and_nulls(bootstrap: str, topic: str, writer: str, compression: str) -> None:
    records = list(filter(CLIENTS[writer].accepts, KINDS))
    offsets = CLIENTS[writer].write(bootstrap, topic, records, compression)
    assert offsets == list(range(len(records)))
    assert_read_back(bootstrap, topic, records, list(CLIENTS))


@same_for_each_client
def test_sizes_from_one_byte_to_a_megabyte(bootstrap: str, topic: str, writer: str) -> None:
    # message.max.bytes is 1048588 and counts the batch: its header, the record's own and the value.
    sizes = [1, 2, 127, 128, 8191, 16384, 65535, 65536, 262_144, 999_999, 1_048_000]
    records = [Record(RANDOM.randbytes(size)) for size in sizes]
    CLIENTS[writer].write(bootstrap, topic, records)
    assert_read_back(bootstrap, topic, records, list(CLIENTS))


@same_for_each_client
def test_timestamps_are_the_writers(bootstrap: str, topic: str, writer: str) -> None:
    # Not older than retention.ms, or the broker deletes them when it next looks.
    base = int(time.time() * 1000) - 3_600_000
    records = [Record(b"x", timestamp_ms=base + 1000 * index) for index in (5, 3, 4, 0)]
    CLIENTS[writer].write(bootstrap, topic, records)
    assert_read_back(bootstrap, topic, records, list(CLIENTS))


def test_several_partitions_keep_their_own_order(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(partitions=3)
    for partition, (writer, client) in enumerate(CLIENTS.items()):
        records = [Record(f"{writer} {index}".encode()) for index in range(1000)]
        client.write(bootstrap, topic, records, partition=partition)
    for partition, writer in enumerate(CLIENTS):
        got = CLIENTS["librdkafka"].read(bootstrap, topic, 1000, partition)
        assert [record.value for record in got] == [f"{writer} {index}".encode() for index in range(1000)]


@same_for_each_client
def test_package_database_byte_for_byte(bootstrap: str, topic: str, writer: str) -> None:
    if not PACKAGES.exists():
        pytest.skip(f"{PACKAGES} is not on this machine")
    content = PACKAGES.read_bytes()
    lines = [Record(line) for line in content.split(b"\n")]
    CLIENTS[writer].write(bootstrap, topic, lines, "lz4")
    for reader in CLIENTS.values():
        assert b"\n".join(record.value or b"" for record in reader.read(bootstrap, topic, len(lines))) == content


@same_for_each_client
def test_csv_byte_for_byte(bootstrap: str, topic: str, writer: str) -> None:
    content = Path(local_data.seattle_weather.filepath).read_bytes()
    lines = content.splitlines(keepends=True)
    records = [Record(line, str(number).encode()) for number, line in enumerate(lines)]
    CLIENTS[writer].write(bootstrap, topic, records, "zstd")
    for reader in CLIENTS.values():
        got = reader.read(bootstrap, topic, len(records))
        assert b"".join(record.value or b"" for record in got) == content
        assert [record.key for record in got] == [record.key for record in records]
