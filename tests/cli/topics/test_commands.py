"""`klamm topics` against a cluster of klamm's brokers, over the wire and on the znodes: everything real."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.access.clients import command_options
from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli import main
from klamm.cli.shared.clients import client_in_thread
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.processes.helper import Helper
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster

Run = Callable[..., str]

# Brokers 0 and 1 are in one rack, 2 in another.
RACKS = {0: {"broker.rack": "r1"}, 1: {"broker.rack": "r1"}, 2: {"broker.rack": "r2"}}


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """Three brokers in two racks; each test uses topics of its own."""
    with Cluster(3, helper=klamm_helper, broker_properties=RACKS, zookeeper_session_timeout_ms=60_000) as running:
        yield running


@pytest.fixture
def klamm(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `klamm topics` and returns stdout, or with `code` stderr; `plan=True` returns stderr as well."""

    def run(*arguments: str, code: int = 0, plan: bool = False) -> str:
        named = {"--zookeeper", "--bootstrap-server"} & set(arguments)
        where = () if named else ("--bootstrap-server", cluster.bootstrap)
        ended = main.run(["topics", *arguments, *where])
        output = capsys.readouterr()
        assert ended == code, output.err
        return output.err if code or plan else output.out

    return run


def partitions(described: str) -> dict[int, list[int]]:
    """The replicas of each partition in the lines of a description or of a plan."""
    found = re.findall(r"Partition: (\d+).*Replicas: ([\d,]+)", described)
    return {int(number): [int(each) for each in replicas.split(",")] for number, replicas in found}


@pytest.fixture(params=["wire", "znodes"])
def access(request: pytest.FixtureRequest, cluster: Cluster) -> tuple[str, ...]:
    return () if request.param == "wire" else ("--zookeeper", cluster.zookeeper)


def test_a_number_that_no_request_can_carry_is_named(klamm: Run) -> None:
    error = klamm("create", "--topic", "huge", "--partitions", "99999999999", code=1)
    assert error == "klamm: CreateTopicsRequest v7: topics[0].num_partitions: 99999999999 does not fit Int32\n"


def test_a_topic_lives_and_dies(cluster: Cluster, klamm: Run, access: tuple[str, ...]) -> None:
    topic = ("--topic", "life", *access)
    counts = ("--partitions", "2", "--replication-factor", "2")
    assert klamm("create", *topic, *counts, "--config", "retention.ms=60000") == "Created topic life.\n"
    assert (
        klamm("create", *topic, *counts, code=1) == "klamm: TOPIC_ALREADY_EXISTS (36): Topic 'life' already exists.\n"
    )
    assert klamm("create", *topic, *counts, "--if-not-exists") == ""
    cluster.until(lambda: len(cluster.isr("life", 0)) == len(cluster.isr("life", 1)) == 2)
    both = (("--bootstrap-server", cluster.bootstrap), ("--zookeeper", cluster.zookeeper))
    cluster.until(lambda: len({klamm("describe", "--topic", "life", *each) for each in both}) == 1)
    over_brokers, over_znodes = (
        klamm("describe", "--topic", "life"),
        klamm("describe", *topic, "--zookeeper", cluster.zookeeper),
    )
    assert over_brokers == over_znodes
    assert re.fullmatch(
        r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 2\tConfigs: retention.ms=60000\n"
        r"\tTopic: life\tPartition: 0\tLeader: (\d)\tReplicas: \1,(\d)\tIsr: \1,\2\n"
        r"\tTopic: life\tPartition: 1\tLeader: (\d)\tReplicas: \3,(\d)\tIsr: \3,\4\n",
        over_brokers,
    )

    changes = ("--partitions", "4", "--config", "segment.ms=1000", "--delete-config", "retention.ms")
    plan = klamm("alter", *topic, *changes, code=1)
    assert "Topic: life\tPartitionCount: 2 -> 4" in plan
    assert (
        "Topic: life\tConfig: retention.ms: 60000 -> not set\nTopic: life\tConfig: segment.ms: not set -> 1000" in plan
    )
    assert "klamm: Alter topic life? Nothing was changed: say --yes" in plan
    assert len(partitions(klamm("describe", *topic))) == 2
    altered = klamm("alter", *topic, *changes, "--yes")
    assert altered == "Updated config for topic life.\nAdding partitions succeeded!\n"
    cluster.until(lambda: re.search(r"Partition: 3\tLeader: \d", klamm("describe", *topic)))
    described = klamm("describe", *topic)
    assert list(partitions(described)) == [0, 1, 2, 3]
    assert described.splitlines()[0].endswith("\tConfigs: segment.ms=1000")
    assert "4 would not be an increase" in klamm("alter", *topic, "--partitions", "4", code=1)

    assert "Delete topic: life\tPartitionCount: 4\tReplicationFactor: 2" in klamm("delete", *topic, code=1)
    deleted = klamm("delete", *topic, "--force")
    note = "Note: This will have no impact if delete.topic.enable is not set to true."
    assert deleted == (f"Topic life is marked for deletion.\n{note}\n" if access else "")
    cluster.until(lambda: "life" not in cluster.topics())
    assert klamm("delete", *topic, "--yes", code=1) == "klamm: Topic 'life' does not exist as expected\n"
    assert klamm("delete", *topic, "--yes", "--if-exists") == ""


def test_a_topic_is_placed_over_racks_unless_that_is_disabled(
    cluster: Cluster, klamm: Run, access: tuple[str, ...]
) -> None:
    counts = ("--partitions", "6", "--replication-factor", "2", *access)
    klamm("create", "--topic", "racks", *counts)
    cluster.until(lambda: len(partitions(klamm("describe", "--topic", "racks", "--if-exists"))) == 6)
    assert all(2 in replicas for replicas in partitions(klamm("describe", "--topic", "racks")).values())
    placed = partitions(klamm("create", "--topic", "no-racks", *counts, "--disable-rack-aware", plan=True))
    assert partitions(klamm("describe", "--topic", "no-racks", *access)) == placed
    assert any(2 not in replicas for replicas in placed.values())
    # Turns continue: three partitions more give each broker one more to lead.
    klamm("alter", "--topic", "no-racks", "--partitions", "9", "--disable-rack-aware", "--yes", *access)
    grown = partitions(klamm("describe", "--topic", "no-racks", *access))
    assert sorted(grown[number][0] for number in (6, 7, 8)) == [0, 1, 2]
    klamm("delete", "--topic", "racks,no-racks", "--yes")
    cluster.until(lambda: not {"racks", "no-racks"} & set(cluster.topics()))


def test_an_assignment_names_the_brokers_of_all_partitions(
    cluster: Cluster, klamm: Run, access: tuple[str, ...]
) -> None:
    topic = ("--topic", "assigned", *access)
    klamm("create", *topic, "--replica-assignment", "0:1,1:2")
    klamm("alter", *topic, "--partitions", "3", "--replica-assignment", "2:1,2:1,2:0", "--yes")
    assert partitions(klamm("describe", *topic)) == {0: [0, 1], 1: [1, 2], 2: [2, 0]}
    short = klamm("alter", *topic, "--partitions", "5", "--replica-assignment", "0:1,0:1,0:1,0:1", "--yes", code=1)
    assert short == "klamm: --replica-assignment has 4 partitions, --partitions is 5\n"
    other = klamm("alter", *topic, "--partitions", "4", "--replica-assignment", "0,0,0,0", "--yes", code=1)
    assert "the new ones would have 1" in other or "partition 3 would have 1" in other
    missing = klamm("alter", *topic, "--partitions", "4", "--replica-assignment", "0:9,0:9,0:9,0:9", "--yes", code=1)
    assert "brokers [9]" in missing
    klamm("delete", *topic, "--yes")
    cluster.until(lambda: "assigned" not in cluster.topics())


def test_an_interrupted_change_of_several_topics_can_be_run_again(cluster: Cluster, klamm: Run) -> None:
    for name, count in (("again-a", "2"), ("again-b", "1")):
        klamm("create", "--topic", name, "--partitions", count)
    alter = ("alter", "--topic", "again-.*", "--partitions", "2", "--yes")
    assert json.loads(klamm(*alter, "--json")) == [
        {"topic": "again-b", "partitions": 2, "partitions_before": 1, "configs": {}, "error": None}
    ]
    assert "2 would not be an increase" in klamm(*alter, code=1)
    assert json.loads(klamm("delete", "--topic", "again-.*", "--yes", "--json")) == [
        {"topic": "again-a", "error": None},
        {"topic": "again-b", "error": None},
    ]


def test_what_the_brokers_refuse_changes_nothing(cluster: Cluster, klamm: Run, access: tuple[str, ...]) -> None:
    topic = ("--topic", "refused", *access)
    klamm("create", *topic, "--partitions", "1", "--replication-factor", "1")
    for wrong in (("--config", "no.such=1"), ("--delete-config", "no.such"), ("--config", "retention.ms=x")):
        assert wrong[1].split("=")[0] in klamm("alter", *topic, "--partitions", "2", *wrong, "--yes", code=1)
    assert list(partitions(klamm("describe", *topic))) == [0]
    too_many = klamm("create", "--topic", "t", *access, "--partitions", "1", "--replication-factor", "4", code=1)
    assert "there are only 3 live brokers" in too_many
    klamm("delete", *topic, "--yes")
    cluster.until(lambda: "refused" not in cluster.topics())


def test_names_that_collide_are_told(cluster: Cluster, klamm: Run, access: tuple[str, ...]) -> None:
    counts = ("--partitions", "1", "--replication-factor", "1", *access)
    warned = klamm("create", "--topic", "a.b_c", *counts, plan=True)
    assert warned.startswith("WARNING: Due to limitations in metric names, topics with a period")
    assert "a.b_c" in klamm("create", "--topic", "a_b.c", *counts, code=1)
    klamm("delete", "--topic", "a.b_c", "--yes")
    cluster.until(lambda: "a.b_c" not in cluster.topics())


def test_topics_are_listed(cluster: Cluster, klamm: Run, access: tuple[str, ...]) -> None:
    for name in ("list-b", "list-a"):
        klamm("create", "--topic", name)
    assert klamm("list", "--topic", "list-.*", *access) == "list-a\nlist-b\n"
    assert json.loads(klamm("list", "--topic", "list-a|list-b", "--exclude-internal", "--json", *access)) == [
        "list-a",
        "list-b",
    ]
    klamm("delete", "--topic", "list-.*", "--yes")
    cluster.until(lambda: not any(name.startswith("list-") for name in cluster.topics()))


def test_only_topics_with_overrides(cluster: Cluster, klamm: Run, access: tuple[str, ...]) -> None:
    klamm("create", "--topic", "over-a", "--config", "retention.ms=1000")
    klamm("create", "--topic", "over-b")
    described = klamm("describe", "--topic", "over-.*", "--topics-with-overrides", *access)
    assert re.fullmatch(r"Topic: over-a\t.*\tConfigs: retention.ms=1000\n", described)
    klamm("delete", "--topic", "over-.*", "--yes")
    cluster.until(lambda: not any(name.startswith("over-") for name in cluster.topics()))


def test_a_reassignment_in_progress(cluster: Cluster, klamm: Run) -> None:
    a = cluster.controller_id()
    assert a is not None
    b, new = (broker for broker in cluster.broker_ids if broker != a)
    klamm("create", "--topic", "moving", "--replica-assignment", f"{a}:{b},{b}:{a}")
    cluster.until(lambda: len(cluster.isr("moving", 0)) == len(cluster.isr("moving", 1)) == 2)
    over_brokers, over_znodes = ("--bootstrap-server", cluster.broker(a).address), ("--zookeeper", cluster.zookeeper)
    # It copies nothing, and counts as live.
    cluster.pause(new)
    try:
        with client_in_thread(command_options(cluster.broker(a).address, None)) as client:
            moves = {TopicPartition("moving", 0): (a, new), TopicPartition("moving", 1): (b, a, new)}
            assert set(client.call(alter_partition_reassignments, moves).values()) == {None}
        cluster.until(lambda: klamm("describe", "--topic", "moving", *over_brokers).count("Adding Replicas") == 2)
        for access in (over_brokers, over_znodes):
            assert klamm("describe", "--topic", "moving", *access).splitlines()[1:] == [
                f"\tTopic: moving\tPartition: 0\tLeader: {a}\tReplicas: {a},{new},{b}\tIsr: {a},{b}"
                f"\tAdding Replicas: {new}\tRemoving Replicas: {b}",
                f"\tTopic: moving\tPartition: 1\tLeader: {b}\tReplicas: {b},{a},{new}\tIsr: {b},{a}"
                f"\tAdding Replicas: {new}\tRemoving Replicas: ",
            ]
            under_replicated = ("describe", "--topic", "moving", "--under-replicated-partitions")
            assert klamm(*under_replicated, *access) == ""
            grown = ("alter", "--topic", "moving", "--partitions", "3", "--yes", *access)
            assert klamm(*grown, code=1) == (
                "klamm: Topic moving is being reassigned; add partitions when that is done\n"
            )
    finally:
        cluster.resume(new)
    cluster.until(lambda: cluster.replicas("moving", 0) == [a, new] and new in cluster.isr("moving", 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "--topic", "t", "--zookeeper", "z:1"], "--zookeeper: needs --partitions and --replication-factor"),
        (["create", "--topic", "t", "--disable-rack-aware"], "--disable-rack-aware: needs --partitions and"),
        (["alter", "--topic", "t"], "alter: give --partitions, --config or --delete-config"),
        (["alter", "--topic", "t", "--config", "a=b", "--replica-assignment", "0"], "--replica-assignment: needs"),
        (["describe", "--topics-with-overrides", "--unavailable-partitions"], "--topics-with-overrides: shows topics"),
        (
            ["describe", "--zookeeper", "z:1", "--at-min-isr-partitions"],
            "--at-min-isr-partitions: not with --zookeeper",
        ),
        (["list", "--topic", "("], "--topic: '(' is not a valid regular expression"),
    ],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main.run(["topics", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"klamm: Invalid value for {message}")


def test_the_help_of_each_command_ends_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("create", "list", "describe", "alter", "delete"):
        assert main.run(["topics", command, "--help"]) == 0
        assert f"\n  Example: klamm topics {command}" in capsys.readouterr().out


# -- partitions that are not healthy ----------------------------------------------------------------------------------


def test_each_unhealthy_partition_has_its_reason(
    klamm_helper: Helper, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Cluster(3, helper=klamm_helper, zookeeper_session_timeout_ms=1_500) as c:
        for name, replicas, minimum in (("pair", "0:1", 2), ("single", "1", 1), ("safe", "0:2", 1), ("wide", "1:0", 1)):
            assignment = ("--replica-assignment", replicas, "--config", f"min.insync.replicas={minimum}")
            assert main.run(["topics", "create", "--topic", name, *assignment, "--bootstrap-server", c.bootstrap]) == 0
        c.kill(1)
        c.until(lambda: c.leader("wide") == 0 and c.isr("pair") == [0] and c.leader("single") is None)
        capsys.readouterr()

        def looked(*options: str) -> dict[str, dict[str, list[str]]]:
            """The reasons of each partition that is shown, over the wire and on the znodes."""
            found = {}
            for access in (("--bootstrap-server", c.bootstrap), ("--zookeeper", c.zookeeper)):
                assert main.run(["topics", "describe", "--json", *options, *access]) == 0
                topics = json.loads(capsys.readouterr().out)
                found[access[0]] = {each["topic"]: each["partitions"][0]["reasons"] for each in topics}
            return found

        def described(*options: str) -> dict[str, list[str]]:
            """The same both ways, once the broker that is asked knows what the znodes say."""
            c.until(lambda: (found := looked(*options))["--bootstrap-server"] == found["--zookeeper"])
            return looked(*options)["--zookeeper"]

        dead = "broker 1 is not live"
        low = "the ISR has 1 of the 2 replicas that min.insync.replicas requires: producers with acks=all are refused"
        leaderless = ["no replica of the ISR (broker 1) can lead", dead]
        assert described() == {"pair": [dead, low], "safe": [], "single": leaderless, "wide": [dead]}
        assert described("--under-replicated-partitions") == {"pair": [dead, low], "wide": [dead]}
        assert described("--unavailable-partitions") == {"single": leaderless}
        assert described("--off-preferred-partitions") == {"wide": [dead]}
        assert main.run(["topics", "describe", "--under-min-isr-partitions", "--bootstrap-server", c.bootstrap]) == 0
        assert capsys.readouterr().out == (
            f"\tTopic: pair\tPartition: 0\tLeader: 0\tReplicas: 0,1\tIsr: 0\tReason: {dead}; {low}\n"
            f"\tTopic: single\tPartition: 0\tLeader: none\tReplicas: 1\tIsr: 1\tReason: {'; '.join(leaderless)}\n"
        )
        assert main.run(["topics", "describe", "--at-min-isr-partitions", "--bootstrap-server", c.bootstrap]) == 0
        assert capsys.readouterr().out == (
            "\tTopic: single\tPartition: 0\tLeader: none\tReplicas: 1\tIsr: 1"
            f"\tReason: {'; '.join(leaderless)}\n\tTopic: wide\tPartition: 0\tLeader: 0\tReplicas: 1,0\tIsr: 0"
            f"\tReason: {dead}\n"
        )

        c.start(1)
        c.until(lambda: sorted(c.isr("wide")) == [0, 1] and c.leader("wide") == 0)
        assert described("--off-preferred-partitions") == {
            "wide": ["the preferred leader, broker 1, is in the ISR: `klamm elect preferred` elects it"]
        }

        # A topic whose deletion waits for a reassignment that cannot end.
        c.kill(2)
        c.until(lambda: c.isr("safe") == [0])
        run_with_zookeeper(c.zookeeper, lambda znodes: znodes.request_reassignment({("pair", 0): [0, 2]}))
        assert main.run(["topics", "delete", "--topic", "pair", "--yes", "--zookeeper", c.zookeeper]) == 0
        capsys.readouterr()
        waits = "the deletion waits for the reassignment of partition 0: see `klamm reassign list`, or cancel it"
        waiting = ["the topic is being deleted", waits, "broker 2 is not live"]
        both = {access: {"pair": waiting} for access in ("--bootstrap-server", "--zookeeper")}
        c.until(lambda: looked("--topic", "pair") == both)
        plan = tmp_path / "plan.json"
        plan.write_text('{"version": 1, "partitions": [{"topic": "pair", "partition": 0, "replicas": [0, 2]}]}')
        cancel = ("cancel", "--reassignment-json-file", str(plan), "--preserve-throttles", "--yes")
        assert main.run(["reassign", *cancel, "--bootstrap-server", c.bootstrap]) == 0
        c.until(lambda: "pair" not in c.topics())
