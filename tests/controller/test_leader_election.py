"""The six strategies, and what is decided about bounced replicas, as tables: what goes in, who is elected."""

import pytest

from klamm.controller.leader_election import (
    Election,
    bounced_replica_leader_election,
    controlled_shutdown_partition_leader_election,
    offline_partition_leader_election,
    preferred_replica_partition_leader_election,
    reassign_partition_leader_election,
    topic_id_partition_leader_election,
)

Ids = tuple[int, ...]


@pytest.mark.parametrize(
    ("replicas", "isr", "online", "unclean", "elected"),
    [
        # The first replica that is online and in the ISR, in the order of the replicas.
        ((1, 2, 3), (3, 2), (1, 2, 3), False, Election(2, (3, 2), (1, 2, 3))),
        ((1, 2, 3), (1, 2, 3), (2, 3), False, Election(2, (2, 3), (2, 3))),
        # An ISR member that is no replica stays in the ISR, but cannot lead.
        ((1, 2), (4, 2), (2, 4), False, Election(2, (4, 2), (2,))),
        ((1, 2), (4,), (2, 4), False, None),
        # Nobody in the ISR is online.
        ((1, 2, 3), (1,), (2, 3), False, None),
        ((1, 2, 3), (1,), (3, 2), True, Election(2, (2,), (2, 3), unclean=True)),
        # An unclean election is clean when it can be.
        ((1, 2, 3), (3,), (2, 3), True, Election(3, (3,), (2, 3))),
        ((1, 2, 3), (1,), (), True, None),
        ((1, 2, 3), (), (1,), False, None),
        ((), (1,), (1,), True, None),
    ],
)
def test_offline(replicas: Ids, isr: Ids, online: Ids, unclean: bool, elected: Election | None) -> None:
    assert offline_partition_leader_election(replicas, isr, online, unclean) == elected


@pytest.mark.parametrize(
    ("target", "isr", "online", "elected"),
    [
        ((4, 5), (1, 5), (1, 4, 5), Election(5, (1, 5), (4, 5))),
        # Those who are not online are told all the same, and stay in the ISR.
        ((4, 5), (4, 5), (5,), Election(5, (4, 5), (4, 5))),
        ((4, 5), (1,), (1, 4, 5), None),
        ((4, 5), (4,), (5,), None),
    ],
)
def test_reassign(target: Ids, isr: Ids, online: Ids, elected: Election | None) -> None:
    assert reassign_partition_leader_election(target, isr, online) == elected


@pytest.mark.parametrize(
    ("replicas", "isr", "online", "elected"),
    [
        ((1, 2, 3), (2, 1), (1, 2), Election(1, (2, 1), (1, 2, 3))),
        ((1, 2, 3), (2,), (1, 2), None),
        ((1, 2, 3), (1, 2), (2,), None),
        ((), (1,), (1,), None),
    ],
)
def test_preferred_replica(replicas: Ids, isr: Ids, online: Ids, elected: Election | None) -> None:
    assert preferred_replica_partition_leader_election(replicas, isr, online) == elected


@pytest.mark.parametrize(
    ("replicas", "isr", "online", "shutting_down", "elected"),
    [
        ((1, 2, 3), (1, 2, 3), (1, 2, 3), (1,), Election(2, (2, 3), (1, 2, 3))),
        ((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2), Election(3, (3,), (1, 2, 3))),
        # One that is dead stays in the ISR: only those who shut down leave.
        ((1, 2, 3), (1, 2, 3), (1, 3), (1,), Election(3, (2, 3), (1, 3))),
        ((1, 2, 3), (1, 3), (1, 2), (1,), None),
        ((1, 2), (1, 2), (1, 2), (1, 2), None),
    ],
)
def test_controlled_shutdown(
    replicas: Ids, isr: Ids, online: Ids, shutting_down: Ids, elected: Election | None
) -> None:
    assert controlled_shutdown_partition_leader_election(replicas, isr, online, shutting_down) == elected


@pytest.mark.parametrize(
    ("replicas", "leader", "isr", "online", "bounced", "decided"),
    [
        # Some have not bounced: they are the ISR, and the leader stays if it is one of them.
        ((1, 2, 3), 1, (1, 2, 3), (1, 2, 3), (1,), (2, (2, 3))),
        ((1, 2, 3), 1, (1, 2, 3), (1, 2, 3), (2,), (1, (1, 3))),
        ((1, 2, 3), 1, (3, 2, 1), (1, 2, 3), (1, 2), (3, (3,))),
        # Dead ones leave with them.
        ((1, 2, 3), 1, (1, 2, 3), (1, 3), (1,), (3, (3,))),
        # All have bounced: one stays, the leader if it is among them. (1, 2, 3) are known to be back, or not yet.
        ((1, 2, 3), 2, (1, 2, 3), (1, 2, 3), (1, 2, 3), (2, (2,))),
        ((1, 2, 3), 2, (1, 2, 3), (), (1, 2, 3), (-1, (2,))),
        ((3, 2, 1), -1, (1, 3), (1, 2, 3), (1, 2, 3), (3, (3,))),
        ((1,), 1, (1,), (1,), (1,), (1, (1,))),
        # The others are dead: the one that is back stays.
        ((1, 2, 3), 2, (1, 2, 3), (1,), (1,), (1, (1,))),
        # It is not in the ISR: leader and ISR are as they were, even when they are dead.
        ((1, 2, 3), 2, (2, 3), (1, 2, 3), (1,), (2, (2, 3))),
        ((1, 2, 3), 2, (2, 3), (1,), (1,), (2, (2, 3))),
        ((1, 2, 3), -1, (2,), (1,), (1,), (-1, (2,))),
        # An ISR member that is no replica cannot lead.
        ((1, 2), 1, (1, 4), (1, 2, 4), (1,), (-1, (4,))),
    ],
)
def test_bounced(replicas: Ids, leader: int, isr: Ids, online: Ids, bounced: Ids, decided: tuple[int, Ids]) -> None:
    assert bounced_replica_leader_election(replicas, leader, isr, online, bounced) == decided


@pytest.mark.parametrize(
    ("leader", "isr", "online", "has_id", "elected"),
    [
        # The leader refuses: another member that has the id leads, and who refuses is out of the ISR.
        (1, (1, 2, 3), (1, 2, 3), {1: False, 3: True}, Election(3, (2, 3), (1, 2, 3))),
        (1, (1, 2, 3), (1, 3), {1: False, 2: True, 3: True}, Election(3, (2, 3), (1, 3))),
        # A leader that has not refused still leads.
        (2, (1, 2, 3), (1, 2, 3), {1: False, 3: True}, Election(2, (2, 3), (1, 2, 3))),
        # Nobody who has all records is known to have the id.
        (1, (1, 2), (1, 2), {1: False}, None),
        (1, (1, 2), (1, 2, 3), {1: False, 3: True}, None),
        (1, (1, 2), (1,), {1: False, 2: True}, None),
        (1, (1, 2), (1, 2), {1: False, 2: False}, None),
    ],
)
def test_topic_id(leader: int, isr: Ids, online: Ids, has_id: dict[int, bool], elected: Election | None) -> None:
    assert topic_id_partition_leader_election((1, 2, 3), leader, isr, online, has_id) == elected
