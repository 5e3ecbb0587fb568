"""A toy broker that misbehaves on command."""

import asyncio
import contextlib

import uvloop

from klamm.client.cluster import RetryPolicy
from klamm.net.framing import FrameReader
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey, request_class, response_class

FAST = RetryPolicy(deadline_ms=5_000, backoff_ms=1, max_backoff_ms=5)


class ToyConnection(FrameReader):
    def __init__(self, broker):
        super().__init__(lambda _: 10_000_000)
        self.broker = broker

    def connection_made(self, transport):
        super().connection_made(transport)
        self.transport = transport
        self.broker.connections.append(self)

    def frame_error(self, reason):
        assert self.broker.hang_up_on_garbage, reason
        self.transport.close()

    def frame_received(self, frame):
        header = messages.parse_request_header(frame)
        body = None
        low, high = self.broker.versions.get(header.api_key, (0, -1))
        if low <= header.api_version <= high:
            body = messages.decode_request(header.api_key, header.api_version, frame, header.body_position)
        self.broker.received(self, header, body)

    def answer(self, header, message, version=None):
        version = header.api_version if version is None else version
        self.transport.writelines(messages.encode_response(header.api_key, version, header.correlation_id, message))


class ToyBroker:
    """Answers ApiVersions; all else goes to `handler(connection, header, body)`, or into `requests`."""

    def __init__(self, handler=None, versions=None):
        self.versions = {key: (messages.ADVERTISED_MIN[key], high) for key, high in messages.ADVERTISED_MAX.items()}
        self.versions |= versions or {}
        self.handler = handler or (
            lambda connection, header, body: self.requests.put_nowait((connection, header, body))
        )
        self.hang_up_on_garbage = False
        self.requests = asyncio.Queue()
        self.connections = []
        self.headers = []

    async def start(self, port=0, ssl=None):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: ToyConnection(self), "127.0.0.1", port, ssl=ssl)
        self.address = self.server.sockets[0].getsockname()
        return self

    def received(self, connection, header, body):
        self.headers.append(header)
        if header.api_key != ApiKey.API_VERSIONS:
            self.handler(connection, header, body)
            return
        response = response_class(ApiKey.API_VERSIONS)
        version = header.api_version if body is not None else 0
        connection.answer(
            header,
            response(
                error_code=0 if body is not None else ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[
                    response.ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in self.versions.items()
                ],
            ),
            version,
        )

    def stop(self):
        self.server.close()
        for connection in self.connections:
            connection.transport.abort()


def run(test, timeout_s=60):
    async def bounded():
        async with asyncio.timeout(timeout_s):
            await test()

    # The production loop's transports differ from asyncio's in when they call what.
    for new_event_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(bounded())


@contextlib.asynccontextmanager
async def toy(*, ssl=None, **arguments):
    broker = await ToyBroker(**arguments).start(ssl=ssl)
    try:
        yield broker
    finally:
        broker.stop()


def heartbeat(group="g"):
    return lambda version: request_class(ApiKey.HEARTBEAT)(group_id=group, generation_id=1, member_id="m")


def heartbeat_response(version, error_code=0):
    return response_class(ApiKey.HEARTBEAT)(throttle_time_ms=0, error_code=error_code)


def echo_group_length(connection, header, body):
    connection.answer(header, heartbeat_response(header.api_version, len(body.group_id)))
