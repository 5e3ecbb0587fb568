"""Every edge of the partitions' table, legal and illegal, and what each does in ZooKeeper and to the brokers."""

from pathlib import Path

import pytest

from klamm.base import slices
from klamm.controller.context import ReplicaAssignment
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.states import PartitionState, StateChangeFailed
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.configs import config_path, encode_config, topic_entity
from klamm.znodes.topics import LeaderAndIsr, partition_state_path, topic_path
from klamm.zookeeper.keeper_exceptions import NoNode
from support.controller.state_machines import EPOCH, PARTITION, Scene, live_brokers, playing

NEW, ONLINE, OFFLINE, NON_EXISTENT = (
    PartitionState.NEW,
    PartitionState.ONLINE,
    PartitionState.OFFLINE,
    PartitionState.NON_EXISTENT,
)
LEGAL = [
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (ONLINE, ONLINE),
    (OFFLINE, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, OFFLINE),
    (OFFLINE, NON_EXISTENT),
]
ILLEGAL = [
    (NEW, NEW),
    (ONLINE, NEW),
    (OFFLINE, NEW),
    (NON_EXISTENT, ONLINE),
    (NON_EXISTENT, OFFLINE),
    (NEW, NON_EXISTENT),
    (ONLINE, NON_EXISTENT),
    (NON_EXISTENT, NON_EXISTENT),
]


async def bring_to(scene: Scene, state: PartitionState) -> None:
    if state in (ONLINE, OFFLINE):
        await scene.led(PARTITION, 1, 1, 2, 3)
    scene.context.put_partition_state(PARTITION, state)


async def elect(scene: Scene, strategy: ElectionStrategy) -> LeaderAndIsr | StateChangeFailed | None:
    """The outcome for the partition, which was online."""
    scene.context.put_partition_state(PARTITION, ONLINE)
    return (await scene.partitions.handle_state_changes([PARTITION], ONLINE, strategy)).get(PARTITION)


async def failure(scene: Scene, strategy: ElectionStrategy = ElectionStrategy.OFFLINE) -> str:
    """Why the offline partition could not be brought online; nothing must have changed."""
    scene.context.put_partition_state(PARTITION, OFFLINE)
    before = scene.context.partition_leadership_info(PARTITION)
    outcome = (await scene.partitions.handle_state_changes([PARTITION], ONLINE, strategy))[PARTITION]
    assert isinstance(outcome, StateChangeFailed)
    assert scene.context.partition_state(PARTITION) is OFFLINE
    assert scene.context.partition_leadership_info(PARTITION) is before
    assert scene.sent == []
    assert scene.log.changes()[-1].why in str(outcome)
    return str(outcome)


@pytest.mark.parametrize(("before", "after"), LEGAL)
async def test_a_legal_transition(tmp_path: Path, before: PartitionState, after: PartitionState) -> None:
    async with playing(tmp_path) as scene:
        await bring_to(scene, before)
        outcomes = await scene.partitions.handle_state_changes([PARTITION], after, ElectionStrategy.OFFLINE)
        assert scene.context.partition_state(PARTITION) is after
        assert scene.illegal == []
        assert list(outcomes) == ([PARTITION] if after is ONLINE else [])
        assert bool(scene.sent) == (after is ONLINE)
        (change,) = scene.log.changes()
        assert (change.partition, change.from_state, change.to_state) == (PARTITION, before, after)


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
async def test_an_illegal_transition_changes_nothing(
    tmp_path: Path, before: PartitionState, after: PartitionState
) -> None:
    async with playing(tmp_path) as scene:
        await bring_to(scene, before)
        leadership = scene.context.partition_leadership_info(PARTITION)
        assert await scene.partitions.handle_state_changes([PARTITION], after, ElectionStrategy.OFFLINE) == {}
        assert scene.context.partition_state(PARTITION) is before
        assert scene.context.partition_leadership_info(PARTITION) is leadership
        (message,) = scene.illegal
        assert f"PartitionState {before.name} to {after.name}" in message
        assert scene.sent == []
        (record,) = scene.log.changes()
        assert (record.partition, record.replica, record.failed) == (PARTITION, -1, True)
        assert (record.from_state, record.to_state) == (before, after)
        assert record.why.startswith("allowed is a change from ")


def test_the_tables_above_are_complete() -> None:
    assert sorted(LEGAL + ILLEGAL) == [(before, after) for before in PartitionState for after in PartitionState]


async def test_others_go_on_beside_an_illegal_transition(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        scene.context.put_partition_state(("t", 1), ONLINE)
        await scene.partitions.handle_state_changes([("t", 1), ("t", 2)], NEW)
        assert scene.context.partition_state(("t", 1)) is ONLINE
        assert scene.context.partition_state(("t", 2)) is NEW
        assert len(scene.illegal) == 1


async def test_a_partition_that_is_named_twice_changes_once(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.partitions.handle_state_changes([PARTITION, PARTITION], NEW)
        assert len(scene.log.changes()) == 1


# -- the first leader -------------------------------------------------------------------------------------------------


async def test_a_new_partition_is_led_by_its_first_online_replica(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        scene.context.set_live_brokers(live_brokers(2, 3, 4))
        scene.context.put_partition_state(PARTITION, NEW)
        outcomes = await scene.partitions.handle_state_changes([PARTITION], ONLINE)
        state = LeaderAndIsr(2, 0, (2, 3), EPOCH)
        assert outcomes == {PARTITION: state}
        assert await scene.in_zookeeper(PARTITION) == (state, 0)
        assert scene.context.partition_leadership_info(PARTITION) == state
        assert sorted(scene.leader_and_isr) == [2, 3]
        assert scene.leader_and_isr[2][PARTITION].is_new
        assert sorted(scene.update_metadata) == [2, 3, 4]


async def test_a_new_partition_without_an_online_replica_stays_new(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        scene.context.set_live_brokers(live_brokers(4))
        scene.context.put_partition_state(PARTITION, NEW)
        outcome = (await scene.partitions.handle_state_changes([PARTITION], ONLINE))[PARTITION]
        assert "none of its replicas [1, 2, 3] is online" in str(outcome)
        assert scene.context.partition_state(PARTITION) is NEW


async def test_a_new_partition_whose_state_exists_stays_new(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        state = LeaderAndIsr(3, 1, (3,), 4)
        await scene.store.create_partition_states({PARTITION: state}, None)
        scene.context.put_partition_state(PARTITION, NEW)
        outcome = (await scene.partitions.handle_state_changes([PARTITION], ONLINE))[PARTITION]
        assert "NODE_EXISTS" in str(outcome)
        assert scene.context.partition_state(PARTITION) is NEW
        assert (await scene.in_zookeeper(PARTITION))[0] == state
        assert scene.sent == []


# -- elections --------------------------------------------------------------------------------------------------------


async def test_a_clean_election_takes_an_online_isr_member(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 3)
        scene.context.set_live_brokers(live_brokers(2, 3))
        outcome = await elect(scene, ElectionStrategy.OFFLINE)
        assert outcome == LeaderAndIsr(3, 11, (3,), EPOCH)
        assert await scene.in_zookeeper(PARTITION) == (outcome, 1)
        cached = scene.context.partition_leadership_info(PARTITION)
        assert cached == outcome
        assert cached is not None
        assert cached.zk_version == 1
        # The one outside the ISR is told as well: it follows.
        assert sorted(scene.leader_and_isr) == [2, 3]
        state = scene.leader_and_isr[3][PARTITION]
        assert (state.leader, state.leader_epoch, state.zk_version, state.is_new) == (3, 11, 1, False)
        assert scene.context.unclean_leader_election_count == 0


async def test_an_election_begins_anew_with_what_changed_meanwhile(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2)
        await scene.changed_in_zookeeper(PARTITION, 1, 1, 3)
        scene.context.set_live_brokers(live_brokers(2, 3))
        # By the context alone, 2 would be elected: it has left the ISR.
        assert await elect(scene, ElectionStrategy.OFFLINE) == LeaderAndIsr(3, 21, (3,), EPOCH)
        assert (await scene.in_zookeeper(PARTITION))[1] == 2


async def test_nobody_can_be_elected_only_by_what_is_in_zookeeper(tmp_path: Path) -> None:
    """The leader has taken 2 in by itself and died before it told the controller."""
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1)
        await scene.changed_in_zookeeper(PARTITION, 1, 1, 2)
        scene.context.set_live_brokers(live_brokers(2, 3))
        assert await elect(scene, ElectionStrategy.OFFLINE) == LeaderAndIsr(2, 21, (2,), EPOCH)


async def test_leadership_that_the_context_lacks_is_read(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2)
        scene.context.clear_partition_leadership_info()
        assert await elect(scene, ElectionStrategy.OFFLINE) == LeaderAndIsr(1, 11, (1, 2), EPOCH)


@pytest.mark.parametrize(
    ("topic_says", "broker_says", "strategy", "elected"),
    [
        (b"not JSON", "true", ElectionStrategy.OFFLINE, False),
        (b'{"version":1}', "true", ElectionStrategy.OFFLINE, False),
        (None, "false", ElectionStrategy.OFFLINE, False),
        ("false", "true", ElectionStrategy.OFFLINE, False),
        ("nonsense", "true", ElectionStrategy.OFFLINE, False),
        ("true", "false", ElectionStrategy.OFFLINE, True),
        (None, "true", ElectionStrategy.OFFLINE, True),
        ("false", "false", ElectionStrategy.OFFLINE_ALLOW_UNCLEAN, True),
        ("true", "true", ElectionStrategy.PREFERRED_REPLICA, False),
    ],
)
async def test_an_unclean_election_must_be_allowed(
    tmp_path: Path, topic_says: str | bytes | None, broker_says: str, strategy: ElectionStrategy, elected: bool
) -> None:
    async with playing(tmp_path, **{"unclean.leader.election.enable": broker_says}) as scene:
        if topic_says is not None:
            key = "unclean.leader.election.enable"
            data = topic_says if isinstance(topic_says, bytes) else encode_config({key: topic_says})
            await scene.store.client.create(config_path(topic_entity("t")), data)
        await scene.led(PARTITION, 1, 1)
        scene.context.set_live_brokers(live_brokers(3, 2))
        if elected:
            assert await elect(scene, strategy) == LeaderAndIsr(2, 11, (2,), EPOCH)
        else:
            assert "no replica can be elected" in await failure(scene, strategy)
        assert scene.context.unclean_leader_election_count == int(elected)


async def test_the_reassignment_strategy_takes_a_target_replica_and_tells_all_of_them(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        assignment = ReplicaAssignment((2, 3, 4, 1), (4,), (1,))
        scene.context.update_partition_full_replica_assignment(PARTITION, assignment)
        scene.context.set_live_brokers(live_brokers(1, 2, 3, 4))
        assert await elect(scene, ElectionStrategy.REASSIGN) == LeaderAndIsr(2, 11, (1, 2, 3), EPOCH)
        assert sorted(scene.leader_and_isr) == [2, 3, 4]


async def test_the_preferred_strategy_takes_the_first_replica(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 3, 3, 1)
        assert scene.context.preferred_replica_imbalance_count == 1
        assert await elect(scene, ElectionStrategy.PREFERRED_REPLICA) == LeaderAndIsr(1, 11, (3, 1), EPOCH)
        assert sorted(scene.leader_and_isr) == [1, 2, 3]
        assert scene.context.preferred_replica_imbalance_count == 0


async def test_a_controlled_shutdown_moves_the_leader_and_tells_the_old_one(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        scene.context.add_shutting_down_broker(1)
        assert await elect(scene, ElectionStrategy.CONTROLLED_SHUTDOWN) == LeaderAndIsr(2, 11, (2, 3), EPOCH)
        assert sorted(scene.leader_and_isr) == [1, 2, 3]


async def test_a_state_of_a_newer_controller_is_left_alone(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 2, 2, epoch=EPOCH + 1)
        assert f"written by a controller of epoch {EPOCH + 1}" in await failure(scene)


async def test_a_controller_whose_successor_has_changed_everything_resigns(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await scene.changed_in_zookeeper(PARTITION, 2, 2, epoch=EPOCH + 1)
        await scene.another_controller()
        with pytest.raises(ControllerMoved):
            await failure(scene)


async def test_an_election_without_a_state_in_zookeeper_fails(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        assert "no state in ZooKeeper" in await failure(scene)
        scene.context.put_partition_leadership_info(PARTITION, LeaderAndIsr(1, 0, (1, 2), 4, 0))
        assert NoNode.default_code.name in await failure(scene)


async def test_an_election_with_a_state_that_cannot_be_understood_fails(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2)
        await scene.store.client.set(partition_state_path(*PARTITION), b"{")
        assert partition_state_path(*PARTITION) in await failure(scene)


@pytest.mark.parametrize("state", [NEW, OFFLINE])
async def test_nothing_is_written_once_another_controller_was_elected(tmp_path: Path, state: PartitionState) -> None:
    async with playing(tmp_path) as scene:
        await bring_to(scene, state)
        leadership = scene.context.partition_leadership_info(PARTITION)
        await scene.another_controller()
        with pytest.raises(ControllerMoved):
            await scene.partitions.handle_state_changes([PARTITION], ONLINE, ElectionStrategy.OFFLINE)
        assert scene.context.partition_state(PARTITION) is state
        assert scene.sent == []
        in_zookeeper = await scene.store.partition_states([PARTITION])
        assert in_zookeeper == ({} if leadership is None else {PARTITION: leadership})


async def test_partitions_that_have_had_a_leader_need_a_strategy(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await bring_to(scene, OFFLINE)
        with pytest.raises(ValueError, match="strategy"):
            await scene.partitions.handle_state_changes([PARTITION], ONLINE)


# -- many partitions --------------------------------------------------------------------------------------------------


async def test_after_an_election_of_the_controller_everything_gets_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE", 2)
    async with playing(tmp_path) as scene:
        scene.context.set_live_brokers(live_brokers(2, 3))
        for number in range(1, 6):
            scene.assign(("t", number), 1, 2)
            await scene.led(("t", number), 2 if number == 5 else 1, 1, 2)
        scene.assign(("u", 0), 1, 2)
        await scene.led(("u", 0), 1, 1)
        scene.assign(("deleted", 0), 1, 2)
        await scene.store.client.ensure_path(topic_path("deleted"))
        scene.context.queue_topic_deletion(["deleted"])
        await scene.partitions.startup()
        states = {key: scene.context.partition_state(key) for key in scene.context.all_partitions()}
        online = {("t", number): ONLINE for number in range(6)}
        assert states == {**online, ("u", 0): OFFLINE, ("deleted", 0): NEW}
        assert scene.context.offline_partition_count == 1
        # The one with a live leader was left alone.
        assert sorted(scene.leader_and_isr[2]) == [("t", number) for number in range(5)]
        assert (await scene.in_zookeeper(("t", 4)))[0] == LeaderAndIsr(2, 11, (2,), EPOCH)
        assert (await scene.in_zookeeper(("t", 5)))[0] == LeaderAndIsr(2, 10, (1, 2), 4)


async def test_one_topic_can_be_brought_online_alone(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        scene.assign(("u", 0), 1, 2)
        for partition in (PARTITION, ("u", 0)):
            scene.context.put_partition_state(partition, NEW)
        await scene.partitions.trigger_online_partition_state_change("t")
        assert scene.context.partition_state(PARTITION) is ONLINE
        assert scene.context.partition_state(("u", 0)) is NEW
