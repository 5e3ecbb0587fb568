"""Which fault of the network concerns which connection of a broker."""

import asyncio
import gc
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from klamm.faults.commands import from_json
from klamm.faults.commands.network import (
    CutLinks,
    DelayLinks,
    HalfOpenConnections,
    LinkFault,
    Place,
    ResetConnections,
    SlowLinks,
)
from klamm.faults.network.network import Address, FaultyLoop, Network
from klamm.faults.tally import Tally
from klamm.net.server.connection_quotas import ConnectionQuotas
from klamm.net.server.exchange import Exchange, Response
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory
from klamm.net.server.server import SocketServer
from klamm.net.server.server_connection import ServerConnection, ServerLimits
from klamm.processes.readiness import CLIENT_ID
from klamm.protocol.messages import ApiKey

LIMIT_S = 120.0


# -- the vocabulary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "source", "target", "both_ways", "one_way"),
    [
        ((0,), (1, 2), 0, 2, True, True),
        ((0,), (1, 2), 2, 0, True, False),
        ((0,), (1, 2), 1, 2, False, False),
        ((0,), (0, 1), 0, 0, False, False),
        ((0,), ("brokers",), 0, 5, True, True),
        ((0,), ("brokers",), 5, 0, True, False),
        ((0,), ("brokers",), 5, 6, False, False),
        ((0,), ("brokers",), 0, "zookeeper", False, False),
        (("brokers",), ("zookeeper",), 3, "zookeeper", True, True),
        (("clients",), ("brokers", "zookeeper"), "clients", 1, True, True),
        (("clients",), ("brokers",), 1, "clients", True, False),
    ],
)
def test_a_fault_covers_the_connections_between_its_places(
    one: tuple[Place, ...], other: tuple[Place, ...], source: Any, target: Any, both_ways: bool, one_way: bool
) -> None:
    assert CutLinks(one=one, other=other).covers(source, target) is both_ways
    assert CutLinks(one=one, other=other, one_way=True).covers(source, target) is one_way


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "network.cut", "one": [], "other": [1]}, "one=() is not allowed; allowed: at least one place"),
        ({"kind": "network.cut", "one": [-1], "other": [1]}, "ids of brokers from 0"),
        ({"kind": "network.cut", "one": [1], "other": [1]}, "are not the two ends of a connection"),
        ({"kind": "network.cut", "one": ["clients"], "other": ["zookeeper"]}, "one of them must be a broker"),
        ({"kind": "network.cut", "one": ["zookeepr"], "other": [1]}, "'zookeeper'"),
        ({"kind": "network.cut", "one": [0], "other": [1], "client_id": "x"}, 'needs the place "clients"'),
        ({"kind": "network.delay", "one": [0], "other": [1], "ms": -1}, "allowed: 0 to 86,400,000"),
        ({"kind": "network.delay", "one": [0], "other": [1], "ms": 5, "jitter_ms": 6}, "allowed: 0 to ms=5"),
        ({"kind": "network.delay", "one": [0], "other": [1], "ms": float("inf")}, "a number"),
        ({"kind": "network.rate", "one": [0], "other": [1], "bytes_per_s": 0}, "allowed: 1 to"),
        ({"kind": "network.half_open", "one": [0], "other": [1], "one_way": True}, "no field 'one_way'"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_what_is_allowed(fault: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_json(fault)
    assert reason in str(refused.value)


def test_each_fault_is_its_json() -> None:
    places: dict[str, Any] = {"one": (0, "clients"), "other": (1, "zookeeper", "brokers"), "client_id": "x"}
    faults: list[LinkFault] = [
        CutLinks(**places, one_way=True, refuse=True),
        DelayLinks(**places, ms=1.5, jitter_ms=1.0, seed=7),
        SlowLinks(**places, bytes_per_s=1),
        ResetConnections(**places),
        HalfOpenConnections(**places),
    ]
    for fault in faults:
        assert from_json(fault.to_json()) == fault


def test_a_report_has_the_line_of_python_that_repeats_a_fault() -> None:
    cut = CutLinks(one=(0,), other=("clients",), client_id="x", refuse=True)
    assert cut.python() == "c.network.cut(one=(0,), other=('clients',), client_id='x', refuse=True)"
    half_open = HalfOpenConnections(one=("brokers",), other=("clients",))
    assert half_open.python() == "c.network.half_open(one=('brokers',), other=('clients',))"


def test_only_brokers_at_an_end_need_to_know_a_fault() -> None:
    cut = CutLinks(one=(0,), other=(1, "zookeeper", "clients"))
    assert [server for server in (0, 1, 2, "zookeeper") if cut.concerns(server)] == [0, 1]


# -- connections ------------------------------------------------------------------------------------------------------


class Broker:
    """Broker 0: a listener that sends each request back, and what it dials, on the loop of a broker under faults."""

    def __init__(self) -> None:
        self.addresses: dict[Address, Any] = {}
        self.network = Network(0, lambda: self.addresses)
        self.requests: list[bytes] = []
        self.struck: list[dict[str, Any]] = []
        self.server = SocketServer(
            "PLAINTEXT",
            "127.0.0.1",
            0,
            dispatch=self._answer,
            is_pipelined=lambda _: False,
            size_limit=lambda _: 100_000,
            limits=ServerLimits(),
            quotas=ConnectionQuotas(),
            request_queue=RequestQueue(),
            response_memory=ResponseMemory(1024 * 1024),
            on_failure=_fail,
        )

    def _answer(self, _: ServerConnection, request: bytearray, __: Exchange) -> Response:
        self.requests.append(bytes(request))
        return Response([struct.pack(">i", len(request)), request])

    def begin(self, fault: LinkFault) -> tuple[Tally, Callable[[], None]]:
        """Installs a fault; returns its counts, and the function that ends it."""
        installs: dict[type[LinkFault], Any] = {
            ResetConnections: self.network.reset,
            HalfOpenConnections: self.network.half_open,
        }
        tally = Tally(1, "no directory", lambda _, details: self.struck.append(dict(details)))
        return tally, installs.get(type(fault), self.network.install)(fault, tally)

    async def client(self) -> "Client":
        return Client(*await asyncio.open_connection("127.0.0.1", self.server.port))


@dataclass
class Client:
    """Sends requests, and reads what comes back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, client_id: str | None, api_key: int = ApiKey.METADATA) -> bytes:
        name = b"" if client_id is None else client_id.encode()
        length = -1 if client_id is None else len(name)
        request = struct.pack(">hhih", api_key, 0, 5, length) + name + b"body"
        self.writer.write(struct.pack(">i", len(request)) + request)
        return request

    async def gets(self, request: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            assert await self.reader.readexactly(4 + len(request)) == struct.pack(">i", len(request)) + request

    async def gets_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await self.reader.read(1)

    async def asks(self, client_id: str | None, api_key: int = ApiKey.METADATA) -> None:
        await self.gets(self.send(client_id, api_key))


def on_a_broker(test: Callable[[Broker], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def serve(broker: Broker) -> None:
        await broker.server.bind()
        await broker.server.start()
        try:
            async with asyncio.timeout(120):
                await test(broker)
        finally:
            await broker.server.stop(0)

    def run() -> None:
        broker = Broker()
        with asyncio.Runner(loop_factory=lambda: FaultyLoop(broker.network)) as runner:
            runner.run(serve(broker))

    return run


def _fail(error: BaseException) -> None:
    raise error


def cut_off(client_id: str | None = None, **options: Any) -> CutLinks:
    return CutLinks(one=("clients",), other=("brokers",), client_id=client_id, **options)


@on_a_broker
async def test_a_new_connection_is_held_until_its_client_is_known(broker: Broker) -> None:
    tally, end = broker.begin(cut_off("x"))
    x, y = await broker.client(), await broker.client()
    request = x.send("x")
    await y.asks("y")
    await y.asks(None)
    assert len(broker.requests) == 2
    assert (tally.calls, tally.hits) == (1, 1)
    assert broker.struck == [{"broker": 0, "peer": "clients", "client_id": "x"}]
    end()
    await x.gets(request)


@on_a_broker
async def test_a_client_is_known_however_its_first_request_is_cut_into_packets(broker: Broker) -> None:
    broker.begin(cut_off("x"))
    client = await broker.client()
    request = struct.pack(">hhih", ApiKey.METADATA, 0, 5, 1) + b"y" + b"body"
    for byte in struct.pack(">i", len(request)) + request:
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0.001)
    await client.gets(request)


@pytest.mark.parametrize("first", [b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\3\0\0\0", bytes(4)])
def test_what_is_no_request_gets_the_brokers_own_refusal(first: bytes) -> None:
    @on_a_broker
    async def test(broker: Broker) -> None:
        broker.begin(cut_off("x"))
        client = await broker.client()
        client.writer.write(first)
        if first[0] != 0:
            assert await client.reader.read() == b""
        else:
            await client.gets(first[4:])

    test()


@pytest.mark.parametrize(
    ("client_id", "api_key"),
    [
        ("1", ApiKey.LEADER_AND_ISR),
        ("1", ApiKey.ALTER_ISR),
        ("1", ApiKey.CONTROLLED_SHUTDOWN),
        ("broker-1-txn-marker-sender", ApiKey.WRITE_TXN_MARKERS),
        ("broker-1-fetcher-0", ApiKey.FETCH),
        ("broker-1-fetcher-0", ApiKey.OFFSET_FOR_LEADER_EPOCH),
        (CLIENT_ID, ApiKey.METADATA),
    ],
)
def test_other_brokers_and_the_cluster_itself_are_no_clients(client_id: str, api_key: ApiKey) -> None:
    @on_a_broker
    async def test(broker: Broker) -> None:
        tally, _ = broker.begin(cut_off())
        await (await broker.client()).asks(client_id, api_key)
        client = await broker.client()
        client.send("1")
        await client.gets_nothing()
        assert (tally.calls, tally.hits) == (1, 1)

    test()


@on_a_broker
async def test_a_refused_client_is_reset_at_its_first_request(broker: Broker) -> None:
    before = await broker.client()
    await before.asks("x")
    broker.begin(cut_off("x", refuse=True))
    client = await broker.client()
    client.send("x")
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    before.send("x")
    await before.gets_nothing()


@on_a_broker
async def test_connections_that_are_open_are_reset_and_later_ones_are_not(broker: Broker) -> None:
    clients = [await broker.client() for _ in range(3)]
    for client, client_id in zip(clients, ("x", "y", "x"), strict=True):
        await client.asks(client_id)
    tally, end = broker.begin(ResetConnections(one=(0,), other=("clients",), client_id="x"))
    assert (tally.calls, tally.hits) == (2, 2)
    for victim in (clients[0], clients[2]):
        with pytest.raises(ConnectionResetError):
            await victim.reader.read()
    await clients[1].asks("y")
    await (await broker.client()).asks("x")
    end()


@on_a_broker
async def test_a_half_open_connection_ends_at_the_end_that_is_told(broker: Broker) -> None:
    believer, loser = await broker.client(), await broker.client()
    await believer.asks("believer")
    await loser.asks("loser")
    _, end_believer = broker.begin(HalfOpenConnections(one=("brokers",), other=("clients",), client_id="believer"))
    _, end_loser = broker.begin(HalfOpenConnections(one=("clients",), other=("brokers",), client_id="loser"))
    believer.send("believer")
    await believer.gets_nothing()
    with pytest.raises(ConnectionResetError):
        await loser.reader.read()
    await asyncio.sleep(0)
    assert broker.server.connection_count == 1  # that of the loser
    end_believer()
    with pytest.raises(ConnectionResetError):
        await believer.reader.read()
    end_loser()
    await asyncio.sleep(0.01)
    assert broker.server.connection_count == 0


@on_a_broker
async def test_a_half_open_connection_neither_loses_nor_frees_what_is_no_longer_there_twice(broker: Broker) -> None:
    client = await broker.client()
    await client.asks("x")
    fault = HalfOpenConnections(one=("brokers",), other=("clients",))
    ends = [broker.begin(fault)[1], broker.begin(fault)[1]]
    assert len(broker.struck) == 1
    client.writer.close()
    await client.writer.wait_closed()
    await asyncio.sleep(0.01)
    for end in ends:
        end()


async def listening(broker: Broker, server: Any) -> tuple[Address, list[tuple[Any, Any]]]:
    """Another server of the cluster."""
    accepted: list[tuple[Any, Any]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append((reader, writer))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    address: Address = listener.sockets[0].getsockname()
    broker.addresses[address] = server
    return address, accepted


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("outwards", [False, True])
def test_a_new_connection_hangs_while_either_way_is_cut(one_way: bool, outwards: bool) -> None:
    @on_a_broker
    async def test(broker: Broker) -> None:
        address, accepted = await listening(broker, "zookeeper")
        one, other = ((0,), ("zookeeper",)) if outwards else (("zookeeper",), (0,))
        tally, end = broker.begin(CutLinks(one=one, other=other, one_way=one_way))  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.open_connection(*address)
        dialling = asyncio.ensure_future(asyncio.open_connection(*address))
        await asyncio.sleep(0.02)
        assert not accepted
        assert (tally.calls, tally.hits) == (2, 2)
        end()
        _, writer = await dialling
        writer.close()

    test()


@on_a_broker
async def test_a_refused_connection_raises_as_if_no_program_listened(broker: Broker) -> None:
    address, _ = await listening(broker, 1)
    _, end = broker.begin(CutLinks(one=(0,), other=("brokers",), refuse=True))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    end()
    _, writer = await asyncio.open_connection(*address)
    writer.close()


@on_a_broker
async def test_a_connection_to_a_program_that_is_no_server_is_left_alone(broker: Broker) -> None:
    address, accepted = await listening(broker, 1)
    broker.addresses.clear()
    broker.begin(CutLinks(one=(0,), other=("brokers", "zookeeper", "clients")))
    _, writer = await asyncio.open_connection(*address)
    writer.write(b"passes")
    await asyncio.sleep(0.01)
    async with asyncio.timeout(LIMIT_S):
        assert await accepted[0][0].readexactly(6) == b"passes"
    writer.close()


@on_a_broker
async def test_a_delay_holds_the_opening_of_a_connection_for_both_ways(broker: Broker) -> None:
    address, _ = await listening(broker, 1)
    loop = asyncio.get_running_loop()
    _, end = broker.begin(DelayLinks(one=(0,), other=(1,), ms=40))
    started_s = loop.time()
    _, writer = await asyncio.open_connection(*address)
    assert loop.time() - started_s >= 0.079
    writer.close()
    end()


def test_the_delays_of_a_seed_are_the_same_each_time() -> None:
    def drawn(seed: int) -> list[float]:
        broker = Broker()
        broker.addresses["a", 1] = 1
        broker.begin(DelayLinks(one=(0,), other=(1,), ms=50, jitter_ms=50, seed=seed))
        connections = [broker.network._new_connection(("a", 1)) for _ in range(2)]
        for connection in connections:
            broker.network._find_faults(connection)
        ways = [(connection, outgoing) for connection in connections for outgoing in (True, False)]
        return [
            draw()
            for connection, outgoing in ways
            for _ in range(3)
            for draw in broker.network._conditions(connection, outgoing=outgoing).delays
        ]

    assert drawn(7) == drawn(7)
    assert len(set(drawn(7))) == 12
    assert set(drawn(7)).isdisjoint(drawn(8))
    assert all(0 <= delay_s <= 0.1 for delay_s in drawn(7))


@on_a_broker
async def test_faults_of_one_connection_add_up_and_end_one_by_one(broker: Broker) -> None:
    client = await broker.client()
    await client.asks("x")
    everyone: dict[str, Any] = {"one": ("clients",), "other": (0,)}
    ends = [
        broker.begin(fault)[1]
        for fault in (
            CutLinks(**everyone),
            CutLinks(**everyone),
            DelayLinks(**everyone, ms=1),
            SlowLinks(**everyone, bytes_per_s=10**6),
        )
    ]
    request = client.send("x")
    ends[0]()
    await client.gets_nothing()
    ends[1]()
    await client.gets(request)
    ends[3]()
    ends[2]()
    await client.asks("x")


@on_a_broker
async def test_bytes_do_not_wait_for_a_delay_that_has_ended(broker: Broker) -> None:
    client = await broker.client()
    await client.asks("x")
    everyone: dict[str, Any] = {"one": ("clients",), "other": (0,)}
    ends = [broker.begin(DelayLinks(**everyone, ms=ms))[1] for ms in (3_600_000, 1, 600_000)]
    first, second = client.send("x"), client.send("x")
    ends[0]()
    await client.gets_nothing()
    ends[2]()
    await client.gets(first)
    await client.gets(second)
    ends[1]()


@on_a_broker
async def test_a_new_connection_waits_for_its_delay_whatever_else_begins_and_ends(broker: Broker) -> None:
    broker.addresses["a", 1] = 1
    _, end = broker.begin(DelayLinks(one=(0,), other=(1,), ms=3_600_000))
    dialled = asyncio.create_task(broker.network.dial(("a", 1)))
    for _ in range(3):
        await asyncio.sleep(0)
        broker.begin(DelayLinks(one=(0,), other=(2,), ms=1))[1]()
    assert not dialled.done()
    end()
    await dialled


@on_a_broker
async def test_many_connections_are_cut_and_healed(broker: Broker) -> None:
    clients = [await broker.client() for _ in range(200)]
    for round_ in range(5):
        _, end = broker.begin(cut_off())
        requests = [client.send(f"client-{round_}") for client in clients]
        await asyncio.sleep(0.01)
        assert len(broker.requests) == round_ * 200
        end()
        for client, request in zip(clients, requests, strict=True):
            await client.gets(request)


@on_a_broker
async def test_a_thousand_faults_cost_a_connection_nothing_that_they_do_not_concern(broker: Broker) -> None:
    client = await broker.client()
    await client.asks("x")
    ends = [broker.begin(cut_off(f"client-{number}"))[1] for number in range(1000)]
    tap = next(tap for tap, known in broker.network._connections.items() if known.client_id == "x")
    assert tap._is_aside
    other = await broker.client()
    request = other.send("client-999")
    await other.gets_nothing()
    await client.asks("x")
    for end in ends:
        end()
    await other.gets(request)


@on_a_broker
async def test_an_ended_connection_leaves_nothing_for_the_garbage_collector(broker: Broker) -> None:
    gc.collect()
    gc.disable()
    try:
        for client_id in ("x", "y"):
            client = await broker.client()
            await client.asks(client_id)
            client.writer.close()
            await client.writer.wait_closed()
        await asyncio.sleep(0.02)
        assert broker.server.connection_count == 0
        left = [connection for connection in broker.network._connections.values() if connection.address is None]
        assert left == []
    finally:
        gc.enable()
