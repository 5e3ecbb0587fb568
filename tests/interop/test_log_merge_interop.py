"""klamm log merge beside Kafka's StateChangeLogMerger, and on a file that Kafka has written."""

import gzip
import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from support.oracles import RealKafka, java_tool
from support.waiting import until

# As in Kafka's own log4j.properties, with the lines of single partitions.
STATE_CHANGES = """
log4j.logger.state.change.logger=TRACE, stateChanges
log4j.additivity.state.change.logger=false
log4j.appender.stateChanges=org.apache.log4j.FileAppender
log4j.appender.stateChanges.File={file}
log4j.appender.stateChanges.layout=org.apache.log4j.PatternLayout
log4j.appender.stateChanges.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class LoggingKafka(RealKafka):
    """A broker that writes a state-change.log."""

    @property
    def state_changes(self) -> Path:
        return self.directory / "state-change.log"

    def _command(self) -> list[str]:
        command = super()._command()
        with (self.directory / "log4j.properties").open("a") as file:
            file.write(STATE_CHANGES.format(file=self.state_changes))
        return command


def lines(broker: int) -> str:
    """Entries of Kafka 0.8, with times of their own, and lines that name no partition."""
    return "".join(
        f"[2021-06-01 10:{number // 60:02}:{number % 60:02},{broker:03}] TRACE Broker {broker} cached leader info"
        f" (Leader:{broker},ISR:1,2,LeaderEpoch:{number},ControllerEpoch:3) for partition [t.{number % 3},{number % 7}]"
        " (state.change.logger)\n"
        for number in range(400)
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.long),
        pytest.param(("--topic", "t.1"), marks=pytest.mark.long),
        ("--topic", "t.1", "--partitions", "3,5"),
        ("--start-time", "2021-06-01 10:01:00,000", "--end-time", "2021-06-01 10:02:05,002"),
    ],
    ids=lambda options: " ".join(options) or "all",
)
def test_the_same_lines_in_the_same_order(
    kafka_jars: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], options: tuple[str, ...]
) -> None:
    for broker in range(3):
        (tmp_path / f"state-change.log.{broker}").write_text(lines(broker))
    arguments = ["--logs-regex", f"{tmp_path}/state-change.log.*", *options]
    theirs = java_tool(kafka_jars, "kafka.tools.StateChangeLogMerger", *arguments)
    assert main.run(["log", "merge", *arguments]) == 0
    ours = capsysbinary.readouterr().out
    assert ours == theirs
    assert ours.count(b"\n") > 10
    # Gzipped files are read as they are.
    packed = tmp_path / "state-change.log.2"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    assert main.run(["log", "merge", *arguments]) == 0
    assert capsysbinary.readouterr().out == theirs


@pytest.mark.long
def test_files_from_other_systems(kafka_jars: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Line ends of Windows, a mark before the first line, a last line without its end, NULs."""
    (tmp_path / "state-change.log.0").write_bytes(b"\xef\xbb\xbf" + lines(0).replace("\n", "\r\n").encode())
    (tmp_path / "state-change.log.1").write_text(lines(1).rstrip("\n"))
    (tmp_path / "state-change.log.2").write_text(lines(2).replace("TRACE", "TR\0ACE"))
    arguments = ["--logs-regex", f"{tmp_path}/state-change.log.*", "--topic", "t.1"]
    theirs = java_tool(kafka_jars, "kafka.tools.StateChangeLogMerger", *arguments)
    assert main.run(["log", "merge", *arguments]) == 0
    # Kafka's tool leaves the mark where it is.
    assert capsysbinary.readouterr().out == theirs.replace(b"\xef\xbb\xbf", b"")
    # It takes the 31st of February for the 3rd of March.
    assert main.run(["log", "merge", *arguments, "--start-time", "2021-02-31 10:00:00,000"]) == 2


@pytest.mark.long
def test_the_story_of_a_partition_as_kafka_has_logged_it(
    kafka_jars: Path,
    real_zookeeper,
    tmp_path: Path,
    running: Callable[[LoggingKafka], LoggingKafka],
    capsys: pytest.CaptureFixture[str],
) -> None:
    chroot = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    first, second = (
        running(LoggingKafka(kafka_jars, tmp_path / str(number), chroot, broker_id=number)) for number in (1, 2)
    )
    first.start()
    second.start()
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    admin.create_topics([NewTopic("t", 1, replica_assignment=[[2, 1]])])["t"].result(120)
    # On a busy machine the controller moves the leader before the broker knows that it is the leader.
    until(lambda: " starts at " in second.state_changes.read_text())
    second.stop()
    first.stop()

    logs = f"{first.state_changes},{second.state_changes}"
    for order in ("time", "causal"):
        assert (
            main.run([*f"log merge --logs {logs} --topic t --partitions 0 --story --json --order {order}".split()]) == 0
        )
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        states = [
            (each["broker"], each["from_state"], each["to_state"], each.get("leader"), each.get("isr"))
            for each in told
            if each.get("from_state", "").endswith("Partition")
        ]
        assert states[:3] == [
            (1, "NonExistentPartition", "NewPartition", None, None),
            (1, "NewPartition", "OnlinePartition", 2, [2, 1]),
            (1, "OnlinePartition", "OnlinePartition", 1, [1]),
        ]
        leaders = [
            (each["broker"], each["leader_epoch"])
            for each in told
            if " starts at " in each["text"] and "leader" in each
        ]
        assert leaders == [(2, 0), (1, 1)]
        assert {each["broker"] for each in told} == {1, 2}
        assert all(each["controller_epoch"] == 1 for each in told if each["written_by"] == "controller")
