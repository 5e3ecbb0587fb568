"""klamm log merge: the command, and how it ends."""

import gzip
import json
from pathlib import Path

import pytest

from klamm.cli import main

CONTROLLER = (
    "[2021-06-01 10:00:00,100] INFO [Controller id=1 epoch=2] Changed partition t-0 from OfflinePartition to"
    " OnlinePartition with state LeaderAndIsr(leader=2, leaderEpoch=4, isr=List(2), zkVersion=0)"
    " (state.change.logger)\n"
)
BROKER = (
    "[2021-06-01 10:00:00,050] INFO [Broker id=2] Leader t-0 starts at leader epoch 4 from offset 9 with high watermark"
    " 9 ISR [2] addingReplicas [] removingReplicas []. Previous leader epoch was 3. (state.change.logger)\n"
)
OTHER = "[2021-06-01 10:00:00,070] INFO [Broker id=2] Follower u-0 starts at leader epoch 1 (state.change.logger)\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "state-change.log").write_text(CONTROLLER)
    (tmp_path / "state-change.log.2021-06-01-10.gz").write_bytes(gzip.compress((BROKER + OTHER).encode()))
    return tmp_path


def merge(*arguments: object) -> int:
    return main.run(["log", "merge", *map(str, arguments)])


def test_logs_are_merged_by_time(logs: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert merge("--logs-regex", f"{logs}/state-change.log*") == 0
    assert capsysbinary.readouterr().out.decode() == BROKER + OTHER + CONTROLLER


def test_only_a_partitions_entries(logs: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    names = ",".join(str(path) for path in sorted(logs.iterdir()))
    assert merge("--logs", names, "--topic", "t", "--partitions", "0,1", "--end-time", "2021-06-01 10:00:00,070") == 0
    assert capsysbinary.readouterr().out.decode() == BROKER


def test_a_decision_stands_before_its_effects_in_causal_order(
    logs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert merge("--logs-regex", f"{logs}/state-change", "--order", "causal", "--topic", "t") == 0
    assert capsysbinary.readouterr().out.decode() == CONTROLLER + BROKER


def test_json_has_one_object_for_each_entry(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merge("--logs", logs / "state-change.log", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "time": "2021-06-01 10:00:00,100",
        "level": "INFO",
        "broker": 1,
        "written_by": "controller",
        "controller_epoch": 2,
        "topic": "t",
        "partition": 0,
        "leader": 2,
        "leader_epoch": 4,
        "isr": [2],
        "from_state": "OfflinePartition",
        "to_state": "OnlinePartition",
        "text": CONTROLLER.removeprefix("[2021-06-01 10:00:00,100] INFO ").removesuffix(" (state.change.logger)\n"),
        "file": f"{logs}/state-change.log",
    }


def test_a_story_is_a_table(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merge("--logs-regex", f"{logs}/state", "--topic", "t", "--partitions", 0, "--story") == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["TIME", "BROKER", "WRITTEN-BY", "LEADER", "EPOCH", "ISR", "STATE", "MESSAGE"]
    assert first.startswith("2021-06-01 10:00:00,050  2       broker              2       4      2    -")
    assert second.startswith(
        "2021-06-01 10:00:00,100  1       controller epoch 2  2       4      2    OfflinePartition -> OnlinePartition"
    )


def test_a_file_that_cannot_be_read_makes_1(logs: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (logs / "state-change.log.x").write_text("not a log")
    assert merge("--logs-regex", f"{logs}/state-change.log") == 1
    out, err = capsysbinary.readouterr()
    assert out.decode() == BROKER + OTHER + CONTROLLER
    assert b"state-change.log.x: no line begins with a time" in err
    assert merge("--logs", logs / "absent") == 1
    assert capsysbinary.readouterr().err.decode() == f"klamm: {logs}/absent: no such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give exactly one of --logs and --logs-regex"),
        (["--logs", "a", "--logs-regex", "b"], "give exactly one of --logs and --logs-regex"),
        (["--logs", "a", "--partitions", "0"], "needs --topic"),
        (["--logs", "a", "--topic", "t", "--partitions", "0,x"], "'x' is not a partition"),
        (["--logs", "a", "--topic", "t", "--partitions", "0,0"], "names a partition twice"),
        (["--logs", "a", "--start-time", "10:00"], "'10:00' is not of the form yyyy-MM-dd HH:mm:ss,SSS"),
        (["--logs", "a", "--start-time", "2021-02-31 10:00:00,000"], "is not a time of any calendar"),
        (["--logs", "a", "--end-time", "2021-02-28 24:00:00,000"], "is not a time of any calendar"),
        (["--logs", "a", "--topic", "t", "--story"], "needs --topic and exactly one of --partitions"),
        (["--logs", "a", "--spark", "--output", "/"], "/ exists already"),
        (["--logs", "a", "--spark"], "--spark and --output belong together"),
        (["--logs", "a", "--spark", "--output", "o", "--order", "causal"], "has no --story and no --order causal"),
        (["--logs", ","], "names no file"),
        (["--logs", "a", "--topic", ""], "is empty"),
        (["--logs-regex", "("], "is not a valid regular expression"),
    ],
)
def test_a_wrong_call_ends_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert merge(*arguments) == 2
    assert message in capsys.readouterr().err
