"""The HTTP server: what it answers, and that bad clients get a clean refusal and harm nobody."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net import http
from klamm.net.http import JSON, Answer, BadRequest, HttpServer, Refused, Request, RequestReader

pytestmark = pytest.mark.loop("uvloop")


class Scene:
    def __init__(self, max_body_bytes: int = 0) -> None:
        self.failures: list[BaseException] = []
        self.ended = asyncio.Event()
        self.made = 0
        self.server = HttpServer(
            "127.0.0.1",
            0,
            {
                "/echo": self.echo,
                "/follow": self.follow,
                "/lines": self.lines,
                "/endless": self.endless,
                "/quiet": self.quiet,
                "/fault": self.fault,
                "/body": self.body,
            },
            self.failures.append,
            max_body_bytes=max_body_bytes,
        )

    async def echo(self, request: Request) -> Answer:
        return Answer(200, repr(dict(request.parameters)).encode(), JSON)

    async def body(self, request: Request) -> Answer:
        return Answer(200, request.body)

    async def lines(self, request: Request) -> Answer:
        async def body() -> AsyncGenerator[bytes, None]:
            for number in range(3):
                await asyncio.sleep(0)
                yield b"%d\n" % number

        return Answer(200, body())

    async def endless(self, request: Request) -> Answer:
        async def body() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    self.made += 1
                    yield bytes(65536)
            finally:
                self.ended.set()

        return Answer(200, body())

    async def quiet(self, request: Request) -> Answer:
        async def body() -> AsyncGenerator[bytes, None]:
            try:
                yield b"one\n"
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        return Answer(200, body())

    async def follow(self, request: Request) -> Answer:
        return replace(await self.quiet(request), is_endless=True)

    async def fault(self, request: Request) -> Answer:
        raise ValueError("broken")

    async def ask(self, sent: bytes) -> bytes:
        """Everything that comes back until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sent)
        try:
            async with asyncio.timeout(120):
                return await reader.read()
        finally:
            writer.close()

    async def ask_and_end(self, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sent)
        writer.write_eof()
        try:
            async with asyncio.timeout(120):
                return await reader.read()
        finally:
            writer.close()

    async def status(self, sent: bytes) -> int:
        return int((await self.ask(sent)).split()[1])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


@asynccontextmanager
async def playing(max_body_bytes: int = 0) -> AsyncIterator[Scene]:
    scene = Scene(max_body_bytes)
    await scene.server.bind()
    await scene.server.start()
    try:
        yield scene
        assert scene.failures == []
    finally:
        scene.server.stop()


async def test_an_answer() -> None:
    async with playing() as scene:
        answer = await scene.ask(b"GET /echo?a=1&b=&a=%20x HTTP/1.1\r\nHost: localhost\r\nAccept:*/*\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert body == b"{'a': ' x', 'b': ''}"
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 200 OK",
            b"Content-Type: application/json",
            b"Connection: close",
            b"Cache-Control: no-store",
            b"Content-Length: 20",
        ]


async def test_a_streamed_answer_shows_where_it_ends() -> None:
    async with playing() as scene:
        answer = await scene.ask(b"GET /lines HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head.split(b"\r\n")
        assert body == b"2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n"


async def test_an_answer_in_pieces_and_a_request_in_pieces() -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        for piece in (b"GET /li", b"nes HTTP/1.0\r", b"\n\r", b"\n"):
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert (await reader.read()).endswith(b"\r\n\r\n0\n1\n2\n")
        writer.close()


HOST = b"Host: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n" + HOST, 404),
        (b"POST /nothing HTTP/1.1\r\n" + HOST, 404),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"abc", 405),
        (b"HEAD /echo HTTP/1.1\r\n" + HOST, 405),
        (b"CONNECT /echo HTTP/1.1\r\n" + HOST, 405),
        (b"CONNECT h:80 HTTP/1.1\r\n" + HOST, 400),
        (b"GET http://localhost/echo HTTP/1.1\r\n" + HOST, 200),
        (b"GET http://[h/echo HTTP/1.1\r\n" + HOST, 400),
        (b"GET http://localhost HTTP/1.1\r\n" + HOST, 404),
        (b"GET http://localhost:1/echo?a HTTP/1.0\r\n\r\n", 200),
        (b"GET http://site.example/echo HTTP/1.1\r\n" + HOST, 421),
        (b"GET http://localhost@site.example/echo HTTP/1.1\r\n" + HOST, 421),
        (b"GET https://localhost/echo HTTP/1.1\r\n" + HOST, 400),
        (b"GET http:///echo HTTP/1.1\r\n" + HOST, 400),
        (b"GET //localhost/echo HTTP/1.1\r\n" + HOST, 404),
        (b"GET /echo HTTP/1.1\r\nHost: site.example\r\n\r\n", 421),
        (b"GET /echo HTTP/1.0\r\nHost: site.example:80\r\n\r\n", 421),
        (b"GET /echo HTTP/1.1\r\nHost: \r\n\r\n", 421),
        (b"GET /echo HTTP/1.1\r\nHost: 127.0.0.2:7\r\n\r\n", 200),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, 400),
        (b"GET echo HTTP/1.1\r\n" + HOST, 400),
        (b"GET /echo\r\n\r\n", 400),
        (b"GET /echo HTTP/1.0\r\n\r\n", 200),
        (b"GET /echo HTTP/1.1\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nHost: localhost\r\n" + HOST, 400),
        (b"GET /echo HTTP/0.9\r\n" + HOST, 505),
        (b"GET /echo HTTP/2.0\r\n" + HOST, 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00", 505),
        (b"GET /echo HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n" + HOST, 200),
        (b"GET  /echo HTTP/1.1\r\n" + HOST, 400),
        (b"GET /ec\x00ho HTTP/1.1\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nx: \x00\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nx\x00y: z\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nx: y\rContent-Length: 3\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nx : y\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\n x: y\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nno colon\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nOrigin: a\r\nOrigin: b\r\n" + HOST, 400),
        (b"GET /echo HTTP/1.1\r\nx: a\r\nx: b\r\n" + HOST, 200),
        (b"\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /echo HTTP/1.1\r\nx: " + b"y" * http.MAX_HEAD_BYTES, 431),
        (b"GET /echo HTTP/1.1\r\nx: " + b"y" * http.MAX_HEAD_BYTES + b"\r\n" + HOST, 431),
        (b"GET /echo HTTP/1.1\r\n" + b"x:\r\n" * (http.MAX_HEAD_BYTES // 4) + HOST, 431),
        (b"GET /echo HTTP/1.1\r\n" + b"x:\r\n" * (http.MAX_HEAD_BYTES // 4 - 11) + HOST, 200),
        (b"GET /echo HTTP/1.1\r\nx:" + b"\r\n y" * (http.MAX_HEAD_BYTES // 4), 431),
    ],
)
async def test_refusals(sent: bytes, status: int) -> None:
    async with playing() as scene:
        assert await scene.status(sent) == status
        assert await scene.status(b"GET /echo HTTP/1.1\r\n" + HOST) == 200


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("fields", "sent", "status", "body"),
    [
        (b"", b"", 200, b""),
        (b"Content-Length: 3\r\n", b"abc", 200, b"abc"),
        (b"Content-Length: 3\r\n", b"abcGET /body HTTP/1.1\r\n" + HOST, 200, b"abc"),
        (b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc", 200, b"abc"),
        (b"Content-Length: 3, 3\r\n", b"abc", 200, b"abc"),
        (b"Content-Length: 3\r\nContent-Length: 4\r\n", b"abc", 400, b"conflicting Content-Length headers\n"),
        (b"Content-Length: 3, 4\r\n", b"abc", 400, b"conflicting Content-Length headers\n"),
        (b"Content-Length: +3\r\n", b"abc", 400, b"bad Content-Length\n"),
        (b"Content-Length: 0x3\r\n", b"abc", 400, b"bad Content-Length\n"),
        (b"Content-Length: -3\r\n", b"abc", 400, b"bad Content-Length\n"),
        (b"Content-Length: 1 0\r\n", b"abc", 400, b"bad Content-Length\n"),
        (b"Content-Length: 101\r\n", b"", 413, b"the request's body is longer than 100 bytes\n"),
        (b"Content-Length: 3\r\n" + CHUNKED, b"0\r\n\r\n", 400, b"there are both Content-Length and "),
        (CHUNKED + b"Content-Length: 3\r\n", b"0\r\n\r\n", 400, b"there are both Content-Length and "),
        (CHUNKED + CHUNKED, b"0\r\n\r\n", 501, b"multiple Transfer-Encoding headers\n"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n", 501, b"Only Transfer-Encoding: chunked is"),
        (b"Transfer-Encoding: identity\r\n", b"abc", 501, b"Only Transfer-Encoding: chunked is"),
        (b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n", 400, b"illegal header line"),
        (CHUNKED, b"0\r\n\r\n", 200, b""),
        (CHUNKED, b"2\r\nab\r\n1;name=value\r\nc\r\n0\r\ntrailer: x\r\n\r\n", 200, b"abc"),
        (CHUNKED, b"3\r\nabc\r\n0\r\n\r\n0\r\n\r\nGET /", 200, b"abc"),
        (CHUNKED, b"3\r\nabcd\r\n0\r\n\r\n", 400, b"malformed chunk footer"),
        (CHUNKED, b"3\r\nabcX\n0\r\n\r\n", 400, b"malformed chunk footer"),
        (CHUNKED, b"x\r\nabc\r\n0\r\n\r\n", 400, b"illegal chunk header"),
        (CHUNKED, b"-3\r\nabc\r\n0\r\n\r\n", 400, b"illegal chunk header"),
        (CHUNKED, b"f" * 21 + b"\r\nabc", 400, b"illegal chunk header"),
        (CHUNKED, b"f" * 20 + b"\r\n" + b"x" * 101, 413, b"the request's body is longer than 100 bytes\n"),
        (CHUNKED, b"1\r\na\r\n" * 100 + b"0\r\n\r\n", 200, b"a" * 100),
        (CHUNKED, b"1\r\na\r\n" * 101 + b"0\r\n\r\n", 413, b"the request's body is longer than 100 bytes\n"),
        (CHUNKED, (b"1;" + b"x" * 4000 + b"\r\na\r\n") * 3, 413, b"the request's body is longer than 100 bytes\n"),
        (CHUNKED, b"1;" + b"x" * http.MAX_HEAD_BYTES, 431, b"Receive buffer too long\n"),
        (CHUNKED, b"0\r\n" + b"x: y\r\n" * http.MAX_HEAD_BYTES, 431, b"Receive buffer too long\n"),
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_bodies(version: bytes, fields: bytes, sent: bytes, status: int, body: bytes) -> None:
    async with playing(max_body_bytes=100) as scene:
        answer = await scene.ask(b"POST /body HTTP/" + version + b"\r\n" + fields + HOST + sent)
        head, _, answered = answer.partition(b"\r\n\r\n")
        assert (int(head.split()[1]), answered[: len(body)]) == (status, body)
        assert status != 200 or answered == body
        assert await scene.status(b"GET /echo HTTP/1.1\r\n" + HOST) == 200


def test_a_step_reads_a_bounded_number_of_chunks() -> None:
    chunks = 2 * http.EVENTS_PER_STEP + 10
    reader, steps = RequestReader(10_000), 1
    request = reader.feed(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * chunks
    )
    while reader.has_more:
        assert request is None
        assert len(reader._body) <= steps * http.EVENTS_PER_STEP
        request, steps = reader.feed(b""), steps + 1
    assert request is None
    assert steps == 3
    end = reader.feed(b"0\r\n\r\n")
    assert end is not None
    assert end.body == b"a" * chunks


async def test_a_body_of_many_chunks_is_read_in_steps() -> None:
    chunks = 3 * http.EVENTS_PER_STEP
    head = b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with playing(max_body_bytes=10_000) as scene:
        answer = await scene.ask_and_end(head + b"1\r\na\r\n" * chunks + b"0\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n" + b"a" * chunks)


async def test_who_is_not_admitted_is_told_before_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(head: Request) -> bool:
        raise Refused(Answer(401, head.headers["host"].encode()))

    async with playing(max_body_bytes=10_000) as scene:
        monkeypatch.setattr(scene.server, "admit", admit)
        assert await scene.status(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n") == 401


async def test_an_answer_to_head_has_no_body() -> None:
    async with playing(max_body_bytes=100) as scene:
        head, _, body = (await scene.ask(b"HEAD /echo HTTP/1.1\r\n" + HOST)).partition(b"\r\n\r\n")
        assert (b"Content-Length: 2" in head.split(b"\r\n"), body) == (True, b"")
        assert (await scene.ask(b"HEAD /lines HTTP/1.1\r\n" + HOST)).endswith(b"\r\n\r\n")


async def test_a_body_is_asked_for_only_if_it_may_come() -> None:
    async with playing(max_body_bytes=100) as scene:
        for fields, told in (
            (b"Content-Length: 100\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
            (CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n"),
            (b"Content-Length: 101\r\n", b"HTTP/1.1 413 "),
            (b"Content-Length: 0\r\n", b"HTTP/1.1 200 "),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
            writer.write(b"POST /body HTTP/1.1\r\nExpect: 100-continue\r\n" + fields + HOST)
            async with asyncio.timeout(120):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(told)
            writer.close()
    async with playing() as scene:
        assert await scene.status(b"GET /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n" + HOST) == 200


@pytest.mark.parametrize("end", [b"\r\n" + HOST, b""])
def test_a_head_in_single_bytes_is_bounded_like_a_head_at_once(end: bytes) -> None:
    head = b"GET /echo HTTP/1.1\r\nx: "
    fits = head + b"y" * (http.MAX_HEAD_BYTES - len(head) - len(b"\r\n" + HOST)) + b"\r\n" + HOST
    reader = RequestReader(0)
    *early, last = (reader.feed(bytes([byte])) for byte in fits)
    assert (set(early), last and last.path) == ({None}, "/echo")
    reader, taken = RequestReader(0), 0
    with pytest.raises(BadRequest, match="the request's head is longer than 8192 bytes"):
        for byte in head + b"y" * http.MAX_HEAD_BYTES + end:
            reader.feed(bytes([byte]))
            taken += 1
    assert taken == http.MAX_HEAD_BYTES - 1


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_no_more_than_the_bounds_is_held(piece_bytes: int) -> None:
    reader, held = RequestReader(1_000), 0
    assert reader.feed(b"POST / HTTP/1.1\r\n" + CHUNKED + HOST) is None
    stream = (b"1;" + b"x" * 98 + b"\r\na\r\n") * 1_000
    with pytest.raises(BadRequest) as refused:
        for start in range(0, len(stream), piece_bytes):
            reader.feed(stream[start : start + piece_bytes])
            held = max(held, len(reader.http.trailing_data[0]))
    assert refused.value.status == 413
    assert held <= piece_bytes + 102


@pytest.mark.parametrize("path", ["echo", "lines"])
async def test_a_client_that_ends_its_side_gets_its_answer(path: str) -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
        writer.write_eof()
        async with asyncio.timeout(120):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n" + {"echo": b"{}", "lines": b"0\n1\n2\n"}[path])
        writer.close()
        await until(lambda: not scene.server._connections)


async def test_a_client_that_ends_its_side_keeps_no_answer_going(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.05)
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(b"GET /quiet HTTP/1.1\r\n" + HOST)
        writer.write_eof()
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            await scene.ended.wait()
        writer.close()


async def test_who_ends_without_having_asked_is_closed() -> None:
    async with playing() as scene:
        assert await scene.ask_and_end(b"GET /echo") == b""
        await until(lambda: not scene.server._connections)


async def test_a_request_without_an_end_is_refused_and_the_client_reads_why() -> None:
    async with playing() as scene:
        answer = await scene.ask(b"GET /" + b"x" * 5_000_000)
        assert answer.startswith(b"HTTP/1.1 431 ") and answer.endswith(b"is longer than 8192 bytes\n")
        await until(lambda: not scene.server._connections)


async def test_a_client_that_goes_on_sending_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_S", 0.05)
    async with playing() as scene:
        _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
        await until(lambda: not scene.server._connections)
        writer.close()


async def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_TIMEOUT_S", 0.05)
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(b"GET /echo HTTP/1.1\r\n")
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""


GET = b"GET /echo HTTP/1.1\r\n" + HOST
OWNER = b"GET /echo HTTP/1.1\r\nAuthorization: owner\r\n" + HOST
# What clients have sent that make the server wait, each in another phase.
PHASES = {
    "nothing": b"",
    "a part of the head": b"GET /echo HTTP/1.1\r\nx: ",
    "a part of the body": b"POST /body HTTP/1.1\r\nContent-Length: 100\r\n" + HOST + b"abc",
    "a refused body": b"POST /body HTTP/1.1\r\nContent-Length: 101\r\n" + HOST + b"abc",
    "an answer that is not read": b"GET /endless HTTP/1.1\r\n" + HOST,
}


async def connect(scene: Scene, sent: bytes) -> asyncio.StreamWriter:
    """A client that reads nothing."""
    _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1)
    writer.write(sent)
    return writer


@pytest.mark.parametrize("sent", PHASES.values(), ids=PHASES)
async def test_clients_that_make_the_server_wait_keep_nobody_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 10)
    async with playing(max_body_bytes=100) as scene:
        held = []
        for number in range(2 * http.MAX_CONNECTIONS):
            held.append(await connect(scene, sent))
            if number % 5 == 4:
                assert await scene.status(GET) == 200
        assert len(scene.server._connections) <= http.MAX_CONNECTIONS + 1
        for writer in held:
            writer.close()


async def test_the_address_that_holds_most_connections_loses_one_first() -> None:
    async with playing() as scene:
        first = await connect(scene, b"")
        await until(lambda: scene.server._connections)
        [mine] = scene.server._connections
        mine.peer = "192.0.2.1"
        others = [await connect(scene, b"") for _ in range(http.MAX_CONNECTIONS)]
        await until(lambda: len(scene.server._connections) == http.MAX_CONNECTIONS)
        assert await scene.status(GET) == 200
        assert mine in scene.server._connections
        for writer in (first, *others):
            writer.close()


async def test_known_clients_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with playing() as scene:
        monkeypatch.setattr(scene.server, "admit", lambda head: "authorization" in head.headers)
        release = asyncio.Event()

        async def wait(request: Request) -> Answer:
            await release.wait()
            return Answer(200, b"")

        monkeypatch.setattr(scene.server, "_routes", {**scene.server._routes, "/wait": wait})
        # Guests whose requests are being answered give no place away.
        guests = [asyncio.create_task(scene.status(GET.replace(b"echo", b"wait"))) for _ in range(3)]
        await until(lambda: sum(each._is_answering for each in scene.server._connections) == 3)
        assert [await scene.status(each) for each in (GET, GET)] == [503, 503]
        # They are no guests once they have shown who they are.
        release.set()
        assert await asyncio.gather(*guests) == [200] * 3
        release.clear()
        known = [asyncio.create_task(scene.status(OWNER.replace(b"echo", b"wait"))) for _ in range(3)]
        await until(lambda: sum(each._is_answering for each in scene.server._connections) == 3)
        assert not scene.server._guests
        assert [await scene.status(each) for each in (GET, OWNER)] == [200, 503]
        strangers = [await connect(scene, b"GET /") for _ in range(9)]
        release.set()
        assert await asyncio.gather(*known) == [200] * 3
        assert await scene.status(OWNER) == 200
        for writer in strangers:
            writer.close()


async def test_readers_of_endless_answers_have_a_limit_of_their_own() -> None:
    async with playing() as scene:
        followers = []
        for _ in range(http.MAX_ENDLESS):
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
            writer.write(b"GET /follow HTTP/1.1\r\n" + HOST)
            await reader.readuntil(b"one\n")
            followers.append(writer)
            # A connection that is reset is gone at once.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        refused = await scene.ask(b"GET /follow HTTP/1.1\r\n" + HOST)
        assert refused.startswith(b"HTTP/1.1 503 ") and refused.endswith(
            b"20 readers follow already; no more are served\n"
        )
        assert await scene.status(GET) == 200
        followers.pop().transport.abort()
        await until(lambda: len(scene.server._endless) < http.MAX_ENDLESS)
        assert (await asyncio.gather(*(scene.status(GET) for _ in range(30)))) == [200] * 30
        for writer in followers:
            writer.close()


async def test_the_end_waits_for_answers_to_be_read_but_not_for_long() -> None:
    async with playing() as scene:
        writer = await connect(scene, b"GET /quiet HTTP/1.1\r\n" + HOST)
        await until(lambda: any(each._is_answering for each in scene.server._connections))
        async with asyncio.timeout(120):
            await scene.server.finish(0.01)
            await scene.ended.wait()
        writer.close()
    async with playing() as scene:
        asked = asyncio.create_task(scene.ask(b"GET /lines HTTP/1.1\r\n" + HOST))
        await until(lambda: any(each._is_answering for each in scene.server._connections))
        await scene.server.finish(60)
        assert (await asked).endswith(b"0\r\n\r\n")


async def test_a_client_that_does_not_read_is_not_written_to_and_its_end_ends_the_body() -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\n" + HOST)
        await reader.readline()
        before = -1
        while before != scene.made:
            before = scene.made
            await asyncio.sleep(0.05)
        assert scene.made < 1000
        writer.transport.abort()
        async with asyncio.timeout(120):
            await scene.ended.wait()


async def test_a_client_that_does_not_read_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.05)
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\n" + HOST)
        await reader.readline()
        async with asyncio.timeout(120):
            await scene.ended.wait()
        writer.close()


async def test_a_fault_of_the_program_is_heard_of() -> None:
    scene = Scene()
    await scene.server.bind()
    await scene.server.start()
    asking = asyncio.ensure_future(scene.ask(b"GET /fault HTTP/1.1\r\n" + HOST))
    await until(lambda: scene.failures)
    assert isinstance(scene.failures[0], ValueError)
    scene.server.stop()
    await asyncio.gather(asking, return_exceptions=True)


@given(
    st.binary(max_size=200)
    | st.binary(max_size=60).map(lambda junk: b"POST /%b HTTP/1.1\r\nHost: localhost\r\nx: y" % junk),
    st.sampled_from([b"", b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n"]),
    st.binary(max_size=50),
    st.integers(1, 100),
)
def test_garbage_is_a_request_or_a_bad_one(head: bytes, end: bytes, body: bytes, piece_bytes: int) -> None:
    reader, sent = RequestReader(10), head + end + body
    try:
        for start in range(0, len(sent), piece_bytes):
            if request := reader.feed(sent[start : start + piece_bytes]):
                assert request.path.startswith("/") and len(request.body) <= 10
                return
    except BadRequest as error:
        assert str(error) and 400 <= error.status < 600
