"""The three ways to commit: automatically, synchronously with retries, asynchronously without."""

from functools import partial

import pytest

from support.group_clients.cluster import GroupCluster
from support.group_clients.hosts import CLIENTS, MEMBERS, Member, World

ALL = pytest.mark.parametrize("client", MEMBERS)
EVERY_HOUR = "3600000"


def has_read(member: Member, total: int) -> bool:
    return len(member.records) == total


@pytest.mark.parametrize("client", CLIENTS)
def test_automatic_commits(world: World, group_cluster: GroupCluster, name: str, client: str) -> None:
    group_cluster.create_topics(name, partitions=2)
    settings = {"enable.auto.commit": "true", "auto.commit.interval.ms": "100"}
    member = world.open(client, group_cluster.bootstrap, name, name, settings)

    def are_committed_of(total: int) -> bool:
        return group_cluster.committed(name) == {(name, 0): total // 2, (name, 1): total // 2}

    for numbers in (range(6), range(6, 10)):
        group_cluster.produce(name, numbers, 2)
        world.until(partial(has_read, member, numbers.stop), "all records")
        group_cluster.until(partial(are_committed_of, numbers.stop), f"all {numbers.stop} are committed")


@ALL
def test_a_new_member_goes_on_where_the_last_one_has_left(
    world: World, group_cluster: GroupCluster, name: str, client: str
) -> None:
    """The one that leaves commits what it has read; the other one knows nothing but the group's id."""
    group_cluster.create_topics(name, partitions=2)
    group_cluster.produce(name, range(6), 2)
    settings = {"enable.auto.commit": "true", "auto.commit.interval.ms": EVERY_HOUR}
    first = world.open(client, group_cluster.bootstrap, name, name, settings)
    world.until(lambda: len(first.records) == 6, "six records")
    first.close()
    assert group_cluster.committed(name) == {(name, 0): 3, (name, 1): 3}

    group_cluster.produce(name, range(6, 10), 2)
    second = world.open(client, group_cluster.bootstrap, name, name)
    world.until(lambda: len(second.records) >= 4, "four records")
    assert sorted(int(record.value) for record in second.records) == [6, 7, 8, 9]
    # Nor does it commit unless it is told to.
    second.close()
    assert group_cluster.committed(name) == {(name, 0): 3, (name, 1): 3}


@ALL
def test_the_coordinator_moves_before_a_commit(
    world: World, group_cluster: GroupCluster, name: str, client: str
) -> None:
    """The former coordinator refuses: a synchronous commit finds the new one, an asynchronous one gives up."""
    group_cluster.create_topics(name, partitions=1)
    # No heartbeat tells the client of the move before its commit does.
    member = world.open(client, group_cluster.bootstrap, name, name, {"heartbeat.interval.ms": "20000"})

    def read(total: int) -> None:
        group_cluster.produce(name, range(len(member.records), total), 1)
        world.until(lambda: len(member.records) == total, f"{total} records")

    def committed() -> int:
        return group_cluster.committed(name)[name, 0]

    read(3)
    assert member.ask("commit-sync", "committed-sync") == "ok"
    assert committed() == 3

    read(5)
    group_cluster.move_coordinator(name)
    assert member.ask("commit-sync", "committed-sync") == "ok"
    assert committed() == 5

    asynchronous = MEMBERS[client].commits_async
    if asynchronous == "-":
        return
    read(7)
    assert member.ask("commit-async", "committed-async") == "ok"
    assert committed() == 7

    read(9)
    group_cluster.move_coordinator(name)
    answer = member.ask("commit-async", "committed-async")
    if asynchronous == "fails without a retry":
        assert answer != "ok"
        assert committed() == 7
        assert member.ask("commit-sync", "committed-sync") == "ok"
    else:
        assert answer == "ok"
    assert committed() == 9
