"""The brokers of `klamm.testing.Cluster` obey it, and have no door that others could use."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from klamm.faults.entries import BrokerRegistered
from klamm.processes.helper import Helper
from klamm.testing.cluster import Cluster
from klamm.testing.cluster_errors import ClusterError
from klamm.testing.faults.faults import FaultHandle


def test_every_broker_obeys_its_cluster_from_its_start(klamm_helper: Helper) -> None:
    with Cluster(2, helper=klamm_helper) as c:
        c.create_topic("t")
        fault = c.fail(api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", topic="t")
        c.pause(0)
        assert [handle.fault for handle in c.faults.active] == [fault.fault]
        c.resume(0)
        c.kill(1)
        c.start(1)
        c.faults.remove_all()
        assert c.faults.active == []


def test_no_call_is_forgotten_when_a_broker_or_the_cluster_ends(klamm_helper: Helper) -> None:
    with Cluster(1, zookeeper_session_timeout_ms=500, helper=klamm_helper) as c:
        c.create_topic("t")
        asked = c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", on_call=1000)
        for calls, end in enumerate((c.stop, c.kill, None), 1):
            producer = Producer({"bootstrap.servers": c.bootstrap})
            producer.produce("t", b"one pear")
            assert producer.flush(120) == 0
            if end is not None:
                end(0)
                assert asked.calls == calls
                c.start(0)
    assert (asked.calls, asked.hits) == (3, 0)
    asked.remove()


def test_the_end_of_a_cluster_ends_the_waits_in_other_threads(klamm_helper: Helper) -> None:
    errors: list[BaseException] = []

    def wait(fault: FaultHandle) -> None:
        try:
            fault.wait(3600)
        except ClusterError as error:
            errors.append(error)

    with Cluster(1, helper=klamm_helper) as c:
        waiting = threading.Thread(target=wait, args=[c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER")])
        waiting.start()
    waiting.join(120)
    assert [str(error) for error in errors] == ["the cluster has ended"]
    with pytest.raises(ClusterError, match="the cluster is not running"):
        c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER")


def test_a_broker_that_a_cut_keeps_from_being_ready_is_started_and_healed(klamm_helper: Helper) -> None:
    properties = {"zookeeper.connection.timeout.ms": 500}
    with Cluster(2, properties=properties, helper=klamm_helper) as c:
        c.kill(1)
        c.network.cut(1, "zookeeper")
        c.start(1, wait=False)
        c.until(lambda: not c.broker(1).running)
        c.heal()
        c.kill(1)
        c.network.cut(1, "brokers")
        c.start(1, wait=False)
        c.until(lambda: c.history.of(BrokerRegistered)[-1].broker == 1)
        c.heal()
        assert c.faults.active == []


def test_a_broker_under_faults_listens_where_any_broker_does(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as c:
        directory = c.directory / "faults"
        assert [path.name for path in directory.iterdir()] == ["control"]
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "control").stat().st_mode & 0o777 == 0o600
        pid = c.broker(0).pid
        assert pid is not None
        sockets = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        tcp = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        listens = [int(of[1].split(":")[1], 16) for of in tcp if of[3] == "0A" and f"socket:[{of[9]}]" in sockets]
        assert len(listens) == 2  # for clients, and for metrics
        assert c.broker(0).port in listens
        assert [of for of in unix if of[3] == "00010000" and f"socket:[{of[6]}]" in sockets] == []


def test_the_commands_of_production_import_no_faults() -> None:
    names = ("processes.servers", "processes.serving", "cli.main", "cli.cluster.servers", "cli.cluster.up")
    imports = ", ".join(f"klamm.{name}" for name in names)
    code = f"import sys, {imports}; print([name for name in sys.modules if name.startswith('klamm.faults')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert printed.stdout == "[]\n"
