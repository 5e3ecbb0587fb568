"""A TCP proxy between a ZooKeeper client and its server that can cut, stall, garble and count what passes."""

import asyncio
import contextlib
import struct

PING = struct.pack(">iii", 8, -2, 11)


class Proxy:
    """`async with Proxy("127.0.0.1", port) as proxy:` then connect to `proxy.address`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._open = asyncio.Event()  # Cleared: what the server says is kept back.
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._garbage = b""
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

    def hold_answers(self) -> None:
        """From now on the client hears nothing; what it says still reaches the server."""
        self._open.clear()

    def release_answers(self) -> None:
        self._open.set()

    def garble(self, garbage: bytes) -> None:
        """Puts `garbage` in place of what the server says next."""
        self._garbage = garbage

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
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.requests += data
                async with self.pinged:
                    self.pings += data.count(PING)
                    self.pinged.notify_all()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._open.wait()
                if self._garbage:
                    data, self._garbage = self._garbage, b""
                writer.write(data)
                await writer.drain()
        writer.close()
