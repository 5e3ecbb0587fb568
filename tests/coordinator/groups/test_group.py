"""A group alone: its states, members and protocols."""

import struct
from typing import Any

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.group import Group, GroupState, JoinResult, SyncResult
from klamm.protocol.consumer_protocol import subscribed_topics
from klamm.protocol.error_codes import ErrorCode
from support.coordination import NOW_MS, RANGE, ROUND_ROBIN, a_member

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
)


def a_group(state: GroupState = EMPTY) -> Group:
    return Group("g", state, NOW_MS)


# -- states ------------------------------------------------------------------------------------------------------------

LEGAL = [
    (EMPTY, PREPARING),
    (EMPTY, DEAD),
    (PREPARING, EMPTY),
    (PREPARING, COMPLETING),
    (PREPARING, DEAD),
    (COMPLETING, PREPARING),
    (COMPLETING, STABLE),
    (COMPLETING, DEAD),
    (STABLE, PREPARING),
    (STABLE, DEAD),
    (DEAD, DEAD),
]
ILLEGAL = [
    (EMPTY, EMPTY),
    (EMPTY, COMPLETING),
    (EMPTY, STABLE),
    (PREPARING, PREPARING),
    (PREPARING, STABLE),
    (COMPLETING, EMPTY),
    (COMPLETING, COMPLETING),
    (STABLE, EMPTY),
    (STABLE, COMPLETING),
    (STABLE, STABLE),
    (DEAD, EMPTY),
    (DEAD, PREPARING),
    (DEAD, COMPLETING),
    (DEAD, STABLE),
]


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_a_legal_transition(before: GroupState, after: GroupState) -> None:
    group = a_group(before)
    group.transition_to(after, NOW_MS + 5)
    assert (group.state, group.state_timestamp_ms) == (after, NOW_MS + 5)


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_an_illegal_transition_changes_nothing(before: GroupState, after: GroupState) -> None:
    group = a_group(before)
    with pytest.raises(ValueError, match=f"group g cannot go from {before} to {after}"):
        group.transition_to(after, NOW_MS + 5)
    assert (group.state, group.state_timestamp_ms) == (before, NOW_MS)


def test_the_states_have_the_names_that_tools_show() -> None:
    assert [str(state) for state in (EMPTY, PREPARING, COMPLETING, STABLE, DEAD)] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]


@pytest.mark.parametrize(
    ("state", "can"), [(EMPTY, True), (PREPARING, False), (COMPLETING, True), (STABLE, True), (DEAD, False)]
)
def test_who_can_rebalance(state: GroupState, can: bool) -> None:
    assert a_group(state).can_rebalance is can


# -- members -----------------------------------------------------------------------------------------------------------


def test_the_first_member_leads_and_decides_the_type() -> None:
    group = a_group()
    group.add(a_member("a", protocol_type="connect"))
    group.add(a_member("b", protocol_type="connect"))
    assert (group.leader_id, group.protocol_type) == ("a", "connect")
    group.remove("a")
    assert group.leader_id == "b"
    group.remove("b")
    assert group.leader_id is None
    group.add(a_member("d", protocol_type="consumer"))
    assert (group.leader_id, group.protocol_type) == ("d", "consumer")


def test_removing_who_is_nobody_does_nothing() -> None:
    group = a_group()
    group.add(a_member("a"))
    group.remove("x")
    assert list(group.members) == ["a"]


def test_a_pending_id_is_pending_until_it_joins_or_goes() -> None:
    group = a_group()
    group.pending_members.update({"a": None, "b": None})
    group.add(a_member("a"))
    assert list(group.pending_members) == ["b"]
    group.remove("b")
    assert not group.pending_members


def test_all_have_joined_when_nobody_is_missing_or_pending() -> None:
    group = a_group()
    answers: list[JoinResult] = []
    group.add(a_member("a"), answers.append)
    assert group.has_all_members_joined
    group.add(a_member("b"))
    assert not group.has_all_members_joined
    group.update_member(group.members["b"], 60_000, 10_000, [RANGE], answers.append)
    assert (group.has_all_members_joined, group.awaiting_join_count) == (True, 2)
    group.pending_members["c"] = None
    assert not group.has_all_members_joined


def test_who_goes_while_it_waits_is_told_so() -> None:
    group = a_group()
    joins: list[JoinResult] = []
    syncs: list[SyncResult] = []
    group.add(a_member("a"), joins.append)
    group.await_sync(group.members["a"], syncs.append)
    group.remove("a")
    assert joins == [JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, "")]
    assert syncs == [SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)]
    assert group.awaiting_join_count == 0


def test_who_asks_again_ends_its_earlier_request() -> None:
    group = a_group()
    earlier: list[Any] = []
    later: list[Any] = []
    group.add(a_member("a"), earlier.append)
    member = group.members["a"]
    group.update_member(member, 61_000, 11_000, [ROUND_ROBIN], later.append)
    assert earlier == [JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, "a")]
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (61_000, 11_000)
    assert group.awaiting_join_count == 1
    group.await_sync(member, earlier.append)
    group.await_sync(member, later.append)
    assert earlier[1:] == [SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)]
    assert later == []


def test_an_answer_is_given_once() -> None:
    group = a_group()
    answers: list[Any] = []
    group.add(a_member("a"), answers.append)
    member = group.members["a"]
    for _ in range(2):
        group.answer_join(member, JoinResult(ErrorCode.NONE, "a"))
    group.await_sync(member, answers.append)
    assert group.answer_sync(member, SyncResult(ErrorCode.NONE))
    assert not group.answer_sync(member, SyncResult(ErrorCode.NONE))
    assert len(answers) == 2


def test_a_static_member_is_replaced_with_all_it_had() -> None:
    group = a_group()
    answers: list[Any] = []
    group.add(a_member("a-1", instance="a", assignment=b"mine"), answers.append)
    group.await_sync(group.members["a-1"], answers.append)
    group.pending_sync_members["a-1"] = None
    member = group.replace_static_member("a", "a-2")
    assert answers == [
        JoinResult(ErrorCode.FENCED_INSTANCE_ID, "a-1"),
        SyncResult(ErrorCode.FENCED_INSTANCE_ID),
    ]
    assert (member.member_id, member.assignment, group.leader_id) == ("a-2", b"mine", "a-2")
    assert (list(group.members), group.static_members) == (["a-2"], {"a": "a-2"})
    assert list(group.pending_sync_members) == ["a-2"]
    assert group.is_fenced("a-1", "a")
    assert not group.is_fenced("a-2", "a")
    assert not group.is_fenced("a-1", None)
    assert not group.is_fenced("a-1", "unknown")


def test_the_leader_is_one_who_has_joined() -> None:
    group = a_group()
    assert group.elect_joined_leader()  # nobody there: nobody to lead
    group.add(a_member("a"))
    group.add(a_member("b"))
    assert not group.elect_joined_leader()
    group.update_member(group.members["b"], 60_000, 10_000, [RANGE], lambda _: None)
    assert group.elect_joined_leader()
    assert group.leader_id == "b"


def test_the_longest_rebalance_timeout_counts() -> None:
    group = a_group()
    assert group.rebalance_timeout_ms == 0
    group.add(a_member("a", rebalance_timeout_ms=5))
    group.add(a_member("b", rebalance_timeout_ms=7))
    assert group.rebalance_timeout_ms == 7


# -- protocols ---------------------------------------------------------------------------------------------------------


def test_the_protocol_is_what_all_support_and_most_prefer() -> None:
    group = a_group()
    group.add(a_member("a", ("x", b""), ("y", b""), ("z", b"")))
    group.add(a_member("b", ("q", b""), ("z", b""), ("y", b"")))
    group.add(a_member("d", ("z", b""), ("y", b"")))
    assert group.select_protocol() == "z"
    group.remove("d")
    assert group.select_protocol() == "y"  # one vote each: the earlier member's


def test_a_protocol_that_a_member_repeats_counts_once() -> None:
    group = a_group(PREPARING)
    group.add(a_member("a", ("x", b"1"), ("x", b"2")))
    assert group.select_protocol() == "x"
    group.update_member(group.members["a"], 1, 1, [("y", b""), ("y", b"")], None)
    assert group.select_protocol() == "y"
    assert not group.supports_protocols("consumer", [("x", b"")])
    group.remove("a")
    group.add(a_member("b", ("y", b"")))
    assert group.supports_protocols("consumer", [("y", b"")])


def test_what_protocols_a_new_member_may_have() -> None:
    group = a_group()
    assert not group.supports_protocols("", [RANGE])
    assert not group.supports_protocols("consumer", [])
    assert group.supports_protocols("consumer", [RANGE])
    group.add(a_member("a", RANGE, ROUND_ROBIN))
    group.add(a_member("b", ROUND_ROBIN))
    group.transition_to(PREPARING, NOW_MS)
    assert group.supports_protocols("consumer", [RANGE, ROUND_ROBIN])
    assert not group.supports_protocols("consumer", [RANGE])
    assert not group.supports_protocols("connect", [ROUND_ROBIN])


def subscribed(group: Group) -> list[str]:
    """To which of these topics its members may be subscribed."""
    return list(in_one_go(group.subscribed_among(["t", "u"])))


def test_a_generation_has_a_protocol_and_without_members_none() -> None:
    group = a_group()
    group.add(a_member("a", ("range", b"\0\0\0\0\0\1\0\1t")))
    group.transition_to(PREPARING, NOW_MS)
    group.pending_sync_members["a"] = None
    group.has_assignment = True
    group.begin_next_generation(NOW_MS + 1)
    assert (group.state, group.generation_id, group.protocol_name) == (COMPLETING, 1, "range")
    assert not group.pending_sync_members
    assert not group.has_assignment
    assert subscribed(group) == ["t"]
    assert group.joined("a").members == [("a", None, b"\0\0\0\0\0\1\0\1t")]
    group.transition_to(PREPARING, NOW_MS)
    group.remove("a")
    group.begin_next_generation(NOW_MS + 2)
    assert (group.state, group.generation_id, group.protocol_name) == (EMPTY, 2, None)
    assert subscribed(group) == []


def test_generations_begin_again_after_the_last_number() -> None:
    group = a_group(PREPARING)
    group.generation_id = 2**31 - 2
    group.begin_next_generation(NOW_MS)
    assert group.generation_id == 2**31 - 1
    group.state = PREPARING
    group.begin_next_generation(NOW_MS)
    assert group.generation_id == 1


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0\0\0\0\0\1\0\5t", b"\0\0\xff\xff\xff\xff", b"\xff\xff\0\0\0\0", struct.pack(">hi", 0, 2**31 - 1)],
)
def test_where_the_subscription_is_not_known_every_topic_may_be_in_it(metadata: bytes) -> None:
    with pytest.raises(ValueError):
        subscribed_topics(metadata)
    group = a_group()
    group.add(a_member("a", ("range", metadata)))
    group.transition_to(PREPARING, NOW_MS)
    group.begin_next_generation(NOW_MS)
    assert subscribed(group) == ["t", "u"]


def test_a_group_as_it_was_stored() -> None:
    members = [a_member("a", ("range", b"\0\0\0\0\0\0"), instance="i"), a_member("b", ("range", b"\0\0\0\0\0\0"))]
    group = in_one_go(Group.load_steps("g", 7, "consumer", "range", "b", 5, members))
    assert (group.state, group.generation_id, group.leader_id, group.state_timestamp_ms) == (STABLE, 7, "b", 5)
    assert group.static_members == {"i": "a"}
    assert in_one_go(Group.load_steps("g", 7, "consumer", "range", "nobody", 5, [a_member("a")])).leader_id == "a"
    empty = in_one_go(Group.load_steps("g", 8, "", None, None, None, []))
    assert (empty.state, empty.protocol_type, empty.leader_id) == (EMPTY, None, None)


def test_protocol_data_are_shown_of_a_stable_group_only() -> None:
    group = in_one_go(
        Group.load_steps("g", 7, "consumer", "range", "a", 5, [a_member("a", ("range", b"m"), assignment=b"x")])
    )
    summary = in_one_go(group.summary())
    assert (summary.state, summary.protocol_type, summary.protocol) == ("Stable", "consumer", "range")
    assert summary.members[0] == ("a", None, "c", "/h", b"m", b"x")
    group.transition_to(PREPARING, NOW_MS)
    summary = in_one_go(group.summary())
    assert (summary.state, summary.protocol) == ("PreparingRebalance", "")
    assert summary.members[0] == ("a", None, "c", "/h", b"", b"")
