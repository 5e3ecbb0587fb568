"""Leaderships that leave a broker with it, and come back: on request, and by themselves. Real processes."""

from collections.abc import Callable

from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from klamm.processes.local_cluster import Server
from klamm.testing import Cluster, Helper

BROKERS = 3


def leaders(cluster: Cluster) -> list[int | None]:
    return [cluster.leader("t", number) for number in range(BROKERS)]


def preferred(cluster: Cluster) -> list[int]:
    return [cluster.replicas("t", number)[0] for number in range(BROKERS)]


def take_leaderships_away(cluster: Cluster, broker: int, end: Callable[[Server], None]) -> None:
    """Ends the broker and brings it back: it leads nothing, and is in every ISR."""
    end(broker)
    cluster.until(lambda: None not in leaders(cluster) and broker not in leaders(cluster))
    cluster.start(broker)
    cluster.until(lambda: all(len(cluster.isr("t", number)) == BROKERS for number in range(BROKERS)))


def test_leaderships_come_back_on_request(klamm_helper: Helper) -> None:
    with Cluster(BROKERS, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=BROKERS, replication_factor=BROKERS)
        wanted = preferred(cluster)
        assert leaders(cluster) == wanted
        take_leaderships_away(cluster, wanted[0], cluster.kill)
        take_leaderships_away(cluster, wanted[1], cluster.stop)
        assert leaders(cluster) != wanted
        # librdkafka: by name.
        lost = next(number for number in range(BROKERS) if leaders(cluster)[number] != wanted[number])
        librdkafka = AdminClient({"bootstrap.servers": cluster.bootstrap})
        partitions = [TopicPartition("t", lost), TopicPartition("t", BROKERS)]
        errors = librdkafka.elect_leaders(ElectionType.PREFERRED, partitions).result()
        assert [errors[partition] and errors[partition].code() for partition in partitions] == [
            None,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        ]
        assert leaders(cluster)[lost] == wanted[lost]
        # kafka-python: all partitions.
        kafka_python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        kafka_python.elect_leaders(0)
        kafka_python.close()
        assert leaders(cluster) == wanted


def test_leaderships_come_back_by_themselves(klamm_helper: Helper) -> None:
    properties = {"auto.leader.rebalance.enable": True, "leader.imbalance.check.interval.seconds": 1}
    with Cluster(BROKERS, helper=klamm_helper, properties=properties) as cluster:
        cluster.create_topic("t", partitions=BROKERS, replication_factor=BROKERS)
        wanted = preferred(cluster)
        cluster.kill(wanted[0])
        cluster.until(lambda: leaders(cluster)[0] not in (wanted[0], None))
        cluster.start(wanted[0])
        cluster.until(lambda: leaders(cluster) == wanted)
