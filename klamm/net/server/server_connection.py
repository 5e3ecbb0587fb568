"""One client's connection to a listener: frames in, requests in their order, responses in the same order.

A frame goes to the owner's `dispatch`, which answers at once with the response's buffers, or with an awaitable of them,
or with None when the request gets no response (a produce with acks=0).

A client may hang up before it is answered. A request that changes state still runs to its end. Only an `AnswerOnly`,
which changes nothing, ends with the connection.

Order, limits and muting decide together when the next frame is read, so they stand in one module.

What must stay true:
- The responses of a connection leave in the order of its requests.
- A request starts only when all earlier requests of its connection have been answered, so that a pipelined request sees
  the effects of the earlier ones. The exception is a produce behind produces that wait for their acknowledgement
  (`is_pipelined`): these have already been appended in order. A produce that is still to be appended holds its
  followers (`hold_followers`).
- A connection is bounded: at most `max_in_flight` requests and `max_in_flight_bytes` of frames are held. Beyond that,
  and while the client does not read its responses, the connection is muted: nothing more is read from it. Unread
  responses count in the broker's `ResponseMemory`, requests in the listener's `RequestMemory`.
- Bad input closes only the connection that sent it (`InvalidRequest`).
- Any other exception of `dispatch` is a fault of the program and goes to `on_failure`, also after the client has gone.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from klamm.base.tasks import OnFailure
from klamm.net.framing import FrameReader, ReceiveBuffer, SizeLimit
from klamm.net.server.exchange import (
    MOST_AT_ONCE,
    NUMBERS_AT_ONCE,
    Answer,
    AnswerOnly,
    Exchange,
    InvalidRequest,
    Response,
)
from klamm.net.server.request_memory import SMALL_BYTES, Part, RequestMemory
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory

# Responses wait in the transport up to this size; then the connection is muted until the socket has taken all of them.
WRITE_BUFFER_HIGH_BYTES = 64 * 1024

# After this many requests of one client, the loop serves other clients.
REQUESTS_PER_SLICE = 20

# How often a throttled connection, which is not read, is checked for a client that has hung up. A throttle time may be
# days, and the connection would keep its descriptor for that time.
HANG_UP_CHECK_S = 5.0

_FULL_AT_ONCE = NUMBERS_AT_ONCE * MOST_AT_ONCE

# For this time after a client was throttled, its next large request is read only when it can start: a request that was
# read ahead stays in memory while the client is muted.
READ_AHEAD_AFTER_S = 10.0

# The length of the size field before each frame.
SIZE_FIELD_BYTES = 4


Dispatch = Callable[["ServerConnection", bytearray, "Exchange"], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of the network layer, under Kafka's names where Kafka has them."""

    connections_max_idle_ms: int = 600_000  # negative: an idle connection is never closed
    # SO_SNDBUF and SO_RCVBUF of connections; 0 and less leave it to the system. They do not change.
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    max_in_flight: int = 100
    max_in_flight_bytes: int = 32 * 1024 * 1024
    queued_max_request_bytes: int = 256 * 1024 * 1024  # of all connections together; does not change


class ConnectionOwner(Protocol):
    """What a connection needs of its listener."""

    listener_name: str
    dispatch: Dispatch
    limits: ServerLimits
    request_queue: RequestQueue
    request_memory: RequestMemory
    response_memory: ResponseMemory
    traffic: "Traffic"
    stopping: bool
    on_failure: OnFailure

    @property
    def is_pipelined(self) -> Callable[[bytearray], bool]:
        """Whether a request may start while earlier ones of its kind are unanswered."""

    @property
    def work_clock_s(self) -> Callable[[], float]:
        """Measures how long requests take, and for how long connections are idle."""

    def opened(self, connection: "ServerConnection") -> None:
        """A client has connected; it waits for its admission."""

    def closed(self, connection: "ServerConnection") -> None:
        """The connection is gone."""

    def abandoned(self, host: str, size_bytes: int, task: "asyncio.Task[None]") -> None:
        """A request of this host continues without its client."""

    def report(self, host: str, client_id: str | None, what: str) -> None:
        """Says why a connection closes, once for each client and reason."""


class ServerConnection(FrameReader):
    """One client's connection to a listener."""

    # A dict of this many attributes takes 1.3 KB more, and each access takes longer.
    __slots__ = (
        "_awaits_memory",
        "_awaits_turn_for_bytes",
        "_exchanges",
        "_held_bytes",
        "_is_muted",
        "_queued",
        "_reading",
        "_receiving",
        "_request_queue",
        "_server",
        "_small_requests",
        "_started",
        "_throttle_timer",
        "_throttled_until_s",
        "_traffic",
        "_unsent",
        "_waiting",
        "_work_clock_s",
        "_writable",
        "last_active_s",
        "listener_name",
        "peer_host",
        "peer_port",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: "ConnectionOwner", size_limit: SizeLimit, receive_buffer: ReceiveBuffer) -> None:
        super().__init__(size_limit, receive_buffer)
        self._server = server
        self.listener_name = server.listener_name
        self.peer_host = ""
        self.peer_port = 0
        # Requests that have not started, and when they arrived.
        self._waiting: deque[tuple[bytearray, float]] = deque()
        self._request_queue = server.request_queue
        # How many of the waiting requests `_request_queue` counts.
        self._queued = 0
        self._exchanges: deque[Exchange] = deque()
        # The answered exchanges whose responses the socket has not taken, and when each response left.
        self._unsent: list[tuple[Exchange, float]] = []
        self._held_bytes = 0
        self._small_requests = server.request_memory.small
        self._traffic = server.traffic
        self._work_clock_s = server.work_clock_s
        # The budget of the incomplete frame, if the frame is large; its first bytes, while it waits for its turn; and
        # whether it waits for memory.
        self._receiving: Part | None = None
        self._awaits_turn_for_bytes = 0
        self._awaits_memory = False
        self._reading = True
        self._writable = True
        # The requests started in this slice, which `Traffic` does not count yet.
        self._started = 0
        # Not admitted yet, or throttled: no request starts, and nothing is read.
        self._is_muted = False
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._throttled_until_s = -READ_AHEAD_AFTER_S
        # A reading of the server's `work_clock_s`.
        self.last_active_s = 0.0

    def __str__(self) -> str:
        return f"{self.listener_name} {self.peer_host}:{self.peer_port}"

    # -- asyncio's callbacks --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self.transport = transport = self._transport
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer_host, self.peer_port = peer[0], peer[1]
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES, low=0)
        self.last_active_s = self._work_clock_s()
        self._server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.response_memory.gone(self)
        if self._receiving is not None:
            self._receiving.gone(self)
        self._drop_waiting()
        self._count_queued()
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._count_started()
        self._traffic.unanswered += len(self._exchanges)
        for exchange in self._exchanges:
            if exchange.task is not None:
                self._abandon(exchange, exchange.task)
            if exchange.task is None or not exchange.is_abandoned:
                exchange.free()
            exchange.forgo()
        self._exchanges.clear()
        self._server.closed(self)

    def hold(self) -> None:
        self._is_muted = True
        # Later, because uvloop begins to read after `connection_made`, even if that has paused reading.
        asyncio.get_running_loop().call_soon(self._adjust_reading)

    def admit(self) -> None:
        self.last_active_s = self._work_clock_s()
        self._is_muted = False
        self._start_requests()
        self._adjust_reading()

    def _abandon(self, exchange: Exchange, task: "asyncio.Task[None]") -> None:
        if exchange.is_answer_only:
            task.cancel()
        elif exchange.response is None:
            exchange.is_abandoned = True
            task.add_done_callback(lambda _: exchange.free())
            self._server.abandoned(self.peer_host, exchange.size_bytes, task)

    def frame_begins(self, api_key: int | None, size_bytes: int, first_bytes: int) -> bool:
        part = self._server.request_memory.part_of(size_bytes, api_key)
        if part is self._small_requests:
            return True
        self._receiving = part
        if self._may_receive_large():
            return self._take_memory(first_bytes)
        self._awaits_turn_for_bytes = first_bytes
        self._adjust_reading()
        return False

    def _may_receive_large(self) -> bool:
        """Whether the large request could start once it has arrived. Behind a waiting request it would hold its memory
        for as long as the client likes."""
        if self._waiting or not self._writable or self._is_muted:
            return False
        if not self._exchanges:
            return True
        if asyncio.get_running_loop().time() < self._throttled_until_s + READ_AHEAD_AFTER_S:
            return False
        is_produce = self._receiving is self._server.request_memory.produces
        return is_produce and all(exchange.pipelined for exchange in self._exchanges)

    def frame_grows(self, more_bytes: int) -> None:
        if self._receiving is not None:
            self._take_memory(more_bytes)

    def _take_memory(self, more_bytes: int) -> bool:
        assert self._receiving is not None
        if self._receiving.grow(self, more_bytes):
            return True
        self._awaits_memory = True
        self._adjust_reading()
        return False

    def memory_granted(self) -> None:
        self._awaits_memory = False
        self._adjust_reading()

    @property
    def received_bytes(self) -> int:
        return self._filled

    @property
    def is_held_up(self) -> bool:
        return self._writable and not self._reading and self._throttle_timer is None

    def frame_received(self, frame: bytearray) -> None:
        if self._receiving is not None:
            self._receiving.received(self, len(frame))
            self._receiving = None
        else:
            self._small_requests.received_bytes += len(frame)
        if self._server.stopping:
            # A client without an answer sends the request again, to another broker.
            self._drop(frame)
            return
        self._held_bytes += len(frame)
        if self._waiting or not self._may_start(frame):
            self._waiting.append((frame, self._work_clock_s()))
            self._count_queued()
        else:
            self._serve(frame)
        self._adjust_reading()

    def frame_error(self, reason: str) -> None:
        self.close(reason)

    def eof_received(self) -> None:
        if self.mid_frame:
            self._server.report(self.peer_host, None, "closed by the client in the middle of a frame")

    def pause_writing(self) -> None:
        # Reading continues until the next frame: most clients send it after they have read all of this response.
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._server.response_memory.taken(self)
        if self._unsent:
            now_s = self._work_clock_s()
            for exchange, left_s in self._unsent:
                exchange.measurements.add(exchange, left_s, now_s)
            self._unsent.clear()
        self._start_requests()
        self._adjust_reading()

    # -- requests and responses -----------------------------------------------------------------------------------

    def close(self, reason: str, client_id: str | None = None) -> None:
        """Closes the connection because of bad input. Unsent responses are dropped."""
        if not self.transport.is_closing():
            self._server.report(self.peer_host, client_id, f"closed: {reason}")
            self._drop_waiting()
            self.transport.abort()

    def _drop_waiting(self) -> None:
        while self._waiting:
            self._drop(self._waiting.popleft()[0])

    def _drop(self, frame: bytearray) -> None:
        self._traffic.dropped += 1
        self._memory_of(frame).release(len(frame))

    def _memory_of(self, frame: bytearray) -> Part:
        if len(frame) <= SMALL_BYTES:
            return self._small_requests
        return self._server.request_memory.part_of(len(frame), int.from_bytes(frame[:2]))

    def frame_release(self) -> Callable[[], None]:
        """For `dispatch`: the returned function frees the request's bytes. Otherwise they count until its response."""
        return self._exchanges[-1].free

    def hold_followers(self) -> Callable[[], None]:
        """For `dispatch`: the request has not yet had its effect, so no later request may start, not even a pipelined
        one. Calling the returned function once lets later requests start, unless other holds remain."""
        if not self._exchanges:
            return _nothing  # The client has hung up between two steps of the request.
        exchange = self._exchanges[-1]
        exchange.holds += 1

        def release() -> None:
            exchange.holds -= 1
            self._start_requests()
            self._adjust_reading()

        return release

    def end_slice(self) -> None:
        """For `dispatch`: the request has used up the slice. The connection's later requests wait for the next."""
        if self._started < REQUESTS_PER_SLICE:
            self._traffic.started += self._started - REQUESTS_PER_SLICE
            self._started = REQUESTS_PER_SLICE
            asyncio.get_running_loop().call_soon(self._next_slice)

    def has_read(self, size_bytes: int) -> None:
        """Counts the bytes read for the response to the current request."""
        self._server.response_memory.read(self, size_bytes)

    def disconnect(self, reason: str) -> None:
        """Like `close`, but also cuts a closing connection whose client has not read its responses."""
        self._server.report(self.peer_host, None, f"disconnected: {reason}")
        self._drop_waiting()
        self.transport.abort()

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 in a simulation."""
        connected: socket.socket | None = self.transport.get_extra_info("socket")
        return -1 if connected is None else connected.fileno()

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def is_answering(self) -> bool:
        """Whether a request has started and has not been answered."""
        return bool(self._exchanges)

    @property
    def received_count(self) -> int:
        """The received requests that `Traffic` does not count yet."""
        return self._started + len(self._waiting)

    @property
    def answered_count(self) -> int:
        """The difference to the responses that `Traffic` counts; it may be negative."""
        return self._started - len(self._exchanges)

    @property
    def idle(self) -> bool:
        """Whether no request is pending, so that closing the connection loses nothing."""
        return not self._exchanges and not self._waiting

    def _start_requests(self) -> None:
        """Starts the waiting requests that may start."""
        while self._waiting and self._may_start(self._waiting[0][0]):
            self._serve(*self._waiting.popleft())
        if self._waiting or self._queued:
            self._count_queued()

    def _serve(self, frame: bytearray, arrived_s: float | None = None) -> None:
        """`arrived_s`: when the request arrived, if it had to wait."""
        self._started += 1
        if self._started == REQUESTS_PER_SLICE:
            asyncio.get_running_loop().call_soon(self._next_slice)
        # Read apart from the call: in `self._work_clock_s()` Python would look for a method of this name first.
        clock_s = self._work_clock_s
        exchange = Exchange(len(frame), clock_s(), self._memory_of(frame), self._server.is_pipelined(frame))
        self._exchanges.append(exchange)
        try:
            answer = self._server.dispatch(self, frame, exchange)
        except InvalidRequest as error:
            self.close(str(error), getattr(exchange, "client_id", None))
            return
        except Exception as error:
            self._server.on_failure(error)
            return
        if arrived_s is not None:
            exchange.started_late(arrived_s)
        if isinstance(answer, Response):
            self._answered(exchange, answer)
        else:
            # Not `start_task`: a callback for each request costs as much as the rest of its task.
            exchange.task = asyncio.get_running_loop().create_task(self._answer(exchange, answer))
            exchange.is_answer_only, exchange.is_abandoned = isinstance(answer, AnswerOnly), False

    def _count_started(self) -> None:
        self._traffic.started += self._started
        self._started = 0

    def _may_start(self, frame: bytearray) -> bool:
        if not self._writable or self._is_muted or self.transport.is_closing():
            return False
        if self._started >= REQUESTS_PER_SLICE:
            return False
        if not self._exchanges:
            return True
        last = self._exchanges[-1]
        return last.pipelined and not last.holds and self._server.is_pipelined(frame)

    def _next_slice(self) -> None:
        self._count_started()
        self._start_requests()
        self._adjust_reading()

    async def _answer(self, exchange: Exchange, answer: AnswerOnly[Response] | Awaitable[Answer]) -> None:
        try:
            result = await (answer.answer() if isinstance(answer, AnswerOnly) else answer)
            while isinstance(result, AnswerOnly) and not exchange.is_abandoned:
                exchange.is_answer_only = True
                result = await result.answer()
            if isinstance(result, AnswerOnly) or exchange.is_abandoned:
                exchange.forgo()
                return
            self._answered(exchange, result)
            self._start_requests()
            self._adjust_reading()
        except InvalidRequest as error:
            self.close(str(error), getattr(exchange, "client_id", None))
        except Exception as error:
            self._server.on_failure(error)

    def _answered(self, exchange: Exchange, response: Response) -> None:
        clock_s = self._work_clock_s
        now_s = clock_s()
        exchanges = self._exchanges
        if exchanges and exchanges[0] is not exchange:
            exchange.waits_for_others(response, now_s)
            return
        while exchanges:
            exchanges.popleft()
            self._held_bytes -= exchange.size_bytes
            exchange.free()
            buffers = response.buffers
            if buffers is not None and not self.transport.is_closing():
                self.transport.writelines(buffers)
                self._traffic.bytes_out += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
                if not self._writable:
                    exchange.has_waited()
                    self._server.response_memory.untaken(self, sum(map(len, buffers)))
            else:
                self._traffic.unanswered += 1
            self._server.response_memory.handed_over(self)
            if response.throttle_time_ms > 0:
                exchange.has_waited()
                self._throttle(response.throttle_time_ms)
            numbers = exchange.at_once
            if numbers is None:
                self._add_waited(exchange, response, now_s)
            else:
                # Inline, because a method call would cost as much again.
                numbers += (exchange.size_bytes, exchange.began_s, now_s)
                if len(numbers) >= _FULL_AT_ONCE:
                    numbers.take()
            if not exchanges or (next_response := exchanges[0].response) is None:
                break
            exchange, response = exchanges[0], next_response
        self.last_active_s = now_s
        if self._server.stopping and self.idle:
            self.transport.close()

    def _add_waited(self, exchange: Exchange, response: Response, left_s: float) -> None:
        if exchange.response is None:
            exchange.response, exchange.ready_s = response, left_s
        if self._writable:
            exchange.measurements.add(exchange, left_s, left_s)
        else:
            self._unsent.append((exchange, left_s))

    def _throttle(self, throttle_time_ms: int) -> None:
        """Mutes the client, whose response contains the throttle time (KIP-219). Among pipelined requests the longest
        throttle time counts."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + throttle_time_ms / 1000
        if self._throttle_timer is not None:
            if until_s <= self._throttled_until_s:
                return
            self._throttle_timer.cancel()
        self._is_muted = True
        self._throttled_until_s = until_s
        self._wait_for_throttle()

    def _wait_for_throttle(self) -> None:
        loop = asyncio.get_running_loop()
        self._throttle_timer = loop.call_at(
            min(self._throttled_until_s, loop.time() + HANG_UP_CHECK_S), self._throttle_goes_on
        )

    def _throttle_goes_on(self) -> None:
        if asyncio.get_running_loop().time() < self._throttled_until_s:
            self._wait_for_throttle()
            if self.idle and not self.transport.is_closing() and _has_hung_up(self.descriptor):
                self.transport.abort()
            return
        self._is_muted = False
        self._throttle_timer = None
        self._start_requests()
        self._adjust_reading()

    def _adjust_reading(self) -> None:
        if self._awaits_turn_for_bytes and self._may_receive_large():
            first_bytes, self._awaits_turn_for_bytes = self._awaits_turn_for_bytes, 0
            self._take_memory(first_bytes)
        limits = self._server.limits
        wanted = (
            self._writable
            and not self._is_muted
            and len(self._waiting) + len(self._exchanges) < limits.max_in_flight
            and self._held_bytes < limits.max_in_flight_bytes
            and not self._awaits_turn_for_bytes
            and not self._awaits_memory
            and not (self._held_bytes and (self._small_requests.is_full or self._request_queue.is_full))
        )
        if wanted != self._reading and not self.transport.is_closing():
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _count_queued(self) -> None:
        # A muted client's requests do not count, so that a throttled client does not use up the queue of the others.
        queued = 0 if self._is_muted else len(self._waiting)
        self._request_queue.add(queued - self._queued)
        self._queued = queued

    def drain(self) -> None:
        """Accepts no further request; closes once the started requests are answered."""
        self._drop_waiting()
        if self.idle:
            self.transport.close()


class Traffic:
    """Counts of a listener since its start. `SocketServer` adds what its connections have counted since."""

    __slots__ = ("bytes_out", "connections", "dropped", "expired", "started", "unanswered")

    def __init__(self) -> None:
        # Requests that have started; of these, requests that never get a response; requests that never start.
        self.started = self.unanswered = self.dropped = 0
        # Bytes of responses, without TLS.
        self.bytes_out = 0
        # Connections accepted, and connections closed because they were idle.
        self.connections = self.expired = 0


def _has_hung_up(descriptor: int) -> bool:
    """Whether the other end has closed the connection and nothing is left to read. In a simulation, `descriptor` is
    -1."""
    if descriptor < 0:
        return False
    connected = socket.socket(fileno=descriptor)
    try:
        return not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connected.detach()


def _nothing() -> None:
    pass
