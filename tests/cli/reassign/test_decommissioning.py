"""`klamm brokers decommission`, and `klamm reassign generate` as it is called, on klamm's own brokers."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.cli import main
from klamm.cli.shared.options import ClusterOptions
from klamm.diagnosis.cluster_view import read_cluster
from klamm.processes.helper import Helper
from klamm.testing import Cluster

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as running:
        for topic, partitions, factor in (("pairs", 6, 2), ("triples", 1, 3)):
            running.create_topic(topic, partitions, factor)
        yield running


def klamm(cluster: Cluster, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """What the command prints on stdout and stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        ended = main.run([*map(str, arguments), "--bootstrap-server", cluster.bootstrap])
    assert ended == code, stdout.getvalue() + stderr.getvalue()
    return stdout.getvalue(), stderr.getvalue()


def replicas(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    view = ClusterOptions(cluster.bootstrap).call(read_cluster)
    return [each.replicas for key, each in sorted(view.partitions.items()) if key.topic == topic]


def test_a_broker_is_emptied_as_far_as_it_can_be_and_the_rest_is_explained(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    command = ("brokers", "decommission", "--broker", "2", "--plan-file", file, "--yes")
    printed, explained = klamm(cluster, *command, code=1)
    assert "1 replica cannot move:" in explained
    assert (
        "  triples-0 on broker 2: too few brokers: 3 replicas need as many, and replicas may be on 2: 0,1" in explained
    )
    assert printed.splitlines()[-1] == "Broker 2 still has 1 replica."
    assert all(sorted(each) == [0, 1] for each in replicas(cluster, "pairs"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plan.json", "plan.rollback.json"]

    klamm(cluster, "topics", "delete", "--topic", "triples", "--yes")
    printed, explained = klamm(cluster, *command)
    assert printed == "Broker 2 has no replicas and can be shut down.\n"
    assert "Nothing has to move." in explained

    events = [json.loads(line) for line in klamm(cluster, *command, "--json")[0].splitlines()]
    assert [each["event"] for each in events] == ["plan", "decommissioned"]
    assert events[-1]["replicas_left"] == {"2": 0}


def test_a_broker_that_has_left_the_cluster_and_has_no_replicas_is_decommissioned(
    cluster: Cluster, tmp_path: Path
) -> None:
    """As the same command finds it when the broker was shut down for good."""
    command = ("brokers", "decommission", "--broker", "9", "--plan-file", tmp_path / "p.json", "--yes")
    printed, _ = klamm(cluster, *command)
    assert printed == "Broker 9 is not in the cluster, and no assignment names it: it has no replicas.\n"
    assert list(tmp_path.iterdir()) == []
    assert json.loads(klamm(cluster, *command, "--json")[0]) == {"event": "decommissioned", "replicas_left": {"9": 0}}


def test_without_a_terminal_a_plan_needs_yes(cluster: Cluster, tmp_path: Path) -> None:
    before = replicas(cluster, "pairs")
    _, error = klamm(cluster, "brokers", "decommission", "--broker", "1", "--plan-file", tmp_path / "p.json", code=1)
    assert "say --yes" in error
    assert replicas(cluster, "pairs") == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--broker-list", "1,x"], "'1,x' is not a list of broker ids, as 1,2,3"),
        (["--broker-list", "1,1"], "broker 1 is named twice"),
        (["--replace", "1"], "'1' is not old:new, as 3:7"),
        (["--replace", "1:2,1:3"], "broker 1 is replaced twice"),
        (["--replace", "1:3", "--replace", "2:3"], "broker 3 takes the place of two brokers"),
        (["--balance", "size"], "'size' is not one of replicas, leaders, bytes, load, none"),
        (["--balance", "load"], "load is not known; give --load with a file"),
        (["--topic", "("], "'(' is not a valid regular expression"),
        (["--kafka", "--replication-factor", "2"], "cannot be given with --replication-factor"),
        (["--output", "nowhere/plan.json"], "nowhere/plan.json is not a file in a directory that exists"),
    ],
)
def test_a_wrong_option_is_named(cluster: Cluster, options: list[str], error: str) -> None:
    assert error in klamm(cluster, "reassign", "generate", *options, code=2)[1]


def test_kafkas_own_placement_can_be_asked_for(cluster: Cluster) -> None:
    printed, _ = klamm(cluster, "reassign", "generate", "--kafka", "--topic", "pairs", "--broker-list", "0,2", "--json")
    placed = [each["replicas"] for each in json.loads(printed)["proposed"]["partitions"]]
    assert all(sorted(each) == [0, 2] for each in placed)
    leaders = [each[0] for each in placed]
    assert abs(leaders.count(0) - leaders.count(2)) <= 1


def test_the_same_command_continues_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("slow", 3, 2)
    klamm_produce = [*KLAMM, "produce", "--topic", "slow", "--bootstrap-server", cluster.bootstrap]
    lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(3000))
    subprocess.run(klamm_produce, input=lines, check=True, timeout=120, stdout=subprocess.DEVNULL)
    command = ["brokers", "decommission", "--broker", "1", "--plan-file", str(tmp_path / "plan.json"), "--yes"]
    throttled = [*KLAMM, *command, "--throttle", "20000", "--bootstrap-server", cluster.bootstrap]
    with subprocess.Popen(throttled, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as killed:
        assert killed.stdout is not None
        while "Successfully started" not in (line := killed.stdout.readline()):
            assert line, "the command ended"
        killed.kill()
    assert (tmp_path / "plan.state.json").exists()
    printed, _ = klamm(cluster, *command, "--throttle", "100000000")
    assert printed.splitlines()[-1] == "Broker 1 has no replicas and can be shut down."
    assert not (tmp_path / "plan.state.json").exists()
    assert all(1 not in each for each in replicas(cluster, "slow"))
    klamm(cluster, "topics", "delete", "--topic", "slow", "--yes")


def test_a_broker_is_emptied_through_zookeeper(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("through-zookeeper", 2, 2)
    command = ["brokers", "decommission", "--broker", "1", "--plan-file", str(tmp_path / "p.json"), "--yes"]
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        assert main.run([*command, "--zookeeper", cluster.zookeeper]) == 0
    assert stdout.getvalue().splitlines()[-1] == "Broker 1 has no replicas and can be shut down."
    assert all(sorted(each) == [0, 2] for each in replicas(cluster, "through-zookeeper"))


def test_the_replicas_of_a_dead_broker_are_made_anew_on_others(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("orphans", 4, 2)
    cluster.stop(0)
    assert any(0 in each for each in replicas(cluster, "orphans"))
    printed, _ = klamm(cluster, "brokers", "decommission", "--broker", "0", "--plan-file", tmp_path / "p", "--yes")
    assert printed.splitlines()[-1] == "Broker 0 has no replicas and can be shut down."
    assert all(sorted(each) == [1, 2] for each in replicas(cluster, "orphans"))
