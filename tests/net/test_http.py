"""The HTTP server: what it answers, and that bad clients get a clean refusal and harm nobody."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net import http
from klamm.net.http import JSON, Answer, BadRequest, HttpServer, Request, parse_request

pytestmark = pytest.mark.loop("uvloop")


class Scene:
    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.ended = asyncio.Event()
        self.made = 0
        self.server = HttpServer(
            "127.0.0.1",
            0,
            {
                "/echo": self.echo,
                "/lines": self.lines,
                "/endless": self.endless,
                "/quiet": self.quiet,
                "/fault": self.fault,
            },
            self.failures.append,
        )

    async def echo(self, request: Request) -> Answer:
        return Answer(200, repr(dict(request.parameters)).encode(), JSON)

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

    async def fault(self, request: Request) -> Answer:
        raise ValueError("broken")

    async def ask(self, sent: bytes) -> bytes:
        """Everything that comes back until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sent)
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()

    async def ask_and_end(self, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sent)
        writer.write_eof()
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()

    async def status(self, sent: bytes) -> int:
        return int((await self.ask(sent)).split()[1])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


@asynccontextmanager
async def playing() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.server.bind()
    await scene.server.start()
    try:
        yield scene
        assert scene.failures == []
    finally:
        scene.server.stop()


async def test_an_answer() -> None:
    async with playing() as scene:
        answer = await scene.ask(b"GET /echo?a=1&b=&a=%20x HTTP/1.1\r\nHost: h\r\nAccept:*/*\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert body == b"{'a': ' x', 'b': ''}"
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 200 OK",
            b"Content-Type: application/json",
            b"Connection: close",
            b"Cache-Control: no-store",
            b"Content-Length: 20",
        ]


async def test_an_answer_in_pieces_and_a_request_in_pieces() -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        for piece in (b"GET /li", b"nes HTTP/1.0\r", b"\n\r", b"\n"):
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert (await reader.read()).endswith(b"\r\n\r\n0\n1\n2\n")
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"HEAD /echo HTTP/1.1\r\n\r\n", 405),
        (b"GET http://h/echo HTTP/1.1\r\n\r\n", 200),
        (b"GET http://[h/echo HTTP/1.1\r\n\r\n", 400),
        (b"GET echo HTTP/1.1\r\n\r\n", 400),
        (b"GET /echo\r\n\r\n", 400),
        (b"GET /echo HTTP/2.0\r\n\r\n", 400),
        (b"GET  /echo HTTP/1.1\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nx: " + b"y" * http.MAX_HEAD_BYTES, 400),
        (b"GET /echo HTTP/1.1\r\nx: " + b"y" * http.MAX_HEAD_BYTES + b"\r\n\r\n", 400),
    ],
)
async def test_refusals(sent: bytes, status: int) -> None:
    async with playing() as scene:
        assert await scene.status(sent) == status
        assert await scene.status(b"GET /echo HTTP/1.1\r\n\r\n") == 200


@pytest.mark.parametrize("path", ["echo", "lines"])
async def test_a_client_that_ends_its_side_gets_its_answer(path: str) -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
        writer.write_eof()
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n" + {"echo": b"{}", "lines": b"0\n1\n2\n"}[path])
        writer.close()
        await until(lambda: not scene.server._connections)


async def test_a_client_that_ends_its_side_keeps_no_answer_going(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.05)
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(b"GET /quiet HTTP/1.1\r\n\r\n")
        writer.write_eof()
        async with asyncio.timeout(10):
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
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b"is longer than 8192 bytes\n")
        await until(lambda: not scene.server._connections)


async def test_a_client_that_goes_on_sending_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_S", 0.05)
    async with playing() as scene:
        _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        async with asyncio.timeout(10):
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
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""


async def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    async with playing() as scene:
        _, first = await asyncio.open_connection("127.0.0.1", scene.server.port)
        await until(lambda: scene.server._connections)
        assert (await scene.ask(b"")).startswith(b"HTTP/1.1 503 ")
        first.close()
        await until(lambda: not scene.server._connections)
        assert await scene.status(b"GET /echo HTTP/1.1\r\n\r\n") == 200


async def test_a_client_that_does_not_read_is_not_written_to_and_its_end_ends_the_body() -> None:
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
        await reader.readline()
        before = -1
        while before != scene.made:
            before = scene.made
            await asyncio.sleep(0.05)
        assert scene.made < 1000
        writer.transport.abort()
        async with asyncio.timeout(10):
            await scene.ended.wait()


async def test_a_client_that_does_not_read_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.05)
    async with playing() as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
        await reader.readline()
        async with asyncio.timeout(10):
            await scene.ended.wait()
        writer.close()


async def test_a_fault_of_the_program_is_heard_of() -> None:
    scene = Scene()
    await scene.server.bind()
    await scene.server.start()
    asking = asyncio.ensure_future(scene.ask(b"GET /fault HTTP/1.1\r\n\r\n"))
    await until(lambda: scene.failures)
    assert isinstance(scene.failures[0], ValueError)
    scene.server.stop()
    await asyncio.gather(asking, return_exceptions=True)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda junk: b"GET /%b HTTP/1.1\r\nx: y" % junk))
def test_garbage_is_a_request_or_a_bad_one(head: bytes) -> None:
    try:
        request = parse_request(head)
    except BadRequest as error:
        assert str(error)
    else:
        assert request.path.startswith("/")
