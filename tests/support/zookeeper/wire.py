"""A ZooKeeper client that hides nothing: it sends one frame and shows the next. For tests of servers."""

import asyncio
import struct
from typing import NamedTuple

from klamm.zookeeper import jute, messages
from klamm.zookeeper.messages import ConnectResponse, WatcherEvent

TIMEOUT_S = 120


class Reply(NamedTuple):
    xid: int
    zxid: int
    error: int
    response: messages.Response


class WireClient:
    """One connection. `events` are the watcher events that came before the replies awaited so far."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.events: list[WatcherEvent] = []
        self.session = ConnectResponse(0, 0, b"")
        self._sent: list[tuple[int, int]] = []
        self._next_xid = 1

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> "WireClient":
        """A connection without a session."""
        return cls(*await asyncio.open_connection(host, port, limit=2**22))

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout_ms: int = 20_000,
        session: ConnectResponse | None = None,
        last_zxid_seen: int = 0,
    ) -> "WireClient":
        """With a new session, or attached to one."""
        client = await cls.open(port, host)
        session_id, password = (0, bytes(16)) if session is None else (session.session_id, session.password)
        request = messages.ConnectRequest(last_zxid_seen, timeout_ms, session_id, password)
        client.writer.write(jute.encode_connect_request(request))
        client.session = jute.decode_connect_response(await client.frame())
        return client

    async def frame(self) -> bytes:
        """The next frame's content. asyncio.IncompleteReadError when the server has closed the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    def send(self, request: messages.Request) -> None:
        """Sends without waiting; `receive` gives the replies in order."""
        xid = self._next_xid
        if isinstance(request, messages.Ping):
            xid = jute.XID_PING
        elif isinstance(request, messages.Auth):
            xid = jute.XID_AUTH
        elif isinstance(request, messages.SetWatches):
            xid = jute.XID_SET_WATCHES
        else:
            self._next_xid += 1
        self._sent.append((xid, request.op))
        self.writer.write(jute.encode_request(xid, request))

    async def receive(self) -> Reply | WatcherEvent:
        frame = await self.frame()
        header = jute.decode_reply_header(frame)
        if header.xid == jute.XID_NOTIFICATION:
            return jute.decode_event(frame)
        xid, op = self._sent.pop(0)
        assert header.xid == xid, f"reply {header.xid} where {xid} was due"
        return Reply(*header, None if header.error else jute.decode_response(op, frame))

    async def reply(self) -> Reply:
        """The next reply; events before it are collected."""
        while isinstance(received := await self.receive(), WatcherEvent):
            self.events.append(received)
        return received

    async def call(self, request: messages.Request) -> Reply:
        self.send(request)
        return await self.reply()

    async def next_event(self) -> WatcherEvent:
        received = await self.receive()
        assert isinstance(received, WatcherEvent), received
        return received

    def drop(self) -> None:
        """Cuts the connection; the session lives on."""
        self.writer.transport.abort()

    async def wait_closed_by_server(self) -> bytes:
        """What still came before the server closed."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""
