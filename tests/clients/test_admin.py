"""Administration through the clients' own admin classes."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka.admin import KafkaAdminClient

from support.clients import KafkaPython, Librdkafka, Record
from support.oracles import java_tool


def error_of(future: object) -> str:
    with pytest.raises(KafkaException) as raised:
        future.result(120)  # type: ignore[attr-defined]  # a Future, from a library without annotations
    name: str = raised.value.args[0].name()
    return name


def partition_count(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=120).topics[topic].partitions)


def test_create_list_describe_delete(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("admin-a", 3, 1)])["admin-a"].result(120)
    assert error_of(admin.create_topics([NewTopic("admin-a", 3, 1)])["admin-a"]) == "TOPIC_ALREADY_EXISTS"
    metadata = admin.list_topics(timeout=120)
    assert "admin-a" in metadata.topics
    (broker,) = metadata.brokers
    described = admin.describe_topics(confluent_kafka.TopicCollection(["admin-a"]))["admin-a"].result(120)
    assert [(p.id, p.leader.id, [r.id for r in p.replicas], [r.id for r in p.isr]) for p in described.partitions] == [
        (index, broker, [broker], [broker]) for index in range(3)
    ]
    admin.delete_topics(["admin-a"])["admin-a"].result(120)
    assert error_of(admin.delete_topics(["admin-a"])["admin-a"]) == "UNKNOWN_TOPIC_OR_PART"
    assert "admin-a" not in admin.list_topics(timeout=120).topics


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("admin-no-partitions", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("admin-two-replicas", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("admin-bad-config", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("admin-no-such-config", 1, 1, config={"no.such": "1"}), "INVALID_CONFIG"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_topics(admin: AdminClient, topic: NewTopic, error: str) -> None:
    assert error_of(admin.create_topics([topic])[topic.topic]) == error


def test_a_deleted_topic_made_again_is_empty(bootstrap: str, admin: AdminClient) -> None:
    for generation in (b"first", b"second"):
        create_once_deleted(admin, "admin-again")
        assert Librdkafka.write(bootstrap, "admin-again", [Record(generation)]) == [0]
        assert [record.value for record in Librdkafka.read(bootstrap, "admin-again", 1)] == [generation]
        admin.delete_topics(["admin-again"])["admin-again"].result(120)


def create_once_deleted(admin: AdminClient, topic: str) -> None:
    """Creates the topic; a deletion has been answered when brokers forget the topic, but may still be in progress."""
    deadline = time.monotonic() + 120
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
            return
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS" or time.monotonic() > deadline:
                raise


def test_more_partitions(bootstrap: str, admin: AdminClient, topic: str) -> None:
    Librdkafka.write(bootstrap, topic, [Record(b"old")])
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(120)
    assert partition_count(admin, topic) == 4
    Librdkafka.write(bootstrap, topic, [Record(b"new")], partition=3)
    assert Librdkafka.read(bootstrap, topic, 1, partition=3)[0].value == b"new"
    assert Librdkafka.read(bootstrap, topic, 1)[0].value == b"old"
    assert error_of(admin.create_partitions([NewPartitions(topic, 4)])[topic]) == "INVALID_PARTITIONS"
    assert partition_count(admin, topic) == 4


def test_describe_configs(admin: AdminClient, make_topic: Callable[..., str]) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, make_topic(retention_ms="1234567", segment_bytes="1048576"))
    configs = admin.describe_configs([resource])[resource].result(120)
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("1234567", False)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].is_default) == ("1048576", False)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].is_default) == ("delete", True)
    (broker,) = admin.list_topics(timeout=120).brokers
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    configs = admin.describe_configs([resource])[resource].result(120)
    assert configs["broker.id"].value == str(broker)
    assert configs["message.max.bytes"].value == "1048588"


def test_list_offsets_by_timestamp(bootstrap: str, admin: AdminClient, topic: str) -> None:
    # Not older than retention.ms, or the broker deletes them when it next looks.
    base = int(time.time() * 1000) - 3_600_000
    # Two batches, so that the search goes through the index and inside a batch.
    for first in (0, 5):
        Librdkafka.write(bootstrap, topic, [Record(b"x", timestamp_ms=base + 10 * i) for i in range(first, first + 5)])
    where = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        result: int = admin.list_offsets({where: spec})[where].result(120).offset
        return result

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    expected = {base - 1: 0, base: 0, base + 1: 1, base + 10: 1, base + 45: 5, base + 90: 9, base + 91: -1}
    assert {at: offset(OffsetSpec.for_timestamp(at)) for at in expected} == expected

    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    place = kafka.TopicPartition(topic, 0)
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 10}
    found = consumer.offsets_for_times({place: base + 45})[place]
    assert (found.offset, found.timestamp) == (5, base + 50)
    assert consumer.offsets_for_times({place: base + 91})[place] is None
    consumer.close()


def test_records_are_deleted(bootstrap: str, admin: AdminClient, topic: str) -> None:
    Librdkafka.write(bootstrap, topic, [Record(b"%d" % number) for number in range(10)])
    where = TopicPartition(topic, 0)
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])[where].result(120)
    assert deleted.low_watermark == 4
    assert error_of(admin.delete_records([TopicPartition(topic, 0, 11)])[where]) == "OFFSET_OUT_OF_RANGE"
    assert Librdkafka.read(bootstrap, topic, 1, offset=OFFSET_BEGINNING)[0].value == b"4"

    place = kafka.TopicPartition(topic, 0)
    python_admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    answer = python_admin.delete_records({place: 7})
    python_admin.close()
    assert answer[place]["low_watermark"] == 7
    assert admin.delete_records([TopicPartition(topic, 0, -1)])[where].result(120).low_watermark == 10
    assert admin.list_offsets({where: OffsetSpec.earliest()})[where].result(120).offset == 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("jars", "main"),
    [
        ("kafka_jars", "kafka.admin.DeleteRecordsCommand"),
        ("kafka4_jars", "org.apache.kafka.tools.DeleteRecordsCommand"),
    ],
)
def test_kafkas_own_tool_deletes_records(
    request: pytest.FixtureRequest, bootstrap: str, topic: str, tmp_path: Path, jars: str, main: str
) -> None:
    Librdkafka.write(bootstrap, topic, [Record(b"%d" % number) for number in range(5)])
    offsets = {"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(offsets), encoding="utf-8")
    arguments = ("--bootstrap-server", bootstrap, "--offset-json-file", tmp_path / "offsets.json")
    answer = java_tool(request.getfixturevalue(jars), main, *arguments)
    assert f"partition: {topic}-0\tlow_watermark: 3".encode() in answer
    assert Librdkafka.read(bootstrap, topic, 1, offset=OFFSET_BEGINNING)[0].value == b"3"


def test_cluster(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(120)
    (node,) = cluster.nodes
    assert cluster.cluster_id
    assert cluster.controller.id == node.id


def test_log_dirs(bootstrap: str, topic: str) -> None:
    KafkaPython.write(bootstrap, topic, [Record(b"x" * 1000)])
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        brokers = admin.describe_log_dirs()
    finally:
        admin.close()
    (directory,) = brokers[0]["log_dirs"]
    (found,) = [entry for entry in directory["topics"] if entry["name"] == topic]
    (partition,) = found["partitions"]
    assert partition["partition_index"] == 0
    assert 1000 < partition["partition_size"] < 1200


def test_consumers_that_wait_are_told_at_once(bootstrap: str, topic: str) -> None:
    """A fetch that waits for data ends with the record's arrival, long before fetch.wait.max.ms."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 120000,
    }
    consumer = confluent_kafka.Consumer({**config, "socket.timeout.ms": 180000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1) is None
    Librdkafka.write(bootstrap, topic, [Record(b"news")])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"news"
    consumer.close()
