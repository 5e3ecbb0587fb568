"""Elections that somebody asks for, the automatic ones, and unclean ones: who leads then, and what everybody hears."""

import asyncio
from pathlib import Path

import pytest

from klamm.controller.events import (
    AutoPreferredReplicaLeaderElection,
    ReplicaLeaderElection,
    ZkPreferredReplicaElection,
)
from klamm.controller.leader_election import ElectionResults
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey
from klamm.znodes import requests
from klamm.znodes.configs import topic_entity
from support.controller.scene import Scene, playing

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN
PATH = requests.PREFERRED_REPLICA_ELECTION_PATH


async def elect(
    scene: Scene, *partitions: PartitionKey, kind: ElectionType = PREFERRED
) -> dict[PartitionKey, int | ErrorCode]:
    """Leaders and error codes."""
    return codes(await scene.controller.elect_leaders(partitions, kind))


def codes(results: ElectionResults) -> dict[PartitionKey, int | ErrorCode]:
    return {key: result.code if isinstance(result, KafkaError) else result for key, result in results.items()}


async def away_and_back(scene: Scene, broker_id: int, *topics: str) -> None:
    """The broker dies and comes back into the ISR of partition 0 of these topics: it no longer leads any of them."""
    await scene.kill(broker_id)
    await scene.start(broker_id)
    for topic in topics:
        _, _, isr = await scene.state(topic)
        error, [item] = await scene.alter_isr(topic, [*isr, broker_id])
        assert (error, item.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    await scene.settled()


def told(scene: Scene) -> list[tuple[int, str, list[tuple[str, int, int, int]]]]:
    """What was sent since the last call: receiver, API, and topic, partition, leader and epoch of each partition."""
    return [
        (
            sent.receiver,
            sent.api_key.message_name,
            [
                (topic.topic_name, state.partition_index, state.leader, state.leader_epoch)
                for topic in sent.body.topic_states
                for state in topic.partition_states
            ],
        )
        for sent in scene.take()
        if sent.api_key is not ApiKey.STOP_REPLICA
    ]


def check_counts(scene: Scene) -> None:
    context = scene.controller.context
    assert (context.offline_partition_count, context.preferred_replica_imbalance_count) == context.recount()


# -- by request -------------------------------------------------------------------------------------------------------


async def test_a_preferred_leader_is_elected_and_everybody_is_told(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [1, 2])
        await scene.create("u", [2, 1])
        await away_and_back(scene, 1, "t", "u")
        assert await scene.state("t") == (2, 1, (2, 1))
        assert scene.controller.context.preferred_replica_imbalance_count == 1
        scene.take()
        assert await elect(scene, ("t", 0), ("u", 0), ("t", 0)) == {
            ("t", 0): 1,
            ("u", 0): ErrorCode.ELECTION_NOT_NEEDED,
        }
        assert await scene.state("t") == (1, 2, (2, 1))
        now = [("t", 0, 1, 2)]
        assert told(scene) == [
            (1, "LeaderAndIsr", now),
            (2, "LeaderAndIsr", now),
            (1, "UpdateMetadata", now),
            (2, "UpdateMetadata", now),
            (3, "UpdateMetadata", now),
        ]
        assert scene.controller.context.preferred_replica_imbalance_count == 0
        check_counts(scene)


async def test_who_cannot_be_elected(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("dead", [1, 3])
        await scene.create("behind", [1, 3])
        await scene.create("deleted", [3, 1])
        await scene.create("alone", [1])
        await scene.kill(1)
        await scene.store.mark_topic_for_deletion("deleted")  # It waits for broker 1.
        await scene.settled()
        partitions = [("dead", 0), ("behind", 0), ("deleted", 0), ("alone", 0), ("alone", 1), ("unknown", 0)]
        for kind, others in ((PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (UNCLEAN, None)):
            assert await elect(scene, *partitions, kind=kind) == {
                ("dead", 0): others or ErrorCode.ELECTION_NOT_NEEDED,
                ("behind", 0): others or ErrorCode.ELECTION_NOT_NEEDED,
                ("deleted", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
                ("alone", 0): others or ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                ("alone", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
        await scene.start(1)  # It is back, but in no ISR yet.
        await scene.settled()
        assert await elect(scene, ("behind", 0)) == {("behind", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await scene.state("behind") == (3, 1, (3,))
        [error] = (await scene.controller.elect_leaders([("behind", 0)], PREFERRED)).values()
        assert isinstance(error, KafkaError) and "behind-0" in error.message
        check_counts(scene)


async def test_an_unclean_leader_is_elected_only_on_request(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [1, 2])
        await scene.kill(2)
        await scene.kill(1)
        await scene.start(2)
        assert await scene.state("t") == (-1, 2, (1,))
        assert await elect(scene, ("t", 0)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await elect(scene, ("t", 0), kind=UNCLEAN) == {("t", 0): 2}
        assert await scene.state("t") == (2, 3, (2,))
        assert scene.controller.context.unclean_leader_election_count == 1
        assert await elect(scene, ("t", 0), kind=UNCLEAN) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
        check_counts(scene)


async def test_a_broker_that_shuts_down_is_not_elected(tmp_path: Path) -> None:

    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [1, 2])
        await scene.create("u", [1])
        await scene.controller.controlled_shutdown(1, scene.brokers[1].epoch)
        assert await elect(scene, ("t", 0), ("u", 0), kind=UNCLEAN) == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("u", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        }
        assert await scene.state("t") == (2, 1, (2,))
        assert await scene.state("u") == (1, 0, (1,))
        assert scene.controller.context.unclean_leader_election_count == 0


async def test_a_partition_that_never_had_a_leader(tmp_path: Path) -> None:
    """Kafka's controller finds no leadership of it, and the request is never answered."""
    async with playing(tmp_path) as scene:
        await scene.start(3)
        await scene.store.create_topic("t", {0: [7]}, scene.environment.random_uuid(), {})
        await scene.until(lambda: "t" in scene.controller.context.all_topics and scene.is_idle(scene.controller))
        assert await elect(scene, ("t", 0)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await elect(scene, ("t", 0), kind=UNCLEAN) == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def test_only_the_controller_elects(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        with pytest.raises(KafkaError) as refused:
            await scene.brokers[2].controller.elect_leaders([("t", 0)], PREFERRED)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        # The session ends before the event's turn.
        event = ReplicaLeaderElection([("t", 0)], PREFERRED, answer=asyncio.get_running_loop().create_future())
        scene.controller._events.put(event)
        scene.controller._events.clear_and_put(ZkPreferredReplicaElection())
        with pytest.raises(KafkaError) as refused:
            await event.answer
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


# -- by znode ---------------------------------------------------------------------------------------------------------


async def ask_in_zookeeper(scene: Scene, content: bytes) -> None:
    await scene.store.client.create(PATH, content)
    await scene.until(lambda: _is_gone(scene))


async def _is_gone(scene: Scene) -> bool:
    return await scene.store.client.exists(PATH) is None and scene.is_idle(scene.controller)


async def test_the_znode_is_done_and_removed_again_and_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        await away_and_back(scene, 1, "t", "u")
        for content in (b"garbage", b'{"version":1,"partitions":[{"topic":"t"}]}'):
            await ask_in_zookeeper(scene, content)
        await ask_in_zookeeper(scene, requests.encode_partitions([("t", 0), ("unknown", 3), ("t", 7)]))
        assert await scene.state("t") == (1, 2, (2, 1))
        assert await scene.state("u") == (2, 1, (2, 1))
        await ask_in_zookeeper(scene, requests.encode_partitions([("u", 0)]))
        assert await scene.state("u") == (1, 2, (2, 1))
        check_counts(scene)


async def test_the_znode_never_elects_uncleanly(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [2, 1])
        await scene.kill(2)
        await scene.kill(1)
        await scene.start(2)
        await ask_in_zookeeper(scene, requests.encode_partitions([("t", 0)]))
        assert await scene.state("t") == (-1, 2, (1,))


async def test_a_new_controller_does_what_was_left(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await away_and_back(scene, 2, "t")
        assert await scene.state("t") == (3, 1, (3, 2))
        former = scene.brokers.pop(1)
        await former.controller.shutdown()  # The process is gone, its session lives.
        await scene.store.client.create(PATH, requests.encode_partitions([("t", 0)]))
        await former.client.close()
        await scene.until(lambda: any(broker.controller.is_active for broker in scene.brokers.values()))
        await scene.until(lambda: _is_gone(scene))
        assert (await scene.state("t"))[0] == 2


# -- automatic --------------------------------------------------------------------------------------------------------


async def rebalance(scene: Scene) -> None:
    before = scene.processed.count("AutoPreferredReplicaLeaderElection")
    scene.controller._events.put(AutoPreferredReplicaLeaderElection())
    await scene.until(lambda: scene.processed.count("AutoPreferredReplicaLeaderElection") > before)


@pytest.mark.parametrize(("percentage", "leaders"), [(0, 1), (49, 1), (50, 2), (100, 2)])
async def test_leaderships_go_back_when_too_many_are_lost(tmp_path: Path, percentage: int, leaders: int) -> None:
    """Broker 1 is the preferred leader of two partitions, and has lost one."""
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2, leader_imbalance_per_broker_percentage=str(percentage))
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        await scene.create("v", [2, 1])
        await away_and_back(scene, 1, "t", "u", "v")
        await elect(scene, ("u", 0))
        await rebalance(scene)
        assert [(await scene.state(topic))[0] for topic in ("t", "u", "v")] == [leaders, 1, 2]
        check_counts(scene)


async def test_leaderships_that_cannot_go_back_stay(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        for topic in ("behind", "deleted", "t"):
            await scene.create(topic, [1, 2])
        await scene.kill(1)
        scene.take()
        await rebalance(scene)  # Broker 1 is dead.
        await scene.start(1)
        await scene.alter_isr("t", [2, 1])
        await scene.alter_isr("deleted", [2, 1])
        scene.silent.add(1)
        await scene.store.mark_topic_for_deletion("deleted")
        await scene.settled()
        await rebalance(scene)
        assert (await scene.state("behind"))[0] == 2
        assert (await scene.state("t"))[0] == 1
        check_counts(scene)


async def test_a_reassignment_keeps_no_other_partition_from_its_leader(tmp_path: Path) -> None:
    """KAFKA-10149: there, one that hangs ends the balance of the whole cluster."""
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        await scene.create("t", [1, 2])
        await scene.create("moving", [1, 2])
        await away_and_back(scene, 1, "t", "moving")
        # Broker 3 never gets into the ISR.
        assert await scene.controller.alter_partition_reassignments({("moving", 0): (1, 3)}) == {("moving", 0): None}
        assert scene.controller.context.partitions_being_reassigned == {("moving", 0)}
        await rebalance(scene)
        assert [(await scene.state(topic))[0] for topic in ("t", "moving")] == [1, 1]
        assert scene.controller.context.partitions_being_reassigned == {("moving", 0)}
        check_counts(scene)


# -- unclean leader election switched on ------------------------------------------------------------------------------


async def test_switched_on_for_a_topic(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(3, 1, 2)
        for topic in ("t", "u"):
            await scene.create(topic, [1, 2])
        await scene.kill(2)
        await scene.kill(1)
        await scene.start(2)
        await scene.store.configs.update(topic_entity("t"), lambda _old: {"unclean.leader.election.enable": "true"})
        await scene.store.configs.update(topic_entity("u"), lambda _old: {"unclean.leader.election.enable": "true"})
        scene.controller.enable_topic_unclean_leader_election("t")
        await scene.settled()
        assert [(await scene.state(topic))[0] for topic in ("t", "u")] == [2, -1]
        scene.controller.enable_default_unclean_leader_election()
        await scene.settled()
        assert await scene.state("u") == (2, 3, (2,))
        assert scene.controller.context.unclean_leader_election_count == 2
