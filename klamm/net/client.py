"""The wire client: one connection to a broker, with many requests in flight that are answered in order.

`cluster.py` builds a client of a whole cluster on it.

What must stay true:
- Requests leave in the order of the calls of `send`; at most `max_in_flight` wait for their responses, and while the
  broker does not read, no further request is written.
- Every request ends: with its response, or with a `ClientError` that says why. A connection that ends for any reason
  fails all of its requests. A request that times out ends its connection, because responses come in order and the later
  ones would wait just as long.
- Responses are checked as strictly as requests: a malformed response closes the connection.
- A broker that is not trusted, or that refuses the client's identity, raises `AuthenticationFailed` before the first
  request; a retry does not help.
- Where sessions expire (KIP-368) the client authenticates again before the expiry, between two requests.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import klamm
from klamm.base.slices import Steps, in_slices
from klamm.net.framing import FrameReader, ReceiveBuffer
from klamm.net.tls import NO_TLS, explain
from klamm.protocol.apis.api_versions import ApiVersionsRequest
from klamm.protocol.apis.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import (
    ADVERTISED_MAX,
    ADVERTISED_MIN,
    ApiKey,
    InvalidFrame,
    decode_response,
    encode_request,
    encode_request_body_steps,
    parse_correlation_id,
    response_steps,
)
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Answered

# How long a closed connection may take to send its written bytes before it is cut off.
CLOSE_TIMEOUT_MS = 1_000

# The client authenticates again after this share of a session's life. The rest is a margin for delays (KIP-368).
SESSION_SHARE = 0.85
# Kafka's brokers refuse a second authentication within a second of the last one. A shorter session, whose token expires
# soon, ends with the connection.
LEAST_SESSION_S = 1

# Makes a request in the version that the broker and the client have in common.
Response = TypeVar("Response")
BuildRequest = Callable[[int], Answered[Response]]
Address = tuple[str, int]


class ClientError(Exception):
    """A request got no response. The message names the broker and the reason."""


class NotSent(ClientError):
    """The connection had ended before the request was written."""


class ConnectFailed(NotSent):
    """The connection could not be opened: the port is closed, the host is unknown, or a program other than a broker
    answers."""


class Avoided(NotSent):
    """The broker is known not to answer (`ClusterClient.avoid`), so that no retry helps for now."""


class NoAnswer(ConnectFailed):
    """No answer came in time: the host is out of reach, or the program at the port hangs or says nothing."""


class Disconnected(ClientError):
    """The connection ended; whether the broker has executed the request is unknown."""


class HungUp(Disconnected):
    """The broker closed the connection on the first request. A broker that requires SASL does this to a client without
    SASL."""


class RequestTimedOut(Disconnected):
    """No response came in time, so the connection was closed."""


class InvalidResponse(Disconnected):
    """The broker's answer is not a valid response to the request, so the connection was closed."""


class AuthenticationFailed(ClientError):
    """Broker and client do not trust each other, or do not agree on how to authenticate (TLS, SASL)."""


class UnsupportedVersion(ClientError):
    """The broker and the client have no version of the API in common."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to speak to a broker.

    `authenticate` runs on a fresh connection after the versions are known and before it is used, and again before the
    session ends. It sends with `Connection.exchange`, returns after how many milliseconds the session ends (0: never),
    and raises AuthenticationFailed when the broker refuses. Without `negotiate_versions` no ApiVersions is sent, and
    every request must name its version (so do brokers among themselves). `socket_receive_buffer_bytes` is SO_RCVBUF; 0
    and less leave it to the system. `connect_timeout_max_ms`: what `connect_timeout_ms` grows to (see `Connector`).
    """

    client_id: str | None = "klamm"
    connect_timeout_ms: int = 10_000
    connect_timeout_max_ms: int = 30_000
    request_timeout_ms: int = 30_000
    max_in_flight: int = 5
    max_response_bytes: int = 128 * 1024 * 1024
    socket_receive_buffer_bytes: int = -1
    negotiate_versions: bool = True
    ssl_context: ssl.SSLContext | None = None
    authenticate: "Callable[[Connection], Awaitable[int]] | None" = None


@dataclass(slots=True)
class _Pending:
    """A request without a response yet. Once its future is done, the caller no longer waits."""

    correlation_id: int
    api_key: ApiKey
    version: int
    response: "asyncio.Future[Any]"
    timer: asyncio.TimerHandle
    timeout_ms: int


class Connection(FrameReader):
    """One connection to a broker. Made by `connect`."""

    def __init__(self, address: Address, options: ConnectionOptions, receive_buffer: ReceiveBuffer | None) -> None:
        super().__init__(lambda _: options.max_response_bytes, receive_buffer)
        self.address = address
        self.api_versions: dict[int, tuple[int, int]] | None = None
        # The versions are known and the client is authenticated.
        self.ready = False
        self._first_correlation_id = 0  # of the first request once `ready`
        self._authenticate_at_s: float | None = None  # the loop's clock
        self._options = options
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()
        # The send lock: senders take it in order, and its holder waits until the connection is writable.
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._writable = True
        # Set while the broker throttles this client.
        self._throttled: asyncio.TimerHandle | None = None
        self._throttled_until_s = 0.0
        self._end: ClientError | None = None
        self._cut_off: asyncio.TimerHandle | None = None
        self._lost = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def connected(self) -> bool:
        return self._end is None

    @property
    def has_broken_off(self) -> bool:
        """Whether the connection was closed because the broker's answer is not a valid response."""
        return isinstance(self._end, InvalidResponse)

    def unanswered(self, longer_than_s: float) -> str | None:
        """The API of the oldest request if it has waited for longer than this. A request that may wait at the broker,
        such as a Fetch or a JoinGroup, has that time more."""
        if not self._pending:
            return None
        oldest = self._pending[0]
        allowed_s = longer_than_s + max(0, oldest.timeout_ms - self._options.request_timeout_ms) / 1000
        since_s = oldest.timer.when() - oldest.timeout_ms / 1000
        return oldest.api_key.message_name if asyncio.get_running_loop().time() - since_s > allowed_s else None

    @property
    def was_open(self) -> bool:
        """Whether a program listens at the address, whatever it answered."""
        return self._transport is not None

    async def send(
        self,
        api_key: ApiKey,
        build: BuildRequest[Response],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        expect_response: bool = True,
        body: Sequence[Buffer] | None = None,
    ) -> Response:
        """Sends the request that `build` makes for `version`, and returns the response.

        The version is the highest common one unless given. `body` is the request's encoded body, if the caller has it.
        If no response is expected (produce with acks=0), returns None as soon as the request is written. Raises
        NotSent, Disconnected (RequestTimedOut, InvalidResponse) or UnsupportedVersion; AuthenticationFailed if a
        session has expired and the broker refuses a new one.
        """
        if version is None:
            version = self.version_of(api_key)
        request = build(version)
        if body is None and (body_steps := encode_request_body_steps(api_key, version, request)) is not None:
            body = await in_slices(body_steps)
        async with self._turn:
            while self._end is None and (
                len(self._pending) >= self._options.max_in_flight or not self._writable or self._throttled is not None
            ):
                self._room = asyncio.get_running_loop().create_future()
                await self._room
            if self._authenticate_at_s is not None and self._end is None:
                await self._renew_session(self._authenticate_at_s)
            if self._end is not None:
                raise NotSent(*self._end.args)
            response = self._write(api_key, version, request, timeout_ms, expect_response, body)
        if response is None:
            return cast(Response, None)
        message = await response
        return cast(Response, await self._decode_in_slices(message) if isinstance(message, Generator) else message)

    async def round_trip(self) -> None:
        """Returns when the broker has read every earlier request. Raises like `send`."""
        await self.send(ApiKey.API_VERSIONS, _versions_request)

    async def _decode_in_slices(self, steps: Steps[Any]) -> Any:
        try:
            message = await in_slices(steps)
        except InvalidFrame as error:
            invalid = InvalidResponse(f"{self}: {error}")
            self._abort(invalid)
            raise _again(invalid) from None
        self._heed_throttle(message)
        return message

    def limit_receive_buffer(self) -> None:
        """Sets the socket's receive buffer to `socket_receive_buffer_bytes`."""
        size_bytes = self._options.socket_receive_buffer_bytes
        if size_bytes > 0 and self._transport is not None:
            connected: socket.socket | None = self._transport.get_extra_info("socket")
            if connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)

    async def authenticate(self) -> None:
        """Authenticates at the broker with the given options. The caller holds the send lock."""
        if self._options.authenticate is not None:
            session_ms = await self._options.authenticate(self)
            now_s = asyncio.get_running_loop().time()
            again_in_s = max(session_ms / 1000 * SESSION_SHARE, LEAST_SESSION_S)
            self._authenticate_at_s = now_s + again_in_s if session_ms > 0 else None
        self.ready = True
        self._first_correlation_id = self._next_correlation_id

    async def exchange(self, api_key: ApiKey, build: BuildRequest[Response]) -> Response:
        """Like `send`, for use during authentication, which already holds the send lock."""
        if self._end is not None:
            raise NotSent(*self._end.args)
        version = self.version_of(api_key)
        response = self._write(api_key, version, build(version), None, True)
        assert response is not None
        return cast(Response, await response)

    def version_of(self, api_key: ApiKey) -> int:
        """The highest version of an API that the broker and the client have in common. Raises UnsupportedVersion."""
        if self.api_versions is None:
            raise UnsupportedVersion(f"{self}: the versions of {api_key.message_name} were not asked for")
        low, high = self.api_versions.get(api_key, (0, -1))
        version = min(high, ADVERTISED_MAX[api_key])
        if version < max(low, ADVERTISED_MIN[api_key]):
            if high < 0:
                raise UnsupportedVersion(
                    f"{self}: {api_key.message_name} ({int(api_key)}) is not served by this broker"
                )
            ours = f"{ADVERTISED_MIN[api_key]} to {ADVERTISED_MAX[api_key]}"
            api = f"{api_key.message_name} ({int(api_key)})"
            raise UnsupportedVersion(f"{self}: {api}: the broker has {low} to {high}, klamm {ours}")
        return version

    def close(self, reason: str = "closed by this client") -> None:
        """Ends the connection once all written bytes are sent; requests without a response fail. Idempotent."""
        if self._end is None and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._cut_off = loop.call_later(CLOSE_TIMEOUT_MS / 1000, self._transport.abort)
            self._transport.close()
        self._abort(Disconnected(f"{self}: {reason}"))

    async def wait_closed(self) -> None:
        """Returns when the transport is gone."""
        await asyncio.shield(self._lost)

    # -- called by the transport ----------------------------------------------------------------------------------

    def frame_received(self, frame: bytearray) -> None:
        try:
            correlation_id = parse_correlation_id(frame)
            if not self._pending or self._pending[0].correlation_id != correlation_id:
                expected = self._pending[0].correlation_id if self._pending else "none"
                raise InvalidFrame(f"a response to request {correlation_id}, expected is {expected}", 0)
            pending = self._pending[0]
            # The waiting sender decodes a large response.
            response = response_steps(pending.api_key, pending.version, frame) or decode_response(
                pending.api_key, pending.version, frame
            )
        except InvalidFrame as error:
            self._abort(InvalidResponse(f"{self}: {error}"))
            return
        self._pending.popleft()
        pending.timer.cancel()
        if not isinstance(response, Generator):
            self._heed_throttle(response)
        if not pending.response.done():
            pending.response.set_result(response)
        self._make_room()

    def frame_error(self, reason: str) -> None:
        if self.received_tls and not self.ready:
            self._abort(AuthenticationFailed(f"{self}: the broker speaks TLS at this port; see security.protocol"))
        self._abort(InvalidResponse(f"{self}: {reason}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        if isinstance(exc, ssl.SSLError) and not self.ready:
            # With TLS 1.3 the client learns only now that the broker does not trust it.
            self._abort(AuthenticationFailed(f"{self}: {explain(exc, self.address[0])}"))
        reason = "the broker closed the connection" if exc is None else f"connection lost: {exc}"
        if not self.ready and self.api_versions is None and self._options.ssl_context is None:
            reason += " without an answer (so do brokers that speak TLS at this port; see security.protocol)"
        kind = HungUp if exc is None and self._may_want_sasl() else Disconnected
        self._abort(kind(f"{self}: {reason}{' in the middle of a response' if self.mid_frame else ''}"))
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._make_room()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _may_want_sasl(self) -> bool:
        """Whether the broker supports SASL, the client did not use it, and only ApiVersions was answered so far."""
        return (
            self._options.authenticate is None
            and ApiKey.SASL_HANDSHAKE in (self.api_versions or ())
            and bool(self._pending)
            and self._pending[0].correlation_id == self._first_correlation_id
        )

    async def _renew_session(self, authenticate_at_s: float) -> None:
        """Authenticates again if it is time. A failure ends the connection: the broker may be waiting for the rest."""
        if asyncio.get_running_loop().time() < authenticate_at_s:
            return
        try:
            await self.authenticate()
        except Disconnected as error:
            raise NotSent(*error.args) from None
        except BaseException:
            self._abort(Disconnected(f"{self}: the session was not renewed"))
            raise

    def _write(
        self,
        api_key: ApiKey,
        version: int,
        request: Any,
        timeout_ms: int | None,
        expect_response: bool,
        body: Sequence[Buffer] | None = None,
    ) -> "asyncio.Future[Any] | None":
        loop = asyncio.get_running_loop()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request(api_key, version, correlation_id, self._options.client_id, request, body)
        assert self._transport is not None
        self._transport.writelines(buffers)
        if not expect_response:
            return None
        if timeout_ms is None:
            timeout_ms = self._options.request_timeout_ms
        timer = loop.call_later(timeout_ms / 1000, self._timed_out, api_key, timeout_ms)
        pending = _Pending(correlation_id, api_key, version, loop.create_future(), timer, timeout_ms)
        self._pending.append(pending)
        return pending.response

    def _timed_out(self, api_key: ApiKey, timeout_ms: int) -> None:
        self._abort(RequestTimedOut(f"{self}: no response to {api_key.message_name} within {timeout_ms} ms"))

    def _heed_throttle(self, response: Any) -> None:
        """A broker that throttles this client does not read from it for the throttle time (KIP-219). The client sends
        nothing for that time, but no longer than a request may take. Pending requests get that time more."""
        throttle_time_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_time_ms <= 0 or self._end is not None:
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(throttle_time_ms, self._options.request_timeout_ms) / 1000
        if self._throttled is not None:
            if until_s <= self._throttled_until_s:
                return
            self._throttled.cancel()
        self._throttled_until_s = until_s
        self._throttled = loop.call_at(until_s, self._throttle_is_over)
        for pending in self._pending:
            pending.timer.cancel()
            pending.timer = loop.call_at(
                until_s + pending.timeout_ms / 1000, self._timed_out, pending.api_key, pending.timeout_ms
            )

    def _throttle_is_over(self) -> None:
        self._throttled = None
        self._make_room()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _abort(self, error: ClientError) -> None:
        """Ends the connection: every request without a response fails with `error`."""
        if self._end is not None:
            return
        self._end = error
        for pending in self._pending:
            pending.timer.cancel()
            if not pending.response.done():
                pending.response.set_exception(_again(error))
        self._pending.clear()
        if self._throttled is not None:
            self._throttled.cancel()
        self._make_room()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()


def _again(error: ClientError) -> ClientError:
    """A copy of the error that ended a connection: each request raises a copy with its own traceback."""
    return type(error)(*error.args)


async def connect(
    host: str, port: int, options: ConnectionOptions | None = None, receive_buffer: ReceiveBuffer | None = None
) -> Connection:
    """Opens a connection, asks for the broker's versions and authenticates, as the options say.

    All this happens within `connect_timeout_ms`. Raises ConnectFailed, AuthenticationFailed, and what `authenticate`
    raises.
    """
    options = options or ConnectionOptions()
    address = (host, port)
    connection = Connection(address, options, receive_buffer)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            try:
                await loop.create_connection(lambda: connection, host, port, ssl=options.ssl_context)
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise
            except ssl.SSLError as error:
                raise AuthenticationFailed(f"{connection}: {explain(error, host)}") from None
            except (ValueError, OverflowError) as error:
                # An impossible host or port: metadata passes on whatever a broker advertises.
                raise NotSent(f"{connection}: {error}") from error
            connection.limit_receive_buffer()
            if options.negotiate_versions:
                connection.api_versions = await _ask_versions(connection)
            await connection.authenticate()
    except TimeoutError:
        connection.close()
        what = "a connection, but no answer of a Kafka broker," if connection.was_open else "no connection"
        raise NoAnswer(f"{connection}: {what} within {options.connect_timeout_ms} ms") from None
    except OSError as error:
        hung_up = isinstance(error, (ConnectionResetError, ssl.SSLError))
        if options.ssl_context is not None and hung_up and await _speaks_plaintext(host, port, options):
            raise AuthenticationFailed(f"{connection}: {NO_TLS}") from None
        raise ConnectFailed(f"{connection}: {_why_not_connected(error)}") from error
    except (NotSent, Disconnected) as error:
        connection.close()
        told = str(error)
        # A program that speaks first, as an SSH server does, may have ended the connection before the first request.
        if connection.api_versions is None and connection.has_broken_off:
            told = f"{connection}: not a Kafka broker, its answer is {told.removeprefix(f'{connection}: ')}"
        raise ConnectFailed(told) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _why_not_connected(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused, no program listens at this port"
        case socket.gaierror():
            return f"unknown host: {error.strerror}"
        case _:
            return str(error) or "the broker closed the connection"


class Connector:
    """Opens one connection after another to a broker. The time for the setup doubles with every failure in a row
    (socket.connection.setup.timeout.ms, socket.connection.setup.timeout.max.ms)."""

    def __init__(
        self, options: ConnectionOptions, max_timeout_ms: int, receive_buffer: ReceiveBuffer | None = None
    ) -> None:
        """`options.connect_timeout_ms` is the time for the first connection."""
        self._options = options
        self._max_timeout_ms = max_timeout_ms
        self._receive_buffer = receive_buffer
        self._address: Address | None = None
        self._failures = 0

    @property
    def timeout_ms(self) -> int:
        """The time for the next connection to the same broker."""
        return min(self._options.connect_timeout_ms << min(self._failures, 30), self._max_timeout_ms)

    async def connect(self, host: str, port: int, *, at_most_ms: int | None = None) -> Connection:
        """Like the function `connect`, within `at_most_ms`. Failures at another address do not count."""
        if self._address != (host, port):
            self._address, self._failures = (host, port), 0
        timeout_ms = self.timeout_ms if at_most_ms is None else min(self.timeout_ms, at_most_ms)
        options = replace(self._options, connect_timeout_ms=timeout_ms)
        try:
            connection = await connect(host, port, options, self._receive_buffer)
        except ClientError:
            self._failures += 1
            raise
        self._failures = 0
        return connection


async def _speaks_plaintext(host: str, port: int, options: ConnectionOptions) -> bool:
    """Whether a broker that hung up on a TLS handshake answers without TLS. If not, it may just be stopping."""
    plain = replace(options, client_id=None, negotiate_versions=True, ssl_context=None, authenticate=None)
    try:
        connection = await connect(host, port, plain)
    except ClientError:
        return False
    connection.close()
    return True


async def check_sasl(host: str, port: int, options: ConnectionOptions) -> None:
    """Asks a broker that has hung up whether it requires SASL. If so, retries do not help: raises
    AuthenticationFailed."""

    async def ask(connection: Connection) -> int:
        response = await connection.exchange(
            ApiKey.SASL_HANDSHAKE, lambda version: SaslHandshakeRequest(mechanism="PLAIN")
        )
        if response.error_code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
            theirs = ", ".join(response.mechanisms)
            raise AuthenticationFailed(
                f"{connection}: the broker wants SASL at this port; see security.protocol and sasl.mechanism, it has:"
                f" {theirs}"
            )
        return 0

    try:
        connection = await connect(host, port, replace(options, authenticate=ask))
    except (NotSent, Disconnected, UnsupportedVersion):
        return
    connection.close()


def _versions_request(version: int) -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="klamm", client_software_version=klamm.__version__)


async def _ask_versions(connection: Connection) -> dict[int, tuple[int, int]]:
    """The versions of each API that the broker has, by API number."""

    version = ADVERTISED_MAX[ApiKey.API_VERSIONS]
    response = await connection.send(ApiKey.API_VERSIONS, _versions_request, version=version)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # An older broker returns its versions of ApiVersions; before 2.4 it returned none. Every broker has version 0.
        theirs = {entry.api_key: entry.max_version for entry in response.api_keys}
        version = min(version, theirs.get(ApiKey.API_VERSIONS, 0))
        response = await connection.send(ApiKey.API_VERSIONS, _versions_request, version=version)
    if response.error_code != ErrorCode.NONE:
        code = ErrorCode(response.error_code)
        raise ConnectFailed(f"{connection}: ApiVersions was refused with {code.name} ({int(code)})")
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
