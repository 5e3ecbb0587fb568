"""klamm log verify: the command on directories of all kinds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.cli import main
from klamm.protocol.record.record_batch import iterate_batches
from support.log_directories import make_log_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_log_directory(tmp_path / "data", topics=("t", "u"))
    return tmp_path / "data"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def verify(*arguments: object) -> int:
    return main.run(["log", "verify", *map(str, arguments)])


def test_a_sound_directory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(directory)
    assert verify(directory) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{directory}: broker 1 of cluster cluster, 2 partitions; was shut down cleanly",
        "2 partitions, 8 segments, 200 batches, 400 records, 30200 bytes: no damage",
    ]
    assert contents(directory) == before


def test_an_empty_partition_directory_lacks_what_was_committed(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (directory / "t-0").iterdir():
        path.unlink()
    (directory / "replication-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    (directory / "new-0").mkdir()
    assert verify(directory) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        "t-0: DAMAGED",
        "  replication-offset-checkpoint, offset 7: records are committed up to offset 7, but the log ends at 0",
    ]
    assert "new-0" not in "".join(lines)


def test_damage_and_what_a_start_would_do(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segments = sorted((directory / "t-0").glob("*.log"))
    data = bytearray(segments[1].read_bytes())
    data[100] ^= 1
    segments[1].write_bytes(data)
    before = contents(directory)

    assert verify(directory, "--topic", "t") == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[1] == "t-0: DAMAGED"
    assert lines[2].startswith(
        f"  {segments[1].name}, position 0, offset {int(segments[1].stem)}: the record batch's checks"
    )
    assert lines[3] == "  a start trusts what is below the recovery point: reads of the damaged part will fail"
    assert lines[4].startswith("1 partitions, 4 segments, 100 batches, 198 records")
    assert err == ""

    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    before = contents(directory)
    assert verify(directory, "--topic", "u") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{directory}: broker 1 of cluster cluster, 2 partitions; was not shut down cleanly: logs will be recovered",
        "a start recovers 1 partitions, and reads 15100 bytes for it",
        "1 partitions, 4 segments, 100 batches, 200 records, 15100 bytes: no damage",
    ]
    assert verify(directory, "--topic", "t", "--json") == 1
    of_directory, of_log, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    assert verdict == {"outcome": "damaged", "partitions": 1, "not_verified": 0}
    assert (of_directory["is_clean"], of_directory["problems"]) == (False, [])
    assert of_log["findings"][0]["file"] == segments[1].name
    assert of_log["start"]["recovers_from"] == 0
    assert of_log["start"]["cuts"] == [{"file": segments[1].name, "position": 0, "lost_bytes": len(data)}]
    assert of_log["start"]["dropped"] == [segment.name for segment in segments[2:]]
    assert of_log["start"]["log_end_offset"] == int(segments[1].stem)
    assert of_log["start"]["lost_records"] == 200 - int(segments[1].stem)
    assert contents(directory) == before


def test_directories_that_a_start_would_refuse_or_ignore(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    make_log_directory(other, broker_id=2)
    (directory / f"x-0.{'0' * 32}-delete").mkdir()
    (directory / "u-0").rename(directory / f"u-0.{'0' * 32}-future")
    (directory / "lost+found").mkdir()
    (directory / "log-start-offset-checkpoint").write_text("0\n1\ngone 7 5\n")
    (directory / "replication-offset-checkpoint").write_text("nonsense\n")
    assert verify(directory, other) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{directory}: broker 1 of cluster cluster, 1 partitions; was shut down cleanly",
        "  PROBLEM: replication-offset-checkpoint, line 1: 'nonsense' is not a number from 0 to 2^63-1; a start ignores"
        " the file",
        "  lost+found is no partition's directory: a start ignores it",
        f"  u-0.{'0' * 32}-future is to replace a partition's log: a start continues the move",
        f"  x-0.{'0' * 32}-delete was being deleted: a start removes it",
        "  log-start-offset-checkpoint names gone-7, which is not here",
        f"{other}: broker 2 of cluster cluster, 1 partitions; was shut down cleanly",
        f"  PROBLEM: belongs to broker 2 of cluster cluster, {directory} to broker 1 of cluster cluster: a start with"
        " both is refused",
        f"  PROBLEM: t-0 is in {directory} too: a start with both is refused, unless topic ids or leader epochs show"
        " which log is newer",
        "3 partitions, 12 segments, 300 batches, 600 records, 45300 bytes: DAMAGED",
    ]


def test_a_directory_in_use_is_not_verified(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The lock is one of processes, so another process has to hold it.
    code = (
        f"import fcntl; f = open('{directory}/.lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert verify(directory) == 3
        holder.communicate(b"\n")
    assert capsys.readouterr().err == f"klamm: {directory} is in use by a broker; stop the broker, or verify a copy\n"
    assert verify(directory) == 0


def test_what_cannot_be_read_or_is_not_there_is_not_verified(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(directory, "--topic", "v") == 3
    assert capsys.readouterr().out.splitlines()[-1].endswith(": NOTHING TO VERIFY")
    (directory / "replication-offset-checkpoint").write_text("0\n2\nt 0 7\ngone 0 7\n")
    assert verify(directory, "--topic", "t") == 0
    assert verify(directory) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "gone-0: CANNOT BE READ: replication-offset-checkpoint names it, and its directory is missing" in lines
    assert lines[-1].endswith(": 1 partition NOT VERIFIED")
    (directory / "replication-offset-checkpoint").unlink()
    shutil.rmtree(directory / "t-0")
    (directory / "t-0").mkdir()
    (directory / "t-0" / f"{0:020}.log").mkdir()
    assert verify(directory, "--json") == 3
    *_, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    assert verdict == {"outcome": "unverified", "partitions": 2, "not_verified": 1}


def test_a_gap_between_segments_that_a_start_trusts_is_damage(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, second, third, *_ = sorted((directory / "t-0").glob("*.log"))
    for path in (directory / "t-0").glob(f"{second.stem}.*"):
        path.unlink()
    assert verify(directory) == 1
    what = f"offsets {int(second.stem)} to {int(third.stem) - 1} are missing before this segment"
    assert f"  {third.name}, position 0, offset {int(second.stem)}: {what}" in capsys.readouterr().out.splitlines()
    assert verify(directory, "--compacted-topic", "t") == 0


def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify() == 2
    assert verify(tmp_path / "absent") == 3
    assert verify(tmp_path, "--topic", "(") == 2
    assert verify(tmp_path, f"{tmp_path}/.") == 2
    err = capsys.readouterr().err
    assert f"{tmp_path}/absent is not a directory" in err
    assert "'(' is not a valid regular expression" in err
    assert "names a directory twice" in err


def test_below_the_first_dirty_offset_a_gap_between_segments_is_no_damage(directory: Path, capsys) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    first, second = sorted((directory / "t-0").glob("*.log"))[:2]
    *_, last = iterate_batches(first.read_bytes())
    first.write_bytes(first.read_bytes()[: last[0]])
    assert verify(directory) == 1
    assert f"a start drops {second.name}" in capsys.readouterr().out
    (directory / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {int(second.stem)}\n")
    assert verify(directory) == 0
