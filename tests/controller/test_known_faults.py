"""Faults of Kafka 2.8.2 in the controller, which klamm must not have: by their KAFKA numbers.

Those of brokers that lead and follow are in tests/replication/partition/test_known_replica_faults.py;
docs/kafka-faults.md lists all.
"""

from pathlib import Path
from uuid import UUID

from klamm.controller.events import AutoPreferredReplicaLeaderElection
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode
from klamm.znodes.cluster import CONTROLLER_PATH, Controller
from klamm.znodes.topics import TopicAssignment
from support.controller.scene import playing

TOPIC_ID = UUID(int=14190)


async def test_kafka_10149_one_reassignment_does_not_keep_all_others_from_their_preferred_leaders(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3], [2, 3])
        # This one goes on for as long as nobody lets broker 1 into the ISR.
        assert await scene.controller.alter_partition_reassignments({("t", 1): (2, 1)}) == {("t", 1): None}
        await scene.kill(2)
        await scene.start(2)
        await scene.alter_isr("t", [3, 2])
        assert await scene.state("t", 0) == (3, 1, (3, 2))
        scene.controller._parts._put(AutoPreferredReplicaLeaderElection())
        await scene.settled()
        assert await scene.controller.list_partition_reassignments(None) != {}
        assert await scene.state("t", 0) == (2, 2, (3, 2))


async def test_kafka_13342_a_broker_that_comes_back_does_not_begin_again_with_a_topic_in_deletion(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        scene.silent.add(2)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.is_topic_deletion_in_progress("t"))
        await scene.kill(2)
        scene.take()
        scene.silent.clear()
        await scene.start(2)
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)
        requests = [sent for sent in scene.take() if sent.receiver == 2]
        named = [
            topic.topic_name
            for sent in requests
            if sent.api_key is ApiKey.LEADER_AND_ISR
            for topic in sent.body.topic_states
        ]
        assert named == [], "it was told to lead or follow what is being deleted"
        assert [sent.api_key for sent in requests].count(ApiKey.STOP_REPLICA) == 2


async def test_kafka_13342_nor_does_the_next_controller_begin_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        scene.silent.add(3)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.is_topic_deletion_in_progress("t"))
        scene.take()
        scene.silent.clear()
        await scene.kill(1)
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)
        assert [sent.receiver for sent in scene.take() if sent.api_key is ApiKey.LEADER_AND_ISR] == []


async def test_kafka_13342_but_a_reassignment_that_a_deletion_waits_for_goes_on(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2])
        await scene.controller.alter_partition_reassignments({("t", 0): (1, 3)})
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        await scene.kill(3)
        scene.take()
        await scene.start(3)
        told = [s.receiver for s in scene.take() if s.api_key is ApiKey.LEADER_AND_ISR]
        assert 3 in told
        await scene.alter_isr("t", [1, 2, 3])
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)


async def test_kafka_13407_to_be_named_in_the_znode_is_not_to_be_the_controller(tmp_path: Path) -> None:
    """As after an election whose answer was lost: the znode is of this session, and nobody does the work."""
    async with playing(tmp_path) as scene:
        await scene.start(2)
        await scene.controller.shutdown()
        broker = scene.brokers.pop(2)
        await scene.store.client.delete(CONTROLLER_PATH)
        again = scene.brokers[2] = type(broker)(scene, 2, {}, scene.address)
        again.client = broker.client
        again.epoch = broker.epoch
        await again.client.create(CONTROLLER_PATH, Controller(2, 1).encode(), ephemeral=True)
        await again.controller.startup(again.store)
        assert again.controller.is_active
        assert again.controller.context.epoch == 2, "it is named, and nobody does the work"
        await scene.create("t", [2])
        assert await scene.state("t") == (2, 0, (2,))


async def test_kafka_13572_the_imbalance_is_never_negative(tmp_path: Path) -> None:
    """A topic whose deletion waits is queued again with the next mark."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await scene.create("u", [2, 3])
        await scene.create("v", [1])
        await scene.kill(2)
        context = scene.controller.context
        assert context.preferred_replica_imbalance_count == 2
        for topic in ("t", "v"):
            await scene.store.mark_topic_for_deletion(topic)
            await scene.settled()
        assert "t" in context.topics_to_be_deleted
        assert context.preferred_replica_imbalance_count == 1


async def test_kafka_13972_who_is_stopped_by_a_cancellation_has_an_older_epoch(tmp_path: Path) -> None:
    """Brokers of Kafka 2.8.2 obey no StopReplica of the leader epoch that they are in."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2])
        await scene.controller.alter_partition_reassignments({("t", 0): (1, 3)})
        told = [
            state.leader_epoch
            for sent in scene.take()
            if sent.api_key is ApiKey.LEADER_AND_ISR and sent.receiver == 3
            for topic in sent.body.topic_states
            for state in topic.partition_states
        ]
        await scene.controller.alter_partition_reassignments({("t", 0): None})
        stops = [
            state.leader_epoch
            for sent in scene.take()
            if sent.api_key is ApiKey.STOP_REPLICA and sent.receiver == 3
            for topic in sent.body.topic_states
            for state in topic.partition_states
            if state.delete_partition
        ]
        assert len(stops) == 1
        assert stops[0] > max(told)


async def test_kafka_14140_who_is_offline_or_shutting_down_does_not_join_the_isr(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2, 3])
        await scene.alter_isr("t", [1])
        scene.offline.add((("t", 0), 3))
        await scene.store.report_log_dir_failure(3)
        await scene.settled()
        await scene.controller.controlled_shutdown(2, -1)
        for isr in ([1, 2], [1, 3], [1, 2, 3]):
            error, [item] = await scene.alter_isr("t", isr)
            assert (error, item.error_code, item.isr) == (ErrorCode.NONE, ErrorCode.NONE, [1])
        assert (await scene.state("t"))[2] == (1,)


async def test_kafka_14190_a_topic_keeps_its_id_when_an_older_tool_writes_its_znode(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2], topic_id=TOPIC_ID)
        assignment = await scene.store.topic_assignment("t")
        assert assignment is not None
        # kafka-topics.sh --zookeeper of a Kafka before 2.8 knows of no ids.
        without_id = TopicAssignment({**assignment.partitions, 1: (2, 1)})
        await scene.store.client.set("/brokers/topics/t", without_id.encode())
        await scene.until(lambda: scene.controller.context.partition_leadership_info(("t", 1)))
        await scene.kill(1)
        await scene.until(lambda: scene.brokers[2].controller.is_active)
        await scene.settled()
        assert scene.controller.context.topic_ids == {"t": TOPIC_ID}
        again = await scene.store.topic_assignment("t")
        assert again is not None and again.topic_id == TOPIC_ID and len(again.partitions) == 2
