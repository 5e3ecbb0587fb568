"""The `klamm` command with Apache Kafka 2.8.2: it describes topics as kafka-topics does, and shares records with it."""

import time
from pathlib import Path

import pytest

from klamm.cli import main
from support.long_rows import long
from support.oracles import JavaTools, RealKafka, java_tool


def klamm(kafka: RealKafka, capsysbinary: pytest.CaptureFixture[bytes], *arguments: str) -> bytes:
    code = main.run([*arguments, "--bootstrap-server", kafka.bootstrap])
    output = capsysbinary.readouterr()
    assert code == 0, output.err
    return output.out


def test_topics_are_described_as_kafka_topics_does(
    real_kafka: RealKafka, kafka_tools: JavaTools, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    kafka_topics = ("kafka.admin.TopicCommand", "--bootstrap-server", real_kafka.bootstrap)
    configs = ("--config", "segment.bytes=100000", "--config", "cleanup.policy=compact,delete")
    klamm(real_kafka, capsysbinary, "topics", "create", "--topic", "tools-a", "--partitions", "3", *configs)
    kafka_tools.run(*kafka_topics, "--create", "--topic", "tools-b", "--replica-assignment", "0,0")
    ours = klamm(real_kafka, capsysbinary, "topics", "describe", "--topic", "tools-.*")
    theirs = kafka_tools.run(*kafka_topics, "--describe", "--topic", "tools-.*")
    assert blocks(ours) == blocks(theirs)
    klamm(real_kafka, capsysbinary, "topics", "alter", "--topic", "tools-b", "--partitions", "4", "--yes")
    assert b"PartitionCount: 4" in kafka_tools.run(*kafka_topics, "--describe", "--topic", "tools-b")
    klamm(real_kafka, capsysbinary, "topics", "delete", "--topic", "tools-.*", "--yes")
    listed = kafka_tools.run(*kafka_topics, "--list").split()
    assert b"tools-a" not in listed and b"tools-b" not in listed


def test_topics_and_elections_go_through_the_znodes_too(
    real_kafka: RealKafka, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    over_znodes = ("--zookeeper", str(real_kafka.properties["zookeeper.connect"]))

    def run(*arguments: str) -> bytes:
        assert main.run([*arguments, *over_znodes]) == 0
        return capsysbinary.readouterr().out

    run("topics", "create", "--topic", "tools-z", "--partitions", "2", "--replication-factor", "1")
    over_brokers = ("topics", "describe", "--topic", "tools-z")
    deadline_s = time.monotonic() + 120
    while (ours := klamm(real_kafka, capsysbinary, *over_brokers, "--if-exists")).count(b"Leader: 0") < 2:
        assert time.monotonic() < deadline_s
    assert run("topics", "describe", "--topic", "tools-z") == ours
    elected = b"Valid replica already elected for partitions tools-z-0\n"
    named = ("elect", "preferred", "--topic", "tools-z", "--partition", "0", "--yes")
    assert (run(*named), klamm(real_kafka, capsysbinary, *named)) == (elected, elected)
    assert run("topics", "delete", "--topic", "tools-z", "--yes").startswith(b"Topic tools-z is marked for deletion.")


def blocks(described: bytes) -> list[bytes]:
    """The description of each topic, in any order: Kafka's tool has none."""
    return sorted(described.strip().replace(b"\nTopic: ", b"\n\nTopic: ").split(b"\n\n"))


@pytest.mark.parametrize("compression_type", ["lz4", *long("none", "gzip", "snappy", "zstd")])
def test_records_are_shared_with_the_console_clients(
    real_kafka: RealKafka,
    kafka_jars: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    compression_type: str,
) -> None:
    topic = f"tools-{compression_type}"
    content = b"".join(b"%d:x\xc3\xa9%s\n" % (number, b"y" * number) for number in range(300))
    source = tmp_path / "source"
    source.write_bytes(content)
    produce = ("produce", "--topic", topic, "--file", str(source), "--compression-type", compression_type)
    klamm(real_kafka, capsysbinary, *produce)
    consumer = ("kafka.tools.ConsoleConsumer", "--bootstrap-server", real_kafka.bootstrap, "--topic", topic)
    # Without a group, for which the broker would first create __consumer_offsets.
    read_all = ("--partition", "0", "--offset", "earliest", "--max-messages", "300")
    assert java_tool(kafka_jars, *consumer, *read_all) == content

    producer = ("kafka.tools.ConsoleProducer", "--bootstrap-server", real_kafka.bootstrap, "--topic", topic)
    java_tool(kafka_jars, *producer, "--compression-codec", compression_type, stdin=content)
    consume = ("consume", "--topic", topic, "--offset", "earliest", "--max-messages", "600")
    assert klamm(real_kafka, capsysbinary, *consume) == content * 2
