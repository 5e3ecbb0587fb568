"""A checkpoint of an archive's log saves time, and changes nothing, whatever becomes of it."""

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.files import LocalFiles, files_at
from klamm.spark.pipelines import commit_log
from klamm.spark.pipelines.checkpoint import KEPT, SCHEMA, checkpoints
from klamm.spark.pipelines.commit_log import ArchivedRange, ArchiveError, CommitLog, Snapshot, TopicSnapshot, adding_to

ID = "0" * 31 + "a"
TOPICS = {"t": ID}


def snapshot(number: int) -> Snapshot:
    return Snapshot({"t": TopicSnapshot(ID, 2, {"retention.ms": str(number)})}, {"g": {"t": {0: number, 11: 3}}})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "RECORDS_PER_CHECKPOINT", 4)


def add(directory: Path, first: int, end: int) -> None:
    """Every third record is a snapshot; the others have two ranges."""
    with adding_to(files_at(str(directory))) as log:
        for number in range(first, end):
            if number % 3 == 0:
                log.commit_snapshot(snapshot(number))
            else:
                log.commit(ranges_of(number))


def ranges_of(number: int) -> list[ArchivedRange]:
    place = number - number // 3 - 1
    return [
        ArchivedRange("t", ID, 0, place * 10, place * 10 + 10, 7, 100, f"data/{ID}/0-{place}"),
        ArchivedRange("t", ID, 1, place * 10, place * 10 + 10, 0, 0, None, ((place * 10 + 1, place * 10 + 3),)),
    ]


@contextmanager
def counted() -> Iterator[list[str]]:
    """The paths of all files that are read."""
    read: list[str] = []
    original = LocalFiles.read

    def counting(files: LocalFiles, path: str) -> bytes:
        read.append(path)
        return original(files, path)

    with patch.object(LocalFiles, "read", counting):
        yield read


def check(directory: Path, count: int) -> list[str]:
    """The log says the same as its records; returns what was read."""
    with counted() as read:
        log = CommitLog(files_at(str(directory)))
    expected = [each for number in range(count) if number % 3 for each in ranges_of(number)]
    assert log.ranges == expected
    assert log.next_number == count
    assert log.snapshot == snapshot((count - 1) // 3 * 3)
    assert log.ends_of(TOPICS) == {
        TopicPartition("t", number): expected[-1].end_offset for number in ((0, 1) if expected else ())
    }
    for number in range(count + 2):
        later = [each for after in range(number, count) if after % 3 for each in ranges_of(after)]
        assert log.ranges_from(number) == later
    return read


def paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("checkpoints/*"))


def test_opening_reads_the_checkpoint_and_what_is_behind_it(tmp_path: Path) -> None:
    for count in range(1, 20):
        add(tmp_path, count - 1, count)
        # One is due behind every fourth record.
        behind = count % 4
        read = check(tmp_path, count)
        # The checkpoint's last record is read, too, to see that it is of this log.
        assert len(read) == behind + 2 * (count >= 4)
        assert len(paths(tmp_path)) == min(KEPT, count // 4)


def test_one_program_that_adds_many_records(tmp_path: Path) -> None:
    add(tmp_path, 0, 30)
    assert len(check(tmp_path, 30)) == 4
    assert len(paths(tmp_path)) == KEPT


def test_an_archive_without_checkpoints_gets_one_with_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "RECORDS_PER_CHECKPOINT", 1000)
    add(tmp_path, 0, 20)
    # As programs before wrote records.
    for path in tmp_path.glob("commits/*"):
        record = json.loads(path.read_text())
        del record["writer"]
        path.write_text(json.dumps(record))
    assert len(check(tmp_path, 20)) == 20
    monkeypatch.setattr(commit_log, "RECORDS_PER_CHECKPOINT", 4)
    add(tmp_path, 20, 21)
    assert len(check(tmp_path, 21)) == 2


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def renamed(path: Path) -> None:
    path.rename(path.with_name("00000000000000000099." + path.name.partition(".")[2]))


def of_another_name(path: Path) -> None:
    path.rename(path.with_name("x"))


def of_another_schema(path: Path) -> None:
    replaced(path, pa.table({"x": [1]}))


def of_another_version(path: Path) -> None:
    replaced(path, pq.read_table(path).replace_schema_metadata({"klamm.version": "2", "klamm.snapshot": "null"}))


def replaced(path: Path, table: pa.Table) -> None:
    from klamm.base.checksum import crc32c

    pq.write_table(table, path)
    path.rename(path.with_name(f"{path.name[:20]}.{crc32c(path.read_bytes()):08x}.parquet"))


@pytest.mark.parametrize(
    "damage", [missing, empty, torn, renamed, of_another_name, of_another_schema, of_another_version]
)
def test_a_damaged_checkpoint_costs_time_only(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    add(tmp_path, 0, 18)
    older, newest = paths(tmp_path)
    damage(newest)
    # The one before it has 12 records; its last one and 6 more are read.
    assert len([path for path in check(tmp_path, 18) if path.startswith("commits")]) == 7
    damage(older)
    assert len([path for path in check(tmp_path, 18) if path.startswith("commits")]) == 18
    add(tmp_path, 18, 19)
    assert len([path for path in check(tmp_path, 19) if path.startswith("commits")]) == 1


def test_flipped_bits(tmp_path: Path) -> None:
    add(tmp_path, 0, 4)
    (path,) = paths(tmp_path)
    content = path.read_bytes()
    chance = random.Random(7)
    for _ in range(200):
        bad = bytearray(content)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        assert [each.records for each in checkpoints(files_at(str(tmp_path)))] == [0]
    path.write_bytes(content)
    assert [each.records for each in checkpoints(files_at(str(tmp_path)))] == [4, 0]


def test_a_checkpoint_of_a_longer_log_is_not_used(tmp_path: Path) -> None:
    """The records are the truth, also those of an older copy of the archive."""
    add(tmp_path, 0, 9)
    stale = paths(tmp_path)[-1].read_bytes(), paths(tmp_path)[-1]
    for number in (7, 8):
        (tmp_path / "commits" / f"{number:020}.json").unlink()
    check(tmp_path, 7)
    # It grows again, with another record. The program that does it is killed before it writes a checkpoint.
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit_snapshot(snapshot(99))
    stale[1].write_bytes(stale[0])
    assert CommitLog(files_at(str(tmp_path))).snapshot == snapshot(99)


def test_a_checkpoint_that_disappears_while_it_is_read(tmp_path: Path) -> None:
    add(tmp_path, 0, 9)
    original = LocalFiles.read

    def removing(files: LocalFiles, path: str) -> bytes:
        if path.startswith("checkpoints"):
            os.unlink(files.address(path))
        return original(files, path)

    with patch.object(LocalFiles, "read", removing):
        check(tmp_path, 9)


def test_neither_overlap_nor_gap_behind_a_checkpoint(tmp_path: Path) -> None:
    add(tmp_path, 0, 5)
    with adding_to(files_at(str(tmp_path))) as log:
        last = ranges_of(4)[0]
        with pytest.raises(ArchiveError, match=f"t-0 continues at offset {last.end_offset + 1}, but was archived to"):
            log.commit([replace(last, start_offset=last.end_offset + 1, end_offset=last.end_offset + 2)])


def test_what_is_stored_for_a_range(tmp_path: Path) -> None:
    add(tmp_path, 0, 4)
    (path,) = paths(tmp_path)
    row = pq.read_table(path).to_pylist()[1]
    assert set(row) == {"record", *asdict(ranges_of(1)[1])} == set(SCHEMA.names)
    assert (row["record"], row["lost"]) == (1, [[1, 3]])
