"""The controller's memory: assignments, who is online, deletion, and the two counts, also after anything at all."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.controller.context import ControllerContext, ReplicaAssignment
from klamm.controller.states import PartitionState, ReplicaState
from klamm.znodes.topics import LeaderAndIsr
from support.controller.state_machines import context_with, live_broker, live_brokers


def led(leader: int, *isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 0, isr or (leader,), 1, 0)


# -- assignments ------------------------------------------------------------------------------------------------------


def test_a_reassignment_holds_both_the_origin_and_the_target() -> None:
    moving = ReplicaAssignment((1, 2, 3)).reassign_to((4, 2))
    assert moving == ReplicaAssignment((4, 2, 1, 3), (4,), (1, 3))
    assert (moving.origin_replicas, moving.target_replicas) == ((2, 1, 3), (4, 2))
    assert moving.is_being_reassigned
    assert not ReplicaAssignment((1, 2)).is_being_reassigned


def test_a_second_reassignment_starts_from_the_origin_of_the_first() -> None:
    moving = ReplicaAssignment((1, 2)).reassign_to((3, 4)).reassign_to((5, 2))
    assert moving == ReplicaAssignment((5, 2, 1), (5,), (1,))


def test_a_reassignment_back_to_the_origin_is_none() -> None:
    moving = ReplicaAssignment((1, 2)).reassign_to((3, 1))
    assert moving.reassign_to(moving.origin_replicas) == ReplicaAssignment((1, 2))


def test_a_removed_replica_is_nowhere() -> None:
    assert ReplicaAssignment((1, 2, 3), (2,), (1,)).remove_replica(2) == ReplicaAssignment((1, 3), (), (1,))


def test_partitions_and_replicas_come_in_the_order_in_which_they_were_added() -> None:
    context = context_with({("b", 1): (2, 1), ("b", 0): (1, 3), ("a", 0): (3, 2)})
    assert context.all_partitions() == [("b", 1), ("b", 0), ("a", 0)]
    assert context.partitions_for_topic("b") == [("b", 1), ("b", 0)]
    assert in_one_go(context.replicas_on_brokers([1])) == [(("b", 1), 1), (("b", 0), 1)]
    assert in_one_go(context.replicas_on_brokers((3, 2))) == [
        (("b", 0), 3),
        (("a", 0), 3),
        (("b", 1), 2),
        (("a", 0), 2),
    ]
    assert context.replicas_for_topic("a") == [(("a", 0), 3), (("a", 0), 2)]
    assert context.partition_replica_assignment(("a", 0)) == (3, 2)
    assert context.partition_replica_assignment(("a", 9)) == context.partition_replica_assignment(("x", 0)) == ()


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_brokers_come_and_go() -> None:
    context = context_with({}, 3, 1)
    context.add_live_brokers(live_brokers(2))
    assert list(context.live_broker_ids) == [1, 2, 3]
    context.add_shutting_down_broker(1)
    assert list(context.live_broker_ids) == [2, 3]
    assert list(context.live_or_shutting_down_broker_ids) == [1, 2, 3]
    assert list(context.shutting_down_broker_ids) == [1]
    context.remove_live_brokers((1, 3, 9))
    assert list(context.live_or_shutting_down_brokers) == [2]
    # It is back before its shutdown was forgotten.
    context.add_live_brokers(live_brokers(1))
    assert list(context.live_broker_ids) == [2]
    context.remove_shutting_down_broker(1)
    assert list(context.live_broker_ids) == [1, 2]


def test_a_broker_that_changes_its_registration_keeps_its_epoch() -> None:
    context = context_with({}, 1)
    context.add_shutting_down_broker(1)
    changed = live_broker(2).registration
    context.update_broker_metadata(changed)
    assert list(context.live_or_shutting_down_broker_ids) == [1]
    context.add_live_brokers(live_brokers(2))
    context.update_broker_metadata(changed)
    assert context.live_or_shutting_down_brokers[2].epoch == 102
    assert context.live_or_shutting_down_brokers[2].registration is changed


def test_a_replica_is_online_on_a_live_broker_with_a_disk_that_works() -> None:
    context = context_with({("t", 0): (1, 2, 3)}, 1, 2, 3)
    context.replicas_on_offline_dirs[2] = {("t", 0)}
    context.add_shutting_down_broker(3)
    assert [context.is_replica_online(key, ("t", 0)) for key in (1, 2, 3, 4)] == [True, False, False, False]
    assert context.is_replica_online(2, ("t", 1))
    assert context.is_replica_online(3, ("t", 0), include_shutting_down_brokers=True)
    assert list(context.online_brokers(("t", 0))) == [1]
    assert list(context.online_brokers(("t", 1))) == [1, 2]
    assert list(context.online_brokers(("t", 0), include_shutting_down_brokers=True)) == [1, 3]


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_has_one_id() -> None:
    context = context_with({("t", 0): (1,), ("u", 0): (1,)})
    context.add_topic_id("t", UUID(int=1))
    context.add_topic_id("t", UUID(int=1))
    for topic, topic_id in (("t", UUID(int=2)), ("u", UUID(int=1)), ("unknown", UUID(int=3))):
        with pytest.raises(RuntimeError, match=topic):
            context.add_topic_id(topic, topic_id)
    assert context.topic_ids == {"t": UUID(int=1)}
    assert context.topic_names == {UUID(int=1): "t"}


def test_of_a_removed_topic_nothing_is_left() -> None:
    context = context_with({("t", 0): (1, 2), ("u", 0): (1, 2)}, 1, 2)
    context.add_topic_id("t", UUID(int=1))
    context.put_partition_leadership_info(("t", 0), led(2))
    context.put_partition_state(("t", 0), PartitionState.OFFLINE)
    context.put_replica_state((("t", 0), 1), ReplicaState.ONLINE)
    context.replicas_on_offline_dirs[1] = {("t", 0)}
    context.partitions_being_reassigned.add(("t", 0))
    context.topics_ineligible_for_deletion.add("t")
    assert context.recount() == (1, 1)
    in_one_go(context.remove_topic("t"))
    assert (context.offline_partition_count, context.preferred_replica_imbalance_count) == (0, 0)
    assert context.all_topics == {"u"}
    assert (context.topic_ids, context.topic_names) == ({}, {})
    assert context.partition_leadership_info(("t", 0)) is None
    assert context.partition_state(("t", 0)) is PartitionState.NON_EXISTENT
    assert context.replica_state((("t", 0), 1)) is ReplicaState.NON_EXISTENT
    assert context.is_replica_online(1, ("t", 0))
    assert context.all_partitions() == [("u", 0)]
    assert not context.partitions_being_reassigned
    assert not context.topics_ineligible_for_deletion


def test_a_topic_on_its_way_to_deletion() -> None:
    context = context_with({("t", 0): (1, 2)}, 1, 2)
    context.put_partition_leadership_info(("t", 0), led(1))
    assert not context.is_topic_eligible_for_deletion("t")
    context.queue_topic_deletion(["t"])
    assert context.is_topic_queued_up_for_deletion("t")
    assert context.is_topic_eligible_for_deletion("t")
    assert not context.is_topic_deletion_in_progress("t")
    assert context.partitions_with_leaders() == []
    assert context.partition_leaders_on_broker(1) == []
    context.topics_ineligible_for_deletion.add("t")
    assert not context.is_topic_eligible_for_deletion("t")
    context.begin_topic_deletion(["t"])
    assert context.is_topic_deletion_in_progress("t")


# -- leadership and states --------------------------------------------------------------------------------------------


def test_partitions_are_found_by_their_leaders() -> None:
    context = context_with({("t", 0): (1, 2), ("t", 1): (1,), ("t", 2): (2, 3), ("t", 3): (3, 1)}, 1, 2)
    for number, leader in enumerate((1, 1, 2, 3)):
        context.put_partition_leadership_info(("t", number), led(leader))
    assert context.partitions_with_leaders() == [("t", 0), ("t", 1), ("t", 2), ("t", 3)]
    assert context.partitions_with_offline_leader() == [("t", 3)]
    # The one without other replicas has nobody to move to.
    assert context.partition_leaders_on_broker(1) == [("t", 0)]
    context.add_shutting_down_broker(2)
    assert context.partitions_with_offline_leader() == [("t", 2), ("t", 3)]


def test_partitions_and_replicas_are_found_by_their_states() -> None:
    context = context_with({("t", 0): (1, 2), ("u", 0): (1,)})
    context.put_partition_state(("t", 0), PartitionState.NEW)
    context.put_partition_state(("u", 0), PartitionState.ONLINE)
    assert context.partitions_in_states((PartitionState.NEW, PartitionState.ONLINE)) == [("t", 0), ("u", 0)]
    assert context.partitions_in_states((PartitionState.NEW, PartitionState.ONLINE), "u") == [("u", 0)]
    assert context.partitions_in_states((PartitionState.OFFLINE,)) == []
    context.put_replica_state((("t", 0), 2), ReplicaState.OFFLINE)
    of_first, of_second = (("t", 0), 1), (("t", 0), 2)
    states = in_one_go(context.replicas_by_state("t"))
    assert states == {ReplicaState.NON_EXISTENT: [of_first], ReplicaState.OFFLINE: [of_second]}
    context.put_replica_state((("t", 0), 1), ReplicaState.OFFLINE)
    assert in_one_go(context.replicas_by_state("t")) == {ReplicaState.OFFLINE: [of_first, of_second]}
    assert context.replica_states(2) == {("t", 0): ReplicaState.OFFLINE}
    context.put_replica_state((("t", 0), 2), ReplicaState.NON_EXISTENT)
    assert context.replica_states(2) == {}
    assert in_one_go(context.replicas_by_state("unknown")) == {}


def test_a_reset_leaves_only_the_count_of_unclean_elections() -> None:
    context = context_with({("t", 0): (1, 2)}, 1)
    context.put_partition_leadership_info(("t", 0), led(2))
    context.epoch, context.epoch_zk_version, context.unclean_leader_election_count = 3, 4, 5
    context.reset()
    fresh = ControllerContext()
    fresh.unclean_leader_election_count = 5
    assert vars(context) == vars(fresh)


# -- counts -----------------------------------------------------------------------------------------------------------


def test_while_the_preferred_replica_is_added_it_counts_only_once_it_is_in_sync() -> None:
    context = context_with({("t", 0): (1, 2)}, 1, 2, 3)
    context.put_partition_leadership_info(("t", 0), led(1, 1, 2))
    context.update_partition_full_replica_assignment(("t", 0), ReplicaAssignment((1, 2)).reassign_to((3, 1)))
    assert context.preferred_replica_imbalance_count == 0
    context.put_partition_leadership_info(("t", 0), led(1, 1, 2, 3))
    assert context.preferred_replica_imbalance_count == 1


def test_a_topic_that_is_queued_twice_is_taken_off_the_count_once() -> None:
    context = context_with({("t", 0): (1, 2), ("u", 0): (1, 2)}, 1, 2)
    for topic in ("t", "u"):
        context.put_partition_leadership_info((topic, 0), led(2))
    context.queue_topic_deletion(["t"])
    context.queue_topic_deletion(["t"])
    assert context.preferred_replica_imbalance_count == 1
    context.put_partition_leadership_info(("t", 0), led(1))
    assert context.preferred_replica_imbalance_count == 1


PARTITIONS = st.tuples(st.sampled_from("tu"), st.integers(0, 1))
IDS = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple)
CHANGES = st.one_of(
    st.tuples(
        st.just(ControllerContext.update_partition_full_replica_assignment),
        PARTITIONS,
        st.one_of(
            IDS.map(ReplicaAssignment), st.builds(ReplicaAssignment.reassign_to, IDS.map(ReplicaAssignment), IDS)
        ),
    ),
    st.tuples(
        st.just(ControllerContext.put_partition_leadership_info),
        PARTITIONS,
        st.builds(lambda leader, isr: led(leader, *isr), st.integers(-1, 4), IDS),
    ),
    st.tuples(st.just(ControllerContext.put_partition_state), PARTITIONS, st.sampled_from(PartitionState)),
    st.tuples(st.just(ControllerContext.queue_topic_deletion), st.sampled_from(["t", "u"])),
    st.tuples(st.just(ControllerContext.begin_topic_deletion), st.sampled_from(["t", "u"])),
    st.tuples(st.just(ControllerContext.remove_topic), st.sampled_from(["t", "u"])),
    st.tuples(st.just(ControllerContext.clear_partition_leadership_info)),
    st.tuples(st.just(ControllerContext.reset)),
)


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_the_counts_are_right_after_every_change(changes: list[tuple[object, ...]]) -> None:
    context = ControllerContext()
    for change, *arguments in changes:
        change(context, *arguments)  # type: ignore[operator]  # Each tuple is a method and its arguments.
        known = set(context.all_partitions())
        for topic in ("t", "u"):
            for number in (0, 1):
                if (topic, number) not in known:
                    # Only partitions with an assignment have states: the controller adds that first.
                    context.put_partition_state((topic, number), PartitionState.NON_EXISTENT)
        counts = context.offline_partition_count, context.preferred_replica_imbalance_count
        assert counts == context.recount()


def test_a_replica_that_is_gone_is_on_no_failed_disk_any_more() -> None:
    """A reassignment took it from a broker whose disk had failed, and may give it back."""
    context = context_with({("t", 0): (1, 2), ("t", 1): (1, 2)}, 1, 2)
    context.replicas_on_offline_dirs[2] = {("t", 0), ("t", 1)}
    context.put_replica_state((("t", 0), 2), ReplicaState.NON_EXISTENT)
    assert context.replicas_on_offline_dirs == {2: {("t", 1)}}
    assert context.is_replica_online(2, ("t", 0))


def test_answers_about_a_topic_id_last_as_long_as_a_replica_refuses() -> None:
    context = context_with({("t", 0): (1, 2, 3), ("u", 0): (1, 2)})
    context.set_live_brokers(live_brokers(1, 2, 3))
    t, u = ("t", 0), ("u", 0)
    context.put_topic_id_answer(2, t, has_id=True)
    assert context.topic_id_answers == {}, "nobody has refused"
    for partition in (t, u):
        context.put_topic_id_answer(1, partition, has_id=False)
    context.put_topic_id_answer(2, t, has_id=True)
    assert context.topic_id_answers == {t: {1: False, 2: True}, u: {1: False}}
    context.put_topic_id_answer(1, u, has_id=True)
    context.remove_live_brokers([2])
    assert context.topic_id_answers == {t: {1: False}}
    context.put_topic_id_answer(3, t, has_id=False)
    context.put_replica_state((t, 1), ReplicaState.NON_EXISTENT)
    assert context.topic_id_answers == {t: {3: False}}
    in_one_go(context.remove_topic("t"))
    assert context.topic_id_answers == {}
