"""The server side of the network layer: order, muting, limits, closing."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.net.server import server_connection
from klamm.net.server.connection_quotas import ConnectionQuotas
from klamm.net.server.exchange import Answer, AnswerOnly, Exchange, InvalidRequest, Response
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory
from klamm.net.server.server import SocketServer
from klamm.net.server.server_connection import REQUESTS_PER_SLICE, ServerConnection, ServerLimits


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """A client that sends and receives raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.transport: Any = writer.transport  # of asyncio or of uvloop

    def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(frame, bodies)))

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


# In front of a frame: of the only API whose large requests are read ahead.
PRODUCE_KEY = bytes(2)


class Harness:
    """A server whose dispatcher answers frames that begin with `now:` at once and those with `wait:` when released.

    Frames that begin with `prod:` wait as well, but are pipelined. So do those that begin with `change:`, which has to
    be done whoever hangs up, and then for `answer:` and the rest, of which nothing but the answer comes.
    """

    def __init__(self, limits: ServerLimits | None = None, max_frame_bytes: int = 1000) -> None:
        self.started: list[bytes] = []
        self.done: list[bytes] = []
        self.failures: list[BaseException] = []
        self.releases: dict[bytes, asyncio.Future[None]] = {}
        self.throttle_time_ms = 0
        self.throttles: dict[bytes, int] = {}
        self.answer_bytes = 0
        self.new_start = asyncio.Event()
        self.server = SocketServer(
            "PLAINTEXT",
            "127.0.0.1",
            0,
            dispatch=self.dispatch,
            is_pipelined=lambda data: data.removeprefix(PRODUCE_KEY).startswith(b"prod:"),
            size_limit=lambda key: max_frame_bytes,
            limits=limits or ServerLimits(),
            quotas=ConnectionQuotas(),
            request_queue=RequestQueue(),
            response_memory=ResponseMemory(1024 * 1024),
            on_failure=self.failures.append,
        )

    def dispatch(self, connection: ServerConnection, data: bytearray, exchange: Exchange) -> Answer | Awaitable[Answer]:
        body = bytes(data).removeprefix(PRODUCE_KEY)
        self.started.append(body)
        self.new_start.set()
        if body.endswith(b"of c"):
            exchange.client_id = "c\n"
        if body.startswith(b"bad"):
            raise InvalidRequest("because it is bad")
        if body.startswith(b"fault"):
            raise ZeroDivisionError("a fault of the program")
        if body.startswith(b"silent"):
            return Response(None)
        if body.startswith((b"wait:", b"prod:")):
            return AnswerOnly(lambda: self._later(body))
        if body.startswith(b"change:"):
            return self._change(body)
        return Response([frame(body + bytes(self.answer_bytes))], self.throttle_time_ms)

    async def _later(self, body: bytes) -> Response:
        self.new_start.set()
        await self.release(body)
        return Response([frame(body)], self.throttles.get(body, 0))

    async def _change(self, body: bytes) -> AnswerOnly[Response]:
        await self.release(body)
        self.done.append(body)
        return AnswerOnly(lambda: self._later(b"answer:" + body))

    def release(self, body: bytes) -> "asyncio.Future[None]":
        return self.releases.setdefault(body, asyncio.get_running_loop().create_future())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self.new_start.clear()
                await self.new_start.wait()

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", self.server.port))


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Harness]:
    harness = Harness(**options)
    await harness.server.bind()
    await harness.server.start()
    try:
        async with asyncio.timeout(120):
            yield harness
    finally:
        await harness.server.stop(0)


async def test_a_request_is_answered() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"now:1")
        assert await peer.receive() == b"now:1"


async def test_what_follows_a_waiting_request_starts_only_after_its_answer() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"wait:1", b"now:2")
        await harness.until(lambda: bool(harness.started))
        other = await harness.connect()
        other.send(b"now:other")
        assert await other.receive() == b"now:other"  # another connection does not wait
        assert harness.started == [b"wait:1", b"now:other"]
        harness.release(b"wait:1").set_result(None)
        assert await peer.receive() == b"wait:1"
        assert await peer.receive() == b"now:2"


async def test_pipelined_requests_start_together_and_are_answered_in_order() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"prod:1", b"prod:2", b"now:3")
        await harness.until(lambda: len(harness.started) == 2)
        harness.release(b"prod:2").set_result(None)
        other = await harness.connect()
        other.send(b"now:other")
        await other.receive()
        assert harness.started == [b"prod:1", b"prod:2", b"now:other"]
        harness.release(b"prod:1").set_result(None)
        assert [await peer.receive() for _ in range(3)] == [b"prod:1", b"prod:2", b"now:3"]


async def test_a_client_that_sends_very_many_requests_at_once_lets_others_have_the_loop() -> None:
    async with running() as harness:
        client = await harness.connect()
        client.send(*[b"now:%d" % number for number in range(1000)])
        in_turn = []
        while sum(in_turn) < 1000:
            await asyncio.sleep(0)
            in_turn.append(len(harness.started) - sum(in_turn))
        assert max(in_turn) == 20
        for number in range(1000):
            assert await client.receive() == b"now:%d" % number


async def test_a_request_without_response() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"silent", b"now:1")
        assert await peer.receive() == b"now:1"


@pytest.mark.parametrize(
    "bytes_sent",
    [
        frame(b"bad"),
        struct.pack(">i", -1),
        struct.pack(">i", 1001) + b"x" * 1001,
        struct.pack(">i", 2**31 - 1) + b"xx",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_garbage_closes_its_own_connection_only(bytes_sent: bytes) -> None:
    async with running() as harness:
        peer, other = await harness.connect(), await harness.connect()
        peer.writer.write(bytes_sent)
        assert await peer.closed()
        other.send(b"now:1")
        assert await other.receive() == b"now:1"
        assert harness.failures == []


async def test_why_connections_were_closed_is_logged_once_for_each_client(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as harness:
        for _ in range(3):
            for bytes_sent in (frame(b"bad"), frame(b"bad of c"), struct.pack(">i", -1), b"\0\0\0\3x"):
                peer = await harness.connect()
                peer.writer.write(bytes_sent)
                peer.writer.write_eof()
                assert await peer.closed()
    lines = [
        "PLAINTEXT 127.0.0.1: closed: because it is bad",
        "PLAINTEXT 127.0.0.1 client 'c\\n': closed: because it is bad",
        "PLAINTEXT 127.0.0.1: closed: a frame of -1 bytes, allowed are 0 to 1000",
        "PLAINTEXT 127.0.0.1: closed by the client in the middle of a frame",
    ]
    assert caplog.messages == lines + [f"{line} (2 more)" for line in lines]


async def test_a_fault_of_the_program_is_handed_up() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"fault")
        await harness.until(lambda: bool(harness.started))
        assert [type(failure) for failure in harness.failures] == [ZeroDivisionError]


async def test_a_client_that_never_reads_is_muted_and_hurts_nobody() -> None:
    async with running() as harness:
        harness.answer_bytes = 1024 * 1024
        greedy = await harness.connect()
        greedy.transport.pause_reading()
        greedy.send(*[b"now:%d" % number for number in range(200)])
        other = await harness.connect()
        harness.answer_bytes = 1024 * 1024
        for _ in range(20):
            other.send(b"now:other")
            await other.receive()
        started = sum(body != b"now:other" for body in harness.started)
        assert 0 < started < 100
        # Once it reads, it gets every answer, in order.
        greedy.transport.resume_reading()
        for number in range(200):
            assert (await greedy.receive()).startswith(b"now:%d" % number)


async def test_the_number_of_requests_under_way_is_bounded() -> None:
    async with running(limits=ServerLimits(max_in_flight=10)) as harness:
        peer = await harness.connect()
        sent = 20_000
        peer.send(*[b"prod:%d" % number for number in range(sent)])
        await harness.until(lambda: len(harness.started) >= 10)
        other = await harness.connect()
        for _ in range(20):
            other.send(b"now:other")
            await other.receive()
        started = [body for body in harness.started if body != b"now:other"]
        # One receive buffer's worth (64 KiB) of frames may have arrived together.
        assert len(started) < 64 * 1024 // len(frame(b"prod:1"))
        for number in range(sent):
            harness.release(b"prod:%d" % number).set_result(None)
        for number in range(sent):
            assert await peer.receive() == b"prod:%d" % number


async def test_a_throttled_client_is_answered_at_once_and_then_muted() -> None:
    async with running() as harness:
        peer = await harness.connect()
        harness.throttle_time_ms = 60_000
        peer.send(b"now:1", b"now:2")
        assert await peer.receive() == b"now:1"
        other = await harness.connect()
        other.send(b"now:other")
        assert await other.receive() == b"now:other"
        assert harness.started == [b"now:1", b"now:other"]


async def test_what_a_throttled_client_has_sent_does_not_use_up_the_queue_of_requests() -> None:
    async with running() as harness:
        queue = harness.server.request_queue = RequestQueue(2)
        peer = await harness.connect()
        harness.throttles = {b"wait:1": 60_000}
        peer.send(b"wait:1", b"now:2", b"now:3")
        await harness.until(lambda: harness.started == [b"wait:1"])
        assert queue.is_full
        harness.release(b"wait:1").set_result(None)
        assert await peer.receive() == b"wait:1"
        assert not queue.is_full


@pytest.mark.loop("asyncio", "uvloop")
@pytest.mark.parametrize("ends", ["closed", "reset", "unread"])
async def test_a_throttled_client_that_has_hung_up_keeps_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    looks, look = [], server_connection._has_hung_up

    def noted(descriptor: int) -> bool:
        looks.append(look(descriptor))
        harness.new_start.set()
        return looks[-1]

    monkeypatch.setattr(server_connection, "HANG_UP_CHECK_S", 0.01)
    monkeypatch.setattr(server_connection, "_has_hung_up", noted)
    async with running() as harness:
        peer = await harness.connect()
        harness.throttle_time_ms = 60_000
        peer.send(b"now:1")
        assert await peer.receive() == b"now:1"
        if ends == "unread":
            peer.send(b"now:2")  # Without an answer it may still have its effect.
        if ends == "reset":
            linger = struct.pack("ii", 1, 0)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        peer.writer.close()
        await harness.until(lambda: True in looks or (ends == "unread" and len(looks) == 3))
        while True in looks and harness.server.connection_count:  # noqa: ASYNC110  # a few turns of the loop
            await asyncio.sleep(0)
        assert harness.server.connection_count == (ends == "unread")


async def test_a_throttled_client_goes_on_afterwards() -> None:
    async with running() as harness:
        peer = await harness.connect()
        harness.throttle_time_ms = 1
        peer.send(b"now:1", b"now:2", b"now:3")
        assert [await peer.receive() for _ in range(3)] == [b"now:1", b"now:2", b"now:3"]


async def test_the_longest_throttle_time_of_pipelined_requests_counts() -> None:
    async with running() as harness:
        peer = await harness.connect()
        harness.throttles = {b"prod:1": 60_000, b"prod:2": 1}
        peer.send(b"prod:1", b"prod:2")
        await harness.until(lambda: len(harness.started) == 2)
        harness.release(b"prod:2").set_result(None)
        harness.release(b"prod:1").set_result(None)
        assert [await peer.receive() for _ in range(2)] == [b"prod:1", b"prod:2"]
        peer.send(b"now:3")
        other = await harness.connect()
        for _ in range(10):
            other.send(b"now:other")
            assert await other.receive() == b"now:other"
            await asyncio.sleep(0.001)
        assert b"now:3" not in harness.started


async def test_a_throttled_client_has_no_large_request_in_memory() -> None:
    async with running(max_frame_bytes=300_000) as harness:
        peer, large = await harness.connect(), b"wait:" + bytes(200_000)
        memory = harness.server.request_memory
        harness.throttle_time_ms = 50
        # The head of the second comes with the first.
        peer.writer.write(frame(b"now:1") + frame(large)[:1000])
        assert await peer.receive() == b"now:1"
        assert memory.held_bytes == 0
        peer.writer.write(frame(large)[1000:])
        await harness.until(lambda: large in harness.started)
        assert memory.held_bytes == len(large)
        harness.release(large).set_result(None)
        assert await peer.receive() == large


async def test_a_client_that_was_throttled_sends_no_large_request_ahead() -> None:
    async with running(max_frame_bytes=300_000) as harness:
        first, second = b"prod:1" + bytes(200_000), b"prod:2" + bytes(200_000)
        for throttle_time_ms, is_read in ((0, True), (1, False)):
            harness.started.clear()
            harness.releases.clear()
            peer = await harness.connect()
            harness.throttle_time_ms = throttle_time_ms
            peer.send(b"now:0")
            assert await peer.receive() == b"now:0"
            peer.send(PRODUCE_KEY + first, PRODUCE_KEY + second)
            await harness.until(lambda: first in harness.started)
            if is_read:
                await harness.until(lambda: second in harness.started)
            else:
                other = await harness.connect()
                for _ in range(10):
                    other.send(b"now:other")
                    assert await other.receive() == b"now:other"
                assert harness.server.request_memory.held_bytes <= len(PRODUCE_KEY + first) + len(b"now:other")
            for body in (first, second):
                harness.release(body).set_result(None)
                assert await peer.receive() == body


async def test_each_request_and_each_response_is_counted_once() -> None:
    """Whether it was answered at once, later or not at all, or never started; under way and after its end."""

    def counts(harness: Harness) -> tuple[int, int, int]:
        server = harness.server
        return server.request_count, server.response_count, server.bytes_in

    async with running(limits=ServerLimits(max_in_flight=100)) as harness:
        peer = await harness.connect()
        sent = [b"now:%d" % number for number in range(3 * REQUESTS_PER_SLICE + 1)]
        peer.send(*sent)
        for body in sent:
            assert await peer.receive() == body
        requests = len(sent)
        assert counts(harness) == (requests, requests, sum(4 + len(body) for body in sent))
        peer.send(b"silent", b"prod:1", b"prod:2", b"wait:3", b"now:4")
        await harness.until(lambda: len(harness.started) == requests + 3)
        assert counts(harness)[:2] == (requests + 5, requests)
        harness.release(b"prod:2").set_result(None)
        harness.release(b"prod:1").set_result(None)
        assert [await peer.receive() for _ in range(2)] == [b"prod:1", b"prod:2"]
        await harness.until(lambda: len(harness.started) == requests + 4)
        assert counts(harness)[:2] == (requests + 5, requests + 2)
        other = await harness.connect()
        other.send(b"change:1")
        await harness.until(lambda: harness.started[-1] == b"change:1")
        await hang_up(harness, peer, other)
        harness.release(b"change:1").set_result(None)
        received = [*harness.started, b"now:4"]  # The last one never started.
        responses = len([body for body in harness.started if body.startswith((b"now:", b"prod:"))])
        assert counts(harness) == (len(received), responses, sum(4 + len(body) for body in received))


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.net.server.server.CONNECTIONS_PER_SLICE", 1)
    async with running(limits=ServerLimits(connections_max_idle_ms=10)) as harness:
        peers = [await harness.connect() for _ in range(3)]
        assert [await peer.closed() for peer in peers] == [True] * 3


async def test_idle_connections_are_never_closed_with_a_negative_limit() -> None:
    async with running(limits=ServerLimits(connections_max_idle_ms=-1)) as harness:
        peer = await harness.connect()
        for number in range(20):
            peer.send(b"now:%d" % number)
            assert await peer.receive() == b"now:%d" % number


async def test_a_connection_whose_client_never_reads_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(limits=ServerLimits(connections_max_idle_ms=10)) as harness:
        closed = asyncio.Event()
        monkeypatch.setattr(harness.server, "closed", lambda _connection: closed.set())
        harness.answer_bytes = 20_000_000
        peer = await harness.connect()
        peer.transport.pause_reading()
        peer.send(b"now:1", b"now:2")
        await harness.until(lambda: bool(harness.started))
        await closed.wait()
        assert harness.started == [b"now:1"]
        harness.server._connections.clear()


async def test_a_stop_lets_requests_finish() -> None:
    async with running() as harness:
        peer, idle = await harness.connect(), await harness.connect()
        peer.send(b"wait:1", b"now:2")
        await harness.until(lambda: bool(harness.started))
        stopping = asyncio.ensure_future(harness.server.stop(10_000))
        assert await idle.closed()
        harness.release(b"wait:1").set_result(None)
        assert await peer.receive() == b"wait:1"
        assert await peer.closed()
        await stopping
        assert harness.started == [b"wait:1"]


async def hang_up(harness: Harness, *peers: Peer) -> None:
    """Returns when the server has noticed."""
    other = await harness.connect()
    for peer in peers:
        peer.writer.transport.abort()
    while harness.server.connection_count > 1:
        other.send(b"now:other")
        await other.receive()
    other.writer.close()


async def test_what_only_answers_ends_with_its_client() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"wait:1")
        await harness.until(lambda: bool(harness.started))
        await hang_up(harness, peer)
        assert harness.release(b"wait:1").cancelled()


async def test_what_a_request_changes_is_done_to_its_end_when_its_client_has_gone() -> None:
    async with running() as harness:
        peer, late = await harness.connect(), await harness.connect()
        peer.send(b"change:1")
        late.send(b"change:2")
        await harness.until(lambda: len(harness.started) == 2)
        harness.release(b"change:2").set_result(None)
        await harness.until(lambda: b"answer:change:2" in harness.releases)
        await hang_up(harness, peer, late)
        # Only the answer of the second was missing.
        assert harness.release(b"answer:change:2").cancelled()
        assert harness.done == [b"change:2"]
        harness.release(b"change:1").set_result(None)
        await harness.server.stop(10_000)
        assert harness.done == [b"change:2", b"change:1"]
        assert b"answer:change:1" not in harness.releases
        assert harness.failures == []


async def test_a_fault_of_the_program_is_handed_up_when_the_client_has_gone() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"change:1")
        await harness.until(lambda: bool(harness.started))
        await hang_up(harness, peer)
        harness.release(b"change:1").set_exception(ZeroDivisionError("a fault of the program"))
        await harness.server.stop(10_000)
        assert [type(failure) for failure in harness.failures] == [ZeroDivisionError]


async def test_a_stop_waits_for_what_clients_have_abandoned_but_not_for_ever() -> None:
    async with running() as harness:
        peer = await harness.connect()
        peer.send(b"change:1")
        await harness.until(lambda: bool(harness.started))
        await hang_up(harness, peer)
        await harness.server.stop(10)
        await asyncio.sleep(0)
        assert harness.release(b"change:1").cancelled()


@pytest.mark.parametrize("limit", ["requests", "bytes"])
async def test_a_host_that_abandons_too_much_is_not_served_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:

    limits = ServerLimits()
    if limit == "requests":
        monkeypatch.setattr("klamm.net.server.server.MAX_ABANDONED_REQUESTS_PER_HOST", 3)
    else:
        limits = ServerLimits(max_in_flight_bytes=3 * len(b"change:1"))
    async with running(limits=limits) as harness:
        present = await harness.connect()
        peers = [await harness.connect() for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.send(b"change:%d" % number)
        await harness.until(lambda: len(harness.started) == 3)
        for peer in peers:
            peer.writer.transport.abort()
        while harness.server.connection_count > 1:
            present.send(b"now:1")
            await present.receive()
        refused = await harness.connect()
        assert await refused.closed()
        present.send(b"now:2")  # Who was there is served.
        assert await present.receive() == b"now:2"
        harness.release(b"change:1").set_result(None)
        await asyncio.sleep(0)
        again = await harness.connect()
        again.send(b"now:3")
        assert await again.receive() == b"now:3"
