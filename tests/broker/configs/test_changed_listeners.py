"""Listeners that change while the broker runs: sockets, registration, and what clients are told."""

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.config.broker import BrokerConfig
from klamm.config.dynamic import change_problems
from klamm.net.server.server import SocketServer
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.znodes.brokers import BrokerRegistration, broker_path
from klamm.zookeeper.client import State
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, NoNode
from support.one_broker import Client, OneBroker, batch, fetch_frame, running, until, values

OLD = "PLAINTEXT://127.0.0.1:0"
PROTOCOLS = "PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT,TLS:SSL"
KEYS = {"listener.security.protocol.map": PROTOCOLS}


async def change(client: Client, *listeners: str, **more: str) -> int:
    """Sets `listeners` of broker 0, and other keys; the error code."""
    request = messages.request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    keys = {"listeners": ",".join(listeners), **{name.replace("_", "."): text for name, text in more.items()}}
    resource = request(
        resource_type=4,
        resource_name="0",
        configs=[
            request.AlterableConfig(name=name, config_operation=0, value=text) for name, text in (KEYS | keys).items()
        ],
    )
    response = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    return int(response.responses[0].error_code)


async def registered(cluster: OneBroker) -> dict[str, tuple[str, int]]:
    data, _ = await cluster.broker.zookeeper.store.client.get(broker_path(0))
    endpoints = BrokerRegistration.decode(0, data).endpoints
    return {each.listener_name: (each.host, each.port) for each in endpoints}


async def told(client: Client) -> list[tuple[str, int]]:
    """The brokers in the metadata that this client gets."""
    response = await client.ask(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
    return [(broker.host, broker.port) for broker in response.brokers]


async def until_told(client: Client, address: tuple[str, int]) -> None:
    for _ in range(2_000):
        if await told(client) == [address]:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"not told of {address}")


def names(cluster: OneBroker) -> list[str]:
    return sorted(cluster.broker.endpoints)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.loop("uvloop")
async def test_a_new_listener_opens_and_a_removed_one_closes_and_the_others_keep_their_connections(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        epoch = cluster.broker_epoch
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        a = await cluster.connect("A")
        await until_told(a, cluster.broker.endpoints["A"])
        await until_told(client, cluster.broker.endpoints["PLAINTEXT"])
        assert await registered(cluster) == cluster.broker.endpoints
        assert (await a.produce("t", 0, batch(b"x"))).error_code == ErrorCode.NONE

        # What has begun is answered before the listener closes.
        a.send_raw(fetch_frame(offset=1, max_wait_ms=300, min_bytes=1))
        await until(lambda: any(one.is_answering for one in cluster.broker.parts.listeners["A"]._connections))
        assert await change(client, OLD) == ErrorCode.NONE
        assert len(await a.receive()) > 0
        assert await a.is_closed()
        await until(lambda: names(cluster) == ["PLAINTEXT"])
        assert await registered(cluster) == cluster.broker.endpoints
        assert values((await client.fetch("t", 0, 0)).records) == [b"x"]
        assert cluster.broker_epoch == epoch


async def test_a_listener_moves_to_another_port_and_its_name_to_another_listener(tmp_path: Path) -> None:
    one, two = free_port(), free_port()
    async with running(tmp_path) as (cluster, client):
        assert await change(client, OLD, f"A://127.0.0.1:{one}") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        a = await cluster.connect("A")
        await until_told(a, ("127.0.0.1", one))
        assert await change(client, OLD, f"A://127.0.0.1:{two}") == ErrorCode.NONE
        assert await a.is_closed()
        a = await cluster.connect("A")
        await until_told(a, ("127.0.0.1", two))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", one)
        # The port of one listener becomes that of another.
        assert await change(client, OLD, f"B://127.0.0.1:{two}") == ErrorCode.NONE
        assert await a.is_closed()
        await until(lambda: names(cluster) == ["B", "PLAINTEXT"])
        await until_told(await cluster.connect("B"), ("127.0.0.1", two))
        await cluster.restart_broker()
        assert names(cluster) == ["B", "PLAINTEXT"]


async def test_only_what_is_advertised_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        port = cluster.broker.endpoints["PLAINTEXT"][1]
        advertised = f"PLAINTEXT://localhost:{port}"
        assert await change(client, OLD, advertised_listeners=advertised) == ErrorCode.NONE
        await until_told(client, ("localhost", port))
        assert await registered(cluster) == {"PLAINTEXT": ("localhost", port)}


async def test_a_port_in_use_leaves_the_other_listeners_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (cluster, client):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert await change(client, OLD, f"A://127.0.0.1:{port}", "B://127.0.0.1:0") == ErrorCode.NONE
            await until(lambda: names(cluster) == ["B", "PLAINTEXT"])
            await until_told(await cluster.connect("B"), cluster.broker.endpoints["B"])
            assert await registered(cluster) == cluster.broker.endpoints
            assert f"listener A://127.0.0.1:{port} cannot be opened" in caplog.text
        assert await change(client, OLD, f"A://127.0.0.1:{port}") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])


async def test_nothing_stays_of_a_listener_that_is_bound_and_cannot_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def in_use(server: SocketServer) -> None:
        """Another program was bound too, and accepts now."""
        raise OSError("Address already in use")

    async with running(tmp_path) as (cluster, client):
        monkeypatch.setattr(SocketServer, "start", in_use)
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: "cannot be opened: Address already in use" in caplog.text)
        assert list(cluster.broker.parts.listeners.quotas.rates_of_listeners()) == ["PLAINTEXT"]


async def test_a_new_session_registers_the_changed_listeners(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        store = cluster.broker.zookeeper.store
        store.client._finish(State.EXPIRED, "expired by the test")
        await until(lambda: cluster.broker.zookeeper.store is not store)
        await cluster.wait_until_told()
        await until_told(await cluster.connect("A"), cluster.broker.endpoints["A"])


async def test_a_stop_closes_what_has_opened(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        a = await cluster.connect("A")
        await cluster.broker.stop()
        assert await a.is_closed()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (f"{OLD},A://127.0.0.1:0", None),
        ("PLAINTEXT://127.0.0.1:0,EXTRA://:2", None),
        (
            "PLAINTEXT://127.0.0.1:2,EXTRA://:1",
            "listener PLAINTEXT://127.0.0.1:0, which brokers use, keeps its address while the broker runs",
        ),
        (f"{OLD},TLS://:1", "listener TLS://:1: SSL is not supported yet, only PLAINTEXT is"),
    ],
)
def test_the_listener_of_brokers_stays_where_it_is(changed: str, problem: str | None) -> None:
    static: dict[str, Any] = {
        "listeners": f"{OLD},EXTRA://:1",
        "listener.security.protocol.map": f"{PROTOCOLS},EXTRA:PLAINTEXT",
        "zookeeper.connect": "z",
    }
    config = BrokerConfig.from_properties(static)
    found = change_problems(config, config.with_dynamic(broker={"listeners": changed}))
    assert found == ([] if problem is None else [problem])


async def test_listeners_that_another_program_has_stored_open_only_as_far_as_they_can(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        assert await change(client, OLD, "TLS://127.0.0.1:0") == ErrorCode.INVALID_REQUEST
        zk = cluster.broker.zookeeper.store.client
        stored = f'{{"listeners":"PLAINTEXT://127.0.0.1:1,TLS://127.0.0.1:2,A://127.0.0.1:0",\
"listener.security.protocol.map":"{PROTOCOLS}"}}'
        await zk.ensure_path("/config/brokers/0")
        await zk.set("/config/brokers/0", f'{{"version":1,"config":{stored}}}'.encode())
        notification = b'{"version":2,"entity_path":"brokers/0"}'
        await zk.create("/config/changes/config_change_", notification, sequential=True)
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        await until_told(await cluster.connect("A"), cluster.broker.endpoints["A"])
        assert await registered(cluster) == cluster.broker.endpoints
        await until_told(client, cluster.broker.endpoints["PLAINTEXT"])


async def test_no_acknowledged_record_is_lost_while_listeners_come_move_and_go(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        acknowledged: list[bytes] = []

        async def produce_on(name: str) -> None:
            """Until the listener has gone; what is sent again may be there twice."""
            number = 0
            while name in cluster.broker.endpoints:
                value = b"%s %d" % (name.encode(), number)
                try:
                    producer = await cluster.connect(name)
                    while (await producer.produce("t", 0, batch(value))).error_code == ErrorCode.NONE:
                        acknowledged.append(value)
                        number += 1
                        value = b"%s %d" % (name.encode(), number)
                except (OSError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.001)

        assert await change(client, OLD, "A://127.0.0.1:0", "B://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "B", "PLAINTEXT"])

        def has_moved(before: tuple[str, int], count: int) -> bool:
            return cluster.broker.endpoints["A"] != before and len(acknowledged) > count + 20

        producing = [asyncio.ensure_future(produce_on(name)) for name in ("A", "B")]
        for a in (f"A://127.0.0.1:{free_port()}", f"A://127.0.0.1:{free_port()}"):
            before = cluster.broker.endpoints["A"]
            assert await change(client, OLD, a, "B://127.0.0.1:0") == ErrorCode.NONE
            count = len(acknowledged)
            await until(partial(has_moved, before, count))
        assert await change(client, OLD) == ErrorCode.NONE
        await asyncio.gather(*producing)
        kept, offset = [], 0
        while found := values((await client.fetch("t", 0, offset)).records):
            kept += found
            offset += len(found)
        assert set(acknowledged) <= set(kept)
        assert len(acknowledged) > 40


async def test_a_registration_that_zookeeper_does_not_take_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.broker.start.listener_changes.RETRY_BACK_OFF_MS", 1)
    async with running(tmp_path) as (cluster, client):
        update, refused = cluster.broker.parts.registrar.update, [ConnectionLoss("/"), NoNode("/brokers/ids/0")]

        async def refusing(*arguments: Any) -> None:
            if refused:
                raise refused.pop()
            await update(*arguments)

        monkeypatch.setattr(cluster.broker.parts.registrar, "update", refusing)
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        await until_told(await cluster.connect("A"), cluster.broker.endpoints["A"])
        assert refused == []


async def test_an_address_of_another_broker_is_not_registered_and_no_listener_closes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (cluster, client):
        assert await change(client, OLD, "A://127.0.0.1:0") == ErrorCode.NONE
        await until(lambda: names(cluster) == ["A", "PLAINTEXT"])
        await until_told(await cluster.connect("A"), cluster.broker.endpoints["A"])
        before = await registered(cluster)
        other = b'{"version":1,"host":"127.0.0.1","port":7,"jmx_port":-1,"timestamp":"1"}'
        await cluster.broker.zookeeper.store.client.create(broker_path(5), other)
        port = cluster.broker.endpoints["PLAINTEXT"][1]
        advertised = f"PLAINTEXT://127.0.0.1:{port},B://127.0.0.1:7"
        assert await change(client, OLD, "B://127.0.0.1:0", advertised_listeners=advertised) == ErrorCode.NONE
        await until(lambda: "belongs to broker 5 already" in caplog.text)
        assert (names(cluster), await registered(cluster)) == (["A", "B", "PLAINTEXT"], before)
        # The broker would stop if it could not register in its next session.
        epoch = cluster.broker_epoch
        cluster.broker.zookeeper.store.client._finish(State.EXPIRED, "expired by the test")
        await until(lambda: cluster.broker_epoch != epoch or cluster.broker.failure.done())
        assert await registered(cluster) == before


@pytest.mark.loop("asyncio", "uvloop")
async def test_hosts_that_are_none_stop_no_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    label = "a" * 70  # One longer than a name's part may be.

    def is_told(times: int) -> bool:
        return caplog.text.count("A://") >= times

    async with running(tmp_path) as (cluster, client):
        for number, host in enumerate((label, "...", "%", "256.256.256.256")):
            overrides = f"{host}:1,.{label}:1"
            assert await change(
                client, OLD, f"A://{host}:1", f"B://127.0.0.1:{0}", max_connections_per_ip_overrides=overrides
            ) in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
            await until(partial(is_told, number + 1))
        await until_told(await cluster.connect("B"), cluster.broker.endpoints["B"])
        assert "max.connections.per.ip.overrides: " in caplog.text
