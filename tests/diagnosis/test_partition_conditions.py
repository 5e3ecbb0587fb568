"""Why a partition is as it is: each rule as a row of a table over plain facts. Every command that is given parses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.client.admin.configs import ConfigEntry
from klamm.config.definition import ConfigSource
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.election_plans import Loss
from klamm.diagnosis.partition_conditions import Answer, Condition, PartitionFacts, explain
from klamm.diagnosis.reasons import Circumstances
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from support.command_lines import called

HEALTHY = PartitionView(1, 5, (1, 2, 3), (1, 2, 3))
OFFLINE = PartitionView(-1, 6, (1, 2, 3), (1,))
REACH = ("--bootstrap-server", "localhost:9092")
ZOOKEEPER = ("--zookeeper", "localhost:2181")
STORAGE = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "")
LOSS = Loss(2, 90, 10, "broker 3", {1: "broker 1 is not live"})


def facts(view: PartitionView = HEALTHY, **others: Any) -> PartitionFacts:
    """Partition t-7 of a topic whose min.insync.replicas is 2, and may not lose records."""
    known = others.pop("known", {})
    settings = {
        "min.insync.replicas": ConfigEntry("min.insync.replicas", "2", ConfigSource.DYNAMIC_TOPIC_CONFIG, False, False),
        "unclean.leader.election.enable": ConfigEntry(
            "unclean.leader.election.enable", "false", ConfigSource.DEFAULT_CONFIG, False, False
        ),
    }
    return PartitionFacts(
        TopicPartition("t", 7),
        view,
        Circumstances(**{"live": frozenset({1, 2, 3, 4}), "min_insync_replicas": 2, "unclean": False, **known}),
        **{"controller_id": 1, "settings": settings, "reach": REACH, "zookeeper": ZOOKEEPER, **others},
    )


def status(**others: Any) -> dict[str, Any]:
    """What an idle klamm controller says."""
    empty = {"count": 0, "first": []}
    return {
        **{"event": None, "event_for_ms": 0, "event_queue_size": 0, "brokers": []},
        **{"deletions": empty, "reassignments": empty},
        **others,
    }


def of_broker(broker_id: int, **others: Any) -> dict[str, Any]:
    idle = {"trouble": None, "sending": None, "sending_for_ms": 0, "queue_size": 0, "shutting_down": False}
    return {"broker_id": broker_id, **idle, **others}


WITHOUT_1 = {"live": frozenset({2, 3})}
MOVING = PartitionView(1, 5, (4, 1, 2), (1, 2), adding=(4,), removing=(2,))

# Facts; the kinds of the conditions, problems in capitals; lines that the first one says; commands of its remedies.
CASES: dict[str, tuple[PartitionFacts, str, tuple[str, ...], tuple[str, ...]]] = {
    "all is well": (facts(), "healthy", ("Broker 1 leads, and all 3 replicas are in sync.",), ()),
    "the only replica is well": (
        facts(PartitionView(1, 5, (1,), (1,)), known={"min_insync_replicas": 1}),
        "healthy",
        ("Broker 1 leads, and has the only replica.",),
        (),
    ),
    "the only member of the ISR is dead": (
        facts(OFFLINE, known=WITHOUT_1, price=LOSS),
        "OFFLINE",
        (
            "The partition has no leader: it can be neither read nor written.",
            "no replica of the ISR (broker 1) can lead",
            "broker 1 is not live (it is in the ISR)",
            "unclean.leader.election.enable is false, the default: only a replica of the ISR may lead",
            "Start broker 1. Nothing is lost: it has all acknowledged records.",
            "If the records matter less than the service: elect broker 2, outside the ISR.",
            "at least 10 records are lost: the log of broker 3 goes further; broker 1 is not live, and what only it"
            " has is lost too",
        ),
        (
            "",
            "klamm elect unclean --topic t --partition 7 --bootstrap-server localhost:9092",
            "klamm configs alter --topic t --add-config unclean.leader.election.enable=true"
            " --bootstrap-server localhost:9092",
        ),
    ),
    "of two dead members of the ISR one is enough": (
        facts(OFFLINE._replace(isr=(1, 2)), known={"live": frozenset({3})}, price=LOSS),
        "OFFLINE",
        ("Start brokers 1, 2 (one of them is enough). Nothing is lost: it has all acknowledged records.",),
        ("", *(("klamm elect unclean --topic t --partition 7 --bootstrap-server localhost:9092",)), "klamm configs"),
    ),
    "no replica is left": (
        facts(OFFLINE, known={"live": frozenset({4})}, price="ELIGIBLE_LEADERS_NOT_AVAILABLE"),
        "OFFLINE",
        ("no replica at all can lead, so an unclean election is not possible either",),
        ("",),
    ),
    "the log directory of the only member of the ISR has failed": (
        facts(OFFLINE, known={"log_ends": {1: STORAGE, 2: 90, 3: 100}}, offline_dirs={1: ["/data/a"]}, price=LOSS),
        "OFFLINE",
        (
            "broker 1 has the replica in a log directory that is offline: /data/a (it is in the ISR)",
            "Repair the log directory (/data/a) of broker 1, and restart the broker. Nothing is lost: it has all"
            " acknowledged records.",
        ),
        ("", "klamm elect unclean", "klamm configs alter"),
    ),
    "the only member of the ISR shuts down": (
        facts(OFFLINE, controller=status(brokers=[of_broker(1, shutting_down=True)]), price=LOSS),
        "OFFLINE",
        ("broker 1 is shutting down (it is in the ISR)",),
        ("klamm elect unclean", "klamm configs alter"),
    ),
    "a leader shuts down and has a successor": (
        facts(controller=status(brokers=[of_broker(1, shutting_down=True)])),
        "leader_shutting_down",
        ("The leader, broker 1, is shutting down. The controller makes broker 2 the leader.",),
        (),
    ),
    "a leader shuts down and no other replica is in sync": (
        facts(
            PartitionView(1, 5, (1, 2, 3), (1,)),
            known={"live": frozenset({1, 2}), "min_insync_replicas": 1, "log_ends": {1: 100, 2: 40}},
            controller=status(brokers=[of_broker(1, shutting_down=True)]),
            throttles={"broker 2": {"follower.replication.throttled.rate": "10"}},
        ),
        "LEADER_SHUTTING_DOWN UNDER_REPLICATED at_min_isr",
        (
            "The leader, broker 1, is shutting down, and no other replica can take over: the partition loses its leader"
            " when it stops.",
            "broker 2 is 60 records behind the leader",
            "broker 3 is not live",
            "Start broker 3.",
            "Or start broker 1 again when it has stopped: it leads again, and nothing is lost.",
        ),
        ("", "klamm configs alter --broker 2 --delete-config follower.replication.throttled.rate", ""),
    ),
    "unclean elections are allowed": (
        facts(OFFLINE, known={**WITHOUT_1, "unclean": True}, price=LOSS),
        "ELECTION_DUE",
        (
            "brokers 2, 3 can be elected, as unclean.leader.election.enable is true, and the controller has not done so"
            " yet",
        ),
        ("", "", "klamm elect unclean --topic t --partition 7"),
    ),
    "an election is due": (
        facts(OFFLINE._replace(isr=(2,)), known=WITHOUT_1),
        "ELECTION_DUE",
        ("broker 2 of the ISR can lead, and the controller has not elected a leader yet",),
        ("", "klamm elect unclean --topic t --partition 7"),
    ),
    "an election is due behind an event that hangs": (
        facts(
            OFFLINE._replace(isr=(2,)),
            known=WITHOUT_1,
            controller=status(event="BrokerChange", event_for_ms=9000, event_queue_size=4),
        ),
        "BUSY_CONTROLLER ELECTION_DUE",
        ("it has been at the event BrokerChange for 9000 ms, and 4 events wait behind it",),
        ("klamm controller status --zookeeper localhost:2181", "klamm controller move --zookeeper localhost:2181"),
    ),
    "the controller cannot reach a replica": (
        facts(controller=status(brokers=[of_broker(2, trouble="refused"), of_broker(4, trouble="not a replica")])),
        "BUSY_CONTROLLER",
        ("it cannot reach broker 2: refused",),
        ("klamm controller status", "klamm controller move"),
    ),
    "a replica does not answer the controller": (
        facts(controller=status(brokers=[of_broker(2, sending="LeaderAndIsr", sending_for_ms=5000, queue_size=3)])),
        "BUSY_CONTROLLER",
        ("broker 2 has not answered its LeaderAndIsr for 5000 ms; 3 more requests wait for it",),
        ("klamm controller status", "klamm controller move"),
    ),
    "there is no controller": (
        facts(controller_id=-1),
        "NO_CONTROLLER",
        ("The cluster has no controller, so no leader is elected now.",),
        ("",),
    ),
    "never led": (
        facts(PartitionView(-1, -1, (1, 2), ()), known={"live": frozenset({4})}),
        "NEVER_LED",
        ("no leader was ever elected, as no replica was live when the topic was created", "Start brokers 1, 2."),
        ("",),
    ),
    "the leader is dead and still named": (
        facts(HEALTHY._replace(isr=(1,)), known=WITHOUT_1, price=LOSS),
        "OFFLINE",
        ("The leader, broker 1, is not live, and no other leader is elected.",),
        ("", "klamm elect unclean", "klamm configs alter"),
    ),
    "the leader hangs": (
        facts(silent={1: "no answer within 3000 ms"}),
        "SILENT_LEADER",
        ("See why broker 1 does not answer, and restart the process.",),
        ("",),
    ),
    "a follower is dead": (
        facts(HEALTHY._replace(isr=(1, 2)), known={"live": frozenset({1, 2})}),
        "UNDER_REPLICATED at_min_isr",
        ("2 of 3 replicas are in sync.", "broker 3 is not live", "Start broker 3."),
        ("",),
    ),
    "a follower is behind": (
        facts(HEALTHY._replace(isr=(1, 2)), known={"log_ends": {1: 100, 2: 100, 3: 40}}),
        "UNDER_REPLICATED at_min_isr",
        ("broker 3 is 60 records behind the leader", "Broker 3 is up and catches up by itself"),
        ("",),
    ),
    "a follower is behind and throttled": (
        facts(
            HEALTHY._replace(isr=(1, 2)),
            known={"log_ends": {1: 100, 2: 100, 3: 40}},
            throttles={"broker 3": {"follower.replication.throttled.rate": "10"}, "topic t": {}},
        ),
        "UNDER_REPLICATED at_min_isr",
        ("replication is throttled: broker 3 has follower.replication.throttled.rate=10",),
        (
            "klamm configs alter --broker 3 --delete-config follower.replication.throttled.rate"
            " --bootstrap-server localhost:9092",
        ),
    ),
    "too few in sync": (
        facts(HEALTHY._replace(isr=(1,)), known={"live": frozenset({1})}),
        "UNDER_MIN_ISR UNDER_REPLICATED",
        (
            "Producers with acks=all are refused: the ISR has 1 replica, and min.insync.replicas is 2.",
            "min.insync.replicas is 2, set on the topic",
            "Start brokers 2, 3.",
            "a record is then acknowledged when broker 1 has it, and lost with it",
        ),
        (
            "",
            "klamm configs alter --topic t --add-config min.insync.replicas=1 --bootstrap-server localhost:9092",
        ),
    ),
    "more must be in sync than there are replicas": (
        facts(PartitionView(1, 5, (1,), (1,))),
        "UNDER_MIN_ISR",
        ("Give the topic at least 2 replicas: it has 1.",),
        ("", "klamm configs alter --topic t --add-config min.insync.replicas=1"),
    ),
    "a reassignment copies": (
        facts(
            MOVING,
            known={"log_ends": {1: 100, 4: 10}},
            controller=status(
                reassignments={"first": [{"topic": "t", "partition": 7, "waits_for": "not caught up: broker 4"}]}
            ),
        ),
        "reassigning off_preferred",
        (
            "The partition moves from brokers 1, 2 to brokers 4, 1. Step A: broker 4 copies the log.",
            "the controller says what it waits for: not caught up: broker 4",
            "broker 4 is 90 records behind the leader",
        ),
        (
            "",
            "klamm reassign cancel --reassignment-json-file cancel.json --preserve-throttles --bootstrap-server"
            " localhost:9092",
        ),
    ),
    "a reassignment waits for a dead broker": (
        facts(MOVING, known={"live": frozenset({1, 2})}),
        "REASSIGNING off_preferred",
        ("broker 4 is not live", "Start broker 4."),
        ("", "klamm reassign cancel"),
    ),
    "a reassignment has copied and changes the leader": (
        facts(PartitionView(2, 5, (4, 1, 2), (1, 2, 4), adding=(4,), removing=(2,))),
        "reassigning off_preferred",
        (
            "The partition moves from brokers 1, 2 to brokers 4, 1. Step B3: all of the target are in sync, and one of"
            " 4,1 becomes the leader.",
        ),
        ("", "klamm reassign cancel"),
    ),
    "a reassignment takes replicas out of the ISR": (
        facts(PartitionView(4, 5, (4, 1, 2), (1, 2, 4), adding=(4,), removing=(2,))),
        "reassigning",
        ("The partition moves from brokers 1, 2 to brokers 4, 1. Step B4: broker 2 leaves the ISR.",),
        ("", "klamm reassign cancel"),
    ),
    "a reassignment deletes": (
        facts(PartitionView(4, 5, (4, 1, 2), (1, 4), adding=(4,), removing=(2,))),
        "reassigning",
        (
            "The partition moves from brokers 1, 2 to brokers 4, 1. Steps B5 and B6: the replicas on broker 2 are"
            " deleted.",
        ),
        ("", "klamm reassign cancel"),
    ),
    "another one leads than the preferred leader": (
        facts(HEALTHY._replace(leader=2)),
        "off_preferred",
        ("Broker 2 leads instead of the preferred leader, broker 1.",),
        ("klamm elect preferred --topic t --partition 7 --bootstrap-server localhost:9092",),
    ),
    "the preferred leader is dead": (
        facts(HEALTHY._replace(leader=2, isr=(2, 3)), known=WITHOUT_1),
        "UNDER_REPLICATED at_min_isr off_preferred",
        ("broker 1 is not live",),
        ("",),
    ),
    "a deletion waits for a dead broker": (
        facts(
            known={"live": frozenset({1, 2}), "marked_for_deletion": True},
            controller=status(
                deletions={
                    "first": [
                        {"topic": "t", "started": True, "replicas": 6, "deleted": 4, "waits_for": "not alive: broker 3"}
                    ]
                }
            ),
        ),
        "DELETING",
        (
            "4 of 6 replicas of the topic are deleted",
            "the controller says what it waits for: not alive: broker 3",
            "Start broker 3.",
        ),
        ("",),
    ),
    "a deletion waits for a reassignment that waits for a dead broker": (
        facts(MOVING, known={"live": frozenset({1, 2}), "marked_for_deletion": True}),
        "DELETING REASSIGNING",
        ("a reassignment of the partition ends first", "broker 4 is not live", "Start broker 4."),
        ("",),
    ),
    "a deletion that nothing holds up": (
        facts(known={"marked_for_deletion": True}),
        "deleting",
        ("Topic t is being deleted. The deletion ends when all of its replicas are deleted.",),
        ("",),
    ),
}


def of(kind: str, answer: Answer) -> Condition:
    [found] = [each for each in answer.conditions if each.kind == kind.lower()]
    return found


def words(condition: Condition) -> list[str]:
    return [condition.text, *condition.why, *(text for each in condition.remedies for text in (each.text, each.price))]


@pytest.mark.parametrize("case", CASES)
def test_each_state_has_its_reason_and_what_helps(case: str) -> None:
    known, kinds, lines, commands = CASES[case]
    answer = explain(known)
    first = of(kinds.split()[0], answer)
    said = " ".join(each.kind.upper() if each.is_problem else each.kind for each in answer.conditions)
    # A notice about a healthy partition stands behind that it is healthy.
    assert said.removeprefix("healthy ") == kinds
    for line in lines:
        assert any(each.startswith(line) for each in words(first)), (line, words(first))
    given = [each.command.splitlines()[-1] if each.command else "" for each in first.remedies]
    assert len(given) == len(commands), given
    for found, expected in zip(given, commands, strict=True):
        assert found.startswith(expected) and bool(found) == bool(expected), (found, expected)


@pytest.mark.parametrize("case", CASES)
def test_every_command_parses(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cancel.json").touch()
    for condition in explain(CASES[case][0]).conditions:
        for remedy in condition.remedies:
            for line in remedy.command.splitlines():
                assert line.startswith("echo ") or called(line) is not None, line


def test_the_replicas_stand_in_the_order_of_the_assignment() -> None:
    known = facts(
        OFFLINE._replace(replicas=(3, 1, 2)),
        known={**WITHOUT_1, "log_ends": {2: 90, 3: 100}},
        offline_since_ms={1: 5000, 2: 4000},
    )
    assert [
        (each.broker_id, each.state, each.is_preferred, each.log_end_offset, each.since_ms)
        for each in explain(known).replicas
    ] == [(3, "out of sync", True, 100, None), (1, "offline", False, None, 5000), (2, "out of sync", False, 90, None)]


@pytest.mark.parametrize("topic", ["$(reboot)", "a b", "a;b", "\u202etxt", "a\nklamm", ".", "", "é"])
def test_a_name_that_no_topic_can_have_gets_no_command(topic: str) -> None:
    for case in CASES.values():
        known = replace(case[0], key=TopicPartition(topic, 7))
        commands = [each.command for condition in explain(known).conditions for each in condition.remedies]
        assert {each.split()[1] for each in commands if each} <= {"controller"}


@pytest.mark.parametrize("topic", ["-x", "--yes", "a" * 249, "..."])
def test_a_legal_name_stays_one_word_of_the_command(topic: str) -> None:
    known = replace(CASES["the only member of the ISR is dead"][0], key=TopicPartition(topic, 7))
    commands = [each.command for each in explain(known).conditions[0].remedies if each.command]
    assert [called(each) for each in commands] == ["klamm elect unclean", "klamm configs alter"]
