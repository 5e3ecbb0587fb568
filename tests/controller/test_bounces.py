"""Brokers that come back while nobody looks: the controller that takes over tells it from their registrations."""

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.states import PartitionState
from klamm.protocol.api_keys import ApiKey
from klamm.znodes.brokers import broker_path
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import BadVersion, ConnectionLoss
from klamm.zookeeper.messages import OPEN_ACL, Create, CreateMode, Delete
from support.controller import state_machines
from support.controller.scene import FakeBroker, Scene, playing
from support.controller.state_machines import PARTITION, live_broker
from support.zookeeper.proxy import Proxy


def has_expired(broker: FakeBroker) -> bool:
    return broker.client.state.name == "EXPIRED"


async def bounce_unseen(scene: Scene, *broker_ids: int) -> None:
    """The sessions of these brokers end, and they register anew, before a new controller is elected."""
    active = scene.active
    await active.controller.shutdown()
    for broker_id in broker_ids:
        broker = scene.brokers[broker_id]
        await broker.end_session()
        await scene.until(partial(has_expired, broker))
    for broker_id in broker_ids:
        broker = scene.brokers[broker_id]
        broker.controller.session_expired()
        await broker.connect()
        await broker.register()
    for broker_id in broker_ids:
        if broker_id != active.broker_id:
            await scene.brokers[broker_id].controller.rejoin(scene.brokers[broker_id].store)
    await elect_again(scene)


async def elect_again(scene: Scene) -> None:
    controllers = [broker.controller for broker in scene.brokers.values()]
    former = max(controller.context.epoch for controller in controllers)
    await scene.store.client.delete("/controller")
    await scene.until(lambda: any(each.is_active and each.context.epoch > former for each in controllers))
    await scene.until(lambda: scene.is_idle(scene.controller))


@pytest.mark.parametrize(
    ("bounced", "decided"),
    [
        # The leader, a follower, both.
        ((2,), (3, 1, (3, 4))),
        ((3,), (2, 1, (2, 4))),
        ((2, 3), (4, 1, (4,))),
        # All: the leader stays.
        ((2, 3, 4), (2, 1, (2,))),
        # One without a replica.
        ((5,), (2, 0, (2, 3, 4))),
    ],
)
async def test_who_has_bounced_leaves_the_isr_before_anybody_is_told(
    tmp_path: Path, bounced: Collection[int], decided: tuple[int, int, tuple[int, ...]]
) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3, 4, 5)
        await scene.create("t", [2, 3, 4])
        scene.take()
        await bounce_unseen(scene, *bounced)
        assert await scene.state("t") == decided
        told = {
            (state.leader, state.leader_epoch, state.isr)
            for sent in scene.take()
            if sent.api_key is ApiKey.LEADER_AND_ISR
            for topic in sent.body.topic_states
            for state in topic.partition_states
        }
        assert told == {decided}


async def test_the_next_controllers_take_nobody_out_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await scene.create("alone", [2])
        await bounce_unseen(scene, 2)
        assert await scene.state("t") == (3, 1, (3,))
        assert await scene.state("alone") == (2, 1, (2,))
        for _ in range(3):
            await elect_again(scene)
        assert await scene.state("t") == (3, 1, (3,))
        assert await scene.state("alone") == (2, 1, (2,))
        await scene.alter_isr("t", (3, 2))
        for _ in range(3):
            await elect_again(scene)
        assert await scene.state("t") == (3, 1, (3, 2))


async def test_a_proposal_from_before_the_bounce_is_refused_after_it(tmp_path: Path) -> None:
    """Broker 3 is out of the ISR when it bounces. Its leader has asked to take it in, and asks the next controller."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await scene.alter_isr("t", (2,))
        before = (await scene.states(("t", 0)))["t", 0]
        await bounce_unseen(scene, 3)
        assert await scene.state("t") == (2, 1, (2,))
        await scene.alter_isr("t", (2, 3), leader_epoch=before.leader_epoch, version=before.zk_version)
        assert await scene.state("t") == (2, 1, (2,))


# -- the event in progress --------------------------------------------------------------------------------------------


async def register(scene: state_machines.Scene, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        path = broker_path(broker_id)
        await scene.store.client.create(path, live_broker(broker_id).registration.encode(), ephemeral=True)


async def state_in(scene: state_machines.Scene) -> tuple[int, int, tuple[int, ...]]:
    state = (await scene.store.partition_states([PARTITION]))[PARTITION]
    assert isinstance(state, LeaderAndIsr)
    return state.leader, state.leader_epoch, state.isr


async def test_a_state_is_not_written_before_the_decision_about_an_unseen_bounce(tmp_path: Path) -> None:
    """Broker 1 should lead again, and has bounced while the election was under way."""
    async with state_machines.playing(tmp_path) as scene:
        await scene.led(PARTITION, 2, 1, 2, 3)
        scene.context.put_partition_state(PARTITION, PartitionState.ONLINE)
        await register(scene, 1)
        scene.state_writer.brokers_may_have_changed = True
        outcomes = await scene.partitions.handle_state_changes(
            [PARTITION], PartitionState.ONLINE, ElectionStrategy.PREFERRED_REPLICA
        )
        assert "no replica can be elected" in str(outcomes[PARTITION])
        assert await state_in(scene) == (2, 11, (2, 3))


async def test_a_state_that_is_younger_than_every_registration_is_written_at_once(tmp_path: Path) -> None:
    async with state_machines.playing(tmp_path) as scene:
        await register(scene, 1, 2, 3)
        state = await scene.led(PARTITION, 1, 1, 2, 3)
        scene.state_writer.brokers_may_have_changed = True
        assert await scene.state_writer.write({PARTITION: state}) == {PARTITION: 1}


async def test_a_write_whose_connection_is_lost_is_not_repeated_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker registers while the controller cannot reach ZooKeeper, and the controller learns it when it can."""
    async with state_machines.playing(tmp_path) as scene:
        state = await scene.led(PARTITION, 1, 1, 2, 3)
        multi = scene.store.client.multi

        async def lose_first(*arguments: object) -> object:
            monkeypatch.setattr(scene.store.client, "multi", multi)
            await register(scene, 3)
            scene.state_writer.brokers_may_have_changed = True
            raise ConnectionLoss

        monkeypatch.setattr(scene.store.client, "multi", lose_first)
        [result] = (await scene.state_writer.write({PARTITION: state})).values()
        assert isinstance(result, BadVersion)
        assert await state_in(scene) == (1, 11, (1, 2))


async def test_a_broker_that_bounces_after_the_controller_has_read_the_brokers_is_decided_about_too(
    tmp_path: Path,
) -> None:
    """A controller that takes over finds that 1 has bounced; before it writes this, 2 bounces."""
    async with state_machines.playing(tmp_path) as scene:
        await scene.led(PARTITION, 1, 1, 2, 3)
        await register(scene, 1, 2)
        scene.state_writer.brokers_may_have_changed = True
        await scene.state_writer.decide({PARTITION: [1]})
        assert await state_in(scene) == (3, 11, (3,))


async def test_a_write_that_waits_for_a_connection_is_not_sent_before_the_decision(tmp_path: Path) -> None:
    async with state_machines.playing(tmp_path) as scene:
        state = await scene.led(PARTITION, 1, 1, 2, 3)
        own = scene.store
        async with Proxy("127.0.0.1", own.client._servers[0][1]) as proxy:
            client = ZooKeeperClient(SystemEnvironment(), proxy.address, session_timeout_ms=10_000)
            await client.start(60_000)
            scene.store = ControllerStore(client)

            def on_brokers() -> None:
                scene.state_writer.brokers_may_have_changed = True

            await scene.store.live_brokers(on_brokers)
            left = asyncio.Event()
            client.add_listener(lambda state: left.set() if state is State.DISCONNECTED else None)
            proxy.refusing = True
            proxy.cut()
            await left.wait()
            writing = asyncio.ensure_future(scene.state_writer.write({PARTITION: state}))
            await asyncio.sleep(0)  # It begins, and cannot go on.
            await own.client.create(broker_path(3), live_broker(3).registration.encode(), ephemeral=True)
            proxy.refusing = False
            [result] = (await writing).values()
            scene.store = own
            await client.close()
        assert isinstance(result, BadVersion)
        assert await state_in(scene) == (1, 11, (1, 2))


async def test_brokers_learn_what_was_decided_because_a_dead_broker_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while an AlterIsr is written; broker 4, dead before, registers meanwhile."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3, 4)
        await scene.create("t", [2, 3, 4])
        await scene.kill(4)
        client = scene.active.client
        multi = client.multi

        async def lose_first(*_: object) -> object:
            monkeypatch.setattr(client, "multi", multi)
            other = scene.brokers[4] = FakeBroker(scene, 4, {}, scene.address)
            await other.connect()
            await other.register()
            raise ConnectionLoss

        monkeypatch.setattr(client, "multi", lose_first)
        scene.take()
        await scene.alter_isr("t", (2,))
        await scene.settled()
        _, epoch, _ = await scene.state("t")
        told = {
            sent.receiver
            for sent in scene.take()
            if sent.api_key is ApiKey.LEADER_AND_ISR
            for topic in sent.body.topic_states
            for state in topic.partition_states
            if state.leader_epoch == epoch
        }
        assert {2, 3} <= told


async def test_a_leader_that_wants_to_stop_stays_in_the_isr(tmp_path: Path) -> None:
    """Alone in the ISR, it could not be elected away. Then a follower joins and bounces."""
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [2, 3])
        await scene.alter_isr("t", (2,))
        await scene.controller.controlled_shutdown(2, scene.brokers[2].epoch)
        await scene.alter_isr("t", (2, 3))
        path, registration = broker_path(3), scene.brokers[3].registration.encode()
        await scene.store.client.multi([Delete(path), Create(path, registration, OPEN_ACL, CreateMode.EPHEMERAL)])
        await scene.settled()
        leader, _, isr = await scene.state("t")
        assert (leader, isr) == (2, (2,))
