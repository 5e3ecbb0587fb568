"""klamm log dump beside kafka-dump-log: the same files, the same lines."""

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from klamm.storage.log.log_config import LogConfig
from support.log_directories import fill_with_all_kinds, make_log_directory
from support.oracles import JavaTools, RealKafka

KINDS = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot")


def files(directory: Path, kinds: Iterable[str] = KINDS) -> str:
    return ",".join(str(path) for kind in kinds for path in sorted(directory.glob(kind)))


def compare(tools: JavaTools, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines, which are those of Kafka's tool."""
    theirs = tools.run("kafka.tools.DumpLogSegments", *arguments).decode().splitlines()
    capsys.readouterr()
    assert main.run(["log", "dump", *arguments]) == 0
    ours = capsys.readouterr().out.splitlines()
    assert ours == theirs
    return ours


def test_a_directory_of_klamm(kafka_tools: JavaTools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = LogConfig(segment_bytes=5000, index_interval_bytes=500)
    make_log_directory(tmp_path, fill=fill_with_all_kinds, config=config)
    every = files(tmp_path / "t-0")
    assert len(compare(kafka_tools, capsys, "--files", every, "--print-data-log")) > 500
    compare(kafka_tools, capsys, "--files", every, "--print-data-log", "--skip-record-metadata")
    compare(kafka_tools, capsys, "--files", files(tmp_path / "t-0", ["*index"]), "--index-sanity-check")


@pytest.mark.long
def test_a_directory_of_a_killed_kafka(
    kafka_jars: Path,
    kafka_tools: JavaTools,
    real_zookeeper,
    tmp_path: Path,
    running: Callable[[RealKafka], RealKafka],
    capsys: pytest.CaptureFixture[str],
) -> None:
    properties = {"log.segment.bytes": 20_000, "log.index.interval.bytes": 500, "offsets.topic.num.partitions": 1}
    chroot = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    kafka = running(
        RealKafka(
            kafka_jars,
            tmp_path / "kafka",
            chroot,
            properties={**properties, "transaction.state.log.num.partitions": 1},
        )
    )
    kafka.start()
    servers = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient({**servers})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(120)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({**servers, "compression.type": codec, "linger.ms": 1, "enable.idempotence": True})
        for number in range(100):
            producer.produce("t", b"\xff%d" % number * 5, key=b"k" if number % 2 else None, headers={"a": b"b"})
            if number % 7 == 0:
                producer.flush()
        assert producer.flush(120) == 0
    transactional = Producer({**servers, "transactional.id": "tx"})
    transactional.init_transactions(120)
    for number in range(6):
        transactional.begin_transaction()
        transactional.produce("t", b"%d" % number)
        transactional.flush()
        (transactional.abort_transaction if number % 2 else transactional.commit_transaction)(60)
    transactional.begin_transaction()
    transactional.produce("t", b"open")
    transactional.flush()
    consumer = Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["t"])
    message = consumer.poll(60)
    assert message is not None
    consumer.commit(asynchronous=False)
    consumer.close()
    kafka.kill()

    data = kafka.data_directory
    for options in (["--print-data-log"], ["--deep-iteration"], ["--verify-index-only"], []):
        compare(kafka_tools, capsys, "--files", files(data / "t-0"), *options)
    groups = compare(
        kafka_tools, capsys, "--files", files(data / "__consumer_offsets-0", ["*.log"]), "--offsets-decoder"
    )
    assert any("offset_commit::group=g,partition=t-0 payload: offset=" in line for line in groups)
    assert any('group_metadata::group=g payload: {"protocolType":"consumer"' in line for line in groups)
    transactions = compare(
        kafka_tools, capsys, "--files", files(data / "__transaction_state-0", ["*.log"]), "--transaction-log-decoder"
    )
    assert any("state=CompleteAbort" in line for line in transactions)
    assert any("state=Ongoing,partitions=[t-0]" in line for line in transactions)
