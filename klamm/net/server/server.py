"""The server side of the network layer: a listener and its connections.

What must stay true:
- No request of a connection starts before its admission (`connection_quotas`).
- Why a connection is closed is logged once for each client and reason.
- Requests that continue without their clients are bounded for each host: a host with too many gets no new connection.
"""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from typing import Any

from klamm.base.repeated_lines import RepeatedLines
from klamm.base.system_environment import is_kept_descriptor, open_file_limit
from klamm.base.tasks import OnFailure
from klamm.net.framing import ReceiveBuffer, SizeLimit
from klamm.net.server.connection_quotas import Acceptor, ConnectionQuotas
from klamm.net.server.request_memory import RequestMemory
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory
from klamm.net.server.server_connection import SIZE_FIELD_BYTES, Dispatch, ServerConnection, ServerLimits, Traffic

# A host whose clients have hung up on this many unfinished requests gets no new connection. The bytes of these requests
# have the same bound as those of one connection. A single larger request does not count: its client may send it again.
MAX_ABANDONED_REQUESTS_PER_HOST = 1000

# The idle check looks at this many connections before the loop does other work.
CONNECTIONS_PER_SLICE = 500

# The most characters of a client id in a log line.
MAX_LOGGED_ID = 256

# The shortest interval between two checks for idle connections.
MIN_IDLE_CHECK_S = 0.1

_log = logging.getLogger(__name__)


class SocketServer:
    """One listener: it accepts connections and runs their requests through `dispatch`.

    `is_pipelined(frame)` tells whether a request may start while earlier ones of its kind are unanswered. `make_room`
    closes a file that can be opened again, for a connection, and returns whether there was one. `work_clock_s` measures
    how long requests take, and for how long connections are idle.
    """

    def __init__(
        self,
        listener_name: str,
        host: str,
        port: int,
        *,
        dispatch: Dispatch,
        is_pipelined: Callable[[bytearray], bool],
        size_limit: SizeLimit,
        limits: ServerLimits,
        quotas: ConnectionQuotas,
        request_queue: RequestQueue,
        response_memory: ResponseMemory,
        on_failure: OnFailure,
        make_room: Callable[[], bool] = lambda: False,
        work_clock_s: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self.listener_name = listener_name
        self.host = host
        self.port = port
        self.dispatch = dispatch
        self.is_pipelined = is_pipelined
        self.limits = limits
        self.request_queue = request_queue
        self.request_memory = RequestMemory(limits.queued_max_request_bytes)
        self.response_memory = response_memory
        self.on_failure = on_failure
        self.work_clock_s = work_clock_s
        self.traffic = Traffic()
        self._closed_lines = RepeatedLines(_log)
        self.stopping = False
        self._make_room = make_room
        self._size_limit = size_limit
        self._receive_buffer = ReceiveBuffer()
        self._server: Any = None  # asyncio.Server, uvloop's or the simulator's
        self._connections: dict[ServerConnection, None] = {}
        self._quotas = quotas
        self._acceptor: Acceptor
        # By host and task: the size of a request that continues without its client.
        self._abandoned: dict[str, dict[asyncio.Task[None], int]] = {}
        self._is_over = False
        self._idle_timer: asyncio.TimerHandle | None = None
        # The lowest number of connections with which descriptors were short.
        self._crowded_from: float = math.inf

    async def bind(self) -> None:
        """Takes the port without accepting yet; port 0 becomes the one that the system chose.

        Raises OSError when the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        host = self.host or None
        try:
            self._server = await loop.create_server(self._make_connection, host, self.port, start_serving=False)
        except ValueError as error:  # A host name with a label that is too long.
            raise OSError(f"{host}: {error}") from error
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]
        self._set_buffer_sizes()
        self._acceptor = self._quotas.acceptor(self.listener_name)

    def _set_buffer_sizes(self) -> None:
        """Connections inherit the listening socket's sizes. Setting them later would miss the first packet, with which
        TCP agrees on the window."""
        sizes = {
            socket.SO_SNDBUF: self.limits.socket_send_buffer_bytes,
            socket.SO_RCVBUF: self.limits.socket_receive_buffer_bytes,
        }
        for option, size_bytes in sizes.items():
            if size_bytes > 0:
                for listening in self._server.sockets:
                    listening.setsockopt(socket.SOL_SOCKET, option, size_bytes)

    async def start(self) -> None:
        """Starts to accept."""
        await self._server.start_serving()
        self._schedule_idle_check()

    async def stop(self, timeout_ms: int) -> None:
        """Stops accepting, lets pending requests finish for at most `timeout_ms`, then closes all connections."""
        self.stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()
            self._acceptor.close()
        for connection in list(self._connections):
            connection.drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (self._connections or self._abandoned) and loop.time() < deadline:
            self._all_closed = loop.create_future()
            timer = loop.call_at(deadline, _wake, self._all_closed)
            await self._all_closed
            timer.cancel()
        self._is_over = True
        for tasks in self._abandoned.values():
            for task in tasks:
                task.cancel()
        for connection in list(self._connections):
            connection.transport.abort()
        self._closed_lines.close()

    def report(self, host: str, client_id: str | None, what: str) -> None:
        """Logs what happened to a connection of a client; repetitions of the same are counted."""
        client = "" if client_id is None else f" client {client_id[:MAX_LOGGED_ID]!r}"
        self._closed_lines.warn(f"{self.listener_name} {host}{client}", what)

    @property
    def request_count(self) -> int:
        """The requests received so far."""
        traffic = self.traffic
        return traffic.started + traffic.dropped + sum(one.received_count for one in self._connections)

    @property
    def response_count(self) -> int:
        """The responses sent so far."""
        traffic = self.traffic
        return traffic.started - traffic.unanswered + sum(one.answered_count for one in self._connections)

    @property
    def bytes_in(self) -> int:
        """The bytes of all requests so far, without TLS."""
        return self.request_memory.received_bytes + SIZE_FIELD_BYTES * self.request_count

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def opened(self, connection: ServerConnection) -> None:
        """Registers a new connection, or refuses it if a limit is reached."""
        self._connections[connection] = None
        self.traffic.connections += 1
        if not self._has_descriptor_for(connection):
            connection.close(f"the last of the {open_file_limit()} files that the process may open are kept for logs")
        elif self._has_abandoned_too_much(connection.peer_host):
            connection.close("too many requests of disconnected clients of this host are still running")
        else:
            self._acceptor.opened(connection)

    def _has_descriptor_for(self, connection: ServerConnection) -> bool:
        """Whether the connection leaves enough descriptors free, perhaps because a log file was closed for it.

        The system assigns the lowest free descriptor, so a number near the limit means that most are in use. The next
        connection gets the number of the closed file. So from then on the number of connections decides.
        """
        is_kept = is_kept_descriptor(connection.descriptor)
        if is_kept:
            self._crowded_from = min(self._crowded_from, len(self._connections))
        if len(self._connections) < self._crowded_from:
            return True
        return self._make_room() or not is_kept

    def _has_abandoned_too_much(self, host: str) -> bool:
        tasks = self._abandoned.get(host, {})
        is_too_large = len(tasks) > 1 and sum(tasks.values()) >= self.limits.max_in_flight_bytes
        return is_too_large or len(tasks) >= MAX_ABANDONED_REQUESTS_PER_HOST

    def closed(self, connection: ServerConnection) -> None:
        """Forgets an ended connection."""
        del self._connections[connection]
        self._acceptor.closed(connection)
        self._wake_stop()

    def abandoned(self, host: str, size_bytes: int, task: "asyncio.Task[None]") -> None:
        """Counts a request whose client has disconnected while `task` continues."""
        if self._is_over:
            task.cancel()
            return
        tasks = self._abandoned.setdefault(host, {})
        tasks[task] = size_bytes

        def ended(task: "asyncio.Task[None]") -> None:
            del tasks[task]
            if not tasks:
                del self._abandoned[host]
                self._wake_stop()

        task.add_done_callback(ended)

    def _wake_stop(self) -> None:
        if self.stopping and not self._connections and not self._abandoned:
            _wake(self._all_closed)

    def _make_connection(self) -> ServerConnection:
        return ServerConnection(self, self._size_limit, self._receive_buffer)

    _all_closed: "asyncio.Future[None] | None" = None

    def _schedule_idle_check(self) -> None:
        if self.limits.connections_max_idle_ms < 0:
            return
        period_s = min(max(self.limits.connections_max_idle_ms / 1000, MIN_IDLE_CHECK_S), 60)
        self._idle_timer = asyncio.get_running_loop().call_later(period_s, self._close_idle)

    def _close_idle(self) -> None:
        oldest_s = self.work_clock_s() - self.limits.connections_max_idle_ms / 1000
        self._close_silent_since(oldest_s, list(self._connections))
        self._schedule_idle_check()

    def _close_silent_since(self, oldest_s: float, connections: list[ServerConnection]) -> None:
        for connection in connections[:CONNECTIONS_PER_SLICE]:
            if not connection.is_answering and connection.last_active_s < oldest_s:
                self.traffic.expired += 1
                # Not `close`, which would wait for ever for a client that does not read its responses.
                connection.transport.abort()
        if rest := connections[CONNECTIONS_PER_SLICE:]:
            asyncio.get_running_loop().call_soon(self._close_silent_since, oldest_s, rest)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
