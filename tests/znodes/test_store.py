"""The store against the embedded server, also when the connection is lost after any of its requests."""

import asyncio
import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from klamm.base import json_bytes
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes import cluster, requests
from klamm.znodes.access import MAX_ZNODE_BYTES
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.cluster import ProducerIdBlock
from klamm.znodes.configs import decode_config_change
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import EpochsUsedUp, KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper import keeper_exceptions
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.messages import EventType, Stat
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.scenarios import Fired
from support.zookeeper.stores import playing, playing_with_losses, with_losses

T = TypeVar("T")

REGISTRATION = BrokerRegistration(0, (Endpoint("PLAINTEXT", "h", 9092),), timestamp_ms=1)


async def write_states(
    store: KafkaZooKeeper, states: dict[tuple[str, int], LeaderAndIsr]
) -> dict[tuple[str, int], int]:
    """Makes these the states of the partitions, whatever they were; returns the znodes' versions."""
    anyhow = {key: dataclasses.replace(state, zk_version=-1) for key, state in states.items()}
    versions = await store.update_partition_states(anyhow, None)
    missing = {key: states[key] for key, version in versions.items() if isinstance(version, keeper_exceptions.NoNode)}
    versions.update(await store.create_partition_states(missing, None))
    written = {}
    for key, version in versions.items():
        if isinstance(version, keeper_exceptions.ZooKeeperError):
            raise version
        written[key] = version
    return written


async def test_the_persistent_paths_are_created_in_kafkas_order(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.create_persistent_paths()
        stats = [await store.client.exists(path) for path in cluster.PERSISTENT_PATHS]
        zxids = [stat.czxid for stat in stats if stat is not None]
        assert len(zxids) == 14
        assert zxids == sorted(zxids)
        assert await store.client.children("/config") == ["brokers", "changes", "clients", "ips", "topics", "users"]


async def test_the_first_cluster_id_stays(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        ids = await asyncio.gather(*(store.get_or_create_cluster_id(f"id-{number}") for number in range(5)))
        assert set(ids) == {await store.get_or_create_cluster_id("late")}
        assert ids[0].startswith("id-")


async def test_broker_ids_are_generated_above_the_reserved_ones(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        assert [await store.generate_broker_id() for _ in range(3)] == [1001, 1002, 1003]
        await store.client.delete("/brokers/seqid")
        assert await store.generate_broker_id(500) == 501
        assert await store.generate_broker_id(2**31 - 3) == 2**31 - 1
        with pytest.raises(ZnodeError, match=r"/brokers/seqid: .* 2147483648, .* reserved\.broker\.max\.id"):
            await store.generate_broker_id(2**31 - 3)


async def test_a_broker_registers_once_per_session(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, store):
        changed = asyncio.Event()
        assert await store.live_brokers(changed.set) == {}
        epoch = await store.register_broker(REGISTRATION)
        await changed.wait()
        stat = await store.client.exists("/brokers/ids/0")
        assert stat is not None
        assert (stat.czxid, stat.version, stat.ephemeral_owner) == (epoch, 1, store.client.session_id)
        assert await store.register_broker(REGISTRATION) == epoch
        assert await store.live_brokers() == {0: (REGISTRATION, epoch)}

        async with scene.client() as client:
            other = KafkaZooKeeper(client)
            for previous_session_ids in ([], [12345]):
                with pytest.raises(KafkaError, match="broker id 0 is taken") as taken:
                    await other.register_broker(REGISTRATION, previous_session_ids)
                assert taken.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            # A znode left by this broker's expired session is replaced.
            new_epoch = await other.register_broker(REGISTRATION, [12345, store.client.session_id])
            assert new_epoch > epoch
            await other.update_broker(BrokerRegistration(0, (Endpoint("PLAINTEXT", "moved", 1),)))
            live = await store.live_brokers()
            assert (live[0].registration.endpoints[0].host, live[0].epoch) == ("moved", new_epoch)
        assert await store.live_brokers() == {}


async def test_a_controller_of_a_former_session_is_removed(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, store):
        await store.delete_leftover_controller([1])  # Nobody was ever elected.
        assert await store.controller_id() is None
        await store.client.create(cluster.CONTROLLER_EPOCH_PATH, b"1")
        await store.delete_leftover_controller([1])
        async with scene.client() as former:
            node = cluster.Controller(3, 0).encode()
            await former.create(cluster.CONTROLLER_PATH, node, ephemeral=True)
            assert await store.controller_id() == 3
            for others in ([], [former.session_id + 1]):
                await store.delete_leftover_controller(others)
                assert await store.controller_id() == 3
            await store.delete_leftover_controller([5, former.session_id])
            assert await store.controller_id() is None


async def test_a_controller_that_is_elected_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at /controller and its removal the former session ends, and somebody else is elected."""
    async with playing(tmp_path) as (scene, store):
        await store.client.create(cluster.CONTROLLER_EPOCH_PATH, b"1")
        async with scene.client() as former:
            node = cluster.Controller(3, 0).encode()
            await former.create(cluster.CONTROLLER_PATH, node, ephemeral=True)
            look = store.client.exists

            async def look_and_elect(path: str) -> Stat | None:
                stat = await look(path)
                await former.delete(path)
                await former.set(cluster.CONTROLLER_EPOCH_PATH, b"2")
                await former.create(path, cluster.Controller(4, 0).encode(), ephemeral=True)
                return stat

            monkeypatch.setattr(store.client, "exists", look_and_elect)
            await store.delete_leftover_controller([former.session_id])
            assert await store.controller_id() == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"rack": "é" * 20_000}, "rack is 40000 bytes long, more than 32767"),
        ({"endpoints": ["PLAINTEXT://" + "h" * 40_000 + ":1"]}, "endpoints has one of 40014 bytes, more than 32767"),
    ],
)
async def test_a_broker_that_no_request_can_name(
    tmp_path: Path, content: dict[str, object], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path) as (_, store):
        registration = json_bytes.decode(REGISTRATION.encode()) | content
        await store.client.create("/brokers/ids/3", json_bytes.encode(registration))
        assert await store.live_brokers() == {}
        assert f"broker 3 is left out: znode /brokers/ids/3: {problem}" in caplog.text


async def test_a_malformed_broker_is_logged_again_only_when_its_fault_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path) as (_, store):
        path, whole = "/brokers/ids/7", json_bytes.decode(REGISTRATION.encode())

        async def lines(content: dict[str, object]) -> int:
            caplog.clear()
            await store.client.set(path, json_bytes.encode(content))
            for _ in range(3):
                await store.live_brokers()
            return len(caplog.records)

        await store.client.create(path, b"")
        assert await lines({}) == 1
        assert await lines({}) == 0
        assert await lines(whole | {"rack": 7}) == 1
        assert await lines(whole) == 0
        assert await lines({}) == 1


async def test_a_znode_that_is_no_broker_is_left_out(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        for name in ("x", "7", "-1", "2147483648", "9" * 5000):
            await store.client.create(f"/brokers/ids/{name}", b"{}")
        await store.client.create("/brokers/ids/2147483647", REGISTRATION.encode())
        assert [*await store.live_brokers()] == [2147483647]


async def test_blocks_of_producer_ids_are_given_out_once(tmp_path: Path) -> None:
    async with playing(tmp_path) as (scene, store):
        async with scene.client() as client:
            other = KafkaZooKeeper(client)
            blocks = await asyncio.gather(
                *(who.allocate_producer_id_block(broker) for broker, who in enumerate([store, other] * 5))
            )
        assert sorted(blocks) == [(1000 * number, 1000 * number + 999) for number in range(10)]


async def test_topics(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        names_changed, topic_changed = asyncio.Event(), asyncio.Queue[str]()
        assert await store.topic_names(names_changed.set) == []
        first, second = UUID(int=1), UUID(int=2)
        await store.create_topic("t", {1: [0], 0: [0, 1]}, first, {"retention.ms": "5"})
        await names_changed.wait()
        await store.create_topic("t", {1: [0], 0: [0, 1]}, first, {"retention.ms": "5"})  # Repeated.
        for other_id in (second, None):
            with pytest.raises(KafkaError, match="already exists") as exists:
                await store.create_topic("t", {0: [0, 1], 1: [0]}, other_id, {"retention.ms": "99"})
            assert exists.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await store.configs.of_topics(["t", "absent"]) == {"t": {"retention.ms": "5"}, "absent": {}}
        assert await store.topic_names() == ["t"]
        assert await store.topic_assignment("absent") is None
        assignment = TopicAssignment({0: (0, 1), 1: (0,)}, first)
        assert await store.topic_assignment("t") == assignment
        for _ in range(2):  # Left twice, the watch fires once.
            assert await store.topic_assignments(["absent", "t"], topic_changed.put_nowait) == {"t": assignment}

        await store.add_partitions("t", {2: [1]})
        assert await topic_changed.get() == "t"
        assert topic_changed.empty()
        await store.add_partitions("t", {2: [1]})
        grown = await store.topic_assignment("t")
        assert grown == TopicAssignment({0: (0, 1), 1: (0,), 2: (1,)}, first)
        with pytest.raises(KafkaError, match="partition 2 of topic 't' exists") as taken:
            await store.add_partitions("t", {2: [0]})
        assert taken.value.code is ErrorCode.INVALID_PARTITIONS
        with pytest.raises(KafkaError, match="does not exist") as unknown:
            await store.add_partitions("absent", {2: [0]})
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_unreadable_topic_does_not_hide_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with playing(tmp_path) as (_, store):
        await store.create_topic("good", {0: [0]}, None, {})
        await store.client.create("/brokers/topics/bad", b"garbage")
        await store.client.create("/config/topics/bad", b"[]")
        assert list(await store.topic_assignments(["bad", "good"])) == ["good"]
        await store.create_topic("named", {0: [0]}, UUID(int=1), {})
        ids = await store.topic_ids(["bad", "good", "named", "absent"])
        assert ids == {"bad": None, "good": None, "named": UUID(int=1)}
        found = await store.configs.of_topics(["bad", "good"])
        assert (str(found["bad"]), found["good"]) == (
            "znode /config/topics/bad: the content is a list, not an object",
            {},
        )
        assert "/brokers/topics/bad" in caplog.text


async def test_a_config_that_nobody_understands_is_replaced_but_never_changed(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.client.create("/config/topics/t", b"{'retention.ms': '1'}")
        with pytest.raises(ZnodeError, match="/config/topics/t: not JSON"):
            await store.configs.update("topics/t", lambda stored: {**stored, "a": "1"})
        assert (await store.client.get("/config/topics/t"))[0] == b"{'retention.ms': '1'}"
        assert await store.configs.changes() == []
        await store.configs.replace("topics/t", {"a": "1"})
        assert await store.configs.of("topics/t") == {"a": "1"}
        assert len(await store.configs.changes()) == 1


async def test_a_config_left_by_another_topic_of_that_name_is_replaced(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.configs.update("topics/t", lambda _stored: {"old": "1"})
        await store.create_topic("t", {0: [0]}, None, {"new": "2"})
        assert await store.configs.of_topics(["t"]) == {"t": {"new": "2"}}


async def test_marks_for_deletion(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        marked = asyncio.Event()
        assert await store.topic_deletions(marked.set) == []
        await store.create_topic("t", {0: [0]}, None, {"a": "b"})
        await write_states(store, {("t", 0): LeaderAndIsr(0, 0, (0,), 0)})
        with pytest.raises(KafkaError, match="does not exist") as unknown:
            await store.mark_topic_for_deletion("absent")
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await store.mark_topic_for_deletion("t")
        await store.mark_topic_for_deletion("t")
        await marked.wait()
        assert await store.topic_deletions() == ["t"]


async def test_a_topic_that_goes_as_it_is_marked_leaves_no_mark_behind(tmp_path: Path) -> None:
    """The next topic of that name would be deleted."""
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        await safe.create_topic("t", {0: [0]}, None, {})
        proxy.hold_answers()
        marking = asyncio.ensure_future(store.mark_topic_for_deletion("t"))
        await proxy.held.wait()
        for path in ("/brokers/topics/t", "/admin/delete_topics/t"):
            await safe.client.delete_recursive(path)
        proxy.release()
        await asyncio.gather(marking, return_exceptions=True)
        assert await safe.topic_deletions() == []


async def states_of(store: KafkaZooKeeper, keys: list[tuple[str, int]]) -> dict[tuple[str, int], LeaderAndIsr]:
    states = await store.partition_states(keys)
    return {key: state for key, state in states.items() if not isinstance(state, ZnodeError)}


async def test_partition_states(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        keys = [(topic, number) for topic in ("t", "u") for number in range(3)]
        for topic in ("t", "u"):
            await store.create_topic(topic, {number: [0] for number in range(3)}, None, {})
        states = {key: LeaderAndIsr(0, 0, (0,), 0) for key in keys}
        assert await store.partition_states(keys) == {}
        assert await write_states(store, {keys[1]: states[keys[1]]}) == {keys[1]: 0}
        assert await write_states(store, states) == {key: 1 if key == keys[1] else 0 for key in keys}
        read = await states_of(store, [*keys, ("absent", 0)])
        assert read == states
        assert [state.zk_version for state in read.values()] == [0, 1, 0, 0, 0, 0]
        with pytest.raises(keeper_exceptions.NoNode):
            await write_states(store, {("absent", 0): states[keys[0]]})

        # As a controller: conditional, and only in its epoch.
        await store.client.create("/controller_epoch", b"1")
        results = await store.update_partition_states(read | {keys[0]: LeaderAndIsr(0, 1, (0,), 1, 7)}, 0)
        assert isinstance(results[keys[0]], keeper_exceptions.BadVersion)
        assert [results[key] for key in keys[1:]] == [2, 1, 1, 1, 1]
        created = await store.create_partition_states({keys[0]: states[keys[0]], ("u", 9): states[keys[0]]}, 0)
        assert isinstance(created[keys[0]], keeper_exceptions.NodeExists)
        assert created["u", 9] == 0


async def test_the_last_leader_epoch(tmp_path: Path) -> None:
    """No request and no broker could read the next one: it is not written, and the other states are."""
    async with playing(tmp_path) as (_, store):
        keys = [("t", 0), ("t", 1)]
        await store.create_topic("t", {0: [0], 1: [0]}, None, {})
        await write_states(store, {key: LeaderAndIsr(0, 2**31 - 2 + key[1], (0,), 0) for key in keys})
        known = await states_of(store, keys)
        raised = {key: dataclasses.replace(state, leader_epoch=state.leader_epoch + 1) for key, state in known.items()}
        written = await store.update_partition_states(raised, None)
        assert written[keys[0]] == 1
        assert isinstance(written[keys[1]], EpochsUsedUp)
        assert "/partitions/1/state: 2147483647 is the last leader epoch" in str(written[keys[1]])
        assert [state.leader_epoch for state in (await states_of(store, keys)).values()] == [2**31 - 1] * 2


async def test_a_partition_state_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    """To take it for absent would begin its leader epochs anew; the others must stay available."""
    async with playing(tmp_path) as (_, store):
        await store.create_topic("t", {0: [0], 1: [0]}, None, {})
        fine = LeaderAndIsr(0, 0, (0,), 0)
        await write_states(store, {("t", 0): fine, ("t", 1): fine})
        await store.client.set("/brokers/topics/t/partitions/0/state", b"{}")
        states = await store.partition_states([("t", 0), ("t", 1)])
        assert states["t", 1] == fine
        assert isinstance(states["t", 0], ZnodeError)
        assert "/brokers/topics/t/partitions/0/state: leader is missing" in str(states["t", 0])


async def test_a_changed_config_is_announced(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        fired = Fired()
        await store.client.children("/config/changes", fired)
        await store.configs.update("users/u/clients/c", lambda _stored: {"a": "1"})
        assert await fired.next() == (EventType.NODE_CHILDREN_CHANGED, "/config/changes")
        await store.configs.update("users/u/clients/c", lambda _stored: {"a": "2"})
        assert await store.client.children("/config/changes") == [
            "config_change_0000000000",
            "config_change_0000000001",
        ]
        assert (await store.client.get("/config/users/u/clients/c"))[0] == b'{"version":1,"config":{"a":"2"}}'


def copied(key: str, stored: Mapping[str, str]) -> dict[str, str]:
    return {**stored, key: stored["a"]}


async def test_a_config_changes_from_what_it_is(tmp_path: Path) -> None:
    """Two that change it at the same time both count, and one that refuses changes nothing."""
    async with playing(tmp_path) as (_, store):
        await store.configs.update("topics/t", lambda stored: {**stored, "a": "1"})
        await asyncio.gather(*(store.configs.update("topics/t", partial(copied, key)) for key in ("b", "c", "d")))
        assert await store.configs.of("topics/t") == {"a": "1", "b": "1", "c": "1", "d": "1"}
        assert len(await store.configs.changes()) == 4

        def refuse(stored: dict[str, str]) -> dict[str, str]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, stored["a"])

        for change in (refuse, lambda _stored: {"big": "x" * MAX_ZNODE_BYTES}):
            with pytest.raises(KafkaError):
                await store.configs.update("topics/t", change)
        assert len(await store.configs.of("topics/t")) == 4
        assert len(await store.configs.changes()) == 4


async def test_a_config_that_cannot_be_understood_is_told_and_can_be_replaced(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.client.ensure_path("/config/brokers")
        await store.client.create("/config/brokers/1", b"not JSON")
        with pytest.raises(ZnodeError, match="/config/brokers/1: not JSON"):
            await store.configs.of("brokers/1")
        await store.configs.replace("brokers/1", {"a": "1"})
        assert await store.configs.of("brokers/1") == {"a": "1"}


async def test_notifications_are_read_and_removed(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        for topic in "ab":
            await store.configs.update(f"topics/{topic}", lambda _stored: {})
        first, second = await store.configs.changes()
        found = await store.configs.read_changes([first, second, "config_change_gone"])
        assert [decode_config_change(name, data) for name, (data, _) in found.items()] == ["topics/a", "topics/b"]
        assert all(created_ms > 1_600_000_000_000 for _, created_ms in found.values())
        await store.configs.delete_changes([first, "config_change_gone"])
        assert await store.configs.changes() == [second]


# Every write, with the connection lost after each of its requests was done but not answered.


async def test_losses_during_creation_of_topics(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):

        async def create(step: int) -> None:
            await store.create_topic(f"t{step}", {0: [0]}, UUID(int=step + 1), {"a": "b"})
            await store.add_partitions(f"t{step}", {1: [0]})
            await write_states(store, {(f"t{step}", n): LeaderAndIsr(0, step, (0,), 0) for n in range(2)})
            await store.configs.update(f"topics/t{step}", lambda stored: {**stored, "c": stored.get("c", "") + "d"})

        steps = len(await with_losses(proxy, create))
        assert steps > 8
        for step in range(steps):
            assert await safe.topic_assignment(f"t{step}") == TopicAssignment({0: (0,), 1: (0,)}, UUID(int=step + 1))
            assert await safe.configs.of_topics([f"t{step}"]) == {f"t{step}": {"a": "b", "c": "d"}}
            assert len(await safe.partition_states([(f"t{step}", 0), (f"t{step}", 1)])) == 2


async def test_a_leader_changes_only_the_state_that_it_knows(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.create_topic("t", {number: [0, 1] for number in range(5)}, None, {})
        known = LeaderAndIsr(0, 3, (0,), 1)
        await write_states(store, {("t", number): known for number in range(4)})
        wanted = LeaderAndIsr(0, 3, (0, 1), 1, 0)
        # 1 has been changed by somebody else; 2 exactly so, as by a first try whose answer was lost; 3 is not known in
        # any version, and -1 would stand for all of them; 4 and u-0 are not there.
        await write_states(store, {("t", 1): LeaderAndIsr(1, 4, (0, 1), 1), ("t", 2): wanted})
        before = await store.partition_states([("t", 1), ("t", 3)])
        versions = await store.update_leader_and_isr(
            {
                **{("t", number): wanted for number in (0, 1, 2, 4)},
                ("t", 3): dataclasses.replace(wanted, zk_version=-1),
                ("u", 0): wanted,
            }
        )
        assert versions == {("t", 0): 1, ("t", 2): 1}
        assert await store.partition_states([("t", 1), ("t", 3)]) == before
        assert await store.partition_states([("t", 0)]) == {("t", 0): wanted}


async def test_a_leader_leaves_out_the_members_that_have_registered_since_the_state_was_written(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        await store.create_persistent_paths()
        await store.create_topic("t", {number: [0, 1, 2, 3] for number in range(4)}, None, {})
        # The leader, 0, has a new session; 2 is as it was; 3 was not in sync and joins.
        await store.register_broker(dataclasses.replace(REGISTRATION, broker_id=2))
        before = LeaderAndIsr(0, 3, (0, 1, 2), 1)
        await write_states(store, {("t", number): before for number in range(4)})
        for broker_id in (0, 1, 3):
            await store.register_broker(dataclasses.replace(REGISTRATION, broker_id=broker_id))
        # 2 was written later, 3 is not as the leader knows it.
        await write_states(store, {("t", number): before for number in (2, 3)})
        wanted = {
            ("t", 0): dataclasses.replace(before, isr=(0, 1, 2, 3), zk_version=0),
            ("t", 1): dataclasses.replace(before, isr=(0, 1), zk_version=0),
            ("t", 2): dataclasses.replace(before, isr=(0, 1), zk_version=1),
            ("t", 3): dataclasses.replace(before, isr=(0, 1), zk_version=0),
            ("gone", 0): dataclasses.replace(before, zk_version=0),
        }
        decided = await store.without_bounced_members(wanted)
        assert [decided["t", number].isr for number in range(4)] == [(0, 2, 3), (0,), (0, 1), (0, 1)]
        assert decided["gone", 0] == wanted["gone", 0]
        assert await store.update_leader_and_isr(decided) == {("t", 0): 1, ("t", 1): 1, ("t", 2): 2}


async def test_losses_during_a_leaders_changes(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        await safe.create_topic("t", {number: [0, 1] for number in range(10)}, None, {})
        await write_states(safe, {("t", number): LeaderAndIsr(0, 0, (0,), 0) for number in range(10)})

        async def change(step: int) -> dict[tuple[str, int], int]:
            versions = await store.update_leader_and_isr({("t", step): LeaderAndIsr(0, 0, (0, 1), 0, 0)})
            await store.propagate_isr_changes([("t", step)])
            return versions

        results = await with_losses(proxy, change)
        assert results == [{("t", step): 1} for step in range(len(results))]


async def test_announcements_fit_into_their_znodes(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        partitions = [("n" * 249, 2**31 - 1 - number) for number in range(7000)]
        await store.propagate_isr_changes(partitions)
        names = await store.client.children(requests.ISR_CHANGES_PATH)
        contents = [(await store.client.get(f"{requests.ISR_CHANGES_PATH}/{name}"))[0] for name in names]
        assert max(map(len, contents)) < MAX_ZNODE_BYTES
        assert [key for content in contents for key in requests.decode_partitions("", content)] == partitions


async def test_losses_during_allocation_of_producer_ids(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        blocks = await with_losses(proxy, lambda step: store.allocate_producer_id_block(0))
        assert len(blocks) == 3
        assert blocks == [(1000 * number, 1000 * number + 999) for number in range(3)]
        last = ProducerIdBlock.decode((await safe.client.get("/latest_producer_id_block"))[0])
        assert (last.first, last.last) == blocks[-1]


async def test_losses_during_registration(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        epochs = await with_losses(
            proxy, lambda step: store.register_broker(BrokerRegistration(step, REGISTRATION.endpoints))
        )
        live = await safe.live_brokers()
        assert [live[broker_id].epoch for broker_id in range(len(epochs))] == epochs
        ids = await with_losses(proxy, lambda step: store.generate_broker_id())
        assert ids == sorted(set(ids))
        cluster_ids = await with_losses(proxy, lambda step: store.get_or_create_cluster_id(f"id-{step}"))
        assert set(cluster_ids) == {"id-0"}


async def test_losses_while_topics_are_marked(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        for number in range(20):
            await safe.create_topic(f"t{number}", {0: [0]}, None, {})
        steps = len(await with_losses(proxy, lambda step: store.mark_topic_for_deletion(f"t{step}")))
        assert await safe.topic_deletions() == sorted(f"t{number}" for number in range(steps))


async def test_a_mark_whose_answer_is_lost_leaves_the_next_topic_of_that_name_alone(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):
        created = []

        async def mark(step: int) -> None:
            await safe.create_topic(f"t{step}", {0: [0]}, None, {"old": "1"})
            await store.mark_topic_for_deletion(f"t{step}")

        async def create_again(step: int) -> None:
            if f"t{step}" in await safe.topic_deletions():
                await safe.client.delete_recursive(f"/brokers/topics/t{step}")
                await safe.client.delete(f"/admin/delete_topics/t{step}")
                await safe.create_topic(f"t{step}", {0: [0]}, None, {"new": "1"})
                created.append(f"t{step}")

        await with_losses(proxy, mark, create_again)
        assert created
        assert set(created).isdisjoint(await safe.topic_deletions())


async def test_losses_while_elections_are_started(tmp_path: Path) -> None:
    async with playing_with_losses(tmp_path) as (proxy, store, safe):

        async def start(step: int) -> tuple[list[tuple[str, int]] | None, bytes]:
            started = await store.start_preferred_replica_election([("t", step)])
            written, _ = await safe.client.get(requests.PREFERRED_REPLICA_ELECTION_PATH)
            waiting = asyncio.ensure_future(safe.preferred_replica_election_ended())
            await safe.client.delete(requests.PREFERRED_REPLICA_ELECTION_PATH)
            await waiting
            return started, written

        for step, (started, written) in enumerate(await with_losses(proxy, start)):
            assert (started, requests.decode_partitions("", written)) == (None, [("t", step)])


async def test_an_election_does_not_replace_another_one(tmp_path: Path) -> None:
    async with playing(tmp_path) as (_, store):
        assert await store.start_preferred_replica_election([("t", 0)]) is None
        assert await store.start_preferred_replica_election([("t", 0)]) == [("t", 0)]
        assert await store.start_preferred_replica_election([("u", 1)]) == [("t", 0)]
        too_many = [("t" * 249, number) for number in range(5_000)]
        with pytest.raises(KafkaError, match="would take"):
            await store.start_preferred_replica_election(too_many)


async def test_store_survives_a_client_without_chroot(tmp_path: Path) -> None:
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(tmp_path))
    await server.start()
    client = ZooKeeperClient(environment, f"127.0.0.1:{server.port}")
    await client.start()
    await KafkaZooKeeper(client).create_persistent_paths()
    assert await client.children("/brokers") == ["ids", "seqid", "topics"]
    await client.close()
    await server.stop()
    environment.close()
