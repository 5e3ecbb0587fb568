"""`klamm status` and `klamm brokers`: findings as a table over plain facts, and both commands on a klamm cluster."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from klamm.base.words import size_text
from klamm.cli import main
from klamm.cli.cluster.broker_report import description_lines, table_lines
from klamm.cli.cluster.status import status_lines, status_value
from klamm.diagnosis.cluster_facts import KAFKA, KLAMM, BrokerFacts, ClusterFacts, LogDirFacts
from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.diagnosis.findings import Finding
from klamm.diagnosis.health import diagnose, is_healthy
from klamm.processes.helper import Helper
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster
from support.command_lines import called

HEALTHY = PartitionView(1, 5, (1, 2, 3), (1, 2, 3))


def broker(broker_id: int, **facts: Any) -> BrokerFacts:
    log_dirs = (LogDirFacts("/data", None, 3, 0, 2048),)
    return BrokerFacts(broker_id, (f"host{broker_id}", 9092), **{"software": KLAMM, "log_dirs": log_dirs, **facts})


def facts(
    *partitions: PartitionView, live: tuple[int, ...] = (1, 2, 3), controller_id: int = 1, **others: Any
) -> ClusterFacts:
    """A cluster with these partitions of topic `t`, whose min.insync.replicas is 2."""
    view = ClusterView(
        {each: BrokerView(each, (f"host{each}", 9092)) for each in live},
        {TopicPartition("t", number): each for number, each in enumerate(partitions or (HEALTHY,))},
        controller_id=controller_id,
    )
    return ClusterFacts("id", view, {each: broker(each) for each in live}, **{"min_isr": {"t": 2}, **others})


def with_broker(known: ClusterFacts, changed: BrokerFacts) -> ClusterFacts:
    return replace(known, brokers={**known.brokers, changed.broker_id: changed})


def kinds(findings: list[Finding]) -> tuple[list[str], list[str]]:
    """Problems and others."""
    problems = [each.kind for each in findings if each.is_problem]
    return problems, [each.kind for each in findings if not each.is_problem]


FULL = LogDirFacts("/data", None, 3, 0, 900, 1000, 99)
ROOMY = LogDirFacts("/data", None, 3, 0, 900, 1000, 101)
FAILED = LogDirFacts("/data", "KAFKA_STORAGE_ERROR (56)", 0, 0, 0)
RATE = {"leader.replication.throttled.rate": "1000"}
MOVING = HEALTHY._replace(replicas=(1, 2, 3, 4), adding=(4,), removing=(3,))
FOUR = (1, 2, 3, 4)


FAULTS: list[tuple[ClusterFacts, list[str], list[str]]] = [
    (facts(), [], []),
    (facts(controller_id=-1), ["no_controller"], []),
    (facts(controller_error="REQUEST_TIMED_OUT (7)"), ["silent_controller"], []),
    (
        facts(PartitionView(-1, 5, (1, 2), (2,)), live=(1, 3)),
        ["offline_partitions", "missing_brokers"],
        [],
    ),
    (facts(PartitionView(-1, 5, (1, 2), (2,))), ["offline_partitions"], []),
    (facts(HEALTHY._replace(isr=(1, 2))), ["under_replicated"], ["at_min_isr"]),
    (facts(HEALTHY._replace(isr=(1,))), ["under_min_isr", "under_replicated"], []),
    (facts(PartitionView(1, 0, (1, 2), (1, 2))), [], []),  # As many replicas as min.insync.replicas.
    (facts(HEALTHY, live=(1, 2)), ["missing_brokers"], []),
    (with_broker(facts(), broker(2, error="timed out")), ["silent_brokers"], []),
    (with_broker(facts(), broker(2, log_dirs=(FAILED,))), ["offline_log_dirs"], []),
    (with_broker(facts(), broker(2, log_dirs=(FULL,))), ["full_disks"], []),
    (with_broker(facts(), broker(2, log_dirs=(ROOMY,))), [], []),
    (facts(MOVING, live=FOUR), [], ["reassignments"]),
    (facts(MOVING._replace(isr=(1, 2, 4)), live=FOUR), [], ["reassignments"]),  # 4 stands in for 3.
    (facts(HEALTHY, live=(2, 3)), ["no_controller", "offline_partitions", "missing_brokers"], []),
    (with_broker(facts(MOVING, live=FOUR), broker(2, throttles=RATE)), [], ["reassignments"]),
    (with_broker(facts(), broker(2, throttles=RATE)), [], ["throttles"]),
    (facts(throttled_topics={"t": {"leader.replication.throttled.replicas": "0:1"}}), [], ["throttles"]),
    (facts(HEALTHY._replace(leader=2)), [], ["leader_imbalance"]),
    (facts(*[HEALTHY] * 10, HEALTHY._replace(leader=2)), [], []),  # Less than ten percent.
    (with_broker(facts(), broker(2, software=KAFKA)), [], ["version_mix"]),
    (with_broker(facts(), broker(2, protocol="2.7")), [], ["version_mix"]),
    (facts(forbidden=("reassignments",)), [], ["forbidden"]),
    (facts(topics_error="topic t: TOPIC_AUTHORIZATION_FAILED (29)"), [], ["unread_configs"]),
]


@pytest.mark.parametrize(("known", "problems", "notices"), FAULTS)
def test_each_fault_has_its_finding(known: ClusterFacts, problems: list[str], notices: list[str]) -> None:
    findings = diagnose(known)
    assert kinds(findings) == (problems, notices)
    unknown = {"unread_configs", "forbidden"} & {*notices}
    assert is_healthy(findings) is (False if problems else None if unknown else True)


COMMANDS = sorted({finding.command for known, *_ in FAULTS for finding in diagnose(known) if finding.command})


def test_findings_come_with_commands() -> None:
    assert len(COMMANDS) > 5, COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_a_finding_is_a_valid_call(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(command) == " ".join(command.split()[:3]), capsys.readouterr().err


@pytest.mark.parametrize(
    ("known", "verdict", "title", "healthy"),
    [
        (facts(), "healthy", None, True),
        (facts(topics_error="topic t: UNKNOWN_SERVER_ERROR (-1)"), "NOT KNOWN TO BE HEALTHY", "Not known:", None),
        (facts(forbidden=("configs of topics",)), "NOT KNOWN TO BE HEALTHY", "Not known:", None),
        (facts(controller_id=-1, topics_error="topic t"), "NOT HEALTHY: 1 problem", "Not known:", False),
    ],
)
def test_what_could_not_be_read_is_not_healthy(
    known: ClusterFacts, verdict: str, title: str | None, healthy: bool | None
) -> None:
    findings = diagnose(known)
    lines = list(status_lines(known, findings, None))
    assert lines[0].startswith(f"Cluster id: {verdict}") and (title is None or title in lines)
    value = status_value(known, findings, None)
    assert (value["healthy"], bool(value["unknown"]), value["notices"]) == (healthy, title is not None, [])


def test_findings_say_why_and_what_to_do() -> None:
    partitions = (
        PartitionView(-1, 5, (4, 1), (4,)),
        PartitionView(1, 5, (1, 2, 4), (1,)),
        PartitionView(1, 5, (1, 2, 3), (1, 3), offline=(2,)),
    )
    known = facts(*partitions, min_isr={}, throttled_topics={})
    assert [(each.text, each.why, each.advice) for each in diagnose(known)] == [
        (
            "1 partition has no leader, and cannot be read or written: t-0.",
            ("broker 4 is down and was the last in sync for 1",),
            "Start broker 4.",
        ),
        (
            "Broker 4 is named in assignments and not in the cluster.",
            ("broker 4: 2 replicas",),
            "Start it, or move the replicas away:",
        ),
        (
            "2 partitions are under-replicated: t-1, t-2.",
            ("broker 2 is up, and has not caught up: 2 replicas", "broker 4 is down: 1 replica"),
            "Start the brokers that are down. Replicas on a broker that is up catch up by themselves; if they do not,"
            " look at its log and at throttles.",
        ),
    ]


@pytest.mark.parametrize(
    ("log_dirs", "why"),
    [
        ((FAILED,), "broker 2 has them in a log directory that is offline: 1 replica"),
        ((), "broker 2 is up, and the controller has not used them since it came back: 1 replica"),
    ],
)
def test_a_log_directory_is_blamed_only_where_its_broker_says_that_it_is_offline(
    log_dirs: tuple[LogDirFacts, ...], why: str
) -> None:
    known = with_broker(facts(PartitionView(1, 5, (1, 2, 3), (1, 3), offline=(2,))), broker(2, log_dirs=log_dirs))
    [found] = [each for each in diagnose(known) if each.kind == "under_replicated"]
    assert found.why == (why,)


def test_throttles_left_behind_come_with_the_command_that_removes_them() -> None:
    [finding] = diagnose(with_broker(facts(), broker(2, throttles=RATE)))
    assert finding.why == ("broker 2: leader.replication.throttled.rate=1000",)
    assert finding.command == "klamm configs alter --broker 2 --delete-config leader.replication.throttled.rate"


def test_what_a_klamm_controller_waits_for_is_a_finding() -> None:
    controller: Mapping[str, Any] = {
        "brokers": [{"broker_id": 2, "trouble": "refused"}, {"broker_id": 3, "trouble": ""}],
        "deletions": {"count": 1, "first": [{"topic": "gone", "waits_for": "broker 2"}]},
        "reassignments": {"count": 0, "first": []},
    }
    assert [(each.kind, each.text, each.why) for each in diagnose(facts(), controller)] == [
        ("controller_cannot_send", "The controller cannot reach broker 2.", ("broker 2: refused",)),
        ("controller_deletions", "1 topic is being deleted.", ("gone waits for: broker 2",)),
    ]


def test_a_reassignment_that_the_controller_knows_of_is_said_once_and_explains_throttles() -> None:
    """The facts may have been read before it began, or name it a second time."""
    moving = {"topic": "t", "partition": 0, "waits_for": "not caught up: broker 3"}
    controller = {"brokers": [], "deletions": {"count": 0}, "reassignments": {"count": 1, "first": [moving]}}
    for partition in (HEALTHY, PartitionView(1, 0, (1, 2, 3), (1, 2), adding=(3,))):
        [finding] = diagnose(with_broker(facts(partition), broker(2, throttles=RATE)), controller)
        assert (finding.kind, finding.why) == ("controller_reassignments", ("t-0 waits for: not caught up: broker 3",))
        assert finding.command == "klamm reassign list"


def test_brokers_are_a_table_with_those_that_are_missing() -> None:
    known = facts(HEALTHY, PartitionView(2, 0, (2, 4), (2,)))
    known = with_broker(known, broker(3, rack="r", error="timed out"))
    assert list(table_lines(known)) == [
        "BROKER  ADDRESS             RACK  LEADERS  REPLICAS  BEHIND  SIZE    SOFTWARE",
        "1*      host1:9092          -     1        1         0       2.0 KB  klamm",
        "2       host2:9092          -     1        2         0       2.0 KB  klamm",
        "3       host3:9092          r     0        1         0       -       does not answer",
        "4       not in the cluster  -     0        1         1       -       -",
    ]


def test_a_large_cluster_fits_on_a_screen() -> None:
    live = tuple(range(1, 99))
    partitions = [PartitionView(1, 0, (1, behind, 99), (1,)) for behind in range(10, 30)]
    known = facts(*partitions, live=live, min_isr={})
    table = list(table_lines(known, 12))
    assert [line.split()[0] for line in table[1:-1]] == ["1*", *map(str, range(10, 22))]
    assert table[-1] == "... and 86 more, 9 of them with a fault (klamm brokers list)"
    assert (
        list(table_lines(facts(live=live), 12))[-1] == "... and 97 more, none of them with a fault (klamm brokers list)"
    )
    [finding] = [each for each in diagnose(known) if each.kind == "under_replicated"]
    assert list(finding.lines())[:7] == [
        "- 20 partitions are under-replicated: t-0, t-1, t-2 and 17 more.",
        "    broker 99 is down: 20 replicas",
        *(f"    broker {each} is up, and has not caught up: 1 replica" for each in (10, 11, 12, 13)),
        "    ... and 16 more",
    ]


def test_a_broker_in_detail() -> None:
    known = facts(HEALTHY, PartitionView(1, 0, (1, 2), (1,)), PartitionView(1, 0, (1, 3, 2), (1, 3), adding=(2,)))
    changed = broker(2, protocol="2.8-IV1", throttles=RATE, log_dirs=(ROOMY, FAILED))
    assert list(description_lines(with_broker(known, changed), 2)) == [
        "Broker: 2\tAddress: host2:9092\tRack: none",
        "Software: klamm, inter.broker.protocol.version 2.8-IV1",
        "Replicas: 3\tLeaders: 0\tPreferredLeaders: 0\tNotInSync: 1",
        "\tTopic: t\tPartition: 1\tLeader: 1\tNot in sync",
        "\tTopic: t\tPartition: 2\tLeader: 1\tReplica is being added",
        "LogDir: /data\tReplicas: 3\tSize: 900 B\tDisk: 101 B of 1000 B free",
        "LogDir: /data\tReplicas: 0\tSize: 0 B\tOffline: KAFKA_STORAGE_ERROR (56)",
        "Throttle: leader.replication.throttled.rate=1000",
    ]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 << 30, "5.0 GB"), (3 << 60, "3072.0 PB")],
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


# -- on a cluster -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=2, helper=klamm_helper) as cluster:
        cluster.create_topic("both", partitions=2, replication_factor=2)
        yield cluster


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = main.run([*arguments, "--bootstrap-server", cluster.bootstrap])
    assert ended == code, err.getvalue() + out.getvalue()
    return out.getvalue() or err.getvalue()


def test_the_status_of_a_cluster_before_and_after_a_death(cluster: Cluster) -> None:
    healthy = json.loads(run(cluster, "status", "--json"))
    assert healthy["healthy"] and not healthy["problems"] and not healthy["notices"]
    assert healthy["controller"]["active"] and healthy["controller_id"] == cluster.controller_id()
    assert [each["replicas"] for each in json.loads(run(cluster, "brokers", "list", "--json"))] == [2, 2]
    assert "LogDir: " in run(cluster, "brokers", "describe", "--broker", "1")
    unknown = run(cluster, "brokers", "describe", "--broker", "7", code=1)
    assert unknown.startswith("klamm: broker 7 is not in the cluster, and no assignment names it; known are 0, 1")

    watching = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "klamm.cli.main",
            "status",
            "--watch",
            "--json",
            "--bootstrap-server",
            cluster.bootstrap,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["healthy"]

    cluster.kill(1)
    cluster.until(lambda: cluster.isr("both") == [0] and cluster.isr("both", 1) == [0])
    assert any(not json.loads(line)["healthy"] for line in watching.stdout)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(120) == 130
    screen = run(cluster, "status", code=1)
    assert "NOT HEALTHY: 2 problems" in screen.splitlines()[0]
    assert "- Broker 1 is named in assignments and not in the cluster." in screen
    assert "    broker 1 is down: 2 replicas" in screen
    assert "1       not in the cluster" in run(cluster, "brokers", "list")
    cluster.start(1)


def test_hostile_names_on_an_output_that_has_no_such_characters(cluster: Cluster) -> None:
    """A locale or an encoding of ASCII, in real processes. The last test: the group's topic is in all views."""
    group = "clé\x1b[2J\r\nforged\u202e"
    patient = ("--timeout", "60000")
    run(cluster, "groups", "reset-offsets", "--group", group, "--topic", "both", "--to-earliest", "--execute", *patient)
    shown = r"cl\xe9\u001b[2J\u000d\u000aforged\u202e"
    in_ascii = {"PYTHONIOENCODING": "ascii"}
    in_c = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for arguments, environment, line in (
        (["groups", "list", *patient], in_ascii, shown),
        (["groups", "list", *patient], in_c, shown),
        (["topics", "describe", "--topic", "both"], in_ascii, "\tTopic: both\tPartition: 0"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "klamm", *arguments, "--bootstrap-server", cluster.bootstrap],
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert any(each.startswith(line) for each in ended.stdout.decode("ascii").split("\n")), ended.stdout
