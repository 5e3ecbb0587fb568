"""Replicas that refuse LeaderAndIsr because their logs are of another topic id (klamm.controller.topic_ids)."""

import logging
from pathlib import Path

import pytest

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from support.controller.scene import Scene, playing

T0 = ("t", 0)


def _told(scene: Scene, broker_id: int) -> list[LeaderAndIsrPartitionState]:
    return [
        state
        for sent in scene.take()
        if sent.api_key is ApiKey.LEADER_AND_ISR and sent.receiver == broker_id
        for topic in sent.body.topic_states
        for state in topic.partition_states
    ]


async def _next_controller(scene: Scene) -> None:
    """Broker 1 was the controller. All brokers are told of all partitions again."""
    await scene.kill(1)
    await scene.settled()


async def test_a_member_of_the_isr_that_refuses_leaves_it_and_is_told(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3, 4)
        await scene.create("t", [2, 3, 4])
        scene.of_other_topics.add((T0, 3))
        scene.take()
        await _next_controller(scene)
        assert await scene.state("t") == (2, 1, (2, 4))
        assert [state.isr for state in _told(scene, 3)] == [(2, 3, 4), (2, 4)]
        assert scene.of_other_topics == set()
        assert scene.controller.context.topic_id_answers == {}


async def test_a_leader_that_refuses_is_followed_by_a_member_that_has_the_id(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3, 4)
        await scene.create("t", [2, 3, 4])
        scene.of_other_topics |= {(T0, 2), (T0, 3)}
        await _next_controller(scene)
        leader, _epoch, isr = await scene.state("t")
        assert (leader, isr) == (4, (4,))
        assert scene.of_other_topics == set()
        assert scene.controller.context.topic_id_answers == {}


async def test_a_member_that_has_not_answered_is_waited_for(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        scene.of_other_topics.add((T0, 2))
        scene.silent.add(3)
        await _next_controller(scene)
        assert await scene.state("t") == (2, 0, (2, 3))
        scene.release()
        await scene.settled()
        assert await scene.state("t") == (3, 1, (3,))
        assert scene.of_other_topics == set()


async def test_nothing_changes_when_all_refuse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The topic's id was changed in ZooKeeper: their leader leads on, and no log may be deleted."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3], [3, 2])
        refusing = {((topic, number), broker_id) for topic, number in (T0, ("t", 1)) for broker_id in (2, 3)}
        scene.of_other_topics |= refusing
        scene.take()
        with caplog.at_level(logging.ERROR, "klamm.controller.topic_ids"):
            await _next_controller(scene)
            assert (await scene.state("t"), await scene.state("t", 1)) == ((2, 0, (2, 3)), (3, 0, (3, 2)))
            assert scene.of_other_topics == refusing
            await scene.store.report_log_dir_failure(2)  # They are told again.
            await scene.settled()
        [line] = [record.getMessage() for record in caplog.records]
        assert "2 partitions" in line and "t-0, in sync on brokers [2, 3]" in line
        assert scene.of_other_topics == refusing


async def test_brokers_of_kafka_refuse_again_without_end_and_are_left_alone(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [3, 2])
        scene.of_other_topics.add((T0, 3))
        scene.of_kafka.add(3)
        scene.take()
        await _next_controller(scene)
        assert await scene.state("t") == (2, 1, (2,))
        assert [state.isr for state in _told(scene, 3)] == [(3, 2), (2,)]
        # An operator removes the directory and starts the broker again.
        scene.of_other_topics.clear()
        await scene.kill(3)
        assert scene.controller.context.topic_id_answers == {}
        await scene.start(3)
        await scene.settled()
        assert scene.controller.context.topic_id_answers == {}


@pytest.mark.parametrize("is_of_kafka", [False, True])
async def test_a_refusal_that_comes_after_the_leader_has_taken_the_replica_out(
    tmp_path: Path, is_of_kafka: bool
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        scene.of_other_topics.add((T0, 3))
        if is_of_kafka:
            scene.of_kafka.add(3)
        scene.silent.add(3)
        await _next_controller(scene)
        scene.take()
        await scene.alter_isr("t", [2])
        scene.release()
        await scene.settled()
        assert [state.isr for state in _told(scene, 3)] == [(2,)]
        assert await scene.state("t") == (2, 0, (2,))
        assert bool(scene.of_other_topics) is is_of_kafka
