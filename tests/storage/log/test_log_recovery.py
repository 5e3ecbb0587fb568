"""Opening logs: after a clean shutdown, a killed process, a dead machine, and interrupted work on files."""

import asyncio
import errno
import struct
import zlib
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import parse_header, write_header
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log.log import AppendOrigin
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_state import ProducerState
from support.logs import NOW_MS, DiskEnvironment, aborted_in, append, batch, marker, open_log, read_all

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)
PARTITION = "/data/t-0"


def idempotent(log, sequence, *values, producer_id=7, epoch=0, **header):
    return append(log, *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **header)


def fill(log, count=100):
    """`count` batches of one record: plain, of an idempotent producer, and of aborted and open transactions."""
    for i in range(count):
        placed = {"timestamp_ms": NOW_MS + i, "leader_epoch": i // 30}
        if i % 10 == 5:
            idempotent(log, i // 10, b"%d" % i, **placed)
        elif i % 10 == 6:
            idempotent(log, 0, b"%d" % i, producer_id=1000 + i, is_transactional=True, **placed)
        elif i % 10 == 8:
            kind = ControlRecordType.ABORT if i % 20 == 8 else ControlRecordType.COMMIT
            log.append_as_leader(marker(kind, 1000 + i - 2), i // 30, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        else:
            append(log, b"%d" % i, **placed)
    log.update_high_watermark(log.log_end_offset)


async def state_of(log):
    """Everything that recovery has to bring back, in comparable form (a snapshot keeps the last batch only)."""
    producers = {
        producer_id: (
            entry.producer_epoch,
            [batch[:3] for batch in entry.batches[-1:]],
            entry.coordinator_epoch,
            entry.last_timestamp_ms,
            entry.transaction_first_offset,
        )
        for producer_id, entry in log.producer_state.entries.items()
    }
    return {
        "records": await read_all(log, max_bytes=400),
        "offsets": (log.log_start_offset, log.log_end_offset, log.last_stable_offset),
        "epochs": list(log.leader_epochs.entries),
        "producers": producers,
        "aborted": aborted_in(log, log.log_start_offset, log.log_end_offset),
        "segments": log.segment_base_offsets,
        "timestamps": [await log.offset_for_timestamp(NOW_MS + i) for i in range(0, 110, 3)],
    }


def index_files(environment):
    names = environment.file_system.list_directory(PARTITION)
    kinds = (".index", ".timeindex", ".txnindex")
    contents = {
        name: environment.file_system.read_file(f"{PARTITION}/{name}") for name in names if name.endswith(kinds)
    }
    return {name: content for name, content in contents.items() if content}


@pytest.fixture
def environment():
    return DiskEnvironment()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("count", [0, 1, 17, 100])
async def test_a_closed_log_comes_back(environment, is_clean, count):
    log = open_log(environment, SMALL)
    fill(log, count)
    before = await state_of(log)
    await log.close()
    log = open_log(environment, SMALL, is_clean=is_clean)
    assert await state_of(log) == before
    fill(log, 3)


@pytest.mark.parametrize("recovery_point", [0, 1, 50, 99, 100, 5000])
async def test_a_killed_process_loses_nothing(environment, recovery_point):
    log = open_log(environment, SMALL)
    fill(log)
    if recovery_point:
        await log.flush()  # Only a flush moves the recovery point.
    before = await state_of(log)
    log = open_log(environment, SMALL, recovery_point=recovery_point)
    assert await state_of(log) == before
    assert log.recovery_point == min(recovery_point, 100)


async def test_recovered_indexes_are_those_that_were_written(environment):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    before = index_files(environment)
    assert {name[20:] for name in before} == {".index", ".timeindex", ".txnindex"}
    await open_log(environment, SMALL).close()
    assert index_files(environment) == before


@pytest.mark.parametrize("operation", ["write", "truncate", "open", "read", "size", "rename", "remove"])
async def test_recovery_may_itself_be_killed(environment, operation, monkeypatch):
    log = open_log(environment, SMALL)
    fill(log)
    before = await state_of(log)
    stopped = 0
    for survived in range(0, 60, 3):
        left = survived
        touch(environment, f"{0:020d}.log.deleted")
        swap = environment.file_system.read_file(f"{PARTITION}/{14:020d}.log")
        touch(environment, f"{14:020d}.log.swap", swap)

        def fail_later(name, path):
            nonlocal left
            if name == operation and "/t-0" in path:
                left -= 1
                if left < 0:
                    raise OSError(errno.EIO, "killed here", path)

        with monkeypatch.context() as patch:
            patch.setattr(environment.disk, "touched", fail_later)
            try:
                open_log(environment, SMALL)
            except OSError:
                stopped += 1
    assert stopped > 0
    assert await state_of(open_log(environment, SMALL)) == before


def log_file(environment, base):
    return environment.file_system.open(f"{PARTITION}/{base:020d}.log")


@pytest.mark.parametrize("cut", range(1, 99, 7))
async def test_a_torn_tail_is_cut(environment, cut):
    log = open_log(environment, SMALL)
    fill(log)
    everything = await read_all(log)
    file = log_file(environment, log.segment_base_offsets[-1])
    file.truncate(file.size() - cut)
    again = open_log(environment, SMALL)
    assert again.log_end_offset in (98, 99)
    found = await read_all(again)
    assert found == everything[: len(found)]
    assert len(found) >= len(everything) - 2
    append(again, b"next")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_byte_cuts_the_log_before_its_batch(data):
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    fill(log, 60)
    everything = asyncio.run(read_all(log))
    bases = log.segment_base_offsets
    base = data.draw(st.sampled_from(bases))
    file = log_file(environment, base)
    position = data.draw(st.integers(0, file.size() - 1))
    old = file.read(position, 1)[0]
    new = data.draw(st.integers(0, 255).filter(lambda value: value != old))
    file.write(position, bytes([new]))
    again = open_log(environment, SMALL)
    found = asyncio.run(read_all(again))
    # The base offset and the leader epoch are not covered by the checksum: there, a byte may pass.
    assert found == everything[: len(found)] or any(offset != at for at, (offset, _) in enumerate(found))
    assert again.log_end_offset >= base
    append(again, b"next")
    assert asyncio.run(read_all(again))[-1][1] == b"next"


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_formats_before_v2_are_refused_and_not_cut(environment, magic):
    """A broker of Kafka can read them."""
    log = open_log(environment)
    append(log, b"a")
    message = struct.pack(">bb", magic, 0) + (b"" if magic == 0 else struct.pack(">q", NOW_MS))
    message += struct.pack(">i", -1) + struct.pack(">i", 3) + b"old"
    file = log_file(environment, 0)
    end = file.size()
    file.write(end, struct.pack(">qiI", 1, len(message) + 4, zlib.crc32(message)), message)
    size_bytes = file.size()
    with pytest.raises(KafkaError, match=f"message format v{magic} is not supported"):
        open_log(environment)
    assert file.size() == size_bytes
    file.write(size_bytes - 1, b"?")
    assert open_log(environment).log_end_offset == 1
    assert file.size() == end


async def test_garbage_after_the_last_batch(environment):
    log = open_log(environment, SMALL)
    fill(log, 10)
    before = await state_of(log)
    for garbage in (b"\0" * 10, b"\0" * 500, bytes(range(256)) * 8, batch(b"repeated", base_offset=3)):
        file = log_file(environment, log.segment_base_offsets[-1])
        file.write(file.size(), garbage)
        assert await state_of(open_log(environment, SMALL)) == before


async def test_segments_after_damage_are_dropped(environment):
    log = open_log(environment, SMALL)
    fill(log)
    second = log.segment_base_offsets[1]
    file = log_file(environment, second)
    file.write(30, b"?")
    again = open_log(environment, SMALL)
    assert again.log_end_offset == second
    assert again.segment_base_offsets == [0, second]
    assert len(await read_all(again)) == second


def test_damage_below_the_recovery_point_is_not_looked_for(environment):
    log = open_log(environment, SMALL)
    fill(log)
    log_file(environment, 0).write(30, b"?")
    assert open_log(environment, SMALL, recovery_point=100).log_end_offset == 100
    assert open_log(environment, SMALL, is_clean=True).log_end_offset == 100


async def last_batch_of(log, end):
    return (await log.read(end - 1, 1, max_offset=end, minimum_one_batch=True)).data


def cut_last_batch(environment, base_offset, last_batch):
    file = log_file(environment, base_offset)
    file.truncate(file.size() - len(last_batch))


async def test_a_hole_between_segments_ends_the_log(environment):
    log = open_log(environment, SMALL)
    fill(log)
    first = log.segment_base_offsets[1]
    cut_last_batch(environment, 0, await last_batch_of(log, first))
    assert open_log(environment, SMALL).log_end_offset == first - 1


async def test_a_gap_between_segments_is_none_below_the_first_dirty_offset(environment):
    log = open_log(environment, SMALL)
    fill(log)
    first, second = log.segment_base_offsets[1:3]
    cut_last_batch(environment, 0, await last_batch_of(log, first))
    assert open_log(environment, SMALL, first_dirty_offset=second).log_end_offset == 100


@pytest.mark.parametrize("offsets", [(0, 1, 2, 7, 8, 20, 30), (0, 1, 2, 20, 30, 33, 34)], ids=["before", "after"])
async def test_a_gap_between_segments_stays_in_a_log_that_shows_elsewhere_that_it_was_compacted(environment, offsets):
    log = open_log(environment, LogConfig(segment_bytes=300))
    for offset in offsets:
        log.append_as_follower(batch(b"x" * 20, base_offset=offset))
    assert len(log.segment_base_offsets) > 2
    again = open_log(environment, LogConfig(segment_bytes=300))
    assert [offset for offset, _ in await read_all(again)] == list(offsets)


async def test_a_gap_between_segments_stays_in_a_log_that_has_lost_records_within_a_batch(environment):
    log = open_log(environment, LogConfig(segment_bytes=240))
    # A record of four stayed, the first one.
    one_of_four = bytearray(batch(b"x" * 20))
    write_header(one_of_four, 0, parse_header(one_of_four)._replace(last_offset_delta=3))
    log.append_as_follower(one_of_four)
    for offset in (4, 9):
        log.append_as_follower(batch(b"x" * 60, base_offset=offset))
    assert log.segment_base_offsets == [0, 9]
    assert open_log(environment, log.config).log_end_offset == 10


async def test_a_compacted_log_may_have_holes(environment):
    config = LogConfig(segment_bytes=200, cleanup_policy=("compact",))
    log = open_log(environment, config)
    for offset in (0, 5, 6, 20, 30):
        log.append_as_follower(batch(b"x" * 20, base_offset=offset))
    again = open_log(environment, config)
    assert [offset for offset, _ in await read_all(again)] == [0, 5, 6, 20, 30]


async def test_a_log_that_was_compacted_once_may_have_a_hole_before_its_unsynced_part(environment):
    compacted = LogConfig(segment_bytes=200, cleanup_policy=("compact",))
    log = open_log(environment, compacted)
    for offset in (0, 5, 6, 20, 30):
        log.append_as_follower(batch(b"x" * 20, base_offset=offset))
    log.append_as_follower(batch(b"y" * 120, base_offset=40))
    assert log.segment_base_offsets[-1] == 40
    again = open_log(environment, LogConfig(segment_bytes=200), recovery_point=40)
    assert [offset for offset, _ in await read_all(again)] == [0, 5, 6, 20, 30, 40]


async def test_a_small_segment_may_begin_with_a_hole(environment):
    log = open_log(environment, LogConfig(cleanup_policy=("compact",)))
    log.append_as_follower(batch(b"x", base_offset=37))
    log.roll()
    log.append_as_follower(batch(b"y", base_offset=38))
    assert log.segment_base_offsets == [0, 38]
    again = open_log(environment, log.config, recovery_point=38)
    assert await read_all(again) == [(37, b"x"), (38, b"y")]


async def test_a_start_needs_no_room_on_the_disk(environment):
    log = open_log(environment, SMALL)
    fill(log)
    environment.disk.capacity_bytes = environment.disk.used_bytes()
    environment.disk.fail("write", "*.snapshot", errno.ENOSPC, times=1000)
    again = open_log(environment, SMALL)
    assert again.log_end_offset == 100
    assert await state_of(again) == await state_of(log)


async def test_segments_that_a_crash_brought_back_are_dropped(environment):
    log = open_log(environment, SMALL)
    fill(log)
    stale = log.segment_base_offsets[1]
    content = environment.file_system.read_file(f"{PARTITION}/{stale:020d}.log")
    log.truncate_to(3)
    log.config = LogConfig()
    for i in range(3, stale + 5):
        append(log, b"new %d" % i, leader_epoch=9)
    expected = await read_all(log)
    file = environment.file_system.open(f"{PARTITION}/{stale:020d}.log", create=True)
    file.write(0, content)
    for recovery_point in (0, stale + 5):
        again = open_log(environment, SMALL, recovery_point=recovery_point)
        assert await read_all(again) == expected


# Log start offset


def test_the_log_start_offset_is_kept_and_wins_over_an_earlier_end(environment):
    log = open_log(environment, SMALL)
    fill(log)
    again = open_log(environment, SMALL, log_start_offset=42)
    assert (again.log_start_offset, again.log_end_offset) == (42, 100)
    assert again.leader_epochs.earliest == (1, 42)
    beyond = open_log(environment, SMALL, log_start_offset=1000)
    assert (beyond.log_start_offset, beyond.log_end_offset, beyond.segment_base_offsets) == (1000, 1000, [1000])
    assert append(beyond, b"x").first_offset == 1000


# Leader epochs


@pytest.mark.parametrize("content", [b"", b"garbage", b"0\n1\n", b"0\n2\n0 0\n0 5\n", None])
async def test_lost_leader_epochs_are_found_again_in_the_batches(environment, content):
    log = open_log(environment, SMALL)
    for i in range(90):
        append(log, b"x", leader_epoch=i // 30)
    await log.close()
    path = f"{PARTITION}/leader-epoch-checkpoint"
    if content is None:
        environment.file_system.remove(path)
    else:
        environment.file_system.replace_file(path, content)
    for is_clean in (True, False):
        again = open_log(environment, SMALL, is_clean=is_clean)
        assert list(again.leader_epochs.entries) == [(0, 0), (1, 30), (2, 60)]


def test_leader_epochs_of_the_unflushed_part_come_from_the_batches(environment):
    log = open_log(environment, SMALL)
    for i in range(90):
        append(log, b"x", leader_epoch=i // 30)
    # As if the machine had forgotten that these were overwritten.
    stale = b"0\n3\n0 0\n1 30\n7 50\n"
    environment.file_system.replace_file(f"{PARTITION}/leader-epoch-checkpoint", stale)
    again = open_log(environment, SMALL, recovery_point=30)
    assert list(again.leader_epochs.entries) == [(0, 0), (1, 30), (2, 60)]


def test_an_epoch_without_records_does_not_survive(environment):
    log = open_log(environment, SMALL)
    append(log, b"x", leader_epoch=1)
    log.leader_epochs.assign(5, 1)
    assert open_log(environment, SMALL).leader_epochs.latest_epoch == 1


# Producer snapshots


async def test_clean_logs_without_snapshots_have_no_producers(environment):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    for name in environment.file_system.list_directory(PARTITION):
        if name.endswith(".snapshot"):
            environment.file_system.remove(f"{PARTITION}/{name}")
    again = open_log(environment, SMALL, is_clean=True)
    assert not again.producer_state.entries
    assert f"{100:020d}.snapshot" in environment.file_system.list_directory(PARTITION)
    # A producer that the log may have is not refused as one that it cannot have; an empty log has none.
    assert again.producer_state.has_had_producers
    idempotent(again, 10, b"next")
    assert not open_log(DiskEnvironment(), SMALL, is_clean=True).producer_state.has_had_producers


async def test_no_producer_is_forgotten_because_the_checkpointed_high_watermark_is_before_the_log(environment):
    log = open_log(environment, SMALL)
    idempotent(log, 0, b"deleted")
    log.roll()
    append(log, b"a")
    log.append_as_leader(marker(ControlRecordType.COMMIT, 7), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(3)
    log.update_log_start_offset(1)
    log.delete_old_segments(NOW_MS)
    log.roll()
    await log.flush()
    again = open_log(environment, SMALL, recovery_point=3, high_watermark=0)
    assert (await state_of(again))["producers"] == (await state_of(log))["producers"]
    assert idempotent(again, 0, b"deleted").first_offset == 0


@pytest.mark.parametrize("damaged_from", [0, 51], ids=["all", "later"])
async def test_older_snapshots_or_the_log_replace_snapshots_that_cannot_be_read(environment, damaged_from):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    before = await state_of(open_log(environment, SMALL))
    for name in environment.file_system.list_directory(PARTITION):
        if name.endswith(".snapshot") and int(name[:20]) >= damaged_from:
            environment.file_system.replace_file(f"{PARTITION}/{name}", b"\0\1garbage that is no snapshot")
    assert await state_of(open_log(environment, SMALL, is_clean=True)) == before


async def test_only_snapshots_of_segments_and_the_latest_are_kept(environment):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    environment.file_system.replace_file(f"{PARTITION}/{3:020d}.snapshot", ProducerState(3).to_snapshot())
    environment.file_system.replace_file(f"{PARTITION}/{500:020d}.snapshot", ProducerState(500).to_snapshot())
    open_log(environment, SMALL, is_clean=True)
    names = [n for n in environment.file_system.list_directory(PARTITION) if n.endswith(".snapshot")]
    assert [int(name[:20]) for name in names] == [*log.segment_base_offsets[1:], 100]


# Temporary files


def touch(environment, name, content=b""):
    environment.file_system.replace_file(f"{PARTITION}/{name}", content)


async def test_deleted_cleaned_and_orphaned_files_go(environment):
    log = open_log(environment, SMALL)
    fill(log)
    before = await state_of(log)
    for name in (
        f"{0:020d}.log.deleted",
        f"{0:020d}.index.deleted",
        f"{7:020d}.log.cleaned",
        f"{7:020d}.timeindex.cleaned",
        f"{9:020d}.log.swap",
        f"{9:020d}.index.swap",
        f"{3:020d}.index",
        f"{3:020d}.txnindex",
    ):
        touch(environment, name)
    assert await state_of(open_log(environment, SMALL)) == before
    names = environment.file_system.list_directory(PARTITION)
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))]
    assert f"{3:020d}.index" not in names
    touch(environment, f"{3:020d}.index")
    log = open_log(environment, SMALL)
    append(log, b"x")
    await log.flush()


async def test_an_interrupted_swap_is_finished(environment):
    config = LogConfig(segment_bytes=400, cleanup_policy=("compact",), index_interval_bytes=100)
    log = open_log(environment, config)
    for i in range(12):
        log.append_as_follower(batch(b"x" * 60, base_offset=i))
    bases = log.segment_base_offsets
    assert len(bases) >= 4
    await log.close()
    # Segments 1 and 2 were compacted into one.
    first, last = bases[1], bases[3] - 1
    compacted = batch(b"old", base_offset=first) + batch(b"kept", base_offset=last)
    for stage in range(3):
        touch(environment, f"{first:020d}.log.swap", bytes(compacted))
        touch(environment, f"{first:020d}.index.swap", b"\0" * 8)
        if stage == 1:
            environment.file_system.remove(f"{PARTITION}/{first:020d}.index")
        again = open_log(environment, config, is_clean=True)
        assert again.segment_base_offsets == [0, first, *bases[3:]]
        records = await read_all(again)
        assert (first, b"old") in records
        assert (last, b"kept") in records
        assert len(records) == 12 - (last - first + 1) + 2
        await again.close()


async def test_zero_filled_indexes_of_kafka_are_made_anew(environment):
    log = open_log(environment, SMALL)
    fill(log)
    before = await state_of(log)
    await log.close()
    for base in log.segment_base_offsets:
        for kind, entry in ((".index", 8), (".timeindex", 12)):
            path = f"{PARTITION}/{base:020d}{kind}"
            content = environment.file_system.read_file(path)
            environment.file_system.replace_file(path, content + bytes(entry * 100))
    assert await state_of(open_log(environment, SMALL, is_clean=True)) == before


def test_malformed_partition_metadata_is_named(environment):
    open_log(environment, SMALL)
    touch(environment, "partition.metadata", b"version: 1\ntopic_id: x")
    with pytest.raises(KafkaError, match=r"/data/t-0/partition\.metadata") as caught:
        open_log(environment, SMALL, is_clean=True)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("content", [b"", b"version: 0\ntopic_id: 8UR", bytes(42)])
async def test_a_torn_partition_metadata_is_gone_after_one_start(environment, content):
    """The controller may be slow to send the id again, and the broker may be stopped before."""
    open_log(environment, SMALL)
    touch(environment, "partition.metadata", content)
    log = open_log(environment, SMALL)
    assert log.topic_id is None
    assert not environment.file_system.exists(f"{PARTITION}/partition.metadata")
    await log.close()
    environment.disk.crash(lose_unsynced=True)
    log = open_log(environment, SMALL, is_clean=True)
    assert log.topic_id is None
    log.assign_topic_id(UUID(int=42))
    assert open_log(environment, SMALL).topic_id == UUID(int=42)


async def test_damage_in_the_synced_part_is_an_error_when_it_must_be_read(environment):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    for name in environment.file_system.list_directory(PARTITION):
        if name.endswith(".snapshot"):
            environment.file_system.remove(f"{PARTITION}/{name}")
    file = log_file(environment, 0)
    file.write(8, struct.pack(">i", 5))
    environment.file_system.remove(f"{PARTITION}/{0:020d}.index")
    with pytest.raises(KafkaError, match="t-0 is damaged"):
        open_log(environment, SMALL, recovery_point=100)


async def test_a_recovery_leaves_a_snapshot_that_is_right_as_it_is(environment, monkeypatch):
    """Before, it deleted each snapshot above the recovery point: thousands of deletions in a start."""
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    (last,) = [name for name in environment.file_system.list_directory(log.directory) if name == f"{100:020d}.snapshot"]
    changed_paths = []
    file_system = type(environment.file_system)
    remove = file_system.remove
    monkeypatch.setattr(file_system, "remove", lambda self, path: changed_paths.append(path) or remove(self, path))
    again = open_log(environment, SMALL, recovery_point=0)
    assert f"{again.directory}/{last}" not in changed_paths
    assert again._snapshots.offsets[-1] == 100


async def test_a_recovery_replaces_a_snapshot_that_is_wrong(environment):
    log = open_log(environment, SMALL)
    fill(log)
    await log.close()
    path = f"{log.directory}/{100:020d}.snapshot"
    right = environment.file_system.read_file(path)
    environment.file_system.replace_file(path, ProducerState(100).to_snapshot())
    open_log(environment, SMALL, recovery_point=0)
    assert environment.file_system.read_file(path) == right
