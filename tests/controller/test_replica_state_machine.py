"""Every edge of the replicas' table, legal and illegal, and what each does in ZooKeeper and to the brokers."""

from pathlib import Path

import pytest

from klamm.base import slices
from klamm.controller.context import ReplicaAssignment
from klamm.controller.states import ReplicaState
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.topics import LeaderAndIsr, partition_state_path
from support.controller.state_machines import EPOCH, PARTITION, Scene, live_brokers, playing

NEW = ReplicaState.NEW
ONLINE = ReplicaState.ONLINE
OFFLINE = ReplicaState.OFFLINE
STARTED = ReplicaState.DELETION_STARTED
SUCCESSFUL = ReplicaState.DELETION_SUCCESSFUL
INELIGIBLE = ReplicaState.DELETION_INELIGIBLE
NON_EXISTENT = ReplicaState.NON_EXISTENT
LEGAL = [
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (ONLINE, ONLINE),
    (OFFLINE, ONLINE),
    (INELIGIBLE, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, OFFLINE),
    (INELIGIBLE, OFFLINE),
    (OFFLINE, STARTED),
    (STARTED, SUCCESSFUL),
    (OFFLINE, INELIGIBLE),
    (STARTED, INELIGIBLE),
    (SUCCESSFUL, NON_EXISTENT),
]
ILLEGAL = [
    (NEW, NEW),
    (ONLINE, NEW),
    (OFFLINE, NEW),
    (STARTED, NEW),
    (SUCCESSFUL, NEW),
    (INELIGIBLE, NEW),
    (STARTED, ONLINE),
    (SUCCESSFUL, ONLINE),
    (NON_EXISTENT, ONLINE),
    (STARTED, OFFLINE),
    (SUCCESSFUL, OFFLINE),
    (NON_EXISTENT, OFFLINE),
    (NEW, STARTED),
    (ONLINE, STARTED),
    (STARTED, STARTED),
    (SUCCESSFUL, STARTED),
    (INELIGIBLE, STARTED),
    (NON_EXISTENT, STARTED),
    (NEW, SUCCESSFUL),
    (ONLINE, SUCCESSFUL),
    (OFFLINE, SUCCESSFUL),
    (SUCCESSFUL, SUCCESSFUL),
    (INELIGIBLE, SUCCESSFUL),
    (NON_EXISTENT, SUCCESSFUL),
    (NEW, INELIGIBLE),
    (ONLINE, INELIGIBLE),
    (SUCCESSFUL, INELIGIBLE),
    (INELIGIBLE, INELIGIBLE),
    (NON_EXISTENT, INELIGIBLE),
    (NEW, NON_EXISTENT),
    (ONLINE, NON_EXISTENT),
    (OFFLINE, NON_EXISTENT),
    (STARTED, NON_EXISTENT),
    (INELIGIBLE, NON_EXISTENT),
    (NON_EXISTENT, NON_EXISTENT),
]
REPLICA = (PARTITION, 2)


async def change(scene: Scene, before: ReplicaState, after: ReplicaState) -> None:
    scene.context.put_replica_state(REPLICA, before)
    await scene.replicas.handle_state_changes([REPLICA], after)


async def change_refused(scene: Scene, before: ReplicaState, after: ReplicaState) -> str:
    """Why the replica kept its state; nobody must have got a LeaderAndIsr."""
    await change(scene, before, after)
    assert scene.context.replica_state(REPLICA) is before
    assert scene.leader_and_isr == {}
    return scene.log.changes()[-1].why


@pytest.mark.parametrize(("before", "after"), LEGAL)
async def test_a_legal_transition(tmp_path: Path, before: ReplicaState, after: ReplicaState) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await change(scene, before, after)
        assert scene.context.replica_state(REPLICA) is after
        assert scene.illegal == []
        (record,) = scene.log.changes()
        assert (record.partition, record.replica, record.from_state, record.to_state) == (*REPLICA, before, after)
        told = {NEW: [2], ONLINE: [] if before is NEW else [2], OFFLINE: [1, 3]}.get(after, [])
        assert sorted(scene.leader_and_isr) == told
        assert sorted(scene.update_metadata) == ([1, 2, 3] if told else [])
        assert sorted(scene.stop_replica) == ([2] if after in (OFFLINE, STARTED) else [])


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
async def test_an_illegal_transition_changes_nothing(tmp_path: Path, before: ReplicaState, after: ReplicaState) -> None:
    async with playing(tmp_path) as scene:
        state = await scene.led(PARTITION, 1, 1, 2, 3)
        await change(scene, before, after)
        assert scene.context.replica_state(REPLICA) is before
        (message,) = scene.illegal
        assert f"ReplicaState {before.name} to {after.name}" in message
        assert scene.sent == []
        (record,) = scene.log.changes()
        assert ((record.partition, record.replica), record.failed) == (REPLICA, True)
        assert (record.from_state, record.to_state) == (before, after)
        assert record.why.startswith("allowed is a change from ")
        assert await scene.in_zookeeper(PARTITION) == (state, 0)
        assert scene.context.partition_replica_assignment(PARTITION) == (1, 2, 3)


def test_the_tables_above_are_complete() -> None:
    assert sorted(LEGAL + ILLEGAL) == sorted((before, after) for before in ReplicaState for after in ReplicaState)


# -- new and online ---------------------------------------------------------------------------------------------------


async def test_a_new_replica_is_told_that_it_is_new(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        await change(scene, NON_EXISTENT, NEW)
        assert scene.leader_and_isr[2][PARTITION].is_new


async def test_a_new_replica_of_a_partition_that_was_never_led_is_told_nothing(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await change(scene, NON_EXISTENT, NEW)
        assert scene.context.replica_state(REPLICA) is NEW
        assert scene.sent == []


async def test_a_leader_is_no_new_replica(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 2, 1, 2, 3)
        assert "leader already" in await change_refused(scene, NON_EXISTENT, NEW)


async def test_a_new_replica_that_comes_online_joins_the_assignment(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        scene.context.update_partition_full_replica_assignment(PARTITION, ReplicaAssignment((1, 3), (3,)))
        await change(scene, NEW, ONLINE)
        assert scene.context.partition_full_replica_assignment(PARTITION) == ReplicaAssignment((1, 3, 2), (3,))


async def test_a_replica_of_a_partition_that_was_never_led_comes_online_in_silence(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await change(scene, OFFLINE, ONLINE)
        assert scene.context.replica_state(REPLICA) is ONLINE
        assert scene.sent == []


# -- offline ----------------------------------------------------------------------------------------------------------


async def test_a_follower_that_goes_offline_leaves_the_isr(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await change(scene, ONLINE, OFFLINE)
        state = LeaderAndIsr(1, 11, (1, 3), EPOCH)
        assert await scene.in_zookeeper(PARTITION) == (state, 1)
        cached = scene.context.partition_leadership_info(PARTITION)
        assert cached == state
        assert cached is not None
        assert cached.zk_version == 1
        # The leader epoch of its StopReplica is the one before.
        assert scene.stop_replica == {2: {PARTITION: (10, False)}}
        told = scene.leader_and_isr[3][PARTITION]
        assert (told.leader, told.leader_epoch, told.isr, told.zk_version, told.is_new) == (1, 11, (1, 3), 1, False)
        assert told is scene.leader_and_isr[1][PARTITION]


async def test_when_the_leader_goes_offline_nobody_leads(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 2, 1, 2, 3)
        await change(scene, ONLINE, OFFLINE)
        assert (await scene.in_zookeeper(PARTITION))[0] == LeaderAndIsr(-1, 11, (1, 3), EPOCH)


async def test_the_last_member_stays_in_the_isr(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 2, 2)
        await change(scene, ONLINE, OFFLINE)
        assert (await scene.in_zookeeper(PARTITION))[0] == LeaderAndIsr(-1, 11, (2,), EPOCH)


async def test_a_usable_replica_outside_the_isr_leaves_with_a_new_leader_epoch(tmp_path: Path) -> None:
    """A proposal to take it in, made before, must not be accepted when it is back."""
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        await change(scene, ONLINE, OFFLINE)
        assert await scene.in_zookeeper(PARTITION) == (LeaderAndIsr(1, 11, (1, 3), EPOCH), 1)
        assert sorted(scene.leader_and_isr) == [1, 3]


@pytest.mark.parametrize(("before", "fenced"), [(OFFLINE, []), (INELIGIBLE, [PARTITION]), (ONLINE, [PARTITION])])
async def test_a_replica_that_is_fenced_already_goes_offline_without_a_write(
    tmp_path: Path, before: ReplicaState, fenced: list[PartitionKey]
) -> None:
    async with playing(tmp_path) as scene:
        state = await scene.led(PARTITION, 1, 1, 3)
        scene.context.put_replica_state(REPLICA, before)
        await scene.replicas.handle_state_changes([REPLICA], OFFLINE, fenced)
        assert await scene.in_zookeeper(PARTITION) == (state, 0)
        assert scene.context.partition_leadership_info(PARTITION) == LeaderAndIsr(1, 10, (1, 3), EPOCH)
        assert sorted(scene.leader_and_isr) == [1, 3]


@pytest.mark.parametrize(("is_to_be_deleted", "epoch"), [(False, 11), (True, 10)])
async def test_a_replica_that_a_new_controller_finds_offline_is_fenced(
    tmp_path: Path, is_to_be_deleted: bool, epoch: int
) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        if is_to_be_deleted:
            scene.context.queue_topic_deletion(["t"])
        await change(scene, INELIGIBLE, OFFLINE)
        assert scene.context.partition_leadership_info(PARTITION) == LeaderAndIsr(1, epoch, (1, 3), EPOCH)


@pytest.mark.parametrize(("protocol", "is_read"), [("2.4", True), ("2.7-IV1", True), ("2.7-IV2", False)])
async def test_before_2_7_a_leader_may_have_taken_in_a_dead_replica(
    tmp_path: Path, protocol: str, is_read: bool
) -> None:
    async with playing(tmp_path, **{"inter.broker.protocol.version": protocol}) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        await scene.changed_in_zookeeper(PARTITION, 1, 1, 2, 3)
        await change(scene, OFFLINE, OFFLINE)
        left = (LeaderAndIsr(1, 21, (1, 3), EPOCH), 2) if is_read else (LeaderAndIsr(1, 20, (1, 2, 3), 4), 1)
        assert await scene.in_zookeeper(PARTITION) == left


async def test_a_removal_begins_anew_with_what_changed_meanwhile(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 3, 3, 2)
        await change(scene, ONLINE, OFFLINE)
        assert await scene.in_zookeeper(PARTITION) == (LeaderAndIsr(3, 21, (3,), EPOCH), 2)


async def test_a_removal_that_somebody_else_has_done_is_taken_over(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 1, 1, 3)
        await change(scene, OFFLINE, OFFLINE)
        assert await scene.in_zookeeper(PARTITION) == (LeaderAndIsr(1, 20, (1, 3), 4), 1)
        assert scene.context.partition_leadership_info(PARTITION) == LeaderAndIsr(1, 20, (1, 3), EPOCH)
        assert scene.context.replica_state(REPLICA) is OFFLINE


async def test_replicas_of_two_brokers_leave_the_isr_one_after_the_other(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 2, 1, 2, 3)
        for broker_id in (2, 3):
            scene.context.put_replica_state((PARTITION, broker_id), ONLINE)
        await scene.replicas.handle_state_changes([(PARTITION, 3), (PARTITION, 2)], OFFLINE)
        assert await scene.in_zookeeper(PARTITION) == (LeaderAndIsr(-1, 12, (1,), EPOCH), 2)
        # 3 went first: it still hears of the second change. Of two changes, the later one counts.
        assert {key: states[PARTITION].leader_epoch for key, states in scene.leader_and_isr.items()} == {
            1: 12,
            2: 11,
            3: 12,
        }


async def test_others_hear_nothing_of_a_topic_to_be_deleted(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        scene.context.queue_topic_deletion(["t"])
        await change(scene, ONLINE, OFFLINE)
        assert (await scene.in_zookeeper(PARTITION))[0] == LeaderAndIsr(1, 11, (1, 3), EPOCH)
        assert scene.stop_replica == {2: {PARTITION: (-2, False)}}
        assert len(scene.sent) == 1


async def test_a_replica_of_a_partition_that_was_never_led_goes_offline_with_an_empty_update(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await change(scene, ONLINE, OFFLINE)
        assert scene.context.replica_state(REPLICA) is OFFLINE
        assert scene.stop_replica == {2: {PARTITION: (-1, False)}}
        assert scene.update_metadata == {1: {}, 2: {}, 3: {}}


async def test_a_state_of_a_newer_controller_is_left_alone(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 2, 2, epoch=EPOCH + 1)
        assert f"controller of epoch {EPOCH + 1}" in await change_refused(scene, ONLINE, OFFLINE)
        assert await scene.in_zookeeper(PARTITION) == (LeaderAndIsr(2, 20, (2,), EPOCH + 1), 1)


async def test_a_controller_whose_successor_has_changed_everything_resigns(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 2, 2, epoch=EPOCH + 1)
        await scene.another_controller()
        with pytest.raises(ControllerMoved):
            await change(scene, ONLINE, OFFLINE)


async def test_a_replica_cannot_leave_an_isr_that_cannot_be_read_or_is_not_there(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        path = partition_state_path(*PARTITION)
        await scene.store.client.set(path, b"{")
        assert path in await change_refused(scene, ONLINE, OFFLINE)
        await scene.store.client.delete(path)
        scene.sent.clear()
        assert "NO_NODE" in await change_refused(scene, ONLINE, OFFLINE)


async def test_nothing_is_written_once_another_controller_was_elected(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        state = await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.another_controller()
        with pytest.raises(ControllerMoved):
            await change(scene, ONLINE, OFFLINE)
        assert scene.context.replica_state(REPLICA) is ONLINE
        assert await scene.in_zookeeper(PARTITION) == (state, 0)
        assert scene.sent == []


# -- deletion ---------------------------------------------------------------------------------------------------------


async def test_a_deletion_is_told_to_the_broker(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        scene.context.queue_topic_deletion(["t"])
        await change(scene, OFFLINE, STARTED)
        assert scene.stop_replica == {2: {PARTITION: (-2, True)}}


async def test_a_deleted_replica_leaves_the_assignment(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        assignment = ReplicaAssignment((3, 1, 2), (3,), (2,))
        scene.context.update_partition_full_replica_assignment(PARTITION, assignment)
        await change(scene, SUCCESSFUL, NON_EXISTENT)
        assert scene.context.partition_full_replica_assignment(PARTITION) == ReplicaAssignment((3, 1), (3,), ())


# -- many replicas ----------------------------------------------------------------------------------------------------


async def test_after_an_election_of_the_controller_all_brokers_are_told_and_dead_replicas_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE", 2)
    async with playing(tmp_path) as scene:
        scene.context.set_live_brokers(live_brokers(1, 3))
        partitions = [("t", number) for number in range(5)]
        for partition in partitions:
            scene.assign(partition, 1, 2, 3)
            await scene.led(partition, 1, 1, 2, 3)
        await scene.replicas.startup()
        for partition in partitions:
            states = [scene.context.replica_state((partition, broker_id)) for broker_id in (1, 2, 3)]
            assert states == [ONLINE, OFFLINE, ONLINE]
            assert (await scene.in_zookeeper(partition))[0] == LeaderAndIsr(1, 11, (1, 3), EPOCH)
        kinds = [(request.api_key.name, request.broker_id) for request in scene.sent]
        once = [("LEADER_AND_ISR", 1), ("LEADER_AND_ISR", 3), ("UPDATE_METADATA", 1), ("UPDATE_METADATA", 3)]
        assert kinds == once + once
        first, second = scene.sent[0].body.topic_states[0], scene.sent[4].body.topic_states[0]
        assert [state.leader_epoch for state in first.partition_states] == [10] * 5
        assert [state.leader_epoch for state in second.partition_states] == [11] * 5
