"""klamm log on the files of Apache Kafka 4.x in KRaft mode."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from support.oracles import RealKraft, java_tool

# What its own log files look like: a time, the level, the text.
STATE_CHANGES = (
    "-Dorg.slf4j.simpleLogger.log.state.change.logger=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=[yyyy-MM-dd HH:mm:ss','SSS]",
)


@pytest.mark.long
def test_the_files_of_a_killed_broker(
    kafka_jars: Path,
    kafka4_jars: Path,
    tmp_path: Path,
    running: Callable[[RealKraft], RealKraft],
    capsys: pytest.CaptureFixture[str],
) -> None:
    properties = {"log.segment.bytes": 1_048_576, "log.index.interval.bytes": 500}
    cluster = running(
        RealKraft(kafka4_jars, tmp_path / "kraft", properties=properties, options=("-Xmx512m", *STATE_CHANGES))
    )
    cluster.start()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(120)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "zstd", "linger.ms": 1})
    for number in range(500):
        producer.produce("t", b"value %d " % number * 20)
        if number % 5 == 0:
            assert producer.flush(120) == 0
    assert producer.flush(120) == 0
    broker = cluster.broker(1)
    broker.kill()

    (segment,) = (broker.data_directory / "t-0").glob("*.log")
    options = ["--files", str(segment), "--print-data-log"]
    assert main.run(["log", "dump", *options]) == 0
    assert capsys.readouterr().out == java_tool(kafka_jars, "kafka.tools.DumpLogSegments", *options).decode()

    assert main.run(["log", "verify", str(broker.data_directory), "--json"]) == 0
    directory, *logs, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert (directory["broker_id"], directory["is_clean"], directory["problems"]) == ("1", False, [])
    assert (total["partitions"], total["not_verified"]) == (len(logs), 0)
    (verified,) = (log for log in logs if log["topic"] == "t")
    assert (verified["records"], verified["start"]["log_end_offset"], verified["start"]["lost_bytes"]) == (500, 500, 0)

    log = tmp_path / "state-change.log"
    log.write_text(broker.output())
    assert main.run(["log", "merge", "--logs", str(log), "--topic", "t", "--partitions", "0", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any((entry.get("broker"), entry.get("leader"), entry.get("leader_epoch")) == (1, 1, 0) for entry in entries)
