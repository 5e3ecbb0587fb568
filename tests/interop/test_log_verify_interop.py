"""klamm log verify on a data directory of Apache Kafka 2.8.2: what it predicts is what Kafka's recovery does."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from support.oracles import RealKafka


def flip(path: Path) -> None:
    """In a record: some damaged headers stop Kafka's start."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def add_garbage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage" * 20)


DAMAGES: list[Callable[[Path], None] | None] = [None, flip, cut, add_garbage, Path.unlink]


def logs_of(directory: Path, partition: int) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (directory / f"t-{partition}").glob("*.log")}


@pytest.mark.long
def test_kafkas_recovery_does_what_was_predicted(
    kafka_jars: Path,
    real_zookeeper,
    tmp_path: Path,
    running: Callable[[RealKafka], RealKafka],
    capsys: pytest.CaptureFixture[str],
) -> None:
    properties = {"log.segment.bytes": 5_000, "log.index.interval.bytes": 500}
    chroot = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    kafka = running(RealKafka(kafka_jars, tmp_path / "kafka", chroot, properties=properties))
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("t", len(DAMAGES), 1)])["t"].result(120)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 1})
    for number in range(300):
        for partition in range(len(DAMAGES)):
            producer.produce("t", b"value %d " % number * 6, partition=partition)
        if number % 5 == 0:
            assert producer.flush(120) == 0
    assert producer.flush(120) == 0
    kafka.kill()
    directory = kafka.data_directory
    for partition, damage in enumerate(DAMAGES):
        segments = sorted((directory / f"t-{partition}").glob("*.log"))
        assert len(segments) > 4
        if damage is Path.unlink:
            # A missing index loses nothing.
            segments[1].with_suffix(".index").unlink()
        elif damage is not None:
            damage(segments[2])

    before = {partition: logs_of(directory, partition) for partition in range(len(DAMAGES))}
    assert main.run(["log", "verify", str(directory), "--topic", "t", "--json"]) == 1
    # The first line is about the directory, the last one about all.
    _, *told, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert before == {partition: logs_of(directory, partition) for partition in range(len(DAMAGES))}
    assert [each["partition"] for each in told] == list(range(len(DAMAGES)))
    assert told[0]["findings"] == []
    assert [bool(each["findings"]) for each in told] == [False, True, True, True, True]
    expected = {}
    for each in told:
        sizes = dict(before[each["partition"]])
        for name in each["start"]["dropped"]:
            del sizes[name]
        for change in each["start"]["cuts"]:
            sizes[change["file"]] = change["position"]
        expected[each["partition"]] = sizes
    assert expected[0] == before[0]
    assert expected[1] != before[1]

    chroot_path = chroot.partition("/")[2]
    real_zookeeper.forget_broker(f"/{chroot_path}")
    kafka.start()
    kafka.stop()
    assert {partition: logs_of(directory, partition) for partition in range(len(DAMAGES))} == expected
    assert main.run(["log", "verify", str(directory), "--topic", "t"]) == 0
