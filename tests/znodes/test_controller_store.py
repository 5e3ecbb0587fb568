"""The controller's store against the embedded server, also when the connection is lost after any of its requests."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from klamm.znodes import requests
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.cluster import (
    Controller,
    Features,
    FeatureStatus,
    FinalizedVersions,
    encode_controller_epoch,
)
from klamm.znodes.controller_store import NO_CONTROLLER, ControllerEpoch, ControllerNode, ControllerStore
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, is_legal_topic_name
from klamm.zookeeper.messages import Delete, MultiOperation, MultiResult
from support.zookeeper.stores import playing, playing_with_losses, with_losses


class Told:
    """Counts the calls of a watch."""

    def __init__(self) -> None:
        self.arguments: list[tuple[int | str, ...]] = []
        self._called = asyncio.Event()

    def __call__(self, *arguments: int | str) -> None:
        self.arguments.append(arguments)
        self._called.set()

    async def wait(self) -> None:
        async with asyncio.timeout(120):
            await self._called.wait()
        self._called.clear()


def controller_store(store: KafkaZooKeeper) -> ControllerStore:
    return ControllerStore(store.client)


async def elected(store: ControllerStore, broker_id: int = 1) -> int:
    """Makes the store's session the controller; returns the guard of its writes."""
    return (await store.register_controller_and_increment_epoch(broker_id, 5)).zk_version


async def another_elected(store: ControllerStore) -> None:
    await store.client.delete("/controller")
    await elected(store, 2)


# -- election ---------------------------------------------------------------------------------------------------------


async def test_the_first_election(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        assert await store.controller() is None
        assert await store.register_controller_and_increment_epoch(7, 1_795_233_549_038) == (1, 1)
        assert await store.controller() == (7, store.client.session_id)
        data, stat = await store.client.get("/controller")
        assert Controller.decode(data) == Controller(7, 1_795_233_549_038)
        assert stat.ephemeral_owner == store.client.session_id
        assert (await store.client.get("/controller_epoch"))[0] == b"1"


async def test_only_one_can_be_elected(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, plain), scene.client() as other:
        stores = [controller_store(plain), ControllerStore(other)]
        for epoch in range(1, 6):
            results = await asyncio.gather(
                *(s.register_controller_and_increment_epoch(n, 0) for n, s in enumerate(stores)),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, ControllerEpoch)]
            assert won == [(epoch, epoch)]
            assert any(isinstance(result, ControllerMoved) for result in results)
            await plain.client.delete("/controller")


async def test_a_session_takes_its_own_place_anew(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        await elected(store)
        before = await store.client.exists("/controller")
        assert await store.register_controller_and_increment_epoch(1, 0) == (2, 2)
        after = await store.client.exists("/controller")
        assert before is not None and after is not None
        assert after.czxid > before.czxid


async def test_an_election_whose_answer_is_lost(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, plain, other):
        store = controller_store(plain)

        async def attempt(step: int) -> ControllerEpoch:
            return await store.register_controller_and_increment_epoch(1, step)

        results = await with_losses(proxy, attempt)
        # No epoch was used twice, and none by somebody who did not know that it was his.
        assert [result.epoch for result in results] == list(range(1, len(results) + 1))
        assert all(result.epoch == result.zk_version for result in results)
        node = await controller_store(other).controller()
        assert node == (1, store.client.session_id)


async def test_the_election_is_watched(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store, told = controller_store(plain), Told()
        assert await store.controller(told) is None
        await elected(store)
        await told.wait()
        assert await store.controller(told) is not None
        await store.client.set("/controller", b"")
        await told.wait()
        assert await store.controller(told) == ControllerNode(NO_CONTROLLER, store.client.session_id)
        await store.client.delete("/controller")
        await told.wait()
        assert len(told.arguments) == 3


async def test_an_epoch_that_nobody_understands(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        await store.client.create("/controller_epoch", b"?")
        with pytest.raises(ZnodeError, match="/controller_epoch"):
            await elected(store)
        assert await store.controller() is None
        await store.client.set("/controller_epoch", encode_controller_epoch(8))
        assert await store.register_controller_and_increment_epoch(1, 0) == (9, 2)


async def test_the_last_controller_epoch(tmp_path: Path) -> None:
    """No request and no broker could read the next one."""
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        await store.client.create("/controller_epoch", encode_controller_epoch(2**31 - 2))
        assert await store.register_controller_and_increment_epoch(1, 0) == (2**31 - 1, 1)
        await store.client.delete("/controller")
        with pytest.raises(ZnodeError, match="/controller_epoch: 2147483647 is the last controller epoch"):
            await store.register_controller_and_increment_epoch(1, 0)
        assert await store.controller() is None
        assert (await store.client.get("/controller_epoch"))[0] == b"2147483647"


async def test_giving_up(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, plain):
        store = controller_store(plain)
        guard = await elected(store)
        await store.delete_controller(guard)
        await store.delete_controller(guard)
        assert await store.controller() is None
        async with scene.client() as other:
            await elected(ControllerStore(other), 2)
            with pytest.raises(ControllerMoved):
                await store.delete_controller(guard)
            assert await store.controller() == (2, other.session_id)


async def test_every_write_is_guarded(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, plain):
        store = controller_store(plain)
        assignment = TopicAssignment({0: (1,)})
        for topic in ("t", "u"):
            await store.client.create(f"/brokers/topics/{topic}", assignment.encode())
        await store.mark_topic_for_deletion("t")
        isr = await store.client.create(requests.ISR_CHANGE_PREFIX, b"", sequential=True)
        log_dir = await store.client.create(requests.LOG_DIR_EVENT_PREFIX, b"", sequential=True)
        read = await store.topic_assignments(["t"])
        guard = await elected(store)
        async with scene.client() as other:
            await another_elected(ControllerStore(other))
            for write in (
                store.delete_controller(guard),
                store.set_up_features(True, guard),
                store.add_topic_ids(read, lambda: UUID(int=1), guard),
                store.update_topic_assignment("t", read["t"], guard),
                store.delete_topic_guarded("t", guard),
                store.delete_topic_deletions(["t"], guard),
                store.update_features(FINALIZED, 0, guard),
                store.delete_preferred_replica_election(guard),
                store.delete_isr_changes([isr[0].rpartition("/")[2]], guard),
                store.delete_log_dir_events([log_dir[0].rpartition("/")[2]], guard),
            ):
                with pytest.raises(ControllerMoved):
                    await write
        assert await store.topic_names() == ["t", "u"]
        assert await store.topic_deletions() == ["t"]
        assert await store.client.exists("/feature") is None


# -- brokers and features ---------------------------------------------------------------------------------------------


def registration(broker_id: int, port: int = 9092) -> BrokerRegistration:
    return BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", "h", port),), timestamp_ms=1)


async def test_brokers_are_watched(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, plain):
        store, changed, modified = controller_store(plain), Told(), Told()
        first = await store.register_broker(registration(3))
        async with scene.client() as other:
            second = await KafkaZooKeeper(other).register_broker(registration(1))
            await store.client.create("/brokers/ids/garbage", b"")
            await store.client.create("/brokers/ids/9", b"{}")
            # Twice: the watches are armed once.
            for _ in range(2):
                assert await store.live_brokers(changed, modified) == {
                    1: (registration(1), second),
                    3: (registration(3), first),
                }
            assert await store.watched_broker(3, modified) == (registration(3), first)
            assert isinstance(await store.watched_broker(9, modified), ZnodeError)
            assert await store.watched_broker(8, modified) is None
            await store.update_broker(registration(3, 9093))
            await modified.wait()
            assert modified.arguments == [(3,)]
            assert changed.arguments == []
            assert await store.watched_broker(3, modified) == (registration(3, 9093), first)
        await changed.wait()
        assert list(await store.live_brokers(changed, modified)) == [3]
        assert changed.arguments == [()]


FINALIZED = {"f": FinalizedVersions(1, 3)}


@pytest.mark.parametrize(
    ("before", "is_enabled", "after"),
    [
        (None, True, Features(FeatureStatus.ENABLED)),
        (None, False, Features(FeatureStatus.DISABLED)),
        (Features(FeatureStatus.ENABLED, FINALIZED), True, Features(FeatureStatus.ENABLED, FINALIZED)),
        (Features(FeatureStatus.ENABLED, FINALIZED), False, Features(FeatureStatus.DISABLED)),
        (Features(FeatureStatus.DISABLED, FINALIZED), True, Features(FeatureStatus.ENABLED)),
        (Features(FeatureStatus.DISABLED), False, Features(FeatureStatus.DISABLED)),
    ],
)
async def test_features(tmp_path: Path, before: Features | None, is_enabled: bool, after: Features) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        guard = await elected(store)
        if before is not None:
            await store.client.create("/feature", before.encode())
        for _ in range(2):
            await store.set_up_features(is_enabled, guard)
            data, stat = await store.client.get("/feature")
            assert Features.decode(data) == after
            assert stat.version == (0 if before is None or before == after else 1)


async def test_features_that_nobody_understands_stay(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        await store.client.create("/feature", b"?")
        await store.set_up_features(True, await elected(store))
        assert (await store.client.get("/feature"))[0] == b"?"


async def test_finalized_features(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store, told = controller_store(plain), Told()
        guard = await elected(store)
        assert await store.finalized_features(told) is None
        assert await store.update_features(FINALIZED, 0, guard) is None
        await store.set_up_features(True, guard)
        await told.wait()
        assert await store.finalized_features(told) == ({}, 0)
        assert await store.update_features(FINALIZED, 0, guard) == 1
        await told.wait()
        assert await store.finalized_features() == (FINALIZED, 1)
        assert await store.update_features({}, 0, guard) is None
        assert await store.update_features({}, 1, guard) == 2
        assert await store.finalized_features() == ({}, 2)
        for content in (Features(FeatureStatus.DISABLED, FINALIZED).encode(), b"?"):
            await store.client.set("/feature", content)
            assert await store.finalized_features() is None


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_topic_ids(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        guard = await elected(store)
        has_id = TopicAssignment({0: (1,)}, UUID(int=1))
        for topic, assignment in {
            "with": has_id,
            "without": TopicAssignment({0: (1,)}),
            "changed": TopicAssignment({0: (1,)}),
            "gone": TopicAssignment({0: (1,)}),
        }.items():
            await store.client.create(f"/brokers/topics/{topic}", assignment.encode())
        read = await store.topic_assignments(["with", "without", "changed", "gone"])
        await store.add_partitions("changed", {1: (2,)})
        await store.client.delete("/brokers/topics/gone")
        ids = iter(UUID(int=number) for number in range(10, 20))
        result = await store.add_topic_ids(read, lambda: next(ids), guard)
        assert list(result) == ["with", "without", "changed"]
        assert result["with"] == has_id
        assert list(result["changed"].partitions) == [0, 1]
        stored = await store.topic_assignments(list(result))
        assert stored == result
        assert [a.zk_version for a in stored.values()] == [a.zk_version for a in result.values()] == [0, 1, 2]
        assert len({assignment.topic_id for assignment in stored.values()} - {None}) == 3


async def test_a_topic_whose_znode_has_no_room_for_an_id_stays_without(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        guard = await elected(store)
        full = TopicAssignment({0: tuple(range(1_000_000_000, 1_000_095_310))})
        assert 1_048_450 < len(full.encode()) < 1_048_500
        await store.client.create("/brokers/topics/full", full.encode())
        await store.client.create("/brokers/topics/small", TopicAssignment({0: (1,)}).encode())
        read = await store.topic_assignments(["full", "small"])
        result = await store.add_topic_ids(read, lambda: UUID(int=1), guard)
        assert result == {"full": full, "small": TopicAssignment({0: (1,)}, UUID(int=1))}
        assert await store.topic_assignments(["full", "small"]) == result


async def test_an_assignment_is_replaced_only_as_it_was_read(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        guard = await elected(store)
        assert not await store.update_topic_assignment("t", TopicAssignment({0: (1,)}, zk_version=0), guard)
        await store.client.create("/brokers/topics/t", TopicAssignment({0: (1,)}).encode())
        assert not await store.update_topic_assignment("t", TopicAssignment({0: (2,)}, zk_version=1), guard)
        assert await store.update_topic_assignment("t", TopicAssignment({0: (3,)}, zk_version=0), guard)
        assert await store.topic_assignment("t") == TopicAssignment({0: (3,)})


async def test_a_topic_is_deleted_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, plain, other):
        store = controller_store(plain)
        guard = await elected(store)

        async def attempt(step: int) -> None:
            topic = f"t{step}"
            await other.create_topic(topic, {0: [1], 1: [1]}, None, {"a": "b"})
            states = {(topic, number): LeaderAndIsr(1, 0, (1,), 1) for number in range(2)}
            await other.create_partition_states(states, None)
            await other.mark_topic_for_deletion(topic)
            await store.delete_topic_guarded(topic, guard)
            assert await other.topic_names() == []
            assert await other.client.children("/config/topics") == []
            assert await other.topic_deletions() == []

        await with_losses(proxy, attempt)
        await store.delete_topic_guarded("never there", guard)


async def test_the_mark_for_deletion_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TopicDeletionManager removes the topic, its configuration and the mark in this order. Here one multi does it,
    after the partitions: whatever write a controller dies after, the mark is there while anything else is."""
    async with playing(tmp_path) as (_, plain):
        store = controller_store(plain)
        guard = await elected(store)
        await plain.create_topic("t", {0: [1], 1: [1]}, None, {"a": "b"})
        await plain.create_partition_states({("t", number): LeaderAndIsr(1, 0, (1,), 1) for number in range(2)}, None)
        await plain.mark_topic_for_deletion("t")
        # The paths that each write deletes.
        writes: list[list[str]] = []
        multi = store.client.multi

        async def recorded(operations: Sequence[MultiOperation]) -> list[MultiResult]:
            writes.append([operation.path for operation in operations if isinstance(operation, Delete)])
            return await multi(operations)

        monkeypatch.setattr(store.client, "multi", recorded)
        await store.delete_topic_guarded("t", guard)
        below = [path for paths in writes[:-1] for path in paths]
        assert below[-1] == "/brokers/topics/t/partitions"
        assert all(f"/brokers/topics/t/partitions/{number}/state" in below for number in range(2))
        assert sorted(writes[-1]) == ["/admin/delete_topics/t", "/brokers/topics/t", "/config/topics/t"]
        assert await plain.topic_deletions() == []


async def test_a_deletion_leaves_the_next_topic_of_that_name_alone(tmp_path: Path) -> None:
    """Whenever the controller is cut off, or dies: the mark goes with the topic, and what is new stays."""
    async with playing_with_losses(tmp_path) as (proxy, plain, other):
        store = controller_store(plain)
        guard = await elected(store)
        created = []

        async def attempt(step: int) -> None:
            topic = f"t{step}"
            await other.create_topic(topic, {0: [1]}, None, {"old": "1"})
            await other.create_partition_states({(topic, 0): LeaderAndIsr(1, 0, (1,), 1)}, None)
            await other.mark_topic_for_deletion(topic)
            await store.delete_topic_guarded(topic, guard)

        async def create_again(step: int) -> None:
            topic = f"t{step}"
            if await other.topic_exists(topic):
                # The next controller goes on with this deletion.
                assert await other.topic_deletions() == [topic]
            else:
                assert await other.topic_deletions() == []
                await other.create_topic(topic, {0: [2]}, None, {"new": "1"})
                created.append(topic)

        await with_losses(proxy, attempt, create_again)
        assert created
        assert await other.topic_names() == created
        assert await other.configs.of_topics(created) == {topic: {"new": "1"} for topic in created}


# -- notifications ----------------------------------------------------------------------------------------------------


async def test_preferred_replica_elections(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store, told = controller_store(plain), Told()
        guard = await elected(store)
        path = requests.PREFERRED_REPLICA_ELECTION_PATH
        assert await store.preferred_replica_election(told) is None
        await store.client.create(path, requests.encode_partitions([("t", 1), ("t", 0), ("t", 1)]))
        await told.wait()
        assert await store.preferred_replica_election(told) == [("t", 1), ("t", 0)]
        await store.client.set(path, b"?")
        await told.wait()
        assert await store.preferred_replica_election(told) == []
        for _ in range(2):
            await store.delete_preferred_replica_election(guard)
        await told.wait()
        assert await store.preferred_replica_election(told) is None


async def test_isr_changes(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store, told = controller_store(plain), Told()
        guard = await elected(store)
        assert await store.isr_changes(told) == []
        for content in (
            requests.encode_partitions([("t", 1), ("t", 0)]),
            b"garbage",
            requests.encode_partitions([("u", 0), ("t", 0)]),
        ):
            await store.client.create(requests.ISR_CHANGE_PREFIX, content, sequential=True)
        await told.wait()
        names = await store.isr_changes(told)
        assert names == [f"isr_change_{number:010}" for number in range(3)]
        assert await store.isr_change_partitions([*names, "gone"]) == [("t", 1), ("t", 0), ("u", 0)]
        await store.delete_isr_changes([*names, "gone"], guard)
        assert await store.isr_changes(told) == []


async def test_log_dir_events(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, plain):
        store, told = controller_store(plain), Told()
        guard = await elected(store)
        assert await store.log_dir_events(told) == []
        for broker_id in (3, 1, 3):
            await store.report_log_dir_failure(broker_id)
        await store.client.create(requests.LOG_DIR_EVENT_PREFIX, b"?", sequential=True)
        await told.wait()
        names = await store.log_dir_events(told)
        assert len(names) == 4
        assert await store.log_dir_event_brokers([*names, "gone"]) == [1, 3]
        await store.delete_log_dir_events(names, guard)
        assert await store.log_dir_events(told) == []


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "t" * 249, "..."])
def test_legal_topic_names(name: str) -> None:
    assert is_legal_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "t" * 250, "a b", "a/b", "ü", "a\n"])
def test_illegal_topic_names(name: str) -> None:
    assert not is_legal_topic_name(name)
