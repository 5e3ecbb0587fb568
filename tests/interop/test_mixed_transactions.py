"""One broker of Apache Kafka 2.8.2 and one of klamm: each coordinates transactions whose partitions the other leads.

Both ways, with each version of WriteTxnMarkers that brokers of Kafka 2.8 send one another.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.durability.brokers import ProcessBrokers

TIMEOUT_S = 120
KAFKA, KLAMM = 0, 1
PROPERTIES: dict[str, str | int] = {
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 2,
}
# Of ids and of groups: the codes of the letters are 97 and 98, so each belongs to another of two partitions.
NAMES = ("a", "b")


@pytest.fixture(params=["2.8", pytest.param("2.7", marks=pytest.mark.long)])
def brokers(request: pytest.FixtureRequest, kafka_jars: Path, tmp_path: Path) -> Iterator[ProcessBrokers]:
    properties = PROPERTIES | {"inter.broker.protocol.version": request.param}
    with ProcessBrokers.running(tmp_path, ["kafka", "klamm"], properties) as running:
        yield running


def test_each_program_ends_transactions_in_the_others_partitions(brokers: ProcessBrokers) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic("t", 2, replica_assignment=[[KAFKA], [KLAMM]])])["t"].result(TIMEOUT_S)
    for name in NAMES:
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": name})
        producer.init_transactions(TIMEOUT_S)
        for number, commits in enumerate((True, False, True)):
            write(brokers, producer, f"{name}{number}", offset=10 * number, commits=commits)
    assert sorted(brokers.leader("__transaction_state", number) for number in (0, 1)) == [KAFKA, KLAMM]
    assert sorted(brokers.leader("__consumer_offsets", number) for number in (0, 1)) == [KAFKA, KLAMM]
    wanted = {partition: ["a0", "a2", "b0", "b2"] for partition in (0, 1)}
    brokers.until(lambda: {number: committed(brokers, number) for number in wanted} == wanted, "records are missing")
    settled = {group: [20, 20] for group in NAMES}
    brokers.until(lambda: {group: offsets(admin, group) for group in NAMES} == settled, "offsets are missing")


def write(brokers: ProcessBrokers, producer: Producer, value: str, offset: int, *, commits: bool) -> None:
    """One transaction in both partitions, with offsets of both groups."""
    producer.begin_transaction()
    for partition in 0, 1:
        producer.produce("t", value, partition=partition)
    for group in NAMES:
        member: Any = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group})
        positions = [TopicPartition("t", partition, offset) for partition in (0, 1)]
        producer.send_offsets_to_transaction(positions, member.consumer_group_metadata(), TIMEOUT_S)
        member.close()
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def committed(brokers: ProcessBrokers, partition: int) -> list[str]:
    """The values of a partition up to its last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", partition, 0)])
    values = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return values
        values.append((message.value() or b"").decode())


def offsets(admin: AdminClient, group: str) -> list[int]:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition("t", partition) for partition in (0, 1)])
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    return [one.offset for one in found.topic_partitions]
