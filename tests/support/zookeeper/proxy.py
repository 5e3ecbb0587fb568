"""A TCP proxy between a ZooKeeper client and its server that can cut, stall, garble and count what passes."""

import asyncio
import contextlib
import struct

from klamm.zookeeper.framing import FrameSplitter

MAX_FRAME_BYTES = 2**24
PING = struct.pack(">iii", 8, -2, 11)


class Proxy:
    """`async with Proxy("127.0.0.1", port) as proxy:` then connect to `proxy.address`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._open = asyncio.Event()  # Cleared: what the server says is kept back.
        self._open.set()
        self._answers_to_pass = 0
        self._deaf = False
        self.held = asyncio.Event()
        """Set once something that was said is kept back, or lost."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._garbage = b""
        self._last_xid: int | None = None
        self.refusing = False
        """New connections are closed at once."""
        self.pings = 0
        self.pinged = asyncio.Condition()
        self.connections_seen = 0
        self.requests = bytearray()
        """What clients have sent."""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Ends all connections, both ways; what was kept back is lost."""
        for pair in self._connections:
            for writer in pair:
                writer.transport.abort()
        self._connections.clear()

    def hold_answers(self, after: int = 0) -> None:
        """From now on (after so many more chunks of bytes) clients hear nothing; the server still hears them."""
        self._answers_to_pass = after
        self._open.clear()
        self.held.clear()

    def lose_requests(self) -> None:
        """From now on, until the connection is cut, what clients say does not reach the server."""
        self._deaf = True
        self.held.clear()

    def release(self) -> None:
        """Connections made from now on work again, as do those that wait for held answers."""
        self._open.set()
        self._deaf = False

    def garble(self, garbage: bytes) -> None:
        """Puts `garbage` in place of what the server says next."""
        self._garbage = garbage

    def cut_after_answer(self, xid: int) -> None:
        """The next frame with this xid is the last that reaches the client on its connection.

        To be called while the server says nothing. Connections made after that are left alone.
        """
        self._last_xid = xid

    async def wait_for_pings(self, count: int) -> None:
        async with self.pinged:
            await self.pinged.wait_for(lambda: self.pings >= count)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_seen += 1
        if self.refusing:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        self._connections.append((writer, server_writer))
        for coroutine in (self._to_server(reader, server_writer), self._to_client(server_reader, writer)):
            task = asyncio.ensure_future(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop raises that for a connection that was cut
            while data := await reader.read(65536):
                self.requests += data
                if self._deaf:
                    self.held.set()
                    continue
                async with self.pinged:
                    self.pings += data.count(PING)
                    self.pinged.notify_all()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = FrameSplitter(MAX_FRAME_BYTES)
        with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop raises that for a connection that was cut
            while data := await reader.read(65536):
                if not self._open.is_set() and self._answers_to_pass > 0:
                    self._answers_to_pass -= 1
                elif not self._open.is_set():
                    self.held.set()
                    await self._open.wait()
                if self._garbage:
                    data, self._garbage = self._garbage, b""
                is_last = False
                if self._last_xid is not None:
                    data, is_last = self._up_to_the_last(splitter.feed(data))
                writer.write(data)
                await writer.drain()
                if is_last:
                    break
        writer.close()

    def _up_to_the_last(self, frames: list[bytes]) -> tuple[bytes, bool]:
        """The frames as they came, without those behind the last one; and whether that is among them."""
        passed = b""
        for frame in frames:
            passed += struct.pack(">i", len(frame)) + frame
            if struct.unpack_from(">i", frame)[0] == self._last_xid:
                self._last_xid = None
                return passed, True
        return passed, False
