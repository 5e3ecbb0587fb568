"""What an execution decides: where a partition stands, what begins next, and what a throttle sets and restores."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from klamm.cli.reassign.planning.model import Move, Placement, anywhere
from klamm.cli.reassign.state_file import (
    Record,
    StateFile,
    format_record,
    parse_record,
    state_path,
    write_rollback,
)
from klamm.cli.reassign.steps import ClusterMoment, Limits, Standing, Verdict, judge, moved_bytes, next_batch
from klamm.cli.reassign.throttles import (
    ConfigKey,
    Setting,
    clearing,
    foreign,
    settings_for,
    to_restore,
    to_set,
    wanted_configs,
)
from klamm.config.throttles import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS, LOG_DIR_RATE
from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

T0 = TopicPartition("t", 0)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def move(number: int, before: tuple[int, ...], after: tuple[int, ...], size_bytes: int = 100) -> Move:
    return Move("t", number, anywhere(before), anywhere(after), size_bytes, before[0])


MOVE = move(0, (1, 2), (2, 3))


def look(
    replicas: tuple[int, ...] | None,
    target: tuple[int, ...] | None = None,
    *,
    leader: int = 1,
    live: tuple[int, ...] = (1, 2, 3),
    topic_id: UUID = ID,
) -> ClusterMoment:
    partitions = {} if replicas is None else {T0: PartitionView(leader, 0, replicas, ())}
    view = ClusterView({broker: BrokerView(broker, ("h", 1)) for broker in live}, partitions, {"t": topic_id})
    return ClusterMoment(view, {} if target is None else {T0: target})


DEAD = "broker 3 is not alive"


@pytest.mark.parametrize(
    ("seen", "is_sent", "verdict"),
    [
        (look((2, 3)), False, Verdict(Standing.DONE)),
        (look((2, 3, 1), (2, 3)), True, Verdict(Standing.MOVING)),
        (look((2, 3, 1), (2, 3), live=(1, 2)), True, Verdict(Standing.MOVING, DEAD)),
        (look((1, 2)), False, Verdict(Standing.READY)),
        (look((1, 2), live=(1, 2)), False, Verdict(Standing.READY, DEAD)),
        (
            look((1, 2), leader=NO_LEADER),
            False,
            Verdict(Standing.READY, "no leader to copy from: the ISR is empty"),
        ),
        (look((1, 2)), True, Verdict(Standing.CHANGED, "another client has cancelled its reassignment")),
        (look((2, 4, 1), (2, 4)), False, Verdict(Standing.CHANGED, "another client moves it to 2,4")),
        (
            look((2, 3, 1)),
            True,
            Verdict(Standing.MOVING, "the brokers show the replicas of its reassignment, which has ended"),
        ),
        (look((2, 1)), False, Verdict(Standing.CHANGED, "another client has changed its replicas to 2,1")),
        (look((1, 2), topic_id=OTHER_ID), False, Verdict(Standing.CHANGED, "the topic was deleted and created again")),
        (look(None), False, Verdict(Standing.CHANGED, "the partition no longer exists")),
    ],
)
def test_where_a_partition_stands(seen: ClusterMoment, is_sent: bool, verdict: Verdict) -> None:
    assert judge(MOVE, str(ID), seen, is_sent=is_sent) == verdict


@pytest.mark.parametrize(
    ("moving", "limits", "numbers"),
    [
        ((), Limits(), [0, 1, 2, 3, 4]),
        ((), Limits(partitions=1), [0, 2, 4]),
        ((move(8, (1,), (2,)),), Limits(partitions=1), [2, 4]),
        ((move(8, (1,), (2,)),), Limits(partitions=2), [0, 2, 3, 4]),
        # A partition larger than the limit begins alone.
        ((), Limits(size_bytes=50), [0, 2, 4]),
        ((), Limits(size_bytes=200), [0, 1, 2, 3, 4]),
    ],
)
def test_what_begins_next(moving: tuple[Move, ...], limits: Limits, numbers: list[int]) -> None:
    ready = [
        move(0, (1,), (2,)),
        move(1, (1,), (2,)),
        move(2, (3,), (4,)),
        move(3, (3,), (4,)),
        # Copies nothing.
        move(4, (1, 2), (2, 1)),
    ]
    assert [each.partition for each in next_batch(ready, moving, limits)] == numbers


def test_the_bytes_of_a_copy_never_exceed_the_partition() -> None:
    assert moved_bytes(MOVE, Verdict(Standing.DONE), {}) == 100
    assert moved_bytes(MOVE, Verdict(Standing.MOVING), {3: 40}) == 40
    assert moved_bytes(MOVE, Verdict(Standing.MOVING), {3: 4000, 1: 50}) == 100


# -- throttles --------------------------------------------------------------------------------------------------------

B1 = ConfigKey("brokers/1", LEADER_RATE)
REPLICAS = ConfigKey("topics/t", LEADER_REPLICAS)


def test_the_configs_of_a_throttle() -> None:
    moves = [move(0, (1, 2), (2, 3)), move(10, (1,), (1, 4)), move(2, (1, 2), (1,))]
    chosen = Move("t", 3, anywhere((1,)), Placement((1,), ("/fast",)), 7)
    assert wanted_configs(moves, moves, 9, None) == {
        ConfigKey("topics/t", FOLLOWER_REPLICAS): "0:3,10:4",
        REPLICAS: "0:1,0:2,10:1,2:1,2:2",
        **{
            ConfigKey(f"brokers/{broker}", name): "9"
            for broker in (1, 2, 3, 4)
            for name in (LEADER_RATE, FOLLOWER_RATE)
        },
    }
    assert wanted_configs([chosen], [], None, 5) == {ConfigKey("brokers/1", LOG_DIR_RATE): "5"}
    assert wanted_configs(moves, moves, None, None) == {}


def test_only_the_moves_that_are_listed_stand_in_the_lists() -> None:
    moves = [move(0, (1, 2), (2, 3)), move(1, (1,), (4,))]
    found = wanted_configs(moves, moves[:1], 9, None)
    assert found[REPLICAS] == "0:1,0:2"
    assert {key.entity for key in found} == {"topics/t", *(f"brokers/{broker}" for broker in (1, 2, 3, 4))}


OWN = {REPLICAS: frozenset({"0:1", "0:2", "1:1"})}


@pytest.mark.parametrize(
    ("former", "value"),
    [
        (None, "0:1,0:2"),
        ("", "0:1,0:2"),
        ("7:1, 0:2", "0:1,0:2,7:1"),
        ("*", "*"),
    ],
)
def test_a_list_keeps_the_replicas_that_another_client_throttles(former: str | None, value: str) -> None:
    settings = settings_for({REPLICAS: "0:1,0:2"}, {}, {REPLICAS: former}, OWN)
    assert settings[REPLICAS].value == value
    assert to_set(settings, {REPLICAS: former}) == ({} if former == "*" else {"topics/t": {LEADER_REPLICAS: value}})
    for current in (former, value):
        changes = to_restore(settings, {REPLICAS: current}, OWN)
        after = changes["topics/t"][LEADER_REPLICAS] if changes else current
        assert set((after or "").replace(" ", "").split(",")) == set((former or "").replace(" ", "").split(","))


@pytest.mark.parametrize("former", [None, "0:2,7:1"])
def test_a_list_that_is_too_long_for_a_request_becomes_a_wildcard_and_then_what_it_was(former: str | None) -> None:
    replicas = frozenset(f"{number}:1" for number in range(5_000))
    own, wanted = {REPLICAS: replicas | {"0:2"}}, ",".join(replicas)
    settings = settings_for({REPLICAS: wanted}, {}, {REPLICAS: former}, own)
    assert settings[REPLICAS] == Setting(former, ("*",))
    assert settings_for({REPLICAS: wanted}, settings, {REPLICAS: "*"}, own) == settings
    assert to_restore(settings, {REPLICAS: "*"}, own) == {"topics/t": {LEADER_REPLICAS: former}}
    later = settings_for({REPLICAS: "0:1"}, settings, {REPLICAS: "*"}, own)
    assert set(later[REPLICAS].value.split(",")) == {"0:1", *(former or "0:1").split(",")}


@pytest.mark.parametrize(
    ("current", "value", "restored"),
    [
        (None, "1:1", None),  # Deleted, also what others throttled.
        ("9:9", "1:1,9:9", "9:9"),  # Another client has written its own list.
        ("0:1,0:2,8:8", "1:1,8:8", "8:8"),  # Others have changed their part.
        ("*", "*", "*"),
    ],
)
def test_a_list_that_another_client_has_changed_gets_the_replicas_of_the_next_batch(
    current: str | None, value: str, restored: str | None
) -> None:
    first = settings_for({REPLICAS: "0:1,0:2"}, {}, {REPLICAS: "7:1"}, OWN)
    settings = settings_for({REPLICAS: "1:1"}, first, {REPLICAS: current}, OWN)
    assert settings[REPLICAS].value == value
    changes = to_restore(settings, {REPLICAS: value}, OWN)
    assert (changes["topics/t"][LEADER_REPLICAS] if changes else value) == restored


@pytest.mark.parametrize(
    ("current", "is_set", "is_restored"),
    [
        ("5", True, "5"),  # Not set yet, or the broker that was asked does not know yet.
        ("10", True, "5"),  # An earlier rate.
        ("20", False, "5"),
        (None, True, None),  # Another client has deleted it.
        ("77", False, None),  # Of another client.
    ],
)
def test_what_is_set_and_restored(current: str | None, is_set: bool, is_restored: str | None) -> None:
    before = {B1: Setting("5", ("10", "20"))}
    settings = settings_for({B1: "20"}, before, {B1: current}, {})
    assert to_set(settings, {B1: current}) == ({"brokers/1": {LEADER_RATE: "20"}} if is_set else {})
    restored = {} if is_restored is None else {"brokers/1": {LEADER_RATE: is_restored}}
    assert to_restore(before, {B1: current}, {}) == restored
    assert foreign(before, {B1: current}) == ({B1: current} if current in (None, "77") else {})
    if current is None:
        assert to_restore(settings, {B1: "20"}, {}) == {"brokers/1": {LEADER_RATE: None}}


def test_a_former_rate_that_comes_back_is_another_clients() -> None:
    settings = {B1: Setting("5", ("20",))}
    assert to_set(settings, {B1: "5"}, {B1}) == {}
    assert foreign(settings, {B1: "5"}, {B1}) == {B1: "5"}


def test_a_second_throttle_keeps_the_former_value_of_the_first() -> None:
    first = settings_for({B1: "10"}, {}, {B1: "5"}, {})
    assert first == {B1: Setting("5", ("10",))}
    assert settings_for({B1: "20"}, first, {B1: "10"}, {}) == {B1: Setting("5", ("10", "20"))}
    assert settings_for({B1: "10"}, first, {B1: "10"}, {}) == first


def test_clearing_deletes_as_kafkas_tool_does() -> None:
    assert clearing([2, 1, 2], ["t"]) == {
        "brokers/1": {LEADER_RATE: None, FOLLOWER_RATE: None, LOG_DIR_RATE: None},
        "brokers/2": {LEADER_RATE: None, FOLLOWER_RATE: None, LOG_DIR_RATE: None},
        "topics/t": {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None},
    }


# -- the files --------------------------------------------------------------------------------------------------------


def record(rollback: Path) -> Record:
    chosen = Move("t", 1, anywhere((1,)), Placement((1,), ("/fast",)), 7)
    return Record(
        rollback.name, "id", (replace(MOVE, leader=None), chosen), {"t": str(ID)}, 9, None, {B1: Setting(None, ("9",))}
    )


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    stored = record(tmp_path / "r.json")
    assert parse_record(format_record(stored), "here") == stored
    with pytest.raises(ToolError, match="here: not the state of an execution"):
        parse_record('{"version": 1}', "here")
    for broken in (format_record(stored)[:-20], b"\xff\xfe{"):
        with pytest.raises(ToolError, match="here: not valid JSON"):
            parse_record(broken, "here")


def test_a_rollback_plan_is_never_overwritten(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert state_path(plan).name == "plan.state.json"
    assert write_rollback(plan, (MOVE,)).name == "plan.rollback.json"
    assert write_rollback(plan, (MOVE,)).name == "plan.rollback-2.json"
    assert (tmp_path / "plan.rollback.json").read_text() == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}\n'
    )


def test_a_disk_without_room_leaves_no_half_of_a_rollback_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"No space left on device: .*plan\.rollback\.json"):
        write_rollback(tmp_path / "plan.json", (MOVE,))
    assert list(tmp_path.iterdir()) == []


def test_an_execution_in_a_directory_that_was_moved_is_still_claimed(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    StateFile(before / "plan.state.json").create(record(write_rollback(before / "plan.json", (MOVE,))))
    before.rename(after)
    with StateFile(after / "plan.state.json").claimed():
        assert StateFile(after / "plan.state.json").is_claimed()
    (after / "plan.rollback.json").unlink()
    with pytest.raises(ToolError, match=r"plan\.rollback\.json, which undoes the plan of .* is missing"):
        StateFile(after / "plan.state.json").is_claimed()


def test_a_list_that_two_reassignments_throttle_loses_only_the_replicas_of_the_one_that_ends() -> None:
    key = ConfigKey("topics/t", LEADER_REPLICAS)
    ended, own = {key: Setting("9:9", ("0:1,9:9",))}, {key: frozenset({"0:1"})}
    assert to_restore(ended, {key: "0:1,1:1,9:9"}, own) == {"topics/t": {LEADER_REPLICAS: "1:1,9:9"}}
    assert to_restore(ended, {key: "0:1"}, own) == {"topics/t": {LEADER_REPLICAS: None}}
    assert to_restore(ended, {key: "*"}, own) == {}


def test_two_processes_do_not_execute_one_plan(tmp_path: Path) -> None:
    rollback = write_rollback(tmp_path / "plan.json", (MOVE,))
    file = StateFile(tmp_path / "plan.state.json")
    file.create(record(rollback))
    with pytest.raises(ToolError, match="another process has begun to execute this plan"):
        file.create(record(rollback))
    assert not file.is_claimed()
    with file.claimed():
        assert file.is_claimed()
        with pytest.raises(ToolError, match="another process executes this plan now"), file.claimed(0.2):
            pass
    assert not file.is_claimed()
