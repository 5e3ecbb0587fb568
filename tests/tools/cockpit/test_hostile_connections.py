"""The cockpit's server against connections and bytes that no browser sends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from klamm.processes.errors import ToolError
from klamm.tools.cockpit import server as module
from klamm.tools.cockpit.answers import Cockpit
from klamm.tools.cockpit.safety import HEADERS
from klamm.tools.cockpit.server import MAX_CONNECTIONS, Failure, WebServer, listen, make_app, serve
from klamm.tools.cockpit.source import RECORD
from support.cockpit import FixedSource


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """The port of a server without a cluster."""
    source = FixedSource({"cluster": {"id": "c", "kind": "klamm", "version": None}, "brokers": []})
    listening = listen("127.0.0.1", 0)
    server = WebServer(make_app(Cockpit(source), "127.0.0.1"), listening)
    port = listening.getsockname()[1]
    server.start()
    try:
        yield port
    finally:
        await server.stop(source.close)


async def exchange(port: int, request: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


async def test_what_is_not_http_is_refused_with_the_safety_headers() -> None:
    async with serving() as port:
        for request in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            answer = await exchange(port, request)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert all(f"{name}: {value}".encode() in answer for name, value in HEADERS.items())


async def test_addresses_and_heads_have_a_length() -> None:
    async with serving() as port:
        end = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await exchange(port, b"GET /?token=" + b"a" * 9_000 + end)
        assert answer.startswith(b"HTTP/1.1 414 ")
        answer = await exchange(port, b"GET /?token=" + b"a" * 20_000)
        assert answer.startswith(b"HTTP/1.1 400 ")


async def test_idle_connections_are_bounded_and_end() -> None:
    async with serving() as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS + 20)]
        try:
            for reader, _ in opened[MAX_CONNECTIONS:]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        finally:
            for _, writer in opened:
                writer.close()


async def test_a_request_that_comes_too_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_TIMEOUT_S", 0.05)
    async with serving() as port:
        assert await exchange(port, b"GET / HTTP/1.1\r\nHost: local") == b""
        assert await exchange(port, b"") == b""


async def test_a_page_that_does_not_read_its_events_does_not_keep_the_server_from_stopping() -> None:
    source = FixedSource({"cluster": {"id": "c", "kind": "klamm", "version": None}, "brokers": []})
    app = make_app(Cockpit(source), "127.0.0.1")
    listening = listen("127.0.0.1", 0)
    server = WebServer(app, listening)
    server.start()
    address = ("127.0.0.1", listening.getsockname()[1])
    head = b"Host: localhost\r\n"
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /?token=%s HTTP/1.1\r\n%s\r\n" % (app.token.encode(), head))
    answer = await reader.readuntil(b"\r\n\r\n")
    cookie = next(line for line in answer.split(b"\r\n") if line.startswith(b"set-cookie: ")).split()[1]
    writer.close()
    streams = [await asyncio.open_connection(*address, limit=1024) for _ in range(3)]
    for _, stream in streams:
        stream.write(b"GET /events HTTP/1.1\r\n%sCookie: %s\r\n\r\n" % (head, cookie))
    for reader, _ in streams:
        await reader.readuntil(b"retry: 1000")
    for _ in range(4):
        source.publish(RECORD, b" " * 4_000_000)
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await server.stop(source.close)
    assert not source.subscriptions
    for _, stream in streams:
        stream.close()


async def test_a_fault_in_a_task_ends_the_server_with_its_reason() -> None:
    source = FixedSource({"cluster": {"id": "c", "kind": "klamm", "version": None}, "brokers": []})
    failure = Failure()
    app = make_app(Cockpit(source), "127.0.0.1")
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.ensure_future(serve(app, listening, source.close, failure))
        await asyncio.sleep(0)
        failure.report(KeyError("x"))
        failure.report(ValueError("later"))
        with pytest.raises(ToolError, match="stopped by a failure: KeyError: 'x'"):
            await serving
