"""Partitions that move to other brokers while clients write: nothing is lost, and nothing is left behind."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from klamm.cli import main
from klamm.cli.reassign.access import BrokerAccess
from klamm.cli.reassign.throttles import ConfigKey
from klamm.cli.shared.options import ClusterOptions
from klamm.config.throttles import BROKER_THROTTLES, TOPIC_THROTTLES
from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.durability.check import check_load
from support.durability.load import Load

TOPIC = "moved"
PARTITIONS = 4


def ring(first: int, brokers: int = 6) -> dict[int, list[int]]:
    """Three neighbouring brokers for each partition."""
    return {number: [(first + number + offset) % brokers for offset in range(3)] for number in range(PARTITIONS)}


@contextmanager
def admin_of(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    """A client that has found the controller: kafka-python gives up when a broker that it asks for it is dead."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        under_way(admin)
        yield admin
    finally:
        admin.close()


def alter(admin: KafkaAdminClient, targets: dict[int, list[int] | None]) -> None:
    wanted = {TopicPartition(TOPIC, number): target for number, target in targets.items()}
    assert admin.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)


def under_way(admin: KafkaAdminClient) -> dict[TopicPartition, dict[str, list[int]]]:
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


def test_partitions_move_round_the_cluster_under_load(klamm_helper: Helper) -> None:
    with Cluster(brokers=6, properties={"min.insync.replicas": 2}, helper=klamm_helper) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        load = Load(cluster.bootstrap, TOPIC, PARTITIONS, records_per_s=1_000)
        backwards = {number: target[::-1] for number, target in ring(2).items()}
        with admin_of(cluster) as admin:
            # To all others, to some others, and into another order.
            for targets in (ring(0), ring(3), ring(2), backwards):
                alter(admin, dict(targets))
                cluster.until(partial(has_moved, cluster, targets))
            assert under_way(admin) == {}
        cluster.until(lambda: are_only_hosts(cluster, backwards))
        load.finish()
        assert [report.problems() for report in check_load(cluster.bootstrap, load)] == [[], []]
        assert not any(writer.failed for writer in load.writers)


def test_brokers_die_while_partitions_move_under_load(klamm_helper: Helper) -> None:
    with Cluster(
        brokers=6, properties={"min.insync.replicas": 2}, zookeeper_session_timeout_ms=15_000, helper=klamm_helper
    ) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        controller = cluster.controller_id()
        assert controller is not None
        with admin_of(cluster) as admin:
            alter(admin, dict(ring(0)))
            cluster.until(lambda: has_moved(cluster, ring(0)))
            load = Load(cluster.bootstrap, TOPIC, PARTITIONS, records_per_s=1_000)
            alter(admin, dict(ring(3)))
            cluster.kill(controller)
        cluster.start(controller)
        cluster.until(lambda: has_moved(cluster, ring(3)))
        with admin_of(cluster) as admin:
            # A broker of the target is dead, and nobody knows yet: what waits for it is taken back.
            dead = next(broker for broker in (1, 2) if broker != cluster.controller_id())
            cluster.kill(dead)
            alter(admin, dict(ring(0)))
            cluster.until(lambda: all(dead in moving["replicas"] for moving in under_way(admin).values()))
            waiting = [partition.partition for partition in under_way(admin)]
            assert waiting
            alter(admin, dict.fromkeys(waiting))
            assert under_way(admin) == {}
        cluster.start(dead)
        expected = {number: sorted(ring(3 if number in waiting else 0)[number]) for number in range(PARTITIONS)}
        cluster.until(lambda: all(sorted(cluster.isr(TOPIC, number)) == expected[number] for number in expected))
        assert {number: sorted(cluster.replicas(TOPIC, number)) for number in expected} == expected
        load.finish()
        assert [report.problems() for report in check_load(cluster.bootstrap, load)] == [[], []]


@pytest.mark.long
def test_the_tool_and_a_broker_die_during_a_throttled_reassignment_under_load(
    klamm_helper: Helper, tmp_path: Path
) -> None:
    with Cluster(brokers=5, properties={"min.insync.replicas": 2}, helper=klamm_helper) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        tool = ["reassign", "execute", "--bootstrap-server", cluster.bootstrap, "--yes", "--json"]
        first, second = plan(tmp_path, "first", 0), plan(tmp_path, "second", 2)
        assert main.run([*tool, "--reassignment-json-file", str(first)]) == 0
        load = Load(cluster.bootstrap, TOPIC, PARTITIONS, records_per_s=1_000)
        cluster.until(lambda: all(writer.acknowledged_count > 3_000 for writer in load.writers))
        # Copies of a few hundred kilobytes to each broker take some seconds.
        command = [sys.executable, "-m", "klamm.cli.main", *tool, "--throttle", "50000"]
        with subprocess.Popen(
            [*command, "--reassignment-json-file", str(second)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if json.loads(line)["event"] == "started")
            process.kill()
        victim = next(broker for broker in cluster.broker_ids if broker != cluster.controller_id())
        cluster.kill(victim)
        resume = [*tool, "--resume", "--reassignment-json-file", str(second)]
        assert main.run([*resume, "--throttle", "10000000", "--timeout", "1000"]) in (0, 1)
        cluster.start(victim)
        if second.with_suffix(".state.json").exists():
            assert main.run(resume) == 0
        assert not second.with_suffix(".state.json").exists()
        assert has_moved(cluster, ring(2, 5))
        load.finish()
        assert [report.problems() for report in check_load(cluster.bootstrap, load)] == [[], []]
        assert throttles(cluster) == {}


def plan(directory: Path, name: str, first: int) -> Path:
    """The ring as a file for `klamm reassign`."""
    file = directory / f"{name}.json"
    partitions = [{"topic": TOPIC, "partition": each, "replicas": ids} for each, ids in ring(first, 5).items()]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return file


def throttles(cluster: Cluster) -> dict[ConfigKey, str]:
    entities: dict[str, Sequence[str]] = {f"brokers/{broker}": BROKER_THROTTLES for broker in cluster.broker_ids}
    entities[f"topics/{TOPIC}"] = TOPIC_THROTTLES
    keys = [ConfigKey(entity, name) for entity, names in entities.items() for name in names]
    found = ClusterOptions(cluster.bootstrap).call(lambda client: BrokerAccess(client).read_configs(keys))
    return {key: value for key, value in found.items() if value is not None}
