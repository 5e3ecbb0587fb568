"""The view of a cluster is the same over the wire and from the znodes."""

import pytest

from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli.shared.options import ClusterOptions
from klamm.diagnosis.cluster_view import ClusterView, PartitionView, read_cluster, read_znodes
from klamm.processes.helper import Helper
from klamm.testing import Cluster


def test_replicas_that_a_reassignment_adds_and_removes() -> None:
    moving = PartitionView(1, 5, (4, 1, 2), (1, 2), adding=(4,), removing=(1,))
    assert moving.is_reassigning
    assert (moving.target, moving.origin) == ((4, 2), (1, 2))


@pytest.fixture(scope="module")
def views(klamm_helper: Helper) -> tuple[ClusterView, ClusterView]:
    with Cluster(
        2, broker_properties={0: {"broker.rack": "a"}, 1: {"broker.rack": "b"}}, helper=klamm_helper
    ) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=2)
        over_the_wire = ClusterOptions(cluster.bootstrap).call(read_cluster)
        return over_the_wire, run_with_zookeeper(cluster.zookeeper, read_znodes)


def test_both_sources_tell_the_same(views: tuple[ClusterView, ClusterView]) -> None:
    over_the_wire, from_znodes = views
    assert over_the_wire == from_znodes


def test_a_view_has_racks_and_replicas(views: tuple[ClusterView, ClusterView]) -> None:
    view = views[0]
    assert {broker.broker_id: broker.rack for broker in view.brokers.values()} == {0: "a", 1: "b"}
    assert {number: set(each.replicas) for number, each in view.of_topics()["t"].items()} == {0: {0, 1}, 1: {0, 1}}
