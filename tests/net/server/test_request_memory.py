"""The budget for requests: its parts, who waits for memory, and clients that begin large requests and do not send."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.net.framing import FIRST_ALLOCATION_BYTES
from klamm.net.server.connection_quotas import ConnectionQuotas
from klamm.net.server.exchange import Answer, AnswerOnly, Exchange, Response
from klamm.net.server.request_memory import Part, RequestMemory, Sender
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory
from klamm.net.server.server import SocketServer
from klamm.net.server.server_connection import ServerConnection, ServerLimits

pytestmark = pytest.mark.loop("virtual")

MB = 1024 * 1024
KB = 1024


class Client(Sender):
    """A connection whose client has sent this much of its request."""

    received_bytes = 0
    is_held_up = False

    def __init__(self, part: Part) -> None:
        self.part = part
        self.granted = 0
        self.reasons: list[str] = []

    def memory_granted(self) -> None:
        self.granted += 1

    def disconnect(self, reason: str) -> None:
        self.reasons.append(reason)


# -- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_bytes", "api_key", "part"),
    [(64 * KB, 0, "small"), (64 * KB + 1, 0, "produces"), (64 * KB + 1, 1, "others"), (10 * MB, None, "others")],
)
def test_large_produces_other_large_requests_and_small_ones_have_parts_of_their_own(
    size_bytes: int, api_key: int | None, part: str
) -> None:
    memory = RequestMemory(8 * MB)
    assert memory.part_of(size_bytes, api_key) is getattr(memory, part)
    assert (memory.small.limit_bytes, memory.produces.limit_bytes, memory.others.limit_bytes) == (
        2 * MB,
        4 * MB,
        2 * MB,
    )


async def test_what_is_received_counts_once_until_it_is_released() -> None:
    part = Part(4 * MB)
    client = Client(part)
    assert part.grow(client, MB) and part.grow(client, MB)
    assert (part.receiving_bytes, part.held_bytes) == (2 * MB, 0)
    part.received(client, 2 * MB)
    assert (part.receiving_bytes, part.held_bytes) == (0, 2 * MB)
    # The connection ends before the request does.
    part.gone(client)
    assert part.held_bytes == 2 * MB
    part.release(2 * MB)
    assert (part.receiving_bytes, part.held_bytes) == (0, 0)


async def test_requests_that_are_half_received_do_not_wait_for_each_other() -> None:
    part = Part(4 * MB)
    clients = [Client(part) for _ in range(4)]
    assert all(part.grow(client, MB) for client in clients)
    assert not part.grow(clients[2], MB)
    assert not part.grow(clients[1], MB)
    # The one that began first goes on beyond the limit, and then the next one.
    assert part.grow(clients[0], MB)
    part.received(clients[0], 2 * MB)
    assert (clients[1].granted, clients[2].granted) == (1, 0)
    part.received(clients[1], 2 * MB)
    assert clients[2].granted == 0, "complete requests alone fill the part"
    part.release(2 * MB)
    assert clients[2].granted == 1
    for client in clients[2:]:
        part.gone(client)
    part.release(2 * MB)
    assert (part.receiving_bytes, part.held_bytes) == (0, 0)


async def test_silent_clients_are_disconnected_while_others_wait_and_no_others_are() -> None:
    part = Part(4 * MB)
    silent, slow, late = Client(part), Client(part), Client(part)
    assert part.grow(silent, 2 * MB) and part.grow(slow, 2 * MB)
    await asyncio.sleep(10)
    assert silent.reasons == [], "nobody waits"
    waiting = Client(part)
    silent.received_bytes = slow.received_bytes = 1
    assert not part.grow(waiting, MB)
    for _ in range(15):
        slow.received_bytes += 1
        await asyncio.sleep(0.1)
    assert silent.reasons == [] and not waiting.granted
    for _ in range(20):
        slow.received_bytes += 1
        await asyncio.sleep(0.1)
    assert waiting.granted == 1
    assert "has sent nothing of its request for 2" in silent.reasons[0]
    assert "queued.max.request.bytes" in silent.reasons[0]
    # A client that sends a little at a time has half a minute.
    assert not part.grow(late, 4 * MB)
    for _ in range(200):
        slow.received_bytes += 1
        waiting.received_bytes += 1
        await asyncio.sleep(0.1)
    assert "not all within 30" in slow.reasons[0]
    assert waiting.reasons == [], "the time that it was kept waiting does not count, and it sends"
    part.gone(waiting)
    assert late.granted == 1


async def test_a_client_that_the_broker_does_not_read_is_not_silent() -> None:
    """It is muted for its own requests, which wait for their acknowledgement. It has no more time than others."""
    part = Part(2 * MB)
    muted, waiting = Client(part), Client(part)
    muted.is_held_up = True
    assert part.grow(muted, 2 * MB)
    assert not part.grow(waiting, MB)
    await asyncio.sleep(29)
    assert muted.reasons == [] and not waiting.granted
    await asyncio.sleep(2)
    assert "not all within 30" in muted.reasons[0] and waiting.granted == 1
    part.gone(waiting)


async def test_a_waiting_client_that_goes_leaves_nothing_behind() -> None:
    part = Part(2 * MB)
    first, second = Client(part), Client(part)
    assert part.grow(first, 2 * MB)
    assert not part.grow(second, MB)
    part.gone(second)
    part.gone(second)
    part.gone(first)
    assert part.receiving_bytes == 0 and not second.granted
    assert part.grow(second, 2 * MB)


# -- on a server ------------------------------------------------------------------------------------------------------


class Harness:
    """A server that answers a frame with its first bytes; frames that contain `wait` when they are released."""

    def __init__(self, budget_bytes: int, max_in_flight: int = 100) -> None:
        self.release = asyncio.Event()
        self.failures: list[BaseException] = []
        self.server = SocketServer(
            "PLAINTEXT",
            "127.0.0.1",
            0,
            dispatch=self.dispatch,
            is_pipelined=lambda frame: frame[:2] == b"\0\0",
            size_limit=lambda key: 100 * MB,
            limits=ServerLimits(queued_max_request_bytes=budget_bytes, max_in_flight=max_in_flight),
            quotas=ConnectionQuotas(),
            request_queue=RequestQueue(),
            response_memory=ResponseMemory(MB),
            on_failure=self.failures.append,
        )

    def dispatch(
        self, connection: ServerConnection, frame: bytearray, exchange: Exchange
    ) -> Answer | Awaitable[Answer]:
        answer = Response([struct.pack(">i", 10), bytes(frame[:10])])
        if frame[2:6] != b"wait":
            return answer

        async def later() -> Response:
            await self.release.wait()
            return answer

        return AnswerOnly(later)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, body: bytes, size: int | None = None) -> None:
        self.writer.write(struct.pack(">i", len(body) if size is None else size) + body)

    async def answer(self) -> bytes:
        return (await self.reader.readexactly(14))[4:]

    async def closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[Harness, Callable[[], Awaitable[Peer]]]]:
    harness = Harness(**options)
    await harness.server.bind()
    await harness.server.start()
    peers: list[Peer] = []

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", harness.server.port)))
        return peers[-1]

    try:
        async with asyncio.timeout(120):
            yield harness, connect
    finally:
        for peer in peers:
            peer.writer.transport.abort()
        await harness.server.stop(1000)
    assert harness.failures == []
    memory = harness.server.request_memory
    assert memory.held_bytes == 0, "all memory is given back"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what the server has received is told by nothing else
        await asyncio.sleep(0.005)


@pytest.mark.loop("asyncio")
async def test_clients_that_begin_large_requests_leave_the_others_their_share() -> None:
    """50 clients send half of a megabyte each, against 8 MB. Small requests and the large ones of others go on."""
    async with running(budget_bytes=8 * MB) as (harness, connect):
        memory = harness.server.request_memory
        peers = [await connect() for _ in range(50)]
        for peer in peers:
            peer.send(b"\0\0" + bytes(MB // 2), size=MB)
        await until(lambda: memory.produces.receiving_bytes >= memory.produces.limit_bytes)
        small = await connect()
        for number in range(20):
            small.send(b"\0\1small%03d" % number)
            assert await small.answer() == b"\0\1small%03d" % number
        assert memory.produces.receiving_bytes <= memory.produces.limit_bytes + MB
        other, produce = await connect(), await connect()
        other.send(b"\0\3other..." + bytes(MB))
        assert await other.answer() == b"\0\3other..."
        # Those that are silent are disconnected after two seconds, and the next in turn get their memory.
        produce.send(b"\0\0produce." + bytes(MB))
        for peer in peers[:4]:
            assert await peer.closed()
        for peer in peers[4:]:
            peer.writer.write(bytes(MB // 2 - 2))
        for peer in peers[4:]:
            assert await peer.answer() == b"\0\0" + bytes(8)
        assert await produce.answer() == b"\0\0produce."


@pytest.mark.loop("asyncio")
async def test_a_frame_takes_no_memory_before_it_is_granted() -> None:
    """Each of them announces 100 MB: without a bound, a few bytes would cost a megabyte."""
    async with running(budget_bytes=4 * MB) as (harness, connect):
        peers = [await connect() for _ in range(64)]
        for peer in peers:
            peer.send(b"\0\0abcdefgh", size=100 * MB)
        memory = harness.server.request_memory
        await until(lambda: memory.produces._waiting == 62)
        frames = [connection._frame for connection in harness.server._connections]
        sizes = sorted(len(frame) for frame in frames if frame is not None)
        assert sizes == [10] * 62 + [FIRST_ALLOCATION_BYTES] * 2


@pytest.mark.loop("asyncio")
async def test_a_connection_may_always_have_one_small_request() -> None:
    async with running(budget_bytes=MB) as (harness, connect):
        greedy = [await connect() for _ in range(8)]
        body = b"\0\0wait" + bytes(60 * KB)
        for peer in greedy:
            for _ in range(10):
                peer.send(body)
        memory = harness.server.request_memory
        await until(lambda: memory.small.is_full)
        follower = await connect()
        for number in range(20):
            follower.send(b"\0\1fetch%03d" % number)
            assert await follower.answer() == b"\0\1fetch%03d" % number
        assert memory.small.held_bytes < memory.small.limit_bytes + 8 * 2 * len(body)
        harness.release.set()
        for peer in greedy:
            for _ in range(10):
                assert await peer.answer() == body[:10]


@pytest.mark.loop("asyncio")
async def test_what_a_client_leaves_behind_is_given_back() -> None:
    async with running(budget_bytes=8 * MB) as (harness, connect):
        memory = harness.server.request_memory
        peer = await connect()
        for _ in range(3):
            peer.send(b"\0\0wait" + bytes(10 * KB))
        peer.send(b"\0\0wait" + bytes(MB))
        peer.send(b"\0\0" + bytes(100 * KB), size=MB)
        await until(lambda: memory.held_bytes >= MB + 30 * KB)
        peer.writer.transport.abort()
        await until(lambda: memory.held_bytes == 0)


@pytest.mark.loop("asyncio")
@pytest.mark.parametrize("key", [b"\0\0", b"\0\1"])
async def test_large_requests_behind_one_that_waits_take_no_memory_from_others(key: bytes) -> None:
    """A fetch may wait for days."""
    async with running(budget_bytes=8 * MB) as (harness, connect):
        greedy = [await connect() for _ in range(8)]
        for peer in greedy:
            peer.send(b"\0\1wait....")
            peer.send(key + b"large..." + bytes(MB - 10))
        memory = harness.server.request_memory
        connections = harness.server._connections
        await until(lambda: sum(one.mid_frame or bool(one._waiting) for one in connections) == len(greedy))
        other = await connect()
        other.send(key + b"other..." + bytes(MB))
        async with asyncio.timeout(120):
            assert await other.answer() == key + b"other..."
        assert memory.produces.held_bytes == memory.others.held_bytes == 0
        harness.release.set()
        for peer in greedy:
            assert await peer.answer() == b"\0\1wait...."
            assert await peer.answer() == key + b"large..."


@pytest.mark.loop("asyncio")
async def test_a_large_request_of_a_client_that_does_not_read_its_responses_takes_no_memory() -> None:
    async with running(budget_bytes=8 * MB) as (harness, connect):
        peer = await connect()
        peer.send(b"\0\1small...")
        assert await peer.answer() == b"\0\1small..."
        (connection,) = harness.server._connections
        connection.pause_writing()
        peer.send(b"\0\0large..." + bytes(MB))
        await until(lambda: connection.mid_frame)
        assert harness.server.request_memory.held_bytes == 0
        connection.resume_writing()
        assert await peer.answer() == b"\0\0large..."
