"""`klamm elect` against clusters of klamm's brokers, over the wire and through the znode: everything real."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.access.clients import command_options
from klamm.cli import main
from klamm.cli.shared.clients import client_in_thread
from klamm.diagnosis.cluster_view import read_cluster
from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.spark.producing import numbered, produce

Run = Callable[..., str]
ASSIGNMENT = ("--replica-assignment", "1:0,1:0,0:1,2:0")
PREFERRED = ("preferred", "--all-topic-partitions", "--yes")
SUCCESS = "Successfully completed leader election (PREFERRED) for partitions"
ERROR = "Error completing leader election (PREFERRED) for partition:"


@pytest.fixture
def cluster(request: pytest.FixtureRequest, klamm_helper: Helper) -> Iterator[Cluster]:
    """Three brokers; 1 and 2 lead three of four partitions of `t`. The parameter is the session time-out in ms."""
    session_timeout_ms = getattr(request, "param", 1_500)
    with Cluster(3, helper=klamm_helper, zookeeper_session_timeout_ms=session_timeout_ms) as running:
        create = ("topics", "create", "--topic", "t", *ASSIGNMENT, "--bootstrap-server", running.bootstrap)
        assert main.run(list(create)) == 0
        running.until(lambda: leaders(running) == [1, 1, 0, 2])
        yield running


@pytest.fixture
def elect(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `klamm elect`; returns stdout, or with `both` stdout and stderr."""

    def run(*arguments: str, code: int = 0, both: bool = False) -> str:
        where = () if "--zookeeper" in arguments else ("--bootstrap-server", cluster.bootstrap)
        capsys.readouterr()
        ended = main.run(["elect", *arguments, *where])
        output = capsys.readouterr()
        assert ended == code, output.err
        return output.out + output.err if both else output.out

    return run


def leaders(cluster: Cluster, topic: str = "t", count: int = 4) -> list[int | None]:
    return [cluster.leader(topic, number) for number in range(count)]


def is_known(cluster: Cluster, leading: list[int], topic: str = "t") -> bool:
    """Whether these are the leaders, and the ISRs have all running brokers; as each of these brokers knows."""
    running = [broker for broker in cluster.brokers if broker.running]
    live = {broker.id for broker in running}
    for broker in running:
        with client_in_thread(command_options(broker.address, None)) as client:
            view = client.call(read_cluster, [topic])
        partitions = list(view.partitions.values())
        if [each.leader for each in partitions] != leading or view.brokers.keys() != live:
            return False
        if any(set(each.isr) != set(each.replicas) & live for each in partitions):
            return False
    return True


def test_leaders_come_back_over_the_wire(cluster: Cluster, elect: Run, tmp_path: Path) -> None:
    assert elect(*PREFERRED) == ""
    assert (
        elect("preferred", "--topic", "t", "--partition", "2") == "Valid replica already elected for partitions t-2\n"
    )
    cluster.kill(1)
    cluster.until(lambda: is_known(cluster, [0, 0, 0, 2]))
    dead = "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 0; broker 1 is not live"
    refused = elect(*PREFERRED, code=1, both=True)
    assert refused == f"{ERROR} t-0: {dead}\n{ERROR} t-1: {dead}\nklamm: 2 replica(s) could not be elected\n"
    cluster.start(1)
    cluster.until(lambda: is_known(cluster, [0, 0, 0, 2]))

    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "t", "partition": each} for each in (0, 2, 9)]}))
    asked = elect("preferred", "--path-to-json-file", str(file), code=1, both=True)
    assert asked.splitlines() == [
        "Valid replica already elected for partitions t-2",
        f"{ERROR} t-9: UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist",
        "t-0: leader 0 -> 1",
        "Broker 0 leads 3 -> 2 partitions of these topics",
        "Broker 1 leads 0 -> 1 partitions of these topics",
        "klamm: Elect the preferred leaders of 1 partition? Nothing was changed: say --yes, because there is no"
        " terminal to ask.",
    ]
    assert leaders(cluster) == [0, 0, 0, 2]
    done = elect(*PREFERRED, "--batch-size", "1", "--json")
    partitions = [{"topic": "t", "partition": number} for number in (0, 1)]
    assert list(map(json.loads, done.splitlines())) == [
        {"event": "elected", "partitions": [each]} for each in partitions
    ]
    assert leaders(cluster) == [1, 1, 0, 2]


def test_leaders_come_back_through_the_znode(cluster: Cluster, elect: Run) -> None:
    over_znodes = ("--zookeeper", cluster.zookeeper)
    cluster.kill(1)
    cluster.until(lambda: is_known(cluster, [0, 0, 0, 2]))
    assert f"{ERROR} t-1: PREFERRED_LEADER_NOT_AVAILABLE" in elect(*PREFERRED, *over_znodes, code=1)
    cluster.start(1)
    cluster.until(lambda: is_known(cluster, [0, 0, 0, 2]))
    assert elect(*PREFERRED, *over_znodes) == (
        "Created preferred replica election path with t-0,t-1\n"
        "Successfully started preferred replica election for partitions Set(t-0, t-1)\n"
        f"{SUCCESS} t-0, t-1\n"
    )
    assert leaders(cluster) == [1, 1, 0, 2]
    assert elect(*PREFERRED, *over_znodes) == ""


@pytest.mark.parametrize("cluster", [60_000], indirect=True)
def test_an_election_in_progress_is_left_alone(cluster: Cluster, elect: Run) -> None:
    from klamm.access.zookeeper import run_with_zookeeper
    from klamm.znodes.requests import PREFERRED_REPLICA_ELECTION_PATH
    from klamm.znodes.store import KafkaZooKeeper

    over_znodes = ("--zookeeper", cluster.zookeeper)
    cluster.stop(1)
    cluster.start(1)
    cluster.until(lambda: leaders(cluster)[:2] == [0, 0] and len(cluster.isr("t", 0)) == len(cluster.isr("t", 1)) == 2)
    # No controller removes the znode.
    for broker in cluster.broker_ids:
        cluster.pause(broker)
    try:
        late = elect(*PREFERRED, *over_znodes, "--timeout", "200", code=1, both=True)
        assert "the controller has not held the election after 200 ms; /admin/preferred_replica_election stays" in late
        in_progress = elect(*PREFERRED, *over_znodes, code=1, both=True)
        assert (
            "klamm: Preferred replica leader election currently in progress for t-0,t-1. Aborting operation"
            in in_progress
        )

        async def read(znodes: KafkaZooKeeper) -> bytes:
            return (await znodes.client.get(PREFERRED_REPLICA_ELECTION_PATH))[0]

        written = run_with_zookeeper(cluster.zookeeper, read)
        assert json.loads(written) == {
            "version": 1,
            "partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}],
        }
    finally:
        for broker in cluster.broker_ids:
            cluster.resume(broker)
    cluster.until(lambda: leaders(cluster) == [1, 1, 0, 2])


def test_an_unclean_election_says_what_it_loses_and_asks(cluster: Cluster, elect: Run) -> None:
    create = ("topics", "create", "--topic", "u", "--replica-assignment", "1:0")
    assert main.run([*create, "--bootstrap-server", cluster.bootstrap]) == 0
    produce(cluster.bootstrap, "u", numbered(10))
    cluster.until(lambda: len(cluster.isr("u")) == 2)
    consume = ("consume", "--topic", "u", "--group", "readers", "--from-beginning", "--max-messages")
    # While all brokers are there, so that the offsets have three replicas.
    assert main.run([*consume, "1", "--bootstrap-server", cluster.bootstrap]) == 0
    cluster.stop(0)
    cluster.until(lambda: cluster.isr("u") == [1])
    produce(cluster.broker(1).address, "u", numbered(7))
    assert main.run([*consume, "14", "--bootstrap-server", cluster.broker(1).address]) == 0
    cluster.kill(1)
    cluster.start(0)
    cluster.until(lambda: cluster.leader("u") is None and 0 in cluster.broker_ids)

    named = ("unclean", "--topic", "u", "--partition", "0")
    # A broker that has just started may not know the topic or its own replica yet.
    cluster.until(lambda: "ends at offset 10; at least 5" in elect(*named, code=1, both=True))
    plan = elect(*named, code=1, both=True)
    assert plan == (
        "u-0: leader none -> 0, whose log ends at offset 10; at least 5 records are lost: group readers has committed a"
        " later offset; broker 1 is not live, and what only it has is lost too\n"
        "klamm: Elect leaders of 1 partition that may lack records? Nothing was changed: say --yes, because there is no"
        " terminal to ask.\n"
    )
    assert cluster.leader("u") is None
    values, elected = map(json.loads, elect(*named, "--yes", "--json").splitlines())
    assert values == {
        "event": "plan",
        "may_lose_more": None,
        "partitions": [
            {
                "topic": "u",
                "partition": 0,
                "candidate": 0,
                "log_end_offset": 10,
                "lost_at_least": 5,
                "known_from": "group readers",
                "loss_is_known": False,
            }
        ],
    }
    assert elected == {"event": "elected", "partitions": [{"topic": "u", "partition": 0}]}
    assert (cluster.leader("u"), cluster.isr("u")) == (0, [0])
    assert elect(*named, "--yes") == "Valid replica already elected for partitions u-0\n"


@pytest.mark.parametrize("cluster", [60_000], indirect=True)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_can_be_run_again(cluster: Cluster, elect: Run, end: signal.Signals) -> None:
    for broker in (1, 2):
        cluster.stop(broker)
    cluster.until(lambda: leaders(cluster)[:2] == [0, 0] and leaders(cluster)[3] == 0)
    for broker in (1, 2):
        cluster.start(broker)
    cluster.until(lambda: is_known(cluster, [0, 0, 0, 0]))
    # Before the batch with partition 3 the command waits for an answer of broker 2.
    cluster.pause(2)
    named = ("preferred", "--topic", "t", "--partition", "0", "--partition", "3", "--yes", "--batch-size", "1")
    command = [
        sys.executable,
        "-m",
        "klamm.cli.main",
        "elect",
        *named,
        "--bootstrap-server",
        cluster.broker(0).address,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SUCCESS} t-0\n"
        process.send_signal(end)
        assert process.communicate(timeout=120)[0] == ""
        assert process.returncode == (130 if end is signal.SIGINT else -signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        cluster.resume(2)
    cluster.until(lambda: is_known(cluster, [1, 0, 0, 0]))
    again = elect(*named).splitlines()
    assert again == ["Valid replica already elected for partitions t-0", f"{SUCCESS} t-3"]
    assert leaders(cluster) == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preferred"], "partitions: One and only one of the following options is required: --topic, --all-topic-p"),
        (["preferred", "--topic", "t", "--all-topic-partitions"], "partitions: One and only one of the following"),
        (["unclean", "--all-topic-partitions", "--partition", "1"], "--partition: is only allowed if --topic is used"),
        (["preferred", "--topic", "t", "--zookeeper", "z:1", "--max-lag", "1"], "--max-lag: not with --zookeeper"),
    ],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main.run(["elect", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"klamm: Invalid value for {message}")


def test_the_help_of_each_command_ends_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("preferred", "unclean"):
        assert main.run(["elect", command, "--help"]) == 0
        assert f"\n  Example: klamm elect {command}" in capsys.readouterr().out
