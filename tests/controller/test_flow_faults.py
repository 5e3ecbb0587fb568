"""Flows of the controller that come upon something halfway: another request, a death, a failed disk."""

from pathlib import Path
from typing import Any

import pytest

from klamm.controller.events import BrokerChange
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ElectionType
from klamm.znodes import access
from klamm.znodes.requests import REASSIGN_PARTITIONS_PATH, encode_reassignment
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, topic_path
from support.controller.reassignment import Stage
from support.controller.scene import Scene, playing

T0 = ("t", 0)


async def move(scene: Scene, *target: int) -> ErrorCode:
    results = await scene.controller.alter_partition_reassignments({T0: target or None})
    error = results[T0]
    return ErrorCode.NONE if error is None else error.code


# -- reassignments ----------------------------------------------------------------------------------------------------


async def test_a_refused_reassignment_leaves_the_znode_as_it_is(tmp_path: Path) -> None:
    """What began by the znode goes on; a tool that looks at the znode must not take it for finished."""
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2, 3)
        await scene.create("t", [1])
        await scene.store.client.create(REASSIGN_PARTITIONS_PATH, encode_reassignment({T0: [2, 3]}))
        await scene.settled()
        await scene.alter_isr("t", [1, 2])
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (2, (2,))
        # Only broker 2 has everything.
        assert await move(scene) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await scene.store.partition_reassignment(lambda: None) == {T0: (2, 3)}
        assert list(await scene.controller.list_partition_reassignments(None)) == [T0]


async def test_an_unclean_election_may_complete_a_reassignment(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        await scene.store.configs.update("topics/t", lambda _: {"unclean.leader.election.enable": "true"})
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await scene.controller.list_partition_reassignments(None) == {}


@pytest.mark.parametrize("by", ["request", "configuration"])
async def test_an_unclean_election_that_is_asked_for_may_complete_a_reassignment(tmp_path: Path, by: str) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (-1, (1,))
        if by == "request":
            assert await scene.controller.elect_leaders([T0], ElectionType.UNCLEAN) == {T0: 2}
        else:
            await scene.store.configs.update("topics/t", lambda _: {"unclean.leader.election.enable": "true"})
            scene.controller.enable_topic_unclean_leader_election("t")
            await scene.settled()
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await scene.controller.list_partition_reassignments(None) == {}


async def test_a_reassignment_that_a_deletion_waits_for_survives_the_death_of_the_leader(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2)
        await scene.create("t", [1])
        assert await move(scene, 2) is ErrorCode.NONE
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        await scene.kill(1)
        await scene.start(1)
        assert (await scene.state("t"))[::2] == (1, (1,))
        await scene.alter_isr("t", [1, 2])
        await scene.until(lambda: "t" not in scene.controller.context.all_topics)


async def test_a_topic_that_comes_with_a_reassignment_under_way(tmp_path: Path) -> None:
    """As one whose znode could not be read for a while."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        assignment = TopicAssignment(
            {0: (2, 1)}, scene.environment.random_uuid(), adding_replicas={0: (2,)}, removing_replicas={0: (1,)}
        )
        await scene.store.client.create(topic_path("t"), assignment.encode())
        await scene.settled()
        assert (await scene.state("t"))[::2] == (2, (2,))
        assert await scene.controller.list_partition_reassignments(None) == {}


# -- disks ------------------------------------------------------------------------------------------------------------


async def test_the_disk_of_a_new_replica_that_leads_fails(tmp_path: Path) -> None:
    """Kafka's controller does not ask a replica that it has just made new, and the partition stays without a leader."""
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2, 3, 4)
        await scene.create("t", [1, 2])
        assert await move(scene, 3, 4) is ErrorCode.NONE
        await scene.alter_isr("t", [1, 2, 3])
        await scene.kill(1)
        assert (await scene.state("t"))[::2] == (3, (2, 3))
        scene.offline = {(T0, 3)}
        await scene.store.report_log_dir_failure(3)
        await scene.settled()
        await scene.settled()
        assert (await scene.state("t"))[::2] == (2, (2,))


async def test_a_disk_of_which_a_broker_tells_when_its_replica_is_removed(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2, 3)
        await scene.create("t", [1, 2, 3])
        scene.offline = {(T0, 3)}
        scene.silent = {3}
        await scene.store.report_log_dir_failure(3)
        await scene.settled()
        assert await move(scene, 1, 2) is ErrorCode.NONE
        scene.release()
        await scene.settled()
        assert scene.controller.context.replicas_on_offline_dirs == {}


async def test_a_disk_works_again_after_its_replica_is_removed(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2, 3)
        await scene.create("t", [1, 2, 3])
        scene.offline = {(T0, 3)}
        await scene.store.report_log_dir_failure(3)
        await scene.until(lambda: scene.controller.context.replicas_on_offline_dirs)
        scene.offline, scene.silent = set(), {3}
        await scene.store.report_log_dir_failure(3)
        await scene.settled()
        assert await move(scene, 1, 2) is ErrorCode.NONE
        scene.release()
        await scene.settled()
        assert scene.controller.context.replicas_on_offline_dirs == {}


# -- deletions --------------------------------------------------------------------------------------------------------


def marked_before_read(scene: Scene, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """The controllers' next look at the marks finds one of a topic that did not exist a moment before."""
    for broker in scene.brokers.values():
        store = broker.controller.parts.store
        read = store.topic_deletions

        async def topic_deletions(*arguments: Any, read: Any = read) -> list[str]:
            if await scene.store.topic_assignment(topic) is None:
                await scene.store.create_topic(topic, {0: [2]}, scene.environment.random_uuid(), {})
                await scene.store.mark_topic_for_deletion(topic)
            marked: list[str] = await read(*arguments)
            monkeypatch.undo()
            return marked

        monkeypatch.setattr(store, "topic_deletions", topic_deletions)


async def test_a_topic_that_is_marked_for_deletion_as_soon_as_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's controller takes it for one that does not exist, and the mark is lost."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("other", [2])
        marked_before_read(scene, monkeypatch, "t")
        await scene.store.mark_topic_for_deletion("other")
        await scene.settled()
        await scene.settled()
        assert await scene.store.topic_deletions() == []
        assert await scene.store.topic_names() == []


async def test_a_topic_that_is_marked_for_deletion_while_a_controller_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        marked_before_read(scene, monkeypatch, "t")
        await scene.kill(1)
        await scene.settled()
        await scene.settled()
        assert await scene.store.topic_deletions() == []
        assert await scene.store.topic_names() == []


# -- in-sync replicas -------------------------------------------------------------------------------------------------


async def test_a_proposal_from_before_a_bounce_is_refused_by_the_next_controller(tmp_path: Path) -> None:
    """The leader sends it until it is decided: to the controller that was elected while the follower was dead."""
    async with playing(tmp_path) as scene:
        await scene.start(9, 8, 1, 2)
        await scene.create("t", [1, 2])
        await scene.alter_isr("t", [1])
        proposed = (await scene.states(T0))[T0]
        for broker_id in (9, 2):
            await scene.brokers[broker_id].controller.shutdown()
        await scene.brokers.pop(2).client.close()
        await scene.kill(9)
        await scene.settled()
        await scene.start(2)
        error, [item] = await scene.alter_isr(
            "t", [1, 2], leader_epoch=proposed.leader_epoch, version=proposed.zk_version
        )
        assert (error, item.error_code) == (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)


# -- znodes that ZooKeeper would not take ------------------------------------------------------------------------------

MANY = range(600)
# With these, what is added to each of so many partitions makes the topic's znode larger than ZooKeeper's limit of 1 MB.
DEAD = range(2_000_000_000, 2_000_000_100)


async def test_a_reassignment_by_znode_that_would_not_fit_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1)
        await scene.create("t", *([1] for _ in MANY))
        await scene.create("u", [1])
        epoch = scene.controller.context.epoch
        asked = {("t", number): DEAD for number in MANY} | {("u", 0): DEAD}
        await scene.store.client.create(REASSIGN_PARTITIONS_PATH, encode_reassignment(asked))
        await scene.settled()
        assert await scene.store.partition_reassignment(lambda: None) == {("u", 0): tuple(DEAD)}
        assert list(await scene.controller.list_partition_reassignments(None)) == [("u", 0)]
        assert await scene.store.topic_assignment("t") == TopicAssignment(
            {number: (1,) for number in MANY}, scene.controller.context.topic_ids["t"]
        )
        assert scene.controller.context.epoch == epoch
        assert "the znode of 't' would take" in caplog.text


async def test_a_reassignment_that_would_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused changes nothing; a part of it, which fits, is begun; and what is too large already may shrink."""
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2, 3)
        await scene.create("t", *([1] for _ in range(10)))
        await scene.create("u", [1])
        monkeypatch.setattr(access, "MAX_REASSIGNED_ZNODE_BYTES", 300)
        all_of_t = [("t", number) for number in range(10)]
        scene.take()
        results = await scene.controller.alter_partition_reassignments({key: (2,) for key in (*all_of_t, ("u", 0))})
        refused = {key: error.code for key, error in results.items() if error is not None}
        assert refused == dict.fromkeys(all_of_t, ErrorCode.INVALID_REQUEST)
        assert {topic.topic_name for sent in scene.take() for topic in sent.body.topic_states} == {"u"}
        assert await move(scene, 2) is ErrorCode.NONE
        monkeypatch.setattr(access, "MAX_REASSIGNED_ZNODE_BYTES", 100)
        assert await move(scene, 2, 3) is ErrorCode.INVALID_REQUEST
        assert await move(scene) is ErrorCode.NONE
        found = await scene.store.topic_assignment("t")
        assert found is not None and not found.adding_replicas


async def test_a_broker_is_gone_and_only_the_watch_of_its_own_znode_tells(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(9, 1, 2)
        await scene.create("t", [1, 2])
        await scene.alter_isr("t", [1, 2])
        parts = scene.controller.parts
        put = parts._put
        parts._put = lambda event: None if isinstance(event, BrokerChange) else put(event)
        await scene.brokers.pop(1).die()
        await scene.settled()
        assert await scene.state("t") == (2, 1, (2,))


async def test_a_partition_whose_leader_epochs_are_used_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its state, whatever the controller wants to write; other partitions are not affected."""

    async def write(epoch: int) -> None:
        """As an operator does, or a program gone wrong; another controller reads it."""
        [(key, state)] = (await scene.states(("t", 0))).items()
        written = LeaderAndIsr(state.leader, epoch, state.isr, state.controller_epoch, state.zk_version)
        assert await scene.store.update_partition_states({key: written}, None) == {key: state.zk_version + 1}

    async with playing(tmp_path) as scene:
        stage = await Stage(scene).set_up()
        for topic in ("t", "u"):
            await scene.create(topic, [2, 3])
        last = 2**31 - 1
        await write(last)
        await scene.kill(7)
        results = await scene.controller.alter_partition_reassignments({("t", 0): (3, 4), ("u", 0): (2, 3)})
        refused = results["t", 0]
        assert (refused and refused.code, results["u", 0]) == (ErrorCode.INVALID_REQUEST, None)
        assert "/brokers/topics/t/partitions/0/state: 2147483647 is the last leader epoch" in str(refused)
        # Its leader dies, and comes back.
        await scene.kill(2)
        assert await scene.state("t") == (2, last, (2, 3))
        assert (await scene.state("u"))[::2] == (3, (3,))
        assert "2147483647 is the last leader epoch" in caplog.text
        await stage.start_replica(2)
        # A controller that finds a replica that has bounced.
        await stage.start_controller(7)
        await scene.kill(8)
        await scene.settled()
        assert await scene.state("t") == (2, last, (2, 3))
        await write(7)
        await stage.start_controller(8)
        await scene.kill(7)
        await scene.settled()
        await scene.kill(2)
        leader, epoch, isr = await scene.state("t")
        assert (leader, isr) == (3, (3,))
        assert 7 < epoch < last
