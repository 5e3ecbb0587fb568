"""The recording of a cluster under test: by hand, of a failed test, and what it has."""

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.client.cluster import ClusterClient
from klamm.net.client import ConnectionOptions
from klamm.processes.helper import Helper
from klamm.protocol.vocabulary import NO_LEADER
from klamm.recording.difference import apply, difference
from klamm.recording.reader import Recording
from klamm.testing.cluster import Cluster, failed_clusters
from klamm.testing.cluster_errors import ClusterError

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run


def test_the_end_of_a_recording_is_what_zookeeper_and_the_brokers_have(klamm_helper: Helper, tmp_path: Path) -> None:
    with Cluster(3, zookeeper_session_timeout_ms=2_000, helper=klamm_helper) as c:
        c.create_topic("t", partitions=6, replication_factor=3)
        c.create_topic("gone", partitions=2, replication_factor=2)
        c.delete_topic("gone")
        controller = c.controller_id()
        assert controller is not None
        c.kill(controller)
        c.until(lambda: c.controller_id() not in (None, controller))
        c.until(lambda: all(c.leader("t", number) not in (None, controller) for number in range(6)))
        c.start(controller)
        c.until(lambda: not c.under_replicated())
        path = c.record(tmp_path / "failover.klamm")
        states = {
            (topic, number): (c.leader(topic, number), c.isr(topic, number), c.replicas(topic, number))
            for topic in c.topics()
            for number in range(6)
        }
        described = asyncio.run(metadata(c.bootstrap))
        now = c.controller_id()

    with Recording(path) as recording:
        last = recording.moment(recording.count - 1)
        assert (recording.source, recording.trouble) == ("test", None)
        assert last.controller == now
        assert sorted(last.brokers) == [0, 1, 2]
        assert last.servers == {"zookeeper": "running", "0": "running", "1": "running", "2": "running"}
        recorded = {key: (each.leader, list(each.isr), list(each.replicas)) for key, each in last.partitions.items()}
        assert recorded == states
        assert {key: each.leader for key, each in last.partitions.items()} == described

        entries = recording.entries(0, recording.count)
        kinds = {entry.entry["kind"] for entry in entries}
        assert {"znode", "znode_deleted", "server_ended", "became_leader", "partition", "event"} <= kinds
        assert [entry.at_ms for entry in entries] == sorted(entry.at_ms for entry in entries)
        chance = random.Random(1)
        for _ in range(10):
            one, other = (recording.moment(chance.randrange(recording.count)) for _ in range(2))
            assert apply(difference(one, other), one) == other
        without = [each for each in entries if each.entry.get("text") == f"broker {controller} was killed"]
        assert len(without) == 1
        assert recording.moment(without[0].number).servers[str(controller)] == "ended"


async def metadata(bootstrap: str) -> dict[tuple[str, int], int | None]:
    """The leaders that a broker names."""
    addresses = [(host, int(port)) for host, _, port in (each.partition(":") for each in bootstrap.split(","))]
    client = ClusterClient(addresses, ConnectionOptions("test"))
    try:
        await client.refresh_metadata(None)
        return {
            (topic, number): None if each.leader == NO_LEADER else each.leader
            for topic, found in client.metadata.topics.items()
            for number, each in found.partitions.items()
        }
    finally:
        await client.close()


def test_a_cluster_that_has_ended_with_an_error_can_be_recorded(klamm_helper: Helper, tmp_path: Path) -> None:
    cluster = Cluster(1, helper=klamm_helper)
    with pytest.raises(KeyError), cluster as c:
        c.create_topic("t")
        raise KeyError("the test's own")
    assert cluster in failed_clusters
    with Recording(cluster.record(tmp_path / "r")) as recording:
        assert ("t", 0) in recording.moment(recording.count - 1).partitions
        assert "partition" in {entry.entry["kind"] for entry in recording.entries(0, recording.count)}
    with pytest.raises(ClusterError, match="cannot be written: No such file or directory"):
        cluster.record(tmp_path / "none" / "r")


def test_an_alarm_while_a_failed_test_is_described_does_not_end_the_run(run: Run) -> None:
    result = run(
        """
        import pytest
        from klamm.testing import Cluster

        @pytest.mark.klamm(brokers=1)
        def test_fails_late(klamm_cluster, monkeypatch):
            monkeypatch.setattr(Cluster, "log", lambda *_: pytest.fail("Timeout"))
            assert False, "as planned"

        def test_comes_next(): pass
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*as planned*", "*the clusters could not be described further: Timeout*"])


def test_a_failed_test_writes_a_recording_and_prints_how_to_open_it(run: Run, tmp_path: Path) -> None:
    result = run(
        """
        import pytest
        from klamm.testing import Cluster

        @pytest.mark.klamm(brokers=1)
        def test_with_a_fixture(klamm_cluster):
            klamm_cluster.create_topic("fixture")
            assert False, "as planned"

        def test_without(klamm_helper):
            with Cluster(1, helper=klamm_helper) as c:
                c.create_topic("block")
                assert False, "as planned"

        def test_that_expects_an_error(klamm_helper):
            with pytest.raises(KeyError), Cluster(1, helper=klamm_helper):
                raise KeyError
        """,
        "--klamm-recordings",
        str(tmp_path / "recordings"),
    )
    result.assert_outcomes(failed=2, passed=1)
    paths = re.findall(r"^klamm cockpit (.+)$", result.stdout.str(), re.MULTILINE)
    assert sorted(tmp_path.glob("recordings/*")) == sorted(map(Path, paths))
    assert len(paths) == 2
    for path, topic in zip(paths, ("fixture", "block"), strict=True):
        with Recording(path) as recording:
            assert topic in recording.moment(recording.count - 1).topics
