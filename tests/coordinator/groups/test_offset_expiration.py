"""Which offsets expire; they do so in steps, of one group with very many of them too."""

import struct
from collections.abc import Collection, Iterable

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState
from klamm.coordinator.groups.offset_expiration import OFFSETS_PER_SLICE, Groups, Select, expire, expired_offsets
from klamm.protocol.consumer_protocol import encode_subscription
from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.machine.small_slices import small_slices
from support.coordination import NOW_MS, a_member

RETENTION_MS = 1000
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


def an_offset(committed_ms: int, expires_ms: int | None = None) -> OffsetAndMetadata:
    return OffsetAndMetadata(1, -1, "", committed_ms, expires_ms)


def expired(group: Group, now_ms: int, retention_ms: int, subscribed: Collection[str] = ()) -> list[PartitionKey]:
    return expired_offsets(group, group.offsets.partitions, now_ms, retention_ms, subscribed)


def test_offsets_of_an_empty_group_expire_together() -> None:
    group = Group("g", GroupState.EMPTY, NOW_MS)
    group.protocol_type = "consumer"
    group.offsets.load(T0, 5, an_offset(NOW_MS - 100))
    assert expired(group, NOW_MS + 99, 100) == []
    assert expired(group, NOW_MS + 100, 100) == [T0]
    group.state_timestamp_ms = None
    assert expired(group, NOW_MS, 100) == [T0]


def test_offsets_of_who_only_commits_expire_each_by_itself() -> None:
    group = Group("g", GroupState.EMPTY, NOW_MS)
    group.offsets.load(T0, 5, an_offset(NOW_MS - 100))
    group.offsets.load(T1, 6, an_offset(NOW_MS - 99))
    assert expired(group, NOW_MS, 100) == [T0]


def test_an_explicit_expiry_counts_before_all_others() -> None:
    group = Group("g", GroupState.EMPTY, NOW_MS)
    group.offsets.load(T0, 5, an_offset(0, NOW_MS))
    assert expired(group, NOW_MS - 1, 100) == []
    assert expired(group, NOW_MS, 10**15) == [T0]


def test_offsets_of_a_stable_group_expire_where_nobody_subscribes() -> None:
    group = in_one_go(
        Group.load_steps("g", 1, "consumer", "range", "a", 0, [a_member("a", ("range", b"\0\0\0\0\0\1\0\1t"))])
    )
    group.offsets.load(T0, 5, an_offset(0))
    group.offsets.load(U0, 6, an_offset(0))
    assert expired(group, NOW_MS, 100, ["t"]) == [U0]
    group.offsets.prepare_commit({U0: an_offset(0)})
    assert expired(group, NOW_MS, 100) == [T0]
    group.offsets.remove([T0])
    group.transition_to(GroupState.PREPARING_REBALANCE, NOW_MS)
    assert expired(group, NOW_MS, 100) == []
    other = in_one_go(
        Group.load_steps("g", 1, "connect", "x", "a", 0, [a_member("a", ("x", b""), protocol_type="connect")])
    )
    other.offsets.load(T0, 5, an_offset(0))
    assert expired(other, NOW_MS, 100) == []


class OneGroup(Groups):
    """A coordinator's groups; counts how many offsets are removed in a step."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.removed = 0

    def groups(self) -> list[Group]:
        return [self._group]

    def cleanup(self, groups: Iterable[Group], select: Select) -> int:
        removed = sum(len(group.offsets.remove(select(group))) for group in groups)
        self.removed += removed
        return removed


def test_no_step_removes_all_offsets_of_a_large_group() -> None:
    group = Group("g", GroupState.EMPTY, NOW_MS)
    for number in range(5 * OFFSETS_PER_SLICE):
        group.offsets.load(("t", number), number, OffsetAndMetadata(1, -1, "", NOW_MS))
    # One that is committed anew while the group is looked at stays.
    last: PartitionKey = ("t", 5 * OFFSETS_PER_SLICE - 1)
    one = OneGroup(group)
    steps = expire(one, NOW_MS + RETENTION_MS, RETENTION_MS)
    in_step = []
    while True:
        try:
            next(steps)
        except StopIteration as end:
            removed = end.value
            break
        finally:
            in_step.append(one.removed)
            one.removed = 0
        group.offsets.load(last, 10**6, OffsetAndMetadata(2, -1, "", NOW_MS + 1))
    assert removed == 5 * OFFSETS_PER_SLICE - 1
    assert group.offsets.partitions == [last]
    assert max(in_step) <= OFFSETS_PER_SLICE


def stable_group(*subscriptions: bytes) -> Group:
    """With an expired offset of each of the topics a to e."""
    members = [a_member(str(number), ("range", metadata)) for number, metadata in enumerate(subscriptions)]
    group = in_one_go(Group.load_steps("g", 1, "consumer", "range", "0", NOW_MS, members))
    for number, topic in enumerate("abcde"):
        group.offsets.load((topic, 0), number, OffsetAndMetadata(1, -1, "", 0))
    return group


def test_offsets_of_a_stable_group_expire_where_no_member_subscribes() -> None:
    group = stable_group(encode_subscription(["a", "x"]), encode_subscription(["d", "a"], []))
    with small_slices():
        assert in_one_go(expire(OneGroup(group), NOW_MS, RETENTION_MS)) == 3
    assert [topic for topic, _ in group.offsets.partitions] == ["a", "d"]


def test_offsets_stay_where_a_member_says_nothing_that_a_coordinator_understands() -> None:
    endless = struct.pack(">hi", 1, 2**31 - 1) + b"\0\0" * 1000
    for metadata in (b"", endless, encode_subscription(["a"])[:8]):
        assert in_one_go(expire(OneGroup(stable_group(metadata)), NOW_MS, RETENTION_MS)) == 0


def test_what_new_members_subscribe_to_stays() -> None:
    """They join while the subscriptions of the former generation are looked through."""
    group = stable_group(encode_subscription(["a", "x"]))
    with small_slices():
        steps = expire(OneGroup(group), NOW_MS, RETENTION_MS)
        for _ in range(8):
            next(steps)
        assert len(group.offsets.partitions) == 5
        group.transition_to(GroupState.PREPARING_REBALANCE, NOW_MS)
        group.add(a_member("1", ("range", encode_subscription(["e"]))))
        group.begin_next_generation(NOW_MS)
        group.transition_to(GroupState.STABLE, NOW_MS)
        in_one_go(steps)
        assert ("e", 0) in group.offsets.partitions
        assert in_one_go(expire(OneGroup(group), NOW_MS, RETENTION_MS)) > 0
    assert [topic for topic, _ in group.offsets.partitions] == ["a", "e"]
