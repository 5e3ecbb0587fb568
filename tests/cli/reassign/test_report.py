"""How a plan is shown."""

import json
from dataclasses import replace

from klamm.cli.reassign.planning.goals import Balance, Goal, PartitionLoad
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition, Unmovable
from klamm.cli.reassign.planning.planner import plan
from klamm.cli.reassign.report import Report, report, report_lines, report_value
from klamm.protocol.vocabulary import TopicPartition

MB = 1024 * 1024


def cluster() -> ClusterModel:
    """Broker 4 has died; broker 3 is empty."""
    replicas = [(1, 2), (2, 1), (1, 2), (1, 4)]
    return ClusterModel(
        {1: Broker("a"), 2: Broker("b"), 3: Broker("a")},
        {TopicPartition("t", number): Partition(each, 10 * MB) for number, each in enumerate(replicas)},
    )


def shown(goal: Goal, throttle: int | None = None) -> list[str]:
    found = cluster()
    return list(report_lines(report(found, goal, plan(found, goal), throttle)))


def test_a_plan_shows_each_broker_the_bytes_the_least_bytes_and_the_time_at_the_throttle() -> None:
    goal = Goal(balance=frozenset(Balance) - {Balance.LOAD})
    assert shown(goal, throttle=2 * MB) == [
        "BROKER    RACK  REPLICAS      LEADERS       SIZE                RECEIVES  SENDS",
        "1         a     4 -> 2        3 -> 1        40.0 MB -> 20.0 MB  -         20.0 MB",
        "2         b     3             1             30.0 MB             -         -",
        "3         a     0 -> 2        0 -> 2        0 B -> 20.0 MB      20.0 MB   -",
        "4 (dead)  -     1             0             10.0 MB             -         -",
        "max/avg         1.71 -> 1.29  2.25 -> 1.50  1.71 -> 1.29",
        "",
        "2 partitions with copies to other brokers, 0 with another order or fewer replicas.",
        "20.0 MB between brokers; no plan for this goal copies less than 20.0 MB.",
        "At 2.0 MB/s for each broker at least 0:00:10.",
    ]


def test_what_cannot_move_is_shown_with_its_reason() -> None:
    reason = "racks: each broker without a replica (3) is in a rack that has one (--disable-rack-aware allows a second)"
    assert shown(Goal(remove_brokers=(2,)))[-6:] == [
        "Nothing has to move.",
        "",
        "3 replicas cannot move:",
        f"  t-0 on broker 2: {reason}",
        f"  t-1 on broker 2: {reason}",
        f"  t-2 on broker 2: {reason}",
    ]


def test_only_the_first_of_many_reasons_are_lines() -> None:
    found = cluster()
    goal = Goal()
    made = report(found, goal, plan(found, goal))
    stuck = tuple(Unmovable("t", number, None, "so") for number in range(30))
    lines = list(report_lines(Report(replace(made.plan, unmovable=stuck), made.rows, made.balance, 0)))
    assert lines[-2:] == ["  t-19: so", "  and 10 more (--json names all)"]


def test_a_broker_whose_disks_are_too_small_is_named() -> None:
    found = cluster()
    goal = Goal(balance=frozenset({Balance.BYTES}))
    for usable_bytes, named in ((20 * MB, 0), (19 * MB, 1)):
        small = replace(found, brokers={**found.brokers, 3: Broker("a", usable_bytes=usable_bytes)})
        lines = list(report_lines(report(small, goal, plan(small, goal))))
        assert lines.count("Broker 3 receives 20.0 MB, and its disks have 19.0 MB free.") == named


def test_load_is_shown_when_it_is_known() -> None:
    load = {TopicPartition("t", 0): PartitionLoad(3 * MB, 6 * MB)}
    lines = shown(Goal(load=load))
    assert lines[0].endswith("WRITTEN/S  READ/S")
    assert lines[1].endswith("3.0 MB     6.0 MB")


def test_the_values_are_plain_json() -> None:
    found = cluster()
    goal = Goal(remove_brokers=(4,))
    value = json.loads(json.dumps(report_value(report(found, goal, plan(found, goal), 5 * MB))))
    assert value["moves"] == [
        {
            "topic": "t",
            "partition": 3,
            "before": [1, 4],
            "after": [1, 2],
            "log_dirs": ["any", "any"],
            "bytes": 10 * MB,
            "bytes_between_log_dirs": 0,
        }
    ]
    assert (value["unmovable"], value["bytes_between_brokers"], value["minimum_bytes"]) == ([], 10 * MB, 10 * MB)
    assert (value["throttle"], value["seconds"]) == (5 * MB, 2.0)
    assert value["balance"]["replicas"] == {"before": 4 * 3 / 7, "after": 4 * 3 / 8}
    assert [(row["broker"], row["is_live"], row["after"]["replicas"]) for row in value["brokers"]] == [
        (1, True, 4),
        (2, True, 4),
        (3, True, 0),
        (4, False, 0),
    ]
