"""The walk through a batch's records finds what decoding them all would find."""

import builtins
import errno
from functools import cache

import pytest

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record import fast_walk, record_kernels
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import decompress
from klamm.protocol.record.record_walk import RecordWalk, Refusal, RefusedRecord, Wanted
from klamm.protocol.record.records import Record, build_batch, decode_records
from support.hostile_bytes import Hostile, seeds


@pytest.fixture(params=[RecordWalk.advance, record_kernels.advance], ids=["plain", "compiled"])
def advance(request):
    """Both walks: that of Python, and the compiled one, which finds the same."""
    return request.param


def test_hostile_batches_are_walked_as_they_are_decoded(advance) -> None:
    def walked(body, header, wanted, most_steps):
        walk = RecordWalk(memoryview(bytes(body)), header, wanted)
        while not advance(walk, most_steps):
            pass
        return walk

    wanted = Wanted(needs_keys=True, earliest_ms=900, latest_ms=2500)
    for seed in seeds(1500):
        data = Hostile(seed).batch(is_client=False)
        try:
            header = rb.parse_header(data)
            body = decompress(header.codec, memoryview(data)[rb.HEADER_SIZE_BYTES :])
        except KafkaError:
            continue
        try:
            records = list(decode_records(data, 0, header))
        except KafkaError as error:
            # A walk does not read the names of headers, and a count below 0 is what is checked before it.
            if "UTF-8" in error.message or header.record_count < 0:
                continue
            records = None
        for most_steps in (1, 1000):
            try:
                walk = walked(body, header, wanted, most_steps)
            except KafkaError:
                walk = None
            assert (walk is None) == (records is None), seed
            if walk is None or records is None:
                continue
            assert walk.max_timestamp_ms == max((record.timestamp_ms for record in records), default=-1) or (
                walk.max_timestamp_ms == -1 and all(record.timestamp_ms < 0 for record in records)
            )
            assert walk.refused == [
                RefusedRecord(
                    index,
                    Refusal.NO_KEY if record.key is None else Refusal.TIMESTAMP_OUT_OF_RANGE,
                    record.timestamp_ms,
                )
                for index, record in enumerate(records)
                if record.key is None or (record.timestamp_ms != -1 and not 900 <= record.timestamp_ms <= 2500)
            ]
            assert walk.is_numbered == all(
                record.offset == header.base_offset + index for index, record in enumerate(records)
            )
            for timestamp_ms in (0, 1500, 2**62):
                found = walked(body, header, Wanted(from_timestamp_ms=timestamp_ms, from_offset=1), most_steps)
                assert found.match == next(
                    ((r.timestamp_ms, r.offset) for r in records if r.timestamp_ms >= timestamp_ms and r.offset >= 1),
                    None,
                )


@pytest.mark.parametrize("error", [ModuleNotFoundError("no numba"), OSError(errno.ENOSPC, "no room for its cache")])
def test_a_walk_does_without_numba_where_that_does_not_work(monkeypatch, error):
    import_really = builtins.__import__
    tried = []

    def import_(name, *arguments):
        if name == "klamm.protocol.record.record_kernels":
            tried.append(name)
            raise error
        return import_really(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", import_)
    monkeypatch.setattr(fast_walk, "COMPILED_FROM_RECORDS", 1)
    monkeypatch.setattr(fast_walk, "_compiled_advance", cache(fast_walk._compiled_advance.__wrapped__))
    batch = build_batch([Record(b"k", b"v", 1)] * 10)
    walk = RecordWalk(memoryview(batch)[61:], rb.parse_header(batch), Wanted())
    assert [fast_walk.advance_fast(walk, 4) for _ in range(3)] == [False, False, True]
    assert len(tried) == 1


def test_a_walk_stops_also_within_the_headers_of_one_record() -> None:
    record = Record(b"k", b"v", 1, headers=(("", None),) * 50_000)
    batch = build_batch([record, record])
    walk = RecordWalk(memoryview(batch)[61:], rb.parse_header(batch), Wanted())
    slices = 1
    while not walk.advance(1_000):
        slices += 1
    assert slices > 100
    assert (walk.index, walk.max_timestamp_ms, walk.is_numbered) == (2, 1, True)
