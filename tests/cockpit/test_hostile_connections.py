"""The cockpit's server against connections and bytes that no browser sends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.safety import HEADERS
from klamm.cockpit.server import Failure, WebServer, serve
from klamm.cockpit.source import RECORD
from klamm.net import http
from klamm.processes.tool_errors import ToolError
from support.cockpit import FixedSource

HOST = b"Host: localhost\r\n"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[WebServer, FixedSource]]:
    """A server without a cluster."""
    source = FixedSource({"cluster": {"id": "c", "kind": "klamm", "version": None}, "brokers": []})
    faults: list[BaseException] = []
    server = WebServer("127.0.0.1", 0, faults.append)
    await server.open()
    await server.show(Cockpit(source))
    try:
        yield server, source
        assert faults == []
    finally:
        await server.end(source.close)


async def exchange(server: WebServer, request: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


async def cookie_of(server: WebServer) -> bytes:
    """What the owner of the page gets for the token, as a header."""
    answer = await exchange(server, b"GET /?token=%b HTTP/1.1\r\n%b\r\n" % (server.guard.token.encode(), HOST))
    found = next(line for line in answer.split(b"\r\n") if line.startswith(b"Set-Cookie: "))
    return b"Cookie: %b\r\n" % found.split()[1]


async def test_what_is_not_http_is_refused_with_the_safety_headers() -> None:
    async with serving() as (server, _):
        for request in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            answer = await exchange(server, request)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert all(f"{name}: {value}".encode() in answer for name, value in HEADERS.items())


STRANGERS = {
    "nothing": b"",
    "a part of a head": b"GET / HTTP/1.1\r\nHost: local",
    "a long body without a cookie": b"POST /api/actions/plan HTTP/1.1\r\nContent-Length: 60000\r\n" + HOST + b"\r\nx",
    "a body with a wrong cookie": b"POST /api/actions/run HTTP/1.1\r\nCookie: a=b\r\nContent-Length: 9\r\n"
    + HOST
    + b"\r\nx",
    "events without a cookie": b"GET /events HTTP/1.1\r\n" + HOST + b"\r\n",
    "a wrong token": b"GET /?token=wrong HTTP/1.1\r\n" + HOST + b"\r\n",
    "a request in chunks": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n1\r\na\r\n",
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
async def test_two_hundred_strangers_do_not_lock_the_owner_out(sent: bytes) -> None:
    async with serving() as (server, source):
        cookie = await cookie_of(server)
        reader, page = await asyncio.open_connection("127.0.0.1", server.port)
        page.write(b"GET /events HTTP/1.1\r\n%b%b\r\n" % (HOST, cookie))
        await reader.readuntil(b"retry: 1000")
        strangers = []
        for number in range(200):
            strangers.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
            strangers[-1].write(sent)
            if number % 50 == 49:
                # Both who has the page open, and the one who opens it now.
                answer = await exchange(server, b"GET /api/now HTTP/1.1\r\n%b%b\r\n" % (HOST, cookie))
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert await cookie_of(server) == cookie
        source.publish(RECORD, b"{}")
        assert b"event: record" in await reader.readuntil(b"{}")
        for writer in (page, *strangers):
            writer.close()


async def test_a_stranger_who_sends_a_refused_body_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_S", 0.1)
    async with serving() as (server, _):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STRANGERS["a long body without a cookie"])
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
        assert not server._connections
        writer.close()


async def test_a_request_that_comes_too_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_TIMEOUT_S", 0.05)
    async with serving() as (server, _):
        cookie = await cookie_of(server)
        body = b"POST /api/actions/run HTTP/1.1\r\nContent-Length: 100\r\nContent-Type: application/json\r\n"
        for sent in (
            b"",
            b"GET / HTTP/1.1\r\nHost: local",
            body + HOST + cookie + b"Origin: http://localhost\r\n\r\n{",
        ):
            with contextlib.suppress(ConnectionError):
                assert await exchange(server, sent) == b""


async def test_a_page_that_does_not_read_its_events_does_not_keep_the_server_from_stopping() -> None:
    async with serving() as (server, source):
        cookie = await cookie_of(server)
        streams = [await asyncio.open_connection("127.0.0.1", server.port, limit=1024) for _ in range(3)]
        for _, stream in streams:
            stream.write(b"GET /events HTTP/1.1\r\n%b%b\r\n" % (HOST, cookie))
        for reader, _ in streams:
            await reader.readuntil(b"retry: 1000")
        for _ in range(4):
            source.publish(RECORD, b" " * 4_000_000)
            await asyncio.sleep(0)
        async with asyncio.timeout(120):
            await server.end(source.close)
            while source.subscriptions:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
        for _, stream in streams:
            stream.close()


async def test_a_fault_in_a_task_ends_the_server_with_its_reason() -> None:
    failure = Failure()
    async with serving() as (server, source):
        waiting = asyncio.ensure_future(serve(server, source.close, failure))
        await asyncio.sleep(0)
        failure.report(KeyError("x"))
        failure.report(ValueError("later"))
        with pytest.raises(ToolError, match="stopped by a failure: KeyError: 'x'"):
            await waiting
