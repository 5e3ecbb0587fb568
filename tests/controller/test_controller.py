"""Two or three controllers on a real embedded ZooKeeper: who is the controller, and what it tells the brokers."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.controller.events import (
    ControllerRequestSender,
    LeaderAndIsrResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
)
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionError, LeaderAndIsrResponse, LeaderAndIsrTopicError
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import request_class
from klamm.znodes import requests
from klamm.znodes.cluster import Features, FeatureStatus, encode_controller_epoch
from klamm.znodes.controller_store import NO_CONTROLLER
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.keeper_exceptions import ClientClosed, SessionExpired
from klamm.zookeeper.messages import CREATOR_ALL_ACL, OPEN_ACL
from support.controller.scene import FakeBroker, Scene, Sent, playing, proxy_to

TOPIC_ID = UUID(int=7)


def summary(sent: list[Sent]) -> list[tuple[int, str, Any]]:
    """Receiver, API, and what is told of partitions: (topic, partition, leader, leader epoch) or a deletion flag."""
    result: list[tuple[int, str, Any]] = []
    for request in sent:
        if request.api_key is ApiKey.STOP_REPLICA:
            told: list[Any] = [
                (topic.topic_name, state.partition_index, state.delete_partition)
                for topic in request.body.topic_states
                for state in topic.partition_states
            ]
        else:
            told = [
                (topic.topic_name, state.partition_index, state.leader, state.leader_epoch)
                for topic in request.body.topic_states
                for state in topic.partition_states
            ]
        result.append((request.receiver, request.api_key.message_name, told))
    return result


def of(sent: list[Sent], api_key: ApiKey, receiver: int | None = None) -> list[Any]:
    return [s.body for s in sent if s.api_key is api_key and receiver in (None, s.receiver)]


# -- who is the controller --------------------------------------------------------------------------------------------


async def test_the_first_broker_becomes_the_controller(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        one, two = scene.brokers[1].controller, scene.brokers[2].controller
        assert (one.is_active, one.controller_id, one.context.epoch, one.context.epoch_zk_version) == (True, 1, 1, 1)
        assert (two.is_active, two.controller_id, two.context.epoch) == (False, 1, 0)
        node = await scene.store.controller()
        assert node == (1, scene.brokers[1].client.session_id)
        data, _ = await scene.store.client.get("/feature")
        assert Features.decode(data) == Features(FeatureStatus.ENABLED)
        # All brokers get the live brokers.
        last = of(scene.sent, ApiKey.UPDATE_METADATA, 2)[-1]
        assert [(broker.id, broker.endpoints[0].port) for broker in last.live_brokers] == [(1, 9001), (2, 9002)]
        assert (last.controller_id, last.controller_epoch) == (1, 1)
        assert last.broker_epoch == scene.brokers[2].epoch


async def test_when_the_controller_dies_another_one_takes_over(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2, 3], [2, 3, 1])
        scene.take()
        await scene.kill(1)
        assert scene.active.broker_id in (2, 3)
        assert scene.controller.context.epoch == 2
        # The dead leader leaves the ISR first, and then somebody else is elected: two epochs.
        assert await scene.state("t", 0) == (2, 2, (2, 3))
        assert await scene.state("t", 1) == (2, 1, (2, 3))
        new = scene.active.broker_id
        sent = scene.take()
        assert {s.sender for s in sent} == {new}
        assert {s.body.controller_epoch for s in sent} == {2}
        # First who is alive, without partitions, then the rest.
        assert summary(sent)[:2] == [(2, "UpdateMetadata", []), (3, "UpdateMetadata", [])]
        await scene.until(lambda: all(b.controller.controller_id == new for b in scene.brokers.values()))


def active_in(scene: Scene, epoch: int) -> bool:
    active = [broker.controller for broker in scene.brokers.values() if broker.controller.is_active]
    return [controller.context.epoch for controller in active] == [epoch]


def all_follow(scene: Scene, active: int) -> bool:
    return all(broker.controller.controller_id == active for broker in scene.brokers.values())


async def test_deleting_the_znode_makes_everybody_elect(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        for epoch in range(2, 5):
            await scene.store.client.delete("/controller")
            await scene.until(partial(active_in, scene, epoch))
            active = scene.active.broker_id
            await scene.until(partial(all_follow, scene, active))
            other = scene.brokers[3 - active].controller
            assert (other.context.epoch, other.is_active) == (0, False)


async def test_a_zombie_resigns_when_its_write_is_refused(tmp_path: Path) -> None:
    """It hears nothing from ZooKeeper while another broker is elected, and goes on until it writes."""
    async with playing(tmp_path) as scene, proxy_to(scene) as proxy:
        await scene.start(1, address=proxy.address)
        await scene.start(2)
        await scene.create("t", [1, 2])
        zombie = scene.brokers[1].controller
        proxy.hold_answers()
        await scene.store.client.delete("/controller")
        await scene.until(lambda: scene.brokers[2].controller.is_active)
        assert zombie.is_active
        scene.take()
        request = _alter_isr_request(scene, 1, "t", [1])
        asking = asyncio.ensure_future(zombie.alter_isr(request))
        await scene.until(lambda: zombie.state.name == "ISR_CHANGE")
        await asyncio.sleep(0)
        proxy.release()
        response = await asking
        assert response.error_code == ErrorCode.NOT_CONTROLLER
        await scene.until(lambda: zombie.controller_id == 2 and not zombie.is_active)
        assert zombie.context.all_topics == set()
        assert [s for s in scene.sent if s.sender == 1] == []


def _alter_isr_request(scene: Scene, leader: int, topic: str, isr: list[int]) -> Any:
    request = request_class(ApiKey.ALTER_ISR)
    item = request.TopicData.PartitionData(partition_index=0, leader_epoch=0, new_isr=isr, current_isr_version=0)
    return request(
        broker_id=leader,
        broker_epoch=scene.brokers[leader].epoch,
        topics=[request.TopicData(name=topic, partitions=[item])],
    )


async def test_a_controller_whose_epoch_was_taken_takes_over_anew(tmp_path: Path) -> None:
    """Somebody has raised the epoch, but /controller still names this broker's session: nobody else will do it."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        await scene.store.client.set("/controller_epoch", encode_controller_epoch(10))
        # The next write, of a new topic's state, is refused.
        await scene.create("u", [2, 1])
        assert scene.active.broker_id == 1
        assert scene.controller.context.epoch == 11
        assert scene.controller.context.recount() == (0, 0)
        assert await scene.state("u") == (2, 0, (2, 1))


async def test_a_leftover_of_a_former_session_is_waited_for(tmp_path: Path) -> None:
    """A broker that a session of its former life names in /controller does not act, and does not wait for ever."""
    async with playing(tmp_path) as scene:
        await scene.start(1)
        former = scene.brokers.pop(1)
        await former.controller.shutdown()  # The process is gone, its session lives.
        await scene.store.client.delete("/brokers/ids/1")
        await scene.start(1)
        again = scene.brokers[1].controller
        assert (again.controller_id, again.is_active) == (1, False)
        await former.client.close()
        await scene.until(lambda: again.is_active)
        assert again.context.epoch == 2


async def test_a_znode_of_ones_own_session_is_taken_over(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        broker = scene.brokers[1]
        # As if the process had lost what it knew, but not the session.
        await broker.controller.shutdown()
        del scene.brokers[1]

        other = scene.brokers[1] = FakeBroker(scene, 1, {}, scene.address)
        other.client, other.epoch = broker.client, broker.epoch
        await other.controller.startup(other.store)
        assert other.controller.is_active
        assert other.controller.context.epoch == 2


@pytest.mark.parametrize(
    "content",
    [b'{"version":1,"brokerid":2,"timestamp":"1"}', b'{"version":1,"brokerid":77,"timestamp":"1"}', b"", b"me"],
)
async def test_a_znode_that_somebody_rewrites_ends_the_controllership_and_an_election_follows(
    tmp_path: Path, content: bytes
) -> None:
    """Its session still owns the znode, so no other broker could be elected, and no broker acts as the named one."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        await scene.store.client.set("/controller", content)
        await scene.until(
            lambda: [b.controller.context.epoch for b in scene.brokers.values() if b.controller.is_active] == [2]
        )
        acting = scene.active.broker_id
        await scene.until(lambda: all(b.controller.controller_id == acting for b in scene.brokers.values()))
        node = await scene.store.controller()
        assert node == (acting, scene.brokers[acting].client.session_id)
        await scene.create("u", [1, 2])


async def test_a_rewriting_that_changes_nothing_is_passed_over(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.store.client.set("/controller", b'{"version":1,"brokerid":1,"timestamp":"7"}')
        await scene.until(lambda: scene.processed.count("ControllerChange") >= 2)
        assert (scene.active.broker_id, scene.controller.context.epoch) == (1, 1)


@pytest.mark.parametrize("expiring", [1, 2])
async def test_a_session_that_expires(tmp_path: Path, expiring: int) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        broker = scene.brokers[expiring]
        old_epoch = broker.epoch
        await broker.end_session()
        if expiring == 1:
            # Broker 2 hears of the end of broker 1's session, and is elected before it sees the next one.
            other = scene.brokers[2].controller
            await scene.until(lambda: other.is_active and scene.is_idle(other))
        await broker.renew_session()
        assert broker.epoch > old_epoch
        await scene.until(lambda: [b for b in scene.brokers.values() if b.controller.is_active])
        await scene.until(lambda: scene.knows(broker))
        assert scene.active.broker_id == 3 - expiring
        assert scene.controller.context.epoch == (2 if expiring == 1 else 1)
        assert await scene.state("t") == ((2, 2, (2,)) if expiring == 1 else (1, 1, (1,)))
        assert of(scene.sent, ApiKey.LEADER_AND_ISR, expiring)[-1].broker_epoch == broker.epoch


async def test_events_of_a_session_end_with_it(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        controller = scene.brokers[1].controller
        asking: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(controller.controlled_shutdown(1, -1)),
            asyncio.ensure_future(controller.alter_isr(_alter_isr_request(scene, 1, "t", [1]))),
        ]
        await asyncio.sleep(0)
        controller.session_expired()
        shutdown, alter_isr = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(shutdown, KafkaError)
        assert shutdown.code is ErrorCode.STALE_CONTROLLER_EPOCH
        assert not isinstance(alter_isr, BaseException)
        assert alter_isr.error_code == ErrorCode.NOT_CONTROLLER
        await scene.until(lambda: not controller.is_active)
        assert controller.controller_id == NO_CONTROLLER
        assert scene.channels[1].is_shut_down


async def test_a_session_that_ends_during_the_start_fails_the_start(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)

        other = FakeBroker(scene, 2, {}, scene.address)
        await other.connect()
        await other.client.close()
        with pytest.raises(ClientClosed):
            await other.controller.startup(other.store)
        await other.controller.shutdown()
        third = FakeBroker(scene, 3, {}, scene.address)
        await third.connect()
        starting = asyncio.ensure_future(third.controller.startup(third.store))
        await asyncio.sleep(0)
        await third.die()
        with pytest.raises(SessionExpired):
            await starting


async def test_an_event_that_fails_ends_the_controllership(tmp_path: Path) -> None:
    """Nobody may read a topic: what was begun cannot be finished, by any controller, until somebody may again."""

    async def _epoch_is_over(scene: Scene, epoch: int) -> bool:
        data, _ = await scene.store.client.get("/controller_epoch")
        return int(data) > epoch

    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        client = scene.store.client
        await client.add_auth("digest", b"somebody:else")
        await client.create("/brokers/topics/u", TopicAssignment({0: (1,)}, TOPIC_ID).encode(), acl=CREATOR_ALL_ACL)
        await scene.until(lambda: not any(b.controller.is_active for b in scene.brokers.values()))
        await scene.until(lambda: _epoch_is_over(scene, 2))
        await client.set_acl("/brokers/topics/u", OPEN_ACL)
        await scene.until(lambda: _is_led(scene, "u"))
        assert scene.controller.context.recount() == (0, 0)
        # Half done things are mended: nobody is left with an old controller's view.
        await scene.create("v", [1, 2])


async def _is_led(scene: Scene, topic: str) -> bool:
    return bool(await scene.states((topic, 0)))


@pytest.mark.parametrize("epoch", [b"no number", b"2147483647"])
async def test_nobody_is_elected_while_there_is_no_next_epoch(tmp_path: Path, epoch: bytes) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.store.client.set("/controller_epoch", epoch)
        await scene.store.client.delete("/controller")
        await scene.until(lambda: not any(b.controller.is_active for b in scene.brokers.values()))
        with pytest.raises(ZnodeError, match="/controller_epoch"):
            await scene.start(3)
        await scene.brokers.pop(3).die()
        assert (await scene.store.client.get("/controller_epoch"))[0] == epoch
        await scene.store.client.set("/controller_epoch", b"41")
        await scene.until(lambda: any(b.controller.is_active for b in scene.brokers.values()))
        await scene.until(lambda: scene.is_idle(scene.controller))
        assert scene.controller.context.epoch == 42


async def test_a_fault_of_the_program_reaches_who_stops_the_process(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)

        def broken(message: str) -> None:
            raise RuntimeError(message)

        scene.controller.context.queue_topic_deletion = broken  # type: ignore[assignment]
        await scene.create("t", [1])
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.failures)
        assert isinstance(scene.failures.pop(), RuntimeError)


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_new_topic(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        scene.take()
        await scene.create("t", [1, 2], [3, 1], topic_id=TOPIC_ID)
        assert await scene.states(("t", 0), ("t", 1)) == {
            ("t", 0): LeaderAndIsr(1, 0, (1, 2), 1),
            ("t", 1): LeaderAndIsr(3, 0, (3, 1), 1),
        }
        sent = scene.take()
        assert summary(sent) == [
            (1, "LeaderAndIsr", [("t", 0, 1, 0), ("t", 1, 3, 0)]),
            (2, "LeaderAndIsr", [("t", 0, 1, 0)]),
            (3, "LeaderAndIsr", [("t", 1, 3, 0)]),
            (1, "UpdateMetadata", [("t", 0, 1, 0), ("t", 1, 3, 0)]),
            (2, "UpdateMetadata", [("t", 0, 1, 0), ("t", 1, 3, 0)]),
            (3, "UpdateMetadata", [("t", 0, 1, 0), ("t", 1, 3, 0)]),
        ]
        assert all(
            state.is_new
            for r in of(sent, ApiKey.LEADER_AND_ISR)
            for topic in r.topic_states
            for state in topic.partition_states
        )
        assert {topic.topic_id for r in of(sent, ApiKey.LEADER_AND_ISR) for topic in r.topic_states} == {TOPIC_ID}


async def test_a_topic_without_an_id_gets_one(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.store.client.create("/brokers/topics/t", TopicAssignment({0: (1,)}).encode())
        await scene.until(lambda: _is_led(scene, "t"))
        assignment = await scene.store.topic_assignment("t")
        assert assignment is not None
        assert assignment.topic_id == scene.controller.context.topic_ids["t"]


async def test_partitions_are_added(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        scene.take()
        await scene.store.add_partitions("t", {1: [2, 1], 2: [1]})
        await scene.until(lambda: ("t", 2) in scene.controller.context.partitions_leadership_info)
        await scene.settled()
        assert await scene.state("t", 1) == (2, 0, (2, 1))
        assert await scene.state("t", 2) == (1, 0, (1,))
        assert summary(scene.take())[:2] == [
            (1, "LeaderAndIsr", [("t", 1, 2, 0), ("t", 2, 1, 0)]),
            (2, "LeaderAndIsr", [("t", 1, 2, 0)]),
        ]


async def test_a_topic_without_live_replicas_gets_a_leader_when_one_starts(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.store.create_topic("t", {0: [2, 3]}, TOPIC_ID, {})
        await scene.until(lambda: "t" in scene.controller.context.all_topics)
        await scene.settled()
        assert await scene.states(("t", 0)) == {}
        await scene.start(3)
        assert await scene.state("t") == (3, 0, (3,))


BAD_NAMES = ["no spaces", "ü", "t" * 250]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_znodes_that_nobody_understands_concern_nobody_else(tmp_path: Path, when: str) -> None:
    async def spoil(scene: Scene) -> None:
        client = scene.store.client
        for name in BAD_NAMES:
            await client.create(f"/brokers/topics/{name}", TopicAssignment({0: (1,)}).encode())
        await client.create("/brokers/topics/garbage", b"}{")
        await client.create("/brokers/topics/no-replicas", TopicAssignment({0: ()}, UUID(int=2)).encode())
        await client.create("/brokers/topics/copied", TopicAssignment({0: (1,)}, TOPIC_ID).encode())
        await client.create("/brokers/ids/x", b"")
        await client.create("/brokers/ids/77", b"{}")
        await client.create("/isr_change_notification/isr_change_0000000000", b"?")
        await client.create("/log_dir_event_notification/log_dir_event_0000000000", b"?")
        await client.create("/admin/delete_topics/nothing", b"")

    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.create("t", [1], topic_id=TOPIC_ID)
        if when == "before":
            await scene.brokers.pop(1).die()
            await scene.store.client.set("/brokers/topics/t/partitions/0/state", b"[]")
        await spoil(scene)
        if when == "before":
            await scene.start(1)
        await scene.create("good", [1])
        await scene.settled()
        context = scene.controller.context
        assert scene.controller.context.epoch == (2 if when == "before" else 1)
        assert context.all_topics == {"t", "good", "garbage", "no-replicas", "copied"}
        assert [*context.live_broker_ids] == [1]
        assert await scene.store.client.children("/admin/delete_topics") == []
        assert await scene.store.client.children("/isr_change_notification") == []
        data, _ = await scene.store.client.get("/brokers/topics/t/partitions/0/state")
        assert (data == b"[]") == (when == "before")


async def test_a_topic_that_was_unreadable_goes_on_where_it_was(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2], topic_id=TOPIC_ID)
        good, _ = await scene.store.client.get("/brokers/topics/t")
        await scene.store.client.set("/brokers/topics/t", b"garbage")
        await scene.kill(1)
        await scene.until(lambda: scene.brokers[2].controller.is_active)
        await scene.settled()
        assert scene.controller.context.partitions_for_topic("t") == []
        await scene.store.client.set("/brokers/topics/t", good)
        await scene.until(lambda: ("t", 0) in scene.controller.context.partitions_leadership_info)
        await scene.settled()
        leader, epoch, isr = await scene.state("t")
        assert (leader, isr) == (2, (2,))
        assert epoch > 0


# -- deletion ---------------------------------------------------------------------------------------------------------


async def gone(scene: Scene, topic: str) -> bool:
    marks = await scene.store.topic_deletions()
    return topic not in await scene.store.topic_names() and topic not in marks


async def test_a_topic_is_deleted(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        scene.take()
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: gone(scene, "t"))
        await scene.settled()
        sent = scene.take()
        # Clients are told first, then the replicas stop, then they are deleted.
        assert summary(sent)[:2] == [(1, "UpdateMetadata", [("t", 0, -2, 0)]), (2, "UpdateMetadata", [("t", 0, -2, 0)])]
        stops = [entry for entry in summary(sent) if entry[1] == "StopReplica"]
        assert stops == [
            (1, "StopReplica", [("t", 0, False)]),
            (2, "StopReplica", [("t", 0, False)]),
            (1, "StopReplica", [("t", 0, True)]),
            (2, "StopReplica", [("t", 0, True)]),
        ]
        assert await scene.store.client.exists("/config/topics/t") is None
        assert scene.controller.context.all_topics == {"u"}
        assert scene.controller.context.recount() == (0, 0)
        await scene.create("t", [2, 1])
        assert await scene.state("t") == (2, 0, (2, 1))


async def test_deletion_waits_for_a_dead_broker(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2], [2, 1])
        await scene.kill(2)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.topics_ineligible_for_deletion == {"t"})
        await scene.settled()
        assert "t" in await scene.store.topic_names()
        # Another start of the controller does not forget it.
        await scene.brokers.pop(1).die()
        await scene.start(1)
        assert scene.controller.context.topics_to_be_deleted == {"t"}
        scene.take()
        await scene.start(2)
        await scene.until(lambda: gone(scene, "t"))
        assert any(r for r in of(scene.take(), ApiKey.STOP_REPLICA, 2))


async def test_a_broker_that_dies_during_a_deletion(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        scene.silent = {2}
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: [s for s in summary(scene.sent) if s == (2, "StopReplica", [("t", 0, True)])])
        await scene.settled()
        await scene.kill(2)
        scene.release()  # An answer of a former life.
        await scene.settled()
        assert "t" in await scene.store.topic_names()
        await scene.start(2)
        await scene.until(lambda: gone(scene, "t"))


async def test_a_broker_that_comes_during_a_deletion_hears_of_it(tmp_path: Path) -> None:
    """It may know the topic from before, and still find it in ZooKeeper, and nobody tells it later."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2])
        await scene.create("u", [1, 2])
        await scene.kill(3)
        scene.silent = {2}
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: [s for s in summary(scene.sent) if s == (2, "StopReplica", [("t", 0, True)])])
        scene.take()
        await scene.start(3)
        await scene.settled()
        told = [entry for entry in summary(scene.take()) if entry[:2] == (3, "UpdateMetadata")]
        assert told[0] == (3, "UpdateMetadata", [("u", 0, 1, 0), ("t", 0, -2, 0)])
        scene.release()
        await scene.until(lambda: gone(scene, "t"))


async def test_a_controller_that_finds_the_states_deleted_still_tells_all_brokers(tmp_path: Path) -> None:
    """The former controller died between the two transactions of a deletion, and before a broker had heard of it."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2])
        scene.silent = {2}
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: [s for s in summary(scene.sent) if s == (2, "StopReplica", [("t", 0, True)])])
        state = "/brokers/topics/t/partitions/0/state"
        for path in (state, state.rpartition("/")[0], "/brokers/topics/t/partitions"):
            await scene.store.client.delete(path)
        scene.silent = set()
        scene.take()
        await scene.store.client.delete("/controller")
        await scene.until(lambda: gone(scene, "t"))
        told = [entry for entry in summary(scene.take()) if entry[:2] == (3, "UpdateMetadata")]
        assert (3, "UpdateMetadata", [("t", 0, -2, 0)]) in told


async def test_a_replica_that_cannot_be_deleted(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        scene.undeletable = {(("t", 0), 2)}
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.topics_ineligible_for_deletion == {"t"})
        await scene.settled()
        scene.undeletable = set()
        await scene.kill(2)
        await scene.start(2)
        await scene.until(lambda: gone(scene, "t"))


async def test_the_controller_dies_during_a_deletion(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        scene.silent = {3}
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: [s for s in summary(scene.sent) if s == (3, "StopReplica", [("t", 0, True)])])
        await scene.kill(1)
        scene.release()
        await scene.until(lambda: gone(scene, "t"))


async def test_partitions_are_not_added_to_a_topic_in_deletion(tmp_path: Path) -> None:

    async def _partitions(scene: Scene, expected: list[int]) -> bool:
        assignment = await scene.store.topic_assignment("t")
        return assignment is not None and list(assignment.partitions) == expected

    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        await scene.kill(2)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.topics_ineligible_for_deletion == {"t"})
        await scene.store.add_partitions("t", {1: [1]})
        await scene.until(lambda: _partitions(scene, [0]))
        await scene.start(2)
        await scene.until(lambda: gone(scene, "t"))


async def test_deletion_can_be_forbidden(tmp_path: Path) -> None:

    async def _unmarked(scene: Scene) -> bool:
        return await scene.store.topic_deletions() == []

    async with playing(tmp_path) as scene:
        await scene.start(1, delete_topic_enable="false")
        await scene.create("t", [1])
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: _unmarked(scene))
        await scene.settled()
        await scene.brokers.pop(1).die()
        await scene.store.mark_topic_for_deletion("t")
        await scene.start(1, delete_topic_enable="false")
        assert await _unmarked(scene)
        assert await scene.store.topic_names() == ["t"]


# -- brokers ----------------------------------------------------------------------------------------------------------


async def test_a_broker_dies_and_comes_back(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("led", [2, 3, 1])
        await scene.create("followed", [3, 2, 1])
        await scene.create("alone", [2])
        scene.take()
        await scene.kill(2)
        assert await scene.state("led") == (3, 1, (3, 1))
        assert await scene.state("followed") == (3, 1, (3, 1))
        # The last member of the ISR stays in it, without a leader.
        assert await scene.state("alone") == (-1, 1, (2,))
        assert scene.controller.context.offline_partition_count == 1
        assert of(scene.sent, ApiKey.LEADER_AND_ISR, 2) == []
        scene.take()
        await scene.start(2)
        assert await scene.state("alone") == (2, 2, (2,))
        assert await scene.state("led") == (3, 1, (3, 1))
        assert scene.controller.context.offline_partition_count == 0
        sent = scene.take()
        # The newcomer gets everything, the others learn that it is there.
        assert sorted(summary(sent)[2][2]) == [("alone", 0, -1, 1), ("followed", 0, 3, 1), ("led", 0, 3, 1)]
        assert summary(sent)[:2] == [(1, "UpdateMetadata", []), (3, "UpdateMetadata", [])]
        first = of(sent, ApiKey.LEADER_AND_ISR, 2)[0]
        assert sorted(topic.topic_name for topic in first.topic_states) == ["alone", "followed", "led"]


async def test_everybody_hears_of_a_death_that_changes_no_leader(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("alone", [2])
        await scene.kill(2)
        scene.take()
        # One partition has no leader, and does not get one: that does not hide the death of a broker.
        await scene.kill(3)
        [request] = of(scene.take(), ApiKey.UPDATE_METADATA)
        assert [broker.id for broker in request.live_brokers] == [1]


async def test_a_bounce_is_a_death_first(tmp_path: Path) -> None:
    """The broker registers anew faster than the controller looks."""
    async with playing(tmp_path) as scene, proxy_to(scene) as proxy:
        await scene.start(1, address=proxy.address)
        await scene.start(2)
        await scene.create("t", [2, 1])
        first = scene.brokers[2].epoch
        channel = scene.channels[1].brokers[2]
        proxy.hold_answers()
        await scene.brokers.pop(2).die()

        again = scene.brokers[2] = FakeBroker(scene, 2, {}, scene.address)
        await again.connect()
        await again.register()
        starting = asyncio.ensure_future(again.controller.startup(again.store))
        proxy.release()
        await starting
        await scene.until(lambda: scene.knows(again))
        assert again.epoch > first
        assert scene.channels[1].brokers[2] is not channel
        leader, epoch, isr = await scene.state("t")
        assert (leader, isr) == (1, (1,))
        assert epoch > 0
        assert of(scene.sent, ApiKey.LEADER_AND_ISR, 2)[-1].broker_epoch == again.epoch


async def test_a_broker_changes_its_listeners(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        scene.take()
        for port in (9102, 9202):
            scene.brokers[2].port = port
            await scene.store.update_broker(scene.brokers[2].registration)
            await scene.until(lambda: len(of(scene.sent, ApiKey.UPDATE_METADATA)) == 2)
            for request in of(scene.take(), ApiKey.UPDATE_METADATA):
                assert [broker.endpoints[0].port for broker in request.live_brokers] == [9001, port]
            # Its channel leads there from now on.
            assert scene.channels[1].moved[-1] == scene.brokers[2].registration


async def test_a_failed_log_directory(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2, 1])
        await scene.create("u", [2, 1])
        scene.offline = {(("t", 0), 2)}
        await scene.store.report_log_dir_failure(2)
        await scene.until(lambda: scene.controller.context.replicas_on_offline_dirs)
        await scene.settled()
        assert await scene.state("t") == (1, 1, (1,))
        assert await scene.state("u") == (2, 0, (2, 1))
        assert scene.controller.context.replicas_on_offline_dirs == {2: {("t", 0)}}
        assert await scene.store.client.children("/log_dir_event_notification") == []
        last = of(scene.take(), ApiKey.UPDATE_METADATA, 1)[-1]
        assert last.topic_states[0].partition_states[0].offline_replicas == (2,)
        # The broker starts with a disk that works.
        scene.offline = set()
        await scene.kill(2)
        await scene.start(2)
        assert scene.controller.context.replicas_on_offline_dirs == {}


def former_senders(scene: Scene, broker_id: int) -> list[ControllerRequestSender]:
    """The receivers of requests to a former process of this broker, and from a former controller."""
    context = scene.controller.context
    broker_epoch = context.live_or_shutting_down_brokers[broker_id].epoch
    return [
        ControllerRequestSender(broker_id, broker_epoch - 1, context.epoch),
        ControllerRequestSender(broker_id, broker_epoch, context.epoch - 1),
    ]


async def test_what_a_former_process_says_of_its_disks_counts_for_nothing(tmp_path: Path) -> None:
    """Its answer waits in the queue of events while the broker starts anew."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2, 1])
        failed = LeaderAndIsrResponse(
            0, [LeaderAndIsrTopicError("t", None, [LeaderAndIsrPartitionError(0, ErrorCode.KAFKA_STORAGE_ERROR)])]
        )
        for sender in former_senders(scene, 2):
            scene.controller.event_manager.put(LeaderAndIsrResponseReceived(sender, failed))
        await scene.settled()
        assert scene.controller.context.replicas_on_offline_dirs == {}
        assert await scene.state("t") == (2, 0, (2, 1))


async def test_what_a_former_process_says_of_a_deletion_counts_for_nothing(tmp_path: Path) -> None:
    """The topic is gone when the present process has deleted its replica."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2])
        scene.silent = {2}
        scene.take()
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(
            lambda: any(sent.body.topic_states[0].partition_states[0].delete_partition for sent in stops_of(scene, 2))
        )
        asked = next(
            sent.body for sent in stops_of(scene, 2) if sent.body.topic_states[0].partition_states[0].delete_partition
        )
        deleted = StopReplicaResponse(0, [StopReplicaPartitionError("t", 0, ErrorCode.NONE)])
        for sender in former_senders(scene, 2):
            event = TopicDeletionStopReplicaResponseReceived(sender, deleted, asked.topic_states)
            scene.controller.event_manager.put(event)
        await scene.until(lambda: scene.is_idle(scene.controller))
        assert await scene.store.topic_names() == ["t"]
        scene.release()
        await scene.settled()
        assert await scene.store.topic_names() == []


def stops_of(scene: Scene, broker_id: int) -> list[Sent]:
    return [sent for sent in scene.sent if sent.api_key is ApiKey.STOP_REPLICA and sent.receiver == broker_id]


# A broker whose first answer was lost hears the same once more, and says that it knows.
@pytest.mark.parametrize("online_code", [ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH])
async def test_a_log_directory_that_works_again(tmp_path: Path, online_code: ErrorCode) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2])
        scene.offline = {(("t", 0), 2)}
        await scene.store.report_log_dir_failure(2)
        await scene.until(lambda: scene.controller.context.replicas_on_offline_dirs)
        await scene.settled()
        assert await scene.state("t") == (-1, 1, (2,))
        scene.offline, scene.online_code = set(), online_code
        await scene.store.report_log_dir_failure(2)
        await scene.until(lambda: not scene.controller.context.replicas_on_offline_dirs)
        await scene.settled()
        assert await scene.state("t") == (2, 2, (2,))


async def test_a_log_directory_that_works_again_lets_the_deletion_of_a_topic_go_on(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2])
        scene.offline = scene.undeletable = {(("t", 0), 2)}
        await scene.store.report_log_dir_failure(2)
        await scene.until(lambda: scene.controller.context.replicas_on_offline_dirs)
        await scene.store.mark_topic_for_deletion("t")
        await scene.until(lambda: scene.controller.context.topics_ineligible_for_deletion)
        # Another directory fails, or works again.
        await scene.store.report_log_dir_failure(2)
        await scene.settled()
        assert not await gone(scene, "t")
        scene.offline = scene.undeletable = set()
        await scene.store.report_log_dir_failure(2)
        await scene.until(lambda: gone(scene, "t"))


# -- controlled shutdown ----------------------------------------------------------------------------------------------


async def test_controlled_shutdown(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("led", [2, 3, 1])
        await scene.create("followed", [3, 2])
        await scene.create("alone", [2])
        scene.take()
        assert await scene.controller.controlled_shutdown(2, scene.brokers[2].epoch) == []
        assert await scene.state("led") == (3, 1, (3, 1))
        assert await scene.state("followed") == (3, 1, (3,))
        assert await scene.state("alone") == (2, 0, (2,))
        assert (2, "StopReplica", [("followed", 0, False)]) in summary(scene.take())
        # It gets no new leadership, and is alive for requests.
        await scene.create("new", [2, 1])
        assert await scene.state("new") == (1, 0, (1,))
        assert [*scene.controller.context.live_or_shutting_down_broker_ids] == [1, 2, 3]
        await scene.kill(2)
        assert set(scene.controller.context.shutting_down_broker_ids) == set()


async def test_controlled_shutdown_that_cannot_move_everything(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await scene.kill(3)
        assert await scene.state("t") == (2, 1, (2,))
        assert await scene.controller.controlled_shutdown(2, -1) == [("t", 0)]


async def test_controlled_shutdown_errors(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        epoch = scene.brokers[2].epoch
        for controller, broker_id, broker_epoch, code in (
            (scene.controller, 2, epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
            (scene.controller, 9, -1, ErrorCode.BROKER_NOT_AVAILABLE),
            (scene.controller, 9, 5, ErrorCode.BROKER_NOT_AVAILABLE),
            (scene.brokers[2].controller, 2, epoch, ErrorCode.STALE_CONTROLLER_EPOCH),
        ):
            with pytest.raises(KafkaError) as caught:
                await controller.controlled_shutdown(broker_id, broker_epoch)
            assert caught.value.code is code
        assert set(scene.controller.context.shutting_down_broker_ids) == set()


# -- ISR changes ------------------------------------------------------------------------------------------------------


async def test_alter_isr(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3, 1])
        scene.take()
        error, [item] = await scene.alter_isr("t", [2, 3])
        assert (error, item.error_code, item.leader_id, item.leader_epoch) == (0, 0, 2, 0)
        assert (item.isr, item.current_isr_version) == ([2, 3], 1)
        assert await scene.state("t") == (2, 0, (2, 3))
        assert summary(scene.take()) == [(n, "UpdateMetadata", [("t", 0, 2, 0)]) for n in (1, 2, 3)]
        # Again: nothing is written, the answer is the same, and there is nothing to tell.
        error, [item] = await scene.alter_isr("t", [2, 3])
        assert (item.error_code, item.isr, item.current_isr_version) == (0, [2, 3], 1)
        assert scene.take() == []
        error, [item] = await scene.alter_isr("t", [2, 3, 1])
        assert (item.error_code, item.isr, item.current_isr_version) == (0, [2, 3, 1], 2)


async def test_alter_isr_errors(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3, 1])
        await scene.kill(3)
        assert await scene.state("t") == (2, 1, (2, 1))
        broker_epoch = scene.brokers[2].epoch
        for fields, error in (
            ({"broker_epoch": broker_epoch - 1}, ErrorCode.STALE_BROKER_EPOCH),
            ({"broker_epoch": broker_epoch + 1}, ErrorCode.STALE_BROKER_EPOCH),
            ({"sender": 8}, ErrorCode.STALE_BROKER_EPOCH),
        ):
            assert await scene.alter_isr("t", [2], **fields) == (error, [])
        for fields, isr, error in (
            ({"leader_epoch": 0}, [2], ErrorCode.FENCED_LEADER_EPOCH),
            ({"leader_epoch": 2}, [2], ErrorCode.FENCED_LEADER_EPOCH),
            ({"sender": 1}, [2], ErrorCode.FENCED_LEADER_EPOCH),
            ({"version": 0}, [2], ErrorCode.INVALID_UPDATE_VERSION),
            ({"partition": 5}, [2], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({}, [1], ErrorCode.INVALID_REQUEST),
        ):
            top, [item] = await scene.alter_isr("t", isr, **fields)
            assert (top, item.error_code) == (ErrorCode.NONE, error), fields
        assert await scene.state("t") == (2, 1, (2, 1))
        other = scene.brokers[2].controller
        response = await other.alter_isr(_alter_isr_request(scene, 2, "t", [2]))
        assert response.error_code == ErrorCode.NOT_CONTROLLER


async def test_nobody_joins_the_isr_who_is_not_there(tmp_path: Path) -> None:
    """Dead, or shutting down: the leader's news are old. It gets the present ISR, and continues."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2, 3])
        await scene.kill(3)
        await scene.controller.controlled_shutdown(2, -1)
        assert await scene.state("t") == (1, 2, (1,))
        for isr in ([1, 3], [1, 2], [1, 2, 3]):
            error, [item] = await scene.alter_isr("t", isr)
            assert (error, item.error_code, item.isr) == (0, 0, [1])
        assert await scene.state("t") == (1, 2, (1,))


async def test_leaders_of_older_brokers_change_the_isr_themselves(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2, 1])
        scene.take()
        [(partition, state)] = (await scene.states(("t", 0))).items()
        changed = LeaderAndIsr(2, 0, (2,), 1, state.zk_version)
        await scene.store.update_partition_states({partition: changed}, None)
        for content in ([("t", 0)], [("unknown", 0)]):
            await scene.store.client.create(
                requests.ISR_CHANGE_PREFIX, requests.encode_partitions(content), sequential=True
            )
        await scene.until(lambda: _no_notifications(scene))
        await scene.settled()
        assert scene.controller.context.partition_leadership_info(("t", 0)) == changed
        states = [
            topic.partition_states[0] for r in of(scene.sent, ApiKey.UPDATE_METADATA, 1) for topic in r.topic_states
        ]
        assert states[0].isr == (2,)


async def test_an_isr_that_a_leader_has_changed_and_changed_back_has_a_new_version(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [2, 1])
        [(partition, state)] = (await scene.states(("t", 0))).items()
        for version, isr in enumerate(((2,), state.isr), state.zk_version):
            changed = LeaderAndIsr(2, state.leader_epoch, isr, 1, version)
            await scene.store.update_partition_states({partition: changed}, None)
        await scene.store.propagate_isr_changes([partition])
        await scene.until(lambda: _no_notifications(scene))
        await scene.settled()
        known = scene.controller.context.partition_leadership_info(("t", 0))
        assert (known, known and known.zk_version) == (state, state.zk_version + 2)


async def test_a_dead_replica_that_a_leader_has_taken_in_by_itself_is_taken_out(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2, 3])
        await scene.kill(3)
        [(partition, state)] = (await scene.states(("t", 0))).items()
        changed = LeaderAndIsr(1, state.leader_epoch, (1, 2, 3), 1, state.zk_version)
        assert await scene.store.update_leader_and_isr({partition: changed}) == {partition: state.zk_version + 1}
        await scene.store.propagate_isr_changes([partition])
        await scene.until(lambda: _no_notifications(scene))
        await scene.settled()
        assert await scene.state("t") == (1, state.leader_epoch + 1, (1, 2))
        changes = [each for each in scene.controller.state_changes.changes() if each.event == "IsrChangeNotification"]
        assert [each.leadership.isr for each in changes if each.leadership is not None] == [(1, 2, 3), (1, 2)]


async def _no_notifications(scene: Scene) -> bool:
    return await scene.store.client.children("/isr_change_notification") == []
