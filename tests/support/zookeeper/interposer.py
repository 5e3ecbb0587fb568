"""Stands between brokers and ZooKeeper, and stops one broker at its n-th write.

    async with Interposer("127.0.0.1", port) as interposer:  # brokers connect to interposer.address
        stop = interposer.stop_at(broker_id, 3, answered=False)
        ...
        await stop.reached.wait()  # Now nothing passes between this broker and ZooKeeper: kill it.

The n-th write either does not reach ZooKeeper (`BEFORE`), or is done and its answer does not reach the broker
(`UNANSWERED`). Brokers are told apart by their registrations.
"""

import asyncio
import contextlib
import re
import struct
from dataclasses import dataclass, field
from typing import Literal

from klamm.zookeeper.messages import OpCode

Moment = Literal["before", "unanswered"]

WRITES = {OpCode.CREATE, OpCode.CREATE2, OpCode.SET_DATA, OpCode.DELETE, OpCode.MULTI}
REGISTRATION = re.compile(rb"/brokers/ids/(\d+)")

# Of the answer to the first request of a connection: protocol version, time-out, session id; the password follows.
_CONNECTED = struct.Struct(">iiq")


@dataclass(frozen=True)
class Session:
    id: int
    password: bytes


@dataclass
class Stop:
    """`writes` counts those of the broker since it was asked for; `reached` is set when it has been stopped."""

    broker_id: int
    at: int
    moment: Moment
    writes: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Connection:
    session: Session | None = None
    is_cut: bool = False  # The broker gets nothing from ZooKeeper.


class Interposer:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._brokers: dict[int, int] = {}  # Session id -> broker id.
        self._sessions: dict[int, Session] = {}  # Broker id -> its latest session.
        self._stop: Stop | None = None

    async def __aenter__(self) -> "Interposer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_at(self, broker_id: int, write: int, moment: Moment) -> Stop:
        """Stops the broker at its so-manieth write from now on, counted from 1."""
        self._stop = Stop(broker_id, write, moment)
        return self._stop

    def let_pass(self) -> None:
        self._stop = None

    def session_of(self, broker_id: int) -> Session:
        return self._sessions[broker_id]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        connection = _Connection()
        for coroutine in (
            self._to_server(connection, reader, server_writer),
            self._to_client(connection, server_reader, writer),
        ):
            task = asyncio.ensure_future(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _to_server(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_first = True
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                # The first one asks for a session, and has no operation.
                if not is_first and not self._may_pass(connection, frame):
                    connection.is_cut = True
                    break
                is_first = False
                writer.write(frame)
                await writer.drain()
            await reader.read()  # Until the broker is dead.
        writer.close()

    def _may_pass(self, connection: _Connection, frame: bytes) -> bool:
        """Whether a request may reach the server."""
        if connection.is_cut:
            return False
        (operation,) = struct.unpack_from(">i", frame, 8)
        if operation not in WRITES or connection.session is None:
            return True
        if found := REGISTRATION.search(frame):
            self._brokers.setdefault(connection.session.id, int(found[1]))
            self._sessions[self._brokers[connection.session.id]] = connection.session
        stop = self._stop
        if stop is None or self._brokers.get(connection.session.id) != stop.broker_id:
            return True
        stop.writes += 1
        if stop.writes < stop.at:
            return True
        connection.is_cut = True
        if stop.moment == "before":
            stop.reached.set()
            return False
        return stop.writes == stop.at  # This one; its answer tells that it was done.

    async def _to_client(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                if connection.session is None:
                    connection.session = _session(frame)
                if connection.is_cut:
                    if self._stop is not None and self._stop.moment == "unanswered":
                        self._stop.reached.set()
                    continue
                writer.write(frame)
                await writer.drain()
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """With its length in front."""
    length = await reader.readexactly(4)
    return length + await reader.readexactly(struct.unpack(">i", length)[0])


def _session(frame: bytes) -> Session:
    _, _, session_id = _CONNECTED.unpack_from(frame, 4)
    start = 4 + _CONNECTED.size
    (length,) = struct.unpack_from(">i", frame, start)
    return Session(session_id, frame[start + 4 : start + 4 + max(0, length)])
