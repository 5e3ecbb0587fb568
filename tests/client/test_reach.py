"""What a person is told, and how soon, about addresses at which there is no broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from klamm.cli import main
from klamm.client import cluster as cluster_module
from klamm.client.cluster import ClusterClient, DifferentClusters
from klamm.client.retries import Attempts
from klamm.net.client import ConnectFailed, ConnectionOptions, NoAnswer
from support.processes import free_port
from support.scripted_broker import ScriptedBroker
from support.scripted_cluster import ScriptedCluster

Address = tuple[str, int]


@asynccontextmanager
async def program(says: bytes) -> AsyncIterator[Address]:
    """A program that is no broker: it says this at once, and nothing more."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


async def test_a_silent_program_does_not_hold_back_the_broker_beside_it() -> None:
    async with ScriptedCluster() as cluster, program(b"") as silent:
        client = ClusterClient([silent, cluster.address(0)], ConnectionOptions(connect_timeout_ms=10**9))
        # The connection to the silent program may take longer than the runner's limit.
        await client.reach(10**9, 1_000)
        await client.refresh_metadata(())
        await client.close()


async def test_addresses_of_different_clusters_are_an_error_that_names_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(cluster_module, "COMPARE_FOR_S", 10**6)
    async with ScriptedCluster(cluster_id="one") as one, ScriptedCluster(cluster_id="two") as two:
        addresses = [one.address(0), two.address(0), one.address(0)]
        texts = [f"{host}:{port}" for host, port in addresses]
        told = f"the addresses belong to different clusters: {texts[0]} to cluster one; {texts[1]} to cluster two"
        client = ClusterClient(addresses)
        with pytest.raises(DifferentClusters) as raised:
            await client.reach(20_000, 1_000)
        await client.close()
        assert str(raised.value) == told
        command = ["topics", "list", "--bootstrap-server", ",".join(texts)]
        assert await asyncio.to_thread(main.run, command) == 2
        assert capsys.readouterr().err == f"klamm: --bootstrap-server: {told}\n"


async def test_the_comparison_waits_neither_for_brokers_of_the_cluster_nor_for_refused_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "COMPARE_FOR_S", 10**6)
    async with ScriptedCluster(cluster_id="one") as one:
        client = ClusterClient([one.address(0), one.address(1), ("127.0.0.1", free_port())])
        await client.reach(20_000, 1_000)
        await client.close()


async def test_brokers_that_do_not_say_the_id_of_their_cluster_are_no_other_cluster() -> None:
    async with ScriptedCluster(cluster_id="one") as one, ScriptedCluster() as old:
        client = ClusterClient([one.address(0), old.address(0)])
        await client.reach(20_000, 1_000)
        await client.close()


async def test_an_attempt_that_the_end_cuts_short_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = ("127.0.0.1", free_port())
    client = ClusterClient([nobody])
    refused = await client._connect_to_one(1_000)
    attempts: list[list[BaseException]] = [refused, [NoAnswer("no connection within 68 ms")]]

    async def attempt(_at_most_ms: int) -> list[BaseException]:
        return attempts.pop(0)

    monkeypatch.setattr(client, "_connect_to_one", attempt)
    monkeypatch.setattr(Attempts, "are_over", property(lambda _: not attempts))
    with pytest.raises(ConnectFailed, match="connection refused"):
        await client.reach(1_000, 1_000)
    await client.close()


async def test_each_address_has_its_reason() -> None:
    nobody = "127.0.0.1", free_port()
    async with program(b"") as silent, program(b"HTTP/1.1 400 Bad Request\r\n\r\n") as http:
        client = ClusterClient([silent, http, nobody])
        with pytest.raises(ConnectFailed) as raised:
            await client.reach(2_000, 1)
        await client.close()
    told = str(raised.value).split("; ")
    assert told == [
        f"{silent[0]}:{silent[1]}: a connection, but no answer of a Kafka broker, within 2000 ms",
        f"{http[0]}:{http[1]}: not a Kafka broker, its answer is a frame of 1213486160 bytes (first two bytes 12081), "
        "allowed are 0 to 134217728",
        f"{nobody[0]}:{nobody[1]}: connection refused, no program listens at this port",
    ]


async def test_where_nothing_can_come_a_person_is_told_soon() -> None:
    """A long wait is for programs that are silent, not for ports at which no broker listens."""
    async with program(b"SSH-2.0-OpenSSH\r\n") as ssh:
        client = ClusterClient([("127.0.0.1", free_port()), ssh])
        with pytest.raises(ConnectFailed, match=r"connection refused.*not a Kafka broker"):
            await client.reach(10**9, 1)
        await client.close()


async def test_a_broker_that_is_just_starting_is_waited_for() -> None:
    port = free_port()
    client = ClusterClient([("127.0.0.1", port)])
    reaching = asyncio.ensure_future(client.reach(20_000, 20_000))
    await asyncio.sleep(0.05)
    broker = await ScriptedBroker().start(port)
    await reaching
    await client.close()
    broker.stop()
