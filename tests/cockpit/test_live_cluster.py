"""A live cluster of klamm as the source of pages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from klamm.access.clients import command_options
from klamm.access.controller import ControllerAddress
from klamm.access.http_reading import WrongAnswer
from klamm.base import json_bytes
from klamm.base.slices import in_slices
from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.log_dirs import describe_log_dirs
from klamm.client.cluster import make_client
from klamm.cockpit.live import cluster as cluster_module
from klamm.cockpit.live.cluster import Clock, LiveCluster, open_cluster
from klamm.cockpit.live.document import Registrations
from klamm.cockpit.live.pulse import Heard
from klamm.cockpit.source import NOW, PARTITIONS, RECORD, Subscription
from klamm.diagnosis.cluster_facts import BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import ClusterView, PartitionView
from klamm.net.client import Avoided
from klamm.processes.helper import Helper
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.testing import Cluster


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[LiveCluster]:
    faults: list[BaseException] = []
    client = make_client(command_options(cluster.bootstrap, None), SystemEnvironment().random)
    source = await open_cluster(client, None, faults.append)
    try:
        yield source
    finally:
        await source.close()
    assert faults == []


def _has_later_epoch(epoch: int, now: Any) -> bool:
    return bool(now["machines"] and now["controller"]["epoch"] > epoch)


async def until(subscription: Subscription, event: str, condition: Callable[[Any], object]) -> Any:
    """The first value of an event that fulfils the condition."""
    async with asyncio.timeout(120):
        while True:
            for name, data in await subscription.read():
                value = json_bytes.decode(data)
                if name == event and condition(value):
                    return value


def test_a_page_sees_the_controller_its_records_and_a_broker_that_dies(klamm_helper: Helper) -> None:
    async def look(cluster: Cluster) -> None:
        async with opened(cluster) as source:
            assert (await source.now())["cluster"]["kind"] == "klamm"
            found = await source.map()
            assert (found.brokers, found.row_count) == ((0, 1), 2)
            page = source.subscribe()
            now = await until(page, NOW, lambda now: now["machines"] and now["states"]["over_time"])
            assert now["machines"]["partitions"]["OnlinePartition"] == 2
            assert now["why_not"] is None
            assert now["states"]["time_ms"] > now["states"]["over_time"][0][0]
            assert all(broker["memory_bytes"] > 0 for broker in now["brokers"])
            assert now["controller"]["id"] in (0, 1)
            assert now["controller"]["status"]["active"]
            moved = await until(page, NOW, lambda now: now["brokers"][0]["bytes_in_per_s"] is not None)
            assert [broker["why_not"] for broker in moved["brokers"]] == [None, None]
            victim = 1 - now["controller"]["id"]
            await asyncio.to_thread(cluster.kill, victim)
            await until(page, RECORD, lambda batch: any(each["kind"] == "partition" for each in batch["records"]))
            await until(page, NOW, lambda now: now["machines"] and not now["brokers"][victim]["alive"])
            source.unsubscribe(page)
            assert not source._tasks

    with Cluster(brokers=2, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=2)
        asyncio.run(look(cluster))


def test_a_change_of_leaders_reaches_the_map_of_an_open_page(klamm_helper: Helper) -> None:
    async def look(cluster: Cluster) -> None:
        async with opened(cluster) as source:
            page = source.subscribe()
            await until(page, NOW, lambda now: now["machines"])
            await source.map()
            victim = 1 - (await source.now())["controller"]["id"]
            await asyncio.to_thread(cluster.kill, victim)
            changed = await until(page, PARTITIONS, lambda change: any("4" in cells for cells in change["cells"]))
            assert all(len(cells) == 2 for cells in changed["cells"])
            # A page whose stream opens after that is told at once, although nothing changes any more.
            later = source.subscribe()
            first = await until(later, PARTITIONS, lambda change: not change["rows"])
            assert (first["version"], first["sequence"]) >= (changed["version"], changed["sequence"])

    with Cluster(brokers=2, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=2)
        asyncio.run(look(cluster))


def test_a_page_recovers_from_the_loss_of_all_brokers_and_of_zookeeper(klamm_helper: Helper) -> None:
    async def look(cluster: Cluster) -> None:
        async with opened(cluster) as source:
            page = source.subscribe()
            # Pages do not get what the first controller of a source has recorded before: here it is the one that dies.
            await until(page, NOW, lambda now: now["machines"] and source.records)
            for broker in cluster.broker_ids:
                await asyncio.to_thread(cluster.kill, broker)
            # What is not known any more is not shown as if it were, and the time of what is shown stands there.
            # Before each broker is known to be silent, the page says why the partitions are not known.
            text = "no broker answers"
            gone = await until(page, NOW, lambda now: now["live"]["text"] == text and not now["machines"])
            assert gone["live"]["state"] == "lost"
            assert gone["live"]["since_ms"] <= gone["time_ms"]
            assert gone["readings"]["partitions"]["at_ms"] <= gone["time_ms"]
            assert "no broker answers (broker " in gone["readings"]["partitions"]["why_not"]
            assert [each["kind"] for each in gone["findings"]] == ["no_answer"]
            await asyncio.to_thread(cluster.kill, "zookeeper")
            found = await until(page, NOW, lambda now: len(now["findings"]) == 2)
            assert [each["kind"] for each in found["findings"]] == ["no_answer", "no_zookeeper"]
            assert found["live"]["text"] == "neither a broker nor ZooKeeper answers"
            await asyncio.to_thread(cluster.start, "zookeeper", wait=False)
            for broker in cluster.broker_ids:
                await asyncio.to_thread(cluster.start, broker)

            def is_back(now: Any) -> bool:
                return (
                    now["machines"] and now["live"]["state"] == "live" and all(each["alive"] for each in now["brokers"])
                )

            await until(page, NOW, is_back)
            # The records of the new controller reach the page, too.
            await asyncio.to_thread(cluster.create_topic, "u", partitions=1, replication_factor=1)
            await until(page, RECORD, lambda batch: any(each.get("topic") == "u" for each in batch["records"]))

    with Cluster(brokers=2, helper=klamm_helper) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=2)
        asyncio.run(look(cluster))


def test_a_page_follows_a_controller_that_moves_again_and_again(klamm_helper: Helper) -> None:
    async def look(cluster: Cluster) -> None:
        async with opened(cluster) as source:
            page = source.subscribe()
            epoch = (await until(page, NOW, lambda now: now["machines"] and source.records))["controller"]["epoch"]
            for _ in range(3):
                assert source.znodes is not None
                await source.znodes.client.delete("/controller")
                now = await until(page, NOW, partial(_has_later_epoch, epoch))
                epoch = now["controller"]["epoch"]
            await asyncio.to_thread(cluster.create_topic, "u", partitions=1, replication_factor=1)
            await until(page, RECORD, lambda batch: any(each.get("topic") == "u" for each in batch["records"]))
            epochs = [(each["epoch"], each["sequence"]) for each in source.records]
            assert epochs == sorted(set(epochs))

    with Cluster(brokers=2, helper=klamm_helper) as cluster:
        asyncio.run(look(cluster))


async def test_a_map_that_is_not_known_yet_is_no_empty_map() -> None:
    client = make_client(command_options("127.0.0.1:1", None), SystemEnvironment().random)
    source = LiveCluster(client, "127.0.0.1:1", lambda error: pytest.fail(repr(error)))
    with pytest.raises(ToolError, match=r"The map of partitions is not known yet\. .*127\.0\.0\.1:1"):
        await source.map()
    await source.close()


def follower(epoch: int) -> LiveCluster:
    """A source whose cluster has had a controller of this epoch."""
    client = make_client(command_options("127.0.0.1:1", None), SystemEnvironment().random)
    source = LiveCluster(client, "127.0.0.1:1", lambda error: pytest.fail(repr(error)))
    source._registrations.value = Registrations(ControllerAddress(1, epoch, 0, "127.0.0.1", 1), {})
    return source


def record(epoch: int, sequence: int) -> dict[str, Any]:
    return {"kind": "of a later version", "epoch": epoch, "sequence": sequence, "time_ms": 0, "controller": 1}


async def test_records_of_another_cluster_do_not_hide_those_that_follow() -> None:
    source = follower(7)
    assert source._take(record(7, 1), 100)
    with pytest.raises(WrongAnswer, match="a record of epoch 40 is not of this cluster's controller"):
        source._take(record(40, 1), 100)
    assert source._take(record(7, 2), 100)
    assert [each["sequence"] for each in source.records] == [1, 2]
    await source.close()


async def test_findings_follow_the_map_at_once() -> None:
    source = follower(7)
    await in_slices(source.partitions.look({"t": {0: PartitionView(1, -1, (1, 2), (1, 2))}}, (1, 2)))
    source._facts.value = ClusterFacts(
        "id", ClusterView({}, {}), {each: BrokerFacts(each, ("h", 1)) for each in (1, 2)}
    )

    async def findings() -> list[str]:
        source._publish_changes()
        source._digest_due_s = 0.0
        await source._renew_digest()
        assert source._digest is not None
        assert source._digest.place == (source.partitions.version, source.partitions.sequence)
        return [each.kind for each in source._digest.findings if each.kind != "no_controller"]

    assert await findings() == []
    source.partitions.change("t", 0, 1, [1])
    assert await findings() == ["under_replicated"]
    digest = source._digest
    assert await findings() == ["under_replicated"]
    assert source._digest is digest
    await in_slices(source.partitions.relive((2,)))
    assert await findings() == ["offline_partitions", "missing_brokers"]
    await source.close()


async def test_brokers_that_do_not_answer_are_asked_for_nothing_else() -> None:
    hung = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = hung.sockets[0].getsockname()[:2]
    source = follower(7)
    source._client.metadata.brokers = source._slow_client.metadata.brokers = {1: address}
    source._pulse.heard = {1: Heard(4_000, "it does not answer within 5 s", 1)}
    source._addresses_to_ask()
    source._answers_changed()
    for client in (source._client, source._slow_client):
        with pytest.raises(Avoided, match="it does not answer within 5 s"):
            await client.connection_to(1)
    # Neither are its retries: other commands wait for half a minute.
    found = (await describe_log_dirs(source._client, [1]))[1]
    assert isinstance(found, KafkaError) and "does not answer within 5 s" in found.message
    assert str(source._partitions.why_not).startswith("no broker answers (broker 1: it does not answer")
    source._pulse.heard = {1: Heard(5_000, None, 1)}
    source._answers_changed()
    assert source._client._connections.avoided == {}
    hung.close()
    await source.close()


async def test_a_controller_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = follower(7)
    monkeypatch.setattr(source, "_kind", lambda: "klamm")
    await source._status.renew()
    assert str(source._status.why_not).startswith("Controller 1: 127.0.0.1:1 cannot be reached")
    await source.close()


async def test_what_is_kept_of_records_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "KEPT_BYTES", 1_000)
    monkeypatch.setattr(cluster_module, "KEPT_RECORDS", 5)
    source = follower(7)
    for sequence in range(10):
        source._take(record(7, sequence), 10)
    assert [each["sequence"] for each in source.records] == [5, 6, 7, 8, 9]
    source._take(record(7, 10), 960)
    assert [each["sequence"] for each in source.records] == [6, 7, 8, 9, 10]
    source._take(record(7, 11), 990)
    assert [each["sequence"] for each in source.records] == [11]
    await source.close()


async def test_states_of_an_earlier_controller_move_to_the_clock_of_the_new_one() -> None:
    client = make_client(command_options("127.0.0.1:1", None), SystemEnvironment().random)
    source = LiveCluster(client, None, lambda error: pytest.fail(str(error)))
    event = {"kind": "event", "state": "IsrChange", "processing_time_ms": 10}
    source._take_clock(Clock(7, 1_000))
    source._take_state(event | {"epoch": 7, "time_ms": 5_000})
    # A record of the new controller comes before its status.
    source._take_state(event | {"epoch": 8, "time_ms": 65_000})
    source._take_clock(Clock(8, 61_000))
    source._take_clock(Clock(8, 61_001))
    assert [(each.began_ms, each.name) for each in source._states] == [
        (64_990, "IsrChange"),
        (65_000, "Idle"),
        (64_990, "IsrChange"),
        (65_000, "Idle"),
    ]
    await source.close()
