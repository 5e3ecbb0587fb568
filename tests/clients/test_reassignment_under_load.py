"""Partitions that move to other brokers while clients write: nothing is lost, and nothing is left behind."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from durability.check import check_load
from durability.load import Load
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from klamm.testing import Cluster

TOPIC = "moved"
PARTITIONS = 4


def ring(first: int) -> dict[int, list[int]]:
    """Three neighbours of six brokers for each partition."""
    return {number: [(first + number + offset) % 6 for offset in range(3)] for number in range(PARTITIONS)}


@contextmanager
def admin_of(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    """A client that asks no broker that is silent."""
    admin = KafkaAdminClient(bootstrap_servers=[each.address for each in cluster.brokers if not each.paused])
    try:
        yield admin
    finally:
        admin.close()


def alter(cluster: Cluster, targets: dict[int, list[int] | None]) -> None:
    with admin_of(cluster) as admin:
        wanted = {TopicPartition(TOPIC, number): target for number, target in targets.items()}
        assert admin.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)


def under_way(cluster: Cluster) -> dict[TopicPartition, dict[str, list[int]]]:
    with admin_of(cluster) as admin:
        return admin.list_partition_reassignments()


def has_moved(cluster: Cluster, targets: dict[int, list[int]]) -> bool:
    return all(
        cluster.replicas(TOPIC, number) == target and sorted(cluster.isr(TOPIC, number)) == sorted(target)
        for number, target in targets.items()
    )


def hosts(cluster: Cluster, number: int) -> set[int]:
    """The brokers with the partition's directory on disk."""
    return {broker.id for broker in cluster.brokers if (broker.data_directory / f"{TOPIC}-{number}").exists()}


def are_only_hosts(cluster: Cluster, targets: dict[int, list[int]]) -> bool:
    return all(hosts(cluster, number) == set(target) for number, target in targets.items())


@pytest.mark.parametrize("protocol", ["2.8", "2.4"])
def test_partitions_move_round_the_cluster_under_load(protocol: str) -> None:
    properties = {"min.insync.replicas": 2, "inter.broker.protocol.version": protocol}
    with Cluster(brokers=6, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        load = Load(cluster.bootstrap, TOPIC, PARTITIONS, records_per_s=1_000)
        # To all others, to some others, and into another order.
        for first in (0, 3, 2):
            alter(cluster, dict(ring(first)))
            cluster.until(lambda first=first: has_moved(cluster, ring(first)))
        backwards = {number: target[::-1] for number, target in ring(2).items()}
        alter(cluster, dict(backwards))
        cluster.until(lambda: has_moved(cluster, backwards))
        cluster.until(lambda: are_only_hosts(cluster, backwards))
        assert under_way(cluster) == {}
        load.finish()
        assert [report.problems() for report in check_load(cluster.bootstrap, load)] == [[], []]
        assert not any(writer.failed for writer in load.writers)


def test_brokers_die_while_partitions_move_under_load() -> None:
    with Cluster(brokers=6, properties={"min.insync.replicas": 2}) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        alter(cluster, dict(ring(0)))
        cluster.until(lambda: has_moved(cluster, ring(0)))
        load = Load(cluster.bootstrap, TOPIC, PARTITIONS, records_per_s=1_000)
        controller = cluster.controller_id()
        assert controller is not None
        alter(cluster, dict(ring(3)))
        cluster.kill(controller)
        cluster.start(controller)
        cluster.until(lambda: has_moved(cluster, ring(3)))
        # A broker of the target is silent: the others move, and what waits for it is taken back.
        silent = next(broker for broker in (1, 2) if broker != cluster.controller_id())
        cluster.pause(silent)
        alter(cluster, dict(ring(0)))
        cluster.until(lambda: all(silent in moving["replicas"] for moving in under_way(cluster).values()))
        waiting = [partition.partition for partition in under_way(cluster)]
        assert waiting
        alter(cluster, dict.fromkeys(waiting))
        expected = {number: ring(3 if number in waiting else 0)[number] for number in range(PARTITIONS)}
        cluster.resume(silent)
        cluster.until(
            lambda: all(sorted(cluster.isr(TOPIC, number)) == sorted(expected[number]) for number in expected)
        )
        assert {number: sorted(cluster.replicas(TOPIC, number)) for number in expected} == {
            number: sorted(target) for number, target in expected.items()
        }
        assert under_way(cluster) == {}
        load.finish()
        assert [report.problems() for report in check_load(cluster.bootstrap, load)] == [[], []]
