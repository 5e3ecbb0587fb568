"""A broker that answers by script, on a port of its own: what a test needs of one, misbehaviour included.

    async with ScriptedBroker(lambda asked: response) as broker:    # a message for each request; None: no answer now
    async with ScriptedBroker() as broker:                          # the test takes each request, and answers it
        asked = await broker.next(ApiKey.FETCH)
        asked.answer(FetchResponse(...))

The broker answers ApiVersions by itself.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

from klamm.net.framing import FrameReader
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import RequestHeader
from klamm.znodes.brokers import BrokerRegistration, Endpoint


class Asked(NamedTuple):
    """A request, and the way to answer it."""

    connection: "ScriptedConnection"
    header: RequestHeader
    body: Any

    def answer(self, message: Any) -> None:
        self.connection.answer(self.header, message)

    def hang_up(self) -> None:
        self.connection.transport.abort()


Script = Callable[[Asked], Any]


class ScriptedBroker:
    """`asked` has every request, and `headers` that of ApiVersions, too. `versions` changes what ApiVersions says.

    `lost` gets each connection that has ended. Garbage fails the test, unless `hang_up_on_garbage`.
    """

    asked_class = Asked

    def __init__(
        self,
        script: Script | None = None,
        *,
        versions: dict[ApiKey, tuple[int, int]] | None = None,
        ssl: ssl.SSLContext | None = None,
    ) -> None:
        self.versions = {key: (messages.ADVERTISED_MIN[key], newest) for key, newest in messages.ADVERTISED_MAX.items()}
        self.versions |= versions or {}
        self.script = script or self._leave_it_to_the_test
        self.hang_up_on_garbage = False
        self.asked: list[Asked] = []
        self.headers: list[RequestHeader] = []
        self.requests: asyncio.Queue[Asked] = asyncio.Queue()
        self.connections: list[ScriptedConnection] = []
        self.lost: asyncio.Queue[ScriptedConnection] = asyncio.Queue()
        self._ssl = ssl
        self.server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> Self:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: ScriptedConnection(self), "127.0.0.1", port, ssl=self._ssl)
        self.address: tuple[str, int] = self.server.sockets[0].getsockname()
        self.port = self.address[1]
        return self

    def stop(self) -> None:
        """Hangs up, and refuses connections."""
        if self.server is not None:
            self.server.close()
        self.cut()

    def cut(self) -> None:
        """Hangs up on every client."""
        for connection in self.connections:
            connection.transport.abort()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    async def next(self, api_key: ApiKey | None = None) -> Any:
        """The next request that waits for the test, which must be of this API."""
        asked = await self.requests.get()
        assert api_key in (None, asked.header.api_key), asked.header
        return asked

    def registration(self, broker_id: int = 1) -> BrokerRegistration:
        return BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", "127.0.0.1", self.port),))

    def received(self, connection: "ScriptedConnection", header: RequestHeader, body: Any) -> None:
        self.headers.append(header)
        if header.api_key == ApiKey.API_VERSIONS:
            connection.answer(header, self._supported(body is not None), None if body is not None else 0)
            return
        asked = self.asked_class(connection, header, body)
        self.asked.append(asked)
        message = self.script(asked)
        if message is not None:
            asked.answer(message)

    def _leave_it_to_the_test(self, asked: Asked) -> None:
        self.requests.put_nowait(asked)

    def _supported(self, version_is_known: bool) -> Any:
        response = messages.response_class(ApiKey.API_VERSIONS)
        return response(
            error_code=ErrorCode.NONE if version_is_known else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                response.ApiVersion(api_key=key, min_version=oldest, max_version=newest)
                for key, (oldest, newest) in self.versions.items()
            ],
        )


class ScriptedConnection(FrameReader):
    """`opened_s`: when, on the loop's clock. `closed` is set at its end."""

    transport: asyncio.Transport

    def __init__(self, broker: ScriptedBroker) -> None:
        super().__init__(lambda _: 100_000_000)
        self._broker = broker
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.opened_s = asyncio.get_running_loop().time()
        self._broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._broker.lost.put_nowait(self)

    def frame_error(self, reason: str) -> None:
        assert self._broker.hang_up_on_garbage, reason
        self.transport.close()

    def frame_received(self, frame: bytearray) -> None:
        header = messages.parse_request_header(frame)
        oldest, newest = self._broker.versions.get(header.api_key, (0, -1))
        body = None
        if oldest <= header.api_version <= newest:
            body = messages.decode_request(header.api_key, header.api_version, frame, header.body_position)
        self._broker.received(self, header, body)

    def answer(self, header: RequestHeader, message: Any, version: int | None = None) -> None:
        version = header.api_version if version is None else version
        buffers = messages.encode_response(header.api_key, version, header.correlation_id, message)
        self.transport.writelines(map(bytes, buffers))
