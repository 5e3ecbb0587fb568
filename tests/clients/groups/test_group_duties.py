"""The eight duties of a consumer in a group, done by every client: metadata, join, sync, leave, heartbeat, commit, the
leader's assignment, and callbacks around a rebalance."""

import signal
from collections.abc import Sequence
from functools import partial

import pytest

from support.group_clients.cluster import GroupCluster
from support.group_clients.hosts import CLIENTS, EAGER, MEMBERS, Member, Partition, World
from support.waiting import until

ALL = pytest.mark.parametrize("client", MEMBERS)
# The client commits what has been read, but only when it must: before it gives partitions away.
LAZY = {"enable.auto.commit": "true", "auto.commit.interval.ms": "3600000"}
ASSIGNORS = [(client, assignor) for client, known in MEMBERS.items() for assignor in known.assignors]


def all_of(topics: Sequence[str], count: int) -> set[Partition]:
    return {(topic, number) for topic in topics for number in range(count)}


def share(world: World, members: Sequence[Member], wanted: set[Partition], spread: int = 1) -> None:
    """Waits until the members own these partitions, each one once, nobody more than `spread` more than another."""

    def shared() -> bool:
        owned = [partition for member in members for partition in member.owned]
        counts = [len(member.owned) for member in members]
        return sorted(owned) == sorted(wanted) and max(counts) - min(counts) <= spread

    world.until(shared, f"{[member.name for member in members]} share {sorted(wanted)}")


@pytest.mark.parametrize("client", CLIENTS)
def test_metadata_is_refreshed(world: World, group_cluster: GroupCluster, name: str, client: str) -> None:
    """New topics that match the subscription, and new partitions, are found without a restart."""
    group_cluster.create_topics(f"{name}-1", partitions=1)
    settings = {"metadata.max.age.ms": 200}
    member = world.open(client, group_cluster.bootstrap, name, f"^{name}-.*", settings)
    share(world, [member], {(f"{name}-1", 0)})
    group_cluster.create_topics(f"{name}-2", partitions=1)
    share(world, [member], {(f"{name}-1", 0), (f"{name}-2", 0)})
    group_cluster.create_partitions(f"{name}-1", 3)
    share(world, [member], {*all_of([f"{name}-1"], 3), (f"{name}-2", 0)})


# What the leader gives to the members in the order of their ids: topic a or b, and the partition's number.
EXPECTED = {
    ("range", 2): ["a0 a1 b0 b1", "a2 b2"],
    ("range", 3): ["a0 b0", "a1 b1", "a2 b2"],
    ("roundrobin", 2): ["a0 a2 b1", "a1 b0 b2"],
    ("roundrobin", 3): ["a0 b0", "a1 b1", "a2 b2"],
}


@pytest.mark.parametrize(("client", "assignor"), ASSIGNORS)
def test_members_come_and_go(world: World, group_cluster: GroupCluster, name: str, client: str, assignor: str) -> None:
    topics = [f"{name}-a", f"{name}-b"]
    everything = all_of(topics, 3)
    group_cluster.create_topics(*topics, partitions=3)
    settings = {"partition.assignment.strategy": assignor}

    # Ranges are made topic by topic.
    spread = 2 if assignor == "range" else 1
    members: list[Member] = []
    before: dict[str, set[Partition]] = {}
    for count in (1, 2, 3):
        before = {member.name: set(member.owned) for member in members}
        members.append(world.open(client, group_cluster.bootstrap, name, ",".join(topics), settings))
        share(world, members, everything, spread)
        agree(group_cluster, name, assignor, members)
        if (assignor, count) in EXPECTED:
            found = [owned for _, owned in sorted((id_of(group_cluster, name, m), sorted(m.owned)) for m in members)]
            assert [" ".join(f"{t[-1]}{n}" for t, n in owned) for owned in found] == EXPECTED[assignor, count]
    first, second, third = members
    if "sticky" in assignor:
        assert [len(member.owned) for member in members] == [2, 2, 2]
        assert first.owned < before[first.name]
        assert second.owned < before[second.name]

    # The session lasts longer than this test waits: that the others get its partitions is because it has left.
    kept = first.owned | third.owned
    second.close()
    share(world, [first, third], everything, spread)
    agree(group_cluster, name, assignor, [first, third])
    if "sticky" in assignor:
        assert kept <= first.owned | third.owned

    for member in (first, third):
        calls = member.rebalances()
        if assignor in EAGER:
            # All of it is given back before anything is given.
            given = [partitions for call, partitions in calls if call == "assigned" and partitions]
            taken = [partitions for call, partitions in calls if call == "revoked" and partitions]
            assert taken == given[:-1]
            assert "lost" not in dict(calls)
        else:
            # Nobody gives back what he keeps.
            revoked = [partition for call, partitions in calls if call == "revoked" for partition in partitions]
            assert not member.owned.intersection(revoked) or member is first
            assert len(revoked) < len(everything)


@ALL
def test_heartbeats_keep_a_member(world: World, group_cluster: GroupCluster, name: str, client: str) -> None:
    """One member does not poll, another one's process stands still: only the one without heartbeats is expelled."""
    everything = all_of([name], 2)
    group_cluster.create_topics(name, partitions=2)
    settings = {"session.timeout.ms": 2000}
    busy = world.open(client, group_cluster.bootstrap, name, name, settings)
    process = world.start(client)
    dead = world.open(process, group_cluster.bootstrap, name, name, settings)
    share(world, [busy, dead], everything)
    busy_id = id_of(group_cluster, name, busy)
    had = set(dead.owned)

    busy.ask("hold", "holds")
    process.signal_group(signal.SIGSTOP)
    group_cluster.until(lambda: len(group_cluster.describe(name).members) == 1, "the end of the session")
    assert id_of(group_cluster, name, busy) == busy_id
    busy.say("go-on")
    share(world, [busy], everything)
    assert id_of(group_cluster, name, busy) == busy_id

    before = len(dead.rebalances())
    process.signal_group(signal.SIGCONT)
    share(world, [busy, dead], everything)
    assert dead.rebalances()[before] == ("lost" if MEMBERS[client].tells_lost else "revoked", had)


@ALL
def test_what_was_read_is_committed_before_partitions_move(
    world: World, group_cluster: GroupCluster, name: str, client: str
) -> None:
    """In the callback where the client can wait there, else by the client itself: nothing is read twice."""
    in_callback = MEMBERS[client].commits_in_callbacks
    group_cluster.create_topics(name, partitions=2)
    group_cluster.produce(name, range(6), 2)
    own = {"commit.on.revoke": "true"} if in_callback else LAZY
    first = world.open(client, group_cluster.bootstrap, name, name, own)
    world.until(lambda: len(first.records) == 6, "six records")

    second = world.open(client, group_cluster.bootstrap, name, name, own)
    share(world, [first, second], all_of([name], 2))
    if in_callback:
        happened = [event[:2] for event in first.events]
        assert happened.index(("committed-sync", "ok")) < happened.index(("revoked", f"{name}:0,{name}:1"))
    assert group_cluster.committed(name) == {(name, 0): 3, (name, 1): 3}
    group_cluster.produce(name, range(6, 10), 2)
    world.until(lambda: len(first.records) + len(second.records) >= 10, "ten records")
    assert sorted(int(r.value) for r in (*first.records, *second.records)) == list(range(10))


def has_records(member: Member) -> bool:
    return bool(member.records)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_different_clients_in_one_group(world: World, group_cluster: GroupCluster, name: str, assignor: str) -> None:
    """All clients that know an assignor share a topic; one after another leaves amid records; each is read once."""
    group_cluster.create_topics(name, partitions=10)
    members: list[Member] = []
    for client, known in MEMBERS.items():
        if assignor in known.assignors:
            settings = {"partition.assignment.strategy": assignor, **LAZY}
            members.append(world.open(client, group_cluster.bootstrap, name, name, settings))
    share(world, members, all_of([name], 10))
    agree(group_cluster, name, assignor, members)

    total = 0
    staying = list(members)
    while True:
        group_cluster.produce(name, range(total, total + 100), 10)
        total += 100
        if len(staying) == 1:
            break
        leaving = staying.pop(0)
        world.until(partial(has_records, leaving), "its first records")
        leaving.close()
        share(world, staying, all_of([name], 10))
    world.until(lambda: sum(len(member.records) for member in members) >= total, f"{total} records")
    assert sorted(int(r.value) for member in members for r in member.records) == list(range(total))


def agree(group_cluster: GroupCluster, group: str, assignor: str, members: Sequence[Member]) -> None:
    """What the coordinator says of the group is what its members have been told."""
    # Cooperative members that have their shares may still end a last rebalance.
    until(lambda: group_cluster.describe(group).state.name == "STABLE")
    described = group_cluster.describe(group)
    assert described.partition_assignor == assignor
    told = {
        member.client_id: {(place.topic, place.partition) for place in member.assignment.topic_partitions}
        for member in described.members
    }
    assert told == {member.name: member.owned for member in members}


def id_of(group_cluster: GroupCluster, group: str, member: Member) -> str:
    (found,) = [one.member_id for one in group_cluster.describe(group).members if one.client_id == member.name]
    return str(found)
