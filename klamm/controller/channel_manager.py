"""The controller's connections: a queue of requests for each broker, sent one after another (Kafka's
`ControllerChannelManager`, `RequestSendThread`).

What must stay true:
- A broker gets its requests in the order in which they were queued, the next one after the response to the last. No
  request is skipped: one that fails is sent again, on a new connection, until there is a response or the broker is
  removed. So a broker may get a request twice; epochs tell it so.
- After `remove_broker` and `shutdown` no response reaches its callback any more.
- A callback only queues an event. What it raises is a fault of the program.
- Topics are encoded in slices, so that the loop serves others in between.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from klamm.config.broker import BrokerConfig
from klamm.controller.send_queue import SendQueue
from klamm.controller.slices import SLICE, Turns
from klamm.metrics import Histogram
from klamm.net.client import Address, ClientError, Connection, ConnectionOptions, connect
from klamm.net.framing import ReceiveBuffer
from klamm.protocol import leader_and_isr, stop_replica, update_metadata
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.tasks import OnFailure, start_task
from klamm.znodes.brokers import BrokerRegistration

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100

OnResponse = Callable[[Any], None]


class ControllerChannelManager:
    """The channels of the controller `broker_id` to the brokers that are alive or shutting down."""

    def __init__(self, config: BrokerConfig, broker_id: int, on_failure: OnFailure) -> None:
        self._protocol = config.inter_broker_protocol_version
        self._listener_name = config.control_listener_name
        self._options = ConnectionOptions(
            client_id=str(broker_id),
            connect_timeout_ms=config.controller_socket_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_in_flight=1,
            negotiate_versions=False,
        )
        self._on_failure = on_failure
        self._receive_buffer = ReceiveBuffer()
        self._channels: dict[int, _Channel] = {}
        self._turns = Turns()

    def add_broker(self, broker: BrokerRegistration) -> None:
        """Opens a channel to the broker, unless it has one. A broker without the listener that it needs gets none."""
        if broker.broker_id in self._channels:
            return
        for endpoint in broker.endpoints:
            if endpoint.listener_name == self._listener_name:
                address = (endpoint.host, endpoint.port)
                channel = _Channel(broker.broker_id, address, self._options, self._receive_buffer, self._turns)
                channel.start(self._on_failure)
                self._channels[broker.broker_id] = channel
                return
        listeners = ", ".join(endpoint.listener_name for endpoint in broker.endpoints)
        logger.error(
            "broker %d gets no requests of the controller: it has no listener %s, only %s",
            broker.broker_id,
            self._listener_name,
            listeners,
        )

    def remove_broker(self, broker_id: int) -> None:
        """Closes the channel to the broker; what was not answered is dropped. Nothing happens if there is none."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.task.cancel()

    def send_request(self, broker_id: int, api_key: ApiKey, body: Any, on_response: OnResponse | None = None) -> None:
        """Queues a request; it is dropped, with a warning, if the broker has no channel.

        `on_response` gets the response, later and at most once.
        """
        channel = self._channels.get(broker_id)
        if channel is None:
            logger.warning("%s for broker %d is not sent: it is offline", api_key.message_name, broker_id)
            return
        version = inter_broker_version(api_key, self._protocol)
        put_at = asyncio.get_running_loop().time()
        channel.queue.put_nowait(_Request(api_key, version, body, on_response, put_at))

    def send_queues(self) -> dict[int, SendQueue]:
        """The channels as they are now, by broker."""
        return {broker_id: channel.described() for broker_id, channel in sorted(self._channels.items())}

    def queue_size(self, broker_id: int) -> int:
        """How many requests wait for the one that is being sent to this broker."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else channel.queue.qsize()

    async def shutdown(self) -> None:
        """Closes all channels; returns when none does anything any more."""
        channels = list(self._channels.values())
        for channel in channels:
            self.remove_broker(channel.broker_id)
        await asyncio.gather(*(channel.task for channel in channels), return_exceptions=True)


class _Request(NamedTuple):
    api_key: ApiKey
    version: int
    body: Any
    on_response: OnResponse | None
    put_at: float


class _Channel:
    """One broker's queue and connection, and the task that sends. It ends by being cancelled."""

    task: "asyncio.Task[None]"

    def __init__(
        self,
        broker_id: int,
        address: Address,
        options: ConnectionOptions,
        receive_buffer: ReceiveBuffer,
        turns: Turns,
    ) -> None:
        self.broker_id = broker_id
        self._turns = turns
        self.queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._address = address
        self._options = options
        self._receive_buffer = receive_buffer
        self._connection: Connection | None = None
        self._time_ms = Histogram()
        self._sending: _Request | None = None
        self._sending_since = 0.0
        self._trouble = ""

    def described(self) -> SendQueue:
        sending, now = self._sending, asyncio.get_running_loop().time()
        return SendQueue(
            self.queue.qsize(),
            None if sending is None else sending.api_key.message_name,
            0.0 if sending is None else (now - self._sending_since) * 1000,
            self._trouble,
            self._time_ms,
        )

    def start(self, on_failure: OnFailure) -> None:
        self.task = start_task(self._send_all(), on_failure)

    async def _send_all(self) -> None:
        try:
            while True:
                request = self._sending = await self.queue.get()
                self._sending_since = asyncio.get_running_loop().time()
                self._time_ms.update(round((self._sending_since - request.put_at) * 1000, 3))
                await self._encode_topics(request)
                await self._turns.wait()
                response = await self._send(request)
                if self._trouble:
                    logger.info("broker %d has answered %s", self.broker_id, request.api_key.message_name)
                self._sending, self._trouble = None, ""
                if request.on_response is not None:
                    request.on_response(response)
        finally:
            self._disconnect()

    async def _encode_topics(self, request: _Request) -> None:
        """Has the topics of a request encoded, and kept, before the request as a whole is."""
        codec = _CODECS.get(request.api_key)
        if codec is None:
            return
        left = SLICE
        for topic in request.body.topics:
            for start in range(0, len(topic.partitions), SLICE):
                states = topic.partitions[start : start + SLICE]
                if len(states) > left:
                    await self._turns.wait()
                    left = SLICE
                left -= len(states)
                codec.encode_states(request.version, states)
            codec.encode_topic(request.version, topic)

    async def _send(self, request: _Request) -> Any:
        """The response, however often the request must be sent for it."""
        while True:
            try:
                connection = await self._connected()
                return await connection.send(request.api_key, lambda _: request.body, version=request.version)
            except ClientError as error:
                # The same reason ten times a second says no more than once.
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    name = request.api_key.message_name
                    logger.warning("%s for broker %d is sent again: %s", name, self.broker_id, error)
            self._disconnect()
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.connected:
            self._connection = None
            self._connection = await connect(*self._address, self._options, self._receive_buffer)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_CODECS: dict[ApiKey, Any] = {
    ApiKey.LEADER_AND_ISR: leader_and_isr,
    ApiKey.STOP_REPLICA: stop_replica,
    ApiKey.UPDATE_METADATA: update_metadata,
}
"""Of the requests with the states of many partitions."""
