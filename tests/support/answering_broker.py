"""A broker that answers each request as a test says, and keeps what it was asked."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from klamm.net.framing import FrameReader
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.messages import RequestHeader
from klamm.znodes.brokers import BrokerRegistration, Endpoint


class Asked(NamedTuple):
    header: RequestHeader
    body: Any


class AnsweringBroker:
    """`async with AnsweringBroker(answer) as broker:`. `answer(header, body)` makes the response, or None."""

    def __init__(self, answer: Callable[[RequestHeader, Any], Any]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.connections: list[_Connection] = []

    async def __aenter__(self) -> "AnsweringBroker":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for connection in self.connections:
            connection.transport.abort()

    def registration(self, broker_id: int) -> BrokerRegistration:
        return BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", "127.0.0.1", self.port),))


class _Connection(FrameReader):
    def __init__(self, broker: AnsweringBroker) -> None:
        super().__init__(lambda _: 1_000_000)
        self._broker = broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self._broker.connections.append(self)

    def frame_error(self, reason: str) -> None:
        raise AssertionError(reason)

    def frame_received(self, frame: bytearray) -> None:
        header = messages.parse_request_header(frame)
        body = messages.decode_request(header.api_key, header.api_version, frame, header.body_position)
        if header.api_key is ApiKey.API_VERSIONS:
            response = messages.response_class(ApiKey.API_VERSIONS)
            versions = [
                response.ApiVersion(api_key=key, min_version=messages.ADVERTISED_MIN[key], max_version=newest)
                for key, newest in messages.ADVERTISED_MAX.items()
            ]
            answer = response(error_code=0, api_keys=versions)
        else:
            self._broker.asked.append(Asked(header, body))
            answer = self._broker.answer(header, body)
        if answer is not None:
            self.transport.writelines(
                map(bytes, messages.encode_response(header.api_key, header.api_version, header.correlation_id, answer))
            )
