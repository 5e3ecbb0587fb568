"""`klamm verify replicas` on Apache Kafka's brokers, beside Kafka's kafka-replica-verification.

The short path is a broker with one replica of each partition; the long ones plant differences between three.
"""

import contextlib
import io
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from support.oracles import SMALL_HEAP, RealKafka, RealKraft, RealZooKeeper, java_command
from support.planted import change_records, drop_batch, first_segment, flip_bit

RECORDS = 40
KAFKA_2_TOOL, KAFKA_4_TOOL = "kafka.tools.ReplicaVerificationTool", "org.apache.kafka.tools.ReplicaVerificationTool"
# The option for the topics.
INCLUDE = {KAFKA_2_TOOL: "--topic-white-list", KAFKA_4_TOOL: "--topics-include"}


def create(bootstrap: str, name: str, assignment: list[list[int]], **configs: str) -> None:
    topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=configs)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[name].result(120)


def produce(bootstrap: str, topic: str, keys: Callable[[int], bytes | None] = lambda number: None) -> None:
    """Writes records, each as a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"value-%d" % number, keys(number), partition=0)
    assert producer.flush(120) == 0


def wait_in_sync(bootstrap: str, topic: str, replicas: int = 3) -> None:
    deadline = time.monotonic() + 120
    admin = AdminClient({"bootstrap.servers": bootstrap})
    while len(admin.list_topics(topic, timeout=120).topics[topic].partitions[0].isrs) < replicas:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ours(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The one partition that `klamm verify replicas --json` describes."""
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        ended = main.run(["verify", "replicas", "--json", *arguments])
    assert ended == code, said.getvalue() + errors.getvalue()
    (partition,) = json.loads(said.getvalue())["partitions"]
    found: dict[str, Any] = partition
    return found


def theirs(jars: Path, bootstrap: str, topic: str, until: str, tool: str = KAFKA_2_TOOL) -> list[str]:
    """What Kafka's tool says, without the time, up to the line that matches. It has no end of its own."""
    command = java_command(
        jars, tool, "--broker-list", bootstrap, INCLUDE[tool], topic,
        "--time", "-2", "--report-interval-ms", "100", "--max-wait-ms", "100", options=SMALL_HEAP,
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    timer = threading.Timer(40, process.kill)
    timer.start()
    lines = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(re.sub(r"^\S+ \S+: ", "", line.rstrip()))
            if re.search(until, line):
                break
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    return lines


def test_a_broker_of_kafka_2_8_answers_as_a_replica(real_kafka: RealKafka) -> None:
    create(real_kafka.bootstrap, "verified-alone", [[0]])
    produce(real_kafka.bootstrap, "verified-alone")
    partition = ours("--bootstrap-server", real_kafka.bootstrap, "--topic", "verified-alone")
    assert (partition["verdict"], partition["to_offset"], partition["replicas"]) == ("equal", RECORDS, [0])


@pytest.fixture(scope="module")
def kafkas(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealKafka]]:
    """Three brokers of Kafka 2.8.2; the last one does not compact."""
    directory = tmp_path_factory.mktemp("kafkas")
    brokers = [
        RealKafka(
            kafka_jars,
            directory / str(broker_id),
            f"{real_zookeeper.connect}/verification",
            broker_id=broker_id,
            properties={
                "log.cleaner.enable": "false" if broker_id == 2 else "true",
                "log.cleaner.backoff.ms": 100,
                "replica.high.watermark.checkpoint.interval.ms": 200,
                "log.cleaner.dedupe.buffer.size": 10_000_000,
            },
        )
        for broker_id in range(3)
    ]
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


@pytest.mark.long
def test_both_tools_find_what_is_planted_on_kafka_2_8(kafka_jars: Path, kafkas: list[RealKafka]) -> None:
    bootstrap, last = kafkas[0].bootstrap, kafkas[2]
    for topic in ("changed", "flipped", "dropped"):
        create(bootstrap, topic, [[0, 1, 2]])
        produce(bootstrap, topic)
        partition = ours("--bootstrap-server", bootstrap, "--topic", topic)
        assert (partition["verdict"], partition["to_offset"]) == ("equal", RECORDS)
    assert theirs(kafka_jars, bootstrap, "changed", "max lag")[-1] == (
        "max lag is 0 for partition changed-0 at offset 40 among 1 partitions"
    )
    last.stop()
    assert change_records(first_segment(last.data_directory, "changed"), 3) == (3, 3)
    assert flip_bit(first_segment(last.data_directory, "flipped"), 7) == (7, 7)
    assert drop_batch(first_segment(last.data_directory, "dropped"), 20) == (20, 20)
    last.start()
    for topic in ("changed", "flipped", "dropped"):
        wait_in_sync(bootstrap, topic)

    (difference,) = ours("--bootstrap-server", bootstrap, "--topic", "changed", code=1)["differences"]
    assert (difference["kind"], difference["first_offset"], difference["replica"]) == ("checksum", 3, 2)
    said = theirs(kafka_jars, bootstrap, "changed", "unmatched")
    assert said[-1].startswith("partition changed-0 has unmatched checksum at offset 3; ")
    assert f"replica 2's checksum {difference['value']}" in said[-1]

    (difference,) = ours("--bootstrap-server", bootstrap, "--topic", "flipped", code=1)["differences"]
    assert (difference["kind"], difference["first_offset"], difference["replica"]) == ("corrupt", 7, 2)
    # Kafka's tool looks at the checksum that the batch has in its header.
    assert theirs(kafka_jars, bootstrap, "flipped", "max lag")[-1].startswith("max lag is 0 ")

    (difference,) = ours("--bootstrap-server", bootstrap, "--topic", "dropped", code=1)["differences"]
    assert (difference["kind"], difference["first_offset"], difference["replica"]) == ("missing", 20, 2)
    # It compares the batch behind the missing one with the missing one, and then hangs.
    assert re.fullmatch(
        r"partition dropped-0: replica \d's offset 2[01] doesn't match replica \d's offset 2[01]",
        theirs(kafka_jars, bootstrap, "dropped", "match")[-1],
    )


@pytest.mark.long
def test_replicas_that_kafka_has_compacted_at_different_times_are_equal(kafkas: list[RealKafka]) -> None:
    bootstrap = kafkas[0].bootstrap
    configs = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0.01"}
    create(bootstrap, "compacted", [[0, 1, 2]], **configs)
    produce(bootstrap, "compacted", lambda number: b"key-%d" % (number % 3))
    sizes = [0, 0, 0]
    deadline = time.monotonic() + 120
    while not sizes[0] < sizes[2]:
        assert time.monotonic() < deadline
        time.sleep(0.5)
        sizes = [
            sum(path.stat().st_size for path in (kafka.data_directory / "compacted-0").glob("*.log"))
            for kafka in kafkas
        ]
    partition = ours("--bootstrap-server", bootstrap, "--topic", "compacted")
    assert (partition["verdict"], partition["to_offset"], partition["is_compacted"]) == ("equal", RECORDS, True)
    checkpoints = [kafka.data_directory / "replication-offset-checkpoint" for kafka in kafkas]
    while not all(f"compacted 0 {RECORDS}\n" in checkpoint.read_text() for checkpoint in checkpoints):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    directories = ",".join(str(kafka.data_directory) for kafka in kafkas)
    partition = ours("--log-dirs", directories, "--topic", "compacted")
    assert (partition["verdict"], partition["to_offset"]) == ("equal", RECORDS)


@pytest.mark.long
def test_both_tools_find_what_is_planted_on_kafka_4_in_kraft_mode(kafka4_jars: Path, real_kraft: RealKraft) -> None:
    last = real_kraft.broker(3)
    create(real_kraft.bootstrap, "verified", [[1, 2, 3]])
    produce(real_kraft.bootstrap, "verified")
    partition = ours("--bootstrap-server", real_kraft.bootstrap, "--topic", "verified")
    assert (partition["verdict"], partition["to_offset"], partition["replicas"]) == ("equal", RECORDS, [1, 2, 3])
    last.stop()
    places = change_records(first_segment(last.data_directory, "verified"), 3)
    segment = first_segment(last.data_directory, "verified")
    assert (places, drop_batch(segment, 20)) == ((3, 3), (20, 20))
    last.start()
    wait_in_sync(real_kraft.bootstrap, "verified")
    directories = ",".join(str(broker.data_directory) for broker in real_kraft.brokers)
    for where in (("--bootstrap-server", real_kraft.bootstrap), ("--log-dirs", directories)):
        partition = ours(*where, "--topic", "verified", code=1)
        found = [(each["kind"], each["first_offset"], each["replica"]) for each in partition["differences"]]
        assert found == [("checksum", 3, 3), ("missing", 20, 3)]
    said = theirs(kafka4_jars, real_kraft.bootstrap, "verified", "match", KAFKA_4_TOOL)
    assert said[-1].startswith("partition verified-0 has unmatched checksum at offset 3; ")
