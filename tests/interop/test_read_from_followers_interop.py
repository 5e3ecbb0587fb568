"""Consumers in racks read from followers in a cluster of one Apache Kafka 2.8.2 and two klamm brokers (KIP-392): each
program, as the leader, names the other as the follower, and each follower serves them."""

from pathlib import Path
from unittest.mock import patch

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.read_replicas import ReadReplicas
from klamm.spark import arrow
from support.clients import Librdkafka, Record
from support.durability.brokers import ProcessBrokers
from support.rack_readers import READERS, RackReader

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
# (leader, follower); broker 0 is Kafka's.
PAIRS = [(0, 1), (1, 0), (1, 2)]


def _followers_answers(bootstrap: str, topic: str, rack: str) -> int:
    """Reads 500 records with klamm's reader; returns how many answers with records came from a follower."""
    with patch.object(ReadReplicas, "serves", autospec=True) as serves:
        read = arrow.read(bootstrap, subscribe=topic, columns=["value"], options={"kafka.client.rack": rack})
        assert read.read_all()["value"].to_pylist() == [b"value"] * 500
    return serves.call_count


@pytest.mark.long
def test_either_program_sends_consumers_to_the_other(kafka_jars: Path, tmp_path: Path) -> None:
    racks = {broker_id: {"broker.rack": f"rack-{broker_id}"} for broker_id in range(3)}
    properties = {"replica.selector.class": SELECTOR}
    with ProcessBrokers.running(tmp_path, ["kafka", "klamm", "klamm"], properties, racks) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        readers = []
        try:
            for leader, follower in PAIRS:
                topic = f"of-{leader}-{follower}"
                admin.create_topics([NewTopic(topic, 1, replica_assignment=[[leader, follower]])])[topic].result(120)
                Librdkafka.write(brokers.bootstrap, topic, [Record(b"value")] * 500)
                readers = [
                    RackReader(
                        reader, kafka_jars, tmp_path, brokers.bootstrap, topic, rack=f"rack-{follower}", count=1000
                    )
                    for reader in READERS
                ]
                for reader in readers:
                    reader.wait_until(follower, 500)
                assert _followers_answers(brokers.bootstrap, topic, f"rack-{follower}") > 0
                Librdkafka.write(brokers.bootstrap, topic, [Record(b"value")] * 500)
                for reader in readers:
                    reader.wait_until(follower, 1000)
                    reader.finish()
        finally:
            for reader in readers:
                reader.kill()
