"""Comparing data directories whose files change, or lack what they should have."""

import os
import shutil
from pathlib import Path

import pytest

from klamm.cli import main
from klamm.cli.verify.offline import open_directories, verify_partition
from klamm.cli.verify.report import Outcome, Report
from klamm.client.verification.compare import Difference, DifferenceKind
from klamm.client.verification.partition import PartitionCheck, SetAside
from klamm.protocol.record.records import Record, build_batch

END = 30


def batch(first: int) -> bytes:
    """Five records."""
    return bytes(build_batch([Record(None, b"v", 1, offset=first + at) for at in range(5)], base_offset=first))


def segment(directory: Path, first: int, end: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{first:020}.log").write_bytes(b"".join(batch(each) for each in range(first, end, 5)))


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Two brokers with the segments 0, 10 and 20 of t-0."""
    found = [tmp_path / "0", tmp_path / "1"]
    for broker_id, directory in enumerate(found):
        for first in (0, 10, 20):
            segment(directory / "t-0", first, first + 10)
        (directory / "meta.properties").write_text(f"version=0\nbroker.id={broker_id}\ncluster.id=c\n")
        (directory / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {END}\n")
    return found


def verified(directories: list[Path]) -> PartitionCheck:
    (partition,) = open_directories(directories, lambda topic: True)
    return verify_partition(partition, 100)


def test_a_replica_without_any_segment_is_not_verified(directories: list[Path]) -> None:
    for path in (directories[1] / "t-0").iterdir():
        path.unlink()
    check = verified(directories)
    assert check.set_aside == {1: SetAside(0, f"{directories[1]}/t-0 has no segment")}
    assert Report([check]).outcome is Outcome.UNVERIFIED


def test_a_replica_whose_high_watermark_is_not_known_is_not_verified(directories: list[Path]) -> None:
    (directories[1] / "replication-offset-checkpoint").unlink()
    check = verified(directories)
    reason = "replication-offset-checkpoint of its broker has no high watermark for it"
    assert check.set_aside == {1: SetAside(0, reason)}
    assert Report([check]).outcome is Outcome.UNVERIFIED


def test_a_replica_without_its_first_segment_is_named(directories: list[Path]) -> None:
    (directories[1] / "t-0" / f"{0:020}.log").unlink()
    check = verified(directories)
    assert (check.start_offset, check.position, check.begins_later) == (10, END, {1: 10})
    assert list(check.unexplained) == [1] and Report([check]).outcome is Outcome.UNVERIFIED


def test_a_partition_in_one_directory_only_is_not_verified(directories: list[Path]) -> None:
    shutil.rmtree(directories[1] / "t-0")
    assert verified(directories).set_aside == {
        1: SetAside(0, "replication-offset-checkpoint of its broker names it, and its directory is missing")
    }
    (directories[1] / "replication-offset-checkpoint").unlink()
    check = verified(directories)
    assert [aside.reason for aside in check.set_aside.values()] == ["no other directory has the partition"]
    assert Report([check]).outcome is Outcome.UNVERIFIED


def test_a_replica_that_is_deleted_meanwhile_is_not_verified(directories: list[Path]) -> None:
    (partition,) = open_directories(directories, lambda topic: True)
    (directories[1] / "t-0").rename(directories[1] / "t-0.1234-delete")
    check = verify_partition(partition, 100)
    assert check.set_aside == {1: SetAside(0, f"{directories[1]}/t-0 was removed meanwhile")}


def test_a_topic_that_is_deleted_meanwhile_is_no_difference(directories: list[Path]) -> None:
    (partition,) = open_directories(directories, lambda topic: True)
    for directory in directories:
        (directory / "t-0").rename(directory / "t-0.1234-delete")
    check = verify_partition(partition, 100)
    assert check.gone == "the topic was deleted" and Report([check]).outcome is Outcome.UNVERIFIED


def test_segments_that_are_compacted_meanwhile_are_read_anew(directories: list[Path]) -> None:
    (directories[0] / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    (partition,) = open_directories(directories, lambda topic: True)
    read: list[int] = []

    def compact(size_bytes: int) -> None:
        """As the cleaner replaces two segments by one, in the middle of the first one."""
        read.append(size_bytes)
        if len(read) == 1:
            log = directories[1] / "t-0"
            segment(log, 100, 100)
            (log / f"{100:020}.log").write_bytes(b"".join(batch(each) for each in range(0, 20, 5)))
            os.replace(log / f"{100:020}.log", log / f"{0:020}.log")
            (log / f"{10:020}.log").unlink()

    check = verify_partition(partition, 100, compact)
    assert (check.position, check.set_aside, check.batches, check.compacted_batches) == (END, {}, 6, 0)


def test_a_lost_value_of_a_compacted_topic_is_found_unless_a_record_above_the_high_watermark_replaces_it(
    directories: list[Path],
) -> None:
    def write(directory: Path, *records: tuple[int, bytes]) -> None:
        for path in (directory / "t-0").iterdir():
            path.unlink()
        built = [build_batch([Record(key, b"v", 1, offset=at)], base_offset=at) for at, key in records]
        (directory / "t-0" / f"{0:020}.log").write_bytes(b"".join(built))

    for directory in directories:
        (directory / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    write(directories[0], (0, b"a"), (1, b"b"), (END - 1, b"c"))
    write(directories[1], (1, b"b"), (END - 1, b"c"))
    check = verified(directories)
    assert check.differences.found == [Difference(DifferenceKind.LOST, 0, 0, replica=1, other=0)]
    assert Report([check]).outcome is Outcome.DIFFERENT
    # Its broker was killed after a cleaning, before it checkpointed the high watermark.
    write(directories[1], (1, b"b"), (END - 1, b"c"), (END, b"a"))
    assert not verified(directories).differences


def test_a_pipe_in_place_of_a_segment_is_an_error_and_no_hang(directories: list[Path]) -> None:
    path = directories[1] / "t-0" / f"{0:020}.log"
    path.unlink()
    os.mkfifo(path)
    check = verified(directories)
    assert check.set_aside == {1: SetAside(0, f"{directories[1]}/t-0: Illegal seek")}


@pytest.mark.parametrize("name", ["meta.properties", "replication-offset-checkpoint"])
def test_files_of_a_directory_that_cannot_be_read_end_with_an_error(
    directories: list[Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directories[1] / name
    path.unlink()
    path.mkdir()
    assert main.run(["verify", "replicas", "--log-dirs", ",".join(map(str, directories))]) == 3
    assert capsys.readouterr().err == f"klamm: {path}: not a regular file\n"


@pytest.mark.parametrize("name", ["meta.properties", "replication-offset-checkpoint", "t-0/partition.metadata"])
def test_a_pipe_in_place_of_a_file_of_a_directory_is_an_error_and_no_hang(
    directories: list[Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directories[1] / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert main.run(["verify", "replicas", "--log-dirs", ",".join(map(str, directories))]) == 3
    assert capsys.readouterr().err == f"klamm: {path}: not a regular file\n"
