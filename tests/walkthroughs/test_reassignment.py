"""Partitions that move: planned, executed and verified, through AlterPartitionReassignments and through the znode
/admin/reassign_partitions.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from klamm.testing import Cluster, Helper

TOPIC = "castle"
Run = Callable[..., str]

both_ways = pytest.mark.parametrize("way", ["--bootstrap-server", "--zookeeper"])

# One partition from brokers 1, 2, 3 to 4, 5, 6: the leader and the ISR, in the order in which each first holds. In
# between, new replicas join the ISR, and former ones leave it, one after the other.
STEPS = """
1 / 1,2,3
1 / 1,2,3,4,5,6
4 / 1,2,3,4,5,6
4 / 4,5,6
"""


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(8, helper=klamm_helper, properties={"auto.leader.rebalance.enable": False}) as started:
        yield started


@pytest.fixture
def where(way: str, cluster: Cluster) -> tuple[str, str]:
    return way, {"--bootstrap-server": cluster.bootstrap, "--zookeeper": cluster.zookeeper}[way]


@pytest.fixture
def topic(way: str, request: pytest.FixtureRequest) -> str:
    """Each test has a topic of its own."""
    return f"{TOPIC}{way[1:]}-{request.node.originalname[5:]}"


def plan_of(topic: str, replicas: list[list[int]]) -> str:
    partitions = [{"topic": topic, "partition": n, "replicas": brokers} for n, brokers in enumerate(replicas)]
    return json.dumps({"version": 1, "partitions": partitions})


def assignment(cluster: Cluster, topic: str, count: int) -> list[list[int]]:
    return [cluster.replicas(topic, number) for number in range(count)]


def moves(klamm: Run, cluster: Cluster, where: tuple[str, str], plan: Path, target: list[list[int]]) -> None:
    """Executes and verifies the plan; afterwards the topic is as the plan has it, its leaders among the replicas."""
    topic = json.loads(plan.read_text())["partitions"][0]["topic"]
    names = [f"{topic}-{number}" for number in range(len(target))]
    before = assignment(cluster, topic, len(target))
    output = klamm("reassign", "execute", "--reassignment-json-file", plan, *where, "--yes")
    assert output.startswith("Current partition replica assignment\n\n")
    assert "Save this to use as the --reassignment-json-file option during rollback" in output
    saved = json.loads(plan.with_suffix(".rollback.json").read_text())["partitions"]
    assert [each["replicas"] for each in saved] == before
    verified = klamm("reassign", "verify", "--reassignment-json-file", plan, *where)
    assert verified.startswith(
        "Status of partition reassignment:\n"
        + "".join(f"Reassignment of partition {name} is complete.\n" for name in names)
    )
    assert assignment(cluster, topic, len(target)) == target
    described = klamm("topics", "describe", "--topic", topic, *where)
    for number, brokers in enumerate(target):
        assert f"\tPartition: {number}\t" in described
        assert f"\tReplicas: {','.join(map(str, brokers))}\t" in described
        assert cluster.leader(topic, number) in brokers


def is_known_to(klamm: Run, topic: str, broker: str) -> bool:
    return topic in klamm("topics", "list", "--bootstrap-server", broker).split()


@both_ways
def test_nine_partitions_leave_a_broker(
    klamm: Run, cluster: Cluster, where: tuple[str, str], topic: str, tmp_path: Path
) -> None:
    placed = [[1 + number % 3] for number in range(9)]
    klamm(
        "topics", "create", "--topic", topic, *where, "--replica-assignment", ",".join(str(each[0]) for each in placed)
    )
    # A broker that has yet to hear of the topic would say that it does not exist.
    for each in cluster.bootstrap.split(","):
        cluster.until(partial(is_known_to, klamm, topic, each))
    topics = tmp_path / "topics-to-move.json"
    topics.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    plan = tmp_path / "plan.json"
    output = klamm(
        "reassign", "generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3", "--output", plan, *where
    )
    lines = output.splitlines()
    current = json.loads(lines[lines.index("Current partition replica assignment") + 1])
    proposed = json.loads(lines[lines.index("Proposed partition reassignment configuration") + 1])
    assert [each["replicas"] for each in current["partitions"]] == placed
    assert assignment(cluster, topic, 9) == placed, "generate changes nothing"
    # Only what is on broker 1 moves.
    target = [json.loads(plan.read_text())["partitions"][n]["replicas"] for n in range(len(proposed["partitions"]))]
    wanted = {each["partition"]: each["replicas"] for each in proposed["partitions"]}
    assert all(brokers in ([2], [3]) for brokers in target)
    klamm("reassign", "execute", "--reassignment-json-file", plan, *where, "--yes")
    after = assignment(cluster, topic, 9)
    assert after == [wanted.get(number, placed[number]) for number in range(9)]
    assert all(after[n] == placed[n] for n in range(9) if placed[n] != [1])
    assert "is complete" in klamm("reassign", "verify", "--reassignment-json-file", plan, *where)


@both_ways
def test_three_replicas_move_to_four_brokers(
    klamm: Run, cluster: Cluster, where: tuple[str, str], topic: str, tmp_path: Path
) -> None:
    klamm("topics", "create", "--topic", topic, *where, "--replica-assignment", "0:1:2,1:2:3,2:3:0,3:0:1")
    plan = tmp_path / "plan.json"
    klamm("reassign", "generate", "--topic", topic, "--broker-list", "4,5,6,7", "--output", plan, *where)
    target = [each["replicas"] for each in json.loads(plan.read_text())["partitions"]]
    assert [len(set(brokers) & {4, 5, 6, 7}) for brokers in target] == [3, 3, 3, 3]
    moves(klamm, cluster, where, plan, target)


@both_ways
def test_a_replication_factor_grows(
    klamm: Run, cluster: Cluster, where: tuple[str, str], topic: str, tmp_path: Path
) -> None:
    klamm("topics", "create", "--topic", topic, *where, "--replica-assignment", "0,1")
    plan, target = tmp_path / "plan.json", [[0, 1, 2], [1, 2, 3]]
    plan.write_text(plan_of(topic, target))
    moves(klamm, cluster, where, plan, target)


@both_ways
def test_the_steps_of_one_partition(
    klamm: Run, cluster: Cluster, where: tuple[str, str], topic: str, tmp_path: Path
) -> None:
    """As the brokers' state-change logs tell them, merged by time."""
    klamm("topics", "create", "--topic", topic, *where, "--replica-assignment", "1:2:3")
    plan = tmp_path / "plan.json"
    plan.write_text(plan_of(topic, [[4, 5, 6]]))
    moves(klamm, cluster, where, plan, [[4, 5, 6]])
    logs = ",".join(f"{cluster.directory}/logs/broker-{broker}/state-change.log" for broker in cluster.broker_ids)
    merged = klamm("log", "merge", "--logs", logs, "--topic", topic, "--partitions", 0, "--json")
    entries = [json.loads(line) for line in merged.splitlines()]
    assert [each["time"] for each in entries] == sorted(each["time"] for each in entries)
    assert all(f"{topic}-0" in each["text"] for each in entries)
    told = [
        f"{each['leader']} / {','.join(map(str, sorted(each['isr'])))}"
        for each in entries
        if "leader" in each and each.get("isr")
    ]
    steps = [step for step in dict.fromkeys(told) if step in STEPS.strip().splitlines()]
    assert "\n".join(steps) == STEPS.strip()
    isrs = [set(step.partition(" / ")[2].split(",")) for step in dict.fromkeys(told)]
    assert all(one <= other or one >= other for one, other in pairwise(isrs))
