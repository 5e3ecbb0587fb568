"""Verifying a partition's directory, and predicting what opening it would do: agreement with the loader itself."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log.log import AppendOrigin
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import load_log
from klamm.storage.verification.log_verification import predict, verify_log
from klamm.storage.verification.overlay import OverlayFileSystem
from support.logs import NOW_MS, DiskEnvironment, append, marker, open_log

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)
PARTITION = "/data/t-0"
INDEXES = (".index", ".timeindex", ".txnindex")


def filled(count: int = 60) -> DiskEnvironment:
    """A log of several segments, with aborted transactions, an idempotent producer and leader epochs."""
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    for i in range(count):
        placed = {"timestamp_ms": NOW_MS + i, "leader_epoch": i // 25}
        if i % 10 == 6:
            header = {"producer_id": 1000 + i, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
            append(log, b"%d" % i, **header, **placed)
        elif i % 10 == 8:
            kind = ControlRecordType.ABORT if i % 20 == 8 else ControlRecordType.COMMIT
            log.append_as_leader(marker(kind, 1000 + i - 2), i // 25, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        else:
            append(log, b"%d" % i, b"x" * (i % 40), **placed)
    log.update_high_watermark(log.log_end_offset)
    for segment in log._segments:
        segment.write_pending()
    return environment


def contents(file_system) -> dict[str, bytes]:
    return {name: file_system.read_file(f"{PARTITION}/{name}") for name in file_system.list_directory(PARTITION)}


def arguments(recovery_point: int, is_clean: bool) -> dict[str, Any]:
    return {"log_start_offset": 0, "recovery_point": recovery_point, "is_clean": is_clean, "now_ms": NOW_MS}


def damage(environment: DiskEnvironment, chance: random.Random) -> str:
    """Damages one file; returns which."""
    disk = environment.file_system
    name = chance.choice(disk.list_directory(PARTITION))
    path = f"{PARTITION}/{name}"
    kind = chance.choice(["flip", "cut", "append", "zeros", "remove"])
    if kind == "remove":
        disk.remove(path)
        return name
    file = disk.open(path)
    size = file.size()
    if kind == "flip" and size:
        at = chance.randrange(size)
        file.write(at, bytes([file.read(at, 1)[0] ^ (1 << chance.randrange(8))]))
    elif kind == "cut":
        file.truncate(chance.randrange(size + 1))
    elif kind == "append":
        file.write(size, chance.randbytes(chance.randrange(1, 100)))
    elif kind == "zeros":
        file.write(size, bytes(chance.choice([8, 12, 34, 61, 100])))
    file.close()
    return name


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    wounds=st.integers(0, 3),
    recovery_point=st.sampled_from([0, 1, 17, 40, 59, 60, 1000]),
    is_clean=st.booleans(),
)
def test_a_start_does_what_was_predicted(seed: int, wounds: int, recovery_point: int, is_clean: bool) -> None:
    environment = filled()
    chance = random.Random(seed)
    for _ in range(wounds):
        damage(environment, chance)
    before = contents(environment.file_system)

    expected = predict(environment.file_system, PARTITION, SMALL, **arguments(recovery_point, is_clean))
    verify_log(environment.file_system, PARTITION)
    assert contents(environment.file_system) == before

    refusal, loaded = None, None
    try:
        loaded = load_log(environment.file_system, PARTITION, SMALL, **arguments(recovery_point, is_clean))
    except KafkaError as error:
        refusal = error.message
    after = contents(environment.file_system)
    logs = [name for name in before if name.endswith(".log")]
    assert expected.refusal == refusal
    assert [tuple(cut) for cut in expected.cuts] == [
        (name, len(after[name]), len(before[name]) - len(after[name]))
        for name in logs
        if name in after and after[name] != before[name]
    ]
    assert list(expected.dropped) == [name for name in logs if name not in after]
    assert expected.lost_bytes == sum(len(before[name]) - len(after.get(name, b"")) for name in logs)
    assert list(expected.removed) == sorted(set(before) - set(after) - set(logs))
    changed = sorted(name for name in after if after[name] != before.get(name) and name not in logs)
    assert list(expected.rebuilt_indexes) == [name for name in changed if name.endswith(INDEXES)]
    assert list(expected.written) == [name for name in changed if not name.endswith(INDEXES)]
    if loaded is not None:
        assert (expected.log_start_offset, expected.log_end_offset) == (loaded.log_start_offset, loaded.log_end_offset)
        assert expected.recovers_from == loaded.recovered_from


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_recovery_of_the_whole_log_loses_something_exactly_when_a_segment_is_damaged(seed: int) -> None:
    environment = filled()
    damage(environment, random.Random(seed))
    found = verify_log(environment.file_system, PARTITION).findings
    expected = predict(environment.file_system, PARTITION, SMALL, **arguments(0, False))
    is_damaged = any(finding.file.endswith(".log") for finding in found)
    removed_segments = 7 - sum(name.endswith(".log") for name in environment.file_system.list_directory(PARTITION))
    assert (expected.lost_bytes > 0) == is_damaged or removed_segments


def test_a_sound_log_has_no_findings() -> None:
    environment = filled()
    log = verify_log(environment.file_system, PARTITION)
    assert log.findings == []
    assert (log.batches, log.records, log.log_end_offset) == (60, 108, 108)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "00000000000000000000.log",
            lambda data: data[:70] + b"\xff" + data[71:],
            [("00000000000000000000.log", 0, 0, "checksum does not match")],
        ),
        (
            # The checksum does not cover the base offset.
            "00000000000000000000.log",
            lambda data: b"\x00\x00\x00\x00\x01" + data[5:],
            [("00000000000000000000.log", 0, 1 << 24, "but the next segment begins at")],
        ),
        (
            "00000000000000000000.log",
            lambda data: data[:-3],
            [("00000000000000000000.log", None, None, "cannot be read")],
        ),
        ("00000000000000000000.index", lambda data: data + b"x", [("00000000000000000000.index", None, None, "bytes")]),
        ("00000000000000000000.index", lambda data: b"", []),
        ("00000000000000000000.index", lambda data: data + bytes(800), []),
        ("00000000000000000000.timeindex", lambda data: data + bytes(1200), []),
        (
            "00000000000000000000.index",
            lambda data: data[:7] + bytes([data[7] + 1]) + data[8:],
            [("00000000000000000000.index", None, None, "no batch begins at position")],
        ),
        (
            "00000000000000000000.timeindex",
            lambda data: data[:7] + bytes([data[7] - 1]) + data[8:],
            [("00000000000000000000.timeindex", None, None, "largest timestamp is")],
        ),
        ("leader-epoch-checkpoint", lambda data: b"0\n1\n", [("leader-epoch-checkpoint", None, None, "announced")]),
        (
            "leader-epoch-checkpoint",
            lambda data: b"0\n1\n0 0\n",
            [("leader-epoch-checkpoint", None, None, "says leader epoch 0 for the batch of leader epoch 1")],
        ),
        ("partition.metadata", lambda data: b"x", [("partition.metadata", None, None, "not of the form")]),
        ("stray.file", lambda data: b"x", []),
        (
            "00000000000000000999.index",
            lambda data: b"",
            [("00000000000000000999.index", None, None, "without its log")],
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(name, change, expected) -> None:
    environment = filled()
    disk = environment.file_system
    path = f"{PARTITION}/{name}"
    old = disk.read_file(path) if disk.exists(path) else b""
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, change(old))
    file.close()
    found = verify_log(disk, PARTITION).findings
    assert len({finding.file for finding in found}) == len(expected), found
    for finding, (file_name, position, offset, what) in zip(found, expected, strict=False):
        assert finding.file == file_name
        assert what in finding.what
        assert position in (None, finding.position)
        assert offset in (None, finding.offset)


def test_a_misplaced_batch_is_told_once_and_the_batches_behind_it_are_counted() -> None:
    environment = filled()
    disk = environment.file_system
    last = f"{PARTITION}/" + max(name for name in disk.list_directory(PARTITION) if name.endswith(".log"))
    file = disk.open(last)
    file.write(4, b"\x7f")
    log = verify_log(disk, PARTITION)
    assert ["do not follow" in finding.what for finding in log.findings if finding.file.endswith(".log")] == [True]
    assert log.more_findings > 3


def test_an_overlay_changes_nothing_below() -> None:
    environment = filled()
    below = environment.file_system
    before = contents(below)
    overlay = OverlayFileSystem(below)
    first, second = sorted(name for name in before if name.endswith(".log"))[:2]
    file = overlay.open(f"{PARTITION}/{first}")
    other = overlay.open(f"{PARTITION}/{first}")
    file.truncate(100)
    file.write(50, b"new", b"er")
    assert other.read(40, 1000) == before[first][40:50] + b"newer" + before[first][55:100]
    file.write(110, b"end")
    assert overlay.size(f"{PARTITION}/{first}") == file.size() == 113
    overlay.rename(f"{PARTITION}/{first}", f"{PARTITION}/moved")
    assert overlay.read_file(f"{PARTITION}/moved")[98:] == before[first][98:100] + bytes(10) + b"end"
    overlay.remove(f"{PARTITION}/{second}")
    overlay.open(f"{PARTITION}/made", create=True).close()
    names = set(overlay.list_directory(PARTITION))
    assert names == (set(before) - {first, second}) | {"moved", "made"}
    with pytest.raises(FileNotFoundError):
        overlay.open(f"{PARTITION}/{second}")
    assert overlay.changed() == [f"{PARTITION}/{name}" for name in sorted([first, second, "made", "moved"])]
    assert contents(below) == before
