"""klamm log merge beside Kafka's StateChangeLogMerger, and on a file that Kafka has written."""

import gzip
from pathlib import Path

import pytest

from klamm.tools import main
from support.oracles import java_tool


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
        (),
        ("--topic", "t.1"),
        ("--topic", "t.1", "--partitions", "3,5"),
        ("--start-time", "2021-06-01 10:01:00,000", "--end-time", "2021-06-01 10:02:05,002"),
    ],
    ids=lambda options: " ".join(options) or "all",
)
def test_the_same_lines_in_the_same_order(
    kafka_jars: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], options: tuple[str, ...]
) -> None:
    for broker in range(3):
        (tmp_path / f"state-change.log.{broker}").write_text(lines(broker))
    arguments = ["--logs-regex", f"{tmp_path}/state-change.log.*", *options]
    theirs = java_tool(kafka_jars, "kafka.tools.StateChangeLogMerger", *arguments)
    assert main.run(["log", "merge", *arguments]) == 0
    ours = capfdbinary.readouterr().out
    assert ours == theirs
    assert ours.count(b"\n") > 10
    # Gzipped files are read as they are.
    packed = tmp_path / "state-change.log.2"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    assert main.run(["log", "merge", *arguments]) == 0
    assert capfdbinary.readouterr().out == theirs
