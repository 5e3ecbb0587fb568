"""klamm pipeline load on clusters with a planted skew and a planted hot key, of klamm, Kafka 2.8.2 and Kafka 4.x.

Its numbers are those of the records and of the disks, and a reassignment made from its file balances the load.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from klamm.cli.reassign.load_file import parse_load
from klamm.client.options import ClientOptions
from klamm.processes.helper import Helper
from klamm.spark.pipelines.load import count_load
from klamm.spark.pipelines.load_options import LoadOptions
from klamm.testing.cluster import Cluster
from support.oracles import RealKafka, RealKraft, RealZooKeeper
from support.spark.producing import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"
MINUTE_MS = 60_000
# 2024-05-01, 10:00 UTC.
BEGIN_MS = 1_714_557_600_000
WINDOWS = 4
# Records of each partition in a window of a minute: partition 0 has three times the mean.
RECORDS = [300, *[75] * 8]
VALUE = b"v" * 200


@pytest.fixture(scope="module")
def cluster_of_three(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as cluster:
        yield cluster


def plant(bootstrap: str, brokers: Sequence[int]) -> None:
    """All partitions are on the first two brokers. Every other record of partition 0 has the key vip."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assignment = [list(brokers[:2])] * len(RECORDS)
    topic = NewTopic(TOPIC, len(RECORDS), replica_assignment=assignment, config={"retention.ms": "-1"})
    admin.create_topics([topic])[TOPIC].result()
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 50, "acks": "all", "linger.ms": 20})
    failed: list[Any] = []
    for window in range(WINDOWS):
        for partition, count in enumerate(RECORDS):
            for number in range(count):
                key = b"vip" if partition == 0 and number % 2 else b"customer-%d-%d-%d" % (window, partition, number)
                producer.produce(
                    TOPIC,
                    VALUE,
                    key,
                    partition,
                    on_delivery=lambda error, _: error and failed.append(error),
                    timestamp=BEGIN_MS + window * MINUTE_MS + number,
                )
        # So that no batch has records of two windows.
        assert producer.flush(120) == 0
    assert not failed, failed


def records_of(bootstrap: str) -> Counter[tuple[int, int]]:
    """How many records each partition has in each minute, as an independent consumer reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counting", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(len(RECORDS))])
    found: Counter[tuple[int, int]] = Counter()
    while found.total() < WINDOWS * sum(RECORDS):
        messages = consumer.consume(1000, timeout=30)
        assert messages
        for message in messages:
            assert message.error() is None
            partition = message.partition()
            assert partition is not None
            found[partition, message.timestamp()[1] // MINUTE_MS * MINUTE_MS] += 1
    consumer.close()
    return found


def bytes_of(data_directory: Path, partition: int) -> int:
    return sum(each.stat().st_size for each in (data_directory / f"{TOPIC}-{partition}").glob("*.log"))


def run(*arguments: object, code: int = 0) -> Any:
    command = [sys.executable, "-m", "klamm.cli.main", "pipeline", "load", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stderr
    assert "FutureWarning" not in done.stderr
    return json.loads(done.stdout)


def check(
    bootstrap: str,
    brokers: Sequence[int],
    directory_of: Callable[[int], Path],
    spark_connect: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(bootstrap, brokers)
    output, page = tmp_path / "load.json", tmp_path / "load.html"
    where = ["--bootstrap-server", bootstrap, "--topic", "ord.*"]
    chosen = ["--start-time", "earliest", "--window", "1m", "--hot-keys", 3]
    found = run(*where, *chosen, "--output", output, "--report", page, "--remote", spark_connect)

    counted = {
        (each["partition"], begin_ms): records
        for each in found["partitions"]
        for begin_ms, _, records, _ in each["windows"]
    }
    assert counted == records_of(bootstrap)
    assert found["window_ms"] == MINUTE_MS
    sizes = {each["partition"]: each["bytes"] for each in found["partitions"]}
    assert sizes == {partition: bytes_of(directory_of(brokers[0]), partition) for partition in range(len(RECORDS))}
    total = sum(sizes.values())
    assert {each["broker"]: (each["leader_bytes"], each["follower_bytes"]) for each in found["brokers"]} == {
        brokers[0]: (total, 0),
        brokers[1]: (0, total),
        brokers[2]: (0, 0),
    }
    (topic,) = found["topics"]
    assert topic["hot"] == [{"partition": 0, "to_mean": pytest.approx(len(sizes) * sizes[0] / total)}]
    assert topic["max_to_mean"] > 2.5
    hottest, *others = found["hot_keys"]
    vips = WINDOWS * RECORDS[0] / 2
    assert (hottest["key"], hottest["partition"], hottest["records"]) == ("vip", 0, vips)
    assert (hottest["at_least"], hottest["at_most"]) == (vips, vips)
    assert {each["records"] for each in others} == {1}
    assert "orders-0" in page.read_text(encoding="utf-8")

    # The plan that is made from the file.
    load = parse_load(output.read_bytes(), str(output))
    call = ["reassign", "generate", "--bootstrap-server", bootstrap, "--topic", TOPIC]
    capsys.readouterr()
    assert main.run([*call, "--load", str(output), "--balance", "load", "--json"]) == 0
    proposed = json.loads(capsys.readouterr().out)["proposed"]["partitions"]
    placed = {each["partition"]: list(brokers[:2]) for each in found["partitions"]}
    placed |= {each["partition"]: each["replicas"] for each in proposed}
    written = dict.fromkeys(brokers, 0.0)
    for key, each in load.items():
        for broker in placed[key.partition]:
            written[broker] += each.bytes_in_per_s
    mean = sum(written.values()) / len(brokers)
    assert max(written.values()) <= 1.05 * mean
    assert min(written.values()) >= 0.95 * mean


def test_the_load_of_a_klamm_cluster(
    cluster_of_three: Cluster, spark_connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of_three
    check(
        cluster.bootstrap,
        cluster.broker_ids,
        lambda broker: cluster.broker(broker).data_directory,
        spark_connect,
        tmp_path,
        capsys,
    )


def test_large_partitions_are_split_over_tasks_and_progress_is_shown(
    spark: "SparkSession", cluster_of_three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_of_three.create_topic("split", partitions=2, replication_factor=2)
    produce(cluster_of_three.bootstrap, "split", numbered(250), **{"batch.num.messages": 30})
    produce(cluster_of_three.bootstrap, "split", numbered(50, partition=1))
    monkeypatch.setattr("klamm.spark.pipelines.load.TASKS_AT_A_TIME", 2)
    hosts = (address.split(":") for address in cluster_of_three.bootstrap.split(","))
    client = ClientOptions(tuple((host, int(port)) for host, port in hosts))
    shown: list[tuple[int, int]] = []
    count = count_load(
        spark,
        client,
        lambda name: name == "split",
        LoadOptions(offsets_per_task=100, hot_keys=1),
        on_progress=lambda done, total: shown.append((done, total)),
    )
    assert [each.counted.total.records for each in count.partitions.values()] == [250, 50]
    assert shown == [(0, 300), (200, 300), (300, 300)]
    # No record has a key.
    assert (count.hot_keys, count.sampled_records) == ([], 300)


@pytest.mark.long
def test_the_load_of_a_kafka_cluster(
    kafka_jars: Path, spark_connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = RealZooKeeper(kafka_jars, tmp_path / "zookeeper")
    brokers: list[RealKafka] = []
    try:
        zookeeper.start()
        for broker_id in range(3):
            where = tmp_path / f"broker-{broker_id}"
            brokers.append(RealKafka(kafka_jars, where, zookeeper.connect, broker_id=broker_id))
            brokers[-1].start()
        directories = [broker.data_directory for broker in brokers]
        check(brokers[0].bootstrap, [0, 1, 2], directories.__getitem__, spark_connect, tmp_path, capsys)
    finally:
        for broker in brokers:
            broker.kill()
        zookeeper.kill()


@pytest.mark.long
def test_the_load_of_a_cluster_in_kraft_mode(
    kafka4_jars: Path, spark_connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = RealKraft(kafka4_jars, tmp_path / "kraft", size=3)
    try:
        cluster.start()
        directories = {broker_id: cluster.broker(broker_id).data_directory for broker_id in (1, 2, 3)}
        check(cluster.bootstrap, [1, 2, 3], directories.__getitem__, spark_connect, tmp_path, capsys)
    finally:
        cluster.kill()
