"""What Apache Kafka answers to the batches that klamm answers in tests/broker/requests/test_produced_batches.py, and
what librdkafka makes of both programs' answers."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.processes.helper import Helper
from klamm.protocol.error_codes import ErrorCode
from klamm.testing import Cluster
from support.oracles import RealKafka, RealZooKeeper
from support.produced_batches import HEADERS, RECORDS, send_all, topic_of


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka"), f"{real_zookeeper.address}/produced")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(list(topics)).values():
        made.result(120)


async def test_what_kafka_answers(kafka: RealKafka) -> None:
    cases = HEADERS | RECORDS
    create(
        kafka.bootstrap, *(NewTopic(topic_of(name), 1, 1, config=dict(case.configs)) for name, case in cases.items())
    )
    answers = await send_all(kafka.bootstrap, cases, time.time_ns() // 1_000_000)
    assert {
        name: (ErrorCode(answer.error_code), [one.batch_index for one in answer.record_errors])
        for name, answer in answers.items()
    } == {name: (case.kafka, list(case.refused)) for name, case in cases.items()}


def deliveries(bootstrap: str) -> dict[int, str]:
    """Of a hundred records in one batch, every tenth without a key: the error of each, by its number."""
    create(bootstrap, NewTopic("hundred", 1, 1, config={"cleanup.policy": "compact"}))
    # Nothing is sent before the batch is full.
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000, "batch.num.messages": 100, "retries": 0})
    errors: dict[int, str] = {}

    def delivered(error: KafkaError | None, message: Any) -> None:
        errors[int(message.value())] = "" if error is None else error.name()

    for number in range(100):
        key = None if number % 10 == 3 else b"k"
        producer.produce("hundred", key=key, value=b"%d" % number, partition=0, on_delivery=delivered)
    assert producer.flush(120) == 0
    return errors


def test_librdkafka_tells_the_records_that_are_wrong_from_those_beside_them(
    klamm_helper: Helper, kafka: RealKafka
) -> None:
    expected = {number: "INVALID_RECORD" if number % 10 == 3 else "_INVALID_DIFFERENT_RECORD" for number in range(100)}
    with Cluster(brokers=1, helper=klamm_helper) as cluster:
        of_klamm = deliveries(cluster.bootstrap)
    assert Counter(of_klamm.values()) == {"INVALID_RECORD": 10, "_INVALID_DIFFERENT_RECORD": 90}
    assert of_klamm == expected
    assert deliveries(kafka.bootstrap) == expected
