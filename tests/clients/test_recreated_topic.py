"""An idempotent producer whose topic is deleted and created again continues, although no leader knows it any more."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support import oracles

TOPIC = "t"
RECORDS, BEFORE = 60, 20


@pytest.fixture
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    # The producer must not create the topic itself.
    with Cluster(1, properties={"auto.create.topics.enable": "false"}, helper=klamm_helper) as started:
        started.create_topic(TOPIC, partitions=1)
        yield started


def create_anew(cluster: Cluster) -> None:
    cluster.delete_topic(TOPIC)
    cluster.create_topic(TOPIC, partitions=1)


def test_librdkafka(cluster: Cluster) -> None:
    errors: list[KafkaError | None] = []
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})

    def delivered(error: KafkaError | None, message: Message) -> None:
        errors.append(error)
        offsets.append(message.offset())

    for number in range(2 * BEFORE):
        if number == BEFORE:
            create_anew(cluster)
        producer.produce(TOPIC, b"%d" % number, on_delivery=delivered)
        producer.flush(120)
    assert errors == [None] * 2 * BEFORE
    assert offsets == [*range(BEFORE), *range(BEFORE)]


@pytest.mark.java
@pytest.mark.long
@pytest.mark.parametrize("jars", ["kafka_jars", "kafka4_jars"], ids=["Kafka 2.8", "Kafka 4.3"])
def test_java(cluster: Cluster, jars: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    config = tmp_path / "producer.properties"
    config.write_text("enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=60000\n")
    options = ["--topic", TOPIC, "--max-messages", str(RECORDS), "--throughput", "20", "--producer.config", str(config)]
    command = oracles.java_command(
        request.getfixturevalue(jars),
        "org.apache.kafka.tools.VerifiableProducer",
        *options,
        "--bootstrap-server",
        cluster.bootstrap,
    )
    acknowledged, errors = 0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # Kafka 4 logs to stdout
            event = json.loads(line)
            acknowledged += event["name"] == "producer_send_success"
            if event["name"] == "producer_send_error":
                errors.append(event)
            if acknowledged == BEFORE and event["name"] == "producer_send_success":
                create_anew(cluster)
    assert (acknowledged, errors) == (RECORDS, [])
