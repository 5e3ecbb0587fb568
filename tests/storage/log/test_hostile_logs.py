"""Logs full of bytes that nobody who means well writes: whatever is asked of them ends in a value or a KafkaError."""

import asyncio
import struct

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import decompress
from klamm.protocol.record.records import (
    ControlRecordType,
    KeyAndValueAt,
    decode_end_transaction_marker,
    decode_keys_and_values,
    decode_records,
)
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments.checkpoints import parse_leader_epoch_checkpoint, parse_offset_checkpoint
from klamm.storage.segments.log_directory import parse_partition_metadata, read_meta_properties
from support.hostile_bytes import Hostile, seeds
from support.logs import DIRECTORY, DiskEnvironment, ObservedLog, batch, marker, open_log

STEPS = 25
# A ListOffsets response has room for a timestamp, an offset and an epoch.
ANSWER = struct.Struct(">qqi")

CONFIGS = [
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(message_timestamp_difference_max_ms=1000),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="zstd", cleanup_policy=("compact", "delete"), segment_bytes=2000),
    LogConfig(compression_type="uncompressed", segment_bytes=1000, index_interval_bytes=100),
]


def maybe(function, *arguments, **named):
    """What the function returns; None for a KafkaError."""
    try:
        return function(*arguments, **named)
    except KafkaError:
        return None


def maybe_await(awaitable):
    try:
        return asyncio.run(awaitable)
    except KafkaError:
        return None


def follower_batches(hostile: Hostile, end: int) -> bytes:
    data = b""
    for _ in range(hostile.chance.choice([1, 1, 3])):
        end = min(end, 2**63 - 3)
        kind = hostile.chance.random()
        if kind < 0.2:
            one = marker(hostile.chance.choice(list(ControlRecordType)), hostile.chance.randrange(3), base_offset=end)
        elif kind < 0.4:
            one = batch(b"a", b"b", base_offset=end)
        else:
            one = hostile.batch(hostile.sometimes(end, 64, 0.05), is_client=False)
        data += one
        header = maybe(rb.parse_header, one)
        end = end if header is None else header.next_offset
    return data


def step(hostile: Hostile, log: ObservedLog) -> None:
    chance = hostile.chance
    now_ms = hostile.sometimes(1500, 48)
    start, end = log.log_start_offset, log.log_end_offset
    offset = chance.choice([start, end, chance.randrange(start, end + 1), hostile.number(64)])
    match chance.randrange(13):
        case 0 | 1 | 2:
            maybe(log.append_as_leader, hostile.batch(), chance.randrange(3), now_ms=now_ms)
        case 3:
            origin = AppendOrigin.COORDINATOR
            maybe(log.append_as_leader, batch(b"x", timestamp_ms=hostile.number(64)), 0, now_ms=now_ms, origin=origin)
        case 4 | 5 | 6:
            maybe(log.append_as_follower, follower_batches(hostile, end))
        case 7 | 8:
            timestamp_ms = abs(hostile.number(64)) % 2**63 if chance.random() < 0.5 else chance.randrange(3000)
            found = maybe_await(log.offset_for_timestamp(timestamp_ms))
            if found is not None:
                ANSWER.pack(*found)
        case 9:
            isolated = chance.randrange(10_000)
            maybe_await(log.read(offset, isolated, max_offset=chance.choice([end, offset]), minimum_one_batch=True))
            maybe(log.aborted_transactions, offset, end)
        case 10 if chance.random() < 0.5:
            maybe(log.truncate_to, max(0, min(offset, end)))
        case 11:
            log.update_high_watermark(offset)
            maybe(log.delete_old_segments, now_ms)
            asyncio.run(log.remove_expired_producers(now_ms, 1000))
        case _:
            maybe(log.roll)
            maybe_await(log.flush())
    assert log.log_start_offset <= log.high_watermark <= log.log_end_offset < 2**63
    assert not log.failures


def reopened(hostile: Hostile, environment: DiskEnvironment, log: Log, *, damage: bool) -> ObservedLog | None:
    """The log after a shutdown or a kill, perhaps with one of its files damaged; None when it is refused."""
    is_clean = hostile.chance.random() < 0.5
    if is_clean:
        maybe_await(log.close())
    else:
        log.abandon()
    file_system = environment.file_system
    directory = f"{DIRECTORY}/t-0"
    if damage:
        for name in file_system.list_directory(directory):
            if hostile.chance.random() < 0.4:
                file = file_system.open(f"{directory}/{name}")
                content = hostile.mutated(bytes(file.read(0, file.size())))
                file.truncate(0)
                file.write(0, content)
                file.close()
        if hostile.chance.random() < 0.1:
            name = hostile.chance.choice(["9" * 20, "0" * 19 + "7", "9223372036854775807"]) + ".log"
            file_system.open(f"{directory}/{name}", create=True).close()
    recovery_point = hostile.sometimes(0, 63)
    try:
        return open_log(environment, log.config, is_clean=is_clean, recovery_point=abs(recovery_point))
    except KafkaError as error:
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        return None


def play(seed: int, *, damage: bool) -> None:
    hostile = Hostile(seed)
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment, hostile.chance.choice(CONFIGS))
    for _ in range(3):
        for _ in range(STEPS):
            step(hostile, log)
        found = reopened(hostile, environment, log, damage=damage)
        if found is None:
            return
        log = found


@pytest.mark.parametrize("damage", [False, True])
def test_logs_of_hostile_batches(damage: bool) -> None:
    for seed in seeds(60):
        try:
            play(seed, damage=damage)
        except BaseException as error:
            error.add_note(f"seed {seed}, damage={damage}")
            raise


def read_keys_and_values(data: bytearray, header: rb.BatchHeader) -> list[KeyAndValueAt]:
    body = decompress(header.codec, memoryview(data)[rb.HEADER_SIZE_BYTES : header.size_bytes])
    return [one for part in decode_keys_and_values(body, header) for one in part]


def test_records_are_read_or_refused() -> None:
    for seed in seeds(400):
        data = Hostile(seed).batch(is_client=False)
        header = maybe(rb.parse_header, data)
        if header is None:
            continue
        try:
            records = maybe(list, decode_records(data, 0, header))
            keys_and_values = maybe(read_keys_and_values, data, header)
            maybe(decode_end_transaction_marker, data, 0, header)
            for record in records or ():
                ANSWER.pack(record.timestamp_ms, record.offset, 0)
            if records is not None:
                assert keys_and_values == [(record.offset, record.key, record.value) for record in records]
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_small_files_are_read_or_refused() -> None:
    snapshot = ProducerState(5)
    for sequence in range(3):
        header = rb.parse_header(batch(b"a", producer_id=sequence, producer_epoch=0, base_sequence=0))
        snapshot.update(header, None)
    file_system = DiskEnvironment().file_system
    file_system.make_directories("/d")
    path = "/d/meta.properties"
    for seed in seeds(400):
        hostile = Hostile(seed)
        mutated = hostile.mutated
        try:
            maybe(ProducerState.from_snapshot, mutated(snapshot.to_snapshot()), 5, "p")
            maybe(parse_offset_checkpoint, mutated(b"0\n2\nt 0 5\nt 1 77\n"), "p")
            maybe(parse_leader_epoch_checkpoint, mutated(b"0\n2\n0 0\n3 77\n"), "p")
            maybe(parse_partition_metadata, mutated(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"), "p")
            file_system.replace_file(path, mutated(b"version=0\nbroker.id=3\ncluster.id=\\u0041bc\n# x\n"))
            maybe(read_meta_properties, file_system, "/d")
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
