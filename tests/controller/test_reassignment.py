"""Reassignments: their steps in order; what starts, changes and ends them; controllers that die between two steps."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.controller.context import ReplicaAssignment
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.requests import REASSIGN_PARTITIONS_PATH, encode_reassignment
from klamm.znodes.topics import LeaderAndIsr
from support.controller.reassignment import Stage, hosted, hosting
from support.controller.scene import Scene, playing

T0 = ("t", 0)
ALL = "1,2,3,4,5,6,7,8"


@asynccontextmanager
async def on_stage(tmp_path: Path) -> AsyncIterator[tuple[Scene, Stage]]:
    """Brokers 1 to 6 have replicas, 7 and 8 are controllers. In the end what is counted is what is there."""
    async with playing(tmp_path) as scene:
        stage = await Stage(scene).set_up()
        yield scene, stage
        context = scene.controller.context
        assert (context.offline_partition_count, context.preferred_replica_imbalance_count) == context.recount()


async def move(scene: Scene, *target: int, topic: str = "t") -> ErrorCode:
    """Asks for a reassignment of partition 0, without brokers for a cancellation."""
    results = await scene.controller.alter_partition_reassignments({(topic, 0): target or None})
    error = results[topic, 0]
    return ErrorCode.NONE if error is None else error.code


async def ask_by_znode(scene: Scene, **targets: list[int]) -> None:
    data = encode_reassignment({(topic, 0): target for topic, target in targets.items()})
    await scene.store.client.create(REASSIGN_PARTITIONS_PATH, data)
    await scene.settled()


async def has_znode(scene: Scene) -> bool:
    return await scene.store.client.exists(REASSIGN_PARTITIONS_PATH) is not None


# -- the steps --------------------------------------------------------------------------------------------------------


async def test_the_steps_from_123_to_456(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        stage.journal.take()
        assert await move(scene, 4, 5, 6) is ErrorCode.NONE
        before = "leader 1 epoch 1 isr 1,2,3 RS 4,5,6,1,2,3"
        assert stage.journal.take() == [
            # U1
            "topic: RS 4,5,6,1,2,3 AR 4,5,6 RR 1,2,3",
            # A1
            "state: leader 1 epoch 1 isr 1,2,3",
            f"LeaderAndIsr 1,2,3: {before} AR 4,5,6 RR 1,2,3",
            f"LeaderAndIsr 4,5,6: {before} AR 4,5,6 RR 1,2,3 new",
            f"UpdateMetadata {ALL}: {before}",
            # A2
            f"LeaderAndIsr 4,5,6: {before} AR 4,5,6 RR 1,2,3 new",
            f"UpdateMetadata {ALL}: {before}",
        ]
        assert scene.controller.context.partition_full_replica_assignment(T0) == (
            (4, 5, 6, 1, 2, 3),
            (4, 5, 6),
            (1, 2, 3),
        )
        # Some have caught up: that is not enough.
        await scene.alter_isr("t", [1, 2, 3, 4, 6])
        await scene.settled()
        assert stage.journal.take() == [
            "state: leader 1 epoch 1 isr 1,2,3,4,6",
            f"UpdateMetadata {ALL}: leader 1 epoch 1 isr 1,2,3,4,6 RS 4,5,6,1,2,3",
        ]
        await scene.alter_isr("t", [1, 2, 3, 4, 6, 5])
        await scene.settled()
        assert stage.journal.take() == [
            "state: leader 1 epoch 1 isr 1,2,3,4,6,5",
            f"UpdateMetadata {ALL}: leader 1 epoch 1 isr 1,2,3,4,6,5 RS 4,5,6,1,2,3",
            # B3; B1 and B2 concern the context only
            "state: leader 4 epoch 2 isr 1,2,3,4,6,5",
            "LeaderAndIsr 4,5,6: leader 4 epoch 2 isr 1,2,3,4,6,5 RS 4,5,6 AR - RR -",
            f"UpdateMetadata {ALL}: leader 4 epoch 2 isr 1,2,3,4,6,5 RS 4,5,6",
            # B4
            "state: leader 4 epoch 3 isr 2,3,4,6,5",
            "state: leader 4 epoch 4 isr 3,4,6,5",
            "state: leader 4 epoch 5 isr 4,6,5",
            "LeaderAndIsr 4,5,6: leader 4 epoch 5 isr 4,6,5 RS 4,5,6 AR - RR -",
            f"UpdateMetadata {ALL}: leader 4 epoch 5 isr 4,6,5 RS 4,5,6",
            "StopReplica 1: epoch 2",
            "StopReplica 2: epoch 3",
            "StopReplica 3: epoch 4",
            # B5
            "StopReplica 1,2,3: epoch 5 delete",
            # B6
            "topic: RS 4,5,6 AR - RR -",
            # B8
            f"UpdateMetadata {ALL}: leader 4 epoch 5 isr 4,6,5 RS 4,5,6",
        ]
        context = scene.controller.context
        assert context.partition_full_replica_assignment(T0) == ((4, 5, 6), (), ())
        assert (context.partitions_being_reassigned, await stage.assignment()) == (set(), ((4, 5, 6), (), ()))
        assert hosting(scene.sent, "t") == {4, 5, 6}
        assert all(T0 not in context.replica_states(removed) for removed in (1, 2, 3))


async def test_a_leader_that_stays_leads_in_a_new_epoch(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        await move(scene, 4, 1)
        stage.journal.take()
        await scene.alter_isr("t", [1, 2, 3, 4])
        await scene.settled()
        lines = stage.journal.take()
        assert lines[2:5] == [
            "state: leader 1 epoch 2 isr 1,2,3,4",
            "LeaderAndIsr 1,4: leader 1 epoch 2 isr 1,2,3,4 RS 4,1 AR - RR -",
            f"UpdateMetadata {ALL}: leader 1 epoch 2 isr 1,2,3,4 RS 4,1",
        ]
        assert await scene.state("t") == (1, 4, (1, 4))
        assert hosting(scene.sent, "t") == {1, 4}


async def test_another_order_only_changes_the_preferred_leader(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        stage.journal.take()
        assert await move(scene, 3, 1, 2) is ErrorCode.NONE
        assert stage.journal.take() == [
            "topic: RS 3,1,2 AR - RR -",
            "state: leader 1 epoch 1 isr 1,2,3",
            "LeaderAndIsr 1,2,3: leader 1 epoch 1 isr 1,2,3 RS 3,1,2 AR - RR -",
            f"UpdateMetadata {ALL}: leader 1 epoch 1 isr 1,2,3 RS 3,1,2",
            "topic: RS 3,1,2 AR - RR -",
            f"UpdateMetadata {ALL}: leader 1 epoch 1 isr 1,2,3 RS 3,1,2",
        ]
        assert hosting(scene.sent, "t") == {1, 2, 3}
        assert scene.controller.context.preferred_replica_imbalance_count == 1


async def test_fewer_replicas(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        # One that is out of sync has nothing to leave.
        await scene.alter_isr("t", [1, 2])
        assert await move(scene, 2) is ErrorCode.NONE
        assert await scene.state("t") == (2, 2, (2,))
        assert await stage.assignment() == ((2,), (), ())
        assert hosting(scene.sent, "t") == {2}


async def test_many_at_once_share_their_writes(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, _):
        await scene.create("t", *[[1, 2]] * 20)
        await scene.create("u", [2, 1])
        before = await scene.store.topic_assignment("t")
        targets = {**{("t", number): (3, 4) for number in range(20)}, ("u", 0): (2, 5)}
        results = await scene.controller.alter_partition_reassignments(targets)
        assert results == dict.fromkeys(targets)
        found = await scene.store.topic_assignment("t")
        assert before is not None and found is not None and found.zk_version == before.zk_version + 1
        assert set(found.partitions.values()) == {(3, 4, 1, 2)}
        listed = await scene.controller.list_partition_reassignments(None)
        assert list(listed) == sorted(targets)


async def test_partitions_that_somebody_adds_at_the_same_time_stay(tmp_path: Path) -> None:
    """Kafka's controller writes the topic as it knows it."""
    async with on_stage(tmp_path) as (scene, _):
        await scene.create("t", [1, 2])
        controller = scene.controller
        moving = controller.alter_partition_reassignments({T0: (3, 4)})
        await scene.store.add_partitions("t", {1: [5, 6]})
        await moving
        await scene.settled()
        found = await scene.store.topic_assignment("t")
        assert found is not None
        assert found.partitions == {0: (3, 4, 1, 2), 1: (5, 6)}


# -- changes while it goes on -----------------------------------------------------------------------------------------


async def test_a_cancellation_stops_the_new_replicas(tmp_path: Path) -> None:
    """They have the newest leader epoch and would not obey a StopReplica of that one (KAFKA-13972)."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        await move(scene, 4, 5, 6)
        await scene.alter_isr("t", [1, 2, 3, 4])
        await scene.settled()
        stage.journal.take()
        assert await move(scene) is ErrorCode.NONE
        after = "RS 1,2,3 AR - RR -"
        assert stage.journal.take() == [
            # U2, U3
            "state: leader 1 epoch 2 isr 1,2,3,4",
            f"LeaderAndIsr 1,2,3: leader 1 epoch 2 isr 1,2,3,4 {after}",
            f"UpdateMetadata {ALL}: leader 1 epoch 2 isr 1,2,3,4 RS 1,2,3",
            "state: leader 1 epoch 3 isr 1,2,3",
            f"LeaderAndIsr 1,2,3: leader 1 epoch 3 isr 1,2,3 {after}",
            f"UpdateMetadata {ALL}: leader 1 epoch 3 isr 1,2,3 RS 1,2,3",
            "StopReplica 4: epoch 2",
            "StopReplica 5,6: epoch 3",
            "StopReplica 4,5,6: epoch 3 delete",
            # U1
            f"topic: {after}",
            # B3, B6, B8
            "state: leader 1 epoch 4 isr 1,2,3",
            f"LeaderAndIsr 1,2,3: leader 1 epoch 4 isr 1,2,3 {after}",
            f"UpdateMetadata {ALL}: leader 1 epoch 4 isr 1,2,3 RS 1,2,3",
            f"topic: {after}",
            f"UpdateMetadata {ALL}: leader 1 epoch 4 isr 1,2,3 RS 1,2,3",
        ]
        assert hosting(scene.sent, "t") == {1, 2, 3}
        assert await scene.controller.list_partition_reassignments(None) == {}
        assert await move(scene) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_cancellation_while_a_new_replica_leads(tmp_path: Path) -> None:
    """Kafka's controller leaves the partition without a leader for a while."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.alter_isr("t", [1, 2, 3])
        await scene.kill(1)
        await scene.kill(2)
        assert await scene.state("t") == (3, 3, (3,))
        # Only broker 3 has everything.
        assert await move(scene) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await move(scene, 4, 5) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await stage.assignment() == ((3, 4, 1, 2), (3, 4), (1, 2))
        assert await scene.state("t") == (3, 3, (3,))
        await stage.start_replica(1)
        await scene.alter_isr("t", [3, 1])
        stage.journal.take()
        assert await move(scene) is ErrorCode.NONE
        assert [line for line in stage.journal.take() if line.startswith("state")] == [
            "state: leader 1 epoch 4 isr 3,1",
            "state: leader 1 epoch 5 isr 1",
            "state: leader 1 epoch 6 isr 1",
        ]
        assert await stage.assignment() == ((1, 2), (), ())
        assert hosting(scene.sent, "t") - {2} == {1}


async def test_a_new_target_while_a_new_replica_leads(tmp_path: Path) -> None:
    """Kafka's controller takes the leader away and elects nobody, as none of the target could lead."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.alter_isr("t", [2, 1, 3])
        await scene.kill(1)
        await scene.kill(2)
        await stage.start_replica(1)
        await stage.start_replica(2)
        await scene.alter_isr("t", [3, 2])
        assert (await scene.state("t"))[::2] == (3, (3, 2))
        assert await move(scene, 5, 6) is ErrorCode.NONE
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await stage.assignment() == ((5, 6, 1, 2), (5, 6), (1, 2))
        assert hosting(scene.sent, "t") == {1, 2, 5, 6}


async def test_a_new_target(tmp_path: Path) -> None:
    """What the two targets share stays, what only the first one has stops."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        await move(scene, 4, 5)
        assert await move(scene, 5, 6, 1) is ErrorCode.NONE
        assert await stage.assignment() == ((5, 6, 1, 2, 3), (5, 6), (2, 3))
        assert hosting(scene.sent, "t") == {1, 2, 3, 5, 6}
        await scene.alter_isr("t", [1, 2, 3, 6, 5])
        await scene.settled()
        assert await stage.assignment() == ((5, 6, 1), (), ())
        leader, _, isr = await scene.state("t")
        assert (leader, sorted(isr)) == (1, [1, 5, 6])
        assert hosting(scene.sent, "t") == {1, 5, 6}


async def test_no_leader_hears_of_a_new_replica_before_zookeeper_has_it(tmp_path: Path) -> None:
    """It would take the replica into the ISR of a partition that does not have it."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2, 3])
        await move(scene, 4, 5)
        stage.journal.take()
        assert await move(scene, 5, 6, 1) is ErrorCode.NONE
        lines = stage.journal.take()
        written = lines.index("topic: RS 5,6,1,2,3 AR 5,6 RR 2,3")
        before = [line for line in lines[:written] if line.startswith("LeaderAndIsr")]
        assert before
        assert all("RS 5,1,2,3 AR 5 RR 2,3" in line for line in before)
        assert any("LeaderAndIsr 1,2,3: " in line and "AR 5,6" in line for line in lines[written:])


async def test_the_same_target_again_is_no_other_reassignment(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        stage.journal.take()
        assert await move(scene, 3, 4) is ErrorCode.NONE
        assert stage.journal.take() == [
            "state: leader 1 epoch 2 isr 1,2",
            "LeaderAndIsr 1,2: leader 1 epoch 2 isr 1,2 RS 3,4,1,2 AR 3,4 RR 1,2",
            "LeaderAndIsr 3,4: leader 1 epoch 2 isr 1,2 RS 3,4,1,2 AR 3,4 RR 1,2 new",
            f"UpdateMetadata {ALL}: leader 1 epoch 2 isr 1,2 RS 3,4,1,2",
        ]


# -- brokers that die -------------------------------------------------------------------------------------------------


async def test_an_added_broker_dies_and_comes_back(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.alter_isr("t", [1, 2, 3])
        await scene.kill(4)
        await scene.settled()
        assert await stage.assignment() == ((3, 4, 1, 2), (3, 4), (1, 2))
        stage.journal.take()
        await stage.start_replica(4)
        await scene.settled()
        state, assigned = "leader 1 epoch 3 isr 1,2,3", "RS 3,4,1,2 AR 3,4 RR 1,2"
        lines = stage.journal.take()
        assert f"state: {state}" in lines
        # Begun anew, so that it may be put on a disk that works.
        assert f"LeaderAndIsr 4: {state} {assigned} new" in [
            line.replace("LeaderAndIsr 3,4:", "LeaderAndIsr 4:") for line in lines
        ]
        await scene.alter_isr("t", [1, 2, 3, 4])
        await scene.settled()
        assert await stage.assignment() == ((3, 4), (), ())
        assert (await scene.state("t"))[2] == (3, 4)


async def test_a_removed_broker_is_dead(tmp_path: Path) -> None:
    """It is in no ISR afterwards (KAFKA-9672), though nobody can tell it to stop."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (2, (2,))
        await scene.alter_isr("t", [2, 3, 4])
        await scene.settled()
        assert await stage.assignment() == ((3, 4), (), ())
        assert (await scene.state("t"))[::2] == (3, (3, 4))
        # Nor does anybody bring it back: it is no replica.
        await stage.start_replica(1)
        error, [item] = await scene.alter_isr("t", [3, 4, 1])
        assert (error, item.error_code, item.isr) == (0, 0, [3, 4])
        await stage.scene.settled()
        assert (await scene.state("t"))[2] == (3, 4)


async def test_the_leader_dies_with_the_target(tmp_path: Path) -> None:
    """What is left of the target is the whole ISR, but dead: the other replicas stay until it is back."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.alter_isr("t", [1])
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (-1, (1,))
        # All of the target is in the ISR.
        assert await move(scene, 1) is ErrorCode.NONE
        await scene.settled()
        assert await stage.assignment() == ((1, 2), (), (2,))
        assert hosting(scene.sent, "t") == {1, 2}
        await stage.start_replica(1)
        await scene.settled()
        assert await stage.assignment() == ((1,), (), ())
        assert (await scene.state("t"))[::2] == (1, (1,))
        assert hosting(scene.sent, "t") == {1}


async def test_a_target_replica_in_the_isr_dies_before_the_others_have_caught_up(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.alter_isr("t", [1, 2, 3])
        await scene.kill(3)
        await scene.alter_isr("t", [1, 2, 4])
        await scene.settled()
        assert await stage.assignment() == ((3, 4, 1, 2), (3, 4), (1, 2))
        # With another target for the dead one it ends.
        assert await move(scene, 5, 4) is ErrorCode.NONE
        await scene.alter_isr("t", [1, 2, 4, 5])
        await scene.settled()
        assert await stage.assignment() == ((5, 4), (), ())
        leader, _, isr = await scene.state("t")
        assert (leader, sorted(isr)) == (5, [4, 5])


async def test_a_partition_that_was_never_led_gets_its_first_leader_among_the_new(tmp_path: Path) -> None:
    """Kafka's controller fails with an exception, after it has changed the assignment."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.store.create_topic("t", {0: [11, 12]}, scene.environment.random_uuid(), {})
        await scene.until(lambda: T0 in scene.controller.context.all_partitions() and scene.is_idle(scene.controller))
        assert await move(scene, 3, 4) is ErrorCode.NONE
        assert await stage.assignment() == ((3, 4), (), ())
        leader, _, isr = await scene.state("t")
        assert (leader, isr) == (3, (3, 4))
        assert hosting(scene.sent, "t") == {3, 4}


# -- deletion ---------------------------------------------------------------------------------------------------------


async def test_the_deletion_of_a_topic_waits_for_its_reassignments(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2], [1, 2])
        await scene.controller.alter_partition_reassignments({T0: (3, 2), ("t", 1): (3, 2)})
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        context = scene.controller.context
        assert context.topics_ineligible_for_deletion == {"t"}
        # No other one may begin.
        assert await move(scene, 4, 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # A broker that starts, and the end of one of the two, change nothing.
        await scene.kill(6)
        await stage.start_replica(6)
        await scene.kill(2)
        await stage.start_replica(2)
        await scene.alter_isr("t", [1, 2, 3])
        await scene.settled()
        assert context.partitions_being_reassigned == {("t", 1)}
        assert context.topics_with_deletion_started == set()
        [(_, state)] = (await scene.states(("t", 1))).items()
        await scene.alter_isr(
            "t", [1, 2, 3], partition=1, sender=1, leader_epoch=state.leader_epoch, version=state.zk_version
        )
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)
        assert await scene.store.topic_names() == []


async def test_a_reassignment_that_a_deletion_waits_for_can_be_cancelled(tmp_path: Path) -> None:
    """As when a broker of its target has died for good."""
    async with on_stage(tmp_path) as (scene, _stage):
        await scene.create("t", [1, 2], [1, 2])
        await scene.create("u", [1, 2])
        await scene.controller.alter_partition_reassignments({T0: (3, 4), ("t", 1): (3, 2)})
        await scene.store.mark_topic_for_deletion("t")
        await scene.kill(3)
        assert await move(scene) is ErrorCode.NONE
        context = scene.controller.context
        assert context.partitions_being_reassigned == {("t", 1)}
        assert context.topics_with_deletion_started == set()
        # A request that names a partition of another topic, and one that is not being reassigned.
        results = await scene.controller.alter_partition_reassignments({("t", 1): None, T0: None, ("u", 0): (1, 5)})
        codes = {partition: error and error.code for partition, error in results.items()}
        assert codes == {("t", 1): None, T0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ("u", 0): None}
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)
        assert (await scene.store.topic_names(), await scene.store.topic_deletions()) == (["u"], [])
        # The data on a dead broker stays, as after any cancellation.
        assert hosting(scene.sent, "t") <= {3}


async def test_a_cancellation_takes_a_leader_from_the_target_though_the_topic_is_to_be_deleted(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await move(scene, 3, 4)
        await scene.alter_isr("t", [1, 2, 3])
        await scene.kill(1)
        await scene.kill(2)
        await scene.store.mark_topic_for_deletion("t")
        await stage.start_replica(1)
        await stage.start_replica(2)
        leader, _, isr = await scene.state("t")
        assert leader == 3
        await scene.alter_isr("t", [*isr, 2])
        assert await move(scene) is ErrorCode.NONE
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)
        assert hosting(scene.sent, "t") == set()


# -- the znode --------------------------------------------------------------------------------------------------------


async def test_started_by_the_znode(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        await ask_by_znode(scene, t=[3, 4], u=[2, 1], missing=[1])
        # Reassignments that cannot begin, or are done at once, are no longer in it.
        assert await scene.store.partition_reassignment(lambda: None) == {T0: (3, 4)}
        assert list(await scene.controller.list_partition_reassignments(None)) == [T0]
        stage.journal.take()
        await scene.alter_isr("t", [1, 2, 3, 4])
        await scene.settled()
        lines = stage.journal.take()
        # B6, B7, B8
        assert lines[-3:-1] == ["topic: RS 3,4 AR - RR -", "reassign_partitions: gone"]
        assert not await has_znode(scene)
        # The next one is seen too.
        await ask_by_znode(scene, t=[5])
        assert await stage.assignment() == ((5, 3, 4), (5,), (3, 4))


async def test_dead_brokers_may_be_asked_for_by_the_znode(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.kill(4)
        await ask_by_znode(scene, t=[3, 4])
        assert await stage.assignment() == ((3, 4, 1, 2), (3, 4), (1, 2))
        await stage.start_replica(4)
        await scene.settled()
        assert hosting(scene.sent, "t") == {1, 2, 3, 4}


async def test_a_request_overrides_the_znode(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        await ask_by_znode(scene, t=[3, 4], u=[3, 4])
        assert await move(scene, 5, 6) is ErrorCode.NONE
        await scene.settled()
        assert await scene.store.partition_reassignment(lambda: None) == {("u", 0): (3, 4)}
        assert await stage.assignment() == ((5, 6, 1, 2), (5, 6), (1, 2))
        assert await stage.assignment("u") == ((3, 4, 1, 2), (3, 4), (1, 2))


async def test_a_znode_that_an_operator_deletes_is_watched_further(tmp_path: Path) -> None:
    """Kafka's controller does not see the next one."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await ask_by_znode(scene, t=[3, 4])
        await scene.store.client.delete(REASSIGN_PARTITIONS_PATH)
        await scene.settled()
        await ask_by_znode(scene, t=[5, 6])
        assert await stage.assignment() == ((5, 6, 1, 2), (5, 6), (1, 2))


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":1}', encode_reassignment({T0: []})])
async def test_a_znode_that_asks_for_nothing_sensible(tmp_path: Path, data: bytes) -> None:
    """Not even for a partition without replicas, which Kafka's controller would make."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.store.client.create(REASSIGN_PARTITIONS_PATH, data)
        await scene.settled()
        assert await stage.assignment() == ((1, 2), (), ())
        assert scene.active.broker_id == 7
        await scene.kill(7)
        assert scene.controller.is_active


# -- answers ----------------------------------------------------------------------------------------------------------


async def test_errors(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        await scene.kill(6)
        await scene.controller.controlled_shutdown(5, -1)
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        for target, error, words in (
            ((), invalid, "must have a replica"),
            ((1, 2, 1), invalid, "twice"),
            ((1, -1), invalid, "negative"),
            ((1, 6), invalid, r"brokers \[6\]"),
            ((1, 5), invalid, r"brokers \[5\]"),
            (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "not being reassigned"),
        ):
            [(_, result)] = (await scene.controller.alter_partition_reassignments({T0: target})).items()
            with pytest.raises(KafkaError, match=words) as raised:
                assert result is not None
                raise result
            assert raised.value.code is error
        results = await scene.controller.alter_partition_reassignments(
            {("t", 1): (1, 2), ("u", 0): (1,), ("u", 1): None, ("u", 2): (6,), T0: (2, 1)}
        )
        assert [result and result.code for result in results.values()] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            invalid,
            None,
        ]
        assert await stage.assignment() == ((2, 1), (), ())
        # A replica that is there already may be dead.
        await scene.kill(2)
        assert await move(scene, 1, 2) is ErrorCode.NONE
        other = scene.brokers[8].controller
        for refused in (other.alter_partition_reassignments({T0: (1,)}), other.list_partition_reassignments(None)):
            with pytest.raises(KafkaError) as raised:
                await refused
            assert raised.value.code is ErrorCode.NOT_CONTROLLER


async def test_listing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, _):
        await scene.create("t", [1, 2], [1, 2])
        await scene.create("u", [1, 2])
        await scene.controller.alter_partition_reassignments({("u", 0): (3,), ("t", 1): (2, 3)})
        listing = scene.controller.list_partition_reassignments
        one = ReplicaAssignment((2, 3, 1), (3,), (1,))
        two = ReplicaAssignment((3, 1, 2), (3,), (1, 2))
        assert await listing(None) == {("t", 1): one, ("u", 0): two}
        assert await listing([("u", 0), T0, ("missing", 7)]) == {("u", 0): two}
        assert await listing([]) == {}


async def test_a_topic_that_is_gone_meanwhile(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as (scene, _):
        await scene.create("t", [1, 2])
        moving = scene.controller.alter_partition_reassignments({T0: (3,)})
        await scene.store.client.delete_recursive("/brokers/topics/t")
        [error] = (await moving).values()
        assert error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await scene.settled()
        assert scene.controller.context.partitions_being_reassigned == set()
        assert scene.active.broker_id == 7


# -- other controllers and leaders ------------------------------------------------------------------------------------


async def test_a_member_of_the_isr_that_is_no_replica_goes(tmp_path: Path) -> None:
    """What a controller of Kafka leaves when it dies between U1 and U3 of a cancellation."""
    async with on_stage(tmp_path) as (scene, stage):
        await scene.create("t", [1, 2])
        [(partition, state)] = (await scene.states(T0)).items()
        left = LeaderAndIsr(1, state.leader_epoch, (1, 2, 4), state.controller_epoch, state.zk_version)
        await scene.store.update_partition_states({partition: left}, None)
        await scene.kill(7)
        assert await move(scene, 4) is ErrorCode.NONE
        assert (await scene.state("t"))[::2] == (4, (4,))
        assert await stage.assignment() == ((4,), (), ())
        assert hosting(scene.sent, "t") == {4}


async def test_leaders_of_older_brokers_are_watched(tmp_path: Path) -> None:
    """Before 2.7 a leader writes the ISR itself; what it notifies the controller of comes seconds later."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3, inter_broker_protocol_version="2.6")
        await scene.create("t", [1, 2])
        assert await move(scene, 3, 2) is ErrorCode.NONE
        for isr in ((1, 2), (1, 2, 3)):
            [(partition, state)] = (await scene.states(T0)).items()
            written = LeaderAndIsr(1, state.leader_epoch, isr, state.controller_epoch, state.zk_version)
            await scene.store.update_partition_states({partition: written}, None)
            await scene.settled()
        found = await scene.store.topic_assignment("t")
        assert found is not None and found.partitions == {0: (3, 2)}
        assert (await scene.state("t"))[::2] == (3, (2, 3))


# -- controllers that die ---------------------------------------------------------------------------------------------

Work = Callable[[Scene, Stage], Awaitable[None]]


async def _catch_up(scene: Scene, stage: Stage) -> None:
    """The leader takes all replicas that it knows into the ISR."""
    leader, _, isr = await scene.state("t")
    known = hosted(scene.sent, "t").get(leader, ())
    wanted = tuple(dict.fromkeys((*isr, *known)))
    if wanted != isr:
        await scene.alter_isr("t", wanted)
    await scene.settled()


def _until_there(*target: int, cancel: bool = False) -> Work:
    async def work(scene: Scene, stage: Stage) -> None:
        while (await stage.assignment()) != (target, (), ()):
            replicas, adding, removing = await stage.assignment()
            under_way = tuple(broker_id for broker_id in replicas if broker_id not in removing)
            if not (adding or removing) or under_way != target:
                await move(scene, *(() if cancel else target))
            await _catch_up(scene, stage)
        await scene.settled()

    return work


async def _by_znode(scene: Scene, stage: Stage) -> None:
    if (await stage.assignment()) == ((1, 2, 3), (), ()) and not await has_znode(scene):
        await ask_by_znode(scene, t=[4, 5, 6])
    while (await stage.assignment()) != ((4, 5, 6), (), ()) or await has_znode(scene):
        await scene.settled()
        await _catch_up(scene, stage)


async def _to_be_changed(scene: Scene, stage: Stage) -> None:
    assert await move(scene, 4, 5, 6) is ErrorCode.NONE
    await scene.alter_isr("t", [1, 2, 3, 4])
    await scene.settled()


async def _marked_while_it_moves(scene: Scene, stage: Stage) -> None:
    await _to_be_changed(scene, stage)
    await scene.store.mark_topic_for_deletion("t")
    await scene.settled()


async def _nothing(scene: Scene, stage: Stage) -> None:
    """What is to be done is all of it."""


@pytest.mark.parametrize(
    ("before", "work", "target"),
    [
        pytest.param(_nothing, _until_there(4, 5, 6), {4, 5, 6}, id="all-new"),
        pytest.param(_nothing, _until_there(4, 1), {4, 1}, id="the-leader-stays", marks=pytest.mark.long),
        pytest.param(_nothing, _by_znode, {4, 5, 6}, id="znode", marks=pytest.mark.long),
        pytest.param(_to_be_changed, _until_there(1, 2, 3, cancel=True), {1, 2, 3}, id="cancelled"),
        pytest.param(_to_be_changed, _until_there(5, 2), {5, 2}, id="another-target", marks=pytest.mark.long),
    ],
)
async def test_the_controller_dies_between_two_steps(
    tmp_path: Path, before: Work, work: Work, target: set[int]
) -> None:
    """Between any two: before each write to ZooKeeper, and before each request."""
    async with on_stage(tmp_path) as (scene, stage):
        steps = 0
        deaths = [-1]
        while deaths:
            scene.sent.clear()
            await scene.create("t", [1, 2, 3])
            await before(scene, stage)
            stage.journal.die_after(steps)
            deaths = []
            await stage.survive(lambda: work(scene, stage), deaths)
            leader, _, isr = await scene.state("t")
            replicas, adding, removing = await stage.assignment()
            assert (set(replicas), adding, removing) == (target, (), ()), steps
            assert (set(isr), leader in target) == (target, True), steps
            assert hosting(scene.sent, "t") == target, steps
            context = scene.controller.context
            assert context.partitions_being_reassigned == set()
            known = {broker_id for broker_id in scene.brokers if T0 in context.replica_states(broker_id)}
            assert known == target, steps
            await scene.store.mark_topic_for_deletion("t")
            await scene.until(lambda: "t" not in scene.controller.context.all_topics)
            steps += 1
        assert steps > 20


async def _mark(scene: Scene, stage: Stage) -> None:
    await scene.store.mark_topic_for_deletion("t")


async def _wait(scene: Scene, stage: Stage) -> None:
    """The deletion needs no further request."""
    await scene.until(lambda: _is_gone(scene))


async def _cancel(scene: Scene, stage: Stage) -> None:
    while (found := await scene.store.topic_assignment("t")) is not None:
        if found.adding_replicas or found.removing_replicas:
            await move(scene)
        await scene.settled()


async def _is_gone(scene: Scene) -> bool:
    return not await scene.store.topic_exists("t")


@pytest.mark.parametrize(
    ("before", "begin", "work"),
    [
        pytest.param(_nothing, _mark, _wait, id="deleted"),
        pytest.param(_marked_while_it_moves, _nothing, _cancel, id="cancelled-and-deleted", marks=pytest.mark.long),
    ],
)
async def test_the_controller_dies_between_two_steps_of_a_deletion(
    tmp_path: Path, before: Work, begin: Work, work: Work
) -> None:
    """Its mark goes last: whatever is left of the topic, the next controller deletes it without being asked again."""
    async with on_stage(tmp_path) as (scene, stage):
        steps = 0
        deaths = [-1]
        while deaths:
            scene.sent.clear()
            await scene.create("t", [1, 2, 3])
            await scene.store.configs.update("topics/t", lambda config: {**config, "retention.ms": "1"})
            await before(scene, stage)
            stage.journal.die_after(steps)
            deaths = []
            await begin(scene, stage)
            await stage.survive(lambda: work(scene, stage), deaths)
            await scene.settled()
            store, context = scene.store, scene.controller.context
            assert (await store.topic_names(), await store.topic_deletions()) == ([], []), steps
            assert await store.configs.entities("topics") == [], steps
            assert hosting(scene.sent, "t") == set(), steps
            assert not any(T0 in context.replica_states(broker_id) for broker_id in scene.brokers), steps
            steps += 1
        assert steps > 10
